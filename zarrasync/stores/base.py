"""The interface of stores: values under keys, as in the abstract store interface of the Zarr specification.

Every operation of the specification has an implementation here that builds on two primitives. ``fetch`` gets a batch
of values or byte ranges with their versions. ``put`` stores a value, optionally on condition that its version has not
changed. A subclass implements these, and erasing and listing if it can.

Rules for every store, tested on each:

* The value of an absent key is ``None``. Any other failure is a ``StoreError``.
* A byte range is clipped to the value, like a slice.
* A value is stored completely or not at all.
* Coroutines of a *blocking* store never suspend; the engine runs them on threads.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

from zarrasync._concurrency import bridge
from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync._concurrency.locks import KeyLock, KeyLocks
from zarrasync._kernel.structs import Traffic
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import UnsupportedOperation, WriteConflictError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.values import Listing, Request, Value


class Store(ABC):
    """A key-value store.

    Specification: abstract store interface of Zarr version 3, section "Stores".

    Attributes:
        writeable: Whether values can be stored and erased.
        listable: Whether keys can be listed.
        conditional: Whether ``put`` can compare versions.
        exclusive_locks: Whether ``lock`` excludes all other writers, so that only the holder changes a locked value.
        supports_consolidated_metadata: Whether groups may have consolidated metadata. Stores with fast
            listings ignore it.
        checks_bounds: Whether the store rejects chunks outside the array that its metadata document describes.
        blocking: Whether coroutines never suspend and must not run on an event loop.
        parallel: Whether operations of a blocking store let other threads run meanwhile.
        is_local: Whether values come from this machine's memory or disk, with little latency.
        quick_listing: Whether one request lists a directory or hundreds of keys, as in object stores. Groups of such a
            store are listed while they are opened.
        concurrency: Maximum number of requests in flight.
        limits_requests: Whether each request takes a permit of ``limiter``. Operations of other stores are limited by
            the ``BoundedStore`` that ``resolve`` puts around them.
        zarr_format: The format of the nodes, if the URL of the store names it.
        access: How requests are authorized: with ``"credentials"`` where the option ``anon`` selects ``"anonymous"``
            requests, with these, or in an ``"other"`` way.
        close_after_use: Whether functions that return no node close the store, which completes the values that they
            wrote. A closed store is opened again when it is used.
    """

    writeable: bool = True
    listable: bool = True
    conditional: bool = False
    exclusive_locks: bool = False
    supports_consolidated_metadata: bool = True
    checks_bounds: bool = False
    blocking: bool = False
    parallel: bool = True
    is_local: bool = False
    quick_listing: bool = False
    concurrency: int = 64
    limits_requests: bool = False
    zarr_format: int | None = None
    access: Literal["credentials", "anonymous", "other"] = "other"
    close_after_use: bool = False

    # -------------------------------------------------------------- primitives, which stores implement

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """A value that is equal for two stores over the same data. Locks and request limits depend on it."""

    @property
    def direct_files(self) -> DirectFiles | None:
        """The files that compiled code reads and writes itself; ``None`` if it must use the methods of the store."""
        return None

    @property
    def directories(self) -> Directories | None:
        """The directories of local files; ``None`` if the store has no directories."""
        return None

    @property
    def transactions(self) -> Transactions | None:
        """Transactions in the store; ``None`` if it has none, so that each change is visible at once."""
        return None

    @property
    def forks(self) -> Forks | None:
        """Stores for the tasks of other processes; ``None`` if copies of this store are enough."""
        return None

    @property
    def lasting_identity(self) -> bool:
        """Whether the identity means the same data in other processes, and later."""
        return True

    @property
    def flat_namespace(self) -> bool:
        """Whether listing one directory takes as long as listing everything below it."""
        return type(self).list_dir is Store.list_dir

    @property
    def sizes_listings(self) -> bool:
        """Whether a listing contains the sizes of values, so that ``list_sizes`` makes no request for each key."""
        return type(self).list_sizes is not Store.list_sizes

    @property
    def safe_updates(self) -> bool:
        """Whether read-modify-write cycles are safe: other writers are excluded or detected."""
        return self.conditional or self.exclusive_locks

    @property
    def shareable(self) -> bool:
        """Whether a pickled copy in another process reads and writes the same data."""
        return True

    @property
    def notes(self) -> Store:
        """The store for notes about jobs, with the paths of this store. Some stores reject keys that are not part of nodes."""
        return self

    @abstractmethod
    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        """Fetch values or byte ranges, in the order of the requests; ``None`` for an absent key.

        Args:
            requests: The values or byte ranges. Keys are valid; callers check keys that users pass.
            versions: Whether to return versions and sizes even if that takes longer.

        Raises:
            StoreError: If a value cannot be fetched for another reason than absence.
        """

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        """Fetch whole values without versions or sizes.

        Args:
            keys: Valid keys.
            spaces: For each key, memory that the store may read into if the value fits. Stores may ignore it.
            limit: The most bytes of each value, see ``Request``.

        Raises:
            StoreError: If a value cannot be fetched for another reason than absence.
        """
        requests = [Request(key, 0, None, False, space, limit) for key, space in zip(keys, spaces, strict=True)]
        return [None if value is None else value.data for value in await self.fetch(requests)]

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        """Store several values, each completely or not at all.

        Raises:
            StoreError: If one failed. Some of the others may have been stored.
        """
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        """Store a value, completely or not at all.

        Args:
            key: A valid key.
            data: The bytes. The store does not refer to them after the call.
            if_version: Store only if this is the value's current version; ``ABSENT`` only creates.

        Returns:
            The new version, or ``None`` if the store has no versions.

        Raises:
            WriteConflictError: If the current version is another one.
            UnsupportedOperation: If the store cannot write or compare versions.
            StoreError: If the value cannot be stored.
        """
        raise self._unsupported("write")

    async def erase(self, key: str, *, if_version: object = None) -> None:
        """Erase a value. Erasing an absent value does nothing.

        Args:
            key: A valid key.
            if_version: Erase only if this is the value's current version.

        Raises:
            WriteConflictError: If the current version is another one.
            UnsupportedOperation: If the store cannot erase or compare versions.
            StoreError: If the value cannot be erased.
        """
        raise self._unsupported("erase")

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        """Return all keys that begin with a prefix, in no particular order.

        Args:
            prefix: Empty, or ending with ``/``.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        raise self._unsupported("list")

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        """Return the keys that begin with a prefix: all of them if there are fewer than a limit, otherwise some of them.

        The default implementation returns ``None``, because listing all keys may take many requests.

        Args:
            prefix: Empty, or ending with ``/``.
            limit: The limit. With one of up to 1,000, object stores need one request.

        Returns:
            All keys, if their number is less than the limit. Otherwise as many as the limit or more, or ``None``.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        return None

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of every value whose key begins with a prefix.

        The default implementation makes a request for each key.

        Args:
            prefix: Empty, or ending with ``/``.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        keys = await self.list_prefix(prefix)
        if self.blocking:
            stats = [await self.stat(key) for key in keys]
        else:
            stats = await gather([partial(self.stat, key) for key in keys]) if keys else []
        values = zip(keys, stats, strict=True)
        return {key: value.size for key, value in values if value is not None and value.size is not None}

    async def stat(self, key: str) -> Value | None:
        """Return the size and version of a value, without its data; ``None`` for an absent key.

        The default implementation fetches one byte, and the whole value if the size is still unknown.
        """
        (value,) = await self.fetch([Request(check_key(key), 0, 1)], versions=True)
        if value is None or value.size is not None:
            return None if value is None else value._replace(data=b"")
        (value,) = await self.fetch([Request(key)], versions=True)
        return None if value is None else Value(b"", value.version, len(value.data))

    # -------------------------------------------------------------- operations of the specification

    async def get(self, key: str) -> bytes | None:
        """Return a value, or ``None`` if the key is absent."""
        (value,) = await self.fetch([Request(check_key(key))])
        return None if value is None else bytes(value.data)

    async def get_partial_values(
        self, key_ranges: Iterable[tuple[str, tuple[int, int | None]]]
    ) -> builtins.list[bytes | None]:
        """Return byte ranges of values, in the order of the argument; ``None`` for absent keys.

        Args:
            key_ranges: Pairs ``(key, (start, length))``, in bytes. A length of ``None`` extends the range to the end. A
                negative start counts from the end, as in ``value[start:]``.

        Raises:
            ValueError: If a range from the end has a length, or a length is negative.
        """
        requests = []
        for key, (start, length) in key_ranges:
            check_key(key)
            if start < 0:
                if length is not None:
                    raise ValueError("a range from the end cannot have a length; use (-n, None)")
                requests.append(Request(key, 0, -start, True))
            elif length is not None and length < 0:
                raise ValueError(f"the length of a range must be at least 0, found {length}")
            else:
                requests.append(Request(key, start, length))
        return [None if value is None else bytes(value.data) for value in await self.fetch(requests)]

    async def exists(self, key: str) -> bool:
        """Return whether a key has a value."""
        (value,) = await self.fetch([Request(check_key(key), 0, 1)])
        return value is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Store a value."""
        await self.put(check_key(key), value)

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        """Replace parts of values.

        A value grows as needed, with zeros in gaps. The default implementation reads, modifies and writes whole values,
        under a lock that excludes other writers of this process.

        Args:
            key_start_values: Triples ``(key, start, bytes)`` that do not overlap.

        Raises:
            ValueError: If a start is negative.
        """
        changes: dict[str, builtins.list[tuple[int, Buffer]]] = {}
        for key, start, value in key_start_values:
            if start < 0:
                raise ValueError(f"the start of a part must be at least 0, found {start}")
            changes.setdefault(check_key(key), []).append((start, value))
        for key, parts in changes.items():
            async with self.locks([key]):
                (old,) = await self.fetch([Request(key)])
                data = bytearray() if old is None else bytearray(old.data)
                for start, value in parts:
                    data.extend(bytes(max(0, start + len(value) - len(data))))
                    data[start : start + len(value)] = bytes(value)
                await self.put(key, data)

    async def erase_values(self, keys: Iterable[str]) -> None:
        """Erase several values."""
        for key in keys:
            raise_if_cancelled()
            await self.erase(key)

    async def erase_prefix(self, prefix: str) -> None:
        """Erase all values whose keys begin with a prefix."""
        await self.erase_values(await self.list_prefix(check_prefix(prefix)))

    async def list(self) -> builtins.list[str]:
        """Return all keys."""
        return await self.list_prefix("")

    async def list_dir(self, prefix: str) -> Listing:
        """Return the keys and prefixes directly under a prefix."""
        check_prefix(prefix)
        keys, prefixes = [], set()
        for key in await self.list_prefix(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                prefixes.add(f"{prefix}{name}/")
            else:
                keys.append(key)
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    # -------------------------------------------------------------- copies in other processes

    _unshared: ClassVar[tuple[str, ...]] = ()
    """Attributes that each process makes anew, such as locks and clients, by ``_make_unshared``."""

    def _make_unshared(self) -> None:  # noqa: B027  # optional
        """Make the attributes in ``_unshared``. Constructors call it, and it is called for unpickled copies."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._unshared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_unshared()

    # -------------------------------------------------------------- locks, limits, lifetime

    @property
    def viewer(self) -> Hashable:
        """A value that determines the visible values, such as credentials. Caches keep values of different viewers apart."""
        return ""

    def location(self, key: str) -> Hashable:
        """Return a value that is equal for two keys, possibly of two stores, that refer to the same value."""
        return (self.identity, key)

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        """Return identities of a path and of all places above it, the nearest first.

        If the first identity of path A is one of the identities of path B, possibly in another store, then B is A or lies
        below it.

        Args:
            path: The path of a node, or of a value.
        """
        location = self.location(path or ".")
        *root, full_path = location if isinstance(location, tuple) else (location,)
        place = (str(full_path) if path else str(full_path).removesuffix(".")).rstrip("/")
        places = [place]
        while place:
            place = place.rpartition("/")[0]
            places.append(place)
        return tuple((*root, place) for place in places)

    def lock(self, key: str) -> AbstractAsyncContextManager[object, None]:
        """Return the lock of a value: for the process, and for all processes of the machine if the store supports that."""
        return KeyLock(self.lock_identities([key])[0])

    def locks(self, keys: Sequence[str]) -> AbstractAsyncContextManager[object, None]:
        """Return the locks of several values, as ``lock`` does."""
        return KeyLocks(partial(self.lock_identities, keys))

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Hashable]:
        """Return values by which process-wide locks find each other: the locations, unless the store knows better.

        They can be sorted, so that all calls wait for them in the same order.
        Called when the locks are taken to write the values. So a store may create the directories of the values, if
        their identities depend on them.
        """
        return [self.location(key) for key in keys]

    def limiter(self) -> AdaptiveLimiter:
        """Return the semaphore of requests in flight, which stores over the same data share."""
        return request_limiter(self.identity, self.concurrency)

    def describe(self, path: str) -> str:
        """Explain why no node exists at a path, without making requests; for error messages."""
        return "check the URL and the path"

    def enclosing(self) -> tuple[Store, str] | None:
        """Return a store around this one, and the path of this one in it, to explain why nothing exists here.

        Only if it needs no more rights than reading this store. The caller closes the store.
        """
        return None

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[Self]:
        """Close the store after the block if ``close_after_use`` is set."""
        try:
            yield self
        finally:
            if self.close_after_use:
                await self.close()

    def choose_format(self, requested: int | str | None) -> int | str | None:
        """Return the requested format of nodes, or else the one that the store's URL names.

        Raises:
            ValueError: If the two differ.
        """
        named = self.zarr_format
        if named is not None and requested is not None and named != requested:
            raise ValueError(
                f"the URL names Zarr format {named}, and zarr_format={requested!r} another one; omit zarr_format"
            )
        return named if requested is None else requested

    def why_read_only(self) -> str:
        """Return why values cannot be stored, and what to do; for messages of stores that are not ``writeable``."""
        return str(self._unsupported("write"))

    def _unsupported(
        self, verb: str, hint: str = "use a store that can, such as a local directory"
    ) -> UnsupportedOperation:
        return UnsupportedOperation(f"{self!r} cannot {verb}; {hint}")

    def _conflict(self, key: str) -> WriteConflictError:
        message = f"{key!r} in {self!r} was changed meanwhile by another writer; read it again and repeat the change"
        return WriteConflictError(message, key=key)

    async def close(self) -> None:  # noqa: B027  # optional
        """Close connections that this store opened. A later call opens new ones."""

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


class DirectFiles(NamedTuple):
    """Values that compiled code reads and writes as files itself, without the methods of the store.

    Attributes:
        directory: The directory of the files, with a slash at its end. A key is the path relative to it.
        fsync: Whether values are flushed to the disk before they get their final names.
        counter: A function that counts the files and bytes of each call, or ``None``.
        root: Bytes of ``directory`` that name a directory which no link may leave; 0 if links may lead anywhere.
    """

    directory: bytes
    fsync: bool
    counter: Callable[[Traffic], None] | None = None
    root: int = 0


def has_own_values(store: Store, cls: type[Store]) -> bool:
    """Return whether the class of a store is derived from ``cls`` and handles values itself.

    Compiled code that does what ``cls`` does would bypass these methods.
    """
    names = ("fetch", "fetch_values", "put", "put_values", "lock", "locks", "lock_identities", "_operate")
    return any(getattr(type(store), name, None) is not getattr(cls, name, None) for name in names)


class Directories(Protocol):
    """Directories of local files: their creation, and notes and temporary data in them. All methods block."""

    def below(self, prefix: str) -> Directories:
        """Return the directories below a prefix, to which keys and prefixes are relative."""
        ...

    def read_only(self, reason: str) -> Directories:
        """Return directories that cannot be changed, and why."""
        ...

    def unfinished(self, prefix: str) -> list[str]:
        """Return the names of temporary data that interrupted writers left below a prefix."""
        ...

    def remove_unfinished(self, prefix: str) -> list[str]:
        """Remove temporary data below a prefix whose writer does not run any more; return the names."""
        ...

    def create(self, prefix: str) -> int:
        """Create the directory of a prefix, and those above it. Return the number of directories that did not exist."""
        ...

    def remove_empty(self, prefix: str, above: int = 0) -> None:
        """Remove the directory of a prefix if it is empty, in one step.

        Args:
            prefix: The prefix.
            above: The number of directories above it to remove as well, as far as they are empty.
        """
        ...

    def pending(self, key: str) -> bytes | None:
        """Return the note of ``set_pending``, which remains if the writer was interrupted."""
        ...

    def set_pending(self, key: str, note: bytes | None) -> None:
        """Store a note about a change that has begun; ``None`` removes it. The caller holds the lock of the value."""
        ...


class Transactions(Protocol):
    """Transactions in a store. All methods block.

    Raises:
        UnsupportedOperation: If only readers can use this version of the store, or other processes cannot continue its
            transactions.
        StoreError: If the store failed.
    """

    def begin(self) -> Transaction:
        """Begin a transaction."""
        ...

    def detach(self) -> Transaction:
        """Begin a transaction that other processes can continue."""
        ...

    def attach(self, state: bytes) -> Transaction:
        """Continue a transaction that another process has begun with ``detach``; ``state`` is the result of its method."""
        ...


class Forks(Protocol):
    """Stores for the tasks of other processes, whose values are added to this one. All methods block."""

    def fork(self) -> Callable[[], Store]:
        """Return a function for another process, which opens a store for one task there.

        The function can be pickled, and blocks like this method. Its store begins with the values of this one. The values
        that a task stores are added to this store when ``merge`` gets its ``changes``. No two tasks may store the same
        value.

        Raises:
            UnsupportedOperation: If other processes cannot write to the store.
            StoreError: If the store failed.
        """
        ...

    def changes(self) -> bytes:
        """Return the changes of a store that the function of ``fork`` has opened."""
        ...

    def merge(self, changes: bytes) -> None:
        """Add the values that were stored in a fork, given its ``changes``.

        Raises:
            StoreError: If the store failed.
        """
        ...


class Transaction(ABC):
    """Changes that become visible when they are committed. Without that, they have no effect.

    Attributes:
        store: The store for the changes. Other processes can only use forks of it.
    """

    store: Store

    @abstractmethod
    def commit(self, message: str, path: str = "") -> None:
        """Make the changes visible, together with those that others have committed meanwhile.

        Args:
            message: A description for the history.
            path: The path of the group that the changes belong to.

        Raises:
            WriteConflictError: If others have changed the group or its arrays meanwhile. Nothing has become visible then.
            StoreError: If the store failed.
        """

    def is_committed(self) -> bool:
        """Return whether an earlier call of ``commit``, in any process, was successful, which blocks.

        Only transactions that were begun with ``Transactions.detach`` can be committed again, and that has no effect.
        """
        return False

    def state(self) -> bytes:
        """Return what ``Transactions.attach`` needs in other processes. Their tasks begin with the values that the store has now.

        Raises:
            UnsupportedOperation: If the transaction was not begun with ``Transactions.detach``.
            StoreError: If the store failed.
        """
        raise UnsupportedOperation(f"other processes cannot continue the transaction of {self.store!r}")
