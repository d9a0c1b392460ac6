"""Ingestions that are cancelled, killed or fail, and are then resumed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.blocks import VALUES
from zarrasync import stores, sync
from zarrasync.errors import StoreError
from zarrasync.testing import FaultyStore

LAYOUTS = [{"chunks": (20, 20)}, {"chunks": (5, 10), "shards": (20, 40)}, {"chunks": [[30, 60], [10, 40, 20]]}]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_second_run_writes_missing_blocks(api: Api, layout: dict[str, Any]):
    """Blocks that an interrupted run has stored are neither read nor written again."""
    memory = stores.MemoryStore()
    asked: list[tuple[slice, ...]] = []

    def source(region: tuple[slice, ...]) -> np.ndarray:
        asked.append(region)
        return VALUES[region]

    def fails(operation: str, key: str) -> bool:
        return operation == "put" and "c/" in key and len(memory.values) > 3

    options = {"shape": VALUES.shape, "dtype": "i4", "config": {"memory_budget": 4096}, **layout}
    with pytest.raises(StoreError, match="simulated failure"):
        await api(api.ingest(source, FaultyStore(memory, fails=fails), **options))
    there = {key: value for key, value in memory.values.items() if "c/" in key}
    assert there
    asked.clear()
    report = await api(api.ingest(source, memory, **options))
    np.testing.assert_array_equal(await api((await api(api.open_array(memory)))[...]), VALUES)
    assert report.skipped > 0
    assert len(asked) == report.blocks
    assert all(memory.values[key] is value for key, value in there.items())
    again = await api(api.ingest(source, memory, verify=True, **options))
    assert (again.blocks, again.verified) == (0, report.blocks + report.skipped)


async def test_cancelling_leaves_whole_chunks():
    store = stores.MemoryStore()
    begun = asyncio.Event()

    async def source(region: tuple[slice, ...]) -> np.ndarray:
        begun.set()
        await asyncio.sleep(0.002)
        return VALUES[region]

    options: dict[str, Any] = {
        "shape": VALUES.shape,
        "dtype": "i4",
        "chunks": (10, 10),
        "config": {"memory_budget": 4096},
    }
    task = asyncio.create_task(za.ingest(source, store, **options))
    await begun.wait()
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    report = await za.ingest(source, store, verify=True, **options)
    assert report.verified == report.blocks + report.skipped
    np.testing.assert_array_equal((await (await za.open_array(store)).view.read()), VALUES)


KILLED = """
import sys
import threading
import time
import numpy as np
from zarrasync import sync
values = np.lib.format.open_memmap(sys.argv[1])
def source(region):
    time.sleep(0.002)
    return values[region]
print("ready", flush=True)
options = {"shape": values.shape, "dtype": values.dtype, "config": {"memory_budget": 1 << 15}}
report = sync.ingest(source, sys.argv[2], chunks=(5, 10), shards=(10, 20), **options)
print(report.blocks, report.skipped, flush=True)
"""


@pytest.mark.processes
def test_ingestions_that_are_killed(tmp_path: Path):
    """After SIGKILL at random moments, the array is readable and another run completes it."""
    turns = int(os.environ.get("ZARRASYNC_KILLS", "6"))
    values = np.random.default_rng(0).integers(1, 1 << 30, (400, 400), dtype="i4")
    np.save(tmp_path / "x.npy", values)
    chance = random.Random(5)
    killed = 0
    for turn in range(turns):
        target = tmp_path / str(turn)
        worker = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "x.npy"), str(target)], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        end = time.monotonic() + chance.random() * 0.4
        while time.monotonic() < end and worker.poll() is None:
            time.sleep(0.001)
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        killed += worker.returncode == -signal.SIGKILL
        before = {p: p.stat().st_mtime_ns for p in target.rglob("c/*/*") if not p.name.endswith("-partial")}
        if (target / "zarr.json").exists():
            found = sync.open_array(target)[...]
            assert ((found == values) | (found == 0)).all()
        report = sync.ingest(
            values, target, chunks=(5, 10), shards=(10, 20), verify=True, config={"memory_budget": 1 << 15}
        )
        assert report.verified == report.blocks + report.skipped
        np.testing.assert_array_equal(sync.open_array(target)[...], values)
        assert all(path.stat().st_mtime_ns == when for path, when in before.items()), "rewritten though it was there"
        assert json.loads((target / "zarr.json").read_text())["shape"] == [400, 400]
    assert killed


async def test_regions_that_cut_chunks_are_not_taken_for_done(api: Api):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, shape=(20,), dtype="i4", chunks=(10,)))
    await api(api.ingest(np.arange(1, 6, dtype="i4"), store, region=(slice(0, 5),)))
    await api(api.ingest(np.arange(6, 16, dtype="i4"), store, region=(slice(5, 15),)))
    expected = [*range(1, 16), 0, 0, 0, 0, 0]
    assert (await api((await api(api.open_array(store)))[...])).tolist() == expected


@pytest.mark.parametrize("how", ["ingest", "copy"])
@pytest.mark.parametrize("left", ["chunks", "half a tree"])
async def test_going_on_where_a_replacement_was_killed(api: Api, how: str, left: str):
    """Orphaned chunks do not count as finished blocks, in this run or in later ones."""
    kept: dict[str, bytes] = {}
    old = await api(api.create_array(kept, path="x", data=np.ones((4, 4), "i4"), chunks=(2, 2)))
    assert old.shape == (4, 4)
    del kept["x/zarr.json"]
    values = np.zeros((4, 4), "i4")
    values[0, 0] = 5
    source: dict[str, bytes] = {}
    await api(api.create_array(source, data=values, chunks=(2, 2)))

    class Killed(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if key.startswith("x/c/"):
                raise StoreError("killed")
            return await super().put(key, data, if_version=if_version)

    async def run(store: Any) -> None:
        if how == "ingest":
            await api(api.ingest(values, store, path="x", chunks=(2, 2)))
        else:
            await api(api.copy(source, store, dest_path="x", resume=True))

    if left == "half a tree":  # the new array was created, without chunks
        with pytest.raises(StoreError):
            await run(Killed(stores.MemoryStore(kept)))
    await run(kept)
    np.testing.assert_array_equal(await api((await api(api.open_array(kept, path="x")))[...]), values)


@pytest.mark.processes
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("then", ["append", "resize"])
@pytest.mark.parametrize("kind", ["local", "fsspec"])
async def test_rows_of_a_killed_append_do_not_reappear(
    api: Api, tmp_path: Path, zarr_format: int, then: str, kind: str
):
    """On local files rows are stored before the shape; rows beyond the shape never reappear."""
    array = await api(api.create_array(tmp_path, shape=(5, 4), chunks=(2, 2), dtype="i4", zarr_format=zarr_format))
    await api.write(array, ..., 1)
    if kind == "local":
        store, constructor = stores.LocalStore(tmp_path), "stores.LocalStore(sys.argv[1])"
    else:
        store = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path))
        constructor = "stores.FsspecStore(fsspec.filesystem('file'), sys.argv[1])"
    code = (
        "import os, sys, fsspec, numpy as np; from zarrasync import stores, sync\n"
        "class Dying(stores.WrapperStore):\n"
        "    async def put(self, key, data, *, if_version=None):\n"
        "        if key.endswith(('zarr.json', '.zarray')): os._exit(9)\n"
        "        return await super().put(key, data, if_version=if_version)\n"
        f"store = Dying({constructor})\n"
        "sync.open_array(store, mode='r+').append(np.full((7, 4), 2))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    found = await api(api.open_array(store, mode="r+"))
    assert found.shape == (5, 4)
    expected = np.zeros((12, 4))
    expected[:5] = 1
    if then == "append":
        await api(found.append(np.full((1, 4), 3)))
        expected[5] = 3
    await api(found.resize((12, 4)))
    np.testing.assert_array_equal(await api(found[...]), expected)
    assert found.store.directories.unfinished("") == []


async def test_a_copy_that_is_cancelled_while_it_claims_its_destination():
    """The next copy does not wait for it."""
    puts, may_go_on = threading.Event(), threading.Event()

    class Slow(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if ".ingest/" in key:
                puts.set()
                while not may_go_on.is_set():
                    await asyncio.sleep(0.001)
            return await self.inner.put(key, data, if_version=if_version)

    source, memory = stores.MemoryStore(), stores.MemoryStore()
    await za.create_array(source, data=np.arange(4))
    dest = Slow(memory)
    dest.blocking = False
    copying = asyncio.ensure_future(za.copy(source, dest))
    assert await asyncio.to_thread(puts.wait, 30)
    copying.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert [key for key in await memory.list() if ".ingest" in key] == []
    await asyncio.wait_for(za.copy(source, dest), 30)
