"""The application: routes, and what every request goes through."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from aiohttp import web
from aiohttp.payload import Payload

from zarrasync._concurrency import clock
from zarrasync.errors import NodeNotFoundError
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.server.api import Api
from zarrasync.server.as_v3 import PresentedStore
from zarrasync.server.limits import Limits, Turnstile
from zarrasync.server.metrics import Metrics
from zarrasync.server.raw_keys import Keys
from zarrasync.server.responses import error_answer
from zarrasync.server.sending import Sending
from zarrasync.server.state import Source
from zarrasync.stores import CachingStore, PrefixStore, Store, StoreLike

__all__ = ["METRICS", "SOURCE", "create_app", "run"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("zarrasync.server")
access_log = logging.getLogger("zarrasync.server.access")

SOURCE = web.AppKey("zarrasync.source", Source)
METRICS = web.AppKey("zarrasync.metrics", Metrics)

_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Accept-Ranges, Content-Length, Content-Range, ETag, X-Dtype, X-Shape",
    "X-Content-Type-Options": "nosniff",
}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "Range, If-None-Match, If-Range",
    "Access-Control-Max-Age": "86400",
}
_PAGE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors *",
    "Cache-Control": "no-cache",
}
_STATIC = {
    "viewer.html": "text/html",
    "viewer.css": "text/css",
    "viewer.js": "text/javascript",
    "canvas.js": "text/javascript",
    "tree.js": "text/javascript",
}


def create_app(
    store: StoreLike,
    *,
    path: str = "",
    limits: Limits | None = None,
    cache_bytes: int = 256 << 20,
    max_age: float = 60.0,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> web.Application:
    """An aiohttp application that serves a hierarchy, read-only.

    To be run on its own, or mounted in another application with ``add_subapp``. It has:

    * ``/``: a page to look at arrays;
    * ``/zarr/…``: the hierarchy in format 3, whatever it is stored in; ``/raw/…``: the store's keys as they are;
    * ``/api/node``, ``/api/data``, ``/api/stats``, ``/api/view``, ``/api/tiles/{z}/{x}/{y}.png``;
    * ``/healthz`` and ``/metrics``.

    Clients that leave free what is done for them if the application is run with ``handler_cancellation=True``, as
    ``run`` does.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper. Everything in it can be read by everybody
            who reaches the server.
        path: The node of it that is served, with all below.
        limits: What requests may cost.
        cache_bytes: Bytes of memory for what was read: half of it for decoded chunks, a quarter for pictures, the rest for
            stored values.
        max_age: Seconds for which clients and the server believe what they have seen; for ever with ``math.inf``. What
            is made of it, such as a picture, is believed for as long again.
        storage_options: Options for the filesystem of a URL.
        config: Settings.

    Raises:
        ValueError: If a limit makes no sense.
    """
    limits = limits or Limits()
    if not (cache_bytes >= 0 and max_age >= 0):
        raise ValueError(f"cache_bytes and max_age are at least 0, found {cache_bytes} and {max_age}")
    source = Source(
        store,
        path=path,
        limits=limits,
        cache_bytes=cache_bytes // 2,
        max_age=max_age,
        storage_options=storage_options,
        config=config,
    )
    app = web.Application(middlewares=[_watch], client_max_size=1024)
    turnstile, sending = Turnstile(limits), Sending(limits)
    app[SOURCE], app[METRICS] = source, Metrics(source, turnstile)
    age = None if max_age == float("inf") else max_age
    below = PrefixStore(source.store, f"{source.path}/" if source.path else "")
    part = cache_bytes // 8

    async def within(call: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(limits.timeout), turnstile.turn():
            return await call()

    def limited(handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            answer: web.StreamResponse = await within(partial(handler, request))
            sending.watch(request, answer)
            return answer

        return handle

    def keys(store: Store) -> Handler:
        # What is not there may be there soon: absence is not remembered.
        served = Keys(CachingStore(store, part, max_age=age, absent=False), max_age, within, limits.timeout)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await served.serve(request, request.match_info["key"])

        return handle

    api = Api(source, 2 * part)
    get = app.router.add_get
    for name, handler in {"node": api.node, "data": api.data, "stats": api.stats, "view": api.view}.items():
        get(f"/api/{name}", limited(handler), name=name)
    get(r"/api/tiles/{z:\d{1,2}}/{x:\d{1,9}}/{y:\d{1,9}}.png", limited(api.tile), name="tile")
    get("/zarr/{key:.+}", keys(PresentedStore(source, part)), name="zarr")
    get("/raw/{key:.+}", keys(below), name="raw")
    get("/healthz", _health, name="healthz")
    get("/metrics", _metrics, name="metrics")
    get("/", _page, name="page")
    get("", _with_slash, name="mounted")  # the links of the page are relative to where it is mounted
    get("/static/{file}", _static, name="static")
    app.on_response_prepare.append(_allow)
    app.cleanup_ctx.append(_closing)
    return app


def run(app: web.Application, *, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
    """Run the application until it is interrupted or terminated; then requests under way have ten seconds to end.

    Args:
        app: What ``create_app`` made, or an application that it is mounted in.
        host: The address to listen at; only this machine's own by default.
        port: The port.
        **options: Passed on to ``aiohttp.web.run_app``.
    """
    given = {"handler_cancellation": True, "access_log": None, "shutdown_timeout": 10.0, **options}
    web.run_app(app, host=host, port=port, **given)


async def _closing(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[SOURCE].close()


async def _allow(request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(_CORS)  # also to those that are sent piece by piece


@web.middleware
async def _watch(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors become answers; every answer is allowed to other origins, counted and logged."""
    begin, status, sent = clock.monotonic(), 499, 0  # 499: who asked has gone
    try:
        answer = await _answered(request, handler)
        status = answer.status
        if answer.prepared:
            sent = answer.body_length
        elif request.method != "HEAD":
            body = getattr(answer, "body", None) or b""
            sent = (body.size or 0) if isinstance(body, Payload) else len(body)  # before it is compressed
        return answer
    except web.HTTPException as error:
        status = error.status
        raise
    finally:
        seconds = clock.monotonic() - begin
        route = request.match_info.route.name or "none"
        request.app[METRICS].note(route, status, seconds, sent)
        if access_log.isEnabledFor(logging.INFO):
            told = {
                "method": request.method,
                "path": request.path_qs[:2000],
                "route": route,
                "status": status,
                "bytes": sent,
                "ms": round(seconds * 1000, 2),
                "client": request.remote,
            }
            access_log.info("%s", json.dumps(told), extra=told)


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method == "OPTIONS":  # a browser asks whether another origin's page may ask
        return web.Response(status=204, headers=_PREFLIGHT)
    try:
        return await handler(request)
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        answer = error_answer(error)
        if answer is None:
            log.exception("%s %r failed", request.method, request.path)
            return web.json_response({"error": "InternalError", "message": "the server made a mistake"}, status=500)
        if answer.status >= 500:
            log.warning("%s %r: %s", request.method, request.path, error)
        return answer


async def _health(request: web.Request) -> web.Response:
    """Whether the server is up, and the store says what is at the root, be it nothing: arrays may lie in a store without one."""
    try:
        async with asyncio.timeout(5):
            await request.app[SOURCE].node("")
    except NodeNotFoundError:
        pass
    except Exception as error:
        told = {"status": "unavailable", "error": type(error).__name__}
        return web.json_response(told, status=503, headers={"Cache-Control": "no-store"})
    return web.json_response({"status": "ok"}, headers={"Cache-Control": "no-store"})


async def _metrics(request: web.Request) -> web.Response:
    text = request.app[METRICS].text()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def _page(request: web.Request) -> web.StreamResponse:
    return _file("viewer.html")


async def _with_slash(request: web.Request) -> web.StreamResponse:
    raise web.HTTPPermanentRedirect(request.path + "/")


async def _static(request: web.Request) -> web.StreamResponse:
    name = request.match_info["file"]
    if name not in _STATIC:
        raise web.HTTPNotFound
    return _file(name)


def _file(name: str) -> web.Response:
    body = (files("zarrasync.server") / "static" / name).read_bytes()
    return web.Response(body=body, content_type=_STATIC[name], charset="utf-8", headers=_PAGE)
