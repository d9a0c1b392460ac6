"""Bounds of times mean the same after ingestion: each file's own units and calendar, or those of its coordinate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.covering import covering
from zarrasync import sync

netcdf4: Any = pytest.importorskip("netCDF4")
pytest.importorskip("cftime")
UNITS = ("days since 1850-01-01", "days since 1950-01-01")


def write(path: Path, units: str, own: dict[str, str], kind: str) -> Path:
    with netcdf4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("b", 2)
        time = file.createVariable("time", "f8", ("time",))
        time.setncatts({"units": units, "calendar": "noleap", kind: "limits"})
        time[:] = [0.5]
        limits = file.createVariable("limits", "f8", ("time", "b"))
        limits.setncatts(own)
        limits[:] = [[0, 1]]
    return path


def instants(attributes: Any, values: Any, parent: Any) -> list[str]:
    units, calendar = attributes.get("units", parent["units"]), attributes.get("calendar", parent["calendar"])
    return [date.isoformat() for date in netcdf4.num2date(values, units, calendar).reshape(-1)]


@pytest.mark.parametrize(
    ("kind", "appends", "first", "second"),
    covering(
        ["bounds", "climatology"],
        [False, True],
        [{}, {"units": UNITS[0]}, {"units": "hours since 1850-01-01"}],
        [{}, {"units": UNITS[1]}, {"units": "hours since 1950-01-01", "calendar": "noleap"}],
    ),
)
@pytest.mark.filterwarnings("ignore:pyproj unable")
def test_bounds_of_files_with_other_units(tmp_path: Path, kind: str, appends: bool, first: Any, second: Any):
    paths = [write(tmp_path / f"{n}.nc", UNITS[n], own, kind) for n, own in enumerate((first, second))]
    expected = []
    for path in paths:
        with netcdf4.Dataset(path) as file:
            time = {key: file["time"].getncattr(key) for key in ("units", "calendar")}
            own = {key: file["limits"].getncattr(key) for key in file["limits"].ncattrs()}
            expected += instants(own, file["limits"][:], time)
    dest = tmp_path / "a.zarr"
    if appends:
        sync.ingest(paths[0], dest, concat="time")
        sync.ingest(paths[1], dest, concat="time", append=True, verify=True)
    else:
        sync.ingest(paths, dest, concat="time", verify=True)
    group = sync.open_group(dest)
    limits = np.asarray(group["limits"][...])
    assert instants(group["limits"].attrs, limits, group["time"].attrs) == expected
