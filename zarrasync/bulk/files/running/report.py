"""Reports of jobs with many files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zarrasync.display.progress import IngestReport
from zarrasync.display.text import counted, size_text


@dataclass
class FilesReport(IngestReport):
    """The result of ingesting files.

    Attributes:
        files: The number of files that this job ingested.
        known: The number of files that were ingested by an earlier job, and were not read again.
        rows: The number of rows that this job added or replaced.
        tasks: The number of tasks that this job ran.
        skipped: The number of tasks that an earlier run of the job had completed.
        notes: Repeated rows, gaps and other observations.
        left_out: Files and parts of files that are not stored although no argument excludes them, with the reason.
        bad_files: The reason for each file that could not be read, or does not fit the others, by name.
    """

    files: int = 0
    known: int = 0
    rows: int = 0
    tasks: int = 0
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bad_files: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        if self.known and not self.files and not self.left_out:
            return f"{counted(self.known, 'file')} ingested before: nothing to do, {self.seconds:.1f} s"
        files = self.contents() or ("no file ingested" if self.left_out and not self.tasks else "")
        known = f"{self.known:,} ingested before" if self.known else ""
        tasks = f"{counted(self.tasks, 'task')} run" if self.tasks and not self.files else ""
        head = ", ".join(filter(None, (files, known, tasks)))
        return f"{head}{': ' * bool(head)}{', '.join(filter(None, self._facts()))}"

    def contents(self) -> str:
        """Return the numbers of files and rows that the job ingested; an empty string for none."""
        rows = f" with {counted(self.rows, 'row')}" if self.rows else ""
        return f"{counted(self.files, 'file')}{rows}" if self.files else ""

    def _facts(self) -> Sequence[str]:
        sizes = f"{size_text(self.nbytes)} as {size_text(self.stored)} in {counted(self.requests, 'request')}"
        rate = f", {size_text(int(self.rate))}/s"
        return (
            sizes if self.nbytes else "published" if self.files and not self.skipped else "",
            f"{counted(self.skipped, 'task')} completed before" if self.skipped else "",
            f"{self.seconds:.1f} s{rate if self.nbytes else ''}",
            f"{self.retries:,} retried" if self.retries else "",
            counted(self.conflicts, "conflict") if self.conflicts else "",
            "all values verified" if self.verified and self.verified == self.blocks else "",
        )


@dataclass
class CheckReport(FilesReport):
    """The problems of files, none of which were ingested. ``left_out`` contains all of them."""

    def summary(self) -> str:
        problems = counted(len(self.left_out), "problem") if self.left_out else "no problems"
        return f"{counted(self.files, 'file')} checked: {problems} found, {self.seconds:.1f} s"
