"""S3 services without conditional writes, which the first such write reveals."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.s3_server import Bucket
from zarrasync import stores, sync
from zarrasync.errors import NodeExistsError, ShapeError
from zarrasync.nodes.access import chunks_of, handle_of
from zarrasync.nodes.append_resize import fill_box

BACKENDS = ["obstore", "fsspec"]
VALUES = np.arange(200 * 200, dtype="i4").reshape(200, 200)


@pytest.fixture(autouse=True)
def without_conditions(bucket: Bucket) -> None:
    sync.create_array(bucket.values, data=VALUES, chunks=(50, 50), overwrite=True)
    bucket.conditional = False


@pytest.mark.parametrize("backend", BACKENDS)
async def test_unaligned_writes_are_refused_or_allowed(api: Api, bucket: Bucket, backend: str):
    """Writes that could lose data of others are refused once this is known, unless they are allowed."""
    bucket.conditional = False
    options = bucket.options(backend=backend)

    async def array(unaligned: str = "safe") -> Any:
        return await api(
            api.open_array("s3://bucket", mode="r+", storage_options=options, config={"unaligned": unaligned})
        )

    before = dict(bucket.values)
    for change in (
        lambda one: api.write(one, (3, 3), -7),
        lambda one: api(one.append(VALUES[:50])),
        lambda one: api(api.ingest(VALUES[:5], one.store, mode="r+", region=(slice(0, 5), slice(None)))),
    ):
        fresh = await array()
        assert fresh.store.conditional
        with pytest.raises(ShapeError, match="allow"):
            await change(fresh)
        assert not fresh.store.conditional
        with pytest.raises(ShapeError, match="allow"):  # this time it is known in advance
            await change(fresh)
        assert bucket.values == before
    await api.write(await array("allow"), (3, 3), -7)
    await api((await array()).update_attributes({"a": 1}))
    await api((await array("allow")).append(VALUES[:50]))
    found = sync.open_array(bucket.values)
    assert (found.shape, found.attrs["a"], found[3, 3]) == ((250, 200), 1, -7)
    np.testing.assert_array_equal(found[200:], VALUES[:50])
    with pytest.raises(NodeExistsError):
        await api(api.create_array("s3://bucket", shape=(1,), zarr_format=3, storage_options=options))
    created = await api(api.create_array("s3://bucket/y", data=VALUES, storage_options=options))
    np.testing.assert_array_equal(await api(created[...]), VALUES)


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_dask(bucket: Bucket, backend: str):
    """Blocks that share chunks, in a service whose lack of conditional writes shows during the write."""
    da = pytest.importorskip("dask.array")
    from zarrasync.integrations.dask import store

    bucket.conditional = False
    array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend))
    before = dict(bucket.values)
    lazy = da.full(array.shape, 3, chunks=(array.shape[0], 33), dtype=array.dtype)
    with pytest.raises(ShapeError, match="covers only parts of the chunks"):
        store(lazy, array)
    assert bucket.values == before
    store(lazy, array, unaligned="allow", scheduler="threads", num_workers=1)
    assert (sync.open_array(bucket.values)[...] == 3).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unaligned", ["safe", "allow"])
async def test_arrays_that_were_open_before(api: Api, bucket: Bucket, backend: str, unaligned: str):
    """The finding of one array holds for all open arrays of the same store, which still have versions."""
    store = stores.resolve("s3://bucket", bucket.options(backend=backend))
    common = {"mode": "r+", "config": {"unaligned": unaligned}}
    first, *others = [await api(api.open_array(store, **common)) for _ in range(4)]
    if unaligned == "safe":
        with pytest.raises(ShapeError):
            await api.write(first, (3, 3), -7)
    else:
        await api.write(first, (3, 3), -7)
    assert not store.conditional
    await api(others[0].update_attributes({"a": 1}))
    await api(others[1].resize((300, 200)))
    if unaligned == "allow":
        await api(others[2].append(VALUES[:50]))
    found = sync.open_array(bucket.values)
    assert (found.attrs["a"], found.shape) == (1, (350, 200) if unaligned == "allow" else (300, 200))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_creation_beside_the_one_that_finds_out(bucket: Bucket, backend: str):
    """A concurrent creation must not assume that unread keys are missing."""
    bucket.values.clear()
    sync.create_group(bucket.values).create_group("g").create_array("old", data=np.arange(4))
    before, looked, flipped = bucket.values["g/old/zarr.json"], threading.Event(), threading.Event()

    def fault(key: str, data: bytes | None) -> None:
        if not bucket.is_writing and key == "g/zarr.json":  # parent groups are read
            looked.set()
            flipped.wait(10)

    bucket.fault = fault
    root = await za.open_group("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend))
    task = asyncio.create_task(root.create_array("g/old", shape=(3,), dtype="f8"))
    await asyncio.to_thread(looked.wait, 10)
    await root.create_array("fresh", shape=(3,), dtype="f8")
    flipped.set()
    with pytest.raises(NodeExistsError):
        await task
    assert bucket.values["g/old/zarr.json"] == before


@pytest.mark.parametrize("backend", BACKENDS)
async def test_an_ingestion_beside_the_one_that_finds_out(bucket: Bucket, backend: str):
    store = stores.resolve("s3://bucket", bucket.options(backend=backend))
    array, begun, flipped = await za.open_array(store, mode="r+"), asyncio.Event(), asyncio.Event()

    async def block(region: Any) -> np.ndarray:
        begun.set()
        await flipped.wait()
        return np.ones([s.stop - s.start for s in region], "i4")

    before = dict(bucket.values)
    task = asyncio.create_task(
        za.ingest(block, store, shape=(30, 200), dtype="i4", mode="r+", region=(slice(0, 30), slice(None)))
    )
    await begun.wait()
    await array.update_attributes({"a": 1})
    assert not store.conditional
    flipped.set()
    with pytest.raises(ShapeError, match="covers only parts of the chunks"):
        await task
    assert {key: data for key, data in bucket.values.items() if key != "zarr.json"} == {
        key: data for key, data in before.items() if key != "zarr.json"
    }


@pytest.mark.parametrize("backend", BACKENDS)
async def test_progress_counts_once(bucket: Bucket, backend: str):
    options: dict[str, Any] = {"storage_options": bucket.options(backend=backend), "config": {"unaligned": "allow"}}
    array = await za.open_array("s3://bucket", mode="r+", **options)
    told: list[int] = []
    await array[25:].write(1, progress=told.append)
    assert sum(told) == array[25:].nbytes
    assert (sync.open_array(bucket.values)[25:] == 1).all()


def test_an_array_of_a_process_that_was_forked_off(bucket: Bucket):
    """obstore does not work in a forked process; its replacement detects the lack by itself."""
    options: dict[str, Any] = {"storage_options": bucket.options(), "config": {"unaligned": "allow"}}
    array = sync.open_array("s3://bucket", mode="r+", **options)
    assert array[0, 0] == 0
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_change, args=(array,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    found = sync.open_array(bucket.values)
    assert (found[3, 3], found.attrs["a"], found.shape) == (-7, 1, (250, 200))


def _change(array: sync.Array) -> None:
    array[3, 3] = -7
    array.update_attributes({"a": 1})
    array.append(VALUES[:50])


@pytest.mark.parametrize("answer", [(400, "NotImplemented"), (501, "NotImplemented")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals_of_conditional_writes(bucket: Bucket, backend: str, answer: tuple[int, str]):
    bucket.refusal = answer
    array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend))
    array.update_attributes({"a": 1})
    assert not array.store.conditional
    assert sync.open_array(bucket.values).attrs["a"] == 1


def test_conditional_writes_can_be_disabled(bucket: Bucket):
    options = bucket.options(aws_conditional_put="disabled")
    array = sync.open_array("s3://bucket", mode="r+", storage_options=options)
    assert not array.store.conditional
    array.update_attributes({"a": 1})
    with pytest.raises(ShapeError):
        array[3, 3] = 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_follows(bucket: Bucket, zarr_format: int):
    bucket.values.clear()
    root = sync.create_group(bucket.values, zarr_format=zarr_format)
    root.create_array("x", data=np.arange(3))
    sync.consolidate_metadata(bucket.values)
    for backend in BACKENDS:
        options = bucket.options(backend=backend)
        sync.open_group("s3://bucket", mode="r+", storage_options=options)["x"].update_attributes({backend: 1})
        assert sync.open_group(bucket.values, use_consolidated=True)["x"].attrs[backend] == 1


@pytest.mark.parametrize("backend", BACKENDS)
async def test_in_the_clothes_of_zarr_python(bucket: Bucket, backend: str):
    pytest.importorskip("zarr")
    from zarr.core.buffer import default_buffer_prototype

    from zarrasync.integrations.zarr import ZarrStore

    store = ZarrStore(stores.resolve("s3://bucket", bucket.options(backend=backend)))
    for text in (b"one", b"two"):
        await store.set_if_not_exists("k", default_buffer_prototype().buffer.from_bytes(text))
    assert bucket.values["k"] == b"one"


async def test_wrappers_that_declare_conditional_writes():
    class Plain(stores.WrapperStore):
        def __init__(self, inner: stores.Store) -> None:
            super().__init__(inner)
            self.conditional = False

    assert not Plain(stores.MemoryStore()).conditional


@pytest.mark.parametrize("keep", [False, True])
async def test_clearing_keeps_values_of_others(bucket: Bucket, keep: bool):
    """Others may have written the rest of an edge chunk since the array was opened."""
    bucket.conditional = False
    where: dict[str, Any] = {"mode": "r+", "storage_options": bucket.options()}
    array = await za.open_array("s3://bucket", config={"unaligned": "allow", "write_empty_chunks": keep}, **where)
    old = za.AsyncArray(handle_of(array), array.metadata.with_shape((180, 200)))
    await fill_box(chunks_of(old), (slice(100, 180), slice(None)))
    expected = VALUES.copy()
    expected[100:180] = 0
    np.testing.assert_array_equal(sync.open_array(bucket.values)[...], expected)
    assert sum(key.startswith("c/2/") for key in bucket.values) == 4 * keep  # erased, or filled with zeros
