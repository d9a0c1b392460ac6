"""The cache of decoded chunks: the same values, fewer requests, changes of this process and of others, single flight."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.shifted_clock import ShiftedClock
from zarrasync import sync
from zarrasync._concurrency import clock
from zarrasync.stores import LocalStore, MemoryStore, Store
from zarrasync.stores.counting import CountingStore
from zarrasync.stores.values import Request
from zarrasync.testing import LatencyStore
from zarrasync.transfer import chunk_cache

TRUSTED = {"chunk_cache_bytes": 1 << 22, "chunk_cache_max_age": 60.0}
CHECKED = {"chunk_cache_bytes": 1 << 22}
VALUES = np.arange(40 * 30, dtype="i4").reshape(40, 30)
KEYS: list[Any] = [(3, 4), (slice(5, 35, 3), slice(None)), ([1, 39, 2], slice(0, 9)), (slice(None, None, -1), 29), ...]


@pytest.fixture(autouse=True)
def fresh_caches():
    chunk_cache._shared.cache_clear()


def make(kind: str, folder: Path) -> CountingStore:
    """A store that counts; the remote one is asynchronous."""
    inner: Store = LocalStore(folder) if kind == "local" else MemoryStore()
    return CountingStore(LatencyStore(inner, 0.001) if kind == "remote" else inner)


@pytest.mark.parametrize("kind", ["memory", "local", "remote"])
@pytest.mark.parametrize("shards", [None, (20, 16)])
async def test_values_and_requests(api: Api, kind: str, shards: Any, tmp_path: Path):
    store = make(kind, tmp_path)
    await api(api.create_array(store, data=VALUES, chunks=(10, 8), shards=shards))
    array = await api(api.open_array(store, config=TRUSTED))
    store.reset()
    for key in KEYS * 2:
        np.testing.assert_array_equal(await api(array[key]), VALUES[key])
        np.testing.assert_array_equal(await api(array.decoded[key]), VALUES[key])
    stats = array.chunk_cache.stats
    assert (stats.misses, stats.chunks, stats.checks) == (16, 16, 0)
    assert stats.hits > 16
    store.reset()
    other = await api(api.open_array(store, config=TRUSTED))  # shares the cache
    store.reset()
    assert (await api(other[3, 4])) == VALUES[3, 4]
    assert store.counts.requests == 0
    (await api(array[...]))[...] = 0  # a copy
    np.testing.assert_array_equal(await api(array[...]), VALUES)


@pytest.mark.parametrize("kind", ["memory", "local", "remote"])
@pytest.mark.parametrize("shards", [None, (20, 16)])
async def test_versions_are_compared(api: Api, kind: str, shards: Any, tmp_path: Path):
    store = make(kind, tmp_path)
    await api(api.create_array(store, data=VALUES, chunks=(10, 8), shards=shards))
    array = await api(api.open_array(store, config=CHECKED))
    await api(array[...])
    store.reset()
    np.testing.assert_array_equal(await api(array[...]), VALUES)
    value_count = 16 if shards is None else 4
    counts = store.reset()
    assert counts.fetches == value_count
    assert counts.bytes_read <= value_count  # of a store that can only look at a byte
    inner: Any = store.inner
    inner = inner.inner if kind == "remote" else inner
    key = next(key for key in await inner.list_prefix("c/") if key.endswith("c/0/0"))
    (last,) = await inner.fetch([Request("c/1/1")])
    await inner.put(key, bytes(last.data))  # another process
    row, column = (10, 8) if shards is None else (20, 16)
    assert (await api(array[0, 0])) == VALUES[row, column]
    assert store.reset().requests > 1
    trusted = await api(api.open_array(store, config=TRUSTED))
    assert (await api(trusted[0, 0])) == VALUES[row, column]
    await inner.erase(key)
    assert (await api(trusted[0, 0])) == VALUES[row, column]  # for a minute
    later = ShiftedClock()
    later.ahead = 61
    with clock.replaced(later):
        assert (await api(trusted[0, 0])) == 0


async def test_changes_of_this_process_are_noticed(api: Api, tmp_path: Path):
    await api(api.create_array(tmp_path, data=VALUES, chunks=(12, 30)))
    array = await api(api.open_array(tmp_path, mode="r+", config=TRUSTED))
    other = sync.open_array(tmp_path, mode="r+")
    await api(array[...])
    other[0, 0] = 7
    assert (await api(array[0, 0])) == 7
    await api.write(array, (39, slice(None)), 5)
    assert (await api(array[39, 3])) == 5
    await api(array.append(np.ones((3, 30), "i4")))  # the last chunk grows
    assert (await api(array[38:, 0])).tolist() == [VALUES[38, 0], 5, 1, 1, 1]
    await api(array.resize((41, 30)))
    await api(array.resize((43, 30)))
    assert (await api(array[38:, 0])).tolist() == [VALUES[38, 0], 5, 1, 0, 0]
    sync.create_array(tmp_path, data=VALUES + 1, chunks=(12, 30), overwrite=True)
    assert (await api(array[0, 0])) == 1


@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_a_chunk_is_read_once_by_concurrent_tasks(kind: str, tmp_path: Path):
    store = make(kind, tmp_path)
    await za.create_array(store, data=VALUES, chunks=(10, 30))
    array = await za.open_array(store, config=TRUSTED)
    store.reset()
    rows = await asyncio.gather(*(array[n % 10] for n in range(50)))
    assert store.counts.fetches == (1 if kind == "remote" else 2)  # and the version
    np.testing.assert_array_equal(rows, VALUES[:10].tolist() * 5)
    assert (await array[3, 3:5]).tolist() == VALUES[3, 3:5].tolist()
    assert (array.chunk_cache.stats.misses, array.chunk_cache.stats.hits) == (1, 50)


async def test_a_version_is_compared_once_by_concurrent_tasks(tmp_path: Path):
    store = make("remote", tmp_path)
    await za.create_array(store, data=VALUES, chunks=(10, 30))
    array = await za.open_array(store, config=CHECKED)
    await array[:10]
    store.reset()
    await asyncio.gather(*(array[n % 10] for n in range(50)))
    assert store.counts.requests == 1
    assert array.chunk_cache.stats.checks == 1


@pytest.mark.parametrize("key", [slice(None), slice(None, None, 3), [*range(50)]])
async def test_many_chunks_do_not_occupy_the_event_loop(key: Any, monkeypatch: pytest.MonkeyPatch):
    array = await za.create_array({}, data=np.arange(400, dtype="i1"), chunks=(1,), config=TRUSTED)
    threads: set[int] = set()
    select, placed = chunk_cache.ChunkCache._select, chunk_cache._placed

    def noting(function: Any, *arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return function(*arguments)

    monkeypatch.setattr(chunk_cache.ChunkCache, "_select", lambda *arguments: noting(select, *arguments))
    monkeypatch.setattr(chunk_cache, "_placed", lambda *arguments: noting(placed, *arguments))
    for _ in range(2):
        np.testing.assert_array_equal(await array[key], np.arange(400, dtype="i1")[key])
    assert threads
    assert threading.get_ident() not in threads
    await array[3:5]
    assert threading.get_ident() in threads


async def test_results_have_the_memory_order_of_chunks(api: Api):
    array = await api(api.create_array({}, data=VALUES, chunks=(40, 30), order="F", zarr_format=2, config=TRUSTED))
    for _ in range(2):
        assert (await api(array[...])).flags.f_contiguous


def test_a_chunk_is_read_once_by_concurrent_threads(tmp_path: Path):
    sync.create_array(tmp_path, data=np.zeros((300, 300)), chunks=(300, 300))
    array = sync.open_array(tmp_path, config=TRUSTED)
    with ThreadPoolExecutor(20) as threads:
        assert {*threads.map(lambda n: float(array[n, :9].sum()), range(40))} == {0.0}
    assert (array.chunk_cache.stats.misses, array.chunk_cache.stats.hits) == (1, 39)


async def test_a_read_does_not_join_one_from_before_a_change():
    store = LatencyStore(MemoryStore(), 0.05)
    array = await za.create_array(store, data=np.zeros(4), chunks=(4,), config=CHECKED)
    early = asyncio.create_task(array[:].read())
    await asyncio.sleep(0.02)
    sync.open_array(store.inner, mode="r+")[:] = 1
    array._chunks.changes.add()
    assert (await array[:]).tolist() == [1] * 4
    await early
    assert (await array[:]).tolist() == [1] * 4


@pytest.mark.parametrize("is_local", [True, False])
async def test_a_read_does_not_join_one_of_a_shorter_array(is_local: bool, tmp_path: Path):
    """Another process has appended rows to a chunk, and only one of two arrays has read the new document."""
    long, short = tmp_path / "x", tmp_path / "short"
    sync.create_array(long, data=np.arange(7), chunks=(7,))
    sync.create_array(short, shape=(2,), chunks=(7,), dtype="i8")
    document = (long / "zarr.json").read_bytes()
    (long / "zarr.json").write_bytes((short / "zarr.json").read_bytes())
    store = LocalStore(long) if is_local else LatencyStore(LocalStore(long), 0.01)
    before = await za.open_array(store, config=CHECKED)
    (long / "zarr.json").write_bytes(document)
    after = await za.open_array(store, config=CHECKED)
    for _ in range(20):
        values = await asyncio.gather(before[...], after[...], before[0:1], after[6:])
        assert [own.tolist() for own in values] == [[0, 1], list(range(7)), [0], [6]]


def test_the_size_is_limited():
    array = sync.create_array(
        {}, shape=(64, 1000), dtype="f8", chunks=(1, 1000), config={**TRUSTED, "chunk_cache_bytes": 100_000}
    )
    array[...] = np.arange(64)[:, None]
    for n in [*range(64), 63, 0]:
        assert array[n, 5] == n
        assert array.chunk_cache.stats.nbytes <= 100_000
    assert array.chunk_cache.stats.hits == 1
    assert array.chunk_cache.stats.chunks == 12
    assert array[:, 3].tolist() == list(range(64))  # more than a quarter of the cache is read without it
    assert array.chunk_cache.stats.misses == 65
    array.chunk_cache.clear()
    assert array.chunk_cache.stats.nbytes == 0


async def test_other_elements_and_arguments(api: Api):
    pairs = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
    array = await api(api.create_array({}, data=pairs, chunks=(1,), config=TRUSTED))
    for _ in range(2):
        assert (await api(array.view["b"].read())).tolist() == [2.5, 4.5]
        assert (await api(array[1]))["a"] == 3
    texts = await api(api.create_array({}, data=np.array(["a", "bc"]), dtype=str, config=TRUSTED))
    assert (await api(texts[:])).tolist() == ["a", "bc"]
    assert array.chunk_cache is texts.chunk_cache
    array = await api(api.create_array({}, shape=(4,), dtype="i4", chunks=(2,), config=TRUSTED))
    out = np.empty(4, "i4")
    await api(array.view.read(out=out))
    assert out.tolist() == [0, 0, 0, 0]
    assert (await api(array[:])).tolist() == [0, 0, 0, 0]
    with pytest.raises(za.errors.MissingChunkError):
        await api(array.view.read(missing="error"))
    for value in range(3):  # stores in memory whose identity may be that of an earlier one
        array = await api(api.create_array({}, data=np.full(4, value), config=TRUSTED))
        assert (await api(array[:])).tolist() == [value] * 4
    assert (await api(api.create_array({}, data=[1, 2]))).chunk_cache is None
