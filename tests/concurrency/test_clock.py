"""The seam for simulation: time, randomness and threads can be replaced, and no module bypasses it."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync._concurrency import clock, offload
from zarrasync._concurrency.backoff import ConflictBackoff, pause
from zarrasync._concurrency.drive import drive
from zarrasync.errors import WriteConflictError
from zarrasync.nodes.access import handle_of
from zarrasync.stores import MemoryStore, WrapperStore
from zarrasync.testing import LatencyStore

PACKAGE = Path(za.__file__).parent


class _Inline(Executor):
    """Runs each job at once, on the thread that submits it."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _Simulation(clock.Environment):
    """Time that passes only while something sleeps, randomness that is always the upper bound, and no threads."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.executors: dict[str, _Inline] = {}

    def monotonic(self) -> float:
        return self.now

    def wall_time(self) -> float:
        return self.now

    def uniform(self, low: float, high: float) -> float:
        return high

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def sleep_blocking(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.now += seconds
        return event.is_set()

    def executor(self, name: str, size: int) -> Executor:
        return self.executors.setdefault(name, _Inline())

    def start_thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        raise AssertionError(f"a simulated call started the thread {name}")


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offload, "_pools", {})
    with clock.replaced(_Simulation()) as _:
        yield clock.current()


async def test_pauses_take_simulated_time(simulation):
    await pause(3600)
    drive(pause(60.0))
    assert simulation.now == pytest.approx(4660)


async def test_conflicts_are_retried_until_the_simulated_time_is_up(simulation):
    backoff, attempts = ConflictBackoff(30.0, "x"), 0
    conflict = WriteConflictError("another writer was faster", key="x")
    with pytest.raises(WriteConflictError, match="within 30 s"):
        while True:
            await backoff.after(conflict)
            attempts += 1
    assert simulation.now == pytest.approx(1030, abs=1)
    assert attempts > 10


class _AlwaysConflicts(WrapperStore):
    """A store where another writer is always faster, from some moment on."""

    busy = False

    async def put(self, key, data, *, if_version=None):
        if self.busy and if_version is not None:
            raise WriteConflictError("another writer was faster", key=key)
        return await self.inner.put(key, data, if_version=if_version)


async def test_consolidated_metadata_is_retried_until_the_simulated_time_is_up(simulation):
    store = _AlwaysConflicts(MemoryStore())
    await za.create_group(store)
    await za.create_array(store, path="a", shape=4, dtype="i4")
    group = await za.consolidate_metadata(store, config={"total_timeout": 7.0})
    member, begin = await group.getitem("a"), simulation.now
    document = json.loads(await store.get("a/zarr.json"))
    await store.put("a/zarr.json", json.dumps({**document, "attributes": {"new": 1}}).encode())
    store.busy = True
    copies = handle_of(member).consolidated
    with pytest.raises(WriteConflictError, match=r"consolidated metadata of / .*attempts within 7 s"):
        await copies.update(store, ["a/zarr.json"], config=member.config)
    assert simulation.now - begin == pytest.approx(7, abs=1)


async def test_latency_is_simulated(simulation):
    store = LatencyStore(MemoryStore(), 2.0)
    await store.set("k", b"v")
    assert await store.get("k") == b"v"
    assert simulation.now == pytest.approx(1004)


async def test_work_runs_on_the_simulated_executor(simulation, tmp_path: Path):
    """Local files through the asynchronous API use worker threads, remote stores codec threads."""
    for store in (tmp_path / "x.zarr", LatencyStore(MemoryStore(), 0.1)):
        array = await za.create_array(store, shape=(100, 100), dtype="i4", chunks=(10, 100))
        values = np.arange(10_000, dtype="i4").reshape(100, 100)
        await array[...].write(values)
        assert np.array_equal(await array[...], values)
    assert {name for name, executor in simulation.executors.items() if executor.jobs} >= {
        "zarrasync-computing",
        "zarrasync-codec",
    }


BANNED = {
    ("time", "monotonic"),
    ("time", "perf_counter"),
    ("time", "sleep"),
    ("time", "time"),
    ("random", "uniform"),
    ("random", "random"),
    ("asyncio", "sleep"),
    ("asyncio", "to_thread"),
    ("threading", "Thread"),
    ("futures", "ThreadPoolExecutor"),
    ("futures", "wait"),
}


def test_nothing_goes_past_the_seam():
    uses = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "clock.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if (node.value.id, node.attr) in BANNED:
                    uses.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom):
                names = [
                    alias.name for alias in node.names if ((node.module or "").split(".")[-1], alias.name) in BANNED
                ]
                uses.extend(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}" for name in names)
    assert uses == []
