"""CachingStore: fewer requests, the same values, and none older than the configured age."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import Request, Value
from zarrasync.testing import FaultyStore, LatencyStore


class Slow(stores.WrapperStore):
    """A store whose requests wait until a test releases them."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.blocking = False
        self.asked: list[Request] = []
        self.cancelled = 0
        self.error: Exception | None = None
        self.open = asyncio.Event()

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        self.asked += requests
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return await self.inner.fetch(requests, versions=versions)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def counting(values: dict[str, bytes]) -> tuple[stores.CountingStore, stores.CachingStore]:
    counts = stores.CountingStore(stores.MemoryStore(values))
    return counts, stores.CachingStore(counts)


async def test_cached_values_are_not_requested_again(api: Api, tmp_path: Path):
    counts = stores.CountingStore(stores.LocalStore(tmp_path))
    cache = stores.CachingStore(counts)
    array = await api(api.create_array(cache, data=np.arange(4000).reshape(40, 100), chunks=(10, 10), shards=(20, 50)))
    await api(array.view[...].read())
    await api(array.view[3:30, 20:60].read())
    first = counts.reset().fetches
    np.testing.assert_array_equal(
        await api(array.view[3:30, 20:60].read()), np.arange(4000).reshape(40, 100)[3:30, 20:60]
    )
    assert counts.reset().requests == 0
    again = await api(api.open_array(cache))
    await api(again.view[...].read())
    documents = counts.reset().fetches
    await api(api.open_array(cache))
    await api(again.view[...].read())
    assert counts.reset().requests == 0
    assert cache.stats.misses == first + documents
    assert cache.stats.hits > 8


async def test_parts_and_absence():
    counts, cache = counting({"k": b"0123456789"})
    assert await cache.get_partial_values([("k", (2, 3)), ("k", (-2, None)), ("no", (0, 1))]) == [b"234", b"89", None]
    counts.reset()
    assert await cache.get_partial_values([("k", (2, 3)), ("k", (-2, None)), ("no", (0, 1))]) == [b"234", b"89", None]
    assert counts.reset().requests == 0
    assert await cache.get("k") == b"0123456789"
    assert await cache.get("no") is None
    counts.reset()
    assert await cache.get_partial_values([("k", (5, 2)), ("k", (-4, None)), ("no", (3, 1))]) == [b"56", b"6789", None]
    assert counts.reset().requests == 0


async def test_writes_through_it_are_seen_and_those_of_others_when_it_says():
    values: dict[str, bytes] = {"a/k": b"old", "a/x": b"x"}
    counts, cache = counting(values)
    for change, want in (
        (cache.set("a/k", b"new"), b"new"),
        (cache.erase("a/k"), None),
        (cache.put_values(["a/k"], [b"more"]), b"more"),
        (cache.erase_values(["a/k"]), None),
        (cache.set_partial_values([("a/k", 0, b"part")]), b"part"),
        (cache.erase_prefix("a/"), None),
    ):
        await cache.get("a/k")
        await change
        assert await cache.get("a/k") == want
        await cache.get_partial_values([("a/k", (0, 1))])
    assert values == {}
    values["a/k"] = b"of another"
    assert await cache.get("a/k") is None
    cache.clear()
    assert await cache.get("a/k") == b"of another"
    young = stores.CachingStore(counts, max_age=0)
    assert await young.get("a/k") == b"of another"
    values["a/k"] = b"fresh"
    assert await young.get("a/k") == b"fresh"


async def test_a_conflict_names_the_existing_node():
    inner = stores.MemoryStore()
    cache = stores.CachingStore(inner)
    await cache.set("k", b"1")
    (mine,) = await cache.fetch([Request("k")], versions=True)
    await inner.set("k", b"2")
    with pytest.raises(WriteConflictError):
        await cache.put("k", b"3", if_version=mine.version)
    (theirs,) = await cache.fetch([Request("k")], versions=True)
    assert theirs.data == b"2"
    await cache.put("k", b"3", if_version=theirs.version)
    assert await inner.get("k") == b"3"


async def test_it_stays_within_its_bytes():
    values = {str(i): bytes(10_000) for i in range(50)}
    counts = stores.CountingStore(stores.MemoryStore(values))
    cache = stores.CachingStore(counts, 100_000)
    for i in range(50):
        await cache.get(str(i))
        await cache.get("0")  # used constantly, so it stays cached
        assert cache.stats.nbytes <= 100_000
    assert counts.reset().fetches == 50
    await cache.get("49")
    await cache.get("1")
    assert counts.reset().fetches == 1
    values["large"] = bytes(100_001)
    assert len(await cache.get("large")) == 100_001
    assert len(await cache.get("large")) == 100_001
    assert counts.reset().fetches == 2
    with pytest.raises(ValueError, match="at least 0"):
        stores.CachingStore(counts, -1)
    cache.clear()
    assert cache.stats.nbytes == 0


async def test_readers_of_one_value_share_a_request():
    slow = Slow(stores.MemoryStore({"k": b"value", "l": b"other"}))
    cache = stores.CachingStore(slow)
    readers = [asyncio.create_task(cache.get("k")) for _ in range(50)]
    both = asyncio.create_task(cache.fetch([Request("l"), Request("k"), Request("l")]))
    await settle()
    slow.open.set()
    assert set(await asyncio.gather(*readers)) == {b"value"}
    assert [value.data for value in await both] == [b"other", b"value", b"other"]
    assert sorted(request.key for request in slow.asked) == ["k", "l"]


async def test_a_request_lives_as_long_as_one_waits_for_it():
    slow = Slow(stores.MemoryStore({"k": b"value"}))
    cache = stores.CachingStore(slow)
    first, second = (asyncio.create_task(cache.get("k")) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    assert slow.cancelled == 0
    slow.open.set()
    assert await second == b"value"
    slow.open.clear()
    cache.clear()
    lonely = asyncio.create_task(cache.get("k"))
    await settle()
    lonely.cancel()
    await settle()
    assert slow.cancelled == 1
    slow.open.set()
    assert await cache.get("k") == b"value"


async def test_failures_reach_all_and_are_not_remembered():
    slow = Slow(stores.MemoryStore({"k": b"value"}))
    cache = stores.CachingStore(slow)
    slow.error = StoreError("it is down")
    readers = [asyncio.create_task(cache.get("k")) for _ in range(3)]
    await settle()
    slow.open.set()
    for found in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(found, StoreError)
    slow.error = None
    assert await cache.get("k") == b"value"


async def test_reads_from_before_a_write_are_not_cached_after_it():
    inner = stores.MemoryStore({"k": b"old"})
    slow = Slow(inner)
    cache = stores.CachingStore(slow)
    early = asyncio.create_task(cache.get("k"))
    await settle()
    await cache.set("k", b"new")
    late = asyncio.create_task(cache.get("k"))
    await settle()
    slow.open.set()
    assert await late == b"new"
    assert await early in (b"old", b"new")
    assert await cache.get("k") == b"new"
    assert len(slow.asked) == 2


async def test_partial_writes_lose_nothing(api: Api):
    array = await api(
        api.create_array(stores.CachingStore(stores.MemoryStore()), shape=(64,), chunks=4, shards=32, dtype="i4")
    )
    if api.name == "async":
        await asyncio.gather(*(array.view[i].write(i + 1) for i in range(64)))
    else:
        threads = [threading.Thread(target=array.__setitem__, args=(i, i + 1)) for i in range(64)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    np.testing.assert_array_equal(await api(array.view[...].read()), np.arange(64) + 1)


def test_threads_and_loops_of_their_own(s3: Any):
    url, options = s3
    counts = stores.CountingStore(stores.ObjectStore.from_url(url, options))
    cache = stores.CachingStore(counts)
    array = sync.create_array(cache, data=np.arange(10_000), chunks=1000)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(array[...])) for _ in range(8)]
    threads += [
        threading.Thread(target=lambda: results.append(asyncio.run(array._async.view[...].read()))) for _ in range(2)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(results) == 10
    for one in results:
        np.testing.assert_array_equal(one, np.arange(10_000))
    assert counts.reset().fetches <= 10 * 3 + 10  # one request for each chunk and loop


def test_copies_begin_empty(tmp_path: Path):
    cache = stores.CachingStore(stores.LocalStore(tmp_path), 1 << 20, max_age=5)
    sync.create_array(cache, data=np.arange(10))[...]
    again = pickle.loads(pickle.dumps(cache))
    assert (again.max_bytes, again.max_age, again.stats.nbytes) == (1 << 20, 5, 0)
    np.testing.assert_array_equal(sync.open_array(again)[...], np.arange(10))


# ------------------------------------------------------------------ on disk


def disk(inner: stores.Store, folder: Path, **options: Any) -> stores.DiskCachingStore:
    return stores.DiskCachingStore(inner, folder / "kept", **options)


async def test_values_cached_on_disk_are_not_requested_again(api: Api, tmp_path: Path):
    counting = stores.CountingStore(LatencyStore(stores.LocalStore(tmp_path / "far"), 0.0))
    values = np.arange(10_000).reshape(100, 100)
    await api(api.create_array(counting, data=values, chunks=(10, 10), shards=(50, 50)))
    counting.reset()
    for number in range(3):  # each time like another process
        store = pickle.loads(pickle.dumps(disk(counting, tmp_path)))
        store.inner = counting
        array = await api(api.open_array(store))
        np.testing.assert_array_equal(await api(array[30:70, ::3]), values[30:70, ::3])
        np.testing.assert_array_equal(await api(array[5, 5]), values[5, 5])
        assert bool(counting.reset().requests) == (number == 0)
    assert store.hits > 0 == store.misses
    store.clear()
    assert await api((await api(api.open_array(store)))[5, 5]) == values[5, 5]
    assert counting.reset().requests


async def test_entries_grow_old_and_are_forgotten(tmp_path: Path):
    memory = stores.MemoryStore()
    store = disk(memory, tmp_path)
    await store.set("k", b"one")
    assert (await store.get("k"), await store.get("none")) == (b"one", None)
    await memory.set("k", b"two")  # by somebody else
    await memory.set("none", b"some")
    assert (await store.get("k"), await store.get("none")) == (b"one", None)
    assert (await store.get_partial_values([("k", (1, 2))])) == [b"ne"]
    young = disk(memory, tmp_path, max_age=0.0)
    assert (await young.get("k"), await young.get("none")) == (b"two", b"some")
    await store.set("k", b"three")
    assert await store.get("k") == b"three"
    await store.erase_prefix("")
    assert await store.get("k") is None


async def test_damaged_cache_entries_count_as_missing(tmp_path: Path):
    store = disk(stores.MemoryStore(), tmp_path)
    await store.set("k", b"value")
    await store.get("k")
    (entry,) = (path for path in (tmp_path / "kept").rglob("*") if path.is_file())
    good = entry.read_bytes()
    for damaged in (good[:-1], good[:-1] + b"!", b"", b"something else", good[:18] + b"{" + good[19:]):
        entry.write_bytes(damaged)
        assert await store.get("k") == b"value"


async def test_the_disk_is_not_filled(tmp_path: Path):
    store = disk(stores.MemoryStore(), tmp_path, max_bytes=100_000)
    for number in range(100):
        await store.set(f"k{number}", bytes(5000))
        assert await store.get(f"k{number}") == bytes(5000)
        assert await store.get("k0") == bytes(5000)
    kept = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert 50_000 < kept <= 115_000
    await store.set("large", bytes(200_000))
    assert await store.get("large") == bytes(200_000)
    with pytest.raises(ValueError, match="at least 0"):
        disk(stores.MemoryStore(), tmp_path, max_bytes=-1)


async def test_a_disk_without_write_access_does_not_fail_reads(tmp_path: Path):
    (tmp_path / "kept").write_text("a file where the directory should be")
    store = disk(stores.MemoryStore(), tmp_path)
    await store.set("k", b"v")
    assert await store.get("k") == b"v"


async def test_values_changed_during_a_read_are_not_cached_on_disk(tmp_path: Path):
    class Late(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            values = await self.inner.fetch(requests, versions=versions)
            await asyncio.sleep(0.05)
            return values

    late = Late(LatencyStore(stores.MemoryStore(), 0.0))
    store = disk(late, tmp_path)
    await store.set("k", b"old")
    reading = asyncio.create_task(store.get("k"))
    await asyncio.sleep(0.01)
    await store.set("k", b"new")
    await reading
    assert await store.get("k") == b"new"


async def test_files_of_others_are_left_alone(tmp_path: Path):
    thesis = tmp_path / "kept" / "a" / "b" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("years of work")
    store = disk(stores.MemoryStore(), tmp_path, max_bytes=2000)
    for number in range(5):
        await store.set(f"k{number}", bytes(1000))
        await store.get(f"k{number}")
    store.clear()
    assert thesis.read_text() == "years of work"


async def test_callers_of_a_shared_request_get_separate_errors(tmp_path: Path):
    values: dict[str, bytes] = {}
    sync.create_array(values, data=np.arange(64), chunks=4)
    bad = FaultyStore(stores.MemoryStore(values), fails=lambda operation, key: key == "c/3")
    array = await za.open_array(stores.CachingStore(LatencyStore(bad, 0.02)))
    whole = asyncio.ensure_future(array.view[...].read())
    await asyncio.sleep(0.005)  # its request is in flight
    assert (await array[0:4]).tolist() == [0, 1, 2, 3]
    with pytest.raises(StoreError, match="c/3"):
        await whole


def test_services_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("obstore")

    def of(url: str, **options: Any) -> stores.Store:
        return stores.resolve(url, options)

    anonymous = {"token": "anon"}
    one, two = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert of("gs://b/p", endpoint_url=one, **anonymous) != of("gs://b/p", endpoint_url=two, **anonymous)
    assert of("gs://b/p", endpoint_url=one, **anonymous) == of("gs://b/p", endpoint_url=one, **anonymous)
    keys = {"key": "k", "secret": "s"}
    for backend in ("obstore", "fsspec"):
        found = []
        for endpoint in (one, two):
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            found.append(of("s3://b/p", backend=backend, **keys))
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        found.append(of("s3://b/p", backend=backend, endpoint_url=two, **keys))
        assert [found[0] == found[1], found[1] == found[2]] == [False, True]
    for backend in ("obstore", "fsspec"):
        if backend == "fsspec":
            pytest.importorskip("adlfs")
        a, b = (of("az://c/p", backend=backend, account_name=name, account_key="QUFB") for name in "ab")
        assert a != b


# ------------------------------------------------------------------ threads


class Gated(stores.WrapperStore):
    """A blocking store whose first request waits until it is released, or fails."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.asked: list[Request] = []
        self.error: Exception | None = None
        self.begun, self.open = threading.Event(), threading.Event()

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        first = not self.asked
        self.asked += requests
        self.begun.set()
        self.open.wait(30)
        if first and self.error is not None:
            raise self.error
        return await self.inner.fetch(requests, versions=versions)


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_want_the_same_ask_once(fails: bool):
    array = sync.create_array({}, data=np.arange(100), chunks=10)
    inner = Gated(array.store)
    cached = stores.CachingStore(inner)
    inner.open.set()
    found = sync.open_array(cached)
    inner.error = StoreError("it failed", key="c/0") if fails else None
    inner.open.clear()
    inner.begun.clear()
    inner.asked.clear()
    values: list[Any] = []

    def read() -> None:
        try:
            values.append(found[:10].tolist())
        except StoreError as error:
            values.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(6)]
    threads[0].start()
    assert inner.begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    while cached.stats.hits < len(threads) - 1:
        threading.Event().wait(0.001)
    inner.open.set()
    for thread in threads:
        thread.join(30)
    wanted = list(range(10))
    if fails:  # the others still wait for it
        assert sorted(map(str, values)) == sorted(["it failed", *[str(wanted)] * 5])
    else:
        assert (values, len(inner.asked)) == ([wanted] * 6, 1)


@pytest.mark.processes
def test_a_forked_child_does_not_wait_for_threads_of_its_parent():
    """Requests in flight in the parent never finish in the child."""
    array = sync.create_array({}, data=np.arange(100), chunks=10)
    inner = Gated(array.store)
    inner.open.set()
    found = sync.open_array(stores.CachingStore(inner))
    inner.open.clear()
    inner.begun.clear()
    thread = threading.Thread(target=lambda: found[:10])
    thread.start()
    assert inner.begun.wait(30)
    child = os.fork()
    if not child:
        inner.open.set()
        os._exit(int(found[:10].tolist() != list(range(10))))
    inner.open.set()
    thread.join(30)
    assert os.waitpid(child, 0)[1] == 0


async def test_a_small_disk_cache_stays_small_and_private(tmp_path):
    inner = stores.MemoryStore()
    for number in range(400):
        await inner.set(f"k{number}", bytes(200))
    store = stores.DiskCachingStore(inner, tmp_path / "cache", max_bytes=20_000)
    for number in range(400):
        await store.get(f"k{number}")
    folders = [path for path in store.directory.rglob("*") if path.is_dir()]
    assert len(folders) < 250  # two for each of the remaining entries
    assert {path.stat().st_mode & 0o777 for path in [store.directory, *folders]} == {0o700}
    for number in range(400):
        await store.set(f"k{number}", b"new")
    assert not list(store.directory.rglob("*"))
    assert await store.get("k7") == b"new"


async def test_a_disk_cache_knows_values_by_their_place(tmp_path):
    """A write through a symbolic link inside the root invalidates the entry."""
    (tmp_path / "root/real").mkdir(parents=True)
    (tmp_path / "root/link").symlink_to("real")
    store = stores.DiskCachingStore(stores.LocalStore(tmp_path / "root"), tmp_path / "cache")
    await store.set("real/x", b"old")
    assert await store.get("real/x") == await store.get("link/x") == b"old"
    assert store.hits == 1
    await store.set("link/x", b"new")
    assert await store.get("real/x") == b"new"
