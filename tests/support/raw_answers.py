"""A web server that answers with exactly these bytes, and answers of all kinds: valid, unusual and malformed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

BODY = b"abc"
DOCUMENT = json.dumps(
    {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [len(BODY)],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [len(BODY)]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
).encode()
"""Metadata of an array with one chunk, ``BODY``."""


class Answer(NamedTuple):
    """An answer of a server.

    Attributes:
        name: What is special about it.
        data: Its bytes.
        error: Pattern of the error; ``None`` if it is valid.
        closes: Whether the server closes the connection after it.
    """

    name: str
    data: bytes
    error: str | None = None
    closes: bool = False


Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server on this event loop, and yield its port. At the end, its connections and handlers have ended.

    Args:
        serve: Handles a connection, which is closed afterwards. It may raise if the client disconnects.
        context: For TLS.
    """
    connections: list[tuple[asyncio.Task[None], asyncio.StreamWriter]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await serve(reader, writer)
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.is_serving():
            connections.append((asyncio.create_task(handle(reader, writer)), writer))
        else:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _, writer in connections:
            writer.transport.abort()  # close() would wait until the client has received everything
        await asyncio.gather(*(task for task, _ in connections))
        await server.wait_closed()


@asynccontextmanager
async def answering(answer: Callable[[bytes], tuple[bytes, bool]]) -> AsyncIterator[str]:
    """Run a server, and yield its URL.

    Args:
        answer: Returns the answer to the head of a request, and whether to close the connection after it.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closes = False
        while not closes:
            data, closes = answer(await reader.readuntil(b"\r\n\r\n"))
            writer.write(data)
            await writer.drain()

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}"


def serve_array(chunk: Callable[[], tuple[bytes, bool]]) -> Callable[[bytes], tuple[bytes, bool]]:
    """Return the answers of a server of an array, whose chunk is answered by a function."""
    document = head(f"Content-Length: {len(DOCUMENT)}") + DOCUMENT

    def answer(request: bytes) -> tuple[bytes, bool]:
        return (document, False) if b"/zarr.json " in request else chunk()

    return answer


def redirecting(answer: Callable[[bytes], tuple[bytes, bool]]) -> Callable[[bytes], tuple[bytes, bool]]:
    """Return the answers of a server that redirects each request once."""

    def redirect(request: bytes) -> tuple[bytes, bool]:
        path = request.split()[1].decode()
        if path.startswith("/moved/"):
            return answer(request)
        return sized(f"Location: /moved{path}", body=b"", status="HTTP/1.1 302 Found"), False

    return redirect


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    """Return the head of an answer."""
    return "".join(f"{line}\r\n" for line in (status, *lines, "")).encode("latin-1")


def sized(*lines: str, body: bytes = BODY, status: str = "HTTP/1.1 200 OK") -> bytes:
    """Return an answer with a declared length."""
    return head(*lines, f"Content-Length: {len(body)}", status=status) + body


def chunked(*parts: bytes, lines: tuple[str, ...] = (), trailers: bytes = b"") -> bytes:
    """Return an answer with a chunked body: size lines and data as they are given."""
    return head(*lines, "Transfer-Encoding: chunked") + b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


CHUNK = b"3\r\nabc\r\n"
LINE_OF_SIZE, CONTENT_LENGTH = "the size of a chunk", "its Content-Length is"
BAD_LINE, BAD_START = "a line of its head is", "it begins with"

VALID = [
    Answer("plain", sized()),
    Answer("HTTP/1.0", sized(status="HTTP/1.0 200 OK")),
    Answer("no reason phrase, no space", sized(status="HTTP/1.1 200")),
    Answer("empty reason phrase", sized(status="HTTP/1.1 200 ")),
    Answer("a reason in latin-1", sized(status="HTTP/1.1 200 Größe")),
    Answer("names in any case", head("cOnTeNt-LeNgTh: 3") + BODY),
    Answer("no space after a colon", head("Content-Length:3") + BODY),
    Answer("tabs around a value", head("Content-Length:\t 3 \t") + BODY),
    Answer("an empty value", sized("X:")),
    Answer("a value in latin-1", sized("X: \xe4\xff")),
    Answer("a value of colons", sized("X: a:b:c")),
    Answer("every character of a name", sized("!#$%&'*+-.^_`|~09azAZ: x")),
    Answer("equal lengths", head("Content-Length: 3", "Content-Length: 3") + BODY),
    Answer("equal lengths in one line", head("Content-Length: 3, 3") + BODY),
    Answer("zeros before a length", head("Content-Length: 0003") + BODY),
    Answer("a repeated header", sized("Vary: a", "Vary: b")),
    Answer("until the connection closes", head() + BODY, closes=True),
    Answer("until an announced close", head("Connection: close") + BODY, closes=True),
    Answer("interim responses", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 5 + sized()),
    Answer("an interim response without headers", b"HTTP/1.1 100 Continue\r\n\r\n" + sized()),
    Answer("one chunk", chunked(CHUNK)),
    Answer("chunks of one byte", chunked(b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n")),
    Answer("a chunk extension", chunked(b'3;a=b;c="d e"\r\nabc\r\n')),
    Answer("space around a chunk extension", chunked(b"3 ; a\r\nabc\r\n")),
    Answer("space after a chunk size", chunked(b"3  \r\nabc\r\n")),
    Answer("zeros before a chunk size", chunked(b"00000003\r\nabc\r\n")),
    Answer("trailers", chunked(CHUNK, trailers=b"Expires: never\r\nX: y\r\n")),
    Answer("a coding in any case", head("Transfer-Encoding: ChunKed") + CHUNK + b"0\r\n\r\n"),
    Answer("no content coding", sized("Content-Encoding: identity")),
    Answer("a complete range", sized("Content-Range: bytes 0-2/3", status="HTTP/1.1 206 Partial Content")),
    Answer("many headers", sized(*(f"X-{number}: {number}" for number in range(1000)))),
]
"""Answers that contain ``BODY``."""

MALFORMED = [
    Answer("nothing", b"", "closed the connection", True),
    Answer("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", BAD_START),
    Answer("a body alone", b"abc", "closed the connection", True),
    Answer("HTTP/2", sized(status="HTTP/2 200 OK"), BAD_START),
    Answer("HTTP/1.2", sized(status="HTTP/1.2 200 OK"), BAD_START),
    Answer("HTTP/01.1", sized(status="HTTP/01.1 200 OK"), BAD_START),
    Answer("http in lower case", sized(status="http/1.1 200 OK"), BAD_START),
    Answer("an empty line first", b"\r\n" + sized(), BAD_START),
    Answer("space before the status line", b" " + sized(), BAD_START),
    Answer("a status of 2 digits", sized(status="HTTP/1.1 20 OK"), BAD_START),
    Answer("a status of 4 digits", sized(status="HTTP/1.1 2000 OK"), BAD_START),
    Answer("a negative status", sized(status="HTTP/1.1 -20 OK"), BAD_START),
    Answer("status 000", sized(status="HTTP/1.1 000 OK"), BAD_START),
    Answer("a status of other digits", sized(status="HTTP/1.1 20\xb2 OK"), BAD_START),
    Answer("two spaces", sized(status="HTTP/1.1  200 OK"), BAD_START),
    Answer("NUL in the reason", sized(status="HTTP/1.1 200 O\0K"), BAD_START),
    Answer("CR in the reason", sized(status="HTTP/1.1 200 O\rK"), BAD_START),
    Answer("no head, closed", head()[:10], "before the end", True),
    Answer("half a head, closed", head("X: y")[:-2], "before the end", True),
    Answer("a line without a colon", sized("no colon here"), BAD_LINE),
    Answer("an empty name", sized(": x"), BAD_LINE),
    Answer("space before a colon", head("Content-Length : 3") + BODY, BAD_LINE),
    Answer("tab before a colon", head("Content-Length\t: 3") + BODY, BAD_LINE),
    Answer("space in a name", sized("Content Length: 3"), BAD_LINE),
    Answer("a folded line", sized("X: a", " b"), BAD_LINE),
    Answer("a line folded with a tab", sized("X: a", "\tb"), BAD_LINE),
    Answer("a folded length", head("Content-Length:", " 3") + BODY, BAD_LINE),
    Answer("a folded first line", sized(" X: a"), BAD_LINE),
    Answer("NUL in a value", sized("X: a\0b"), BAD_LINE),
    Answer("NUL in a name", sized("X\0: a"), BAD_LINE),
    Answer("CR in a value", sized("X: a\rb"), BAD_LINE),
    Answer("CR before a header", sized("X: a\rContent-Length: 2"), BAD_LINE),
    Answer("LF before a header", sized("X: a\nContent-Length: 2"), BAD_LINE),
    Answer("an escape in a value", sized("X: a\x1bb"), BAD_LINE),
    Answer("DEL in a value", sized("X: \x7f"), BAD_LINE),
    Answer("a name in latin-1", sized("X\xe4: a"), BAD_LINE),
    Answer("parentheses in a name", sized("X(y): a"), BAD_LINE),
    Answer("lines that end with LF", sized().replace(b"\r\n", b"\n"), "CR LF"),
    Answer("a head that ends with LF CR LF", b"HTTP/1.1 200 OK\nContent-Length: 3\n\r\nabc", "CR LF"),
    Answer("a huge header", head("X: " + "a" * (1 << 20)), "longer than 65536"),
    Answer("endless headers", head(*["X: y"] * 50_000), "longer than 65536"),
    Answer("a huge status line", b"HTTP/1.1 200 " + b"a" * (1 << 20), "longer than 65536"),
    Answer("lengths 5 and 3", head("Content-Length: 5", "Content-Length: 3") + b"abcde", CONTENT_LENGTH),
    Answer("lengths 3 and 5", head("Content-Length: 3", "Content-Length: 5") + BODY, CONTENT_LENGTH),
    Answer("lengths 3, 5", head("Content-Length: 3, 5") + BODY, CONTENT_LENGTH),
    Answer("lengths 3 and 03", head("Content-Length: 3", "Content-Length: 03") + BODY, CONTENT_LENGTH),
    Answer("lengths 3 and nothing", head("Content-Length: 3", "Content-Length:") + BODY, CONTENT_LENGTH),
    Answer("a comma after a length", head("Content-Length: 3,") + BODY, CONTENT_LENGTH),
    Answer("an empty length", head("Content-Length:") + BODY, CONTENT_LENGTH),
    *(
        Answer(f"length {length}", head(f"Content-Length: {length}") + BODY, CONTENT_LENGTH)
        for length in ("+3", "-3", "0x3", "1_0", "3.0", "3 3", "3;", "\xb2", "three", "3abc", "9" * 19, "9" * 5000)
    ),
    Answer("a length without memory", head("Content-Length: " + "9" * 18) + BODY, "invalid|memory|allocate|byte"),
    Answer("a length beside chunks", chunked(CHUNK, lines=("Content-Length: 3",)), "Transfer-Encoding"),
    Answer("chunks beside a length", sized("Transfer-Encoding: chunked"), "Transfer-Encoding"),
    *(
        Answer(f"coding {coding}", head(f"Transfer-Encoding: {coding}") + CHUNK + b"0\r\n\r\n", "Transfer-Encoding")
        for coding in ("gzip, chunked", "chunked, gzip", "identity", "gzip", "x", "", "chunked, chunked", "chunked;q=1")
    ),
    Answer("two codings", chunked(CHUNK, lines=("Transfer-Encoding: identity",)), "Transfer-Encoding"),
    Answer("chunks in HTTP/1.0", chunked(CHUNK).replace(b"HTTP/1.1", b"HTTP/1.0"), "Transfer-Encoding"),
    *(
        Answer(f"chunk size {size!r}", chunked(size + b"\r\nabc\r\n"), LINE_OF_SIZE)
        for size in (
            b"0x3", b"1_0", b"+3", b"-3", b"", b" 3", b"\t3", b"3 3", b"g", b"3,", b"three", b"\xb2", b"f" * 16,
            b";a", b"3;\0", b"3;a\rb", b"3\0",
        )
    ),
    Answer("a size line that ends with LF", chunked(b"3\nabc\r\n"), LINE_OF_SIZE),
    Answer("a chunk that ends with LF", chunked(b"3\r\nabc\n"), "longer than its declared size"),
    Answer("a chunk that ends with CR", chunked(b"3\r\nabc\r3\n"), "longer than its declared size"),
    Answer("a chunk that is too long", chunked(b"3\r\nabcd\r\n"), "longer than its declared size"),
    Answer("a chunk that is too short", chunked(b"3\r\nab\r\n"), "longer than its declared size"),
    Answer("a long chunk extension", chunked(b"3;" + b"a" * 20_000 + b"\r\nabc\r\n"), "longer than 16,384"),
    Answer("an endless size line", head("Transfer-Encoding: chunked") + b"0" * 100_000, "longer than 16,384"),
    Answer("a flood of extensions", chunked(*[b"1;" + b"x" * 1000 + b"\r\na\r\n"] * 100), "longer than 65,536"),
    Answer("a flood of trailers", chunked(CHUNK, trailers=b"X: yyyyyy\r\n" * 10_000), "longer than 65,536"),
    Answer("a trailer without a colon", chunked(CHUNK, trailers=b"nothing\r\n"), "a trailer is"),
    Answer("a folded trailer", chunked(CHUNK, trailers=b"A: b\r\n c\r\n"), "a trailer is"),
    Answer("a trailer that ends with LF", chunked(CHUNK, trailers=b"A: b\n"), "a trailer is"),
    Answer("another body after the last chunk", chunked(CHUNK) + b"X", "bytes follow"),
    Answer("another answer after the last chunk", chunked(CHUNK) + sized(), "bytes follow"),
    Answer("chunks without an end, closed", head("Transfer-Encoding: chunked") + CHUNK, "before the end", True),
    Answer("half a chunk, closed", head("Transfer-Encoding: chunked") + b"3\r\na", "before the end", True),
    Answer("no last line, closed", chunked(CHUNK)[:-2], "before the end", True),
    Answer("half a trailer, closed", chunked(CHUNK, trailers=b"A: b\r\n")[:-5], "before the end", True),
    Answer("half a body, closed", head("Content-Length: 3") + b"ab", "before the end", True),
    Answer("no body, closed", head("Content-Length: 3"), "before the end", True),
    Answer("a body that is too long", head("Content-Length: 2") + BODY, "declared length"),
    Answer("another answer after the body", sized() + sized(), "declared length"),
    Answer("a body of the wrong length", sized(body=b"ab"), "2 bytes|decode|expected"),
    Answer("204 with a body", head("Content-Length: 3", status="HTTP/1.1 204 No Content") + BODY, "declared length"),
    Answer("204", head(status="HTTP/1.1 204 No Content"), "204"),
    Answer("304 with a body", sized(status="HTTP/1.1 304 Not Modified"), "declared length"),
    Answer("304", head("Content-Length: 3", status="HTTP/1.1 304 Not Modified"), "304"),
    Answer("a switch of protocols", head("Upgrade: x", status="HTTP/1.1 101 Switching Protocols"), "interim"),
    Answer("endless interim responses", b"HTTP/1.1 103 E\r\n\r\n" * 5000 + sized(), "interim"),
    Answer("an interim response, closed", b"HTTP/1.1 103 E\r\n\r\n", "before the end", True),
    Answer("a malformed interim response", b"HTTP/1.1 103 E\r\nX\r\n\r\n" + sized(), BAD_LINE),
    Answer("an unknown status", sized(status="HTTP/1.1 999 Denied"), "999"),
    *(
        Answer(
            f"range {value!r}",
            sized(f"Content-Range: {value}", status="HTTP/1.1 206 Partial Content"),
            "with the range|less than requested|instead of",
        )
        for value in (
            "", "bytes", "bytes */3", "bytes 0-1/3", "bytes 0-2/2", "bytes 0-2/*", "bytes 0-2/10", "bytes 1-3/4",
            "bytes 2-0/3", "bytes 0-2", "0-2/3", "bits 0-2/3", "bytes=0-2/3", "bytes 0-2/3, bytes 0-2/3", "bytes -2/3",
            "bytes 0x0-2/3", "bytes \xb2-2/3", "bytes 0-" + "9" * 5000 + "/3",
        )
    ),
    Answer("206 without a range", sized(status="HTTP/1.1 206 Partial Content"), "with the range ''"),
]  # fmt: skip
"""Answers that must not be taken for ``BODY``."""
