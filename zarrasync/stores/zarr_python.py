"""A store over stores of zarr-python and others with its interface, such as icechunk's sessions and VirtualiZarr."""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import Any

from zarrasync import config, formats
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.semaphores import Held
from zarrasync._util.memory import BudgetExceeded
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, ZarrError
from zarrasync.model.paths import check_key, check_keys, check_prefix
from zarrasync.stores.base import Store
from zarrasync.stores.errors import store_error
from zarrasync.stores.fsspec.store import FsspecStore
from zarrasync.stores.local import LocalStore
from zarrasync.stores.memory import COPY_OF_MEMORY
from zarrasync.stores.remote import RemoteStore, run_request
from zarrasync.stores.values import Listing, Request, Value, clip

_INTERFACE = ("get_partial_values", "list_prefix", "list_dir", "supports_writes")


def is_zarr_store(value: object) -> bool:
    """Return whether an object has the interface of zarr-python's ``zarr.abc.store.Store``."""
    return all(hasattr(value, name) for name in _INTERFACE)


class ZarrPythonStore(RemoteStore):
    """A store with zarr-python's interface.

    Args:
        store: The store. It is opened on first use, and not closed here.
        concurrency: Maximum number of requests in flight; 0 for the configured one, or 64.
    """

    _how_to_write = "make the store of zarr-python with read_only=False"
    _unshared = ("_token", "_equivalent")

    def __init__(self, store: Any, *, concurrency: int = 0) -> None:
        self.settings = config.get()
        self.store = store
        self.writeable = bool(store.supports_writes) and not getattr(store, "read_only", False)
        self.listable = bool(store.supports_listing)
        self.supports_consolidated_metadata = getattr(store, "supports_consolidated_metadata", True)
        self.concurrency = concurrency or self.settings.concurrency or 64
        self._has_ranges = True
        inner = self._innermost = _innermost(store)
        self.checks_bounds = type(inner).__module__.partition(".")[0] == "icechunk"
        # Writes of an icechunk session are isolated until they are committed, which detects conflicts. Merging forks of
        # a session would lose one fork's changes of a chunk.
        self.exclusive_locks = not self.shareable or (self.checks_bounds and not _is_fork(inner))

    @cached_property
    def _token(self) -> object:
        """An object that all stores of an icechunk session, or of a dict, have in common; ``None`` for other stores."""
        if self.checks_bounds:
            return _session_of(self._innermost)
        data = getattr(self._innermost, "_store_dict", None)
        return None if data is None else id(data)

    @cached_property
    def _equivalent(self) -> Store | None:
        """A store of this library over the same values, for zarr-python's local and fsspec stores."""
        inner = self._innermost
        if not type(inner).__module__.startswith("zarr."):
            return None
        if (root := getattr(inner, "root", None)) is not None:
            return LocalStore(root)
        if (fs := getattr(inner, "fs", None)) is None:
            return None
        from fsspec.implementations.local import LocalFileSystem

        fs = getattr(fs, "sync_fs", fs)  # behind zarr-python's asynchronous wrapper
        return LocalStore(inner.path) if isinstance(fs, LocalFileSystem) else FsspecStore(fs, inner.path)

    @property
    def _version(self) -> object:
        """The version of all values, if none of them can change; ``None`` if they can."""
        return None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self.shareable:
            self.writeable = self.exclusive_locks = False

    def _check_change(self, verb: str, if_version: object) -> None:
        if if_version is not None:
            raise self._unsupported("compare versions")
        if not self.writeable and not self.shareable and not getattr(self.store, "read_only", False):
            raise self._unsupported(verb, COPY_OF_MEMORY)
        if not self.writeable:
            raise self._unsupported(verb, self._how_to_write)

    def location(self, key: str) -> Hashable:
        return super().location(key) if self._equivalent is None else self._equivalent.location(key)

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        return super().lineage(path) if self._equivalent is None else self._equivalent.lineage(path)

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Hashable]:
        return super().lock_identities(keys) if self._equivalent is None else self._equivalent.lock_identities(keys)

    @property
    def identity(self) -> Hashable:
        if self._token is not None:
            return ("zarr-python", self._token)
        try:
            return ("zarr-python", type(self.store).__name__, hash(self.store))
        except TypeError:
            return ("zarr-python", type(self.store).__name__, id(self.store))

    @property
    def lasting_identity(self) -> bool:
        return False  # hashes of strings differ between processes

    @property
    def shareable(self) -> bool:
        return "MemoryStore" not in type(self._innermost).__name__

    def __repr__(self) -> str:
        return f"ZarrPythonStore({redact(repr(self.store))})"

    async def _ensure_open(self) -> None:
        if getattr(self.store, "_is_open", True):
            return
        try:
            await self.store._open()  # noqa: SLF001  # as zarr-python does
        except ValueError:  # raised if another task has opened it meanwhile
            if not self.store._is_open:  # noqa: SLF001  # as zarr-python does
                raise

    async def _call(self, key: str, verb: str, method: str, *args: Any, **options: Any) -> Any:
        async def call() -> Any:
            await self._ensure_open()
            return await getattr(self.store, method)(*args, **options)

        async with Held(self.limiter()):
            try:
                return await run_request(call, verb, self.settings.total_timeout)
            except ZarrError:
                raise
            except Exception as error:
                raise store_error(error, key, verb, self) from error

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        return await gather([partial(self._fetch_one, request) for request in requests])

    async def _fetch_one(self, request: Request) -> Value | None:
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
        from zarr.core.buffer import default_buffer_prototype

        byte_range: Any = None
        if request.suffix:
            byte_range = SuffixByteRequest(request.length or 0)
        elif request.length is not None:
            byte_range = RangeByteRequest(request.start, request.start + request.length)
        elif request.start:
            byte_range = OffsetByteRequest(request.start)
        if byte_range is not None and not self._has_ranges:
            return await self._fetch_part(request)
        prototype = default_buffer_prototype()
        try:
            buffer = await self._call(request.key, "read", "get", request.key, prototype, byte_range=byte_range)
        except StoreError as error:
            if type(error.__cause__) is KeyError:  # of tifffile's stores; errors of icechunk are subclasses
                return None
            if byte_range is None or not isinstance(error.__cause__, NotImplementedError):
                raise
            self._has_ranges = False  # as in tifffile's stores
            return await self._fetch_part(request)
        if buffer is None:
            return None
        data = buffer.to_bytes()
        if request.length is not None and len(data) > request.length:
            raise StoreError(
                f"{self!r} returned {len(data)} bytes of {request.key!r} instead of {request.length}", key=request.key
            )
        try:
            request.check_size(len(data))  # such stores return whole values only
        except BudgetExceeded as error:
            raise store_error(error, request.key, "read", self) from error
        return Value(data, self._version)

    async def _fetch_part(self, request: Request) -> Value | None:
        """Return a byte range of a value that the store can only return whole."""
        value = await self._fetch_one(Request(request.key))
        return None if value is None else Value(bytes(clip(value.data, request)), value.version, len(value.data))

    async def stat(self, key: str) -> Value | None:
        check_key(key)
        try:
            return Value(b"", self._version, int(await self._call(key, "read", "getsize", key)))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | KeyError):
                return None
            raise

    # -------------------------------------------------------------- writing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        from zarr.core.buffer import default_buffer_prototype

        self._check_change("write", if_version)
        buffer = default_buffer_prototype().buffer.from_bytes(data if isinstance(data, bytes) else bytes(data))
        await self._call(key, "write", "set", key, buffer)
        return None

    async def erase(self, key: str, *, if_version: object = None) -> None:
        check_key(key)
        self._check_change("erase", if_version)
        try:
            await self._call(key, "erase", "delete", key)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError | KeyError):
                raise

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        if not self.listable:
            raise self._unsupported("list")
        await self._ensure_open()
        try:
            return [key async for key in self.store.list_prefix(prefix)]
        except OSError as error:
            raise store_error(error, prefix, "list", self) from error
        except Exception:  # icechunk lists nodes only, and VirtualiZarr directories only
            return sorted(await self._list_below(prefix))

    async def list_dir(self, prefix: str) -> Listing:
        check_prefix(prefix)
        if not self.listable:
            raise self._unsupported("list")
        await self._ensure_open()
        try:
            names = [name.rstrip("/") async for name in self.store.list_dir(prefix.rstrip("/"))]
        except NotImplementedError as error:
            raise self._unsupported(f"list {prefix!r}") from error
        except Exception as error:
            raise store_error(error, prefix, "list", self) from error
        are_keys = await gather([partial(self._is_key, prefix + name) for name in names])
        keys = [prefix + name for name, is_key in zip(names, are_keys, strict=True) if is_key]
        prefixes = [f"{prefix}{name}/" for name, is_key in zip(names, are_keys, strict=True) if not is_key]
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    async def _is_key(self, name: str) -> bool:
        """Return whether a name in a listing is a key. The listing does not distinguish keys from prefixes."""
        if formats.is_document(name):
            return True
        try:
            return bool(await self._call(name, "read", "exists", name))
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return False  # icechunk rejects names that are neither documents nor chunks


def _innermost(store: Any) -> Any:
    """Return the store inside zarr-python's wrappers, which are stores themselves."""
    while type(store).__module__.startswith("zarr.") and is_zarr_store(inner := getattr(store, "_store", None)):
        store = inner
    return store


_sessions: list[tuple[weakref.ref[Any], object]] = []
"""icechunk stores and the token of their session. A session makes a new store for each access to its property."""
_sessions_lock = thread_lock()


def _session_of(store: Any) -> object:
    """Return a token that all icechunk stores of a session have in common."""
    with _sessions_lock:
        _sessions[:] = [(reference, token) for reference, token in _sessions if reference() is not None]
        equal = [(reference() is store, token) for reference, token in _sessions if reference() == store]
        token = equal[0][1] if equal else object()
        if not any(is_same for is_same, _ in equal):
            _sessions.append((weakref.ref(store), token))
        return token


def _is_fork(store: Any) -> bool:
    """Return whether a store belongs to a fork of an icechunk session, in versions 1 or 2."""
    return getattr(store, "_for_fork", False) or type(store.session).__name__ == "ForkSession"
