"""Responses: errors and values, compression, caching headers, entity tags and byte ranges."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from zarrasync import errors
from zarrasync.display.values import dumps
from zarrasync.server.access import Unauthorized
from zarrasync.server.compression import compressor
from zarrasync.server.limits import BadQuery, Forbidden, MethodNotAllowed, NotFound, Overloaded, TooMuch, Unsupported
from zarrasync.server.messages import Request, Response, coalesced
from zarrasync.server.origins import UnknownHost

_LEAST_COMPRESSED = 1 << 10
"""The least bytes of a body that is compressed."""


_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (Unauthorized, 401),
    (TooMuch, 413),
    (Unsupported, 501),
    (Overloaded, 503),
    (ImportError, 501),  # of a package for a format
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
    (errors.EncodingError, 501),  # of a value in a format
    (BadQuery, 400),
    (errors.ZarrError, 500),
)
"""Status codes of errors, with subclasses before their base classes."""


NEAREST = "pass method='nearest'"
"""Advice of errors in terms of Python, which some requests can follow in other terms."""
_PUBLIC_MESSAGES: tuple[tuple[type[BaseException], str], ...] = (
    (errors.NodeNotFoundError, "no array or group exists at that path"),
    (Forbidden, "this key is not served"),
    (TimeoutError, "the time limit was exceeded"),
    (errors.StoreError, "the store failed"),
    (errors.CodecError, "a stored chunk could not be decoded"),
    (errors.MetadataError, "the metadata is invalid"),
)
"""Messages for clients, instead of messages that contain internal locations."""


def error_response(error: BaseException, *, is_ogc: bool = False) -> Response | None:
    """Return the response to an error; ``None`` for an unexpected error, which is a bug of the server.

    Args:
        error: The error.
        is_ogc: Whether the body also has the members of errors of OGC API.
    """
    for cls, status in _STATUS:
        if isinstance(error, cls):
            message = public_message(error)
            response = message_response(status, type(error).__name__, message)
            if is_ogc:
                facts = {"error": type(error).__name__, "message": message}
                response.body = [dumps({**facts, "code": str(status), "description": message})]
            if status == 503:
                response.headers["Retry-After"] = "1"
            if isinstance(error, MethodNotAllowed):
                response.headers["Allow"] = error.allowed
            if isinstance(error, Unauthorized):
                response.headers["WWW-Authenticate"] = 'Bearer, Basic realm="zarrasync"'
            return response
    return None


def public_message(error: BaseException) -> str:
    """Return the message of an error for clients, without internal locations and advice in terms of Python."""
    if isinstance(error, errors.EncodingError):
        return str(error)
    own = str(error).removesuffix(f"; {NEAREST} for the nearest label")
    return next((text for kind, text in _PUBLIC_MESSAGES if isinstance(error, kind)), own)


def message_response(status: int, error: str, message: str) -> Response:
    """Return the response to a request that failed."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return Response(status, headers, [dumps({"error": error, "message": message})])


def json_response(request: Request, value: Any, max_age: float) -> Response:
    """Return a value as a JSON response."""
    return content_response(request, [dumps(value)], "application/json", max_age)


def content_response(
    request: Request, pieces: Iterable[bytes], content_type: str, max_age: float, *, compress: bool = True
) -> Response:
    """Return the response with a body, whose entity tag is made of its bytes.

    Args:
        request: The request, which may accept compressed bodies and contain an entity tag.
        pieces: The pieces of the body.
        content_type: The type of the body.
        max_age: Seconds for which the response may be reused.
        compress: Whether the body becomes smaller if it is compressed.
    """
    body = coalesced(pieces)
    etag = etag_of(body)
    headers = {"Content-Type": content_type, "Cache-Control": cache_control(max_age), "ETag": etag}
    if compress:
        headers["Vary"] = "Accept-Encoding"
    if request.method != "POST" and matches(request.headers.get("if-none-match"), etag):
        return Response(304, headers)
    if compress and sum(map(len, body)) >= _LEAST_COMPRESSED and accepts_gzip(request):
        deflate = compressor(gzip=True)
        body = [*coalesced(map(deflate.compress, body)), deflate.flush()]
        headers |= {"Content-Encoding": "gzip", "ETag": f"W/{etag}"}  # another representation of equal content
    return Response(200, headers, body)


def accepts_gzip(request: Request) -> bool:
    """Return whether a request accepts compressed bodies (RFC 9110, 12.5.3)."""
    items = (item.partition(";") for item in request.headers.get("accept-encoding", "").lower().split(","))
    weights = {coding.strip(): weight.replace(" ", "") for coding, _, weight in items}
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and weight.rstrip(".0") != "q="


def cache_control(max_age: float) -> str:
    """Return the ``Cache-Control`` header for responses that may be reused for ``max_age`` seconds.

    Without ``public``, caches that users share do not reuse responses to requests with ``Authorization`` (RFC 9111, section 3.5).
    """
    return f"max-age={int(min(max_age, 31_536_000))}"


# ------------------------------------------------------------------ validators and ranges


def etag_of(version: object) -> str:
    """Return the entity tag of a version, or of the pieces of a body: two checksums and the length suffice for one URL."""
    if isinstance(version, list):
        crc, adler = 0, 1
        for piece in version:
            crc, adler = zlib.crc32(piece, crc), zlib.adler32(piece, adler)
        return f'"{crc:08x}{adler:08x}{sum(map(len, version)):x}"'
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
