"""A store over a directory of local files."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import stat
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import unquote

from zarrasync import config
from zarrasync._util.advice import suggest
from zarrasync._util.memory import BudgetExceeded
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.model.paths import check_key, check_keys, check_prefix
from zarrasync.stores.base import DirectFiles, Store, has_own_values
from zarrasync.stores.errors import store_error, store_errors
from zarrasync.stores.local_directories import LocalDirectories, leads_to_directory
from zarrasync.stores.local_files import (
    CLOEXEC,
    MOST_REMOVALS,
    READ_FLAGS,
    SINGLE_READ_LIMIT,
    check_missing,
    check_regular,
    give_new_name,
    lineage_of,
    make_directory,
    persistently,
    read_fully,
    readv,
    remove_directory,
    sync_directory,
    temporary_path,
    version_of,
    write_fully,
)
from zarrasync.stores.local_locks import BETWEEN_PROCESSES, FileLocks, Place, held_places, place_of, places_of
from zarrasync.stores.values import ABSENT, Listing, Request, Value

_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC


class LocalStore(Store):
    """Files under a directory; a key is a path relative to it.

    A value is written to a temporary file and then renamed, so that neither a reader nor a crash sees a partial value.

    Conditional writes and locks work among all threads and processes of a machine. They lock bytes of a file in
    ``/tmp`` (``/dev/shm`` or ``/var/tmp`` if that cannot be written), which the processes must share. On Windows they
    work only among threads, except for creation (``if_version=ABSENT``). They do not work between machines that share a
    disk.

    Args:
        root: The directory, which is created when the first value is written.
        fsync: Whether to flush each file to the disk before it is renamed; the configured setting by default.
    """

    blocking = True
    is_local = True
    conditional = True
    exclusive_locks = BETWEEN_PROCESSES
    concurrency = 16

    def __init__(self, root: str | os.PathLike[str], *, fsync: bool | None = None) -> None:
        self._base = f"{os.path.abspath(os.fspath(root)).rstrip('/')}/"
        settings = config.get()
        self._fsync = settings.fsync if fsync is None else fsync
        self._lock_timeout = settings.total_timeout

    @cached_property
    def root(self) -> Path:
        """The directory."""
        return Path(self._base)

    @cached_property
    def identity(self) -> Hashable:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        return ("file", os.path.realpath(self._base))

    @property
    def direct_files(self) -> DirectFiles | None:
        # The kernel does not read files on Windows.
        is_plain = os.name == "posix" and not has_own_values(self, LocalStore)
        return DirectFiles(os.fsencode(self._base), self._fsync) if is_plain else None

    @property
    def directories(self) -> LocalDirectories:
        return LocalDirectories(self, self._base, self._fsync)

    def location(self, key: str) -> Hashable:
        return ("file", os.path.realpath(self._base + key))

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        return lineage_of(self._base + path)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def describe(self, path: str) -> str:
        full_path = self.root / path
        if str(self.root).rpartition("/")[2].startswith("~") or "/~" in str(self.root):
            return f"'~' is not expanded: {os.path.expanduser('~')!r} is this user's home directory"
        try:
            if full_path.is_file():
                return "it is a file; only directories, and zip archives whose names end in .zip or .ozx, can be opened"
            if not full_path.exists():
                return _describe_missing(full_path, self.root)
            shown = ", ".join(_names(full_path)[:5]) + (", …" if len(_names(full_path)) > 5 else "")
            return f"the directory contains {shown or 'nothing'}; check the path"
        except OSError as error:
            return f"{str(full_path)!r} cannot be examined: {error.strerror}"

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        values: list[Value | None] = []
        open_key, handle = "", -1  # consecutive requests for the same key open the file once
        try:
            for request in requests:
                if request.key != open_key:
                    former, handle = handle, -1
                    self._close(former, open_key)
                    open_key, handle = request.key, self._open(request.key)
                values.append(None if handle < 0 else self._read(handle, request, versions))
        finally:
            self._close(handle, open_key)
        return values

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        # Reads of small chunks spend their time in this loop, so it makes no calls except for open, readv and close.
        if readv is None:
            return await super().fetch_values(keys, spaces, limit)
        check_keys(keys)
        base, extra, values = self._base, bytearray(1), list[Buffer | None]()
        for key, space in zip(keys, spaces, strict=True):
            count, room = -1, 0
            if space is not None:
                try:
                    handle = os.open(base + key, READ_FLAGS)
                    try:
                        # An extra byte distinguishes a value that just fills the memory from a longer one.
                        count, room = readv(handle, (space, extra)), len(space)
                    finally:
                        os.close(handle)
                except (FileNotFoundError, NotADirectoryError):
                    count = -2
                except OSError:
                    pass  # fetch below raises it as a StoreError
            if count == -2:
                self._check_missing(key)
                values.append(None)
            elif space is not None and count == room:
                values.append(space)
            elif space is not None and 0 < count < min(room, SINGLE_READ_LIMIT):
                values.append(space[:count])
            else:
                (value,) = await self.fetch([Request(key, limit=limit)])
                values.append(None if value is None else value.data)
        return values

    def _open(self, key: str) -> int:
        """Return a descriptor of a file; -1 if it does not exist."""
        try:
            return os.open(self._base + key, READ_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            self._check_missing(key)
            return -1
        except OSError as error:
            if isinstance(error, PermissionError) and os.path.isdir(self._base + key):
                return -1  # Windows does not open directories
            raise store_error(error, key, "read", self) from error

    def _close(self, handle: int, key: str) -> None:
        """Close a file. Network file systems may report errors only then."""
        try:
            if handle >= 0:
                os.close(handle)
        except OSError as error:
            raise store_error(error, key, "read", self) from error

    def _check_missing(self, key: str) -> None:
        try:
            check_missing(self._base + key)
        except OSError as error:
            raise store_error(error, key, "read", self) from error

    def _read(self, handle: int, request: Request, versions: bool) -> Value | None:
        try:
            state = os.fstat(handle)
            if stat.S_ISDIR(state.st_mode):
                return None  # of other keys
            check_regular(state, self._base + request.key)
            size = state.st_size
            start, length = request.bounds(size)
            if request.limit is not None and length > request.limit:
                request.check_size(length)
            version = version_of(state) if versions else None
            return Value(read_fully(handle, start, length, request.out), version, size)
        except (OSError, BudgetExceeded, MemoryError) as error:
            raise store_error(error, request.key, "read", self) from error

    # -------------------------------------------------------------- writing

    def lock(self, key: str) -> FileLocks:
        path = self._base + key
        return FileLocks([path], lambda: [place_of(path)], self._lock_timeout)

    def locks(self, keys: Sequence[str]) -> FileLocks:
        paths = [self._base + key for key in keys]
        return FileLocks(paths, partial(self.lock_identities, keys), self._lock_timeout)

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Place]:
        try:
            return places_of([self._base + key for key in keys], partial(make_directory, fsync=self._fsync))
        except OSError as error:
            raise store_error(error, keys[0], "lock", self) from error

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        if if_version is None:
            return self._put(key, data, None, None)
        if if_version is ABSENT:
            with contextlib.suppress(_NeedsLock):
                return self._put(key, data, if_version, None)
        held = held_places.get().get(self._base + key)
        if held is not None:
            try:
                return self._put(key, data, if_version, held)
            except _Moved:
                pass  # to the place whose lock is taken now
        async with self.lock(key):
            return self._put(key, data, if_version, held_places.get()[self._base + key])

    def _put(self, key: str, data: Buffer, if_version: object, place: Place | None) -> object:
        """Store a value. A comparison of versions holds only under the lock of the place where the value is."""
        path = self._base + key
        temporary = temporary_path(path)
        try:
            handle = self._create(temporary)
            try:
                try:
                    write_fully(handle, data)
                    if self._fsync:
                        os.fsync(handle)
                    version = None if if_version is None else version_of(os.fstat(handle))
                finally:
                    os.close(handle)
                if if_version is None:
                    try:
                        os.replace(temporary, path)
                    except PermissionError:
                        persistently(os.replace, temporary, path)
                else:
                    self._publish(temporary, path, key, if_version, place)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    persistently(os.unlink, temporary)
                raise
            if self._fsync:
                sync_directory(os.path.dirname(path))
            return version
        except (WriteConflictError, _NeedsLock):
            raise
        except OSError as error:
            raise store_error(error, key, "write", self) from error

    def _create(self, path: str) -> int:
        """Create a file, with its directory. Other processes may remove the directory while it is empty."""
        for _ in range(MOST_REMOVALS):
            try:
                return os.open(path, _CREATE_FLAGS, 0o666)
            except FileNotFoundError:
                make_directory(os.path.dirname(path), fsync=self._fsync)
        return os.open(path, _CREATE_FLAGS, 0o666)

    def _publish(self, temporary: str, path: str, key: str, expected: object, place: Place | None) -> None:
        """Rename a complete temporary file if the current version of the value is the expected one.

        Raises:
            WriteConflictError: If it is not, or the place of the value is not the locked one.
            _NeedsLock: If a value can only be created under its lock.
        """
        if expected is ABSENT and place is None:
            try:
                if not give_new_name(temporary, path):
                    raise _NeedsLock
            except FileExistsError:
                check_missing(path)
                with contextlib.suppress(FileNotFoundError):  # erased meanwhile
                    check_regular(os.stat(path), path)
                raise self._conflict(key) from None
            return
        # The temporary file is in the directory that is examined here, or renaming it fails.
        if place_of(path) != place:
            raise _Moved(f"the directory of {key!r} was replaced meanwhile", key=key)
        if not _has_version(path, expected):
            raise self._conflict(key)
        persistently(os.replace, temporary, path)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        check_key(key)
        path = self._base + key
        if if_version is not None:
            await self._erase_version(key, if_version)
            return
        try:
            persistently(os.unlink, path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass
        except OSError as error:
            if not _is_directory(path):
                raise store_error(error, key, "erase", self) from error

    async def _erase_version(self, key: str, version: object) -> None:
        path = self._base + key
        try:
            if held_places.get().get(path) != place_of(path):
                async with self.lock(key):
                    await self._erase_version(key, version)
                return
            if not _has_version(path, version):
                raise self._conflict(key)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise store_error(error, key, "erase", self) from error
        await self.erase(key)

    async def erase_prefix(self, prefix: str) -> None:
        check_prefix(prefix)
        directory = (self._base + prefix).rstrip("/")
        with store_errors(prefix, "erase", self, OSError), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if prefix:
                remove_directory(directory)
                return
            entries = sorted(os.scandir(directory), key=lambda entry: entry.is_dir(follow_symlinks=False))
            for entry in entries:  # files first, because metadata documents are files
                with contextlib.suppress(FileNotFoundError):  # erased by another process
                    if entry.is_dir(follow_symlinks=False):
                        remove_directory(entry.path)
                    else:
                        persistently(os.unlink, entry.path)

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return [key for key, _ in self.directories.walk(check_prefix(prefix))]

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        return [key for key, _ in itertools.islice(self.directories.walk(check_prefix(prefix)), limit)]

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        sizes = {}
        for key, entry in self.directories.walk(check_prefix(prefix)):
            with contextlib.suppress(OSError):  # erased meanwhile, or a link that leads nowhere
                sizes[key] = entry.stat().st_size
        return sizes

    async def list_dir(self, prefix: str) -> Listing:
        check_prefix(prefix)
        keys, prefixes = [], []
        for entry in self.directories.scan(prefix):
            if leads_to_directory(entry):
                prefixes.append(f"{prefix}{entry.name}/")
            else:
                keys.append(prefix + entry.name)
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))


class _NeedsLock(Exception):
    """The file system cannot create a value in one step."""


class _Moved(WriteConflictError):
    """The directory of a value is not the one whose lock is held."""


def _describe_missing(path: Path, root: Path) -> str:
    """Return which directory of a path does not exist, and a similar name next to it."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    hint = suggest(missing.name, _names(missing.parent), "check the path", cutoff=0.8)  # endings are often equal
    subject = "the directory" if missing == root else f"directory {str(missing)!r}"
    return f"{subject} does not exist; {hint}"


def _names(directory: Path) -> list[str]:
    """Return the sorted names in a directory, at most some hundreds."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, 500))


def _has_version(path: str, version: object) -> bool:
    try:
        return version_of(os.stat(path)) == version
    except FileNotFoundError:
        return version is ABSENT and not os.path.islink(path)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)


def local_path(url: str) -> str:
    """Return the path of a ``file://`` URL, which has no query or fragment. Like in fsspec, the path may be relative."""
    from fsspec.implementations.local import LocalFileSystem

    path = unquote(url.replace("file://localhost/", "file:///", 1))
    return str(LocalFileSystem._strip_protocol(path))  # noqa: SLF001  # fsspec has no public function for it
