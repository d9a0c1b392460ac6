"""Limits of connections: how many there are, how long a request may take to arrive, and a response to be received.

aiohttp limits neither. A client that opens connections without sending requests, or does not read responses, would
take the file descriptors and the memory of all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError

from zarrasync.server.limits import Limits
from zarrasync.server.slow_clients import Pace, SlowClients

_LINGERING_SECONDS = 2.0
"""Time for which the body of a request is received and ignored."""
_REFUSAL_BODY = b'{"error":"Overloaded","message":"there are too many connections: try again later"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_REFUSAL_BODY), _REFUSAL_BODY)
)


def _is_fault_of_server(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_logger = logging.getLogger("zarrasync.server.protocol")
_logger.addFilter(_is_fault_of_server)  # aiohttp logs a traceback for each malformed request


class GuardedRunner(web.AppRunner):
    """An aiohttp runner with limited connections.

    Args:
        app: The application.
        limits: ``connections``, ``head_timeout``, ``idle_timeout`` and ``timeout`` apply.
        **options: As for ``aiohttp.web.AppRunner``.
    """

    __slots__ = ("_guard", "_limits")

    def __init__(self, app: web.Application, limits: Limits, **options: Any) -> None:
        defaults = {
            "keepalive_timeout": limits.idle_timeout,
            "lingering_time": _LINGERING_SECONDS,
            "logger": _logger,
            "access_log": None,
            "handler_cancellation": True,
        }
        super().__init__(app, **{**defaults, **options})
        self._limits = limits
        self._guard: _Guard | None = None

    @property
    def server(self) -> Any:
        """The factory of protocols, from which sites make connections."""
        return self._guard

    async def setup(self) -> None:
        """Start the application."""
        await super().setup()
        server = super().server
        assert server is not None
        self._guard = _Guard(server, self._limits)

    async def cleanup(self) -> None:
        """Stop the application, and close all connections."""
        try:
            await super().cleanup()
        finally:
            if self._guard is not None:
                self._guard.abort_all()


def _refusal(status: int, error: str, message: str) -> web.Response:
    """Return the response to a request that the application does not receive."""
    headers = {"Cache-Control": "no-store", "Server": "zarrasync"}
    return web.json_response({"error": error, "message": message}, status=status, headers=headers)


class _Guard:
    """All connections of a server."""

    def __init__(self, server: web.Server, limits: Limits) -> None:
        self.limits = limits
        self._server = server
        self._handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = server.request_handler
        server.request_handler = self._handle_request
        self._admitted: set[_Connection] = set()
        self._refused: set[_Connection] = set()
        self._reserve = max(limits.connections // 16, 1)
        self.slow_clients = SlowClients(limits)

    def __call__(self) -> asyncio.Protocol:
        options = self._server._kwargs  # noqa: SLF001  # has no public factory for protocols of another class
        return _Connection(self, self._server, loop=asyncio.get_running_loop(), **options)

    async def _handle_request(self, request: web.BaseRequest) -> web.StreamResponse:
        connection: Any = request.protocol  # one of these
        connection.begin_request()
        try:
            return await self._handle(request)
        except web.HTTPNotFound:
            if request.raw_path.startswith("/"):  # a response of the application
                raise
            return _refusal(404, "NotFound", "this path does not exist")
        finally:
            connection.end_request()

    def admit(self, connection: _Connection) -> bool:
        """Register a new connection if there is room, or another one can make room.

        Connections that wait for a request make room: of the client that has most connections, the oldest one. A
        client without another connection may also use the reserve, so that health checks pass.
        """
        if len(self._admitted) >= self.limits.connections:
            counts = Counter(each.client for each in self._admitted)
            waiting = (each for each in self._admitted if each.is_waiting)
            victim = max(waiting, key=lambda each: (counts[each.client], -each.since), default=None)
            if victim is not None:
                victim.abort()
            elif counts[connection.client] or len(self._admitted) >= self.limits.connections + self._reserve:
                if len(self._refused) < self._reserve:
                    self._refused.add(connection)
                else:
                    connection.abort()
                return False
        self._admitted.add(connection)
        return True

    def remove(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._admitted.discard(connection)
        self._refused.discard(connection)

    def abort_all(self) -> None:
        """Close all connections without waiting for their clients."""
        for connection in (*self._admitted, *self._refused):
            connection.abort()


class _Connection(web.RequestHandler):
    """A connection: aiohttp's protocol, which keeps an eye on the client. Its responses to malformed requests are JSON.

    Attributes:
        client: The address of the client.
        since: When the connection began to wait for a request.
    """

    def __init__(self, guard: _Guard, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self.client, self.since = "", 0.0
        self._guard = guard
        self._pace: Pace
        self._is_admitted = False
        self._active = 0  # requests that are processed

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the response to a request that cannot be processed."""
        super().handle_error(request, status, exc, message)  # logs it
        error = "BadRequest" if status < 500 else "InternalError"
        response = _refusal(status, error, message or "malformed request")
        response.force_close()
        return response

    # -------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pace = self._guard.slow_clients.watch(cast("asyncio.Transport", transport))
        self.since = asyncio.get_running_loop().time()
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if isinstance(peer, tuple) else ""
        self._is_admitted = self._guard.admit(self)
        if self._is_admitted:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            self._pace.transport.write(_REFUSAL)
            self._pace.transport.close()
            return
        if not self._active:
            self._pace.begin_head()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._guard.remove(self)
        self._guard.slow_clients.forget(self._pace)
        if self._is_admitted:
            super().connection_lost(exc)

    # -------------------------------------------------------------- requests

    def begin_request(self) -> None:
        """Note that the head of a request has arrived."""
        self._active += 1
        self._pace.head_began = None

    def end_request(self) -> None:
        """Note that a request has been processed."""
        self._active -= 1
        self.since = asyncio.get_running_loop().time()

    @property
    def is_waiting(self) -> bool:
        """Whether the connection neither has a request nor sends a response."""
        return not self._active and not self._pace.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection without waiting for the client."""
        self._guard.remove(self)  # the transport reports its end later, and others need the place now
        self._pace.transport.abort()
