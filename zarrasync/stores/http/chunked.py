"""The chunked transfer coding of HTTP/1.1, decoded as its bytes arrive."""

from __future__ import annotations

import re
from enum import Enum

__all__ = ["ChunkedBody"]

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
