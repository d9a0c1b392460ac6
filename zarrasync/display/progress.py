"""Progress as users ask for it, and the report of an ingestion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from zarrasync.display.job_progress import JobProgress, Monitor, default_monitor
from zarrasync.display.report import JobReport
from zarrasync.display.text import counted, size_text
from zarrasync.transfer.threads import Progress

ProgressLike: TypeAlias = "bool | Progress | Monitor | Sequence[bool | Progress | Monitor]"
"""What users pass as ``progress``: whether to show it, a function that is called with numbers of bytes, a monitor, or
several of these."""


class _Function(Monitor):
    """Calls a user's function with the number of bytes of a job."""

    def __init__(self, function: Progress) -> None:
        self._function = function

    def advanced(self, job: JobProgress, nbytes: int, *, skipped: bool) -> None:
        if job.parent is None:
            self._function(nbytes)


@contextmanager
def report_progress(
    progress: ProgressLike, total: int, label: str, rows: int = 0, report: JobReport | None = None
) -> Iterator[JobProgress | None]:
    """Provide a progress callback inside a ``with`` block.

    Args:
        progress: As users pass it, or the progress of a job, of which this becomes a part.
        total: The total number of bytes.
        label: The text in front of the bar: an action and a name. A part of another job shows the name alone.
        rows: The length of the first axis, to show the number of processed rows; 0 to show no rows.
        report: The report of the job, which monitors can read when it ends.

    Yields:
        The callback, or ``None`` without progress reports.
    """
    if isinstance(progress, JobProgress):
        with progress.part(label.partition(" ")[2] or label, total, rows).running() as part:
            yield part
        return
    monitors = _monitors(progress)
    if not monitors:
        yield None
        return
    job = JobProgress(label, total, rows, monitors)
    job.report = report
    with job.counts, job.running():
        yield job


def ignore_progress(nbytes: int) -> None:
    """Do nothing: a progress callback."""


def skip_of(progress: Progress) -> Progress:
    """Return the callback for bytes that an earlier run has processed, which are not part of the rate."""
    return progress.skip if isinstance(progress, JobProgress) else progress


@contextmanager
def part_of(progress: Progress, label: str, total: int, rows: int = 0) -> Iterator[Progress]:
    """Provide a callback for a part of a job, such as a variable. A plain function is its own callback."""
    if isinstance(progress, JobProgress):
        with progress.part(label, total, rows).running() as part:
            yield part
    else:
        yield progress


def _monitors(progress: ProgressLike) -> list[Monitor]:
    if isinstance(progress, list | tuple):
        return [monitor for item in progress for monitor in _monitors(item)]
    if isinstance(progress, Monitor):
        return [progress]
    if callable(progress):
        return [_Function(progress)]
    return [default_monitor()] if progress else []


@dataclass
class IngestReport(JobReport):
    """The result of an ingestion.

    Attributes:
        blocks: The number of blocks that were written.
        skipped: The number of blocks that were skipped, because an earlier run had written them.
        nbytes: The decoded size of the written elements, in bytes.
        stored: The number of bytes sent to the store.
        requests: The number of requests to the store.
        retries: The number of requests that were repeated after a failure, without the retries of obstore.
        conflicts: The number of chunks that were merged and written again, because another writer had changed them.
        verified: The number of blocks that were read back and compared.
        seconds: The duration in seconds.
    """

    blocks: int = 0
    skipped: int = 0
    nbytes: int = 0
    stored: int = 0
    requests: int = 0
    retries: int = 0
    conflicts: int = 0
    verified: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Decoded bytes per second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def summary(self) -> str:
        parts = [
            f"{counted(self.blocks, 'block')} written",
            f"{self.skipped:,} existed" if self.skipped else "",
            f"{size_text(self.nbytes)} as {size_text(self.stored)} in {counted(self.requests, 'request')}",
            f"{self.seconds:.1f} s, {size_text(int(self.rate))}/s",
            f"{self.retries:,} retried" if self.retries else "",
            counted(self.conflicts, "conflict") if self.conflicts else "",
            self.verified_text(),
        ]
        return ", ".join(part for part in parts if part)

    def verified_text(self) -> str:
        """Return whether all blocks were verified, or how many; an empty string for none."""
        count = self.blocks + self.skipped
        if self.verified and self.verified == count:
            return "all verified"
        return f"{self.verified:,} of {counted(count, 'block')} verified" if self.verified else ""
