"""Random calls of several readers and writers at a time, with cancellations, against a plain array of NumPy.

Each value names the write that stored it. A read that began after a write has ended must not return an older value.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zarrasync as za
from zarrasync.stores import LocalStore, MemoryStore, Store
from zarrasync.testing import LatencyStore
from zarrasync.transfer import chunk_cache

COLUMNS = 5


class Uneven(LatencyStore):
    """A remote store whose requests take random numbers of turns of the loop, before and after they take effect."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), 0.0)
        self._random = Random(0)

    async def _operate(self, operation: str, keys: Sequence[str], call: Callable[[], Any], nbytes: int = 0) -> Any:
        await self._wait()
        result = await call()
        await self._wait()
        return result

    async def _wait(self) -> None:
        for _ in range(self._random.choice([0, 1, 3, 10, 40])):
            await asyncio.sleep(0)


STORES: dict[str, Callable[[Path], Store]] = {
    "remote": lambda folder: Uneven(),
    "memory": lambda folder: MemoryStore(),
    "local": LocalStore,
}
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "read", "write", "append", "grow"]),
        st.integers(0, 1),  # the array object
        st.sampled_from([0, 2, -1, -3]),  # the first row, also from the end
        st.sampled_from([1, 3, 4]),  # the number of rows
        st.integers(0, 3),  # how many turns of the loop to wait before the call
        st.sampled_from([None, None, None, 0, 2, 5]),  # turns after which it is cancelled
    ),
    min_size=5,
    max_size=30,
)


class Model:
    """The array, and the values that rows have at least and at most."""

    def __init__(self, arrays: list[Any], rows: int) -> None:
        self.arrays, self.number = arrays, 0
        self.least = [0] * rows
        """By row, the newest write that had ended."""
        self.alone = asyncio.Lock()

    async def read(self, array: Any, start: int, count: int) -> None:
        start %= len(self.least)
        least = self.least[start : start + count]
        values = await array[start : start + count]
        assert len(values) >= len(least)
        for row, (found, wanted) in enumerate(zip(values, least, strict=False)):
            assert (found >= wanted).all(), f"row {start + row} is {found}, after {wanted} was written"
            assert (found <= self.number).all()

    async def write(self, array: Any, start: int, count: int) -> None:
        async with self.alone:  # the order of overlapping writes is not determined
            start %= len(self.least)
            rows = range(start, min(start + count, len(self.least)))
            self.number = number = self.number + 1
            await array[rows.start : rows.stop].write(number)
            for row in rows:
                self.least[row] = number

    async def append(self, array: Any, start: int, count: int) -> None:
        async with self.alone:
            self.number = number = self.number + 1
            await array.append(np.full((count, COLUMNS), number))
            await self._grown([number] * count)

    async def grow(self, array: Any, start: int, count: int) -> None:
        async with self.alone:
            await array.resize((len(self.least) + count, COLUMNS))
            await self._grown([0] * count)

    async def _grown(self, least: list[int]) -> None:
        for array in self.arrays:
            await array.refresh()
        self.least += least


async def run(store: Store, calls: Any, shards: Any, max_age: float) -> None:
    chunk_cache._shared.cache_clear()
    settings_ = {"chunk_cache_bytes": 4_000, "chunk_cache_max_age": max_age}
    await za.create_array(store, shape=(12, COLUMNS), dtype="i8", chunks=(2, 3), shards=shards)
    arrays = [await za.open_array(store, mode="r+", config=settings_) for _ in range(2)]
    model, tasks, cancelled = Model(arrays, 12), [], set()
    for what, number, start, count, turns, cancelled_after in calls:
        for _ in range(turns):
            await asyncio.sleep(0)
        task = asyncio.ensure_future(getattr(model, what)(arrays[number], start, count))
        tasks.append(task)
        if cancelled_after is not None and what == "read":
            for _ in range(cancelled_after):
                await asyncio.sleep(0)
            task.cancel()
            cancelled.add(task)
    for task in tasks:
        with suppress(asyncio.CancelledError) if task in cancelled else nullcontext():
            await task
    for array in arrays:
        await array.refresh()
        np.testing.assert_array_equal((await array[...])[:, 0], await (await za.open_array(store))[:, 0])
        assert array.chunk_cache.stats.nbytes <= 4_000


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, shards=st.sampled_from([None, (4, 6)]), max_age=st.sampled_from([0.0, 1000.0]))
def test_readers_see_what_was_written(kind: str, calls: Any, shards: Any, max_age: float):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(STORES[kind](Path(folder)), calls, shards, max_age))
