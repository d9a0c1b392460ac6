"""Loops, threads, forks, cancellation; updates that must not get lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gates import FifoGate
from zarrasync._concurrency.locks import KeyLock
from zarrasync.errors import CodecError, MissingChunkError, ReadOnlyError, WriteConflictError
from zarrasync.stores import MemoryStore, Store, WrapperStore


class Slow(WrapperStore):
    """A memory store behind an asynchronous door that opens when it is told to. Counts requests."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.blocking = False
        self.concurrency = 8
        self.open = True
        self.waiting = 0
        self.most = 0
        self.cancelled = 0

    async def fetch(self, requests, *, versions=False):
        self.waiting += len(requests)
        self.most = max(self.most, self.waiting)
        try:
            await asyncio.sleep(0)
            while not self.open:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += len(requests)
            raise
        finally:
            self.waiting -= len(requests)
        return await self.inner.fetch(requests, versions=versions)

    async def put(self, key, data, *, if_version=None):
        await asyncio.sleep(0)
        return await self.inner.put(key, data, if_version=if_version)


OPTIONS = [{"chunks": (10, 10)}, {"chunks": (5, 5), "shards": (10, 10)}, {"chunks": (10, 10), "compressors": None}]


# ------------------------------------------------------------------ no update is lost


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["memory", "local", "slow"])
async def test_tasks_do_not_lose_updates(tmp_path, kind, options):
    place = {"memory": MemoryStore(), "local": tmp_path, "slow": Slow(MemoryStore())}[kind]
    a = await za.create_array(place, shape=(20, 20), dtype="i4", **options)
    await asyncio.gather(*(a[i, j].write(i * 20 + j + 1) for i in range(20) for j in range(20)))
    np.testing.assert_array_equal(await a[...], np.arange(1, 401).reshape(20, 20))


@pytest.mark.parametrize("options", OPTIONS)
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


async def test_whole_and_partial_writes_of_a_chunk_do_not_mix():
    """A partial write that began before a whole one must not undo it."""
    store = Slow(MemoryStore())
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


# ------------------------------------------------------------------ a loop runs in the thread


async def test_sync_calls_work_inside_a_running_loop(tmp_path, s3):
    url, options = s3
    for place, given in ((tmp_path, None), (url, options)):
        a = sync.create_array(place, data=np.arange(9), chunks=4, storage_options=given)
        assert a[::-1].tolist() == list(range(9))[::-1]
        a.append([9])
        assert a.shape == (10,)
        assert [block.tolist() for _, block in a.view.chunks()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_sync_write_says_so_rather_than_wait_for_a_task_of_the_loop_it_blocks():
    store = Slow(MemoryStore())
    a = await za.create_array(store, shape=(4,), dtype="i4")
    store.open = False
    task = asyncio.ensure_future(a[0].write(1))
    while not store.waiting:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="make this one asynchronous too"):
        sync.Array(a)[1] = 2
    store.open = True
    await task
    sync.Array(a)[1] = 2
    assert (await a[...]).tolist() == [1, 2, 0, 0]


async def test_a_sync_read_does_not_wait_for_permits_of_the_loop_it_blocks():
    inner = MemoryStore()
    await za.create_array(inner, data=np.arange(4))
    gate = FifoGate(1)
    await gate.acquire()

    class Gated(Slow):
        async def fetch(self, requests, *, versions=False):
            await gate.acquire()
            try:
                return await super().fetch(requests, versions=versions)
            finally:
                gate.release()

    assert sync.open_array(Gated(inner))[...].tolist() == [0, 1, 2, 3]
    gate.release()
    assert gate.free == 1


def test_sync_calls_from_the_library_loop_are_refused():
    a = sync.create_array(Slow(MemoryStore()), data=np.arange(4))

    async def wrong():
        return a[...]

    from zarrasync._concurrency import bridge

    with pytest.raises(RuntimeError, match="inside zarrasync's own event loop"):
        bridge.run(wrong(), blocking=False)


def test_one_store_in_one_loop_after_another():
    store = Slow(MemoryStore())
    a = sync.create_array(store, data=np.arange(4))
    assert asyncio.run(a.async_.getitem(...)).tolist() == [0, 1, 2, 3]
    assert asyncio.run(a.async_.getitem(slice(1, 3))).tolist() == [1, 2]
    assert a[...].tolist() == [0, 1, 2, 3]


def test_many_threads_at_once(tmp_path):
    data = np.random.default_rng(0).random((200, 200))
    a = sync.create_array(tmp_path, data=data, chunks=(50, 50))
    b = sync.create_array(Slow(MemoryStore()), data=data, chunks=(50, 50))

    def work(i: int) -> bool:
        return all(np.array_equal(x[i : i + 90, ::3], data[i : i + 90, ::3]) for x in (a, b))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


# ------------------------------------------------------------------ bounds


async def test_requests_in_flight_are_bounded():
    store = Slow(MemoryStore())
    a = await za.create_array(store, data=np.arange(1000), chunks=10)
    store.most = 0
    await a[...]
    assert 2 <= store.most <= 8
    few = await za.open_array(store, config={"concurrency": 3})
    store.most = 0
    await few[...]
    assert store.most <= 3
    for threads in (2, 64):  # however values are put together
        many = await za.open_array(store, config={"concurrency": 64, "threads": threads})
        store.most = 0
        await many[...]
        assert 48 < store.most <= 64
    store = Slow(MemoryStore())
    await za.create_array(store, data=np.arange(1000), chunks=10, compressors=None)
    for limit in (1, 8, 64):  # the first and the last value are read in part, the others whole
        raw = await za.open_array(store, config={"concurrency": limit})
        store.most = 0
        np.testing.assert_array_equal(await raw[8:992], np.arange(8, 992))
        assert limit // 2 < store.most <= limit


async def test_bytes_in_flight_are_bounded():
    store = Slow(MemoryStore())
    data = np.zeros((64, 1 << 17), "u1")
    data[:] = np.arange(1, 65)[:, None]
    await za.create_array(store, data=data, chunks=(1, 1 << 17), compressors=None)
    tight = await za.open_array(store, config={"memory_budget": 3 << 17})
    store.most = 0
    np.testing.assert_array_equal(await tight[...], data)
    assert store.most <= 3
    huge = await za.open_array(store, config={"memory_budget": 1})  # more than all: one at a time
    store.most = 0
    np.testing.assert_array_equal(await huge[:5], data[:5])
    assert store.most == 1
    await za.create_array(store, data=data[:, :1024], chunks=(1, 1024), overwrite=True)
    little = await za.open_array(store, config={"memory_budget": 3 << 10})
    store.most = 0
    got = await asyncio.gather(*(little[number, 5] for number in range(64)))
    assert got == data[:, 5].tolist()
    assert store.most == 3


async def test_a_gate_serves_in_order_across_threads_and_loops():
    gate = FifoGate(2)
    await gate.acquire(2)
    order: list[str] = []

    async def task(name: str, amount: int) -> None:
        await gate.acquire(amount)
        order.append(name)
        gate.release(amount)

    first = asyncio.ensure_future(task("first", 2))
    await asyncio.sleep(0)
    thread = threading.Thread(target=lambda: drive(task("second", 1)))
    thread.start()
    while len(gate._waiters) < 2:
        await asyncio.sleep(0.001)
    third = asyncio.ensure_future(task("third", 1))
    gone = asyncio.ensure_future(task("gone", 2))
    await asyncio.sleep(0)
    gone.cancel()
    assert gate.free == 0
    gate.release(2)
    await asyncio.gather(first, third)
    await asyncio.to_thread(thread.join)
    assert order[0] == "first"
    assert sorted(order) == ["first", "second", "third"]
    assert gate.free == 2
    with contextlib.suppress(asyncio.CancelledError):
        await gone


async def test_a_cancelled_waiter_leaves_a_key_lock_usable():
    async with KeyLock("k"):
        task = asyncio.ensure_future(_hold("k"))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.wait_for(_hold("k"), 5)


async def _hold(key: str) -> None:
    async with KeyLock(key):
        pass


@pytest.mark.parametrize("options", OPTIONS[::2])
async def test_values_that_are_fetched_together_are_told_apart(options, api):
    """Absent ones, damaged ones, and all selections, on a store that is read by tasks."""
    store, data = Slow(MemoryStore()), np.arange(10_000, dtype="i4").reshape(100, 100)
    store.concurrency = 64
    a = await api(api.create_array(store, data=data, fill_value=-1, **options))
    await store.erase_values(["c/0/3", "c/5/5"])
    expected = data.copy()
    expected[:10, 30:40] = expected[50:60, 50:60] = -1
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 100, (2, 2000))
    for found, wanted in (
        (a[...], expected),
        (a[3:97:7, ::-3], expected[3:97:7, ::-3]),
        (a.vindex[rows, columns], expected[rows, columns]),
        (a.oindex[rows[:50], columns[:60]], expected[np.ix_(rows[:50], columns[:60])]),
        (a.vindex[expected % 7 == 0], expected[expected % 7 == 0]),
    ):
        np.testing.assert_array_equal(await api(found), wanted)
    with pytest.raises(MissingChunkError, match="c/0/3.*c/5/5"):
        await api(a.view.read(missing="error"))
    await store.set("c/4/4", (await store.get("c/4/4"))[:-5])
    with pytest.raises(CodecError, match="c/4/4"):
        await api(a.view.read())
    np.testing.assert_array_equal(await api(a.view[:40].read()), expected[:40])


# ------------------------------------------------------------------ cancellation


async def test_cancelling_a_read_stops_its_requests():
    store = Slow(MemoryStore())
    a = await za.create_array(store, data=np.arange(1000), chunks=10)
    store.open = False
    out = np.full(1000, -1)
    task = asyncio.ensure_future(a[...].read(out=out))
    while store.waiting < 8:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.waiting == 0
    assert store.cancelled == 8
    store.open = True
    await asyncio.sleep(0.01)
    assert (out == -1).all()
    async with asyncio.timeout(5):
        assert (await a[...])[-1] == 999


async def test_a_timeout_stops_a_read_of_local_files(tmp_path):
    """The worker thread notices between chunks, and nothing is written to ``out`` afterwards."""

    class Blocking(WrapperStore):
        fetched = 0

        async def fetch(self, requests, *, versions=False):
            self.fetched += len(requests)
            time.sleep(0.002)
            return await self.inner.fetch(requests, versions=versions)

    await za.create_array(tmp_path, data=np.ones((2000, 1)), chunks=(1, 1))
    store = Blocking(stores.LocalStore(tmp_path))
    a = await za.open_array(store, config={"batch_bytes": 8, "threads": 2})
    out = np.zeros((2000, 1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await a[...].read(out=out)
    done, fetched = int(out.sum()), store.fetched
    assert done < 2000
    await asyncio.sleep(0.05)
    assert (int(out.sum()), store.fetched) == (done, fetched)


async def test_the_first_failure_stops_the_others():
    class Failing(Slow):
        async def fetch(self, requests, *, versions=False):
            if any(request.key.endswith("c/50") for request in requests):
                raise za.errors.StoreError("broken", key="c/50")
            return await super().fetch(requests, versions=versions)

    store = Failing(MemoryStore())
    a = await za.create_array(store, data=np.arange(1000), chunks=10)
    for read in (a[...].read(), asyncio.to_thread(lambda: sync.Array(a)[...])):
        with pytest.raises(za.errors.StoreError, match="broken"):
            await read
        assert store.waiting == 0


def test_ctrl_c_cancels_the_real_work(tmp_path):
    """A sync read of a store that never answers ends promptly, and its requests are cancelled."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, signal, sys
            import numpy as np
            from zarrasync import sync
            from zarrasync.stores import MemoryStore, WrapperStore

            signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may ignore it

            class Stuck(WrapperStore):
                stuck = False
                cancelled = 0
                def __init__(self, inner):
                    super().__init__(inner)
                    self.blocking = False
                async def fetch(self, requests, *, versions=False):
                    if self.stuck:
                        print("stuck", flush=True)
                        try:
                            await asyncio.sleep(3600)
                        except asyncio.CancelledError:
                            self.cancelled += 1
                            raise
                    return await self.inner.fetch(requests, versions=versions)

            store = Stuck(MemoryStore())
            a = sync.create_array(store, data=np.arange(4))
            store.stuck = True
            try:
                a[...]
            except KeyboardInterrupt:
                print("interrupted", store.cancelled, flush=True)
            store.stuck = False
            print("then", a[2], flush=True)
            """
        )
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted 1\nthen 2\n"
        assert process.wait(10) == 0


# ------------------------------------------------------------------ processes


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
quiet_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@needs_fork
@quiet_fork
def test_after_fork(tmp_path, s3):
    """A child reads through objects that its parent has used, with loops, pools and locks in use."""
    url, options = s3
    data = np.arange(4000).reshape(40, 100)
    arrays = [
        sync.create_array(tmp_path, data=data, chunks=(10, 10)),
        sync.create_array(url, data=data, chunks=(20, 50), storage_options=options),
    ]
    for a in arrays:
        np.testing.assert_array_equal(a[...], data)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def child() -> None:
        for a in arrays:
            a[0, 0] = -5
            results.put(a[:, 3:7])

    held = KeyLock((arrays[0].store.identity, "c/0/0"))
    drive(held.__aenter__())  # another thread of the parent may hold a lock at the moment of the fork
    process = context.Process(target=child)
    process.start()
    for _ in arrays:
        np.testing.assert_array_equal(results.get(timeout=60), data[:, 3:7])
    process.join(60)
    assert process.exitcode == 0
    drive(held.__aexit__(None, None, None))
    for a in arrays:
        assert a[0, 0] == -5
        assert a[1, 1] == 101


def _count(array: sync.Array) -> float:
    return float(array[...].sum())


def test_arrays_travel_to_other_processes(tmp_path, s3):
    url, options = s3
    data = np.arange(100.0)
    arrays = [
        sync.create_array(tmp_path, data=data, chunks=10),
        sync.create_array(url, data=data, chunks=10, storage_options=options),
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_count, arrays) == [data.sum()] * 2


# ------------------------------------------------------------------ tidiness


def test_a_script_that_closes_nothing_ends_without_a_word(tmp_path, s3):
    url, options = s3
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, gc
            import numpy as np
            import zarrasync as za
            from zarrasync import sync

            a = sync.create_array({url!r}, data=np.arange(4), storage_options={options!r})
            a[...]
            del a
            gc.collect()
            b = sync.open_array({url!r}, storage_options={options!r})
            b[...]

            async def main():
                c = await za.open_array({url!r}, storage_options={options!r})
                return await c[...]

            print(asyncio.run(main()))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[0 1 2 3]\n"
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_rewritten_shard_is_not_read_torn(tmp_path):
    """A shard that is replaced between the fetch of its index and that of its chunks is read again."""
    one, two = np.full((64, 64), 1.0), np.random.default_rng(0).random((64, 64))
    options = {"chunks": (8, 8), "shards": (64, 64), "compressors": "gzip"}
    for place in (tmp_path, {}):
        target = sync.create_array(place, data=one, **options)

        class Meddling(WrapperStore):
            count = 0

            async def fetch(self, requests, *, versions=False):
                values = await self.inner.fetch(requests, versions=versions)
                if any(request.suffix for request in requests):
                    Meddling.count += 1
                    target[...] = two
                return values

        a = sync.open_array(Meddling(stores.resolve(place)))
        np.testing.assert_array_equal(a[0:8], two[0:8])
        assert Meddling.count == 1
        target[...] = one


async def test_streaming_reads_ahead_and_cleans_up():
    store = Slow(MemoryStore())
    a = await za.create_array(store, data=np.arange(100), chunks=10)
    store.most = 0
    async for _, block in a.view.chunks():
        await asyncio.sleep(0.005)
        if block[0] == 30:
            break
    assert store.most >= 1
    await asyncio.sleep(0.01)
    assert store.waiting == 0


def test_one_array_opened_at_two_roots_has_one_lock(tmp_path, s3):
    """The lock on a value is physical: it does not depend on how the way to it was cut."""
    url, options = s3
    place = stores.resolve(tmp_path), stores.resolve(tmp_path / "a"), stores.resolve(f"file://{tmp_path}/a")
    assert place[0].location("a/c/0") == place[1].location("c/0") == place[2].location("c/0")
    remote = stores.resolve(url, options), stores.resolve(f"{url}/a", options)
    assert remote[0].location("a/c/0") == remote[1].location("c/0")
    assert remote[0].limiter() is remote[1].limiter()
    sync.create_array(tmp_path, name="a", shape=100, dtype="i4", chunks=100)

    def work(opened: tuple[object, int]) -> None:
        array, start = opened
        for i in range(start, 100, 2):
            array[i] = i + 1

    ways = sync.open_array(tmp_path, path="a", mode="r+"), sync.open_array(tmp_path / "a", mode="r+")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, zip(ways, (0, 1), strict=True)))
    assert ways[0][...].tolist() == list(range(1, 101))


async def test_others_who_never_stop_writing(api: Api):
    """Where the time that is allowed for it ends the error says where it was, how often it was tried, and for how long."""

    class Busy(WrapperStore):
        """Another writer is faster each time."""

        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.exclusive, self.busy = False, False

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


async def test_a_cancelled_append_does_not_change_the_shape():
    class Late(WrapperStore):
        async def put(self, key, data, *, if_version=None):
            if "c/" in key:
                time.sleep(0.005)
            return await self.inner.put(key, data, if_version=if_version)

    store = Late(MemoryStore())
    a = await za.create_array(store, shape=0, dtype="f8", chunks=100, compressors=None)
    task = asyncio.ensure_future(a.append(np.ones(50_000)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert a.shape == (0,)
    assert (await za.open_array(store)).shape == (0,)


async def test_an_append_that_is_cancelled_gives_its_place_back():
    """Where the place is reserved first, and the work is done on threads, whose flag is set then."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(WrapperStore):
        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.exclusive, self.blocking = False, True

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
    for _ in range(10):  # the task hears of it some turns of the loop later
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await za.open_array(memory)).shape == (0,)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_append_that_is_cancelled_when_a_thread_is_about_to_store_it(tmp_path, when):
    """It is done, or it is not: a caller who tries again must not append twice."""
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


async def test_a_late_cancel_leaves_no_hole_below_what_others_have_appended(tmp_path):
    """Rows that others have seen, and come behind, stay."""
    done, go_on = threading.Event(), threading.Event()

    class Slow(stores.LocalStore):
        async def set_pending(self, key, data):
            if data is None and armed:  # the last that an append does, when it keeps nobody out any more
                done.set()
                assert go_on.wait(30)
            await super().set_pending(key, data)

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
async def test_rows_that_others_came_behind_stay(reserved):
    """Of an append that is cancelled when all of it is done."""
    store = MemoryStore()
    a = await za.create_array(store, data=np.ones(2, "i4"), chunks=4)
    undo = []
    put = a._append_reserved if reserved else a._append_whole
    await put(np.full(2, 2, "i4"), 0, undo)
    other = await za.open_array(store, mode="r+")
    await other.append(np.full(2, 3, "i4"))
    for step in undo:
        await step()
    assert (await other.view.read()).tolist() == [1, 1, 2, 2, 3, 3]


async def test_rows_of_an_append_cancelled_while_its_shape_is_stored_do_not_come_back():
    """In a store that can neither compare nor keep others out: what is written goes, and does not show when it grows."""
    zarr = pytest.importorskip("zarr")
    storing = asyncio.Event()

    class Slow(zarr.storage.MemoryStore):
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


def test_reading_inside_a_progress_callback(tmp_path):
    data = np.arange(1, 65)
    options = {"chunks": 4, "shards": 16, "compressors": None}
    one = sync.create_array(tmp_path / "one", data=data, **options)
    two = sync.create_array(tmp_path / "two", data=-data, **options)
    found = one.view[:16].read(progress=lambda nbytes: two[:16])
    np.testing.assert_array_equal(found, data[:16])


async def test_cancelling_who_makes_the_client_does_not_fail_the_others(s3):
    url, options = s3
    sync.create_array(url, data=np.arange(4), storage_options=options)
    store = stores.resolve(url, options)
    first = asyncio.ensure_future(store.get("zarr.json"))
    second = asyncio.ensure_future(store.get("zarr.json"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    await store.close()


async def test_a_timeout_ends_the_wait_for_a_lock():
    store = MemoryStore()
    a = await za.create_array(store, shape=4, dtype="i4")
    async with store.lock("c/0"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await a[0].write(1)
    await asyncio.sleep(0.1)
    assert await a[0] == 0


@needs_fork
@quiet_fork
def test_a_forked_child_finds_locks_free():
    store = MemoryStore()
    store._lock.acquire()
    pid = os.fork()
    if not pid:
        drive(store.set("k", b"v"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store._lock.release()


async def test_a_nested_shard_that_vanishes_while_it_is_read():
    """The inner index is gone when it is asked for: the value is read again, not left out."""
    from zarrasync.codecs import BytesCodec, CodecChain, ShardingCodec

    nested = ShardingCodec((2,), CodecChain.of([BytesCodec("little")]))
    inner = MemoryStore()
    a = await za.create_array(inner, data=np.arange(1, 17), chunks=8, shards=16, serializer=nested, compressors=None)

    class Vanishing(Slow):
        count = 0

        async def fetch(self, requests, *, versions=False):
            values = await super().fetch(requests, versions=versions)
            if any(request.suffix for request in requests):
                self.inner.values.pop("c/0", None)
            return values

    out = np.full(2, -99)
    await (await za.open_array(Vanishing(inner)))[3:5].read(out=out)
    assert out.tolist() == [0, 0]
    assert a.shape == (16,)


async def test_readers_of_one_shard_share_its_index():
    """Many who read from a shard at once ask for its index once; who is cancelled takes nothing from the others."""
    inner = Slow(MemoryStore())
    await za.create_array(inner, data=np.arange(10_000).reshape(100, 100), chunks=(10, 10), shards=(100, 100))
    array = await za.open_array(counting := stores.CountingStore(inner))
    counting.reset()
    tasks = [asyncio.create_task(array[n, n : n + 3].read()) for n in range(50)]
    while not inner.waiting:
        await asyncio.sleep(0)
    tasks[0].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    for number, row in enumerate(found[1:], 1):
        np.testing.assert_array_equal(row, number * 100 + np.arange(number, number + 3))
    assert counting.reset().fetches == 1 + 49


# ------------------------------------------------------------------ chunks that reach beyond the array


@pytest.mark.parametrize("kind", ["memory", "remote"])
async def test_a_handle_that_is_behind_keeps_what_was_appended(kind: str):
    """A chunk at the edge of what one handle knows holds another's rows by now."""
    store = MemoryStore() if kind == "memory" else stores.LatencyStore(MemoryStore(), 0.0)
    behind = await za.create_array(store, shape=(15,), dtype="i4", chunks=(10,), fill_value=-1)
    other = await za.open_array(store, mode="r+")
    await other.append(np.full(5, 2, "i4"))
    await behind[10:15].write(1)
    np.testing.assert_array_equal(await (await za.open_array(store))[10:], [1] * 5 + [2] * 5)
    await behind[10:15].write(-1)  # and it is not erased either
    np.testing.assert_array_equal(await (await za.open_array(store))[10:], [-1] * 5 + [2] * 5)


async def test_an_append_that_is_late_keeps_what_came_before_it():
    class Late(stores.LatencyStore):
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
async def test_an_append_that_fails_gives_its_place_back(blocking: bool):
    """Also when another one has come behind it; whose rows stay."""

    class Failing(WrapperStore):
        fail = True

        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.exclusive, self.blocking = False, blocking

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


async def test_partial_writes_through_a_store_that_is_slow(tmp_path):
    array = await za.create_array(
        stores.LatencyStore(stores.LocalStore(tmp_path), 0.0), shape=(10,), dtype="i4", chunks=(10,)
    )
    await asyncio.wait_for(array[3:5].write(7), 20)
    assert (await array[...]).tolist() == [0, 0, 0, 7, 7, 0, 0, 0, 0, 0]


async def test_what_waits_for_a_thread_is_cancelled_at_once():
    from zarrasync._concurrency.offload import run_in_worker

    ended, began = threading.Event(), []

    async def block():
        began.append(1)
        ended.wait(30)
        return 1

    async def late():
        began.append(2)

    threads = za.config.get().pool_size + 1
    blocked = [asyncio.ensure_future(run_in_worker(block, computing=True)) for _ in range(threads)]
    waiting = asyncio.ensure_future(run_in_worker(late, computing=True))
    await asyncio.sleep(0)
    try:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(waiting), 5)
    finally:
        ended.set()
    assert await asyncio.gather(*blocked) == [1] * threads
    assert 2 not in began


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_waits_until_the_thread_has_stopped(fails):
    from zarrasync._concurrency.cancel import cancel_flag
    from zarrasync._concurrency.offload import run_in_worker

    began, heard, ended = threading.Event(), threading.Event(), []

    async def work():
        flag = cancel_flag()
        began.set()
        while not flag.cancelled:
            heard.wait(0.001)
        ended.append(heard.wait(30))
        if fails:
            raise ValueError("nobody hears of it")

    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    call = asyncio.ensure_future(run_in_worker(work))
    await asyncio.to_thread(began.wait, 30)
    call.cancel()
    call.cancel()
    done, _ = await asyncio.wait([call], timeout=0.05)
    assert not done
    heard.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == [True]
    del call, done
    gc.collect()
    assert not complaints


async def test_what_a_job_was_about_is_let_go_before_its_result_is_handed_over(monkeypatch: pytest.MonkeyPatch):
    """Else a block that was written counts for more than the budget knows, until its thread has its next turn."""
    from zarrasync._concurrency.deliveries import Deliveries
    from zarrasync._concurrency.offload import run_in_worker

    looked, hand = threading.Event(), Deliveries.deliver

    def hand_and_pause(*args: Any) -> None:
        hand(*args)
        looked.wait(30)

    async def work(block: np.ndarray) -> int:
        return block.nbytes

    monkeypatch.setattr(Deliveries, "deliver", hand_and_pause)
    block = np.ones(100)
    made, job = weakref.ref(block), run_in_worker(partial(work, block))
    del block
    try:
        assert (await job, made()) == (800, None)
    finally:
        looked.set()


def test_results_reach_a_loop_whatever_comes_between():
    """An exception out of the callback that hands results over, as Ctrl-C raises it, costs none of those that follow."""
    from zarrasync._concurrency.deliveries import Deliveries

    class Interrupted:
        asked = 0

        def done(self):
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("between")
            return True

    async def run():
        loop = asyncio.get_running_loop()
        mail, heard = Deliveries(loop), []
        loop.set_exception_handler(lambda loop, context: heard.append(str(context["exception"])))
        futures = [Interrupted(), loop.create_future(), loop.create_future()]
        for number, future in enumerate(futures):
            mail.deliver(future, number, None)
        assert await asyncio.wait_for(asyncio.gather(*futures[1:]), 5) == [1, 2]
        assert heard == ["between"]

    asyncio.run(run())


@needs_fork
@quiet_fork
def test_a_forked_child_hears_of_results():
    from zarrasync._concurrency.deliveries import deliveries_of
    from zarrasync._concurrency.offload import run_in_worker

    loop = asyncio.new_event_loop()
    loop.run_until_complete(run_in_worker(_nothing))
    deliveries_of(loop)._due = True  # as if the parent was about to be woken
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.wait_for(run_in_worker(_nothing), 5))
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.close()


async def _nothing() -> None:
    pass


def test_threads_that_helpers_call_for_are_waited_for():
    """A helper whose job returns more jobs calls for another one, and may end before that."""
    from zarrasync._concurrency.cancel import CancelFlag
    from zarrasync.config import Config
    from zarrasync.transfer.threads import run_jobs

    for failing in (False, True):
        begun, released, making, idle = (threading.Event() for _ in range(4))
        done = []

        def last(begun=begun, released=released, done=done, failing=failing):
            begun.set()
            assert released.wait(30)
            time.sleep(0.05)  # whoever does not wait for this thread is back by now
            done.append(1)
            if failing:
                raise RuntimeError("last")

        def quick(begun=begun, released=released):
            assert begun.wait(30)
            released.set()

        def first(making=making, idle=idle):
            assert making.wait(30)
            idle.set()

        def maker(quick=quick, last=last, making=making, idle=idle):
            making.set()
            assert idle.wait(30)
            time.sleep(0.05)  # the caller waits for its only helper by now
            return [quick, last]

        expected = pytest.raises(RuntimeError, match="last") if failing else contextlib.nullcontext()
        with expected:
            run_jobs([first, maker], Config(threads=4), CancelFlag(), 3)
        assert done == [1]
