"""Both APIs behind one way of calling them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

import zarrasync as za
from zarrasync import sync
from zarrasync._concurrency import bridge
from zarrasync.stores import Store


class Api:
    """One of the two APIs. Its results are awaited as ``await api(result)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.za: Any = za if name == "async" else sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self.za, name)

    async def __call__(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def write(self, target: Any, key: Any, value: Any) -> None:
        if self.name == "async":
            await target[key].write(value)
        else:
            target[key] = value


class Driver:
    """One of the two APIs, called from synchronous code such as the rules of a state machine.

    Results are awaited as ``driver(result)``. Coroutines of the asynchronous API run on one event loop.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.za: Any = za if name == "async" else sync
        self._runner = asyncio.Runner() if name == "async" else None

    def __call__(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        assert self._runner is not None, "the synchronous API returned an awaitable"
        return self._runner.run(_wait(result))

    def store(self, store: Store, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call an operation of a store, which exists as a coroutine only."""
        coroutine = getattr(store, operation)(*arguments, **options)
        return bridge.run(coroutine, blocking=store.blocking) if self._runner is None else self(coroutine)

    def read(self, target: Any, key: Any) -> Any:
        """Read ``target[key]``, which the asynchronous API does when it is awaited."""
        return self(target[key])

    def write(self, target: Any, key: Any, value: Any) -> None:
        """Write ``target[key] = value``."""
        if self._runner is None:
            target[key] = value
        else:
            self(target[key].write(value))

    def collect(self, items: Any) -> list[Any]:
        """Return the items of an iterator of either API."""
        return list(items) if self._runner is None else self(_collect(items))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


async def _collect(items: Any) -> list[Any]:
    return [item async for item in items]
