"""Metrics of the server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from zarrasync.server.limits import RequestQueue
from zarrasync.server.service import Service

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics of one application.

    Args:
        services: The services of the server.
        queue: The request queue.
    """

    def __init__(self, services: Iterable[Service], queue: RequestQueue) -> None:
        self._services, self._queue = list(services), queue
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
        caches = [service.chunks.cache.stats for service in self._services]
        counts = [service.hierarchy.store.counts for service in self._services]
        size, hits = sum(cache.nbytes for cache in caches), sum(cache.hits for cache in caches)
        misses, requests = sum(cache.misses for cache in caches), sum(count.requests for count in counts)
        received = sum(count.bytes_read for count in counts)
        yield GaugeMetricFamily("zarrasync_active_requests", "Requests being processed", self._queue.active)
        yield GaugeMetricFamily("zarrasync_waiting_requests", "Requests in the queue", self._queue.waiting)
        yield GaugeMetricFamily("zarrasync_chunk_cache_bytes", "Bytes of cached decoded chunks", size)
        yield CounterMetricFamily("zarrasync_chunk_cache_hits", "Lookups of cached chunks", hits)
        yield CounterMetricFamily("zarrasync_chunk_cache_misses", "Lookups of chunks that were not cached", misses)
        yield CounterMetricFamily("zarrasync_store_requests", "Requests to the store", requests)
        yield CounterMetricFamily("zarrasync_store_bytes", "Bytes received from the store", received)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
