"""Synchronous calls of coroutines: driven on the calling thread, or run by an event loop in a daemon thread.

Coroutines that use only blocking stores are driven. Others are submitted to the event loop, also from inside a running
loop (Jupyter), from several threads at once, and after a fork. Ctrl-C cancels the coroutine, and is raised when it has
ended.

``run`` is the one place that removes frames of the library from tracebacks: from errors that the library has raised on
purpose, and from ``KeyboardInterrupt``. Unexpected errors keep all frames, and so do all errors if ``config.debug_errors``
is set, and errors of the asynchronous API. Causes are kept.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import Future
from contextvars import copy_context
from opcode import opmap
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from zarrasync import config
from zarrasync._concurrency import clock, interrupts
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.fork import reset_in_child, thread_lock
from zarrasync._concurrency.interrupts import Interruptible
from zarrasync._concurrency.semaphores import BLOCKED_LOOP
from zarrasync.errors import ZarrError

T = TypeVar("T")
_STOP_SECONDS = 5.0
"""Seconds to wait for the loop to end when the interpreter exits."""
_CLOSE_SECONDS = 5.0
"""Seconds to wait for the end of a step of an iterator that was interrupted."""


class _Call(Generic[T]):
    """A call of a coroutine on the loop of another thread, in the caller's context."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop, self._coroutine = loop, coroutine
        self._ended = threading.Event()
        self._task: asyncio.Task[T] | None = None
        self._context = copy_context()
        with contextlib.suppress(RuntimeError):
            self._context.run(BLOCKED_LOOP.set, asyncio.get_running_loop())

    def run(self) -> T:
        """Start the coroutine, unless it was cancelled before, and return its result."""
        self._loop.call_soon_threadsafe(self._start)
        self._ended.wait()
        if self._task is None:
            raise asyncio.CancelledError
        return self._task.result()

    def _start(self) -> None:
        if not self._ended.is_set():
            self._task = self._loop.create_task(self._coroutine, context=self._context)
            self._task.add_done_callback(lambda _: self._ended.set())

    def cancel(self) -> None:
        """Cancel the coroutine, which may not have started yet."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self._ended.set()


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.thread = clock.current().start_thread("zarrasync-loop", self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _close(self) -> None:
        """End tasks and then async generators, as ``asyncio.run`` does before it closes a loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

    def stop(self) -> None:
        """Close the loop's clients, then the loop."""
        if self.pid != os.getpid() or not self.thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self.loop)
        with contextlib.suppress(Exception):
            closing.result(_STOP_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_STOP_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()


_current: _Loop | None = None
_lock = thread_lock()


def _get() -> _Loop:
    """Return the loop of this process, started on first use."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Loop()
            # Exit handlers run in reverse order: this one precedes filesystems' own, which close clients on other loops.
            atexit.unregister(_stop)
            atexit.register(_stop)
        return _current


def run(coroutine: Coroutine[Any, Any, T], *, blocking: bool) -> T:
    """Return the result of a coroutine to synchronous code. The traceback of an error ends at the calling function.

    Args:
        coroutine: The coroutine.
        blocking: Whether it uses only blocking stores, so that it can be driven.

    Raises:
        RuntimeError: When called on the library's own loop thread.
    """
    try:
        if threading.get_ident() != interrupts.main_thread:
            return _drive(coroutine) if blocking else _submit(coroutine, None)
        flag = Interruptible()
        try:
            return _drive(coroutine) if blocking else _submit(coroutine, flag)
        finally:
            flag.end()
    except RAISED as error:
        shorten(error)
        raise


def _drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on this thread."""
    loop = asyncio._get_running_loop()  # noqa: SLF001  # a tenth of the time of the public function
    if loop is None:
        return drive(coroutine)
    token = BLOCKED_LOOP.set(loop)
    try:
        return drive(coroutine)
    finally:
        BLOCKED_LOOP.reset(token)


def _submit(coroutine: Coroutine[Any, Any, T], flag: Interruptible | None) -> T:
    """Run a coroutine on the loop of this process, until it ends or the flag is set."""
    bridge = _get()
    if threading.current_thread() is bridge.thread:
        coroutine.close()
        raise RuntimeError("a synchronous call was made inside zarrasync's own event loop; use the async API there")
    call = _Call(bridge.loop, coroutine)
    if flag is not None:
        flag.on_cancel = call.cancel
        if flag.cancelled:  # before this
            call.cancel()
    try:
        return call.run()
    finally:
        if flag is not None:
            flag.on_cancel = None


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the loop of this process. The future cancels it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _get().loop)


def iterate(source: AsyncIterator[T], *, blocking: bool) -> Generator[T, None, None]:
    """Step through an async iterator from synchronous code, and close it at the end.

    Args:
        source: The iterator.
        blocking: Whether it uses only blocking stores, so that it can be driven.
    """

    async def step() -> tuple[bool, T | None]:
        try:
            return True, await anext(source)
        except StopAsyncIteration:
            return False, None

    async def close() -> None:
        if getattr(source, "ag_running", False):  # an interrupted step has not ended yet
            async with asyncio.timeout(_CLOSE_SECONDS):
                while source.ag_running:  # type: ignore[attr-defined]  # it is an async generator
                    await clock.current().sleep(0)
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()

    try:
        while True:
            more, item = run(step(), blocking=blocking)
            if not more:
                return
            yield item  # type: ignore[misc]  # a T, as there are more items
    finally:
        run(close(), blocking=blocking)


def _stop() -> None:
    if _current is not None:
        _current.stop()


@reset_in_child
def _reset() -> None:
    """Forget the loop, whose thread does not exist in a forked child."""
    global _current
    _current = None


atexit.register(_stop)


# ------------------------------------------------------------------ tracebacks


RAISED = (ZarrError, TypeError, ValueError, KeyError, IndexError, ImportError, KeyboardInterrupt)
"""The errors that this library raises, including built-in errors for wrong arguments and missing packages."""

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARY = str(Path(os.__file__).parent) + os.sep
_THIRD_PARTY = ("site-packages", "dist-packages")


def shorten(error: BaseException) -> None:
    """Remove frames of this package and of Python's library from an error that is about to be raised to users.

    Call this function in an ``except`` block that ends with a bare ``raise``. Frames of other code are kept, such as the
    frames of a callback. Causes keep all frames. An error other than a ``ZarrError`` or ``KeyboardInterrupt`` keeps all
    frames unless a ``raise`` statement of this package has raised it, because it may be a bug of this package or come from a
    callback.

    Args:
        error: The error.
    """
    if config.get().debug_errors:
        return
    if isinstance(error, ZarrError | KeyboardInterrupt) or _is_raised_here(error.__traceback__):
        error.__traceback__ = _without_internal(error.__traceback__)


def _is_internal(trace: TracebackType) -> bool:
    path = trace.tb_frame.f_code.co_filename
    if path.startswith(_PACKAGE):
        return True
    return path.startswith((_LIBRARY, "<frozen")) and not any(name in path for name in _THIRD_PARTY)


def _without_internal(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without internal frames."""
    if trace is None:
        return None
    following = _without_internal(trace.tb_next)
    return (
        following if _is_internal(trace) else TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    )


def _is_raised_here(trace: TracebackType | None) -> bool:
    """Return whether a ``raise`` statement of this package raised an error, rather than a call, operator or lookup."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
