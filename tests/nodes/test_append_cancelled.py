"""Appends that are cancelled, fail or meet others leave no gap and take no rows away."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import zarrasync as za
from zarrasync import stores, sync
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.append_resize import Append
from zarrasync.nodes.base import MetadataCell
from zarrasync.stores import MemoryStore, Store, WrapperStore
from zarrasync.stores.local_directories import LocalDirectories
from zarrasync.testing import LatencyStore


async def test_a_cancelled_append_releases_its_rows():
    """Rows are reserved before threads write them, and the cancelled append returns the reservation."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(WrapperStore):
        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.exclusive_locks, self.blocking = False, True

        async def put(self, key, data, *, if_version=None):
            if "c/" in key:
                begun.set()
                assert go_on.wait(30)
            return await self.inner.put(key, data, if_version=if_version)

    memory = MemoryStore()
    await za.create_array(memory, shape=0, dtype="f8", chunks=100)
    a = await za.open_array(Slow(memory), mode="r+")
    task = asyncio.ensure_future(a.append(np.ones(5_000)))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    for _ in range(10):  # the task is cancelled some loop iterations later
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await za.open_array(memory)).shape == (0,)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_append_that_is_cancelled_when_a_thread_is_about_to_store_it(tmp_path, when):
    """The append takes effect or not; a caller that retries must not append twice."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(stores.LocalStore):
        async def put(self, key, data, *, if_version=None):
            waits = key == "zarr.json" and armed
            if waits and when == "before":
                begun.set()
                assert go_on.wait(30)
            found = await super().put(key, data, if_version=if_version)
            if waits and when == "after":
                begun.set()
                assert go_on.wait(30)
            return found

    armed = False
    a = await za.create_array(Slow(tmp_path), data=np.arange(5), chunks=3)
    armed = True
    task = asyncio.ensure_future(a.append(np.arange(5, 9)))
    await asyncio.to_thread(begun.wait, 30)
    armed = False
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sync.open_array(tmp_path)[...].tolist() == [0, 1, 2, 3, 4]
    await a.append(np.arange(5, 9))
    assert sync.open_array(tmp_path)[...].tolist() == list(range(9))
    await a.resize((12,))
    assert sync.open_array(tmp_path)[...].tolist() == [*range(9), 0, 0, 0]


async def test_a_late_cancel_leaves_no_gap_below_later_appends(tmp_path):
    """Rows below those of a later append are not removed."""
    done, go_on = threading.Event(), threading.Event()

    class SlowDirectories(LocalDirectories):
        def set_pending(self, key, note):
            if note is None and armed:  # the last step of an append
                done.set()
                assert go_on.wait(30)
            super().set_pending(key, note)

    class Slow(stores.LocalStore):
        @property
        def directories(self):
            return SlowDirectories(**vars(super().directories))

    armed = False
    a = await za.create_array(Slow(tmp_path), data=np.ones(2, "i4"), chunks=4)
    armed = True
    task = asyncio.ensure_future(a.append(np.full(2, 2, "i4")))
    assert await asyncio.to_thread(done.wait, 30)
    armed = False
    other = await za.open_array(tmp_path, mode="r+")
    later = asyncio.ensure_future(other.append(np.full(2, 3, "i4")))
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await later
    found = sync.open_array(tmp_path)[...].tolist()
    assert found in ([1, 1, 3, 3], [1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize("reserved", [True, False])
async def test_rows_below_a_later_append_are_kept(reserved):
    """The append is cancelled after its last write, and another append follows it."""
    store = MemoryStore()
    a = await za.create_array(store, data=np.ones(2, "i4"), chunks=4)
    append = Append(MetadataCell(handle_of(a), a.metadata), np.full(2, 2, "i4"), 0)
    await (append.reserve_then_write() if reserved else append.write_then_grow())
    other = await za.open_array(store, mode="r+")
    await other.append(np.full(2, 3, "i4"))
    assert append.undo is not None
    await append.undo()
    assert (await other.view.read()).tolist() == [1, 1, 2, 2, 3, 3]


async def test_rows_of_an_append_cancelled_while_its_shape_is_stored_do_not_come_back():
    """In a store without conditional writes and locks, the written rows are erased and do not reappear when the array grows."""
    zarr = pytest.importorskip("zarr")
    storing = asyncio.Event()

    class Slow(zarr.storage.MemoryStore):  # type: ignore[name-defined]  # imported if it is installed
        slow = False

        async def set(self, key, value, byte_range=None):
            if self.slow and key == "zarr.json":
                storing.set()
                await asyncio.sleep(0.05)
            return await super().set(key, value)

    store = Slow()
    a = await za.create_array(store, data=np.arange(1, 5), chunks=4, config=za.Config(unaligned="allow"))
    store.slow = True
    task = asyncio.ensure_future(a.append(np.full(4, 9)))
    await asyncio.wait_for(storing.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await za.open_array(store)).shape == (4,)
    await a.resize((8,))
    assert (await a.view.read()).tolist() == [1, 2, 3, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["memory", "remote"])
async def test_an_outdated_handle_keeps_appended_rows(kind: str):
    """The edge chunk of an outdated handle contains rows that another handle has appended."""
    store = MemoryStore() if kind == "memory" else LatencyStore(MemoryStore(), 0.0)
    behind = await za.create_array(store, shape=(15,), dtype="i4", chunks=(10,), fill_value=-1)
    other = await za.open_array(store, mode="r+")
    await other.append(np.full(5, 2, "i4"))
    await behind[10:15].write(1)
    np.testing.assert_array_equal(await (await za.open_array(store))[10:], [1] * 5 + [2] * 5)
    await behind[10:15].write(-1)  # and it is not erased either
    np.testing.assert_array_equal(await (await za.open_array(store))[10:], [-1] * 5 + [2] * 5)


async def test_a_late_append_keeps_earlier_rows():
    class Late(LatencyStore):
        def __init__(self, inner: Store) -> None:
            super().__init__(inner, 0.0)
            self.gate = asyncio.Event()
            self.hold = True

        async def put(self, key, data, *, if_version=None):
            if key == "c/0" and self.hold:
                self.hold = False
                await self.gate.wait()
            return await super().put(key, data, if_version=if_version)

    store = Late(MemoryStore())
    await za.create_array(store, shape=(0,), dtype="i4", chunks=(10,), fill_value=-1)
    one, other = await za.open_array(store, mode="r+"), await za.open_array(store, mode="r+")
    first = asyncio.create_task(one.append(np.full(5, 1, "i4")))
    while store.hold:
        await asyncio.sleep(0)
    second = asyncio.create_task(other.append(np.full(5, 2, "i4")))
    await asyncio.sleep(0.01)
    store.gate.set()
    await asyncio.gather(first, second)
    np.testing.assert_array_equal(await (await za.open_array(store))[...], [1] * 5 + [2] * 5)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_failed_append_releases_its_rows(blocking: bool):
    """Also after a later append, whose rows are kept."""

    class Failing(WrapperStore):
        fail = True

        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.exclusive_locks, self.blocking = False, blocking

        async def put(self, key, data, *, if_version=None):
            if key.startswith("c/") and self.fail:
                self.fail = False
                raise za.errors.StoreError("no", key=key)
            return await self.inner.put(key, data, if_version=if_version)

    memory = MemoryStore()
    await za.create_array(memory, data=np.arange(1, 6, dtype="i4"), chunks=(4,))
    failing = await za.open_array(Failing(memory), mode="r+")
    with pytest.raises(za.errors.StoreError, match="no"):
        await failing.append(np.full(6, 7, "i4"))
    found = await za.open_array(memory, mode="r+")
    np.testing.assert_array_equal(await found[...], [1, 2, 3, 4, 5])
    await found.append(np.full(3, 8, "i4"))
    np.testing.assert_array_equal(await found[...], [1, 2, 3, 4, 5, 8, 8, 8])
