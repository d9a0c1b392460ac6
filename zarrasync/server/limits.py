"""Limits of one request, and of all requests together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from zarrasync.errors import ZarrError

__all__ = ["BadQuery", "Limits", "Overloaded", "RequestQueue", "TooMuch"]

MiB = 1 << 20


class BadQuery(ZarrError):
    """A request has invalid parameters."""


class TooMuch(ZarrError):
    """A request exceeds the limits."""


class Overloaded(ZarrError):
    """Too many requests are waiting."""


@dataclass(frozen=True)
class Limits:
    """Limits of requests to the server.

    Attributes:
        max_cells: Elements of a JSON or CSV response.
        max_result_bytes: Bytes of a response's elements in memory.
        max_decoded_bytes: Bytes of chunks to decode for one response.
        max_chunks: Chunks to visit for one response.
        max_chunk_bytes: Bytes of one decoded chunk.
        max_document_bytes: Bytes of one metadata document.
        max_members: Nodes of one listing.
        max_pending_bytes: Bytes of large responses that clients have not received yet. Further requests for such
            responses get status 503.
        active: Requests that are processed at a time.
        waiting: Requests that wait to be processed. Further requests get status 503.
        timeout: Seconds for one request.
    """

    max_cells: int = 1_000_000
    max_result_bytes: int = 64 * MiB
    max_decoded_bytes: int = 256 * MiB
    max_chunks: int = 10_000
    max_chunk_bytes: int = 256 * MiB
    max_document_bytes: int = 32 * MiB
    max_members: int = 10_000
    max_pending_bytes: int = 512 * MiB
    active: int = 32
    waiting: int = 1000
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value >= 0 or (value == 0 and item.name != "waiting"):
                raise ValueError(f"the limit {item.name} must be positive, found {value}")


class RequestQueue:
    """A queue that admits a limited number of requests at a time.

    Attributes:
        active: The number of admitted requests.
        waiting: The number of waiting requests.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.active)
        self.active = self.waiting = 0

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the length of a block.

        Raises:
            Overloaded: If the queue is full.
        """
        if self._slots.locked() and self.waiting >= self._limits.waiting:
            raise Overloaded(f"{self.active} requests are active and {self.waiting} are waiting: try again later")
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self._slots.release()
