"""Histories: what clients did and when it began and ended, as the scheduler's steps count time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.scheduler import Killed, Scheduler
from zarrasync.errors import ZarrError

__all__ = ["Call", "History"]

FOREVER = 1 << 60


@dataclass(eq=False)
class Call:
    """A call of the library.

    Attributes:
        client: The name of the client.
        text: What it did, for people.
        start: When it began.
        end: When it ended; ``FOREVER`` if it never did, or may take effect later.
        outcome: ``"ok"``, ``"failed"``, ``"cancelled"``, or ``"pending"`` if its client was killed.
        error: What it raised.
        result: What it returned.
    """

    client: str
    text: str
    start: int
    end: int = FOREVER
    outcome: str = "pending"
    error: BaseException | None = None
    result: Any = None

    @property
    def ok(self) -> bool:
        """Whether it has succeeded."""
        return self.outcome == "ok"

    def __str__(self) -> str:
        end = "" if self.end == FOREVER else self.end
        error = f": {type(self.error).__name__}: {str(self.error)[:200]}" if self.error is not None else ""
        result = f" -> {self.result}" if self.result is not None else ""
        return f"[{self.start}-{end}] {self.client}: {self.text}: {self.outcome}{error}{result}"


@dataclass
class History:
    """What happened in a simulation.

    Attributes:
        scheduler: Counts the steps.
        calls: The calls, in the order in which they began.
        repeats: Unconditional writes that may be carried out twice: when, by whom, and which key.
        notes: What happened in between, if wanted.
    """

    scheduler: Scheduler
    detailed: bool = False
    calls: list[Call] = field(default_factory=list)
    repeats: list[tuple[int, str, str]] = field(default_factory=list)
    notes: list[tuple[int, float, str]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Note something for people who read the history."""
        if self.detailed:
            self.notes.append((self.scheduler.steps, self.scheduler.now, text))

    def may_repeat(self, client: str, key: str) -> None:
        """Note that a request may be carried out twice."""
        self.repeats.append((self.scheduler.steps, client, key))

    @contextlib.contextmanager
    def call(self, client: str, text: str, *, late: bool = False) -> Iterator[Call]:
        """Record a call. Its errors of the library, and its cancellation, end here.

        Args:
            client: Who calls.
            text: What is called, for people.
            late: Whether it may take effect after it has failed.
        """
        call = Call(client, text, self.scheduler.steps)
        self.calls.append(call)
        try:
            yield call
        except (Killed, GeneratorExit):
            raise
        except asyncio.CancelledError:
            call.outcome = "cancelled"
        except (ZarrError, OSError) as error:
            call.outcome, call.error = "failed", error
        else:
            call.outcome = "ok"
        if call.ok or not late:
            call.end = self.scheduler.steps

    def __str__(self) -> str:
        lines = [(call.start, f"{call}") for call in self.calls]
        lines += [(step, f"        {step} at {now - 1000:.3f} s, {text}") for step, now, text in self.notes]
        return "\n".join(line for _, line in sorted(lines, key=lambda line: line[0]))
