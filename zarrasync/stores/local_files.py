"""Low-level access to local files: complete reads and writes, names of temporary files, removal of directories."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from zarrasync._concurrency import clock
from zarrasync._util.memory import check_budget
from zarrasync.codecs.spec import Buffer
from zarrasync.model.paths import TEMPORARY_SUFFIX

CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
READ_FLAGS = os.O_RDONLY | CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # opening a named pipe would wait for a writer
SAFE_FLAGS = CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
SINGLE_READ_LIMIT = 1 << 30
"""Size in bytes up to which one system call reads everything up to the end of a file (Linux stops at 2 GiB)."""

MOST_REMOVALS = 10
"""How often a directory is created again that other processes remove while it is empty."""

_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds between attempts to rename or remove a file that another process has open."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EINVAL}
"""Errors of file systems that cannot make another hard link."""

readv = getattr(os, "readv", None)
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def version_of(state: os.stat_result) -> object:
    """Return the version of a file."""
    return (state.st_mtime_ns, state.st_ino, state.st_size)


def lineage_of(path: str) -> tuple[Hashable, ...]:
    """Return identities of a file or directory and of all directories above it, the nearest first.

    Existing ones are identified by device and inode, so that symbolic links, bind mounts and other spellings of a name
    make no difference. Missing ones are identified by their names below the nearest existing directory.
    """
    place = os.path.realpath(path)
    missing: list[str] = []
    while not os.path.exists(place):
        place, name = os.path.split(place)
        missing.insert(0, name)
    state = os.stat(place)
    nearest = ("inode", state.st_dev, state.st_ino)
    identities: list[Hashable] = [(*nearest, *missing[:count]) for count in range(len(missing), -1, -1)]
    while (above := os.path.dirname(place)) != place:
        place, state = above, os.stat(above)
        identities.append(("inode", state.st_dev, state.st_ino))
    return tuple(identities)


def persistently(change: Callable[..., object], *paths: str) -> None:
    """Rename or remove a file. Windows refuses that for moments in which a reader or a virus scanner has it open.

    Raises:
        OSError: If it fails, also after some attempts if the permission is missing.
    """
    for pause in _PAUSES:
        try:
            change(*paths)
        except PermissionError:
            clock.current().sleep_blocking(pause)
        else:
            return
    change(*paths)


def give_new_name(path: str, new_path: str) -> bool:
    """Rename a file unless the new name exists, in one step, also against other machines.

    Returns:
        Whether the file system can do that. If not, nothing has changed.

    Raises:
        FileExistsError: If the new name exists.
        OSError: If the file cannot be renamed.
    """
    try:
        os.link(path, new_path)
    except FileExistsError:
        raise
    except OSError as error:  # exFAT and some network file systems have no hard links
        if error.errno not in _NO_LINKS:
            raise
        return _rename_new(path, new_path)
    persistently(os.unlink, path)
    return True


def _rename_new(path: str, new_path: str) -> bool:
    """Rename a file unless the new name exists; ``False`` if the system or the file system cannot do that."""
    if os.name == "nt":
        persistently(os.rename, path, new_path)  # which fails there if the name exists
        return True
    rename = _exclusive_rename()
    if rename is None:
        return False
    if rename(os.fsencode(path), os.fsencode(new_path)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_LINKS:
        return False
    raise OSError(number, os.strerror(number), path, None, new_path)


@cache
def _exclusive_rename() -> Callable[[bytes, bytes], int] | None:
    """Return a function of the C library that renames a file unless the new name exists, if there is one."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        return lambda path, new_path: int(library.renamex_np(path, new_path, 4))  # RENAME_EXCL
    if not hasattr(library, "renameat2"):
        return None
    here = -100  # AT_FDCWD
    return lambda path, new_path: int(library.renameat2(here, path, here, new_path, 1))  # RENAME_NOREPLACE


def read_fully(handle: int, start: int, length: int, into: Buffer | None) -> Buffer:
    """Return bytes of an open file; fewer than requested only if the file was truncated meanwhile.

    Args:
        handle: File descriptor.
        start: Position of the first byte.
        length: Number of bytes.
        into: Memory to read into, if it is large enough and the system supports that.
    """
    if into is not None and length <= len(into) and hasattr(os, "preadv"):
        view, done = memoryview(into)[:length], 0
        while done < length:
            count = os.preadv(handle, [view[done:]], start + done)
            if not count:
                break
            done += count
        return view[:done]
    if hasattr(os, "pread"):
        first = os.pread(handle, length, start)
        if len(first) == length:
            return first
        parts, start = [first], start + len(first)
        while parts[-1] and sum(map(len, parts)) < length:  # one call reads at most 2 GiB
            parts.append(os.pread(handle, length - sum(map(len, parts)), start))
            start += len(parts[-1])
        return b"".join(parts)
    with open(os.dup(handle), "rb") as file:
        file.seek(start)
        return file.read(length)


def check_regular(state: os.stat_result, path: str) -> None:
    """Check that a path leads to a file with content.

    Raises:
        OSError: If it is a directory, or something else whose reads may wait or never end.
    """
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(state.st_mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(state.st_mode)), "not a regular file")
        raise OSError(errno.EINVAL, f"it is {kind}, and not a file; remove it", path)


def check_missing(path: str) -> None:
    """Check that a file is absent, after opening it has failed so.

    Raises:
        OSError: If a link in its place, or on the way to it, leads nowhere.
    """
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        above = os.path.dirname(path)
        if above != path and not os.path.exists(above):
            check_missing(above)
        return
    if is_link and not os.path.exists(path):
        raise OSError(errno.ENOLINK, "it is a link that leads nowhere; remove it, or restore its target", path)


def open_regular_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: If it cannot be opened, or is something other than a file.
    """
    handle = os.open(path, READ_FLAGS)
    try:
        check_regular(os.fstat(handle), os.fspath(path))
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_regular_file(path: str, limit: int | None = None) -> Buffer:
    """Return the content of a file.

    Raises:
        OSError: If it cannot be read, or is something other than a file.
        BudgetExceeded: If it is larger than ``limit`` bytes.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None:
            check_budget(limit, size, what="file")
        return read_fully(file.fileno(), 0, size, None)


def write_fully(handle: int, data: Buffer) -> None:
    """Write all bytes to an open file."""
    view = memoryview(data)
    while len(view) > 0:
        view = view[os.write(handle, view) :]


def write_regular_file(path: str, data: Buffer) -> None:
    """Write a file in place.

    Raises:
        OSError: If it cannot be written, or is something other than a file.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | SAFE_FLAGS | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        check_regular(os.fstat(handle), path)
        os.ftruncate(handle, 0)
        write_fully(handle, data)
    finally:
        os.close(handle)


def sync_directory(path: str) -> None:
    """Flush the entries of a directory to the disk."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: str, *, fsync: bool) -> int:
    """Create a directory, and those above it, if they do not exist. Return the number of new directories.

    Other processes may remove the directories while they are empty.

    Args:
        path: The directory.
        fsync: Whether to flush the entry of each new directory to the disk.

    Raises:
        OSError: If it cannot be created.
    """
    parent, above = os.path.dirname(path), 0
    for attempt in range(MOST_REMOVALS):
        try:
            os.mkdir(path)
            break
        except FileNotFoundError:
            if attempt + 1 == MOST_REMOVALS:
                raise
            if not os.path.isdir(parent):
                above = make_directory(parent, fsync=fsync)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return above
    if fsync:
        sync_directory(parent)
    return above + 1


def remove_directory(path: str) -> None:
    """Remove a directory with its content. It is renamed first, so that an interruption leaves no partial data.

    Raises:
        NotADirectoryError: If it does not exist, or is a file.
        OSError: If it cannot be removed.
    """
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    removed = temporary_path(path)
    try:
        if os.path.islink(path):
            removed = f"{path}/"  # remove the content of the target, and keep the link
        else:
            os.rename(path, removed)
    except FileNotFoundError:
        raise
    except OSError:  # a mount point, or in use (on Windows)
        removed = path
    shutil.rmtree(removed)


# ------------------------------------------------------------------ temporary files


_ABANDONED_SECONDS = 86_400.0
"""Age in seconds from which on a file of another machine counts as abandoned."""
_OWNER = re.compile(rf"\.([0-9a-f]+)\.([0-9a-f]+)\.([0-9a-f]+)-[0-9a-f]+{re.escape(TEMPORARY_SUFFIX)}\Z")
_NAME = re.compile(r"([0-9a-f]+)\.([0-9a-f]{1,8})\.([0-9a-f]+)")
"""The name of a process: its machine, number and start."""
_NOTE = f".pending{TEMPORARY_SUFFIX}"

_counter = itertools.count()
_owner, _owner_pid = "", 0


def temporary_path(path: str) -> str:
    """Return a path next to ``path`` for a temporary file. No other process uses it, even on shared disks."""
    return f"{path}.{process_name()}-{next(_counter):x}{TEMPORARY_SUFFIX}"


def process_name() -> str:
    """Return a name of this process that no other process has, also not on other machines."""
    global _owner, _owner_pid
    pid = os.getpid()
    if pid != _owner_pid:  # the first call, or the first one after a fork
        start = _start_time(pid) or os.urandom(4).hex()
        _owner, _owner_pid = f"{_machine()}.{pid:x}.{start}", pid
    return _owner


def is_process_name(name: str) -> bool:
    """Return whether a string is one that ``process_name`` can return."""
    return _NAME.fullmatch(name) is not None


def is_process_gone(name: str) -> bool:
    """Return whether the process with a name has ended. ``False`` if that is unknown, such as on another machine."""
    parts = _NAME.fullmatch(name)
    return parts is not None and parts[1] == _machine() and _is_gone(int(parts[2], 16), parts[3])


def is_abandoned(path: str) -> bool:
    """Return whether the owner of a temporary file or directory is gone. ``False`` if that is unknown.

    A writer whose file is removed by mistake raises an error, because it cannot rename the file.
    """
    if path.endswith(_NOTE):
        return False  # the next append needs it
    owner = _OWNER.search(path)
    if owner is not None and owner[1] == _machine():
        return _is_gone(int(owner[2], 16), owner[3])
    try:
        state = os.lstat(path)
    except OSError:
        return False
    return clock.wall_time() - max(state.st_mtime, state.st_ctime) > _ABANDONED_SECONDS


def _is_gone(pid: int, start: str) -> bool:
    """Return whether a process of this machine has ended. Its number may belong to another process now."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # a process of another user
    return _start_time(pid) not in (None, start)


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, or ``None`` on systems without ``/proc``.

    The result is empty for a process that has ended, but whose parent has not taken notice of that.
    """
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if values[0] in ("Z", "X") else f"{int(values[19]):x}"
    except (OSError, ValueError, IndexError):
        return None


@lru_cache(maxsize=1)
def _machine() -> str:
    """Return an identifier of this machine, its last start, and the namespace of process numbers in a container."""
    parts = [f"{uuid.getnode():x}"]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b("".join(parts).encode(), digest_size=4).hexdigest()
