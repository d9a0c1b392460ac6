"""Which chunks are read and stored: empty and missing ones, parts of shards, cached indexes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.covering import covering
from zarrasync import stores
from zarrasync.errors import MissingChunkError


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


@pytest.mark.parametrize(
    ("dtype", "size", "sharded"),  # small and large chunks are changed by different code
    covering(["int4", "uint2", "i1", "str"], [100, 40_000], [False, True]),
)
async def test_chunks_of_fill_values_are_erased(api, dtype, size, sharded):
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
    with pytest.raises(ValueError, match="missing must be"):
        await api(view.read(missing="zero"))


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
    assert counts.fetches == 1  # neighbours share one request, and the index is cached
    assert counts.bytes_read == 8 * 32 * 32 * 8
    np.testing.assert_array_equal(await api(r[7, 3:9]), data[7, 3:9])
    counts = store.reset()
    assert (counts.fetches, counts.bytes_read) == (1, 6 * 8)


@pytest.mark.parametrize("where", ["memory", "local"])
async def test_known_indexes_of_shards_are_never_stale(api, where, tmp_path):
    """A reader with a cached shard index sees changes of the shard by others."""
    store = stores.MemoryStore() if where == "memory" else stores.LocalStore(tmp_path)
    data = np.arange(64, dtype="i4").reshape(8, 8)
    options = {"chunks": (2, 2), "shards": (8, 8), "dtype": "i4", "fill_value": -1}
    writer = await api(api.create_array(store, shape=(8, 8), **options))
    await api.write(writer, (slice(0, 4), slice(0, 4)), data[:4, :4])
    reader = await api(api.open_array(store))
    assert await api(reader[1, 1]) == data[1, 1]
    assert await api(reader[7, 7]) == -1  # the cached index has no such inner chunk
    await api.write(writer, (7, 7), 63)
    assert await api(reader[7, 7]) == 63
    assert await api(reader[1, 1]) == data[1, 1]
    await api.write(writer, ..., data[::-1])  # inner chunks have moved
    np.testing.assert_array_equal(await api(reader[2:5, 1:7]), data[::-1][2:5, 1:7])
    assert await api(reader[1, 1]) == data[6, 1]
    await api.write(writer, ..., -1)  # nothing is left to store
    assert await api(reader[1, 1]) == -1
    with pytest.raises(MissingChunkError):
        await api(reader.view[2:5, 1:7].read(missing="error"))
    await api.write(writer, (1, 1), 5)
    assert await api(reader[1, 1]) == 5


async def test_unsorted_orthogonal_selections_of_shards(api):
    data = np.arange(64).reshape(8, 8)
    for options in ({"chunks": (4, 4), "shards": (8, 8)}, {"chunks": (8, 8), "compressors": None}):
        a = await api(api.create_array({}, data=data, **options))
        found = await api(a.get_orthogonal_selection(([1, 6, 0], [2, 5, 1, 7, 3])))
        np.testing.assert_array_equal(found, data[np.ix_([1, 6, 0], [2, 5, 1, 7, 3])])
