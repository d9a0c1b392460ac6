"""A cache in memory in front of another store, which also shares requests between concurrent readers."""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.locks import holds_key_lock
from zarrasync._concurrency.semaphores import POLL_SECONDS
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import Store
from zarrasync.stores.values import Request, Value, clip
from zarrasync.stores.wrappers import HookedStore

T = TypeVar("T")
RangeKey: TypeAlias = tuple[str, int, int | None, bool]
"""Key, start, length and suffix of a request."""

_OVERHEAD = 256
"""Size of an entry without its value, in bytes."""
_REMEMBERED, _MOST_HASHES = 1 << 18, 1 << 14
"""Entries up to this size are recognized after they were removed, as documents are, and so many of them."""


class Entry(NamedTuple):
    """A cached result.

    Attributes:
        value: The value or byte range; ``None`` if the key was absent.
        time: When it was fetched, in seconds of the monotonic clock.
        versioned: Whether its version was requested.
    """

    value: Value | None
    time: float
    versioned: bool

    @property
    def nbytes(self) -> int:
        return _OVERHEAD + (0 if self.value is None else len(self.value.data))


class CacheEntries:
    """Cached results by request. Not thread-safe.

    Args:
        max_bytes: Maximum total size, in bytes.
        max_age: Maximum age in seconds; ``None`` for no limit.

    Attributes:
        nbytes: Current total size, in bytes.
    """

    def __init__(self, max_bytes: int, max_age: float | None) -> None:
        self._max_bytes, self._max_age = max_bytes, max_age
        self._entries: OrderedDict[RangeKey, Entry] = OrderedDict()
        self._hashes: OrderedDict[RangeKey, int] = OrderedDict()  # of the data of results that were removed for others
        self._versions: dict[
            str, tuple[object, set[RangeKey]]
        ] = {}  # for each key, the version of its entries and these
        self.nbytes = 0

    def find(self, request: Request, *, versions: bool) -> Entry | None:
        """Return the result of a request, from its own entry or from the entry for the whole value."""
        own_part: RangeKey = request[:4]
        for part in dict.fromkeys((own_part, (request.key, 0, None, False))):
            entry = self._entries.get(part)
            if entry is None or (versions and not entry.versioned):
                continue
            if self._max_age is not None and clock.monotonic() - entry.time > self._max_age:
                continue  # kept for a comparison with the result that replaces it
            self._entries.move_to_end(part)
            if part == own_part or entry.value is None:
                return entry
            return entry._replace(value=entry.value._replace(data=clip(entry.value.data, request)))
        return None

    def add(self, request: Request, entry: Entry) -> bool:
        """Add a result; return whether another one was cached before.

        Then older results below its directory are removed: readers of a new metadata document would combine it with old
        chunks, which do not contain appended rows.
        """
        part: RangeKey = request[:4]
        key, version = request.key, None if entry.value is None else entry.value.version
        if is_other := self._is_other(part, entry):
            for older in self.keys_below(key[: key.rfind("/") + 1]):
                self.remove_key(older)
        if key in self._versions and self._versions[key][0] != version:
            self.remove_key(key)
        self._remove(part)
        if entry.nbytes > self._max_bytes:
            return is_other
        self._entries[part] = entry
        self._versions.setdefault(key, (version, set()))[1].add(part)
        self.nbytes += entry.nbytes
        while self.nbytes > self._max_bytes:
            oldest, removed = next(iter(self._entries.items()))
            if removed.nbytes <= _REMEMBERED:
                self._hashes[oldest] = hash(_data(removed))
            if len(self._hashes) > _MOST_HASHES:
                self._hashes.popitem(last=False)
            self._remove(oldest)
        return is_other

    def _is_other(self, part: RangeKey, entry: Entry) -> bool:
        """Return whether a result differs from the one that was cached before, if there was one."""
        former, former_hash = self._entries.get(part), self._hashes.pop(part, None)
        if former is not None:
            return _data(former) != _data(entry)
        return former_hash is not None and former_hash != hash(_data(entry))

    def remove_key(self, key: str) -> None:
        """Remove all entries of a key."""
        for part in tuple(self._versions[key][1]) if key in self._versions else ():
            self._remove(part)

    def keys_below(self, prefix: str) -> list[str]:
        """Return the keys with entries that begin with a prefix."""
        return [key for key in self._versions if key.startswith(prefix)]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._versions.clear()
        self.nbytes = 0

    def _remove(self, part: RangeKey) -> None:
        entry = self._entries.pop(part, None)
        if entry is None:
            return
        self.nbytes -= entry.nbytes
        _, parts = self._versions[part[0]]
        parts.discard(part)
        if not parts:
            del self._versions[part[0]]


def _data(entry: Entry) -> Buffer | None:
    return None if entry.value is None else entry.value.data


@dataclass(frozen=True)
class CacheStats:
    """Statistics of a ``CachingStore``.

    Attributes:
        hits: Number of values or byte ranges that were cached, or already being fetched.
        misses: Number of values or byte ranges that were fetched from the inner store.
        nbytes: Current size of the cache, in bytes.
    """

    hits: int
    misses: int
    nbytes: int


class CacheStore(HookedStore):
    """The base class of caches in front of another store.

    Args:
        inner: The store to read from.
        max_bytes: Maximum size of the cache, in bytes.
        max_age: Maximum age of entries in seconds; ``None`` for no limit.

    Raises:
        ValueError: If a limit is negative.
    """

    def __init__(self, inner: Store, max_bytes: int, max_age: float | None) -> None:
        super().__init__(inner)
        if max_bytes < 0 or (max_age is not None and max_age < 0):
            raise ValueError(f"max_bytes and max_age must be at least 0, found {max_bytes} and {max_age}")
        self.max_bytes, self.max_age = max_bytes, max_age

    def _reset(self) -> None:
        """Make the parts that other processes and other stores do not share, such as locks."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove all entries."""
        raise NotImplementedError

    async def _invalidate(self, keys: Iterable[str]) -> None:
        """Remove the entries of keys that change, or have changed."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**state, "_conditional": self._conditional}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def around(self, inner: Store) -> Self:
        other = super().around(inner)
        other._reset()  # noqa: SLF001  # of the same class; a transaction has other values
        return other

    def on_commit(self) -> None:
        self.clear()

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        if operation not in ("put", "erase"):
            return await call()
        await self._invalidate(keys)
        try:
            return await call()
        finally:
            await self._invalidate(keys)


class CachingStore(CacheStore):
    """A cache of values, byte ranges and absent keys in front of another store.

    Concurrent readers of the same bytes share one request. Changes through this store remove the entries of their keys
    at once. Changes by others become visible after ``max_age`` seconds, after ``clear``, after a conditional write that
    failed because of them, and to callers that change a value under a lock. When a value turns out to have changed, all
    entries below its directory are removed, so that new metadata is not combined with old chunks. Metadata documents do not record the
    cache: in the terms of the version 3 draft, it is a storage transformer that is not part of the stored format.

    Args:
        inner: The store to read from.
        max_bytes: Maximum size of the cache, in bytes.
        max_age: Maximum age of entries in seconds; ``None`` for no limit.
        absent: Whether to remember absent keys.

    Raises:
        ValueError: If a limit is negative.
    """

    def __init__(
        self, inner: Store, max_bytes: int = 256 << 20, *, max_age: float | None = None, absent: bool = True
    ) -> None:
        super().__init__(inner, max_bytes, max_age)
        self.absent = absent
        self._reset()

    def _reset(self) -> None:
        self._lock = thread_lock()
        self._entries = CacheEntries(self.max_bytes, self.max_age)
        self._loop_fetches: dict[Hashable, tuple[_LoopFetch, int]] = {}
        self._thread_fetches: dict[Hashable, _ThreadFetch] = {}
        self._changes = self._hits = self._misses = 0

    @property
    def stats(self) -> CacheStats:
        """Statistics so far."""
        with self._lock:
            return CacheStats(self._hits, self._misses, self._entries.nbytes)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._stop_sharing()
            self._entries.clear()

    def _stop_sharing(self) -> None:
        """Keep requests under way from answering later readers, and their results from becoming entries."""
        self._changes += 1
        self._loop_fetches.clear()
        self._thread_fetches.clear()

    async def _invalidate(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._stop_sharing()
            for key in keys:
                self._entries.remove_key(key)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        if must_bypass_cache(self):
            return await self._fetch_inner([request._replace(out=None) for request in requests], versions)
        values: dict[RangeKey, Value | None] = {}
        changes_value = holds_key_lock()
        with self._lock:
            misses: dict[RangeKey, Request] = {}
            for request in requests:
                entry = self._entries.find(request, versions=versions)
                if entry is not None and (entry.value is not None or not changes_value):
                    values[request[:4]] = entry.value
                else:  # the cache must not keep memory that callers lend
                    misses[request[:4]] = request._replace(out=None)
            self._hits += len(requests) - len(misses)
        if misses and changes_value:
            fetched = await self._fetch_inner(tuple(misses.values()), versions)
            values.update(zip(misses, fetched, strict=True))
        elif misses and self.blocking:
            values.update(await self._share_between_threads(misses, versions))
        elif misses:
            values.update(await self._share_between_tasks(misses, versions))
        return [values[request[:4]] for request in requests]

    async def _fetch_inner(self, requests: Sequence[Request], versions: bool) -> builtins.list[Value | None]:
        """Fetch from the inner store, and add entries unless something has changed meanwhile."""
        changes = self._changes
        fetched = await self.inner.fetch(requests, versions=versions)
        values = [v if v is None or type(v.data) is bytes else v._replace(data=bytes(v.data)) for v in fetched]
        with self._lock:
            self._misses += len(requests)
            if changes == self._changes:
                now = clock.monotonic()
                results = zip(requests, values, strict=True)
                entries = [(r, Entry(value, now, versions)) for r, value in results if value is not None or self.absent]
                changed = [self._entries.add(request, entry) for request, entry in entries]
                if any(changed):
                    self._stop_sharing()
        return values

    async def _share_between_threads(
        self, misses: dict[RangeKey, Request], versions: bool
    ) -> dict[RangeKey, Value | None]:
        """Fetch the parts that no other thread is fetching, and wait for the others."""
        fetch, flag = _ThreadFetch(), cancel_flag()
        process = os.getpid()  # a forked child has none of its parent's other threads
        with self._lock:
            names = {part: (process, versions, part) for part in misses}
            shared = {part: self._thread_fetches[name] for part, name in names.items() if name in self._thread_fetches}
            self._hits += len(shared)
            self._thread_fetches.update((name, fetch) for part, name in names.items() if part not in shared)
        own_requests = {part: request for part, request in misses.items() if part not in shared}
        try:
            if own_requests:
                fetched = await self._fetch_inner(tuple(own_requests.values()), versions)
                fetch.values = dict(zip(own_requests, fetched, strict=True))
        finally:
            fetch.ended.set()
            with self._lock:
                for name in names.values():
                    if self._thread_fetches.get(name) is fetch:
                        del self._thread_fetches[name]
        values = dict(fetch.values)
        for part, other in shared.items():
            while not clock.current().wait(other.ended, POLL_SECONDS):
                if flag.cancelled:
                    raise asyncio.CancelledError
            if part in other.values:
                values[part] = other.values[part]
            else:  # the other thread may have failed because of another part
                (values[part],) = await self._fetch_inner([misses[part]], versions)
        return values

    async def _share_between_tasks(
        self, misses: dict[RangeKey, Request], versions: bool
    ) -> dict[RangeKey, Value | None]:
        """Fetch the parts that no other task is fetching, and wait for all. The last waiter to leave cancels a fetch."""
        loop = asyncio.get_running_loop()
        with self._lock:
            names = {part: (loop, versions, part) for part in misses}
            own_parts = [part for part, name in names.items() if name not in self._loop_fetches]
            self._hits += len(misses) - len(own_parts)
            if own_parts:
                requests = [misses[part] for part in own_parts]
                fetch = _LoopFetch(loop.create_task(self._fetch_inner(requests, versions)))
                self._loop_fetches.update((names[part], (fetch, number)) for number, part in enumerate(own_parts))
            sources = {part: self._loop_fetches[name] for part, name in names.items()}
        fetches = {fetch for fetch, _ in sources.values()}
        for fetch in fetches:
            fetch.waiters += 1
        try:
            await asyncio.wait([fetch.task for fetch in fetches])
            # A fetch of another task may have failed because of another part.
            failed = [part for part in names if part not in own_parts and _has_failed(sources[part][0].task)]
            repeated = await self._fetch_inner([misses[part] for part in failed], versions) if failed else ()
            values = dict(zip(failed, repeated, strict=True))
            return values | {
                part: fetch.task.result()[number] for part, (fetch, number) in sources.items() if part not in values
            }
        finally:
            for fetch in fetches:
                fetch.waiters -= 1
                if fetch.task.done():
                    _has_failed(fetch.task)  # marks the error as retrieved
                elif not fetch.waiters:
                    fetch.task.cancel()
            with self._lock:
                for part, name in names.items():
                    source = self._loop_fetches.get(name)
                    if (
                        source is not None
                        and source is sources[part]
                        and (source[0].task.done() or not source[0].waiters)
                    ):
                        del self._loop_fetches[name]

    async def erase_prefix(self, prefix: str) -> None:
        try:
            await self.inner.erase_prefix(prefix)
        finally:
            with self._lock:
                keys = self._entries.keys_below(prefix)
            await self._invalidate(keys)


def must_bypass_cache(store: Store) -> bool:
    """Return whether the current call must not use cached values: it changes a value without comparing versions.

    Otherwise a call that changes a value may use its cached value, because the store compares the version. But it must not
    use cached absence: it may store nothing then, so that nothing is compared.
    """
    return holds_key_lock() and (store.exclusive_locks or not store.conditional)


class _LoopFetch:
    """A fetch by a task of an event loop, and the number of tasks that wait for it."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[builtins.list[Value | None]]) -> None:
        self.task, self.waiters = task, 0


class _ThreadFetch:
    """A fetch by a thread. Other threads wait for its end; its values stay empty if it failed."""

    __slots__ = ("ended", "values")

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.values: dict[RangeKey, Value | None] = {}


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
