"""Several calls at the same time: their results, calls that share one result, and calls that begin early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import length_hint
from typing import Any, TypeVar

from zarrasync._concurrency.cancel import raise_if_cancelled, retrieve
from zarrasync._concurrency.drive import driven

T = TypeVar("T")


async def gather(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of calls, which run concurrently, or one after the other if this call is driven."""
    if len(calls) < 2:
        return [await call() for call in calls]
    if driven():
        return [await _step(call) for call in calls]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_await(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in tasks]


async def gather_all(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of concurrent calls. Each call runs to its end even if others fail.

    If the caller is cancelled meanwhile, the cancellation is raised after all calls have ended, so that their outcome is
    known.
    """
    tasks = [asyncio.ensure_future(_await(call)) for call in calls]
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    errors = [failure for task in tasks if (failure := task.exception()) is not None]
    if cancelled is not None or errors:
        raise cancelled or errors[0]
    return [task.result() for task in tasks]


async def for_each(work: Callable[[T], Awaitable[None]], items: Iterable[T], limit: int) -> None:
    """Call a coroutine function with each item, at most ``limit`` at a time. Lazy items are taken as needed.

    Where this call is driven, the calls run one after the other.
    """
    source, limit = iter(items), min(limit, length_hint(items, limit))

    async def worker() -> None:
        for item in source:
            await work(item)

    if limit <= 1 or driven():
        await worker()
        return
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(limit):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure of a group of concurrent calls."""
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


async def _step(call: Callable[[], Awaitable[T]]) -> T:
    raise_if_cancelled()
    return await call()


async def _await(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


class SingleFlight:
    """Calls whose results several tasks of one event loop need at the same time; each call is made once.

    A call is cancelled when the last task that waits for it is cancelled.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, tuple[asyncio.Task[Any], list[None]]] = {}

    async def share(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the running call with this name, or of a new call."""
        loop = asyncio.get_running_loop()
        identity = (loop, name)
        if identity not in self._flights:
            self._flights[identity] = loop.create_task(make()), []
        task, waiters = flight = self._flights[identity]
        waiters.append(None)
        try:
            await asyncio.wait([task])
            result: T = task.result()
            return result
        finally:
            waiters.pop()
            if not waiters:
                task.cancel()
                if self._flights.get(identity) is flight:
                    del self._flights[identity]


@asynccontextmanager
async def in_background(call: Callable[[], Awaitable[T]]) -> AsyncIterator[Callable[[], Awaitable[T]]]:
    """Start a call, and yield a function that waits for its result or raises its error.

    At the end of the block the call is cancelled if it still runs, and its error is dropped if the block did not wait for
    it. Without an event loop, the call starts when the block waits for it.
    """
    if driven():
        yield call
        return

    async def run() -> T:
        return await call()

    task = asyncio.ensure_future(run())
    try:
        yield lambda: task
    finally:
        task.cancel()
        await asyncio.wait([task])
        retrieve(task)
