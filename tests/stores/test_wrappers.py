"""Stores that trace, delay or fail on purpose, and stores around others."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import ReadOnlyError, ShapeError, StoreError
from zarrasync.stores.base import Transaction
from zarrasync.stores.counting import Event, Latencies
from zarrasync.stores.remote import BoundedStore
from zarrasync.stores.values import KeyIndex
from zarrasync.stores.wrappers import AliasStore, ListedStore
from zarrasync.testing import FaultyStore, LatencyStore

VALUES = np.arange(10_000, dtype="i4").reshape(100, 100)

# ------------------------------------------------------------------ tracing


async def test_operations_are_counted_and_timed(api: Api):
    events: list[Event] = []
    store = stores.TracingStore(LatencyStore(stores.MemoryStore(), 0.01), on_event=events.append)
    array = await api(api.create_array(store, data=VALUES, chunks=(50, 50)))
    np.testing.assert_array_equal(await api(array[...]), VALUES)
    fetched = [event.keys for event in events if event.operation == "fetch"]
    assert len(fetched) == len(store.latencies["fetch"]) < store.counts.fetches == sum(map(len, fetched)) == 4 + 4
    assert store.latencies["put"].quantile(0.5) >= 0.01
    assert store.latencies["put"].total >= 5 * 0.01
    assert "p99" in repr(store.latencies["put"])
    limits = store.latencies["fetch"].buckets()
    assert limits[-1][1] == len(store.latencies["fetch"])
    assert [count for _, count in limits] == sorted(count for _, count in limits)
    assert sum(e.nbytes for e in events if e.operation == "put") == store.counts.bytes_written
    assert {e.operation for e in events} == {"fetch", "put"}
    assert all(e.seconds >= 0.01 and e.error is None for e in events)


async def test_failures_are_traced():
    events: list[Event] = []
    store = stores.TracingStore(FaultyStore(stores.MemoryStore(), 1.0), on_event=events.append)
    with pytest.raises(StoreError, match="simulated failure"):
        await store.get("k")
    (event,) = events
    assert isinstance(event.error, StoreError)
    assert event.keys == ("k",)


def test_latencies_of_nothing():
    nothing = Latencies()
    assert (len(nothing), nothing.buckets(), nothing.quantile(0.9), repr(nothing)) == (0, [], 0.0, "<no operations>")
    with pytest.raises(ValueError, match="between 0 and 1"):
        nothing.quantile(2)


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """An exporter that keeps spans in memory, and the provider of the tracer that fills it."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter, provider


async def test_spans(tracing: tuple[Any, Any]):
    exporter, provider = tracing
    store = stores.TracingStore(stores.MemoryStore(), spans=True)
    await store.set("k", b"value")
    with provider.get_tracer("mine").start_as_current_span("request"):
        assert await store.get("k") == b"value"
    put, fetch, request = exporter.get_finished_spans()
    assert (put.name, fetch.name) == ("zarrasync.put", "zarrasync.fetch")
    assert fetch.parent.span_id == request.context.span_id
    assert fetch.attributes["zarrasync.bytes"] == 5


async def test_spans_of_helping_threads_have_a_parent(api: Api, tmp_path: Path, tracing: tuple[Any, Any]):
    exporter, provider = tracing
    store = stores.TracingStore(stores.LocalStore(tmp_path), spans=True)
    values = np.random.default_rng(0).random((64, 1 << 15))
    array = await api(api.create_array(store, shape=values.shape, chunks=(1, 1 << 15), config={"threads": 4}))
    exporter.clear()
    with provider.get_tracer("mine").start_as_current_span("request") as request:
        for _ in range(3):
            await api(array.view.write(values))
            await api(array.view.read())
    spans = [span for span in exporter.get_finished_spans() if span.name != "request"]
    assert len(spans) > 6
    assert {span.parent.span_id if span.parent else None for span in spans} == {request.context.span_id}


def test_spans_without_opentelemetry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"zarrasync\[otel\]"):
        stores.TracingStore(stores.MemoryStore(), spans=True)


# ------------------------------------------------------------------ hindrance


async def test_latency_applies_once_to_concurrent_requests():
    store = LatencyStore(stores.MemoryStore(), 0.05, jitter=0.001)
    await za.create_array(store, data=VALUES, chunks=(10, 10))
    array = await za.open_array(store, zarr_format=3)
    begin = time.perf_counter()
    np.testing.assert_array_equal(await array[...], VALUES)
    assert 0.05 <= time.perf_counter() - begin < 20 * 0.05  # a hundred chunks, nearly at once
    with pytest.raises(ValueError, match="at least 0"):
        LatencyStore(stores.MemoryStore(), -1)


async def test_failures_on_purpose(api: Api):
    """With random failures, reads and writes succeed or raise."""
    memory = stores.MemoryStore()
    await api(api.create_array(memory, data=VALUES, chunks=(10, 10), shards=(50, 50), fill_value=-1))
    faulty = pickle.loads(pickle.dumps(FaultyStore(memory, 0.2, seed=1)))
    faulty.inner = memory
    outcomes = {"right": 0, "error": 0}
    for row in range(100):
        try:
            array = await api(api.open_array(faulty, mode="r+"))
            np.testing.assert_array_equal(await api(array[row]), VALUES[row])
            await api.write(array, row, VALUES[row])
            outcomes["right"] += 1
        except StoreError as error:
            assert "simulated failure" in str(error)  # noqa: PT017  # not all fail
            outcomes["error"] += 1
    assert min(outcomes.values()) > 5
    np.testing.assert_array_equal(await api((await api(api.open_array(memory)))[...]), VALUES)


async def test_failures_that_are_chosen():
    def fails(operation: str, key: str) -> bool:
        if key == "worse":
            raise StoreError("much worse", key=key)
        return operation == "put" and key == "bad"

    store = FaultyStore(stores.MemoryStore(), fails=fails)
    await store.set("good", b"1")
    with pytest.raises(StoreError, match="simulated failure"):
        await store.set("bad", b"1")
    with pytest.raises(StoreError, match="much worse"):
        await store.get_partial_values([("good", (0, None)), ("worse", (0, 1))])
    assert await store.list() == ["good"]
    with pytest.raises(ValueError, match="between 0 and 1"):
        FaultyStore(stores.MemoryStore(), 2)


# ------------------------------------------------------------------ roundabout ways


def test_chained_urls(s3, tmp_path: Path):
    """URL chains of fsspec: a cache of whole files in front of S3, and a zip file in memory."""
    url, options = s3
    sync.create_array(f"{url}/x", data=VALUES, chunks=(50, 50), storage_options=options)
    given = {"s3": options, "simplecache": {"cache_storage": str(tmp_path / "cache")}}
    array = sync.open_array(f"simplecache::{url}/x", storage_options=given)
    np.testing.assert_array_equal(array[...], VALUES)
    assert list((tmp_path / "cache").iterdir())

    sync.create_array(stores.ZipStore(archive := tmp_path / "a.zip", mode="w"), data=VALUES).store.__exit__(
        None, None, None
    )
    np.testing.assert_array_equal(sync.open_array(f"zip://::{archive.as_uri()}")[...], VALUES)


def test_references(tmp_path: Path):
    """A kerchunk document: metadata inline, chunks as parts of other files."""
    data = VALUES[:10].tobytes()
    (tmp_path / "data.bin").write_bytes(b"header" + data)
    document = {
        "zarr_format": 2, "shape": [10, 100], "chunks": [5, 100], "dtype": "<i4", "compressor": None,
        "fill_value": 0, "order": "C", "filters": None,
    }  # fmt: skip
    half = len(data) // 2
    references = {
        "version": 1,
        "refs": {
            ".zgroup": json.dumps({"zarr_format": 2}),
            "x/.zarray": json.dumps(document),
            "x/.zattrs": json.dumps({"unit": "K"}),
            "x/0.0": [str(tmp_path / "data.bin"), 6, half],
            "x/1.0": [str(tmp_path / "data.bin"), 6 + half, half],
        },
    }
    (tmp_path / "refs.json").write_text(json.dumps(references))
    options = {"fo": str(tmp_path / "refs.json"), "remote_protocol": "file"}
    group = sync.open_group("reference://", storage_options=options)
    assert group["x"].attrs["unit"] == "K"
    np.testing.assert_array_equal(group["x"][...], VALUES[:10])
    np.testing.assert_array_equal(group["x"][3:7, 5], VALUES[3:7, 5])


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_the_names_of_a_group_are_listed_once(zarr_format: int | str):
    """``list()`` also calls ``len()``."""
    counting = stores.CountingStore(stores.MemoryStore())
    group = sync.create_group(counting, zarr_format=zarr_format)
    for name in "abc":
        group.create_group(name)
    counting.reset()
    assert [name for name in group] == ["a", "b", "c"]  # noqa: C416  # which asks for no length
    once = counting.reset().requests
    for ask in (list, sorted, tuple):
        assert list(ask(group)) == ["a", "b", "c"]
        assert counting.reset().requests == once
    names = iter(group)
    next(names)
    group.create_group("d")
    assert (len(group), list(names)) == (4, ["b", "c"])
    names = iter(group)
    group.create_group("e")
    assert (len(group), list(names)) == (5, ["a", "b", "c", "d"])


async def test_icechunk(api: Api, tmp_path: Path):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = repository.writable_session("main")
    root = await api(api.create_group(session.store))
    array = await api(root.create_array("x", shape=VALUES.shape, dtype="i4", chunks=(50, 50)))
    await api.write(array, ..., VALUES)
    await api.write(array, (3, 3), -1)  # part of a chunk, which nobody else can see before the commit
    await api.write(array, (3, 3), VALUES[3, 3])
    session.commit("values")
    found = await api(
        api.open_array(repository.readonly_session("main"), path="x")
    )  # the session itself, and its store
    np.testing.assert_array_equal(await api(found[20:70, ::3]), VALUES[20:70, ::3])
    theirs = pytest.importorskip("zarr").open_array(repository.readonly_session("main").store, path="x", mode="r")
    np.testing.assert_array_equal(theirs[...], VALUES)


async def test_ingesting_into_icechunk(api: Api, tmp_path: Path):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = repository.writable_session("main")
    await api(api.ingest(VALUES, session.store, path="x", chunks=(50, 50)))
    source = await api(api.open_array(session.store, path="x"))
    await api(api.copy(source, session.store, dest_path="y", resume=True))
    for path in "xy":
        found = await api(api.open_array(session.store, path=path))
        np.testing.assert_array_equal(await api(found[...]), VALUES)


async def test_stores_of_one_session_of_icechunk(api: Api, tmp_path: Path):
    """Each access creates a new store; merging forks of a session reports no conflicts."""
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = repository.writable_session("main")
    assert stores.resolve(session.store).identity == stores.resolve(session.store).identity
    assert stores.resolve(session.store).identity != stores.resolve(repository.writable_session("main").store).identity
    array = await api(api.create_array(session.store, shape=(10,), chunks=(10,), dtype="i4"))
    await api(array.append(np.arange(5)))
    assert (await api(array[...]))[10:].tolist() == list(range(5))

    def write(number: int) -> None:
        own = sync.open_array(session.store, mode="r+")
        for turn in range(50):
            own[number] = turn + 1

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert (await api(array[:3])).tolist() == [50, 50, 50]
    session.commit("values")
    fork = await api(api.open_array(repository.writable_session("main").fork().store, mode="r+"))
    with pytest.raises(ShapeError, match="covers only parts of the chunks"):
        await api.write(fork, 3, 1)


def test_stores_of_zarr_python_around_others():
    zarr = pytest.importorskip("zarr")
    memory = zarr.storage.MemoryStore()
    wrapped = zarr.storage.LoggingStore(memory, log_level="ERROR")
    assert stores.resolve(memory).identity == stores.resolve(wrapped).identity
    assert stores.resolve(memory.with_read_only(True)).identity == stores.resolve(memory).identity
    assert not stores.resolve(wrapped).shareable
    obstore = pytest.importorskip("obstore")
    inner = obstore.store.MemoryStore()
    for read_only in (True, False):
        found = stores.resolve(zarr.storage.ObjectStore(inner, read_only=read_only))
        assert found.conditional
        assert found.writeable is not read_only


def test_uvloop():
    uvloop = pytest.importorskip("uvloop")

    async def read() -> np.ndarray:
        store = LatencyStore(stores.MemoryStore(), 0.001)
        array = await za.create_array(store, data=VALUES, chunks=(10, 10))
        return await array[...]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        np.testing.assert_array_equal(runner.run(read()), VALUES)


async def test_read_only():
    store = stores.ReadOnlyStore(stores.MemoryStore({"k": b"v"}))
    assert await store.get("k") == b"v"
    for attempt in (store.set("k", b"w"), store.erase("k"), store.erase_values(["k"]), store.erase_prefix("")):
        with pytest.raises(ReadOnlyError, match="mode='r'"):
            await attempt
    assert await store.get("k") == b"v"


async def test_prefix_shares_locks_with_the_whole():
    inner = stores.MemoryStore()
    part = stores.PrefixStore(inner, "a/")
    await part.set("b", b"1")
    assert await inner.get("a/b") == b"1"
    async with part.lock("b"):
        task = asyncio.ensure_future(_take(inner.lock("a/b")))
        await asyncio.sleep(0)
        assert not task.done()
    await task


async def _take(lock):
    async with lock:
        pass


async def test_counting():
    store = stores.CountingStore(stores.MemoryStore())
    await store.set("k", b"12345")
    await store.get("k")
    await store.get_partial_values([("k", (0, 2)), ("no", (0, 2))])
    await store.list()
    await store.erase("k")
    counts = store.reset()
    assert (counts.puts, counts.bytes_written) == (1, 5)
    assert (counts.fetches, counts.absent, counts.bytes_read) == (3, 1, 7)
    assert (counts.lists, counts.erases, counts.requests) == (1, 1, 6)
    assert store.counts.requests == 0


# ------------------------------------------------------------------ few keys


async def test_few_keys_through_wrappers():
    """A wrapper that changes only ``list_prefix`` must not be passed over."""
    memory = stores.MemoryStore({f"a/{number}": b"" for number in range(3)})
    counting = stores.CountingStore(stores.ReadOnlyStore(LatencyStore(memory, 0.0)))
    assert sorted(await stores.PrefixStore(counting, "a/").list_few("", 4) or ()) == ["0", "1", "2"]
    assert len(await stores.PrefixStore(counting, "a/").list_few("", 3) or ()) == 3
    assert counting.counts.lists == 2

    class Hiding(stores.WrapperStore):
        async def list_prefix(self, prefix: str) -> list[str]:
            return [key for key in await self.inner.list_prefix(prefix) if key != "a/1"]

    assert await Hiding(memory).list_few("", 10) is None
    assert await stores.CountingStore(Hiding(memory)).list_few("", 10) is None


def test_a_listing_is_not_sent_to_other_processes(tmp_path: Path):
    store = ListedStore(stores.LocalStore(tmp_path), KeyIndex(f"a/{number}" for number in range(10_000)))
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert isinstance(pickle.loads(data), stores.LocalStore)  # own data


# ------------------------------------------------------------------ transactions and locks


class _Versioned(stores.MemoryStore):
    """A store with transactions, which other processes can continue."""

    def __init__(self, values: dict[str, bytes]) -> None:
        super().__init__(values)
        self.committed, self.merged = list[str](), list[bytes]()

    @property
    def transactions(self) -> Self:
        return self

    @property
    def forks(self) -> Self:
        return self

    def begin(self) -> Transaction:
        return _Changes(self)

    def detach(self) -> Transaction:
        return _Changes(self)

    def attach(self, state: bytes) -> Transaction:
        assert state == b"state"
        return _Changes(self)

    def fork(self) -> Any:
        return _open_fork

    def merge(self, changes: bytes) -> None:
        self.merged.append(changes)

    def changes(self) -> bytes:
        raise NotImplementedError

    def lock(self, key: str) -> Any:
        return ("the lock of", key)

    def locks(self, keys: Any) -> Any:
        return ("the locks of", *keys)


class _Fork(stores.MemoryStore):
    @property
    def forks(self) -> Self:
        return self

    def fork(self) -> Any:
        raise NotImplementedError

    def changes(self) -> bytes:
        return b"changes"

    def merge(self, changes: bytes) -> None:
        raise NotImplementedError


FORKED: dict[str, bytes] = {}


def _open_fork() -> stores.Store:
    return _Fork(FORKED)


class _Changes(Transaction):
    def __init__(self, origin: _Versioned) -> None:
        self._origin, self.store = origin, stores.MemoryStore(dict(origin.values))
        self._values = self.store.values

    def commit(self, message: str, path: str = "") -> None:
        self._origin.values.update(self._values)
        self._origin.committed.append(path)

    def state(self) -> bytes:
        return b"state"


WRAPPERS: dict[str, Callable[[stores.Store, Path], stores.WrapperStore]] = {
    "PrefixStore": lambda store, folder: stores.PrefixStore(store, "g/"),
    "AliasStore": lambda store, folder: AliasStore(store, {"x": ("y",)}),
    "ReadOnlyStore": lambda store, folder: stores.ReadOnlyStore(store),
    "ListedStore": lambda store, folder: ListedStore(store, KeyIndex(["g/k"])),
    "BoundedStore": lambda store, folder: BoundedStore(store, 2),
    "CountingStore": lambda store, folder: stores.CountingStore(store),
    "TracingStore": lambda store, folder: stores.TracingStore(store),
    "CachingStore": lambda store, folder: stores.CachingStore(store),
    "DiskCachingStore": stores.DiskCachingStore,
    "LatencyStore": lambda store, folder: LatencyStore(store, 0),
    "FaultyStore": lambda store, folder: FaultyStore(store),
}
WITHOUT = {"CacheStore", "ConfinedStore", "HookedStore", "_DisturbedStore", "_ListedBefore", "_VersionRecorder"}
"""Three base classes, one of local files only, one of a walk, and one of a read."""


def _kinds(base: type[stores.WrapperStore]) -> set[str]:
    found = {base.__name__} if base.__module__.startswith("zarrasync.") else set[str]()
    return found.union(*map(_kinds, base.__subclasses__()))


def test_all_wrappers_are_tested():
    assert _kinds(stores.WrapperStore) - {"WrapperStore"} - WITHOUT == set(WRAPPERS)


@pytest.mark.parametrize("name", WRAPPERS)
async def test_a_wrapper_has_the_transactions_and_locks_of_its_store(name: str, tmp_path: Path):
    inner = _Versioned({"g/k": b"old", "g/y": b"alternative"})
    store = WRAPPERS[name](inner, tmp_path)
    key = "k" if name == "PrefixStore" else "g/k"
    assert await store.get(key) == b"old"
    transactions, forks = store.transactions, store.forks
    assert transactions is not None
    assert forks is not None
    for transaction in (transactions.begin(), transactions.detach(), transactions.attach(b"state")):
        assert transaction is not None
        assert type(transaction.store) is type(store)
        assert transaction.state() == b"state"
        new = str(len(inner.committed)).encode()
        assert (store.blocking, store.writeable) == (transaction.store.blocking, transaction.store.writeable)
        if store.writeable:
            await transaction.store.set(key, new)
        else:
            await transaction.store.inner.set("g/k", new)
        assert await transaction.store.get(key) == new != await store.get(key)  # no cache mixes them
        transaction.commit("a message", "a")
        assert inner.committed[-1] == ("g/a" if name == "PrefixStore" else "a")
        assert await store.get(key) == new
    FORKED.clear()
    fork = pickle.loads(pickle.dumps(forks.fork()))()
    assert type(fork) is type(store)
    assert fork.blocking == store.blocking
    if store.writeable:
        await fork.set(key, b"forked")
        assert FORKED == {"g/k": b"forked"}
    inner.values["g/k"] = b"merged"
    forks.merge(fork.forks.changes())
    assert inner.merged == [b"changes"]
    assert await store.get(key) == b"merged"
    if name != "LatencyStore":  # whose lock must not wait for its own writes
        assert (store.lock(key), store.locks([key])) == (("the lock of", "g/k"), ("the locks of", "g/k"))


async def test_operations_of_transactions_are_counted():
    store = stores.TracingStore(_Versioned({}))
    assert store.transactions is not None
    transaction = store.transactions.begin()
    await transaction.store.set("k", b"v")
    assert (store.counts.puts, len(store.latencies["put"])) == (1, 1)
    store.reset()
    await transaction.store.set("k", b"v")
    assert store.counts.puts == 1


@pytest.mark.parametrize("name", sorted(WRAPPERS.keys() - {"ListedStore"}))  # a copy of it is the inner store
def test_a_copy_has_the_attributes_that_were_set(name: str, tmp_path: Path):
    store = WRAPPERS[name](stores.LocalStore(tmp_path), tmp_path)
    store.conditional = store.exclusive_locks = False
    copy = pickle.loads(pickle.dumps(store))
    assert not copy.conditional
    assert not copy.exclusive_locks
