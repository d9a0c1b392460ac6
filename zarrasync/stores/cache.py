"""A cache in memory in front of another store, which also shares requests between concurrent readers."""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gates import POLL_SECONDS
from zarrasync._concurrency.locks import holds_key_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import Store
from zarrasync.stores.cache_entries import CacheEntries, Entry, Part
from zarrasync.stores.values import Request, Value
from zarrasync.stores.wrappers import WrapperStore

__all__ = ["CacheStats", "CachingStore", "must_bypass_cache"]


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


class CachingStore(WrapperStore):
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
        super().__init__(inner)
        if max_bytes < 0 or (max_age is not None and max_age < 0):
            raise ValueError(f"max_bytes and max_age must be at least 0, found {max_bytes} and {max_age}")
        self.max_bytes, self.max_age, self.absent = max_bytes, max_age, absent
        self._reset()

    def _reset(self) -> None:
        self._lock = thread_lock()
        self._entries = CacheEntries(self.max_bytes, self.max_age)
        self._loop_fetches: dict[Hashable, tuple[_LoopFetch, int]] = {}
        self._thread_fetches: dict[Hashable, _ThreadFetch] = {}
        self._changes = self._hits = self._misses = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

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

    def around(self, inner: Store) -> Self:
        other = super().around(inner)
        other._reset()  # noqa: SLF001  # of the same class; a transaction has other values
        return other

    def on_commit(self) -> None:
        self.clear()

    def _stop_sharing(self) -> None:
        """Keep requests under way from answering later readers, and their results from becoming entries."""
        self._changes += 1
        self._loop_fetches.clear()
        self._thread_fetches.clear()

    def _invalidate(self, keys: Iterable[str]) -> None:
        """Remove the entries of keys that have changed."""
        with self._lock:
            self._stop_sharing()
            for key in keys:
                self._entries.remove_key(key)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        if must_bypass_cache(self):
            return await self._fetch_inner([request._replace(into=None) for request in requests], versions)
        values: dict[Part, Value | None] = {}
        changes_value = holds_key_lock()
        with self._lock:
            misses: dict[Part, Request] = {}
            for request in requests:
                entry = self._entries.find(request, versions=versions)
                if entry is not None and (entry.value is not None or not changes_value):
                    values[request[:4]] = entry.value
                else:  # the cache must not keep memory that callers lend
                    misses[request[:4]] = request._replace(into=None)
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

    async def _share_between_threads(self, misses: dict[Part, Request], versions: bool) -> dict[Part, Value | None]:
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

    async def _share_between_tasks(self, misses: dict[Part, Request], versions: bool) -> dict[Part, Value | None]:
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

    # -------------------------------------------------------------- changing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        try:
            return await self.inner.put(key, data, if_version=if_version)
        finally:
            self._invalidate([key])

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        try:
            await self.inner.put_values(keys, values)
        finally:
            self._invalidate(keys)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        try:
            await self.inner.erase(key, if_version=if_version)
        finally:
            self._invalidate([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        try:
            await self.inner.erase_values(keys)
        finally:
            self._invalidate(keys)

    async def erase_prefix(self, prefix: str) -> None:
        try:
            await self.inner.erase_prefix(prefix)
        finally:
            with self._lock:
                keys = self._entries.keys_below(prefix)
            self._invalidate(keys)


def must_bypass_cache(store: Store) -> bool:
    """Return whether the current call must not use cached values: it changes a value without comparing versions.

    Otherwise a call that changes a value may use its cached value, because the store compares the version. But it must not
    use cached absence: it may store nothing then, so that nothing is compared.
    """
    return holds_key_lock() and (store.exclusive or not store.conditional)


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
        self.values: dict[Part, Value | None] = {}


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
