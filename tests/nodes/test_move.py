"""Moving large nodes: within the memory budget and the concurrency, chunks before documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.codecs import Buffer
from zarrasync.errors import WriteConflictError
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


class BusyStore(stores.WrapperStore):
    """Another writer stores values while the first value is copied."""

    values: tuple[str, ...] = ()

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        values, self.values = self.values, ()
        for other in values:
            await self.inner.put(other, b"later")
        return await self.inner.put(key, data, if_version=if_version)


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft-2022"])
@pytest.mark.parametrize("kind", ["memory", "files", "remote"])
async def test_values_that_others_store_meanwhile_remain(api: Api, tmp_path: Path, kind: str, zarr_format: Any):
    files = stores.LocalStore(tmp_path)
    inner = {"memory": stores.MemoryStore(), "files": files, "remote": stores.LatencyStore(stores.MemoryStore(), 0.0)}[
        kind
    ]
    store = BusyStore(inner)
    root = await api(api.create_group(store, zarr_format=zarr_format))
    await api(root.create_array("g/a", data=np.arange(1, 3), chunks=1))
    chunk = max(key for key in await store.list_prefix("") if not is_document(key))
    store.values = (f"{chunk[:-1]}7", f"{chunk.rpartition('/')[0]}/other")
    with pytest.raises(
        WriteConflictError, match=r"/g was moved to /h, but .* 2 values meanwhile, .*7, .*other; copy"
    ) as caught:
        await api(root.move("g", "h"))
    assert caught.value.key in (f"{chunk[:-1]}7", f"{chunk.rpartition('/')[0]}/other")
    remaining = [key for key in await store.list_prefix("") if "g/" in key]
    assert sorted(remaining) == [f"{chunk[:-1]}7", f"{chunk.rpartition('/')[0]}/other"]
    np.testing.assert_array_equal(await api((await api(root.get("h/a")))[...]), [1, 2])
    assert "g" not in await api(root.keys())


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft-2022"])
async def test_moves_leave_no_directories(api: Api, tmp_path: Path, zarr_format: Any):
    root = await api(api.create_group(tmp_path, zarr_format=zarr_format))
    await api(root.create_array("g/a/b", data=np.arange(1, 3), chunks=1))
    await api(root.move("g", "h"))
    assert not [path for path in tmp_path.rglob("*") if path.name.partition(".")[0] == "g"]
    assert await api(root.keys()) == ("h",)


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
