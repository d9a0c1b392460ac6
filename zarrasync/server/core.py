"""The core of the server: one function from requests to responses, which the applications of all frameworks call.

It finds the service and the route of a request, checks tokens and parameters, turns errors into responses, and counts and
logs every response.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypedDict, Unpack

from zarrasync import __version__
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import reset_in_child
from zarrasync._concurrency.offload import compute
from zarrasync._util.redact import public_query
from zarrasync.server.access import Proxies, Tokens
from zarrasync.server.api import Api
from zarrasync.server.edr import Edr
from zarrasync.server.edr_query import parse_body
from zarrasync.server.images import palette_of
from zarrasync.server.limits import CLIENT, BadQuery, MethodNotAllowed, NotFound, Overloaded, RequestQueue
from zarrasync.server.map_routes import MapRoutes
from zarrasync.server.messages import LARGE_BYTES, Handler, Request, Response
from zarrasync.server.metrics import Metrics
from zarrasync.server.origins import Origins
from zarrasync.server.pages import show_catalog, show_page, static_file
from zarrasync.server.raw_keys import RawKeys
from zarrasync.server.responses import error_response, json_response, message_response
from zarrasync.server.routes import Route, Router, openapi
from zarrasync.server.service import Service, ServiceOptions
from zarrasync.server.spans import no_span, request_span
from zarrasync.stores import StoreLike

log = logging.getLogger("zarrasync.server")
access_log = logging.getLogger("zarrasync.server.access")

_CLIENT_CLOSED = 499
"""The status in logs and metrics of a request whose client has disconnected."""
_HEALTH_SECONDS = 5.0
"""Seconds in which the store must respond to a health check."""
_MOST_BODY_BYTES = 4 << 20
_DOCUMENT_FACTOR = 16
"""How many times as much memory as a body with numbers in JSON its numbers need, while they are lists."""
_SMALL_BYTES = 1 << 16
"""Bytes of bodies that are not counted, because all connections together have little memory for them."""
_STREAM_BYTES = 8 << 20
"""Memory for the pieces of a response that is sent while it is made."""
_OPEN = frozenset({"livez", "readyz", "healthz"})
"""Routes that need no token."""
_REQUEST_NUMBER = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_NUMBERS = random.Random()  # noqa: S311  # it need not be a secret
"""Numbers of requests in logs. The operating system's would take a system call, in which threads take the interpreter."""
reset_in_child(_NUMBERS.seed)  # forked workers would repeat them
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header of W3C's Trace Context, with the number of the trace."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
"""The name of a store in a path."""


class CoreOptions(TypedDict, total=False):
    """Options of a server.

    Attributes:
        allow_hosts: Names in ``Host`` headers to respond to, besides addresses and ``localhost``; ``"*"`` for all. By
            default none for connections from this machine, which protects against DNS rebinding, and all for others.
        allow_origins: Origins, such as ``"https://example.org"``, whose pages may read responses; ``"*"`` for all. By
            default none for connections from this machine, and all for others.
        hidden: Serve keys with names that begin with a dot, besides Zarr's own.
        tokens: The token that clients need, or the tokens of stores by name.
        trusted_proxies: Addresses and networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
            used; ``"unix"`` for a Unix socket.
        root_path: The path below which clients see the application, if a proxy removes it from requests.
        redirects: Redirect requests for stored keys to URLs that the store signs for some minutes, if it can. Clients then
            receive the values from the object store, after this server has checked their tokens.
        metrics: Serve ``/metrics``, which is the default.
        spans: Make a span of OpenTelemetry for each request, in the trace of its ``traceparent`` header.
    """

    allow_hosts: Iterable[str] | None
    allow_origins: Iterable[str] | None
    hidden: bool
    tokens: str | Mapping[str, str] | None
    trusted_proxies: Iterable[str]
    root_path: str
    redirects: bool
    metrics: bool
    spans: bool


class ServerOptions(CoreOptions, ServiceOptions, total=False):
    """Options of a service and its server."""


def make_core(store: StoreLike | Service | Mapping[str, Service], **options: Unpack[ServerOptions]) -> Core:
    """Return the core of a server.

    Args:
        store: A store, or a service, or several services by name.
        **options: Options of the service, unless there is one, and of the server.

    Raises:
        TypeError: If options of a service are passed along with a service.
        ValueError: If an option is invalid.
    """
    palette_of("viridis")  # the first colour map loads a catalogue, which would block the event loop for 50 ms
    of_server: Any = {name: options[name] for name in CoreOptions.__annotations__ if name in options}  # type: ignore[literal-required]  # a name of its class
    of_service: Any = {name: value for name, value in options.items() if name not in of_server}
    services = {"": store} if isinstance(store, Service) else store
    if isinstance(services, Mapping) and services and all(isinstance(item, Service) for item in services.values()):
        if of_service:
            raise TypeError(f"{', '.join(of_service)} must be passed to Service, not along with one")
        return Core(services, **of_server)
    return Core({"": Service(store, **of_service)}, **of_server)


class Core:
    """The core of a server.

    Args:
        services: The services by the first part of their paths; one with the name ``""`` has none.
        **options: The options.

    Attributes:
        services: The services.
        limits: Limits of all requests together.
        metrics: Metrics of responses.

    Raises:
        ImportError: If spans are requested and ``opentelemetry-api`` is not installed.
        ValueError: If an option is invalid.
    """

    def __init__(self, services: Mapping[str, Service], **options: Unpack[CoreOptions]) -> None:
        self.services = dict(services)
        self.limits = next(iter(self.services.values())).limits
        self._max_age = min(service.max_age for service in self.services.values())
        self._origins = Origins(options.get("allow_hosts"), options.get("allow_origins"))
        self._tokens = Tokens(options.get("tokens"))
        self._proxies = Proxies(options.get("trusted_proxies", ()))
        self._root_path = _checked_root(options.get("root_path", ""))
        self._span = request_span() if options.get("spans", False) else no_span
        self._queue = RequestQueue(self.limits)
        self.metrics = Metrics(self.services.values(), self._queue)
        self._pending = 0
        shown = [route for route in self._own_routes() if route.name != "metrics" or options.get("metrics", True)]
        self._own = Router(shown)
        self._routers = {
            name: Router(
                self._routes(service, hidden=options.get("hidden", False), redirects=options.get("redirects", False))
            )
            for name, service in self.services.items()
        }
        if unknown := self._tokens.names - self.services.keys():
            raise ValueError(f"tokens for unknown stores: {', '.join(sorted(unknown))}")
        for name in self.services:
            if name and (not _NAME.fullmatch(name) or self._own.find(Request("GET", f"/{name}")) is not None):
                raise ValueError(f"{name!r} cannot be the name of a store: use letters, digits, '-', '_' and '.'")

    def _routes(self, service: Service, *, hidden: bool, redirects: bool) -> list[Route]:
        """Return the routes of a service."""
        urls = (service.url_of, service.url_as_v3) if redirects else (None, None)
        raw = RawKeys(service.stored_keys(), service.max_age, self.admit, hidden=hidden, url_of=urls[0])
        as_v3 = RawKeys(service.keys_as_v3(), service.max_age, self.admit, hidden=True, url_of=urls[1])
        kinds = ("application/octet-stream", "application/json")
        return [
            *Api(service).routes,
            *MapRoutes(service).routes,
            *Edr(service, self.admit).routes,
            _quick("zarr", "/zarr/{key}", as_v3.respond, "A key of the hierarchy in format 3", *kinds),
            _quick("raw", "/raw/{key}", raw.respond, "A key of the store", *kinds),
            _quick("page", "/", show_page, "The viewer", "text/html"),
            _quick("static", "/static/{file}", static_file, "A file of the viewer", "text/css"),
        ]

    def _own_routes(self) -> list[Route]:
        """Return the routes of the server, of which those for health checks need no token."""
        routes = [
            _quick("livez", "/livez", self._live, "Whether the server responds"),
            _quick("readyz", "/readyz", self._ready, "Whether the stores respond"),
            _quick("healthz", "/healthz", self._ready, "The same as readyz"),
            _quick("metrics", "/metrics", self._metrics, "Metrics for Prometheus", "text/plain"),
            _quick("openapi", "/openapi.json", self._openapi, "This document"),
        ]
        if "" in self.services:
            return routes
        return [
            *routes,
            _quick("catalog", "/", self._catalog, "The stores", "text/html"),
            _quick("static", "/static/{file}", static_file, "A file of the page", "text/css"),
            replace(_quick("stores", "/stores.json", self._stores, "The names of the stores"), parameters=()),
        ]

    def _find(self, request: Request) -> tuple[str, Route, Request] | None:
        """Return the name of the store, the route and the request with the path below the store."""
        found = self._own.find(request)
        if found is not None:
            return ("", *found)
        name, path = "", request.path
        if "" not in self._routers:
            name, slash, rest = request.path[1:].partition("/")
            path = slash + rest
            if name not in self._routers:
                return None
        inner = request if path == request.path else replace(request, path=path, root=f"{request.root}/{name}")
        if not path:
            return name, _TO_PAGE, inner
        found = self._routers[name].find(inner)
        if found is None and path.endswith("/"):  # a slash at the end means the same in OGC API
            found = self._routers[name].find(replace(inner, path=path[:-1]))
            found = found if found is not None and found[0].is_ogc else None
        return None if found is None else (name, *found)

    async def close(self) -> None:
        """Close the connections of the stores."""
        for service in self.services.values():
            await service.close()

    async def admit(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call when the queue admits it, within the time limit."""
        async with asyncio.timeout(self.limits.timeout), self._queue.admit():
            return await call()

    # -------------------------------------------------------------- requests

    async def respond(self, request: Request) -> Response:
        """Return the response to a request. Errors become responses; all are counted and logged."""
        begin, status, sent, name, number = clock.monotonic(), _CLIENT_CLOSED, 0, "none", _request_number(request)
        request = self._proxies.resolve(replace(request, root=self._root_path + request.root))
        try:
            found = self._find(request)
            if found is not None:
                name = found[1].name
            with self._span(request, name) as set_status:
                response = await self._checked(request, found)
                set_status(response.status)
            self._add_headers(request, response, found)
            response.headers["X-Request-Id"] = number
            status, sent = response.status, 0 if request.method == "HEAD" else response.length
            return response
        finally:
            seconds = clock.monotonic() - begin
            self.metrics.count(name, status, seconds, sent)
            if access_log.isEnabledFor(logging.INFO):
                facts = {"route": name, "status": status, "bytes": sent, "ms": round(seconds * 1000, 2), "id": number}
                _log(request, facts)

    async def _checked(self, request: Request, found: tuple[str, Route, Request] | None) -> Response:
        """Return the response to a request, or the one to its error."""
        store, route, inner = found or ("", _NOTHING, request)
        if {"content-length", "transfer-encoding"} <= request.headers.keys():
            return _refuse_framing()
        try:
            self._origins.check_host(request)
            if request.method == "OPTIONS":  # the preflight request of a browser, which has no token
                return Response(204, {"Allow": route.allowed})
            if route.name not in _OPEN:
                self._tokens.check(request, store)
            if request.method not in route.methods:
                message = f"the method {request.method[:20]!r} is not supported here; use {route.allowed}"
                raise MethodNotAllowed(message, route.allowed)
            if not request.path:
                return await _redirect(request)
            CLIENT.set(request.client)
            return await self._handle(route, inner)
        except ConnectionError:
            raise
        except Exception as error:
            response = error_response(error, is_ogc=route.is_ogc)
            if response is None:
                log.exception("%s %r failed", request.method, request.path)
                return message_response(500, "InternalError", "internal server error")
            if response.status >= 500:
                log.warning("%s %r: %s", request.method, request.path, error)
            return response

    async def _handle(self, route: Route, request: Request) -> Response:
        if request.method == "POST":
            release = self._hold(_body_size(request) * (_DOCUMENT_FACTOR if route.has_document else 1))
            try:
                response = await self._respond(route, await self._with_body(route, request))
            finally:
                release()
        else:
            response = await self._respond(route, request)
        if request.method != "HEAD":
            self._track(response)
        return response

    async def _respond(self, route: Route, request: Request) -> Response:
        """Return the response of a route, when the queue admits the request."""
        route.check(request)
        if route.is_limited:
            return await self.admit(lambda: route.handle(request))  # type: ignore[no-any-return]  # of any call
        return await route.handle(request)

    async def _with_body(self, route: Route, request: Request) -> Request:
        """Return a request with its body, or with the parameters in its body.

        Raises:
            BadQuery: If the body does not arrive in time, or is not valid.
            TooMuch: If it is too large.
        """
        assert request.receive is not None
        try:
            async with asyncio.timeout(self.limits.head_timeout):
                body = await request.receive(_MOST_BODY_BYTES)
        except TimeoutError:
            raise BadQuery(f"the body did not arrive within {self.limits.head_timeout:g} s") from None
        if route.has_document:
            return replace(request, body=body)
        return replace(
            request, in_body=await compute(partial(parse_body, body, request.headers.get("content-type", "")))
        )

    def _track(self, response: Response) -> None:
        """Count the bytes of a large response until it is sent.

        Raises:
            Overloaded: If too many bytes are pending.
        """
        size = response.length if response.has_length else _STREAM_BYTES
        if size >= LARGE_BYTES and (response.stream is None or not response.has_length):
            response.release = self._hold(size)

    def _hold(self, size: int) -> Callable[[], None]:
        """Count the bytes of a body, unless it is small, and return a function that makes them free again.

        Raises:
            Overloaded: If there are too many bytes.
        """
        if size <= _SMALL_BYTES:
            return lambda: None
        if self._pending and self._pending + size > self.limits.max_pending_bytes:
            raise Overloaded(
                f"the bodies of requests and responses in progress have {self._pending:,} bytes, and the limit is "
                f"{self.limits.max_pending_bytes:,}; try again later"
            )
        self._pending += size
        remaining = [size]

        def release() -> None:  # may be called more than once
            self._pending -= remaining[0]
            remaining[0] = 0

        return release

    def _add_headers(self, request: Request, response: Response, found: tuple[str, Route, Request] | None) -> None:
        headers = self._origins.headers(request)
        if "Vary" in headers and "Vary" in response.headers:
            headers["Vary"] = f"{response.headers['Vary']}, {headers['Vary']}"
        caching = response.headers.get("Cache-Control", "")
        if caching.startswith("max-age") and self._tokens.is_needed(found[0] if found else ""):
            headers["Cache-Control"] = f"private, {caching}"
        response.headers.update(headers)

    # -------------------------------------------------------------- routes of the server

    async def _live(self, request: Request) -> Response:
        return _uncached(json_response(request, {"status": "ok"}, 0))

    async def _ready(self, request: Request) -> Response:
        for name, service in self.services.items():
            try:
                async with asyncio.timeout(_HEALTH_SECONDS):
                    await service.check_ready()
            except Exception as error:
                log.warning("the store %s does not respond: %s", name, error)
                return message_response(
                    503, type(error).__name__, f"the store {name} does not respond".replace("  ", " ")
                )
        return _uncached(json_response(request, {"status": "ok"}, 0))

    async def _metrics(self, request: Request) -> Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return _uncached(Response(200, headers, [self.metrics.text()]))

    async def _openapi(self, request: Request) -> Response:
        routes = [*self._own.routes]
        for name, router in self._routers.items():
            prefix = f"/{name}" if name else ""
            own = f"{name}." if name else ""
            routes += [
                replace(route, name=own + route.name, template=prefix + route.template) for route in router.routes
            ]
        return json_response(request, openapi(routes, request.root, __version__), self._max_age)

    async def _catalog(self, request: Request) -> Response:
        return show_catalog(request, self.services)

    async def _stores(self, request: Request) -> Response:
        return json_response(request, {"stores": sorted(self.services)}, self._max_age)


def _quick(name: str, template: str, handle: Handler, text: str, *content_types: str) -> Route:
    """Return a route that ignores parameters, and whose requests do not wait for others."""
    return Route(name, template, handle, text, None, content_types or ("application/json",), is_limited=False)


async def _redirect(request: Request) -> Response:
    """Redirect to the path with a slash at its end, as links of the page are relative to it."""
    return Response(308, {"Location": f"{request.root}/", "Cache-Control": "no-store"})


def _body_size(request: Request) -> int:
    """Return the most bytes that the body of a request has."""
    declared = request.headers.get("content-length", "")
    return min(int(declared), _MOST_BODY_BYTES) if declared.isdecimal() else _MOST_BODY_BYTES


async def _refuse(request: Request) -> Response:
    raise NotFound("this path does not exist; /openapi.json lists all")


def _refuse_framing() -> Response:
    """Return the response to a request with two ends of its body, in which a proxy may read a second request."""
    response = message_response(400, "BadQuery", "a request has a length or a transfer encoding, not both")
    response.headers["Connection"] = "close"
    return response


_TO_PAGE = Route("mounted", "", _redirect, "The page", is_limited=False)
_NOTHING = Route("none", "", _refuse, "Nothing", is_limited=False)


def _uncached(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


def _checked_root(path: str) -> str:
    if path and not (path.startswith("/") and not path.endswith("/")):
        raise ValueError(f"root_path must begin with a slash and not end with one, found {path!r}")
    return path


def _request_number(request: Request) -> str:
    """Return the number of a request in logs: the one of a proxy, or a random one."""
    number = request.headers.get("x-request-id", "")
    return number if _REQUEST_NUMBER.fullmatch(number) else f"{_NUMBERS.getrandbits(64):016x}"


def _log(request: Request, facts: Mapping[str, Any]) -> None:
    target = request.path + (f"?{public_query(request.query_string)}" if request.query_string else "")
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": time, "method": request.method, "path": target[:2000], **facts, "client": request.client}
    trace = _TRACE.fullmatch(request.headers.get("traceparent", ""))
    if trace is not None:
        entry["trace"] = trace[1]
    access_log.info("%s", json.dumps(entry), extra={name: value for name, value in entry.items() if name != "time"})
