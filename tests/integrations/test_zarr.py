"""Stores of zarrasync used by zarr-python and by libraries on top of it."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.store_kinds import make_store
from zarrasync import stores, sync
from zarrasync.errors import UnsupportedOperation

zarr = pytest.importorskip("zarr")

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest  # after the skip
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from zarrasync.integrations.zarr import ZarrStore, zarr_store

VALUES = np.arange(2000.0).reshape(40, 50)
KINDS = ["local", "latency", "zip", "fsspec-memory"]


@pytest.fixture(params=KINDS)
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> ZarrStore:
    return zarr_store(make_store(request.param, request, tmp_path))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_writes_and_reads(theirs: ZarrStore, zarr_format: Any):
    root = zarr.create_group(theirs, zarr_format=zarr_format, attributes={"a": 1})
    array = root.create_array("x/y", shape=VALUES.shape, dtype="f8", chunks=(10, 20))
    array[...] = VALUES
    array[5:15, 7] = -1
    expected = VALUES.copy()
    expected[5:15, 7] = -1
    np.testing.assert_array_equal(zarr.open_array(theirs, path="x/y")[...], expected)
    np.testing.assert_array_equal(sync.open_array(theirs.inner, path="x/y")[...], expected)
    assert sorted(zarr.open_group(theirs).array_keys()) == []
    assert sorted(zarr.open_group(theirs).group_keys()) == ["x"]
    del root["x"]
    assert list(zarr.open_group(theirs).group_keys()) == []


async def test_the_interface(theirs: ZarrStore):
    buffer = default_buffer_prototype().buffer
    await theirs.set("a/b", buffer.from_bytes(b"0123456789"))
    prototype = default_buffer_prototype()
    asked: list[Any] = [
        None,
        RangeByteRequest(2, 5),
        OffsetByteRequest(7),
        SuffixByteRequest(3),
        RangeByteRequest(8, 90),
    ]
    found = await theirs.get_partial_values(prototype, [("a/b", wanted) for wanted in asked])
    assert [f.to_bytes() for f in found] == [b"0123456789", b"234", b"789", b"789", b"89"]
    assert await theirs.get("none", prototype) is None
    assert await theirs.exists("a/b")
    await theirs.set_if_not_exists("a/b", buffer.from_bytes(b"other"))
    await theirs.set_if_not_exists("a/c", buffer.from_bytes(b"c"))
    assert (await theirs.get("a/b")).to_bytes() == b"0123456789"
    assert sorted([key async for key in theirs.list()]) == ["a/b", "a/c"]
    assert sorted([key async for key in theirs.list_prefix("a/b")]) == ["a/b"]
    assert sorted([name async for name in theirs.list_dir("a")]) == ["b", "c"]
    assert [name async for name in theirs.list_dir("")] == ["a"]
    await theirs.delete("a/b")
    await theirs.clear()
    assert [key async for key in theirs.list()] == []


def test_reading_alone(tmp_path: Path):
    sync.create_array(tmp_path / "x", data=VALUES)
    store = zarr_store(tmp_path / "x", read_only=True)
    assert store.read_only
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_array(store, mode="r+")
    np.testing.assert_array_equal(zarr.open_array(store, mode="r")[3], VALUES[3])
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert hash(again) == hash(store)
    assert again.with_read_only() == zarr_store(tmp_path / "x") != store
    np.testing.assert_array_equal(zarr.open_array(again, mode="r")[3], VALUES[3])


def test_it_is_not_wrapped_twice():
    inner = stores.MemoryStore()
    assert stores.resolve(zarr_store(inner)) is inner


@pytest.mark.filterwarnings("ignore:The data type")
def test_xarray_writes_through_it(s3):
    """``Dataset.to_zarr`` works only with zarr-python, so this brings our stores to existing pipelines."""
    xarray = pytest.importorskip("xarray")
    url, options = s3
    dataset = xarray.Dataset(
        {"t": (("y", "x"), VALUES, {"unit": "K"})},
        coords={
            "x": np.arange(50),
            "time": np.datetime64("2020-01-01", "ns"),
            "name": ("y", [str(n) for n in range(40)]),
        },
    )
    dataset.to_zarr(zarr_store(url, storage_options=options), mode="w", consolidated=False)
    found = xarray.open_dataset(url, engine="zarrasync", storage_options=options)
    xarray.testing.assert_identical(found.load(), dataset)


async def test_opening(tmp_path: Path):
    """The ``open`` method of zarr-python's interface creates a store from the arguments of its class."""
    store = await ZarrStore.open(stores.LocalStore(tmp_path))
    assert store == zarr_store(tmp_path)
    zarr.create_group(store)
    assert sync.open_group(tmp_path).zarr_format == 3


def test_a_dictionary_that_zarr_python_has_written():
    values: dict[str, Any] = {}
    zarr.create_group(values).create_array("x", data=VALUES, chunks=(10, 20))
    np.testing.assert_array_equal(sync.open_array(values, path="x")[...], VALUES)
    array = sync.open_array(values, path="x", mode="r+")
    array[3, 4] = -1
    assert array[3].min() == -1


async def test_names_may_begin_with_a_slash(theirs: ZarrStore):
    assert await theirs.is_empty("/")
    await theirs.set("a/b", default_buffer_prototype().buffer.from_bytes(b"0"))
    for root in ("", "/"):
        assert [key async for key in theirs.list_prefix(root)] == ["a/b"]
        assert [name async for name in theirs.list_dir(root)] == ["a"]
        assert not await theirs.is_empty(root)
    assert [key async for key in theirs.list_prefix("/a/")] == ["a/b"]


def test_the_synchronous_interface(theirs: ZarrStore):
    """zarr-python's fused pipeline uses it for near stores."""
    from zarr.abc.store import SupportsSyncStore

    assert isinstance(theirs, SupportsSyncStore)
    assert theirs._supports_sync_io == (theirs.inner.blocking and theirs.inner.is_local)
    if not theirs._supports_sync_io:
        return
    theirs.set_sync("a", default_buffer_prototype().buffer.from_bytes(b"0123"))
    assert theirs.get_sync("a").to_bytes() == b"0123"
    assert theirs.get_sync("a", byte_range=RangeByteRequest(1, 3)).to_bytes() == b"12"
    theirs.delete_sync("a")
    assert theirs.get_sync("a") is None


def test_stores_without_consolidated_metadata():
    """They have fast listings of their own, as icechunk's sessions."""

    class Store(MemoryStore):
        supports_consolidated_metadata = False

    store = Store()
    sync.create_group(store).create_array("a", data=VALUES)
    with pytest.raises(UnsupportedOperation, match="does not support consolidated metadata"):
        sync.consolidate_metadata(store)
    assert list(sync.open_group(store, use_consolidated=True)) == ["a"]
    assert not zarr_store(store).supports_consolidated_metadata


@pytest.mark.parametrize("order", ["morton", "lexicographic", "colexicographic", "unordered"])
@pytest.mark.parametrize("nested", [False, True])
async def test_shards_contain_inner_chunks_in_the_order_of_a_codec(api, order, nested):
    """The same bytes as zarr-python writes."""
    codecs = pytest.importorskip("zarr.codecs")
    if "subchunk_write_order" not in inspect.signature(codecs.ShardingCodec).parameters:
        pytest.skip("an option since zarr-python 3.2")
    codec = codecs.ShardingCodec(chunk_shape=(1, 1), codecs=[codecs.BytesCodec()], subchunk_write_order=order)
    if nested:
        codec = codecs.ShardingCodec(chunk_shape=(4, 4), codecs=[codec], subchunk_write_order=order)
    data = np.arange(1, 65, dtype="u1").reshape(8, 8)
    own, other = {}, {}
    options = {"shape": (8, 8), "chunks": (8, 8), "dtype": "u1", "serializer": codec, "compressors": None}
    array = await api(api.create_array(own, **options))
    await api(array.set_basic_selection(..., data))
    zarr.create_array(zarr.storage.MemoryStore(other), **options)[...] = data
    assert bytes(own["c/0/0"]) == other["c/0/0"].to_bytes()
    np.testing.assert_array_equal(sync.open_array(own)[...], data)
