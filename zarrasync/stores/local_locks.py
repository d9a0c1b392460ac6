"""Locks on local files that exclude all other threads and processes of the machine."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
import sys
import tempfile
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import ModuleType, TracebackType

from zarrasync._concurrency import clock
from zarrasync._concurrency.retry import pause
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.local_files import SAFE_FLAGS

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["BETWEEN_PROCESSES", "FileLock", "locked_paths"]

BETWEEN_PROCESSES = fcntl is not None
"""Whether locks exclude other processes."""
_ENCODING = sys.getfilesystemencoding()
_FLOCK = struct.Struct("hhqqi")
"""The system's ``struct flock``."""
_SHARED_DIRECTORIES = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108  # the lock file is empty
"""Directories that programs of all users can write to, in order of preference."""
_LOCK_FILE = "zarrasync.lock"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.01

locked_paths: ContextVar[frozenset[str]] = ContextVar("zarrasync_locked_paths", default=frozenset())
"""The paths that the current call has locked."""


class FileLock:
    """A lock on a file among all threads and processes of this machine. An async context manager.

    It locks one byte of a file that all processes share, at a position derived from the file's path. The system
    releases the lock when the process ends, for whatever reason. Within the process a key lock is taken first, so that
    no thread waits in a system call for a task of the same process.

    Args:
        key_lock: The process-wide lock.
        path: The real path of the file.
        seconds: How long to wait for other processes; 0 for no limit.

    Raises:
        WriteConflictError: On entering, if another process holds the lock for longer.
        StoreError: On entering, if the lock file cannot be created.
    """

    __slots__ = ("_handle", "_key_lock", "_path", "_seconds", "_token")

    def __init__(self, key_lock: AbstractAsyncContextManager[None, None], path: str, seconds: float) -> None:
        self._key_lock, self._path, self._seconds = key_lock, path, seconds

    async def __aenter__(self) -> None:
        await self._key_lock.__aenter__()
        try:
            self._handle = await _acquire(self._path, self._seconds)
        except BaseException:
            await self._key_lock.__aexit__(None, None, None)
            raise
        self._token = locked_paths.set(locked_paths.get() | {self._path})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        locked_paths.reset(self._token)
        try:
            _release(self._handle, self._path)
        finally:
            await self._key_lock.__aexit__(kind, error, trace)


async def _acquire(path: str, seconds: float) -> int:
    """Lock a path, and return the descriptor of the lock file."""
    if fcntl is None:
        return -1
    handle = _open_lock_file()
    try:
        wait, end = _FIRST_PAUSE, 0.0
        while True:
            try:
                _lock_byte(handle, path, fcntl.LOCK_EX)
                return handle
            except (BlockingIOError, PermissionError) as error:  # locked by another process
                end = end or clock.monotonic() + (seconds or math.inf)
                if clock.monotonic() > end:
                    raise WriteConflictError(
                        f"another process has been writing {path!r} for more than {seconds:g} s; it may be stopped",
                        key=path,
                    ) from error
                await pause(wait)
                wait = min(2 * wait, _LONGEST_PAUSE)
    except BaseException:
        os.close(handle)
        raise


def _release(handle: int, path: str) -> None:
    if fcntl is None:
        return
    try:  # closing is not enough if a child was forked meanwhile
        _lock_byte(handle, path, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _lock_byte(handle: int, path: str, operation: int) -> None:
    """Lock or unlock the byte of the lock file that represents a path.

    Raises:
        BlockingIOError, PermissionError: If another process holds the lock.
    """
    assert fcntl is not None
    position = int.from_bytes(
        hashlib.blake2b(path.encode(_ENCODING, "surrogateescape"), digest_size=7).digest(), "little"
    )
    if hasattr(fcntl, "F_OFD_SETLK"):  # Linux: a lock of the open file, not of the process
        kind = fcntl.F_UNLCK if operation == fcntl.LOCK_UN else fcntl.F_WRLCK
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, position, 1, 0))
    else:
        fcntl.lockf(handle, operation | (fcntl.LOCK_NB if operation != fcntl.LOCK_UN else 0), 1, position)


def _open_lock_file() -> int:
    """Open the lock file, which is the same for all processes, whatever their temporary directory is.

    Raises:
        StoreError: If it cannot be created.
    """
    failures = list[str]()
    for directory in (*_SHARED_DIRECTORIES, ""):
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
            return _create_lock_file(path)
        except OSError as error:  # in a container, /tmp may be read-only
            failures.append(str(error))
            if os.path.lexists(path):
                break
    raise StoreError(f"cannot create or open the lock file that processes share: {'; '.join(failures)}")


def _create_lock_file(path: str) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o666)
    with contextlib.suppress(PermissionError):  # so that other users can lock too
        os.fchmod(handle, 0o666)
    return handle
