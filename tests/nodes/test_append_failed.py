"""Appends and resizes that fail or are cancelled leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores
from zarrasync.errors import StoreError, ZarrError
from zarrasync.testing import LatencyStore


class Full(stores.MemoryStore):
    """A store that becomes full.

    Attributes:
        room: The number of values that it still accepts.
        begins: The prefixes of the keys that count.
        ever: Whether it stays full after the first error.
    """

    room, ever = 1 << 30, True
    begins: str | tuple[str, ...] = "c/"

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        if key.startswith(self.begins):
            if self.room < 1:
                self.room = 0 if self.ever else 1 << 30
                raise StoreError("the disk is full", key=key)
            self.room -= 1
        return await super().put(key, data, if_version=if_version)


@pytest.mark.parametrize("kind", ["local", "memory", "full"])
async def test_a_failed_append_leaves_nothing_beyond_the_end(api: Api, kind: str, tmp_path: Path):
    kinds: dict[str, Callable[[], Any]] = {
        "local": lambda: stores.LocalStore(tmp_path),
        "memory": stores.MemoryStore,
        "full": Full,
    }
    store = kinds[kind]()
    array = await api(api.create_array(store, shape=3, dtype="int4" if kind != "full" else "i4", chunks=4))
    await api.write(array, ..., [1, 2, 3])
    if kind == "full":
        store.room = 1
    with pytest.raises(ZarrError):
        await api(array.append([5, 5, 5, 5, 5, 99] if kind != "full" else np.arange(5, 15)))
    if kind == "full":
        store.room = 1 << 30
    await api(array.append([7]))
    await api(array.resize(8))
    np.testing.assert_array_equal(await api(array.view.read()), [1, 2, 3, 7, 0, 0, 0, 0])


@pytest.mark.parametrize("exclusive", [True, False])
async def test_a_failed_append_without_a_fill_value_stores_nothing_more(api: Api, exclusive: bool):
    store = Full()
    store.exclusive_locks, store.begins, store.ever = exclusive, tuple("0123456789"), False
    options = {"shape": 3, "chunks": 4, "dtype": "i4", "zarr_format": 2, "fill_value": None}
    array = await api(api.create_array(store, **options))
    await api.write(array, ..., [1, 2, 3])
    store.room = 2
    with pytest.raises(StoreError, match="disk is full"):
        await api(array.append(np.arange(5, 18)))
    assert [key for key in await store.list_prefix("") if key[0] != "."] == ["0"]
    assert (await api(api.open_array(store))).shape == (3,)


async def test_failed_repairs_are_logged(api: Api, caplog: pytest.LogCaptureFixture):
    store = Full()
    store.exclusive_locks = False
    array = await api(api.create_array(store, data=np.ones(2, "i4"), chunks=4))
    store.room = 0
    with pytest.raises(StoreError, match="disk is full"):
        await api(array.append([7]))
    assert "clean-up after a failed call failed: StoreError: the disk is full" in caplog.text


async def test_an_append_without_a_stored_shape_leaves_nothing(api: Api):
    store = Full()
    array = await api(api.create_array(store, data=np.ones(2, "i4"), chunks=2))
    store.room, store.begins = 0, "zarr.json"
    with pytest.raises(StoreError, match="disk is full"):
        await api(array.append(np.full(6, 7)))
    store.room = 1 << 30
    await api(array.resize(8))
    np.testing.assert_array_equal(await api(array.view.read()), [1, 1, 0, 0, 0, 0, 0, 0])


async def test_a_resize_that_fails_takes_nothing_away(api: Api):
    store = Full()
    array = await api(api.create_array(store, data=np.ones(10, "i4"), chunks=4))
    store.room = 0
    with pytest.raises(StoreError, match="disk is full"):
        await api(array.resize(3))
    np.testing.assert_array_equal(await api((await api(api.open_array(store))).view.read()), np.ones(10))


async def test_an_append_that_waits_for_its_turn_can_be_cancelled():
    class Slow(LatencyStore):
        held = False

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if self.held and key.startswith("c/"):
                begun.set()
                await go_on.wait()
            return await super().put(key, data, if_version=if_version)

    begun, go_on = asyncio.Event(), asyncio.Event()
    store = Slow(stores.MemoryStore(), 0.0)
    one = await za.create_array(store, data=np.ones(2, "i4"), chunks=2)
    other = await za.open_array(store, mode="r+")
    store.held = True
    first = asyncio.create_task(one.append(np.full(2, 3)))
    await begun.wait()
    second = asyncio.create_task(other.append(np.full(2, 4)))
    await asyncio.sleep(0.05)
    second.cancel()
    done, _ = await asyncio.wait([second], timeout=10)
    assert done
    assert second.cancelled()
    assert not first.done()
    go_on.set()
    await first
    np.testing.assert_array_equal(await (await za.open_array(store))[...], [1, 1, 3, 3])


async def test_an_append_cancelled_twice_keeps_values_of_others():
    class Slow(LatencyStore):
        slow = False

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if self.slow and key.startswith("c/"):
                begun.set()
                await asyncio.sleep(0.2)
            return await super().put(key, data, if_version=if_version)

        async def erase_values(self, keys: Any) -> None:
            await asyncio.sleep(0.2 * self.slow)
            await super().erase_values(keys)

    begun = asyncio.Event()
    store = Slow(stores.MemoryStore(), 0.0)
    one = await za.create_array(store, data=np.ones(2, "i4"), chunks=2)
    other = await za.open_array(store, mode="r+")
    store.slow = True
    appending = asyncio.create_task(one.append(np.full(8, 7)))
    await begun.wait()
    for _ in range(3):
        appending.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await appending
    store.slow = False
    await other.append(np.full(4, 5))
    await asyncio.sleep(0.3)
    np.testing.assert_array_equal(await other[...], [1, 1, 5, 5, 5, 5])


async def test_shrinking_stores_nothing_where_nothing_was(api: Api):
    for fill_value in (None, 3):
        options = {"shape": (30, 30), "chunks": (4, 4), "dtype": "i4", "zarr_format": 2, "fill_value": fill_value}
        array = await api(api.create_array({}, **options))
        await api.write(array, (28, 5), 9)
        await api(array.resize((29, 27)))
        assert await api(array.nchunks_initialized()) == 1
        assert await api(array.view[28, 5].read()) == 9


async def test_rows_that_cannot_be_erased_stay(api: Api):
    """Otherwise their values would come back when the array grows."""

    class Broken(Full):
        exclusive_locks = False  # as object stores, where appends reserve rows

        async def erase_values(self, keys: Any) -> None:
            raise StoreError("the service does not respond", key="c/1/0")

    store = Broken()
    array = await api(api.create_array(store, shape=(2, 2), dtype="i4", chunks=(2, 1)))
    store.room = 1
    with pytest.raises(StoreError, match="full"):
        await api(array.append(np.full((2, 2), 5)))
    found = await za.open_array(store, mode="r+")
    assert found.shape == (4, 2)
    await found.resize((6, 2))
    assert (await found[4:]).tolist() == [[0, 0], [0, 0]]
