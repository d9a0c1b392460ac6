"""Single flight: one call serves every task that wants its result at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

__all__ = ["SingleFlight"]

T = TypeVar("T")


class SingleFlight:
    """Calls that several tasks of one event loop want at the same time; each is made once.

    A call is cancelled when the last task that waits for it is.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, tuple[asyncio.Task[Any], list[None]]] = {}

    async def share(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the call of this name that is under way, or of a new one."""
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
