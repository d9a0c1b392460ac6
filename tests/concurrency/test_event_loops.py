"""Synchronous calls inside running event loops, several loops and threads, deliveries between them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.gated_store import GatedStore
from zarrasync import stores, sync
from zarrasync._concurrency.offload import compute, run_in_worker
from zarrasync._concurrency.semaphores import FifoSemaphore
from zarrasync.stores import MemoryStore
from zarrasync.testing import LatencyStore


async def test_sync_calls_work_inside_a_running_loop(tmp_path, s3):
    url, options = s3
    for place, given in ((tmp_path, None), (url, options)):
        a = sync.create_array(place, data=np.arange(9), chunks=4, storage_options=given)
        assert a[::-1].tolist() == list(range(9))[::-1]
        a.append([9])
        assert a.shape == (10,)
        assert [block.tolist() for _, block in a.view.chunks()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_sync_write_raises_rather_than_wait_for_the_loop_it_blocks():
    store = GatedStore(MemoryStore())
    a = await za.create_array(store, shape=(4,), dtype="i4")
    store.open = False
    task = asyncio.ensure_future(a[0].write(1))
    while not store.waiting:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="use the async API here"):
        sync.Array(a)[1] = 2
    store.open = True
    await task
    sync.Array(a)[1] = 2
    assert (await a[...]).tolist() == [1, 2, 0, 0]


async def test_a_sync_read_does_not_wait_for_permits_of_the_loop_it_blocks():
    inner = MemoryStore()
    await za.create_array(inner, data=np.arange(4))
    semaphore = FifoSemaphore(1)
    await semaphore.acquire()

    class Gated(GatedStore):
        async def fetch(self, requests, *, versions=False):
            await semaphore.acquire()
            try:
                return await super().fetch(requests, versions=versions)
            finally:
                semaphore.release()

    assert sync.open_array(Gated(inner))[...].tolist() == [0, 1, 2, 3]
    semaphore.release()
    assert semaphore.free == 1


class _Lazy:
    """Values that a synchronous call reads."""

    def __init__(self, source: sync.Array) -> None:
        self.source, self.shape, self.dtype, self.nbytes = source, source.shape, source.dtype, source.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.source[...]


PACKED = {"scale_factor": 0.5, "units": "K"}


async def test_values_that_read_themselves_do_not_occupy_the_threads_that_they_wait_for():
    values = np.arange(1 << 18) / 2
    config = {"chunk_cache_bytes": 1 << 24}  # cached chunks are placed by workers
    source = sync.create_array(LatencyStore(MemoryStore(), 0), data=values, chunks=1 << 16, config=config)
    targets = [
        await za.create_array(MemoryStore(), shape=values.shape, dtype="i4", attributes=PACKED)
        for _ in range(za.config.get().pool_size + 2)
    ]
    writes = asyncio.gather(*(target.decoded.view[:].write(_Lazy(source)) for target in targets))
    await asyncio.wait_for(writes, 30)
    for target in targets:
        assert np.array_equal(await target.decoded[...], values)


def test_values_may_read_themselves_from_the_loop_that_writes_them():
    values = np.arange(6.0)
    source = sync.create_array(LatencyStore(MemoryStore(), 0), data=values, chunks=4)
    target = sync.create_array(LatencyStore(MemoryStore(), 0), data=_Lazy(source), chunks=4, attributes=PACKED)
    assert target[...].tolist() == values.tolist()
    target[:] = 0
    target[:] = _Lazy(source)
    assert target[...].tolist() == values.tolist()
    target.decoded[:] = _Lazy(source)
    assert target[...].tolist() == (2 * values).tolist()
    target.append(_Lazy(source))
    assert target[6:].tolist() == values.tolist()


async def test_reads_of_remote_stores_do_not_wait_for_other_work():
    """While all threads for long work of other calls are busy, the chunks of a large array are read."""
    array = await za.create_array(
        LatencyStore(MemoryStore(), 0), shape=6 << 20, dtype="f8", chunks=1 << 20, fill_value=1
    )
    proceed = threading.Event()
    others = [asyncio.ensure_future(compute(partial(proceed.wait, 60))) for _ in range(za.config.get().pool_size + 1)]
    try:
        assert (await asyncio.wait_for(array[...].read(), 30))[-1] == 1
    finally:
        proceed.set()
        await asyncio.gather(*others)


def test_sync_calls_from_the_library_loop_are_refused():
    a = sync.create_array(GatedStore(MemoryStore()), data=np.arange(4))

    async def wrong():
        return a[...]

    from zarrasync._concurrency import bridge

    with pytest.raises(RuntimeError, match="inside zarrasync's own event loop"):
        bridge.run(wrong(), blocking=False)


def test_one_store_in_one_loop_after_another():
    store = GatedStore(MemoryStore())
    a = sync.create_array(store, data=np.arange(4))
    assert asyncio.run(a.async_.getitem(...)).tolist() == [0, 1, 2, 3]
    assert asyncio.run(a.async_.getitem(slice(1, 3))).tolist() == [1, 2]
    assert a[...].tolist() == [0, 1, 2, 3]


def test_many_threads_at_once(tmp_path):
    data = np.random.default_rng(0).random((200, 200))
    a = sync.create_array(tmp_path, data=data, chunks=(50, 50))
    b = sync.create_array(GatedStore(MemoryStore()), data=data, chunks=(50, 50))

    def work(i: int) -> bool:
        return all(np.array_equal(x[i : i + 90, ::3], data[i : i + 90, ::3]) for x in (a, b))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_a_script_that_closes_nothing_ends_without_a_word(tmp_path, s3):
    url, options = s3
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, gc
            import numpy as np
            import zarrasync as za
            from zarrasync import sync

            a = sync.create_array({url!r}, data=np.arange(4), storage_options={options!r})
            a[...]
            del a
            gc.collect()
            b = sync.open_array({url!r}, storage_options={options!r})
            b[...]

            async def main():
                c = await za.open_array({url!r}, storage_options={options!r})
                return await c[...]

            print(asyncio.run(main()))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[0 1 2 3]\n"
    assert done.stderr == ""
    assert done.returncode == 0


def test_reading_inside_a_progress_callback(tmp_path):
    data = np.arange(1, 65)
    options: dict[str, Any] = {"chunks": 4, "shards": 16, "compressors": None}
    one = sync.create_array(tmp_path / "one", data=data, **options)
    two = sync.create_array(tmp_path / "two", data=-data, **options)

    def read_other(nbytes: int) -> None:
        assert two[:16].shape == (16,)

    found = one.view[:16].read(progress=read_other)
    np.testing.assert_array_equal(found, data[:16])


async def test_cancelling_the_creator_of_a_client_does_not_fail_others(s3):
    url, options = s3
    sync.create_array(url, data=np.arange(4), storage_options=options)
    store = stores.resolve(url, options)
    first = asyncio.ensure_future(store.get("zarr.json"))
    second = asyncio.ensure_future(store.get("zarr.json"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    await store.close()


async def test_a_job_releases_its_block_before_its_result_is_delivered(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a finished block would occupy memory beyond the budget until its thread runs again."""
    from zarrasync._concurrency.offload import Deliveries, run_in_worker

    looked, hand = threading.Event(), Deliveries.deliver

    def hand_and_pause(*args: Any) -> None:
        hand(*args)
        looked.wait(30)

    async def work(block: np.ndarray) -> int:
        return block.nbytes

    monkeypatch.setattr(Deliveries, "deliver", hand_and_pause)
    block = np.ones(100)
    made, job = weakref.ref(block), run_in_worker(partial(work, block))
    del block
    try:
        assert (await job, made()) == (800, None)
    finally:
        looked.set()


def test_results_are_delivered_after_exceptions():
    """An exception in the callback that delivers results, such as Ctrl-C, loses no later result."""
    from zarrasync._concurrency.offload import Deliveries

    class Interrupted:
        asked = 0

        def done(self):
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("between")
            return True

    async def run():
        loop = asyncio.get_running_loop()
        mail, heard = Deliveries(loop), []
        loop.set_exception_handler(lambda loop, context: heard.append(str(context["exception"])))
        futures: list[Any] = [Interrupted(), loop.create_future(), loop.create_future()]
        for number, future in enumerate(futures):
            mail.deliver(future, number, None)
        assert await asyncio.wait_for(asyncio.gather(*futures[1:]), 5) == [1, 2]
        assert heard == ["between"]

    asyncio.run(run())


def test_threads_that_helpers_call_for_are_waited_for():
    """A helper whose job returns more jobs starts another helper, and may end before it."""
    from zarrasync._concurrency.cancel import CancelFlag
    from zarrasync.config import Config
    from zarrasync.transfer.threads import run_jobs

    for failing in (False, True):
        begun, released, making, idle = (threading.Event() for _ in range(4))
        done = []

        def last(begun=begun, released=released, done=done, failing=failing):
            begun.set()
            assert released.wait(30)
            time.sleep(0.05)  # a caller that did not wait for this thread would have returned by now
            done.append(1)
            if failing:
                raise RuntimeError("last")

        def quick(begun=begun, released=released):
            assert begun.wait(30)
            released.set()

        def first(making=making, idle=idle):
            assert making.wait(30)
            idle.set()

        def maker(quick=quick, last=last, making=making, idle=idle):
            making.set()
            assert idle.wait(30)
            time.sleep(0.05)  # the caller waits for its only helper by now
            return [quick, last]

        expected = pytest.raises(RuntimeError, match="last") if failing else contextlib.nullcontext()
        with expected:
            run_jobs([first, maker], Config(threads=4), CancelFlag(), 3)
        assert done == [1]


def test_a_closed_loop_is_not_kept_by_results_that_come_too_late():
    loop, release, began = asyncio.new_event_loop(), threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        release.wait()

    async def start() -> None:
        jobs.append(asyncio.ensure_future(run_in_worker(work)))
        while not began.is_set():
            await asyncio.sleep(0)

    jobs: list[asyncio.Future[None]] = []
    loop.run_until_complete(start())
    loop.close()
    closed, pending = weakref.ref(loop), weakref.ref(jobs[0])
    jobs[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # a task has it
    jobs.clear()
    release.set()
    del loop
    for _ in range(200):  # until the thread has let go of its job
        gc.collect()
        if closed() is None:
            break
        time.sleep(0.01)
    assert closed() is None
    assert pending() is None
