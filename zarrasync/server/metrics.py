"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from zarrasync.server.limits import Turnstile
from zarrasync.server.state import Source

__all__ = ["Metrics"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The counters of one application.

    Args:
        source: What is served.
        turnstile: Who is in.
    """

    def __init__(self, source: Source, turnstile: Turnstile) -> None:
        self._source, self._turnstile = source, turnstile
        self.registry = CollectorRegistry()
        self._requests = Counter("zarrasync_requests", "Requests answered", ["route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "zarrasync_request_seconds", "Time to answer", ["route"], buckets=_BUCKETS, registry=self.registry
        )
        self._sent = Counter("zarrasync_sent_bytes", "Bytes of bodies sent", ["route"], registry=self.registry)
        self.registry.register(self)

    def note(self, route: str, status: int, seconds: float, sent: int) -> None:
        """Count an answer."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        self._sent.labels(route).inc(sent)

    def collect(self) -> Iterator[Metric]:
        """What is known without counting, when it is asked for."""
        chunks, counts = self._source.chunks, self._source.store.counts
        yield GaugeMetricFamily("zarrasync_active_requests", "Requests worked on", self._turnstile.active)
        yield GaugeMetricFamily(
            "zarrasync_waiting_requests", "Requests waiting for their turn", self._turnstile.waiting
        )
        yield GaugeMetricFamily("zarrasync_chunk_cache_bytes", "Decoded chunks remembered", chunks.size)
        yield CounterMetricFamily("zarrasync_chunk_cache_hits", "Chunks that were remembered", chunks.hits)
        yield CounterMetricFamily("zarrasync_chunk_cache_misses", "Chunks that had to be read", chunks.misses)
        yield CounterMetricFamily("zarrasync_store_requests", "Requests to the store", counts.requests)
        yield CounterMetricFamily("zarrasync_store_bytes", "Bytes received from the store", counts.bytes_read)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)
