"""Large responses, which are sent in pieces and occupy memory until clients have received them."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.payload import Payload

from zarrasync.server.limits import Limits, Overloaded

__all__ = ["PendingResponses"]

_PIECE_BYTES = 64 << 10
"""Bytes that a client must receive within the time limit of a request."""
_LARGE_BYTES = 4 << 20
"""Minimum size in bytes of tracked responses. The operating system buffers most of a smaller one."""


class PendingResponses:
    """Large responses on their way to clients.

    Args:
        limits: ``max_pending_bytes`` and ``timeout`` apply.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit, self._timeout = limits.max_pending_bytes, limits.timeout
        self._pending = 0

    def track(self, request: web.Request, response: web.StreamResponse) -> None:
        """Count a response if it is large, and limit the time in which the client must receive it.

        Raises:
            Overloaded: If too many bytes are pending.
        """
        body = response.body if isinstance(response, web.Response) else None
        if request.method == "HEAD" or not isinstance(body, bytes) or len(body) < _LARGE_BYTES:
            return
        if self._pending and self._pending + len(body) > self._limit:
            raise Overloaded(f"{self._pending:,} bytes of responses are waiting for slow clients; try again later")
        self._pending += len(body)
        payload = _PiecewisePayload(body, request.transport, self._timeout)
        payload.release = weakref.finalize(payload, partial(self._release, len(body)))  # also if it is never sent
        response.body = payload  # type: ignore[attr-defined]  # it is a Response

    def _release(self, count: int) -> None:
        self._pending -= count


class _PiecewisePayload(Payload):
    """A body that is sent in pieces, each within a time limit."""

    release: Any

    def __init__(self, body: bytes, transport: asyncio.Transport | None, timeout: float) -> None:
        super().__init__(body)
        self._size, self._transport, self._timeout = len(body), transport, timeout

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as a string."""
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: Any) -> None:
        """Send the body.

        Raises:
            ConnectionResetError: If the client does not receive a piece in time.
        """
        view = memoryview(self._value)
        try:
            for start in range(0, len(view), _PIECE_BYTES):
                async with asyncio.timeout(self._timeout):
                    await writer.write(bytes(view[start : start + _PIECE_BYTES]))
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()  # otherwise its buffer stays as long as the client is connected
            raise ConnectionResetError(f"the client received nothing for {self._timeout:g} s") from None
        finally:
            self.release()
