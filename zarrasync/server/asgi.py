"""The server as an application of ASGI, for uvicorn and other servers, and to mount in FastAPI or Starlette."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, Unpack

try:
    from starlette.applications import Starlette
except ImportError as error:
    raise ImportError("zarrasync.server.asgi needs Starlette: pip install starlette") from error

from zarrasync.server.core import Core, ServerOptions, make_core
from zarrasync.server.messages import LARGE_BYTES, Request, Response, check_body, send_body
from zarrasync.server.service import Service
from zarrasync.stores import StoreLike

__all__ = ["create_app"]

log = logging.getLogger("zarrasync.server")

_ABSOLUTE = re.compile(r"\Ahttps?://[^/]*(?=/)", re.IGNORECASE)
"""The beginning of a path that is a URL, as proxies send it (RFC 9112, 3.2.2)."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def create_app(store: StoreLike | Service | Mapping[str, Service], **options: Unpack[ServerOptions]) -> Starlette:
    """Return an application of Starlette that serves a hierarchy, or several ones, read-only.

    It has the routes of ``zarrasync.server.create_app``. Run it with any ASGI server, or mount it below a prefix. A server
    runs the lifespan of the outer application only, so pass on the one of this application, which closes connections::

        data = create_app("s3://bucket/era5.zarr")
        api = FastAPI(lifespan=data.router.lifespan_context)
        api.mount("/data", data)

    A client disconnect cancels its request. The ASGI server limits connections, and the time in which requests
    arrive.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper, of which clients can read everything; or a
            service; or several services by name.
        **options: Options; see ``ServerOptions``.

    Raises:
        TypeError: If options of a service are passed along with a service.
        ValueError: If an option is invalid.
    """
    core = make_core(store, **options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await core.close()

    app = Starlette(lifespan=lifespan)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Exchange(core, send).run(scope, receive)
        else:
            await send({"type": "websocket.close", "code": 1000})

    app.router.default = respond  # for all paths, as the core has its own routes
    app.state.core = core
    return app


def _piece(body: bytes, *, more: bool = False) -> Scope:
    return {"type": "http.response.body", "body": body, "more_body": more}


class _Exchange:
    """A request and its response, which end if the client disconnects.

    Args:
        core: The core.
        send: Sends messages to the client.
    """

    def __init__(self, core: Core, send: Send) -> None:
        self._core, self._send = core, send
        self._is_done = self._has_left = False
        self._pieces: list[bytes] = []
        self._size, self._has_arrived = 0, asyncio.Event()

    async def run(self, scope: Scope, receive: Receive) -> None:
        """Respond to a request."""
        task: Any = asyncio.current_task()
        watcher = asyncio.ensure_future(self._watch(receive, task))
        try:
            await self._respond(_as_request(scope, self._receive))
        except asyncio.CancelledError:
            if not self._has_left or task.uncancel():
                raise
        # The server closes the connection, because the response is not complete.
        except (ConnectionError, TimeoutError) as error:
            log.warning("%s %r: %s", scope["method"], scope["path"], error or "the client is too slow")
        finally:
            self._is_done = True
            watcher.cancel()

    async def _respond(self, request: Request) -> None:
        response = await self._core.respond(request)
        try:
            await self._send_response(request, response)
        finally:
            if response.release is not None:
                response.release()

    async def _send_response(self, request: Request, response: Response) -> None:
        if response.status not in (204, 304) and response.has_length:
            response.headers.setdefault("Content-Length", str(response.length))
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

        body = b""
        if response.stream is None and response.length < LARGE_BYTES:
            body = b"".join(response.body)
        elif request.method != "HEAD":
            await send_body(response, lambda piece: self._send(_piece(piece, more=True)), self._core.limits.timeout)
        async with asyncio.timeout(self._core.limits.timeout):
            await self._send(_piece(b"" if request.method == "HEAD" else body))

    async def _watch(self, receive: Receive, task: asyncio.Task[Any]) -> None:
        """Keep a body of moderate size, and cancel the task when the client disconnects."""
        while (message := await receive())["type"] != "http.disconnect":
            piece = message.get("body", b"")
            self._size += len(piece)
            if self._size <= LARGE_BYTES:
                self._pieces.append(piece)
            if self._size > LARGE_BYTES or not message.get("more_body", False):
                self._has_arrived.set()
        if not self._is_done:
            self._has_left = True
            task.cancel()

    async def _receive(self, most: int) -> bytes:
        """Return the body.

        Raises:
            TooMuch: If it is too large.
        """
        await self._has_arrived.wait()
        check_body(self._size, min(most, LARGE_BYTES))
        return b"".join(self._pieces)


def _as_request(scope: Scope, receive: Callable[[int], Awaitable[bytes]]) -> Request:
    headers: dict[str, str] = {}
    hosts = []
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name == "host":
            hosts.append(value)
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    root: str = scope.get("root_path", "")
    path: str = _ABSOLUTE.sub("", scope["path"])
    client, server = scope.get("client"), scope.get("server")
    major, _, minor = scope.get("http_version", "1.1").partition(".")
    return Request(
        scope["method"],
        path.removeprefix(root) if path.startswith(f"{root}/") or path == root else path,
        scope["query_string"].decode("latin-1"),
        headers,
        hosts,
        str(client[0]) if client else "",
        str(server[0]) if server and server[1] is not None else "",
        root,
        (int(major), int(minor or 0)),
        scheme=scope.get("scheme", "http"),
        receive=receive,
    )
