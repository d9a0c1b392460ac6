"""The file by whose bytes processes lock values, and who holds them.

A process opens the file once. On Linux the locks belong to the open file, elsewhere to the process. A forked child
closes its copy of the descriptor at once, because an open file's locks last until all its descriptors are closed.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from zarrasync._concurrency.fork import reset_in_child, thread_lock
from zarrasync.errors import StoreError
from zarrasync.stores.local_files import SAFE_FLAGS

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["BETWEEN_PROCESSES", "describe_holder", "lock_byte", "lock_file", "unlock_byte"]

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
