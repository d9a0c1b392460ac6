"""Appends to datasets: which variables grow, concurrent appends, failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.shifted_clock import ShiftedClock
from zarrasync import stores, sync
from zarrasync._concurrency import clock
from zarrasync.errors import EncodingError, ShapeError, StoreError
from zarrasync.testing import FaultyStore, LatencyStore

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from tests.support.datasets import rows
from zarrasync.integrations.xarray import WriteOptions, write_dataset, write_dataset_async  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def fast_clock() -> Iterator[None]:
    """Let a writer wait for others for a moment only."""
    with clock.replaced(ShiftedClock(50)):
        yield


@pytest.mark.parametrize("first", ["a", "b", "time"])
@pytest.mark.usefixtures("fast_clock")
def test_rows_of_some_variables_alone_are_not_overwritten(first: str):
    """Nor are other variables left out, which would need a decision."""

    def rows(*names: str) -> Any:
        return xr.Dataset({name: ("time", [1.0, 2.0]) for name in names})

    for together in (("a", "b"), ("a", "b", "time")):
        if first not in together:
            continue
        store = stores.MemoryStore()
        write_dataset(rows(*together), store)
        sync.open_array(store, path=first, mode="r+").append([1.0, 2.0])
        before = {key: value for key, value in store.values.items() if "c/" in key}
        with pytest.raises(ShapeError, match="rows along 'time', but another variable has"):
            write_dataset(rows(*together), store, append_dim="time", on_duplicate="allow")
        assert before == {key: value for key, value in store.values.items() if "c/" in key}
        assert {sync.open_array(store, path=name).shape for name in together} == {(2,), (4,)}
        beside = rows(*together).assign(_first=("x", [7.0]))  # this would replace it
        write_dataset(beside[["_first"]], store, mode="a")
        with pytest.raises(ShapeError, match="rows along 'time', but another variable has"):
            write_dataset(beside, store, append_dim="time", on_duplicate="allow")
        assert sync.open_array(store, path="_first")[...].tolist() == [7]
        for name in together:
            sync.open_array(store, path=name, mode="r+").resize(4)
        write_dataset(rows(*together), store, append_dim="time", on_duplicate="allow")
        assert {sync.open_array(store, path=name).shape for name in together} == {(6,)}


STATIC = {"area": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2,)}}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
def test_variables_without_rows_stay_where_they_are(zarr_format: Any, lazy: bool):
    """They are never erased in between, and keep their encoding."""

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
    store.exclusive_locks = exclusive
    write_dataset(rows(0), store, encoding={"t": {"chunks": (8,)}})
    before = xr.open_dataset(store, engine="zarrasync").load()
    store.full = True
    with pytest.raises(StoreError, match="full"):
        write_dataset(rows(1), store, append_dim="t")
    assert xr.open_dataset(store, engine="zarrasync").identical(before)


class Noting(stores.WrapperStore):
    """A store that records the keys of its writes."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.put_keys: list[str] = []

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self.put_keys.append(key)
        return await self.inner.put(key, data, if_version=if_version)


class Refusing(stores.MemoryStore):
    """A store that refuses one document while other requests are in flight."""

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
    store = LatencyStore(memory, 0.0)
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


def test_consolidated_metadata_follows_replacements_before_a_failure():
    store = Refusing()
    write_dataset(xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [1, 2])}), store, options=WriteOptions(consolidated=True))
    store.refused = "b/zarr.json"
    with pytest.raises(StoreError, match="403"):
        write_dataset(xr.Dataset({"a": ("x", [1.5, 2.5]), "b": ("x", [1.5, 2.5])}), store, mode="a")
    copies = dict(sync.open_group(store).arrays())
    alone = dict(sync.open_group(store, use_consolidated=False).arrays())
    assert {name: array.dtype for name, array in copies.items()} == {name: array.dtype for name, array in alone.items()}


def test_consolidated_metadata_of_format_2_includes_nodes_of_others(tmp_path: Path):
    write_dataset(rows(0), tmp_path, zarr_format=2)
    sync.create_array(tmp_path, path="new", data=[1], zarr_format=2)
    write_dataset(rows(1), tmp_path, append_dim="t")
    assert "new" in sync.open_group(tmp_path, use_consolidated=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copies_of_metadata_follow_an_append_at_once(zarr_format: Any, tmp_path: Path):
    """They are updated once, not once for each variable, and before replaced variables are filled."""
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


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_bounds_without_units_get_those_of_their_coordinate(zarr_format: Any):
    """As CF specifies, and as xarray writes netCDF."""

    def intervals(first: int) -> Any:
        edges = np.datetime64("2024-01-01", "ns") + np.arange(first, first + 3) * np.timedelta64(1, "D")
        bounds = ("t", "edge"), np.stack([edges[:-1], edges[1:]], 1)
        return xr.Dataset({"t_bounds": bounds}, {"t": ("t", edges[:-1], {"bounds": "t_bounds"})})

    store = stores.MemoryStore()
    write_dataset(intervals(0), store, zarr_format=zarr_format, options=WriteOptions(consolidated=False))
    attributes = sync.open_array(store, path="t_bounds", mode="r+").attrs
    for name in ("units", "calendar"):
        del attributes[name]
    write_dataset(intervals(2), store, append_dim="t", options=WriteOptions(consolidated=False))
    write_dataset(intervals(1), store, region="auto", options=WriteOptions(consolidated=False))
    expected = xr.concat([intervals(0), intervals(2)], "t")
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync"), expected)
    assert "units" not in sync.open_array(store, path="t_bounds").attrs


@pytest.mark.parametrize("decode_times", [False, True])
@pytest.mark.parametrize("kind", ["bounds", "climatology"])
def test_bounds_in_numbers_have_the_units_of_their_coordinate(kind: str, decode_times: bool):
    """xarray does not decode climatological bounds."""
    time = ("t", np.arange(4, dtype="i4"), {"units": "days since 2024-01-01", kind: "t_edges"})
    edges = ("t", "edge"), np.arange(8, dtype="i4").reshape(4, 2)
    dataset = xr.decode_cf(xr.Dataset({"t_edges": edges}, {"t": time}), decode_times=decode_times)
    store = stores.MemoryStore()
    write_dataset(dataset.isel(t=slice(2)), store)
    write_dataset(dataset.isel(t=slice(2, 4)), store, append_dim="t")
    if decode_times:
        write_dataset(dataset.isel(t=slice(1, 3)), store, region="auto")
    assert sync.open_array(store, path="t_edges")[...].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    hours = {**time[2], "units": "hours since 2024-01-01"}
    other = xr.decode_cf(xr.Dataset({"t_edges": edges}, {"t": (*time[:2], hours)}), decode_times=decode_times)
    if kind == "climatology" or not decode_times:
        with pytest.raises(EncodingError, match="units"):
            write_dataset(other, store, append_dim="t")


def test_rows_that_were_never_reserved_are_not_added_after_a_failure():
    """Another writer has removed all rows in the meantime."""
    memory = stores.MemoryStore()
    write_dataset(xr.Dataset({"v": ("time", np.zeros(2)), "c": 1.0}), memory)

    def fails(operation: str, key: str) -> bool:
        if (operation, key) == ("put", "c/c"):
            sync.open_array(memory, path="v", mode="r+").resize((0,))
            return True
        return False

    with pytest.raises(StoreError):
        write_dataset(
            xr.Dataset({"v": ("time", np.zeros(0)), "c": 2.0}), FaultyStore(memory, fails=fails), append_dim="time"
        )
    assert sync.open_array(memory, path="v").shape == (0,)


def test_claims_of_all_groups_are_released_or_left():
    """If one cannot be released, no thread renews it or another one any more."""

    def tree(start: int) -> Any:
        labels = np.arange(start, start + 2)
        group = xr.Dataset({"v": ("time", labels + 0.5)}, {"time": labels})
        return xr.DataTree.from_dict({"/": xr.Dataset(), "/a": group, "/b": group})

    memory = stores.MemoryStore()
    write_dataset(tree(0), memory)
    erased = list[str]()

    def fails(operation: str, key: str) -> bool:
        """The removal of the first claim."""
        erased.extend([key] * (operation == "erase" and key.endswith("/.appends")))
        return operation == "erase" and [key] == erased

    with pytest.raises(StoreError):
        write_dataset(tree(2), FaultyStore(memory, fails=fails), append_dim="time")
    assert sorted(erased) == ["a/time/.appends", "b/time/.appends"]
    assert [thread.name for thread in threading.enumerate() if "lease" in thread.name] == []
    write_dataset(tree(2), memory, append_dim="time", on_duplicate="skip")
    write_dataset(tree(4), memory, append_dim="time")
    assert [key for key in memory.values if "appends" in key] == []
    assert xr.open_datatree(memory, engine="zarrasync")["b"].time.values.tolist() == list(range(6))
