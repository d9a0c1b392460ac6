"""Locks on stored values, for all tasks, threads and event loops of the process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from threading import get_ident
from typing import Any, TypeAlias

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import reentrant_lock, reset_in_child
from zarrasync._concurrency.interrupts import of_call
from zarrasync._concurrency.semaphores import BLOCKED_LOOP, Waiter
from zarrasync.errors import StoreError

_Place: TypeAlias = asyncio.AbstractEventLoop | int
"""The event loop of a task, or the number of a thread."""


class _Holder:
    """The holder of a lock (the event loop of its task, or the number of its thread), and the waiters.

    Locks that are taken together share one, until another call waits for one of them.
    """

    __slots__ = ("is_shared", "loop", "waiters")

    def __init__(self, loop: _Place, *, is_shared: bool = False) -> None:
        self.loop, self.is_shared = loop, is_shared
        self.waiters: deque[tuple[Waiter, _Place]] = deque()

    def add(self, waiter: Waiter, loop: _Place) -> None:
        """Add a waiter at the end, but before a call that its call interrupts, which cannot go on until it returns."""
        places = [place for _, place in self.waiters] if isinstance(loop, int) else []
        self.waiters.insert(places.index(loop) if loop in places else len(self.waiters), (waiter, loop))


_holders: dict[Hashable, _Holder] = {}
_holders_lock = reentrant_lock()  # a signal handler may interrupt its holder
_held_locks: ContextVar[frozenset[object]] = of_call(
    ContextVar("zarrasync_held_locks", default=frozenset()), frozenset()
)
"""The locks of the current call. A lock of an abandoned coroutine may be released in the context of another call."""


def holds_key_lock() -> bool:
    """Return whether the current call holds a lock on a value, so that it may change the value it reads."""
    return bool(_held_locks.get())


class KeyLock:
    """A lock on one stored value. An async context manager.

    Two stores over the same data share it, because its identity is physical (directory and name; endpoint, bucket and key).

    Raises:
        RuntimeError: On entering, if a task of an event loop that this call blocks holds the lock.
        StoreError: On entering, if a call holds it that this one interrupts, because a signal handler makes this one.
    """

    __slots__ = ("_identity",)

    def __init__(self, identity: Hashable) -> None:
        self._identity = identity

    async def __aenter__(self) -> None:
        loop: _Place = get_ident() if driven() else asyncio.get_running_loop()
        with _holders_lock:
            holder = _holders.get(self._identity)
            if holder is None:
                _holders[self._identity] = _Holder(loop)
                _held_locks.set(_held_locks.get() | {self})
                return
            if holder.is_shared:
                holder = _holders[self._identity] = _Holder(holder.loop)
            if holder.loop == loop and isinstance(loop, int):
                raise StoreError(
                    "deadlock: this call writes a value that the call writes which it interrupts; let the signal handler set a "
                    "flag, and write when the interrupted call has returned"
                )
            blocked = BLOCKED_LOOP.get()
            if blocked is not None and blocked in (holder.loop, *(waiting for _, waiting in holder.waiters)):
                raise RuntimeError(
                    "deadlock: a synchronous write waits for a lock that a task of the blocked event loop holds; "
                    "await that task first, or use the async API here"
                )
            waiter = Waiter(1)
            holder.add(waiter, loop)
        try:
            await waiter.wait()
        except BaseException:
            with _holders_lock:
                if waiter.granted:
                    _pass_on(self._identity)
                elif (waiter, loop) in holder.waiters:
                    holder.waiters.remove((waiter, loop))
            raise
        _held_locks.set(_held_locks.get() | {self})

    async def __aexit__(self, *error: object) -> None:
        _held_locks.set(_held_locks.get() - {self})
        with _holders_lock:
            _pass_on(self._identity)


class KeyLocks:
    """Locks on several values of one store. An async context manager.

    If all are free they are taken in one step, otherwise one after the other in ascending order: with another order for
    each call, calls could wait for each other forever. Equal identities are one lock.

    Args:
        find: Returns the identities, on entering. The identities of one store can be sorted.
    """

    __slots__ = ("_find", "_identities", "_stack")

    def __init__(self, find: Callable[[], Iterable[Any]]) -> None:
        self._find, self._identities = find, dict[Any, _Holder]()
        self._stack: AsyncExitStack | None = None

    @property
    def waited(self) -> bool:
        """Whether the locks were not taken at once."""
        return self._stack is not None

    async def __aenter__(self) -> None:
        loop: _Place = get_ident() if driven() else asyncio.get_running_loop()
        self._identities = dict.fromkeys(self._find(), _Holder(loop, is_shared=True))
        with _holders_lock:
            if _holders.keys().isdisjoint(self._identities):
                _holders.update(self._identities)
                _held_locks.set(_held_locks.get() | {self})
                return
        async with AsyncExitStack() as stack:
            for identity in sorted(self._identities):
                await stack.enter_async_context(KeyLock(identity))
            self._stack = stack.pop_all()

    async def __aexit__(self, *error: object) -> None:
        if self._stack is not None:
            await self._stack.aclose()
            return
        _held_locks.set(_held_locks.get() - {self})
        with _holders_lock:
            for identity in self._identities:
                _pass_on(identity)


def _pass_on(identity: Hashable) -> None:
    """Transfer a lock to the next waiter, or free it. The caller holds ``_holders_lock``."""
    holder = _holders.get(identity)
    if holder is None:  # the parent of this forked child held it
        return
    while holder.waiters:
        waiter, holder.loop = holder.waiters.popleft()
        if waiter.wake():
            return
    del _holders[identity]


@reset_in_child
def _reset() -> None:
    _holders.clear()
