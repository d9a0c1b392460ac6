"""An HTTP/1.1 connection: sends a request and receives the response, its body directly into the memory it stays in."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync.codecs.spec import Buffer
from zarrasync.stores.http.message import (
    HEAD_LIMIT,
    Response,
    UnsupportedResponse,
    join_chunks,
    parse_head,
    unzip,
)

__all__ = ["Connection"]


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
        self._loop, self._connections, self._gzip_limit = loop, connections, 0
        self._buffer = bytearray(4096)
        self._filled = 0
        self._body: memoryview | None = None  # a body of known length
        self._received = 0
        self._unsized: bytearray | None = None  # a body whose length is not known until it ends
        self._chunked = False
        self._future: asyncio.Future[Response] | None = None
        self._status, self._reason = 0, ""
        self._headers: Mapping[str, str] = {}
        self._keep_alive = False
        self.lost: asyncio.Future[None] = loop.create_future()
        self.answered = False
        self.reusable = False

    async def send(self, request: bytes, gzip_limit: int) -> Response:
        """Send a request and wait for its response. Cancelling the caller closes the connection.

        Args:
            request: The whole request.
            gzip_limit: Maximum size of a decompressed body in bytes; 0 if gzip is not accepted.

        Raises:
            UnsupportedResponse: If the response needs a general client.
            OSError: If the connection is lost.
        """
        self.answered = self.reusable = False
        self._gzip_limit = gzip_limit
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
        if self._unsized is not None and not self._chunked and exc is None:
            try:
                self._finish(bytes(self._unsized))
            except (ValueError, MemoryError, zlib.error) as failure:
                self._fail(ConnectionError(f"invalid HTTP/1.1 response: {failure}"))
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the server closed the connection"))

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
                    self._finish(self._body)
                return
            self._filled += nbytes
            self._process()
        except (ValueError, MemoryError, zlib.error) as error:
            self._fail(ConnectionError(f"invalid HTTP/1.1 response: {error}"))
        except UnsupportedResponse as error:
            self._fail(error)

    # -------------------------------------------------------------- the response

    def _process(self) -> None:
        """Process the buffered bytes."""
        if self._future is None:
            raise ValueError("bytes without a request")
        if self._unsized is not None:
            self._unsized += memoryview(self._buffer)[: self._filled]
            self._filled = 0
            self._finish_chunked()
            return
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled > HEAD_LIMIT:
                raise ValueError(f"its head is longer than {HEAD_LIMIT} bytes")
            return
        self._status, self._reason, self._headers, self._keep_alive = parse_head(
            bytes(memoryview(self._buffer)[:end]), accept_gzip=self._gzip_limit > 0
        )
        rest = bytes(memoryview(self._buffer)[end + 4 : self._filled])
        self._filled = 0
        if not 100 <= self._status < 200:
            self._begin_body(rest)
            return
        self._buffer[: len(rest)] = rest  # an interim response: the final one follows
        self._filled = len(rest)
        if rest:
            self._process()

    def _begin_body(self, first_bytes: bytes) -> None:
        coding, length = self._headers.get("transfer-encoding", "").lower(), self._headers.get("content-length")
        self._chunked = coding == "chunked"
        if coding and not self._chunked:
            raise UnsupportedResponse(f"the transfer coding {coding!r}")
        if self._status in (204, 304):
            self._finish(b"")
        elif self._chunked or length is None:
            self._unsized = bytearray(first_bytes)
            self._finish_chunked()
        elif not length.isdigit() or len(first_bytes) > int(length):
            raise ValueError(f"its declared length is {length!r}, but {len(first_bytes)} bytes arrived")
        elif len(first_bytes) == int(length):
            self._finish(first_bytes)
        else:
            self._body = memoryview(np.empty(int(length), np.uint8))
            self._body[: len(first_bytes)] = first_bytes
            self._received = len(first_bytes)

    def _finish_chunked(self) -> None:
        """Finish a chunked body if its last chunk has arrived. Other unsized bodies end with the connection."""
        assert self._unsized is not None
        if self._chunked and self._unsized.endswith(b"\r\n\r\n"):
            body = join_chunks(self._unsized)
            if body is not None:
                self._finish(body)

    def _finish(self, body: Buffer) -> None:
        if self._headers.get("content-encoding", "").lower() == "gzip":
            body = unzip(body, self._gzip_limit)
        future = self._future
        self._future = self._body = self._unsized = None
        self.reusable = self._keep_alive and not self.transport.is_closing()
        if not self.reusable:
            self.transport.abort()
        if future is not None and not future.done():
            future.set_result(Response(self._status, self._reason, self._headers, body))

    def _fail(self, error: Exception) -> None:
        future, self._future = self._future, None
        self.reusable = False
        if not self.transport.is_closing():
            self.transport.abort()
        if future is not None and not future.done():
            future.set_exception(error)
