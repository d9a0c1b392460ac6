"""What a web server says beside the bytes, which fsspec's HTTP filesystem keeps to itself: which part they are, of what version."""

from __future__ import annotations

import asyncio
from typing import Any

from zarrasync.stores.base import Request, Value
from zarrasync.stores.http.client import Answer
from zarrasync.stores.http.responses import AGAIN, check_passing, range_of, value_of, version_of

__all__ = ["ask", "passes", "suits"]


def suits(fs: Any, protocol: str) -> bool:
    """Whether a filesystem is fsspec's for the web, which has a session to ask with."""
    known = ("kwargs", "set_session", "encode_url", "_raise_not_found_for_status")
    return protocol in ("http", "https") and all(hasattr(fs, name) for name in known)


async def ask(fs: Any, path: str, request: Request) -> Value:
    """A value, or a part of it, with its version and size.

    Raises:
        FileNotFoundError: If there is none.
        Attempt: If the server sent another part.
    """
    options = {**fs.kwargs, "headers": dict(fs.kwargs.get("headers") or {})}
    if wanted := range_of(request):
        options["headers"] |= {"Range": wanted, "Accept-Encoding": "identity"}
    session = await fs.set_session()
    async with session.get(fs.encode_url(path), **options) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        found = Answer(answer.status, answer.reason or "", headers, await answer.read())
        check_passing(found)
        fs._raise_not_found_for_status(answer, path)
    return value_of(request, found, version_of(found))


def passes(error: Exception) -> bool:
    """Whether an error may not come again; most filesystems have tried again before they raise one."""
    if type(error).__module__.partition(".")[0] != "aiohttp":
        return isinstance(error, (ConnectionError, asyncio.IncompleteReadError))
    status = getattr(error, "status", None)
    return not isinstance(error, ValueError) if status is None else status in AGAIN
