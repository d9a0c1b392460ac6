"""Options of long commands: progress, files with reports, metrics and spans."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zarrasync.cli.arguments import port
from zarrasync.cli.console import error_line, options_of, typed_places
from zarrasync.display.progress import JobProgress, Monitor, ProgressLike
from zarrasync.display.report import REPORT_FILES, FailedJob, JobReport


def add_monitoring(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.add_argument("--quiet", action="store_true", help="show no progress")
    command.add_argument(
        "--report", type=_report_file, metavar="FILE", help="also write the report to a file: .html, .json or .txt"
    )
    command.add_argument(
        "--metrics",
        type=_file_or_port,
        metavar="FILE|PORT",
        help="write Prometheus metrics to a file, or serve them on a port of this machine",
    )
    command.add_argument("--spans", action="store_true", help="make OpenTelemetry spans")


class Watch(Monitor):
    """The monitors of a job, and its report.

    Attributes:
        progress: What the job gets as ``progress``.
        report: The report of the job; ``None`` before the job has one.
    """

    def __init__(self, monitors: Sequence[Any]) -> None:
        self.progress: ProgressLike = [*monitors, self]
        self.report: JobReport | None = None

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        if job.parent is None and job.report is not None:
            self.report = job.report


@contextmanager
def monitored(args: argparse.Namespace) -> Iterator[Watch]:
    """Watch a job inside a ``with`` block, and write the report to the file that the options name.

    The report of a failed job contains the error and the completed work.

    Raises:
        ImportError: If a package for metrics or spans is not installed.
    """
    watch = Watch(_monitors(args))
    try:
        yield watch
    except BaseException as error:
        if args.report is not None:
            text = (
                "interrupted"
                if isinstance(error, KeyboardInterrupt)
                else error_line(error, typed_places(args), options_of(args))
            )
            try:
                FailedJob(text, watch.report).save(args.report)
            except OSError as failure:
                error.add_note(f"the report could not be written: {failure}")
        raise
    if args.report is not None and watch.report is not None:
        watch.report.save(args.report)


def _monitors(args: argparse.Namespace) -> list[Any]:
    monitors: list[Any] = [] if args.quiet else [True]
    if args.metrics is not None:
        from zarrasync.integrations.monitoring import PrometheusMonitor

        if isinstance(args.metrics, int):
            from prometheus_client import REGISTRY, start_http_server

            monitors.append(PrometheusMonitor(REGISTRY))
            start_http_server(args.metrics, "127.0.0.1")
        else:
            monitors.append(PrometheusMonitor(file=args.metrics))
    if args.spans:
        from zarrasync.integrations.monitoring import OpenTelemetryMonitor

        monitors.append(OpenTelemetryMonitor())
    return monitors


def _report_file(text: str) -> str:
    if Path(text).suffix.lower() not in REPORT_FILES:
        raise argparse.ArgumentTypeError(f"expected a file that ends in {', '.join(REPORT_FILES)}, found {text!r}")
    return _new_file(text)


def _file_or_port(text: str) -> str | int:
    return port(text) if text.isdigit() else _new_file(text)


def _new_file(text: str) -> str:
    """Return the path of a file to write, whose directory must exist before a long job begins."""
    if not Path(text).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"the directory of {text!r} does not exist")
    return text
