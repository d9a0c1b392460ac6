"""The library's environment in a simulation: time, randomness, executors and threads of the scheduler."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from tests.simulation.scheduler import Client, Scheduler, client_of_this_call
from zarrasync._concurrency import bridge, clock, limiter, locks, offload, semaphores
from zarrasync.stores import leases

__all__ = ["SimulatedEnvironment", "simulated"]

_LONGEST_START = 0.005
"""Seconds that a job may wait for a thread although one is free."""


class SimulatedEnvironment(clock.Environment):
    """Time, randomness and threads of a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def wall_time(self) -> float:
        return self._scheduler.now

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._scheduler.random.random()

    def exponential(self, mean: float) -> float:
        return self._scheduler.random.expovariate(1 / mean)

    def sleep_blocking(self, seconds: float) -> None:
        self._park(lambda: False, seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._park(event.is_set, seconds)
        return event.is_set()

    def wait_for(self, futures: Iterable[Future[Any]]) -> None:
        pending = list(futures)
        self._park(lambda: all(future.done() for future in pending), None)

    def _park(self, is_ready: Callable[[], bool], seconds: float | None) -> None:
        thread = self._scheduler.this_thread()
        assert thread is not None, "the event loop of a client may not block"
        thread.park(is_ready, seconds)

    def executor(self, name: str, size: int) -> Executor:
        # Jobs of the codec threads never wait, so they need no threads of their own.
        return _InlineExecutor(self._scheduler) if "codec" in name else _ThreadExecutor(self._scheduler, size)

    def start_thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        self._scheduler.start_thread(target)
        return threading.current_thread()  # callers look at it only after an error


def _run_on_loop(coroutine: Coroutine[Any, Any, Any], flag: object) -> Any:
    """Run a coroutine on the loop of the client whose thread calls, in place of the loop of the process."""
    client, future = client_of_this_call.get(), Future[Any]()
    assert client is not None, "only clients have loops"

    async def work() -> None:
        try:
            result = await coroutine
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    client.loop.create_task(work(), context=copy_context())
    clock.current().wait_for([future])
    return future.result()


class _Lock:
    """A lock that simulated threads hold while others run."""

    def __init__(self) -> None:
        self._is_free = True

    def __enter__(self) -> None:
        thread = Scheduler.this_thread()
        if not self._is_free and thread is not None:
            thread.park(lambda: self._is_free)
        self._is_free = False

    def __exit__(self, *error: object) -> None:
        self._is_free = True


class _Threading:
    """The module ``threading`` for leases, whose lock is held during requests."""

    Event, Lock = threading.Event, _Lock


class _InlineExecutor(Executor):
    """Runs each job at once when its time has come, between the steps of clients."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        client = client_of_this_call.get()
        context = copy_context()

        def run() -> None:
            if client is None or not client.dead:
                context.run(_run_job, future, lambda: fn(*args, **kwargs))

        self._scheduler.call_later(self._scheduler.random.random() * _LONGEST_START, run)
        return future


class _ThreadExecutor(Executor):
    """Runs jobs on simulated threads, for each client a limited number at a time."""

    def __init__(self, scheduler: Scheduler, size: int) -> None:
        self._scheduler, self._size = scheduler, size
        self._running: dict[Client, int] = {}
        self._queues: dict[Client, deque[Callable[[], None]]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        client = client_of_this_call.get()
        assert client is not None
        context = copy_context()

        def start() -> None:
            context.run(self._scheduler.start_thread, run)

        def run() -> None:
            try:
                _run_job(future, lambda: fn(*args, **kwargs))
            finally:
                self._running[client] -= 1
                self._start_next(client)

        self._queues.setdefault(client, deque()).append(start)
        self._start_next(client)
        return future

    def _start_next(self, client: Client) -> None:
        if self._queues[client] and self._running.get(client, 0) < self._size:
            self._running[client] = self._running.get(client, 0) + 1
            self._queues[client].popleft()()


def _run_job(future: Future[Any], job: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class _PerClient(MutableMapping[Any, Any]):
    """A mapping of which each client sees its own: clients stand for processes."""

    def __init__(self) -> None:
        self._own: dict[Client | None, dict[Any, Any]] = {}

    def _current(self) -> dict[Any, Any]:
        return self._own.setdefault(client_of_this_call.get(), {})

    def __getitem__(self, key: Any) -> Any:
        return self._current()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._current()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._current()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())


@contextlib.contextmanager
def simulated(scheduler: Scheduler) -> Iterator[None]:
    """Let the library run in a simulation: with the scheduler's environment, and none of the process's own state."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(clock.replaced(SimulatedEnvironment(scheduler)))
        for module, name, value in (
            (offload, "_pools", {}),
            (locks, "_holders", _PerClient()),
            (semaphores, "_budgets", {}),
            (semaphores, "_turns", {}),
            (limiter, "_limiters", {}),
            (bridge, "_submit", _run_on_loop),
            (leases, "threading", _Threading),
            (offload, "_by_loop", WeakKeyDictionary()),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        try:
            yield
        finally:
            scheduler.close()
