"""Forked processes, and arrays that are sent to other processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os

import numpy as np
import pytest

from zarrasync import sync
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.locks import KeyLock
from zarrasync.stores import MemoryStore

pytestmark = pytest.mark.processes

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

quiet_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@needs_fork
@quiet_fork
def test_after_fork(tmp_path, s3):
    """A child process reads through objects whose loops, pools and locks are in use by its parent."""
    url, options = s3
    data = np.arange(4000).reshape(40, 100)
    arrays = [
        sync.create_array(tmp_path, data=data, chunks=(10, 10)),
        sync.create_array(url, data=data, chunks=(20, 50), storage_options=options),
    ]
    for a in arrays:
        np.testing.assert_array_equal(a[...], data)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def child() -> None:
        for a in arrays:
            a[0, 0] = -5
            results.put(a[:, 3:7])

    held = KeyLock((arrays[0].store.identity, "c/0/0"))
    drive(held.__aenter__())  # another thread of the parent may hold a lock at the moment of the fork
    process = context.Process(target=child)
    process.start()
    for _ in arrays:
        np.testing.assert_array_equal(results.get(timeout=60), data[:, 3:7])
    process.join(60)
    assert process.exitcode == 0
    drive(held.__aexit__(None, None, None))
    for a in arrays:
        assert a[0, 0] == -5
        assert a[1, 1] == 101


def _count(array: sync.Array) -> float:
    return float(array[...].sum())


def test_arrays_travel_to_other_processes(tmp_path, s3):
    url, options = s3
    data = np.arange(100.0)
    arrays = [
        sync.create_array(tmp_path, data=data, chunks=10),
        sync.create_array(url, data=data, chunks=10, storage_options=options),
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_count, arrays) == [data.sum()] * 2


@needs_fork
@quiet_fork
def test_a_forked_child_finds_locks_free():
    store = MemoryStore()
    store._lock.acquire()
    pid = os.fork()
    if not pid:
        drive(store.set("k", b"v"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store._lock.release()


@needs_fork
@quiet_fork
def test_a_forked_child_hears_of_results():
    from zarrasync._concurrency.offload import deliveries_of, run_in_worker

    loop = asyncio.new_event_loop()
    loop.run_until_complete(run_in_worker(_nothing))
    deliveries_of(loop)._scheduled = True  # as if the parent's loop was scheduled to deliver
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.wait_for(run_in_worker(_nothing), 5))
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.close()


async def _nothing() -> None:
    pass
