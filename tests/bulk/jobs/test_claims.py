"""Claims of jobs that are cancelled: while they wait for others, while they write, and at their end."""

from __future__ import annotations

import asyncio
import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.shifted_clock import ShiftedClock
from zarrasync import Layout, stores
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.cancel import CALL_FLAG, CancelFlag, raise_if_cancelled
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.fencing import TaskLease
from zarrasync.bulk.jobs.plan_location import PlanLocation
from zarrasync.errors import StoreError
from zarrasync.stores import Store
from zarrasync.stores.leases import Entry, Lease
from zarrasync.testing import FaultyStore


class Distant(stores.WrapperStore):
    """An asynchronous store in memory.

    Attributes:
        looks: The number of times that somebody has looked at a claim or a run of a task.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.blocking, self.looks = False, threading.Semaphore(0)

    async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
        found = await self.inner.fetch(requests, versions=versions)
        if any(".ingest/" in request.key for request in requests):
            self.looks.release()
        return found

    async def list_prefix(self, prefix: str) -> list[str]:
        keys = await self.inner.list_prefix(prefix)
        if ".ingest" in prefix:
            self.looks.release()
        return keys


@pytest.fixture(params=["blocking", "distant"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return stores.LocalStore(tmp_path) if request.param == "blocking" else Distant(stores.MemoryStore())


def keys(store: Store) -> list[str]:
    return sorted(key for key in bridge.run(store.list(), blocking=store.blocking) if ".ingest" in key)


async def cancel_while_waiting(call: Awaitable[Any], dest: Distant) -> None:
    """Cancel a call that waits for others, which never end, and check that it ends."""
    waiting = asyncio.ensure_future(call)
    for _ in range(6):
        assert await asyncio.to_thread(dest.looks.acquire, True, 30)
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=20)
    assert done
    with pytest.raises(CancelledError):
        await waiting


async def copy_to(dest: Store) -> None:
    source = stores.MemoryStore()
    await za.create_array(source, data=np.arange(4))
    await za.copy(source, dest)


async def write_to(dest: Store) -> None:
    xr = pytest.importorskip("xarray")
    from zarrasync.integrations.xarray import write_dataset_async

    await write_dataset_async(xr.Dataset({"v": ("x", np.arange(4))}), dest)


@pytest.mark.parametrize("job", [copy_to, write_to])
async def test_a_call_that_waits_for_another_job(job: Callable[[Store], Awaitable[None]]):
    memory = stores.MemoryStore()
    dest, claim = Distant(memory), Claim(memory, "")
    await asyncio.to_thread(claim.acquire, 0)
    try:
        await cancel_while_waiting(job(dest), dest)
    finally:
        await asyncio.to_thread(claim.release)
    assert await memory.list() == []


async def test_a_call_that_waits_for_tasks_of_a_job_that_was_killed():
    memory = stores.MemoryStore()
    dest, claim = Distant(memory), Claim(memory, "")
    await asyncio.to_thread(claim.acquire, 0)
    with TaskLease(memory, claim.token()):
        await asyncio.to_thread(claim.restore)
        await cancel_while_waiting(copy_to(dest), dest)
    await asyncio.wait_for(copy_to(dest), 30)


async def test_a_task_that_waits_for_an_earlier_stage():
    dest = Distant(stores.MemoryStore())
    await za.create_array(dest, path="0", data=np.zeros((64, 64), "u1"), chunks=(8, 8), dimension_names=("y", "x"))
    plan = await za.plan_pyramid(dest, levels=3, layout=Layout(shards=None))
    assert plan.tasks[-1].stage > plan.tasks[0].stage
    while dest.looks.acquire(blocking=False):
        pass
    await cancel_while_waiting(plan.run(plan.tasks[-1]), dest)
    await plan.run()
    await plan.finish()


def test_a_job_that_is_cancelled_leaves_no_claim(store: Store):
    flag, other = CancelFlag(), Claim(store, "")
    token = CALL_FLAG.set(flag)
    try:
        with pytest.raises(CancelledError), Claim(store, "") as claim:
            claim.acquire(0)
            flag.cancel()
            raise_if_cancelled()
    finally:
        CALL_FLAG.reset(token)
    assert not claim.is_held
    assert keys(store) == []
    other.acquire(0)
    other.release()


def test_commands_of_a_plan_that_are_cancelled_leave_its_claim(store: Store):
    claim, flag = Claim(store, ""), CancelFlag()
    claim.acquire(0)
    claim.update(plan="digest")
    claim.plan_only()
    token = CALL_FLAG.set(flag)
    try:
        with pytest.raises(CancelledError), claim.of_plan("digest"):
            flag.cancel()
            raise_if_cancelled()
    finally:
        CALL_FLAG.reset(token)
    assert Claim(store, "").planned()["plan"] == "digest"
    with claim.of_plan("digest"):
        pass
    assert keys(store) == []


def test_a_task_that_is_cancelled_leaves_no_note(store: Store):
    claim, flag = Claim(store, ""), CancelFlag()
    claim.acquire(0)
    permission = claim.token()
    token = CALL_FLAG.set(flag)
    try:
        with pytest.raises(CancelledError), TaskLease(store, permission):
            assert len(keys(store)) == 2
            flag.cancel()
            raise_if_cancelled()
    finally:
        CALL_FLAG.reset(token)
    assert keys(store) == [".ingest/claim"]
    claim.release()


def test_a_plan_that_is_cancelled_leaves_no_document():
    store, flag = Distant(stores.MemoryStore()), CancelFlag()
    token = CALL_FLAG.set(flag)
    try:
        with pytest.raises(CancelledError), PlanLocation(store, "a.plan", "a.plan", is_inside=False).saving() as save:
            save({})
            flag.cancel()
            raise_if_cancelled()
    finally:
        CALL_FLAG.reset(token)
    assert bridge.run(store.list(), blocking=False) == []


async def test_a_claim_that_is_cancelled_while_it_is_stored():
    """Ctrl-C cancels the request, which the store may carry out all the same."""

    class Unanswered(Distant):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            version = await self.inner.put(key, data, if_version=if_version)
            self.looks.release()
            await asyncio.Event().wait()
            return version

    async def choose(running: list[Entry], over: list[Entry]) -> list[Entry]:
        return [lease.new_entry()]

    memory = stores.MemoryStore()
    store = Unanswered(memory)
    lease = Lease(store, "a/claim", "a test")
    entering = asyncio.ensure_future(lease.enter(choose, lambda: "busy", 0))
    assert await asyncio.to_thread(store.looks.acquire, True, 30)
    entering.cancel()
    with pytest.raises(CancelledError):
        await entering
    assert not lease.is_held
    assert memory.values == {}


async def test_a_copy_that_is_cancelled_before_it_releases_its_claim():
    """The thread that releases it may start late."""
    copying: asyncio.Future[None]
    loop, is_stored, is_cancelled = asyncio.get_running_loop(), threading.Event(), threading.Event()

    class Document(Distant):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            version = await self.inner.put(key, data, if_version=if_version)
            if key == "zarr.json":
                is_stored.set()
            return version

    class Late(ShiftedClock):
        def start_thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
            if name != "zarrasync-call" or not is_stored.is_set():
                return super().start_thread(name, target)
            is_stored.clear()

            def cancel() -> None:
                copying.cancel()
                is_cancelled.set()

            def run() -> None:
                loop.call_soon_threadsafe(cancel)
                is_cancelled.wait(30)
                target()

            return super().start_thread(name, run)

    dest = Document(stores.MemoryStore())
    with clock.replaced(Late()):
        copying = asyncio.ensure_future(copy_to(dest))
        with pytest.raises(CancelledError):
            await copying
    assert is_cancelled.is_set()
    assert [key for key in await dest.list() if ".ingest" in key] == []
    np.testing.assert_array_equal(await za.load(dest), np.arange(4))


def test_an_erase_that_happened_although_it_failed():
    """The claim that another job has taken since stays."""
    memory = stores.MemoryStore()

    class TimedOut(stores.WrapperStore):
        async def erase(self, key: str, *, if_version: Any = None) -> None:
            await self.inner.erase(key)
            if key == ".ingest/claim":
                other.acquire(0)
                raise StoreError("timed out", key=key)

    claim, other = Claim(TimedOut(memory), ""), Claim(memory, "")
    claim.acquire(0)
    claim.release()
    other.check()
    assert other.entry == Claim(memory, "").folder.claim()
    other.release()
    assert [key for key in memory.values if not key.endswith("/refused")] == []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_plan_that_another_job_has_stored_since(refuses: bool):
    """Its document stays, although it lies where the document of the plan was that ends."""
    memory = stores.MemoryStore()

    def make_next(operation: str, key: str) -> bool:
        if operation == "erase" and key == ".ingest/plan.json" and memory.values[key] == b"{}":
            bridge.run(memory.put(key, b'{"plan": "next"}'), blocking=True)
        return refuses and operation == "erase"

    claim = Claim(FaultyStore(memory, fails=make_next), "")
    claim.acquire(0)
    claim.update(plan="digest")
    claim.folder.put(".ingest/plan.json", b"{}")
    claim.plan_only()
    with claim.of_plan("digest"):
        pass
    assert memory.values.pop(".ingest/plan.json") == b'{"plan": "next"}'
    assert {bytes(value) for value in memory.values.values()} == ({b'{"finished": true}'} if refuses else set())
    assert Claim(memory, "").planned() == {}
