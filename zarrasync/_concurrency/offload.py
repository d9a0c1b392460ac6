"""Running blocking work on threads from coroutines."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar, cast

from zarrasync import config
from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CancelFlag, as_call, cancel_flag
from zarrasync._concurrency.drive import drive, driven
from zarrasync._concurrency.fork import reset_in_child, thread_lock
from zarrasync._concurrency.semaphores import POLL_SECONDS

logging.getLogger("zarrasync").addHandler(logging.NullHandler())

_pools: dict[tuple[str, int], Executor] = {}
_lock = thread_lock()


def pool(name: str, size: int) -> Executor:
    """Return the pool with a name and size. It is made on first use."""
    with _lock:
        executor = _pools.get((name, size))
        if executor is None:
            executor = _pools[name, size] = clock.current().executor(f"zarrasync-{name}", size)
        return executor


def helper_pool(settings: config.Config) -> Executor:
    """Return the threads that help callers on blocking stores. No call depends on them: callers work themselves."""
    return pool("helper", settings.pool_size)


def codec_pool(settings: config.Config) -> Executor:
    """Return the threads that decode and encode. Their jobs never wait for a semaphore, so they always finish."""
    return pool("codec", settings.pool_size)


def submit(executor: Executor, work: Callable[[], T]) -> Future[T]:
    """Run a function on a thread of a pool.

    Pools accept no work after the main thread has ended. The function then runs on a new thread.
    """
    try:
        return executor.submit(work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        future = Future[T]()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

        clock.current().start_thread("zarrasync-late", run)
        return future


@reset_in_child
def _forget_pools() -> None:
    _pools.clear()


T = TypeVar("T")
_END = object()


async def run_in_worker(make: Callable[[], Coroutine[Any, Any, T]], *, computing: bool = False) -> T:
    """Drive a coroutine of blocking work on a worker thread, or on this thread if this call is already driven.

    Cancelling the caller sets the work's cancel flag and waits until the work has stopped, so that nothing writes into
    the caller's memory afterwards.

    Args:
        make: Makes the coroutine.
        computing: Whether the work rarely waits. Then one thread per core plus one is enough; more would only compete
            for the interpreter.
    """
    if driven():
        return await make()
    cores = config.get().pool_size
    executor = pool("computing", cores + 1) if computing else pool("io", max(8, 2 * cores))
    return await run_on(executor, lambda: drive(make()))


async def run_on(executor: Executor, function: Callable[[], T]) -> T:
    """Run a function on a thread of a pool, and return its result.

    Cancelling the caller sets the cancel flag of the function's call, and waits until the function has returned.
    """
    outcome, work = _prepare(function)
    outcome.job = submit(executor, work)
    return await _result(outcome)


async def compute(function: Callable[[], T]) -> T:
    """Run a long computation without blocking the event loop, and return its result."""

    async def work() -> T:
        return function()

    return await run_in_worker(work, computing=True)


async def run_in_new_thread(function: Callable[[], T]) -> T:
    """Run a function that makes blocking calls of this library, or is not of this library, and return its result.

    It may wait for workers or for an event loop, so it must not occupy one. It runs on a new thread, or on this one if
    this call is driven.
    """
    if driven():
        return function()
    outcome, work = _prepare(function)
    outcome.job = Future()
    outcome.job.set_running_or_notify_cancel()
    clock.current().start_thread("zarrasync-call", work)
    return await _result(outcome)


async def iterate_in_worker(items: Iterator[T]) -> AsyncIterator[T]:
    """Step through a slow iterator without blocking the event loop."""

    async def step() -> Any:
        return next(items, _END)

    while True:
        item = await run_in_worker(step)
        if item is _END:
            return
        yield item
        del item  # it may be large, and the next one takes a while


async def name_lookup(host: str, port: int) -> list[Any]:
    """Return the addresses of a host, as ``socket.getaddrinfo`` does."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return await asyncio.wrap_future(submit(pool("names", 4), look_up))


def run_abandonable(call: Callable[[], T], limit: float) -> T:
    """Return the result of a call that may never return. Abandon it on cancellation or after a time limit.

    Args:
        call: The function to run on a new thread.
        limit: Seconds to wait at most; 0 for no limit.

    Raises:
        TimeoutError: If it takes longer.
    """
    finished, flag, end = threading.Event(), cancel_flag(), clock.monotonic() + (limit or math.inf)
    pending, outcome = [call], list[tuple[T | None, BaseException | None]]()

    def work() -> None:
        try:
            outcome.append((pending.pop()(), None))
        except BaseException as error:
            outcome.append((None, error))
        finished.set()

    clock.current().start_thread("zarrasync-abandonable", partial(copy_context().run, work))
    while not clock.current().wait(finished, POLL_SECONDS):
        if flag.cancelled:
            raise asyncio.CancelledError
        if clock.monotonic() > end:
            raise TimeoutError(f"no answer within {limit:.3g} s")
    result, error = outcome.pop()
    try:
        if error is not None:
            raise error
        return cast(T, result)
    finally:
        del error  # it refers to this frame


class _Outcome(asyncio.Future[T]):
    """The result of a job on a thread. A caller that is cancelled while waiting waits until the job has stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, flag: CancelFlag) -> None:
        super().__init__(loop=loop)
        self._flag = flag
        self.job: Future[None]

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask the job to stop. ``False`` if it has begun; it then ends this future, and the task is cancelled."""
        self._flag.cancel()
        return self.job.cancel() and super().cancel(msg)


def _prepare(function: Callable[[], T]) -> tuple[_Outcome[T], Callable[[], None]]:
    """Return a future, and the job that ends it with the result of a function in the caller's context."""
    loop, flag, context = asyncio.get_running_loop(), CancelFlag(), copy_context()
    context.run(as_call, flag)
    outcome: _Outcome[T] = _Outcome(loop, flag)
    deliver = partial(deliveries_of(loop).deliver, outcome)
    return outcome, partial(_run, [function], context, flag, deliver)


def _run(
    pending: list[Callable[[], Any]],
    context: Context,
    flag: CancelFlag,
    deliver: Callable[[Any, BaseException | None], None],
) -> None:
    result, error = None, None
    try:
        if flag.cancelled:  # while it waited for a thread
            raise asyncio.CancelledError
        # Popped, because a thread may keep a reference to its job after the job has ended.
        result = context.run(pending.pop())
    except BaseException as raised:
        error = raised
    deliver(result, error)


async def _result(outcome: _Outcome[T]) -> T:
    try:
        return await outcome
    finally:
        if outcome.done() and not outcome.cancelled():
            outcome.exception()  # marks it as retrieved: a cancelled caller never looks


class Deliveries:
    """Results of worker threads for the tasks of a loop. One wake-up of the loop delivers all results that are ready.

    Waking it for each result would make the loop compete with the workers for the interpreter.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._scheduled = False

    def deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """End a future of the loop, from a thread."""
        self._ready.append((future, result, error))
        if not self._scheduled:  # otherwise the loop has yet to look, and clears the flag before it does
            self._wake()

    def _wake(self) -> None:
        loop = self._loop()
        if loop is not None:
            self._scheduled = True
            try:
                loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed, so no task waits
                self._scheduled = False
                self._ready.clear()  # the futures would keep the loop in memory

    def _drain(self) -> None:
        self._scheduled = False
        try:
            while self._ready:
                future, result, error = self._ready[0]
                if not future.done():
                    if error is not None:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
                self._ready.popleft()
        finally:
            if self._ready:  # interrupted by Ctrl-C
                self._wake()


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Deliveries] = weakref.WeakKeyDictionary()


def deliveries_of(loop: asyncio.AbstractEventLoop) -> Deliveries:
    """Return the deliveries to a loop."""
    return _by_loop.get(loop) or _by_loop.setdefault(loop, Deliveries(loop))


@reset_in_child
def _reset() -> None:
    _by_loop.clear()


def run_to_end(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on a new event loop: on this thread, or on another one if an event loop runs on this one."""

    async def run() -> Any:
        return await make()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    with clock.current().executor("zarrasync-user-code", 1) as pool:
        return pool.submit(asyncio.run, run()).result()
