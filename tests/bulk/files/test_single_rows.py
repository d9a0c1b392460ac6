"""Files with several rows along an axis, together with files that are one row and contain its time as a single value."""

from __future__ import annotations

import cProfile
import pstats
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.planning.make_plan import plan_job
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.headers import FileHeader, SourceFile, VariableHeader
from zarrasync.errors import ShapeError, SourceFilesError
from zarrasync.nodes.open_nodes import resolve_node

xr = pytest.importorskip("xarray", reason="opens the files")
pytest.importorskip("netCDF4", reason="writes the files")
from tests.support.netcdf import day

ORDERS = list(permutations(["time", "lat", "lon"]))


def dataset(number: int, rows: int = 3, **sizes: int) -> Any:
    """Return a dataset with variables with and without rows, and with bounds."""
    found = day(number, rows=rows, **sizes)
    found["bounds"] = (("time", "side"), np.stack([found.time.values, found.time.values], 1))
    found.time.attrs["bounds"] = "bounds"
    found["station"] = ("time", np.arange(rows) + 10 * number)
    return found


def write(folder: Path, order: tuple[str, ...] = ORDERS[0], **sizes: int) -> tuple[list[Path], Any]:
    """Write files with rows, and two with one row each. Return them, and the dataset with all rows."""
    parts = [dataset(0, **sizes), dataset(1, rows=1, **sizes), dataset(2, **sizes), dataset(3, rows=1, **sizes)]
    paths = [folder / f"{number}.nc" for number in range(4)]
    for number, (part, path) in enumerate(zip(parts, paths, strict=True)):
        own = part.isel(time=0) if number in (1, 3) else part
        own = own.transpose(*[dim for dim in order if dim in own.dims], ..., missing_dims="ignore")
        units = {"units": f"{'hours' if number < 3 else 'minutes'} since 2024-01-0{1 + number % 2}", "dtype": "i4"}
        own.to_netcdf(path, encoding={"time": units, "bounds": units})
    options: dict[str, Any] = {"dim": "time", "data_vars": "minimal", "coords": "minimal", "compat": "override"}
    return paths, xr.concat(parts, **options)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[3], ORDERS[5]])
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
async def test_files_with_and_without_the_axis(
    api: Api, tmp_path: Path, first: int, order: tuple[str, ...], processes: int
):
    paths, expected = write(tmp_path, order, lat=7, lon=40)
    names = [paths[first], *[path for path in paths if path != paths[first]]]
    out = tmp_path / "out.zarr"
    options = {"executor": processes, "verify": True, "chunks": {"time": 2}}
    report = await api(api.ingest(names, out, concat="time", **options))
    assert (report.files, report.rows) == (4, 8)
    with xr.open_dataset(out, engine="zarrasync") as found:
        xr.testing.assert_equal(found.load().transpose(*expected.dims), expected.transpose(*expected.dims))
        assert found.mask.dims in (("lat", "lon"), ("lon", "lat"))
    assert (await api(api.ingest(names, out, concat="time", append=True))).known == 4


@pytest.mark.parametrize("known", [1, 2, 3])
async def test_appends(api: Api, tmp_path: Path, known: int):
    paths, expected = write(tmp_path)
    await api(api.ingest(paths[:known], store := {}, concat="time"))
    await api(api.ingest(paths, store, concat="time", append=True, verify=True))
    with xr.open_dataset(store, engine="zarrasync") as found:
        xr.testing.assert_equal(found.load(), expected)
    with pytest.raises(ShapeError, match=r"already contains the label 2024-01-02T00:00:00 of .*again.nc"):
        paths[1].rename(tmp_path / "again.nc")
        await api(api.ingest([tmp_path / "again.nc", paths[2]], store, concat="time", append=True))


@pytest.mark.parametrize("change", ["dropped", "renamed", "axis"])
async def test_files_that_do_not_contain_their_time(api: Api, tmp_path: Path, change: str):
    one = day(1, rows=1).isel(time=0)
    if change == "dropped":
        one = one.drop_vars("time")
    elif change == "renamed":
        one = one.rename(time="valid_time")
    else:
        one = one.drop_vars("time").assign_coords(time=("lat", np.arange(6)))
    day(0).to_netcdf(tmp_path / "0.nc")
    one.to_netcdf(tmp_path / "1.nc")
    message = r"0.nc has the dimension 'time', but .*1.nc does not, and it has no single 'time' as a coordinate"
    for names in (["0.nc", "1.nc"], ["1.nc", "0.nc"]):
        with pytest.raises(ShapeError, match=message):
            await api(api.ingest([tmp_path / name for name in names], {}, concat="time"))


async def test_large_variables_without_rows(api: Api, tmp_path: Path):
    """They are equal in files with the axis. For a file without it, only small ones can be compared."""
    paths, expected = write(tmp_path, lat=300, lon=300)
    with pytest.raises(SourceFilesError, match=r"'mask' must be the same .* has one row without an axis"):
        await api(api.ingest(paths, {}, concat="time"))
    await api(api.ingest(paths, store := {}, concat="time", variables=["t2m"]))
    np.testing.assert_array_equal(sync.open_array(store, path="t2m")[:], expected.t2m)


def test_many_files_are_compared_once():
    """With coordinates that all files have as single values, work grows in proportion to the number of files."""
    few, many = (planning_calls(count) for count in (40, 160))
    assert many < 5 * few


def planning_calls(count: int) -> int:
    """Return the number of calls to plan files of one row each."""
    time, lat = {"units": "days since 2000-01-01"}, np.arange(4.0)
    headers = [
        FileHeader(
            SourceFile(f"/{number}.nc"),
            {
                "t2m": VariableHeader(("lat",), (4,), "<f4", {}),
                "lat": VariableHeader(("lat",), (4,), "<f8", {}, is_coordinate=True, values=lat),
                "time": VariableHeader((), (), "<i8", time, is_coordinate=True, values=np.array(number)),
                "step": VariableHeader((), (), "<i8", {}, is_coordinate=True, values=np.array(6)),
            },
            {},
        )
        for number in range(count)
    ]
    handle, _ = resolve_node(stores.MemoryStore(), "", 3, None, None)
    profile = cProfile.Profile()
    plan = profile.runcall(plan_job, headers, Target(handle), parameters_of(files=[], store={}, concat="time"))
    assert plan.rows == count
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]  # without types
