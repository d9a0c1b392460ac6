"""Cancellation of work on threads: flags that jobs check between chunks."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import reentrant_lock

_bytes_lock = reentrant_lock()
"""Held while the byte for compiled code is created, because threads that share a flag must get the same byte."""


class CancelFlag:
    """A flag that jobs check between chunks. A flag is also cancelled when its parent is, not the other way round."""

    __slots__ = ("_byte", "_cancelled", "_parent")

    def __init__(self, parent: CancelFlag | None = None) -> None:
        self._parent, self._cancelled = parent, False
        self._byte: ctypes.c_uint8 | None = None

    @property
    def cancelled(self) -> bool:
        """Whether to stop."""
        return self._cancelled or (self._parent is not None and self._parent.cancelled)

    def cancel(self) -> None:
        """Ask the jobs that check this flag to stop."""
        self._cancelled = True
        if self._byte is not None:
            self._byte.value = 1

    @property
    def address(self) -> int:
        """The address of a byte for compiled code, which is 1 after the cancellation."""
        if self._parent is not None:
            return self._parent.address
        if self._byte is None:
            with _bytes_lock:
                if self._byte is None:
                    self._byte = ctypes.c_uint8()
            if (
                self._cancelled
            ):  # looked at after the assignment, and never reset, so that a cancellation meanwhile counts
                self._byte.value = 1
        return ctypes.addressof(self._byte)


CALL_FLAG: ContextVar[CancelFlag | None] = ContextVar("zarrasync_cancel", default=None)
"""The flag that is set to cancel the current call."""


def cancel_flag() -> CancelFlag:
    """Return a new flag for a piece of work; cancelling the current call cancels it."""
    return CancelFlag(CALL_FLAG.get())


def is_cancelled() -> bool:
    """Return whether the current call was cancelled; for work on threads that consists of many steps."""
    flag = CALL_FLAG.get()
    return flag is not None and flag.cancelled


def raise_if_cancelled() -> None:
    """Check whether the current call was cancelled.

    Raises:
        asyncio.CancelledError: If it was.
    """
    if is_cancelled():
        raise asyncio.CancelledError


def as_call(flag: CancelFlag) -> None:
    """Use a flag for the current call, in the current context."""
    CALL_FLAG.set(flag)


@contextlib.contextmanager
def ignore_cancellation() -> Iterator[None]:
    """Let clean-up run to its end although the call it belongs to was cancelled."""
    token = CALL_FLAG.set(None)
    try:
        yield
    finally:
        CALL_FLAG.reset(token)


T = TypeVar("T")
_log = logging.getLogger(__name__)
_GRACE_SECONDS = 5.0
"""Seconds for which a cancelled caller waits for a write that has begun."""


async def shielded(call: Callable[[], Awaitable[T]], on_success: Callable[[], None] | None = None) -> T:
    """Return the result of a call that cancellation does not interrupt, because the server may still carry it out.

    A cancelled caller waits for some seconds, or until it is cancelled again, so that the call ends before any later
    call begins.

    Args:
        call: The call.
        on_success: Called when it has succeeded, also for a caller that was cancelled.
    """
    if driven():
        return await _run(call, on_success)
    task = asyncio.ensure_future(_run(call, on_success))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.add_done_callback(retrieve)
            try:
                await asyncio.wait([task], timeout=_GRACE_SECONDS)
            finally:
                task.cancel()
        raise


async def run_cleanup(repair: Callable[[], Awaitable[object]]) -> None:
    """Repair the state after a failed or cancelled call. Failures of the repair are logged, as the first error counts.

    A caller that is cancelled again still waits, because it holds locks on the repaired values.
    """

    async def attempt() -> None:
        try:
            await repair()
        except (Exception, asyncio.CancelledError) as error:
            _log.warning("clean-up after a failed call failed: %s: %s", type(error).__name__, error)

    if driven():
        with ignore_cancellation():
            await attempt()
        return
    task = asyncio.ensure_future(attempt())
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


async def _run(call: Callable[[], Awaitable[T]], on_success: Callable[[], None] | None) -> T:
    result = await call()
    if on_success is not None:
        on_success()
    return result


def retrieve(task: asyncio.Future[Any]) -> None:
    """Mark an error as retrieved, because its caller no longer waits. Otherwise asyncio logs it."""
    if not task.cancelled():
        task.exception()
