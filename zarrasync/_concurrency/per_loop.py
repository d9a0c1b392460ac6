"""Clients that belong to an event loop, such as connection pools, and are closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A client per event loop. It is made on first use, and closed with the loop or when this object is collected.

    Each client is guarded by an async generator. ``asyncio.run`` calls ``shutdown_asyncgens`` before it closes the
    loop, which ends the generator, and that closes the client.

    Args:
        make: Makes a client for the running loop.
        close: Closes a client. It must not refer to the owner of this object.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._entries: _Entries = {}
        self._finalizer = weakref.finalize(self, _close_all, self._entries)
        self._finalizer.atexit = False  # loops close their clients themselves

    async def get(self) -> T:
        """Return the running loop's client."""
        if self._pid != os.getpid():  # a forked child must not touch its parent's connections
            _inherited.append(self._entries)
            self._finalizer.detach()
            self._reset()
        loop = asyncio.get_running_loop()
        entry = self._entries.get(loop)
        if entry is None:
            for other in list(self._entries):  # threads may change the dict meanwhile
                if other.is_closed():
                    self._entries.pop(other, None)  # closed without shutdown_asyncgens
            guard = _guard(self._entries, loop, self._close)
            # In a separate task, so that cancelling one waiter does not fail the others.
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
        """Close the running loop's client, if it has one."""
        entry = self._entries.get(asyncio.get_running_loop())
        if entry is not None:
            await asyncio.shield(entry[0])
            await entry[1].aclose()


_Entries = dict[asyncio.AbstractEventLoop, tuple["asyncio.Future[Any]", AsyncGenerator[None, None]]]
_inherited: list[_Entries] = []
"""Clients of a forked child's parent, kept alive so that no finalizer closes sockets that the parent uses."""


async def _guard(
    entries: _Entries, loop: asyncio.AbstractEventLoop, close: Callable[[Any], Awaitable[None]]
) -> AsyncGenerator[None, None]:
    """Close the client of a loop when this generator ends."""
    try:
        yield
    finally:
        entry = entries.pop(loop, None)
        if entry is not None and entry[0].done() and not entry[0].cancelled() and not entry[0].exception():
            await close(entry[0].result())


def _close_all(entries: _Entries) -> None:
    """Close clients, each on its own loop, after their owner was collected."""
    for loop, (_, guard) in list(entries.items()):
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the client
            loop.call_soon_threadsafe(_end_guard, loop, guard)


def _end_guard(loop: asyncio.AbstractEventLoop, guard: AsyncGenerator[None, None]) -> None:
    task = loop.create_task(guard.aclose())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()
"""Tasks that end guards. Event loops keep only weak references to tasks."""
