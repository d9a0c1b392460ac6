"""zarrasync as the codec pipeline of zarr-python: the same values and bytes, fewer requests, and what it leaves alone."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr")

from zarr import codecs
from zarr.core.buffer import BufferPrototype, cpu
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from tests.support.covering import covering
from tests.support.store_kinds import make_store
from zarrasync import stores
from zarrasync.errors import StoreError
from zarrasync.integrations.zarr import CodecPipeline, zarr_store
from zarrasync.testing import FaultyStore

OURS = "zarrasync.integrations.zarr.CodecPipeline"
DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"
VALUES = np.arange(60 * 80, dtype="f4").reshape(60, 80)
KINDS = ["memory", "local", "ours-local", "ours-latency", "wrapped"]
CHAINS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (10, 16)},
    "raw": {"chunks": (10, 16), "compressors": None},
    "shards": {"chunks": (5, 4), "shards": (20, 40)},
    "raw shards": {"chunks": (5, 4), "shards": (20, 40), "compressors": None},
    "v2": {"chunks": (10, 16), "zarr_format": 2},
    "v2 F": {"chunks": (10, 16), "zarr_format": 2, "order": "F"},
    "v2 big-endian": {"chunks": (10, 16), "zarr_format": 2, "dtype": ">f4", "fill_value": 7},
}


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    with zarr.config.set({"codec_pipeline.path": OURS}):
        yield


class CountedStore(WrapperStore[Any]):
    """A store of zarr-python that counts its reads."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.reads: list[Any] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.reads.append(byte_range)
        return await super().get(key, prototype, byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        self.reads.append(byte_range)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)  # type: ignore[misc,unused-ignore]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param.startswith("ours-"):
        return zarr_store(make_store(request.param.removeprefix("ours-"), request, tmp_path))
    if request.param == "local":
        return LocalStore(tmp_path)
    return MemoryStore() if request.param == "memory" else CountedStore(MemoryStore())


def uses_engine(array: Any) -> bool:
    """Return whether the pipeline of an array has used the engine, and never left anything to zarr-python."""
    pipeline = array._async_array.codec_pipeline
    assert type(pipeline) is CodecPipeline
    kinds = list(pipeline._memory.kinds.values())
    return bool(kinds) and None not in kinds


@pytest.mark.parametrize(("store", "chain"), covering(KINDS, list(CHAINS), strength=1), indirect=["store"])
def test_values_are_those_of_numpy(store: Any, chain: str):
    array = zarr.create_array(store, shape=VALUES.shape, **{"dtype": "f4", **CHAINS[chain]})
    expected = VALUES.copy()
    array[...] = VALUES
    for key, value in (
        ((slice(3, 17), slice(5, 33, 3)), -1),
        ((5,), 7),
        ((slice(None), 41), np.arange(60)),
        ((59, 79), 3),
    ):
        array[key] = expected[key] = value
    array.oindex[[3, 41, 7], [2, 70]] = expected[np.ix_([3, 41, 7], [2, 70])] = 4
    array.oindex[9, [2, 70, 5]] = expected[9, [2, 70, 5]] = [1, 2, 3]
    array.vindex[[50, 1, 44], [2, 4, 66]] = expected[[50, 1, 44], [2, 4, 66]] = [7, 8, 9]
    mask = expected > 4000
    array.set_mask_selection(mask, -5)
    expected[mask] = -5
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(array[7:9, 3:60:7], expected[7:9, 3:60:7])
    assert array[59, 79] == expected[59, 79]
    np.testing.assert_array_equal(array.oindex[[40, 3, 3], 5::9], expected[[40, 3, 3]][:, 5::9])
    np.testing.assert_array_equal(array.oindex[mask.any(axis=1), :], expected[mask.any(axis=1)])
    np.testing.assert_array_equal(array.oindex[[40, 3], 12], expected[[40, 3], 12])
    np.testing.assert_array_equal(array.vindex[[[40], [3]], [12, 1]], expected[[[40], [3]], [12, 1]])
    np.testing.assert_array_equal(array.get_mask_selection(mask), expected[mask])
    assert uses_engine(array)


# -------------------------------------------------------------- shards


def test_part_of_a_shard_takes_two_requests():
    store = CountedStore(MemoryStore())
    array = zarr.create_array(store, shape=(64, 64), chunks=(4, 4), shards=(64, 64), dtype="i4")
    array[...] = 1 + np.arange(4096).reshape(64, 64)
    store.reads.clear()
    np.testing.assert_array_equal(array[:8, :8], 1 + np.arange(4096).reshape(64, 64)[:8, :8])
    assert len(store.reads) == 2  # the index, and a merged range


def test_settings_of_an_array_limit_the_gap_between_byte_ranges():
    store = CountedStore(MemoryStore())
    array = zarr.create_array(store, shape=(64, 64), chunks=(4, 4), shards=(64, 64), dtype="i4")
    array[...] = 1 + np.arange(4096).reshape(64, 64)
    if not hasattr(getattr(array, "config", None), "sharding_coalesce_max_gap_bytes"):
        pytest.skip("this release of zarr-python has no such setting")
    for gap, requests in ((0, 5), (1 << 20, 2)):
        store.reads.clear()
        limited = array.with_config({"sharding_coalesce_max_gap_bytes": gap})
        np.testing.assert_array_equal(limited[::20, 0], 1 + np.arange(0, 4096, 64)[::20])
        assert len(store.reads) == requests


def test_inner_chunks_that_are_not_touched_keep_their_bytes():
    store = MemoryStore()
    with zarr.config.set({"codec_pipeline.path": DEFAULT}):
        options = {"chunks": (4,), "shards": (16,), "compressors": codecs.ZstdCodec(level=19)}
        zarr.create_array(store, shape=(16,), dtype="i8", **options)[...] = np.arange(16)
    before = bytes(store._store_dict["c/0"].to_bytes())
    # Another level would encode other bytes.
    document = store._store_dict["zarr.json"].to_bytes().replace(b'"level": 19', b'"level": 1')
    store._store_dict["zarr.json"] = cpu.Buffer.from_bytes(document)
    array = zarr.open_array(store)
    array[4:8] = 0
    after = bytes(store._store_dict["c/0"].to_bytes())
    chunks = [number for number in range(4) if number != 1]
    assert [_inner(after, number) for number in chunks] == [_inner(before, number) for number in chunks]
    assert _inner(after, 1) is None  # it contains only the fill value
    np.testing.assert_array_equal(array[...], [0, 1, 2, 3, 0, 0, 0, 0, *range(8, 16)])


def _inner(shard: bytes, number: int) -> bytes | None:
    index = np.frombuffer(shard[-4 * 16 - 4 : -4], "<u8").reshape(4, 2)
    start, length = index[number].tolist()
    return None if start == 2**64 - 1 else shard[start : start + length]


# -------------------------------------------------------------- unusual arrays and values


def nested_shards() -> Any:
    inner = codecs.ShardingCodec(chunk_shape=(2,), codecs=[codecs.BytesCodec(), codecs.GzipCodec()])
    return {"serializer": codecs.ShardingCodec(chunk_shape=(8,), codecs=[inner]), "compressors": None}


def compressed_shards() -> Any:
    return {"serializer": codecs.ShardingCodec(chunk_shape=(8,)), "compressors": [codecs.GzipCodec()]}


def shards_with_codecs_of_users() -> Any:
    class Own(codecs.GzipCodec):
        pass

    inner: list[Any] = [codecs.BytesCodec(), Own()]
    return {"serializer": codecs.ShardingCodec(chunk_shape=(8,), codecs=inner), "compressors": None}


@pytest.mark.parametrize("options", [nested_shards, compressed_shards, shards_with_codecs_of_users])
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed`")
def test_unusual_shards(options: Any):
    array = zarr.create_array(MemoryStore(), shape=(40,), chunks=(16,), dtype="i4", **options())
    expected = np.arange(40)
    array[...] = expected
    array[3:20:3] = expected[3:20:3] = 7
    array[:16] = expected[:16] = 0
    np.testing.assert_array_equal(array[...], expected)
    assert "c/0" not in array.store._store_dict


def test_chunks_of_different_sizes():
    with zarr.config.set({"array.rectilinear_chunks": True}):
        try:
            array = zarr.create_array(MemoryStore(), shape=(10,), chunks=((3, 5, 2),), dtype="i4")
        except Exception as error:
            pytest.skip(f"this release of zarr-python has no such chunks: {error}")
        array[...] = np.arange(10)
        array[2:7] = -1
        np.testing.assert_array_equal(array[1:9], [1, -1, -1, -1, -1, -1, 7, 8])
    assert uses_engine(array)


@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_reading_into_an_array_of_the_caller(dtype: str):
    array = zarr.create_array(MemoryStore(), shape=(10,), chunks=(4,), dtype="i4")
    array[...] = np.arange(10)
    memory = np.zeros(12, dtype)
    array.get_basic_selection(slice(2, 8), out=cpu.NDBuffer.from_numpy_array(memory[::2]))
    np.testing.assert_array_equal(memory, [2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0])


@pytest.mark.parametrize("value", [np.array([1, 2, 3, 4], ">i4"), np.ma.masked_equal([1, 2, 3, 4], 2)])
def test_values_of_other_kinds(value: Any):
    array = zarr.create_array(MemoryStore(), shape=(10,), chunks=(4,), dtype="i4")
    array[2:6] = value
    np.testing.assert_array_equal(array[...], [0, 0, 1, 2, 3, 4, 0, 0, 0, 0])


# -------------------------------------------------------------- what is left to zarr-python


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ((10,), np.arange(5, dtype="f4")),
        ((10, 10), np.arange(10, dtype="f4").reshape(10, 1)),
        ((10, 10), np.arange(10, dtype="f4")),
        ((10, 10), np.arange(40, dtype="f4").reshape(4, 10)),
    ],
)
def test_values_of_other_shapes(tmp_path: Path, shape: tuple[int, ...], values: np.ndarray):
    """They are broadcast, or an error, as with zarr-python's pipeline. No memory beyond them is read."""
    outcomes: list[Any] = []
    for pipeline in (OURS, DEFAULT):
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array = zarr.create_array(tmp_path / pipeline, shape=shape, chunks=shape, dtype="f4", compressors=None)
            try:
                array[...] = values
            except (ValueError, IndexError) as error:
                outcomes.append(type(error))
            else:
                outcomes.append(array[...].tolist())
    assert outcomes[0] == outcomes[1]


def test_codecs_of_users_are_left_to_zarr_python():
    class Own(codecs.BytesCodec):
        pass

    array = zarr.create_array(MemoryStore(), shape=(60, 80), chunks=(10, 16), dtype="f4", serializer=Own())
    array[...] = VALUES
    np.testing.assert_array_equal(array[...], VALUES)
    assert not uses_engine(array)


def test_buffers_of_other_classes_are_left_to_zarr_python():
    class Buffer(cpu.Buffer):
        pass

    class NDBuffer(cpu.NDBuffer):
        pass

    array = zarr.create_array(MemoryStore(), shape=(60, 80), chunks=(10, 16), dtype="f4")
    prototype = BufferPrototype(Buffer, NDBuffer)
    array.set_basic_selection(slice(None), VALUES, prototype=prototype)
    np.testing.assert_array_equal(array.get_basic_selection(slice(None), prototype=prototype), VALUES)
    assert not uses_engine(array)


# -------------------------------------------------------------- behaviour of zarr-python that stays


def test_absent_chunks_can_be_an_error(store: Any):
    array = zarr.create_array(store, shape=(20,), chunks=(4,), shards=(8,), dtype="i4", fill_value=5)
    array[:4] = 1
    np.testing.assert_array_equal(array[...], [1] * 4 + [5] * 16)
    if hasattr(getattr(array, "config", None), "read_missing_chunks"):
        strict = array.with_config({"read_missing_chunks": False})
        np.testing.assert_array_equal(strict[:8], [1] * 4 + [5] * 4)  # a shard that is stored
        with pytest.raises(Exception, match="c/1"):
            strict[...]


@pytest.mark.parametrize("keep", [False, True])
def test_empty_chunks(store: Any, keep: bool):
    array = zarr.create_array(store, shape=(20,), chunks=(4,), dtype="i4", config={"write_empty_chunks": keep})
    array[...] = 0
    assert array.nchunks_initialized == (5 if keep else 0)
    array[:4] = 1
    assert array.nchunks_initialized == (5 if keep else 1)
    array[:4] = 0
    assert array.nchunks_initialized == (5 if keep else 0)


def test_failures_of_files_are_the_errors_of_the_system(tmp_path: Path):
    array = zarr.create_array(LocalStore(tmp_path), shape=(20,), chunks=(4,), dtype="i4")
    (tmp_path / "c").write_bytes(b"")  # where the directory of chunks should be
    with pytest.raises((FileExistsError, NotADirectoryError)):
        array[...] = 1


def test_failures_of_our_stores_are_our_errors():
    inner = stores.MemoryStore()
    zarr.create_array(zarr_store(inner), shape=(20,), chunks=(4,), dtype="i4")[...] = 1
    array = zarr.open_array(zarr_store(FaultyStore(inner, fails=lambda _, key: key == "c/2")), mode="r")
    with pytest.raises(StoreError, match="c/2"):
        array[...]


def test_damaged_chunks_name_their_key():
    store = MemoryStore()
    array = zarr.create_array(store, shape=(20,), chunks=(4,), dtype="i4")
    array[...] = 1
    store._store_dict["c/2"] = cpu.Buffer.from_bytes(b"garbage")
    with pytest.raises(ValueError, match="c/2"):
        array[...]


def test_stored_chunks_do_not_share_the_memory_of_values():
    array = zarr.create_array(MemoryStore(), shape=(20,), chunks=(20,), dtype="i4", compressors=None)
    values = np.arange(20, dtype="i4")
    array[...] = values
    values[...] = -1
    np.testing.assert_array_equal(array[...], np.arange(20))


# -------------------------------------------------------------- threads, processes, other libraries


def test_threads(tmp_path: Path):
    array = zarr.create_array(LocalStore(tmp_path), shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="i4")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: array.__setitem__(row, row), range(64)))  # rows of the same shards
        rows = list(pool.map(lambda row: array[row], range(64)))
    np.testing.assert_array_equal(rows, np.repeat(np.arange(64), 64).reshape(64, 64))


def read_sum(array: Any) -> float:
    with zarr.config.set({"codec_pipeline.path": OURS}):
        return float(array[...].sum())


@pytest.mark.processes
@pytest.mark.parametrize("method", sorted({"fork", "spawn"} & set(multiprocessing.get_all_start_methods())))
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_processes(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch):
    array = zarr.create_array(LocalStore(tmp_path), shape=VALUES.shape, chunks=(10, 16), dtype="f4")
    array[...] = VALUES
    expected = float(array[...].sum())
    # A pool would unpickle the array before it knows the pipeline, unless the entry point is installed.
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(read_pickled, (pickle.dumps(array),)) == expected


def read_pickled(data: bytes) -> float:
    with zarr.config.set({"codec_pipeline.path": OURS}):
        return read_sum(pickle.loads(data))


def test_pickles(tmp_path: Path):
    array = zarr.create_array(LocalStore(tmp_path), shape=VALUES.shape, chunks=(10, 16), dtype="f4")
    array[...] = VALUES
    copy = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(copy[...], VALUES)
    pipeline = copy._async_array.codec_pipeline
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


def test_the_entry_point_leads_to_the_pipeline():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (target,) = project["project"]["entry-points"]["zarr.codec_pipeline"].values()
    module, name = target.split(":")
    cls = getattr(importlib.import_module(module), name)
    assert f"{cls.__module__}.{cls.__qualname__}" == OURS


async def test_values_move_with_their_store(tmp_path: Path):
    store = await LocalStore.open(root=tmp_path / "old")
    array = zarr.create_array(store, data=VALUES, chunks=(20, 20))
    np.testing.assert_array_equal(array[...], VALUES)
    await store.move(tmp_path / "new")
    np.testing.assert_array_equal(array[...], VALUES)
    array[0] = 5
    assert (zarr.open_array(tmp_path / "new")[0] == 5).all()
    assert not (tmp_path / "old").exists()


@pytest.mark.filterwarnings("ignore:The 'generic' unit")
@pytest.mark.parametrize("dtype", [">M8", ">m8", ">M8[s]", ">i4", ">c8"])
def test_missing_chunks_of_big_endian_arrays(dtype: str):
    array = zarr.create_array(
        {}, shape=(2,), chunks=(2,), dtype=dtype, zarr_format=2, compressors=None, fill_value=None
    )
    with zarr.config.set({"codec_pipeline.path": DEFAULT}):
        expected = np.asarray(zarr.open_array(array.store_path)[:])
    found = np.asarray(array[:])
    assert uses_engine(array)
    assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
