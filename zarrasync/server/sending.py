"""Sending large answers: piece by piece, to clients that take them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from zarrasync.server.limits import Limits, Overloaded

__all__ = ["Sending"]

_PIECE = 1 << 20
"""Bytes that are handed to a connection at a time."""
_LARGE = 4 * _PIECE
"""Bytes of an answer that is sent in pieces; the system takes smaller ones, or few of them wait."""


class Sending:
    """Answers on their way to clients, which hold memory until they are taken.

    Args:
        limits: How many bytes may wait, and how long for.
    """

    def __init__(self, limits: Limits) -> None:
        self._most, self._patience = limits.max_pending_bytes, limits.timeout
        self._pending = 0

    async def send(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """Send an answer if it is a large one, and leave it to aiohttp else.

        Raises:
            Overloaded: If too many bytes wait for others already.
            ConnectionResetError: If the client takes nothing for as long as a request may last.
        """
        body = answer.body if isinstance(answer, web.Response) else None
        if request.method == "HEAD" or not isinstance(body, bytes) or len(body) < _LARGE:
            return answer
        if self._pending and self._pending + len(body) > self._most:
            raise Overloaded(f"{self._pending:,} bytes wait for clients that are slow to take them")
        self._pending += len(body)
        try:
            return await self._send(request, answer, body)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # what is in its buffer would stay as long as the client does
            raise ConnectionResetError(f"nothing was taken for {self._patience:g} s") from None
        finally:
            self._pending -= len(body)

    async def _send(self, request: web.Request, whole: web.StreamResponse, body: bytes) -> web.StreamResponse:
        answer = web.StreamResponse(status=whole.status, headers=whole.headers)
        if whole.compression:
            answer.enable_compression()
        else:
            answer.content_length = len(body)
        async with asyncio.timeout(self._patience):
            await answer.prepare(request)
        for start in range(0, len(body), _PIECE):
            async with asyncio.timeout(self._patience):
                await answer.write(body[start : start + _PIECE])
        async with asyncio.timeout(self._patience):
            await answer.write_eof()
        return answer
