"""Cancellation of work on threads: flags that jobs check between chunks."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Iterator
from contextvars import ContextVar

from zarrasync._concurrency.fork import reentrant_lock

__all__ = ["CALL_FLAG", "CancelFlag", "as_call", "cancel_flag", "ignore_cancellation", "raise_if_cancelled"]


_bytes_lock = reentrant_lock()
"""Guards the creation of the bytes for compiled code: threads that share a flag must get the same byte."""


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
        """The address of a byte that is 1 once the call is cancelled to which the flag belongs, for compiled code."""
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


def raise_if_cancelled() -> None:
    """Check whether the current call was cancelled; for work on threads that consists of many steps.

    Raises:
        asyncio.CancelledError: If it was.
    """
    flag = CALL_FLAG.get()
    if flag is not None and flag.cancelled:
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
