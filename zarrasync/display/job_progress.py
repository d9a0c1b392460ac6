"""The progress of a job and of its parts, and the base of the monitors that observe it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.retry import RetryCounts
from zarrasync.display.report import JobReport
from zarrasync.display.text import duration_text, printable, size_text

_SHOWN_PARTS = 4
"""The number of parts that a line names."""


class Monitor:
    """Observes jobs and their parts, such as the variables of a dataset. Derive from it, and pass it as ``progress``.

    Methods are called on any thread, several at a time, and should return quickly.
    """

    def started(self, job: JobProgress) -> None:
        """A job has started, or a part of one. Its size may not be known yet."""

    def sized(self, job: JobProgress) -> None:
        """The size of a job has become known after its start."""

    def advanced(self, job: JobProgress, nbytes: int, *, skipped: bool) -> None:
        """Some bytes were processed, or were skipped because an earlier run has processed them."""

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        """A job has ended, or a part of one. After a failure, the error is given."""


class JobProgress:
    """The progress of a job or of a part of one. Call it with the number of bytes processed since the last call.

    Attributes:
        label: The text in front of a bar: an action and a name, or only a name for a part.
        total: The total number of bytes; 0 if it is unknown.
        rows: The length of the first axis; 0 to show no rows.
        parent: The job that this is a part of.
        parts: The parts that are running.
        done: The number of bytes that were processed or skipped.
        skipped: The number of bytes that were skipped, because an earlier run has processed them.
        report: The report of the job, which is completed while it runs; ``None`` for parts, and for jobs without one.
    """

    def __init__(
        self, label: str, total: int, rows: int, monitors: Sequence[Monitor], parent: JobProgress | None = None
    ) -> None:
        self.label, self.total, self.rows, self.parent = label, total, rows, parent
        self.parts: list[JobProgress] = []
        self.done = self.skipped = 0
        self.report: JobReport | None = None
        self.counts: RetryCounts = parent.counts if parent is not None else RetryCounts()
        self._monitors, self._lock, self._begin = monitors, thread_lock(), clock.monotonic()
        self._work_begin = self._begin

    def __call__(self, nbytes: int) -> None:
        self._advance(nbytes, skipped=False)

    def skip(self, nbytes: int) -> None:
        """Advance by bytes that an earlier run has processed, without including them in the rate."""
        self._advance(nbytes, skipped=True)

    def expect(self, total: int, rows: int = 0) -> None:
        """Set the size of a job that has started without one, for example to read headers. The rate counts from now on.

        Args:
            total: The total number of bytes.
            rows: The length of the first axis; 0 to show no rows.
        """
        self.total, self.rows, self._work_begin = total, rows, clock.monotonic()
        for monitor in self._monitors:
            monitor.sized(self)

    def _advance(self, nbytes: int, *, skipped: bool) -> None:
        with self._lock:
            self.done += nbytes
            self.skipped += nbytes if skipped else 0
        for monitor in self._monitors:
            monitor.advanced(self, nbytes, skipped=skipped)
        if self.parent is not None:
            self.parent._advance(nbytes, skipped=skipped)  # noqa: SLF001  # of the same class

    @contextmanager
    def running(self) -> Iterator[JobProgress]:
        """Notify the monitors when a block begins and ends."""
        siblings = self.parent.parts if self.parent is not None else []
        siblings.append(self)
        for monitor in self._monitors:
            monitor.started(self)
        failure: BaseException | None = None
        try:
            yield self
        except BaseException as error:
            failure = error
            raise
        finally:
            siblings.remove(self)
            for monitor in self._monitors:
                monitor.ended(self, failure)

    def part(self, label: str, total: int, rows: int = 0) -> JobProgress:
        """Return a part of this job, whose bytes are also bytes of the job."""
        return JobProgress(label, total, rows, self._monitors, self)

    # -------------------------------------------------------------- derived values

    @property
    def seconds(self) -> float:
        """The time since the begin, in seconds."""
        return clock.monotonic() - self._begin

    @property
    def rate(self) -> float:
        """Processed bytes per second, without skipped ones."""
        seconds = clock.monotonic() - self._work_begin
        return (self.done - self.skipped) / seconds if seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """The expected number of seconds until the end; ``None`` if it is unknown."""
        return max(self.total - self.done, 0) / self.rate if self.total and self.rate else None

    @property
    def retries(self) -> int:
        """The number of repeated requests of the whole job."""
        return self.counts.retries

    @property
    def rows_done(self) -> int:
        """The number of processed rows, if they take equally many bytes."""
        return min(self.done * self.rows // self.total, self.rows) if self.total else 0

    def rows_text(self) -> str:
        """Return the number of processed rows and of all rows; an empty string without rows."""
        return f"{self.rows_done:,}/{self.rows:,} rows" if self.rows else ""

    def retries_text(self) -> str:
        """Return the number of retries of a job; an empty string for parts, and for no retries."""
        if not self.retries or self.parent is not None:
            return ""
        return f"{self.retries:,} {'retry' if self.retries == 1 else 'retries'}"

    def text(self) -> str:
        """Return the state as one line."""
        return _text(self)


def _text(job: JobProgress) -> str:
    rate = job.rate
    parts = [f"{part.label} {_percent(part)}" for part in job.parts[:_SHOWN_PARTS]]
    facts = [
        _percent(job),
        f"{size_text(job.done)} of {size_text(job.total)}"
        if job.total
        else size_text(job.done)
        if job.done
        else "started",
        job.rows_text(),
        f"{size_text(int(rate))}/s" if rate else "",
        f"{duration_text(job.remaining)} left" if job.remaining is not None else "",
        job.retries_text(),
    ]
    now = f" ({', '.join(parts)}{', …' if len(job.parts) > _SHOWN_PARTS else ''})" if parts else ""
    return printable(f"{job.label}: {', '.join(filter(None, facts))}{now}")


def _percent(job: JobProgress) -> str:
    return f"{100 * job.done // job.total}%" if job.total else ""
