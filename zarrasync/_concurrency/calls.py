"""Calls side by side, calls that many share, calls that are made again or left alone, and what is done in any case."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextvars import copy_context
from typing import Any, Self, TypeVar, cast

from zarrasync._concurrency.runtime import SLICE, cancel_flag, driven, regardless
from zarrasync.errors import WriteConflictError

__all__ = [
    "Flights",
    "Patience",
    "Tally",
    "apart",
    "first_error",
    "in_any_case",
    "pause",
    "to_their_end",
    "together",
    "unbroken",
]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_GRACE = 5.0
"""Seconds for which a write that has begun is waited for when who wanted it is cancelled."""


class Flights:
    """Calls that several tasks of one event loop want the answer of at the same time: each is made once.

    A call belongs to all who wait for it: it is cancelled when the last of them is.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[asyncio.Task[Any], list[None]]] = {}

    async def share(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer of the call of this name that is under way, or of a new one."""
        loop = asyncio.get_running_loop()
        where = (loop, name)
        if where not in self._known:
            self._known[where] = loop.create_task(make()), []
        task, waiting = flight = self._known[where]
        waiting.append(None)
        try:
            await asyncio.wait([task])
            answer: T = task.result()
            return answer
        finally:
            waiting.pop()
            if not waiting:
                task.cancel()
                if self._known.get(where) is flight:
                    del self._known[where]


class Tally:
    """Counts what happens in the process inside a ``with`` block.

    Attributes:
        conflicts: Writes that others were faster at.
        retries: Requests that were made again after a failure.
    """

    def __init__(self) -> None:
        self.conflicts = self.retries = 0

    def __enter__(self) -> Self:
        _tallies.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _tallies.remove(self)

    @staticmethod
    def count(what: str) -> None:
        """Count one in all blocks that are open."""
        for tally in tuple(_tallies):
            setattr(tally, what, getattr(tally, what) + 1)


_tallies: list[Tally] = []


class Patience:
    """Attempts at a write that others may be faster at: a little later each time, and not for ever.

    Args:
        seconds: How long to go on; 0 for ever.
        place: What is written, as messages call it.
    """

    def __init__(self, seconds: float, place: str) -> None:
        self._seconds, self._place = seconds, place
        self._end = time.monotonic() + (seconds or float("inf"))
        self._wait, self._attempts = 0.001, 0

    async def after(self, conflict: WriteConflictError) -> None:
        """Wait until the next attempt.

        Raises:
            WriteConflictError: If it has been long enough.
        """
        Tally.count("conflicts")
        self._attempts += 1
        if time.monotonic() > self._end:
            raise WriteConflictError(
                f"{self._place}: {conflict}, at each of {self._attempts} attempts within {self._seconds:g} s "
                "(config.total_timeout): others keep writing there",
                key=conflict.key,
                attempts=self._attempts,
            ) from conflict
        # By chance, so that those who were in each other's way are so no more.
        await pause(random.uniform(0.0, self._wait))  # noqa: S311  # pauses keep no secret
        self._wait = min(2 * self._wait, 0.5)


async def pause(seconds: float) -> None:
    """Let time pass, on a loop or on a thread of its own."""
    if not driven():
        await asyncio.sleep(seconds)
        return
    flag, end = cancel_flag(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if flag.set:
            raise asyncio.CancelledError
        time.sleep(min(left, SLICE))  # noqa: ASYNC251  # a driven coroutine has its thread for itself


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The answers of calls that are made side by side; the first failure cancels the others."""
    if len(calls) == 1:
        return [await calls[0]()]

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_answer(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in tasks]


async def to_their_end(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The answers of calls that are made side by side and all come to their end, whatever happens to one of them.

    Who is cancelled meanwhile is cancelled then, so that it is known what was done.
    """
    tasks = [asyncio.ensure_future(_answer(call)) for call in calls]
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    errors = [found for task in tasks if (found := task.exception()) is not None]
    if cancelled is not None or errors:
        raise cancelled or errors[0]
    return [task.result() for task in tasks]


async def unbroken(call: Callable[[], Awaitable[T]], done: Callable[[], None] | None = None) -> T:
    """The answer of a call that is not broken off: what the other side has been told it may do all the same, and later.

    Who is cancelled waits for it a little, or until cancelled again, so that it is done before anything that comes after
    it, and only then is cancelled.

    Args:
        call: The call.
        done: Called when it is done, which who is cancelled would not hear of.
    """
    if driven():
        return await _answer(call, done)
    task = asyncio.ensure_future(_answer(call, done))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.add_done_callback(_heard)
            try:
                await asyncio.wait([task], timeout=_GRACE)
            finally:
                task.cancel()
        raise


async def _answer(call: Callable[[], Awaitable[T]], done: Callable[[], None] | None = None) -> T:
    found = await call()
    if done is not None:
        done()
    return found


def _heard(task: asyncio.Future[Any]) -> None:
    """Nobody is left to hear of an error."""
    if not task.cancelled():
        task.exception()


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure of side-by-side calls, as if it had been the only call."""
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


async def in_any_case(repair: Callable[[], Awaitable[None]]) -> None:
    """Repair what a call leaves that failed or was cancelled. What made it fail may stand in the way of this, too.

    Whoever is cancelled again waits for it all the same: locks that are held keep others from what is repaired.
    """

    async def attempt() -> None:
        try:
            await repair()
        except (Exception, asyncio.CancelledError) as error:  # the first error is the one that is raised
            _log.warning("what a failed call has left could not be repaired: %s: %s", type(error).__name__, error)

    if driven():
        with regardless():
            await attempt()
        return
    task = asyncio.ensure_future(attempt())
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


def apart(call: Callable[[], T], limit: float) -> T:
    """What a call comes to that may never return: who is cancelled, or has waited too long, goes on without it.

    Args:
        call: What to do, on a thread of its own.
        limit: Seconds to wait at the most; 0 for ever.

    Raises:
        TimeoutError: If it takes longer.
    """
    ended, flag, end = threading.Event(), cancel_flag(), time.monotonic() + (limit or math.inf)
    held, outcome = [call], list[tuple[T | None, BaseException | None]]()

    def work() -> None:
        try:
            outcome.append((held.pop()(), None))
        except BaseException as error:
            outcome.append((None, error))
        ended.set()

    threading.Thread(target=copy_context().run, args=(work,), name="zarrasync-apart", daemon=True).start()
    while not ended.wait(SLICE):
        if flag.set:
            raise asyncio.CancelledError
        if time.monotonic() > end:
            raise TimeoutError(f"no answer within {limit:.3g} s")
    result, error = outcome.pop()
    try:
        if error is not None:
            raise error
        return cast(T, result)
    finally:
        del error  # it holds this frame
