"""Cancellation and timeouts stop the requests and jobs they are about."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

import zarrasync as za
from tests.support.gated_store import GatedStore
from zarrasync import stores, sync
from zarrasync._concurrency.locks import KeyLock
from zarrasync.codecs import BytesBytesCodec
from zarrasync.stores import MemoryStore, WrapperStore


async def test_a_cancelled_waiter_leaves_a_key_lock_usable():
    async with KeyLock("k"):
        task = asyncio.ensure_future(_hold("k"))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.wait_for(_hold("k"), 5)


async def _hold(key: str) -> None:
    async with KeyLock(key):
        pass


async def test_cancelling_a_read_stops_its_requests():
    store = GatedStore(MemoryStore())
    a = await za.create_array(store, data=np.arange(1000), chunks=10)
    store.open = False
    out = np.full(1000, -1)
    task = asyncio.ensure_future(a[...].read(out=out))
    while store.waiting < 8:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.waiting == 0
    assert store.cancelled == 8
    store.open = True
    await asyncio.sleep(0.01)
    assert (out == -1).all()
    async with asyncio.timeout(5):
        assert (await a[...])[-1] == 999


@pytest.mark.parametrize("operation", ["encode", "decode"])
async def test_cancelling_a_call_stops_its_computations(operation):
    """A codec thread notices between chunks, and the call waits for it."""
    began, proceed, computed, operations = threading.Event(), threading.Event(), list[str](), list[str]()

    def compute(which: str) -> None:
        if which in operations:
            computed.append(which)
            began.set()
            proceed.wait(30)

    @dataclass(frozen=True)
    class Slow(BytesBytesCodec):
        name = "slow"

        def encode(self, data):
            compute("encode")
            return bytes(data)

        def decode(self, data, size, limit, out):
            compute("decode")
            return data

    settings = {"threads": 1, "concurrency": 64}
    values = np.arange(1 << 17)
    store = GatedStore(MemoryStore())
    a = await za.create_array(store, data=values, chunks=1 << 15, compressors=[Slow()], config=settings)
    operations.append(operation)
    task = asyncio.ensure_future(a[...].read() if operation == "decode" else a[...].write(values))
    assert await asyncio.to_thread(began.wait, 30)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert computed == [operation]


async def test_a_timeout_stops_a_read_of_local_files(tmp_path):
    """The worker thread notices between chunks, and nothing is written to ``out`` afterwards."""

    class Blocking(WrapperStore):
        fetched = 0

        async def fetch(self, requests, *, versions=False):
            self.fetched += len(requests)
            time.sleep(0.002)
            return await self.inner.fetch(requests, versions=versions)

    await za.create_array(tmp_path, data=np.ones((2000, 1)), chunks=(1, 1))
    store = Blocking(stores.LocalStore(tmp_path))
    a = await za.open_array(store, config={"batch_bytes": 8, "threads": 2})
    out = np.zeros((2000, 1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await a[...].read(out=out)
    done, fetched = int(out.sum()), store.fetched
    assert done < 2000
    await asyncio.sleep(0.05)
    assert (int(out.sum()), store.fetched) == (done, fetched)


async def test_the_first_failure_stops_the_others():
    class Failing(GatedStore):
        async def fetch(self, requests, *, versions=False):
            if any(request.key.endswith("c/50") for request in requests):
                raise za.errors.StoreError("broken", key="c/50")
            return await super().fetch(requests, versions=versions)

    store = Failing(MemoryStore())
    a = await za.create_array(store, data=np.arange(1000), chunks=10)
    for read in (a[...].read(), asyncio.to_thread(lambda: sync.Array(a)[...])):
        with pytest.raises(za.errors.StoreError, match="broken"):
            await read
        assert store.waiting == 0


@pytest.mark.processes
def test_ctrl_c_cancels_the_real_work(tmp_path):
    """A blocking read of a store that never answers ends promptly, and its requests are cancelled."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, signal, sys
            import numpy as np
            from zarrasync import sync
            from zarrasync.stores import MemoryStore, WrapperStore

            signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may ignore it

            class Stuck(WrapperStore):
                stuck = False
                cancelled = 0
                def __init__(self, inner):
                    super().__init__(inner)
                    self.blocking = False
                async def fetch(self, requests, *, versions=False):
                    if self.stuck:
                        print("stuck", flush=True)
                        try:
                            await asyncio.sleep(3600)
                        except asyncio.CancelledError:
                            self.cancelled += 1
                            raise
                    return await self.inner.fetch(requests, versions=versions)

            store = Stuck(MemoryStore())
            a = sync.create_array(store, data=np.arange(4))
            store.stuck = True
            try:
                a[...]
            except KeyboardInterrupt:
                print("interrupted", store.cancelled, flush=True)
            store.stuck = False
            print("then", a[2], flush=True)
            """
        )
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted 1\nthen 2\n"
        assert process.wait(10) == 0


async def test_a_timeout_ends_the_wait_for_a_lock():
    store = MemoryStore()
    a = await za.create_array(store, shape=4, dtype="i4")
    async with store.lock("c/0"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await a[0].write(1)
    await asyncio.sleep(0.1)
    assert await a[0] == 0


async def test_queued_jobs_are_cancelled_at_once():
    from zarrasync._concurrency.offload import run_in_worker

    ended, began = threading.Event(), []

    async def block():
        began.append(1)
        ended.wait(30)
        return 1

    async def late():
        began.append(2)

    threads = za.config.get().pool_size + 1
    blocked = [asyncio.ensure_future(run_in_worker(block, computing=True)) for _ in range(threads)]
    waiting = asyncio.ensure_future(run_in_worker(late, computing=True))
    await asyncio.sleep(0)
    try:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(waiting), 5)
    finally:
        ended.set()
    assert await asyncio.gather(*blocked) == [1] * threads
    assert 2 not in began


@pytest.mark.parametrize("fails", [False, True])
async def test_cancellation_waits_until_the_thread_has_stopped(fails):
    from zarrasync._concurrency.cancel import cancel_flag
    from zarrasync._concurrency.offload import run_in_worker

    began, heard, ended = threading.Event(), threading.Event(), []

    async def work():
        flag = cancel_flag()
        began.set()
        while not flag.cancelled:
            heard.wait(0.001)
        ended.append(heard.wait(30))
        if fails:
            raise ValueError("nobody hears of it")

    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    call = asyncio.ensure_future(run_in_worker(work))
    await asyncio.to_thread(began.wait, 30)
    call.cancel()
    call.cancel()
    done, _ = await asyncio.wait([call], timeout=0.05)
    assert not done
    heard.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == [True]
    del call, done
    gc.collect()
    assert not complaints
