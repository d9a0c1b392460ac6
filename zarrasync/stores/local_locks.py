"""Locks on local files that hold among all threads and processes of a machine."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import struct
import sys
import tempfile
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import ModuleType, TracebackType

from zarrasync._concurrency import clock
from zarrasync._concurrency.retry import pause
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.local_files import PARTIAL, SAFE, process_token, temporary_names

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


_FLOCK = struct.Struct("hhqqi")
"""The system's ``struct flock``."""


_SHARED = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108  # it holds nothing
"""Where programs of all users meet, by preference."""


_LOCK_FILE = "zarrasync.lock"
_ENCODING = sys.getfilesystemencoding()


class FileLock:
    """Holds a value among all threads and processes of this machine. An async context manager.

    A lock on one byte of a file that all processes share; the byte's number comes from the value's path. The system
    frees it when its process ends, however that happens. Within the process a key lock comes first, so that nobody
    waits for the system who waits for a task of this process.
    """

    __slots__ = ("_handle", "_key_lock", "_place", "_seconds", "_token")

    def __init__(self, key_lock: AbstractAsyncContextManager[None, None], place: str, seconds: float) -> None:
        self._key_lock, self._place, self._seconds = key_lock, place, seconds

    async def __aenter__(self) -> None:
        await self._key_lock.__aenter__()
        try:
            self._handle = await _take(self._place, self._seconds)
        except BaseException:
            await self._key_lock.__aexit__(None, None, None)
            raise
        self._token = held_files.set(held_files.get() | {self._place})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held_files.reset(self._token)
        try:
            _let_go(self._handle, self._place)
        finally:
            await self._key_lock.__aexit__(kind, error, trace)


held_files: ContextVar[frozenset[str]] = ContextVar("zarrasync_held", default=frozenset())
"""The places that the present call holds."""


async def _take(place: str, seconds: float) -> int:
    """Lock a place among processes; what to let go of.

    Raises:
        WriteConflictError: If another process has it for so many seconds; 0 for no limit.
    """
    if fcntl is None:
        return -1
    handle = _open_lock_file()
    try:
        wait, end = 0.0001, 0.0
        while True:
            try:
                _lock_byte(handle, place, fcntl.LOCK_EX)
                return handle
            except (BlockingIOError, PermissionError) as error:  # another process has it
                end = end or clock.monotonic() + (seconds or math.inf)
                if clock.monotonic() > end:
                    raise WriteConflictError(
                        f"another process has been writing {place!r} for more than {seconds:g} s; it may be stopped",
                        key=place,
                    ) from error
                await pause(wait)
                wait = min(2 * wait, 0.01)
    except BaseException:
        os.close(handle)
        raise


def remove_folder(directory: str) -> None:
    """Remove a directory, which is gone at once: who is killed meanwhile leaves nothing that could be taken for data."""
    gone = f"{directory}.{process_token()}-{next(temporary_names):x}{PARTIAL}"
    try:
        if os.path.islink(directory):
            gone = f"{directory}/"  # what it leads to: the link stays
        else:
            os.rename(directory, gone)
    except FileNotFoundError:
        raise
    except OSError:  # it is where something is mounted, or in use (on Windows)
        gone = directory
    shutil.rmtree(gone)


def _open_lock_file() -> int:
    """Open the file whose bytes are locked: the same for all processes, whatever their temporary directory is.

    Raises:
        StoreError: If there is no directory for it.
    """
    failures = list[str]()
    for folder in (*_SHARED, ""):
        if not folder and failures:
            break  # the temporary directory of this process is for systems without shared ones
        path = f"{folder or tempfile.gettempdir()}/{_LOCK_FILE}"
        try:
            return os.open(path, os.O_RDWR | SAFE)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path)):
                continue
        except OSError as error:
            failures.append(str(error))
            break  # others may use it
        try:
            return _create_lock_file(path)
        except OSError as error:  # in a container /tmp may be read-only
            failures.append(str(error))
            if os.path.lexists(path):
                break
    raise StoreError(
        f"there is no place for the file by whose locks processes keep out of each other's way: {failures}"
    )


def _create_lock_file(path: str) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | SAFE, 0o666)
    with contextlib.suppress(PermissionError):  # for other users, who need write access, too
        os.fchmod(handle, 0o666)
    return handle


def _let_go(handle: int, place: str) -> None:
    if fcntl is None:
        return
    try:  # closing alone would not do if a child was forked meanwhile
        _lock_byte(handle, place, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _lock_byte(handle: int, place: str, kind: int) -> None:
    """Lock or unlock the byte of the lock file that stands for a place; fails if another process has it."""
    assert fcntl is not None
    spot = int.from_bytes(hashlib.blake2b(place.encode(_ENCODING, "surrogateescape"), digest_size=7).digest(), "little")
    if hasattr(fcntl, "F_OFD_SETLK"):  # Linux: a lock of the open file, not of the process
        wanted = fcntl.F_UNLCK if kind == fcntl.LOCK_UN else fcntl.F_WRLCK
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(wanted, os.SEEK_SET, spot, 1, 0))
    else:
        fcntl.lockf(handle, kind | (fcntl.LOCK_NB if kind != fcntl.LOCK_UN else 0), 1, spot)
