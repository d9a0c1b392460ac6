"""Stores around stores: a prefix, a write protection, a counter. They stack in any order."""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.locks import holds_key_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import ReadOnlyError
from zarrasync.model.paths import check_prefix
from zarrasync.stores.base import Listing, Request, Store, Value

__all__ = ["AliasStore", "CountingStore", "Counts", "PrefixStore", "ReadOnlyStore", "WrapperStore", "distrusted"]


class WrapperStore(Store):
    """A store that passes everything on; subclasses change what they are about.

    Args:
        inner: The store to wrap.
    """

    _conditional: bool | None = None

    def __init__(self, inner: Store) -> None:
        if not isinstance(inner, Store):
            raise TypeError(
                f"{type(self).__name__} wraps a Store, found {inner!r}; zarrasync.stores.resolve.resolve makes one"
            )
        self.inner = inner
        self.readable, self.writeable, self.listable = inner.readable, inner.writeable, inner.listable
        self.blocking, self.concurrency = inner.blocking, inner.concurrency
        self.parallel, self.near, self.exclusive = inner.parallel, inner.near, inner.exclusive
        self.bounded = inner.bounded
        self.missing = inner.missing

    @property
    def conditional(self) -> bool:
        """What the inner store says now, as it may find out that it can not compare; or what a subclass has set."""
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

    @property
    def lasting(self) -> bool:
        return self.inner.lasting

    @property
    def portable(self) -> bool:
        return self.inner.portable

    async def unfinished(self, prefix: str) -> builtins.list[str]:
        return await self.inner.unfinished(prefix)

    async def pending(self, key: str) -> bytes | None:
        return await self.inner.pending(key)

    async def set_pending(self, key: str, note: bytes | None) -> None:
        await self.inner.set_pending(key, note)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

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

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        return await self.inner.list_sizes(prefix)

    async def stat(self, key: str) -> Value | None:
        return await self.inner.stat(key)

    async def list_dir(self, prefix: str) -> Listing:
        return await self.inner.list_dir(prefix)

    def location(self, key: str) -> Hashable:
        return self.inner.location(key)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        return self.inner.lock(key)

    def limiter(self) -> Any:
        return self.inner.limiter()

    def describe(self, path: str) -> str:
        return self.inner.describe(path)

    async def close(self) -> None:
        await self.inner.close()


def distrusted(store: Store) -> bool:
    """Whether what a cache knows must not be used: for a change of what is there that nothing compares afterwards."""
    return holds_key_lock() and (store.exclusive or not store.conditional)


class PrefixStore(WrapperStore):
    """The part of a store that lies under a prefix, with keys relative to it.

    Args:
        inner: The store.
        prefix: Empty, or a prefix ending with ``/``.
    """

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self.prefix = check_prefix(prefix)

    @property
    def identity(self) -> Hashable:
        return (self.inner.identity, self.prefix) if self.prefix else self.inner.identity

    async def unfinished(self, prefix: str) -> builtins.list[str]:
        return [name[len(self.prefix) :] for name in await self.inner.unfinished(self.prefix + prefix)]

    async def pending(self, key: str) -> bytes | None:
        return await self.inner.pending(self.prefix + key)

    async def set_pending(self, key: str, note: bytes | None) -> None:
        await self.inner.set_pending(self.prefix + key, note)

    def __repr__(self) -> str:
        return f"PrefixStore({self.inner!r}, {self.prefix!r})"

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        prefix = self.prefix
        moved = [Request(prefix + r.key, r.start, r.length, r.suffix, r.into) for r in requests]
        return await self.inner.fetch(moved, versions=versions)

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        prefix = self.prefix
        return await self.inner.fetch_values([prefix + key for key in keys], spaces)

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

    async def stat(self, key: str) -> Value | None:
        return await self.inner.stat(self.prefix + key)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        start = len(self.prefix)
        return {key[start:]: size for key, size in (await self.inner.list_sizes(self.prefix + prefix)).items()}

    async def list_dir(self, prefix: str) -> Listing:
        start = len(self.prefix)
        found = await self.inner.list_dir(self.prefix + prefix)
        return Listing(tuple(k[start:] for k in found.keys), tuple(p[start:] for p in found.prefixes))

    def location(self, key: str) -> Hashable:
        return self.inner.location(self.prefix + key)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        return self.inner.lock(self.prefix + key)

    def describe(self, path: str) -> str:
        return self.inner.describe(self.prefix + path)


class AliasStore(WrapperStore):
    """A store some of whose values may have been stored under other keys.

    Args:
        inner: The store.
        aliases: Per key the other keys to look under when it is absent. A write goes to the key itself.
    """

    def __init__(self, inner: Store, aliases: Mapping[str, Sequence[str]]) -> None:
        super().__init__(inner)
        self.aliases = dict(aliases)
        self.conditional = False  # what a value is found under need not be what it is written to

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        values = await self.inner.fetch(requests, versions=versions)
        for number, request in enumerate(requests):
            others = [request._replace(key=key) for key in self.aliases.get(request.key, ())]
            if values[number] is None and others:
                found = await self.inner.fetch(others, versions=versions)
                values[number] = next((value for value in found if value is not None), None)
        return values

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unable("compare versions")  # the value's may be another key's
        await self.erase_values([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        await self.inner.erase_values([name for key in keys for name in (key, *self.aliases.get(key, ()))])


class ReadOnlyStore(WrapperStore):
    """A store that refuses to be changed."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.writeable = False

    def __repr__(self) -> str:
        return repr(self.inner)

    def _refuse(self, key: str) -> ReadOnlyError:
        return ReadOnlyError(
            f"{key!r} can not be changed: {self.inner!r} was opened for reading (mode='r'); open it with mode='r+'",
            key=key,
        )

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        return await self.inner.fetch_values(keys, spaces)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        raise self._refuse(key)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        raise self._refuse(key)

    async def erase_values(self, keys: Iterable[str]) -> None:
        for key in keys:
            raise self._refuse(key)

    async def erase_prefix(self, prefix: str) -> None:
        raise self._refuse(prefix)


@dataclass
class Counts:
    """What went through a ``CountingStore``.

    Attributes:
        fetches: Values or parts asked for.
        absent: Of these, absent ones.
        puts: Values stored.
        erases: Values erased.
        lists: Listings.
        bytes_read: Bytes received.
        bytes_written: Bytes stored.
    """

    fetches: int = 0
    absent: int = 0
    puts: int = 0
    erases: int = 0
    lists: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def requests(self) -> int:
        """Operations of all kinds."""
        return self.fetches + self.puts + self.erases + self.lists


class CountingStore(WrapperStore):
    """A store that counts what passes through it.

    Attributes:
        counts: What has passed since the last ``reset``.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counts = Counts()
        self._mutex = thread_lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mutex"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _mutex=thread_lock())

    def reset(self) -> Counts:
        """Start again from zero; returns what was counted so far."""
        with self._mutex:
            counts, self.counts = self.counts, Counts()
        return counts

    def _count(self, **amounts: int) -> None:
        with self._mutex:
            for name, amount in amounts.items():
                setattr(self.counts, name, getattr(self.counts, name) + amount)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        values = await self.inner.fetch(requests, versions=versions)
        self._count(
            fetches=len(values),
            absent=sum(value is None for value in values),
            bytes_read=sum(len(value.data) for value in values if value is not None),
        )
        return values

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        values = await self.inner.fetch_values(keys, spaces)
        absent = sum(value is None for value in values)
        self._count(fetches=len(values), absent=absent, bytes_read=sum(len(v) for v in values if v is not None))
        return values

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        version = await self.inner.put(key, data, if_version=if_version)
        self._count(puts=1, bytes_written=memoryview(data).nbytes)
        return version

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        await self.inner.put_values(keys, values)
        self._count(puts=len(keys), bytes_written=sum(memoryview(value).nbytes for value in values))

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self.inner.erase(key, if_version=if_version)
        self._count(erases=1)

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self.inner.erase_values(keys)
        self._count(erases=len(keys))

    async def erase_prefix(self, prefix: str) -> None:
        await self.inner.erase_prefix(prefix)
        self._count(erases=1)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        keys = await self.inner.list_prefix(prefix)
        self._count(lists=1)
        return keys

    async def stat(self, key: str) -> Value | None:
        value = await self.inner.stat(key)
        self._count(fetches=1, absent=int(value is None))
        return value

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        sizes = await self.inner.list_sizes(prefix)
        self._count(lists=1)
        return sizes

    async def list_dir(self, prefix: str) -> Listing:
        listing = await self.inner.list_dir(prefix)
        self._count(lists=1)
        return listing
