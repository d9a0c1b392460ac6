"""Many clients of one event loop: other tasks run between their reads."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import UserList
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync.stores import MemoryStore
from zarrasync.testing import LatencyStore

CLIENTS, READS = 1000, 3
MOST = CLIENTS // 4
"""Calls that may end in one iteration. Few begin, but some wait for threads, and end together."""


class Heart:
    """A task that runs in each iteration of the loop, such as a health check. Notes how many reads ended since the last one."""

    def __init__(self) -> None:
        self.ended, self.counts = 0, list[int]()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            before = self.ended
            await asyncio.sleep(0)
            self.counts.append(self.ended - before)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def dataset(**options: Any) -> Any:
    group = await za.create_group({}, config=options)
    await group.create_array("x", data=np.arange(100.0), dimension_names=["x"])
    await group.create_array("v", data=np.arange(100), chunks=25, dimension_names=["x"])
    return group


@pytest.mark.parametrize("max_age", [0.0, 60.0])
async def test_reads_of_cached_values_leave_room_for_other_tasks(max_age):
    """Also if all of them wait for the same check of a version."""
    group = await dataset(chunk_cache_bytes=1 << 20, chunk_cache_max_age=max_age)
    array = await group.get_array("v")
    await array[...]
    heart = Heart()

    async def client(number: int) -> None:
        for _ in range(READS):
            assert await array[number % 100] == number % 100
            heart.ended += 1

    await asyncio.gather(*map(client, range(CLIENTS)))
    await heart.stop()
    assert heart.ended == CLIENTS * READS
    assert max(heart.counts) <= MOST


async def test_selections_by_coordinates_and_writes_too():
    group = await dataset()
    await group.sel(x=0)  # which reads the coordinate
    heart = Heart()

    class Values(UserList[int]):
        """Values of one write."""

        def __len__(self) -> int:
            if self in begun:
                begun.remove(self)
                heart.ended += 1
            return 1

    array = await za.create_array(LatencyStore(MemoryStore(), 0.0), shape=(CLIENTS,), chunks=1, dtype="i4")
    begun = [Values([number + 1]) for number in range(CLIENTS)]

    async def client(number: int, values: Any) -> None:
        await group.sel(x=number % 100)
        heart.ended += 1
        await array[number : number + 1].write(values)

    await asyncio.gather(*(client(number, values) for number, values in enumerate(list(begun))))
    await heart.stop()
    assert heart.ended == 2 * CLIENTS
    assert max(heart.counts) <= MOST
    assert (await array[...] == np.arange(1, CLIENTS + 1)).all()


async def test_cancelled_clients_leave_their_place_to_others():
    array = await (await dataset(chunk_cache_bytes=1 << 20)).get_array("v")
    tasks = [asyncio.ensure_future(array.getitem(number % 100)) for number in range(CLIENTS)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1::2] == [number % 100 for number in range(1, CLIENTS, 2)]
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) > CLIENTS // 4


async def test_an_idle_loop_rests(monkeypatch: pytest.MonkeyPatch):
    array = await (await dataset()).get_array("v")
    await asyncio.gather(*(array.getitem(number % 100) for number in range(CLIENTS)))
    loop, count = asyncio.get_running_loop(), 0
    original = loop.call_soon

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **options)

    for _ in range(3):
        await asyncio.sleep(0)
    monkeypatch.setattr(loop, "call_soon", counted)
    await asyncio.sleep(0.05)
    assert count <= 1  # that this task goes on


def test_closed_loops_are_not_kept():
    async def read() -> weakref.ref[asyncio.AbstractEventLoop]:
        await (await (await dataset()).get_array("v"))[...]
        return weakref.ref(asyncio.get_running_loop())

    first, second = (asyncio.run(read()) for _ in range(2))
    gc.collect()
    assert first() is None
    assert second() is None
