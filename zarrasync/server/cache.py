"""A cache of computed values, limited in size and age. Concurrent requests for one value share its computation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import SingleFlight

T = TypeVar("T")


class Cache(Generic[T]):
    """Values by key, limited in size and age. For one event loop.

    Args:
        max_size: The total size of values.
        max_age: Seconds for which a value is fresh.
        size_of: Returns the size of a value; by default 1, so that ``max_size`` counts values.

    Attributes:
        size: The total size of the present values.
    """

    def __init__(self, max_size: int, max_age: float, size_of: Callable[[T], int] = lambda value: 1) -> None:
        self.max_size, self.max_age, self._size_of = max_size, max_age, size_of
        self._values: OrderedDict[Hashable, tuple[T, float, int]] = OrderedDict()
        self._flights = SingleFlight()
        self.size = 0

    def find(self, key: Hashable) -> T | None:
        """Return the value of a key, if it is present and fresh."""
        entry = self._fresh(key)
        return None if entry is None else entry[0]

    def _fresh(self, key: Hashable) -> tuple[T, float, int] | None:
        entry = self._values.get(key)
        if entry is None or entry[1] < clock.monotonic():
            return None
        self._values.move_to_end(key)
        return entry

    def put(self, key: Hashable, value: T) -> None:
        """Store a value, and evict the least recently used ones."""
        size = self._size_of(value)
        self._remove(key)
        if size > self.max_size:
            return
        self._values[key] = value, clock.monotonic() + self.max_age, size
        self.size += size
        while self.size > self.max_size:
            self._remove(next(iter(self._values)))

    def _remove(self, key: Hashable) -> None:
        entry = self._values.pop(key, None)
        if entry is not None:
            self.size -= entry[2]

    async def get(self, key: Hashable, compute: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the value of a key, or compute it, once for all concurrent callers."""
        entry = self._fresh(key)
        if entry is not None:
            return entry[0]

        async def compute_and_store() -> T:
            value = await compute()
            self.put(key, value)
            return value

        return await self._flights.share(key, compute_and_store)
