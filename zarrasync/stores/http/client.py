"""A lean HTTP/1.1 client: GET and PUT requests on connections that are kept, bodies received where they stay.

A general client spends several times the CPU that the request itself takes. For small chunks that is what
reads are made of. This one knows what a store needs, and says so when an answer asks for more (``Unfit``).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from zarrasync._concurrency.offload import name_lookup
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.remote import in_flight

__all__ = ["Answer", "Client", "Unfit", "close_unused", "suits"]

_HEAD = 1 << 16
"""Bytes of an answer's head at the most."""
_IDLE = 60.0
"""Seconds after which a connection that nobody uses is closed; networks forget those that are silent for minutes."""
_CONNECT = 5.0
"""Seconds for a connection to one of several addresses."""
_RESOLVED = 60.0
"""Seconds for which a host's addresses are believed."""
_PRINTABLE = re.compile(r"[!-~]*")
_VALUE = re.compile(r"[ -~]*")
_STATUS = re.compile(r"HTTP/1\.([01]) (\d{3})(?: (.*))?", re.ASCII)


class Unfit(Exception):
    """An answer that asks for a general client: a redirect, an encoding."""


class Answer(NamedTuple):
    """What a server answered.

    Attributes:
        status: The status.
        reason: What it says about it.
        headers: By their names in lower case.
        body: All of it.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: Buffer


def suits(url: str, headers: Mapping[str, str]) -> bool:
    """Whether requests to a URL, with these headers, can be made as they are."""
    parts = urlsplit(url)
    plain = _PRINTABLE.fullmatch(url) is not None and "@" not in parts.netloc
    return plain and all(_PRINTABLE.fullmatch(n) and ":" not in n and _VALUE.fullmatch(v) for n, v in headers.items())


class Client:
    """Sends requests to one server, on one event loop. Clients of one server share its connections.

    Connections outlive clients for a while, so that who opens one array after the other connects once.

    Args:
        pool: Connections to the server.
        headers: Sent with each request.
        limit: Bytes that a compressed answer may become; with 0 compressed answers are ``Unfit``.
    """

    def __init__(self, pool: _Pool, headers: Mapping[str, str], limit: int) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._rest = f" HTTP/1.1\r\nHost: {pool.origin[1]}\r\n{lines}"
        self._limit, self._pool = limit, pool
        pool.users += 1

    @classmethod
    async def make(cls, url: str, headers: Mapping[str, str], limit: int) -> Client:
        """A client for the server of a URL, on the running loop."""
        pools, origin = await _pools.get(), _origin(url)
        if origin not in pools:
            pools[origin] = _Pool(pools, origin)
        return cls(pools[origin], headers, limit)

    async def get(self, target: str, wanted: str = "") -> Answer:
        """A GET request.

        Args:
            target: The path and query, as they stand in the request.
            wanted: Headers of this request, each ending in a line break.

        Raises:
            Unfit: If the answer asks for a general client.
            OSError: If there is no connection, or it was lost.
        """
        return await self._send(f"GET {target}{self._rest}{wanted}\r\n", b"")

    async def put(self, target: str, data: bytes, more: str = "") -> Answer:
        """A PUT request, which may be sent again if the connection was lost.

        Args:
            target: The path and query, as they stand in the request.
            data: The body.
            more: Headers of this request, each ending in a line break.

        Raises:
            Unfit: If the answer asks for a general client.
            OSError: If there is no connection, or it was lost.
        """
        return await self._send(f"PUT {target}{self._rest}{more}Content-Length: {len(data)}\r\n\r\n", data)

    async def _send(self, head: str, body: bytes) -> Answer:
        request = head.encode("ascii") + body
        while True:
            connection, used = await self._pool.take()
            try:
                answer = await connection.send(request, self._limit)
            except ConnectionError:
                if used and not connection.answered:
                    continue  # the server had closed it meanwhile, which is its right
                raise
            if body and answer.status >= 300:  # it may not have read all of the body
                connection.transport.abort()
            elif connection.reusable:
                self._pool.give_back(connection)
            return answer

    def leave(self) -> None:
        """Use the connections no more."""
        self._pool.users -= 1
        self._pool.spare()


async def close_unused(url: str) -> None:
    """Close the running loop's connections to the server of a URL, unless clients use them."""
    pool = (await _pools.get()).get(_origin(url))
    if pool is not None and not pool.users:
        await pool.close()


class _Pool:
    """Connections to one server, on one event loop.

    Attributes:
        origin: The server's scheme and address.
        users: How many clients share it.
    """

    def __init__(self, among: _Pools, origin: tuple[str, str]) -> None:
        parts = urlsplit("{}://{}".format(*origin))
        self.origin, self.users = origin, 0
        self._among, self._closed = among, False
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._context: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self._idle: deque[tuple[_Connection, float]] = deque()
        self._open: set[_Connection] = set()
        self._resolving: asyncio.Task[list[Any]] | None = None
        self._resolved = 0.0
        self._pruner: asyncio.TimerHandle | None = None

    async def take(self) -> tuple[_Connection, bool]:
        """A connection that nobody uses, and whether it was used before."""
        if self._closed:
            raise ConnectionAbortedError("the client was closed")
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.reusable:
                return connection, True
        if self._tls and self._context is None:
            self._context = ssl.create_default_context()
        failure: OSError | None = None
        addresses = await self._addresses()
        for where in tuple(addresses):
            try:
                # One that does not answer must not take the time of the others.
                async with asyncio.timeout(_CONNECT if len(addresses) > 1 else None):
                    connection = await self._connect(where)
            except OSError as error:
                failure = failure or error
                if where in addresses:  # last for those who come next
                    addresses.append(addresses.pop(addresses.index(where)))
            else:
                return connection, False
        raise failure or OSError(f"{self._host!r} has no address")

    async def _connect(self, where: Any) -> _Connection:
        family, _, _, _, address = where
        _, connection = await self._loop.create_connection(
            partial(_Connection, self._loop, self._open),
            address[0],
            address[1],
            family=family,
            ssl=self._context,
            server_hostname=self._host if self._tls else None,
        )
        if self._closed:
            connection.transport.abort()
            raise ConnectionAbortedError("the client was closed")
        return connection

    def give_back(self, connection: _Connection) -> None:
        """Keep a connection for the next request."""
        if self._closed:
            connection.transport.abort()
            return
        self._idle.append((connection, self._loop.time()))
        if self._pruner is None:
            self._pruner = self._loop.call_later(_IDLE, self._prune)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._among.get(self.origin) is self:
            del self._among[self.origin]
        if self._pruner is not None:
            self._pruner.cancel()
        self._idle.clear()
        lost = [connection.lost for connection in self._open]
        for connection in tuple(self._open):
            connection.transport.abort()
        if lost:
            await asyncio.wait(lost)

    async def _addresses(self) -> list[Any]:
        """The host's addresses; asked for once by all who need them."""
        task, now = self._resolving, self._loop.time()
        if task is None or now - self._resolved > _RESOLVED or (task.done() and (task.cancelled() or task.exception())):
            task = self._resolving = self._loop.create_task(name_lookup(self._host, self._port))
            task.add_done_callback(_heard)  # those who wanted to know may all have been cancelled
            self._resolved = now
        return await asyncio.shield(task)

    def _prune(self) -> None:
        """Close what was not used for some time."""
        oldest = self._loop.time() - _IDLE
        while self._idle and self._idle[0][1] <= oldest:
            self._drop()
        wait = self._idle[0][1] - oldest if self._idle else 0.0
        self._pruner = self._loop.call_later(wait, self._prune) if self._idle else None
        self._forget_if_unused()

    def spare(self) -> None:
        """Close the oldest of the connections without users, of all pools, that are too many to keep."""
        unused = [pool for pool in self._among.values() if not pool.users]
        for _ in range(sum(len(pool._idle) for pool in unused) - _spare()):
            oldest = min((pool for pool in unused if pool._idle), key=lambda pool: pool._idle[0][1])
            oldest._drop()
        self._forget_if_unused()

    def _drop(self) -> None:
        connection, _ = self._idle.popleft()
        connection.transport.abort()
        self._open.discard(connection)

    def _forget_if_unused(self) -> None:
        """Leave the loop's pools, if there are neither users nor connections; one that is under way is too late."""
        if not self.users and not self._open and self._among.get(self.origin) is self:
            self._closed = True
            del self._among[self.origin]


def _heard(task: asyncio.Task[Any]) -> None:
    """Take note of a failure that nobody may wait for any more."""
    if not task.cancelled():
        task.exception()


def _spare() -> int:
    """Connections that a loop keeps for stores to come: few enough to leave file descriptors to others."""
    return in_flight(0)[1] // 2


_Pools: TypeAlias = dict[tuple[str, str], _Pool]


async def _no_pools() -> _Pools:
    return {}


async def _close_pools(pools: _Pools) -> None:
    for pool in tuple(pools.values()):
        await pool.close()


_pools: PerLoop[_Pools] = PerLoop(_no_pools, _close_pools)
"""Each loop's, closed with it."""


def _origin(url: str) -> tuple[str, str]:
    """The scheme and address of a URL's server."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


class _Connection(asyncio.BufferedProtocol):
    """A connection: one request at a time.

    Attributes:
        answered: Whether bytes of an answer to the latest request came.
        reusable: Whether another request can be sent.
        lost: Done when the connection is.
    """

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, among: set[_Connection]) -> None:
        self._loop, self._among, self._limit = loop, among, 0
        self._head = bytearray(4096)
        self._filled = 0
        self._body: memoryview | None = None  # where a body of known length goes
        self._received = 0
        self._pieces: bytearray | None = None  # a body whose length shows at its end
        self._chunked = False
        self._future: asyncio.Future[Answer] | None = None
        self._status, self._reason, self._headers = 0, "", dict[str, str]()
        self._keep = False
        self.lost: asyncio.Future[None] = loop.create_future()
        self.answered = False
        self.reusable = False

    async def send(self, request: bytes, limit: int) -> Answer:
        """Send a request and wait for its answer; whoever stops waiting closes the connection."""
        self.answered = self.reusable = False
        self._limit = limit
        future = self._future = self._loop.create_future()
        self.transport.write(request)
        try:
            answer: Answer = await future
        except BaseException:
            self.transport.abort()
            raise
        return answer

    # -------------------------------------------------------------- the transport's side

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._among.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.discard(self)
        self.lost.set_result(None)
        self.reusable = False
        if self._pieces is not None and not self._chunked and exc is None:
            try:
                self._finish(bytes(self._pieces))
            except (ValueError, MemoryError, zlib.error) as wrong:
                self._fail(ConnectionError(f"the answer is not one of HTTP/1.1: {wrong}"))
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the server closed the connection"))

    def eof_received(self) -> None:
        self.reusable = False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._received :]
        if self._filled == len(self._head):
            self._head.extend(bytes(len(self._head)))
        return memoryview(self._head)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.answered = True
        try:
            if self._body is not None:
                self._received += nbytes
                if self._received == len(self._body):
                    self._finish(self._body)
                return
            self._filled += nbytes
            self._read_on()
        except (ValueError, MemoryError, zlib.error) as error:
            self._fail(ConnectionError(f"the answer is not one of HTTP/1.1: {error}"))
        except Unfit as error:
            self._fail(error)

    # -------------------------------------------------------------- answers

    def _read_on(self) -> None:
        if self._future is None:
            raise ValueError("bytes that nobody asked for")
        if self._pieces is None:
            end = self._head.find(b"\r\n\r\n", 0, self._filled)
            if end < 0:
                if self._filled > _HEAD:
                    raise ValueError(f"its head is longer than {_HEAD} bytes")
                return
            self._read_head(bytes(memoryview(self._head)[:end]))
            rest = bytes(memoryview(self._head)[end + 4 : self._filled])
            self._filled = 0
            if 100 <= self._status < 200:  # something before the answer
                self._head[: len(rest)] = rest
                self._filled = len(rest)
                if rest:
                    self._read_on()
                return
            self._begin_body(rest)
            return
        self._pieces += memoryview(self._head)[: self._filled]
        self._filled = 0
        self._look_for_the_end()

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            raise ValueError(f"it begins with {first[:40]!r}")
        self._status, self._reason = int(found[2]), found[3] or ""
        headers = self._headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or line[0] in " \t":
                raise ValueError(f"a line of its head is {line[:40]!r}")
            headers[name.lower()] = value.strip()
        self._keep = found[1] == "1" and headers.get("connection", "").lower() != "close"
        if self._status in (301, 302, 303, 305, 307, 308):
            raise Unfit(f"a redirect to {headers.get('location')}")
        if headers.get("content-encoding", "identity").lower() not in (
            "identity",
            "gzip" if self._limit else "identity",
        ):
            raise Unfit(f"the encoding {headers['content-encoding']!r}")

    def _begin_body(self, rest: bytes) -> None:
        """The head is there, and so may be a part of the body."""
        coding, length = self._headers.get("transfer-encoding", "").lower(), self._headers.get("content-length")
        self._chunked = coding == "chunked"
        if coding and not self._chunked:
            raise Unfit(f"the transfer coding {coding!r}")
        if self._status in (204, 304):
            self._finish(b"")
        elif self._chunked or length is None:
            self._pieces = bytearray(rest)
            self._look_for_the_end()
        elif not length.isdigit() or len(rest) > int(length):
            raise ValueError(f"its length is said to be {length!r}, {len(rest)} bytes came")
        elif len(rest) == int(length):
            self._finish(rest)
        else:
            self._body = memoryview(np.empty(int(length), np.uint8))
            self._body[: len(rest)] = rest
            self._received = len(rest)

    def _look_for_the_end(self) -> None:
        """A body in chunks ends with an empty one; any other one that does not say its length, with the connection."""
        assert self._pieces is not None
        if self._chunked and self._pieces.endswith(b"\r\n\r\n"):
            body = _join(self._pieces)
            if body is not None:
                self._finish(body)

    def _finish(self, body: Buffer) -> None:
        if self._headers.get("content-encoding", "").lower() == "gzip":
            body = self._decompress(body)
        future = self._future
        self._future = self._body = self._pieces = None
        self.reusable = self._keep and not self.transport.is_closing()
        if not self.reusable:
            self.transport.abort()
        if future is not None and not future.done():
            future.set_result(Answer(self._status, self._reason, self._headers, body))

    def _decompress(self, body: Buffer) -> bytes:
        parts, room, rest = list[bytes](), self._limit, bytes(body)
        while rest:  # there may be several members, one after the other
            stream = zlib.decompressobj(31)
            parts.append(stream.decompress(rest, room + 1))
            room -= len(parts[-1])
            if room < 0:
                raise ValueError(f"it is compressed and has more than {self._limit:,} bytes")
            if not stream.eof:
                raise ValueError("it is compressed and ends too early")
            rest = stream.unused_data
        return b"".join(parts)

    def _fail(self, error: Exception) -> None:
        future, self._future = self._future, None
        self.reusable = False
        if not self.transport.is_closing():
            self.transport.abort()
        if future is not None and not future.done():
            future.set_exception(error)


def _join(data: bytearray) -> bytes | None:
    """A body of chunks in one piece; ``None`` if its end has not come."""
    parts, at = list[bytes](), 0
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            return None
        size = int(bytes(data[at:line]).partition(b";")[0], 16)
        if size < 0:
            raise ValueError(f"a chunk of {size} bytes")
        if size == 0:
            return b"".join(parts) if data.find(b"\r\n\r\n", line) >= 0 else None
        at = line + 2 + size
        if len(data) < at + 2:
            return None
        if data[at : at + 2] != b"\r\n":
            raise ValueError("a chunk is longer than it says")
        parts.append(bytes(data[line + 2 : at]))
        at += 2
