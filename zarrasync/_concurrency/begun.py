"""Calls that begin before it is known whether their results are needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from zarrasync._concurrency.drive import driven

__all__ = ["begun"]

T = TypeVar("T")


@asynccontextmanager
async def begun(call: Callable[[], Awaitable[T]]) -> AsyncIterator[Callable[[], Awaitable[T]]]:
    """Start a call, and yield a function that waits for its result or raises its error.

    At the end of the block the call is cancelled if it still runs, and its error is dropped if the block did not ask for
    the result. Where this is driven, the call starts when the result is asked for.
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
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs it
