"""Routes: which handler responds to which path, and with which parameters. Also described as an OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zarrasync._util.advice import most_similar
from zarrasync.server.limits import BadQuery
from zarrasync.server.messages import Handler, Request

_PART = re.compile(r"\{(\w+)\}")
_PATTERNS = {
    "z": r"\d{1,2}",
    "x": r"\d{1,9}",
    "y": r"\d{1,9}",
    "key": ".+",
    "tms": "WebMercatorQuad|WorldCRS84Quad",
    **dict.fromkeys(("lon", "lat", "minx", "miny", "maxx", "maxy"), r"[-+.\deE]{1,40}"),
    **dict.fromkeys(("width", "height"), r"\d{1,5}"),
}
"""Patterns of the parts of paths. Other parts are anything without a slash."""
_PATH_PART = "[^/]+"
_FEATURES = ("Feature", "FeatureCollection")
_MOST_SHOWN = 40


@dataclass(frozen=True)
class Parameter:
    """A parameter in the query of a request.

    Attributes:
        name: The name.
        text: A description.
        kind: The type in terms of JSON.
        choices: The allowed values, the first of which is the default, unless one is not specified.
        default: The default.
        repeats: Whether it may occur more than once.
        required: Whether requests need it. Its handler raises the error, which has an example.
    """

    name: str
    text: str
    kind: str = "string"
    choices: tuple[str, ...] = ()
    default: str = ""
    repeats: bool = False
    required: bool = False

    def check(self, value: str) -> None:
        """Check a value.

        Raises:
            BadQuery: If it is not allowed.
        """
        if self.choices and value not in self.choices:
            hint = suggestion(value, self.choices)
            raise BadQuery(f"{self.name} must be one of {', '.join(self.choices)}, found {value[:_MOST_SHOWN]!r}{hint}")

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its values for an OpenAPI document."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.required:
            schema["minLength"] = 1
        if self.repeats:
            schema = {"type": "array", "items": schema}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default:
            schema["default"] = int(self.default) if self.kind == "integer" else self.default
        return schema

    def to_openapi(self) -> dict[str, Any]:
        """Return the description for an OpenAPI document."""
        facts = {"name": self.name, "in": "query", "description": self.text, "schema": self.schema}
        return facts | ({"required": True} if self.required else {})


@dataclass(frozen=True)
class Route:
    """Paths of one kind.

    Attributes:
        name: The name in metrics and logs.
        template: The path, with names of its variable parts in braces.
        handle: Returns the response.
        text: What the response is.
        parameters: The parameters of the query; ``None`` if any are ignored.
        content_types: The media types of responses.
        is_limited: Whether requests wait for the others in the queue.
        methods: The methods, besides ``OPTIONS``.
        is_ogc: Whether errors also have the members of OGC API.
        has_document: Whether the body of a POST request is a document, and not parameters.
    """

    name: str
    template: str
    handle: Handler
    text: str
    parameters: tuple[Parameter, ...] | None = None
    content_types: tuple[str, ...] = ("application/json",)
    is_limited: bool = True
    methods: tuple[str, ...] = ("GET", "HEAD")
    is_ogc: bool = False
    has_document: bool = False

    @property
    def allowed(self) -> str:
        """The value of the header ``Allow``."""
        return ", ".join((*self.methods, "OPTIONS"))

    def check(self, request: Request) -> None:
        """Check the names and the choices of a request's parameters.

        Raises:
            BadQuery: If one is unknown, repeated or has a value that is not among its choices.
        """
        if self.parameters is None:
            return
        known = {parameter.name: parameter for parameter in self.parameters}
        seen: set[str] = set()
        for name, value in request.items:
            if name not in known:
                names = ", ".join(known) or "none"
                hint = suggestion(name, known)
                raise BadQuery(
                    f"{self.template} has no parameter {name[:_MOST_SHOWN]!r}; its parameters are: {names}{hint}"
                )
            if name in seen and not known[name].repeats:
                raise BadQuery(f"the parameter {name!r} occurs more than once")
            seen.add(name)
            known[name].check(value)


def suggestion(value: str, choices: Iterable[str]) -> str:
    """Return a question with the choice that is most similar to a value; empty if none is similar."""
    similar = most_similar(value[:_MOST_SHOWN], choices)
    return f". Did you mean {similar!r}?" if similar else ""


class Router:
    """Finds the route of a path.

    Args:
        routes: The routes.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self._fixed = {route.template: route for route in routes if "{" not in route.template}
        self._patterns = [(_compile(route.template), route) for route in routes if "{" in route.template]

    def find(self, request: Request) -> tuple[Route, Request] | None:
        """Return the route of a request, and the request with the parts of its path; ``None`` if none matches."""
        route = self._fixed.get(request.path)
        if route is not None:
            return route, request
        for pattern, route in self._patterns:
            match = pattern.fullmatch(request.path)
            if match is not None:
                return route, replace(request, parameters=match.groupdict())
        return None


def _compile(template: str) -> re.Pattern[str]:
    """Return the pattern of a template."""
    parts = _PART.split(template)  # names are at odd positions
    texts = (
        f"(?P<{part}>{_PATTERNS.get(part, _PATH_PART)})" if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )
    return re.compile("".join(texts), re.DOTALL | re.ASCII)


def _bodies(route: Route) -> dict[str, Any]:
    """Return the bodies of POST requests for an OpenAPI document: features of GeoJSON, or parameters."""
    if route.has_document:
        feature = {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(_FEATURES)}}}
        return {kind: {"schema": feature} for kind in ("application/geo+json", "application/json")}
    parameters = route.parameters or ()
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: parameter.schema for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }
    geometry = {"type": "object", "required": ["type", "coordinates"]}
    names = {
        name: {"anyOf": [own, geometry]} if name == "coords" else own for name, own in schema["properties"].items()
    }
    return {
        "application/x-www-form-urlencoded": {"schema": schema},
        "application/json": {"schema": {**schema, "properties": names}},
    }


def openapi(routes: Iterable[Route], root: str, version: str) -> dict[str, Any]:
    """Return an OpenAPI document of routes.

    Args:
        routes: The routes.
        root: The path of the application as clients see it.
        version: The version of the interface.
    """
    paths: dict[str, Any] = {}
    for route in routes:
        in_path = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": f"^(?:{_PATTERNS.get(name, _PATH_PART)})$"},
            }
            for name in _PART.findall(route.template)
        ]
        content: dict[str, Any] = {kind.partition(";")[0]: {} for kind in route.content_types}
        operation = {
            "operationId": re.sub(r"\W", "_", route.name),
            "summary": route.text,
            "parameters": [*in_path, *(parameter.to_openapi() for parameter in route.parameters or ())],
            "responses": {
                "200": {"description": route.text, "content": content},
                "default": {"$ref": "#/components/responses/Error"},
            },
        }
        paths[route.template] = {"get": operation}
        if "POST" in route.methods:
            bodies = _bodies(route)
            own = {
                "operationId": f"{operation['operationId']}_post",
                "requestBody": {"required": True, "content": bodies},
            }
            paths[route.template]["post"] = operation | own | ({} if route.has_document else {"parameters": in_path})
    schema = {
        "type": "object",
        "required": ["error", "message"],
        "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    }
    error = {"description": "an error", "content": {"application/json": {"schema": schema}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Zarr", "version": version},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"responses": {"Error": error}},
    }
