"""Datasets opened with ``engine="zarrasync"`` equal those that xarray's own engine opens."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from tests.support.datasets import ENCODING, dataset, rows
from zarrasync.integrations.xarray import write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=[2, 3])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    dataset().to_zarr(tmp_path / "x.zarr", zarr_format=request.param, encoding=ENCODING)
    return tmp_path / "x.zarr"


def test_datasets_written_by_xarray_are_read(written: Path):
    theirs = xr.open_dataset(written, engine="zarr")
    ours = xr.open_dataset(written, engine="zarrasync")
    xr.testing.assert_identical(ours.load(), theirs.load())
    for name in theirs.variables:
        assert ours[name].dtype == theirs[name].dtype, name
        assert ours[name].encoding.get("_FillValue", 0) is not None
    for options in (
        {"mask_and_scale": False},
        {"decode_times": False},
        {"drop_variables": ["t2m"]},
        {"decode_coords": False},
    ):
        xr.testing.assert_identical(
            xr.open_dataset(written, engine="zarrasync", **options).load(),
            xr.open_dataset(written, engine="zarr", **options).load(),
        )


def test_it_is_lazy(written: Path):
    counting = stores.CountingStore(stores.LocalStore(written))
    opened = xr.open_dataset(counting, engine="zarrasync", decode_times=False)
    counting.reset()
    picked = opened.t2m.isel(time=1, lon=[0, 3])
    assert counting.reset().requests == 0
    values = dataset().t2m.values
    np.testing.assert_array_equal(picked.values, values[1][:, [0, 3]])
    assert counting.reset().requests > 0
    points = {"lat": xr.DataArray([0, 2, 1], dims="p"), "lon": xr.DataArray([4, 4, 0], dims="p")}
    np.testing.assert_array_equal(opened.t2m.isel(points).values, values[:, [0, 2, 1], [4, 4, 0]])
    np.testing.assert_array_equal(opened.t2m[::-1, 1:, ::2].values, values[::-1, 1:, ::2])
    np.testing.assert_array_equal(opened.t2m.sel(lat=1.0, lon=slice(1, 3)).values, values[:, 3, 1:4])
    again = pickle.loads(pickle.dumps(xr.open_dataset(written, engine="zarrasync")))
    np.testing.assert_array_equal(again.t2m.values, values)


def test_chunks_are_those_of_the_store(tmp_path: Path):
    root = sync.create_group(tmp_path)
    root.create_array("a", data=np.arange(40).reshape(4, 10), chunks=(2, 5), dimension_names=["y", "x"])
    root.create_array("b", data=np.arange(10), chunks=[[3, 7]], dimension_names=["z"])
    root.create_array("c", data=np.arange(64).reshape(8, 8), chunks=(2, 2), shards=(4, 8))
    opened = xr.open_dataset(tmp_path, engine="zarrasync", chunks={})
    assert opened.a.chunks == ((2, 2), (5, 5))
    assert opened.b.chunks == ((3, 7),)
    assert opened.c.dims == ("c_dim_0", "c_dim_1")
    assert opened.c.encoding["shards"] == (4, 8)
    assert opened.a.sum().compute() == np.arange(40).sum()
    assert opened.a.chunk({"y": 4}).mean().compute() == np.arange(40).mean()


async def test_loading_without_blocking(written: Path):
    theirs = xr.open_dataset(written, engine="zarr").load()
    opened = xr.open_dataset(written, engine="zarrasync")
    loaded = await opened.load_async()
    xr.testing.assert_identical(loaded, theirs)
    picked = xr.open_dataset(written, engine="zarrasync").t2m.isel(time=[2, 0], lon=slice(1, 4))
    np.testing.assert_array_equal((await picked.load_async()).values, theirs.t2m.values[[2, 0], :, 1:4])


def test_variables_are_loaded_side_by_side(written: Path):
    class Slow(stores.WrapperStore):
        busy, most = 0, 0

        def __init__(self, inner: stores.Store) -> None:
            super().__init__(inner)
            self.blocking = False

        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            self.busy += 1
            self.most = max(self.most, self.busy)
            await asyncio.sleep(0.02)
            self.busy -= 1
            return await self.inner.fetch(requests, versions=versions)

    store = Slow(stores.LocalStore(written))
    opened = xr.open_dataset(store, engine="zarrasync", drop_variables=["time"])
    store.most = 0

    async def load() -> None:
        await opened[["t2m", "masked", "flags", "area"]].load_async()

    asyncio.run(load())
    assert store.most >= 4


def test_every_format_and_store(tmp_path: Path, http, s3):
    url, root = http
    data = dataset()[["t2m", "masked"]]
    data.to_zarr(root / "x.zarr", zarr_format=2)
    expected = xr.open_dataset(root / "x.zarr", engine="zarr").load()
    xr.testing.assert_identical(xr.open_dataset(f"{url}/x.zarr", engine="zarrasync").load(), expected)
    bucket, options = s3
    sync.copy(root / "x.zarr", bucket, zarr_format=3, dest_options=options)
    found = xr.open_dataset(bucket, engine="zarrasync", storage_options=options).load()
    np.testing.assert_array_equal(found.t2m.values, expected.t2m.values)
    sync.copy(root / "x.zarr", tmp_path / "draft", zarr_format="3-draft-2022")
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "draft", engine="zarrasync").load(), expected)
    several = xr.open_mfdataset(
        [root / "x.zarr", root / "x.zarr"], engine="zarrasync", combine="nested", concat_dim="run"
    )
    assert several.t2m.shape == (2, 3, 4, 5)
    assert float(several.t2m.sum()) == 2 * float(expected.t2m.sum())


def test_unwritten_rows_are_missing(tmp_path: Path):
    for how in ("ours", "xarray's"):
        path = tmp_path / how
        write_dataset(rows(0), path) if how == "ours" else rows(0).to_zarr(path)
        assert np.isnan(sync.open_array(path, path="a").fill_value)
        sync.open_array(path, path="a", mode="r+").resize((2, 4))
        sync.open_array(path, path="t", mode="r+").resize(2)
        assert np.isnan(xr.open_dataset(path, engine="zarr", consolidated=False).a.values[1]).all()


def test_chunks_of_grids_with_one_irregular_axis(tmp_path: Path):
    pytest.importorskip("dask")
    root = sync.create_group(tmp_path)
    root.create_array("a", data=np.zeros((6, 20)), chunks=[2, [5, 10, 5]], dimension_names=["x", "y"])
    opened = xr.open_dataset(tmp_path, engine="zarrasync", chunks={})
    assert opened.a.encoding["preferred_chunks"] == {"x": 2, "y": (5, 10, 5)}
    assert opened.a.chunks == ((2, 2, 2), (5, 10, 5))
