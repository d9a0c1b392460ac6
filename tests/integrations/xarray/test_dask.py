"""Datasets of dask arrays."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync import stores, sync
from zarrasync.errors import ChecksumError, StoreError
from zarrasync.testing import LatencyStore

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import write_dataset, write_dataset_async  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


class Source:
    """A source of blocks that counts the computed ones."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, block_id: Any = None) -> Any:
        self.count += 1
        return np.arange(12.0).reshape(1, 12) + 100 * block_id[0]


def field(source: Source, days: int = 10) -> Any:
    da = pytest.importorskip("dask.array")
    data = da.map_blocks(source, chunks=((1,) * days, (12,)), dtype="f8", meta=np.empty((0, 0)))
    return xr.Dataset({"a": (("t", "x"), data)}, {"t": np.arange(days)})


@pytest.mark.parametrize("shards", [None, (4, 12)])
@pytest.mark.parametrize("verify", [False, True])
def test_shared_dask_tasks_are_computed_once(verify: bool, shards: Any):
    source = Source()
    given = field(source)
    given["anomaly"] = given.a - given.a.mean("t")
    given["double"] = given.a * 2
    given["total"] = given.a.sum()
    given["names"] = ("x", np.array([f"n{i}" for i in range(12)], object))
    store = stores.MemoryStore()
    chunks = {"chunks": (2, 5)} if shards is None else {"chunks": (2, 6), "shards": shards}
    reports = write_dataset(given, store, verify=verify, encoding={"a": chunks, "double": chunks})
    assert source.count == 10
    found = xr.open_dataset(store, engine="zarrasync")
    np.testing.assert_array_equal(found.a, given.a)
    np.testing.assert_array_equal(found.anomaly, given.anomaly)
    np.testing.assert_array_equal(found.double, given.double)
    assert found.total.item() == given.total.values.item()
    assert found.names.values.tolist() == given.names.values.tolist()
    assert reports["a"].nbytes == given.a.nbytes
    assert reports["a"].blocks == (5 if shards is None else 3)
    assert reports["a"].stored > 0
    assert reports["a"].verified == (reports["a"].blocks if verify else 0)


@pytest.mark.parametrize("kind", ["memory", "slow"])
def test_rows_of_dask_that_begin_in_the_middle_of_a_chunk(kind: str):
    store: Any = stores.MemoryStore()
    store = LatencyStore(store, 0.0) if kind == "slow" else store
    first = field(Source(), 3)
    write_dataset(first, store, encoding={"a": {"chunks": (4, 5)}, "t": {"chunks": (4,)}})
    for _ in range(2):
        write_dataset(field(Source()), store, append_dim="t", on_duplicate="allow", verify=True)
    more = field(Source()).a.values
    expected = np.concatenate([first.a.values, more, more])
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, expected)
    write_dataset(field(Source(), 5)[["a"]].drop_vars("t") + 1, store, region={"t": slice(6, 11)})
    expected[6:11] = more[:5] + 1
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, expected)


def test_verification_finds_changed_values():
    class Forgetful(stores.MemoryStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return await super().put(key, bytes(8 * 12) if key == "a/c/1/0" else data, if_version=if_version)

    encoding = {"a": {"chunks": (1, 12), "compressors": None}}
    with pytest.raises(ChecksumError, match=r"/a\[1:2, 0:12\]"):
        write_dataset(field(Source()), Forgetful(), encoding=encoding, verify=True)


async def test_a_write_of_dask_can_be_cancelled():
    da = pytest.importorskip("dask.array")
    begun, go_on, asked = threading.Event(), threading.Event(), []

    def slow(block_id: Any = None) -> Any:
        asked.append(block_id)
        begun.set()
        assert go_on.wait(20)
        return np.ones(1)

    given = xr.Dataset({"a": ("t", da.map_blocks(slow, chunks=((1,) * 200,), dtype="f8", meta=np.empty(0)))})
    store = stores.MemoryStore()
    task = asyncio.create_task(write_dataset_async(given, store))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.sleep(0)
    task.cancel()  # again
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert len(asked) < 100
    assert not await store.list_prefix("a/c/")


async def test_dask_needs_no_thread_that_its_blocks_wait_for():
    class Threaded(LatencyStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            await asyncio.to_thread(threading.get_ident)
            return await super().put(key, data, if_version=if_version)

    with ThreadPoolExecutor(1) as single:
        asyncio.get_running_loop().set_default_executor(single)
        given = [field(Source()) for _ in range(3)]
        places = [Threaded(stores.MemoryStore(), 0.0) for _ in given]
        await asyncio.wait_for(asyncio.gather(*map(write_dataset_async, given, places)), 30)
        asyncio.get_running_loop()._default_executor = None  # type: ignore[attr-defined]  # it ends here
    np.testing.assert_array_equal(await (await za.open_array(places[2], path="a"))[...], given[2].a)


def test_blocks_of_dask_do_not_grow_much():
    from zarrasync.integrations.dask_write import DaskWrite

    da = pytest.importorskip("dask.array")
    target = sync.create_array({}, shape=(365, 4000, 4000), dtype="f8", chunks=(73, 64, 64))._async
    thin = da.zeros(target.shape, chunks=(1, 4000, 4000))
    share = DaskWrite(thin, target, (0, 0, 0))
    assert share.held_bytes == 73 * 4000 * 4000 * 8
    blocks = share.aligned().source.chunks
    assert max(map(max, blocks[:1])) == 73
    assert np.prod([max(own) for own in blocks]) * 8 <= 2 * 4000 * 4000 * 8
    assert all(edge % 64 == 0 for own in blocks[1:] for edge in np.cumsum(own)[:-1])
    assert [sum(own) for own in blocks] == [*target.shape]
    fitting = DaskWrite(da.zeros(target.shape, chunks=(146, 640, 640)), target, (0, 0, 0))
    assert fitting.held_bytes == 0
    assert fitting.aligned().source.chunks == fitting.source.chunks


def test_blocks_beyond_the_budget_are_computed_for_each_region():
    store = stores.MemoryStore()
    source = Source()
    given = field(source)
    options = {"encoding": {"a": {"chunks": (5, 3)}}, "config": {"memory_budget": 400}}
    write_dataset(given, store, **options)
    assert source.count > 10
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, given.a)


def _slow_or_bad(block: Any) -> Any:
    if block[0] == 3:
        raise ZeroDivisionError
    time.sleep(0.5)
    return block


def _write(path: str, number: int) -> int:
    write_dataset(xr.Dataset({"a": ("t", np.full(4, number))}).chunk(t=1), f"{path}/{number}")
    return number


@pytest.mark.processes
def test_cluster_tasks_write_and_late_ones_are_discarded(tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    da = pytest.importorskip("dask.array")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        path = tmp_path / "x"
        write_dataset(xr.Dataset({"a": ("t", np.arange(8.0))}), path, encoding={"a": {"chunks": (1,)}})
        bad = da.arange(8.0, chunks=1).map_blocks(_slow_or_bad, dtype="f8", meta=np.empty(0))
        with pytest.raises(ZeroDivisionError):
            write_dataset(xr.Dataset({"a": ("t", bad)}), path, append_dim="t")
        futures = [client.submit(_write, str(tmp_path), number) for number in range(4)]
        assert [future.result(timeout=60) for future in futures] == [0, 1, 2, 3]
    assert sorted(file.name for file in (path / "a" / "c").iterdir()) == list("01234567")
    assert xr.open_dataset(tmp_path / "3", engine="zarrasync").a.values.tolist() == [3] * 4


@pytest.mark.processes
def test_dask_on_a_cluster(tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    encoding = {"a": {"chunks": (4, 5)}}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
    ):
        given = xr.Dataset({"a": (("t", "x"), np.arange(120.0).reshape(10, 12))}).chunk(t=3)
        given["b"] = given.a * 2
        write_dataset(given, tmp_path / "x", encoding=encoding, verify=True)
        write_dataset(given, tmp_path / "x", append_dim="t")
        with pytest.raises(StoreError, match="exists only in this process"):
            write_dataset(given, stores.MemoryStore())
        bad = given.assign(b=given.b.copy(data=given.b.data.map_blocks(_refuse, dtype="f8", meta=np.empty((0, 0)))))
        with pytest.raises(ZeroDivisionError):
            write_dataset(bad, tmp_path / "x", append_dim="t")
    found = xr.open_dataset(tmp_path / "x", engine="zarr", consolidated=False)
    np.testing.assert_array_equal(found.a, np.concatenate([given.a.values] * 2))
    np.testing.assert_array_equal(found.b, np.concatenate([given.b.values] * 2))


def _refuse(block: Any) -> Any:
    raise ZeroDivisionError
