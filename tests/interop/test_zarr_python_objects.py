"""Objects of zarr-python as parameters of new arrays: codecs, data types, and shards with the location of their index."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import codecs, sync
from zarrasync.errors import CodecError, ShapeError, UnknownCodecError, UnsupportedByFormat

zarr = pytest.importorskip("zarr", "3.1")

from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec  # after the skip

pytestmark = pytest.mark.foreign


def entries(array: sync.Array) -> list[dict[str, Any]]:
    return [codec.to_json() for codec in array.metadata.codecs.codecs]


def buffers(store: dict[str, bytes]) -> dict[str, Any]:
    make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    return {key: make(value) for key, value in store.items()}


def test_open_parameters_of_blosc_follow_the_data_type():
    """zarr-python's codec reports one-byte elements until it is used for an array."""
    ours = sync.create_array({}, shape=8, dtype="f4", compressors=zarr.codecs.BloscCodec())
    theirs = zarr.create_array({}, shape=8, dtype="f4", compressors=zarr.codecs.BloscCodec())
    assert entries(ours)[-1] == theirs.compressors[0].to_dict()
    fixed = sync.create_array(
        {}, shape=8, dtype="f4", compressors=zarr.codecs.BloscCodec(typesize=1, shuffle="noshuffle")
    )
    configuration = entries(fixed)[-1]["configuration"]
    assert (configuration["typesize"], configuration["shuffle"]) == (1, "noshuffle")


@pytest.mark.parametrize("module", [codecs, zarr.codecs], ids=["zarrasync", "zarr"])
def test_sharding_codecs_are_serializers(module: Any):
    inner = [module.BytesCodec(), module.BloscCodec()]
    sharding = module.ShardingCodec(chunk_shape=(4,), codecs=inner, index_location="start")
    store: dict[str, bytes] = {}
    array = sync.create_array(store, shape=8, chunks=8, dtype="u2", serializer=sharding, compressors=None)
    array[:] = np.arange(8)
    assert (array.chunks, array.shards) == ((4,), (8,))
    (entry,) = entries(array)
    assert entry["configuration"]["index_location"] == "start"
    assert entry["configuration"]["codecs"][-1]["configuration"]["typesize"] == 2
    group = zarr.open_array(zarr.storage.MemoryStore(buffers(store)))
    np.testing.assert_array_equal(group[:], np.arange(8))


def test_shards_with_the_location_of_their_index():
    array = sync.create_array({}, shape=8, chunks=2, shards={"shape": (4,), "index_location": "start"})
    assert array.shards == (4,)
    assert entries(array)[0]["configuration"]["index_location"] == "start"
    assert sync.create_array({}, shape=8, chunks=2, shards=np.array([4])).shards == (4,)
    for shards in ({}, {"shape": 4, "other": 1}):
        with pytest.raises(ShapeError, match="'shape' and 'index_location'"):
            sync.create_array({}, shape=8, chunks=2, shards=shards)
    with pytest.raises(UnsupportedByFormat, match="index at the start"):
        sync.create_array({}, shape=8, chunks=2, shards={"shape": 4, "index_location": "start"}, zarr_format="3-draft")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("Float32", {}, "f4"),
        ("UInt16", {"endianness": "big"}, "u2"),
        ("VariableLengthUTF8", {}, "T"),
        ("DateTime64", {"unit": "s"}, "M8[s]"),
        ("FixedLengthUTF32", {"length": 4}, "U4"),
        ("RawBytes", {"length": 3}, "V3"),
    ],
)
def test_data_types(name: str, options: dict[str, Any], expected: str, zarr_format: int):
    data_type = getattr(zarr.dtype, name)(**options)
    array = sync.create_array({}, shape=2, dtype=data_type, zarr_format=zarr_format)
    assert array.dtype == np.dtype(expected)


@pytest.mark.parametrize(
    ("shape", "points"),
    [
        *(((10,), points) for points in (5, np.int64(-1), (5,), np.array(5), [5], [[1, 2], [3, 4]])),
        *(((4, 6), points) for points in ((1, 2), (np.array(1), np.array(2)), ([1], 2), (1, [2, 3]))),
    ],
)
async def test_points(api: Api, shape: tuple[int, ...], points: Any):
    """A single point has the shape ``(1,)``."""
    data = np.arange(np.prod(shape)).reshape(shape)
    theirs = zarr.create_array(zarr.storage.MemoryStore(), data=data, chunks=(3,) * len(shape))
    array = await api(api.create_array({}, data=data, chunks=(3,) * len(shape)))
    expected = np.asarray(theirs.vindex[points])
    for found in (array.vindex[points], array.get_coordinate_selection(points)):
        result = await api(found)
        assert (type(result), result.shape, result.tolist()) == (np.ndarray, expected.shape, expected.tolist())
    assert array.view.vindex[points].shape == expected.shape
    await api(array.set_coordinate_selection(points, -1))
    theirs.vindex[points] = -1
    np.testing.assert_array_equal(await api(array[...]), theirs[...])


# ------------------------------------------------------------------ codecs that a program registers


@dataclass(frozen=True)
class Inverted(BytesBytesCodec):
    """Inverts all bits, on a thread or at once."""

    is_fixed_size = True
    threaded: bool = False

    @classmethod
    def from_dict(cls, data: Any) -> Any:
        return cls(**data.get("configuration", {}))

    def to_dict(self) -> Any:
        return {"name": "test.inverted", "configuration": {"threaded": self.threaded}}

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        array = chunk_data.as_numpy_array()
        inverted = await asyncio.to_thread(np.invert, array) if self.threaded else np.invert(array)
        return chunk_spec.prototype.buffer.from_array_like(inverted)

    _encode_single = _decode_single

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return input_byte_length


@dataclass(frozen=True)
class Negative(ArrayArrayCodec):
    """Negates numbers."""

    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Any) -> Any:
        return cls()

    def to_dict(self) -> Any:
        return {"name": "test.negative"}

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return chunk_spec.prototype.nd_buffer.from_numpy_array(-chunk_data.as_numpy_array())

    _encode_single = _decode_single

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return input_byte_length


@dataclass(frozen=True)
class Plain(ArrayBytesCodec):
    """Big-endian elements."""

    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Any) -> Any:
        return cls()

    def to_dict(self) -> Any:
        return {"name": "test.plain"}

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return chunk_spec.prototype.buffer.from_bytes(chunk_data.as_numpy_array().astype(">i4").tobytes())

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        values = np.frombuffer(chunk_data.to_bytes(), ">i4").reshape(chunk_spec.shape)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(values)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return input_byte_length


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": [Inverted()]},
        {"compressors": [Inverted(threaded=True)]},
        {"compressors": [Inverted()], "shards": (6, 6)},
        {"filters": [Negative()], "compressors": None},
        {"serializer": Plain(), "compressors": [Inverted()]},
    ],
)
async def test_codecs_that_are_registered_at_run_time(api: Api, options: dict[str, Any], tmp_path: Path):
    for name, kind in (("test.inverted", Inverted), ("test.negative", Negative), ("test.plain", Plain)):
        zarr.registry.register_codec(name, kind)
    data = np.arange(36, dtype="i4").reshape(6, 6)
    zarr.create_array(tmp_path / "theirs", data=data, chunks=(2, 3), **options)
    array = await api(api.open_array(tmp_path / "theirs", mode="r+"))
    np.testing.assert_array_equal(await api(array[...]), data)
    await api.write(array, (slice(1, 3), 2), 77)
    data[1:3, 2] = 77
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "theirs")[...], data)
    await api(api.create_array(tmp_path / "ours", data=data, chunks=(2, 3), **options))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours")[...], data)
    np.testing.assert_array_equal(await api((await api(api.open_array(tmp_path / "ours")))[...]), data)


class Failing(Inverted):
    """Raises errors when it decodes."""

    def to_dict(self) -> Any:
        return {"name": "test.failing"}

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        raise RuntimeError("no luck")


async def test_errors_of_codecs_that_are_registered_at_run_time(api: Api):
    zarr.registry.register_codec("test.failing", Failing)
    array = await api(api.create_array({}, data=np.arange(1, 4), compressors=[Failing()]))
    with pytest.raises(CodecError, match=r"codec test\.failing cannot decode: .*no luck"):
        await api(array[...])


def test_codecs_that_nobody_has_registered():
    values: dict[str, bytes] = {}
    sync.create_array(values, data=np.arange(3))
    values["zarr.json"] = values["zarr.json"].replace(b'"zstd"', b'"test.nobody"')
    with pytest.raises(UnknownCodecError, match=r"test\.nobody"):
        sync.open_array(values)
