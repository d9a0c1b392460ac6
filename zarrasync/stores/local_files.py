"""Reading and writing local files: flags, complete transfers, names of temporary files."""

from __future__ import annotations

import itertools
import os

from zarrasync.codecs.spec import Buffer

__all__ = ["PARTIAL"]


PARTIAL = ".zarrasync-partial"
"""How the names of files end that are no values: of halves of some, and notes."""


CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


READ = os.O_RDONLY | CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # who opens a pipe would wait for somebody to write


SAFE = CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


ONE_CALL = 1 << 30
"""A read that gets fewer bytes has met the end; above, systems cut a call short (Linux at 2 GiB)."""


temporary_names = itertools.count()


_token = ""


readv = getattr(os, "readv", None)


def version_of(state: os.stat_result) -> object:
    return (state.st_mtime_ns, state.st_ino, state.st_size)


def process_token() -> str:
    """What tells this process's temporary files from all others', also on shared disks."""
    global _token
    own = f"{os.getpid():x}."
    if not _token.startswith(own):  # the first call, or after a fork
        _token = own + os.urandom(4).hex()
    return _token


def read_exactly(handle: int, start: int, length: int, into: Buffer | None) -> Buffer:
    """Bytes of an open file; fewer only if it got shorter meanwhile."""
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


def write_all(handle: int, data: Buffer) -> None:
    view = memoryview(data)
    while len(view) > 0:
        view = view[os.write(handle, view) :]


def sync_directory(path: str) -> None:
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
