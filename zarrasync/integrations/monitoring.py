"""Monitors that pass the progress of jobs on to Prometheus and OpenTelemetry."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from zarrasync._concurrency import clock
from zarrasync.display.progress import Bars, JobProgress, Lines, Monitor

__all__ = ["Bars", "Lines", "Monitor", "OpenTelemetryMonitor", "PrometheusMonitor"]

_FILE_SECONDS = 15.0
"""The shortest time between two updates of a file with metrics."""


class PrometheusMonitor(Monitor):
    """Keeps metrics of jobs, with the labels ``job`` and ``part``; the part is empty for the whole job.

    Args:
        registry: The registry of ``prometheus_client``. Default: the global one, or a new one for a file.
        file: A file to write the metrics to, for the textfile collector of Prometheus's node exporter. It is replaced
            every 15 seconds and at the end of a job.

    Raises:
        ImportError: If ``prometheus_client`` is not installed.

    Example:
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> report = await za.ingest(np.arange(100), {}, chunks=10, progress=PrometheusMonitor(registry))
        >>> print(generate_latest(registry).decode().splitlines()[2])
        zarrasync_job_done_bytes{job="ingest /",part=""} 800.0
    """

    def __init__(self, registry: Any = None, *, file: str | os.PathLike[str] | None = None) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise ImportError("metrics of jobs need prometheus_client: pip install prometheus-client") from error
        self.registry = registry or (prometheus.REGISTRY if file is None else prometheus.CollectorRegistry())
        self._file, self._written, self._lock = file, clock.monotonic(), threading.Lock()
        names = ("job", "part")

        def gauge(name: str, text: str, labels: tuple[str, ...] = names) -> Any:
            return prometheus.Gauge(f"zarrasync_job_{name}", text, labels, registry=self.registry)

        self._done = gauge("done_bytes", "Bytes that were processed or skipped")
        self._skipped = gauge("skipped_bytes", "Bytes that an earlier run has processed")
        self._total = gauge("total_bytes", "Bytes of the job")
        self._seconds = gauge("seconds", "Duration so far")
        self._running = gauge("running", "Whether the job is running")
        self._retries = gauge("retries", "Requests that were repeated after a failure", ("job",))
        self._success = gauge("last_success_timestamp_seconds", "Time of the last success", ("job",))
        self._failures = prometheus.Counter(
            "zarrasync_job_failures", "Jobs that failed", ("job",), registry=self.registry
        )

    def started(self, job: JobProgress) -> None:
        if job.parent is None:
            self._failures.labels(job.label)
        self._set(job, running=True)

    def sized(self, job: JobProgress) -> None:
        self._set(job, running=True)

    def advanced(self, job: JobProgress, nbytes: int, *, skipped: bool) -> None:
        self._set(job, running=True)
        if self._file is not None and clock.monotonic() - self._written > _FILE_SECONDS:
            self._write()

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        self._set(job, running=False)
        if job.parent is not None:
            return
        if error is None:
            self._success.labels(job.label).set(clock.wall_time())
        else:
            self._failures.labels(job.label).inc()
        if self._file is not None:
            self._write()

    def _set(self, job: JobProgress, *, running: bool) -> None:
        labels = (job.label, "") if job.parent is None else (_root(job).label, job.label)
        self._done.labels(*labels).set(job.done)
        self._skipped.labels(*labels).set(job.skipped)
        self._total.labels(*labels).set(job.total)
        self._seconds.labels(*labels).set(job.seconds)
        self._running.labels(*labels).set(running)
        if job.parent is None:
            self._retries.labels(job.label).set(job.retries)

    def _write(self) -> None:
        """Replace the file in one step, because the collector may read it at any time."""
        from prometheus_client import generate_latest

        assert self._file is not None
        with self._lock:
            self._written = clock.monotonic()
            path = Path(self._file)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(generate_latest(self.registry))
            temporary.replace(path)


class OpenTelemetryMonitor(Monitor):
    """Makes an OpenTelemetry span for each job and for each of its parts, and counts bytes in ``zarrasync.job.bytes``.

    Spans of a ``TracingStore`` become children of the span of the job.

    Raises:
        ImportError: If ``opentelemetry-api`` is not installed.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise ImportError("spans of jobs need OpenTelemetry: pip install 'zarrasync[otel]'") from error
        self._tracer = trace.get_tracer("zarrasync")
        self._bytes = metrics.get_meter("zarrasync").create_counter("zarrasync.job.bytes", "By", "Processed bytes")
        self._spans: dict[JobProgress, tuple[Any, Any]] = {}

    def started(self, job: JobProgress) -> None:
        from opentelemetry import context, trace

        parent = self._spans.get(job.parent) if job.parent is not None else None
        within = None if parent is None else trace.set_span_in_context(parent[0])
        span = self._tracer.start_span(job.label, context=within)
        token = context.attach(trace.set_span_in_context(span)) if job.parent is None else None
        self._spans[job] = span, token

    def advanced(self, job: JobProgress, nbytes: int, *, skipped: bool) -> None:
        if job.parent is None and not skipped:
            self._bytes.add(nbytes, {"job": job.label})

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        from opentelemetry import context
        from opentelemetry.trace import Status, StatusCode

        span, token = self._spans.pop(job)
        span.set_attributes({"zarrasync.bytes": job.done, "zarrasync.skipped_bytes": job.skipped})
        if job.rows:
            span.set_attribute("zarrasync.rows", job.rows_done)
        if job.parent is None:
            span.set_attribute("zarrasync.retries", job.retries)
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        if token is not None:
            context.detach(token)
        span.end()


def _root(job: JobProgress) -> JobProgress:
    while job.parent is not None:
        job = job.parent
    return job
