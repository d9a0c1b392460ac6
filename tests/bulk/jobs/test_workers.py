"""Calls that run elsewhere are repeated, refused and cancelled in one way, whatever runs them."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CALL_FLAG, CancelFlag
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.errors import ReadOnlyError, StoreError, UnsupportedOperation

ENGINES: dict[str, Callable[[ThreadPoolExecutor], Any]] = {
    "submit": lambda threads: threads,
    "map": lambda threads: map,
    "list": lambda threads: lambda function, items: [function(item) for item in items],
    "map of threads": lambda threads: threads.map,
    "map in another order": lambda threads: lambda function, items: reversed([*map(function, items)]),
    "map that calls twice": lambda threads: lambda function, items: map(function, [*items, *items]),
}


CALLS = {name: 2 if name == "map that calls twice" else 1 for name in ENGINES}
"""How often each engine runs a call that it is given once."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def workers(engine: str) -> Iterable[Workers]:
    with ThreadPoolExecutor(2) as threads, closing(Workers(ENGINES[engine](threads))) as workers:
        yield workers


def run(workers: Workers, calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run calls, and return their results in order."""
    calls, results = list(calls), dict[int, Any]()
    workers.run(range(len(calls)), calls.__getitem__, results.__setitem__)
    return [results[number] for number in range(len(calls))]


class Failing:
    """A call that fails a number of times, and counts how often it was called."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.count = error, times, 0

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self.times:
            raise self.error
        return "done"


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError("late"), StoreError("no answer")], ids=repr)
def test_calls_whose_store_failed_are_repeated(engine: str, workers: Workers, error: Exception):
    calls = [Failing(error, times) for times in (0, 2, 1)]
    assert run(workers, calls) == ["done"] * 3
    factor = CALLS[engine]  # the first outcome of an attempt counts
    assert [call.count for call in calls] == [factor * (math.ceil(call.times / factor) + 1) for call in calls]


class Sleepless(clock.Environment):
    """A clock that skips pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return sum(self.pauses)

    def sleep_blocking(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_each_repetition_waits_longer():
    sleepless = Sleepless()
    with clock.replaced(sleepless), ThreadPoolExecutor(1) as threads:
        assert run(Workers(threads), [Failing(StoreError("no answer"), 2)]) == ["done"]
    assert sleepless.pauses == [0.5, 1.0]


def test_a_call_that_fails_again_and_again_is_an_error(engine: str, workers: Workers):
    call = Failing(StoreError("no answer"), 9)
    with pytest.raises(StoreError, match="no answer"):
        run(workers, [call])
    assert call.count == 3 * CALLS[engine]


@pytest.mark.parametrize("error", [ValueError("wrong"), ReadOnlyError("read only"), KeyError("k")], ids=repr)
def test_errors_that_a_repetition_does_not_change(engine: str, workers: Workers, error: Exception):
    call = Failing(error, 1)
    with pytest.raises(type(error)):
        run(workers, [call])
    assert call.count == CALLS[engine]


@pytest.mark.parametrize("engine", ["submit", "map", "map of threads"])
def test_nothing_runs_after_a_failure(workers: Workers):
    """Calls that have not begun are dropped, and begun ones are waited for. A list has run all when it returns."""
    begun, ended = [], []

    def slow(number: int) -> None:
        begun.append(number)
        event.wait(0.05)
        ended.append(number)

    def fail() -> None:
        raise ValueError("wrong")

    event = threading.Event()
    with pytest.raises(ValueError, match="wrong"):
        run(workers, [fail, *(partial(slow, number) for number in range(50))])
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 50


def test_cancellation(workers: Workers):
    begun, ended, flag, has_begun = [], [], CancelFlag(), threading.Event()

    def slow(number: int) -> None:
        begun.append(number)
        has_begun.set()
        threading.Event().wait(0.05)
        ended.append(number)

    def cancel() -> None:
        has_begun.wait(30)
        flag.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    token = CALL_FLAG.set(flag)
    try:
        with pytest.raises(CancelledError):
            run(workers, [partial(slow, number) for number in range(50)])
    finally:
        CALL_FLAG.reset(token)
        canceller.join()
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 50


def test_a_map_that_fails_or_returns_too_little():
    def fail(function: Any, items: Any) -> Any:
        raise RuntimeError("the service is down")

    with pytest.raises(RuntimeError, match="the service is down"):
        run(Workers(fail), [lambda: 1])
    with pytest.raises(UnsupportedOperation, match="returned 0 results of 1 items"):
        run(Workers(lambda function, items: []), [lambda: 1])


def die_once(folder: str) -> int:
    """Kill this process, unless a process has done so before."""
    path = Path(folder) / "died"
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), 9)
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.processes
def test_a_call_whose_process_was_killed_is_repeated(tmp_path: Path):
    with closing(Workers(2)) as workers:
        found = run(workers, [partial(die_once, str(tmp_path)) for _ in range(6)])
        assert os.getpid() not in found
        with pytest.raises(
            StoreError, match=r"the processes that ran task 0 ended 3 times.*; lower config.memory_budget"
        ):
            run(workers, [die])
        assert run(workers, [os.getpid])[0] != os.getpid()


def test_one_process_is_this_process():
    assert Workers(1).is_local
    assert Workers().is_local
    for wrong in (True, "4", 2.5, {}):
        with pytest.raises(TypeError, match=r"a function map\(function, items\); found"):
            Workers(wrong)
    with pytest.raises(ValueError, match="at least 1 process, found -1"):
        Workers(-1)


def test_futures_of_other_kinds():
    """Of an object with ``submit``, only futures of concurrent.futures are expected."""

    class Immediate:
        def submit(self, call: Callable[[], Any]) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(call())
            return future

    assert run(Workers(Immediate()), [lambda: 1, lambda: 2]) == [1, 2]


def test_results_that_an_executor_confuses_or_loses():
    class Confusing:
        def __init__(self) -> None:
            self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

        def submit(self, call: Callable[[], Any]) -> Future[Any]:
            future: Future[Any] = Future()
            self.waiting.append((future, call))
            if len(self.waiting) == 2:
                (first, call), (second, other) = self.waiting
                first.set_result(other())
                second.set_result(call())
            return future

    class Losing:
        def submit(self, call: Callable[[], Any]) -> Future[Any]:
            future: Future[Any] = Future()
            call()
            future.set_result(None)
            return future

    for outcome in (5, [(0, None, "failed"), (1, None, None)]):
        with pytest.raises(UnsupportedOperation, match="must return the result of each item"):
            run(Workers(lambda function, items, outcome=outcome: outcome), [lambda: 1, lambda: 2])
    with pytest.raises(UnsupportedOperation, match=r"returned the result of task (1 for task 0|0 for task 1)"):
        run(Workers(Confusing()), [lambda: 1, lambda: 2])
    with pytest.raises(UnsupportedOperation, match="returned None for task 0"):
        run(Workers(Losing()), [lambda: 1])
    with pytest.raises(UnsupportedOperation, match=r"returned 1 results of 2 items, and then \(7, 'wrong', None\)"):
        run(Workers(lambda function, items: [function(items[1]), (7, "wrong", None)]), [lambda: 1, lambda: 2])


def test_calls_that_cannot_be_started():
    """Those that have begun before are waited for."""
    begun, ended = [], []

    class Full:
        def __init__(self, threads: ThreadPoolExecutor, third: Callable[[], Any]) -> None:
            self.threads, self.third, self.count = threads, third, 0

        def submit(self, call: Callable[[], Any]) -> Any:
            self.count += 1
            return self.threads.submit(call) if self.count <= 2 else self.third()

    def slow() -> None:
        begun.append(1)
        has_begun.release()
        threading.Event().wait(0.2)
        ended.append(1)

    def refuse() -> None:
        has_begun.acquire()
        raise RuntimeError("the queue is full")

    def wrong() -> int:
        has_begun.acquire()
        return 5

    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(RuntimeError, match="the queue is full"):
            run(Workers(Full(threads, refuse)), [slow] * 4)
        assert len(begun) == len(ended) > 0
        with pytest.raises(TypeError, match=r"submit of the executor must return a concurrent.futures.Future, found 5"):
            run(Workers(Full(threads, wrong)), [slow] * 4)
        assert len(begun) == len(ended) > 1


def test_calls_that_an_executor_cancels():
    class Closing:
        def submit(self, call: Callable[[], Any]) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            return future

    with pytest.raises(StoreError, match="the executor cancelled task 0"):
        run(Workers(Closing()), [lambda: 1])


class Dying:
    """A process that dies in the second call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: Any) -> Any:
        (self.folder / str(item)).touch()
        return os.kill(os.getpid(), 9) if item else item


@pytest.mark.processes
def test_an_executor_whose_process_was_killed(tmp_path: Path):
    """An executor of the caller is not started again."""
    calls = [partial(Dying(tmp_path), number) for number in range(2)]
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with pool, pytest.raises(StoreError, match="the processes that ran task 1 ended"):
        run(Workers(pool), calls)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
