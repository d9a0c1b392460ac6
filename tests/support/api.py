"""Both APIs behind one way of calling them."""

from __future__ import annotations

import inspect
from typing import Any

import zarrasync as za
from zarrasync import sync


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
