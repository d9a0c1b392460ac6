"""Middleware of all requests: host names, error responses, metrics, logging, and headers for browsers."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web
from aiohttp.payload import Payload

from zarrasync._concurrency import clock
from zarrasync.server.limits import CLIENT
from zarrasync.server.metrics import Metrics
from zarrasync.server.origins import Origins
from zarrasync.server.responses import error_response

__all__ = ["METRICS", "ORIGINS", "Handler", "add_headers", "handle_request"]

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
METRICS = web.AppKey("zarrasync.metrics", Metrics)
ORIGINS = web.AppKey("zarrasync.origins", Origins)

log = logging.getLogger("zarrasync.server")
access_log = logging.getLogger("zarrasync.server.access")

_CLIENT_CLOSED = 499
"""The status in logs and metrics of a request whose client has disconnected."""


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add headers to a response before it is sent, including one that is sent piece by piece."""
    headers = request.app[ORIGINS].headers(request)
    if "Vary" in headers and "Vary" in response.headers:
        headers["Vary"] = f"{response.headers['Vary']}, {headers['Vary']}"
    response.headers.update(headers)


@web.middleware
async def handle_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into responses; count and log every response."""
    begin, status, sent = clock.monotonic(), _CLIENT_CLOSED, 0
    try:
        response = await _respond(request, handler)
        status, sent = response.status, _body_bytes(request, response)
        return response
    except web.HTTPException as error:
        status = error.status
        raise
    finally:
        seconds = clock.monotonic() - begin
        route = request.match_info.route.name or "none"
        request.app[METRICS].count(route, status, seconds, sent)
        if access_log.isEnabledFor(logging.INFO):
            entry = {
                "method": request.method,
                "path": request.path_qs[:2000],
                "route": route,
                "status": status,
                "bytes": sent,
                "ms": round(seconds * 1000, 2),
                "client": request.remote,
            }
            access_log.info("%s", json.dumps(entry), extra=entry)


async def _respond(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        request.app[ORIGINS].check_host(request)
        if request.method == "OPTIONS":  # the preflight request of a browser
            return web.Response(status=204, headers={"Allow": "GET, HEAD, OPTIONS"})
        CLIENT.set(request.remote or "")
        return await handler(request)
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        response = error_response(error)
        if response is None:
            log.exception("%s %r failed", request.method, request.path)
            return web.json_response({"error": "InternalError", "message": "internal server error"}, status=500)
        if response.status >= 500:
            log.warning("%s %r: %s", request.method, request.path, error)
        return response


def _body_bytes(request: web.Request, response: web.StreamResponse) -> int:
    """Return the bytes of a body before compression."""
    if response.prepared:
        return response.body_length
    if request.method == "HEAD":
        return 0
    body = getattr(response, "body", None) or b""
    return (body.size or 0) if isinstance(body, Payload) else len(body)
