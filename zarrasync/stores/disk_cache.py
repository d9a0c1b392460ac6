"""A cache on a local disk in front of another store, for later runs and for other processes."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.locks import holds_key_lock
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.model.paths import ancestors
from zarrasync.stores.base import Store
from zarrasync.stores.cache import CacheStore, must_bypass_cache
from zarrasync.stores.local_files import read_regular_file
from zarrasync.stores.values import Request, Value, clip

T = TypeVar("T")
_MAGIC = b"zarrasync-cache-3\n"
_CHECKSUM_SIZE = 4
_CHANGE = "change"
"""The name of the empty file of a directory in which a value has changed. Its time is when that was seen."""
_TARGET_SHARE = 0.9
"""Share of the size limit to which old entries are removed."""


class _Entry(NamedTuple):
    """The content of a file.

    Attributes:
        value: The value or byte range; ``None`` if the key was absent.
        versioned: Whether versions were requested.
        time: When it was stored, in seconds since 1970.
    """

    value: Value | None
    versioned: bool
    time: float


class DiskCachingStore(CacheStore):
    """A cache of values, byte ranges and absent keys in files of a directory.

    Processes can share the directory. Entries are written atomically, and contain their key and a checksum; damaged
    and exchanged ones are ignored. Changes through this store remove the entries of their keys. Changes by others become
    visible after ``max_age`` seconds, and to callers that change a value under a lock. When a value turns out to have
    changed, all entries below its directory are ignored, so that new metadata is not combined with old chunks. Entries of stores without a lasting identity (mappings,
    fsspec's memory filesystem, stores of zarr-python) serve this object only. Put a ``CachingStore`` in front for
    values that are read repeatedly.

    Args:
        inner: The store to read from.
        directory: The directory, which is created when needed.
        max_bytes: Approximate maximum size, in bytes. The least recently used entries are removed first.
        max_age: Maximum age of entries in seconds; ``None`` for no limit, for data that never changes.

    Attributes:
        hits: Number of values or byte ranges that were cached.
        misses: Number of values or byte ranges that were fetched from the inner store.

    Raises:
        ValueError: If a limit is negative.
    """

    def __init__(
        self,
        inner: Store,
        directory: str | os.PathLike[str],
        max_bytes: int = 10 << 30,
        *,
        max_age: float | None = None,
    ) -> None:
        super().__init__(inner, max_bytes, max_age)
        # In a subdirectory, because the user's directory may contain other files.
        self.directory = Path(os.path.abspath(os.fspath(directory))) / "zarrasync-cache"
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._lock = thread_lock()
        # An identity that may mean other data tomorrow gets entries that no one else uses.
        self._session = "" if self.inner.lasting_identity else uuid.uuid4().hex
        self._cleanup_lock = thread_lock()
        self._bytes_since_cleanup: int | None = None  # None until the directory was measured
        self._changes = 0
        self.hits = self.misses = 0

    def around(self, inner: Store) -> Self:
        other = super().around(inner)
        other._session = uuid.uuid4().hex  # noqa: SLF001  # a transaction has other values under the same identity
        return other

    def __repr__(self) -> str:
        return f"DiskCachingStore({self.inner!r}, {str(self.directory)!r})"

    def clear(self) -> None:
        """Remove all entries in the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        bypass, changes_value = must_bypass_cache(self), holds_key_lock()
        cached = await self._on_disk(
            lambda: [None if bypass else self._find(request, versions) for request in requests]
        )
        if changes_value:  # cached absence must not be used, see must_bypass_cache
            cached = [None if result is None or result.value is None else result for result in cached]
        misses = [
            request._replace(out=None) for request, result in zip(requests, cached, strict=True) if result is None
        ]
        with self._lock:
            self.hits += len(requests) - len(misses)
            self.misses += len(misses)
        if not misses:
            return [result.value for result in cached if result is not None]
        changes = self._changes
        fetched = await self.inner.fetch(misses, versions=versions)
        await self._on_disk(lambda: self._store_all(misses, fetched, versions, changes))
        remaining = iter(fetched)
        return [result.value if result is not None else next(remaining) for result in cached]

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Access files: on this thread if the store is blocking, otherwise on a worker thread."""

        async def run() -> T:
            return work()

        return await (run() if self.blocking else run_in_worker(run))

    def _folder(self, key: str) -> Path:
        """Return the directory with the entries of a key."""
        # Statuses that mean absence, and permissions, differ between stores over the same data.
        inner = self.inner
        identity = (self._session, inner.identity, inner.location(key), inner.viewer)
        name = hashlib.blake2b(repr(identity).encode(), digest_size=20).hexdigest()
        return self.directory / name[:2] / name[2:]

    def _find(self, request: Request, versions: bool) -> _Entry | None:
        """Return the result of a request, from its own entry or from the entry for the whole value, if it is recent."""
        folder, since = self._folder(request.key), self._last_change(request.key)
        if self.max_age is not None:
            since = max(since, clock.wall_time() - self.max_age)
        for part in dict.fromkeys((request[1:4], (0, None, False))):
            path = folder / _file_name(part)
            entry = _read(path)
            if entry is None or (versions and not entry.versioned) or entry.time < since:
                continue
            with contextlib.suppress(OSError):  # the access time determines which entries are removed first
                os.utime(path, (clock.wall_time(), path.stat().st_mtime))
            if entry.value is None or part == request[1:4]:
                return entry
            return entry._replace(value=entry.value._replace(data=clip(entry.value.data, request)))
        return None

    def _last_change(self, key: str) -> float:
        """Return when a value in one of the directories above a key was last seen to have changed."""
        if self.max_age is None:  # nothing is read again
            return -math.inf
        times = [-math.inf]
        for directory in ancestors(key):
            with contextlib.suppress(OSError):
                times.append((self._folder(directory) / _CHANGE).stat().st_mtime)
        return max(times)

    # -------------------------------------------------------------- storing

    def _store_all(
        self, requests: Sequence[Request], values: Sequence[Value | None], versions: bool, changes: int
    ) -> None:
        """Store results, unless something has changed since the fetch began.

        Args:
            requests: The requests.
            values: Their results.
            versions: Whether versions were requested.
            changes: The number of changes when the fetch began.
        """
        with contextlib.suppress(OSError):  # a full or broken disk must not make reads fail
            for request, value in zip(requests, values, strict=True):
                if self._changes == changes:
                    self._store(request, value, versions)
        if self._changes != changes:  # something has changed, possibly one of these values
            for request in requests:
                _remove_folders([self._folder(request.key)])

    def _store(self, request: Request, value: Value | None, versions: bool) -> None:
        path = self._folder(request.key) / _file_name(request[1:4])
        entry = _encode(value, path, versions)
        if self.max_age is not None and (former := _read(path)) is not None and not _is_same(former.value, value):
            with self._lock:
                self._changes += 1  # for reads under way
            self._write_again(self._folder(request.key.rpartition("/")[0]) / _CHANGE, b"")
        if entry is None or len(entry) > self.max_bytes:
            return
        self._write_again(path, entry)
        self._clean_up(len(entry))

    def _write_again(self, path: Path, entry: bytes) -> None:
        """Write a file, again if another process has removed the folder, which was empty."""
        try:
            self._write(path, entry)
        except FileNotFoundError:
            self._write(path, entry)

    def _write(self, path: Path, entry: bytes) -> None:
        """Write an entry. Other users cannot read the cache, as its values may come from stores that they cannot read."""
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        for folder in (path.parents[1], path.parents[0]):
            folder.mkdir(0o700, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(entry)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _clean_up(self, added: int) -> None:
        """Remove old entries and empty folders, once a tenth of the size limit was added since the last time."""
        with self._cleanup_lock:
            if self._bytes_since_cleanup is not None:
                self._bytes_since_cleanup += added
                if self._bytes_since_cleanup <= self.max_bytes * (1 - _TARGET_SHARE):
                    return
            self._bytes_since_cleanup = 0
            files = []
            for path in self.directory.glob("*/*/*"):
                with contextlib.suppress(OSError):
                    state = path.stat()
                    files.append((state.st_atime, state.st_size, path))
            total, target = sum(size for _, size, _ in files), self.max_bytes * _TARGET_SHARE
            for _, size, path in sorted(files, key=lambda file: file[0]):
                if total <= target:
                    break
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size
            for depth in ("*/*", "*"):
                for folder in self.directory.glob(depth):
                    with contextlib.suppress(OSError):  # it is not empty
                        folder.rmdir()

    # -------------------------------------------------------------- changing

    async def _invalidate(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._changes += 1
        folders = [self._folder(key) for key in keys]
        await self._on_disk(lambda: _remove_folders(folders))

    async def erase_prefix(self, prefix: str) -> None:
        # The names of files do not show their keys, so all of them are removed.
        await self._invalidate([])
        try:
            await self.inner.erase_prefix(prefix)
        finally:
            await self._invalidate([])
            await self._on_disk(self.clear)


def _is_same(one: Value | None, other: Value | None) -> bool:
    """Return whether two results have the same bytes, or are both absent."""
    if one is None or other is None:
        return one is other
    return bytes(one.data) == bytes(other.data)


def _remove_folders(folders: Iterable[Path]) -> None:
    """Remove the entries of keys."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it does not exist, or has other folders
            folder.parent.rmdir()


def _key_of(path: Path) -> str:
    """Return the key of an entry: a digest of the value's place, and the byte range."""
    return "/".join(path.parts[-3:])


def _read(path: Path) -> _Entry | None:
    """Return the entry in a file; ``None`` if the file does not exist, is damaged, or contains another key."""
    from crc32c import crc32c

    try:
        data, time = bytes(read_regular_file(str(path))), path.stat().st_mtime
    except OSError:
        return None
    checksum, entry = data[len(_MAGIC) : len(_MAGIC) + _CHECKSUM_SIZE], data[len(_MAGIC) + _CHECKSUM_SIZE :]
    if not data.startswith(_MAGIC) or checksum != crc32c(entry).to_bytes(_CHECKSUM_SIZE):
        return None
    head, _, body = entry.partition(b"\n")
    try:
        fields = json.loads(head)
        if fields["key"] != _key_of(path):
            return None
        version = tuple(fields["version"]) if isinstance(fields["version"], list) else fields["version"]
        value = None if fields["absent"] else Value(body, version, fields["size"])
        return _Entry(value, fields["versioned"], time)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _encode(value: Value | None, path: Path, versions: bool) -> bytes | None:
    """Return the content of an entry's file; ``None`` if the version cannot be stored as JSON."""
    from crc32c import crc32c

    version = value.version if value is not None and versions else None
    fields = {
        "key": _key_of(path),
        "absent": value is None,
        "version": list(version) if isinstance(version, tuple) else version,
        "size": None if value is None else value.size,
        "versioned": versions,
    }
    try:
        head = json.dumps(fields)
    except TypeError:
        return None
    entry = head.encode() + b"\n" + (b"" if value is None else bytes(value.data))
    return _MAGIC + crc32c(entry).to_bytes(_CHECKSUM_SIZE) + entry


def _file_name(part: tuple[int, int | None, bool]) -> str:
    start, length, suffix = part
    return f"last-{length}" if suffix else f"{start}-{'' if length is None else length}"
