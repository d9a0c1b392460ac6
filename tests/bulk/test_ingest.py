"""Bulk ingestion: of everything that holds values, interrupted and gone on with, beside others."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import (
    ChecksumError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ReadOnlyError,
    ShapeError,
    StoreError,
    UnsupportedOperation,
)

VALUES = np.arange(1, 90 * 70 + 1, dtype="i4").reshape(90, 70)
LAYOUTS = [{"chunks": (20, 20)}, {"chunks": (5, 10), "shards": (20, 40)}, {"chunks": [[30, 60], [10, 40, 20]]}]


def blocks_of(values: np.ndarray, size: int) -> list[tuple[tuple[slice, ...], np.ndarray]]:
    cuts = [[slice(a, min(a + size, n)) for a in range(0, n, size)] for n in values.shape]
    return [((r, c), values[r, c]) for r in cuts[0] for c in cuts[1]]


class Sources:
    """The same values in all forms that can be ingested."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.folder, self.api = folder, api

    async def make(self, kind: str) -> tuple[Any, dict[str, Any]]:
        described = {"shape": VALUES.shape, "dtype": "i4"}
        if kind == "numpy":
            return VALUES, {}
        if kind == "npy":
            np.save(self.folder / "x.npy", VALUES)
            return self.folder / "x.npy", {}
        if kind == "dask":
            return pytest.importorskip("dask.array").from_array(VALUES, chunks=(33, 17)), {}
        if kind == "xarray":
            xarray = pytest.importorskip("xarray")
            return xarray.DataArray(VALUES, dims=("y", "x"), attrs={"unit": "K"}), {}
        if kind == "zarr-python":
            zarr = pytest.importorskip("zarr")
            return zarr.create_array({}, data=VALUES, chunks=(31, 31)), {}
        if kind == "zarrasync":
            return await self.api(self.api.create_array({}, data=VALUES, chunks=(7, 70))), {}
        if kind == "remote":
            store = stores.LatencyStore(stores.MemoryStore(), 0.001)
            return await self.api(self.api.create_array(store, data=VALUES, chunks=(7, 70))), {}
        if kind == "function":
            return lambda region: VALUES[region], described
        if kind == "coroutine function":
            return self.later, described
        if kind == "pairs":
            return iter(blocks_of(VALUES, 20)), described
        return self.pairs(), described

    async def later(self, region: tuple[slice, ...]) -> np.ndarray:
        await asyncio.sleep(0)
        return VALUES[region]

    async def pairs(self) -> Any:
        for pair in blocks_of(VALUES, 20):
            await asyncio.sleep(0)
            yield pair


KINDS = [
    "numpy", "npy", "dask", "xarray", "zarr-python", "zarrasync", "remote", "function", "coroutine function", "pairs",
    "asynchronous pairs",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["memory", "local", "latency"])
async def test_sources(api: Api, kind: str, target: str, tmp_path: Path):
    source, options = await Sources(tmp_path, api).make(kind)
    store: Any = {"memory": {}, "local": tmp_path / "t"}.get(target)
    if target == "latency":
        store = stores.LatencyStore(stores.MemoryStore(), 0.001)
    seen: list[int] = []
    report = await api(api.ingest(source, store, chunks=(20, 20), verify=True, progress=seen.append, **options))
    array = await api(api.open_array(store))
    np.testing.assert_array_equal(await api(array[...]), VALUES)
    assert array.dtype == VALUES.dtype
    assert report.nbytes == sum(seen) == VALUES.nbytes
    assert report.blocks == report.verified > 1
    assert report.stored > 1000
    assert report.requests >= 20
    assert "blocks written" in str(report)
    if kind == "xarray":
        assert array.dimension_names == ("y", "x")
        assert dict(array.attrs) == {"unit": "K"}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_second_run_writes_what_is_missing(api: Api, layout: dict[str, Any]):
    """After an interruption; nothing that was there is read from the source or written again."""
    memory = stores.MemoryStore()
    asked: list[tuple[slice, ...]] = []

    def source(region: tuple[slice, ...]) -> np.ndarray:
        asked.append(region)
        return VALUES[region]

    def fails(operation: str, key: str) -> bool:
        return operation == "put" and "c/" in key and len(memory.values) > 3

    options = {"shape": VALUES.shape, "dtype": "i4", "config": {"memory_budget": 4096}, **layout}
    with pytest.raises(StoreError, match="on purpose"):
        await api(api.ingest(source, stores.FaultyStore(memory, fails=fails), **options))
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


async def test_modes(api: Api):
    store: dict[str, bytes] = {}
    await api(api.ingest(VALUES, store, mode="w-", chunks=(50, 50)))
    with pytest.raises(NodeExistsError):
        await api(api.ingest(VALUES, store, mode="w-"))
    assert (await api(api.ingest(VALUES + 1, store))).blocks == 0  # what is there counts as done
    await api(api.ingest(VALUES + 1, store, mode="r+"))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES + 1)
    await api(api.ingest(VALUES[:5], store, mode="w", chunks=(2, 70)))
    assert (await api(api.open_array(store))).shape == (5, 70)
    with pytest.raises(ValueError, match="mode is"):
        await api(api.ingest(VALUES, store, mode="r"))
    with pytest.raises(KeyError):
        await api(api.ingest(VALUES, {}, mode="r+"))


async def test_regions(api: Api, tmp_path: Path):
    """Several writers, each with a region of its own."""
    store: dict[str, bytes] = {}
    await api(api.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(20, 20)))
    for start in range(0, 90, 30):
        part = slice(start, start + 30)
        await api(api.ingest(VALUES[part], store, mode="r+", region=(part, slice(None)), verify=True))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES)
    with pytest.raises(ShapeError, match="cuts the chunks c/1/0, c/1/1, c/1/2 and 1 more"):
        await api(api.ingest(VALUES[:30], store, mode="r+", region=(slice(0, 30), slice(None)), unaligned="error"))
    await api(api.ingest(VALUES[:40], store, mode="r+", region=(slice(0, 40), slice(None)), unaligned="error"))
    with pytest.raises(ShapeError, match="source has shape"):
        await api(api.ingest(VALUES, store, mode="r+", region=(slice(0, 30), slice(None))))
    plain = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "plain"))
    await api(api.create_array(plain, shape=VALUES.shape, dtype="i4", chunks=(20, 20)))
    with pytest.raises(ShapeError, match="multiples of"):  # it can not compare
        await api(api.ingest(VALUES[:30], plain, mode="r+", region=(slice(0, 30), slice(None))))
    await api(api.ingest(VALUES[:30], plain, mode="r+", region=(slice(0, 30), slice(None)), unaligned="allow"))


@pytest.mark.parametrize("unaligned", ["default", "safe", "error"])
async def test_assignments_that_cut_chunks(api: Api, unaligned: str, tmp_path: Path):
    """Refused where others' parts could be lost, before anything is stored, if they are not allowed."""
    zarr = pytest.importorskip("zarr")
    plain = stores.ZarrPythonStore(
        zarr.storage.LocalStore(tmp_path / "plain")
    )  # which can not compare, and has no locks
    local = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "local"))  # whose locks hold for everybody
    memory = stores.FsspecStore(fsspec.filesystem("memory"), f"/cut-{time.monotonic_ns()}")  # which nobody else has
    others = stores.ZarrPythonStore(zarr.storage.LoggingStore(zarr.storage.MemoryStore(), log_level="ERROR"))
    config = {} if unaligned == "default" else {"config": {"unaligned": unaligned}}
    point = [("a", "i4"), ("b", "f8")]
    for store in (plain, local, memory, others, {}):
        refused = unaligned == "error" or store is plain
        await api(api.create_array(store, path="x", data=VALUES, chunks=(20, 20)))
        await api(api.create_array(store, path="p", shape=(8,), chunks=4, dtype=point))
        array = await api(api.open_array(store, path="x", mode="r+", **config))
        points = await api(api.open_array(store, path="p", mode="r+", **config))
        await api(array.view[20:40].write(5))
        await api(array.view[80:, 60:].write(6))  # to the end of the array
        await api(points.view[:4].write((1, 2)))
        cutting = [
            (lambda: array.view[5:30].write(7), r"x/c/0/0, x/c/0/1, x/c/0/2 and 5 more .*multiples of \(20, 20\)"),
            (lambda: array.set_orthogonal_selection(([1, 50],), 7), "x/c/0/0"),
            (lambda: array.view[0:40:2].write(7), "x/c/0/0"),
            (lambda: points.set_basic_selection(..., 7, fields="a"), "p/c/0, p/c/1 of"),
            (lambda: array.append(VALUES[:30]), "can not compare" if store is plain else "x/c/4/0"),
        ]
        for change, match in cutting:
            if not refused:
                await api(change())
                continue
            before = await api((await api(api.open_array(store, path="x")))[...])
            with pytest.raises(ShapeError, match=f"(?s){match}.*allow it with config="):
                await api(change())
            np.testing.assert_array_equal(await api((await api(api.open_array(store, path="x")))[...]), before)
        array = await api(api.open_array(store, path="x", mode="r+", config={"unaligned": "allow"}))
        await api(array.view[5:30].write(8))
        await api(array.append(VALUES[:30]))
        assert array.shape == (120 if refused else 150, 70)
    with pytest.raises(ValueError, match="config unaligned is 'safe', 'allow' or 'error', not 'never'"):
        await api(api.open_array(plain, path="x", config={"unaligned": "never"}))


async def test_assignments_that_cover_chunks(api: Api, tmp_path: Path):
    """However they are selected: of these nobody else's part can be lost."""
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    expected = VALUES.copy()
    array = await api(api.create_array(store, path="x", data=VALUES, chunks=(1, 35)))
    await api(array.view[::7].write(1))
    expected[::7] = 1
    await api(array.set_orthogonal_selection(([1, 50, 3], slice(35, 70)), 2))
    expected[[1, 50, 3], 35:] = 2
    mask = np.zeros(90, bool)
    mask[[4, 8]] = True
    await api(array.set_orthogonal_selection((mask,), 3))
    expected[mask] = 3
    rows, columns = np.meshgrid([60, 61], np.arange(35)[::-1], indexing="ij")
    await api(array.set_coordinate_selection((rows, columns), 4))
    expected[60:62, :35] = 4
    await api(array.append(VALUES[:0]))
    np.testing.assert_array_equal(await api(array[...]), expected)
    for selection in (([1, 50], slice(35, 69)), ([1, 50], [35, 36]), (slice(None), np.r_[0:34, 0])):
        with pytest.raises(ShapeError, match="x/c/"):
            await api(array.set_orthogonal_selection(selection, 5))
    with pytest.raises(ShapeError, match="x/c/60/0, x/c/61/0 of"):
        await api(array.set_coordinate_selection((rows[:, 1:], columns[:, 1:]), 5))
    points = await api(api.create_array(store, path="p", shape=(8,), chunks=4, dtype=[("a", "i4"), ("b", "f8")]))
    await api(points.view[["a", "b"]].write(np.ones(8, points.dtype)))
    single = await api(api.create_array(store, path="s", shape=(), dtype="i4"))
    await api(single.view[...].write(3))
    assert (await api(single[...]), (await api(points[...]))["b"].tolist()) == (3, [1.0] * 8)
    reading = await api(api.open_array(store, path="x"))
    with pytest.raises(ReadOnlyError):
        await api(reading.append(VALUES[:1]))


async def test_settings_hold_for_jobs(api: Api, tmp_path: Path):
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    await api(api.create_array(store, data=VALUES, chunks=(20, 20)))
    part = {"mode": "r+", "region": (slice(0, 30), slice(None))}
    with pytest.raises(ShapeError, match="allow it with config="):
        await api(api.ingest(VALUES[:30], store, **part))
    await api(api.ingest(VALUES[:30], store, config={"unaligned": "allow"}, **part))
    with pytest.raises(ShapeError):
        await api(api.ingest(VALUES[:30], store, config={"unaligned": "allow"}, unaligned="safe", **part))
    memory: dict[str, bytes] = {}
    await api(api.create_array(memory, data=VALUES, chunks=(20, 20)))
    with za.config.set(unaligned="error"), pytest.raises(ShapeError):
        await api(api.ingest(VALUES[:30], memory, **part))


async def test_the_path_of_an_array(api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]]):
    source, kept = tmp_path / "source.zarr", dict[str, bytes]()
    await api(api.create_array(source, data=VALUES, chunks=(20, 20)))
    await api(api.ingest(str(source), kept))
    np.testing.assert_array_equal(await api((await api(api.open_array(kept)))[...]), VALUES)
    url, options = s3
    await api(api.ingest(source, f"{url}/path", storage_options=options))
    found = await api(api.open_array(f"{url}/path", storage_options=options))
    np.testing.assert_array_equal(await api(found[...]), VALUES)


async def test_bad_sources(api: Api):
    with pytest.raises(TypeError, match="needs shape and dtype"):
        await api(api.ingest(lambda region: None, {}))
    with pytest.raises(TypeError, match="can not be ingested"):
        await api(api.ingest(5, {}))
    with pytest.raises(TypeError, match="no .npy file"):
        await api(api.ingest("x.csv", {}))
    with pytest.raises(ShapeError, match=r"has shape \(1,\), not \(4,\)"):
        await api(api.ingest(lambda region: np.zeros(1), {}, shape=(4,), dtype="i4", chunks=4))
    with pytest.raises(ShapeError, match="tuple of 1 slices"):
        await api(api.ingest([(3, np.zeros(1))], {}, shape=(4,), dtype="i4"))
    with pytest.raises(ZeroDivisionError):
        await api(api.ingest(lambda region: 1 / 0, {}, shape=(4,), dtype="i4"))


@pytest.mark.parametrize(
    ("values", "dtype", "kept"),
    [
        (np.array([2**40, 1]), "i4", False),
        (np.array([300, -1], "i2"), "i1", False),
        (np.array([1e300, 1.0]), "f4", False),
        (np.array(["abc", "d"]), "<U2", False),
        (np.array(["2020-01-01T12", "NaT"], "M8[ns]"), "M8[D]", False),
        (np.array([0.1, np.nan, np.inf]), "f4", True),  # rounded, as was asked for
        (np.array(["2020-01-01", "NaT"], "M8[ns]"), "M8[D]", True),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
async def test_verifying_finds_what_the_type_changes(api: Api, values: np.ndarray, dtype: str, kept: bool):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, shape=values.shape, dtype=dtype))
    if kept:
        await api(api.ingest(values, store, mode="r+", verify=True))
        return
    with pytest.raises(ChecksumError, match="change when they are stored as"):
        await api(api.ingest(values, store, mode="r+", verify=True))
    assert list(store) == ["zarr.json"]
    await api(api.ingest(values, store, mode="r+", dtype=dtype, verify=True))  # as is asked for


@pytest.mark.parametrize("kind", ["function", "pairs"])
async def test_verifying_finds_what_a_type_that_is_told_changes(api: Api, kind: str):
    """Such sources have none by themselves."""
    values = np.array([1.7, 2.0, 300.0])
    source = (lambda region: values[region]) if kind == "function" else [((slice(0, 3),), values)]
    with pytest.raises(ChecksumError, match=r"2 of 3 values change when they are stored as uint8: np.float64\(1.7\)"):
        await api(api.ingest(source, {}, shape=(3,), dtype="u1", verify=True))


@pytest.mark.parametrize("mode", ["a", "w", "w-"])
async def test_a_region_is_one_of_an_array_that_is_there(api: Api, mode: Any):
    store: dict[str, bytes] = {}
    with pytest.raises(NodeNotFoundError, match="a region is written into an array that is there"):
        await api(api.ingest(VALUES, store, mode=mode, region=(slice(0, 90), slice(0, 70))))
    assert not store
    await api(api.ingest(VALUES, store, mode=mode, region=(slice(None), slice(None))))
    assert (await api(api.open_array(store))).shape == VALUES.shape


@pytest.mark.parametrize("kind", ["dict", "memory://", "zarr-python"])
async def test_parts_of_chunks_in_memory(api: Api, kind: str):
    """Which is this process's own."""
    store: Any = {"dict": {}, "memory://": f"memory://{random.random()}"}.get(kind)
    if kind == "zarr-python":
        store = pytest.importorskip("zarr").storage.MemoryStore()
    await api(api.create_array(store, shape=(10,), chunks=(6,), dtype="i4"))
    await api(api.ingest(np.arange(4, dtype="i4"), store, region=(slice(3, 7),)))
    assert (await api((await api(api.open_array(store)))[...])).tolist() == [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]


async def test_datasets_of_hdf5(api: Api, tmp_path: Path):
    """Names of axes and attributes, without what refers to other datasets of the file."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("plain", "labelled", "scaled", "time"):
            file[name] = np.arange(6.0).reshape(2, 3) if name != "time" else np.arange(2.0)
        file["time"].make_scale("the time")
        file["labelled"].dims[1].label = "x"
        file["scaled"].dims[0].attach_scale(file["time"])
        told = {
            "units": np.bytes_("°C".encode()), "title": "né", "n": np.int32(3), "range": np.array([0.5, 2]),
            "one": np.array([7]), "words": np.array(["a", "b"], h5py.string_dtype()), "empty": h5py.Empty("S1"),
            "other": file["time"].ref, "several": np.array([file["time"].ref] * 2, h5py.ref_dtype),
            "table": np.array([[b"a", b"b"]]), "broken": np.bytes_(b"h\xff"), "complex": 1j, "CLASS": "mine",
        }  # fmt: skip
        file["plain"].attrs.update(told)
        for name, names in (
            ("plain", None),
            ("labelled", (None, "x")),
            ("scaled", ("time", None)),
            ("time", ("time",)),
        ):
            await api(api.ingest(file[name], tmp_path / "x.zarr", path=name, verify=True))
            found = await api(api.open_array(tmp_path / "x.zarr", path=name))
            assert (found.dimension_names, found.shape) == (names, file[name].shape)
            assert name == "plain" or not found.attrs
    found = await api(api.open_array(tmp_path / "x.zarr", path="plain"))
    assert dict(found.attrs) == {
        "units": "°C", "title": "né", "n": 3, "range": [0.5, 2], "one": 7, "words": ["a", "b"], "empty": "",
        "table": [["a", "b"]], "broken": "h\ufffd", "CLASS": "mine",
    }  # fmt: skip
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["text"] = np.array(["a", "bé"], h5py.string_dtype())
        await api(api.ingest(file["text"].asstr(), tmp_path / "x.zarr", path="text", dtype=str))
    assert (await api((await api(api.open_array(tmp_path / "x.zarr", path="text")))[...])).tolist() == ["a", "bé"]
    h5netcdf = pytest.importorskip("h5netcdf")
    with h5netcdf.File(tmp_path / "x.nc", "w") as file:
        file.dimensions = {"t": 2}
        file.create_variable("a", ("t",), "i4", data=[1, 2]).attrs["units"] = "m"
        await api(api.ingest(file.variables["a"], tmp_path / "a.zarr"))
    found = await api(api.open_array(tmp_path / "a.zarr"))
    assert (found.dimension_names, found.attrs["units"]) == (("t",), "m")


async def test_verifying_finds_what_was_damaged(api: Api):
    class Forgetful(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return None if key == "c/1/1" else await self.inner.put(key, data, if_version=if_version)

    for store in (Forgetful(stores.MemoryStore()), Forgetful(stores.LatencyStore(stores.MemoryStore(), 0.001))):
        with pytest.raises(ChecksumError, match="is not what was written there"):
            await api(api.ingest(VALUES, store, chunks=(50, 50), compressors=None, verify=True))


async def test_text_and_structs(api: Api):
    words = np.array([["a", "bb"], ["ü", ""]], dtype=np.dtypes.StringDType())
    store: dict[str, bytes] = {}
    await api(api.ingest(words, store, chunks=(1, 2), verify=True))
    assert (await api((await api(api.open_array(store)))[...])).tolist() == words.tolist()
    pairs = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
    await api(api.ingest(pairs, other := {}, chunks=1, verify=True))
    np.testing.assert_array_equal(await api((await api(api.open_array(other)))[...]), pairs)


async def test_memory_stays_within_the_budget():
    """Blocks that are on their way at the same time."""
    now, most, mutex = 0, 0, threading.Lock()

    def source(region: tuple[slice, ...]) -> np.ndarray:
        nonlocal now, most
        with mutex:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with mutex:
            now -= 1
        return np.ones([s.stop - s.start for s in region], "u1")

    store = stores.LatencyStore(stores.MemoryStore(), 0.001)
    settings = {"memory_budget": 1 << 20}
    report = await za.ingest(source, store, shape=(1 << 12, 1 << 10), dtype="u1", chunks=(64, 1024), config=settings)
    assert most <= 8
    assert report.blocks >= 4 * (1 << 22) * 4 // (1 << 20) // 4


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


def test_ingestions_that_are_killed(tmp_path: Path):
    """Kill -9 at random moments: what is there is always readable, and another run completes it."""
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


# ------------------------------------------------------------------ on the command line


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from zarrasync.cli import main

    np.save(tmp_path / "x.npy", VALUES)
    target = str(tmp_path / "x.zarr")
    assert main(["ingest", str(tmp_path / "x.npy"), target, "--chunks", "5,10", "--shards", "20,40", "--verify"]) == 0
    found = sync.open_array(target)
    np.testing.assert_array_equal(found[...], VALUES)
    assert (found.chunks, found.shards) == ((5, 10), (20, 40))
    assert "verified" in capsys.readouterr().out
    assert main(["ingest", str(tmp_path / "x.npy"), target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[""]["blocks"] == 0

    np.savez(tmp_path / "both.npz", a=VALUES, b=VALUES[0])
    assert main(["ingest", str(tmp_path / "both.npz"), str(tmp_path / "both.zarr")]) == 0
    np.testing.assert_array_equal(sync.open_group(tmp_path / "both.zarr")["b"][...], VALUES[0])
    assert main(["ingest", str(tmp_path / "both.npz"), str(tmp_path / "c.zarr"), "--variable", "c"]) == 1
    assert "has no 'c'; it has a, b" in capsys.readouterr().err

    assert main(["ingest", str(tmp_path / "both.zarr"), str(tmp_path / "two.zarr"), "--to", "2"]) == 0
    copied = sync.open_group(tmp_path / "two.zarr", zarr_format=2)
    np.testing.assert_array_equal(copied["a"][...], VALUES)
    nested = sync.create_group(tmp_path / "nested.zarr", attributes={"title": "all"})
    nested.create_group("g/empty", attributes={"note": [1]})
    nested.create_array("g/a", data=VALUES)
    nested.update_attributes({"n": 1})
    nested["g"].update_attributes({"level": 2})
    assert main(["ingest", str(tmp_path / "nested.zarr"), str(tmp_path / "again.zarr"), "--quiet"]) == 0
    again = sync.open_group(tmp_path / "again.zarr")
    assert {name: dict(node.attrs) for name, node in again.members(None)} == {
        "g": {"level": 2},
        "g/a": {},
        "g/empty": {"note": [1]},
    }
    assert dict(again.attrs) == {"title": "all", "n": 1}
    capsys.readouterr()
    assert main(["ingest", str(tmp_path / "nothing.zarr"), str(tmp_path / "t.zarr")]) == 1
    assert "no array or group" in capsys.readouterr().err


def test_the_command_keeps_chunks_and_shards(tmp_path: Path):
    from zarrasync.cli import main

    root = sync.create_group(source := str(tmp_path / "a.zarr"))
    root.create_array("field", data=VALUES, chunks=(5, 10), shards=(20, 40))
    root.create_array("rows", data=VALUES[:, 0], chunks=(7,))
    for line, field, rows in [
        ([], ((5, 10), (20, 40)), ((7,), None)),
        (["--to", "2"], ((5, 10), None), ((7,), None)),
        (["--shards", "none"], ((5, 10), None), ((7,), None)),
        (["--chunks", "30,35"], ((30, 35), None), ((7,), None)),
        (["--chunks", "auto"], (VALUES.shape, None), (VALUES[:, 0].shape, None)),
    ]:
        target = str(tmp_path / "b.zarr")
        assert main(["ingest", source, target, "--overwrite", *line]) == 0
        found = sync.open_group(target)
        assert [(found[name].chunks, found[name].shards) for name in ("field", "rows")] == [field, rows]
        np.testing.assert_array_equal(found["field"][...], VALUES)


def test_the_command_writes_small_arrays_side_by_side(
    tmp_path: Path, s3: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One that is large waits for its turn; one that fails is named, and what was done before is told."""
    from zarrasync.cli import ingest, main

    url, options = s3
    arrays = {f"a{i}": VALUES + i for i in range(20)} | {"large": np.zeros((100, 100, 100), "i8")}
    np.savez(tmp_path / "many.npz", **arrays)
    running, most, with_large = set(), 0, set()
    whole = za.ingest

    async def watched(source: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal most
        name = kwargs["path"].rsplit("/")[-1]
        running.add(name)
        most = max(most, len(running))
        if "large" in running:
            with_large.update(running)
        try:
            return await whole(source, *args, **kwargs)
        finally:
            running.remove(name)

    monkeypatch.setattr(za, "ingest", watched)
    told = [part for name, value in options.items() for part in ("--dest-option", f"{name}={value}")]
    with za.config.set(memory_budget=64 << 20):
        assert main(["ingest", str(tmp_path / "many.npz"), f"{url}/many", *told]) == 0
    assert (most, with_large) == (ingest._AT_ONCE, {"large"})
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ":" in line] == [*arrays]
    found = sync.open_group(f"{url}/many", storage_options=options)
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name][...], values)


def test_the_command_takes_what_xarray_opens(tmp_path: Path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")
    from zarrasync.cli import main

    times = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")
    dataset = xarray.Dataset(
        {"t": (("time", "x"), np.arange(10.0).reshape(2, 5), {"unit": "K"})}, {"time": times, "x": np.arange(5)}
    )
    dataset.attrs["title"] = "a test"
    dataset.to_netcdf(tmp_path / "x.nc", engine="scipy")
    assert main(["ingest", str(tmp_path / "x.nc"), str(tmp_path / "x.zarr")]) == 0
    found = xarray.open_dataset(tmp_path / "x.zarr", engine="zarrasync").load()
    xarray.testing.assert_equal(found, dataset)
    assert found.attrs == dataset.attrs
    assert found["t"].attrs["unit"] == "K"


def test_the_command_says_nothing_of_axes_without_names(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("h5netcdf")
    from zarrasync.cli import main

    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = VALUES
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert main(["ingest", str(tmp_path / "x.h5"), str(tmp_path / "x.zarr")]) == 0
    assert not [warning for warning in said if "phony" in str(warning.message)]
    np.testing.assert_array_equal(sync.open_group(tmp_path / "x.zarr")["a"][...], VALUES)


def test_the_command_takes_groups_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    from zarrasync.cli import main

    top, below = xarray.Dataset({"a": ("x", [1, 2])}), xarray.Dataset({"b": ("x", [3, 4])}, attrs={"title": "t"})
    source = str(tmp_path / "t.nc")
    xarray.DataTree.from_dict({"/": top, "/sub/deep": below}).to_netcdf(source, engine="h5netcdf")
    assert main(["ingest", source, str(tmp_path / "all.zarr"), "--verify"]) == 0
    found = sync.open_group(tmp_path / "all.zarr")
    assert [name for name, _ in found.members(None)] == ["a", "sub", "sub/deep", "sub/deep/b"]
    assert dict(found["sub/deep"].attrs) == {"title": "t"}
    assert main(["ingest", source, str(tmp_path / "part.zarr"), "--path", "sub"]) == 0
    assert sync.open_array(tmp_path / "part.zarr", path="deep/b")[...].tolist() == [3, 4]
    capsys.readouterr()
    assert main(["ingest", source, str(tmp_path / "x.zarr"), "--path", "nowhere"]) == 1
    np.save(tmp_path / "x.npy", np.arange(3))
    assert main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr"), "--path", "nowhere"]) == 1
    assert capsys.readouterr().err.count("nowhere") == 2
    assert not (tmp_path / "x.zarr").exists()


# ------------------------------------------------------------------ what sources say


async def test_regions_that_cut_chunks_are_not_taken_for_done(api: Api):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, shape=(20,), dtype="i4", chunks=(10,)))
    await api(api.ingest(np.arange(1, 6, dtype="i4"), store, region=(slice(0, 5),)))
    await api(api.ingest(np.arange(6, 16, dtype="i4"), store, region=(slice(5, 15),)))
    expected = [*range(1, 16), 0, 0, 0, 0, 0]
    assert (await api((await api(api.open_array(store)))[...])).tolist() == expected


async def test_what_sources_say_of_themselves(api: Api):
    masked = np.ma.masked_array([1, 2, 3], [0, 1, 0])
    await api(api.ingest(masked, store := {}, fill_value=9, verify=True))
    assert (await api((await api(api.open_array(store)))[...])).tolist() == [1, 9, 3]
    await api(api.ingest(np.arange(3), store := {}, dtype="f4"))
    assert (await api(api.open_array(store))).dtype == np.float32
    with pytest.raises(ShapeError, match="source has shape"):
        await api(api.ingest(np.arange(3), {}, shape=(4,)))
    named = await api(api.create_array({}, data=np.arange(3), dimension_names=("x",), fill_value=-9))
    await api(api.ingest(named, store := {}, zarr_format=2))
    found = await api(api.open_array(store))
    assert (dict(found.attrs), found.fill_value) == ({"_ARRAY_DIMENSIONS": ["x"]}, -9)
    await api(api.ingest(np.array("abc", np.dtypes.StringDType()), store := {}, verify=True))
    assert await api((await api(api.open_array(store)))[()]) == "abc"
    dask = pytest.importorskip("dask.array")
    await api(api.ingest(dask.zeros((0, 3)), store := {}))
    assert (await api(api.open_array(store))).shape == (0, 3)


@pytest.mark.parametrize("kind", ["zarrasync", "zarr-python"])
@pytest.mark.parametrize(
    ("options", "chunks", "shards"),
    [
        ({}, (5, 10), (20, 40)),
        ({"zarr_format": 2}, (5, 10), None),
        ({"shards": None}, (5, 10), None),
        ({"shards": (10, 10)}, (5, 10), (10, 10)),
        ({"chunks": (9, 7)}, (9, 7), None),
        ({"chunks": "auto"}, VALUES.shape, None),
    ],
)
async def test_chunks_and_shards_of_arrays_in_zarr_are_kept(
    api: Api, kind: str, options: dict[str, Any], chunks: tuple[int, ...], shards: tuple[int, ...] | None
):
    source = {"data": VALUES, "chunks": (5, 10), "shards": (20, 40)}
    if kind == "zarr-python":
        given = pytest.importorskip("zarr").create_array({}, **source)
    else:
        given = await api(api.create_array({}, **source))
    await api(api.ingest(given, store := {}, verify=True, **options))
    found = await api(api.open_array(store))
    assert (found.chunks, found.shards) == (chunks, shards)
    np.testing.assert_array_equal(await api(found[...]), VALUES)


@pytest.mark.parametrize("kind", ["zarrasync", "zarr-python"])
async def test_arrays_in_zarr_whose_chunks_differ_in_size(api: Api, kind: str):
    uneven = {"data": VALUES, "chunks": [[30, 60], [10, 40, 20]]}
    if kind == "zarr-python":
        zarr = pytest.importorskip("zarr", minversion="3.4")
        with zarr.config.set({"array.rectilinear_chunks": True}):
            given = zarr.create_array({}, **(uneven | {"data": None, "shape": VALUES.shape, "dtype": "i4"}))
            given[...] = VALUES
    else:
        given = await api(api.create_array({}, **uneven))
    await api(api.ingest(given, store := {}, verify=True))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES)


def test_the_command_reads_members_of_archives_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from zarrasync.cli import ingest, main

    values = {f"v{n}": np.full(1000, n) for n in range(4)}
    np.savez(tmp_path / "a.npz", **values)
    seen, most = list[weakref.ref[Any]](), 0
    load = ingest._Member.load

    def watched(self: Any) -> Any:
        nonlocal most
        found = load(self)
        gc.collect()
        seen.append(weakref.ref(found))
        most = max(most, sum(one() is not None for one in seen))
        return found

    monkeypatch.setattr(ingest._Member, "load", watched)
    assert main(["ingest", str(tmp_path / "a.npz"), str(tmp_path / "a.zarr")]) == 0
    assert most == 1
    for name, want in values.items():
        np.testing.assert_array_equal(sync.open_array(tmp_path / "a.zarr", path=name)[...], want)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "objects.npz", v=np.array([None], object))
    for name in ("bad.npz", "empty.npy", "objects.npz"):
        assert main(["ingest", str(tmp_path / name), str(tmp_path / "b.zarr")]) == 1
        assert name in capsys.readouterr().err


@pytest.mark.parametrize("names", [["a", "__b"], ["a", "a/b"]])
def test_the_command_replaces_nothing_by_names_that_can_not_be(names: list[str], tmp_path: Path):
    from zarrasync.cli import main

    sync.save(tmp_path / "a.zarr", kept=np.arange(3))
    np.savez(tmp_path / "a.npz", **dict.fromkeys(names, np.arange(2)))
    assert main(["ingest", str(tmp_path / "a.npz"), str(tmp_path / "a.zarr"), "--overwrite"]) == 1
    assert sync.load(tmp_path / "a.zarr")["kept"].tolist() == [0, 1, 2]


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from zarrasync.cli import main

    assert main(["ingest", str(tmp_path / "none.npy"), str(tmp_path / "x")]) == 1
    assert "none.npy" in capsys.readouterr().err


@pytest.mark.parametrize("size", [20, 15])
@pytest.mark.parametrize("verify", [True, False])
async def test_pairs_that_come_again(api: Api, size: int, verify: bool):
    """Blocks of whole chunks count as done; of those that cut chunks all are written again."""
    options: dict[str, Any] = {"shape": VALUES.shape, "dtype": "i4", "chunks": (20, 20)}
    pairs = blocks_of(VALUES, size)
    await api(api.ingest(pairs[: len(pairs) // 2], store := {}, **options))
    report = await api(api.ingest(pairs, store, verify=verify, **options))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES)
    assert report.skipped + report.blocks == len(pairs)
    assert report.skipped == len(pairs) // 2 if size == 20 else report.skipped < len(pairs) // 2


@pytest.mark.parametrize("kind", ["local", "slow"])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_memory_that_an_iterable_uses_again(api: Api, kind: str, asynchronous: bool, tmp_path: Path):
    """Readers of files fill one buffer again and again."""
    store: Any = stores.LocalStore(tmp_path) if kind == "local" else stores.LatencyStore(stores.MemoryStore(), 0.001)

    def pairs() -> Iterator[Any]:
        buffer = np.empty((10, 100), "i4")
        for number in range(40):
            buffer[...] = number + 1
            yield (slice(10 * number, 10 * number + 10), slice(0, 100)), buffer

    async def later() -> AsyncIterator[Any]:
        for pair in pairs():
            yield pair

    given = later() if asynchronous else pairs()
    await api(api.ingest(given, store, shape=(400, 100), dtype="i4", chunks=(10, 100)))
    found = await api((await api(api.open_array(store)))[...])
    np.testing.assert_array_equal(found, np.repeat(np.arange(1, 41), 10)[:, None] * np.ones((1, 100), "i4"))


@pytest.mark.parametrize("where", ["local", "memory://closed"])
@pytest.mark.parametrize("bad", [True, False])
async def test_an_asynchronous_iterable_is_closed(api: Api, bad: bool, where: str, tmp_path: Path):
    """Also when the call fails, and before it returns."""
    closed = []

    async def pairs() -> AsyncIterator[Any]:
        try:
            for start in range(0, 40, 10):
                yield (slice(start, start + 10),), np.ones(3 if bad and start == 20 else 10)
        finally:
            closed.append(True)

    how = pytest.raises(ShapeError, match="has shape") if bad else nullcontext()
    with how:
        store = tmp_path if where == "local" else f"{where}/{tmp_path.name}"
        await api(api.ingest(pairs(), store, shape=(40,), dtype="f8", chunks=(10,)))
    assert closed


async def test_a_bar_does_not_take_what_was_there_for_fast(api: Api, monkeypatch: pytest.MonkeyPatch):
    """Of a job that goes on, the rate and the time that is left are those of what is written now."""
    from tqdm import auto

    bars = []

    class Kept(auto.tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            bars.append(self)

    monkeypatch.setattr(auto, "tqdm", Kept)
    store = stores.MemoryStore()
    await api(api.ingest(VALUES, store, chunks=(20, 20)))
    gone = [key for key in await store.list_prefix("c/") if key.startswith("c/0/")]
    for key in gone:
        await store.erase(key)
    report = await api(api.ingest(VALUES, store, chunks=(20, 20), progress=True))
    (bar,) = bars
    assert report.nbytes < VALUES.nbytes
    assert (bar.n, bar.initial) == (VALUES.nbytes, VALUES.nbytes - report.nbytes)


async def test_empty_blocks(api: Api):
    """What holds nothing is not stored; only where something may be there is it erased."""
    values = VALUES.copy()
    values[:40] = 0
    kept: dict[str, bytes] = {}
    counting = stores.CountingStore(stores.MemoryStore(kept))
    await api(api.ingest(values, counting, chunks=(20, 35)))
    assert counting.counts.erases == 0
    assert len([key for key in kept if key.startswith("c/")]) == 6
    await api(api.ingest(np.zeros_like(values), counting, mode="r+"))  # into what is there
    assert [key for key in kept if key.startswith("c/")] == []
    assert (await api((await api(api.open_array(kept)))[...]) == 0).all()


async def test_a_region_that_comes_twice_ends_as_it_came_last(api: Api):
    whole = (slice(0, 20), slice(0, 20))
    pairs = [(whole, np.ones((20, 20), "i4")), (whole, np.zeros((20, 20), "i4"))]
    store = stores.MemoryStore()
    await api(api.ingest(iter(pairs), store, shape=(20, 20), dtype="i4", chunks=(20, 20), concurrency=1))
    assert (await api((await api(api.open_array(store)))[...]) == 0).all()


@pytest.mark.parametrize("how", ["ingest", "copy"])
async def test_what_lay_there_without_a_document_does_not_come_back(api: Api, how: str):
    """Chunks that an erased array has left behind are no part of the new one."""
    kept: dict[str, bytes] = {}
    await api(api.ingest(np.ones((4, 4), "i4"), kept, chunks=(2, 2), fill_value=0))
    del kept["zarr.json"]
    values = np.zeros((4, 4), "i4")
    values[0, 0] = 5
    if how == "ingest":
        await api(api.ingest(values, kept, mode="w-", chunks=(2, 2), fill_value=0))
    else:
        source: dict[str, bytes] = {}
        await api(api.create_array(source, data=values, chunks=(4, 4)))
        await api(api.copy(source, kept, chunks=(2, 2)))
    np.testing.assert_array_equal(await api((await api(api.open_array(kept)))[...]), values)


@pytest.mark.parametrize("how", ["ingest", "copy"])
@pytest.mark.parametrize("left", ["chunks", "half a tree"])
async def test_going_on_where_a_replacement_was_killed(api: Api, how: str, left: str):
    """Chunks that lie there without an array are not what an earlier run has done; later runs do not take them for it, either."""
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

    if left == "half a tree":  # the new one was begun, and nothing of it written
        with pytest.raises(StoreError):
            await run(Killed(stores.MemoryStore(kept)))
    await run(kept)
    np.testing.assert_array_equal(await api((await api(api.open_array(kept, path="x")))[...]), values)


@pytest.mark.parametrize("how", ["ingest", "copy"])
@pytest.mark.parametrize("kept", ["an array", "files"])
async def test_what_lies_below_a_new_array_is_not_taken_for_its_chunks(api: Api, tmp_path: Path, how: str, kept: str):
    """Somebody else's arrays and files, whose keys look like those of chunks, stay as they are."""
    if kept == "an array":
        await api(api.create_array(tmp_path, path="c", data=np.arange(8), chunks=2, zarr_format=2))
        (tmp_path / ".zgroup").unlink()
        match = "other nodes lie below it .c/.zarray"
    else:
        for name in ("0", "1", "notes"):
            (tmp_path / name).write_text("mine")
        match = r"2 values where chunks of / in .* will be .0, 1. .* other things lie beside .notes."
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(NodeExistsError, match=match):
        if how == "ingest":
            await api(api.ingest(np.zeros(4), tmp_path, chunks=2, zarr_format=2 if kept == "files" else 3))
        else:
            source: dict[str, bytes] = {}
            await api(api.create_array(source, data=np.zeros(4), chunks=2, zarr_format=2 if kept == "files" else 3))
            await api(api.copy(source, tmp_path, resume=True))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_what_lies_beside_the_chunks_of_a_new_array(api: Api, tmp_path: Path):
    for name in ("notes", "7"):  # which is no chunk of it
        (tmp_path / name).write_text("mine")
    await api(api.ingest(np.arange(4), tmp_path, chunks=2, zarr_format=2))
    assert (await api((await api(api.open_array(tmp_path)))[...])).tolist() == [0, 1, 2, 3]
    assert [(tmp_path / name).read_text() for name in ("notes", "7")] == ["mine"] * 2


@pytest.mark.parametrize(("zarr_format", "new_takes", "old_takes"), [(None, 3 + 12, 3), (2, 4 + 12, 4), (3, 4 + 2, 4)])
async def test_the_requests_of_beginning(api: Api, zarr_format: int | None, new_takes: int, old_takes: int):
    """One batch tells whether there is an array, another what is in the way of a new one; then what is left there."""
    store = stores.CountingStore(stores.MemoryStore())
    given = {} if zarr_format is None else {"zarr_format": zarr_format}
    new = await api(api.ingest(VALUES[:80, :60], store, path="a/b", chunks=(20, 20), **given))
    counts = store.reset()
    assert new.requests == counts.requests
    assert (counts.fetches, counts.lists, counts.puts) == (new_takes, 1, 12 + 3)
    again = await api(api.ingest(VALUES[:80, :60], store, path="a/b", chunks=(20, 20), **given))
    counts = store.reset()
    assert again.requests == counts.requests
    assert (counts.fetches, counts.lists, counts.puts) == (old_takes, 1, 0)


@pytest.mark.parametrize("how", ["ingest", "copy"])
async def test_where_nobody_can_tell_what_lies_there(api: Api, how: str):
    """A store that does not list has chunks, maybe, that would be taken for the new array's: nothing is written."""

    class Unlisted(stores.Store):
        """As those are that do not say so."""

        @property
        def identity(self) -> Any:
            return inner.identity

        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            return await inner.fetch(requests, versions=versions)

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return await inner.put(key, data, if_version=if_version)

    inner = stores.MemoryStore()
    await api(api.create_array(inner, data=np.arange(1, 9), chunks=2))
    del inner.values["zarr.json"]
    before = dict(inner.values)
    with pytest.raises(UnsupportedOperation):
        if how == "ingest":
            await api(api.ingest(np.zeros(8, "i8"), Unlisted(), chunks=2, fill_value=0))
        else:
            source: dict[str, bytes] = {}
            await api(api.create_array(source, data=np.zeros(8, "i8"), chunks=2))
            await api(api.copy(source, Unlisted(), resume=True))
    assert inner.values == before


@pytest.mark.filterwarnings("ignore:g has documents of Zarr formats 3 and 2")
@pytest.mark.parametrize("mode", ["a", "w", "w-"])
async def test_a_format_that_is_named_below_a_group_of_another(api: Api, mode: Any):
    store: dict[str, bytes] = {}
    await api(api.create_group(store, path="g", zarr_format=2))
    await api(api.ingest(np.arange(4), store, path="g/x", mode=mode, zarr_format=3))
    found = await api(api.open_array(store, path="g/x"))
    assert (found.zarr_format, (await api(found[...])).tolist()) == (3, [0, 1, 2, 3])
    with pytest.raises(NodeTypeError, match="there is a group at /g"):
        await api(api.ingest(np.arange(4), store, path="g", zarr_format=3))


@pytest.mark.parametrize("function", ["open_array", "ingest"])
async def test_an_array_that_another_makes_first(api: Api, function: str):
    """Who has looked and found nothing takes what is there by then."""

    class Late(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            found = await super().fetch(requests, versions=versions)
            if "zarr.json" not in kept:
                await za.create_array(kept, shape=4, dtype="i8", chunks=2, fill_value=0)
            return found

    kept: dict[str, bytes] = {}
    store = Late(stores.MemoryStore(kept))
    if function == "ingest":
        await api(api.ingest(np.arange(4), store, chunks=2))
    else:
        array = await api(api.open_array(store, mode="a", shape=4, dtype="i8", chunks=2, fill_value=5))
        assert array.fill_value == 0
        await api.write(array, ..., np.arange(4))
    assert (await api((await api(api.open_array(kept)))[...])).tolist() == [0, 1, 2, 3]


def test_a_replacement_that_is_killed_and_gone_on_with(tmp_path: Path):
    old = sync.create_array(tmp_path / "old", data=np.ones((400, 100)), chunks=(10, 10))
    code = (
        "import sys, numpy as np; from zarrasync import sync; print('go', flush=True);"
        "sync.ingest(np.full((400, 100), 2.0), sys.argv[1], mode='w', chunks=(10, 10))"
    )
    chance = random.Random(5)
    for number in range(6):
        place = tmp_path / str(number)
        shutil.copytree(old.store.root, place)
        with subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.random() * 0.06)  # anywhere in it
            process.kill()
        found = sync.open_array(place, mode="r+") if (place / "zarr.json").exists() else None
        if found is not None and (found[...] == 1).all():
            continue  # it had not begun
        sync.ingest(np.full((400, 100), 2.0), place, chunks=(10, 10))
        assert (sync.open_array(place)[...] == 2).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("then", ["append", "resize"])
@pytest.mark.parametrize(
    "store", ["stores.LocalStore", "lambda path: stores.FsspecStore(fsspec.filesystem('file'), path)"]
)
async def test_what_an_append_that_was_killed_has_left(
    api: Api, tmp_path: Path, zarr_format: int, then: str, store: str
):
    """On files rows are written before the shape: what is beyond it does not come back."""
    array = await api(api.create_array(tmp_path, shape=(5, 4), chunks=(2, 2), dtype="i4", zarr_format=zarr_format))
    await api.write(array, ..., 1)
    code = (
        "import os, sys, fsspec, numpy as np; from zarrasync import stores, sync\n"
        "class Dying(stores.WrapperStore):\n"
        "    async def put(self, key, data, *, if_version=None):\n"
        "        if key.endswith(('zarr.json', '.zarray')): os._exit(9)\n"
        "        return await super().put(key, data, if_version=if_version)\n"
        f"store = Dying(({store})(sys.argv[1]))\n"
        "sync.open_array(store, mode='r+').append(np.full((7, 4), 2))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    found = await api(api.open_array(eval(store)(str(tmp_path)), mode="r+"))
    assert found.shape == (5, 4)
    expected = np.zeros((12, 4))
    expected[:5] = 1
    if then == "append":
        await api(found.append(np.full((1, 4), 3)))
        expected[5] = 3
    await api(found.resize((12, 4)))
    np.testing.assert_array_equal(await api(found[...]), expected)
    assert await found.store.unfinished("") == []


async def test_pairs_that_cut_chunks(api: Api, tmp_path: Path):
    """Blocks that share chunks with others' are refused where these could be lost."""
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    await api(api.create_array(store, data=VALUES, chunks=(20, 20)))
    pairs = blocks_of(VALUES + 1, 10)
    for into, more in ((store, {}), (store, {"unaligned": "allow"}), ({}, {})):
        described = {"shape": VALUES.shape, "dtype": "i4", "chunks": (20, 20)}
        if into is store and not more:
            with pytest.raises(ShapeError, match="cuts the chunks c/"):
                await api(api.ingest(iter(pairs), into, **described, mode="r+"))
            continue
        await api(api.ingest(iter(pairs), into, **described, mode="r+" if into is store else "a", **more))
        np.testing.assert_array_equal(await api((await api(api.open_array(into)))[...]), VALUES + 1)


# ------------------------------------------------------------------ once more


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (np.array([1, 300, -1]), {"dtype": "u1"}),
        (np.array([1.5, 2.5]), {"dtype": "i4"}),
        (np.arange(4.0), {"chunks": 2, "fill_value": np.nan, "compressors": None, "attributes": {"a": 1}}),
        (np.arange(4.0), {"zarr_format": 2}),
        (np.arange(4.0), {"zarr_format": 2, "order": "F", "fill_value": None}),
        (np.arange(6.0).reshape(2, 3), {"zarr_format": 2, "order": "F", "compressors": "zstd"}),
    ],
)
async def test_the_same_call_again(api: Api, values: np.ndarray, options: dict[str, Any]):
    store: dict[str, bytes] = {}
    first = await api(api.ingest(values, store, verify=True, **options))
    again = await api(api.ingest(values, store, verify=True, **options))
    assert (first.blocks, again.blocks, again.skipped, again.verified) == (again.skipped, 0, first.blocks, first.blocks)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"chunkz": 3}, TypeError, "did you mean 'chunks'"),
        ({"chunks": 3}, ShapeError, "is there with chunks"),
        ({"dtype": "f4"}, NodeTypeError, "is there with data type"),
        ({"zarr_format": 2}, NodeTypeError, "is there in Zarr format 3, not 2"),
        ({"fill_value": 7}, MetadataError, "is there with the fill value"),
        ({"compressors": "nosuch"}, MetadataError, "nosuch"),
    ],
)
async def test_options_of_another_array_than_what_is_there(
    api: Api, options: dict[str, Any], error: type[Exception], match: str
):
    store: dict[str, bytes] = {}
    await api(api.ingest(np.arange(4.0), store, chunks=2))
    before = dict(store)
    with pytest.raises(error, match=match):
        await api(api.ingest(np.arange(4.0), store, **options))
    assert store == before


async def test_blocks_that_replace_each_other(api: Api):
    pairs = [(slice(0, 6), np.full(6, 1)), (slice(4, 10), np.full(6, 2))]
    store: dict[str, bytes] = {}
    report = await api(api.ingest(pairs, store, shape=10, dtype="i8", chunks=5, verify=True, concurrency=1))
    assert (report.blocks, report.verified) == (2, 1)
    assert (await api((await api(api.open_array(store)))[...])).tolist() == [1] * 4 + [2] * 6


@pytest.mark.parametrize("kind", ["pairs", "asynchronous pairs", "function"])
@pytest.mark.parametrize("store", ["local", "memory"])
async def test_blocks_in_memory_keep_to_the_budget(api: Api, tmp_path: Path, kind: str, store: str):
    """However many threads there are."""
    most, made = 0, list[weakref.ref[np.ndarray]]()

    def block(region: tuple[slice, ...]) -> np.ndarray:
        nonlocal most
        found = np.full(region[0].stop - region[0].start, region[0].start >> 20, "u1")
        made.append(weakref.ref(found))
        most = max(most, sum(block.nbytes >> 16 for one in made if (block := one()) is not None))
        return found

    # A little one first, which says nothing of those that come.
    regions = [
        (slice(0, 1 << 16),),
        (slice(1 << 16, 1 << 20),),
        *((slice(i << 20, i + 1 << 20),) for i in range(1, 24)),
    ]

    async def asynchronously():
        for region in regions:
            yield region, block(region)

    source: Any = {"pairs": ((r, block(r)) for r in regions), "function": block}.get(kind) or asynchronously()
    target = tmp_path if store == "local" else stores.LatencyStore(stores.MemoryStore(), 0.001)
    config = {"memory_budget": 4 << 20, "threads": 12}
    options = {"shape": (24 << 20,), "dtype": "u1", "chunks": (1 << 16,), "compressors": None, "config": config}
    report = await api(api.ingest(source, target, **options))
    assert report.nbytes == 24 << 20
    assert most <= 5 << 4  # three MiB are worked on, one block waits, and one is being made
    array = await api(api.open_array(target))
    assert (await api(array.view[:: 1 << 20].read())).tolist() == list(range(24))
