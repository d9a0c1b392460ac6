"""Requests that wait for each other when datasets are opened and loaded, whatever the number of variables and groups."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.errors import CodecError

xr: Any = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import load, write_dataset  # after the skip


class RoundTrips(stores.LatencyStore):
    """Counts rounds: requests that begin while others of a round are under way belong to it.

    Attributes:
        rounds: The number of rounds since the last reset.
    """

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner, 0.0)
        self.rounds, self._running = 0, 0

    async def _before(self, operation: str, key: str) -> None:
        self.rounds += not self._running
        self._running += 1
        for _ in range(20):  # all that is requested at the same time begins before this request ends
            await asyncio.sleep(0)
        self._running -= 1


def dataset_of(count: int) -> Any:
    coords: dict[str, Any] = {f"d{n}": np.arange(4) + n for n in range(1, count)}
    coords["d0"] = np.arange("2000-01-01", "2000-01-05", dtype="M8[D]").astype("M8[ns]")
    return xr.Dataset({f"v{n}": ((f"d{n}",), np.arange(4.0)) for n in range(count)}, coords)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("count", [2, 12])
def test_opening_and_loading_a_dataset(zarr_format: Any, consolidated: bool, count: int):
    memory = stores.MemoryStore()
    write_dataset(dataset_of(count), memory, zarr_format=zarr_format, consolidated=consolidated)
    store = RoundTrips(memory)
    dataset = xr.open_dataset(store, engine="zarrasync")
    assert store.rounds <= (2 if consolidated else 4)
    store.rounds = 0
    assert load(dataset) is dataset
    assert store.rounds == 1
    xr.testing.assert_identical(dataset, dataset_of(count))


@pytest.mark.parametrize("count", [2, 8])
def test_opening_and_loading_a_tree(count: int):
    memory = stores.MemoryStore()
    for number in range(count):
        write_dataset(dataset_of(3), memory, group=f"g{number}")
    store = RoundTrips(memory)
    tree = xr.open_datatree(store, engine="zarrasync")
    assert store.rounds <= 5
    assert len(tree.groups) == count + 1
    store.rounds = 0
    load(tree)
    for number in range(count):
        xr.testing.assert_identical(tree[f"g{number}"].to_dataset(), dataset_of(3))
    assert store.rounds == 1


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("count", [2, 20])
def test_writing_a_dataset(zarr_format: Any, lazy: bool, count: int):
    """Group, arrays, chunks, and the consolidated metadata, each with a look at what exists.

    The limits leave room for requests that begin late because values are encoded on other threads.
    """
    store = RoundTrips(stores.MemoryStore())
    given = dataset_of(count).chunk() if lazy else dataset_of(count)
    write_dataset(given, store, zarr_format=zarr_format, chunkmanager_store_kwargs={"scheduler": "synchronous"})
    assert store.rounds <= 12 + (count + 1 if lazy else 0)  # this scheduler computes one block after the other
    store.rounds = 0
    write_dataset(dataset_of(count), store, mode="w")
    assert store.rounds <= 16
    xr.testing.assert_identical(load(xr.open_dataset(store, engine="zarrasync")), dataset_of(count))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("count", [2, 8])
def test_writing_a_tree(zarr_format: Any, count: int):
    """One more round trip for the groups of each level."""
    store = RoundTrips(stores.MemoryStore())
    tree = xr.DataTree.from_dict({f"/g{number}": dataset_of(3) for number in range(count)})
    write_dataset(tree, store, zarr_format=zarr_format)
    assert store.rounds <= 16
    xr.testing.assert_identical(load(xr.open_datatree(store, engine="zarrasync")), tree)


async def test_loading_inside_a_running_loop():
    memory = stores.MemoryStore()
    write_dataset(dataset_of(3), memory)
    dataset = load(xr.open_dataset(stores.LatencyStore(memory, 0.001), engine="zarrasync"))
    xr.testing.assert_identical(dataset, dataset_of(3))
    assert load(xr.open_dataset(memory, engine="zarrasync")["v1"]).values.tolist() == [0, 1, 2, 3]


def test_coordinates_that_cannot_be_read_raise_the_error():
    memory = stores.MemoryStore()
    write_dataset(dataset_of(3), memory)
    memory.values["d1/c/0"] = b"damaged"
    store = stores.LatencyStore(memory, 0.0)
    with pytest.raises(CodecError, match="d1/c/0"):
        xr.open_dataset(store, engine="zarrasync")
    dataset = xr.open_dataset(store, engine="zarrasync", drop_variables="d1")
    assert sorted(dataset.variables) == ["d0", "d2", "v0", "v1", "v2"]


def test_dropped_variables_may_be_broken():
    memory = stores.MemoryStore()
    write_dataset(dataset_of(2), memory)
    sync.open_group(memory, mode="r+").create_array("odd", data=[1], attributes={"_FillValue": {"a": 1}})
    dataset = xr.open_dataset(memory, engine="zarrasync", drop_variables=["odd"])
    assert "odd" not in dataset
    assert xr.open_datatree(memory, engine="zarrasync", drop_variables="odd")["v1"].shape == (4,)
