"""Limits of connections in uvicorn: how long a request may take to arrive, and a response to be received, and heads.

uvicorn limits none of these, so a client that sends half a request, or does not read responses, would keep its connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from zarrasync.server.limits import Limits

_PROGRESS_BYTES = 64 << 10
"""Bytes that a client must receive within ``Limits.timeout`` if it has not received everything."""

_HEAD_BYTES = 64 << 10
"""The most bytes of the line and the headers of a request."""


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

    class Guarded(base):  # type: ignore[misc]
        """A connection with limits."""

        _head: asyncio.TimerHandle | None = None
        _sent: asyncio.TimerHandle | None = None
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            room = _HEAD_BYTES - self._head_bytes
            if self._is_in_head and len(data) > room and b"\r\n\r\n" not in data[:room]:
                self.send_400_response(f"The head of a request may have {_HEAD_BYTES:,} bytes.")
                return
            super().data_received(data)
            if self._is_in_head:
                self._head_bytes += len(data)
                self._expect_request()
            else:
                _cancel(self._head)
                self._head, self._head_bytes = None, 0

        @property
        def _is_in_head(self) -> bool:
            """Whether the head of a request is not complete."""
            return self.cycle is None or self.cycle.response_complete

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_progress()

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._sent)

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._head)
            _cancel(self._sent)
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            if self._head is None:
                self._head = self.loop.call_later(limits.head_timeout, self.transport.abort)

        def _expect_progress(self, waiting: int | None = None) -> None:
            size = self.transport.get_write_buffer_size()
            if waiting is not None and size > waiting - _PROGRESS_BYTES:
                self.transport.abort()
            else:
                self._sent = self.loop.call_later(limits.timeout, self._expect_progress, size)

    return uvicorn.Config(
        app,
        http=Guarded,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the application resolves them
        limit_concurrency=limits.connections,
        timeout_keep_alive=int(limits.idle_timeout),
        **options,
    )


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
