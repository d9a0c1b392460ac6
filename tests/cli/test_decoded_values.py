"""What the command line prints of arrays whose stored numbers stand for other values."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xarray", reason="xarray is not installed")
from tests.support.meanings import MEANINGS, Meant, as_items
from zarrasync import sync
from zarrasync.cli import main


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line.split()) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("meant", MEANINGS.values(), ids=MEANINGS)
def test_values_and_statistics(meant: Meant, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meant.create("a.zarr")
    want = as_items(meant.values)
    rows = json.loads(printed("cat a.zarr --path v --json", capsys))
    flat = [item for row in rows for item in row]
    assert flat == pytest.approx(want) if meant.values.dtype.kind == "f" else flat == want
    csv = printed("cat a.zarr --path v --format csv", capsys).replace("\n", ",").split(",")[:-1]
    assert csv == ["" if item is None else str(item) for item in flat]
    assert main(["cat", "a.zarr", "--path", "v", "--format", "npy", "--output", "a.npy"]) == 0
    if meant.values.dtype.kind != "O":
        np.testing.assert_array_equal(np.load("a.npy"), meant.values)
    rows = json.loads(printed("cat a.zarr --path v --json --raw", capsys))
    assert rows == [as_items(row) for row in meant.stored]
    assert json.loads(printed("head a.zarr -n 4 --json", capsys))["/v"] == [flat[n : n + 4] for n in (0, 4, 8)]
    numbers = meant.numbers[np.isfinite(meant.numbers)]
    told = json.loads(printed("stats a.zarr --histogram 4 --json", capsys))["/v"]
    assert (told["minimum"], told["maximum"]) == pytest.approx((numbers.min(), numbers.max()))
    assert (told["invalid"], sum(told["histogram"])) == (np.isnan(meant.numbers).sum(), len(numbers))
    told = json.loads(printed("stats a.zarr --raw --json", capsys))["/v"]
    stored = meant.stored[np.isfinite(meant.stored)]
    assert (told["minimum"], told["maximum"], told["decoded"]) == (stored.min(), stored.max(), False)


def test_texts(tmp_path: Path, capsys, monkeypatch):
    """Values have their unit. Dates are dates, also in the statistics, and those of bounds."""
    monkeypatch.chdir(tmp_path)
    root = sync.create_group("a.zarr")
    packed = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768, "units": "K"}
    root.create_array("t2m", data=np.array([2000, -32768], "i2"), attributes=packed)
    units = {"units": "days since 2001-02-28", "calendar": "noleap", "bounds": "ends"}
    root.create_array("time", data=[0, 1], attributes=units)
    root.create_array("ends", data=[[0, 1], [1, 2]])
    root.create_array("large", data=[2**62 + 1, -1], attributes={"_FillValue": -1, "units": "1"})
    lines = printed("head a.zarr", capsys).splitlines()
    assert lines[1:3] == ["[['2001-02-28' '2001-03-01']", " ['2001-03-01' '2001-03-02']]"]
    assert lines[4::2] == [f"[{2**62 + 1} nan]", "[293.15    nan] K", "['2001-02-28' '2001-03-01']"]
    assert printed("cat a.zarr --path t2m --raw", capsys) == "[  2000 -32768]\n"
    assert printed("cat a.zarr --path t2m -s 0", capsys) == "293.15 K\n"
    assert printed("cat a.zarr --path ends -s 0", capsys) == "['2001-02-28' '2001-03-01']\n"
    table = [line.split() for line in printed("stats a.zarr", capsys).splitlines()]
    assert table[0] == ["array", "values", "missing", "inf", "min", "max", "mean", "std", "unit"]
    assert table[3] == ["/t2m", "2", "1", "0", "293.15", "293.15", "293.15", "0", "K"]
    assert table[4][:6] == ["/time", "2", "0", "0", "2001-02-28", "2001-03-01"]
    assert "Times       : days since 2001-02-28, noleap calendar" in printed("info a.zarr --path ends", capsys)
    root.create_array("none", shape=(0, 3), dtype="i8", attributes=units)
    assert printed("cat a.zarr --path none", capsys) == "[]\n"
    monkeypatch.setitem(sys.modules, "cftime", None)
    assert main(["cat", "a.zarr", "--path", "time"]) == 0
    told = capsys.readouterr()
    assert told.out == "[0 1] days since 2001-02-28 (noleap)\n"
    assert "cftime" in told.err
    assert main(["stats", "a.zarr", "--path", "time"]) == 0
    assert "cftime" in capsys.readouterr().err


def test_facts(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attributes = {
        "_Unsigned": "true",
        "scale_factor": 0.5,
        "add_offset": -2,
        "_FillValue": -1,
        "missing_value": [-2, -3],
    }
    sync.create_array("a.zarr", data=np.zeros(2, "i1"), attributes={**attributes, "valid_range": [0, 100]})
    facts = dict(line.split(" : ") for line in printed("info a.zarr", capsys).splitlines())
    found = {name.strip(): text for name, text in facts.items()}
    assert (found["Sign"], found["Packing"]) == ("stored numbers are read as uint8", "stored value × 0.5 - 2")
    assert (found["Missing values"], found["Valid values"]) == ("255, 254, 253", "stored numbers from 0 to 100")
