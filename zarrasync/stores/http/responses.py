"""HTTP/1.1 responses: their heads, the lengths of their bodies, and their meaning for stores.

The meaning is a value, a part of a value, its version, or a transient failure.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from typing import NamedTuple

from zarrasync._concurrency import clock
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.errors import is_missing_bucket
from zarrasync.stores.remote import TransientError
from zarrasync.stores.values import Request, Value, clip

HEAD_LIMIT = 1 << 16
"""Maximum size of the status line and headers, in bytes."""
_TEXT = r"[\t -~\x80-\xff]*+"
_FIELD = rf"[!#$%&'*+\-.^_`|~0-9A-Za-z]++:{_TEXT}"
_STATUS_LINE = rf"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: ({_TEXT}))?"
_HEAD = re.compile(rf"{_STATUS_LINE}((?:\r\n{_FIELD})*+)")
"""A head as RFC 9112 allows it: no line folding, control characters, or spaces before a colon."""
_LENGTH = re.compile(r"([0-9]{1,18})(?:[ \t]*,[ \t]*\1)*")
"""A length, which proxies may repeat."""
_REDIRECTS = frozenset({301, 302, 303, 305, 307, 308})


class UnsupportedResponse(Exception):
    """A response that needs a general HTTP client: a redirect, or an unsupported encoding.

    Attributes:
        status: The status code; 0 if the reason is not the status.
        headers: Header values by name, in lower case.
        body: The body, if it was read.
    """

    def __init__(
        self, reason: str, status: int = 0, headers: Mapping[str, str] | None = None, body: Buffer = b""
    ) -> None:
        super().__init__(reason)
        self.status, self.headers, self.body = status, headers or {}, body


class Response(NamedTuple):
    """A complete response.

    Attributes:
        status: Status code.
        reason: Reason phrase.
        headers: Header values by name, in lower case.
        body: The whole body.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: Buffer


class Head(NamedTuple):
    """The status line and headers of a response.

    Attributes:
        status: Status code.
        reason: Reason phrase.
        headers: Header values by name, in lower case.
        keep_alive: Whether the server keeps the connection open.
        chunked: Whether the body is chunked.
        length: Length of the body in bytes; ``None`` if it is chunked or ends with the connection.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    keep_alive: bool
    chunked: bool
    length: int | None


def parse_head(data: bytes) -> Head:
    """Parse the status line and headers, without the empty line that ends them.

    Raises:
        UnsupportedResponse: If the response is a redirect.
        ValueError: If it is not valid HTTP/1.1, or the length of its body is ambiguous.
    """
    text = data.decode("latin-1")
    match = _HEAD.fullmatch(text)
    if match is None:
        raise ValueError(_describe_invalid(text))
    version, code, reason, fields = match.groups()
    lines, headers = fields.split("\r\n"), dict[str, str]()
    del lines[0]
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    status = int(code)
    chunked, length = _framing(status, version, headers)
    if status in _REDIRECTS:
        raise UnsupportedResponse(f"a redirect to {headers.get('location')}", status, headers)
    keep_alive = version == "1" and "close" not in headers.get("connection", "").lower()
    return Head(status, reason or "", headers, keep_alive, chunked, length)


def _framing(status: int, version: str, headers: Mapping[str, str]) -> tuple[bool, int | None]:
    """Return whether a body is chunked, and its length.

    If two headers disagree, programs differ in which one they follow, and then also in where the next response begins.

    Raises:
        ValueError: If the headers disagree, or are invalid.
    """
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is None and length is not None and length.isdecimal() and len(length) < 19:
        return False, 0 if status in (204, 304) else int(length)
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise ValueError(f"its Content-Length is {length[:40]!r}")
    if coding is not None and (length is not None or version == "0" or coding.lower() != "chunked"):
        combined = "" if length is None else f" combined with Content-Length: {length[:40]!r}"
        raise ValueError(f"its Transfer-Encoding is {coding[:40]!r}{combined} in HTTP/1.{version}")
    if status in (204, 304):
        return False, 0
    return coding is not None, None if length is None else int(length.partition(",")[0])


def _describe_invalid(head: str) -> str:
    """Describe the error in an invalid head."""
    first, *lines = head.split("\r\n")
    if re.fullmatch(_STATUS_LINE, first) is None:
        return f"it begins with {first[:40]!r}"
    line = next(line for line in lines if re.fullmatch(_FIELD, line) is None)
    return f"a line of its head is {line[:40]!r}"


TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of requests that may succeed when they are repeated."""
OVERLOAD = frozenset({429, 503})
"""Statuses that ask for fewer requests."""
TRANSIENT_FOR_WRITES = TRANSIENT | {409}
"""The same for conditional writes: S3 answers 409 to one of two simultaneous writes."""
NOT_IMPLEMENTED = 501
"""Status of a conditional write to a service that does not support them."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_SIZE = re.compile(r"bytes \*/([0-9]{1,18})")


def range_header(request: Request) -> str:
    """Return the ``Range`` header of a request; empty for a whole value."""
    if request.suffix:
        return f"bytes=-{max(request.length or 0, 1)}"
    if request.length is None:
        return f"bytes={request.start}-" if request.start else ""
    return f"bytes={request.start}-{request.start + max(request.length, 1) - 1}"


def raise_if_transient(response: Response) -> None:
    """Check the status of a response.

    Raises:
        TransientError: If repeating the request may help.
    """
    if response.status in TRANSIENT:
        raise TransientError(
            f"the server answered {response.status} {redact(response.reason)}",
            slow_down=response.status in OVERLOAD,
            retry_after=_retry_after(response.headers.get("retry-after")),
        )


def parse_value(request: Request, response: Response, version: object) -> Value:
    """Return the requested value or part of it from a response with status 200 or 206.

    Args:
        request: The request.
        response: Its response, whose byte range may be larger than the requested one.
        version: The version of the value.

    Raises:
        TransientError: If the response does not contain the requested byte range.
    """
    if response.status == 200:  # the server does not support byte ranges
        return Value(clip(response.body, request), version, len(response.body))
    data, header = response.body, response.headers.get("content-range", "")
    if header.endswith("/0") and not len(data):  # HTTP has no syntax for the range of an empty value
        return Value(b"", version, 0)
    match = _CONTENT_RANGE.fullmatch(header)
    first, last = (0, -1) if match is None else (int(match[1]), int(match[2]))
    size = None if match is None or match[3] == "*" else int(match[3])
    if match is None or last - first + 1 != len(data) or (size is not None and last >= size):
        raise TransientError(f"the server sent {len(data)} bytes with the range {header!r}")
    if request.suffix and size is None:
        size = last + 1  # it ends where the value does
    start = max(0, (size or 0) - (request.length or 0)) if request.suffix else request.start
    length = len(data) if request.length is None else request.length
    offset = start - first
    if offset < 0 or (offset and offset >= len(data) and length):
        raise TransientError(f"the server sent {header!r} instead of bytes from {start}")
    part = data[offset : offset + length]
    if size is None:  # the end of the value is unknown, so a shorter part may be incomplete
        is_short = request.length is None or len(part) < length
    else:
        is_short = len(part) < min(length, size - start) or (request.length is None and last + 1 < size)
    if is_short:
        raise TransientError(f"the server sent less than requested: {header!r}")
    return Value(part, version, size)


def size_past_end(response: Response) -> int | None:
    """Return the size of the value in a response with status 416 (range not satisfiable); ``None`` without a size."""
    match = _SIZE.fullmatch(response.headers.get("content-range", ""))
    return None if match is None else int(match[1])


class NoSuchBucket(Exception):
    """A bucket does not exist. Most filesystems report that like a key that does not exist."""


def missing_error(error: FileNotFoundError) -> Exception:
    """Return the error itself if a key does not exist, ``NoSuchBucket`` if its bucket does not exist."""
    return NoSuchBucket(str(error)) if is_missing_bucket(error) else error


def is_past_end(error: Exception) -> bool:
    """Return whether an error may mean that a byte range begins after the end of the value (HTTP 416)."""
    status = getattr(error, "status", None) or getattr(error, "code", None)
    message = f"{error} {error.__cause__}"
    return status == 416 or "InvalidRange" in message or "416" in message or "not satisfiable" in message.lower()


_TIME_AND_SIZE = re.compile(r'"([0-9a-f]{8})-[0-9a-f]+"')


def version_of(response: Response) -> object:
    """Return the version of a value; ``None`` if two values written in the same second could have the same one.

    A weak entity tag or a modification time identifies a value if the response is at least a second later
    (RFC 9110, section 8.8.2.2). The strong tags of nginx consist of the modification time in seconds and the size.
    """
    headers = response.headers
    tag, modified = headers.get("etag", ""), headers.get("last-modified", "")
    match = _TIME_AND_SIZE.match(tag)
    if tag and match is None and not tag.startswith("W/"):
        return tag
    modified_time, response_time = _parse_date(modified), _parse_date(headers.get("date", ""))
    if match is not None and modified_time != int(match[1], 16):
        return tag
    if modified_time is None or response_time is None or response_time - modified_time <= 1:
        return None
    return (tag, modified)


def _parse_date(header: str) -> float | None:
    """Return the time in a header, in seconds since 1970."""
    try:
        return email.utils.parsedate_to_datetime(header).timestamp() if header else None
    except (ValueError, OverflowError):
        return None


def _retry_after(header: str | None) -> float:
    """Return the seconds of a ``Retry-After`` header."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    return max(0.0, (_parse_date(header) or 0.0) - clock.wall_time())
