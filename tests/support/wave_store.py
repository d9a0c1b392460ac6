"""A store that counts round trips: requests of a wave wait until the program has nothing else to do."""

from __future__ import annotations

import asyncio
import time

from zarrasync import stores
from zarrasync.testing import LatencyStore

_POLLS, _POLL_SECONDS, _IDLE_SECONDS = 4, 0.004, 0.001


class WaveStore(LatencyStore):
    """A store whose requests are answered together, as soon as all threads of the process wait for them.

    So the number of waves is the number of requests that depend on each other, and no matter of timing.

    Attributes:
        waves: The requests of each wave, as pairs of operation and key.
    """

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner, 0.0)
        self.waves: list[list[tuple[str, str]]] = []
        self._gate: asyncio.Event | None = None
        self._release: asyncio.Task[None] | None = None

    async def _before(self, operation: str, key: str) -> None:
        if self._gate is None:
            self.waves.append([])
            self._gate = asyncio.Event()
            self._release = asyncio.create_task(self._release_when_idle(self._gate))
        self.waves[-1].append((operation, key))
        await self._gate.wait()

    async def _release_when_idle(self, gate: asyncio.Event) -> None:
        idle = 0
        while idle < _POLLS:  # the time of all threads, without that of other processes
            before = time.process_time()
            await asyncio.sleep(_POLL_SECONDS)
            idle = idle + 1 if time.process_time() - before < _IDLE_SECONDS else 0
        self._gate = None
        gate.set()

    def take(self) -> list[list[tuple[str, str]]]:
        """Return the waves since the last call."""
        waves, self.waves = self.waves, []
        return waves
