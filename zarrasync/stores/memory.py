"""A store in the process's memory."""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any

from zarrasync._runtime import thread_lock
from zarrasync.codecs.base import Buffer
from zarrasync.errors import WriteConflictError
from zarrasync.keys import check_prefix
from zarrasync.stores.base import ABSENT, Request, Store, Value, clip

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """Values in a mapping.

    Args:
        values: The mapping to use; a new dict if none is given. It is used as it is, so its owner sees
            what is written. Values are copied on the way in and never changed in place.
    """

    blocking = True
    near = True
    parallel = False
    conditional = True
    exclusive = True

    def __init__(self, values: MutableMapping[str, Any] | None = None) -> None:
        self.values: MutableMapping[str, Any] = {} if values is None else values
        self._lock = thread_lock()

    @property
    def identity(self) -> Hashable:
        return ("memory", id(self.values))

    def __repr__(self) -> str:
        return f"MemoryStore({len(self.values)} values)"

    def describe(self, path: str) -> str:
        return "" if self.values else "the store is empty"

    def __getstate__(self) -> Mapping[str, Any]:
        return {"values": dict(self.values)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["values"])  # type: ignore[misc]  # the one way to set the fields

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        values = self.values
        found: list[Value | None] = []
        for request in requests:
            try:
                data = values[request.key]
            except KeyError:
                found.append(None)
                continue
            # The stored object is its own version: a new value is a new object.
            found.append(Value(clip(memoryview(data), request), data, len(data)))
        return found

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        found: list[Buffer | None] = []
        for key in keys:
            try:
                data = self.values[key]
            except KeyError:
                found.append(None)
                continue
            found.append(data if type(data) is bytes else memoryview(data))
        return found

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        value = bytes(data)
        with self._lock:
            if if_version is not None and self.values.get(key, ABSENT) is not if_version:
                raise WriteConflictError(f"{key!r} was changed meanwhile", key=key)
            self.values[key] = value
        return value

    async def erase(self, key: str, *, if_version: object = None) -> None:
        with self._lock:
            if if_version is not None and self.values.get(key, ABSENT) is not if_version:
                raise WriteConflictError(f"{key!r} was changed meanwhile", key=key)
            self.values.pop(key, None)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        return [key for key in list(self.values) if key.startswith(prefix)]

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        return {key: memoryview(value).nbytes for key, value in list(self.values.items()) if key.startswith(prefix)}
