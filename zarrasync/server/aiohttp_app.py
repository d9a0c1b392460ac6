"""The server as an application of aiohttp."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Unpack

from aiohttp import hdrs, web
from aiohttp.payload import Payload

from zarrasync.server.core import Core, ServerOptions, make_core
from zarrasync.server.messages import LARGE_BYTES, Request, Response, SlowClient, check_body, send_body
from zarrasync.server.service import Service
from zarrasync.stores import StoreLike

CORE: web.AppKey[Core] = web.AppKey("zarrasync.core", Core)


def create_app(store: StoreLike | Service | Mapping[str, Service], **options: Unpack[ServerOptions]) -> web.Application:
    """Return an application of aiohttp that serves a hierarchy, or several ones, read-only.

    Run it alone with ``run``, or mount it in another application with ``add_subapp``. Its routes are:

    * ``/``: the viewer, a page that shows arrays;
    * ``/zarr/…``: the hierarchy in format 3, whatever its format is; ``/raw/…``: the store's keys, unchanged;
    * ``/api/node``, ``/api/data``, ``/api/stats``, ``/api/view``, ``/api/tiles/{z}/{x}/{y}.png``;
    * ``/edr``: the values at points, in polygons and in boxes, as OGC API EDR;
    * ``/openapi.json``, ``/livez``, ``/readyz``, ``/healthz`` and ``/metrics``.

    Several services are below their names, as ``/era5/api/node``, and ``/`` is a page with links to them.

    A client disconnect cancels its request if the application is run with ``handler_cancellation=True``, as ``run``
    does.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper, of which clients can read everything; or a
            service; or several services by name.
        **options: Options; see ``ServerOptions``.

    Raises:
        TypeError: If options of a service are passed along with a service.
        ValueError: If an option is invalid.
    """
    core = make_core(store, **options)
    app = web.Application(client_max_size=1024)
    app[CORE] = core
    for path in (r"/{path:[\s\S]*}", ""):  # names of nodes may contain line breaks
        app.router.add_route("*", path, _handle, expect_handler=_expect)
    app.cleanup_ctx.append(_close_at_end)
    return app


async def _close_at_end(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[CORE].close()


async def _expect(request: web.Request) -> None:
    """Let clients that wait for it send the body. Other expectations are ignored, as by other servers."""
    if request.headers[hdrs.EXPECT].lower() == "100-continue":
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _handle(request: web.Request) -> web.StreamResponse:
    core = request.app[CORE]
    response = await core.respond(_as_request(request))
    return _as_response(request, response, core.limits.timeout)


def _as_request(request: web.Request) -> Request:
    # The part of the path is decoded and below the mounted application; it has no slash at its begin.
    part = request.match_info.get("path")
    whole = request.path
    path = "" if part is None else f"/{part}"
    address = None if request.transport is None else request.transport.get_extra_info("sockname")
    return Request(
        request.method,
        path,
        request.rel_url.raw_query_string,
        {name.lower(): value for name, value in request.headers.items()},
        request.headers.getall(hdrs.HOST, []),
        request.remote or "",
        str(address[0]) if isinstance(address, tuple) else "",
        whole[: len(whole) - len(path)],
        (request.version.major, request.version.minor),
        scheme=request.scheme,
        receive=partial(_receive, request),
    )


async def _receive(request: web.Request, most: int) -> bytes:
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        check_body(len(body), most)
    return bytes(body)


def _as_response(request: web.Request, response: Response, timeout: float) -> web.Response:
    if response.stream is None and response.length < LARGE_BYTES:
        body: Any = b"".join(response.body)
    else:
        body = _Body(response, request.transport, timeout)
    headers = {"Server": "zarrasync", **response.headers}  # aiohttp's own names its version and Python's
    return web.Response(status=response.status, headers=headers, body=body)


class _Body(Payload):
    """A body that is sent in pieces, each within a time limit."""

    def __init__(self, response: Response, transport: Any, timeout: float) -> None:
        super().__init__(response, content_type=response.headers["Content-Type"])
        self._size = response.length if response.has_length else None  # then it is sent in chunks
        self._transport, self._timeout = transport, timeout
        if response.release is not None:
            weakref.finalize(self, response.release)  # also if it is never sent

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as a string."""
        return b"".join(self._value.body).decode(encoding, errors)

    async def write(self, writer: Any) -> None:
        """Send the body.

        Raises:
            ConnectionResetError: If the client does not receive a piece in time, or the rest is not available.
        """
        try:
            await send_body(self._value, writer.write, self._timeout)
        except SlowClient:
            if self._transport is not None:
                self._transport.abort()  # otherwise its buffer stays as long as the client is connected
            raise
