"""Turns of an event loop: the calls that begin in one iteration of a loop are limited, so that other tasks run between them.

A loop runs all callbacks that are ready before it looks at its sockets and timers again. If hundreds of clients of a service
read cached values, each for a fraction of a millisecond, everything else would wait for all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from weakref import ref

from zarrasync._concurrency.drive import driven

_SECONDS = 0.004
"""The length of an iteration from which on fewer calls begin in the next one."""
_FIRST, _MOST = 8, 64
"""The calls that begin in one iteration at first, and at most."""


class _Turns:
    """The calls that begin in one iteration of an event loop. The others wait, first come, first served."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limit, self._begun, self._start, self._is_scheduled = _FIRST, 0, 0.0, False

    async def take(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled:
            self._schedule(loop)
        if self._begun < self._limit and not self._waiting:
            self._begun += 1
            return
        future = loop.create_future()
        self._waiting.append(future)
        await future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled, self._start = True, loop.time()
        loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin an iteration: adapt the limit to the length of the last one, and wake as many calls."""
        is_long = loop.time() - self._start > _SECONDS
        self._limit = max(self._limit // 2, 1) if is_long else min(self._limit + 1, _MOST)
        self._begun, self._is_scheduled = 0, False
        while self._waiting and self._begun < self._limit:
            future = self._waiting.popleft()
            if not future.done():  # its task was cancelled
                future.set_result(None)
                self._begun += 1
        if self._begun:
            self._schedule(loop)


class _Thread(threading.local):
    """The turns of the event loop that runs in a thread."""

    loop: ref[asyncio.AbstractEventLoop] | None = None
    turns: _Turns


_thread = _Thread()


async def take_turn() -> None:
    """Wait until a call may occupy the running event loop. A driven call need not wait."""
    if driven():
        return
    loop = asyncio.get_running_loop()
    if _thread.loop is None or _thread.loop() is not loop:
        _thread.loop, _thread.turns = ref(loop), _Turns()
    await _thread.turns.take(loop)
