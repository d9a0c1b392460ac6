"""Reports of jobs with many files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zarrasync.display.progress import IngestReport
from zarrasync.display.text import counted

__all__ = ["FilesReport"]


@dataclass
class FilesReport(IngestReport):
    """The result of ingesting files.

    Attributes:
        files: The number of files whose rows are in the destination now.
        known: The number of files that were ingested by an earlier job, and were not read again.
        rows: The number of rows that this job added or replaced.
        notes: Repeated rows, gaps and other observations.
    """

    files: int = 0
    known: int = 0
    rows: int = 0
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        known = f", {self.known:,} ingested before" if self.known else ""
        head = f"{counted(self.files, 'file')} with {counted(self.rows, 'row')}{known}"
        return f"{head}: {super().summary()}"

    def remarks(self) -> Sequence[str]:
        return self.notes

    def __str__(self) -> str:
        return "\n".join([self.summary(), *self.notes])
