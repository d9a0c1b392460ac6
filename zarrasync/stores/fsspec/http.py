"""Reads through fsspec's HTTP filesystem: by its session, but within the limits of our own client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.fsspec.identity import WEB
from zarrasync.stores.http.responses import TRANSIENT, parse_value, raise_if_transient, range_header, version_of
from zarrasync.stores.http.session import GeneralClient
from zarrasync.stores.remote import TransientError
from zarrasync.stores.values import Request, Value

_limits: ContextVar[tuple[int | None, AdaptiveLimiter | None]] = ContextVar("limits", default=(None, None))
"""The limit of reads that other filesystems make, which have no argument for it, and the limiter of their requests."""


class _StatusError(Exception):
    """A response with an unexpected status.

    Attributes:
        status: The status.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the server answered {status} {redact(reason)}")
        self.status = status


def is_supported(fs: Any) -> bool:
    """Return whether a filesystem is fsspec's HTTP filesystem, whose aiohttp session can be used."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return not protocols.isdisjoint(WEB) and all(
        hasattr(fs, name) for name in ("client_kwargs", "kwargs", "set_session", "encode_url")
    )


async def read(fs: Any, path: str, request: Request) -> Value:
    """Return a value or a byte range of it, with version and size.

    Raises:
        FileNotFoundError: If the file does not exist.
        TransientError: If repeating the request may help.
    """
    client = GeneralClient(await fs.set_session(), fs.client_kwargs, fs.kwargs, _limits.get()[1])
    response = await client.get(fs.encode_url(path), range_header(request), request.limit)
    raise_if_transient(response)
    if response.status == 404:
        raise FileNotFoundError(path)
    if response.status not in (200, 206):
        raise _StatusError(response.status, response.reason)
    return parse_value(request, response, version_of(response))


def limit_bodies(fs: Any) -> None:
    """Let another filesystem, such as one of references, read from an asynchronous HTTP filesystem by ``cat_file``."""
    fs._cat_file = partial(cat_file, fs)


@contextmanager
def limited(limit: int | None, limiter: AdaptiveLimiter | None = None) -> Iterator[None]:
    """Set limits of the reads inside the block.

    Args:
        limit: The most bytes that ``cat_file`` may receive or decode for a file; ``None`` for any number.
        limiter: The limiter that the caller passes with each read. It learns from the answers.
    """
    token = _limits.set((limit, limiter))
    try:
        yield
    finally:
        _limits.reset(token)


def limit() -> int | None:
    """Return the most bytes that a file may have; ``None`` for any number."""
    return _limits.get()[0]


async def cat_file(fs: Any, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Buffer:
    """Return the bytes of a file from ``start`` to ``end``, like fsspec's method of this name.

    Raises:
        BudgetExceeded: If the file is larger than the limit, see ``limited``.
        FileNotFoundError: If the file does not exist.
        TransientError: If repeating the request may help.
    """
    first = start or 0
    if first < 0:
        request = Request(path, length=-first, suffix=True, limit=limit())
    else:
        request = Request(path, first, None if end is None else max(end - first, 0), limit=limit())
    return (await read(fs, path, request)).data


def is_transient(error: Exception) -> bool:
    """Return whether repeating a request may help. Most filesystems have retried before they raise an error."""
    if isinstance(error, TransientError):
        return True
    if type(error).__module__.partition(".")[0] != "aiohttp":
        return isinstance(error, (ConnectionError, asyncio.IncompleteReadError))
    status = getattr(error, "status", None)
    return not isinstance(error, ValueError) if status is None else status in TRANSIENT
