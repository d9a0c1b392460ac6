"""Random changes of messages, for fuzzing."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["mutate"]

_TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"-1", b"+3", b"0x3", b"1_0", b"9" * 20, b"ffffffff",
    b"\xff", b"\xc2\xb2", b"\r\n\r\n", b"0\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 103 E\r\n\r\n", b"HTTP/1.0 ",
    b"Content-Length: 3\r\n", b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"Content-Encoding: gzip\r\n", b"Content-Range: bytes 0-2/3\r\n", b"Content-Range: bytes */3\r\n", b" folded\r\n",
    b"Location: /x\r\n", b"Retry-After: 1e9\r\n", b"206", b"301", b"416", b"503", b"A" * 70_000, b"X: y\r\n" * 50,
    b"Range: bytes=0-\r\n", b"Host: x\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"%2e%2e/", b"..", b"?", b"#",
)  # fmt: skip


def mutate(messages: Sequence[bytes], chance: random.Random) -> bytes:
    """Return one of some messages with one to four random changes."""
    data = bytearray(chance.choice(messages))
    for _ in range(chance.randint(1, 4)):
        start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        kind = chance.randrange(8)
        if kind == 0 and data:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif kind == 1 and data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == 2:
            data[start:start] = chance.choice(_TOKENS)
        elif kind == 3:
            lines = bytes(data).splitlines(keepends=True)
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(_TOKENS))
            data = bytearray(b"".join(lines))
        elif kind == 4:
            del data[start : min(end, start + 20)]
        elif kind == 5:
            data[start:start] = data[start:end]
        elif kind == 6:
            del data[start:]
        else:
            other = chance.choice(messages)
            data[start:] = other[chance.randrange(len(other) + 1) :]
    return bytes(data)
