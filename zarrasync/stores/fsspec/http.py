"""Reads through fsspec's HTTP filesystem that also return the version and size of the value."""

from __future__ import annotations

import asyncio
from typing import Any

from zarrasync.stores.fsspec.protocols import WEB
from zarrasync.stores.http.bodies import body_limit
from zarrasync.stores.http.general import read_body
from zarrasync.stores.http.message import Response
from zarrasync.stores.http.responses import TRANSIENT, parse_value, raise_if_transient, range_header, version_of
from zarrasync.stores.values import Request, Value

__all__ = ["is_supported", "is_transient", "read"]


def is_supported(fs: Any, protocol: str) -> bool:
    """Return whether a filesystem is fsspec's HTTP filesystem, whose aiohttp session can be used."""
    attributes = ("kwargs", "set_session", "encode_url", "_raise_not_found_for_status")
    return protocol in WEB and all(hasattr(fs, name) for name in attributes)


async def read(fs: Any, path: str, request: Request) -> Value:
    """Return a value or a byte range of it, with version and size.

    Raises:
        FileNotFoundError: If the file does not exist.
        TransientError: If repeating the request may help.
    """
    options = {**fs.kwargs, "headers": dict(fs.kwargs.get("headers") or {})}
    if byte_range := range_header(request):
        options["headers"] |= {"Range": byte_range, "Accept-Encoding": "identity"}
    session = await fs.set_session()
    async with session.get(fs.encode_url(path), **options) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        body = await read_body(answer, body_limit(request.limit, answer.status, headers))
        response = Response(answer.status, answer.reason or "", headers, body)
        raise_if_transient(response)
        fs._raise_not_found_for_status(answer, path)
    return parse_value(request, response, version_of(response))


def is_transient(error: Exception) -> bool:
    """Return whether repeating a request may help. Most filesystems have retried before they raise an error."""
    if type(error).__module__.partition(".")[0] != "aiohttp":
        return isinstance(error, (ConnectionError, asyncio.IncompleteReadError))
    status = getattr(error, "status", None)
    return not isinstance(error, ValueError) if status is None else status in TRANSIENT
