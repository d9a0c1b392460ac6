"""Which clients take too long to send a request or to receive a response, for the protocols of all frameworks."""

from __future__ import annotations

import asyncio

from zarrasync.server.limits import Limits

_SWEEP_SECONDS = 0.5
"""Time between two checks of all connections."""
_PROGRESS_BYTES = 64 << 10
"""Bytes that a client must receive within ``Limits.timeout`` if it has not received everything."""


class Pace:
    """The pace of the client of one connection, from which a request is expected at first.

    Args:
        transport: The connection.

    Attributes:
        transport: The connection.
        head_began: When the client began to send a request; ``None`` while none is expected.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.head_began: float | None = asyncio.get_running_loop().time()
        self._unsent, self._unsent_since = 0, 0.0

    def begin_head(self) -> None:
        """Note that a part of a request has arrived."""
        if self.head_began is None:
            self.head_began = asyncio.get_running_loop().time()

    def is_too_slow(self, limits: Limits, now: float) -> bool:
        """Return whether the client takes too long to send a request or to receive a response."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and self._unsent and self._unsent - _PROGRESS_BYTES < unsent <= self._unsent:
            return now - self._unsent_since > limits.timeout
        self._unsent, self._unsent_since = unsent, now
        return self.head_began is not None and now - self.head_began > limits.head_timeout


class SlowClients:
    """Closes the connections of clients that are too slow.

    Args:
        limits: ``head_timeout`` and ``timeout`` apply.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._paces: set[Pace] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, transport: asyncio.Transport) -> Pace:
        """Watch a new connection."""
        pace = Pace(transport)
        self._paces.add(pace)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)
        return pace

    def forget(self, pace: Pace) -> None:
        """Forget a connection that has ended."""
        self._paces.discard(pace)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for pace in [*self._paces]:
            if pace.is_too_slow(self._limits, loop.time()):
                pace.transport.abort()
        self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep) if self._paces else None
