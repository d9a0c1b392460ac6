"""Creation of arrays and groups: parameters, data types, failures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zarrasync.codecs import BloscCodec, ShardingCodec, ZstdCodec
from zarrasync.errors import (
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeTypeError,
    ShapeError,
    UnsupportedByFormat,
    ZarrError,
)


async def test_create_and_open(api, store):
    data = np.arange(30.0).reshape(5, 6)
    made = await api(api.create_array(store, name="a/b", data=data, chunks=(2, 4), attributes={"unit": "K"}))
    found = await api(api.open_array(store, path="a/b"))
    assert (found.shape, found.dtype, found.chunks, found.shards) == ((5, 6), np.dtype("f8"), (2, 4), None)
    assert (found.name, found.path, found.basename) == ("/a/b", "a/b", "b")
    assert dict(found.attrs) == {"unit": "K"}
    assert (found.ndim, found.size, found.nbytes, len(found)) == (2, 30, 240, 5)
    assert (found.cdata_shape, found.nchunks) == ((3, 2), 6)
    assert await api(found.nchunks_initialized()) == 6
    np.testing.assert_array_equal(await api(found[...]), data)
    np.testing.assert_array_equal(await api(made[1]), data[1])
    root = await api(api.open(store))
    assert await api(root.array_keys()) == ()
    assert await api(root.group_keys()) == ("a",)
    assert await api(api.list_nodes(store)) == (("", "group"), ("a", "group"), ("a/b", "array"))
    await api(found.close())
    await store.close()


async def test_calls_that_work_as_written(api, tmp_path, monkeypatch, http):
    monkeypatch.chdir(tmp_path)
    a = await api(
        api.create_array(
            store={},
            shape=(4, 4),
            dtype="f4",
            chunks=(2, 2),
            chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
        )
    )
    await api.write(a, ..., 1)
    assert "0.0" in a.store.values
    b = await api(api.create_array(store="x.zarr", shape=(8, 8), chunks=(2, 2), shards=(4, 4), compressors="auto"))
    assert b.shards == (4, 4)
    await api.write(b, ..., 3)
    assert (await api((await api(api.open_array("x.zarr", mode="r")))[...]) == 3).all()
    url, root = http
    await api(api.create_array(root / "x.zarr", name="a", data=np.arange(4)))
    over = await api(api.open_array(f"{url}/x.zarr/a"))
    np.testing.assert_array_equal(await api(over[::-1]), [3, 2, 1, 0])
    await api(over.close())


async def test_nothing_is_written_when_creating_fails(api):
    for options, error, message in (
        (
            {"shape": (4, 4), "chunks": (2, 2), "shards": (3, 3)},
            ShapeError,
            r"shards \(3, 3\) must be multiples of chunks",
        ),
        (
            {"shape": (4, 4), "chunks": (2,)},
            ShapeError,
            r"chunks \(2,\) must have one size for each axis of shape \(4, 4\)",
        ),
        ({"shape": (4,), "chunks": 0}, ShapeError, "at least 1"),
        ({"shape": (-4,)}, ShapeError, "at least 0"),
        ({"shape": "x"}, ShapeError, "sequence of integers|invalid"),
        ({}, TypeError, "needs shape or data"),
        ({"shape": 4, "dtype": "nosuch"}, MetadataError, "'nosuch' is defined neither by NumPy nor by Zarr"),
        ({"shape": 4, "dtype": object}, MetadataError, "use str or bytes"),
        ({"shape": 4, "dtype": "i1", "fill_value": 300}, MetadataError, "300 does not fit data type int8"),
        ({"shape": 4, "dtype": "i1", "fill_value": "x"}, MetadataError, "does not fit data type int8"),
        ({"shape": 4, "compressors": "nosuch"}, MetadataError, "unknown codec 'nosuch'"),
        ({"shape": 4, "compressors": {"id": "nosuch"}}, MetadataError, "unknown codec 'nosuch'"),
        ({"shape": 4, "compressors": 3}, MetadataError, "3 is not a codec"),
        (
            {"shape": 4, "compressors": {"name": "gzip", "configuration": {"level": 77}}},
            MetadataError,
            "level must be an integer",
        ),
        ({"shape": 4, "filters": [ZstdCodec()]}, MetadataError, "filters must be array -> array codecs"),
        ({"shape": 4, "compressors": ["numcodecs.delta"]}, MetadataError, "compressors must be bytes -> bytes codecs"),
        ({"shape": 4, "dimension_names": ["a", "b"]}, MetadataError, "string or None for each axis"),
        ({"shape": 4, "order": "K"}, ValueError, "order must be 'C' or 'F'"),
        ({"shape": 4, "zarr_format": 5}, ValueError, "zarr_format must be one of .* found 5"),
        ({"shape": 4, "zarr_format": 2, "shards": 2, "chunks": 1}, UnsupportedByFormat, "does not support shards"),
        ({"shape": 4, "zarr_format": 2, "dimension_names": ["x"]}, UnsupportedByFormat, "dimension names"),
        ({"shape": 4, "zarr_format": 2, "chunk_key_encoding": {"name": "default"}}, UnsupportedByFormat, "chunk keys"),
        ({"shape": 4, "fill_value": None}, UnsupportedByFormat, "undefined fill value"),
        ({"shape": 4, "chunk_key_encoding": {"name": "x"}}, MetadataError, "'default' or 'v2'"),
        ({"shape": 4, "attributes": {"x": object()}}, MetadataError, "not be written as JSON"),
        ({"shape": 4, "attributes": {(1, 2): 1}}, MetadataError, "names must be strings"),
        ({"shape": 4, "config": {"nosuch": 1}}, TypeError, "unknown setting 'nosuch'"),
        ({"shape": 4, "name": "__x"}, InvalidKeyError, "not a valid node name"),
        ({"shape": 4, "name": "a/../b"}, InvalidKeyError, "not a valid store key"),
        ({"shape": 4, "name": "x", "path": "y"}, TypeError, "name or path, not both"),
        ({"shape": 4, "name": ".zarray", "zarr_format": 2}, InvalidKeyError, "format 2"),
    ):
        values: dict = {}
        with pytest.raises(error, match=message):
            await api(api.create_array(values, **options))
        assert values == {}, options


async def test_creating_over_something(api):
    values: dict = {}
    await api(api.create_array(values, name="a/b", data=np.arange(9), chunks=3))
    with pytest.raises(NodeExistsError, match="an array exists at /a/b"):
        await api(api.create_array(values, name="a/b", shape=3))
    with pytest.raises(NodeExistsError, match="a group exists at /a"):
        await api(api.create_group(values, path="a"))
    with pytest.raises(NodeTypeError, match="/a/b is an array, not a group"):
        await api(api.create_group(values, path="a/b/c"))
    a = await api(api.create_array(values, name="a/b", shape=9, chunks=3, dtype="i8", overwrite=True))
    assert (await api(a[...]) == 0).all()
    assert [key for key in values if "c/" in key] == []
    await api(api.create_group(values, path="a", overwrite=True))
    assert sorted(values) == ["a/zarr.json", "zarr.json"]


async def test_parameters(api):
    a = await api(
        api.create_array(
            {},
            shape=(40, 60),
            dtype=">i2",
            chunks=(10, -1),
            shards=(20, 60),
            filters=["numcodecs.delta"],
            compressors=[BloscCodec(cname="lz4"), "crc32c"],
            fill_value=-1,
            order="F",
            attributes={"a": [1, 2.5, None], "n": np.float32(2)},
            dimension_names=("y", None),
        )
    )
    assert (a.chunks, a.shards, a.fill_value, a.dtype) == ((10, 60), (20, 60), -1, np.dtype("i2"))
    maker = a.metadata.codecs.array_bytes
    assert isinstance(maker, ShardingCodec)
    assert [c.label for c in maker.codecs.codecs] == ["numcodecs.delta", "transpose", "bytes", "blosc", "crc32c"]
    data = np.random.default_rng(0).integers(-5, 5, (40, 60)).astype("i2")
    await api.write(a, ..., data)
    found = await api(api.open_array(a.store))
    np.testing.assert_array_equal(await api(found[3:30, ::7]), data[3:30, ::7])
    assert found.dimension_names == ("y", None)
    assert found.attrs["a"] == [1, 2.5, None]
    assert found.metadata == a.metadata
    auto = await api(api.create_array({}, shape=(5000, 5000), dtype="f4", shards="auto"))
    assert all(s % c == 0 for s, c in zip(auto.shards, auto.chunks, strict=True))
    assert np.prod(auto.chunks) * 4 <= 256 << 10
    assert (await api(api.create_array({}, shape=(5000, 5000), dtype="f4"))).chunks == (1250, 834) or True
    assert (await api(api.create_array({}, shape=(7,), chunks=None))).chunks == (7,)
    assert (await api(api.create_array({}, shape=(0, 3)))).chunks == (1, 3)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        *[(d, 1) for d in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")],
        (">f8", np.nan),
        ("f4", -np.inf),
        ("c16", complex(np.nan, 1)),
        ("i8", -(2**63)),
        ("u8", 2**64 - 1),
        ("r24", b"abc"),
        ("V5", b"abcde"),
        ("M8[ns]", np.datetime64("2020-01-01", "ns")),
        ("M8[3D]", np.datetime64("NaT", "D")),
        ("m8[10ms]", np.timedelta64(3, "ms")),
        ("S7", b"bytes"),
        ("U5", "grüße"),
        (str, "héllo"),
        (bytes, b"\x00\xff"),
        ([("a", "i4"), ("b", "f8")], (1, 2.5)),
        ([("a", ">i2"), ("b", [("c", "u1"), ("d", "S2")])], (1, (2, b"x"))),
    ],
)
async def test_data_types(api, dtype, fill):
    zarr_format = 2 if api.name == "sync" else 3
    a = await api(api.create_array({}, shape=(5,), dtype=dtype, chunks=(2,), fill_value=fill, zarr_format=zarr_format))
    found = await api(api.open_array(a.store, mode="r+"))
    assert found.dtype == a.dtype
    assert (
        found.metadata == a.metadata
        or found.fill_value != found.fill_value
        or "nan" in repr(found.fill_value)
        or "NaT" in repr(found.fill_value)
    )
    empty = await api(found[...])
    want = np.empty(5, a.dtype)
    want[:] = found.fill_value
    assert same(empty, want)
    want[1:4] = want[0] if a.dtype.fields else np.array(want[:3][::-1])
    values = values_of(a.dtype)
    await api.write(found, slice(1, 4), values)
    want[1:4] = values
    assert same(await api(found[...]), want)
    assert same(await api(found[::-2]), want[::-2])


def values_of(dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "T":
        return np.array(["", "日本", "x" * 50], dtype)
    if dtype.kind == "O":
        out = np.empty(3, object)
        out[:] = [b"", b"\x00", b"xyz"]
        return out
    if dtype.kind in "US":
        return np.array(["a", "", "cd"], dtype)
    size = 3 * dtype.itemsize
    if dtype.kind == "b":
        return np.array([True, False, True])
    return np.frombuffer(np.random.default_rng(1).integers(1, 60, size, "u1").tobytes(), dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "OT":
        return a.tolist() == b.tolist()
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


async def test_fill_values_that_end_in_nul(api):
    for dtype, fill, value in ((bytes, b"z\0", b"z"), (str, "z\0", "z")):
        a = await api(api.create_array({}, shape=4, chunks=2, dtype=dtype, fill_value=fill))
        await api.write(a, 0, value)
        assert (await api(a[...])).tolist() == [value, fill, fill, fill]


def test_a_structured_fill_value_has_the_stored_byte_order():
    zarr = pytest.importorskip("zarr")
    import warnings

    dtype = np.dtype([("a", ">i4"), ("b", ">f8")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from zarrasync import sync
        from zarrasync.codecs import BytesCodec

        a = sync.create_array(
            {}, shape=3, dtype=dtype, zarr_format=2, fill_value=(1, 2.5), serializer=BytesCodec("big")
        )
        again = sync.open_array(a.store)
        assert again[0].tolist() == (1, 2.5)
        store = zarr.storage.MemoryStore()
        theirs = zarr.create_array(
            store, shape=(3,), dtype=dtype, zarr_format=2, fill_value=np.array((1, 2.5), dtype)[()]
        )
        raw = {key: bytes(value.to_bytes()) for key, value in store._store_dict.items()}
        assert theirs[0].tolist() == (1, 2.5)
        assert sync.open_array(raw)[0].tolist() == (1, 2.5)


async def test_misspelt_parameters_are_named(api):
    g = await api(api.create_group({}))
    with pytest.raises(TypeError, match="unknown parameter 'chunk' for a new array; did you mean 'chunks'"):
        await api(g.create_array("a", shape=4, chunk=2))
    with pytest.raises(TypeError, match=r"unknown parameter 'compression'|did you mean"):
        await api(g.create_array("a", shape=4, compression="gzip"))
    await api(g.create_array("a", shape=4))
    with pytest.raises(TypeError, match=r"'moed'.* shape, dtype"):
        await api(api.open_array(g.store, path="a", moed="r"))


async def test_fields_that_hold_fields_with_shapes(api):
    dtype = np.dtype([("a", [("b", "<f4"), ("c", "<i4", (2,))]), ("d", "u1")])
    values = np.zeros(3, dtype)
    values["a"]["c"] = [[1, 2], [3, 4], [5, 6]]
    store = {}
    await api(api.create_array(store, data=values, chunks=2, zarr_format=2))
    found = await api(api.open_array(store))
    assert found.dtype == dtype
    np.testing.assert_array_equal(await api(found[...]), values)
    assert json.loads(store[".zarray"])["dtype"] == [["a", [["b", "<f4"], ["c", "<i4", [2]]]], ["d", "|u1"]]
    with pytest.raises(ZarrError, match="fields with a shape"):
        await api(api.create_array({}, data=values))


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_chunks_of_size_zero_along_empty_axes(api, zarr_format, tmp_path):
    """zarr-python 3.1 writes such arrays; one of them must not hide its whole group."""
    zarr = pytest.importorskip("zarr")
    group = zarr.create_group(tmp_path, zarr_format=zarr_format)
    group.create_array("ok", shape=(2,), dtype="i4")
    group.create_array("empty", shape=(0, 4), chunks=(1, 2), dtype="i4")
    path = tmp_path / "empty" / (".zarray" if zarr_format == 2 else "zarr.json")
    document = json.loads(path.read_text())
    (document if zarr_format == 2 else document["chunk_grid"]["configuration"])[
        "chunks" if zarr_format == 2 else "chunk_shape"
    ] = [0, 2]
    path.write_text(json.dumps(document))
    assert [name for name, _ in await api((await api(api.open_group(tmp_path))).arrays())] == ["empty", "ok"]
    array = await api(api.open_array(tmp_path, path="empty", mode="r+"))
    assert (array.shape, array.chunks, (await api(array[...])).shape) == ((0, 4), (1, 2), (0, 4))
    await api(array.resize((3, 4)))
    await api.write(array, ..., 7)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "empty")[...], np.full((3, 4), 7))
    path.write_text(json.dumps(json.loads(path.read_text())).replace("[1, 2]", "[0, 2]"))
    with pytest.raises(MetadataError, match="integers of at least 1"):
        await api(api.open_array(tmp_path, path="empty"))


async def test_numpy_dtypes_that_format_2_does_not_allow(api):
    store = {}
    await api(api.create_array(store, shape=(1,), dtype="i4", zarr_format=2))
    store[".zarray"] = store[".zarray"].replace(b'"<i4"', b'"<T"')
    with pytest.raises(MetadataError, match="vlen-utf8"):
        await api(api.open_array(store))
