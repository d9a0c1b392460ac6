"""HTTP/1.1 response messages: the head, chunked bodies, gzip."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from zarrasync.codecs.spec import Buffer

__all__ = ["HEAD_LIMIT", "Response", "UnsupportedResponse", "join_chunks", "parse_head", "unzip"]

HEAD_LIMIT = 1 << 16
"""Maximum size of the status line and headers, in bytes."""
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) (\d{3})(?: (.*))?", re.ASCII)
_REDIRECTS = frozenset({301, 302, 303, 305, 307, 308})


class UnsupportedResponse(Exception):
    """A response that needs a general HTTP client: a redirect, or an unsupported encoding."""


class Response(NamedTuple):
    """A complete response.

    Attributes:
        status: Status code.
        reason: Reason phrase.
        headers: Header values by name, in lower case.
        body: The whole body, decompressed.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: Buffer


def parse_head(data: bytes, *, accept_gzip: bool) -> tuple[int, str, dict[str, str], bool]:
    """Parse the status line and headers, without the empty line that ends them.

    Returns:
        Status code, reason phrase, header values by name in lower case, and whether the connection is kept alive.

    Raises:
        UnsupportedResponse: If the response is a redirect or has an unsupported content encoding.
        ValueError: If it is not valid HTTP/1.1.
    """
    first, *lines = data.decode("latin-1").split("\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise ValueError(f"it begins with {first[:40]!r}")
    status, headers = int(match[2]), dict[str, str]()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or line[0] in " \t":
            raise ValueError(f"a line of its head is {line[:40]!r}")
        headers[name.lower()] = value.strip()
    if status in _REDIRECTS:
        raise UnsupportedResponse(f"a redirect to {headers.get('location')}")
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding != "identity" and not (encoding == "gzip" and accept_gzip):
        raise UnsupportedResponse(f"the encoding {headers['content-encoding']!r}")
    keep_alive = match[1] == "1" and headers.get("connection", "").lower() != "close"
    return status, match[3] or "", headers, keep_alive


def join_chunks(data: bytearray) -> bytes | None:
    """Join the chunks of a chunked body; ``None`` if its end has not arrived.

    Raises:
        ValueError: If the chunks are not valid HTTP/1.1.
    """
    chunks, position = list[bytes](), 0
    while True:
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            return None
        size = int(bytes(data[position:line_end]).partition(b";")[0], 16)
        if size < 0:
            raise ValueError(f"a chunk of {size} bytes")
        if size == 0:
            return b"".join(chunks) if data.find(b"\r\n\r\n", line_end) >= 0 else None
        position = line_end + 2 + size
        if len(data) < position + 2:
            return None
        if data[position : position + 2] != b"\r\n":
            raise ValueError("a chunk is longer than its declared size")
        chunks.append(bytes(data[line_end + 2 : position]))
        position += 2


def unzip(body: Buffer, limit: int) -> bytes:
    """Decompress a gzip body, which may have several members.

    Args:
        body: The compressed bytes.
        limit: Maximum size of the result, in bytes.

    Raises:
        ValueError: If the result would be larger, or the body is incomplete.
        zlib.error: If the body is not gzip.
    """
    parts, remaining, rest = list[bytes](), limit, bytes(body)
    while rest:
        stream = zlib.decompressobj(31)
        parts.append(stream.decompress(rest, remaining + 1))
        remaining -= len(parts[-1])
        if remaining < 0:
            raise ValueError(f"it is compressed and has more than {limit:,} bytes")
        if not stream.eof:
            raise ValueError("it is compressed and ends too early")
        rest = stream.unused_data
    return b"".join(parts)
