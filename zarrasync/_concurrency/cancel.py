"""Cancellation of work on threads: flags that jobs check between chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["CancelFlag", "as_call", "cancel_flag", "ignore_cancellation"]


class CancelFlag:
    """A flag that jobs check between chunks. A flag is also cancelled when its parent is, not the other way round."""

    __slots__ = ("_cancelled", "_parent")

    def __init__(self, parent: CancelFlag | None = None) -> None:
        self._parent, self._cancelled = parent, False

    @property
    def cancelled(self) -> bool:
        """Whether to stop."""
        return self._cancelled or (self._parent is not None and self._parent.cancelled)

    def cancel(self) -> None:
        """Ask the jobs that check this flag to stop."""
        self._cancelled = True


_call_flag: ContextVar[CancelFlag | None] = ContextVar("zarrasync_cancel", default=None)


def cancel_flag() -> CancelFlag:
    """Return a new flag for a piece of work; cancelling the current call cancels it."""
    return CancelFlag(_call_flag.get())


def as_call(flag: CancelFlag) -> None:
    """Use a flag for the current call, in the current context."""
    _call_flag.set(flag)


@contextlib.contextmanager
def ignore_cancellation() -> Iterator[None]:
    """Let clean-up run to its end although the call it belongs to was cancelled."""
    token = _call_flag.set(None)
    try:
        yield
    finally:
        _call_flag.reset(token)
