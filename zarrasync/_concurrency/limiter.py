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
from zarrasync._concurrency.gates import FifoGate, NestedGate, SharedGate

__all__ = ["AdaptiveLimiter", "bounding", "current_bound", "request_bound", "request_limiter"]

_SHRINK_INTERVAL = 1.0
"""Seconds between two reductions: one overload is reported by many requests at once."""
_SLOWDOWN = 2.0
"""How many times slower than the quickest answer an answer may be for the limit to grow further."""


class AdaptiveLimiter(FifoGate):
    """A gate of requests in flight whose capacity adapts (additive increase, multiplicative decrease).

    Args:
        capacity: The initial capacity.
        maximum: The capacity that the gate may grow to while requests succeed; the initial one if 0.
    """

    def __init__(self, capacity: int, maximum: int = 0) -> None:
        self._configured_maximum = max(capacity, maximum)
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
        self._maximum = self._configured_maximum
        self._last_shrink, self._successes, self._quickest = 0.0, 0, math.inf

    def on_overload(self) -> None:
        """Halve the capacity, at most once a second: the server asked for fewer requests."""
        with self._lock:
            now = clock.monotonic()
            self._maximum = self._initial
            if now - self._last_shrink < _SHRINK_INTERVAL or self.capacity < 2:
                return
            self._last_shrink = now
            self._resize(self.capacity // 2)

    def on_failure(self) -> None:
        """Return to the initial capacity, and never exceed it again."""
        with self._lock:
            self._maximum = self._initial
            self._resize(min(self.capacity, self._initial))

    def on_success(self, seconds: float) -> None:
        """Count a successful request and its duration.

        Below the initial capacity the gate grows by one after as many successes as its capacity. Above it, it grows by
        one with each success while answers stay quick, and only if the queue is long: for a short queue, opening more
        connections takes longer than waiting for existing ones.
        """
        if self.capacity >= self._maximum:
            return
        with self._lock:
            self._quickest = min(self._quickest, seconds)
            if self.capacity < self._initial:
                self._successes += 1
                ready = self._successes >= self.capacity
            else:
                long_queue = 4 * self._waiting >= self.capacity
                ready = long_queue and seconds <= _SLOWDOWN * self._quickest and self.capacity < self._maximum
            if ready:
                self._successes = 0
                self._resize(self.capacity + 1)


_limiters: weakref.WeakValueDictionary[Hashable, AdaptiveLimiter] = weakref.WeakValueDictionary()
_bounds: weakref.WeakValueDictionary[Hashable, NestedGate] = weakref.WeakValueDictionary()
_shared: weakref.WeakValueDictionary[Hashable, SharedGate] = weakref.WeakValueDictionary()
_bound: ContextVar[FifoGate | None] = ContextVar("zarrasync_request_bound", default=None)
_recent: deque[AdaptiveLimiter] = deque(maxlen=64)
"""Limiters kept alive while no store uses them, because they have measured their servers."""
_lock = thread_lock()


def request_limiter(identity: Hashable, capacity: int, maximum: int = 0) -> AdaptiveLimiter:
    """Return the limiter of requests to one server, shared by every store that uses the server.

    Args:
        identity: What identifies the server.
        capacity: Requests in flight at first.
        maximum: Requests in flight while all goes well; ``capacity`` if 0.
    """
    with _lock:
        limiter = _limiters.get((identity, capacity, maximum))
        if limiter is None:
            limiter = _limiters[identity, capacity, maximum] = AdaptiveLimiter(capacity, maximum)
            _recent.append(limiter)
        return limiter


def request_bound(identity: Hashable, limit: int) -> NestedGate:
    """Return the gate of requests to one store from all calls with one limit, inside the gate of all calls.

    Args:
        identity: What identifies the store.
        limit: Maximum number of requests in flight.
    """
    with _lock:
        gate = _bounds.get((identity, limit))
        if gate is None:
            outer = _shared.get(identity)
            if outer is None:
                outer = _shared[identity] = SharedGate()
            gate = _bounds[identity, limit] = NestedGate(limit, outer)
        return gate


def current_bound() -> FifoGate | None:
    """Return the gate that each request of the current call passes, in addition to the limiter of its server."""
    return _bound.get()


@contextmanager
def bounding(gate: FifoGate | None) -> Iterator[None]:
    """Let requests inside the block pass a gate, or none because the caller has permits for them."""
    token = _bound.set(gate)
    try:
        yield
    finally:
        _bound.reset(token)
