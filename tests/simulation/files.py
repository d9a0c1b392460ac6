"""Local files in a simulation: real files, through an operating system of which each call may be the last one.

Each call of a client is a step: another client may be next, the client may be killed there, or the call may fail. A
write that fails or is the last one has stored the first half of its bytes, and that is its result on a full disk. The
system closes the files of a killed client, which frees its locks. The library calls the functions of ``os``, and the
compiled kernel those of a table; both go the same way here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, MutableSequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.simulation.history import History
from tests.simulation.scheduler import Client, Killed, Scheduler, client_of_this_call
from tests.support.kernel_calls import kernel_calls
from zarrasync._kernel.structs import Worker
from zarrasync.model.paths import TEMPORARY_SUFFIX
from zarrasync.stores import local_locks

__all__ = ["RANDOM_NAME", "Files"]

_CALLS = (
    "open", "write", "pread", "preadv", "readv", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "scandir",
    "stat", "fstat", "fsync", "close",
)  # fmt: skip
_NEVER_FAIL = ("close", "stat", "fstat", "fstatat", "unlock", "readdir", "closedir")
_REMOVING = ("unlink", "rmdir", "unlinkat", "open", "scandir", "opendir")
"""Calls of which the removal of files and directories consists."""
_PUBLISHING = ("replace", "rename", "link", "renameat", "rename_new", "linkat")
_SWITCH = 0.3
"""The probability that another client may be next after a call. Handing over takes longer than most calls."""
_SLOW, _LONGEST = 0.2, 0.1
"""The probability that the others may make many calls before this client is next, and the most seconds until then."""
_READING = ("pread", "preadv", "readv", "scandir", "opendir")


class Files:
    """The system's files, below a directory of their own.

    Args:
        scheduler: Decides who is next.
        history: Receives what was called.
        failing: By the name of a client and number, its call that fails, and how.
        kernel: Whether the compiled kernel calls this system as well.

    Attributes:
        root: The directory.
        calls: How many calls each client has made that can fail.
        cleans: Whether no call failed that removes files.
        unflushed: Files that were renamed, or linked, before their content was flushed to the disk.
    """

    def __init__(
        self, scheduler: Scheduler, history: History, failing: dict[tuple[str, int], int], *, kernel: bool
    ) -> None:
        self._scheduler, self._history, self._failing, self._kernel = scheduler, history, failing, kernel
        self.root = tempfile.mkdtemp(prefix="zarrasync-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.calls: dict[str, int] = {}
        self.cleans = True
        self.unflushed: list[str] = []
        self._unflushed: set[int] = set()
        self._open: dict[Client, set[int]] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the clients call this system."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.root)
            stack.enter_context(mock.patch.object(local_locks, "_handles", _PerClient()))
            for name in _CALLS:
                if hasattr(os, name):
                    stack.enter_context(mock.patch.object(os, name, self._wrap(name, getattr(os, name))))
            if self._kernel:
                stack.enter_context(kernel_calls(self._kernel_call, _Worker))
            # pathlib opens files without ``os.open``.
            stack.enter_context(mock.patch.object(Path, "read_bytes", _read_bytes))
            stack.enter_context(mock.patch.object(Path, "write_bytes", _write_bytes))
            yield

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            client = client_of_this_call.get()
            if client is None or not self._concerns(client, args[0], options.get("dir_fd", options.get("src_dir_fd"))):
                return real(*args, **options)
            return self._call(client, name, partial(real, **options), args)

        return call

    def _kernel_call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        client = client_of_this_call.get()
        if client is None or name == "closedir":  # which frees memory, also that of a killed client
            return real(*args)
        if name == "lock" and args[1] == fcntl.F_UNLCK:
            name = "unlock"
        name = "write" if name == "writev" else name
        try:
            return self._call(client, name, real, args)
        except Killed:  # C code has no exceptions: it goes on without any effect, and ``_Worker`` ends it
            raise OSError(errno.EIO, "this client is dead") from None

    def _call(self, client: Client, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Make a call, unless it fails or the client dies there."""
        if name == "write" and client.steps + 1 == client.dies_at and not client.dead:
            real(*_first_half(args))
        try:
            self._step(client, name)
        except OSError as error:
            stored = real(*_first_half(args)) if name == "write" else 0
            if stored and error.errno == errno.ENOSPC:
                return stored
            raise
        if self._history.detailed:
            self._history.note(f"{client.name}: {name} {_shown(args)}")
        if name in _PUBLISHING:
            self._note_publication(args)
        result = real(*args)
        if name in ("open", "openat") and result >= 0:
            self._open.setdefault(client, set()).add(result)
        elif name == "close":
            self._open.setdefault(client, set()).discard(args[0])
        elif name in ("write", "fsync"):
            (self._unflushed.add if name == "write" else self._unflushed.discard)(_fstat(args[0]).st_ino)
        return result

    def _note_publication(self, args: tuple[Any, ...]) -> None:
        """Note files that get their names before their content is on the disk."""
        folder, path = (args[0], os.fsdecode(args[1])) if isinstance(args[0], int) else (None, args[0])
        if folder is not None and folder >= 0:
            path = f"/proc/self/fd/{folder}/{path}"
        for file in [path, *Path(path).rglob("*")]:
            with contextlib.suppress(FileNotFoundError):
                if _stat(file).st_ino in self._unflushed:
                    self.unflushed.append(RANDOM_NAME.sub("", str(file)))

    def _concerns(self, client: Client, file: Any, directory: int | None) -> bool:
        """Return whether a call is about files of the simulation, and not about modules to import, for instance."""
        handles = self._open.get(client, ())
        if directory is not None or isinstance(file, int):
            return file in handles or directory in handles
        path = os.fspath(file)
        return path.startswith(self.root) or path.endswith(local_locks._LOCK_FILE)

    def _step(self, client: Client, name: str) -> None:
        client.count_step()
        thread = self._scheduler.this_thread()
        if local_locks._opening.locked():  # the only lock of threads that is held during calls
            thread = None
        random = self._scheduler.random.random
        if thread is not None and random() < _SWITCH:
            is_slow = random() < _SLOW
            thread.park(lambda: not is_slow, _LONGEST * random())
        if name not in _NEVER_FAIL:
            count = self.calls[client.name] = self.calls.get(client.name, 0) + 1
            code = self._failing.get((client.name, count))
            if code is not None:
                self._history.note(f"{client.name}: call {count}, {name}, fails")
                self.cleans &= name not in _REMOVING
                code = errno.EIO if name in _READING else code  # reading takes no space
                raise OSError(code, os.strerror(code))

    def leftovers(self) -> list[str]:
        """Return the temporary files and directories that exist."""
        paths = [str(path.relative_to(self.root)) for path in Path(self.root).rglob(f"*{TEMPORARY_SUFFIX}")]
        return sorted(filter(RANDOM_NAME.search, paths))

    def close_all(self, client: Client) -> None:
        """Close the files of a killed client, as the system does."""
        for handle in self._open.pop(client, ()):
            with contextlib.suppress(OSError):
                _close(handle)


_close, _stat, _fstat = os.close, os.stat, os.fstat


RANDOM_NAME = re.compile(r"/\S*/zarrasync-\w+|(\.[0-9a-f]+){2,3}-[0-9a-f]+(?=\.zarrasync-partial)")
"""What differs between processes: the directory, and the unique part of the names of temporary files."""


def _shown(args: tuple[Any, ...]) -> str:
    names = [os.fsdecode(value) for value in args if isinstance(value, str | bytes)]
    return " ".join(RANDOM_NAME.sub("", name) for name in names)


def _first_half(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that write half as many bytes: a descriptor and bytes, or the address and number of parts."""
    handle, data, *count = args
    if not count:
        return handle, data[: len(data) // 2]
    parts = (_Part * count[0]).from_address(data)
    half = parts[: count[0] // 2] if count[0] > 1 else [_Part(parts[0].address, parts[0].size // 2)]
    return handle, (_Part * len(half))(*half), len(half)


class _Part(ctypes.Structure):
    """``struct iovec`` of POSIX."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Worker(Worker):
    """A worker of the kernel, whose calls do not return in a killed client."""

    def __init__(self, system: int) -> None:
        super().__init__(system)
        self.read, self.read_ranges, self.write = map(_ending, (self.read, self.read_ranges, self.write))


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        result = function(*args)
        client = client_of_this_call.get()
        if client is not None and client.dead:
            raise Killed
        return result

    return call


def _read_bytes(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, 1 << 20, 0)
    finally:
        os.close(handle)


def _write_bytes(path: Path, data: bytes) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        return os.write(handle, memoryview(data))
    finally:
        os.close(handle)


class _PerClient(MutableSequence[Any]):
    """A list of which each client has its own: the descriptors of the file by whose bytes processes lock values."""

    def __init__(self) -> None:
        self._own: dict[Client | None, list[Any]] = {}

    def _current(self) -> list[Any]:
        return self._own.setdefault(client_of_this_call.get(), [])

    def __len__(self) -> int:
        return len(self._current())

    def __getitem__(self, index: Any) -> Any:
        return self._current()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._current()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._current()[index]

    def insert(self, index: int, value: Any) -> None:
        self._current().insert(index, value)
