"""Explanations of plans: what a job reads and writes, and how much memory its tasks need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zarrasync.display.report import JobReport
from zarrasync.display.text import Table, counted, printable, size_text

_MOST_ROWS = 20
"""The number of tasks in a table. The others are counted."""


@dataclass(repr=False)
class PlanExplanation(JobReport):
    """What a plan reads and writes.

    Attributes:
        kind: The job: ``"ingest"``, ``"copy"``, ``"pyramid"`` or ``"write"``.
        destination: The destination.
        tasks: The name, the size in bytes and the memory in bytes of each task.
        read_bytes: The decoded size of what the tasks read, in bytes.
        written_bytes: The decoded size of what the tasks write, in bytes.
        source_bytes: The decoded size of the sources, in bytes.
        requests: About how many requests the tasks make.
        notes: Remarks about the sources.
    """

    kind: str
    destination: str
    tasks: Sequence[tuple[str, int, int]] = ()
    read_bytes: int = 0
    written_bytes: int = 0
    source_bytes: int = 0
    requests: int = 0
    notes: Sequence[str] = field(default_factory=list)

    @property
    def passes(self) -> float:
        """How often the tasks read their sources."""
        return self.read_bytes / self.source_bytes if self.source_bytes else 0.0

    @property
    def memory(self) -> int:
        """The largest size of values that a task has in memory at a time, in bytes."""
        return max((memory for _, _, memory in self.tasks), default=0)

    def summary(self) -> str:
        head = f"{self.kind} into {self.destination}: {counted(len(self.tasks), 'task')}"
        if not self.tasks:
            return f"{head}, nothing to do"
        passes = f"{self.passes:.1f} passes" if self.passes > 1.05 else "one pass"
        return (
            f"{head}, {size_text(self.read_bytes)} read in {passes}, {size_text(self.written_bytes)} written in about "
            f"{counted(self.requests, 'request')}, at most {size_text(self.memory)} in memory per task"
        )

    def remarks(self) -> Sequence[str]:
        return self.notes

    def tables(self) -> Sequence[Table]:
        if not self.tasks:
            return ()
        most = max(nbytes for _, nbytes, _ in self.tasks) or 1
        rows = [
            (str(number), printable(name), size_text(nbytes), size_text(memory), "█" * round(20 * nbytes / most))
            for number, (name, nbytes, memory) in enumerate(self.tasks[:_MOST_ROWS])
        ]
        if more := len(self.tasks) - len(rows):
            rows.append(("", f"and {counted(more, 'other task')}", "", "", ""))
        return [Table((">task", "writes", ">size", ">memory", "share"), rows)]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "passes": self.passes, "memory": self.memory}

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
