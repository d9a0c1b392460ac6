"""Limits of one request, of all requests together, and of connections."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

from zarrasync.errors import StoreError, ZarrError

CLIENT: ContextVar[str] = ContextVar("CLIENT", default="")
"""The address of the client whose request is processed."""

MiB = 1 << 20
_WATCH_SECONDS, _LAG_SECONDS = 0.02, 0.005
"""Time between two looks at the lag of the event loop, and the lag from which on fewer requests are admitted."""
_BUSY = 0.5
"""The CPU time per second from which on a lag is attributed to this process, and not to other programs."""
_LEAST_ACTIVE = 4
"""Requests that are processed at a time at first, and however far the event loop lags behind."""


class BadQuery(ZarrError):
    """A request has invalid parameters."""


class NotFound(ZarrError):
    """A path or a key does not exist."""


class MethodNotAllowed(ZarrError):
    """A path does not support the method of a request.

    Attributes:
        allowed: The methods that it supports.
    """

    allowed = "GET, HEAD, OPTIONS"

    def __init__(self, message: str, allowed: str = allowed) -> None:
        super().__init__(message)
        self.allowed = allowed


class TooMuch(ZarrError):
    """A request exceeds the limits."""


class Unsupported(ZarrError):
    """A request is valid, but this server cannot respond to it."""


class Overloaded(ZarrError):
    """Too many requests are waiting."""


class Forbidden(StoreError):
    """A key is not served."""


@dataclass(frozen=True)
class Limits:
    """Limits of requests to the server.

    Attributes:
        max_cells: Elements of a JSON or CSV response.
        max_streamed_cells: Elements of a parameter in a response of OGC API EDR, which is sent while it is read.
        max_result_bytes: Bytes of a response's elements in memory.
        max_decoded_bytes: Bytes of chunks to decode for one response, and of the result of one read.
        max_chunks: Chunks to visit for one response.
        max_chunk_bytes: Bytes of one decoded chunk.
        max_document_bytes: Bytes of one metadata document.
        max_members: Nodes of one listing.
        max_pending_bytes: Bytes of large responses that clients have not received yet, and of large bodies of requests.
            Further requests that need memory for large bodies get status 503.
        active: The most requests that are processed at a time; fewer ones if they keep the interpreter busy.
        waiting: Requests that wait to be processed. Further requests get status 503. Clients take turns.
        timeout: Seconds for one request, and in which a client must receive 64 KiB of a response.
        connections: Open connections, if the server is run by ``run``. It uses at most half of the file descriptors of
            the process. Further connections replace idle ones and those whose requests have not arrived.
        head_timeout: Seconds in which a request must arrive, if the server is run by ``run``.
        idle_timeout: Seconds for which an idle connection is kept, if the server is run by ``run``.
    """

    max_cells: int = 1_000_000
    max_streamed_cells: int = 100_000_000
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
    connections: int = 1024
    head_timeout: float = 10.0
    idle_timeout: float = 75.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value >= 0 or (value == 0 and item.name != "waiting"):
                raise ValueError(f"the limit {item.name} must be positive, found {value}")

    def within_descriptors(self) -> Limits:
        """Return limits with at most as many connections as the process has file descriptors to spare."""
        try:
            import resource
        except ImportError:  # Windows, where sockets are not file descriptors
            return self
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            return self
        return replace(self, connections=max(min(self.connections, descriptors // 2), 1))


class RequestQueue:
    """A queue that admits a limited number of requests at a time. The clients take turns.

    It admits few at first, and more as long as they do not let the event loop lag behind, because they wait for a store.
    Otherwise they would only compete for the interpreter, and all others, also health checks, would wait for each step of each of them.

    Attributes:
        active: The number of admitted requests.
        waiting: The number of waiting requests.
        room: The number of requests that may be active now.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # by client, in the order of their turns
        self._watched: asyncio.AbstractEventLoop | None = None
        self.active = self.waiting = 0
        self.room = min(_LEAST_ACTIVE, limits.active)

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the length of a block.

        Raises:
            Overloaded: If the queue is full.
        """
        self._watch()
        if self.active < self.room:
            self.active += 1
        else:
            await self._wait(CLIENT.get())
        try:
            yield
        finally:
            self.active -= 1
            self._admit_waiting()

    def _watch(self) -> None:
        """Look after a while how far the event loop lags behind."""
        loop = asyncio.get_running_loop()
        if self._watched is not loop:
            self._watched = loop
            loop.call_later(_WATCH_SECONDS, self._adapt, loop.time(), time.process_time())

    def _adapt(self, begin: float, used: float) -> None:
        self._watched = None
        elapsed = asyncio.get_running_loop().time() - begin
        if elapsed - _WATCH_SECONDS > _LAG_SECONDS and time.process_time() - used > _BUSY * elapsed:
            self.room = max(self.room * 3 // 4, min(_LEAST_ACTIVE, self._limits.active))
        elif self.waiting:
            self.room = min(self.room + 1, self._limits.active)
            self._admit_waiting()
        if self.active:
            self._watch()

    async def _wait(self, client: str) -> None:
        """Wait until another request passes its slot on."""
        if self.waiting >= self._limits.waiting:
            self._make_room(client)
        queue = self._queues.setdefault(client, deque())
        slot = asyncio.get_running_loop().create_future()
        queue.append(slot)
        self.waiting += 1
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                self._remove(client, slot)
            elif slot.exception() is None:  # it came too late
                self.active -= 1
                self._admit_waiting()
            raise

    def _make_room(self, client: str) -> None:
        """Turn away the latest request of the client that has most of them.

        Raises:
            Overloaded: If that is this client.
        """
        error = Overloaded(f"{self.active} requests are active and {self.waiting} are waiting: try again later")
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=client)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(client, ())) + 1:
            raise error
        slot = self._queues[longest][-1]
        self._remove(longest, slot)
        if not slot.done():
            slot.set_exception(error)

    def _remove(self, client: str, slot: asyncio.Future[None]) -> None:
        if slot not in self._queues.get(client, ()):
            return
        self._queues[client].remove(slot)
        self.waiting -= 1
        if not self._queues[client]:
            del self._queues[client]

    def _admit_waiting(self) -> None:
        """Admit requests of the clients whose turn it is."""
        while self._queues and self.active < self.room:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            slot = queue.popleft()
            self.waiting -= 1
            if queue:
                self._queues[client] = queue  # at the end
            if not slot.done():  # otherwise it is cancelled
                self.active += 1
                slot.set_result(None)
