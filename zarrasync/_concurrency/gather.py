"""Running calls concurrently. The first failure cancels the other calls and is raised without an exception group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import length_hint
from typing import TypeVar

from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync._concurrency.drive import driven

__all__ = ["first_error", "for_each", "gather", "gather_all"]

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
