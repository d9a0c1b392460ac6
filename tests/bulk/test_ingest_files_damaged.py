"""Files that are truncated or damaged, or that another program changes while they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync

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
        message = r"cannot read the header of .*1.nc: the file is truncated.* copy it again"
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
