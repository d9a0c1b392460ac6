"""Bodies of HTTP responses: content codings, decoded within a budget, and the chunked transfer coding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial

from zarrasync._concurrency.offload import compute
from zarrasync._util.memory import BudgetExceeded, OutputBudget, expansion_budget
from zarrasync.codecs.base import Decoder, Out
from zarrasync.codecs.decompression import DecoderFactory, is_data_error
from zarrasync.codecs.gzip import RAW_WINDOW, ZLIB_WINDOW, gzip_decoder, inflate_decoder
from zarrasync.codecs.spec import Buffer
from zarrasync.codecs.zstd import zstd_decoder
from zarrasync.stores.http.responses import Response

ACCEPTED = "gzip, deflate"
"""The ``Accept-Encoding`` header of requests for whole values."""
UNDECLARED_LIMIT = OutputBudget(1 << 30, "the limit is 1 GiB if the length is not declared")
"""Maximum size of a body whose length is not declared, if no other limit applies."""
_MOST_CODINGS = 3
_QUICK, _BOUNDED = 1 << 14, frozenset({"gzip", "x-gzip", "deflate"})
"""Bytes of one coding that decode to at most 16 MiB, which an event loop may do itself, and the codings with such a bound."""
_LEAST_ERROR = 1 << 20
"""Bytes that a response to a failed request may have, whatever the limit of the value is."""


def _deflate_decoder(size: int | None, limit: int) -> Decoder:
    """Return a decoder of zlib's format. Some servers send plain DEFLATE instead, which RFC 9110 mentions."""
    decode_zlib, decode_raw = inflate_decoder(ZLIB_WINDOW)(size, limit), inflate_decoder(RAW_WINDOW)(size, limit)

    def decode(data: Buffer, out: Out) -> Buffer:
        header = bytes(data[:2])
        is_zlib = len(header) == 2 and header[0] & 15 == 8 and int.from_bytes(header, "big") % 31 == 0
        return (decode_zlib if is_zlib else decode_raw)(data, out)

    return decode


_DECODERS: dict[str, DecoderFactory] = {
    "gzip": gzip_decoder,
    "x-gzip": gzip_decoder,
    "deflate": _deflate_decoder,
    "zstd": zstd_decoder,
}


def codings_of(headers: Mapping[str, str]) -> list[str]:
    """Return the content codings of a body, in the order in which they were applied."""
    codings = headers.get("content-encoding", "").lower().split(",")
    return [coding.strip() for coding in codings if coding.strip() not in ("", "identity")]


def is_supported(codings: Sequence[str]) -> bool:
    """Return whether a body with these codings can be decoded."""
    return len(codings) <= _MOST_CODINGS and all(coding in _DECODERS for coding in codings)


def body_limit(limit: int | None, status: int, headers: Mapping[str, str]) -> int | None:
    """Return the most bytes of a body to receive.

    Args:
        limit: The most bytes of the value; ``None`` for any number.
        status: Status code.
        headers: Header values by name in lower case.
    """
    if limit is None or (status < 300 and "content-encoding" not in headers):
        return limit
    most = limit + limit // 8 + _QUICK if status < 300 else max(limit, _LEAST_ERROR)
    return most if not isinstance(limit, OutputBudget) else OutputBudget(most, limit.origin)


async def decoded(response: Response, limit: int | None) -> Response:
    """Return a response with its body decoded.

    Args:
        response: A response with supported codings.
        limit: The most bytes of the decoded body; ``None`` for a limit that depends on the size of the encoded one.

    Raises:
        BudgetExceeded: If more would come out.
        ConnectionError: If the body is damaged.
    """
    codings = codings_of(response.headers)
    if not codings:
        return response
    body = response.body
    if response.status >= 300 and limit is not None:
        limit = max(limit, _LEAST_ERROR)
    work = partial(_decode, codings, body, expansion_budget(len(body)) if limit is None else limit)
    is_quick = len(body) <= _QUICK and codings[0] in _BOUNDED and len(codings) == 1
    return response._replace(body=work() if is_quick else await compute(work))


def _decode(codings: Sequence[str], body: Buffer, limit: int) -> Buffer:
    for coding in reversed(codings):
        try:
            body = _DECODERS[coding](None, limit)(body, None)
        except (BudgetExceeded, MemoryError):
            raise  # the body may be valid
        except Exception as error:
            if not is_data_error(error):
                raise
            raise ConnectionError(f"invalid HTTP/1.1 response: its body is not valid {coding}: {error}") from error
    return body


_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*+(?:;[\t -~\x80-\xff]*+)?\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~\x80-\xff]*+\r\n")
_LINE_LIMIT = 1 << 14
"""Maximum size of a line between chunks, in bytes."""
_FREE_OVERHEAD = 32
"""Bytes of a size line that do not count as overhead. Chunks of one byte are allowed."""
_OVERHEAD_LIMIT = 1 << 16
"""Maximum size of chunk extensions and trailers, in bytes, beyond one per byte of the body."""


class _Line(Enum):
    SIZE = 1
    CHUNK_END = 2
    TRAILER = 3


class ChunkedBody:
    """Decodes a chunked body. Chunk extensions and trailers are checked and ignored.

    Attributes:
        data: The decoded bytes so far.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._line = bytearray()  # an incomplete line
        self._next = _Line.SIZE
        self._remaining = 0  # bytes of the current chunk that have not arrived
        self._overhead = 0
        self._complete = False

    def feed(self, received: bytes) -> bool:
        """Decode the next bytes, and return whether the body is complete.

        Raises:
            ValueError: If they are invalid, or bytes follow the end of the body.
        """
        position = 0
        while position < len(received):
            if self._complete:
                raise ValueError(f"{len(received) - position} bytes follow its body")
            if self._remaining:
                part = received[position : position + self._remaining]
                self.data += part
                self._remaining -= len(part)
                position += len(part)
            else:
                position = self._feed_line(received, position)
        return self._complete

    def _feed_line(self, received: bytes, position: int) -> int:
        """Read a line or the beginning of one, and return the position after it."""
        end = received.find(b"\n", position) + 1
        self._line += received[position : end or len(received)]
        if len(self._line) > _LINE_LIMIT:
            raise ValueError(f"a line of its chunked body is longer than {_LINE_LIMIT:,} bytes")
        if end:
            line = bytes(self._line)
            self._line.clear()
            self._process_line(line)
        return end or len(received)

    def _process_line(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            self._begin_chunk(line)
        elif self._next is _Line.CHUNK_END:
            if line != b"\r\n":
                raise ValueError("a chunk is longer than its declared size")
            self._next = _Line.SIZE
        elif line == b"\r\n":
            self._complete = True
        else:
            self._count_overhead(len(line))
            if _TRAILER_LINE.fullmatch(line) is None:
                raise ValueError(f"a trailer is {line[:40]!r}")

    def _begin_chunk(self, size_line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(size_line)
        if match is None:
            raise ValueError(f"the size of a chunk is {size_line[:40]!r}")
        self._remaining = int(match[1], 16)
        self._count_overhead(len(size_line) - _FREE_OVERHEAD - self._remaining)
        self._next = _Line.CHUNK_END if self._remaining else _Line.TRAILER

    def _count_overhead(self, size: int) -> None:
        self._overhead = max(0, self._overhead + size)
        if self._overhead > _OVERHEAD_LIMIT:
            raise ValueError(f"its chunk extensions and trailers are longer than {_OVERHEAD_LIMIT:,} bytes")
