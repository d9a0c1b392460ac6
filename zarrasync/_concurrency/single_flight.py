"""Single flight: one call serves all tasks that need its result at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

__all__ = ["SingleFlight"]

T = TypeVar("T")


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
