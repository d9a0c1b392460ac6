"""Executors that run calls in other processes or on other machines.

An executor starts calls and knows nothing of tasks. ``Workers`` decides how many calls it gets at a time, and what happens
to calls that fail.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync.display.text import counted
from zarrasync.errors import UnsupportedOperation

Call = Callable[[], Any]
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
_log = logging.getLogger(__name__)


class JobExecutor:
    """Runs calls, which it may have to pickle."""

    count = 1
    """The number of processes that share the processors of this machine."""
    may_share_memory = True
    """Whether calls may run in this process, so that they can write to a store in memory."""
    is_on_this_machine = False
    """Whether calls are known to run on this machine, so that they can use its files."""

    @property
    def width(self) -> int:
        """The most calls to have in progress."""
        return 1 << 30

    def start(self, calls: Sequence[Call]) -> Sequence[Future[Any]]:
        """Start calls, and return their futures in the same order. Calls that cannot be started have failed futures."""
        raise NotImplementedError

    def recover(self) -> bool:
        """Prepare for more calls after a worker has ended; ``False`` if this executor cannot run any more."""
        return False

    def cancel(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        """Cancel calls that have not begun. Return the futures of the others."""
        return [future for future in futures if not future.cancel()]

    def warn(self, running: int) -> None:
        """Log a warning if no worker can run the calls. It is called if no call ends for some time."""

    def close(self) -> None:
        """End what this executor has started."""


def executor_of(executor: Any) -> JobExecutor | None:
    """Return the executor for an argument ``executor``; ``None`` for threads of this process.

    Args:
        executor: The number of processes of this machine, an object with ``submit``, a client of dask, the module ``ray``,
            a ``FunctionExecutor`` of Lithops, or a function ``map(function, items)``.

    Raises:
        TypeError: If it is something else.
        ValueError: If it is a number less than 1.
    """
    if executor is None:
        return None
    given: Any = executor  # type checkers narrow the type of the argument
    if isinstance(executor, int | np.integer) and not isinstance(executor, bool):
        if executor < 1:
            raise ValueError(f"executor must be at least 1 process, found {executor!r}")
        return None if executor == 1 else ProcessesExecutor(int(executor))
    if hasattr(executor, "get_executor"):
        return _DaskExecutor(executor)
    if getattr(executor, "__name__", "") == "ray" and hasattr(executor, "remote"):
        return _RayExecutor(executor)
    if hasattr(executor, "call_async") and hasattr(executor, "get_result"):
        return _LithopsExecutor(executor)
    if hasattr(executor, "submit"):
        return _FuturesExecutor(given)
    if callable(executor):
        return _MapExecutor(given)
    raise TypeError(
        "executor must be a number of processes, have a method submit as concurrent.futures.Executor has, be a client of "
        f"dask, the module ray, a FunctionExecutor of Lithops, or a function map(function, items); found {executor!r}"
    )


# ------------------------------------------------------------------ futures


def _submitted(submit: Callable[[Call], Any], calls: Sequence[Call]) -> list[Future[Any]]:
    """Return the futures of calls. If one cannot be started, it and the later ones fail, and those before can be waited for."""
    futures = list[Future[Any]]()
    for call in calls:
        try:
            future = submit(call)
            if not isinstance(future, Future):
                raise TypeError(f"submit of the executor must return a concurrent.futures.Future, found {future!r}")
        except BaseException as error:
            failed = [Future[Any]() for _ in calls[len(futures) :]]
            for other in failed:
                other.set_exception(error)
            return futures + failed
        futures.append(future)
    return futures


class ProcessesExecutor(JobExecutor):
    """Runs calls in processes of this machine, which start with the first call. New processes replace those that end.

    Args:
        count: The number of processes.
    """

    may_share_memory = False
    is_on_this_machine = True

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None
        self._lock = thread_lock()

    @property
    def width(self) -> int:
        return 2 * self.count

    def warm(self) -> None:
        """Start the processes, which import modules while this one does other work."""
        self.start([_do_nothing] * self.count)

    def start(self, calls: Sequence[Call]) -> Sequence[Future[Any]]:
        with self._lock:  # jobs of several arrays share the processes
            return _submitted(self._submit, calls)

    def _submit(self, call: Call) -> Future[Any]:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork has the locks that threads of this process hold
            self._pool = ProcessPoolExecutor(self.count, context, _end_with_parent)
        try:
            return self._pool.submit(call)
        except BrokenProcessPool:
            self._drop()
            return self._submit(call)

    def recover(self) -> bool:
        with self._lock:
            try:
                if self._pool is not None:
                    self._pool.submit(_do_nothing)
            except BrokenProcessPool:  # another job may have replaced it already
                self._drop()
        return True

    def _drop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        # Asking them to end can take forever: one that is killed meanwhile may hold a lock that others wait for.
        processes = list((pool._processes or {}).values())  # noqa: SLF001  # the public method needs Python 3.14
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _do_nothing() -> None:
    """Do nothing: a call that starts a process."""


def _end_with_parent() -> None:
    """End this worker process when the process that started it is killed. It would wait for calls forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    clock.current().start_thread("zarrasync-parent", watch)


class _FuturesExecutor(JobExecutor):
    """Anything with ``submit``, such as the executors of concurrent.futures, loky, mpi4py.futures and executorlib."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.may_share_memory = not isinstance(executor, ProcessPoolExecutor)
        self.is_on_this_machine = type(executor).__module__.startswith("concurrent.futures.")

    def start(self, calls: Sequence[Call]) -> Sequence[Future[Any]]:
        return _submitted(self._executor.submit, calls)


class _DaskExecutor(_FuturesExecutor):
    """A client of dask."""

    def __init__(self, client: Any) -> None:
        super().__init__(client.get_executor(pure=False))  # equal calls must run again
        self._client = client

    def warn(self, running: int) -> None:
        if not (known := self._client.scheduler_info())["workers"]:  # the cluster may get some later
            _log.warning(
                "the cluster %s has no workers; %s waiting", known.get("address", ""), counted(running, "task")
            )


class _RayExecutor(JobExecutor):
    """The module ``ray``, which connects to a cluster or starts one."""

    may_share_memory = False

    def __init__(self, ray: Any) -> None:
        self._ray, self._function = ray, ray.remote(_run)

    @property
    def width(self) -> int:
        if not self._ray.is_initialized():
            self._ray.init()
        return 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, calls: Sequence[Call]) -> Sequence[Future[Any]]:
        return _submitted(lambda call: self._function.remote(call).future(), calls)

    def cancel(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        return list(futures)  # Ray may have begun any of them


def _run(call: Call) -> Any:
    return call()


# ------------------------------------------------------------------ maps


class _MapExecutor(JobExecutor):
    """A function ``map(function, items)`` that returns the results of all items, at once or one by one, in any order."""

    def __init__(self, function: Map) -> None:
        self._map = function

    def start(self, calls: Sequence[Call]) -> Sequence[Future[Any]]:
        attempt = _Attempt()
        futures = [_Mapped(attempt) for _ in calls]
        for future in futures:
            future.set_running_or_notify_cancel()  # the function may have begun any of them

        def collect() -> None:
            try:
                _distribute(self._map(attempt, list(enumerate(calls))), dict(enumerate(futures)))
            except BaseException as error:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)

        clock.current().start_thread("zarrasync-map", collect)
        return futures

    def cancel(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        left = list(futures)
        for future in left:
            if isinstance(future, _Mapped):
                future.attempt.is_stopped = True
        return left


def _distribute(outcomes: Any, waiting: dict[int, Future[Any]]) -> None:
    """Give the outcomes of calls to their futures. Of a call that was run several times, the first outcome counts.

    Raises:
        UnsupportedOperation: If something else than an outcome is returned, or if outcomes are missing.
    """
    count, wrong = len(waiting), ""
    for outcome in outcomes if isinstance(outcomes, Iterable) else [outcomes]:
        match outcome:
            case [int(number), result, BaseException() | None as error] if 0 <= number < count:
                if (future := waiting.pop(number, None)) is not None:
                    future.set_result(result) if error is None else future.set_exception(error)
            case _:
                wrong = f", and then {outcome!r}"
                break
    if waiting:
        raise UnsupportedOperation(
            f"the executor returned {count - len(waiting)} results of {count} items{wrong}; a function map(function, items) must "
            "return the result of each item. Repeat the call: tasks that are finished do not run again"
        )


class _Mapped(Future[Any]):
    """The future of a call that a function like ``map`` runs with others.

    Args:
        attempt: What runs the calls.
    """

    def __init__(self, attempt: _Attempt) -> None:
        super().__init__()
        self.attempt = attempt


class _Attempt:
    """Runs a numbered call, and returns its number, result and error, so that a function like ``map`` continues with others.

    In this process, calls that have not begun can be cancelled.
    """

    is_stopped = False

    def __call__(self, item: tuple[int, Call]) -> tuple[int, Any, BaseException | None]:
        number, call = item
        if self.is_stopped:
            return number, None, CancelledError()
        try:
            return number, call(), None
        except Exception as error:
            return number, None, error

    def __reduce__(self) -> tuple[type[_Attempt], tuple[()]]:
        return type(self), ()


class _LithopsExecutor(_MapExecutor):
    """A ``FunctionExecutor`` of Lithops."""

    may_share_memory = False

    def __init__(self, executor: Any) -> None:
        def map_calls(function: Any, calls: Sequence[Any]) -> Iterable[Any]:
            started = executor.map(function, [(call,) for call in calls])
            return (future.result() for future in started)

        super().__init__(map_calls)
