"""A store of local files."""

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

from zarrasync import config
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import WriteConflictError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import ABSENT, Listing, Request, Store, Value
from zarrasync.stores.errors import store_error
from zarrasync.stores.local_files import (
    CLOEXEC,
    ONE_CALL,
    PARTIAL,
    READ,
    process_token,
    read_exactly,
    readv,
    sync_directory,
    temporary_names,
    version_of,
    write_all,
)
from zarrasync.stores.local_locks import (
    FileLock,
    held_files,
    remove_folder,
)

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["LocalStore", "local_path"]


class LocalStore(Store):
    """Files under a directory; a key is a path relative to it.

    A value gets its name in one step after it is complete (temporary file, then rename), so a reader
    or a crash never sees half of one. Conditional writes and locks hold among the threads and processes of a machine
    that see the same ``/tmp`` (``/dev/shm`` or ``/var/tmp`` where that can not be written), where the file lies whose bytes
    they lock (on Windows among threads; creating, ``if_version=ABSENT``, among processes too). Machines that share a disk
    do not lock each other out.

    Args:
        root: The directory. It is made when the first value is written.
        fsync: Flush each file to the disk before it gets its name.
    """

    blocking = True
    near = True
    conditional = True
    exclusive = fcntl is not None
    concurrency = 16

    def __init__(self, root: str | os.PathLike[str], *, fsync: bool | None = None) -> None:
        self._base = f"{os.path.abspath(os.fspath(root)).rstrip('/')}/"
        settings = config.get()
        self._fsync = settings.fsync if fsync is None else fsync
        self._patience = settings.total_timeout

    @cached_property
    def root(self) -> Path:
        """The directory."""
        return Path(self._base)

    @cached_property
    def _real(self) -> str:
        return os.path.realpath(self._base)

    @property
    def identity(self) -> Hashable:
        return ("file", self._real)

    def location(self, key: str) -> Hashable:
        return ("file", f"{self._real}/{key}")

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def describe(self, path: str) -> str:
        place = self.root / path
        if str(self.root).rpartition("/")[2].startswith("~") or "/~" in str(self.root):
            return f"'~' is not expanded: {os.path.expanduser('~')!r} is this user's home directory"
        if place.is_file():
            return f"{str(place)!r} is a file"
        if not place.exists():
            return f"there is no directory {str(place)!r}"
        names = sorted(entry.name for entry in itertools.islice(os.scandir(place), 100))
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        return f"{str(place)!r} is a directory that holds {shown or 'nothing'}"

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        found: list[Value | None] = []
        opened, handle = None, -1
        try:
            for request in requests:
                if request.key != opened:
                    if handle >= 0:
                        os.close(handle)
                    opened, handle = request.key, -1
                    handle = self._open(request.key)
                found.append(None if handle < 0 else self._read(handle, request, versions))
        finally:
            if handle >= 0:
                os.close(handle)
        return found

    async def fetch_values(self, keys: Sequence[str], spaces: Sequence[Buffer | None]) -> builtins.list[Buffer | None]:
        # The loop that small chunks spend their time in: open, read, close and nothing else.
        if readv is None:
            return await super().fetch_values(keys, spaces)
        base, spare, found = self._base, bytearray(1), list[Buffer | None]()
        for key, space in zip(keys, spaces, strict=True):
            count, room = -1, 0
            if space is not None:
                try:
                    handle = os.open(base + key, READ)
                    try:
                        # One byte more than fits tells a value that just fills the memory from a longer one.
                        count, room = readv(handle, (space, spare)), len(space)
                    finally:
                        os.close(handle)
                except (FileNotFoundError, NotADirectoryError):
                    found.append(None)
                    continue
                except OSError:
                    pass  # ``fetch`` below meets it again, and says what it is
            if space is not None and count == room:
                found.append(space)
            elif space is not None and 0 <= count < min(room, ONE_CALL):
                found.append(space[:count])
            else:
                (value,) = await self.fetch([Request(key)])
                found.append(None if value is None else value.data)
        return found

    def _open(self, key: str) -> int:
        try:
            return os.open(self._base + key, READ)
        except (FileNotFoundError, NotADirectoryError):
            return -1
        except OSError as error:
            if isinstance(error, PermissionError) and os.path.isdir(self._base + key):
                return -1  # Windows does not open directories
            raise store_error(error, key, "read", self) from error

    def _read(self, handle: int, request: Request, versions: bool) -> Value | None:
        try:
            state = os.fstat(handle)
            size = state.st_size
            start = max(0, size - (request.length or 0)) if request.suffix else min(request.start, size)
            length = size - start if request.length is None else min(request.length, size - start)
            version = version_of(state) if versions else None
            return Value(read_exactly(handle, start, length, request.into), version, size)
        except IsADirectoryError:
            return None
        except OSError as error:
            raise store_error(error, request.key, "read", self) from error

    # -------------------------------------------------------------- writing

    def lock(self, key: str) -> FileLock:
        return FileLock(super().lock(key), f"{self._real}/{key}", self._patience)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        if if_version is None or if_version is ABSENT or f"{self._real}/{key}" in held_files.get():
            return self._put(key, data, if_version)
        async with self.lock(key):
            return self._put(key, data, if_version)

    def _put(self, key: str, data: Buffer, if_version: object) -> object:
        path = self._base + key
        temporary = f"{path}.{process_token()}-{next(temporary_names):x}{PARTIAL}"
        try:
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC, 0o666)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC, 0o666)
            try:
                try:
                    write_all(handle, data)
                    if self._fsync:
                        os.fsync(handle)
                    version = None if if_version is None else version_of(os.fstat(handle))
                finally:
                    os.close(handle)
                self._publish(temporary, path, key, if_version)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
            if self._fsync:
                sync_directory(os.path.dirname(path))
            return version
        except WriteConflictError:
            raise
        except OSError as error:
            raise store_error(error, key, "write", self) from error

    def _publish(self, temporary: str, path: str, key: str, if_version: object) -> None:
        if if_version is None:
            os.replace(temporary, path)
            return
        if if_version is ABSENT:
            try:
                os.link(temporary, path)  # fails if the name is taken, whoever took it
            except FileExistsError:
                if os.path.isdir(path):
                    raise IsADirectoryError(errno.EISDIR, "a directory has its name", path) from None
                raise _conflict(key) from None
            os.unlink(temporary)
            return
        if not self._is_still(path, if_version):
            raise _conflict(key)
        os.replace(temporary, path)

    def _is_still(self, path: str, version: object) -> bool:
        try:
            return version_of(os.stat(path)) == version
        except FileNotFoundError:
            return False

    async def erase(self, key: str, *, if_version: object = None) -> None:
        check_key(key)
        if if_version is not None and f"{self._real}/{key}" not in held_files.get():
            async with self.lock(key):
                await self.erase(key, if_version=if_version)
            return
        if if_version is not None and not self._is_still(self._base + key, if_version):
            raise _conflict(key)
        try:
            os.unlink(self._base + key)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass
        except OSError as error:
            if not self._is_directory(key):
                raise store_error(error, key, "erase", self) from error

    def _is_directory(self, key: str) -> bool:
        return os.path.isdir(self._base + key)

    async def erase_prefix(self, prefix: str) -> None:
        check_prefix(prefix)
        directory = (self._base + prefix).rstrip("/")
        try:
            if prefix:
                remove_folder(directory)
                return
            entries = sorted(os.scandir(directory), key=lambda entry: entry.is_dir(follow_symlinks=False))
            for entry in entries:  # files first, as documents are such
                with contextlib.suppress(FileNotFoundError):  # somebody else was faster
                    (remove_folder if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise store_error(error, prefix, "erase", self) from error

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return [key for key, _ in self._walk(check_prefix(prefix))]

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        sizes = {}
        for key, entry in self._walk(check_prefix(prefix)):
            with contextlib.suppress(FileNotFoundError):  # erased since
                sizes[key] = entry.stat().st_size
        return sizes

    async def pending(self, key: str) -> bytes | None:
        try:
            return self._note_on(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error(error, key, "read", self) from error

    async def set_pending(self, key: str, note: bytes | None) -> None:
        try:
            if note is None:
                self._note_on(key).unlink(missing_ok=True)
            else:
                self._note_on(key).write_bytes(note)
        except OSError as error:
            raise store_error(error, key, "write", self) from error

    def _note_on(self, key: str) -> Path:
        """The file that tells what was begun with a value."""
        return Path(f"{self._base}{key}.pending{PARTIAL}")

    async def unfinished(self, prefix: str) -> builtins.list[str]:
        folders = [prefix]
        for folder in folders:
            folders.extend(f"{folder}{entry.name}/" for entry in self._scan(folder) if entry.is_dir())
        return [f"{folder}{entry.name}" for folder in folders for entry in self._scan(folder, unfinished=True)]

    def _walk(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        waiting = [prefix]
        while waiting:
            under = waiting.pop()
            for entry in self._scan(under):
                if entry.is_dir():
                    waiting.append(f"{under}{entry.name}/")
                else:
                    yield under + entry.name, entry

    async def list_dir(self, prefix: str) -> Listing:
        check_prefix(prefix)
        keys, prefixes = [], []
        for entry in self._scan(prefix):
            if entry.is_dir():
                prefixes.append(f"{prefix}{entry.name}/")
            else:
                keys.append(prefix + entry.name)
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    def _scan(self, prefix: str, *, unfinished: bool = False) -> Iterable[os.DirEntry[str]]:
        try:
            with os.scandir(self._base + prefix) as entries:
                return [entry for entry in entries if entry.name.endswith(PARTIAL) == unfinished]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise store_error(error, prefix, "list", self) from error


def _conflict(key: str) -> WriteConflictError:
    return WriteConflictError(f"{key!r} was changed meanwhile", key=key)


def local_path(url: str) -> str:
    """The path of a ``file://`` URL, which may be a relative one, as fsspec has it; it has no query and no fragment."""
    from fsspec.implementations.local import LocalFileSystem

    return str(LocalFileSystem._strip_protocol(unquote(url.replace("file://localhost/", "file:///", 1))))
