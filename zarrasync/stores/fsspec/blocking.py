"""Calls of fsspec's filesystems that block: some of them hang, and a cache may keep half a file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from zarrasync._concurrency.offload import run_abandonable
from zarrasync._concurrency.retry import RetryCounts, pause
from zarrasync.config import Config
from zarrasync.errors import StoreError
from zarrasync.stores.fsspec.http import passes

__all__ = ["arrived", "call", "is_local", "leaving", "read"]

T = TypeVar("T")
_TOKEN = secrets.token_hex(8)
"""Tells this process from those of other machines, which may have its number."""
_HERE = frozenset({"memory", "file", "local", "zip", "tar", "libarchive", "data", "reference"})
"""Those that answer at once, mostly."""


class _Elsewhere:
    """A filesystem whose files are in the memory of a process, on its way to others and back."""

    def __init__(self, fs: Any, process: tuple[str, int]) -> None:
        self._fs, self._process = fs, process

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise StoreError(
            "files of fsspec's in memory are there in the process that has made them, and this is another one; a dict "
            "travels with its values, and files on disk or objects can be seen from everywhere"
        )


def leaving(fs: Any) -> Any:
    """A filesystem in memory as it is sent to other processes."""
    return fs if isinstance(fs, _Elsewhere) else _Elsewhere(fs, (_TOKEN, os.getpid()))


def arrived(fs: Any) -> Any:
    """A filesystem that was sent: where its files are it is what it was."""
    return fs._fs if isinstance(fs, _Elsewhere) and fs._process == (_TOKEN, os.getpid()) else fs


def is_local(fs: Any) -> bool:
    """Whether a filesystem is that of local files, or such a one that zarr-python has made asynchronous.

    One that was derived from it may have paths, or bytes, of its own.
    """
    from fsspec.implementations.local import LocalFileSystem

    return type(getattr(fs, "sync_fs", fs)) is LocalFileSystem


def call(work: Callable[[], T], protocol: str, limit: float) -> T:
    """What a call comes to; of a filesystem behind a network it is left alone after so many seconds, or when cancelled.

    Raises:
        TimeoutError: If it takes longer.
    """
    return work() if protocol in _HERE else run_abandonable(work, limit)


async def read(fs: Any, protocol: str, path: str, settings: Config, **options: Any) -> bytes:
    """What lies at a path, after as many attempts as the settings allow where a connection is lost."""
    attempts, wait = 0, 0.1
    while True:
        attempts += 1
        try:
            work = partial(_whole, fs, protocol, path, options)
            return work() if _has(fs, protocol, path) else call(work, protocol, settings.total_timeout)
        except Exception as error:
            if attempts > settings.retries or not passes(error):
                raise
        RetryCounts.count("retries")
        await pause(wait)
        wait *= 2


def _has(fs: Any, protocol: str, path: str) -> bool:
    """Whether a cache has all of a file, so that nobody is asked for it."""
    return protocol in ("simplecache", "filecache") and bool(fs._check_file(fs._strip_protocol(path)))


def _whole(fs: Any, protocol: str, path: str, options: dict[str, Any]) -> bytes:
    """What lies at a path; what ``simplecache`` keeps of a download that broke off it would give to the next who asks."""
    try:
        found: bytes = fs.cat_file(path, **options)
        return found
    except FileNotFoundError:
        raise
    except BaseException:
        if protocol == "simplecache":
            with suppress(FileNotFoundError):
                os.remove(os.path.join(fs.storage[-1], fs._mapper(fs._strip_protocol(path))))
        raise
