"""What a store is: values under keys, in the words of the Zarr specification.

Underneath the specification's operations lie two that carry what an engine needs. ``fetch`` gets a
batch of values or parts of them, counted from the start or from the end, with their versions.
``put`` stores a value, if asked only when its version is still the expected one. A store implements
these, and what it can of erasing and listing; everything else has a fallback here.

Rules that hold for every store and are tested on each:

* An absent key is ``None``. Everything else that goes wrong is a ``StoreError``.
* A range is clipped to the value, as slicing does: past the end there are no bytes.
* A value is stored whole or not at all.
* Coroutines of a *blocking* store never suspend; the engine runs them on threads.
"""

from __future__ import annotations

import builtins
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync._concurrency.locks import KeyLock, KeyLocks
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import UnsupportedOperation
from zarrasync.model.paths import check_key, check_prefix

__all__ = ["ABSENT", "Listing", "Request", "Store", "Value"]


class Request(NamedTuple):
    """A value or a part of it to fetch.

    Attributes:
        key: The key.
        start: The first byte.
        length: The number of bytes; ``None`` for all that follow.
        suffix: Whether to get the last ``length`` bytes instead.
        into: Memory the store may put the bytes into, if they fit; it need not.
    """

    key: str
    start: int = 0
    length: int | None = None
    suffix: bool = False
    into: Buffer | None = None


class Value(NamedTuple):
    """What was fetched.

    Attributes:
        data: The bytes.
        version: What tells this value from later ones, where the store has such a thing and was asked.
        size: The size of the whole value, where known.
    """

    data: Buffer
    version: object = None
    size: int | None = None


class Listing(NamedTuple):
    """What lies directly under a prefix.

    Attributes:
        keys: Keys, in full.
        prefixes: Longer prefixes, in full, each ending with ``/``.
    """

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""The version of a value that does not exist: ``put(..., if_version=ABSENT)`` creates only."""


class Store(ABC):
    """A store. Subclasses are readable, writeable and listable as they say.

    Attributes:
        readable: Whether values can be fetched.
        writeable: Whether values can be stored and erased.
        listable: Whether keys can be listed.
        conditional: Whether ``put`` can compare versions.
        exclusive: Whether its locks hold among all who could write, so that nobody comes between who holds one.
        bounded: Whether it refuses chunks outside of the array that they belong to, as its document describes it.
        blocking: Whether coroutines never suspend and must not run on an event loop.
        parallel: Whether operations of a blocking store let other threads run beside them.
        near: Whether values come from this machine's memory or disk, so that nobody waits long for them.
        concurrency: Requests in flight at the most.
        missing: HTTP statuses that count as absence, beside those that every store of the kind takes for it.
    """

    readable: bool = True
    writeable: bool = True
    listable: bool = True
    conditional: bool = False
    exclusive: bool = False
    bounded: bool = False
    blocking: bool = False
    parallel: bool = True
    near: bool = False
    concurrency: int = 64
    missing: frozenset[int] = frozenset()

    # -------------------------------------------------------------- what a store implements

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """What is equal for two stores on the same data; used for locks and limits."""

    @property
    def lasting(self) -> bool:
        """Whether the identity means the same data in other processes, and later."""
        return True

    @property
    def guarded(self) -> bool:
        """Whether nobody comes unnoticed between a look at a value and its replacement."""
        return self.conditional or self.exclusive

    @property
    def portable(self) -> bool:
        """Whether copies of it in other processes read and write the same data."""
        return True

    @abstractmethod
    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        """Get values or parts of them, in the order asked; ``None`` for an absent key.

        Args:
            requests: What to get. Keys are valid; callers check those that users give.
            versions: Whether versions and sizes are wanted even where they cost something.

        Raises:
            StoreError: If a value could not be got for any reason but its absence.
        """

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        """Get many whole values: ``fetch`` for an engine that wants nothing but bytes.

        Args:
            keys: Valid keys.
            spaces: Per key memory that the store may put the bytes into, if they fit; it need not.

        Raises:
            StoreError: If a value could not be got for any reason but its absence.
        """
        wanted = [Request(k, 0, None, False, s) for k, s in zip(keys, spaces, strict=True)]
        return [None if value is None else value.data for value in await self.fetch(wanted)]

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        """Store many values, each whole or not at all.

        Raises:
            StoreError: If one failed; some of the others may be stored then.
        """
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        """Store a value, whole or not at all.

        Args:
            key: A valid key.
            data: The bytes; not kept after the call returns.
            if_version: Store only if the value's version is this one, or ``ABSENT``.

        Returns:
            The new version, where the store has such a thing.

        Raises:
            WriteConflictError: If the version is another one.
            UnsupportedOperation: If the store can not write, or not compare.
            StoreError: If it failed.
        """
        raise self._unable("write")

    async def erase(self, key: str, *, if_version: object = None) -> None:
        """Erase a value; an absent one is no error.

        Args:
            key: A valid key.
            if_version: Erase only if the value's version is this one.

        Raises:
            WriteConflictError: If the version is another one.
            UnsupportedOperation: If the store can not erase, or not compare.
            StoreError: If it failed.
        """
        raise self._unable("erase")

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        """All keys that begin with a prefix (which is empty or ends with ``/``), in no particular order.

        Raises:
            UnsupportedOperation: If the store can not list.
        """
        raise self._unable("list")

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        """All keys that begin with a prefix, with the bytes of their values.

        Without a capability of its own a store is asked about each.

        Raises:
            UnsupportedOperation: If the store can not list.
        """
        keys = await self.list_prefix(prefix)
        if self.blocking:
            found = [await self.stat(key) for key in keys]
        else:
            found = await gather([partial(self.stat, key) for key in keys]) if keys else []
        told = zip(keys, found, strict=True)
        return {key: value.size for key, value in told if value is not None and value.size is not None}

    async def stat(self, key: str) -> Value | None:
        """The size of a value, and its version where the store has such a thing; ``None`` for an absent key.

        Without a capability of its own a store is asked for a byte, and for all where that does not tell the size.
        """
        (value,) = await self.fetch([Request(check_key(key), 0, 1)], versions=True)
        if value is None or value.size is not None:
            return None if value is None else value._replace(data=b"")
        (value,) = await self.fetch([Request(key)], versions=True)
        return None if value is None else Value(b"", value.version, len(value.data))

    # -------------------------------------------------------------- the specification's words

    async def get(self, key: str) -> bytes | None:
        """The value of a key, or ``None``."""
        (value,) = await self.fetch([Request(check_key(key))])
        return None if value is None else bytes(value.data)

    async def get_partial_values(
        self, key_ranges: Iterable[tuple[str, tuple[int, int | None]]]
    ) -> builtins.list[bytes | None]:
        """Parts of values: ``(key, (start, length))`` pairs, a length of ``None`` meaning to the end.

        A negative start counts from the end and takes everything from there, as ``value[start:]`` does.
        """
        requests = []
        for key, (start, length) in key_ranges:
            check_key(key)
            if start < 0:
                if length is not None:
                    raise ValueError("a range from the end has no length: use (-n, None)")
                requests.append(Request(key, 0, -start, True))
            elif length is not None and length < 0:
                raise ValueError(f"a range has a length of at least 0, found {length}")
            else:
                requests.append(Request(key, start, length))
        return [None if value is None else bytes(value.data) for value in await self.fetch(requests)]

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        (value,) = await self.fetch([Request(check_key(key), 0, 1)])
        return value is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Store a value."""
        await self.put(check_key(key), value)

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        """Replace parts of values: ``(key, start, bytes)`` triples that do not overlap.

        A value grows as needed, zeros filling a gap. Without a capability of its own a store reads,
        changes and writes each value whole, under a lock that holds within the process.
        """
        changes: dict[str, builtins.list[tuple[int, Buffer]]] = {}
        for key, start, value in key_start_values:
            if start < 0:
                raise ValueError(f"a part starts at 0 or later, found {start}")
            changes.setdefault(check_key(key), []).append((start, value))
        for key, parts in changes.items():
            async with self.lock(key):
                (old,) = await self.fetch([Request(key)])
                data = bytearray() if old is None else bytearray(old.data)
                for start, value in parts:
                    data.extend(bytes(max(0, start + len(value) - len(data))))
                    data[start : start + len(value)] = bytes(value)
                await self.put(key, data)

    async def erase_values(self, keys: Iterable[str]) -> None:
        """Erase many values."""
        for key in keys:
            await self.erase(key)

    async def erase_prefix(self, prefix: str) -> None:
        """Erase all values whose keys begin with a prefix."""
        await self.erase_values(await self.list_prefix(check_prefix(prefix)))

    async def list(self) -> builtins.list[str]:
        """All keys."""
        return await self.list_prefix("")

    async def unfinished(self, prefix: str) -> builtins.list[str]:
        """Where writers that were killed left something below a prefix that is no value; nothing in most stores."""
        return []

    async def pending(self, key: str) -> bytes | None:
        """What was begun with a value, and not ended, as its writer was killed; where the store keeps such notes."""
        return None

    async def set_pending(self, key: str, note: bytes | None) -> None:  # noqa: B027  # optional
        """Note what is begun with a value, or that it has ended; for who holds its lock. Only stores of files keep it."""

    async def list_dir(self, prefix: str) -> Listing:
        """What lies directly under a prefix."""
        check_prefix(prefix)
        keys, prefixes = [], set()
        for key in await self.list_prefix(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                prefixes.add(f"{prefix}{name}/")
            else:
                keys.append(key)
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    # -------------------------------------------------------------- around it

    @property
    def viewer(self) -> Hashable:
        """As whom it asks: who may not see a value must not get it out of somebody else's cache."""
        return ""

    def location(self, key: str) -> Hashable:
        """What is equal for two keys of two stores that mean the same value."""
        return (self.identity, key)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        """The lock on a value: process-wide, and among the processes of a machine where the store can do that."""
        return KeyLock(self.location(key))

    def locks(self, keys: Iterable[str]) -> KeyLocks:
        """The process-wide locks on several values."""
        return KeyLocks([self.location(key) for key in sorted(keys)])

    def limiter(self) -> AdaptiveLimiter:
        """The gate of requests in flight, shared by all who opened the same data."""
        return request_limiter(self.identity, self.concurrency)

    def describe(self, path: str) -> str:
        """What stands at a path where no node was found, as far as can be said without a request; for messages."""
        return ""

    def _unable(self, verb: str) -> UnsupportedOperation:
        return UnsupportedOperation(f"{self!r} can not {verb}")

    async def close(self) -> None:  # noqa: B027  # optional
        """Let go of connections that this store made; a later call makes new ones."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        bridge.run(self.close(), blocking=self.blocking)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and type(other) is type(self) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def clip(data: Any, request: Request) -> Any:
    """The part of a whole value that a request asks for."""
    if request.suffix:
        assert request.length is not None
        return data[max(0, len(data) - request.length) :]
    if request.length is None:
        return data[request.start :] if request.start else data
    return data[request.start : request.start + request.length]


def statuses(given: Iterable[int]) -> frozenset[int]:
    """HTTP statuses, as users name them.

    Raises:
        ValueError: If there is something else among them.
    """
    try:
        found = frozenset(map(operator.index, given if isinstance(given, Iterable) else [given]))
    except TypeError:
        found = frozenset({0})
    if not all(400 <= status < 500 for status in found):
        raise ValueError(f"missing takes HTTP statuses from 400 to 499, such as [403], found {given!r}")
    return found


def from_environment(variables: Iterable[str]) -> str:
    """What the first of some variables says that says something."""
    return next((os.environ[name] for name in variables if os.environ.get(name)), "")
