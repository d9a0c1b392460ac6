"""What was made once is shared: by those who wait for it now, and by those who ask while it is fresh and there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.single_flight import SingleFlight

__all__ = ["Cache"]

S = TypeVar("S")
T = TypeVar("T")


class Cache(Generic[T]):
    """Values by name, bounded in size and in age. For one event loop.

    Args:
        max_size: What all values together may take.
        max_age: Seconds for which a value is fresh.
        size_of: What a value takes; 1 if not given, so that ``max_size`` counts values.

    Attributes:
        size: What all values take.
        hits: Questions that were answered from here.
        misses: Questions for which something had to be made, or was being made.
    """

    def __init__(self, max_size: int, max_age: float, size_of: Callable[[T], int] = lambda value: 1) -> None:
        self.max_size, self.max_age, self._size_of = max_size, max_age, size_of
        self._values: OrderedDict[Hashable, tuple[T, float, int]] = OrderedDict()
        self._flights = SingleFlight()
        self.size = self.hits = self.misses = 0

    def find(self, name: Hashable) -> T | None:
        """The value of a name, if it is here and fresh."""
        entry = self._fresh(name)
        return None if entry is None else entry[0]

    def _fresh(self, name: Hashable) -> tuple[T, float, int] | None:
        entry = self._values.get(name)
        if entry is None or entry[1] < clock.monotonic():
            return None
        self._values.move_to_end(name)
        return entry

    def keep(self, name: Hashable, value: T) -> None:
        """Remember a value, and forget those that were not asked for longest."""
        size = self._size_of(value)
        self._forget(name)
        if size > self.max_size:
            return
        self._values[name] = value, clock.monotonic() + self.max_age, size
        self.size += size
        while self.size > self.max_size:
            self._forget(next(iter(self._values)))

    def _forget(self, name: Hashable) -> None:
        entry = self._values.pop(name, None)
        if entry is not None:
            self.size -= entry[2]

    async def get(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The value of a name: the one that is here, or one that is made once for all who wait for it."""
        entry = self._fresh(name)
        if entry is not None:
            self.hits += 1
            return entry[0]
        self.misses += 1

        async def fresh() -> T:
            value = await make()
            self.keep(name, value)
            return value

        return await self.share(name, fresh)

    async def share(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, S]]) -> S:
        """What a call gives that is made once for all who wait for it, and not remembered."""
        return await self._flights.share(name, make)
