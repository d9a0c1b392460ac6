"""Spans of OpenTelemetry for requests, which continue the traces of clients (W3C's Trace Context)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from zarrasync.server.messages import Request
from zarrasync.stores.counting import tracer

SetStatus: TypeAlias = Callable[[int], None]
RequestSpan: TypeAlias = Callable[[Request, str], Any]
"""Returns a context manager, which yields a function that takes the status of the response."""


@contextmanager
def no_span(request: Request, route: str) -> Iterator[SetStatus]:
    """Make no span."""
    yield lambda status: None


def request_span() -> RequestSpan:
    """Return what makes a span for each request, until its response begins.

    Raises:
        ImportError: If ``opentelemetry-api`` is not installed.
    """
    start = tracer().start_as_current_span
    from opentelemetry import propagate, trace  # it is installed

    @contextmanager
    def span_of(request: Request, route: str) -> Iterator[SetStatus]:
        attributes = {
            "http.request.method": request.method,
            "http.route": route,
            "url.path": request.path,
            "url.scheme": request.scheme,
            "client.address": request.client,
        }
        parent = propagate.extract(dict(request.headers))
        name = f"{request.method} {route}"
        kind = trace.SpanKind.SERVER
        with start(name, context=parent, kind=kind, attributes=attributes) as span:

            def set_status(status: int) -> None:
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_status(trace.StatusCode.ERROR)

            yield set_status

    return span_of
