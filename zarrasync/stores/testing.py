"""Stores that are slow or fail on purpose, to see how programs take it."""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.locks import KeyLock
from zarrasync._concurrency.retry import pause
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.stores.base import Listing, Request, Store, Value
from zarrasync.stores.wrappers import WrapperStore

__all__ = ["FaultyStore", "LatencyStore"]


class _Hindered(WrapperStore):
    """A store each operation of which something comes before."""

    async def _before(self, operation: str, key: str) -> None:
        """What comes before; each kind of hindrance has its own."""
        raise NotImplementedError

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        # Each is a request of its own, as with a store behind a network.
        await self._all("fetch", [request.key for request in requests])
        return await self.inner.fetch(requests, versions=versions)

    async def _all(self, operation: str, keys: Sequence[str]) -> None:
        if driven():
            for key in keys:
                await self._before(operation, key)
        else:
            await asyncio.gather(*(self._before(operation, key) for key in keys))

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        await self._before("put", key)
        return await self.inner.put(key, data, if_version=if_version)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self._before("erase", key)
        await self.inner.erase(key, if_version=if_version)

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self._all("erase", keys)
        await self.inner.erase_values(keys)

    async def erase_prefix(self, prefix: str) -> None:
        await self._before("erase", prefix)
        await self.inner.erase_prefix(prefix)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        await self._before("list", prefix)
        return await self.inner.list_prefix(prefix)

    async def stat(self, key: str) -> Value | None:
        await self._before("fetch", key)
        return await self.inner.stat(key)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        await self._before("list", prefix)
        return await self.inner.list_sizes(prefix)

    async def list_dir(self, prefix: str) -> Listing:
        await self._before("list", prefix)
        return await self.inner.list_dir(prefix)


class LatencyStore(_Hindered):
    """A store whose answers take some time, as those of a store far away do.

    It is asynchronous, whatever is inside: so a program meets on its own machine what it will meet in the cloud.

    Args:
        inner: The store.
        seconds: How long each request takes at least.
        jitter: The mean of what comes on top of that, by chance, in seconds.
        concurrency: Requests in flight.

    Raises:
        ValueError: If a duration is negative.
    """

    def __init__(self, inner: Store, seconds: float, jitter: float = 0.0, *, concurrency: int = 256) -> None:
        super().__init__(inner)
        if seconds < 0 or jitter < 0:
            raise ValueError(f"seconds and jitter are at least 0, found {seconds} and {jitter}")
        self.seconds, self.jitter = seconds, jitter
        self.blocking, self.exclusive, self.concurrency = False, False, concurrency

    async def _before(self, operation: str, key: str) -> None:
        extra = random.expovariate(1 / self.jitter) if self.jitter else 0.0
        await pause(self.seconds + extra)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        # Not the lock of the store inside, which that may take when it writes.
        return KeyLock(("latency", self.location(key)))


class FaultyStore(_Hindered):
    """A store some of whose operations fail.

    Args:
        inner: The store.
        rate: The share of operations that fail.
        seed: For the same failures in each run.
        fails: Instead of ``rate``: called with the operation (``"fetch"``, ``"put"``, ``"erase"``, ``"list"``) and the
            key; says whether it fails, or raises what it is to fail with.

    Raises:
        ValueError: If the rate does not lie between 0 and 1.
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
            raise ValueError(f"a rate lies between 0 and 1, found {rate}")
        self.rate, self.fails = rate, fails
        self._random = random.Random(seed)  # noqa: S311  # faults keep no secret
        self._mutex = thread_lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mutex"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _mutex=thread_lock())

    async def _before(self, operation: str, key: str) -> None:
        if self.fails is not None:
            failed = bool(self.fails(operation, key))
        else:
            with self._mutex:
                failed = self._random.random() < self.rate
        if failed:
            raise StoreError(f"{operation} of {key!r} failed on purpose in {self!r}", key=key)
