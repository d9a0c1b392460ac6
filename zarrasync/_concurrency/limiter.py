"""Limits on requests in flight that adapt to how much a server can bear."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.semaphores import FifoSemaphore, NestedSemaphore, SharedSemaphore

_FEW = 8
"""Requests in flight until the first answer, and at servers that close each connection after its answer.

They cannot have many connections: Python's ``http.server`` has a queue of five, and then a connection takes seconds.
"""
_SLOW_CONNECTION, _SLOWER = 0.9, 3.0
"""A connection is slow if it takes so many seconds, and so many times longer than the quickest one to the server.

Systems repeat an attempt to connect after a second if the server's queue was full.
"""
_SHRINK_INTERVAL = 1.0
"""Seconds between two reductions: one overload is reported by many requests at once."""
_SLOWDOWN = 2.0
"""How many times slower than the quickest answer an answer may be for the limit to grow further."""


class AdaptiveLimiter(FifoSemaphore):
    """A semaphore of requests in flight whose capacity adapts (additive increase, multiplicative decrease).

    Args:
        capacity: The usual capacity.
        maximum: The capacity that the semaphore may grow to while requests succeed; the usual one if 0.
        cautious: Whether the capacity is small until the first answer, because the server may bear few connections.
    """

    def __init__(self, capacity: int, maximum: int = 0, *, cautious: bool = False) -> None:
        self._configured_maximum, self._cautious = max(capacity, maximum), cautious
        super().__init__(capacity)

    @property
    def most(self) -> int:
        """The number of requests that the current call can have in flight."""
        bound = current_bound()
        return self.capacity if bound is None else min(self.capacity, bound.capacity)

    async def acquire(self, amount: int = 1) -> None:
        """Take an amount, also from the bound of the current call."""
        bound = current_bound()
        if bound is not None:
            await bound.acquire(amount)
        try:
            await super().acquire(amount)
        except BaseException:
            if bound is not None:
                bound.release(amount)
            raise

    def release(self, amount: int = 1) -> None:
        """Return an amount that the current call has taken."""
        super().release(amount)
        bound = current_bound()
        if bound is not None:
            bound.release(amount)

    def _reset(self) -> None:
        super()._reset()
        self._usual, self._maximum = self._initial, self._configured_maximum
        self._last_shrink, self._successes = 0.0, 0
        self._quickest = self._quickest_connection = math.inf
        self._waits = self._cautious and self._initial > _FEW  # for the first answer
        if self._waits:
            self._resize(_FEW)

    def on_connection(self, seconds: float, *, kept: bool) -> None:
        """Learn from a new connection how many the server bears.

        Args:
            seconds: How long it took to connect; 0 if unknown.
            kept: Whether the server keeps the connection open after its first answer.
        """
        with self._lock:
            is_slow = seconds > max(_SLOW_CONNECTION, _SLOWER * self._quickest_connection)
            self._quickest_connection = min(self._quickest_connection, seconds or math.inf)
            usual = self._initial if kept else min(self._initial, _FEW)
            if usual != self._usual:
                self._usual = usual
                self._maximum = self._configured_maximum if kept else usual
                self._open()
            if is_slow:
                self.on_overload()

    def on_overload(self) -> None:
        """Halve the capacity, at most once a second: the server asked for fewer requests, or refused connections."""
        with self._lock:
            now = clock.monotonic()
            self._maximum = self._usual
            self._open_at_first()
            if now - self._last_shrink < _SHRINK_INTERVAL or self.capacity < 2:
                return
            self._last_shrink = now
            self._resize(self.capacity // 2)

    def on_failure(self) -> None:
        """Return to the usual capacity, and never exceed it again."""
        with self._lock:
            self._maximum = self._usual
            self._open_at_first()
            self._resize(min(self.capacity, self._usual))

    def on_success(self, seconds: float) -> None:
        """Count a successful request and its duration.

        Below the usual capacity the semaphore grows by one after as many successes as its capacity. Above it, it grows by
        one with each success while answers stay quick, and only if the queue is long: for a short queue, opening more
        connections takes longer than waiting for existing ones.
        """
        if self.capacity >= self._maximum and not self._waits:
            return
        with self._lock:
            self._open_at_first()
            self._quickest = min(self._quickest, seconds)
            if self.capacity < self._usual:
                self._successes += 1
                ready = self._successes >= self.capacity
            else:
                long_queue = 4 * self._waiting >= self.capacity
                ready = long_queue and seconds <= _SLOWDOWN * self._quickest and self.capacity < self._maximum
            if ready:
                self._successes = 0
                self._resize(self.capacity + 1)

    def _open_at_first(self) -> None:
        """Change to the usual capacity after the first answer."""
        if self._waits:
            self._open()

    def _open(self) -> None:
        self._waits = False
        self._resize(self._usual)


_limiters: weakref.WeakValueDictionary[Hashable, AdaptiveLimiter] = weakref.WeakValueDictionary()
_bounds: weakref.WeakValueDictionary[Hashable, NestedSemaphore] = weakref.WeakValueDictionary()
_shared: weakref.WeakValueDictionary[Hashable, SharedSemaphore] = weakref.WeakValueDictionary()
_bound: ContextVar[FifoSemaphore | None] = ContextVar("zarrasync_request_bound", default=None)
_recent: deque[AdaptiveLimiter] = deque(maxlen=64)
"""Limiters kept alive while no store uses them, because they have measured their servers."""
_lock = thread_lock()


def request_limiter(identity: Hashable, capacity: int, maximum: int = 0, *, cautious: bool = False) -> AdaptiveLimiter:
    """Return the limiter of requests to one server, shared by every store that uses the server.

    Args:
        identity: What identifies the server.
        capacity: Requests in flight usually.
        maximum: Requests in flight while all goes well; ``capacity`` if 0.
        cautious: Whether only a few requests are in flight until the first answer.
    """
    with _lock:
        limiter = _limiters.get((identity, capacity, maximum))
        if limiter is None:
            limiter = _limiters[identity, capacity, maximum] = AdaptiveLimiter(capacity, maximum, cautious=cautious)
            _recent.append(limiter)
        return limiter


def request_bound(identity: Hashable, limit: int) -> NestedSemaphore:
    """Return the semaphore of requests to one store from all calls with one limit, inside the semaphore of all calls.

    Args:
        identity: What identifies the store.
        limit: Maximum number of requests in flight.
    """
    with _lock:
        semaphore = _bounds.get((identity, limit))
        if semaphore is None:
            outer = _shared.get(identity)
            if outer is None:
                outer = _shared[identity] = SharedSemaphore()
            semaphore = _bounds[identity, limit] = NestedSemaphore(limit, outer)
        return semaphore


def current_bound() -> FifoSemaphore | None:
    """Return the semaphore that each request of the current call passes, in addition to the limiter of its server."""
    return _bound.get()


@contextmanager
def bounding(semaphore: FifoSemaphore | None) -> Iterator[None]:
    """Let requests inside the block pass a semaphore, or none because the caller has permits for them."""
    token = _bound.set(semaphore)
    try:
        yield
    finally:
        _bound.reset(token)
