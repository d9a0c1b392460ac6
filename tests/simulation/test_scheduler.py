"""The simulated world: time, order, threads, deaths, and that a seed decides all of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from tests.simulation.environment import simulated
from tests.simulation.files import RANDOM_NAME
from tests.simulation.scenarios import SCENARIOS, draw
from tests.simulation.scheduler import Scheduler, Stuck
from tests.simulation.world import run
from tests.support import ROOT
from zarrasync._concurrency import clock
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.stores import MemoryStore
from zarrasync.testing import LatencyStore

pytestmark = pytest.mark.random


def test_time_passes_only_while_nothing_can_run():
    scheduler = Scheduler(0)
    with simulated(scheduler):

        async def sleep() -> float:
            begin = clock.monotonic()
            await clock.current().sleep(86_400)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.Event().wait()
            return clock.monotonic() - begin

        task = scheduler.client("a").start(sleep())
        scheduler.run(task)
        assert task.result() == pytest.approx(86_405)


def test_clients_take_turns_as_the_seed_decides():
    orders = set()
    for seed in range(20):
        scheduler, order = Scheduler(seed), list[str]()

        async def work(name: str, order: list[str] = order) -> None:
            for _ in range(3):
                order.append(name)
                await asyncio.sleep(0)

        with simulated(scheduler):
            scheduler.run(*(scheduler.client(name).start(work(name)) for name in "ab"))
        orders.add("".join(order))
    assert len(orders) > 5


def test_threads_block_and_wake_in_simulated_time():
    """An array on a blocking store: its coroutines run on worker threads, which wait for each other's locks."""
    scheduler = Scheduler(1)
    with simulated(scheduler):
        store = MemoryStore()

        async def work(row: int) -> None:
            array = await za.open_array(store, mode="r+")
            await array[row, :].write(row + 1)

        async def block() -> None:
            async def wait() -> None:
                clock.current().sleep_blocking(3600)

            await run_in_worker(wait)

        client = scheduler.client("a")
        scheduler.run(client.start(za.create_array(store, shape=(4, 4), chunks=(4, 4), dtype="i4")))
        begin = scheduler.now
        scheduler.run(*(client.start(work(row)) for row in range(4)), client.start(block()))
        assert scheduler.now - begin == pytest.approx(3600, abs=10)
        task = client.start(za.load(store))
        scheduler.run(task)
        assert np.array_equal(task.result()[:, 0], [1, 2, 3, 4])


def test_a_killed_client_never_runs_again():
    for dies_at in range(1, 40):
        scheduler, store, cleaned_up = Scheduler(dies_at), MemoryStore(), list[str]()

        async def work(cleaned_up: list[str] = cleaned_up, store: MemoryStore = store) -> None:
            array = await za.create_array(LatencyStore(store, 0.1), shape=(4,), chunks=(1,), dtype="i4")
            try:
                await array[...].write([1, 2, 3, 4])
                await asyncio.sleep(1000)
            except BaseException:
                cleaned_up.append("cleaned up")
                raise

        with simulated(scheduler):
            client = scheduler.client("a")
            client.dies_at = dies_at
            task = client.start(work())
            scheduler.run(task)
            assert not task.done()
            assert not cleaned_up


def test_a_deadlock_is_noticed():
    scheduler = Scheduler(0)
    with simulated(scheduler), pytest.raises(Stuck, match="have not ended: waits"):
        scheduler.run(scheduler.client("a").start(asyncio.Event().wait(), "waits"))


def _digest(first: int, count: int) -> str:
    """Return a checksum of the histories of some seeds."""
    digest = hashlib.sha256()
    for seed in range(first, first + count):
        plan = draw(seed)
        outcome = str(run(plan, SCENARIOS[plan.scenario], detailed=True))
        digest.update(RANDOM_NAME.sub("", outcome).encode())
    return digest.hexdigest()


@needs_kernel
def test_a_seed_decides_everything():
    """Other processes, where hashes and addresses differ, see the same histories."""
    command = "from tests.simulation.test_scheduler import _digest; print(_digest(0, 60))"
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", command], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
