"""A store in front of another one that remembers what was read: so many bytes, the least used go first."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gates import POLL_SECONDS
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import Request, Store, Value, clip
from zarrasync.stores.wrappers import WrapperStore, distrusted

__all__ = ["CacheStats", "CachingStore"]

_OVERHEAD = 256
"""Bytes that an entry takes beside its value; what is known to be absent costs no more."""

_Part = tuple[str, int, int | None, bool]


class _Entry(NamedTuple):
    """What was found, when, and whether its version was asked for."""

    value: Value | None
    when: float
    versioned: bool

    @property
    def nbytes(self) -> int:
        return _OVERHEAD + (0 if self.value is None else len(self.value.data))


class _Flight:
    """A request on its way, and how many wait for it."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[builtins.list[Value | None]]) -> None:
        self.task, self.waiting = task, 0


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


@dataclass(frozen=True)
class CacheStats:
    """How a ``CachingStore`` has done.

    Attributes:
        hits: Values or parts that were there, or on their way already.
        misses: Values or parts that were asked for in the store behind.
        nbytes: Bytes held now.
    """

    hits: int
    misses: int
    nbytes: int


class CachingStore(WrapperStore):
    """A store that remembers what was read from another one: values, parts of them, and what is absent.

    Many readers who want the same at the same time cost one request. What is written or erased through this store is
    forgotten at once; changes that others make are seen after ``max_age`` seconds, after ``clear``, when a conditional
    write meets them, and by whoever changes a value under a lock. Nothing of it is stored: in the terms of the draft of
    format 3 it is a storage transformer that metadata does not name.

    Args:
        inner: The store to read from.
        max_bytes: How much to remember at the most, in bytes.
        max_age: Seconds for which something is believed; ``None``: for ever.
        absent: Whether absence is remembered, too.

    Raises:
        ValueError: If a limit is negative.
    """

    def __init__(
        self, inner: Store, max_bytes: int = 256 << 20, *, max_age: float | None = None, absent: bool = True
    ) -> None:
        super().__init__(inner)
        if max_bytes < 0 or (max_age is not None and max_age < 0):
            raise ValueError(f"max_bytes and max_age are at least 0, found {max_bytes} and {max_age}")
        self.max_bytes, self.max_age, self.absent = max_bytes, max_age, absent
        self._reset()

    def _reset(self) -> None:
        self._mutex = thread_lock()
        self._entries: OrderedDict[_Part, _Entry] = OrderedDict()
        self._parts: dict[str, tuple[object, set[_Part]]] = {}  # per key the version that they are of, and what is held
        self._flights: dict[Hashable, tuple[_Flight, int]] = {}
        self._turns: dict[Hashable, Future[dict[_Part, Value | None]]] = {}
        self._changes = self._nbytes = self._hits = self._misses = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    @property
    def stats(self) -> CacheStats:
        """How it has done so far."""
        with self._mutex:
            return CacheStats(self._hits, self._misses, self._nbytes)

    def clear(self) -> None:
        """Forget everything."""
        with self._mutex:
            self._changes += 1
            self._entries.clear()
            self._parts.clear()
            self._flights.clear()
            self._turns.clear()
            self._nbytes = 0

    # -------------------------------------------------------------- what is known

    def _drop(self, part: _Part) -> None:
        entry = self._entries.pop(part, None)
        if entry is None:
            return
        self._nbytes -= entry.nbytes
        _, parts = self._parts[part[0]]
        parts.discard(part)
        if not parts:
            del self._parts[part[0]]

    def _drop_all(self, key: str) -> None:
        for part in tuple(self._parts[key][1]) if key in self._parts else ():
            self._drop(part)

    def _forget(self, keys: Iterable[str]) -> None:
        """Forget values that have changed, and let nobody wait for what was asked before."""
        with self._mutex:
            self._changes += 1
            self._flights.clear()
            self._turns.clear()
            for key in keys:
                self._drop_all(key)

    def _known(self, request: Request, versions: bool) -> _Entry | None:
        """What is known of a request: by itself, or as a part of a whole value."""
        own: _Part = request[:4]
        for part in dict.fromkeys((own, (request.key, 0, None, False))):
            entry = self._entries.get(part)
            if entry is None or (versions and not entry.versioned):
                continue
            if self.max_age is not None and clock.monotonic() - entry.when > self.max_age:
                self._drop(part)
                continue
            self._entries.move_to_end(part)
            if part == own or entry.value is None:
                return entry
            return entry._replace(value=entry.value._replace(data=clip(entry.value.data, request)))
        return None

    def _learn(self, request: Request, entry: _Entry) -> None:
        """Remember something; parts of an older version go."""
        if entry.nbytes > self.max_bytes or (entry.value is None and not self.absent):
            return
        part: _Part = request[:4]
        key, version = request.key, None if entry.value is None else entry.value.version
        if key in self._parts and self._parts[key][0] != version:
            self._drop_all(key)
        self._drop(part)
        self._entries[part] = entry
        self._parts.setdefault(key, (version, set()))[1].add(part)
        self._nbytes += entry.nbytes
        while self._nbytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        if distrusted(self):
            return await self._ask([request._replace(into=None) for request in requests], versions)
        found: dict[_Part, Value | None] = {}
        with self._mutex:
            wanted: dict[_Part, Request] = {}
            for request in requests:
                entry = self._known(request, versions)
                if entry is not None:
                    found[request[:4]] = entry.value
                else:  # the memory that a caller lends is not ours to keep
                    wanted[request[:4]] = request._replace(into=None)
            self._hits += len(requests) - len(wanted)
        if wanted and self.blocking:
            found.update(await self._ask_in_turn(wanted, versions))
        elif wanted:
            found.update(await self._ask_once(wanted, versions))
        return [found[request[:4]] for request in requests]

    async def _ask(self, requests: Sequence[Request], versions: bool) -> builtins.list[Value | None]:
        """Ask the store behind, and remember what it says if nothing was changed meanwhile."""
        begin = self._changes
        values = await self.inner.fetch(requests, versions=versions)
        kept = [None if v is None else v if type(v.data) is bytes else v._replace(data=bytes(v.data)) for v in values]
        with self._mutex:
            self._misses += len(requests)
            for request, value in zip(requests, kept, strict=True) if begin == self._changes else ():
                self._learn(request, _Entry(value, clock.monotonic(), versions))
        return kept

    async def _ask_in_turn(self, wanted: dict[_Part, Request], versions: bool) -> dict[_Part, Value | None]:
        """Ask for what no other thread is asking for, and wait for what others get."""
        turn: Future[dict[_Part, Value | None]] = Future()
        flag, process = cancel_flag(), os.getpid()  # a child has none of its parent's other threads
        with self._mutex:
            names = {part: (process, versions, part) for part in wanted}
            taken = {part: self._turns[name] for part, name in names.items() if name in self._turns}
            self._hits += len(taken)
            self._turns.update((name, turn) for part, name in names.items() if part not in taken)
        own = {part: request for part, request in wanted.items() if part not in taken}
        try:
            found = dict(zip(own, await self._ask(tuple(own.values()), versions), strict=True)) if own else {}
            turn.set_result(found)
        except BaseException as error:
            turn.set_exception(error)
            raise
        finally:
            with self._mutex:
                for name in names.values():
                    if self._turns.get(name) is turn:
                        del self._turns[name]
        for part, other in taken.items():
            while not wait([other], POLL_SECONDS).done:
                if flag.cancelled:
                    raise asyncio.CancelledError
            if other.exception() is None:
                found[part] = other.result()[part]
            else:  # it may have failed for something that is not wanted here
                (found[part],) = await self._ask([wanted[part]], versions)
        return found

    async def _ask_once(self, wanted: dict[_Part, Request], versions: bool) -> dict[_Part, Value | None]:
        """Ask for what is not on its way already, and wait for all of it.

        A request belongs to all who wait for it: it is cancelled when the last of them is.
        """
        loop = asyncio.get_running_loop()
        with self._mutex:
            names = {part: (loop, versions, part) for part in wanted}
            fresh = [part for part, name in names.items() if name not in self._flights]
            self._hits += len(wanted) - len(fresh)
            if fresh:
                flight = _Flight(loop.create_task(self._ask([wanted[part] for part in fresh], versions)))
                self._flights.update((names[part], (flight, number)) for number, part in enumerate(fresh))
            seats = {part: self._flights[name] for part, name in names.items()}
        flights = {flight for flight, _ in seats.values()}
        for flight in flights:
            flight.waiting += 1
        try:
            await asyncio.wait([flight.task for flight in flights])
            # What others asked for may have failed for something that is not wanted here.
            failed = [part for part in names if part not in fresh and _has_failed(seats[part][0].task)]
            again = await self._ask([wanted[part] for part in failed], versions) if failed else ()
            found = dict(zip(failed, again, strict=True))
            return found | {
                part: flight.task.result()[number] for part, (flight, number) in seats.items() if part not in found
            }
        finally:
            for flight in flights:
                flight.waiting -= 1
                if flight.task.done():
                    _ = flight.task.cancelled() or flight.task.exception()  # seen, also where another one is raised
                elif not flight.waiting:
                    flight.task.cancel()
            with self._mutex:
                for part, name in names.items():
                    held = self._flights.get(name)
                    if held is not None and held is seats[part] and (held[0].task.done() or not held[0].waiting):
                        del self._flights[name]

    # -------------------------------------------------------------- changing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        try:
            return await self.inner.put(key, data, if_version=if_version)
        finally:
            self._forget([key])

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        try:
            await self.inner.put_values(keys, values)
        finally:
            self._forget(keys)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        try:
            await self.inner.erase(key, if_version=if_version)
        finally:
            self._forget([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        try:
            await self.inner.erase_values(keys)
        finally:
            self._forget(keys)

    async def erase_prefix(self, prefix: str) -> None:
        try:
            await self.inner.erase_prefix(prefix)
        finally:
            with self._mutex:
                below = [key for key in self._parts if key.startswith(prefix)]
            self._forget(below)
