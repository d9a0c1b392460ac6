"""Names of temporary files, which show whether the process that made them still runs.

A name contains the machine, the process number and the start time of its owner. A process that is killed cannot remove
its files, and no other process may remove them while it runs. On another machine, or after a restart, only the age of a
file shows that it is abandoned.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import uuid
from functools import lru_cache
from pathlib import Path

from zarrasync._concurrency import clock
from zarrasync.model.paths import TEMPORARY_SUFFIX

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
