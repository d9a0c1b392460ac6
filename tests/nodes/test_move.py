"""Moving large nodes: within the memory budget and the concurrency, chunks before documents."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
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
from zarrasync.testing import LatencyStore


class HeldBytesStore(LatencyStore):
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


@pytest.mark.parametrize(("kind", "zarr_format"), [("memory", 3), ("files", 2), ("remote", "3-draft-2022")])
async def test_values_that_others_store_meanwhile_remain(api: Api, tmp_path: Path, kind: str, zarr_format: Any):
    files = stores.LocalStore(tmp_path)
    inner = {"memory": stores.MemoryStore(), "files": files, "remote": LatencyStore(stores.MemoryStore(), 0.0)}[kind]
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


@pytest.mark.parametrize(("kind", "zarr_format"), [("memory", 3), ("files", 2), ("remote", "3-draft-2022")])
async def test_values_that_others_replace_meanwhile_remain(api: Api, tmp_path: Path, kind: str, zarr_format: Any):
    """Only the versions are erased that were copied."""
    files = stores.LocalStore(tmp_path)
    store = BusyStore(
        {"memory": stores.MemoryStore(), "files": files, "remote": LatencyStore(stores.MemoryStore(), 0.0)}[kind]
    )
    root = await api(api.create_group(store, zarr_format=zarr_format))
    await api(root.create_array("g", data=np.arange(1, 4), chunks=1))
    keys = [key for key in await store.list_prefix("") if not is_document(key)]
    store.values = tuple(keys)  # while the first one, which was fetched, is stored at its new place
    with pytest.raises(WriteConflictError, match=r"/g was moved to /h, but .* meanwhile") as caught:
        await api(root.move("g", "h"))
    remaining = {key: await store.get(key) for key in keys if key in await store.list_prefix("")}
    assert caught.value.key in remaining
    assert set(remaining.values()) == {b"later"}


MOVER = """
import json, sys, time
from pathlib import Path
from zarrasync import errors, sync
folder, (source, dest), root, url, options = *sys.argv[1:5], json.loads(sys.argv[5])
Path(f"{folder}/{source}.ready").touch()
while not Path(f"{folder}/go").exists():
    time.sleep(0.001)
end, moves = time.monotonic() + 2.5, 0
while time.monotonic() < end:
    try:
        group = sync.open_group(url if root == "root" else f"{url}/g", mode="r+", storage_options=options)
        group.move(*(f"g/{name}" if root == "root" else name for name in (source, dest)))
        moves += 1
    except errors.ZarrError:
        pass
print(moves)
"""


def move_in_opposite_directions(folder: Path, roots: tuple[str, str], url: str, options: dict[str, Any]) -> None:
    """Move a group back and forth on two processes, and check that all its values exist at one place.

    Args:
        folder: A folder for signals.
        roots: Whether each process opens the root or the group.
        url: The location of the root.
        options: Storage options.
    """
    group = sync.create_group(url, storage_options=options or None).create_group("g")
    group.create_group("x").create_array("a", shape=(100,), dtype="i4", chunks=(10,))[:] = 5
    command = [sys.executable, "-W", "ignore", "-c", MOVER, str(folder)]
    commands = [[*command, *move, url, json.dumps(options)] for move in (("xy", roots[0]), ("yx", roots[1]))]
    movers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    while len(list(folder.glob("*.ready"))) < 2:
        assert all(mover.poll() is None for mover in movers)
        time.sleep(0.01)
    (folder / "go").touch()
    assert sum(int(mover.communicate(timeout=60)[0]) for mover in movers) > 0
    group = sync.open_group(f"{url}/g", storage_options=options or None)
    (name,) = group
    array = group[f"{name}/a"]
    assert isinstance(array, sync.Array)
    assert (array[:] == 5).all()


@pytest.mark.processes
@pytest.mark.parametrize("roots", [("root", "root"), ("root", "group")])
def test_moves_in_opposite_directions_lose_nothing(tmp_path: Path, roots: tuple[str, str]):
    move_in_opposite_directions(tmp_path, roots, str(tmp_path / "data"), {})
    (name,) = sync.open_group(tmp_path / "data/g")
    assert [path.name for path in (tmp_path / "data/g").iterdir() if path.is_dir()] == [name]


@pytest.mark.processes
@pytest.mark.parametrize("roots", [("root", "root"), ("root", "group")])
def test_moves_in_a_bucket_lose_nothing(tmp_path: Path, s3: tuple[str, dict[str, Any]], roots: tuple[str, str]):
    """Equal values have equal versions there, so that only turns keep the values of the other move."""
    url, options = s3
    move_in_opposite_directions(tmp_path, roots, url, options)
    store = stores.resolve(url, options)
    keys = asyncio.run(store.list_prefix(""))
    assert not [key for key in keys if ".moves" in key]
    assert len([key for key in keys if "/c/" in key]) == 10


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft-2022"])
async def test_moves_leave_no_directories(api: Api, tmp_path: Path, zarr_format: Any):
    root = await api(api.create_group(tmp_path, zarr_format=zarr_format))
    await api(root.create_array("g/a/b", data=np.arange(1, 3), chunks=1))
    await api(root.move("g", "h"))
    assert not [path for path in tmp_path.rglob("*") if path.name.partition(".")[0] == "g"]
    assert await api(root.keys()) == ("h",)


async def move(store: stores.Store, config: Any) -> None:
    await (await za.open_group(store, mode="r+", config=config)).move("g", "h")


@pytest.mark.parametrize(
    ("config", "most", "zarr_format", "asynchronous"),
    [
        ({"memory_budget": 300_000}, 3, 3, False),
        ({"memory_budget": 300_000}, 3, "3-draft-2022", True),
        ({"concurrency": 2}, 2, 2, True),
        ({"concurrency": 2}, 2, 3, False),
    ],
)
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
