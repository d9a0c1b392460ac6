"""Stores around stores: a prefix, aliases, write protection, a listing. They can be nested in any order."""

# Some overriding methods return the coroutine of another store, and a property overrides an attribute that can be set.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import builtins
import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from typing import Any, ClassVar, Self, TypeVar

from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import ReadOnlyError
from zarrasync.model.paths import check_prefix
from zarrasync.stores.base import DirectFiles, Directories, Forks, Store, Transaction, Transactions
from zarrasync.stores.values import KeyIndex, Listing, Request, Value

T = TypeVar("T")
_FORWARDED = (
    "writeable",
    "listable",
    "exclusive_locks",
    "supports_consolidated_metadata",
    "checks_bounds",
    "blocking",
    "parallel",
    "is_local",
    "quick_listing",
    "concurrency",
    "limits_requests",
    "zarr_format",
    "close_after_use",
)
"""Attributes that wrappers have from their stores."""


class WrapperStore(Store):
    """A store that forwards every operation to another one. Subclasses override some.

    Args:
        inner: The store to wrap.

    Raises:
        TypeError: If ``inner`` is not a ``Store``.
    """

    _is_shown: ClassVar[bool] = True
    """Whether messages name the wrapper. Otherwise they name the wrapped store, which the user passed."""
    _conditional: bool | None = None

    def __init__(self, inner: Store) -> None:
        if not isinstance(inner, Store):
            raise TypeError(
                f"{type(self).__name__} needs a Store, found {inner!r}; zarrasync.stores.resolve makes one from it"
            )
        self.inner = inner
        vars(self).update(_attributes_of(inner))

    def around(self, inner: Store) -> Self:
        """Return a wrapper like this one around another store: of a transaction, of a fork, or for notes.

        Attributes that this wrapper has not changed come from the other store.
        """
        other = object.__new__(type(self))
        vars(other).update(_attributes_of(inner) | self._own(vars(self)))
        return other

    def _own(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return those attributes of a state of this wrapper that do not depend on its store."""
        inner = self.inner
        return {
            name: value
            for name, value in state.items()
            if name != "inner" and (name not in _FORWARDED or value != getattr(inner, name))
        }

    def on_commit(self) -> None:
        """Take note of changes that a transaction or a fork of the store has made visible. Caches implement it."""

    @property
    def conditional(self) -> bool:
        """Whether ``put`` can compare versions, which the inner store may discover late; or the value that was set."""
        return self.inner.conditional if self._conditional is None else self._conditional

    @conditional.setter
    def conditional(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # as settable
        self._conditional = value

    @property
    def identity(self) -> Hashable:
        return self.inner.identity

    @property
    def viewer(self) -> Hashable:
        return self.inner.viewer

    def why_read_only(self) -> str:
        return self.inner.why_read_only()

    @property
    def lasting_identity(self) -> bool:
        return self.inner.lasting_identity

    @property
    def shareable(self) -> bool:
        return self.inner.shareable

    @property
    def flat_namespace(self) -> bool:
        return self.inner.flat_namespace

    @property
    def sizes_listings(self) -> bool:
        return self.inner.sizes_listings

    @property
    def notes(self) -> Store:
        return self if self.inner.notes is self.inner else self.around(self.inner.notes)

    @property
    def directories(self) -> Directories | None:
        return self.inner.directories

    @property
    def transactions(self) -> Transactions | None:
        inner = self.inner.transactions
        return None if inner is None else _WrappedTransactions(self, inner)

    @property
    def forks(self) -> Forks | None:
        inner = self.inner.forks
        return None if inner is None else _WrappedForks(self, inner)

    def inner_path(self, path: str) -> str:
        """Return the path in the inner store of a node at a path in this one."""
        return path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})" if self._is_shown else repr(self.inner)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return await self.inner.fetch(requests, versions=versions)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        return await self.inner.put(key, data, if_version=if_version)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self.inner.erase(key, if_version=if_version)

    async def erase_values(self, keys: Iterable[str]) -> None:
        await self.inner.erase_values(keys)

    async def erase_prefix(self, prefix: str) -> None:
        await self.inner.erase_prefix(prefix)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return await self.inner.list_prefix(prefix)

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        if type(self).list_prefix is not WrapperStore.list_prefix:
            return None  # the subclass may change keys
        return await self.inner.list_few(prefix, limit)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        return await self.inner.list_sizes(prefix)

    async def stat(self, key: str) -> Value | None:
        return await self.inner.stat(key)

    async def list_dir(self, prefix: str) -> Listing:
        return await self.inner.list_dir(prefix)

    def location(self, key: str) -> Hashable:
        return self.inner.location(key)

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        return self.inner.lineage(path)

    def lock(self, key: str) -> AbstractAsyncContextManager[object, None]:
        return self.inner.lock(key)

    def locks(self, keys: Sequence[str]) -> AbstractAsyncContextManager[object, None]:
        return self.inner.locks(keys)

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Hashable]:
        return self.inner.lock_identities(keys)

    def limiter(self) -> AdaptiveLimiter:
        return self.inner.limiter()

    def describe(self, path: str) -> str:
        return self.inner.describe(path)

    def enclosing(self) -> tuple[Store, str] | None:
        return self.inner.enclosing()

    async def close(self) -> None:
        await self.inner.close()


def _attributes_of(inner: Store) -> dict[str, Any]:
    """Return the attributes that a wrapper has from its store."""
    return {"inner": inner, **{name: getattr(inner, name) for name in _FORWARDED}}


def _open_fork(kind: type[WrapperStore], own: Mapping[str, Any], fork: Callable[[], Store]) -> Store:
    store = object.__new__(kind)
    store.__setstate__(_attributes_of(fork()) | dict(own))
    return store


class _WrappedTransactions:
    """Transactions whose store has a wrapper."""

    def __init__(self, wrapper: WrapperStore, inner: Transactions) -> None:
        self._wrapper, self._inner = wrapper, inner

    def begin(self) -> Transaction:
        return _WrappedTransaction(self._wrapper, self._inner.begin())

    def detach(self) -> Transaction:
        return _WrappedTransaction(self._wrapper, self._inner.detach())

    def attach(self, state: bytes) -> Transaction:
        return _WrappedTransaction(self._wrapper, self._inner.attach(state))


class _WrappedForks:
    """Forks with the wrapper of their store."""

    def __init__(self, wrapper: WrapperStore, inner: Forks) -> None:
        self._wrapper, self._inner = wrapper, inner

    def fork(self) -> Callable[[], Store]:
        wrapper = self._wrapper
        return partial(_open_fork, type(wrapper), wrapper._own(wrapper.__getstate__()), self._inner.fork())  # noqa: SLF001  # of the class that makes this object

    def changes(self) -> bytes:
        return self._inner.changes()

    def merge(self, changes: bytes) -> None:
        self._inner.merge(changes)
        self._wrapper.on_commit()


class _WrappedTransaction(Transaction):
    """A transaction of the store inside a wrapper, whose changes pass through a wrapper like it."""

    def __init__(self, wrapper: WrapperStore, inner: Transaction) -> None:
        self._wrapper, self._inner = wrapper, inner

    @cached_property
    def store(self) -> Store:  # type: ignore[override]  # set on first use
        return self._wrapper.around(self._inner.store)

    def commit(self, message: str, path: str = "") -> None:
        try:
            self._inner.commit(message, self._wrapper.inner_path(path))
        finally:
            self._wrapper.on_commit()

    def is_committed(self) -> bool:
        return self._inner.is_committed()

    def state(self) -> bytes:
        return self._inner.state()


class HookedStore(WrapperStore):
    """A wrapper whose operations on values and keys all go through one method."""

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        """Carry out an operation.

        Args:
            operation: ``"fetch"``, ``"put"``, ``"erase"`` or ``"list"``.
            keys: The keys or the prefix.
            call: Calls the inner store.
            nbytes: Size of the values to store, in bytes.
        """
        raise NotImplementedError

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        keys = [request.key for request in requests]
        return await self._operate("fetch", keys, partial(self.inner.fetch, requests, versions=versions))

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        call = partial(self.inner.put, key, data, if_version=if_version)
        return await self._operate("put", [key], call, memoryview(data).nbytes)

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        nbytes = sum(memoryview(value).nbytes for value in values)
        await self._operate("put", keys, partial(self.inner.put_values, keys, values), nbytes)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self._operate("erase", [key], partial(self.inner.erase, key, if_version=if_version))

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self._operate("erase", keys, partial(self.inner.erase_values, keys))

    async def erase_prefix(self, prefix: str) -> None:
        await self._operate("erase", [prefix], partial(self.inner.erase_prefix, prefix))

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return await self._operate("list", [prefix], partial(self.inner.list_prefix, prefix))

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        return await self._operate("list", [prefix], partial(self.inner.list_few, prefix, limit))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        return await self._operate("list", [prefix], partial(self.inner.list_sizes, prefix))

    async def list_dir(self, prefix: str) -> Listing:
        return await self._operate("list", [prefix], partial(self.inner.list_dir, prefix))

    async def stat(self, key: str) -> Value | None:
        return await self._operate("fetch", [key], partial(self.inner.stat, key))


class PrefixStore(WrapperStore):
    """The values of a store under a prefix, with relative keys.

    Args:
        inner: The store.
        prefix: Empty, or ending with ``/``.

    Raises:
        InvalidKeyError: If the prefix is invalid.
    """

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self.prefix = check_prefix(prefix)

    @property
    def identity(self) -> Hashable:
        return (self.inner.identity, self.prefix) if self.prefix else self.inner.identity

    @property
    def direct_files(self) -> DirectFiles | None:
        files = self.inner.direct_files
        return None if files is None else files._replace(directory=files.directory + os.fsencode(self.prefix))

    @property
    def directories(self) -> Directories | None:
        directories = self.inner.directories
        return None if directories is None else directories.below(self.prefix)

    def inner_path(self, path: str) -> str:
        return f"{self.prefix}{path}".rstrip("/")

    def __repr__(self) -> str:
        return f"PrefixStore({self.inner!r}, {self.prefix!r})"

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        prefix = self.prefix
        full = [Request(prefix + r.key, r.start, r.length, r.suffix, r.out, r.limit) for r in requests]
        return await self.inner.fetch(full, versions=versions)

    def fetch_values(  # pyright: ignore[reportIncompatibleMethodOverride]  # faster than awaiting the coroutine
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> Coroutine[Any, Any, builtins.list[Buffer | None]]:
        prefix = self.prefix
        source = self.inner.inner if type(self.inner) is ReadOnlyStore else self.inner
        return source.fetch_values([prefix + key for key in keys], spaces, limit)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        return await self.inner.put(self.prefix + key, data, if_version=if_version)

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        await self.inner.put_values([self.prefix + key for key in keys], values)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self.inner.erase(self.prefix + key, if_version=if_version)

    async def erase_values(self, keys: Iterable[str]) -> None:
        await self.inner.erase_values([self.prefix + key for key in keys])

    async def erase_prefix(self, prefix: str) -> None:
        await self.inner.erase_prefix(self.prefix + prefix)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        start = len(self.prefix)
        return [key[start:] for key in await self.inner.list_prefix(self.prefix + prefix)]

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        start, keys = len(self.prefix), await self.inner.list_few(self.prefix + prefix, limit)
        return None if keys is None else [key[start:] for key in keys]

    async def stat(self, key: str) -> Value | None:
        return await self.inner.stat(self.prefix + key)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        start = len(self.prefix)
        return {key[start:]: size for key, size in (await self.inner.list_sizes(self.prefix + prefix)).items()}

    async def list_dir(self, prefix: str) -> Listing:
        start = len(self.prefix)
        listing = await self.inner.list_dir(self.prefix + prefix)
        return Listing(tuple(k[start:] for k in listing.keys), tuple(p[start:] for p in listing.prefixes))

    def location(self, key: str) -> Hashable:
        return self.inner.location(self.prefix + key)

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        return self.inner.lineage(self.inner_path(path))

    def lock(self, key: str) -> AbstractAsyncContextManager[object, None]:
        return self.inner.lock(self.prefix + key)

    def locks(self, keys: Sequence[str]) -> AbstractAsyncContextManager[object, None]:
        return self.inner.locks([self.prefix + key for key in keys])

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Hashable]:
        return self.inner.lock_identities([self.prefix + key for key in keys])

    def describe(self, path: str) -> str:
        return self.inner.describe(self.prefix + path)

    def enclosing(self) -> tuple[Store, str] | None:
        return None


class AliasStore(WrapperStore):
    """A store some of whose values may have been stored under alternative keys.

    Args:
        inner: The store.
        aliases: Alternative keys to read if a key is absent. Values are always written under the key itself.
    """

    _is_shown = False

    def __init__(self, inner: Store, aliases: Mapping[str, Sequence[str]]) -> None:
        super().__init__(inner)
        self.aliases = dict(aliases)
        self.conditional = False  # a value may be read from another key than it is written to

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        values = await self.inner.fetch(requests, versions=versions)
        for number, request in enumerate(requests):
            alternatives = [request._replace(key=key) for key in self.aliases.get(request.key, ())]
            if values[number] is None and alternatives:
                candidates = await self.inner.fetch(alternatives, versions=versions)
                values[number] = next((value for value in candidates if value is not None), None)
        return values

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unsupported("compare versions")  # the version may belong to another key
        await self.erase_values([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        await self.inner.erase_values([name for key in keys for name in (key, *self.aliases.get(key, ()))])


class ReadOnlyStore(WrapperStore):
    """A store that rejects changes.

    Args:
        inner: The store.
        reason: Why it cannot be changed, and what to do; for messages.
    """

    _is_shown = False

    def __init__(self, inner: Store, reason: str = "") -> None:
        super().__init__(inner)
        self.writeable = False
        self._reason = reason

    def _refuse(self, key: str) -> ReadOnlyError:
        return ReadOnlyError(f"{key!r} cannot be changed: {self.why_read_only()}", key=key)

    def why_read_only(self) -> str:
        if self._reason or not self.inner.writeable:
            return self._reason or self.inner.why_read_only()
        return f"{self.inner!r} was opened for reading (mode='r'); open it with mode='r+'"

    def fetch_values(  # pyright: ignore[reportIncompatibleMethodOverride]  # faster than awaiting the coroutine
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> Coroutine[Any, Any, builtins.list[Buffer | None]]:
        return self.inner.fetch_values(keys, spaces, limit)

    @property
    def direct_files(self) -> DirectFiles | None:
        return self.inner.direct_files

    @property
    def directories(self) -> Directories | None:
        directories = self.inner.directories
        return None if directories is None else directories.read_only(self.why_read_only())

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        raise self._refuse(key)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        raise self._refuse(key)

    async def erase_values(self, keys: Iterable[str]) -> None:
        for key in keys:
            raise self._refuse(key)

    async def erase_prefix(self, prefix: str) -> None:
        raise self._refuse(prefix)


class ListedStore(WrapperStore):
    """A store whose keys were listed before. Listings return these keys without a request.

    Args:
        inner: The store.
        keys: The keys. Those below prefixes that are listed must be complete.
    """

    _is_shown = False

    def __init__(self, inner: Store, keys: KeyIndex) -> None:
        super().__init__(inner)
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the store to other processes without the keys, which can be millions."""
        return _same, (self.inner,)

    @property
    def flat_namespace(self) -> bool:
        return False

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return self.keys.list_prefix(check_prefix(prefix))

    async def list_dir(self, prefix: str) -> Listing:
        return self.keys.list_dir(check_prefix(prefix))


def _same(store: Store) -> Store:
    return store
