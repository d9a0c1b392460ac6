"""Files whose dimensions are in another order than those of the first file or of the destination."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.ingested import ingest_in_tasks
from zarrasync import sync
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import PACKED, day

ORDERS = list(permutations(["time", "lat", "lon"]))
SIZES = [4, 100]
"""Lengths of axes. Headers contain the values of a small square; large ones are compared by their digests."""


def dataset_of(number: int, size: int = 4) -> Any:
    """Return a dataset with a variable whose rows are small, and one of whose sizes are equal."""
    dataset = day(number, lat=size, lon=size)
    hours = dataset.time.to_numpy()
    bounds = np.stack([hours, hours + np.timedelta64(1, "h")], 1)
    return dataset.assign(
        time_bounds=(("time", "nv"), bounds),
        area=(("lat", "lon"), np.arange(1.0 * size * size).reshape(size, size)),
    )


def write(path: Path, dataset: Any, order: Any) -> Path:
    size = dataset.sizes["lat"]
    chunks = {"chunksizes": tuple({"time": 7, "lat": size // 2, "lon": size * 3 // 4}[dim] for dim in order)}
    dataset.transpose(*order, ...).to_netcdf(path, encoding={"t2m": {**PACKED["t2m"], **chunks}})
    return path


@pytest.mark.parametrize("size", SIZES)
async def test_dimensions_are_joined_by_name(api: Api, tmp_path: Path, size: int):
    paths = [write(tmp_path / f"{n}.nc", dataset_of(n, size), order) for n, order in enumerate(ORDERS)]
    expected = xr.concat([xr.load_dataset(p).transpose(*ORDERS[0], ...) for p in paths], "time", data_vars="minimal")
    for last, first in enumerate((0, 3), 4):  # the order of the first file counts
        chosen = paths[first : last + 1]
        options: dict[str, Any] = {"concat": "time", "verify": True}
        await api(api.ingest(chosen[:2], store := {}, chunks={"time": 10}, **options))
        report = await api(api.ingest(chosen, store, append=True, **options))
        assert report.known == 2
        with xr.open_dataset(store, engine="zarrasync") as found:
            assert found.t2m.dims == ORDERS[first]
            rows = slice(24 * first, 24 * (last + 1))
            xr.testing.assert_equal(found.transpose(*ORDERS[0], ...).load(), expected.isel(time=rows))
        await api(api.ingest(chosen[-1:], store, region="auto", **options))


@pytest.mark.parametrize("is_row", [False, True])
@pytest.mark.parametrize("where", [pytest.param("processes", marks=pytest.mark.processes), "executor"])
def test_square_variables_in_several_tasks(tmp_path: Path, where: str, is_row: bool):
    """The transposed values of a square have the right shape, so only the values show an axis in the wrong place."""
    values = np.random.default_rng(1).random((6, 30, 30))
    for number, row in enumerate(values):
        dataset = xr.Dataset({"t": (("y", "x"), row)})
        dataset = dataset if is_row else dataset.expand_dims(time=[number])
        dataset.transpose(*("yx" if number < 3 else "xy"), ...).to_netcdf(tmp_path / f"{number}.nc")
    with ThreadPoolExecutor(2) as executor:
        workers: Any = 2 if where == "processes" else executor
        paths, out = sorted(tmp_path.glob("*.nc")), tmp_path / "out.zarr"
        assert ingest_in_tasks(paths, out, chunks={"time": 1}, verify=True, executor=workers).tasks == 6
    with xr.open_dataset(out, engine="zarrasync") as found:
        np.testing.assert_array_equal(found.t.transpose("time", "y", "x"), values)


async def test_files_that_are_one_row_each(api: Api, tmp_path: Path):
    whole = day(0, rows=4, lat=4, lon=4).drop_vars(["time", "mask"])
    for number, order in enumerate([("lat", "lon"), ("lon", "lat"), ("lon", "lat"), ("lat", "lon")]):
        whole.isel(time=number).transpose(*order).to_netcdf(tmp_path / f"{number}.nc")
    await api(api.ingest([tmp_path / "0.nc", tmp_path / "1.nc"], store := {}, concat="time", verify=True))
    await api(api.ingest(str(tmp_path / "*.nc"), store, concat="time", append=True, verify=True))
    np.testing.assert_array_equal(sync.open_array(store, path="t2m")[:], whole.t2m)
    array = {
        "data": whole.t2m.transpose("lat", "time", "lon").to_numpy()[:, :2],
        "dimension_names": ["lat", "time", "lon"],
    }
    between = sync.create_group({})  # the axis of rows may have any place in the destination
    between.create_array("t2m", **array)
    for name in ("lat", "lon"):
        between.create_array(name, data=whole[name].to_numpy(), dimension_names=[name])
    paths = [tmp_path / "2.nc", tmp_path / "3.nc"]
    await api(api.ingest(paths, between.store, concat="time", append=True, verify=True))
    np.testing.assert_array_equal(
        sync.open_array(between.store, path="t2m")[:], whole.t2m.transpose("lat", "time", "lon")
    )


@pytest.mark.parametrize("size", SIZES)
async def test_constants_that_differ(api: Api, tmp_path: Path, size: int):
    """The transposed values have the shape and the bytes of the others."""
    one, other = dataset_of(0, size), dataset_of(1, size)
    other["area"] = (("lon", "lat"), one.area.to_numpy())
    paths = [write(tmp_path / f"{n}.nc", dataset, ORDERS[0]) for n, dataset in enumerate((one, other))]
    with pytest.raises(ShapeError, match="'area' must be the same in all files"):
        await api(api.ingest(paths, {}, concat="time"))
    await api(api.ingest(paths[0], store := {}, concat="time"))
    with pytest.raises(ShapeError, match="'area' must be the same in all files"):
        await api(api.ingest(paths[1], store, concat="time", append=True))
