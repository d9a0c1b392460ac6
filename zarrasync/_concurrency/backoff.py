"""Pauses, and backoff for conditional writes that conflict. ``stores.remote`` retries failed requests."""

from __future__ import annotations

import asyncio
from typing import Self

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.semaphores import POLL_SECONDS
from zarrasync.errors import WriteConflictError


async def pause(seconds: float) -> None:
    """Wait, on an event loop or on a thread. A waiting thread checks for cancellation."""
    if not driven():
        await clock.current().sleep(seconds)
        return
    flag, end = cancel_flag(), clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0:
        if flag.cancelled:
            raise asyncio.CancelledError
        clock.current().sleep_blocking(min(left, POLL_SECONDS))


class ConflictBackoff:
    """Pauses between attempts at a conditional write: random, growing, and limited in total.

    Args:
        seconds: How long to retry; 0 for no limit.
        target: The written value or node, for error messages.
    """

    def __init__(self, seconds: float, target: str) -> None:
        self._seconds, self._target = seconds, target
        self._end = clock.monotonic() + (seconds or float("inf"))
        self._longest_pause, self._attempts = 0.001, 0

    async def after(self, conflict: WriteConflictError) -> None:
        """Wait until the next attempt.

        Raises:
            WriteConflictError: If the time is up.
        """
        RetryCounts.count("conflicts")
        self._attempts += 1
        if clock.monotonic() > self._end:
            raise WriteConflictError(
                f"{self._target}: changed meanwhile by another writer at each of {self._attempts} attempts within "
                f"{self._seconds:g} s; write from fewer processes at a time, or raise config.total_timeout",
                key=conflict.key,
                attempts=self._attempts,
            ) from conflict
        # Random, so that writers that collided do not collide again.
        await pause(clock.current().uniform(0.0, self._longest_pause))
        self._longest_pause = min(2 * self._longest_pause, 0.5)


class RetryCounts:
    """Counts retries and conflicts in this process inside a ``with`` block.

    Attributes:
        conflicts: Conditional writes that failed because another writer had changed the value.
        retries: Requests that were repeated after a failure.
    """

    def __init__(self) -> None:
        self.conflicts = self.retries = 0

    def __enter__(self) -> Self:
        _open_counts.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _open_counts.remove(self)

    @staticmethod
    def count(kind: str) -> None:
        """Add one to ``conflicts`` or ``retries`` in every open block."""
        with _counts_lock:
            for counts in tuple(_open_counts):
                setattr(counts, kind, getattr(counts, kind) + 1)


_open_counts: list[RetryCounts] = []
_counts_lock = thread_lock()
