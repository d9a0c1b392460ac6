"""Arrays, groups and the functions that open and create them, through both APIs."""

from __future__ import annotations

import asyncio
import json
import pickle

import numpy as np
import pytest

from zarrasync import stores
from zarrasync.codecs import BloscCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarrasync.errors import (
    InvalidKeyError,
    MetadataError,
    MissingChunkError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ReadOnlyError,
    ShapeError,
    UnsupportedByFormat,
    UnsupportedOperation,
    ZarrError,
)

# ------------------------------------------------------------------ creating and opening


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


async def test_modes(api):
    values: dict = {}
    with pytest.raises(
        NodeNotFoundError, match=r"no array or group .* looked for zarr.json, .zarray, .zgroup, .zattrs"
    ):
        await api(api.open_array(values))
    with pytest.raises(NodeNotFoundError) as error:
        await api(api.open_group(values, path="x/y", mode="r+"))
    assert isinstance(error.value, KeyError | FileNotFoundError)
    assert error.value.tried[0] == "x/y/zarr.json"
    assert values == {}
    a = await api(api.open_array(values, mode="a", shape=(3,), dtype="i2"))
    await api.write(a, ..., 5)
    again = await api(api.open_array(values, mode="a", shape=(9,)))
    assert again.shape == (3,)
    with pytest.raises(NodeExistsError, match="overwrite=True"):
        await api(api.open_array(values, mode="w-", shape=(3,)))
    with pytest.raises(NodeTypeError, match="is an array; open_array or open opens it"):
        await api(api.open_group(values))
    fresh = await api(api.open_array(values, mode="w", shape=(2,), dtype="i2"))
    assert (await api(fresh[...]) == 0).all()
    with pytest.raises(ValueError, match="mode is one of r, r"):
        await api(api.open_array(values, mode="x"))
    with pytest.raises(ValueError, match="takes mode 'r' or 'r"):
        await api(api.open(values, mode="w"))
    group = await api(api.open_group({}, mode="w-", attributes={"a": 1}))
    assert dict(group.attrs) == {"a": 1}
    with pytest.raises(NodeTypeError, match="is a group; open_group or open opens it"):
        await api(api.open_array(group.store))


async def test_reading_mode_refuses_every_change(api):
    values: dict = {}
    await api(api.create_array(values, name="a", data=np.arange(4)))
    before = dict(values)
    a = await api(api.open_array(values, path="a"))
    g = await api(api.open_group(values))
    for attempt in (
        lambda: api.write(a, 0, 9),
        lambda: api(a.resize((2,))),
        lambda: api(a.append([1])),
        lambda: api(a.update_attributes({"x": 1})),
        lambda: api(g.create_group("b")),
        lambda: api(g.delete("a")),
        lambda: api(g.move("a", "b")),
    ):
        with pytest.raises(ReadOnlyError, match="opened for reading"):
            await attempt()
    assert values == before


async def test_nothing_is_written_when_creating_fails(api):
    for options, error, message in (
        (
            {"shape": (4, 4), "chunks": (2, 2), "shards": (3, 3)},
            ShapeError,
            r"shards \(3, 3\) must be multiples of chunks",
        ),
        ({"shape": (4, 4), "chunks": (2,)}, ShapeError, r"chunks \(2,\) has 1 dimensions, the shape \(4, 4\) has 2"),
        ({"shape": (4,), "chunks": 0}, ShapeError, "at least 1"),
        ({"shape": (-4,)}, ShapeError, "at least 0"),
        ({"shape": "x"}, ShapeError, "sequence of integers|invalid"),
        ({}, TypeError, "needs a shape"),
        ({"shape": 4, "dtype": "nosuch"}, MetadataError, "'nosuch' is not known"),
        ({"shape": 4, "dtype": object}, MetadataError, "use str for text"),
        ({"shape": 4, "dtype": "i1", "fill_value": 300}, MetadataError, "300 does not fit data type int8"),
        ({"shape": 4, "dtype": "i1", "fill_value": "x"}, MetadataError, "does not fit data type int8"),
        ({"shape": 4, "compressors": "nosuch"}, MetadataError, "unknown codec 'nosuch'"),
        ({"shape": 4, "compressors": {"id": "nosuch"}}, MetadataError, "unknown codec 'nosuch'"),
        ({"shape": 4, "compressors": 3}, MetadataError, "3 is not a codec"),
        (
            {"shape": 4, "compressors": {"name": "gzip", "configuration": {"level": 77}}},
            MetadataError,
            "level is an integer",
        ),
        ({"shape": 4, "filters": [ZstdCodec()]}, MetadataError, "filters are array -> array codecs"),
        ({"shape": 4, "compressors": ["numcodecs.delta"]}, MetadataError, "compressors are bytes -> bytes codecs"),
        ({"shape": 4, "dimension_names": ["a", "b"]}, MetadataError, "one entry per axis"),
        ({"shape": 4, "order": "K"}, ValueError, "order is 'C' or 'F'"),
        ({"shape": 4, "zarr_format": 5}, ValueError, "zarr_format 5 is not known"),
        ({"shape": 4, "zarr_format": 2, "shards": 2, "chunks": 1}, UnsupportedByFormat, "can not say shards"),
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
    with pytest.raises(NodeTypeError, match="there is an array at /a/b"):
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


@pytest.mark.parametrize("zarr_format", [2, 3])
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
async def test_data_types(api, zarr_format, dtype, fill):
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


async def test_no_empty_chunk_is_stored_unless_asked(api):
    for options in ({"chunks": 2}, {"chunks": 2, "shards": 4}):
        a = await api(api.create_array({}, shape=(8,), dtype="f8", fill_value=np.nan, **options))
        await api.write(a, ..., np.nan)
        assert list(a.store.values) == ["zarr.json"]
        await api.write(a, ..., -0.0)
        count = await api(a.nchunks_initialized())
        assert count == len(a.store.values) - 1 > 0
        await api.write(a, slice(0, 4), np.nan)
        assert await api(a.nchunks_initialized()) == count // 2
        await api.write(a, 5, np.nan)
        await api.write(a, slice(6, 8), np.nan)
        await api.write(a, 4, np.nan)
        assert list(a.store.values) == ["zarr.json"]
    zeros = await api(api.create_array({}, shape=(4,), chunks=2))
    await api.write(zeros, ..., -0.0)
    assert np.signbit(await api(zeros[...])).all()
    kept = await api(api.create_array({}, shape=(4,), chunks=2, config={"write_empty_chunks": True}))
    await api.write(kept, ..., 0)
    assert await api(kept.nchunks_initialized()) == 2


@pytest.mark.parametrize("dtype", ["int4", "uint2", "i1", "str"])
@pytest.mark.parametrize("size", [100, 40_000])  # of small and large ones parts are changed in other ways
@pytest.mark.parametrize("sharded", [False, True])
async def test_chunks_that_hold_nothing_any_more_are_erased(api, dtype, size, sharded):
    values, fill = (["a"] * size, "") if dtype == "str" else (np.ones(size, "i1"), 0)
    options = {"dtype": dtype, "shape": (size,), "chunks": (size,), "compressors": None, "fill_value": fill}
    a = await api(api.create_array({}, shards=(size,) if sharded else None, **options))
    await api.write(a, ..., values)
    await api.write(a, slice(1, None), fill)
    assert sorted(a.store.values) == ["c/0", "zarr.json"]
    await api.write(a, 0, fill)
    assert sorted(a.store.values) == ["zarr.json"]
    assert (np.asarray(await api(a[...])) == fill).all()


async def test_missing_chunks_as_an_error(api):
    a = await api(api.create_array({}, name="x", shape=(6, 6), chunks=(2, 2)))
    await api.write(a, (slice(0, 2), slice(0, 4)), 1)
    view = a.view
    assert (await api(view[0].read(missing="fill"))).tolist() == [1, 1, 1, 1, 0, 0]
    with pytest.raises(MissingChunkError, match=r"2 of the chunks .* absent from .*: x/c/0/2, x/c/1/2") as error:
        await api(view[0:3, 4].read(missing="error"))
    assert error.value.keys == ("x/c/0/2", "x/c/1/2")
    assert error.value.count == 2
    assert isinstance(error.value, KeyError)
    await api(view[0:2, 0:4].read(missing="error"))
    with pytest.raises(ValueError, match="missing is"):
        await api(view.read(missing="zero"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("where", ["local", "latency"])
async def test_several_who_need_what_is_not_there(api, tmp_path, zarr_format, where):
    """One of them makes it, and all of them get it."""
    store = tmp_path / "x" if where == "local" else stores.LatencyStore(stores.MemoryStore(), 0.005)

    async def together(make):
        if api.name == "async":
            return await asyncio.gather(*(make() for _ in range(6)))
        return await asyncio.gather(*(asyncio.to_thread(make) for _ in range(6)))

    opened = await together(lambda: api.open_group(store, path="g", mode="a", zarr_format=zarr_format))
    assert {group.path for group in opened} == {"g"}
    (group, *_) = opened
    assert {below.path for below in await together(lambda: group.require_group("a"))} == {"g/a"}
    arrays = await together(lambda: group.require_array("b", shape=(3,), dtype="i4"))
    assert {array.path for array in arrays} == {"g/b"}
    with pytest.raises(NodeTypeError, match="is an array"):
        await api(group.require_group("b"))
    with pytest.raises(NodeTypeError, match="is an array"):
        await api(api.open_group(store, path="g/b", mode="a"))


# ------------------------------------------------------------------ changing


@pytest.mark.parametrize(
    "options", [{"chunks": (4, 3)}, {"chunks": (2, 3), "shards": (4, 3)}, {"chunks": (4, 3), "zarr_format": 2}]
)
async def test_shrinking_and_growing_brings_nothing_back(api, options):
    data = np.arange(1.0, 91).reshape(10, 9)
    for small, large in (
        ((5, 4), (12, 11)),
        ((10, 4), (10, 9)),
        ((0, 9), (10, 9)),
        ((4, 3), (9, 9)),
        ((1, 1), (10, 9)),
    ):
        a = await api(api.create_array({}, data=data, **options))
        await api(a.resize(small))
        assert a.shape == small
        np.testing.assert_array_equal(await api(a[...]), data[: small[0], : small[1]])
        await api(a.resize(large))
        want = np.zeros(large)
        want[: small[0], : small[1]] = data[: small[0], : small[1]]
        np.testing.assert_array_equal(await api(a[...]), want)
        found = await api(api.open_array(a.store))
        assert found.shape == large
    with pytest.raises(ShapeError, match=r"shape \(10, 9\) can not be resized to \(3,\)"):
        await api(a.resize((3,)))
    with pytest.raises(ShapeError, match="sizes are at least 0"):
        await api(a.resize((3, -1)))


async def test_append(api):
    a = await api(api.create_array({}, shape=(0, 3), chunks=(4, 2), dtype="i4"))
    for start in range(0, 30, 5):
        shape = await api(a.append(np.arange(start * 3, start * 3 + 15).reshape(5, 3)))
    assert shape == a.shape == (30, 3)
    np.testing.assert_array_equal(await api(a[...]), np.arange(90).reshape(30, 3))
    assert await api(a.append(np.zeros((30, 2)), axis=-1)) == (30, 5)
    assert (await api(api.open_array(a.store))).shape == (30, 5)
    with pytest.raises(ShapeError, match=r"shape \(5, 3\) can not be appended to shape \(30, 5\) along axis 0"):
        await api(a.append(np.zeros((5, 3))))
    with pytest.raises(ShapeError, match="no axis 2"):
        await api(a.append(np.zeros((5, 3)), axis=2))


async def test_attributes(api, store):
    a = await api(api.create_array(store, name="a", shape=3, attributes={"x": 1}))
    await api(a.update_attributes({"y": [1, {"z": None}]}))
    assert dict(a.attrs) == {"x": 1, "y": [1, {"z": None}]}
    g = await api(api.open_group(store, mode="r+"))
    await api(g.update_attributes({"title": "ü"}))
    if api.name == "sync":
        a.attrs["w"] = 2
        del a.attrs["x"]
        a.attrs.update(v=3)
        assert a.attrs.asdict() == {"y": [1, {"z": None}], "w": 2, "v": 3}
        a.attrs.put({"only": 1})
    else:
        await a._set_attributes({"only": 1})
    found = await api(api.open_array(store, path="a"))
    assert dict(found.attrs) == {"only": 1}
    assert dict((await api(api.open_group(store))).attrs) == {"title": "ü"}
    with pytest.raises(MetadataError, match="JSON"):
        await api(a.update_attributes({"x": {1, 2}}))
    assert dict(a.attrs) == {"only": 1}
    await store.close()


async def test_refresh_sees_what_others_did(api):
    values: dict = {}
    one = await api(api.create_array(values, name="a", shape=(4,), chunks=2))
    other = await api(api.open_array(values, path="a", mode="r+"))
    await api(other.resize((9,)))
    assert one.shape == (4,)
    await api(one.refresh())
    assert one.shape == (9,)
    group = await api(api.open_group(values))
    await api((await api(api.open_group(values, mode="r+"))).update_attributes({"q": 1}))
    await api(group.refresh())
    assert group.attrs["q"] == 1
    await api(api.create_group(values, path="a", overwrite=True))
    with pytest.raises(NodeTypeError, match="is a group now"):
        await api(one.refresh())


async def test_a_rewrite_keeps_what_the_model_does_not_say(api):
    values: dict = {}
    await api(api.create_array(values, name="a", shape=(4,), chunks=2, zarr_format=2, attributes={"n": 1}))
    document = json.loads(values["a/.zarray"])
    document["from_elsewhere"] = {"kept": True}
    values["a/.zarray"] = json.dumps(document).encode()
    a = await api(api.open_array(values, path="a", mode="r+"))
    before = values["a/.zarray"]
    await api(a.update_attributes({"m": 2}))
    assert values["a/.zarray"] is before  # only what changed is written
    await api(a.resize((6,)))
    assert json.loads(values["a/.zarray"]) == {**document, "shape": [6]}


# ------------------------------------------------------------------ groups


async def hierarchy(api, store):
    return await api(
        api.create_hierarchy(
            store,
            {
                "": {"attributes": {"title": "t"}},
                "x": {"shape": (3,), "dtype": "i4"},
                "g/y": {"shape": (2, 2)},
                "g/h/z": {"data": np.arange(4)},
                "e": None,
            },
        )
    )


async def test_a_hierarchy_takes_few_requests(api):
    """Of what lies above a node it is known that it is there, as it was made before."""
    counting = stores.CountingStore(stores.MemoryStore())
    nodes = {f"g{i}/a{j}": {"shape": (1,), "dtype": "i4"} for i in range(3) for j in range(10)}
    made = await api(api.create_hierarchy(counting, nodes))
    counts = counting.reset()
    assert (counts.puts, len(made)) == (34, 30)
    assert counts.fetches <= 4  # what there is at the root
    with pytest.raises(NodeExistsError):
        await api(api.create_hierarchy(counting, {"g0/a0": {"shape": (2,)}, "g0/new": {"shape": (2,)}}))
    await api(api.create_hierarchy(counting, {"g0/a0": {"shape": (2,)}, "g0/b": {"shape": (2,)}}, overwrite=True))
    assert (await api(api.open_array(counting, path="g0/a0"))).shape == (2,)
    assert (await api(api.open_array(counting, path="g0/a1"))).shape == (1,)
    with pytest.raises(NodeTypeError):
        await api(api.create_hierarchy(counting, {"g0/a1/x": {"shape": (2,)}}))


async def test_groups(api, store):
    made = await hierarchy(api, store)
    assert sorted(made) == ["", "e", "g/h/z", "g/y", "x"]
    g = await api(api.open_group(store, mode="r+"))
    assert [name for name, _ in await api(g.members())] == ["e", "g", "x"]
    assert [name for name, _ in await api(g.members(1))] == ["e", "g", "g/h", "g/y", "x"]
    assert [name for name, _ in await api(g.members(None))] == ["e", "g", "g/h", "g/h/z", "g/y", "x"]
    assert await api(g.nmembers(None)) == 6
    assert await api(g.array_keys()) == ("x",)
    assert await api(g.group_keys()) == ("e", "g")
    assert [a.name for _, a in await api(g.arrays())] == ["/x"]
    assert [a.name for _, a in await api(g.groups())] == ["/e", "/g"]
    assert await api(g.contains("g/h/z"))
    assert not await api(g.contains("nothing"))
    assert await api(g.get("nothing")) is None
    assert await api(g.get("nothing", 3)) == 3
    z = await api(g["g/h/z"])
    assert (await api(z[...])).tolist() == [0, 1, 2, 3]
    with pytest.raises(NodeNotFoundError, match="/nothing"):
        await api(g["nothing"])
    if api.name == "sync":
        assert list(g) == ["e", "g", "x"]
        assert len(g) == 3
        assert "x" in g
        assert "y" not in g
        assert 3 not in g
        assert dict(g.items()).keys() == {"e", "g", "x"}
        assert [n.name for n in g.values()] == ["/e", "/g", "/x"]
        del g["e"]
    else:
        assert [name async for name in g] == ["e", "g", "x"]
        await g.delete("e")
    assert not await api(g.contains("e"))
    with pytest.raises(NodeNotFoundError):
        await api(g.delete("e"))
    assert await api(g.tree()) == (
        "/\n├── g\n│   ├── h\n│   │   └── z (4,) int64\n│   └── y (2, 2) float64\n└── x (3,) int32"
    )
    with pytest.raises(ValueError, match="max_depth"):
        await api(g.members(-1))
    await store.close()


async def test_require(api):
    g = await api(api.create_group({}))
    a = await api(g.require_array("a", shape=(3,), dtype="i4"))
    assert await api(g.require_array("a", shape=3, dtype="i8")) == a
    with pytest.raises(ShapeError, match=r"has shape \(3,\), not \(4,\)"):
        await api(g.require_array("a", shape=4))
    with pytest.raises(NodeTypeError, match="data type int32, not int64"):
        await api(g.require_array("a", shape=3, dtype="i8", exact=True))
    h = await api(g.require_group("h", attributes={"x": 1}))
    assert await api(g.require_group("h")) == h
    with pytest.raises(NodeTypeError, match="/a is an array, not a group"):
        await api(g.require_group("a"))
    with pytest.raises(NodeTypeError, match="/h is a group, not an array"):
        await api(g.require_array("h", shape=3))
    with pytest.raises(NodeExistsError):
        await api(g.create_array("a", shape=3))
    await api(g.create_array("a", shape=5, overwrite=True))
    assert (await api(g["a"])).shape == (5,)


async def test_moving(api, store):
    await hierarchy(api, store)
    g = await api(api.open_group(store, mode="r+"))
    await api(g.move("g/h", "new/place"))
    z = await api(g["new/place/z"])
    assert (await api(z[...])).tolist() == [0, 1, 2, 3]
    assert not await api(g.contains("g/h"))
    assert await api(g.contains("new"))
    with pytest.raises(NodeExistsError, match="already"):
        await api(g.move("x", "g"))
    with pytest.raises(NodeExistsError, match="below itself"):
        await api(g.move("g", "g/inside"))
    with pytest.raises(NodeNotFoundError):
        await api(g.move("nothing", "somewhere"))
    with pytest.raises(InvalidKeyError):
        await api(g.move("x", "__bad"))
    assert await api(g.contains("x"))
    await api(g.move("x", "x"))
    assert await api(g.contains("x"))
    await store.close()


async def test_hierarchies_complain(api):
    with pytest.raises(NodeExistsError, match="same node"):
        await api(api.create_hierarchy({}, {"a": None, "/a/": None}))
    values: dict = {}
    with pytest.raises(NodeExistsError, match="'a/b/c' can not be below 'a', which is an array"):
        await api(api.create_hierarchy(values, {"x": {"shape": 3}, "a": {"shape": 3}, "a/b/c": None}))
    with pytest.raises(MetadataError, match="the attribute 'made' can not be written"):
        await api(api.create_hierarchy(values, {"x": {"shape": 3}, "g/h": {"attributes": {"made": {1}}}}))
    other: dict[str, bytes] = {}
    await api(api.create_group(other, zarr_format=2))
    with pytest.raises(NodeTypeError, match="format 3 can not be created below /.*another format"):
        await api(api.create_hierarchy(other, {"g/a": {"shape": 3}}))
    assert list(other) == [".zgroup"]
    assert not values
    await api(api.create_array(values, name="a", shape=3))
    with pytest.raises(NodeTypeError, match="there is an array at /a"):
        await api(api.create_hierarchy(values, {"a/b": None}))
    with pytest.raises(NodeExistsError):
        await api(api.create_hierarchy(values, {"a": {"shape": 4}}))
    await api(api.create_hierarchy(values, {"a": {"shape": 4}, "b": None}, overwrite=True))
    assert (await api(api.open_array(values, path="a"))).shape == (4,)


async def test_listing_where_a_store_can_not(api, http):
    url, root = http
    await api(api.create_array(root / "x.zarr", name="a", data=np.arange(4)))
    group = await api(api.open_group(f"{url}/x.zarr"))
    assert (await api(group["a"])).shape == (4,)
    with pytest.raises(UnsupportedOperation, match="can not list .*open nodes by their paths"):
        await api(group.members())
    await api(group.close())


async def test_save_and_load(api, tmp_path):
    data = np.arange(6).reshape(2, 3)
    await api(api.save(tmp_path / "one", data))
    np.testing.assert_array_equal(await api(api.load(tmp_path / "one")), data)
    await api(api.save(tmp_path / "two", data, data.T, named=np.array(["a", "bc"]), zarr_format=2))
    found = await api(api.load(tmp_path / "two"))
    assert sorted(found) == ["arr_0", "arr_1", "named"]
    np.testing.assert_array_equal(found["arr_1"], data.T)
    assert found["named"].tolist() == ["a", "bc"]
    with pytest.raises(TypeError, match="at least one array"):
        await api(api.save(tmp_path / "three"))


@pytest.mark.parametrize(
    ("names", "error", "match"),
    [
        (["..", "b"], InvalidKeyError, "not a valid store key"),
        (["a", "__x"], InvalidKeyError, "not a valid node name"),
        ([""], InvalidKeyError, "needs a name"),
        (["a", "a/b"], NodeExistsError, "'a/b' can not be below 'a'"),
        (["a", "/a/"], NodeExistsError, "two of the paths mean 'a'"),
    ],
)
async def test_names_that_can_not_be_replace_nothing(api, names, error, match):
    values: dict = {}
    await api(api.save(values, kept=np.arange(3)))
    before = dict(values)
    with pytest.raises(error, match=match):
        await api(api.save(values, **dict.fromkeys(names, np.arange(2))))
    nodes = {name: {"shape": 2} for name in names}
    with pytest.raises((error, NodeExistsError), match=f"{match}|same node|below"):
        await api(api.create_hierarchy(values, {**nodes, "kept": {"shape": 2}}, overwrite=True))
    with pytest.raises(TypeError, match="'arr_0' is what an array without a name is called"):
        await api(api.save(values, np.arange(3), arr_0=np.arange(2)))
    with pytest.raises(TypeError, match="nodes are a mapping"):
        await api(api.create_hierarchy(values, ["a"]))
    assert values == before


# ------------------------------------------------------------------ requests, pickles, faces


async def test_opening_and_creating_never_list(api):
    store = stores.CountingStore(stores.MemoryStore())
    await api(api.create_hierarchy(store, {"g": None, "g/a": {"shape": 4, "chunks": 2}}))
    assert store.counts.lists == 0
    store.reset()
    a = await api(api.open_array(store, path="g/a"))
    assert store.reset().fetches == 3  # one batch: the documents of both formats
    known = await api(api.open_array(store, path="g/a", zarr_format=3))
    assert store.reset().requests == 1
    g = await api(api.open_group(store, path="g"))
    store.reset()
    await api(g["a"])
    assert store.reset().requests == 1  # a child's format is known
    await api(known[...])
    assert store.reset().requests == 2
    await api(g.members())
    assert (store.counts.lists, store.counts.fetches) == (1, 1)
    repr(a), a.info, repr(g), g.info, a.view[0].explain()
    assert store.counts.requests == 2


async def test_partial_reads_of_shards_and_raw_chunks_are_frugal(api):
    store = stores.CountingStore(stores.MemoryStore())
    data = np.random.default_rng(0).random((256, 256))
    await api(api.create_array(store, name="s", data=data, chunks=(32, 32), shards=(256, 256), compressors=None))
    await api(api.create_array(store, name="r", data=data, chunks=(256, 256), compressors=None))
    s, r = await api(api.open_array(store, path="s")), await api(api.open_array(store, path="r"))
    store.reset()
    np.testing.assert_array_equal(await api(s[40, 50]), data[40, 50])
    counts = store.reset()
    assert counts.fetches == 2  # the index, the inner chunk
    assert counts.bytes_read == 64 * 16 + 4 + 32 * 32 * 8
    np.testing.assert_array_equal(await api(s[32:64]), data[32:64])
    counts = store.reset()
    assert counts.fetches == 1  # neighbours are fetched together, and the index is known by now
    assert counts.bytes_read == 8 * 32 * 32 * 8
    np.testing.assert_array_equal(await api(r[7, 3:9]), data[7, 3:9])
    counts = store.reset()
    assert (counts.fetches, counts.bytes_read) == (1, 6 * 8)


@pytest.mark.parametrize("where", ["memory", "local"])
async def test_known_indexes_of_shards_are_never_stale(api, where, tmp_path):
    """A reader that knows a shard's index sees what others do to the shard: replace, fill in, erase."""
    store = stores.MemoryStore() if where == "memory" else stores.LocalStore(tmp_path)
    data = np.arange(64, dtype="i4").reshape(8, 8)
    options = {"chunks": (2, 2), "shards": (8, 8), "dtype": "i4", "fill_value": -1}
    writer = await api(api.create_array(store, shape=(8, 8), **options))
    await api.write(writer, (slice(0, 4), slice(0, 4)), data[:4, :4])
    reader = await api(api.open_array(store))
    assert await api(reader[1, 1]) == data[1, 1]
    assert await api(reader[7, 7]) == -1  # its inner chunk is absent by an index that is known
    await api.write(writer, (7, 7), 63)
    assert await api(reader[7, 7]) == 63
    assert await api(reader[1, 1]) == data[1, 1]
    await api.write(writer, ..., data[::-1])  # inner chunks lie elsewhere now
    np.testing.assert_array_equal(await api(reader[2:5, 1:7]), data[::-1][2:5, 1:7])
    assert await api(reader[1, 1]) == data[6, 1]
    await api.write(writer, ..., -1)  # nothing is left to store
    assert await api(reader[1, 1]) == -1
    with pytest.raises(MissingChunkError):
        await api(reader.view[2:5, 1:7].read(missing="error"))
    await api.write(writer, (1, 1), 5)
    assert await api(reader[1, 1]) == 5


async def test_nodes_pickle(api, tmp_path):
    a = await api(api.create_array(tmp_path, name="a", data=np.arange(4), chunks=2, shards=4))
    b = pickle.loads(pickle.dumps(a))
    assert b == a
    assert (await api(b[...])).tolist() == [0, 1, 2, 3]
    g = await api(api.open_group(tmp_path))
    assert pickle.loads(pickle.dumps(g)) == g


async def test_faces(api):
    a = await api(api.create_array({}, name="a", shape=(4, 4), chunks=2, dtype="f4", compressors=GzipCodec()))
    assert "/a shape=(4, 4) dtype=float32 MemoryStore" in repr(a)
    assert repr(a).startswith("<AsyncArray" if api.name == "async" else "<Array")
    assert a.info["Codecs"] == "bytes, gzip"
    assert "Chunk shape" in repr(a.info)
    g = await api(api.open_group(a.store))
    assert repr(g).startswith("<AsyncGroup /" if api.name == "async" else "<Group /")
    assert g.info["Type"] == "Group"
    view = a.view[1:3]
    assert "shape=(2, 4)" in repr(view)
    assert (view.ndim, view.size, view.nbytes, len(view)) == (2, 8, 32, 2)
    scalar = await api(api.create_array({}, shape=()))
    for thing in (scalar, scalar.view):
        with pytest.raises(TypeError, match="no length"):
            len(thing)


async def test_progress(api):
    a = await api(api.create_array({}, shape=(100, 100), chunks=(30, 30), dtype="f4"))
    done: list[int] = []
    await api(a.view.write(np.ones((100, 100)), progress=done.append))
    assert sum(done) == 100 * 100 * 4
    done.clear()
    await api(a.view[5:].read(progress=done.append))
    assert sum(done) == 95 * 100 * 4
    await api(a.view.read(progress=True))


async def test_closing(api, tmp_path):
    a = await api(api.create_array(tmp_path, name="a", shape=3))
    g = await api(api.open_group(tmp_path))
    if api.name == "async":
        async with a as inner, g as group:
            assert inner is a
            assert group is g
    else:
        with a as inner, g as group:
            assert inner is a
            assert group is g


def test_numpy_protocols():
    from zarrasync import sync

    a = sync.create_array({}, data=np.arange(12).reshape(4, 3), chunks=(2, 2))
    np.testing.assert_array_equal(np.asarray(a), np.arange(12).reshape(4, 3))
    assert np.asarray(a, "f4").dtype == np.float32
    assert np.asarray(a.view[1]).tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match="copy"):
        np.array(a, copy=False)
    with pytest.raises(ValueError, match="copy"):
        np.array(a.view, copy=False)
    assert [row.tolist() for row in a] == np.arange(12).reshape(4, 3).tolist()
    counting = stores.CountingStore(a.store)
    assert len(list(sync.open_array(counting))) == 4
    assert counting.counts.fetches == 3 + 4  # the documents, and each chunk once
    assert a.view.array == a
    a.view[0:2][1] = 9
    assert a[1].tolist() == [9, 9, 9]
    assert a.async_.shape == a.shape


# ------------------------------------------------------------------ changes that meet


async def test_a_change_back_is_stored(api):
    for zarr_format in (2, 3):
        values: dict = {}
        await api(api.create_array(values, shape=10, chunks=5, attributes={"a": 1}, zarr_format=zarr_format))
        a = await api(api.open_array(values, mode="r+"))
        await api(a.update_attributes({"a": 2}))
        await api(a.update_attributes({"a": 1}))
        await api(a.resize(20))
        await api(a.resize(10))
        found = await api(api.open_array(values))
        assert found.shape == (10,)
        assert dict(found.attrs) == {"a": 1}


async def test_changes_through_several_objects_add_up(api):
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    values: dict = {}
    await api(api.create_array(values, shape=0, chunks=3, dtype="i4"))
    arrays = [await api(api.open_array(values, mode="r+")) for _ in range(6)]
    if api.name == "async":
        await asyncio.gather(*(a.append([i, i]) for i, a in enumerate(arrays)))
        await asyncio.gather(*(a.update_attributes({str(i): i}) for i, a in enumerate(arrays)))
    else:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda pair: pair[1].append([pair[0], pair[0]]), enumerate(arrays)))
            list(pool.map(lambda pair: pair[1].update_attributes({str(pair[0]): pair[0]}), enumerate(arrays)))
    found = await api(api.open_array(values))
    assert sorted((await api(found[...])).tolist()) == sorted([0, 1, 2, 3, 4, 5] * 2)
    assert dict(found.attrs) == {str(i): i for i in range(6)}


async def test_huge_sparse_grids(api):
    a = await api(api.create_array({}, shape=(10**12, 10**12), dtype="i4", chunks=(10, 10)))
    i, j = 9 * 10**11 + 3, 5 * 10**11 + 7
    await api.write(a, (i, j), 42)
    assert (await api(a.get_coordinate_selection(([i, 5, i], [j, 5, j])))).tolist() == [42, 0, 42]
    assert await api(a.nchunks_initialized()) == 1
    await api(a.resize((1000, 1000)))
    assert await api(a.nchunks_initialized()) == 0
    await api(a.resize((10**12, 10**12)))
    assert await api(a[i, j]) == 0


async def test_unsorted_orthogonal_selections_of_shards(api):
    data = np.arange(64).reshape(8, 8)
    for options in ({"chunks": (4, 4), "shards": (8, 8)}, {"chunks": (8, 8), "compressors": None}):
        a = await api(api.create_array({}, data=data, **options))
        found = await api(a.get_orthogonal_selection(([1, 6, 0], [2, 5, 1, 7, 3])))
        np.testing.assert_array_equal(found, data[np.ix_([1, 6, 0], [2, 5, 1, 7, 3])])


async def test_fill_values_that_end_in_nul(api):
    for dtype, fill, value in ((bytes, b"z\0", b"z"), (str, "z\0", "z")):
        a = await api(api.create_array({}, shape=4, chunks=2, dtype=dtype, fill_value=fill))
        await api.write(a, 0, value)
        assert (await api(a[...])).tolist() == [value, fill, fill, fill]


async def test_text_types_without_a_width_are_of_any_length(api):
    for dtype in ("str", "U", np.str_, str):
        a = await api(api.create_array({}, shape=2, dtype=dtype))
        await api.write(a, ..., ["ab", "c" * 50])
        assert (await api(a[...])).tolist() == ["ab", "c" * 50]


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


async def test_a_member_needs_a_name(api):
    g = await api(api.create_group({}))
    for name in ("", "/"):
        with pytest.raises(InvalidKeyError, match="names no member"):
            await api(g.delete(name))
        with pytest.raises(InvalidKeyError):
            await api(g.create_array(name, shape=3, overwrite=True))
    await api(g.refresh())


async def test_misspelt_parameters_are_named(api):
    g = await api(api.create_group({}))
    with pytest.raises(TypeError, match="no parameter 'chunk'; did you mean 'chunks'"):
        await api(g.create_array("a", shape=4, chunk=2))
    with pytest.raises(TypeError, match="no parameter 'compression'|did you mean"):
        await api(g.create_array("a", shape=4, compression="gzip"))
    await api(g.create_array("a", shape=4))
    with pytest.raises(TypeError, match="no parameter 'moed'; the parameters are shape, dtype"):
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
async def test_chunks_of_no_length_along_axes_of_none(api, zarr_format, tmp_path):
    """zarr-python 3.1 writes such; one of them must not hide its whole group."""
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


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
async def test_what_is_damaged_can_be_erased(api, zarr_format):
    store = {}
    group = await api(api.create_group(store, zarr_format=zarr_format))
    await api(group.create_array("a", shape=(1,), dtype="i4"))
    (key,) = (key for key in store if key.endswith(("a/.zarray", "a/zarr.json", "a.array.json")))
    store[key] = b"{"
    with pytest.raises(MetadataError):
        await api(group.getitem("a"))
    await api(group.delete("a"))
    assert key not in store
    with pytest.raises(NodeNotFoundError):
        await api(group.delete("a"))


@pytest.mark.parametrize(("first", "second"), [(2, "3-draft"), ("3-draft", 2), (3, "3-draft"), (3, 2)])
async def test_nodes_of_another_format_are_not_hidden(api, first, second):
    """Even if the format is named."""
    store = {}
    await api(api.create_array(store, path="a", data=np.arange(2), zarr_format=first))
    before = dict(store)
    with pytest.raises(ZarrError):
        await api(api.create_array(store, path="b", data=np.arange(2), zarr_format=second))
    assert store == before


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_names_that_are_no_text(api, zarr_format, tmp_path):
    for store in ({}, tmp_path / "x"):
        with pytest.raises(InvalidKeyError, match="surrogates"):
            await api(api.create_array(store, path="a\ud800", shape=(1,), dtype="i4", zarr_format=zarr_format))
        with pytest.raises(InvalidKeyError, match="surrogates"):
            await api(api.open_array(store, path="\ud800"))


async def test_dtypes_of_numpy_that_are_no_words_of_format_2(api):
    store = {}
    await api(api.create_array(store, shape=(1,), dtype="i4", zarr_format=2))
    store[".zarray"] = store[".zarray"].replace(b'"<i4"', b'"<T"')
    with pytest.raises(MetadataError, match="vlen-utf8"):
        await api(api.open_array(store))
