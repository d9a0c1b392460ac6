"""Clients that belong to an event loop, such as pools of connections, and how they are closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

__all__ = ["PerLoop"]

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A client per event loop, made on first use and closed with the loop, or when nobody needs it any more.

    Each client is guarded by an async generator that the loop knows of: ``shutdown_asyncgens``, which
    ``asyncio.run`` calls before it closes the loop, ends the generator, and that closes the client. If
    this object is collected before, the generators are ended on their loops.

    Args:
        make: Makes a client for the running loop.
        close: Closes one; must not refer to this object's owner.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._entries: _Entries = {}
        self._finalizer = weakref.finalize(self, _abandon, self._entries)
        self._finalizer.atexit = False  # loops close their clients themselves

    async def get(self) -> T:
        """The running loop's client."""
        if self._pid != os.getpid():  # a forked child must not touch its parent's connections
            _orphans.append(self._entries)
            self._finalizer.detach()
            self._forget()
        loop = asyncio.get_running_loop()
        entry = self._entries.get(loop)
        if entry is None:
            for other in list(self._entries):  # other threads have loops, too
                if other.is_closed():
                    self._entries.pop(other, None)  # it was closed without its clients
            guard = _guard(self._entries, loop, self._close)
            # A task of its own: cancelling one of those who wait for the client must not fail the others.
            entry = self._entries[loop] = loop.create_task(self._set_up(loop, guard)), guard
        client: T = await asyncio.shield(entry[0])
        return client

    async def _set_up(self, loop: asyncio.AbstractEventLoop, guard: AsyncGenerator[None, None]) -> T:
        try:
            client = await self._make()
            await anext(guard)
        except BaseException:
            self._entries.pop(loop, None)
            raise
        return client

    async def close(self) -> None:
        """Close the running loop's client, if there is one."""
        entry = self._entries.get(asyncio.get_running_loop())
        if entry is not None:
            await asyncio.shield(entry[0])
            await entry[1].aclose()


_Entries = dict[asyncio.AbstractEventLoop, tuple["asyncio.Future[Any]", AsyncGenerator[None, None]]]
_orphans: list[_Entries] = []
"""Clients of a forked child's parent: kept, so that nothing closes sockets which the parent uses."""


async def _guard(
    entries: _Entries, loop: asyncio.AbstractEventLoop, close: Callable[[Any], Awaitable[None]]
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        entry = entries.pop(loop, None)
        if entry is not None and entry[0].done() and not entry[0].cancelled() and not entry[0].exception():
            await close(entry[0].result())


def _abandon(entries: _Entries) -> None:
    for loop, (_, guard) in list(entries.items()):
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its clients with it
            loop.call_soon_threadsafe(_end, loop, guard)


def _end(loop: asyncio.AbstractEventLoop, guard: AsyncGenerator[None, None]) -> None:
    task = loop.create_task(guard.aclose())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()
