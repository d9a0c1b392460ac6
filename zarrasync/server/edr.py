"""OGC API EDR: the values of arrays at points, in polygons and in boxes, for all frameworks."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync.display import values as value_text
from zarrasync.display.presentation import Presentation
from zarrasync.display.values import ElementTable, ParquetPieces
from zarrasync.errors import StoreError, ZarrError
from zarrasync.server.compression import compressor
from zarrasync.server.edr_documents import (
    CONFORMANCE,
    MEDIA_TYPES,
    collection_document,
    coverage_head,
    features,
    link,
    netcdf,
    numbers,
    parameter_document,
    range_head,
    table,
)
from zarrasync.server.edr_grid import CRS84, Collection, GridAxis, collections_of, open_collection
from zarrasync.server.edr_plan import Plan, Span, make_plan
from zarrasync.server.edr_query import parse_box, parse_datetime, parse_heights
from zarrasync.server.geometries import Points, Region, parse_coords
from zarrasync.server.limits import BadQuery, TooMuch
from zarrasync.server.messages import Request, Response
from zarrasync.server.raw_keys import Admit
from zarrasync.server.responses import accepts_gzip, cache_control, content_response, json_response, public_message
from zarrasync.server.routes import Parameter, Route
from zarrasync.server.selection import select
from zarrasync.server.service import Service

T = TypeVar("T")

_SMALL_CELLS = 1 << 17
"""Cells of a response that is made before it is sent, so that it has an entity tag."""
_FEW_BYTES = 1 << 14
"""Bytes of JSON and coordinates that are processed on the event loop, as another thread would take longer."""
_NUMBER_BYTES = 20
"""About the bytes of a coordinate in JSON."""
_COMPRESSED = ("covjson", "json", "geojson", "csv")
_TABLES = ("csv", "parquet", "nc")
"""Formats whose parameters need the same coordinates."""
_HOST = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,255}")

_COORDS = Parameter("coords", "the points or polygons in well-known text, with x or the longitude first", required=True)
_SHARED = (
    Parameter("datetime", "an instant, or an interval such as 2024-03-01/2024-04-01 or 2024-03-01/.., in ISO 8601"),
    Parameter("parameter-name", "the names of parameters, separated by commas; by default all"),
    Parameter("z", "heights: 850 or 1000,850 or 100/500 or R5/100/50"),
    Parameter("crs", "the reference system of coords and the response; x is first in each", default=CRS84),
    Parameter("select", "elements of further dimensions, such as number=0"),
    Parameter("f", "the format of the response", choices=tuple(MEDIA_TYPES)),
)
_BBOX = Parameter("bbox", "west,south,east,north; or with heights west,south,lowest,east,north,highest", required=True)
_JSON = (Parameter("f", "the format of the response", choices=("json",)),)
_GET_OR_POST = ("GET", "HEAD", "POST")


class Edr:
    """Handlers of requests of OGC API EDR for a service.

    Args:
        service: The service.
        admit: Makes a call when the request queue admits it.

    Attributes:
        routes: The routes below ``/edr``.
        limits: Limits of requests.
    """

    def __init__(self, service: Service, admit: Admit) -> None:
        self._service, self._admit, self.limits = service, admit, service.limits
        own, one, types = "/edr/collections", "/edr/collections/{id}", tuple(MEDIA_TYPES.values())
        pages = (
            Route("edr", "/edr", self.landing, "Links of OGC API EDR", _JSON),
            Route("edr.conformance", "/edr/conformance", self.conformance, "The classes of requirements", _JSON),
            Route("edr.collections", own, self.collections, "The groups with arrays on grids", _JSON),
            Route("edr.collection", one, self.collection, "Extent and parameters of a group", _JSON),
        )
        queries = {
            "position": (self.position, "The cells at points", _COORDS),
            "area": (self.area, "The cells in polygons", _COORDS),
            "cube": (self.cube, "The cells in a box", _BBOX),
        }
        self.routes = tuple(replace(route, is_ogc=True) for route in pages) + tuple(
            Route(f"edr.{name}", f"{one}/{name}", handle, text, (where, *_SHARED), types, False, _GET_OR_POST, True)
            for name, (handle, text, where) in queries.items()
        )

    # -------------------------------------------------------------- documents

    async def landing(self, request: Request) -> Response:
        """Return links to the other documents."""
        url = _url(request)
        body = {
            "title": "Zarr",
            "description": "Arrays on grids as OGC API Environmental Data Retrieval",
            "links": [
                link(url, "self"),
                link(f"{url}/conformance", "conformance"),
                link(f"{url}/collections", "data"),
                link(
                    f"{url.removesuffix('/edr')}/openapi.json",
                    "service-desc",
                    "application/vnd.oai.openapi+json;version=3.1",
                ),
            ],
        }
        return json_response(request, body, self._service.max_age)

    async def conformance(self, request: Request) -> Response:
        """Return the classes of requirements."""
        return json_response(request, {"conformsTo": CONFORMANCE}, self._service.max_age)

    async def collections(self, request: Request) -> Response:
        """Return all collections, with notes about those whose coordinates are invalid."""
        url = _url(request)
        found = await gather(
            [partial(self._document_or_note, item, url) for item in await collections_of(self._service)]
        )
        documents, notes = ([item for item in found if isinstance(item, kind)] for kind in (dict, str))
        body = {"links": [link(f"{url}/collections", "self")], "collections": documents}
        body |= {"notes": notes} if notes else {}
        return await self.compute(lambda: json_response(request, body, self._service.max_age))

    async def collection(self, request: Request) -> Response:
        """Return a collection."""
        found = await open_collection(self._service, request.parameters["id"])
        make = await self._document(found, _url(request))
        return await self.compute(lambda: json_response(request, make(), self._service.max_age))

    async def _document_or_note(self, collection: Collection, url: str) -> dict[str, Any] | str:
        """Return the description of a collection, or a note about the error in its coordinates."""
        try:
            return await self.compute(await self._document(collection, url))
        except StoreError:  # the store may respond to the next request
            raise
        except ZarrError as error:
            return f"the collection {collection.id!r} is left out: {public_message(error)}"

    async def _document(self, collection: Collection, url: str) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the description of a collection, which may contain many times."""
        axes: dict[str, GridAxis] = {}
        for name in collection.arrays:
            for axis in await collection.axes(self._service, name):
                if axis is not None and axis.role:
                    axes.setdefault(axis.role, axis)
        presentations = await self._presentations(collection, [*collection.arrays])
        return partial(collection_document, collection, axes, presentations, url)

    async def _presentations(self, collection: Collection, names: Sequence[str]) -> dict[str, Presentation]:
        calls = [partial(self._service.described.presentation, collection.arrays[name]) for name in names]
        return dict(zip(names, await gather(calls), strict=True))

    # -------------------------------------------------------------- queries

    async def position(self, request: Request) -> Response:
        """Return the cells at points."""
        return await self._query(request, ("POINT", "MULTIPOINT"))

    async def area(self, request: Request) -> Response:
        """Return the cells in polygons."""
        return await self._query(request, ("POLYGON", "MULTIPOLYGON"))

    async def cube(self, request: Request) -> Response:
        """Return the cells in a box."""
        return await self._query(request, ())

    async def _query(self, request: Request, kinds: Sequence[str]) -> Response:
        query, service = request.query, self._service
        heights, times = parse_heights(query.get("z", "")), parse_datetime(query.get("datetime", ""))
        if kinds:
            coords = query.get("coords", "")
            where: Any = await self.compute(partial(parse_coords, coords, kinds), len(coords))
            if heights is not None and getattr(where, "z", None) is not None:
                raise BadQuery("z and the heights of coords exclude each other")
        else:
            where, own = parse_box(query.get("bbox", ""))
            if own is not None and heights is not None:
                raise BadQuery("z and the heights of bbox exclude each other")
            heights = own if own is not None else heights

        async def prepare() -> tuple[Collection, list[Plan], dict[str, Presentation]]:
            collection = await open_collection(service, request.parameters["id"])
            collection.check_crs(query.get("crs", ""))
            names = collection.choose(query.get("parameter-name", ""), has_heights=heights is not None)

            async def plan(name: str) -> Plan:
                axes = await collection.axes(service, name)
                chosen = await select(service.described, collection.arrays[name], query.get("select") or "...")
                make = partial(make_plan, chosen, axes, where, times, heights, service.limits)
                return await self.compute(make, _planned_bytes(axes, where))

            plans = await gather([partial(plan, name) for name in names])
            return collection, plans, await self._presentations(collection, names)

        collection, plans, presentations = await self._admit(prepare)
        return await self._respond(
            request, _Answer(self, collection, plans, presentations, _url(request)), query.get("f", "covjson")
        )

    async def _respond(self, request: Request, answer: _Answer, kind: str) -> Response:
        pieces, service = answer.pieces(kind), self._service
        is_compressed = kind in _COMPRESSED
        if answer.size <= _SMALL_CELLS or kind in ("geojson", "nc"):
            body = [piece async for piece in pieces]
            make = partial(content_response, request, body, MEDIA_TYPES[kind], service.max_age, compress=is_compressed)
            return await self.compute(make, sum(map(len, body)))
        first = await anext(pieces)  # an error has its own status until the response begins
        headers = {"Content-Type": MEDIA_TYPES[kind], "Cache-Control": cache_control(service.max_age)}
        stream = _joined(first, pieces)
        if is_compressed:
            headers["Vary"] = "Accept-Encoding"
        if is_compressed and accepts_gzip(request):
            headers["Content-Encoding"] = "gzip"
            stream = self._compressed(stream)
        return Response(200, headers, stream=stream)

    async def _compressed(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        deflate = compressor(gzip=True)
        async for piece in pieces:
            yield await self._service.chunks.compute(partial(deflate.compress, piece))
        yield deflate.flush()

    async def compute(self, function: Callable[[], T], size: float = math.inf) -> T:
        """Return the result of a function, which runs on a codec thread unless it processes few bytes."""
        return function() if size <= _FEW_BYTES else await self._service.chunks.compute(function)

    async def read(
        self, plan: Plan, span: Span, presentation: Presentation, render: Callable[[npt.NDArray[Any]], Any]
    ) -> Any:
        """Read a block when the request queue admits it, and return the result of a function of its values."""
        if not plan.is_points:
            finish = partial(_rendered, plan, presentation, render)
            return await self._admit(lambda: self._service.chunks.read(plan.view(span), finish))
        # Few points share the cache of decoded chunks. Many of them would replace all of it with chunks that are read once.
        is_few, limits = math.prod(plan.shape) <= _SMALL_CELLS, self._service.limits
        most_bytes = self._service.chunks.cache.read_bytes if is_few else 0
        parts: list[tuple[npt.NDArray[np.intp], npt.NDArray[Any]]] = []
        planned = partial(plan.parts, span, most_bytes or limits.max_decoded_bytes // 4)
        for points, view in await self._service.chunks.compute(planned):
            values = await self._admit(partial(self._service.chunks.read, view, plan.arranged))
            parts.append((points, values))
        return await self._service.chunks.compute(partial(_joined_parts, parts, presentation, render))


def _planned_bytes(axes: Sequence[GridAxis | None], where: Points | Region) -> float:
    """Return about the bytes that planning a query processes. Cells in polygons may take long to find."""
    if isinstance(where, Region):
        return math.inf
    return where.x.nbytes + sum(axis.values.nbytes for axis in axes if axis is not None)


def _rendered(plan: Plan, presentation: Presentation, render: Callable[[Any], Any], stored: npt.NDArray[Any]) -> Any:
    return render(plan.masked(presentation.show(plan.arranged(stored)).values))


def _joined_parts(
    parts: Sequence[tuple[npt.NDArray[np.intp], npt.NDArray[Any]]],
    presentation: Presentation,
    render: Callable[[npt.NDArray[Any]], Any],
) -> Any:
    """Return the rendered values of points, in the order of the request."""
    first = parts[0][1]
    stored = np.empty((*first.shape[:-1], sum(len(points) for points, _ in parts)), first.dtype)
    for points, values in parts:
        stored[..., points] = values
    return render(presentation.show(stored).values)


async def _joined(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


def _url(request: Request) -> str:
    """Return the URL of the interface, as the client sees it."""
    host = request.hosts[0] if len(request.hosts) == 1 and _HOST.fullmatch(request.hosts[0]) else ""
    return f"{request.scheme}://{host}{request.root}/edr" if host else f"{request.root}/edr"


class _Answer:
    """The pieces of a response.

    Args:
        edr: Reads values.
        collection: The collection.
        plans: The plan for each array.
        presentations: How the numbers of arrays are shown, by name.
        url: The URL of the interface.
    """

    def __init__(
        self,
        edr: Edr,
        collection: Collection,
        plans: Sequence[Plan],
        presentations: Mapping[str, Presentation],
        url: str,
    ) -> None:
        self._edr, self._collection, self._presentations = edr, collection, presentations
        self._url = f"{url}/collections/{collection.id}"
        domains = sorted(((repr(plan.domain), plan) for plan in plans), key=itemgetter(0))
        self._groups = [[plan for _, plan in group] for _, group in groupby(domains, key=itemgetter(0))]
        self._limits = edr.limits

    @property
    def size(self) -> int:
        """The number of values."""
        return sum(int(np.prod(plan.shape)) for group in self._groups for plan in group)

    @cached_property
    def _parameters(self) -> dict[str, dict[str, Any]]:
        """The descriptions of the parameters by name."""
        plans = [plan for group in self._groups for plan in group]
        items = ((plan.name, plan.array.attrs, self._presentations[plan.name]) for plan in plans)
        return {item[0]: parameter_document(*item, languages=True) for item in items}

    def pieces(self, kind: str) -> AsyncIterator[bytes]:
        """Return the pieces of the body in a format.

        Raises:
            BadQuery: If the format is a table, and the parameters have different coordinates.
            TooMuch: If there are too many values for a format that is not streamed.
        """
        if kind in _TABLES and len(self._groups) > 1:
            names = " and ".join(repr(group[0].name) for group in self._groups[:2])
            raise BadQuery(f"{names} have different coordinates; request them one after the other with f={kind}")
        most = {"geojson": self._limits.max_cells, "nc": self._limits.max_result_bytes // 8}.get(kind)
        if most is not None and self.size > most:
            raise TooMuch(f"f={kind} is limited to {most:,} values, found {self.size:,}; use csv, parquet or covjson")
        makers = {"csv": self._csv, "parquet": self._parquet, "geojson": self._geojson, "nc": self._netcdf}
        return makers.get(kind, self._covjson)()

    async def _read(self, plan: Plan, span: Span, render: Callable[[npt.NDArray[Any]], Any]) -> Any:
        return await self._edr.read(plan, span, self._presentations[plan.name], render)

    async def _covjson(self) -> AsyncIterator[bytes]:
        crs = CRS84 if self._collection.crs == CRS84 else self._collection.wkt
        is_one = len(self._groups) == 1
        head = b"" if is_one else b'{"type":"CoverageCollection","coverages":['
        for number, plans in enumerate(self._groups):
            own = {plan.name: self._parameters[plan.name] for plan in plans}
            made = partial(coverage_head, plans, own, crs)
            head += b"," * (number > 0) + await self._edr.compute(made, _NUMBER_BYTES * sum(plans[0].shape))
            for place, plan in enumerate(plans):
                head += b"," * (place > 0) + range_head(plan, self._presentations[plan.name])
                for order, span in enumerate(plan.spans):
                    values = await self._read(plan, span, numbers)
                    yield head + b"," * (order > 0)
                    yield values
                    del values  # the next ones take as much memory
                    head = b""
                head = b"]}"
            head += b"}}"
        yield head + (b"" if is_one else b"]}")

    async def _tables(self) -> AsyncIterator[ElementTable]:
        (plans,) = self._groups
        for span in plans[0].spans:
            yield table(plans, span, [await self._read(plan, span, lambda values: values) for plan in plans])

    async def _csv(self) -> AsyncIterator[bytes]:
        is_first = True
        async for rows in self._tables():
            yield await self._edr.compute(partial(b"".join, rows.csv_pieces(header=is_first)))
            is_first = False

    async def _parquet(self) -> AsyncIterator[bytes]:
        writer = ParquetPieces()
        async for rows in self._tables():
            yield await self._edr.compute(partial(writer.add, rows))
        yield await self._edr.compute(writer.finish)

    async def _whole(self, plans: Sequence[Plan]) -> list[npt.NDArray[Any]]:
        """Return the values of some arrays."""
        found = []
        for plan in plans:
            blocks = [await self._read(plan, span, lambda values: values) for span in plan.spans]
            join: Any = np.ma.concatenate if any(map(np.ma.isMA, blocks)) else np.concatenate
            found.append(blocks[0] if len(blocks) == 1 else join(blocks))
        return found

    async def _geojson(self) -> AsyncIterator[bytes]:
        found: list[dict[str, Any]] = []
        for plans in self._groups:
            found += await self._edr.compute(
                partial(features, plans, await self._whole(plans), f"{self._url}/position")
            )
        parameters = [{"id": name, **document} for name, document in self._parameters.items()]
        body = {"type": "FeatureCollection", "features": found, "parameters": parameters}
        yield await self._edr.compute(partial(value_text.dumps, body))

    async def _netcdf(self) -> AsyncIterator[bytes]:
        (plans,) = self._groups
        values = await self._whole(plans)
        yield await self._edr.compute(partial(netcdf, plans, values, self._collection))
