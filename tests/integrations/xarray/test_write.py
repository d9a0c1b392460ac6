"""Datasets that ``write_dataset`` stores: layouts, groups, appends, regions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.errors import NodeExistsError, ShapeError
from zarrasync.testing import LatencyStore

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from tests.support.datasets import ENCODING, dataset
from zarrasync.integrations.xarray import (
    WriteOptions,
    write_dataset,
    write_dataset_async,  # after the skip
)
from zarrasync.integrations.xarray import encode as encode_module
from zarrasync.integrations.xarray import plan as plan_module

pytestmark = pytest.mark.filterwarnings("ignore")


def grid() -> Any:
    """Return a chunked dataset that both engines can write."""
    pytest.importorskip("dask")
    return dataset().chunk({"lat": 2})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
def test_xarray_reads_what_we_write(tmp_path: Path, zarr_format: Any, lazy: bool):
    given = grid() if lazy else dataset()
    given.to_zarr(tmp_path / "theirs.zarr", zarr_format=zarr_format, encoding=ENCODING)
    reports = write_dataset(given, tmp_path / "ours.zarr", zarr_format=zarr_format, encoding=ENCODING, verify=True)
    assert set(reports) == set(given.variables)
    theirs = xr.open_dataset(tmp_path / "theirs.zarr", engine="zarr").load()
    for engine in ("zarr", "zarrasync"):
        ours = xr.open_dataset(tmp_path / "ours.zarr", engine=engine).load()
        xr.testing.assert_identical(ours, theirs)
        for name in theirs.variables:
            assert ours[name].dtype == theirs[name].dtype, name
            for key in ("units", "calendar", "scale_factor", "add_offset"):
                assert ours[name].encoding.get(key) == theirs[name].encoding.get(key), (name, key)


def test_requested_layouts(tmp_path: Path):
    encoding = {
        "t2m": {
            "chunks": (1, 2, 5),
            "shards": (3, 4, 5),
            "compressors": {"name": "gzip", "configuration": {"level": 1}},
        }
    }
    write_dataset(dataset(), tmp_path / "x.zarr", encoding=encoding, options=WriteOptions(consolidated=True))
    array = sync.open_array(tmp_path / "x.zarr", path="t2m")
    assert (array.chunks, array.shards, array.compressors[0].label) == ((1, 2, 5), (3, 4, 5), "gzip")
    assert sync.open_group(tmp_path / "x.zarr", use_consolidated=True).attrs["title"] == "né"
    with pytest.raises(ValueError, match="'none', which is not a variable"):
        write_dataset(dataset(), {}, encoding={"none": {}})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("where", ["files", "s3"])
def test_appending_and_regions(tmp_path: Path, zarr_format: Any, where: str, request: pytest.FixtureRequest):
    url, options = (str(tmp_path / "x.zarr"), None) if where == "files" else request.getfixturevalue("s3")
    common = {"storage_options": options, "zarr_format": zarr_format}
    whole = dataset()
    write_dataset(whole.isel(time=slice(0, 2)), url, encoding=ENCODING, **common)
    with pytest.raises(NodeExistsError):
        write_dataset(whole, url, **common)
    write_dataset(whole.isel(time=slice(2, 3)), url, append_dim="time", **common)
    found = xr.open_dataset(url, engine="zarrasync", storage_options=options).load()
    xr.testing.assert_equal(found, whole)
    part = (whole[["t2m"]].isel(lat=slice(1, 3)) * 2).drop_vars(["time", "lon"])
    write_dataset(part, url, region={"lat": slice(1, 3)}, **common)
    found = xr.open_dataset(url, engine="zarrasync", storage_options=options).load()
    np.testing.assert_array_equal(found.t2m[:, 1:3], whole.t2m[:, 1:3] * 2)
    np.testing.assert_array_equal(found.t2m[:, :1], whole.t2m[:, :1])
    with pytest.raises(ValueError, match="none of the region's dimensions"):
        write_dataset(whole[["lon"]], url, region={"lat": slice(0, 1)}, **common)
    with pytest.raises(ValueError, match="append_dim and region exclude each other"):
        write_dataset(whole, url, region={}, append_dim="time", **common)
    with pytest.raises(ValueError, match="no dimension 'depth'"):
        write_dataset(whole, url, append_dim="depth", **common)
    wrong = whole.isel(time=slice(0, 1), lon=slice(0, 2))
    with pytest.raises(ShapeError, match="cannot be appended along 'time'"):
        write_dataset(wrong[["t2m", "time"]], url, append_dim="time", **common)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_regions_by_coordinates(zarr_format: Any):
    store = stores.MemoryStore()
    times = np.array(["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"], "M8[ns]")
    coords = {"time": times, "x": [10.0, 20.0, 30.0, 40.0, 50.0]}
    whole = xr.Dataset({"a": (("time", "x"), np.arange(20.0).reshape(4, 5))}, coords=coords)
    write_dataset(whole, store, zarr_format=zarr_format, encoding={"a": {"chunks": (2, 5)}})
    part = whole.isel(time=slice(1, 3), x=slice(2, 4)) * 10
    write_dataset(part, store, region="auto")
    want = whole.a.values.copy()
    want[1:3, 2:4] *= 10
    assert xr.open_dataset(store, engine="zarrasync").identical(whole.assign(a=(("time", "x"), want)))
    write_dataset(whole.isel(time=[3]) * 0, store, region={"time": "auto", "x": slice(0, 5)})
    want[3] = 0
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, want)
    for wrong, message in [
        (whole.isel(x=[0, 2]), "are not consecutive"),
        (whole.isel(x=slice(None, None, -1)), "are not consecutive"),
        (whole.assign_coords(x=[1.0, 20, 30, 40, 50]), "no coordinate 1.0"),
        (whole.isel(x=[0, 1]).drop_vars("x"), "both need coordinates"),
    ]:
        with pytest.raises(ValueError, match=message):
            write_dataset(wrong, store, region="auto")
    with pytest.raises(ValueError, match="a slice or 'auto'"):
        write_dataset(whole, store, region={"x": 3})
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, want)


async def test_added_groups_and_variables(tmp_path: Path):
    store = stores.MemoryStore()
    await write_dataset_async(dataset()[["t2m"]], store, group="a/b")
    await write_dataset_async(dataset()[["masked"]] * 2, store, group="a/b", mode="a")
    found = xr.open_dataset(store, engine="zarrasync", group="a/b").load()
    xr.testing.assert_equal(found["t2m"], dataset()["t2m"])
    xr.testing.assert_equal(found["masked"], (dataset()["masked"] * 2))
    await write_dataset_async(dataset()[["scalar"]], store, group="a/b", mode="w")
    assert set(xr.open_dataset(store, engine="zarrasync", group="a/b").variables) == {"scalar"}


def test_the_existing_format_is_kept():
    given = xr.Dataset({"a": ("t", np.arange(3.0))})
    store = stores.MemoryStore()
    write_dataset(given, store, zarr_format=2)
    write_dataset(given, store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").a.values.tolist() == [0, 1, 2, 0, 1, 2]
    assert not any(key.endswith("zarr.json") for key in store.values)
    write_dataset(xr.Dataset({"e": ("t", np.zeros(0))}), stores.MemoryStore())


def test_failed_rows_are_given_back():
    da = pytest.importorskip("dask.array")

    def boom(block: Any) -> Any:
        raise ZeroDivisionError

    store = LatencyStore(stores.MemoryStore(), 0.0)
    write_dataset(xr.Dataset({"a": ("t", np.arange(3.0))}), store)
    bad = da.ones(4, chunks=2).map_blocks(boom, dtype="f8", meta=np.empty(0))
    with pytest.raises(ZeroDivisionError):
        write_dataset(xr.Dataset({"a": ("t", bad)}), store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").a.values.tolist() == [0, 1, 2]


async def test_encoding_does_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Scaling the values of a large variable must not block the event loop."""
    threads, encode = set(), encode_module.encode_new

    def noting(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return encode(*args)

    monkeypatch.setattr(plan_module, "encode_new", noting)
    dataset = xr.Dataset({"a": ("x", np.arange(4.0))})
    encoding = {"a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    await write_dataset_async(dataset, tmp_path, encoding=encoding)
    await write_dataset_async(dataset, tmp_path, append_dim="x")
    assert threads
    assert threading.get_ident() not in threads
    assert xr.open_dataset(tmp_path, engine="zarrasync")["a"].values.tolist() == [0, 1, 2, 3] * 2


def test_encodings_for_other_axes_are_dropped(tmp_path: Path):
    whole = xr.Dataset({"a": (("x", "y"), np.arange(60.0).reshape(6, 10))})
    write_dataset(whole, tmp_path / "x", encoding={"a": {"chunks": (2, 5), "shards": (4, 10)}})
    there = xr.open_dataset(tmp_path / "x", engine="zarrasync")
    parts = [there.isel(x=0), there.expand_dims(t=3), xr.concat([there, there], "t"), there.isel(x=slice(0, 3))]
    for number, part in enumerate(parts):
        write_dataset(part, tmp_path / str(number))
        xr.testing.assert_equal(xr.open_dataset(tmp_path / str(number), engine="zarrasync"), part)
    assert sync.open_array(tmp_path / "3", path="a").chunks == (2, 5)


@pytest.mark.parametrize("where", ["store", "dataset"])
def test_labels_of_a_region_are_unique(where: str):
    store = stores.MemoryStore()
    dataset = xr.Dataset({"v": ("time", [1.0, 2.0, 3.0])}, {"time": [0, 1, 1] if where == "store" else [0, 1, 2]})
    write_dataset(dataset, store)
    with pytest.raises(ValueError, match=f"the {where} has the coordinate 1 several times; pass the region as a slice"):
        write_dataset(dataset.isel(time=[1] if where == "store" else [1, 1]), store, region="auto")
