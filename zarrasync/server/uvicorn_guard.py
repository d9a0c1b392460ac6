"""Limits of connections in uvicorn: how long a request may take to arrive, and a response to be received, and heads.

uvicorn limits none of these, so a client that sends half a request, or does not read responses, would keep its connection.
"""

from __future__ import annotations

from typing import Any

from zarrasync.display.values import dumps
from zarrasync.server.limits import Limits
from zarrasync.server.responses import message_response
from zarrasync.server.slow_clients import SlowClients

_HEAD_BYTES = 64 << 10
"""The most bytes of the line and the headers of a request."""


_MALFORMED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncache-control: no-store\r\nconnection: close\r\n"
)


async def _refuse(send: Any, limits: Limits) -> None:
    """Send the response to a request on a connection beyond the limit, and close the connection."""
    response = message_response(503, "Overloaded", f"there are {limits.connections:,} connections: try again later")
    headers = {**response.headers, "retry-after": "1", "connection": "close", "content-length": str(response.length)}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": b"".join(response.body)})


def uvicorn_config(app: Any, limits: Limits, **options: Any) -> Any:
    """Return a configuration of uvicorn that limits connections.

    Args:
        app: The application.
        limits: ``connections``, ``head_timeout``, ``idle_timeout`` and ``timeout`` apply.
        **options: Further options of ``uvicorn.Config``.

    Raises:
        ImportError: If uvicorn is not installed.
    """
    try:
        import uvicorn
        from uvicorn.protocols.http.auto import AutoHTTPProtocol
    except ImportError as error:
        raise ImportError("this server needs uvicorn: pip install uvicorn") from error

    base: Any = AutoHTTPProtocol  # one of two classes, with the same methods
    slow_clients = SlowClients(limits)

    class Guarded(base):  # type: ignore[misc]  # of either library
        """A connection with limits."""

        _head_bytes = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            application: Any = self.app  # type: ignore[has-type]  # of either class

            async def respond(scope: Any, receive: Any, send: Any) -> None:
                if len(self.connections) < limits.connections:
                    await application(scope, receive, send)
                else:
                    await _refuse(send, limits)

            self.app = respond

        def send_400_response(self, msg: str) -> None:
            body = dumps({"error": "BadRequest", "message": msg})
            self.transport.write(_MALFORMED + f"content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._pace = slow_clients.watch(transport)

        def data_received(self, data: bytes) -> None:
            room = _HEAD_BYTES - self._head_bytes
            if self._is_in_head and len(data) > room and b"\r\n\r\n" not in data[:room]:
                self.send_400_response(f"The head of a request may have {_HEAD_BYTES:,} bytes.")
                return
            super().data_received(data)
            if self._is_in_head:
                self._head_bytes += len(data)
                self._pace.begin_head()
            else:
                self._pace.head_began, self._head_bytes = None, 0

        @property
        def _is_in_head(self) -> bool:
            """Whether the head of a request is not complete."""
            return self.cycle is None or self.cycle.response_complete

        def connection_lost(self, exc: Exception | None) -> None:
            slow_clients.forget(self._pace)
            super().connection_lost(exc)

    return uvicorn.Config(
        app,
        http=Guarded,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the application resolves them
        timeout_keep_alive=int(limits.idle_timeout),
        **options,
    )
