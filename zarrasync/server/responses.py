"""Responses: errors and values as JSON, caching headers, entity tags and byte ranges."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, NamedTuple

from aiohttp import web

from zarrasync import errors
from zarrasync.server.limits import BadQuery, Forbidden, Overloaded, TooMuch
from zarrasync.server.origins import UnknownHost

__all__ = [
    "ByteRange",
    "cache_control",
    "error_response",
    "etag_of",
    "json_response",
    "matches",
    "parse_range",
]


_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (TooMuch, 413),
    (Overloaded, 503),
    (UnknownHost, 421),
    (Forbidden, 403),
    (TimeoutError, 504),
    (errors.NodeNotFoundError, 404),
    (errors.NodeTypeError, 400),
    (errors.SelectionError, 400),
    (errors.InvalidKeyError, 400),
    (errors.UnsupportedByFormat, 501),
    (errors.UnsupportedOperation, 501),
    (errors.StoreError, 502),
    (BadQuery, 400),
    (errors.ZarrError, 500),
)
"""Status codes of errors, with subclasses before their base classes."""


_PUBLIC_MESSAGES: tuple[tuple[type[BaseException], str], ...] = (
    (errors.NodeNotFoundError, "no array or group exists at that path"),
    (Forbidden, "this key is not served"),
    (errors.StoreError, "the store failed"),
    (errors.CodecError, "a stored chunk could not be decoded"),
    (errors.MetadataError, "the metadata is invalid"),
)
"""Messages for clients, instead of messages that contain internal locations."""


def error_response(error: BaseException) -> web.Response | None:
    """Return the response to an error; ``None`` for an unexpected error, which is a bug of the server."""
    for cls, status in _STATUS:
        if isinstance(error, cls):
            message = next((text for kind, text in _PUBLIC_MESSAGES if isinstance(error, kind)), None)
            body = {"error": type(error).__name__, "message": message or str(error) or "the time limit was exceeded"}
            headers = {"Retry-After": "1"} if status == 503 else {}
            return web.json_response(body, status=status, headers={**headers, "Cache-Control": "no-store"})
    return None


def json_response(value: Any, max_age: float) -> web.Response:
    """Return a value as a JSON response, which may be compressed."""
    headers = {"Cache-Control": cache_control(max_age), "Vary": "Accept-Encoding"}
    response = web.json_response(value, dumps=_dumps, headers=headers)
    response.enable_compression()
    return response


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def cache_control(max_age: float) -> str:
    """Return the ``Cache-Control`` header for responses that may be reused for ``max_age`` seconds.

    Without ``public``, caches that users share do not reuse responses to requests with ``Authorization`` (RFC 9111, section 3.5).
    """
    return f"max-age={int(min(max_age, 31_536_000))}"


# ------------------------------------------------------------------ validators and ranges


def etag_of(version: object) -> str:
    """Return the entity tag of a version, or of bytes: two checksums and the length, which suffice for one URL."""
    if isinstance(version, bytes):
        return f'"{zlib.crc32(version):08x}{zlib.adler32(version):08x}{len(version):x}"'
    return f'"{hashlib.blake2b(repr(version).encode(), digest_size=12).hexdigest()}"'


def matches(header: str | None, etag: str | None) -> bool:
    """Return whether an ``If-None-Match`` header contains an entity tag (RFC 9110, 13.1.2)."""
    if header is None or etag is None:
        return False
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


class ByteRange(NamedTuple):
    """A range of bytes: from ``start`` to before ``stop`` or the end, or the ``last`` bytes."""

    start: int = 0
    stop: int | None = None
    last: int | None = None

    def bounds(self, size: int) -> tuple[int, int]:
        """Return start and stop in a value of ``size`` bytes; an empty range if they are outside."""
        if self.last is not None:
            return max(size - self.last, 0), size
        return self.start, size if self.stop is None else min(self.stop, size)


def parse_range(header: str | None) -> ByteRange | None:
    """Parse a ``Range`` header with one range in bytes; ``None`` for others, which may be ignored (RFC 9110, 14.2)."""
    if header is None or not header.startswith("bytes=") or "," in header or len(header) > 60:
        return None
    first, dash, last = header[6:].strip().partition("-")
    if not dash or not (first + last).isascii() or not (first + last).isdigit():
        return None
    if not first:
        return ByteRange(last=int(last))
    if last and int(last) < int(first):
        return None
    return ByteRange(int(first), int(last) + 1 if last else None)
