"""Sending large answers: piece by piece, to clients that take them."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.payload import Payload

from zarrasync.server.limits import Limits, Overloaded

__all__ = ["Sending"]

_PIECE = 64 << 10
"""Bytes that a client has so long to take as a request may last."""
_LARGE = 4 << 20
"""Bytes of an answer that is sent so; of smaller ones the system takes most."""


class Sending:
    """Answers on their way to clients, which hold memory until they are taken.

    Args:
        limits: How many bytes may wait, and how long for.
    """

    def __init__(self, limits: Limits) -> None:
        self._most, self._patience = limits.max_pending_bytes, limits.timeout
        self._pending = 0

    def watch(self, request: web.Request, answer: web.StreamResponse) -> None:
        """See that a large answer does not wait for ever when it is sent.

        Raises:
            Overloaded: If too many bytes wait for others already.
        """
        body = answer.body if isinstance(answer, web.Response) else None
        if request.method == "HEAD" or not isinstance(body, bytes) or len(body) < _LARGE:
            return
        if self._pending and self._pending + len(body) > self._most:
            raise Overloaded(f"{self._pending:,} bytes wait for clients that are slow to take them")
        self._pending += len(body)
        pieces = _Pieces(body, request.transport, self._patience)
        pieces.sent = weakref.finalize(pieces, partial(self._release, len(body)))  # also if nobody begins to send it
        answer.body = pieces  # type: ignore[attr-defined]  # it has been found to have one

    def _release(self, count: int) -> None:
        self._pending -= count


class _Pieces(Payload):
    """A body that is sent as long as the client takes a piece now and then."""

    sent: Any

    def __init__(self, body: bytes, transport: asyncio.Transport | None, patience: float) -> None:
        super().__init__(body)
        self._size, self._transport, self._patience = len(body), transport, patience

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text, which aiohttp's payloads have to tell."""
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: Any) -> None:
        """Send it.

        Raises:
            ConnectionResetError: If the client takes nothing for a while.
        """
        view = memoryview(self._value)
        try:
            for start in range(0, len(view), _PIECE):
                async with asyncio.timeout(self._patience):
                    await writer.write(bytes(view[start : start + _PIECE]))
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()  # what is in its buffer would stay as long as the client does
            raise ConnectionResetError(f"nothing was taken for {self._patience:g} s") from None
        finally:
            self.sent()
