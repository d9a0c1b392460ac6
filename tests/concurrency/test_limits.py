"""Limits of concurrent requests and bytes; requests that are shared."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.gated_store import GatedStore
from tests.support.layouts import LAYOUTS
from zarrasync import stores
from zarrasync._concurrency import clock, offload
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.semaphores import FifoSemaphore
from zarrasync.errors import CodecError, MissingChunkError
from zarrasync.stores import MemoryStore
from zarrasync.testing import LatencyStore


async def test_requests_in_flight_are_bounded():
    store = GatedStore(MemoryStore())
    a = await za.create_array(store, data=np.arange(1000), chunks=10)
    store.most = 0
    await a[...]
    assert 2 <= store.most <= 8
    few = await za.open_array(store, config={"concurrency": 3})
    store.most = 0
    await few[...]
    assert store.most <= 3
    for threads in (2, 64):  # however values are merged into requests
        many = await za.open_array(store, config={"concurrency": 64, "threads": threads})
        store.most = 0
        await many[...]
        assert 48 < store.most <= 64
    store = GatedStore(MemoryStore())
    await za.create_array(store, data=np.arange(1000), chunks=10, compressors=None)
    for limit in (1, 8, 64):  # the first and the last value are read in part, the others whole
        raw = await za.open_array(store, config={"concurrency": limit})
        store.most = 0
        np.testing.assert_array_equal(await raw[8:992], np.arange(8, 992))
        assert limit // 2 < store.most <= limit


async def test_bytes_in_flight_are_bounded():
    store = GatedStore(MemoryStore())
    data = np.zeros((64, 1 << 17), "u1")
    data[:] = np.arange(1, 65)[:, None]
    await za.create_array(store, data=data, chunks=(1, 1 << 17), compressors=None)
    tight = await za.open_array(store, config={"memory_budget": 3 << 17})
    store.most = 0
    np.testing.assert_array_equal(await tight[...], data)
    assert store.most <= 3
    huge = await za.open_array(store, config={"memory_budget": 1})  # more than the whole budget: one at a time
    store.most = 0
    np.testing.assert_array_equal(await huge[:5], data[:5])
    assert store.most == 1
    await za.create_array(store, data=data[:, :1024], chunks=(1, 1024), overwrite=True)
    little = await za.open_array(store, config={"memory_budget": 3 << 10})
    store.most = 0
    got = await asyncio.gather(*(little[number, 5] for number in range(64)))
    assert got == data[:, 5].tolist()
    assert store.most == 3


class _CountingEnvironment(clock.Environment):
    """Counts the jobs that pools get."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def executor(self, name: str, size: int) -> Executor:
        counts = self.counts

        class Pool(ThreadPoolExecutor):
            def submit(self, *args: Any, **kwargs: Any) -> Any:
                counts[name] += 1
                return super().submit(*args, **kwargs)

        return Pool(size)


@pytest.mark.parametrize("selection", [np.s_[:], np.s_[1:-1], np.s_[::2]])
async def test_small_chunks_are_encoded_and_decoded_in_batches(monkeypatch, selection):
    """Passing a job to a thread takes longer than encoding 16 bytes."""
    monkeypatch.setattr(offload, "_pools", {})
    counting = _CountingEnvironment()
    with clock.replaced(counting):
        store = LatencyStore(MemoryStore(), 0)
        array = await za.create_array(store, shape=4096, dtype="i2", chunks=8, config={"threads": 2})
        values = np.arange(4096, dtype="i2")[selection]
        await array.view[selection].write(values)
        assert counting.counts.pop("zarrasync-codec") <= 512 / 16
        np.testing.assert_array_equal(await array[selection], values)
        assert counting.counts.pop("zarrasync-codec") <= 512 / 16
        narrow = await za.open_array(store, mode="r+", config={"batch_bytes": 64})
        await narrow.view[selection].write(values)
        assert counting.counts.pop("zarrasync-codec") >= 512 * 16 / 64
        for pool in offload._pools.values():  # those of this test
            pool.shutdown()


async def test_a_gate_serves_in_order_across_threads_and_loops():
    semaphore = FifoSemaphore(2)
    await semaphore.acquire(2)
    order: list[str] = []

    async def task(name: str, amount: int) -> None:
        await semaphore.acquire(amount)
        order.append(name)
        semaphore.release(amount)

    first = asyncio.ensure_future(task("first", 2))
    await asyncio.sleep(0)
    thread = threading.Thread(target=lambda: drive(task("second", 1)))
    thread.start()
    while len(semaphore._waiters) < 2:
        await asyncio.sleep(0.001)
    third = asyncio.ensure_future(task("third", 1))
    gone = asyncio.ensure_future(task("gone", 2))
    await asyncio.sleep(0)
    gone.cancel()
    assert semaphore.free == 0
    semaphore.release(2)
    await asyncio.gather(first, third)
    await asyncio.to_thread(thread.join)
    assert order[0] == "first"
    assert sorted(order) == ["first", "second", "third"]
    assert semaphore.free == 2
    with contextlib.suppress(asyncio.CancelledError):
        await gone


@pytest.mark.parametrize("options", LAYOUTS[::2])
async def test_values_of_one_request_are_assigned_correctly(options, api):
    """Missing and damaged values and all kinds of selections, on an asynchronous store."""
    store, data = GatedStore(MemoryStore()), np.arange(10_000, dtype="i4").reshape(100, 100)
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
    with pytest.raises(MissingChunkError, match=r"c/0/3.*c/5/5"):
        await api(a.view.read(missing="error"))
    await store.set("c/4/4", (await store.get("c/4/4"))[:-5])
    with pytest.raises(CodecError, match="c/4/4"):
        await api(a.view.read())
    np.testing.assert_array_equal(await api(a.view[:40].read()), expected[:40])


async def test_streaming_reads_ahead_and_cleans_up():
    store = GatedStore(MemoryStore())
    a = await za.create_array(store, data=np.arange(100), chunks=10)
    store.most = 0
    async for _, block in a.view.chunks():
        await asyncio.sleep(0.005)
        if block[0] == 30:
            break
    assert store.most >= 1
    await asyncio.sleep(0.01)
    assert store.waiting == 0


async def test_readers_of_one_shard_share_its_index():
    """Concurrent readers of a shard request its index once; cancelling one does not affect the others."""
    inner = GatedStore(MemoryStore())
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
