"""Stores over the byte getters and setters of a batch of zarr-python."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from zarr.abc import store as interface
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import BufferPrototype
from zarr.core.config import config
from zarr.storage import LocalStore, MemoryStore, StorePath

from zarrasync import stores
from zarrasync._concurrency.gather import gather
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.integrations.zarr.store import ZarrStore
from zarrasync.stores import Request, Store, Value
from zarrasync.stores.remote import bounded

# Absent before zarr-python 3.2.
_SyncByteGetter: Any = getattr(interface, "SyncByteGetter", ())
_supports_sync_io: Callable[[Any], bool] = getattr(interface, "_store_supports_sync_io", lambda store: False)


def direct_store(store: Any) -> Store | None:
    """Return the store of this library over the same values as a store of zarr-python, if it works in the same way.

    Others are called as zarr-python's own pipelines call them.
    """
    if type(store) is ZarrStore:
        return store.inner
    if type(store) is LocalStore and store._is_open:  # noqa: SLF001  # zarr-python's stores open themselves when used
        return stores.LocalStore(store.root)
    return None


def getters_store(getters: Mapping[str, Any], prototype: BufferPrototype, values: Array | None = None) -> Store:
    """Return a store of the values behind byte getters or setters, all of one kind.

    Args:
        getters: The byte getters by key.
        prototype: The class of buffers.
        values: The values of a write.
    """
    some = next(iter(getters.values()))
    owner = some.store if isinstance(some, StorePath) else getters
    is_sync = _supports_sync_io(owner) if isinstance(some, StorePath) else isinstance(some, _SyncByteGetter)
    store = (SyncGetters if is_sync else AsyncGetters)(getters, prototype, owner, values)
    return bounded(store, 0)


class AsyncGetters(Store):
    """Values behind byte getters and setters.

    Args:
        getters: The byte getters, or setters, by key.
        prototype: The class of buffers.
        owner: The object that holds the values, by which locks on values find each other.
        values: Memory of the user, which may change after it was stored.
    """

    def __init__(
        self, getters: Mapping[str, Any], prototype: BufferPrototype, owner: Any, values: Array | None = None
    ) -> None:
        self._getters, self._prototype, self._owner, self._values = getters, prototype, owner, values
        self.concurrency = config.get("async.concurrency") or 64
        self.parallel = type(owner) is not MemoryStore

    @property
    def identity(self) -> Hashable:
        return ("zarr-python", id(self._owner))

    def __repr__(self) -> str:
        return repr(self._owner)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return await gather([partial(self._fetch, request) for request in requests])

    async def _fetch(self, request: Request) -> Value | None:
        buffer = await self._get(self._getters[request.key], _byte_range(request))
        return None if buffer is None else Value(buffer.as_numpy_array())

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        await self._set(self._getters[key], self._prototype.buffer.from_bytes(self._lasting(data)))  # type: ignore[arg-type]  # it accepts any buffer
        return None

    def _lasting(self, data: Buffer) -> Buffer:
        """Return bytes that may be kept: a raw chunk may still be the memory of the user's values."""
        if isinstance(data, bytes | bytearray):
            return data
        array = np.frombuffer(data, np.uint8)
        return bytes(data) if self._values is None or np.may_share_memory(array, self._values) else array

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self._delete(self._getters[key])

    # -------------------------------------------------------------- calls

    async def _get(self, getter: Any, byte_range: Any) -> Any:
        return await getter.get(self._prototype, byte_range)

    async def _set(self, setter: Any, buffer: Any) -> None:
        await setter.set(buffer)

    async def _delete(self, setter: Any) -> None:
        await setter.delete()


class SyncGetters(AsyncGetters):
    """Values behind byte getters and setters that can be called without an event loop."""

    blocking = True
    is_local = True

    async def _get(self, getter: Any, byte_range: Any) -> Any:
        return getter.get_sync(prototype=self._prototype, byte_range=byte_range)

    async def _set(self, setter: Any, buffer: Any) -> None:
        setter.set_sync(buffer)

    async def _delete(self, setter: Any) -> None:
        setter.delete_sync()


def _byte_range(request: Request) -> Any:
    if request.suffix:
        return SuffixByteRequest(request.length or 0)
    if request.length is not None:
        return RangeByteRequest(request.start, request.start + request.length)
    return OffsetByteRequest(request.start) if request.start else None
