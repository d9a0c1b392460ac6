"""A server, its client and a hierarchy to serve."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from yarl import URL

from zarrasync import sync
from zarrasync.server import Limits, create_app
from zarrasync.server.aiohttp_app import CORE
from zarrasync.server.connections import GuardedRunner
from zarrasync.server.core import Core

RNG = np.random.default_rng(7)

FIELD = RNG.normal(size=(3, 300, 420)).astype("f4")

FIELD[0, :20, :30] = np.nan


def fill(store: Any, zarr_format: Any = 3) -> dict[str, np.ndarray]:
    """Create a hierarchy with various data types and layouts. Return its values."""
    root = sync.create_group(store, zarr_format=zarr_format, attributes={"title": "né", "nested": {"a": [1, None]}})
    arrays = {
        "a/field": FIELD,
        "a/big": np.arange(77, dtype=">i4").reshape(7, 11),
        "a/fortran": np.arange(35.0).reshape(5, 7),
        "scalar": np.array(2.5),
        "flags": RNG.random((40, 50)) > 0.5,
        "complex": (np.arange(6) + 1j).astype("c8"),
    }
    options: dict[str, Any] = {
        "a/field": {"chunks": (1, 100, 128)},
        "a/big": {"chunks": (3, 4), "compressors": "gzip"},
        "a/fortran": {"chunks": (2, 3), "order": "F"},
        "flags": {"chunks": (16, 16), "compressors": None},
    }
    if zarr_format != 2:
        options["a/field"]["shards"] = (1, 200, 256)
    for name, values in arrays.items():
        root.create_array(name, data=values, **options.get(name, {}))
    sparse = root.create_array("sparse", shape=(64, 64), chunks=(8, 8), dtype="u2", fill_value=9)
    sparse[8:16, 8:16] = 4
    arrays["sparse"] = sparse[...]
    return arrays


@asynccontextmanager
async def serving(store: Any, *, prefix: str = "", **options: Any):
    """Run a server on a free port, and yield a client.

    It runs on aiohttp, or on Starlette in uvicorn if the environment variable ``FRAMEWORK`` is ``asgi``.

    Args:
        store: What to serve.
        prefix: Where the application is mounted in another one.
        **options: Options of the application.
    """
    run = {"aiohttp": _aiohttp, "asgi": _asgi}[os.environ.get("FRAMEWORK", "aiohttp")]
    async with run(store, prefix, options) as (port, core), aiohttp.ClientSession() as session:
        yield Client(f"http://127.0.0.1:{port}{prefix}", session, core)


@asynccontextmanager
async def running(app: web.Application, **options: Any):
    """Run an application of aiohttp on a free port, for browsers, and yield its address with a slash at the end.

    Args:
        app: The application.
        **options: Options of the runner.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _aiohttp(store: Any, prefix: str, options: dict[str, Any]):
    app = create_app(store, **options)
    outer = app
    if prefix:
        outer = web.Application()
        outer.add_subapp(prefix, app)
    runner = GuardedRunner(outer, options.get("limits") or Limits(), shutdown_timeout=2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], app[CORE]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _asgi(store: Any, prefix: str, options: dict[str, Any]):
    import uvicorn
    from fastapi import FastAPI

    from zarrasync.server import asgi
    from zarrasync.server.uvicorn_guard import uvicorn_config

    app = asgi.create_app(store, **options)
    outer: Any = app
    if prefix:
        outer = FastAPI(lifespan=app.router.lifespan_context)
        outer.mount(prefix, app)
    config = uvicorn_config(outer, options.get("limits") or Limits(), port=0, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # those of the tests stay
    task = asyncio.ensure_future(server.serve())
    try:
        while not server.started:
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1], app.state.core
    finally:
        server.should_exit = True
        await task


class Client:
    def __init__(self, base: str, session: aiohttp.ClientSession, core: Core) -> None:
        self.base, self.session, self.core = base, session, core
        self.service = next(iter(core.services.values()))

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
        url = URL(self.base + path, encoded=True)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, url, headers=given, allow_redirects=False) as answer:
            return answer.status, await answer.read(), answer.headers

    async def json(self, path: str, status: int = 200) -> Any:
        found, body, _ = await self.get(path)
        assert found == status, body
        return json.loads(body)

    @property
    def upstream(self) -> int:
        return self.service.hierarchy.store.counts.requests
