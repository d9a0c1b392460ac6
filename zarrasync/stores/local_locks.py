"""Locks on local files that exclude all other threads and processes of the machine."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import struct
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, ModuleType, TracebackType
from typing import TypeAlias

from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import pause
from zarrasync._concurrency.fork import reset_in_child, thread_lock
from zarrasync._concurrency.interrupts import of_call
from zarrasync._concurrency.locks import KeyLocks
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.local_files import MOST_REMOVALS, SAFE_FLAGS

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

BETWEEN_PROCESSES = fcntl is not None
"""Whether locks exclude other processes."""
_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
"""On Linux, the command that gives a lock to the open file, and not to the process."""
_FLOCK = struct.Struct("hhqqi")
"""The system's ``struct flock``."""
_SHARED_DIRECTORIES = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108  # the lock file is empty
"""Directories that programs of all users can write to, in order of preference."""
_LOCK_FILE = "zarrasync.lock"
_handles: list[int] = []
"""Descriptors of the lock file; the last one is in use, the others are of files that have been deleted."""
_opening = thread_lock()


def lock_file() -> int:
    """Return the descriptor of the lock file, which stays open.

    Raises:
        StoreError: If it cannot be created.
    """
    if fcntl is None:
        return -1
    if _handles:
        handle = _handles[-1]
        if os.fstat(handle).st_nlink:
            return handle
    with _opening:
        if not _handles or not os.fstat(_handles[-1]).st_nlink:
            handle = _open()
            with contextlib.suppress(OSError):
                os.utime(handle)  # services that clean temporary directories delete old files
            _handles.append(handle)  # the former one stays open: other threads may have locked its bytes
        return _handles[-1]


def lock_byte(handle: int, position: int) -> bool:
    """Lock a byte of the lock file; ``False`` if another process holds it.

    Raises:
        OSError: If the system has no more locks.
    """
    if fcntl is None:
        return True
    try:
        if _SET_LOCK is not None:
            fcntl.fcntl(handle, _SET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, position, 1, 0))
        else:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock_byte(handle: int, position: int) -> None:
    """Unlock a byte that this process has locked. A forked child has none of its parent's locks."""
    if fcntl is None or handle not in _handles:
        return
    if _SET_LOCK is not None:
        fcntl.fcntl(handle, _SET_LOCK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, position, 1, 0))
    else:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, position)


def describe_holder(position: int) -> str:
    """Return the process that has locked a byte, for an error message. Only Linux has that information."""
    lock = re.compile(rf"^lock:.*WRITE.* {position} {position}$", re.MULTILINE)
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        with contextlib.suppress(OSError):  # another user's process, or one that has ended
            if lock.search(info.read_text()):
                process = info.parents[1]
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return "another process"


def _open(directories: Sequence[str] = _SHARED_DIRECTORIES) -> int:
    """Open the lock file, which is the same for all processes, whatever their temporary directory is.

    Args:
        directories: Directories that all processes share, in order of preference.

    Raises:
        StoreError: If it cannot be created.
    """
    failures = list[str]()
    for directory in (*directories, ""):
        if not directory and failures:
            break  # the process's temporary directory is for systems without shared ones
        path = f"{directory or tempfile.gettempdir()}/{_LOCK_FILE}"
        try:  # without O_CREAT, which systems may refuse for an existing file of another user
            return os.open(path, os.O_RDWR | SAFE_FLAGS)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path)):
                continue
        except OSError as error:
            failures.append(str(error))
            break  # other processes may use this file
        try:
            return _create(path)
        except OSError as error:  # in a container, /tmp may be read-only
            failures.append(str(error))
            if os.path.lexists(path):
                break
    raise StoreError(f"cannot create or open the lock file that processes share: {'; '.join(failures)}")


def _create(path: str) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o666)
    with contextlib.suppress(PermissionError):  # so that other users can lock too
        os.fchmod(handle, 0o666)
    return handle


@reset_in_child
def _close_in_child() -> None:
    """Close the descriptors, so that a child that outlives its parent does not keep the parent's locks."""
    while _handles:
        with contextlib.suppress(OSError):
            os.close(_handles.pop())


_FIRST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.01
_FACTORS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xAEF17502108EF2D9)
"""Odd numbers without a pattern, the same as in the compiled kernel (files.c)."""


Place: TypeAlias = tuple[int, int, str]
"""Where a file is, whatever path leads there: through symbolic links, bind mounts, or names in another case.

Device and inode of the directory, and the name in it. The name is folded, because some filesystems do not distinguish
case or Unicode forms.
"""

held_places: ContextVar[Mapping[str, Place]] = of_call(
    ContextVar("zarrasync_held_places", default=MappingProxyType({})), MappingProxyType({})
)
"""The places that the current call has locked, by the paths that it used."""


def place_of(path: str) -> Place:
    """Return the place of a file. Below a directory that does not exist, it is a path relative to one that does.

    Raises:
        OSError: If the directory cannot be examined.
    """
    directory, _, name = path.rpartition("/")
    while True:
        try:
            state = os.stat(directory or "/")
            return state.st_dev, state.st_ino, name.lower() if name.isascii() else _fold(name)
        except (FileNotFoundError, NotADirectoryError):
            directory, missing = os.path.split(directory)
            if not missing:
                raise
            name = f"{missing}/{name}"


def places_of(paths: Iterable[str], create: Callable[[str], object]) -> list[Place]:
    """Return the places of files. Each directory is examined once.

    Args:
        paths: The paths of the files.
        create: Creates a directory that does not exist. Otherwise, the places below it would change with its creation.

    Raises:
        OSError: If a directory cannot be examined.
    """
    known, places = dict[str, tuple[int, int]](), list[Place]()
    for path in paths:
        directory, _, name = path.rpartition("/")
        if directory not in known:
            known[directory] = _directory_place(directory, create)
        places.append((*known[directory], name.lower() if name.isascii() else _fold(name)))
    return places


def _directory_place(directory: str, create: Callable[[str], object]) -> tuple[int, int]:
    for _ in range(MOST_REMOVALS):
        try:
            state = os.stat(directory or "/")
        except (FileNotFoundError, NotADirectoryError):
            create(directory)
        else:
            return state.st_dev, state.st_ino
    raise FileNotFoundError(errno.ENOENT, "other processes remove the directory", directory)


def lock_position(place: Place) -> int:
    """Return the position of the byte that stands for a place. The compiled kernel computes the same one.

    It is a hash: if two threads held the locks of two places with one position, the first would release both.
    """
    device, inode, name = place
    number = (device * _FACTORS[0] + inode) * _FACTORS[1] + zlib.crc32(os.fsencode(name))
    return (number * _FACTORS[2] % (1 << 64)) >> 2


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


class FileLocks:
    """Locks on files among all threads and processes of this machine. An async context manager.

    It locks the places of the files, and not their paths. Within the process key locks are taken first, so that no thread
    waits in a system call for a task of the same process. Then one byte per file is locked in a file that all processes
    share, at a position derived from the place. The system releases it when the process ends, for whatever reason. All
    calls take locks in one order, so that they do not wait for each other forever.

    If a directory is replaced while the lock is held, the lock stays with the replaced directory. So a change of a
    value first compares the place with the one in ``held_places``.

    Args:
        paths: The paths of the files.
        find: Returns their places. It may create their directories, on which the places depend.
        seconds: How long to wait for other processes; 0 for no limit.

    Raises:
        WriteConflictError: On entering, if another process holds a lock for longer.
        StoreError: On entering, if a directory cannot be examined, or the lock file cannot be opened.
    """

    __slots__ = ("_bytes", "_find", "_key_locks", "_paths", "_seconds", "_token")

    def __init__(self, paths: Sequence[str], find: Callable[[], Sequence[Place]], seconds: float) -> None:
        self._paths, self._find, self._seconds = paths, find, seconds
        self._key_locks: KeyLocks | None = None
        self._bytes: list[tuple[int, int]] = []

    async def __aenter__(self) -> None:
        held = held_places.get()
        try:
            places = self._find()
            while await self._lock(places, held) and (current := self._find()) != places:
                await self._unlock()
                places = current  # a directory was replaced meanwhile
        except StoreError:
            await self._unlock()
            raise
        except OSError as error:
            await self._unlock()
            raise StoreError(f"could not lock {self._paths[0]!r}: {error}", key=self._paths[0]) from error
        self._token = held_places.set({**held, **dict(zip(self._paths, places, strict=True))})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held_places.reset(self._token)
        await self._unlock()

    async def _lock(self, places: Sequence[Place], held: Mapping[str, Place]) -> bool:
        """Lock places that this call has not locked yet; return whether that took waiting."""
        paths = dict(zip(places, self._paths, strict=True))
        for place in held.values():
            paths.pop(place, None)
        key_locks = KeyLocks(paths.keys)
        await key_locks.__aenter__()
        self._key_locks, waited = key_locks, key_locks.waited
        try:
            file = lock_file()
            # Linux searches the locks of a file from the lowest byte on, so that this order is the quickest.
            positions = dict(zip(map(lock_position, paths), paths.values(), strict=True))
            for position in sorted(positions, reverse=True):
                if not lock_byte(file, position):
                    waited = True
                    file = await _acquire(position, positions[position], self._seconds)
                self._bytes.append((file, position))
        except BaseException:
            await self._unlock()
            raise
        return waited

    async def _unlock(self) -> None:
        try:
            while self._bytes:
                unlock_byte(*self._bytes.pop())
        finally:
            if self._key_locks is not None:
                await self._key_locks.__aexit__(None, None, None)
                self._key_locks = None


async def _acquire(position: int, path: str, seconds: float) -> int:
    """Lock a byte; return the descriptor of the lock file."""
    wait, end = _FIRST_PAUSE, 0.0
    while True:
        file = lock_file()
        if lock_byte(file, position):
            return file
        end = end or clock.monotonic() + (seconds or math.inf)
        if clock.monotonic() > end:
            raise WriteConflictError(
                f"{describe_holder(position)} has been writing {path!r} for more than {seconds:g} s; it may be suspended",
                key=path,
            )
        await pause(wait)
        wait = min(2 * wait, _LONGEST_PAUSE)
