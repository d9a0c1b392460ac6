"""Values of a store over HTTP, with byte ranges and entity tags. Large values are sent in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from zarrasync.codecs.spec import Buffer
from zarrasync.formats import is_document
from zarrasync.model.paths import check_key
from zarrasync.nodes.node import run_on_store
from zarrasync.server.limits import BadQuery, NotFound
from zarrasync.server.messages import Request as HTTPRequest
from zarrasync.server.messages import Response
from zarrasync.server.responses import ByteRange, cache_control, etag_of, matches, message_response, parse_range
from zarrasync.stores import Request, Store, Value

_PIECE_BYTES = 4 << 20
"""Maximum number of bytes of a value in memory at a time."""
_MOST_NAME_BYTES = 255
"""Maximum number of bytes in a part of a key, which is the name of a file in many stores."""
_MOST_KEY_BYTES = 1024
"""Maximum number of bytes in a key, as in object stores; paths of files may be longer."""
Admit: TypeAlias = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes a call when the request queue admits it, with a time limit."""
UrlOf: TypeAlias = Callable[[str], Awaitable[str | None]]


class RawKeys:
    """Responses to GET and HEAD requests for the keys of a store.

    Args:
        store: The store.
        max_age: Seconds for which clients may reuse a response.
        admit: Makes the requests to the store. A slow client does not occupy the queue between two pieces.
        hidden: Whether to serve keys with names that begin with a dot, besides Zarr's own.
        url_of: Returns a URL to which requests for a key are redirected, or ``None``.
    """

    def __init__(
        self, store: Store, max_age: float, admit: Admit, *, hidden: bool, url_of: UrlOf | None = None
    ) -> None:
        self._store, self._max_age, self._admit, self._hidden = store, max_age, admit, hidden
        self._url_of = url_of

    async def respond(self, request: HTTPRequest) -> Response:
        """Return the response to a request for a key.

        Raises:
            NotFound: If the key does not exist.
            InvalidKeyError: If the key is invalid.
            BadQuery: If it is too long.
            StoreError: If the store failed.
        """
        key = request.parameters["key"]
        _check_length(key)
        if not self._hidden and _is_hidden(key):
            raise _not_found(key)
        if self._url_of is not None and request.method == "GET":
            url = await self._admit(partial(self._url_of, key))
            if url is not None:
                return Response(307, {"Location": url, "Cache-Control": "no-store"})
        conditions = request.headers.get("if-none-match"), request.headers.get("if-range")
        byte_range = parse_range(request.headers.get("range"))
        is_long_suffix = byte_range is not None and (byte_range.last or 0) > _PIECE_BYTES
        needs_if_range = byte_range is not None and bool(conditions[1])
        stat: Value | None = None
        if request.method == "HEAD" or conditions[0] is not None or needs_if_range or is_long_suffix:
            stat = await self._stat(key)
            if stat is None:
                raise _not_found(key)
            headers = self._headers(key, stat)
            if matches(conditions[0], headers.get("ETag")):
                return Response(304, headers)
            if conditions[1] is not None and conditions[1].strip() != headers.get("ETag"):
                byte_range = None
            if request.method == "HEAD":
                return Response(200, {**headers, "Content-Length": str(stat.size)})
            if byte_range is not None and byte_range.last is not None:
                byte_range = ByteRange(*byte_range.bounds(stat.size or 0))
        first = await self._first_piece(key, byte_range, stat)
        if first is None:
            raise _not_found(key)
        return self._respond_with(key, byte_range, first)

    def _respond_with(self, key: str, byte_range: ByteRange | None, first: Value) -> Response:
        """Return a value or a range of it, whose first piece has already been read."""
        headers, size = self._headers(key, first), first.size or 0
        start, stop = (0, size) if byte_range is None else byte_range.bounds(size)
        if byte_range is not None and start >= stop:
            response = message_response(416, "RangeNotSatisfiable", f"the value has {size:,} bytes")
            response.headers["Content-Range"] = f"bytes */{size}"
            return response
        if byte_range is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        status = 200 if byte_range is None else 206
        if len(first.data) >= stop - start:
            return Response(status, headers, [bytes(first.data[: stop - start])])
        headers["Content-Length"] = str(stop - start)
        return Response(status, headers, stream=self._stream(key, start, stop, first))

    async def _stream(self, key: str, start: int, stop: int, first: Value) -> AsyncIterator[Buffer]:
        """Yield the pieces of a large value.

        Raises:
            ConnectionResetError: If it is replaced meanwhile.
        """
        piece: Buffer = first.data
        while True:
            yield piece
            start += len(piece)
            if start >= stop:
                return
            value = await self._get(Request(key, start, min(_PIECE_BYTES, stop - start)))
            if value is not None and value.version is None and start + len(value.data) >= stop:
                value = await self._with_version(key, value)  # checked at the end if pieces have no version
            if value is None or value.version not in (None, first.version) or not len(value.data):
                raise ConnectionResetError(f"{key!r} was replaced while it was sent")
            piece = value.data

    # -------------------------------------------------------------- store

    async def _first_piece(self, key: str, byte_range: ByteRange | None, stat: Value | None) -> Value | None:
        """Return the first piece of a range, with the size and the version of the value; ``None`` if it is absent."""
        first = await self._get(_first_request(key, byte_range))
        if first is None or (first.size is not None and first.version is not None):
            return first
        return stat._replace(data=first.data) if stat is not None else await self._with_version(key, first)

    async def _with_version(self, key: str, piece: Value) -> Value | None:
        """Return a piece with the size and the version of the value; ``None`` if it is absent by now."""
        value = await self._stat(key)
        return None if value is None else value._replace(data=piece.data)

    async def _get(self, request: Request) -> Value | None:
        async def fetch() -> list[Value | None]:
            return await self._store.fetch([request], versions=True)

        values: list[Value | None] = await self._admit(lambda: run_on_store(fetch, self._store))
        return values[0]

    async def _stat(self, key: str) -> Value | None:
        value: Value | None = await self._admit(lambda: run_on_store(lambda: self._store.stat(key), self._store))
        return value

    def _headers(self, key: str, value: Value) -> dict[str, str]:
        name = key.rpartition("/")[2]
        is_document = name.endswith(".json") or name.startswith(".")
        headers = {
            "Accept-Ranges": "bytes",
            "Cache-Control": cache_control(self._max_age),
            "Content-Type": "application/json" if is_document else "application/octet-stream",
        }
        return headers if value.version is None else {**headers, "ETag": etag_of(value.version)}


def _check_length(key: str) -> None:
    check_key(key)
    is_long = len(key.encode()) > _MOST_KEY_BYTES
    if is_long or any(len(part.encode()) > _MOST_NAME_BYTES for part in key.split("/")):
        raise BadQuery(f"a key may have {_MOST_KEY_BYTES} bytes, and each part of it {_MOST_NAME_BYTES}")


def _is_hidden(key: str) -> bool:
    """Return whether a key leads to a hidden file, such as one in ``.git``."""
    return any(name[:1] == "." and not is_document(name) for name in key.split("/"))


def _first_request(key: str, byte_range: ByteRange | None) -> Request:
    """Return the request for the first piece of a range."""
    if byte_range is None:
        return Request(key, 0, _PIECE_BYTES)
    if byte_range.last is not None:
        return Request(key, 0, max(byte_range.last, 1), True)
    start, stop = byte_range.start, byte_range.stop
    return Request(key, start, _PIECE_BYTES if stop is None else min(_PIECE_BYTES, stop - start))


def _not_found(key: str) -> NotFound:
    return NotFound(f"{key!r} does not exist")
