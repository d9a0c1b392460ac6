"""Moving large nodes: within the memory budget and the concurrency, chunks before documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync import stores, sync
from zarrasync.codecs import Buffer
from zarrasync.formats import is_document


class HeldBytesStore(stores.LatencyStore):
    """Counts the values and bytes that were fetched and are not stored yet."""

    def __init__(self) -> None:
        super().__init__(stores.MemoryStore(), 0.001)
        self.held: dict[int, int] = {}
        self.most_values = self.most_bytes = 0
        self.puts: list[str] = []

    async def fetch(self, requests: Sequence[stores.Request], *, versions: bool = False) -> Any:
        values = await super().fetch(requests, versions=versions)
        self.held.update({id(value.data): len(value.data) for value in values if value is not None})
        self.most_values = max(self.most_values, len(self.held))
        self.most_bytes = max(self.most_bytes, sum(self.held.values()))
        return values

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        version = await super().put(key, data, if_version=if_version)
        self.held.pop(id(data), None)
        self.puts.append(key)
        return version


async def move(store: stores.Store, config: Any) -> None:
    await (await za.open_group(store, mode="r+", config=config)).move("g", "h")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft-2022"])
@pytest.mark.parametrize(("config", "most"), [({"memory_budget": 300_000}, 3), ({"concurrency": 2}, 2)])
def test_moves_stay_within_limits(zarr_format: Any, config: Any, most: int, asynchronous: bool):
    store = HeldBytesStore()
    root = sync.create_group(store, zarr_format=zarr_format, config=config)
    values = np.arange(20 * 100_000, dtype="u1").reshape(20, -1) + 1
    root.create_array("g/a", data=values, chunks=(1, 100_000), compressors=None)
    root.create_array("g/b", data=values[:5], chunks=(1, 100_000), compressors=None)
    store.held.clear()
    store.puts.clear()
    store.most_values = store.most_bytes = 0
    if asynchronous:
        asyncio.run(move(store, config))
    else:
        root.move("g", "h")
    assert store.most_bytes <= most * 100_000 + 10_000  # documents are small
    assert store.most_values > 1
    is_chunk = [not is_document(key) for key in store.puts]
    assert is_chunk[:25] == [True] * 25
    assert not any(is_chunk[25:])
    np.testing.assert_array_equal(root["h/a"][...], values)
    assert list(root) == ["h"]
