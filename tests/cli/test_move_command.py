"""The command ``mv``: nodes of a hierarchy, whole hierarchies, and copies of documents above both places."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from zarrasync import sync
from zarrasync.cli import main


@pytest.fixture(params=[2, 3])
def hierarchy(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = sync.create_group("data.zarr", zarr_format=request.param)
    group.create_array("raw/day/t", data=np.arange(6), chunks=2)
    group.create_group("old")
    for path in ("raw", "old", ""):
        sync.consolidate_metadata("data.zarr", path=path)
    return tmp_path


def check(path: str) -> None:
    """The array is at a path, only there, also in all copies of documents."""
    np.testing.assert_array_equal(sync.open_array("data.zarr", path=path)[...], np.arange(6))
    names = [name for name, member in sync.open_group("data.zarr").members(None) if isinstance(member, sync.Array)]
    assert names == [path]
    assert [f for f in sync.validate("data.zarr").findings if f.severity != "note"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["data.zarr/raw/day/t", "data.zarr/old/new/t"],
        ["data.zarr", "data.zarr", "--path", "raw/day/t", "--dest-path", "old/new/t"],
        ["data.zarr/raw", "data.zarr", "--path", "day/t", "--dest-path", "old/new/t"],
        ["{here}/data.zarr/raw/day/t", "data.zarr/old/new/t/"],
        ["file://{here}/data.zarr/raw/day/t", "./data.zarr/raw/../old/new/t"],
    ],
)
def test_a_node_moves_with_its_copies(hierarchy, capsys, arguments):
    assert main(["mv", *(argument.format(here=hierarchy) for argument in arguments)]) == 0
    assert capsys.readouterr().out == "/raw/day/t is now /old/new/t\n"
    check("old/new/t")
    for path, member in (("raw", "day/t"), ("old", "new/t")):
        group = sync.open_group("data.zarr", path=path, use_consolidated=True)
        assert (member in group) == (path == "old")


def test_a_hierarchy_moves(hierarchy, capsys):
    assert main(["mv", "data.zarr", "archive/b.zarr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"source": "data.zarr", "dest": "archive/b.zarr"}
    assert not os.path.exists("data.zarr")
    assert main(["mv", "archive/b.zarr", "data.zarr"]) == 0
    check("raw/day/t")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.zarr/raw", "data.zarr/raw/day/x"], "one contains the other"),
        (["data.zarr/raw/day", "data.zarr/raw"], "one contains the other"),
        (["data.zarr", "data.zarr"], "has that place already"),
        (["data.zarr/raw", "data.zarr/old"], "a node exists at /old"),
        (["data.zarr", "other"], "which exists; erase it first"),
        (["data.zarr/raw", "s3://bucket/raw"], "are in different stores; use `zarrasync copy`"),
        (["data.zarr/rav", "data.zarr/x"], "cannot open"),
    ],
)
@pytest.mark.parametrize("hierarchy", [3], indirect=True)
def test_refusals_change_nothing(hierarchy, capsys, arguments, message):
    os.mkdir("other")
    assert main(["mv", *arguments]) == 1
    assert message in capsys.readouterr().err
    check("raw/day/t")


def test_nodes_and_hierarchies_in_a_bucket(s3, capsys):
    url, options = s3
    sync.create_array(f"{url}/a.zarr", path="x/t", data=np.arange(6), chunks=2, storage_options=options)
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    assert main(["mv", f"{url}/a.zarr/x", f"{url}/a.zarr/y", *words]) == 0
    assert main(["mv", f"{url}/a.zarr", f"{url}/b.zarr", *words]) == 0
    found = sync.open_array(f"{url}/b.zarr", path="y/t", storage_options=options)
    np.testing.assert_array_equal(found[...], np.arange(6))
    assert main(["info", f"{url}/a.zarr", *words]) == 1
