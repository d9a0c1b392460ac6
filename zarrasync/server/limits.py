"""What one client may ask of the server, and what all of them together may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from zarrasync.errors import ZarrError

__all__ = ["BadQuery", "Limits", "Overloaded", "TooMuch", "Turnstile"]

MiB = 1 << 20


class BadQuery(ZarrError):
    """A request's parameters make no sense."""


class TooMuch(ZarrError):
    """A request asks for more than the limits allow."""


class Overloaded(ZarrError):
    """More requests wait than the limits allow."""


@dataclass(frozen=True)
class Limits:
    """What requests may cost.

    Attributes:
        max_cells: Elements of an answer in text (JSON, CSV).
        max_result_bytes: Bytes of an answer's elements in memory.
        max_decoded_bytes: Bytes that are decoded for one answer.
        max_chunks: Chunks that are looked at for one answer.
        max_chunk_bytes: Bytes of one decoded chunk.
        max_document_bytes: Bytes of one metadata document.
        max_members: Nodes of one listing.
        max_pending_bytes: Bytes of large answers that clients have not taken yet; more requests for such are told to come
            again (503).
        active: Requests that are worked on at the same time.
        waiting: Requests that wait for their turn; more are told to come again (503).
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
                raise ValueError(f"the limit {item.name} must be positive, is {value}")


class Turnstile:
    """Lets a number of requests in at a time, and a number of others wait.

    Attributes:
        active: How many are in.
        waiting: How many wait.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.active)
        self.active = self.waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Be in for the length of a block.

        Raises:
            Overloaded: If too many wait already.
        """
        if self._turns.locked() and self.waiting >= self._limits.waiting:
            raise Overloaded(f"{self.active} requests are worked on and {self.waiting} wait: come again a little later")
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self._turns.release()
