"""Clocks that are ahead or run faster, for tests of limits that take seconds or days."""

from __future__ import annotations

import asyncio

import pytest

from zarrasync._concurrency import clock


class ShiftedClock(clock.Environment):
    """The real world with other clocks. Sleeping and waiting take as long as they do.

    Args:
        factor: How much faster the monotonic clock runs.

    Attributes:
        ahead: Seconds by which the clocks are ahead.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self._factor, self.ahead = factor, 0.0

    def monotonic(self) -> float:
        return self._factor * super().monotonic() + self.ahead

    def wall_time(self) -> float:
        return super().wall_time() + self.ahead


def advance_loop(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of the running event loop ahead, so that its timers fire earlier."""
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + seconds)
