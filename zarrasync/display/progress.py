"""The progress of a job and of its parts, monitors that show it, and the report of written blocks.

Monitors are bars in terminals and notebooks, and a line a minute elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import RetryCounts
from zarrasync._concurrency.fork import thread_lock
from zarrasync.display.report import JobReport
from zarrasync.display.text import counted, duration_text, printable, size_text
from zarrasync.transfer.threads import Progress

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
        rate = self.rate
        parts = [f"{part.label} {_percent(part)}" for part in self.parts[:_SHOWN_PARTS]]
        size = f"{size_text(self.done)} of {size_text(self.total)}" if self.total else size_text(self.done)
        facts = [
            _percent(self),
            size if self.total or self.done else "started",
            self.rows_text(),
            f"{size_text(int(rate))}/s" if rate else "",
            f"{duration_text(self.remaining)} left" if self.remaining is not None else "",
            self.retries_text(),
        ]
        now = f" ({', '.join(parts)}{', …' if len(self.parts) > _SHOWN_PARTS else ''})" if parts else ""
        return printable(f"{self.label}: {', '.join(filter(None, facts))}{now}")


def _percent(job: JobProgress) -> str:
    return f"{100 * job.done // job.total}%" if job.total else ""


# ------------------------------------------------------------------ monitors


_FIXED_LINES = 4
"""The number of lines of a terminal that bars of parts leave free."""
_WITHOUT_SIZE = "{desc} … [{elapsed}]"
"""The text of a bar whose size is not known yet."""


class Bars(Monitor):
    """A bar for the job, and one for each part that takes longer than a moment.

    Args:
        tqdm: The class of bars.
        columns: The width of bars; 0 for the present width of the terminal.
        keeps: Whether the bar of a job remains when the job is done.
    """

    def __init__(self, tqdm: Any, columns: int = 0, *, keeps: bool = True) -> None:
        self._tqdm, self._keeps = tqdm, keeps
        self._width: dict[str, Any] = {"ncols": columns, "nrows": 24} if columns else {"dynamic_ncols": True}
        self._bars: dict[JobProgress, Any] = {}
        self._most = max(1, shutil.get_terminal_size().lines - _FIXED_LINES)

    def started(self, job: JobProgress) -> None:
        is_part = job.parent is not None
        if is_part and len(self._bars) >= self._most:
            return
        self._bars[job] = self._tqdm(
            total=job.total or None,
            desc=printable(job.label),
            leave=self._keeps and not is_part,
            delay=0.5 if is_part else 0,
            bar_format=_format_of(job),
            **self._width,
        )

    def sized(self, job: JobProgress) -> None:
        bar = self._bars.get(job)
        if bar is not None:
            bar.bar_format = _format_of(job)
            bar.reset(total=job.total or None)

    def advanced(self, job: JobProgress, nbytes: int, *, skipped: bool) -> None:
        bar = self._bars.get(job)
        if bar is None:
            return
        details = ", ".join(filter(None, (job.rows_text(), job.retries_text())))
        if details:
            bar.set_postfix_str(details, refresh=False)
        bar.bar_format = _format_of(job)
        if skipped:  # not part of the rate
            bar.initial += nbytes
            bar.last_print_n += nbytes
        bar.update(nbytes)

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        bar = self._bars.pop(job, None)
        if bar is not None:
            bar.leave = bar.leave and job.total > 0
            position = bar.pos
            bar.close()
            if job.parent is not None:
                self._move_up(position)

    def _move_up(self, position: int) -> None:
        """Move the bars below a line up by one, which tqdm leaves empty when it removes a bar."""
        with self._tqdm.get_lock():
            lower = [bar for bar in list(self._bars.values()) if bar.pos > position and not bar.disable]
            for bar in sorted(lower, key=lambda bar: bar.pos):
                is_visible = bar.last_print_t >= bar.start_t + bar.delay
                if is_visible:
                    bar.clear(nolock=True)
                bar.pos -= 1
                if is_visible:
                    bar.refresh(nolock=True)


def _format_of(job: JobProgress) -> str:
    """Return the format of a bar, as tqdm's, but with sizes as in reports."""
    if not job.total:
        return _WITHOUT_SIZE
    rate = f"{size_text(int(job.rate))}/s" if job.rate else "?"
    return f"{{l_bar}}{{bar}}| {size_text(job.done)} of {size_text(job.total)} [{{elapsed}}<{{remaining}}, {rate}{{postfix}}]"


class Lines(Monitor):
    """A line at a regular interval, also while nothing advances, for logs.

    Args:
        write: Called with each line, such as ``logging.getLogger("jobs").info``. Default: print to standard error.
        interval: The number of seconds between lines.
    """

    def __init__(self, write: Callable[[str], object] | None = None, interval: float = 60.0) -> None:
        self._write, self._interval = write or _print, interval
        self._timers: dict[JobProgress, _Timer] = {}

    def started(self, job: JobProgress) -> None:
        if job.parent is None:
            self._timers[job] = _Timer(self._interval, lambda: self._write(job.text()))

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        timer = self._timers.pop(job, None)
        if timer is not None and timer.stop():  # a short job needs no lines
            result = "done" if error is None else f"stopped: {type(error).__name__}"
            self._write(f"{job.label}: {result}, {size_text(job.done)} in {duration_text(job.seconds)}")


class _Timer:
    """Calls a function on another thread at regular intervals until it is stopped."""

    def __init__(self, interval: float, call: Callable[[], object]) -> None:
        self._interval, self._call = interval, call
        self._stopped, self._calls = threading.Event(), 0
        self._thread = clock.current().start_thread("zarrasync-progress", self._run)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._calls += 1
            self._call()

    def stop(self) -> int:
        """Stop the thread, and return how often it has called the function."""
        self._stopped.set()
        self._thread.join()
        return self._calls


def default_monitor() -> Monitor:
    """Return bars in notebooks and terminals if tqdm is installed, and otherwise lines."""
    try:
        if _is_notebook():
            from tqdm.auto import tqdm as widget_bar

            return Bars(widget_bar, keeps=False)  # a saved notebook would contain an empty box for each
        if sys.stderr is not None and sys.stderr.isatty():
            from tqdm import tqdm

            # Containers can have terminals of unknown width, on which tqdm would show nothing.
            return Bars(tqdm, 0 if os.get_terminal_size(sys.stderr.fileno()).columns else 80)
    except (ImportError, OSError):
        pass
    return Lines()


def _is_notebook() -> bool:
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def _print(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


# ------------------------------------------------------------------ the argument ``progress``


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
