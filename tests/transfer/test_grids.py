"""Grids with chunks of several sizes, blocks of sparse arrays, masks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores
from zarrasync.testing import LatencyStore


async def test_an_axis_of_one_size_beside_listed_ones(api: Api):
    """Such an axis may have more chunks than memory could list."""
    store: dict[str, bytes] = {}
    await api(api.create_array(store, shape=(30, 2 * 10**6), dtype="u1", chunks=[[10, 20], 1]))
    opened = await api(api.open_array(store, mode="r+"))
    await api.write(opened, (12, slice(5, 9)), [1, 2, 3, 4])
    assert sorted(key for key in store if key.startswith("c/")) == [f"c/1/{n}" for n in range(5, 9)]
    np.testing.assert_array_equal(await api(opened.view[11:13, 4:10].read()), [[0] * 6, [0, 1, 2, 3, 4, 0]])
    whole = await api(api.create_array({}, shape=(30, 7), chunks=[[10, 20], -1]))
    assert whole.metadata.grid.shape == (2, 1)


async def test_chunks_of_many_sizes_are_fetched_together(api: Api):
    values = np.arange(1830, dtype="i4")
    inner = LatencyStore(stores.MemoryStore(), 0.0)
    array = await api(api.create_array(inner, data=values, chunks=[list(range(1, 61))]))
    asked: list[int] = []

    class Watching(LatencyStore):
        busy = 0

        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            self.busy += len(requests)
            asked.append(self.busy)
            try:
                return await super().fetch(requests, versions=versions)
            finally:
                self.busy -= len(requests)

    array = await api(api.open_array(Watching(inner, 0.01)))
    np.testing.assert_array_equal(await api(array.view.read()), values)
    assert max(asked) > 30


@pytest.mark.parametrize("edges", [[30] * 61, list(range(1, 61))])
async def test_as_many_requests_as_allowed_whatever_the_sizes(api: Api, edges: list[int]):
    class Watching(LatencyStore):
        busy = most = 0

        async def watched(self, count: int, call: Any) -> Any:
            self.busy += count
            self.most = max(self.most, self.busy)
            try:
                return await call
            finally:
                self.busy -= count

        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            return await self.watched(len(requests), super().fetch(requests, versions=versions))

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return await self.watched(1, super().put(key, data, if_version=if_version))

    store, values = Watching(stores.MemoryStore(), 0.005), np.arange(1830, dtype="i4")
    array = await api(api.create_array(store, shape=1830, dtype="i4", chunks=[edges], config={"concurrency": 4}))
    store.most = 0
    await api(array.view.write(values))
    assert 2 <= store.most <= 4
    store.most = 0
    np.testing.assert_array_equal(await api(array.view.read()), values)
    assert 2 <= store.most <= 4


async def test_blocks_of_endless_arrays_are_found_one_by_one(api: Api):
    array = await api(api.create_array({}, shape=(10**15,), dtype="u1", chunks=10**6))
    blocks = array.view.chunks()
    region, block = (await anext(blocks)) if api.name == "async" else next(blocks)
    assert (region, block.shape) == ((slice(0, 10**6),), (10**6,))
    if api.name == "async":
        await blocks.aclose()


MASKS: list[Any] = [
    True,
    False,
    np.array(True),
    np.bool_(False),
    (True, [0, 1]),
    (slice(None), True),
    (0, True),
    ([0, 2], True, slice(None)),
    (True, False),
    (None, True),
    (..., True),
    (slice(None), True, [0, 1]),
    (True, slice(None), [0, 1]),
    np.array([], bool),
    np.zeros((0, 4), bool),
    np.zeros((3, 0), bool),
]


@pytest.mark.parametrize("key", MASKS, ids=repr)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_booleans_that_take_no_axis(api: Api, key: Any):
    values = np.arange(12).reshape(3, 4)
    array = await api(api.create_array({}, data=values, chunks=(2, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = await api(array.view[key].read())
    assert found.shape == values[key].shape
    np.testing.assert_array_equal(found, values[key])
    values[key] = -5
    await api.write(array, key, -5)
    np.testing.assert_array_equal(await api(array.view.read()), values)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2,), (3, 5)])
async def test_masks_of_another_shape_are_refused(api: Api, shape: tuple[int, ...]):
    array = await api(api.create_array({}, data=np.arange(12).reshape(3, 4)))
    with pytest.raises(IndexError):
        np.arange(12).reshape(3, 4)[np.zeros(shape, bool)]
    with pytest.raises(IndexError, match="does not match"):
        array.view[np.zeros(shape, bool)]
