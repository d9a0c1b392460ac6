"""A store that counts operations and bytes."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zarrasync._concurrency.fork import thread_lock
from zarrasync._kernel.structs import Traffic
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import Store
from zarrasync.stores.values import Listing, Request, Value
from zarrasync.stores.wrappers import WrapperStore

__all__ = ["CountingStore", "Counts"]


@dataclass
class Counts:
    """Operations of a ``CountingStore``.

    Attributes:
        fetches: Number of values or byte ranges that were requested.
        absent: Number of these whose key was absent.
        puts: Number of stored values.
        erases: Number of erased values.
        lists: Number of listings.
        bytes_read: Number of bytes that were fetched.
        bytes_written: Number of bytes that were stored.
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
        """Number of operations of all kinds."""
        return self.fetches + self.puts + self.erases + self.lists


class CountingStore(WrapperStore):
    """A store that counts operations and bytes.

    The compiled kernel reads long raw chunks of local files in several ranges, and each is a fetch.

    Args:
        inner: The store.
    """

    _is_shown = False

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._start()

    def _start(self) -> None:
        self._lock = thread_lock()
        self._since_reset = [Counts()]  # shared by the stores of transactions

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_since_reset")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    @property
    def counts(self) -> Counts:
        """Operations since the last ``reset``, in this process, with the operations of transactions."""
        return self._since_reset[0]

    def reset(self) -> Counts:
        """Set the counts to zero, and return the previous ones."""
        with self._lock:
            counts, self._since_reset[0] = self.counts, Counts()
        return counts

    def _count(self, **amounts: int) -> None:
        with self._lock:
            counts = self.counts
            for name, amount in amounts.items():
                setattr(counts, name, getattr(counts, name) + amount)

    @property
    def local_directory(self) -> bytes | None:
        return None if self.extends(CountingStore) else self.inner.local_directory

    @property
    def file_counter(self) -> Callable[[Traffic], None]:
        return self._count_files

    def _count_files(self, traffic: Traffic) -> None:
        self._count(**traffic._asdict())
        if (inner := self.inner.file_counter) is not None:
            inner(traffic)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        values = await self.inner.fetch(requests, versions=versions)
        self._count(
            fetches=len(values),
            absent=sum(value is None for value in values),
            bytes_read=sum(len(value.data) for value in values if value is not None),
        )
        return values

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        values = await self.inner.fetch_values(keys, spaces, limit)
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

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        keys = await self.inner.list_few(prefix, limit)
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
