"""Metrics of the server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.hierarchy import Hierarchy
from zarrasync.server.limits import RequestQueue

__all__ = ["Metrics"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics of one application.

    Args:
        hierarchy: The served hierarchy.
        chunks: Its decoded chunks.
        queue: The request queue.
    """

    def __init__(self, hierarchy: Hierarchy, chunks: ChunkReader, queue: RequestQueue) -> None:
        self._hierarchy, self._chunks, self._queue = hierarchy, chunks, queue
        self.registry = CollectorRegistry()
        self._requests = Counter("zarrasync_requests", "Requests answered", ["route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "zarrasync_request_seconds", "Time to answer", ["route"], buckets=_BUCKETS, registry=self.registry
        )
        self._sent = Counter("zarrasync_sent_bytes", "Bytes of bodies sent", ["route"], registry=self.registry)
        self.registry.register(self)

    def count(self, route: str, status: int, seconds: float, sent: int) -> None:
        """Count a response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        self._sent.labels(route).inc(sent)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that other objects keep; called by the registry."""
        cache, requests = self._chunks.cache.stats, self._hierarchy.store.counts
        yield GaugeMetricFamily("zarrasync_active_requests", "Requests being processed", self._queue.active)
        yield GaugeMetricFamily("zarrasync_waiting_requests", "Requests in the queue", self._queue.waiting)
        yield GaugeMetricFamily("zarrasync_chunk_cache_bytes", "Bytes of cached decoded chunks", cache.nbytes)
        yield CounterMetricFamily("zarrasync_chunk_cache_hits", "Lookups of cached chunks", cache.hits)
        yield CounterMetricFamily(
            "zarrasync_chunk_cache_misses", "Lookups of chunks that were not cached", cache.misses
        )
        yield CounterMetricFamily("zarrasync_store_requests", "Requests to the store", requests.requests)
        yield CounterMetricFamily("zarrasync_store_bytes", "Bytes received from the store", requests.bytes_read)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
