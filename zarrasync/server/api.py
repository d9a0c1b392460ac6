"""The interface of one service over HTTP: its routes, their parameters and their handlers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from zarrasync.display import values as value_text
from zarrasync.display.info import encoding_facts, meaning_facts
from zarrasync.display.presentation import Shown
from zarrasync.display.text import chunk_shapes
from zarrasync.display.values import Column, ElementTable
from zarrasync.errors import SelectionError
from zarrasync.indexing.projection import in_c_order
from zarrasync.metadata.conventions import axis_names, meaning_of, unit_of
from zarrasync.model.fill_values import format_fill_value
from zarrasync.model.paths import join
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.statistics import Summary
from zarrasync.server.hierarchy import Member
from zarrasync.server.images import Scale, palette_of, render
from zarrasync.server.label_colours import LabelColours, flag_labels
from zarrasync.server.limits import BadQuery
from zarrasync.server.messages import Request, Response
from zarrasync.server.query import Colours, Query, colours_of, decodes, integer_of
from zarrasync.server.responses import content_response, json_response
from zarrasync.server.routes import Parameter, Route
from zarrasync.server.selection import Selection
from zarrasync.server.service import Service

_CONTENT_TYPES = {
    "json": "application/json",
    "npy": "application/x-npy",
    "bin": "application/octet-stream",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
    "png": "image/png",
}
_TABLES = ("csv", "arrow", "parquet")
_COMPRESSED = ("json", "csv")
"""Formats that become smaller if they are compressed."""
_MOST_FOUND = 200
"""The most nodes that a search returns."""
_SHOWN = ("well", "image")
"""The kinds of related nodes of which the viewer shows pictures."""

_IN_BODY = (
    "Name",
    "Type",
    "Zarr format",
    "Data type",
    "Shape",
    "Chunk shape",
    "Shard shape",
    "Dimension names",
    "Quantity",
)
"""Facts about an array that ``/api/node`` returns in other members of its response."""

_PATH = Parameter("path", "the path of a node, below the served one")
_DECODE = Parameter("decode", "1 for the values that stored numbers stand for, 0 for the numbers", choices=("1", "0"))
_INDEX = Parameter("index", "the plane, as a selection of the axes outside of it: 0,3 or time=0,level=3")
_PLANE = Parameter("plane", "the numbers of the axes of rows and columns, such as 0,1; by default the last two")
_SELECT = Parameter(
    "select",
    "indices and slices of all axes, or labels of coordinates: 0,10:20,::2 or time=0,lat=:5 or "
    "time=2024-03-01/2024-04-01,lat=45.5~nearest",
)
_FORMAT = Parameter("format", "the format of the values", choices=tuple(_CONTENT_TYPES))
_INT64 = Parameter("int64", "whether 64-bit integers in JSON are numbers or strings", choices=("number", "string"))
_BINS = Parameter("bins", "the number of bins of the histogram", kind="integer", default="64")
_TEXT = Parameter("text", "a part of paths, in upper or lower case")
_POINTS = Parameter("points", "the most points of a chart", kind="integer", default="1000")
_STYLE = (
    Parameter("cmap", "the name of a colour map, labels, or rgb for channels of colours", default="viridis"),
    Parameter("low", "the value of the first colour", kind="number"),
    Parameter("high", "the value of the last colour", kind="number"),
    Parameter("below", "the colour of lower values, such as transparent or #0000ff"),
    Parameter("above", "the colour of higher values"),
    Parameter("scale", "the colours in between", choices=get_args(Scale)),
)
_ORIGIN = Parameter(
    "origin", "the position of the first row; by default the north is at the top", choices=("upper", "lower")
)


class Api:
    """Handlers of requests for nodes, values and pictures of a service.

    Args:
        service: The service.

    Attributes:
        routes: The routes below ``/api``.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._max_age = service, service.max_age
        tile = "/api/tiles/{z}/{x}/{y}.png"
        self.routes = (
            Route("node", "/api/node", self.node, "A node and its members", (_PATH,)),
            Route(
                "data",
                "/api/data",
                self.data,
                "The values of a selection of an array",
                (_PATH, _SELECT, _FORMAT, _DECODE, _INT64, *_STYLE),
                tuple(_CONTENT_TYPES.values()),
            ),
            Route("search", "/api/search", self.search, "Nodes whose paths contain a string", (_TEXT,)),
            Route("axes", "/api/axes", self.axes, "The axes of a node, with their coordinates", (_PATH,)),
            Route("chart", "/api/chart", self.chart, "The values along one axis", (_PATH, _SELECT, _POINTS, _DECODE)),
            Route("stats", "/api/stats", self.stats, "Statistics of a plane", (_PATH, _INDEX, _PLANE, _BINS, _DECODE)),
            Route("view", "/api/view", self.view, "Axes, zooms, unit and range of an array", (_PATH, _PLANE, _DECODE)),
            Route("colours", "/api/colours", self.colours, "The colours of a colour map", (_STYLE[0],)),
            Route(
                "tile",
                tile,
                self.tile,
                "A picture of 256 x 256 pixels of a plane",
                (_PATH, _INDEX, _PLANE, *_STYLE, _ORIGIN, _DECODE),
                ("image/png",),
            ),
        )

    # -------------------------------------------------------------- nodes

    async def node(self, request: Request) -> Response:
        """Return a node and its members."""
        path, hierarchy = request.query.get("path", ""), self._service.hierarchy
        node = await hierarchy.node(path)
        body = _summary(path, node)
        body["attributes"] = value_text.strict(node.attrs)
        body["format"] = node.zarr_format
        if not path.strip("/"):
            body["store"] = self._service.name
        members: Iterable[tuple[str, Member | None]] | None = ()
        if isinstance(node, AsyncGroup):
            meaning = meaning_of(node.metadata)
            body["info"] = meaning_facts(meaning)
            members = await hierarchy.members(path)
            most = hierarchy.limits.max_members
            shown = [link for link in meaning.links if link.kind in _SHOWN]
            body["gallery"] = [{"path": join(path, link.path), "kind": link.kind} for link in shown[:most]]
            members = None if members is None else members[:most]
        else:
            presentation = await self._service.described.presentation(node)
            body["has_dates"] = presentation.has_dates or node.dtype.kind == "M"
            body["dataset"] = await self._service.described.dataset(path.strip("/"))
            inherited = encoding_facts(presentation.encoding)  # by bounds
            facts = {name: text for name, text in node.info.items.items() if name not in (*_IN_BODY, "Store")}
            body["info"] = facts | inherited

        def respond() -> Response:
            if isinstance(node, AsyncGroup):
                listed = members
                body["members"] = (
                    None if listed is None else [_summary(join(path, name), member) for name, member in listed]
                )
            return json_response(request, body, self._max_age)

        return await self._service.chunks.compute(respond)  # a group may have thousands of members

    async def search(self, request: Request) -> Response:
        """Return the nodes whose paths contain a string, in the whole hierarchy."""
        text = request.query.get("text", "").lower()
        nodes = await self._service.hierarchy.descendants()
        found = [(path, node) for path, node in nodes or () if text in path.lower()]
        body = {
            "nodes": [_summary(path, node) for path, node in sorted(found[:_MOST_FOUND], key=lambda item: item[0])],
            "is_complete": nodes is not None and len(found) <= _MOST_FOUND,
        }
        return json_response(request, body, self._max_age)

    # -------------------------------------------------------------- values

    async def data(self, request: Request) -> Response:
        """Return the values of a selection."""
        query, service = request.query, self._service
        kind = query.get("format", "json")
        selection = await service.select(query.get("path", ""), query.get("select", "..."), decode=decodes(query))
        self._check(selection, kind)
        axes = await service.read_coordinates(selection) if kind in _TABLES else []

        def respond(stored: npt.NDArray[Any]) -> Response:
            headers, pieces = _RENDERERS[kind](selection, axes, query, stored)
            response = content_response(
                request, pieces, _CONTENT_TYPES[kind], self._max_age, compress=kind in _COMPRESSED
            )
            response.headers.update(headers)
            return response

        return await service.chunks.read(selection.view, respond)

    def _check(self, selection: Selection, kind: str) -> None:
        """Check that a selection can be returned in a format.

        Raises:
            BadQuery: If the format cannot represent the values.
            SelectionError: If a picture of the selection is not possible.
            TooMuch: If the selection exceeds the limits.
        """
        view = selection.view
        as_text = kind in ("json", *_TABLES)
        self._service.chunks.check(view, as_text=as_text, itemsize=selection.presentation.value_bytes)
        if kind == "png" and view.ndim != 2:
            raise SelectionError(
                f"a picture needs two axes, but the selection has shape {view.shape}", shape=view.shape
            )
        if kind == "png" and not view.size:
            raise SelectionError(f"the selection of shape {view.shape} is empty and has no picture", shape=view.shape)
        if kind == "bin" and (view.dtype.hasobject or view.dtype.kind == "T"):
            raise BadQuery(f"{view.dtype} elements vary in size and have no raw bytes; request json or npy")

    async def axes(self, request: Request) -> Response:
        """Return the axes of a node."""
        axes = await self._service.axes(request.query.get("path", ""))
        return json_response(request, {"axes": value_text.strict(axes)}, self._max_age)

    async def chart(self, request: Request) -> Response:
        """Return the values along one axis."""
        points = integer_of(request.query, "points", 1000, 1, 10_000)
        facts = await self._service.chart(**_arguments(request.query, "select"), points=points)
        return json_response(request, facts, self._max_age)

    # -------------------------------------------------------------- planes

    async def stats(self, request: Request) -> Response:
        """Return statistics of a plane."""
        bins = integer_of(request.query, "bins", 64, 1, 1024)
        facts = await self._service.statistics(**_arguments(request.query, "index", "plane"), bins=bins)
        return json_response(request, facts, self._max_age)

    async def view(self, request: Request) -> Response:
        """Return the axes, levels and zooms of an array or a pyramid."""
        facts = await self._service.view(**_arguments(request.query, "plane"))
        return json_response(request, facts, self._max_age)

    async def colours(self, request: Request) -> Response:
        """Return the colours of a colour map, from the one of the least value on."""
        palette = np.frombuffer(palette_of(request.query.get("cmap", "viridis")), np.uint8).reshape(-1, 3)
        colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in palette[1::2].tolist()]
        return json_response(request, {"colours": colours}, self._max_age)

    async def tile(self, request: Request) -> Response:
        """Return a tile."""
        query = request.query
        zoom, x, y = (int(request.parameters[name]) for name in ("z", "x", "y"))
        plane = _arguments(query, "index", "plane", "origin")
        body = await self._service.render_tile(zoom=zoom, x=x, y=y, **plane, **colours_of(query))
        return content_response(request, [body], "image/png", self._max_age, compress=False)


def _arguments(query: Query, *names: str) -> dict[str, Any]:
    """Return the arguments of a function of the service: the path, ``decode``, and parameters with some names."""
    others = {name: query[name] for name in names if name in query}
    return {"path": query.get("path", ""), "decode": decodes(query), **others}


def _summary(path: str, node: Member | None) -> dict[str, Any]:
    """Return a node as JSON; ``None`` for one that cannot be read."""
    summary: dict[str, Any] = {"path": path.strip("/"), "name": path.rpartition("/")[2]}
    if node is None:
        return {**summary, "kind": "broken"}
    summary["name"] = node.basename
    if isinstance(node, AsyncGroup):
        return {**summary, "kind": "group", "pyramid": bool(meaning_of(node.metadata).levels), "title": _title(node)}
    return {
        **summary,
        "kind": "array",
        "title": _title(node),
        "unit": meaning_of(node.metadata).unit or unit_of(node.attrs),
        "shape": list(node.shape),
        "dtype": node.metadata.dtype.name,
        **chunk_shapes(node.metadata),
        "dimension_names": axis_names(node.metadata),
        "fill_value": format_fill_value(node.fill_value),
    }


def _title(node: Member) -> str:
    """Return what a node contains, in words: its title, long name or standard name."""
    texts = (node.attrs.get(name) for name in ("title", "long_name", "standard_name"))
    return next((text for text in texts if isinstance(text, str) and text), "")


# ------------------------------------------------------------------ formats of values

Rendered = tuple[dict[str, str], Iterable[bytes]]
"""Additional headers, and the pieces of a body."""


def _json(selection: Selection, axes: list[Column], query: Query, stored: npt.NDArray[Any]) -> Rendered:
    shown = selection.presentation.show(stored)
    values = shown.values
    facts = {"shape": list(values.shape), "dtype": _type_name(selection, shown), **shown.facts}
    if values.dtype.names:
        facts["fields"] = list(values.dtype.names)
        facts["field_dtypes"] = [values.dtype[name].name for name in values.dtype.names]
    quote_int64 = query.get("int64") == "string"

    def pieces() -> Iterable[bytes]:
        yield value_text.dumps(facts)[:-1] + b',"data":'
        yield from value_text.json_pieces(values, quote_int64=quote_int64)
        yield b"}"

    return {}, pieces()


def _type_name(selection: Selection, shown: Shown) -> str:
    """Return the data type of shown values: NumPy's name, or the format's for strings and objects."""
    if shown.values.dtype.kind in "OT" and not selection.presentation.has_dates:
        return selection.array.metadata.dtype.name
    return "string" if shown.values.dtype.kind == "O" else str(shown.values.dtype)


def _as_table(render: Callable[[ElementTable], Iterable[bytes]]) -> Callable[..., Rendered]:
    """Return a function that renders a selection and its coordinates as a table."""

    def rendered(selection: Selection, axes: list[Column], query: Query, stored: npt.NDArray[Any]) -> Rendered:
        values = Column(selection.array.basename or "value", selection.presentation.column(stored))
        return {}, render(ElementTable(axes, [values]))

    return rendered


def _npy(selection: Selection, axes: list[Column], query: Query, stored: npt.NDArray[Any]) -> Rendered:
    return {}, [value_text.npy_bytes(selection.presentation.array(stored))]


def _bin(selection: Selection, axes: list[Column], query: Query, stored: npt.NDArray[Any]) -> Rendered:
    values = selection.presentation.array(stored)
    headers = {"X-Shape": ",".join(map(str, selection.view.shape)), "X-Dtype": _dtype_text(values.dtype)}
    return headers, [in_c_order(values.astype(values.dtype.newbyteorder("<"), copy=False)).tobytes()]


def _png(selection: Selection, axes: list[Column], query: Query, stored: npt.NDArray[Any]) -> Rendered:
    presentation, summary = selection.presentation, Summary()
    values = presentation.numbers(stored)
    summary.add(values)
    low, high = summary.minimum or 0.0, summary.maximum if summary.maximum is not None else 1.0
    flags = flag_labels(presentation.encoding.flags)
    labels = LabelColours(flags.colours if flags is not None else None)
    return {}, [render(values, Colours(**colours_of(query)).style(low, high, labels))]


_RENDERERS: dict[str, Callable[[Selection, list[Column], Query, npt.NDArray[Any]], Rendered]] = {
    "json": _json,
    "csv": _as_table(ElementTable.csv_pieces),
    "arrow": _as_table(lambda table: [table.arrow()]),
    "parquet": _as_table(lambda table: [table.parquet()]),
    "npy": _npy,
    "bin": _bin,
    "png": _png,
}


def _dtype_text(dtype: np.dtype[Any]) -> str:
    """Return NumPy's code of a data type, the fields of a structured type as JSON, or the name of another type."""
    if dtype.names:
        return json.dumps(dtype.newbyteorder("<").descr)
    return str(dtype.name if dtype.type.__module__ == "ml_dtypes" else dtype.newbyteorder("<").str)
