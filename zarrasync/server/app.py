"""The application that serves a hierarchy: its parts and its routes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from zarrasync import stores
from zarrasync.errors import NodeNotFoundError
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.server.api import Api
from zarrasync.server.as_v3 import V3Store
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.confined import confined
from zarrasync.server.hierarchy import HIERARCHY, Hierarchy
from zarrasync.server.limits import Limits, RequestQueue
from zarrasync.server.metrics import Metrics
from zarrasync.server.middleware import METRICS, ORIGINS, Handler, add_headers, handle_request
from zarrasync.server.origins import Origins
from zarrasync.server.pages import redirect_to_page, show_page, static_file
from zarrasync.server.pending import PendingResponses
from zarrasync.server.plane_api import PlaneApi
from zarrasync.server.raw_keys import RawKeys
from zarrasync.stores import CachingStore, PrefixStore, Store, StoreLike

__all__ = ["CHUNKS", "HIERARCHY", "create_app"]

CHUNKS = web.AppKey("zarrasync.chunks", ChunkReader)

_HEALTH_SECONDS = 5.0
"""Seconds in which the store must respond to a health check."""


def create_app(
    store: StoreLike,
    *,
    path: str = "",
    limits: Limits | None = None,
    cache_bytes: int = 256 << 20,
    max_age: float = 60.0,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    allow_hosts: Iterable[str] | None = None,
    cors: Iterable[str] | None = None,
    hidden: bool = False,
    follow_links: bool = False,
) -> web.Application:
    """Return an aiohttp application that serves a hierarchy read-only.

    Run it alone, or mount it in another application with ``add_subapp``. Its routes are:

    * ``/``: the viewer, a page that shows arrays;
    * ``/zarr/…``: the hierarchy in format 3, whatever its format is; ``/raw/…``: the store's keys, unchanged;
    * ``/api/node``, ``/api/data``, ``/api/stats``, ``/api/view``, ``/api/tiles/{z}/{x}/{y}.png``;
    * ``/healthz`` and ``/metrics``.

    A client disconnect cancels its request if the application is run with ``handler_cancellation=True``, as ``run``
    does.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper. All clients of the server can read all of
            it.
        path: The path of the node to serve, with all nodes below it.
        limits: Limits of requests.
        cache_bytes: Bytes of memory for caches: half for decoded chunks, a quarter for tiles, the rest for stored
            values.
        max_age: Seconds for which clients and the server reuse read values; ``math.inf`` for no limit. Derived
            results, such as tiles, are reused for as long again.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        allow_hosts: Names in ``Host`` headers to respond to, besides addresses and ``localhost``; ``"*"`` for all. By
            default none for connections from this machine, which protects against DNS rebinding, and all for others.
        cors: Origins, such as ``"https://example.org"``, whose pages may read responses; ``"*"`` for all. By default
            none for connections from this machine, and all for others.
        hidden: Serve keys with names that begin with a dot, besides Zarr's own.
        follow_links: Read local files outside of the served directory if symbolic links lead to them.

    Raises:
        ValueError: If a limit is invalid.
    """
    limits = limits or Limits()
    if not (cache_bytes >= 0 and max_age >= 0):
        raise ValueError(f"cache_bytes and max_age must be at least 0, found {cache_bytes} and {max_age}")
    source = confined(stores.resolve(store, storage_options), follow_links=follow_links)
    hierarchy = Hierarchy(source, path=path, limits=limits, max_age=max_age, config=config)
    chunks = ChunkReader(hierarchy, cache_bytes // 2)
    queue = RequestQueue(limits)
    app = web.Application(middlewares=[handle_request], client_max_size=1024)
    app[HIERARCHY], app[CHUNKS], app[METRICS] = hierarchy, chunks, Metrics(hierarchy, chunks, queue)
    app[ORIGINS] = Origins(allow_hosts, cors)
    _add_routes(app, queue, cache_bytes // 8, hidden=hidden)
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_close_at_end)
    return app


def _add_routes(app: web.Application, queue: RequestQueue, cache_bytes: int, *, hidden: bool) -> None:
    hierarchy, chunks = app[HIERARCHY], app[CHUNKS]
    limits, max_age = hierarchy.limits, hierarchy.max_age
    pending = PendingResponses(limits)

    async def admit(call: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(limits.timeout), queue.admit():
            return await call()

    def limited(handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            response: web.StreamResponse = await admit(partial(handler, request))
            pending.track(request, response)
            return response

        return handle

    def keys_of(store: Store, *, hidden: bool = True) -> Handler:
        # Absence is not cached, as missing keys may be written at any time.
        age = None if math.isinf(max_age) else max_age
        cached = CachingStore(store, cache_bytes, max_age=age, absent=False)
        raw = RawKeys(cached, max_age, admit, limits.timeout, hidden=hidden)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await raw.respond(request, request.match_info["key"])

        return handle

    api, planes = Api(hierarchy, chunks), PlaneApi(hierarchy, chunks, 2 * cache_bytes)
    get = app.router.add_get
    for name, handler in {"node": api.node, "data": api.data, "stats": planes.stats, "view": planes.view}.items():
        get(f"/api/{name}", limited(handler), name=name)
    get(r"/api/tiles/{z:\d{1,2}}/{x:\d{1,9}}/{y:\d{1,9}}.png", limited(planes.tile), name="tile")
    get("/zarr/{key:.+}", keys_of(V3Store(hierarchy, chunks, cache_bytes)), name="zarr")
    below_root = PrefixStore(hierarchy.store, f"{hierarchy.path}/" if hierarchy.path else "")
    get("/raw/{key:.+}", keys_of(below_root, hidden=hidden), name="raw")
    get("/healthz", _health, name="healthz")
    get("/metrics", _metrics, name="metrics")
    get("/", show_page, name="page")
    get("", redirect_to_page, name="mounted")
    get("/static/{file}", static_file, name="static")


async def _close_at_end(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[HIERARCHY].close()


async def _health(request: web.Request) -> web.Response:
    """Return whether the store responds. A root node need not exist, as a store may contain arrays without one."""
    try:
        async with asyncio.timeout(_HEALTH_SECONDS):
            await request.app[HIERARCHY].node("")
    except NodeNotFoundError:
        pass
    except Exception as error:
        body = {"status": "unavailable", "error": type(error).__name__}
        return web.json_response(body, status=503, headers={"Cache-Control": "no-store"})
    return web.json_response({"status": "ok"}, headers={"Cache-Control": "no-store"})


async def _metrics(request: web.Request) -> web.Response:
    text = request.app[METRICS].text()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
