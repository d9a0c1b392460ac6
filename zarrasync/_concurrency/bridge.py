"""From synchronous code into the async core, and back with the result.

Blocking stores are driven on the calling thread. For the others one daemon thread runs an event
loop; a call is submitted to it and waited for, also from inside a running loop (Jupyter), from many
threads at once and after a fork. Ctrl-C cancels the work before it is raised.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.fork import reset_in_child, thread_lock
from zarrasync._concurrency.gates import BLOCKED_LOOP

__all__ = ["iterate", "run"]

T = TypeVar("T")


class _Call(Generic[T]):
    """A coroutine on the loop of another thread, in this caller's context."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop, self._coroutine = loop, coroutine
        self.result: Future[T] = Future()
        self._ended = threading.Event()
        self._task: asyncio.Task[T] | None = None
        self._context = copy_context()
        with contextlib.suppress(RuntimeError):
            self._context.run(BLOCKED_LOOP.set, asyncio.get_running_loop())

    def start(self) -> None:
        """Begin; a second time is one too many and does nothing."""
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._task is None and not self._ended.is_set():
            self._task = self._loop.create_task(self._coroutine, context=self._context)
            self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        with contextlib.suppress(InvalidStateError):  # the caller has just cancelled
            if error is not None:
                self.result.set_exception(error)
            else:
                self.result.set_result(task.result())
        self._ended.set()

    def cancel(self) -> None:
        """Stop the work, and wait until it has ended. Ctrl-C may have come before it was begun."""
        self.result.cancel()
        self._loop.call_soon_threadsafe(self._cancel)
        self._ended.wait()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self._ended.set()


class _Loop:
    """The event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.thread = clock.current().start_thread("zarrasync-loop", self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _close(self) -> None:
        """What ``asyncio.run`` does before it closes a loop: end the tasks, then the generators."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

    def stop(self) -> None:
        """End the loop after its clients are closed."""
        if self.pid != os.getpid() or not self.thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self.loop)
        with contextlib.suppress(Exception):
            closing.result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        if not self.thread.is_alive():
            self.loop.close()


_current: _Loop | None = None
_lock = thread_lock()


def _get() -> _Loop:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Loop()
            # Before the finalizers of filesystems, which were registered by now, and close clients on other loops.
            atexit.unregister(_stop)
            atexit.register(_stop)
        return _current


def run(coroutine: Coroutine[Any, Any, T], *, blocking: bool) -> T:
    """Run a coroutine to its end from synchronous code.

    Args:
        coroutine: What to run.
        blocking: Whether it touches blocking stores only, and so can be driven here.

    Raises:
        RuntimeError: When called on the library's own loop thread.
    """
    if blocking:
        here = asyncio._get_running_loop()  # noqa: SLF001  # a tenth of the time of the public function
        if here is None:
            return drive(coroutine)
        token = BLOCKED_LOOP.set(here)
        try:
            return drive(coroutine)
        finally:
            BLOCKED_LOOP.reset(token)
    bridge = _get()
    if threading.current_thread() is bridge.thread:
        coroutine.close()
        raise RuntimeError("a synchronous call was made inside zarrasync's own event loop; use the async API there")
    return _wait(bridge, coroutine)


def _wait(bridge: _Loop, coroutine: Coroutine[Any, Any, T]) -> T:
    call = _Call(bridge.loop, coroutine)
    try:
        call.start()
        return call.result.result()
    except BaseException:
        if not call.result.done():  # Ctrl-C here, not an error there: stop the work, then pass it on
            call.cancel()
        raise


_CLOSING = 5.0
"""Seconds in which a step that was given up has to end."""


def iterate(source: AsyncIterator[T], *, blocking: bool) -> Generator[T, None, None]:
    """Step through an async iterator from synchronous code; closes it when the loop over it ends."""

    async def step() -> tuple[bool, T | None]:
        try:
            return True, await anext(source)
        except StopAsyncIteration:
            return False, None

    async def close() -> None:
        if getattr(source, "ag_running", False):  # a step that was given up has yet to hear of it
            async with asyncio.timeout(_CLOSING):
                while source.ag_running:  # type: ignore[attr-defined]
                    await clock.sleep(0)
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()

    try:
        while True:
            more, item = run(step(), blocking=blocking)
            if not more:
                return
            yield item  # type: ignore[misc]  # it is a T where there is more
    finally:
        run(close(), blocking=blocking)


def _stop() -> None:
    if _current is not None:
        _current.stop()


@reset_in_child
def _reset() -> None:
    """Forget the loop: its thread does not exist in a child."""
    global _current
    _current = None


atexit.register(_stop)
