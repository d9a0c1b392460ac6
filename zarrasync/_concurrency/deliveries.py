"""How the results of worker threads reach the tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from typing import Any

__all__ = ["Deliveries", "deliveries_of"]


class Deliveries:
    """Results of worker threads for the tasks of a loop, which is woken once for all that are ready.

    Waking it for each would make it a third who wants the interpreter while the others work.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._due = False

    def hand(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """From a thread: end a future of the loop."""
        self._ready.append((future, result, error))
        if not self._due:  # else who empties the queue is yet to come, and says so before it looks
            self._wake()

    def _wake(self) -> None:
        loop = self._loop()
        if loop is not None:
            self._due = True
            with contextlib.suppress(RuntimeError):  # it was closed: nobody waits any more
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._due = False
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
            if self._ready:  # Ctrl-C came between
                self._wake()


_known: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Deliveries] = weakref.WeakKeyDictionary()


def deliveries_of(loop: asyncio.AbstractEventLoop) -> Deliveries:
    """Those to a loop."""
    return _known.get(loop) or _known.setdefault(loop, Deliveries(loop))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_known.clear)  # who was to empty a queue is not there
