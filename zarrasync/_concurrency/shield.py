"""Calls that cancellation must not interrupt: writes that have begun, and clean-up after failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from zarrasync._concurrency.cancel import ignore_cancellation
from zarrasync._concurrency.drive import driven

__all__ = ["run_cleanup", "shielded"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_GRACE_SECONDS = 5.0
"""Seconds for which a cancelled caller waits for a write that has begun."""


async def shielded(call: Callable[[], Awaitable[T]], on_success: Callable[[], None] | None = None) -> T:
    """Return the result of a call that cancellation does not interrupt, because the server may still carry it out.

    A cancelled caller waits for some seconds, or until it is cancelled again, so that the call ends before any later
    call begins.

    Args:
        call: The call.
        on_success: Called when it has succeeded, also for a caller that was cancelled.
    """
    if driven():
        return await _run(call, on_success)
    task = asyncio.ensure_future(_run(call, on_success))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.add_done_callback(_retrieve)
            try:
                await asyncio.wait([task], timeout=_GRACE_SECONDS)
            finally:
                task.cancel()
        raise


async def run_cleanup(repair: Callable[[], Awaitable[None]]) -> None:
    """Repair the state after a failed or cancelled call. Failures of the repair are logged, as the first error counts.

    A caller that is cancelled again still waits, because it holds locks on the repaired values.
    """

    async def attempt() -> None:
        try:
            await repair()
        except (Exception, asyncio.CancelledError) as error:
            _log.warning("clean-up after a failed call failed: %s: %s", type(error).__name__, error)

    if driven():
        with ignore_cancellation():
            await attempt()
        return
    task = asyncio.ensure_future(attempt())
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


async def _run(call: Callable[[], Awaitable[T]], on_success: Callable[[], None] | None) -> T:
    result = await call()
    if on_success is not None:
        on_success()
    return result


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Mark an error as retrieved, because its caller no longer waits."""
    if not task.cancelled():
        task.exception()
