"""Arrays: shapes and attributes that change, representations, protocols of Python and NumPy."""

from __future__ import annotations

import asyncio
import json
import pickle

import numpy as np
import pytest

from zarrasync import stores
from zarrasync.codecs import GzipCodec
from zarrasync.errors import MetadataError, NodeTypeError, ShapeError


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
    with pytest.raises(ShapeError, match=r"cannot resize an array of shape \(10, 9\) to \(3,\)"):
        await api(a.resize((3,)))
    with pytest.raises(ShapeError, match="must be at least 0"):
        await api(a.resize((3, -1)))


async def test_append(api):
    a = await api(api.create_array({}, shape=(0, 3), chunks=(4, 2), dtype="i4"))
    for start in range(0, 30, 5):
        shape = await api(a.append(np.arange(start * 3, start * 3 + 15).reshape(5, 3)))
    assert shape == a.shape == (30, 3)
    np.testing.assert_array_equal(await api(a[...]), np.arange(90).reshape(30, 3))
    assert await api(a.append(np.zeros((30, 2)), axis=-1)) == (30, 5)
    assert (await api(api.open_array(a.store))).shape == (30, 5)
    with pytest.raises(ShapeError, match=r"\(5, 3\) to an array of shape \(30, 5\) along axis 0"):
        await api(a.append(np.zeros((5, 3))))
    with pytest.raises(ShapeError, match="along axis 2: the array has shape"):
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


async def test_refresh_reads_changes_of_others(api):
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


async def test_a_rewrite_keeps_unknown_members_of_documents(api):
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


async def test_shrinking_visits_stored_chunks_only(api):
    """A cut through many chunks of which few are stored takes one listing, not a request per chunk."""
    store = stores.CountingStore(stores.MemoryStore())
    a = await api(api.create_array(store, shape=(20, 100_000), chunks=(8, 10), dtype="i4"))
    await api.write(a, (slice(18, 20), slice(1000, 1005)), 7)
    await api.write(a, (12, 5), 2)
    await api.write(a, (19, 99_999), 9)
    store.reset()
    await api(a.resize((19, 99_995)))
    counts = store.counts
    assert counts.fetches < 20
    assert counts.lists < 5
    await api(a.resize((20, 100_000)))
    assert (await api(a.view[12, 5].read())) == 2
    assert (await api(a.view[18:20, 999:1006].read())).tolist() == [[0, 7, 7, 7, 7, 7, 0], [0] * 7]
    assert (await api(a.view[19, 99_999].read())) == 0
