"""Copies to chunks of another orientation: how often chunks are decoded, and the intermediate array."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.bulk.block_plan import BlockPlan, memory_limit
from zarrasync.bulk.sources import source_of
from zarrasync.config import Config
from zarrasync.testing import LatencyStore

SHAPE, ROWS, COLUMNS = (200, 90, 100), (5, 90, 100), (200, 10, 10)
VALUES = np.random.default_rng(0).normal(size=SHAPE).astype("f4")
KIB = 1 << 10


class KeyCounter(stores.WrapperStore):
    """Counts the requests for each key of a chunk."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.requests = Counter[str]()

    async def fetch(self, requests: Sequence[stores.Request], *, versions: bool = True) -> Any:
        self.requests.update(request.key for request in requests if request.key.startswith("c/"))
        return await super().fetch(requests, versions=versions)


class FullStore(stores.WrapperStore):
    """Fails after some chunks have been stored."""

    left = 30

    async def put(self, key: str, *args: Any, **options: Any) -> Any:
        self.left -= key.startswith("c/")
        if self.left < 0 and key.startswith("c/"):
            raise OSError(28, "No space left on device")
        return await super().put(key, *args, **options)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of intermediate arrays, which is empty after each test."""
    (folder := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(params=["memory", "latency"])
def source(request: pytest.FixtureRequest) -> KeyCounter:
    inner: Any = stores.MemoryStore()
    sync.create_array(inner, data=VALUES, chunks=ROWS)
    return KeyCounter(LatencyStore(inner, 0.0) if request.param == "latency" else inner)


@pytest.mark.parametrize(("budget", "times"), [(12_000, 1), (8000, 2), (4800, 2), (3000, 1), (1200, 1), (600, 1)])
async def test_how_often_chunks_are_decoded(api: Api, source: KeyCounter, scratch: Path, budget: int, times: int):
    """At most twice, even if memory is a twelfth of the array, of 7,031 KiB."""
    report = await api(api.copy(source, target := {}, chunks=COLUMNS, config={"memory_budget": budget * KIB}))
    assert len(source.requests) == 40
    assert set(source.requests.values()) == {times}
    assert report.nbytes == VALUES.nbytes
    copied = await api(api.open_array(target))
    assert copied.chunks == COLUMNS
    np.testing.assert_array_equal(await api(copied.view.read(progress=False)), VALUES)
    assert not list(scratch.iterdir())


async def test_columns_become_rows(api: Api, scratch: Path):
    await api(api.create_array(store := KeyCounter(stores.MemoryStore()), data=VALUES, chunks=COLUMNS))
    store.requests.clear()
    await api(api.copy(store, target := {}, chunks=ROWS, config={"memory_budget": 1200 * KIB}, verify=False))
    assert set(store.requests.values()) == {1}
    np.testing.assert_array_equal(sync.open_array(target)[...], VALUES)


def test_the_memory_of_planned_blocks():
    """The blocks that are in memory at the same time, unless one chunk of the copy is larger."""
    chance = np.random.default_rng(4)
    for _ in range(100):
        ndim = int(chance.integers(1, 4))
        shape, chunks, read_by = (tuple(int(n) for n in chance.integers(1, most, ndim)) for most in (60, 20, 60))
        settings = Config(memory_budget=int(chance.integers(1000, 200_000)))
        one, other = ({} for _ in range(2))
        array = sync.create_array(one, shape=shape, chunks=read_by, dtype="f8", config=settings)
        target = sync.create_array(other, shape=shape, chunks=chunks, dtype="f8", config=settings)
        plan = BlockPlan(source_of(array, {}), target.async_)
        for least in (1, 2):
            concurrency = plan.fit_memory(8, least)
            largest = max(plan.size(region) for region in plan.regions(concurrency, lambda nbytes: None))
            smallest = 8 * int(np.prod(np.minimum(chunks, shape)))
            assert least <= concurrency <= 8
            assert largest <= max(memory_limit(settings) // concurrency, smallest)


LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "format 2": ({"zarr_format": 2, "chunks": ROWS, "order": "F"}, {"chunks": COLUMNS}),
    "draft": ({"zarr_format": "3-draft", "chunks": ROWS}, {"chunks": COLUMNS, "zarr_format": "3-draft-2022"}),
    "undefined fill value": ({"zarr_format": 2, "chunks": ROWS, "fill_value": None}, {"chunks": COLUMNS}),
    "into shards": ({"chunks": ROWS}, {"chunks": (50, 5, 10), "shards": COLUMNS}),
    "from shards": ({"chunks": (5, 30, 20), "shards": ROWS}, {"chunks": COLUMNS, "shards": None}),
    "listed sizes": ({"chunks": [[5, 10] * 13 + [5], 90, 100]}, {"chunks": COLUMNS}),
    "chunks that do not divide the shape": ({"chunks": (7, 90, 99)}, {"chunks": (190, 9, 11)}),
    "lossy filter": (
        {"zarr_format": 2, "chunks": ROWS, "filters": {"id": "bitround", "keepbits": 8}},
        {"chunks": COLUMNS},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_layouts_and_formats(api: Api, scratch: Path, layout: str):
    """With an intermediate array and without one, the stored values are the same."""
    written, options = LAYOUTS[layout]
    array = await api(api.create_array(source := {}, shape=SHAPE, dtype="f4", **written))
    values = VALUES.copy()
    values[60:] = 0
    await api(array.view[:60].write(values[:60], progress=False))
    expected, found = ({} for _ in range(2))
    await api(api.copy(source, expected, **options))
    seen: list[int] = []
    report = await api(
        api.copy(source, found, verify=True, progress=seen.append, config={"memory_budget": 1200 * KIB}, **options)
    )
    assert found == expected
    assert sum(seen) == VALUES.nbytes
    assert report.nbytes <= VALUES.nbytes
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("dtype", ["M8[s]", "U6", "i4,f8", "c16", ">i2", "T"])
@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_data_types(api: Api, scratch: Path, dtype: str):
    """Also those whose elements vary in size, which are copied in one stage."""
    shape = (400, 1000 if dtype != "T" else 40)
    values = np.arange(math.prod(shape)).reshape(shape).astype(np.dtypes.StringDType() if dtype == "T" else dtype)
    budget = 27_000 * values.dtype.itemsize
    await api(api.create_array(source := {}, data=values, chunks=(1, 1000)))
    await api(api.copy(source, target := {}, chunks=(400, 2), verify=True, config={"memory_budget": budget}))
    copied = sync.open_array(target)[...]
    assert copied.dtype.kind == values.dtype.kind
    np.testing.assert_array_equal(copied, values)


async def test_only_stored_chunks_are_read(api: Api, source: KeyCounter):
    """A large array with few stored chunks."""
    store = KeyCounter(stores.MemoryStore())
    array = await api(
        api.create_array(store, shape=(40_000, 30, 40), chunks=(10, 30, 40), dtype="f4", fill_value=np.nan)
    )
    await api(array.view[20_005:20_025].write(7, progress=False))
    await api(api.copy(store, target := {}, chunks=(40_000, 3, 5), config={"memory_budget": 12 << 20}))
    assert len(store.requests) < 200  # of 4,000: those near the stored ones
    assert max(store.requests.values()) <= 2
    copied = await api(api.open_array(target))
    part = await api(copied.view[:, 22, 25:35].read(progress=False))
    assert np.isnan(part[:20_005]).all()
    assert (part[20_005:20_025] == 7).all()
    assert np.isnan(part[20_025:]).all()


async def test_after_a_failure(api: Api, source: KeyCounter, scratch: Path):
    """Nothing remains of the intermediate array. A later run copies the rest, and reads each chunk at most once."""
    options: dict[str, Any] = {"chunks": COLUMNS, "config": {"memory_budget": 1200 * KIB}}
    inner = stores.MemoryStore()
    with pytest.raises(OSError, match="No space left"):
        await api(api.copy(source, FullStore(inner), **options))
    assert not list(scratch.iterdir())
    source.requests.clear()
    report = await api(api.copy(source, inner, resume=True, **options))
    assert report.skipped > 0
    assert set(source.requests.values()) == {1}
    np.testing.assert_array_equal(sync.open_array(inner)[...], VALUES)
    assert not list(scratch.iterdir())
    source.requests.clear()
    report = await api(api.copy(source, inner, resume=True, **options))
    assert report.copied == 0
    assert not source.requests


async def test_the_rest_of_a_block_is_read_once(api: Api, source: KeyCounter):
    """Every second chunk of the copy is missing, and one stage suffices."""
    options: dict[str, Any] = {"chunks": COLUMNS, "config": {"memory_budget": 4800 * KIB}}
    target: dict[str, Any] = {}
    await api(api.copy(source, target, **options))
    chunks = sorted(
        (key for key in target if key.startswith("c/")), key=lambda key: [int(i) for i in key[2:].split("/")]
    )
    for key in chunks[50:]:
        del target[key]
    source.requests.clear()
    report = await api(api.copy(source, target, resume=True, **options))
    assert report.skipped > 0
    assert max(source.requests.values()) <= 3
    np.testing.assert_array_equal(sync.open_array(target)[...], VALUES)


async def test_without_space_for_an_intermediate_array(api: Api, source: KeyCounter, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("zarrasync.bulk.copy.values.scratch_space", lambda: VALUES.nbytes - 1)
    await api(api.copy(source, target := {}, chunks=COLUMNS, config={"memory_budget": 1200 * KIB}))
    assert set(source.requests.values()) == {9}
    np.testing.assert_array_equal(sync.open_array(target)[...], VALUES)


async def test_tasks_of_a_plan(api: Api, tmp_path: Path, scratch: Path):
    """Each task writes another intermediate array, and erases it."""
    await api(api.create_array(tmp_path / "a.zarr", data=VALUES, chunks=ROWS))
    settings = {"memory_budget": 600 * KIB}
    plan = await api(api.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=COLUMNS, tasks=2, config=settings))
    assert len(plan.tasks) == 2
    for task in plan.tasks:
        report = await api(plan.run(task.number, verify=True))
        assert report.nbytes == task.nbytes
        assert not list(scratch.iterdir())
    await api(plan.finish())
    np.testing.assert_array_equal(sync.open_array(tmp_path / "b.zarr")[...], VALUES)


@pytest.mark.processes
async def test_two_processes(api: Api, tmp_path: Path, scratch: Path):
    values = np.random.default_rng(1).normal(size=(200, 100, 110)).astype("f4")  # more than one process copies alone
    await api(api.create_array(tmp_path / "a.zarr", data=values, chunks=(5, 100, 110)))
    report = await api(
        api.copy(
            tmp_path / "a.zarr",
            tmp_path / "b.zarr",
            chunks=(200, 10, 11),
            config={"memory_budget": 1 << 20},
            executor=2,
        )
    )
    assert report.nbytes == values.nbytes
    np.testing.assert_array_equal(sync.open_array(tmp_path / "b.zarr")[...], values)
    assert not list(scratch.iterdir())
