"""Coroutines of other packages, called by synchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from zarrasync._concurrency import clock

__all__ = ["run_to_end"]


def run_to_end(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on a new event loop: on this thread, or on another one if an event loop runs on this one."""

    async def run() -> Any:
        return await make()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    with clock.current().executor("zarrasync-foreign", 1) as pool:
        return pool.submit(asyncio.run, run()).result()
