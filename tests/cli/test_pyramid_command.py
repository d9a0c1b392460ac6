"""The command ``pyramid``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from zarrasync import sync
from zarrasync.bulk.pyramid.downsample import downsample
from zarrasync.cli import main
from zarrasync.metadata.conventions.cf_encoding import CFEncoding

VALUES = np.random.default_rng(0).integers(0, 1000, (2, 300, 200)).astype("i4")


@pytest.fixture
def url(tmp_path: Path) -> str:
    sync.create_array(tmp_path / "a.zarr", path="0", data=VALUES, chunks=(1, 100, 100))
    return str(tmp_path / "a.zarr")


def test_levels_are_added_to_the_group(url: str, capsys: pytest.CaptureFixture[str]):
    options = ["--scale", "y=0.5,x=0.5", "--units", "y=micrometer,x=micrometer", "--version", "0.6", "--method", "max"]
    command = ["pyramid", url, "--axes", "cyx", *options, "--factors", "y=3,x=2", "--levels", "3"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("1: 2 x 100 x 100: 1 block written, 78.1 KiB")
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(level["path"], level["blocks"], level["skipped"]) for level in report["levels"]] == [
        ("1", 0, 1),
        ("2", 0, 1),
    ]
    group = sync.open_group(url)
    assert group.info["Conventions"] == "OME-Zarr 0.6 image"
    assert group.info["Levels"] == "0 (y 0.5, x 0.5), 1 (y 1.5, x 1), 2 (y 4.5, x 2)"
    np.testing.assert_array_equal(sync.open_array(url, path="1")[...], downsample(VALUES, (1, 3, 2), "max"))


@pytest.mark.processes
def test_levels_are_written_to_a_destination(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    layout = ["--chunks", "1,50,50", "--shards", "none", "--missing", "0", "--levels", "2", "--processes", "2"]
    assert main(["pyramid", url, str(tmp_path / "p"), "--axes", "c,y,x", "--dest-path", "a/b", *layout]) == 0
    assert "2 levels" in capsys.readouterr().out
    coarse = sync.open_array(tmp_path / "p", path="a/b/1")
    assert (coarse.chunks, coarse.shards) == ((1, 50, 50), None)
    np.testing.assert_array_equal(
        coarse[...], downsample(VALUES, (1, 2, 2), "mean", CFEncoding.from_attributes({"_FillValue": 0}, "i4"))
    )
    assert main(["pyramid", url, str(tmp_path / "p.ozx"), "--axes", "cyx", "--levels", "2"]) == 0
    assert sync.validate(tmp_path / "p.ozx").ok


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "pass --axes"),
        (["--axes", "cyx", "--factors", "q=2"], "no axis has the name 'q'"),
        (["--axes", "cyx", "--path", "none"], "no array or group"),
        (
            ["--axes", "cyx", "--convention", "zarr-conventions", "--version", "0.5"],
            "omit it, or pass --convention ome",
        ),
    ],
)
def test_errors(url: str, capsys: pytest.CaptureFixture[str], options: list[str], words: str):
    assert main(["pyramid", url, *options]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--method", "median"], ["--scale", "y"], ["--scale", "y=a"], ["--missing", "a"], ["--factors", "-1"]]
)
def test_invalid_options(url: str, options: list[str]):
    with pytest.raises(SystemExit) as raised:
        main(["pyramid", url, *options])
    assert raised.value.code == 2
