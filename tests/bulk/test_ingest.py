"""Ingestion into arrays: modes, regions, verification, memory, progress."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.blocks import VALUES, blocks_of
from zarrasync import stores
from zarrasync.errors import (
    ChecksumError,
    EncodingError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ShapeError,
)
from zarrasync.integrations.monitoring import Bars
from zarrasync.testing import LatencyStore


async def test_modes(api: Api):
    store: dict[str, bytes] = {}
    await api(api.ingest(VALUES, store, mode="w-", chunks=(50, 50)))
    with pytest.raises(NodeExistsError):
        await api(api.ingest(VALUES, store, mode="w-"))
    assert (await api(api.ingest(VALUES + 1, store))).blocks == 0  # existing blocks count as finished
    await api(api.ingest(VALUES + 1, store, mode="r+"))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES + 1)
    await api(api.ingest(VALUES[:5], store, mode="w", chunks=(2, 70)))
    assert (await api(api.open_array(store))).shape == (5, 70)
    with pytest.raises(ValueError, match="mode must be"):
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
    with pytest.raises(ShapeError, match="covers only parts of the chunks c/1/0, c/1/1, c/1/2 and 1 more"):
        await api(api.ingest(VALUES[:30], store, mode="r+", region=(slice(0, 30), slice(None)), unaligned="error"))
    await api(api.ingest(VALUES[:40], store, mode="r+", region=(slice(0, 40), slice(None)), unaligned="error"))
    with pytest.raises(ShapeError, match="source has shape"):
        await api(api.ingest(VALUES, store, mode="r+", region=(slice(0, 30), slice(None))))
    plain = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "plain"))
    await api(api.create_array(plain, shape=VALUES.shape, dtype="i4", chunks=(20, 20)))
    with pytest.raises(ShapeError, match="multiples of"):  # the store has no conditional writes
        await api(api.ingest(VALUES[:30], plain, mode="r+", region=(slice(0, 30), slice(None))))
    await api(api.ingest(VALUES[:30], plain, mode="r+", region=(slice(0, 30), slice(None)), unaligned="allow"))


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


CHANGED: list[tuple[np.ndarray, str, str]] = [
    (np.array([2**40, 1]), "i4", "the value 1099511627776 at index 0 cannot be stored as int32"),
    (np.array([3, 300, -1], "i2"), "u1", "the value 300 at index 1 .* become 44; 2 of 3 values"),
    (np.array([1.5, 2.0]), "i4", "the value 1.5 at index 0"),
    (np.array([2.0, np.nan]), "i4", "the value nan at index 1"),
    (np.array([2**60 + 1]), "f8", f"the value {2**60 + 1} at index 0"),
    (np.array([2**24 + 1]), "f4", "float32"),
    (np.array([1e300, 1.0]), "f4", "become inf"),
    (np.array([1 + 1j]), "f8", "1j"),
    (np.array(["abc", "d"]), "<U2", "the value 'abc' at index 0"),
    (np.array(["2020-01-01T12", "NaT"], "M8[ns]"), "M8[D]", "2020-01-01T12:00:00.000000000 at index 0"),
    (np.ma.masked_array([300, 400], [True, False]), "u1", "the value 400 at index 1 .* 1 of 2"),
]


@pytest.mark.filterwarnings("error", "ignore:Casting complex")
@pytest.mark.parametrize("is_requested", [False, True])
@pytest.mark.parametrize(("values", "dtype", "message"), CHANGED)
async def test_values_that_do_not_fit(api: Api, values: np.ndarray, dtype: str, message: str, is_requested: bool):
    """An array that exists refuses other kinds of numbers unless ``dtype`` is given."""
    store: dict[str, bytes] = {}
    if not is_requested:
        await api(api.create_array(store, shape=values.shape, dtype=dtype))
        with pytest.raises((EncodingError, NodeTypeError)):
            await api(api.ingest(values, store))
        assert list(store) == ["zarr.json"]
    with pytest.raises(EncodingError, match=message):
        await api(api.ingest(values, store, dtype=dtype))
    assert list(store) == ["zarr.json"]


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize(("values", "dtype", "message"), CHANGED)
async def test_data_of_new_arrays_that_do_not_fit(api: Api, values: np.ndarray, dtype: str, message: str):
    store: dict[str, bytes] = {}
    with pytest.raises(EncodingError, match=message):
        await api(api.create_array(store, data=values, dtype=dtype))
    assert not store
    group = await api(api.create_group(store))
    with pytest.raises(EncodingError, match=message):
        await api(group.create_array("a", data=values, dtype=dtype))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0.1, np.nan, np.inf, 1e-60]), "f4"),
        (np.array([2**53, -(2**53)]), "f8"),
        (np.array([255.0, 0.0]), "u1"),
        (np.array(["2020-01-01", "NaT"], "M8[ns]"), "M8[D]"),
        (np.ma.masked_array([300, 4], [True, False]), "u1"),
    ],
)
async def test_values_that_fit(api: Api, values: np.ndarray, dtype: str):
    await api(api.ingest(values, store := {}, dtype=dtype, verify=True))
    stored = await api(api.load(store))
    np.testing.assert_array_equal(stored, np.ma.filled(values, 0).astype(dtype))


@pytest.mark.parametrize("kind", ["function", "pairs", "lists"])
async def test_values_of_functions_that_do_not_fit(api: Api, kind: str):
    values = np.array([0, 0, 0, 1.7, 2.0, 300.0])
    source: Any = lambda region: values[region]  # noqa: E731
    if kind != "function":
        blocks = (values[:3], values[3:])
        source = [
            ((slice(3 * n, 3 * n + 3),), block if kind == "pairs" else block.tolist()) for n, block in enumerate(blocks)
        ]
    with pytest.raises(EncodingError, match=r"the value 1\.7 at index 3 .* become 1; 2 of ") as caught:
        await api(api.ingest(source, {}, shape=(6,), dtype="u1", chunks=3))
    assert (caught.value.index, caught.value.value) == ((3,), 1.7)


@pytest.mark.parametrize("mode", ["a", "w", "w-"])
async def test_a_region_needs_an_existing_array(api: Api, mode: Any):
    store: dict[str, bytes] = {}
    with pytest.raises(NodeNotFoundError, match="cannot write a region: no array exists"):
        await api(api.ingest(VALUES, store, mode=mode, region=(slice(0, 90), slice(0, 70))))
    assert not store
    await api(api.ingest(VALUES, store, mode=mode, region=(slice(None), slice(None))))
    assert (await api(api.open_array(store))).shape == VALUES.shape


@pytest.mark.parametrize("kind", ["dict", "memory://", "zarr-python"])
async def test_parts_of_chunks_in_memory(api: Api, kind: str):
    """A store in memory belongs to this process, so parts of chunks are safe."""
    store: Any = {"dict": {}, "memory://": f"memory://{random.random()}"}.get(kind)
    if kind == "zarr-python":
        store = pytest.importorskip("zarr").storage.MemoryStore()
    await api(api.create_array(store, shape=(10,), chunks=(6,), dtype="i4"))
    await api(api.ingest(np.arange(4, dtype="i4"), store, region=(slice(3, 7),)))
    assert (await api((await api(api.open_array(store)))[...])).tolist() == [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]


async def test_verifying_finds_damage(api: Api):
    class Forgetful(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return None if key == "c/1/1" else await self.inner.put(key, data, if_version=if_version)

    for store in (Forgetful(stores.MemoryStore()), Forgetful(LatencyStore(stores.MemoryStore(), 0.001))):
        with pytest.raises(ChecksumError, match="differs from the written values"):
            await api(api.ingest(VALUES, store, chunks=(50, 50), compressors=None, verify=True))


async def test_progress_of_a_resumed_job_excludes_existing_blocks(api: Api):
    """Rate and remaining time of a resumed job count only the bytes written now."""
    from tqdm import auto

    bars = []

    class Kept(auto.tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            bars.append(self)

    store = stores.MemoryStore()
    await api(api.ingest(VALUES, store, chunks=(20, 20)))
    gone = [key for key in await store.list_prefix("c/") if key.startswith("c/0/")]
    for key in gone:
        await store.erase(key)
    report = await api(api.ingest(VALUES, store, chunks=(20, 20), progress=Bars(Kept)))
    (bar,) = bars
    assert report.nbytes < VALUES.nbytes
    assert (bar.n, bar.initial) == (VALUES.nbytes, VALUES.nbytes - report.nbytes)


async def test_empty_blocks(api: Api):
    """Chunks of fill values are not stored, and erased only where an older chunk may exist."""
    values = VALUES.copy()
    values[:40] = 0
    kept: dict[str, bytes] = {}
    counting = stores.CountingStore(stores.MemoryStore(kept))
    await api(api.ingest(values, counting, chunks=(20, 35)))
    assert counting.counts.erases == 0
    assert len([key for key in kept if key.startswith("c/")]) == 6
    await api(api.ingest(np.zeros_like(values), counting, mode="r+"))  # into existing chunks
    assert [key for key in kept if key.startswith("c/")] == []
    assert (await api((await api(api.open_array(kept)))[...]) == 0).all()


async def test_a_region_that_comes_twice_ends_as_it_came_last(api: Api):
    whole = (slice(0, 20), slice(0, 20))
    pairs = [(whole, np.ones((20, 20), "i4")), (whole, np.zeros((20, 20), "i4"))]
    store = stores.MemoryStore()
    await api(api.ingest(iter(pairs), store, shape=(20, 20), dtype="i4", chunks=(20, 20), concurrency=1))
    assert (await api((await api(api.open_array(store)))[...]) == 0).all()


async def test_pairs_that_cut_chunks(api: Api, tmp_path: Path):
    """Blocks that share a chunk are refused where concurrent writers could lose data."""
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    await api(api.create_array(store, data=VALUES, chunks=(20, 20)))
    pairs = blocks_of(VALUES + 1, 10)
    for into, more in ((store, {}), (store, {"unaligned": "allow"}), ({}, {})):
        described = {"shape": VALUES.shape, "dtype": "i4", "chunks": (20, 20)}
        if into is store and not more:
            with pytest.raises(ShapeError, match="covers only parts of the chunks c/"):
                await api(api.ingest(iter(pairs), into, **described, mode="r+"))
            continue
        await api(api.ingest(iter(pairs), into, **described, mode="r+" if into is store else "a", **more))
        np.testing.assert_array_equal(await api((await api(api.open_array(into)))[...]), VALUES + 1)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (np.array([1, 200, 0]), {"dtype": "u1"}),
        (np.array([1.5, 0.1]), {"dtype": "f4"}),
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
        ({"chunks": 3}, ShapeError, "exists with chunks"),
        ({"dtype": "f4"}, NodeTypeError, "exists with data type"),
        ({"zarr_format": 2}, NodeTypeError, "exists in Zarr format 3, not 2"),
        ({"fill_value": 7}, MetadataError, "exists with the fill value"),
        ({"compressors": "nosuch"}, MetadataError, "nosuch"),
    ],
)
async def test_options_that_contradict_the_existing_array(
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
    """The budget holds for any number of threads."""
    most, made = 0, list[weakref.ref[np.ndarray]]()

    def block(region: tuple[slice, ...]) -> np.ndarray:
        nonlocal most
        found = np.full(region[0].stop - region[0].start, region[0].start >> 20, "u1")
        made.append(weakref.ref(found))
        most = max(most, sum(block.nbytes >> 16 for one in made if (block := one()) is not None))
        return found

    # The first block is small and says nothing about the size of later ones.
    regions = [
        (slice(0, 1 << 16),),
        (slice(1 << 16, 1 << 20),),
        *((slice(i << 20, i + 1 << 20),) for i in range(1, 24)),
    ]

    async def asynchronously():
        for region in regions:
            yield region, block(region)

    source: Any = {"pairs": ((r, block(r)) for r in regions), "function": block}.get(kind) or asynchronously()
    target = tmp_path if store == "local" else LatencyStore(stores.MemoryStore(), 0.001)
    config = {"memory_budget": 4 << 20, "threads": 12}
    options = {"shape": (24 << 20,), "dtype": "u1", "chunks": (1 << 16,), "compressors": None, "config": config}
    report = await api(api.ingest(source, target, **options))
    assert report.nbytes == 24 << 20
    assert most <= 5 << 4  # three blocks are being written, one waits, and one is being created
    array = await api(api.open_array(target))
    assert (await api(array.view[:: 1 << 20].read())).tolist() == list(range(24))
