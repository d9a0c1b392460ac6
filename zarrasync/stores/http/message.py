"""HTTP/1.1 response messages: the head, and the length of the body."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zarrasync.codecs.spec import Buffer

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
        headers[name.lower()] = value.strip(" \t")
    if len(headers) < len(lines):
        headers = _merge_fields(lines)
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


def _merge_fields(lines: Sequence[str]) -> dict[str, str]:
    """Return header values by name. Values of the same name are joined by commas."""
    values = dict[str, list[str]]()
    for line in lines:
        name, _, value = line.partition(":")
        values.setdefault(name.lower(), []).append(value.strip(" \t"))
    return {name: ", ".join(items) for name, items in values.items()}


def _describe_invalid(head: str) -> str:
    """Describe the error in an invalid head."""
    first, *lines = head.split("\r\n")
    if re.fullmatch(_STATUS_LINE, first) is None:
        return f"it begins with {first[:40]!r}"
    line = next(line for line in lines if re.fullmatch(_FIELD, line) is None)
    return f"a line of its head is {line[:40]!r}"
