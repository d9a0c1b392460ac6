"""The commands ``attrs get`` and ``attrs set``: types of values, removal, and copies in the groups above."""

from __future__ import annotations

import io
import json
import sys

import pytest

from zarrasync import sync
from zarrasync.cli import main


@pytest.fixture(params=[2, 3])
def hierarchy(request, tmp_path, monkeypatch):
    """A hierarchy with copies of documents in the root and in the group ``raw``."""
    monkeypatch.chdir(tmp_path)
    group = sync.create_group("data.zarr", zarr_format=request.param, attributes={"title": "demo"})
    group.create_array("raw/mask", shape=3, dtype="i4", attributes={"units": "K", "n": 1, "flag": True})
    sync.consolidate_metadata("data.zarr", path="raw")
    sync.consolidate_metadata("data.zarr")
    return "data.zarr"


def attributes(store: str) -> dict:
    """Return the attributes of the array as its own document and both copies contain them, which must be equal."""
    found = [
        dict(sync.open_array(store, path="raw/mask").attrs),
        dict(sync.open_group(store, path="raw", use_consolidated=True)["mask"].attrs),
        dict(sync.open_group(store, use_consolidated=True)["raw/mask"].attrs),
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


def test_values_are_json_or_strings(hierarchy):
    values = {
        "K": "K",
        "air temperature": "air temperature",
        "1": 1,
        "1.0": 1.0,
        '"1.0"': "1.0",
        "true": True,
        "null": None,
        "[1, 2.5]": [1, 2.5],
        '{"a": [1]}': {"a": [1]},
        "NaN": "NaN",
        "-5": -5,
        "a=b": "a=b",
        "": "",
    }
    words = [f"key{number}={text}" for number, text in enumerate(values)]
    assert main(["attrs", "set", hierarchy, "--path", "raw/mask", *words]) == 0
    found = attributes(hierarchy)
    for number, value in enumerate(values.values()):
        assert json.dumps(found[f"key{number}"]) == json.dumps(value)  # 1, 1.0 and true differ


def test_types_survive_a_round_trip(hierarchy, capsys, monkeypatch):
    assert main(["attrs", "set", hierarchy, "n=1.0", "m=1", "--path", "raw/mask"]) == 0
    capsys.readouterr()
    assert main(["attrs", "get", hierarchy, "--path", "raw/mask"]) == 0
    text = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["attrs", "set", hierarchy, "--file", "-"]) == 0
    assert json.dumps(dict(sync.open_group(hierarchy).attrs)) == json.dumps({"title": "demo", **json.loads(text)})
    assert '"n": 1.0' in text
    assert '"m": 1,' not in text.replace('"m": 1\n', "")  # it remains an integer


def test_copies_above_the_url_are_updated(hierarchy, capsys):
    assert main(["attrs", "set", f"{hierarchy}/raw/mask", "a=1"]) == 0
    assert attributes(hierarchy)["a"] == 1
    assert main(["rm", f"{hierarchy}/raw/mask", "-y"]) == 0
    assert "/raw/mask: 1 node" in capsys.readouterr().out
    for path in ("", "raw"):
        assert not [name for name, _ in sync.open_group(hierarchy, path=path).members(None) if "mask" in name]
    assert sync.validate(hierarchy).findings == []


def test_removing_and_setting_is_one_change(hierarchy, capsys):
    assert main(["attrs", "set", hierarchy, "--path", "raw/mask", "--delete", "units", "--string", "n=1"]) == 0
    assert capsys.readouterr().out == "/raw/mask: 1 attribute set, 1 attribute removed\n"
    assert attributes(hierarchy) == {"n": "1", "flag": True}
    assert sync.validate(hierarchy).findings == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "unit"], "has no attribute 'unit'; did you mean 'units'?"),
        (["set", "--delete", "zzz"], "has no attribute 'zzz'; its attributes: units, n, flag"),
        (["set", "a=1", "--delete", "a"], "'a' is both set and deleted"),
        (["set", "a"], "must be KEY=VALUE, found 'a'"),
        (["set", "=a"], "must be KEY=VALUE"),
        (["set", "a=[1"], "the value of 'a' is not JSON"),
        (["set"], "nothing to change"),
        (["set", "--file", "list.json"], "list.json contains a JSON array; attributes are a JSON object"),
        (["set", "--file", "none.json"], "none.json"),
    ],
)
@pytest.mark.parametrize("hierarchy", [3], indirect=True)
def test_mistakes_change_nothing(hierarchy, tmp_path, capsys, arguments, message):
    (tmp_path / "list.json").write_text("[]")
    before = attributes(hierarchy)
    command, *others = arguments
    assert main(["attrs", command, hierarchy, "--path", "raw/mask", *others]) == 1
    assert message in capsys.readouterr().err
    assert attributes(hierarchy) == before


def test_raw_values_have_no_quotes(hierarchy, capsys):
    assert main(["attrs", "get", hierarchy, "units", "--path", "raw/mask", "--raw"]) == 0
    assert main(["attrs", "get", hierarchy, "--path", "raw/mask", "units"]) == 0
    assert main(["attrs", "get", hierarchy, "--path", "raw/mask", "n", "--raw"]) == 0
    assert capsys.readouterr().out.splitlines() == ["K", '"K"', "1"]


def test_json_shows_the_new_attributes(hierarchy, capsys):
    assert main(["attrs", "set", hierarchy, "b=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"title": "demo", "b": 2}
