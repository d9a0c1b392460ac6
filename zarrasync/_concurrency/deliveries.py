"""Delivery of results from worker threads to the tasks of an event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import Any

from zarrasync._concurrency.fork import reset_in_child

__all__ = ["Deliveries", "deliveries_of"]


class Deliveries:
    """Results of worker threads for the tasks of a loop. One wake-up of the loop delivers all results that are ready.

    Waking it for each result would make the loop compete with the workers for the interpreter.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._scheduled = False

    def deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """End a future of the loop, from a thread."""
        self._ready.append((future, result, error))
        if not self._scheduled:  # otherwise the loop has yet to look, and clears the flag before it does
            self._wake()

    def _wake(self) -> None:
        loop = self._loop()
        if loop is not None:
            self._scheduled = True
            try:
                loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed, so no task waits
                self._scheduled = False
                self._ready.clear()  # the futures would keep the loop in memory

    def _drain(self) -> None:
        self._scheduled = False
        try:
            while self._ready:
                future, result, error = self._ready[0]
                if not future.done():
                    if error is not None:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
                self._ready.popleft()
        finally:
            if self._ready:  # interrupted by Ctrl-C
                self._wake()


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Deliveries] = weakref.WeakKeyDictionary()


def deliveries_of(loop: asyncio.AbstractEventLoop) -> Deliveries:
    """Return the deliveries to a loop."""
    return _by_loop.get(loop) or _by_loop.setdefault(loop, Deliveries(loop))


@reset_in_child
def _reset() -> None:
    _by_loop.clear()
