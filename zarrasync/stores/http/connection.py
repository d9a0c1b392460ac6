"""HTTP/1.1 connections and pools of them: a body is received directly into the memory that it stays in."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from zarrasync._concurrency.cancel import retrieve
from zarrasync._concurrency.offload import name_lookup
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync._util.memory import BudgetExceeded, check_budget
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.http.bodies import UNDECLARED_LIMIT, ChunkedBody, body_limit, codings_of, is_supported
from zarrasync.stores.http.responses import HEAD_LIMIT, Head, Response, UnsupportedResponse, parse_head
from zarrasync.stores.remote import request_limits

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


_IDLE_SECONDS = 60.0
"""Seconds after which an idle connection is closed; networks drop connections that are silent for minutes."""
_CONNECT_SECONDS = 5.0
"""Seconds for a connection attempt, if the host has several addresses."""
_DNS_SECONDS = 60.0
"""Seconds for which the addresses of a host are cached."""

Origin: TypeAlias = tuple[str, str]
"""Scheme and network location of a server."""


class ConnectionPool:
    """Connections to one server, on one event loop.

    Args:
        pools: The pools of the loop, from which this one removes itself when it is closed or unused.
        origin: The server.

    Attributes:
        origin: The server.
        clients: Number of clients that share the pool.
        idle: Idle connections with the loop time since when, oldest first.
    """

    def __init__(self, pools: dict[Origin, ConnectionPool], origin: Origin) -> None:
        parts = urlsplit("{}://{}".format(*origin))
        self.origin, self.clients = origin, 0
        self.idle: deque[tuple[Connection, float]] = deque()
        self._pools, self._closed = pools, False
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._tls_context: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._lookup: asyncio.Task[list[Any]] | None = None
        self._lookup_time = 0.0
        self._prune_timer: asyncio.TimerHandle | None = None

    def take_idle(self) -> Connection | None:
        """Return an idle connection, if there is one."""
        while self.idle:
            connection, _ = self.idle.pop()
            if connection.reusable:
                return connection
        return None

    async def connect(self) -> Connection:
        """Return a new connection.

        Raises:
            OSError: If no connection can be made.
        """
        if self._closed:
            raise ConnectionAbortedError("the client was closed")
        if self._tls and self._tls_context is None:
            self._tls_context = ssl.create_default_context()
        first_error: OSError | None = None
        addresses = await self._addresses()
        for address in tuple(addresses):
            try:
                # An address that does not respond must not use up the time of the others.
                async with asyncio.timeout(_CONNECT_SECONDS if len(addresses) > 1 else None):
                    return await self._connect(address)
            except OSError as error:
                first_error = first_error or error
                if address in addresses:  # tried last from now on
                    addresses.append(addresses.pop(addresses.index(address)))
        raise first_error or OSError(f"{self._host!r} has no address")

    async def _connect(self, address: Any) -> Connection:
        family, _, _, _, endpoint = address
        _, connection = await self._loop.create_connection(
            partial(Connection, self._loop, self._connections),
            endpoint[0],
            endpoint[1],
            family=family,
            ssl=self._tls_context,
            server_hostname=self._host if self._tls else None,
        )
        if self._closed:
            connection.transport.abort()
            raise ConnectionAbortedError("the client was closed")
        return connection

    async def _addresses(self) -> list[Any]:
        """Return the addresses of the host; concurrent callers share one lookup."""
        task, now = self._lookup, self._loop.time()
        failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if task is None or failed or now - self._lookup_time > _DNS_SECONDS:
            task = self._lookup = self._loop.create_task(name_lookup(self._host, self._port))
            task.add_done_callback(retrieve)  # all callers may be cancelled before it fails
            self._lookup_time = now
        return await asyncio.shield(task)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        if self._closed:
            connection.transport.abort()
            return
        self.idle.append((connection, self._loop.time()))
        if self._prune_timer is None:
            self._prune_timer = self._loop.call_later(_IDLE_SECONDS, self._prune)

    def _prune(self) -> None:
        """Close connections that have been idle for too long."""
        oldest = self._loop.time() - _IDLE_SECONDS
        while self.idle and self.idle[0][1] <= oldest:
            self.close_oldest()
        delay = self.idle[0][1] - oldest if self.idle else 0.0
        self._prune_timer = self._loop.call_later(delay, self._prune) if self.idle else None
        self._remove_if_unused()

    def close_oldest(self) -> None:
        """Close the connection that has been idle for longest."""
        connection, _ = self.idle.popleft()
        connection.transport.abort()
        self._connections.discard(connection)

    def leave(self) -> None:
        """Count one client less, and close the oldest idle connections that exceed the limit of the loop."""
        self.clients -= 1
        unused = [pool for pool in self._pools.values() if not pool.clients]
        for _ in range(sum(len(pool.idle) for pool in unused) - _idle_limit()):
            min((pool for pool in unused if pool.idle), key=lambda pool: pool.idle[0][1]).close_oldest()
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        """Remove this pool from the loop's if it has no clients and no connections."""
        if not self.clients and not self._connections and self._pools.get(self.origin) is self:
            self._closed = True  # for connections that are being made
            del self._pools[self.origin]

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._pools.get(self.origin) is self:
            del self._pools[self.origin]
        if self._prune_timer is not None:
            self._prune_timer.cancel()
        self.idle.clear()
        lost = [connection.lost for connection in self._connections]
        for connection in tuple(self._connections):
            connection.transport.abort()
        if lost:
            await asyncio.wait(lost)


def _idle_limit() -> int:
    """Return how many connections without clients a loop keeps; few enough to leave file descriptors to others."""
    return request_limits(0)[1] // 2


async def _no_pools() -> dict[Origin, ConnectionPool]:
    return {}


async def _close_pools(pools: dict[Origin, ConnectionPool]) -> None:
    for pool in tuple(pools.values()):
        await pool.close()


pools: PerLoop[dict[Origin, ConnectionPool]] = PerLoop(_no_pools, _close_pools)
"""The pools of each event loop, closed with it."""


def origin_of(url: str) -> Origin:
    """Return the scheme and network location of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


async def pool_of(url: str) -> ConnectionPool:
    """Return the running loop's pool of connections to the server of a URL."""
    existing, origin = await pools.get(), origin_of(url)
    if origin not in existing:
        existing[origin] = ConnectionPool(existing, origin)
    return existing[origin]


async def close_unused(url: str) -> None:
    """Close the running loop's connections to the server of a URL, unless it has clients."""
    pool = (await pools.get()).get(origin_of(url))
    if pool is not None and not pool.clients:
        await pool.close()
