"""Files that are truncated, that another program changes while they are read, or of which groups are left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.bulk.files.sources import datasets
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")

FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


def write(path: Path, number: int, kind: str, names: str = "ab", rows: int = 3, *, unlimited: bool = True) -> Path:
    with nc.Dataset(path, "w", format=kind) as file:
        file.title = "a title of 22 letters!"
        file.createDimension("time", None if unlimited else rows)
        file.createDimension("x", 5)
        file.createVariable("time", "i4", ("time",))[:] = np.arange(rows) + rows * number
        for name in names:
            variable = file.createVariable(name, "i1", ("time", "x"))
            variable.units = "K"
            variable[:] = np.full((rows, 5), 7)
    return path


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("unlimited", [False, True])
@pytest.mark.parametrize("engine", [None, "scipy"])
async def test_truncated_files_of_netcdf_3(api: Api, tmp_path: Path, kind: str, unlimited: bool, engine: str | None):
    if engine is not None:
        pytest.importorskip("scipy", reason="the engine that reads the files")
        if kind == FORMATS[2]:
            pytest.skip("scipy does not read this version")
    paths = [write(tmp_path / f"{n}.nc", n, kind, unlimited=unlimited) for n in range(2)]
    await api(api.ingest(paths, store := {}, concat="time", engine=engine))
    assert (np.asarray(sync.open_array(store, path="b")[:]) == 7).all()
    data = paths[1].read_bytes()
    for size in (len(data) - 4, len(data) // 2, 30):
        paths[1].write_bytes(data[:size])
        message = r"cannot read the header of .*1.nc: the file is truncated.* fetch the file again"
        with pytest.raises(ValueError, match=message):
            await api(api.ingest(paths, {}, concat="time", engine=engine))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [0, 1, 3])
async def test_the_only_records_are_not_padded(api: Api, tmp_path: Path, kind: str, rows: int):
    path = tmp_path / "0.nc"
    with nc.Dataset(path, "w", format=kind) as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.createVariable("a", "i1", ("time", "x"))[:] = np.full((rows, 5), 7)
    await api(api.ingest(path, store := {}, concat="time"))
    assert sync.open_array(store, path="a").shape == (rows, 5)


@pytest.mark.parametrize("width", [5, 40])
async def test_a_file_that_changes_in_place(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int):
    """Rows that were read before the change, and rows after it, are not stored together."""
    path = tmp_path / "0.nc"
    xr.Dataset({"a": (("time", "x"), np.ones((4, width), "i4"))}, coords={"time": range(4)}).to_netcdf(path)
    name = "header" if width == 5 else "read"  # small variables are read with the header
    original = getattr(datasets.XarrayReader, name)

    def change(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        state = path.stat()
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        return result

    monkeypatch.setattr(datasets.XarrayReader, name, change)
    with pytest.raises(ValueError, match=r"0.nc: the file has changed since the job was planned"):
        await api(api.ingest(path, {}, concat="time", engine="netcdf4", chunks={"time": 1}))


# ------------------------------------------------------------------ groups


async def test_groups_that_are_left_out(api: Api, tmp_path: Path):
    pytest.importorskip("h5py", reason="groups are looked for with h5py")
    path = tmp_path / "0.nc"
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", 2)
        for name in ("obs", "model/run/last"):
            file.createGroup(name).createVariable("v", "f4", ("time",))[:] = [1, 2]
    message = r"0.nc has no variables in the group '/'; its groups are 'model/run/last', 'obs'; choose one with"
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(path, {}, concat="time"))
    with nc.Dataset(path, "a") as file:
        file.createVariable("time", "i4", ("time",))[:] = [0, 1]
    report = await api(api.ingest(path, {}, concat="time"))
    (message,) = report.left_out
    assert "0.nc: left out, because only one group is read: 'model/run/last', 'obs'; ingest them" in message
    assert (await api(api.ingest(path, {}, concat="time", variables="time"))).left_out == []
    report = await api(api.ingest(path, store := {}, concat="time", group="model/run/last"))
    assert report.left_out == []
    assert sync.open_array(store, path="time")[:].tolist() == [0, 1]
    assert sync.open_array(store, path="v")[:].tolist() == [1, 2]
