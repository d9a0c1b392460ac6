"""xarray's engine: equal to xarray's own on what that writes."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync import stores, sync
from zarrasync.errors import (
    ChecksumError,
    CodecError,
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeTypeError,
    ShapeError,
    StoreError,
)

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")

from zarrasync.integrations import xarray_write as _xarraywriting  # after the skip
from zarrasync.integrations.xarray import write_dataset, write_dataset_async  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


def dataset() -> Any:
    time = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[ns]")
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), np.arange(60, dtype="f4").reshape(3, 4, 5), {"units": "K"}),
            "masked": (("lat",), np.array([1.5, np.nan, 2.5, np.nan])),
            "packed": (("lon",), np.array([10.0, 10.5, np.nan, 11.5, 12.0])),
            "names": (("lat",), np.array(["a", "bé", "", "dd"], object)),
            "flags": (("lat",), np.array([True, False, True, False])),
            "scalar": ((), 3.25, {"list": [1, 2]}),
            "spell": (("lat",), np.array([1, 2, 3, 4], "m8[h]").astype("m8[ns]")),
        },
        {
            "time": time,
            "lat": np.linspace(-1, 1, 4),
            "lon": ("lon", np.arange(5)),
            "area": (("lat", "lon"), np.ones((4, 5))),
        },
        {"title": "né", "nested": {"a": [1, None]}},
    )


ENCODING = {"packed": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99}}


@pytest.fixture(params=[2, 3])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    dataset().to_zarr(tmp_path / "x.zarr", zarr_format=request.param, encoding=ENCODING)
    return tmp_path / "x.zarr"


def test_it_reads_what_xarray_writes(written: Path):
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


def test_trees(tmp_path: Path):
    tree = xr.DataTree.from_dict({"/": dataset()[["scalar"]], "/a": dataset()[["t2m"]], "/a/b": dataset()[["masked"]]})
    tree.to_zarr(tmp_path / "t.zarr")
    ours = xr.open_datatree(tmp_path / "t.zarr", engine="zarrasync")
    xr.testing.assert_identical(ours.load(), xr.open_datatree(tmp_path / "t.zarr", engine="zarr").load())
    one = xr.open_dataset(tmp_path / "t.zarr", engine="zarrasync", group="a")
    xr.testing.assert_identical(one.load(), dataset()[["t2m"]].load())
    groups = xr.open_groups(tmp_path / "t.zarr", engine="zarrasync")
    assert set(groups) == {"/", "/a", "/a/b"}


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


# ------------------------------------------------------------------ writing


def grid() -> Any:
    """A dataset without what only one of the engines can write."""
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


def test_layouts_that_are_asked_for(tmp_path: Path):
    encoding = {
        "t2m": {
            "chunks": (1, 2, 5),
            "shards": (3, 4, 5),
            "compressors": {"name": "gzip", "configuration": {"level": 1}},
        }
    }
    write_dataset(dataset(), tmp_path / "x.zarr", encoding=encoding, consolidated=True)
    array = sync.open_array(tmp_path / "x.zarr", path="t2m")
    assert (array.chunks, array.shards, array.compressors[0].label) == ((1, 2, 5), (3, 4, 5), "gzip")
    assert sync.open_group(tmp_path / "x.zarr", use_consolidated=True).attrs["title"] == "né"
    with pytest.raises(ValueError, match="'none', which is no variable"):
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
    with pytest.raises(ValueError, match="give one of them"):
        write_dataset(whole, url, region={}, append_dim="time", **common)
    with pytest.raises(ValueError, match="no dimension 'depth'"):
        write_dataset(whole, url, append_dim="depth", **common)
    wrong = whole.isel(time=slice(0, 1), lon=slice(0, 2))
    with pytest.raises(ShapeError, match="can not be appended along 'time'"):
        write_dataset(wrong[["t2m", "time"]], url, append_dim="time", **common)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_regions_that_are_found_by_coordinates(zarr_format: Any):
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
        (whole.isel(x=[0, 2]), "do not follow each other"),
        (whole.isel(x=slice(None, None, -1)), "do not follow each other"),
        (whole.assign_coords(x=[1.0, 20, 30, 40, 50]), "no coordinate 1.0"),
        (whole.isel(x=[0, 1]).drop_vars("x"), "takes coordinates"),
    ]:
        with pytest.raises(ValueError, match=message):
            write_dataset(wrong, store, region="auto")
    with pytest.raises(ValueError, match="a slice or 'auto'"):
        write_dataset(whole, store, region={"x": 3})
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, want)


async def test_groups_and_variables_that_are_added(tmp_path: Path):
    store = stores.MemoryStore()
    await write_dataset_async(dataset()[["t2m"]], store, group="a/b")
    await write_dataset_async(dataset()[["masked"]] * 2, store, group="a/b", mode="a")
    found = xr.open_dataset(store, engine="zarrasync", group="a/b").load()
    xr.testing.assert_equal(found["t2m"], dataset()["t2m"])
    xr.testing.assert_equal(found["masked"], (dataset()["masked"] * 2))
    await write_dataset_async(dataset()[["scalar"]], store, group="a/b", mode="w")
    assert set(xr.open_dataset(store, engine="zarrasync", group="a/b").variables) == {"scalar"}


def test_the_format_that_is_there_is_kept():
    given = xr.Dataset({"a": ("t", np.arange(3.0))})
    store = stores.MemoryStore()
    write_dataset(given, store, zarr_format=2)
    write_dataset(given, store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").a.values.tolist() == [0, 1, 2, 0, 1, 2]
    assert not any(key.endswith("zarr.json") for key in store.values)
    write_dataset(xr.Dataset({"e": ("t", np.zeros(0))}), stores.MemoryStore())


def test_nothing_is_changed_before_all_fits():
    given = xr.Dataset({"a": (("t", "x"), np.ones((3, 2))), "b": (("t", "y"), np.ones((3, 2)))})
    store = stores.MemoryStore()
    write_dataset(given, store)
    wrong = xr.Dataset({"a": (("t", "x"), np.ones((1, 2))), "b": (("t", "y"), np.ones((1, 5)))})
    with pytest.raises(ShapeError, match="b has shape"):
        write_dataset(wrong, store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").sizes == {"t": 3, "x": 2, "y": 2}


def test_rows_that_could_not_be_written_are_given_back():
    da = pytest.importorskip("dask.array")

    def boom(block: Any) -> Any:
        raise ZeroDivisionError

    store = stores.LatencyStore(stores.MemoryStore(), 0.0)
    write_dataset(xr.Dataset({"a": ("t", np.arange(3.0))}), store)
    bad = da.ones(4, chunks=2).map_blocks(boom, dtype="f8", meta=np.empty(0))
    with pytest.raises(ZeroDivisionError):
        write_dataset(xr.Dataset({"a": ("t", bad)}), store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").a.values.tolist() == [0, 1, 2]


# ------------------------------------------------------------------ a table of datasets, there and back


def _times(*texts: str) -> Any:
    return np.array(texts, "M8[ns]")


TABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "coordinates": (
        xr.Dataset(
            {"a": (("y", "x"), np.ones((2, 3)))}, {"x": [1.0, 2, 3], "lat": (("y", "x"), np.eye(2, 3)), "run": 7}
        ),
        {},
    ),
    "no coordinates": (xr.Dataset({"a": ("x", np.arange(3))}), {}),
    "coordinates alone": (xr.Dataset(coords={"x": [3, 1, 2], "z": 1.5}), {}),
    "scalars": (xr.Dataset({"f": 2.5, "i": 3, "b": True, "s": "né", "t": _times("2020-02-29")[0]}), {}),
    "strings": (
        xr.Dataset({"o": ("x", np.array(["a", "né", ""], object)), "u": ("x", np.array(["a", "bc", "d"]))}),
        {},
    ),
    "fixed bytes": (xr.Dataset({"s": ("x", np.array([b"ab", b"c"], "S2"))}), {}),
    "times": (
        xr.Dataset({"t": ("x", _times("1850-01-01", "2020-02-29T12:30", "NaT"))}),
        {"t": {"units": "hours since 1800-01-01", "dtype": "f8"}},
    ),
    "times as integers": (xr.Dataset(coords={"time": _times("2020-01-01", "2020-01-02")}), {"time": {"dtype": "i4"}}),
    "spells": (xr.Dataset({"d": ("x", np.array([1, 90], "m8[s]").astype("m8[ns]"))}), {}),
    "masks": (xr.Dataset({"m": ("x", [1.0, np.nan, 3.0])}), {"m": {"_FillValue": -1.0}}),
    "integers with holes": (xr.Dataset({"m": ("x", [1.0, np.nan, 3.0])}), {"m": {"dtype": "i2", "_FillValue": -9}}),
    "scale and offset": (
        xr.Dataset({"p": ("x", [10.0, 10.5, np.nan])}),
        {"p": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99}},
    ),
    "unsigned": (
        xr.Dataset({"p": ("x", [0.0, 200.0, 255.0])}),
        {"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": np.int8(-2)}},
    ),
    "flags": (xr.Dataset({"b": ("x", [True, False])}), {}),
    "small types": (
        xr.Dataset({f"v{n}": ("x", np.arange(3).astype(t)) for n, t in enumerate(["i1", "u2", "f2", "u8"])}),
        {},
    ),
    "empty axes": (xr.Dataset({"e": (("t", "x"), np.zeros((0, 3)))}), {}),
    "attributes": (
        xr.Dataset(
            {"a": ("x", [1], {"n": np.float32(1.5), "l": np.arange(3), "s": "né"})},
            attrs={"none": None, "d": {"a": [1]}},
        ),
        {},
    ),
}


def _unlimited() -> Any:
    made = xr.Dataset({"a": (("time", "x"), np.ones((2, 3)))}, {"time": _times("2020-01-01", "2020-01-02")})
    made.encoding["unlimited_dims"] = {"time"}
    return made


TABLE["unlimited dimensions"] = (_unlimited(), {})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", TABLE)
def test_datasets_there_and_back(name: str, zarr_format: Any, tmp_path: Path):
    """What their engine writes, ours reads as theirs does; what ours writes, theirs reads as what theirs wrote."""
    given, encoding = TABLE[name]
    given.to_zarr(tmp_path / "theirs.zarr", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    write_dataset(given, tmp_path / "ours.zarr", zarr_format=zarr_format, encoding=encoding)
    want = xr.open_dataset(tmp_path / "theirs.zarr", engine="zarr", consolidated=False).load()
    for path in ("theirs.zarr", "ours.zarr"):
        for engine, options in (("zarrasync", {}), ("zarr", {"consolidated": False})):
            found = xr.open_dataset(tmp_path / path, engine=engine, **options).load()
            xr.testing.assert_identical(found, want)
            assert {n: v.dtype for n, v in found.variables.items()} == {n: v.dtype for n, v in want.variables.items()}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_trees_there_and_back(zarr_format: Any, tmp_path: Path):
    nodes = {"/": TABLE["coordinates"][0], "/model": TABLE["times"][0], "/model/fine": TABLE["strings"][0]}
    tree = xr.DataTree.from_dict(nodes)
    tree.to_zarr(tmp_path / "theirs.zarr", zarr_format=zarr_format, consolidated=False)
    for path, node in nodes.items():
        write_dataset(node, tmp_path / "ours.zarr", group=path.strip("/"), zarr_format=zarr_format, mode="a")
    want = xr.open_datatree(tmp_path / "theirs.zarr", engine="zarr", consolidated=False).load()
    for path in ("theirs.zarr", "ours.zarr"):
        for engine, options in (("zarrasync", {}), ("zarr", {"consolidated": False})):
            xr.testing.assert_identical(xr.open_datatree(tmp_path / path, engine=engine, **options).load(), want)


# ------------------------------------------------------------------ beside what is there


def stored(*values: Any, **options: Any) -> stores.MemoryStore:
    store = stores.MemoryStore()
    write_dataset(xr.Dataset({"a": ("t", *values)}), store, **options)
    return store


def test_values_in_other_units_than_those_that_are_there_are_refused():
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[ns]")
    half = np.timedelta64(12, "h")
    for first, other in ((days, days[:1] + half), (days - days[0], days[1:2] - days[0] + half)):
        store = stored(first)
        for place in ({"append_dim": "t"}, {"region": {"t": slice(1, 2)}}):
            with pytest.raises(CodecError, match="can not be stored in the units 'days"):
                write_dataset(xr.Dataset({"a": ("t", other)}), store, **place)
        np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, first)
        write_dataset(xr.Dataset({"a": ("t", first[:1])}), store, append_dim="t", verify=True)
        np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, [*first, first[0]])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        (["a", "bb"], ["cccc"]),
        (np.array([1, 2], "i2"), np.array([100_000])),
        (np.array([1, 2]), np.array([np.nan, 2.0])),
        (np.array([1, 2]), np.array([1.7])),
        (np.array([True, False]), np.array([2, 3])),
        (np.array([1.0], "f4"), np.array([1e300])),
        (np.array([1, 2]), np.array(["1", "2"])),
        (np.array([1.0, 2.0]), np.array([1 + 2j, 3])),
    ],
)
def test_values_that_do_not_fit_what_is_there_are_refused(first: Any, other: Any, lazy: bool):
    store = stored(first)
    dataset = xr.Dataset({"a": ("t", other)})
    for place in ({"append_dim": "t"}, {"region": {"t": slice(0, len(other))}}):
        with pytest.raises(CodecError, match="of a (does not fit|have type|are complex)"):
            write_dataset(dataset.chunk() if lazy else dataset, store, **place)
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, first)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("first", "other", "encoding"),
    [
        (np.array([1, 2], "i2"), np.array([7]), {}),
        (np.array([1.5], "f4"), np.array([0.1]), {}),
        (np.array([True]), np.array([1, 0]), {}),
        (["a", "bb"], ["c"], {}),
        ([1.0, 2.5], [0.33, np.nan], {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}),
        ([1.0, np.nan], [2.0, np.nan], {"dtype": "i2", "_FillValue": -1}),
        ([1.5, 2.5], np.array([3]), {}),
        ([1.5, 2.5], np.array([3.0 + 0j]), {}),
    ],
)
def test_values_of_other_types_that_fit_are_taken(first: Any, other: Any, encoding: dict[str, Any], lazy: bool):
    store = stored(first, encoding={"a": encoding})
    dtype = sync.open_array(store, path="a").dtype
    dataset = xr.Dataset({"a": ("t", other)})
    write_dataset(dataset.chunk() if lazy else dataset, store, append_dim="t", verify=True)
    assert sync.open_array(store, path="a").dtype == dtype
    found = xr.open_dataset(store, engine="zarrasync").a.values
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, np.concatenate([first, other]), atol=0.05)
    else:
        np.testing.assert_array_equal(found, np.concatenate([first, np.asarray(other, found.dtype)]))


@pytest.mark.parametrize(
    "units",
    ["hours since 1900-01-01 00:00:0.0", "hours since 1800-1-1 00:00:0.0", "hour since 2000-01-01 0:0:0",
     "hours since 2000-01-01 00:00:00 +0:00", "hours since 2000-01-01 00:00 UTC", "days since 2000-02-30"],
)  # fmt: skip
def test_units_in_the_spellings_of_others(units: str):
    store = stores.MemoryStore()
    calendar = {"calendar": "360_day"} if "02-30" in units else {}
    options = {"dimension_names": ("t",), "attributes": {"units": units, **calendar}}
    sync.create_group(store).create_array("t", data=np.arange(3), **options)
    if calendar:
        pytest.importorskip("cftime")
    there = xr.open_dataset(store, engine="zarrasync").load()
    write_dataset(there, store, append_dim="t", verify=True)
    assert sync.open_array(store, path="t")[...].tolist() == [0, 1, 2, 0, 1, 2]


def test_times_are_not_appended_to_numbers():
    store = stored(np.array([1, 2]))
    with pytest.raises(CodecError, match="in the units None of those that are there"):
        write_dataset(xr.Dataset({"a": ("t", np.array(["2000-01-01"], "M8[ns]"))}), store, append_dim="t")


@pytest.mark.parametrize("first", ["a", "b", "time"])
def test_rows_of_some_variables_alone_are_not_overwritten(first: str, monkeypatch: pytest.MonkeyPatch):
    """Nor are others left out beside them: that takes a decision."""
    monkeypatch.setattr("zarrasync.integrations.xarray_write._CATCH_UP", 0.2)

    def rows(*names: str) -> Any:
        return xr.Dataset({name: ("time", [1.0, 2.0]) for name in names})

    for together in (("a", "b"), ("a", "b", "time")):
        if first not in together:
            continue
        store = stores.MemoryStore()
        write_dataset(rows(*together), store)
        sync.open_array(store, path=first, mode="r+").append([1.0, 2.0])
        before = {key: value for key, value in store.values.items() if "c/" in key}
        with pytest.raises(ShapeError, match="rows along 'time', where another variable has"):
            write_dataset(rows(*together), store, append_dim="time")
        assert before == {key: value for key, value in store.values.items() if "c/" in key}
        assert {sync.open_array(store, path=name).shape for name in together} == {(2,), (4,)}
        beside = rows(*together).assign(_first=("x", [7.0]))  # which would be replaced
        write_dataset(beside[["_first"]], store, mode="a")
        with pytest.raises(ShapeError, match="rows along 'time', where another variable has"):
            write_dataset(beside, store, append_dim="time")
        assert sync.open_array(store, path="_first")[...].tolist() == [7]
        for name in together:
            sync.open_array(store, path=name, mode="r+").resize(4)
        write_dataset(rows(*together), store, append_dim="time")
        assert {sync.open_array(store, path=name).shape for name in together} == {(6,)}


def test_many_write_at_once_what_is_read_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Threads that wait for values are not those by which they are read, of which an event loop has a few."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.local import LocalFileSystem

    fs, count = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True), min(32, (os.cpu_count() or 1) + 4)
    write_dataset(xr.Dataset({"a": ("x", np.arange(4.0))}), tmp_path / "source")
    done, all_encode, encode = [], threading.Barrier(count), _xarraywriting.as_stored

    def encode_at_once(*args: Any) -> Any:
        all_encode.wait(60)
        return encode(*args)  # which reads

    def write(number: int) -> None:
        source = xr.open_dataset(stores.FsspecStore(fs, str(tmp_path / "source")), engine="zarrasync", cache=False)
        encoding = {"a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
        write_dataset(source, tmp_path / str(number), encoding=encoding)
        done.append(number)

    monkeypatch.setattr(_xarraywriting, "as_stored", encode_at_once)
    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert sorted(done) == list(range(count))
    assert xr.open_dataset(tmp_path / "0", engine="zarrasync")["a"].values.tolist() == [0, 1, 2, 3]


async def test_values_are_encoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Scaling all values of a variable takes as long as it takes."""
    threads, encode = set(), _xarraywriting.as_stored

    def noting(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return encode(*args)

    monkeypatch.setattr(_xarraywriting, "as_stored", noting)
    dataset = xr.Dataset({"a": ("x", np.arange(4.0))})
    encoding = {"a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    await write_dataset_async(dataset, tmp_path, encoding=encoding)
    await write_dataset_async(dataset, tmp_path, append_dim="x")
    assert threads
    assert threading.get_ident() not in threads
    assert xr.open_dataset(tmp_path, engine="zarrasync")["a"].values.tolist() == [0, 1, 2, 3] * 2


async def test_rows_of_those_who_append_at_the_same_time_stay_together(tmp_path: Path):
    def rows(number: int) -> xr.Dataset:
        return xr.Dataset({name: ("t", [number, number]) for name in "abc"})

    write_dataset(rows(0), tmp_path, encoding={name: {"chunks": (2,)} for name in "abc"})
    far = [stores.LatencyStore(stores.LocalStore(tmp_path), 0.001, jitter=0.004) for _ in range(4)]
    for _ in range(3):
        await asyncio.gather(*(write_dataset_async(rows(i + 1), one, append_dim="t") for i, one in enumerate(far)))
    found = {name: sync.open_array(tmp_path, path=name)[...].tolist() for name in "abc"}
    assert found["a"] == found["b"] == found["c"]
    assert sorted(found["a"]) == sorted([0, 0] + 3 * [1, 1, 2, 2, 3, 3, 4, 4])


def test_what_an_encoding_says_of_other_axes_is_not_kept(tmp_path: Path):
    whole = xr.Dataset({"a": (("x", "y"), np.arange(60.0).reshape(6, 10))})
    write_dataset(whole, tmp_path / "x", encoding={"a": {"chunks": (2, 5), "shards": (4, 10)}})
    there = xr.open_dataset(tmp_path / "x", engine="zarrasync")
    parts = [there.isel(x=0), there.expand_dims(t=3), xr.concat([there, there], "t"), there.isel(x=slice(0, 3))]
    for number, part in enumerate(parts):
        write_dataset(part, tmp_path / str(number))
        xr.testing.assert_equal(xr.open_dataset(tmp_path / str(number), engine="zarrasync"), part)
    assert sync.open_array(tmp_path / "3", path="a").chunks == (2, 5)


def test_a_dataset_is_not_erased_for_what_can_not_be_stored_or_is_made_of_it(tmp_path: Path):
    store = stored([3, 4])
    other = xr.Dataset({"b": ("x", [3, 4]), "a": ("x", [3, 4])})
    with pytest.raises(ShapeError):
        write_dataset(other, store, mode="w", encoding={"a": {"chunks": (1, 1)}})
    for mode in ("w", "a", "r+"):
        with pytest.raises(NodeExistsError, match="can not be replaced by what is read from it"):
            write_dataset(xr.open_dataset(store, engine="zarrasync", chunks={}), store, mode=mode)
        write_dataset(xr.open_dataset(store, engine="zarrasync"), store, mode=mode)  # xarray reads it before
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, [3, 4])
    with pytest.raises(ShapeError):
        write_dataset(other, tmp_path / "new", encoding={"a": {"chunks": (1, 1)}})
    assert not (tmp_path / "new").exists()


# ------------------------------------------------------------------ what is refused


SIX = xr.Dataset({"a": ("t", np.arange(6.0)), "b": ("t", np.arange(6.0) + 10)}, attrs={"title": "all"})


@pytest.mark.parametrize(
    ("dataset", "options", "error", "match"),
    [
        (SIX, {"mode": "w", "append_dim": "t"}, ValueError, "append_dim adds to one that is there"),
        (SIX, {"mode": "w-", "region": {"t": slice(0, 6)}}, ValueError, "region adds to one that is there"),
        (SIX, {"mode": "a", "zarr_format": 2}, NodeExistsError, "of Zarr format 3"),
        (SIX, {"append_dim": "t", "zarr_format": 2}, NodeExistsError, "of Zarr format 3"),
        (SIX.rename(a="../x"), {"mode": "w"}, InvalidKeyError, "../x"),
        (SIX.rename(a=1), {"mode": "w"}, TypeError, "texts for names"),
        (SIX.rename(t=0), {"mode": "w"}, TypeError, "texts for names"),
        (SIX[["a"]].isel(t=slice(0, 4)), {"mode": "a"}, ShapeError, "a has 4 elements along 't', where b has 6"),
        (SIX, {"mode": "w", "encoding": {"a": {"chunk": (10,)}}}, ValueError, "unknown encoding 'chunk'"),
        (SIX, {"append_dim": "t", "encoding": {"a": {"chunks": (10,)}}}, ValueError, "can not be chosen"),
        (SIX["a"], {"mode": "w"}, TypeError, "takes a Dataset, found DataArray"),
    ],
)
def test_what_would_lose_or_break_what_is_there_is_refused(
    dataset: Any, options: dict[str, Any], error: type[Exception], match: str
):
    store: dict[str, bytes] = {}
    write_dataset(SIX, store)
    before = dict(store)
    with pytest.raises(error, match=match):
        write_dataset(dataset, store, **options)
    assert store == before


@pytest.mark.parametrize("options", [{}, {"zarr_format": 3}, {"mode": "w", "group": "q"}, {"group": "q"}])
def test_nothing_is_put_beside_nodes_of_another_format(options: dict[str, Any]):
    store: dict[str, bytes] = {}
    write_dataset(SIX, store, zarr_format=2)
    before = dict(store)
    with pytest.raises((NodeExistsError, NodeTypeError), match="format 2"):
        write_dataset(SIX, store, **options)
    assert store == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_new_has_no_rows_for_those_that_are_there(zarr_format: Any):
    """An append of it would leave a dataset whose variables have different lengths."""
    store: dict[str, bytes] = {}
    write_dataset(xr.Dataset({"a": ("t", np.arange(4))}), store, zarr_format=zarr_format)
    more = xr.Dataset({"a": ("t", np.arange(4)), "new": ("t", np.arange(4))})
    before = dict(store)
    with pytest.raises(ShapeError, match="new has 4 elements along 't', where a has 8 in the store then"):
        write_dataset(more, store, append_dim="t")
    assert store == before
    write_dataset(more.assign(new=("y", np.arange(4))), store, append_dim="t")
    assert dict(xr.open_dataset(store, engine="zarrasync").sizes) == {"t": 8, "y": 4}


def test_a_fill_value_of_the_type_before_is_not_kept(tmp_path: Path):
    sync.create_array(tmp_path / "x", path="a", shape=(4,), dtype="f8", fill_value=np.nan, dimension_names=["t"])
    for engine in ("zarr", "zarrasync"):
        found = xr.open_dataset(tmp_path / "x", engine=engine, consolidated=False)
        found["a"].encoding.update(dtype="i2", _FillValue=-1)
        write_dataset(found, tmp_path / engine)
        assert sync.open_array(tmp_path / engine, path="a").dtype == np.dtype("i2")


def test_a_region_leaves_the_groups_attributes():
    store: dict[str, bytes] = {}
    write_dataset(SIX, store)
    write_dataset(SIX.isel(t=slice(2, 4)).assign_attrs(title="a part") + 0, store, region={"t": slice(2, 4)})
    assert dict(sync.open_group(store).attrs) == {"title": "all"}


@pytest.mark.parametrize("engine", ["zarr", "zarrasync"])
def test_fill_values_stay(engine: str, tmp_path: Path):
    sync.create_array(tmp_path / "x", path="a", shape=(4,), dtype="f8", fill_value=7.0, dimension_names=["t"])
    found = xr.open_dataset(tmp_path / "x", engine=engine, consolidated=False)
    found.to_zarr(tmp_path / "theirs", consolidated=False)
    write_dataset(found, tmp_path / "ours")
    for name in ("theirs", "ours"):
        assert sync.open_array(tmp_path / name, path="a").fill_value == 7.0


def test_trees_of_consolidated_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree = xr.DataTree.from_dict({"/": SIX, "/below": SIX + 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree.to_zarr(tmp_path / "tree", consolidated=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = xr.open_datatree("~/tree", engine="zarrasync", consolidated=True)
    xr.testing.assert_identical(found.load(), tree)


def test_an_element_of_text_is_of_its_type():
    words = np.array(["a", "bb", "ccc"], dtype=np.dtypes.StringDType())
    store: dict[str, bytes] = {}
    sync.create_array(store, path="s", data=words, dimension_names=["x"])
    picked = xr.open_dataset(store, engine="zarrasync")["s"].isel(x=1)
    assert (picked.dtype, picked.load().dtype, picked.item()) == (words.dtype, words.dtype, "bb")


# ------------------------------------------------------------------ appending beside what stays as it is


def rows(number: int, *, n: int = 1, lazy: bool = False) -> Any:
    """Rows of a dataset with variables that have no rows."""
    given = xr.Dataset(
        {"a": (("t", "lat"), np.full((n, 4), number, "f4")), "area": ("lat", np.full(4, 7.0)), "run": 3},
        {"t": np.arange(number * n, (number + 1) * n), "lat": np.linspace(1, 2, 4)},
    )
    return given.chunk(lat=2) if lazy else given


STATIC = {"area": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2,)}}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
def test_variables_without_rows_stay_where_they_are(zarr_format: Any, lazy: bool):
    """Nobody sees them erased, and they are encoded as they were."""

    class Guarded(stores.MemoryStore):
        guarded = False

        async def erase_prefix(self, prefix: str) -> None:
            assert not self.guarded, prefix
            await super().erase_prefix(prefix)

    store = Guarded()
    write_dataset(rows(0), store, encoding=STATIC, zarr_format=zarr_format)
    store.guarded = True
    for number in (1, 2):
        changed = rows(number, lazy=lazy).assign(area=("lat", np.full(4, number * 1.5)))
        write_dataset(changed, store, append_dim="t")
    found = xr.open_dataset(store, engine="zarrasync")
    assert found.area.encoding["chunks"] == (2,)
    assert found.area.encoding["dtype"] == np.dtype("i2")
    assert found.area.values.tolist() == [3.0] * 4
    assert found.a.values[:, 0].tolist() == [0, 1, 2]
    assert found.run.item() == 3
    for wrong in (rows(3).isel(lat=slice(2)), rows(3).assign(area=("t", [1.0]))):
        with pytest.raises(ShapeError):
            write_dataset(wrong, store, append_dim="t")
    with pytest.raises(ValueError, match="its encoding"):
        write_dataset(rows(3), store, append_dim="t", encoding=STATIC)
    assert xr.open_dataset(store, engine="zarrasync").identical(found)


async def test_many_append_beside_variables_without_rows(tmp_path: Path):
    write_dataset(rows(0), tmp_path, encoding={"a": {"chunks": (2, 4)}, "t": {"chunks": (2,)}})
    for start in (1, 5):
        await asyncio.gather(*(write_dataset_async(rows(start + i), tmp_path, append_dim="t") for i in range(4)))
    found = xr.open_dataset(tmp_path, engine="zarr")
    assert sorted(found.t.values.tolist()) == list(range(9))
    assert found.a.values[:, 2].tolist() == found.t.values.tolist()
    assert found.area.values.tolist() == [7.0] * 4


@pytest.mark.parametrize("exclusive", [True, False])
def test_an_append_into_a_store_that_is_full_changes_nothing(exclusive: bool):
    class Full(stores.MemoryStore):
        full = False

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if self.full and "/c" in key:
                raise StoreError("the disk is full", key=key)
            return await super().put(key, data, if_version=if_version)

    store = Full()
    store.exclusive = exclusive
    write_dataset(rows(0), store, encoding={"t": {"chunks": (8,)}})
    before = xr.open_dataset(store, engine="zarrasync").load()
    store.full = True
    with pytest.raises(StoreError, match="full"):
        write_dataset(rows(1), store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").identical(before)


class Noting(stores.WrapperStore):
    """A store that notes the keys that are stored."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.put_keys: list[str] = []

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self.put_keys.append(key)
        return await self.inner.put(key, data, if_version=if_version)


class Refusing(stores.MemoryStore):
    """A store that refuses a document, while the answers for others are on their way."""

    blocking = False
    refused = ""

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        if key == self.refused:
            raise StoreError("403", key=key)
        version = await super().put(key, data, if_version=if_version)
        await asyncio.sleep(0.05 if self.refused else 0)
        return version


async def test_rows_that_were_reserved_while_one_was_refused_are_given_back():
    memory = Refusing()
    store = stores.LatencyStore(memory, 0.0)
    given = xr.Dataset({name: ("t", [1.0, 2.0]) for name in "abcdef"})
    await write_dataset_async(given, store)
    memory.refused = "b/zarr.json"
    for waits in (0.0, 0.02):
        task = asyncio.create_task(write_dataset_async(given, store, append_dim="t"))
        if waits:  # and while they are being reserved
            await asyncio.sleep(waits)
            task.cancel()
        with pytest.raises((StoreError, asyncio.CancelledError)):
            await task
        found = {name: (await za.open_array(memory, path=name)).shape for name in "abcdef"}
        assert set(found.values()) == {(2,)}
    memory.refused = ""
    await write_dataset_async(given, store, append_dim="t")
    assert (await za.open_array(memory, path="b")).shape == (4,)


def test_copies_of_metadata_follow_what_was_replaced_before_a_failure():
    store = Refusing()
    write_dataset(xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [1, 2])}), store, consolidated=True)
    store.refused = "b/zarr.json"
    with pytest.raises(StoreError, match="403"):
        write_dataset(xr.Dataset({"a": ("x", [1.5, 2.5]), "b": ("x", [1.5, 2.5])}), store, mode="a")
    copies = dict(sync.open_group(store).members())
    alone = dict(sync.open_group(store, use_consolidated=False).members())
    assert {name: array.dtype for name, array in copies.items()} == {name: array.dtype for name, array in alone.items()}


def test_what_others_have_added_is_in_the_copies_of_format_2(tmp_path: Path):
    write_dataset(rows(0), tmp_path, zarr_format=2)
    sync.create_array(tmp_path, path="new", data=[1], zarr_format=2)
    write_dataset(rows(1), tmp_path, append_dim="t")
    assert "new" in sync.open_group(tmp_path, use_consolidated=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copies_of_metadata_follow_an_append_at_once(zarr_format: Any, tmp_path: Path):
    """Not once for each variable; and for those that are replaced before they are filled."""
    given = rows(0).assign({f"v{i}": ("t", [i]) for i in range(20)})
    given.to_zarr(tmp_path, zarr_format=zarr_format, consolidated=True)
    counted = Noting(stores.LocalStore(tmp_path))
    more = rows(1).assign({"new": ("lat", np.ones(4)), **{f"v{i}": ("t", [i]) for i in range(20)}})
    write_dataset(more, counted, append_dim="t")
    document = ".zmetadata" if zarr_format == 2 else "zarr.json"
    assert counted.put_keys.count(document) <= 3
    found = xr.open_dataset(tmp_path, engine="zarr", consolidated=True)
    assert found.sizes == {"t": 2, "lat": 4}
    assert found.identical(xr.open_dataset(tmp_path, engine="zarr", consolidated=False))
    assert found.new.values.tolist() == [1.0] * 4


def test_an_encoding_without_a_fill_value():
    for zarr_format in (2, 3):
        store = stores.MemoryStore()
        write_dataset(rows(0), store, encoding={"a": {"_FillValue": None}}, zarr_format=zarr_format)
        assert "_FillValue" not in xr.open_dataset(store, engine="zarrasync").a.encoding


def test_what_nobody_has_written_is_missing(tmp_path: Path):
    for how in ("ours", "xarray's"):
        path = tmp_path / how
        write_dataset(rows(0), path) if how == "ours" else rows(0).to_zarr(path)
        assert np.isnan(sync.open_array(path, path="a").fill_value)
        sync.open_array(path, path="a", mode="r+").resize((2, 4))
        sync.open_array(path, path="t", mode="r+").resize(2)
        assert np.isnan(xr.open_dataset(path, engine="zarr", consolidated=False).a.values[1]).all()


# ------------------------------------------------------------------ what netCDF's library writes


def netcdf(path: Path, *, dims: str, fill: Any = -9999.0) -> Path:
    """A group as netCDF's own library writes it."""
    group = sync.create_group(path, zarr_format=2)
    for name in "tu":
        array = group.create_array(
            name, data=np.arange(12, dtype="f4").reshape(3, 4), fill_value=5.0, attributes={"_FillValue": fill, "x": 1}
        )
        array.attrs["_NCZARR_ATTR" if dims != "new" else "_nczarr_attr"] = {"types": {"x": "<i4"}}
        document = json.loads((path / name / ".zarray").read_text())
        told = {"/lat": 3, "/lon": 4}
        if dims == "old":
            document["_NCZARR_ARRAY"] = {"dimrefs": [*told], "storage": "chunked"}
            (path / name / ".zarray").write_text(json.dumps(document))
        else:
            array.attrs["_nczarr_array"] = {"dimension_references": [*told], "storage": "chunked"}
    group.attrs.update({"_NCProperties": "version=2", "_nczarr_group": {"dimensions": told}, "title": "x"})
    return path


@pytest.mark.parametrize("dims", ["old", "new"])
def test_dimensions_and_fill_values_of_netcdf(dims: str, tmp_path: Path):
    path = netcdf(tmp_path, dims=dims)
    found = xr.open_dataset(path, engine="zarrasync")
    assert found.sizes == {"lat": 3, "lon": 4}
    assert found.attrs == {"title": "x"}
    assert found.t.attrs == {"x": 1}
    assert np.isnan(found.t.values[1, 1])
    if dims == "old":
        assert found.identical(xr.open_dataset(path, engine="zarr", consolidated=False))


def test_scalars_of_netcdf_have_an_axis(tmp_path: Path):
    group = sync.create_group(tmp_path, zarr_format=2)
    group.create_array("s", data=[5], attributes={"_nczarr_array": {"dimension_references": [], "scalar": 1}})
    assert xr.open_dataset(tmp_path, engine="zarrasync").s.dims == ("s_dim_0",)


def test_fill_values_that_stand_as_numbers(tmp_path: Path):
    """In format 3, where xarray writes them in a way of its own."""
    for number, (fill, wanted) in enumerate([(-9999.0, -9999.0), (3, 3.0), ("NaN", np.nan), ("1e20", 1e20)]):
        options = {"data": np.array([1, 3, -9999.0]), "dimension_names": ("x",), "attributes": {"_FillValue": fill}}
        sync.create_group(tmp_path / str(number)).create_array("a", **options)
        found = xr.open_dataset(tmp_path / str(number), engine="zarrasync").a
        np.testing.assert_equal(found.encoding["_FillValue"], wanted)
    bad = sync.create_group(tmp_path / "bad")
    bad.create_array("a", data=[1, 2], dimension_names=("x",), attributes={"_FillValue": "none"})
    with pytest.raises(MetadataError, match="/a: the attribute _FillValue 'none' means nothing for int64"):
        xr.open_dataset(tmp_path / "bad", engine="zarrasync")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("kind", "missing"), [("T", ""), ("T", "?"), ("O", "?"), ("U2", "?"), ("S2", b"?")])
def test_text_has_a_fill_value(kind: str, missing: Any, zarr_format: Any, tmp_path: Path):
    """Which xarray itself can not write of all kinds, nor read."""
    first = "a" if isinstance(missing, str) else b"a"
    dataset = xr.Dataset({"v": ("x", np.array([first, missing], kind), {}, {"_FillValue": missing})})
    write_dataset(dataset, tmp_path / "a", zarr_format=zarr_format)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    assert found.v.values.tolist() == [first, pytest.approx(np.nan, nan_ok=True)]
    for target in (2, 3):  # also what was read comes back
        write_dataset(found, tmp_path / f"b{target}", zarr_format=target)
        assert xr.open_dataset(tmp_path / f"b{target}", engine="zarrasync").identical(found)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text_keeps_its_kind_and_what_is_missing_is_empty(zarr_format: Any, lazy: bool, tmp_path: Path):
    """xarray makes the text 'nan' of the latter."""
    texts = {
        "t": ("x", np.array(["a", "bcd"], "T")),
        "u": ("x", np.array(["e", "fgh"])),
        "s": ("x", np.array([b"i", b"jk"])),
    }
    write_dataset(xr.Dataset({**texts, "x": [0, 1]}), tmp_path, zarr_format=zarr_format)
    found = xr.open_dataset(tmp_path, engine="zarrasync", chunks={} if lazy else None)
    found["t"] = found.t.copy(data=found.t.data.astype(object))
    longer = found.reindex(x=[0, 1, 2])
    assert longer.t.encoding["dtype"].kind == "T" and longer.u.encoding["dtype"].kind == "U"
    write_dataset(longer, tmp_path / "longer", zarr_format=zarr_format)
    write_dataset(longer.isel(x=[2]), tmp_path, append_dim="x")
    for path in (tmp_path, tmp_path / "longer"):
        again = xr.open_dataset(path, engine="zarrasync")
        assert (again.t.values.tolist(), again.u.values.tolist()) == (["a", "bcd", ""], ["e", "fgh", ""])
        assert again.s.values.tolist() == [b"i", b"jk", b""] and again.s.dtype == "S2"
        assert again.t.encoding["dtype"].kind == "T" and again.u.encoding["dtype"] == "<U3"


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_texts_of_all_kinds(missing: Any, tmp_path: Path):
    da = pytest.importorskip("dask.array")
    objects, knowing = (
        np.array(["a", missing], object),
        np.array(["a", missing], np.dtypes.StringDType(na_object=missing)),
    )
    texts = {
        "of no type": xr.Variable("x", objects),
        "to text": xr.Variable("x", objects, {}, {"dtype": np.dtypes.StringDType()}),
        "to text of a length": xr.Variable("x", da.from_array(objects, chunks=1), {}, {"dtype": "U5"}),
        "lazy": xr.Variable("x", da.from_array(objects, chunks=1), {}, {"dtype": np.dtypes.StringDType()}),
        "knowing": xr.Variable("x", knowing),
        "lazy and knowing": xr.Variable("x", da.from_array(knowing, chunks=1)),
    }
    write_dataset(xr.Dataset(texts), tmp_path)
    found = xr.open_dataset(tmp_path, engine="zarrasync")
    assert {name: found[name].values.tolist() for name in texts} == {name: ["a", ""] for name in texts}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("said", [{}, {"dtype": np.dtypes.StringDType()}, {"dtype": "U4"}])
@pytest.mark.parametrize("by", ["_FillValue", "missing_value"])
def test_missing_texts_are_stored_as_it_is_said(by: str, said: dict[str, Any], lazy: bool, tmp_path: Path):
    da = pytest.importorskip("dask.array")
    values = np.array(["a", None], object)
    given = da.from_array(values, chunks=1) if lazy else values
    write_dataset(xr.Dataset({"v": ("x", given, {}, {by: "NA", **said})}), tmp_path)
    write_dataset(xr.Dataset({"v": ("x", given)}), tmp_path, append_dim="x")
    assert sync.open_array(tmp_path / "v")[:].tolist() == ["a", "NA", "a", "NA"]


def test_texts_that_say_what_is_missing(tmp_path: Path):
    write_dataset(xr.Dataset({"v": ("x", np.array(["a", "zz"]), {}, {"missing_value": "zz"})}), tmp_path)
    write_dataset(xr.Dataset({"v": ("x", np.array(["b", np.nan], object))}), tmp_path, append_dim="x")
    assert sync.open_array(tmp_path / "v")[:].tolist() == ["a", "zz", "b", "zz"]
    with pytest.raises(ValueError, match="fill_value"):  # what is no text
        write_dataset(xr.Dataset({"v": ("x", np.array(["a", "b"], object), {"_FillValue": np.nan})}), tmp_path / "n")
    bad = sync.create_group(tmp_path / "bad")
    bad.create_array("a", data=np.array([b"a"]), dimension_names=("x",), attributes={"_FillValue": "?"})
    with pytest.raises(MetadataError, match=r"/a: the attribute _FillValue '\?' means nothing"):
        xr.open_dataset(tmp_path / "bad", engine="zarrasync")


def test_characters_of_netcdf_become_longer(tmp_path: Path):
    pytest.importorskip("scipy")
    texts = xr.Dataset({"v": ("x", np.array(["a", "bcd"])), "x": [0, 1]})
    texts.to_netcdf(tmp_path / "a.nc", engine="scipy")
    longer = xr.open_dataset(tmp_path / "a.nc", engine="scipy").reindex(x=[0, 1, 2])
    assert longer.v.encoding["dtype"] == "S1" and longer.v.dtype == object
    write_dataset(longer, tmp_path / "b")
    assert xr.open_dataset(tmp_path / "b", engine="zarrasync").v.values.tolist() == ["a", "bcd", ""]


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 7}, {"id": "bz2", "level": 2}])
def test_compressors_of_format_2_are_kept_in_it(compressor: Any, tmp_path: Path):
    options = {"data": np.arange(5.0), "attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "compressors": compressor}
    sync.create_group(tmp_path / "a", zarr_format=2).create_array("v", **options)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    for zarr_format in (2, 3):
        write_dataset(found, tmp_path / f"b{zarr_format}", zarr_format=zarr_format)
        found.to_zarr(tmp_path / f"c{zarr_format}", zarr_format=zarr_format)
        for letter in "bc":
            assert xr.open_dataset(tmp_path / f"{letter}{zarr_format}", engine="zarrasync").identical(found)
    told = json.loads((tmp_path / "b2" / "v" / ".zarray").read_text())
    assert told["compressor"] == compressor


def test_filters_of_format_2_are_kept_in_it(tmp_path: Path):
    """Those that lose nothing; of text too, but for the one that makes bytes of it."""
    delta = {"id": "delta", "dtype": "<i4", "astype": "<i4"}
    shuffle, summed = {"id": "shuffle", "elementsize": 4}, {"id": "adler32"}
    labels = {"id": "categorize", "labels": ["a", "b"], "dtype": "|O", "astype": "<i4"}
    scaled = {"id": "fixedscaleoffset", "scale": 10, "offset": 0, "dtype": "<f8", "astype": "<i2"}
    numbers, texts = np.arange(5, dtype="i4"), np.array(["a", "bc", "", "d", "é"], "T")
    there = sync.create_group(tmp_path / "a", zarr_format=2)
    for name, values, filters in (
        ("whole", numbers, [delta, shuffle]),
        ("text", texts, [summed]),
        ("packed", numbers, [{**delta, "astype": "|i1"}]),
        ("odd", numbers, [{"id": "shuffle", "elementsize": 0}]),
        ("scaled", numbers / 10, [scaled]),
        ("kinds", np.array(list("abbab"), object), [labels, delta]),
    ):
        options = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "fill_value": None, "filters": filters}
        there.create_array(name, data=values, dtype=object if name == "kinds" else None, **options)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    given = {name: variable.encoding for name, variable in found.variables.items()}
    for zarr_format in (2, 3):
        write_dataset(found, tmp_path / f"b{zarr_format}", zarr_format=zarr_format)
        write_dataset(found, tmp_path / f"c{zarr_format}", zarr_format=zarr_format, encoding=given)
        found.drop_vars("kinds").to_zarr(tmp_path / f"d{zarr_format}", zarr_format=zarr_format)
        for letter in "bcd":
            again = xr.open_dataset(tmp_path / f"{letter}{zarr_format}", engine="zarrasync")
            assert again.drop_vars("kinds", errors="ignore").identical(found.drop_vars("kinds"))

    def told(name: str, where: str) -> Any:
        return json.loads((tmp_path / where / name / ".zarray").read_text())["filters"]

    for where in ("b2", "c2"):
        assert told("whole", where) == [delta, shuffle] and told("text", where) == [{"id": "vlen-utf8"}, summed]
        assert told("packed", where) is None and told("scaled", where) is None
    write_dataset(
        found[["whole"]], tmp_path / "e", zarr_format=2, encoding={"whole": {**given["whole"], "filters": None}}
    )
    assert told("whole", "e") is None
    found.whole.encoding["dtype"] = "f8"
    write_dataset(found[["whole"]], tmp_path / "f", zarr_format=2)
    assert told("whole", "f") is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_takes_the_place_of_a_variable_is_not_rounded(zarr_format: Any, tmp_path: Path):
    """Its filters stay if they lose nothing of others, either."""
    scaled = {"scale": 10, "offset": 0, "dtype": "<f8", "astype": "<i2"}
    delta = {"dtype": "<i8", "astype": "<i8"}
    filters = {"s": ("fixedscaleoffset", scaled), "n": ("delta", delta)}
    there = sync.create_group(tmp_path, zarr_format=zarr_format)
    for name, (kind, options) in filters.items():
        own = {"id": kind, **options} if zarr_format == 2 else {"name": f"numcodecs.{kind}", "configuration": options}
        named = {"dimension_names": ("x",)} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
        there.create_array(name, data=np.arange(5) / (10 if name == "s" else 1), dtype=options["dtype"], filters=[own],
                           fill_value=None if zarr_format == 2 else 0, **named)  # fmt: skip
    other = xr.Dataset({"s": ("x", [3.14159, 1e6, 2, 3, 4.0]), "n": ("x", [1, -(2**63), 2**63 - 1, 0, 5])})
    write_dataset(other, tmp_path, mode="a")
    assert xr.open_dataset(tmp_path, engine="zarrasync").identical(other)
    codecs = {name: [codec.label for codec in (*array.filters, *array.compressors)] for name, array in there.arrays()}
    assert not any("scaleoffset" in label for label in codecs["s"]) and any("delta" in label for label in codecs["n"])


def test_compressors_that_round_are_asked_for(tmp_path: Path):
    pytest.importorskip("zfpy")
    rounding = {"id": "zfpy", "mode": 4, "tolerance": 0.5, "rate": -1, "precision": -1}
    options = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "fill_value": None, "compressors": rounding}
    sync.create_group(tmp_path / "a", zarr_format=2).create_array("v", data=np.arange(4.0), **options)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync").load()
    write_dataset(found, tmp_path / "b", zarr_format=2, encoding={"v": {"compressor": found.v.encoding["compressor"]}})
    assert json.loads((tmp_path / "b" / "v" / ".zarray").read_text())["compressor"]["id"] == "zfpy"
    for values in ([1e9, 0.123, 5.0, 2.7], [3, 1, 4, 1], list("abcd")):
        other = xr.Dataset({"v": ("x", values)})
        write_dataset(other, tmp_path / "a", mode="a")
        np.testing.assert_array_equal(xr.open_dataset(tmp_path / "a", engine="zarrasync").v.values, values)


# ------------------------------------------------------------------ dask


class Source:
    """Counts the blocks that are computed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, block_id: Any = None) -> Any:
        self.count += 1
        return np.arange(12.0).reshape(1, 12) + 100 * block_id[0]


def field(source: Source, days: int = 10) -> Any:
    da = pytest.importorskip("dask.array")
    data = da.map_blocks(source, chunks=((1,) * days, (12,)), dtype="f8", meta=np.empty((0, 0)))
    return xr.Dataset({"a": (("t", "x"), data)}, {"t": np.arange(days)})


@pytest.mark.parametrize("shards", [None, (4, 12)])
@pytest.mark.parametrize("verify", [False, True])
def test_what_variables_share_is_computed_once(verify: bool, shards: Any):
    source = Source()
    given = field(source)
    given["anomaly"] = given.a - given.a.mean("t")
    given["double"] = given.a * 2
    given["total"] = given.a.sum()
    given["names"] = ("x", np.array([f"n{i}" for i in range(12)], object))
    store = stores.MemoryStore()
    chunks = {"chunks": (2, 5)} if shards is None else {"chunks": (2, 6), "shards": shards}
    reports = write_dataset(given, store, verify=verify, encoding={"a": chunks, "double": chunks})
    assert source.count == 10
    found = xr.open_dataset(store, engine="zarrasync")
    np.testing.assert_array_equal(found.a, given.a)
    np.testing.assert_array_equal(found.anomaly, given.anomaly)
    np.testing.assert_array_equal(found.double, given.double)
    assert found.total.item() == given.total.values.item()
    assert found.names.values.tolist() == given.names.values.tolist()
    assert reports["a"].nbytes == given.a.nbytes
    assert reports["a"].blocks == (5 if shards is None else 3)
    assert reports["a"].stored > 0
    assert reports["a"].verified == (reports["a"].blocks if verify else 0)


@pytest.mark.parametrize("kind", ["memory", "slow"])
def test_rows_of_dask_that_begin_in_the_middle_of_a_chunk(kind: str):
    store: Any = stores.MemoryStore()
    store = stores.LatencyStore(store, 0.0) if kind == "slow" else store
    first = field(Source(), 3)
    write_dataset(first, store, encoding={"a": {"chunks": (4, 5)}, "t": {"chunks": (4,)}})
    for _ in range(2):
        write_dataset(field(Source()), store, append_dim="t", verify=True)
    more = field(Source()).a.values
    expected = np.concatenate([first.a.values, more, more])
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, expected)
    write_dataset(field(Source(), 5)[["a"]].drop_vars("t") + 1, store, region={"t": slice(6, 11)})
    expected[6:11] = more[:5] + 1
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, expected)


def test_what_is_not_as_it_was_written_is_found():
    class Forgetful(stores.MemoryStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return await super().put(key, bytes(8 * 12) if key == "a/c/1/0" else data, if_version=if_version)

    encoding = {"a": {"chunks": (1, 12), "compressors": None}}
    with pytest.raises(ChecksumError, match=r"/a\[1:2, 0:12\]"):
        write_dataset(field(Source()), Forgetful(), encoding=encoding, verify=True)


async def test_a_write_of_dask_can_be_cancelled():
    da = pytest.importorskip("dask.array")
    begun, go_on, asked = threading.Event(), threading.Event(), []

    def slow(block_id: Any = None) -> Any:
        asked.append(block_id)
        begun.set()
        assert go_on.wait(20)
        return np.ones(1)

    given = xr.Dataset({"a": ("t", da.map_blocks(slow, chunks=((1,) * 200,), dtype="f8", meta=np.empty(0)))})
    store = stores.MemoryStore()
    task = asyncio.create_task(write_dataset_async(given, store))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.sleep(0)
    task.cancel()  # again
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert len(asked) < 100
    assert not await store.list_prefix("a/c/")


async def test_dask_needs_no_thread_that_its_blocks_wait_for():
    class Threaded(stores.LatencyStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            await asyncio.to_thread(threading.get_ident)
            return await super().put(key, data, if_version=if_version)

    with ThreadPoolExecutor(1) as single:
        asyncio.get_running_loop().set_default_executor(single)
        given = [field(Source()) for _ in range(3)]
        places = [Threaded(stores.MemoryStore(), 0.0) for _ in given]
        await asyncio.wait_for(asyncio.gather(*map(write_dataset_async, given, places)), 30)
        asyncio.get_running_loop()._default_executor = None
    np.testing.assert_array_equal(await (await za.open_array(places[2], path="a"))[...], given[2].a)


def test_blocks_of_dask_do_not_grow_much():
    from zarrasync.integrations.dask_write import Share

    da = pytest.importorskip("dask.array")
    target = sync.create_array({}, shape=(365, 4000, 4000), dtype="f8", chunks=(73, 64, 64))._async
    thin = da.zeros(target.shape, chunks=(1, 4000, 4000))
    share = Share(thin, target, (0, 0, 0))
    assert share.held == 73 * 4000 * 4000 * 8
    blocks = share.aligned().source.chunks
    assert max(map(max, blocks[:1])) == 73
    assert np.prod([max(own) for own in blocks]) * 8 <= 2 * 4000 * 4000 * 8
    assert all(edge % 64 == 0 for own in blocks[1:] for edge in np.cumsum(own)[:-1])
    assert [sum(own) for own in blocks] == [*target.shape]
    fitting = Share(da.zeros(target.shape, chunks=(146, 640, 640)), target, (0, 0, 0))
    assert fitting.held == 0
    assert fitting.aligned().source.chunks == fitting.source.chunks


def test_what_would_wait_in_memory_is_computed_for_each_region():
    store = stores.MemoryStore()
    source = Source()
    given = field(source)
    options = {"encoding": {"a": {"chunks": (5, 3)}}, "config": {"memory_budget": 400}}
    write_dataset(given, store, **options)
    assert source.count > 10
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, given.a)


def _slow_or_bad(block: Any) -> Any:
    if block[0] == 3:
        raise ZeroDivisionError
    time.sleep(0.5)
    return block


def _write(path: str, number: int) -> int:
    write_dataset(xr.Dataset({"a": ("t", np.full(4, number))}).chunk(t=1), f"{path}/{number}")
    return number


def test_tasks_of_a_cluster_write_and_what_is_late_writes_nothing(tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    da = pytest.importorskip("dask.array")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        path = tmp_path / "x"
        write_dataset(xr.Dataset({"a": ("t", np.arange(8.0))}), path, encoding={"a": {"chunks": (1,)}})
        bad = da.arange(8.0, chunks=1).map_blocks(_slow_or_bad, dtype="f8", meta=np.empty(0))
        with pytest.raises(ZeroDivisionError):
            write_dataset(xr.Dataset({"a": ("t", bad)}), path, append_dim="t")
        futures = [client.submit(_write, str(tmp_path), number) for number in range(4)]
        assert [future.result(timeout=60) for future in futures] == [0, 1, 2, 3]
    assert sorted(file.name for file in (path / "a" / "c").iterdir()) == list("01234567")
    assert xr.open_dataset(tmp_path / "3", engine="zarrasync").a.values.tolist() == [3] * 4


def test_dask_on_a_cluster(tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    encoding = {"a": {"chunks": (4, 5)}}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
    ):
        given = xr.Dataset({"a": (("t", "x"), np.arange(120.0).reshape(10, 12))}).chunk(t=3)
        given["b"] = given.a * 2
        write_dataset(given, tmp_path / "x", encoding=encoding, verify=True)
        write_dataset(given, tmp_path / "x", append_dim="t")
        with pytest.raises(StoreError, match="belongs to this process"):
            write_dataset(given, stores.MemoryStore())
        bad = given.assign(b=given.b.copy(data=given.b.data.map_blocks(_refuse, dtype="f8", meta=np.empty((0, 0)))))
        with pytest.raises(ZeroDivisionError):
            write_dataset(bad, tmp_path / "x", append_dim="t")
    found = xr.open_dataset(tmp_path / "x", engine="zarr", consolidated=False)
    np.testing.assert_array_equal(found.a, np.concatenate([given.a.values] * 2))
    np.testing.assert_array_equal(found.b, np.concatenate([given.b.values] * 2))


def _refuse(block: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("lazy", [False, True])
def test_stores_that_can_not_compare(tmp_path, lazy):
    """Regions that cut chunks, and rows, are written there if it is said that nobody else writes."""
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    write_dataset(SIX, store, encoding={"a": {"chunks": (4,)}, "b": {"chunks": (4,)}})
    part = SIX.isel(t=slice(0, 3))
    part = part.chunk(t=3) if lazy else part
    for more in ({"region": {"t": slice(0, 3)}}, {"append_dim": "t"}):
        before = sync.open_group(store).attrs.asdict()
        with pytest.raises(ShapeError, match="unaligned': 'allow'"):
            write_dataset(part.assign_attrs(title="another"), store, **more)
        assert sync.open_group(store).attrs.asdict() == before
        write_dataset(part, store, config={"unaligned": "allow"}, **more)
    with xr.open_dataset(store, engine="zarrasync") as found:
        np.testing.assert_array_equal(found.a.values, np.concatenate([SIX.a.values, SIX.a.values[:3]]))
