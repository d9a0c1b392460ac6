"""Monitors of jobs: bars in terminals and notebooks, and a line a minute elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

from zarrasync._concurrency import clock
from zarrasync.display.job_progress import JobProgress, Monitor
from zarrasync.display.text import duration_text, printable, size_text

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
