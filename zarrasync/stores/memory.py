"""A store over a mapping in the memory of the process."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Hashable, MutableMapping, Sequence
from typing import Any, Self

from zarrasync._concurrency.fork import thread_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.model.paths import check_key, check_keys, check_prefix
from zarrasync.stores.base import Store
from zarrasync.stores.errors import store_error, store_errors
from zarrasync.stores.values import ABSENT, Request, Value, clip

COPY_OF_MEMORY = (
    "it is a copy of values in the memory of one process, which would not change; write to files or an object store, or "
    "compute with threads"
)
"""Why a pickled store of values in memory cannot be written."""


class MemoryStore(Store):
    """Values in a mapping. A pickled store is a copy that can only be read, because the mapping would not change with it.

    Args:
        values: The mapping; a new dict by default. It is used directly, so its owner sees changes, and several threads
            may access it. Values are copied when they are stored, and never modified in place.
    """

    blocking = True
    is_local = True
    parallel = False
    conditional = True
    exclusive_locks = True

    def __init__(self, values: MutableMapping[str, Any] | None = None) -> None:
        self.values: MutableMapping[str, Any] = {} if values is None else values
        self._lock = thread_lock()

    @property
    def identity(self) -> Hashable:
        return ("memory", id(self.values))

    @property
    def lasting_identity(self) -> bool:
        return False

    @property
    def shareable(self) -> bool:
        return False

    def __repr__(self) -> str:
        kind = type(self.values)  # other mappings may count slowly, or fail
        count = f"{len(self.values)} value{'s' * (len(self.values) != 1)}" if kind is dict else kind.__name__
        return f"MemoryStore({count})"

    def describe(self, path: str) -> str:
        return "check the path" if self.values else "the store is empty"

    def __getstate__(self) -> dict[str, Any]:
        return {"values": dict(self.values)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["values"])  # type: ignore[misc]  # the only way to set the fields
        self.writeable = self.conditional = self.exclusive_locks = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a store over a copy of the values, which stays in the process and can be written like this one."""
        result = object.__new__(type(self))
        memo[id(self)] = result
        state = {name: value for name, value in vars(self).items() if name != "_lock"}
        vars(result).update(copy.deepcopy(state, memo), _lock=thread_lock())
        return result

    def _check_writeable(self, verb: str) -> None:
        """Raise an error for a copy, because written values would be lost."""
        if not self.writeable:
            raise self._unsupported(verb, COPY_OF_MEMORY)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        values: list[Value | None] = []
        for request in requests:
            data = self._get(request.key)
            if data is None:
                values.append(None)
            else:
                values.append(Value(clip(data, request), _version(data) if versions else None, len(data)))
        return values

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        check_keys(keys)
        mapping, values = self.values, list[Buffer | None]()
        for key in keys:
            try:
                data = mapping[key]
            except KeyError:
                values.append(None)
            except Exception:
                values.append(self._get(key))  # raises it as a StoreError
            else:
                values.append(data if type(data) is bytes else self._get(key))
        return values

    def _get(self, key: str) -> memoryview | None:
        """Return the bytes of a value, or ``None``.

        Raises:
            StoreError: If the mapping fails, or the value is not a buffer.
        """
        try:
            data = _view(self.values[key])
            return data if data.format == "B" and data.ndim == 1 else data.cast("B")
        except KeyError:
            return None
        except Exception as error:  # mappings can raise anything
            raise store_error(error, key, "read", self) from error

    # -------------------------------------------------------------- writing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        self._check_writeable("write")
        value = bytes(data)
        with self._lock:
            if if_version is not None:
                self._check_version(key, if_version)
            try:
                self.values[key] = value
            except Exception as error:
                raise store_error(error, key, "write", self) from error
        return value

    def _check_version(self, key: str, expected: object) -> None:
        """Raise ``WriteConflictError`` if the current version is another one."""
        data = self._get(key)
        current = ABSENT if data is None else _version(data)
        # Mappings may make a new object for each access, so versions are also compared by value.
        if current is not expected and (expected is ABSENT or current != expected):
            raise self._conflict(key)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        check_key(key)
        self._check_writeable("erase")
        with self._lock:
            if if_version is not None:
                self._check_version(key, if_version)
            try:
                self.values.pop(key, None)
            except Exception as error:
                raise store_error(error, key, "erase", self) from error

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        with store_errors(prefix, "list", self):
            return [key for key in list(self.values) if isinstance(key, str) and key.startswith(prefix)]

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        return (await self.list_prefix(prefix))[:limit]

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        with store_errors(prefix, "list", self):
            return {
                key: _view(value).nbytes
                for key, value in list(self.values.items())
                if isinstance(key, str) and key.startswith(prefix)
            }


def _view(value: Any) -> memoryview:
    """Return the bytes of a value. Values that zarr-python wrote to a mapping are not buffers, but contain one."""
    return memoryview(value.to_bytes() if hasattr(value, "as_numpy_array") else value)


def _version(data: memoryview) -> object:
    """Return the version of a value: the bytes object itself, which is never modified, or else a copy."""
    value = data.obj
    return value if type(value) is bytes and len(value) == len(data) else bytes(data)
