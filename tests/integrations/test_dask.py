"""Reading and writing dask arrays, on threads and on a cluster of processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import zarrasync as za
from zarrasync import config, stores, sync
from zarrasync.errors import EncodingError, NodeExistsError, ShapeError, StoreError

da = pytest.importorskip("dask.array")

from dask.base import tokenize  # after the skip

from zarrasync.integrations.dask import from_zarr, store, to_zarr

VALUES = np.arange(200 * 300, dtype="f4").reshape(200, 300)


@pytest.mark.parametrize("layout", [{"chunks": (50, 60)}, {"chunks": (10, 20), "shards": (50, 60)}])
def test_reading(tmp_path: Path, layout: dict[str, Any]):
    sync.create_array(tmp_path / "x", data=VALUES, **layout)
    lazy = from_zarr(tmp_path / "x", chunks=(50, 60))
    assert lazy.dtype == VALUES.dtype
    assert lazy.chunks == ((50,) * 4, (60,) * 5)
    np.testing.assert_array_equal(lazy[30:70, ::7].compute(), VALUES[30:70, ::7])
    np.testing.assert_allclose(lazy.mean(axis=0).compute(), VALUES.mean(axis=0), rtol=1e-5)
    assert from_zarr(tmp_path / "x").numblocks == (1, 1)  # small chunks are merged into blocks
    array = sync.open_array(tmp_path / "x")
    assert from_zarr(array, chunks=-1).compute().shape == VALUES.shape


def test_nothing_is_read_while_the_graph_is_built():
    counting = stores.CountingStore(stores.MemoryStore())
    sync.create_array(counting, data=VALUES, chunks=(50, 60))
    array = sync.open_array(counting)
    counting.reset()
    lazy = from_zarr(array, chunks=(50, 60))[:60] + 1
    assert counting.counts.requests == 0
    lazy.compute()
    assert counting.counts.fetches == 2 * 5


def test_strings_and_irregular_chunks():
    words = np.array(["a", "bb", "ccc", "d"] * 5, dtype=np.dtypes.StringDType())
    text = sync.create_array({}, data=words, chunks=7)
    assert from_zarr(text).compute().tolist() == words.tolist()
    edges = sync.create_array({}, data=VALUES, chunks=[[20, 180], [100, 200]])
    lazy = from_zarr(edges)
    assert lazy.chunks == ((20, 180), (100, 200))
    np.testing.assert_array_equal(lazy.compute(), VALUES)


def test_tokens_tell_arrays_apart(tmp_path: Path):
    one = sync.create_array(tmp_path / "one", data=VALUES)
    other = sync.create_array(tmp_path / "other", data=VALUES)
    assert tokenize(one) == tokenize(pickle.loads(pickle.dumps(one))) != tokenize(other)
    again = sync.open_array(tmp_path / "one")
    assert tokenize(again) == tokenize(sync.open_array(tmp_path / "one"))
    assert len(pickle.dumps(one)) < 4000


def test_writing(tmp_path: Path):
    lazy = da.from_array(VALUES, chunks=(50, 60))
    to_zarr(lazy, tmp_path / "x", attributes={"unit": "K"}, dimension_names=("y", "x"))
    found = sync.open_array(tmp_path / "x")
    np.testing.assert_array_equal(found[...], VALUES)
    assert (found.chunks, found.dimension_names, dict(found.attrs)) == ((50, 60), ("y", "x"), {"unit": "K"})
    with pytest.raises(NodeExistsError):
        to_zarr(lazy, tmp_path / "x")
    later = to_zarr(lazy + 1, tmp_path / "x", overwrite=True, compute=False)
    assert (sync.open_array(tmp_path / "x")[...] == 0).all()
    later.compute()
    np.testing.assert_array_equal(sync.open_array(tmp_path / "x")[...], VALUES + 1)
    to_zarr(lazy[:50] * 2, tmp_path / "x", region=(slice(50, 100), slice(None)))
    np.testing.assert_array_equal(sync.open_array(tmp_path / "x")[50:100], VALUES[:50] * 2)
    stored = to_zarr(lazy, tmp_path / "y", shards=(100, 60), chunks=(10, 20), return_stored=True)
    np.testing.assert_array_equal(stored.sum().compute(), lazy.sum().compute())


@pytest.mark.parametrize("shards", [(512, 512), (1024, 512), 512])
def test_shards_consist_of_several_inner_chunks(shards: object):
    """Blocks that are as large as shards do not make inner chunks of this size, which could not be read in part."""
    store: dict[str, bytes] = {}
    to_zarr(da.ones((1024, 1024), chunks=(512, 512), dtype="f4"), store, shards=shards)
    array = sync.open_array(store)
    blocks = (512, 512)
    assert array.chunks == blocks if shards == (1024, 512) else array.chunks < blocks


def test_blocks_that_share_chunks(tmp_path: Path):
    lazy = da.from_array(VALUES, chunks=(30, 300))
    array = sync.create_array(tmp_path / "x", shape=VALUES.shape, dtype="f4", chunks=(50, 100))
    with pytest.raises(ShapeError, match=r"along the axes \[0\]; .*source.rechunk\(\(50, 300\)\)"):
        store(lazy, array, unaligned="error")
    store(lazy, array)  # local files support conditional writes
    np.testing.assert_array_equal(array[...], VALUES)
    files = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "plain"))  # without conditional writes
    plain = sync.create_array(files, shape=VALUES.shape, dtype="f4", chunks=(50, 100))
    with pytest.raises(ShapeError, match="unaligned='allow'"):
        store(lazy, plain)
    store(lazy.rechunk((50, 300)), plain)
    np.testing.assert_array_equal(plain[...], VALUES)
    store(lazy[:20], plain, region=(slice(60, 80), slice(None)), unaligned="allow")
    np.testing.assert_array_equal(plain[60:80], VALUES[:20])
    with pytest.raises(ShapeError, match="source has shape"):
        store(lazy[:20], plain)
    with config.set(unaligned="error"):  # not a setting of jobs
        own = sync.open_array(plain.store, mode="r+")
        store(lazy[:20], own, region=(slice(30, 50), slice(None)), unaligned="allow")
    np.testing.assert_array_equal(plain[30:50], VALUES[:20])


# ------------------------------------------------------------------ a cluster


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as found, distributed.Client(found) as client:
        yield client


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["files", "s3"])
def test_a_cluster_ingests(cluster: Any, kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    url, options = (str(tmp_path / "x"), None) if kind == "files" else request.getfixturevalue("s3")
    lazy = da.from_array(VALUES, chunks=(50, 60))
    to_zarr(lazy, url, storage_options=options, chunks=(10, 20), shards=(50, 60))
    again = from_zarr(url, storage_options=options, chunks=(50, 60))
    assert float((again - lazy).std().compute()) == 0
    # Blocks of several processes share chunks; conditional writes lose none of them.
    ragged = da.from_array(VALUES, chunks=(33, 300))
    to_zarr(ragged, f"{url}-ragged", storage_options=options, chunks=(50, 100))
    np.testing.assert_array_equal(sync.open_array(f"{url}-ragged", storage_options=options)[...], VALUES)


def _slow(block: np.ndarray, marker: str) -> np.ndarray:
    """Kill the process at the first call."""
    import os
    import signal

    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["files", "s3"])
@pytest.mark.parametrize("shards", [(20, 60), (50, 100)], ids=["aligned", "shared"])
def test_a_worker_that_is_killed(kind: str, shards: tuple[int, int], tmp_path: Path, request: pytest.FixtureRequest):
    """The scheduler gives the work to another worker, and all values are complete."""
    distributed = pytest.importorskip("distributed")
    url, options = (str(tmp_path / "x"), None) if kind == "files" else request.getfixturevalue("s3")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=":0") as found,
        distributed.Client(found),
    ):
        # Without `meta` dask would try the function here.
        whole, meta = da.from_array(VALUES, chunks=(20, 60)), np.empty((0, 0), "f4")
        lazy = whole.map_blocks(_slow, marker=str(tmp_path / "marker"), dtype="f4", meta=meta)
        to_zarr(lazy, url, storage_options=options, chunks=(10, 20), shards=shards)
    assert (tmp_path / "marker").exists()
    np.testing.assert_array_equal(sync.open_array(url, storage_options=options)[...], VALUES)


def _after(block: np.ndarray, folder: Path) -> np.ndarray:
    """Tell the test that a block is being computed, and wait for it."""
    (folder / "begun").write_bytes(b" ")
    assert (folder / "goes on").read_bytes()
    return block


CLIENT = """
import sys
from pathlib import Path
import dask.array as da
from distributed import Client
from tests.integrations.test_dask import _after, store, sync
address, folder = sys.argv[1], Path(sys.argv[2])
with Client(address):
    lazy = da.ones(4, chunks=4).map_blocks(_after, folder=folder, dtype="f8", meta=da.ones(0)._meta)
    store(lazy, sync.open_array(folder / "x", mode="r+"))
"""


def _states(dask_worker: Any) -> list[str]:
    return [task.state for task in dask_worker.state.tasks.values()]


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="waits for named pipes")
@pytest.mark.filterwarnings("ignore")
def test_a_client_that_is_killed(tmp_path: Path):
    """A block that is still being computed is not written: a later call may have written other values."""
    distributed = pytest.importorskip("distributed")
    sync.create_array(tmp_path / "x", shape=4, dtype="f8", chunks=4, fill_value=7)
    for name in ("begun", "goes on"):
        os.mkfifo(tmp_path / name)

    def until(client: Any, condition: Callable[[list[str]], bool]) -> None:
        while not condition([state for found in client.run(_states).values() for state in found]):
            time.sleep(0.01)

    options = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        command = [sys.executable, "-c", CLIENT, cluster.scheduler_address, str(tmp_path)]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as process:
            (tmp_path / "begun").read_bytes()
            process.kill()
        until(client, lambda states: "cancelled" in states)
        (tmp_path / "goes on").write_bytes(b" ")
        until(client, lambda states: not states)
    assert sync.open_array(tmp_path / "x")[...].tolist() == [7] * 4


@pytest.mark.processes
def test_nothing_is_replaced_before_all_fits(tmp_path: Path):
    url = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "x"))  # without conditional writes
    to_zarr(da.ones((100,), chunks=50), url)
    with pytest.raises(ShapeError, match="unaligned='allow'"):
        to_zarr(da.zeros((100,), chunks=30), url, chunks=50, overwrite=True)
    assert sync.open_array(url)[0] == 1
    to_zarr(da.ones((0, 3)), tmp_path / "empty")
    assert sync.open_array(tmp_path / "empty").shape == (0, 3)


@pytest.mark.processes
@pytest.mark.parametrize("scheduler", ["processes", "cluster"])
def test_other_processes_do_not_write_into_copies(scheduler: str, request: pytest.FixtureRequest):
    """FileWorkers in other processes refuse to write to a store in memory of this process."""
    import dask

    if scheduler == "cluster":
        request.getfixturevalue("cluster")
    settings: dict[str, Any] = {} if scheduler == "cluster" else {"scheduler": "processes"}
    with dask.config.set(**settings), pytest.raises(StoreError, match="exists only in this process"):
        to_zarr(da.ones(10, chunks=5), {})
    kept: dict[str, bytes] = {}
    sync.create_array(kept, data=np.ones(4))
    before = dict(kept)
    with dask.config.set(**settings), pytest.raises(StoreError, match="exists only in this process"):
        to_zarr(da.zeros(4, chunks=2), kept, overwrite=True)
    assert kept == before  # nothing is erased if the new values cannot be written
    with dask.config.set(scheduler="threads"):
        target: dict[str, bytes] = {}
        to_zarr(da.ones(10, chunks=5), target)
        assert sync.open_array(target)[...].sum() == 10
        assert to_zarr(da.ones(10, chunks=5), {}, return_stored=True).sum().compute() == 10


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_threads_replaces_nothing_either():
    """A cluster of threads also serializes its tasks."""
    distributed = pytest.importorskip("distributed")
    kept: dict[str, bytes] = {}
    sync.create_array(kept, data=np.ones(4))
    before = dict(kept)
    with (
        distributed.Client(processes=False, dashboard_address=":0"),
        pytest.raises(StoreError, match="exists only in this process"),
    ):
        to_zarr(da.zeros(4, chunks=2), kept, overwrite=True)
    assert kept == before


@pytest.mark.processes
@pytest.mark.parametrize("scheduler", ["processes", "cluster"])
def test_other_processes_do_not_see_this_ones_memory(scheduler: str, request: pytest.FixtureRequest, tmp_path: Path):
    """They would find no chunks and read fill values."""
    import dask
    from dask.delayed import delayed

    if scheduler == "cluster":
        request.getfixturevalue("cluster")
    settings: dict[str, Any] = {} if scheduler == "cluster" else {"scheduler": "processes"}
    array = sync.create_array(f"memory://{tmp_path.name}", data=np.ones(4), chunks=2)
    with dask.config.set(**settings), pytest.raises(StoreError, match="exist only in the process that created them"):
        from_zarr(array).sum().compute()
    with dask.config.set(scheduler="threads"):
        assert from_zarr(pickle.loads(pickle.dumps(array))).sum().compute() == 4
    with dask.config.set(**settings):  # and returns unchanged
        assert delayed(lambda same: same)(array).compute()[...].sum() == 4
    with dask.config.set(**settings):  # a dictionary is pickled with its values
        assert from_zarr(sync.create_array({}, data=np.ones(4), chunks=2)).sum().compute() == 4


@pytest.mark.parametrize(
    ("source", "options", "error", "match"),
    [
        (VALUES, {}, TypeError, "found ndarray"),
        (da.ones(10)[da.arange(10) > 3], {}, ShapeError, "compute_chunk_sizes"),
        (da.ones(10), {"region": (slice(0, 10),), "chunks": 5}, TypeError, "chunks applies to new arrays"),
        (da.ones(10), {"shape": 5}, TypeError, "has the shape of the source"),
    ],
)
def test_invalid_sources_and_options(source: Any, options: dict[str, Any], error: type[Exception], match: str):
    target: dict[str, bytes] = {}
    with pytest.raises(error, match=match):
        to_zarr(source, target, **options)
    assert not target


@pytest.mark.processes
def test_stores_of_others_are_written_by_processes(tmp_path: Path):
    zarr = pytest.importorskip("zarr")
    import dask

    with dask.config.set(scheduler="processes"):
        to_zarr(da.ones(10, chunks=5), zarr.storage.LocalStore(tmp_path / "x"))
    assert sync.open_array(tmp_path / "x")[...].sum() == 10


def test_another_type_than_the_sources(tmp_path: Path):
    to_zarr(da.arange(10, chunks=5), tmp_path / "x", dtype="f4")
    found = sync.open_array(tmp_path / "x")
    assert (found.dtype, found[...].tolist()) == (np.dtype("f4"), list(range(10)))
    masked = da.ma.masked_equal(da.from_array(np.array([1, 300, 400]), chunks=2), 300)
    with pytest.raises(EncodingError, match=r"the value 400 at index 2 cannot be stored as uint8"):
        to_zarr(masked, tmp_path / "y", dtype="u1")
    to_zarr(masked[:2], tmp_path / "z", dtype="u1", fill_value=7)
    assert sync.open_array(tmp_path / "z")[...].tolist() == [1, 7]


async def test_targets_of_dask_store(tmp_path: Path):
    array = await za.create_array(tmp_path / "x", shape=(4,), chunks=2, dtype="f8")
    store(da.ones(4, chunks=2), array)
    assert sync.open_array(tmp_path / "x")[...].tolist() == [1.0] * 4
    with pytest.raises(TypeError, match="to_zarr accepts stores and paths"):
        store(da.ones(4, chunks=2), str(tmp_path / "x"))  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["dict", "zarr"])
def test_dask_cannot_store_into_the_memory_of_another_process(kind: str):
    import dask

    if kind == "zarr":
        memory: Any = pytest.importorskip("zarr").storage.MemoryStore()
    else:
        memory = {}
    array = sync.create_array(memory, shape=(4, 4), chunks=(2, 2), dtype="f8")
    ones = da.ones((4, 4), chunks=(2, 2))
    with dask.config.set(scheduler="processes"), pytest.raises(StoreError, match="a copy of values in the memory"):
        da.store(ones, array, lock=False)
    with dask.config.set(scheduler="threads"):
        da.store(ones, array, lock=False)
    assert array[...].sum() == 16
