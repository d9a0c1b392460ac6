"""Extensions of others: codecs, data types and storage transformers that users register."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.codec_documents import entry
from zarrasync import codecs, stores
from zarrasync.codecs import ArraySpec, parse_codecs
from zarrasync.errors import CodecError, MetadataError, UnknownCodecError
from zarrasync.model import dtypes
from zarrasync.testing import LatencyStore

ml_dtypes = pytest.importorskip("ml_dtypes")


@dataclass(frozen=True)
class Xor(codecs.BytesBytesCodec):
    """A codec that inverts bits."""

    name = "test.xor"
    mask: int = 255

    def configuration(self) -> dict[str, Any]:
        return {"mask": self.mask}

    def encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Any) -> bytes:
        return bytes(byte ^ self.mask for byte in bytes(data))

    def decode(self, data: Any, size: int | None, limit: int, out: Any) -> bytes:
        return self.encode(data)


class Upside:
    """A storage transformer that reverses keys."""

    name = "test.upside"

    def __init__(self, options: Any) -> None:
        self.options = dict(options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Upside) and other.options == self.options

    def __hash__(self) -> int:
        return hash(self.name)

    def configuration(self) -> dict[str, Any]:
        return self.options

    def wrap(self, store: stores.Store) -> stores.Store:
        return _Upside(store)


class _Upside(stores.WrapperStore):
    async def fetch(self, requests, *, versions=False):
        return await self.inner.fetch([r._replace(key=r.key[::-1]) for r in requests], versions=versions)

    async def put(self, key, data, *, if_version=None):
        return await self.inner.put(key[::-1], data, if_version=if_version)

    async def list_prefix(self, prefix):
        return [key[::-1] for key in await self.inner.list_prefix("")]


async def test_codecs_of_others(api: Api):
    with pytest.raises(UnknownCodecError, match=r"test\.xor"):
        parse_codecs(["bytes", "test.xor"])
    api.register_codec(Xor)
    try:
        store: dict[str, bytes] = {}
        await api(api.create_array(store, data=np.arange(3, dtype="u1"), compressors=[Xor(3)]))
        assert store["c/0"] == bytes([3, 2, 1])
        assert json.loads(store["zarr.json"])["codecs"][1] == entry("test.xor", mask=3)
        assert (await api(api.load(store))).tolist() == [0, 1, 2]
        with pytest.raises(MetadataError, match=r"test.xor.*unknown member"):
            parse_codecs(["bytes", entry("test.xor", other=3)])
        with pytest.raises(ValueError, match="already"):
            api.register_codec(type("Gzip", (Xor,), {"name": "gzip"}))
        with pytest.raises(TypeError):
            api.register_codec(Xor(3))
    finally:
        codecs.registry._registered.clear()


class _Plain:
    """A bound codec with only the required methods."""

    encoded_size = None
    stored_dtype = None

    def __init__(self, spec: codecs.ArraySpec) -> None:
        self.spec = spec

    def encode(self, array: np.ndarray) -> bytes:
        return array.tobytes()

    def decode(self, data: Any) -> np.ndarray:
        return np.frombuffer(data, self.spec.dtype.numpy).reshape(self.spec.shape)

    def locate(self, region: Any, out: Any) -> None:
        return None

    def merge(self, data: Any, region: Any, values: Any) -> bytes:
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(codecs.ArrayBytesCodec):
    name = "test.plain"

    def bind(self, spec: codecs.ArraySpec) -> Any:
        return _Plain(spec)


@dataclass(frozen=True)
class Short(codecs.ArrayArrayCodec):
    """A codec that drops elements and records the threads that call it."""

    name = "test.short"
    threads: ClassVar[set[str]] = set()

    def encode(self, array: np.ndarray, spec: Any) -> np.ndarray:
        return array

    def decode(self, array: np.ndarray, spec: Any) -> np.ndarray:
        self.threads.add(threading.current_thread().name)
        return array[:2]


@pytest.mark.parametrize("far", [False, True])
async def test_codecs_of_others_that_are_minimal_or_wrong(api: Api, far: bool):
    target = LatencyStore(stores.MemoryStore(), 0.0) if far else stores.MemoryStore()
    api.register_codec(Plain)
    api.register_codec(Short)
    Short.threads.clear()
    try:
        array = await api(api.create_array(target, path="plain", data=np.arange(6), serializer=Plain()))
        assert (await api(array[2:5])).tolist() == [2, 3, 4]
        array = await api(api.create_array(target, path="short", data=np.arange(6), filters=[Short()]))
        for key in (1, np.s_[1:2], np.s_[::-1]):
            with pytest.raises(CodecError, match=r"short/c/0 .*the result has shape \(2,\), expected \(6,\)"):
                await api(array[key])
        # Codecs that are not known to be fast run on threads.
        assert not far or all(name.startswith("zarrasync-codec") for name in Short.threads)
    finally:
        codecs.registry._registered.clear()


async def test_data_types_of_others(api: Api):
    api.register_data_type("test.cents", lambda options: dtypes.DataType("test.cents", np.dtype("i8"), dict(options)))
    try:
        store: dict[str, bytes] = {}
        await api(api.create_array(store, data=[1, 2], dtype="test.cents"))
        assert json.loads(store["zarr.json"])["data_type"] == "test.cents"
        array = await api(api.open_array(store))
        assert array.metadata.dtype.name == "test.cents"
        assert (await api(array.get_basic_selection())).tolist() == [1, 2]
        with pytest.raises(ValueError, match="built-in data type"):
            api.register_data_type("int8", lambda options: dtypes.STRING)
    finally:
        dtypes._registered.clear()


@pytest.mark.parametrize("zarr_format", [3, "3-draft"])
async def test_storage_transformers_of_others(api: Api, zarr_format: Any):
    from dataclasses import replace

    from zarrasync.formats import by_name
    from zarrasync.metadata import extensions

    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, shape=4, dtype="u1", chunks=2, zarr_format=zarr_format, compressors=None))
    metadata = replace(array.metadata, transformers=(Upside({"a": 1}),), source=None)
    store.update(by_name(zarr_format).render("", metadata))
    with pytest.raises(MetadataError, match=r"unknown storage transformer 'test\.upside'"):
        await api(api.open_array(store))
    api.register_storage_transformer("test.upside", Upside)
    try:
        array = await api(api.open_array(store, mode="r+"))
        assert array.metadata.transformers[0].options == {"a": 1}
        await api.write(array, np.s_[...], np.array([1, 2, 3, 4]))
        assert any(key.endswith(("1/c", "1c")) for key in store)
        assert (await api(array.get_basic_selection())).tolist() == [1, 2, 3, 4]
        await api(array.update_attributes({"x": 1}))
        assert (await api(api.load(store))).tolist() == [1, 2, 3, 4]
    finally:
        extensions._transformers.clear()


def test_extensions_are_found_by_entry_points(tmp_path, monkeypatch):
    info = tmp_path / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zarrasync.codecs]\ntest.xor = tests.metadata.test_extensions:Xor\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from zarrasync._util import plugins

    plugins.entry_points_in.cache_clear()
    try:
        (codec,) = parse_codecs(["bytes", entry("test.xor", mask=1)]).bytes_bytes
        assert type(codec).__name__ == "Xor"
    finally:
        plugins.entry_points_in.cache_clear()


@dataclass(frozen=True)
class Odd(codecs.BytesBytesCodec):
    """A codec that claims to keep the number of bytes, with a configurable fault."""

    name = "test.odd"
    does: str = "right"

    def encoded_size(self, size: int) -> int | None:
        return size

    def encode(self, data: Any) -> Any:
        match self.does:
            case "loses":
                return bytes(data)[1:]
            case "raises":
                raise IndexError("too far")
            case "forgets":
                return None
        return bytes(data)

    def decode(self, data: Any, size: int | None, limit: int, out: Any) -> Any:
        assert bytes(data)[:1] != b"\xff", "marked"
        return bytes(data)[:7] if bytes(data)[:1] == b"\xfe" else bytes(data)


@dataclass(frozen=True)
class Shorter(codecs.ArrayArrayCodec):
    """A codec that returns fewer bytes than it received."""

    name = "test.shorter"

    def encode(self, array: Any, spec: ArraySpec) -> Any:
        return array[:1]

    def decode(self, array: Any, spec: ArraySpec) -> Any:
        return array


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"compressors": [Odd("loses")]}, "the result has 7 bytes, expected 8"),
        ({"compressors": [Odd("raises")]}, "IndexError: too far"),
        ({"compressors": [Odd("forgets")]}, "TypeError"),
        ({"filters": [Shorter()], "compressors": None}, r"the result has shape \(1,\), expected \(2,\)"),
    ],
)
async def test_codecs_of_others_that_store_unreadable_data(api: Api, wanted: dict[str, Any], message: str):
    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, shape=(4,), chunks=(2,), dtype="i4", **wanted))
    with pytest.raises(CodecError, match=f"c/0 in .* cannot encode: {message}"):
        await api.write(array, ..., [1, 2, 3, 4])
    assert list(store) == ["zarr.json"]


@dataclass(frozen=True)
class Wide(Odd):
    """A codec that returns arrays whose items have several bytes."""

    name = "test.wide"

    def encode(self, data: Any) -> Any:
        return np.frombuffer(bytes(data), ">u2")


class _PlainArrays(_Plain):
    def encode(self, array: np.ndarray) -> Any:
        return np.ascontiguousarray(array)


@dataclass(frozen=True)
class PlainArrays(codecs.ArrayBytesCodec):
    """A codec that returns arrays with several axes."""

    name = "test.arrays"

    def bind(self, spec: codecs.ArraySpec) -> Any:
        return _PlainArrays(spec)


@pytest.mark.parametrize("size", [8, 512])
@pytest.mark.parametrize("wanted", [{"compressors": [Wide()]}, {"serializer": PlainArrays(), "compressors": None}])
async def test_output_of_codecs_of_others_is_counted_in_bytes(api: Api, wanted: dict[str, Any], size: int):
    data = np.arange(4 * size * size, dtype="u2").reshape(2 * size, 2 * size)
    for layout in ({"chunks": (size, size)}, {"chunks": (size, size), "shards": data.shape}):
        array = await api(api.create_array({}, data=data, **layout, **wanted))
        np.testing.assert_array_equal(await api(array[...]), data)


async def test_codecs_of_others_that_fail_for_damaged_data(api: Api):
    api.register_codec(Odd)
    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, data=np.arange(4, dtype="i4"), chunks=(2,), compressors=[Odd()]))
    assert (await api(array[...])).tolist() == [0, 1, 2, 3]
    for damage, message in ((b"\xff", "AssertionError: marked"), (b"\xfe", "the result has 7 bytes, expected 8")):
        store["c/1"] = damage * 8
        with pytest.raises(CodecError, match=f"c/1 in .* cannot decode: {message}"):
            await api(array[...])


@dataclass(frozen=True)
class ByUri(codecs.BytesBytesCodec):
    """A codec named by a URI, as codecs of the draft are."""

    name = "https://example.org/codecs/xor/1.0"
    key: int = 1

    def encoded_size(self, size: int) -> int | None:
        return size

    def encode(self, data: Any) -> Any:
        return (np.frombuffer(bytes(data), "u1") ^ self.key).tobytes()

    def decode(self, data: Any, size: int | None, limit: int, out: Any) -> Any:
        return self.encode(data)


@pytest.mark.parametrize("zarr_format", [3, "3-draft"])
async def test_codecs_that_are_known_by_their_uri(api: Api, zarr_format: Any):
    api.register_codec(ByUri)
    store: dict[str, bytes] = {}
    values = np.arange(4, dtype="u1")
    await api(api.create_array(store, path="a", data=values, compressors=[ByUri(3)], zarr_format=zarr_format))
    found = await api(api.open_array(store, path="a"))
    assert found.compressors == (ByUri(3),)
    assert (await api(found[...])).tolist() == [0, 1, 2, 3]
    chunk = store["data/a/c0" if zarr_format == "3-draft" else "a/c/0"]
    assert chunk == bytes([3, 2, 1, 0])
    copied: dict[str, bytes] = {}
    await api(api.copy(store, copied, zarr_format=3 if zarr_format == "3-draft" else "3-draft"))
    again = await api(api.open_array(copied, path="a"))
    assert (again.compressors, (await api(again[...])).tolist()) == ((ByUri(3),), [0, 1, 2, 3])
