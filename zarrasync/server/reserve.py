"""Keys of a store over HTTP: whole values and ranges, validators, in pieces where they are large."""

from __future__ import annotations

from aiohttp import web

from zarrasync.codecs.base import Buffer
from zarrasync.keys import check_key
from zarrasync.node import on_store
from zarrasync.server.answers import ByteRange, cache_control, etag_of, matches, parse_range
from zarrasync.stores import Request, Store, Value

__all__ = ["serve_key"]

_PIECE = 4 << 20
"""Bytes of a value that are held in memory at a time."""


async def serve_key(request: web.Request, store: Store, key: str, max_age: float) -> web.StreamResponse:
    """Answer a GET or HEAD for a key.

    Raises:
        InvalidKeyError: If it is none.
        StoreError: If the store failed.
    """
    check_key(key)
    condition, expected = request.headers.get("If-None-Match"), request.headers.get("If-Range")
    span = parse_range(request.headers.get("Range"))
    known: Value | None = None
    long_tail = span is not None and (span.last or 0) > _PIECE
    if request.method == "HEAD" or condition is not None or (span is not None and expected) or long_tail:
        known = await _get(store, Request(key, 0, 1))  # a byte tells the version and the size
        if known is None:
            return _absent(key, max_age)
        etag = _etag(known)
        if matches(condition, etag):
            return web.Response(status=304, headers=_headers(key, etag, max_age))
        if expected is not None and expected.strip() != etag:
            span = None
        if request.method == "HEAD":
            size = await _size(store, key, known)
            return web.Response(headers={**_headers(key, etag, max_age), "Content-Length": str(size)})
        if long_tail and span is not None:
            span = ByteRange(*span.inside(await _size(store, key, known)))
    first = await _get(store, _beginning(key, span))
    if first is None:
        return _absent(key, max_age)
    headers, size = _headers(key, _etag(first), max_age), await _size(store, key, first)
    start, stop = (0, size) if span is None else span.inside(size)
    if span is not None and start >= stop:
        return web.Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 200 if span is None else 206
    if len(first.data) >= stop - start:
        return web.Response(status=status, body=bytes(first.data[: stop - start]), headers=headers)
    return await _stream(request, store, key, (start, stop), first, status, headers)


async def _stream(
    request: web.Request,
    store: Store,
    key: str,
    span: tuple[int, int],
    first: Value,
    status: int,
    headers: dict[str, str],
) -> web.StreamResponse:
    """Pass a long value on piece by piece. One that is replaced meanwhile ends in a broken connection, not in a mixture."""
    start, stop = span
    answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(stop - start)})
    await answer.prepare(request)
    piece: Buffer = first.data
    while True:
        await answer.write(bytes(piece))
        start += len(piece)
        if start >= stop:
            break
        value = await _get(store, Request(key, start, min(_PIECE, stop - start)))
        if value is None or value.version != first.version or not len(value.data):
            raise ConnectionResetError(f"{key!r} was replaced while it was sent")
        piece = value.data
    await answer.write_eof()
    return answer


def _beginning(key: str, span: ByteRange | None) -> Request:
    """The request for the first piece of what a client wants."""
    if span is None:
        return Request(key, 0, _PIECE)
    if span.last is not None:
        return Request(key, 0, max(span.last, 1), True)
    return Request(key, span.start, _PIECE if span.stop is None else min(_PIECE, span.stop - span.start))


async def _get(store: Store, request: Request) -> Value | None:
    async def fetch() -> list[Value | None]:
        return await store.fetch([request], versions=True)

    (value,) = await on_store(fetch, store)
    return value


async def _size(store: Store, key: str, known: Value) -> int:
    """The size of a value, also where the store does not tell it with a part."""
    if known.size is not None:
        return known.size
    value = await _get(store, Request(key))
    return 0 if value is None else len(value.data)


def _etag(value: Value) -> str | None:
    return None if value.version is None else etag_of(value.version)


def _headers(key: str, etag: str | None, max_age: float) -> dict[str, str]:
    name = key.rpartition("/")[2]
    document = name.endswith(".json") or name.startswith(".")
    headers = {
        "Accept-Ranges": "bytes",
        "Cache-Control": cache_control(max_age),
        "Content-Type": "application/json" if document else "application/octet-stream",
    }
    return headers if etag is None else {**headers, "ETag": etag}


def _absent(key: str, max_age: float) -> web.Response:
    return web.json_response(
        {"error": "NotFound", "message": f"there is no {key!r}"},
        status=404,
        headers={"Cache-Control": cache_control(max_age)},
    )
