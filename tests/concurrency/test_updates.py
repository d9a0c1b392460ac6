"""Concurrent updates of one value: none is lost, and conflicts are retried or reported."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.gated_store import GatedStore
from tests.support.layouts import LAYOUTS
from zarrasync import stores, sync
from zarrasync.errors import ReadOnlyError, WriteConflictError
from zarrasync.stores import MemoryStore, Store, WrapperStore
from zarrasync.testing import LatencyStore


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("kind", ["memory", "local", "slow"])
async def test_tasks_do_not_lose_updates(tmp_path, kind, options):
    place = {"memory": MemoryStore(), "local": tmp_path, "slow": GatedStore(MemoryStore())}[kind]
    a = await za.create_array(place, shape=(20, 20), dtype="i4", **options)
    await asyncio.gather(*(a[i, j].write(i * 20 + j + 1) for i in range(20) for j in range(20)))
    np.testing.assert_array_equal(await a[...], np.arange(1, 401).reshape(20, 20))


@pytest.mark.parametrize("options", LAYOUTS)
def test_threads_do_not_lose_updates(tmp_path, options):
    sync.create_array(tmp_path, shape=(20, 20), dtype="i4", **options)

    def work(row: int) -> None:
        own = sync.open_array(tmp_path, mode="r+")  # two opens share their locks
        for column in range(20):
            own[row, column] = row * 20 + column + 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(20)))
    np.testing.assert_array_equal(sync.open_array(tmp_path)[...], np.arange(1, 401).reshape(20, 20))


@pytest.mark.parametrize("kind", ["fsspec", "zarr-python"])
def test_stores_that_each_thread_makes_mean_the_same_data(tmp_path, kind):
    def make():
        if kind == "fsspec":
            return stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path))
        return pytest.importorskip("zarr").storage.LocalStore(tmp_path)

    sync.create_array(make(), shape=(160,), chunks=(40,), dtype="i4")

    def write(number):
        array = sync.open_array(make(), mode="r+")
        for i in range(number, 160, 8):
            array[i] = i + 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    np.testing.assert_array_equal(sync.open_array(make())[...], np.arange(1, 161))


def test_a_local_store_of_zarr_python_that_reads_only(tmp_path):
    zarr = pytest.importorskip("zarr")
    sync.create_array(tmp_path, data=np.arange(3))
    store = zarr.storage.LocalStore(tmp_path, read_only=True)
    with pytest.raises(ReadOnlyError):
        sync.open_array(store, mode="r+")[0] = 1
    assert sync.open_array(store)[...].tolist() == [0, 1, 2]


async def test_threads_loops_and_this_loop_do_not_lose_updates():
    store = MemoryStore()
    await za.create_array(store, shape=(60,), dtype="i4", chunks=60)

    async def write(start: int) -> None:
        a = await za.open_array(store, mode="r+")
        for i in range(start, start + 20):
            await a[i].write(i + 1)

    def blocking(start: int) -> None:
        a = sync.open_array(store, mode="r+")
        for i in range(start, start + 20):
            a[i] = i + 1

    await asyncio.gather(write(0), asyncio.to_thread(lambda: asyncio.run(write(20))), asyncio.to_thread(blocking, 40))
    a = await za.open_array(store)
    assert (await a[...]).tolist() == list(range(1, 61))


async def test_full_and_partial_writes_of_a_chunk_do_not_mix():
    """A partial write that began before a write of the whole chunk must not undo it."""
    store = GatedStore(MemoryStore())
    a = await za.create_array(store, shape=(10,), dtype="i4", chunks=10)
    store.open = False
    partial = asyncio.ensure_future(a[0].write(1))
    while not store.waiting:
        await asyncio.sleep(0)
    whole = asyncio.ensure_future(a[...].write(7))
    await asyncio.sleep(0.01)
    assert not whole.done()
    store.open = True
    await asyncio.gather(partial, whole)
    assert (await a[...]).tolist() == [7] * 10


def test_one_array_opened_at_two_roots_has_one_lock(tmp_path, s3):
    """The lock belongs to the stored value, whichever root and path the array was opened by."""
    url, options = s3
    place = stores.resolve(tmp_path), stores.resolve(tmp_path / "a"), stores.resolve(f"file://{tmp_path}/a")
    assert place[0].location("a/c/0") == place[1].location("c/0") == place[2].location("c/0")
    remote = stores.resolve(url, options), stores.resolve(f"{url}/a", options)
    assert remote[0].location("a/c/0") == remote[1].location("c/0")
    assert remote[0].limiter() is remote[1].limiter()
    sync.create_array(tmp_path, name="a", shape=100, dtype="i4", chunks=100)

    def work(opened: tuple[sync.Array, int]) -> None:
        array, start = opened
        for i in range(start, 100, 2):
            array[i] = i + 1

    ways = sync.open_array(tmp_path, path="a", mode="r+"), sync.open_array(tmp_path / "a", mode="r+")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, zip(ways, (0, 1), strict=True)))
    assert ways[0][...].tolist() == list(range(1, 101))


async def test_endless_conflicts_time_out(api: Api):
    """After the timeout the error names the key, the number of attempts and the time."""

    class Busy(WrapperStore):
        """A store in which another writer always comes first."""

        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.exclusive_locks, self.busy = False, False

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if self.busy:
                (found,) = await self.inner.fetch([stores.Request(key)])
                old = bytes(found.data)
                other = old[:-1] + bytes([(old[-1] + 1) % 256]) if "/c/" in key else old + b" "
                await self.inner.put(key, other)
            return await self.inner.put(key, data, if_version=if_version)

    store = Busy(MemoryStore())
    limits = {"total_timeout": 0.05}
    array = await api(api.create_array(store, path="a", data=np.arange(8), chunks=4, compressors=None, config=limits))
    store.busy = True
    with pytest.raises(
        WriteConflictError, match=r"a part of 'a/c/0': .*changed meanwhile.* attempts within 0\.05 s"
    ) as chunk:
        await api.write(array, 1, 9)
    with pytest.raises(WriteConflictError, match=r"/a in .*changed meanwhile.* attempts within 0\.05 s") as document:
        await api(array.update_attributes({"x": 1}))
    assert (chunk.value.key, document.value.key) == ("a/c/0", "a/zarr.json")
    assert min(chunk.value.attempts, document.value.attempts) > 1
    assert (await api(array[...])).tolist()[:3] == [0, 1, 2]
    assert dict((await api(api.open_array(store, path="a"))).attrs) == {}


async def test_partial_writes_through_a_store_that_is_slow(tmp_path):
    array = await za.create_array(LatencyStore(stores.LocalStore(tmp_path), 0.0), shape=(10,), dtype="i4", chunks=(10,))
    await asyncio.wait_for(array[3:5].write(7), 20)
    assert (await array[...]).tolist() == [0, 0, 0, 7, 7, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["local", "fsspec"])
async def test_locks_stay_the_same_when_their_directory_is_created(tmp_path, kind):
    """Otherwise the first writers of an array lock different places, and lose each other's updates."""
    store = stores.LocalStore(tmp_path)
    other = store if kind == "local" else stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path))
    before = other.lock_identities(["a/c/0", "a/c/1"])
    sync.create_array(store, path="a", data=np.arange(2), chunks=1)
    assert other.lock_identities(["a/c/0", "a/c/1"]) == before
