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
from zarrasync._concurrency.cancel import cancel_flag, retrieve
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

    def clear(self) -> None:
        """Remove all entries."""
        raise NotImplementedError

    async def _invalidate(self, keys: Iterable[str]) -> None:
        """Remove the entries of keys that change, or have changed."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**state, "_conditional": self._conditional}

    def around(self, inner: Store) -> Self:
        other = super().around(inner)
        other._make_unshared()  # noqa: SLF001  # of the same class; a transaction has other values
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
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._lock = thread_lock()
        self._entries = CacheEntries(self.max_bytes, self.max_age)
        self._fetches: dict[Hashable, _Fetch] = {}
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
        self._fetches.clear()

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
        elif misses:
            values.update(await self._share(misses, versions))
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

    async def _share(self, misses: dict[RangeKey, Request], versions: bool) -> dict[RangeKey, Value | None]:
        """Fetch the parts that no other thread, or task of the event loop, is fetching, and wait for the others.

        The last waiting task to leave cancels a fetch.
        """
        fetch, flag = _Fetch(), cancel_flag()
        # A forked child has none of its parent's other threads.
        place = os.getpid() if self.blocking else asyncio.get_running_loop()
        with self._lock:
            names = {part: (place, versions, part) for part in misses}
            own = {part: request for part, request in misses.items() if names[part] not in self._fetches}
            self._hits += len(misses) - len(own)
            if own and not self.blocking:
                fetch.task = asyncio.ensure_future(self._run(fetch, own, versions))
            self._fetches.update((names[part], fetch) for part in own)
            sources = {part: self._fetches[name] for part, name in names.items()}
            fetches = set(sources.values())
            for source in fetches:
                source.waiters += 1
        try:
            if self.blocking:
                if own:
                    await self._run(fetch, own, versions)
                for source in fetches:
                    while not clock.current().wait(source.ended, POLL_SECONDS):
                        if flag.cancelled:
                            raise asyncio.CancelledError
            else:
                await asyncio.wait([source.task for source in fetches if source.task is not None])
                if fetch.task is not None:
                    fetch.task.result()
            # A fetch of another call may have failed because of another part.
            failed = [part for part, source in sources.items() if part not in source.values]
            repeated = await self._fetch_inner([misses[part] for part in failed], versions) if failed else ()
            found = {part: source.values.get(part) for part, source in sources.items()}
            return {**found, **dict(zip(failed, repeated, strict=True))}
        finally:
            with self._lock:
                for source in fetches:
                    source.waiters -= 1
                for part, name in names.items():
                    source = sources[part]
                    if self._fetches.get(name) is source and (source.ended.is_set() or not source.waiters):
                        del self._fetches[name]
            for source in fetches:
                if source.task is not None and source.task.done():
                    retrieve(source.task)
                elif source.task is not None and not source.waiters:
                    source.task.cancel()

    async def _run(self, fetch: _Fetch, requests: dict[RangeKey, Request], versions: bool) -> None:
        try:
            fetched = await self._fetch_inner(tuple(requests.values()), versions)
            fetch.values = dict(zip(requests, fetched, strict=True))
        finally:
            fetch.ended.set()

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


class _Fetch:
    """A fetch under way, by a thread or by a task of an event loop.

    Attributes:
        values: The results; empty until it has ended, and if it failed.
        ended: Set at its end.
        task: The task, if it is one.
        waiters: The number of calls that wait for it.
    """

    def __init__(self) -> None:
        self.values: dict[RangeKey, Value | None] = {}
        self.ended = threading.Event()
        self.task: asyncio.Future[None] | None = None
        self.waiters = 0
