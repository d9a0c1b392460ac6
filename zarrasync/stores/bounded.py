"""A limit on the requests that are in flight at a store."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from zarrasync._concurrency.gates import FifoGate, Permits
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import bounding, current_bound, request_bound
from zarrasync.stores.base import Store
from zarrasync.stores.values import Request, Value
from zarrasync.stores.wrappers import HookedStore, WrapperStore

T = TypeVar("T")
R = TypeVar("R")
_TOGETHER = 16
"""Maximum number of keys that one call passes to the inner store, because the first ones wait for the last one."""
_UNBOUNDED = FifoGate(1 << 62)
"""Inside an operation that has a permit, so that it does not wait for a second one."""


def bounded(store: Store, limit: int) -> Store:
    """Return a store with at most ``limit`` requests in flight, together with all such stores over the same data.

    A store whose limiter is stricter, and one whose requests are calls on threads, are returned unchanged.

    Args:
        store: The store.
        limit: The limit; 0 for the store's own.
    """
    if isinstance(store, BoundedStore):
        store = store.inner
    inner = store
    while isinstance(inner, WrapperStore) and not isinstance(inner, BoundedStore):
        inner = inner.inner
    strictest = inner.concurrency if isinstance(inner, BoundedStore) or store.limits_requests else 0
    if strictest and (not limit or limit >= strictest):
        return store
    if store.blocking and (not limit or store.direct_files is not None):
        return store
    return BoundedStore(store, limit or store.concurrency)


class BoundedStore(HookedStore):
    """A store with a limit on requests in flight.

    If the store limits requests, they pass both limiters. Otherwise an operation counts as one request, and a
    batch as one for each key.

    Args:
        inner: The store.
        limit: Maximum number of requests in flight.
    """

    _is_shown = False

    def __init__(self, inner: Store, limit: int) -> None:
        super().__init__(inner)
        self.concurrency = limit

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        return await self._run(call)

    async def _run(self, operation: Callable[[], Awaitable[T]], requests: int = 1) -> T:
        gate, outer = request_bound(self.identity, self.concurrency), current_bound()
        if self.limits_requests:
            with bounding(gate if outer is None or outer.capacity > gate.capacity else outer):
                return await operation()
        if outer is _UNBOUNDED:
            return await operation()
        async with Permits(gate, requests):
            with bounding(_UNBOUNDED):
                return await operation()

    async def _run_parts(
        self, operation: Callable[[Sequence[T]], Awaitable[R]], items: Sequence[T]
    ) -> builtins.list[R]:
        """Run an operation on parts of a batch."""
        if self.blocking or self.limits_requests:  # one after the other, or counted by the store
            return [await self._run(partial(operation, items))]
        most = max(1, min(_TOGETHER, self.concurrency // 4))
        parts = [items[start : start + most] for start in range(0, len(items), most)]
        return await gather([partial(self._run, partial(operation, part), len(part)) for part in parts])

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        parts = await self._run_parts(partial(self.inner.fetch, versions=versions), requests)
        return [value for part in parts for value in part]

    async def erase_values(self, keys: Iterable[str]) -> None:
        await self._run_parts(self.inner.erase_values, list(keys))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        if self.sizes_listings or self.limits_requests:
            return await super().list_sizes(prefix)
        return await Store.list_sizes(self, prefix)
