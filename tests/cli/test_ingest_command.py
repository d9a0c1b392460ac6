"""The command ``zarrasync ingest``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.blocks import VALUES
from zarrasync import sync


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from zarrasync.cli import main

    np.save(tmp_path / "x.npy", VALUES)
    target = str(tmp_path / "x.zarr")
    assert main(["ingest", str(tmp_path / "x.npy"), target, "--chunks", "5,10", "--shards", "20,40", "--verify"]) == 0
    found = sync.open_array(target)
    np.testing.assert_array_equal(found[...], VALUES)
    assert (found.chunks, found.shards) == ((5, 10), (20, 40))
    assert "verified" in capsys.readouterr().out
    assert main(["ingest", str(tmp_path / "x.npy"), target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"] == 0

    np.savez(tmp_path / "both.npz", a=VALUES, b=VALUES[0])
    assert main(["ingest", str(tmp_path / "both.npz"), str(tmp_path / "both.zarr")]) == 0
    np.testing.assert_array_equal(sync.open_group(tmp_path / "both.zarr")["b"][...], VALUES[0])
    assert main(["ingest", str(tmp_path / "both.npz"), str(tmp_path / "c.zarr"), "--variable", "c"]) == 1
    assert "has no variable 'c'; its variables are a, b" in capsys.readouterr().err

    assert main(["ingest", str(tmp_path / "both.npz"), str(tmp_path / "two.zarr"), "--zarr-format", "2"]) == 0
    np.testing.assert_array_equal(sync.open_group(tmp_path / "two.zarr", zarr_format=2)["a"][...], VALUES)
    nested = sync.create_group(tmp_path / "nested.zarr", attributes={"title": "all"})
    nested.create_array("g/a", data=VALUES, chunks=(5, 10), shards=(20, 40))
    assert main(["ingest", str(tmp_path / "nested.zarr"), str(tmp_path / "again.zarr"), "--quiet"]) == 0
    again = sync.open_group(tmp_path / "again.zarr")
    assert (again["g/a"].chunks, again["g/a"].shards, dict(again.attrs)) == ((5, 10), (20, 40), {"title": "all"})
    capsys.readouterr()
    assert main(["ingest", str(tmp_path / "nothing.zarr"), str(tmp_path / "t.zarr")]) == 1
    assert "no array or group" in capsys.readouterr().err


def test_the_command_reads_files_through_xarray(tmp_path: Path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")
    from zarrasync.cli import main

    times = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")
    dataset = xarray.Dataset(
        {"t": (("time", "x"), np.arange(10.0).reshape(2, 5), {"unit": "K"})}, {"time": times, "x": np.arange(5)}
    )
    dataset.attrs["title"] = "a test"
    dataset.to_netcdf(tmp_path / "x.nc", engine="scipy")
    assert main(["ingest", str(tmp_path / "x.nc"), str(tmp_path / "x.zarr")]) == 0
    found = xarray.open_dataset(tmp_path / "x.zarr", engine="zarrasync").load()
    xarray.testing.assert_identical(found, dataset)


def test_the_command_handles_axes_without_names(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("h5netcdf")
    from zarrasync.cli import main

    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = VALUES
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert main(["ingest", str(tmp_path / "x.h5"), str(tmp_path / "x.zarr")]) == 0
    assert not [warning for warning in said if "phony" in str(warning.message)]
    np.testing.assert_array_equal(sync.open_group(tmp_path / "x.zarr")["a"][...], VALUES)


def test_the_command_takes_groups_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    from zarrasync.cli import main

    top, below = xarray.Dataset({"a": ("x", [1, 2])}), xarray.Dataset({"b": ("x", [3, 4])}, attrs={"title": "t"})
    source = str(tmp_path / "t.nc")
    xarray.DataTree.from_dict({"/": top, "/sub/deep": below}).to_netcdf(source, engine="h5netcdf")
    assert main(["ingest", source, str(tmp_path / "all.zarr"), "--verify"]) == 0
    found = sync.open_group(tmp_path / "all.zarr")
    assert [name for name, _ in found.members(None)] == ["a", "sub", "sub/deep", "sub/deep/b"]
    assert dict(found["sub/deep"].attrs) == {"title": "t"}
    assert main(["ingest", source, str(tmp_path / "part.zarr"), "--path", "sub"]) == 0
    assert sync.open_array(tmp_path / "part.zarr", path="deep/b")[...].tolist() == [3, 4]
    capsys.readouterr()
    assert main(["ingest", source, str(tmp_path / "x.zarr"), "--path", "nowhere"]) == 1
    np.save(tmp_path / "x.npy", np.arange(3))
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr"), "--path", "nowhere"])
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    assert main(["ingest", str(tmp_path / "x.npz"), str(tmp_path / "x.zarr"), "--path", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "x.zarr").exists()


def test_the_command_names_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from zarrasync.cli import main

    (tmp_path / "bad.npz").write_bytes(b"PK")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "objects.npz", v=np.array([None], object))
    for name in ("bad.npz", "empty.npy", "objects.npz"):
        assert main(["ingest", str(tmp_path / name), str(tmp_path / "b.zarr")]) == 1
        assert name in capsys.readouterr().err


@pytest.mark.parametrize("names", [["a", "__b"], ["a", "a/b"]])
def test_the_command_replaces_nothing_for_invalid_names(names: list[str], tmp_path: Path):
    from zarrasync.cli import main

    sync.save(tmp_path / "a.zarr", kept=np.arange(3))
    values: dict[str, Any] = dict.fromkeys(names, np.arange(2))
    np.savez(tmp_path / "a.npz", **values)
    assert main(["ingest", str(tmp_path / "a.npz"), str(tmp_path / "a.zarr"), "--overwrite"]) == 1
    assert sync.load(tmp_path / "a.zarr")["kept"].tolist() == [0, 1, 2]
