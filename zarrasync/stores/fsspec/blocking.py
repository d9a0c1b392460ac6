"""Calls of blocking fsspec filesystems, which may hang, and whose caches may keep half a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from zarrasync._concurrency.offload import run_abandonable
from zarrasync._concurrency.retry import RetryCounts, pause
from zarrasync.codecs.spec import Buffer
from zarrasync.config import Config
from zarrasync.stores.fsspec import http
from zarrasync.stores.fsspec.protocols import IMMEDIATE

__all__ = ["call", "read"]

T = TypeVar("T")


def call(work: Callable[[], T], protocol: str, timeout: float) -> T:
    """Return the result of a call. A call to a network filesystem is abandoned after a timeout, or when cancelled.

    Args:
        work: The call.
        protocol: The filesystem's protocol.
        timeout: Seconds; 0 for no limit.

    Raises:
        TimeoutError: If it takes longer.
    """
    return work() if protocol in IMMEDIATE else run_abandonable(work, timeout)


async def read(fs: Any, protocol: str, path: str, settings: Config, **options: Any) -> Buffer:
    """Return the bytes of a file, retrying after lost connections as the settings allow."""
    attempts, wait = 0, 0.1
    while True:
        attempts += 1
        try:
            work = partial(_cat_file, fs, protocol, path, options)
            return work() if _is_cached(fs, protocol, path) else call(work, protocol, settings.total_timeout)
        except Exception as error:
            if attempts > settings.retries or not http.is_transient(error):
                raise
        RetryCounts.count("retries")
        await pause(wait)
        wait *= 2


def _is_cached(fs: Any, protocol: str, path: str) -> bool:
    """Return whether a cache has the whole file, so that reading it makes no request."""
    return protocol in ("simplecache", "filecache") and bool(fs._check_file(fs._strip_protocol(path)))


def _cat_file(fs: Any, protocol: str, path: str, options: dict[str, Any]) -> Buffer:
    """Return the bytes of a file. After a failure, remove the partial file that ``simplecache`` would serve later."""
    try:
        data: Buffer
        if http.is_supported(fs):
            from fsspec.asyn import sync

            data = cast(Buffer, sync(fs.loop, http.cat_file, fs, path, **options))
        else:
            data = fs.cat_file(path, **options)
        return data
    except FileNotFoundError:
        raise
    except BaseException:
        if protocol == "simplecache":
            with suppress(FileNotFoundError):
                os.remove(os.path.join(fs.storage[-1], fs._mapper(fs._strip_protocol(path))))
        raise
