"""Stores that are deliberately slow or faulty, for testing programs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import pause
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.locks import KeyLock
from zarrasync.errors import StoreError
from zarrasync.stores.base import Store
from zarrasync.stores.wrappers import HookedStore

__all__ = ["FaultyStore", "LatencyStore"]

T = TypeVar("T")


class _DisturbedStore(HookedStore):
    """A store that disturbs each operation before it begins."""

    async def _before(self, operation: str, key: str) -> None:
        """Run before an operation, which it may delay or let fail. Subclasses implement it."""
        raise NotImplementedError

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        # Each key counts as one operation, as in a store behind a network.
        if driven():
            for key in keys:
                await self._before(operation, key)
        else:
            await asyncio.gather(*(self._before(operation, key) for key in keys))
        return await call()


class LatencyStore(_DisturbedStore):
    """A store with the latency of a remote one, for trying out programs locally.

    It is asynchronous and lists like an object store, whatever the inner store is.

    Args:
        inner: The store.
        seconds: Minimum duration of each request.
        jitter: Mean of an additional, exponentially distributed duration in seconds.
        concurrency: Maximum number of requests in flight.

    Raises:
        ValueError: If a duration is negative.
    """

    def __init__(self, inner: Store, seconds: float, jitter: float = 0.0, *, concurrency: int = 256) -> None:
        super().__init__(inner)
        if seconds < 0 or jitter < 0:
            raise ValueError(f"seconds and jitter must be at least 0, found {seconds} and {jitter}")
        self.seconds, self.jitter = seconds, jitter
        self.blocking, self.exclusive_locks, self.is_local, self.concurrency = False, False, False, concurrency
        self.quick_listing = True

    async def _before(self, operation: str, key: str) -> None:
        extra = clock.current().exponential(self.jitter) if self.jitter else 0.0
        await pause(self.seconds + extra)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        # Not the inner store's lock, which that store may take when it writes.
        return KeyLock(("latency", self.location(key)))


class FaultyStore(_DisturbedStore):
    """A store whose operations fail at random, or as a function decides.

    Args:
        inner: The store.
        rate: Share of operations that fail, from 0 to 1.
        seed: Makes the failures reproducible.
        fails: Used instead of ``rate``. It is called with the operation (``"fetch"``, ``"put"``, ``"erase"``, ``"list"``)
            and the key, and returns whether the operation fails, or raises the error.

    Raises:
        ValueError: If the rate is not between 0 and 1.
    """

    _unshared = ("_lock",)

    def __init__(
        self,
        inner: Store,
        rate: float = 0.0,
        *,
        seed: int | None = None,
        fails: Callable[[str, str], object] | None = None,
    ) -> None:
        super().__init__(inner)
        if not 0 <= rate <= 1:
            raise ValueError(f"rate must be between 0 and 1, found {rate}")
        self.rate, self.fails = rate, fails
        self._random = random.Random(seed)  # noqa: S311  # reproducible, not secret
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._lock = thread_lock()

    async def _before(self, operation: str, key: str) -> None:
        if self.fails is not None:
            failed = bool(self.fails(operation, key))
        else:
            with self._lock:
                failed = self._random.random() < self.rate
        if failed:
            raise StoreError(f"simulated failure: {operation} of {key!r} in {self!r}", key=key)
