"""An HTTP/1.1 connection: sends a request and receives the response, its body directly into the memory it stays in."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np

from zarrasync._util.output_budget import BudgetExceeded, check_budget
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.http.bodies import UNDECLARED_LIMIT, ChunkedBody, body_limit, codings_of, is_supported
from zarrasync.stores.http.message import HEAD_LIMIT, Head, Response, UnsupportedResponse, parse_head

_INTERIM_LIMIT = 20
"""Maximum number of interim responses (1xx) before a response."""
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")


class Connection(asyncio.BufferedProtocol):
    """A connection that carries one request at a time.

    Args:
        loop: The running event loop.
        connections: The pool's open connections; this one adds and removes itself.

    Attributes:
        answered: Whether bytes of a response to the latest request have arrived.
        reusable: Whether another request can be sent.
        lost: A future that is done when the connection is closed.
    """

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: set[Connection]) -> None:
        self._loop, self._connections = loop, connections
        self._limit: int | None = None
        self._decodes = False
        self._buffer = bytearray(8192)
        self._filled = 0
        self._head: Head | None = None  # of a response whose body is being received
        self._body: memoryview | None = None  # a body of known length
        self._received = 0
        self._chunks: ChunkedBody | None = None
        self._until_close = bytearray()  # a body that ends with the connection
        self._interim_count = 0
        self._future: asyncio.Future[Response] | None = None
        self.lost: asyncio.Future[None] = loop.create_future()
        self.answered = False
        self.reusable = False

    async def send(self, request: bytes, limit: int | None, *, decodes: bool) -> Response:
        """Send a request and wait for its response. Cancelling the caller closes the connection.

        Args:
            request: The whole request.
            limit: Maximum size of the body in bytes; ``None`` for any size that the response declares.
            decodes: Whether the caller decodes content codings.

        Raises:
            BudgetExceeded: If the body is larger.
            UnsupportedResponse: If the response needs a general client.
            OSError: If the connection is lost.
        """
        self.answered = self.reusable = False
        self._limit, self._decodes = limit, decodes
        future = self._future = self._loop.create_future()
        self.transport.write(request)
        try:
            response: Response = await future
        except BaseException:
            self.transport.abort()
            raise
        return response

    # -------------------------------------------------------------- called by the transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self.lost.set_result(None)
        self.reusable = False
        head = self._head
        if head is not None and head.length is None and not head.chunked and exc is None:
            try:
                self._finish(head, memoryview(self._until_close).toreadonly())
            except ValueError as failure:
                self._fail(ConnectionError(f"invalid HTTP/1.1 response: {failure}"))
        when = " before the end of its response" if self.answered else ""
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError(f"the server closed the connection{when}"))

    def eof_received(self) -> None:
        self.reusable = False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._received :]
        if self._filled == len(self._buffer):
            self._buffer.extend(bytes(len(self._buffer)))
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.answered = True
        try:
            if self._body is not None:
                self._received += nbytes
                if self._received == len(self._body):
                    assert self._head is not None
                    self._finish(self._head, self._body)
                return
            self._filled += nbytes
            self._process(nbytes)
        except (BudgetExceeded, MemoryError, UnsupportedResponse) as error:
            self._fail(error)
        except ValueError as error:
            self._fail(ConnectionError(f"invalid HTTP/1.1 response: {error}"))

    # -------------------------------------------------------------- the response

    def _process(self, nbytes: int) -> None:
        """Process the buffered bytes, the last of which are new."""
        if self._future is None:
            raise ValueError("bytes without a request")
        buffer, filled = self._buffer, self._filled
        if self._head is not None:
            self._filled = 0
            self._receive_unsized(self._head, bytes(memoryview(buffer)[:filled]))
            return
        start = max(0, filled - nbytes - 3)
        while (end := buffer.find(b"\r\n\r\n", start, filled)) >= 0:
            view = memoryview(buffer)
            head = parse_head(bytes(view[:end]))
            rest = bytes(view[end + 4 : filled])
            if head.status >= 200:
                self._filled = 0
                self._begin_body(head, rest)
                return
            self._interim_count += 1  # an interim response: the final one follows
            if head.status == 101 or self._interim_count > _INTERIM_LIMIT:
                raise ValueError(
                    f"it begins with {self._interim_count} interim responses, the last of status {head.status}"
                )
            start, filled = 0, len(rest)
            view[:filled] = rest
        self._filled = filled
        if filled > HEAD_LIMIT:
            raise ValueError(f"its head is longer than {HEAD_LIMIT} bytes")
        if _BARE_LINE_FEED.search(buffer, start, filled):
            raise ValueError("a line of its head does not end with CR LF")

    def _begin_body(self, head: Head, first_bytes: bytes) -> None:
        length, self._interim_count = head.length, 0
        if "content-encoding" in head.headers:
            codings = codings_of(head.headers)
            if codings and not (self._decodes and is_supported(codings)):
                raise UnsupportedResponse(f"the encoding {head.headers['content-encoding']!r}")
        limit = self._limit
        if limit is not None:
            limit = self._limit = body_limit(limit, head.status, head.headers)
        if limit is not None and length is not None:
            check_budget(limit, length, what="body")
        if length is None:
            self._head = head
            self._chunks = ChunkedBody() if head.chunked else None
            self._receive_unsized(head, first_bytes)
        elif len(first_bytes) > length:
            raise ValueError(f"its declared length is {length}, but {len(first_bytes)} bytes arrived")
        elif len(first_bytes) == length:
            self._finish(head, first_bytes)
        else:
            self._head = head
            self._body = memoryview(np.empty(length, np.uint8))
            self._body[: len(first_bytes)] = first_bytes
            self._received = len(first_bytes)

    def _receive_unsized(self, head: Head, received: bytes) -> None:
        """Receive bytes of a body whose length is not declared."""
        if self._chunks is None:
            is_complete, data = False, self._until_close
            data += received
        else:
            is_complete, data = self._chunks.feed(received), self._chunks.data
        check_budget(UNDECLARED_LIMIT if self._limit is None else self._limit, len(data), at_least=True, what="body")
        if is_complete:
            self._finish(head, memoryview(data).toreadonly())

    def _finish(self, head: Head, body: Buffer) -> None:
        future = self._future
        self._future = self._head = self._body = self._chunks = None
        self.reusable = head.keep_alive and not self.transport.is_closing()
        if not self.reusable:
            self.transport.abort()
        if future is not None and not future.done():
            future.set_result(Response(head.status, head.reason, head.headers, body))

    def _fail(self, error: Exception) -> None:
        future, self._future = self._future, None
        self.reusable = False
        if not self.transport.is_closing():
            self.transport.abort()
        if future is not None and not future.done():
            future.set_exception(error)
