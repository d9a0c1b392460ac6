"""State of the process that a forked child must not inherit.

A child has none of its parent's threads, so locks that these threads held would stay locked and pools would be empty.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[[], None])

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_resets: list[Callable[[], None]] = []


def thread_lock() -> threading.Lock:
    """Return a lock for threads that is free in a forked child, whichever thread of the parent held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def reentrant_lock() -> threading.RLock:
    """Return such a lock that its holder can take again, for code that signal handlers or imports may enter again."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def reset_in_child(reset: F) -> F:
    """Register a function that a forked child calls before anything else. Usable as a decorator."""
    _resets.append(reset)
    return reset


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001  # as the standard library does with its own locks
    for reset in _resets:
        reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
