"""Stores of zarr-python, and whatever has its interface: icechunk's sessions, VirtualiZarr's manifests."""

from __future__ import annotations

import builtins
import threading
import weakref
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import Any

from zarrasync import config
from zarrasync._concurrency.gather import gather
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, ZarrError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import Listing, Request, Store, Value
from zarrasync.stores.errors import store_error, without_queries
from zarrasync.stores.fsspec.store import FsspecStore
from zarrasync.stores.local import LocalStore
from zarrasync.stores.remote import RemoteStore, asked

__all__ = ["ZarrPythonStore", "is_zarr_store"]


def is_zarr_store(value: object) -> bool:
    """Whether something has the interface of zarr-python's ``zarr.abc.store.Store``."""
    return all(hasattr(value, name) for name in ("get_partial_values", "list_prefix", "list_dir", "supports_writes"))


def _innermost(store: Any) -> Any:
    """The store itself: zarr-python's wrappers are stores, too."""
    while type(store).__module__.startswith("zarr.") and is_zarr_store(inner := getattr(store, "_store", None)):
        store = inner
    return store


_mutex = threading.Lock()
_sessions: list[tuple[weakref.ref[Any], object]] = []
"""Icechunk's stores, of which a session makes a new one whenever it is asked for one, and what stands for the session."""


def _session(store: Any) -> object:
    """What is the same for all of icechunk's stores of a session."""
    with _mutex:
        _sessions[:] = [(known, token) for known, token in _sessions if known() is not None]
        same = [(known() is store, token) for known, token in _sessions if known() == store]
        token = same[0][1] if same else object()
        if not any(itself for itself, _ in same):
            _sessions.append((weakref.ref(store), token))
        return token


def _is_fork(store: Any) -> bool:
    """Whether a store is of a fork of icechunk's session: its versions 1 and 2 say so in different ways."""
    return getattr(store, "_for_fork", False) or type(store.session).__name__ == "ForkSession"


class ZarrPythonStore(RemoteStore):
    """A store with zarr-python's interface.

    Args:
        store: The store. It is opened on first use, and not closed here.
        concurrency: Requests in flight at the most.
    """

    def __init__(self, store: Any, *, concurrency: int = 0) -> None:
        self.settings = config.get()
        self.store = store
        self.writeable = bool(store.supports_writes) and not getattr(store, "read_only", False)
        self.listable = bool(store.supports_listing)
        self.concurrency = concurrency or self.settings.concurrency or 64
        inner = self._inner = _innermost(store)
        self.bounded = type(inner).__module__.partition(".")[0] == "icechunk"
        # What a session of icechunk's writes is nobody else's until it is committed, which tells of conflicts; of forks that
        # are merged one would lose what it has of a chunk.
        self.exclusive = not self.portable or (self.bounded and not _is_fork(inner))

    @cached_property
    def _token(self) -> object:
        """What is the same for all stores of a session of icechunk's, or of a dict, in this process; None of others."""
        if self.bounded:
            return _session(self._inner)
        return id(self._inner._store_dict) if hasattr(self._inner, "_store_dict") else None

    @cached_property
    def _place(self) -> Store | None:
        """A store of ours whose values are the same, if it is made of something known."""
        inner = self._inner
        if not type(inner).__module__.startswith("zarr."):
            return None
        if (root := getattr(inner, "root", None)) is not None:
            return LocalStore(root)
        if (fs := getattr(inner, "fs", None)) is None:
            return None
        from fsspec.implementations.local import LocalFileSystem

        fs = getattr(fs, "sync_fs", fs)  # which zarr-python has made asynchronous
        return LocalStore(inner.path) if isinstance(fs, LocalFileSystem) else FsspecStore(fs, inner.path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_token", "_place")}

    def location(self, key: str) -> Hashable:
        return super().location(key) if self._place is None else self._place.location(key)

    @property
    def identity(self) -> Hashable:
        if self._token is not None:
            return ("zarr-python", self._token)
        try:
            return ("zarr-python", type(self.store).__name__, hash(self.store))
        except TypeError:
            return ("zarr-python", type(self.store).__name__, id(self.store))

    @property
    def lasting(self) -> bool:
        return False  # hashes of texts are others in each process

    @property
    def portable(self) -> bool:
        return "MemoryStore" not in type(self._inner).__name__

    def __repr__(self) -> str:
        return f"ZarrPythonStore({without_queries(repr(self.store))})"

    async def _ensure_open(self) -> None:
        if getattr(self.store, "_is_open", True):
            return
        try:
            await self.store._open()
        except ValueError:  # opening twice is an error there, and someone may have been faster
            if not self.store._is_open:
                raise

    async def _call(self, key: str, verb: str, name: str, *args: Any, **options: Any) -> Any:
        gate = self.limiter()
        await gate.acquire()

        async def call() -> Any:
            await self._ensure_open()
            return await getattr(self.store, name)(*args, **options)

        try:
            return await asked(call, verb, self.settings.total_timeout)
        except ZarrError:
            raise
        except Exception as error:
            raise store_error(error, key, verb, self) from error
        finally:
            gate.release()

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return await gather([partial(self._fetch_one, request) for request in requests])

    async def _fetch_one(self, request: Request) -> Value | None:
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
        from zarr.core.buffer import default_buffer_prototype

        wanted: Any = None
        if request.suffix:
            wanted = SuffixByteRequest(request.length or 0)
        elif request.length is not None:
            wanted = RangeByteRequest(request.start, request.start + request.length)
        elif request.start:
            wanted = OffsetByteRequest(request.start)
        found = await self._call(request.key, "read", "get", request.key, default_buffer_prototype(), byte_range=wanted)
        if found is None:
            return None
        data = found.to_bytes()
        if request.length is not None and len(data) > request.length:
            raise StoreError(
                f"{self!r} gave {len(data)} bytes of {request.key!r} instead of {request.length}", key=request.key
            )
        return Value(data)

    async def stat(self, key: str) -> Value | None:
        check_key(key)
        try:
            return Value(b"", None, int(await self._call(key, "read", "getsize", key)))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | KeyError):
                return None
            raise

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        from zarr.core.buffer import default_buffer_prototype

        if if_version is not None:
            raise self._unable("compare versions")
        if not self.writeable:
            raise self._unable("write")
        buffer = default_buffer_prototype().buffer.from_bytes(data if isinstance(data, bytes) else bytes(data))
        await self._call(key, "write", "set", key, buffer)
        return None

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unable("compare versions")
        if not self.writeable:
            raise self._unable("erase")
        try:
            await self._call(key, "erase", "delete", key)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError | KeyError):
                raise

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        if not self.listable:
            raise self._unable("list")
        try:
            return [key async for key in self.store.list_prefix(prefix)]
        except Exception as error:
            raise store_error(error, prefix, "list", self) from error

    async def list_dir(self, prefix: str) -> Listing:
        check_prefix(prefix)
        if not self.listable:
            raise self._unable("list")
        try:
            names = [name.rstrip("/") async for name in self.store.list_dir(prefix.rstrip("/"))]
        except Exception as error:
            raise store_error(error, prefix, "list", self) from error
        # Their listing does not tell keys from prefixes: a key has a value.
        found = await self.fetch([Request(prefix + name, 0, 1) for name in names])
        keys = [prefix + name for name, value in zip(names, found, strict=True) if value is not None]
        rest = [f"{prefix}{name}/" for name, value in zip(names, found, strict=True) if value is None]
        return Listing(tuple(sorted(keys)), tuple(sorted(rest)))
