"""A store in the process's memory."""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any

from zarrasync._concurrency.fork import thread_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import WriteConflictError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import ABSENT, Request, Store, Value, clip
from zarrasync.stores.errors import store_error

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """Values in a mapping.

    Args:
        values: The mapping to use; a new dict if none is given. It is used as it is, so its owner sees
            what is written, and by several threads. Values are copied on the way in and never changed in place.
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

    @property
    def lasting(self) -> bool:
        return False

    @property
    def portable(self) -> bool:
        return False

    def __repr__(self) -> str:
        kind = type(self.values)  # others may take their time to count, or fail
        return f"MemoryStore({len(self.values)} values)" if kind is dict else f"MemoryStore({kind.__name__})"

    def describe(self, path: str) -> str:
        return "" if self.values else "the store is empty"

    def __getstate__(self) -> Mapping[str, Any]:
        return {"values": dict(self.values)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["values"])  # type: ignore[misc]  # the one way to set the fields

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        found: list[Value | None] = []
        for request in requests:
            data = self._get(request.key)
            version = None if data is None or not versions else _version(data)
            found.append(None if data is None else Value(clip(data, request), version, len(data)))
        return found

    def _get(self, key: str) -> memoryview | None:
        """The bytes of a value.

        Raises:
            StoreError: If the mapping fails, or holds something else.
        """
        try:
            data = _view(self.values[key])
            return data if data.format == "B" and data.ndim == 1 else data.cast("B")
        except KeyError:
            return None
        except Exception as error:  # mappings are of all kinds
            raise store_error(error, key, "read", self) from error

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        values, found = self.values, list[Buffer | None]()
        for key in keys:
            try:
                data = values[key]
            except KeyError:
                found.append(None)
            except Exception:
                found.append(self._get(key))  # which says what is wrong
            else:
                found.append(data if type(data) is bytes else self._get(key))
        return found

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        value = bytes(data)
        with self._lock:
            self._check(key, if_version)
            try:
                self.values[key] = value
            except Exception as error:
                raise store_error(error, key, "write", self) from error
        return value

    def _check(self, key: str, version: object) -> None:
        """Complain if there is another value than the one that was seen; mappings may make objects anew for each look."""
        if version is None:
            return
        data = self._get(key)
        there = ABSENT if data is None else _version(data)
        if there is not version and (version is ABSENT or there != version):
            raise WriteConflictError(f"{key!r} was changed meanwhile", key=key)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        with self._lock:
            self._check(key, if_version)
            try:
                self.values.pop(key, None)
            except Exception as error:
                raise store_error(error, key, "erase", self) from error

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        try:
            return [key for key in list(self.values) if isinstance(key, str) and key.startswith(prefix)]
        except Exception as error:
            raise store_error(error, prefix, "list", self) from error

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        try:
            return {
                key: _view(value).nbytes
                for key, value in list(self.values.items())
                if isinstance(key, str) and key.startswith(prefix)
            }
        except Exception as error:
            raise store_error(error, prefix, "list", self) from error


def _view(value: Any) -> memoryview:
    """A value's bytes; those of mappings that zarr-python has written are no buffers, but hold one."""
    return memoryview(value.to_bytes() if hasattr(value, "as_numpy_array") else value)


def _version(data: memoryview) -> object:
    """What a value is told by: itself, as it is never changed in place; mappings may make it anew for each look."""
    whole = data.obj
    return whole if type(whole) is bytes and len(whole) == len(data) else bytes(data)
