"""Stores that are deliberately slow or faulty, for testing programs."""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from zarrasync._concurrency import clock
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.locks import KeyLock
from zarrasync._concurrency.retry import pause
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.stores.base import Store
from zarrasync.stores.values import Listing, Request, Value
from zarrasync.stores.wrappers import WrapperStore

__all__ = ["FaultyStore", "LatencyStore"]


class _HookedStore(WrapperStore):
    """A store that calls a hook before each operation."""

    async def _before(self, operation: str, key: str) -> None:
        """Run before an operation. Subclasses implement it."""
        raise NotImplementedError

    async def _before_each(self, operation: str, keys: Sequence[str]) -> None:
        if driven():
            for key in keys:
                await self._before(operation, key)
        else:
            await asyncio.gather(*(self._before(operation, key) for key in keys))

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        # Each counts as one operation, as in a store behind a network.
        await self._before_each("fetch", [request.key for request in requests])
        return await self.inner.fetch(requests, versions=versions)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        await self._before("put", key)
        return await self.inner.put(key, data, if_version=if_version)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self._before("erase", key)
        await self.inner.erase(key, if_version=if_version)

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self._before_each("erase", keys)
        await self.inner.erase_values(keys)

    async def erase_prefix(self, prefix: str) -> None:
        await self._before("erase", prefix)
        await self.inner.erase_prefix(prefix)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        await self._before("list", prefix)
        return await self.inner.list_prefix(prefix)

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        await self._before("list", prefix)
        return await self.inner.list_few(prefix, limit)

    async def stat(self, key: str) -> Value | None:
        await self._before("fetch", key)
        return await self.inner.stat(key)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        await self._before("list", prefix)
        return await self.inner.list_sizes(prefix)

    async def list_dir(self, prefix: str) -> Listing:
        await self._before("list", prefix)
        return await self.inner.list_dir(prefix)


class LatencyStore(_HookedStore):
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
        self.blocking, self.exclusive, self.near, self.concurrency = False, False, False, concurrency
        self.quick_listing = True

    async def _before(self, operation: str, key: str) -> None:
        extra = clock.exponential(self.jitter) if self.jitter else 0.0
        await pause(self.seconds + extra)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        # Not the inner store's lock, which that store may take when it writes.
        return KeyLock(("latency", self.location(key)))


class FaultyStore(_HookedStore):
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
        self._lock = thread_lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=thread_lock())

    async def _before(self, operation: str, key: str) -> None:
        if self.fails is not None:
            failed = bool(self.fails(operation, key))
        else:
            with self._lock:
                failed = self._random.random() < self.rate
        if failed:
            raise StoreError(f"simulated failure: {operation} of {key!r} in {self!r}", key=key)
