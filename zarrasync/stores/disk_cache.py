"""A store in front of another one that keeps what was read on a local disk, for later and for other processes."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import Request, Store, Value, clip
from zarrasync.stores.wrappers import WrapperStore, distrusted

__all__ = ["DiskCachingStore"]

_MAGIC = b"zarrasync-cache-2\n"
_CHECKSUM = 4
"""Bytes of the checksum of all that follows."""
_SPARE = 0.9
"""The share of the limit that is left after old entries were erased."""


class _Found(NamedTuple):
    value: Value | None


class DiskCachingStore(WrapperStore):
    """A store that keeps values, parts of them, and what is absent as files in a directory.

    Processes may share the directory, and it outlives them. An entry is written in one step and carries a checksum: a
    damaged one counts as none. What is written or erased through this store is forgotten; changes that others make are
    seen after ``max_age`` seconds, and by whoever changes a value under a lock. What is kept of mappings, of fsspec's
    memory and of stores of zarr-python, which nothing tells from others later, is for this object alone. Put a ``CachingStore`` in front for what is used again at once.

    Args:
        inner: The store to read from.
        directory: Where to keep it; made when needed.
        max_bytes: How much to keep at the most, about; the entries that were not used for the longest time go first.
        max_age: Seconds for which an entry is believed; ``None``: for ever, which is right for data that never changes.

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
        super().__init__(inner)
        if max_bytes < 0 or (max_age is not None and max_age < 0):
            raise ValueError(f"max_bytes and max_age are at least 0, found {max_bytes} and {max_age}")
        # A directory of its own in there: what else lies there is not the cache's.
        self.directory = Path(os.path.abspath(os.fspath(directory))) / "zarrasync-cache"
        self.max_bytes, self.max_age = max_bytes, max_age
        self._reset()

    def _reset(self) -> None:
        self._mutex = thread_lock()
        # What may mean something else tomorrow is kept under a name that nobody else will use.
        self._own = "" if self.inner.lasting else uuid.uuid4().hex
        self._room = thread_lock()
        self._added: int | None = None  # bytes since the directory was looked at, None before that
        self._changes = 0
        self.hits = self.misses = 0

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_") and k not in ("hits", "misses")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def __repr__(self) -> str:
        return f"DiskCachingStore({self.inner!r}, {str(self.directory)!r})"

    def clear(self) -> None:
        """Forget everything that is in the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        known = not distrusted(self)
        found = await self._here(lambda: [self._load(request, versions) if known else None for request in requests])
        wanted = [request._replace(into=None) for request, one in zip(requests, found, strict=True) if one is None]
        with self._mutex:
            self.hits += len(requests) - len(wanted)
            self.misses += len(wanted)
        if not wanted:
            return [one.value for one in found if one is not None]
        begin = self._changes
        fresh = await self.inner.fetch(wanted, versions=versions)
        await self._here(lambda: self._keep(wanted, fresh, versions, begin))
        rest = iter(fresh)
        return [one.value if one is not None else next(rest) for one in found]

    async def _here(self, work: Any) -> Any:
        """Work on files: on this thread for stores that block, else on a worker."""

        async def run() -> Any:
            return work()

        return await (run() if self.blocking else run_in_worker(run))

    def _folder(self, key: str) -> Path:
        # What is absent to one who was told that 403 means it is an error to others.
        what = (self._own, self.inner.identity, self.inner.location(key), sorted(self.inner.missing), self.inner.viewer)
        name = hashlib.blake2b(repr(what).encode(), digest_size=20).hexdigest()
        return self.directory / name[:2] / name[2:]

    def _load(self, request: Request, versions: bool) -> _Found | None:
        """An entry: that of the request, or a part of the whole value."""
        folder = self._folder(request.key)
        for part in dict.fromkeys((request[1:4], (0, None, False))):
            found = self._read(folder / _name(part), versions)
            if found is not None:
                value = found.value
                if value is not None and part != request[1:4]:
                    value = value._replace(data=clip(value.data, request))
                return _Found(value)
        return None

    def _read(self, path: Path, versions: bool) -> _Found | None:
        from crc32c import crc32c

        try:
            data = path.read_bytes()
            age = clock.wall_time() - path.stat().st_mtime
        except OSError:
            return None
        checksum, entry = data[len(_MAGIC) : len(_MAGIC) + _CHECKSUM], data[len(_MAGIC) + _CHECKSUM :]
        if not data.startswith(_MAGIC) or checksum != crc32c(entry).to_bytes(_CHECKSUM):
            return None
        head, _, body = entry.partition(b"\n")
        known = json.loads(head)
        if versions and not known["versioned"]:
            return None
        if self.max_age is not None and age > self.max_age:
            return None
        with contextlib.suppress(OSError):  # what was used last goes last
            os.utime(path, (clock.wall_time(), path.stat().st_mtime))
        if known["absent"]:
            return _Found(None)
        version = tuple(known["version"]) if isinstance(known["version"], list) else known["version"]
        return _Found(Value(body, version, known["size"]))

    # -------------------------------------------------------------- keeping

    def _keep(self, requests: Sequence[Request], values: Sequence[Value | None], versions: bool, begin: int) -> None:
        with contextlib.suppress(OSError):  # a full or broken disk must not fail reads
            for request, value in zip(requests, values, strict=True):
                if self._changes == begin:
                    self._store(request, value, versions)
        if self._changes != begin:  # something was changed meanwhile, perhaps just this
            for request in requests:
                shutil.rmtree(self._folder(request.key), ignore_errors=True)

    def _store(self, request: Request, value: Value | None, versions: bool) -> None:
        from crc32c import crc32c

        body = b"" if value is None else bytes(value.data)
        version = value.version if value is not None and versions else None
        version = list(version) if isinstance(version, tuple) else version
        try:
            head = json.dumps(
                {
                    "absent": value is None,
                    "version": version,
                    "size": None if value is None else value.size,
                    "versioned": versions,
                }
            )
        except TypeError:
            return  # a version that is nothing for a file
        checked = head.encode() + b"\n" + body
        entry = _MAGIC + crc32c(checked).to_bytes(_CHECKSUM) + checked
        if len(entry) > self.max_bytes:
            return
        folder = self._folder(request.key)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _name(request[1:4])
        temporary = folder / f"{path.name}.{os.getpid()}-{time.monotonic_ns()}"
        try:
            temporary.write_bytes(entry)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._make_room(len(entry))

    def _make_room(self, added: int) -> None:
        """Erase old entries once a tenth of the limit was added since the last look."""
        with self._room:
            if self._added is not None and self._added + added <= self.max_bytes * (1 - _SPARE):
                self._added += added
                return
            self._added = 0
            entries = []
            for path in self.directory.glob("*/*/*"):
                with contextlib.suppress(OSError):
                    state = path.stat()
                    entries.append((state.st_atime, state.st_size, path))
            total = sum(size for _, size, _ in entries)
            if total <= self.max_bytes * _SPARE:
                return
            for _, size, path in sorted(entries, key=lambda entry: entry[0]):
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size
                if total <= self.max_bytes * _SPARE:
                    break

    # -------------------------------------------------------------- changing

    async def _forget(self, keys: Iterable[str]) -> None:
        with self._mutex:
            self._changes += 1
        folders = [self._folder(key) for key in keys]
        await self._here(lambda: [shutil.rmtree(folder, ignore_errors=True) for folder in folders])

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        await self._forget([key])
        try:
            return await self.inner.put(key, data, if_version=if_version)
        finally:
            await self._forget([key])

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self._forget([key])
        try:
            await self.inner.erase(key, if_version=if_version)
        finally:
            await self._forget([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self._forget(keys)
        try:
            await self.inner.erase_values(keys)
        finally:
            await self._forget(keys)

    async def erase_prefix(self, prefix: str) -> None:
        # Entries do not tell which keys they are of.
        await self._forget([])
        try:
            await self.inner.erase_prefix(prefix)
        finally:
            await self._forget([])
            await self._here(self.clear)


def _name(part: tuple[int, int | None, bool]) -> str:
    start, length, suffix = part
    return f"last-{length}" if suffix else f"{start}-{'' if length is None else length}"
