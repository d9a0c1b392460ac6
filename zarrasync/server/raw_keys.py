"""Keys of a store over HTTP: whole values and ranges, validators, in pieces where they are large."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from zarrasync.codecs.spec import Buffer
from zarrasync.model.paths import check_key
from zarrasync.nodes.node import run_on_store
from zarrasync.server.limits import BadQuery
from zarrasync.server.responses import ByteRange, cache_control, etag_of, matches, parse_range
from zarrasync.stores import Request, Store, Value

__all__ = ["Keys"]

_PIECE = 4 << 20
"""Bytes of a value that are held in memory at a time."""
_LONGEST_NAME = 255
"""Bytes of a part of a key, which is a file's name in many stores."""
_LONGEST = 1024
"""Bytes of a key in object stores; paths of files may be longer."""
Within = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Calls something when it is its turn, and gives it up after a while."""


class Keys:
    """The keys of a store, for GET and HEAD.

    Args:
        store: The store.
        max_age: Seconds for which clients may believe an answer.
        within: Calls what asks the store, one piece of a value at a time: a client that reads slowly takes nobody's turn.
        patience: Seconds that a client may take to accept a piece.
    """

    def __init__(self, store: Store, max_age: float, within: Within, patience: float) -> None:
        self._store, self._max_age, self._within, self._patience = store, max_age, within, patience

    async def serve(self, request: web.Request, key: str) -> web.StreamResponse:
        """Answer a request for a key.

        Raises:
            InvalidKeyError: If it is none.
            StoreError: If the store failed.
        """
        check_key(key)
        if any(len(part.encode()) > _LONGEST_NAME for part in key.split("/")) or len(key.encode()) > _LONGEST:
            raise BadQuery(f"a part of a key has at most {_LONGEST_NAME} bytes, all of it {_LONGEST}")
        condition, expected = request.headers.get("If-None-Match"), request.headers.get("If-Range")
        span = parse_range(request.headers.get("Range"))
        far = span is not None and (span.last or 0) > _PIECE
        known: Value | None = None
        if request.method == "HEAD" or condition is not None or (span is not None and expected) or far:
            known = await self._stat(key)
            if known is None:
                return _absent(key)
            headers = self._headers(key, known)
            if matches(condition, headers.get("ETag")):
                return web.Response(status=304, headers=headers)
            if expected is not None and expected.strip() != headers.get("ETag"):
                span = None
            if request.method == "HEAD":
                return web.Response(headers={**headers, "Content-Length": str(known.size)})
            if span is not None and span.last is not None:
                span = ByteRange(*span.inside(known.size or 0))
        first = await self._get(_beginning(key, span))
        if first is not None and (first.size is None or first.version is None):
            told = known or await self._stat(key)
            first = None if told is None else told._replace(data=first.data)
        if first is None:
            return _absent(key)
        return await self._answer(request, key, span, first)

    async def _answer(self, request: web.Request, key: str, span: ByteRange | None, first: Value) -> web.StreamResponse:
        headers, size = self._headers(key, first), first.size or 0
        start, stop = (0, size) if span is None else span.inside(size)
        if span is not None and start >= stop:
            return web.Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        if span is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        status = 200 if span is None else 206
        if len(first.data) >= stop - start:
            return web.Response(status=status, body=bytes(first.data[: stop - start]), headers=headers)
        answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(stop - start)})
        await answer.prepare(request)
        try:
            await self._stream(answer, key, start, stop, first)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # the status is gone already: the client sees that something is missing
            raise ConnectionResetError(f"{key!r} could not be sent to its end: {type(error).__name__}") from error
        return answer

    async def _stream(self, answer: web.StreamResponse, key: str, start: int, stop: int, first: Value) -> None:
        """Pass a long value on piece by piece. One that is replaced meanwhile ends in a broken connection."""
        piece: Buffer = first.data
        while True:
            async with asyncio.timeout(self._patience):
                await answer.write(bytes(piece))
            start += len(piece)
            if start >= stop:
                break
            value = await self._get(Request(key, start, min(_PIECE, stop - start)))
            if value is not None and value.version is None and start + len(value.data) >= stop:
                told = await self._stat(key)  # where pieces tell no version, the end of it all
                value = None if told is None else told._replace(data=value.data)
            if value is None or value.version not in (None, first.version) or not len(value.data):
                raise ConnectionResetError(f"{key!r} was replaced while it was sent")
            piece = value.data
        await answer.write_eof()

    async def _get(self, request: Request) -> Value | None:
        async def fetch() -> list[Value | None]:
            return await self._store.fetch([request], versions=True)

        (value,) = await self._within(lambda: run_on_store(fetch, self._store))
        found: Value | None = value
        return found

    async def _stat(self, key: str) -> Value | None:
        found: Value | None = await self._within(lambda: run_on_store(lambda: self._store.stat(key), self._store))
        return found

    def _headers(self, key: str, value: Value) -> dict[str, str]:
        name = key.rpartition("/")[2]
        document = name.endswith(".json") or name.startswith(".")
        headers = {
            "Accept-Ranges": "bytes",
            "Cache-Control": cache_control(self._max_age),
            "Content-Type": "application/json" if document else "application/octet-stream",
        }
        return headers if value.version is None else {**headers, "ETag": etag_of(value.version)}


def _beginning(key: str, span: ByteRange | None) -> Request:
    """The request for the first piece of what a client wants."""
    if span is None:
        return Request(key, 0, _PIECE)
    if span.last is not None:
        return Request(key, 0, max(span.last, 1), True)
    return Request(key, span.start, _PIECE if span.stop is None else min(_PIECE, span.stop - span.start))


def _absent(key: str) -> web.Response:
    # Others may store it at any time, and who believes for long that it is absent reads fill values.
    told = {"error": "NotFound", "message": f"there is no {key!r}"}
    return web.json_response(told, status=404, headers={"Cache-Control": "no-cache"})
