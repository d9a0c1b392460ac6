"""Maps of arrays: their places on the earth, tiles and pictures in the coordinate systems of maps, and values at points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zarrasync.display.presentation import Presentation
from zarrasync.errors import NodeNotFoundError, SelectionError
from zarrasync.metadata.conventions import CRS, Axis, meaning_of
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.metadata.conventions.meaning import is_geographic
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.coordinates import stored_coordinate
from zarrasync.server.described import Described
from zarrasync.server.images import LABELS, RGB, Style, render
from zarrasync.server.limits import BadQuery, TooMuch, Unsupported
from zarrasync.server.map_grid import (
    CRS84,
    MERCATOR,
    Bounds,
    PixelGrid,
    Resampling,
    Window,
    converted,
    resample,
)
from zarrasync.server.places import AxisPlaces, as_slice
from zarrasync.server.planes import Planes
from zarrasync.server.pyramid import Level, Pyramid
from zarrasync.server.query import Colours

_WEB_CODES = {"EPSG:4326": CRS84, "OGC:CRS84": CRS84, "EPSG:3857": MERCATOR, "EPSG:900913": MERCATOR}
_COLORMAP = "viridis"


@dataclass(frozen=True)
class MapRequest:
    """What a map shows.

    Attributes:
        path: The path of an array or a pyramid.
        labels: Labels of the axes outside of the plane.
        colormap: The name of a colour map; empty for the default: own colours of flags and labels, and viridis.
        low: The value of its first colour; ``None`` for one that suits the values.
        high: The value of its last colour; ``None`` for one that suits the values.
        below: The colour of lower values, in the notation of CSS; empty for the first colour.
        above: The colour of higher values; empty for the last colour.
        nodata: A value that is missing.
        resampling: The method by which elements become pixels; empty for the average where a pixel covers several
            elements and the limits allow to read them, or else the nearest one.
    """

    path: str
    labels: tuple[tuple[str, Query], ...] = ()
    colormap: str = ""
    low: float | None = None
    high: float | None = None
    below: str = ""
    above: str = ""
    nodata: float | None = None
    resampling: Resampling | Literal[""] = ""


@dataclass(frozen=True, eq=False)
class Place:
    """The place of an array on the earth.

    Attributes:
        crs: The coordinate reference system of its axes: ``CRS84`` or ``MERCATOR``.
        x: The places of its columns.
        y: The places of its rows.
    """

    crs: str
    x: AxisPlaces
    y: AxisPlaces

    @property
    def bounds(self) -> Bounds:
        """The covered longitudes and latitudes. Longitudes are from -180 to 180 if all are covered."""
        west, east = (float(converted(np.array(v), "x", self.crs, CRS84)) for v in self.x.bounds)
        south, north = (float(converted(np.array(v), "y", self.crs, CRS84)) for v in self.y.bounds)
        if self.x.is_cyclic or east - west >= 360:
            return -180.0, south, 180.0, north
        turns = 360.0 * np.floor((west + 180) / 360)
        return west - turns, south, east - turns, north


class Maps:
    """Pictures of arrays on maps.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        planes: Its planes, and the cache of pictures.
    """

    def __init__(self, described: Described, chunks: ChunkReader, planes: Planes) -> None:
        self._described, self._chunks, self._planes = described, chunks, planes
        self._hierarchy = described.hierarchy

    # -------------------------------------------------------------- pictures

    async def picture(self, request: MapRequest, grid: PixelGrid) -> bytes:
        """Return the picture of an area as a PNG. Pixels without values are transparent.

        Args:
            request: The variable and its colours.
            grid: Its pixels.

        Raises:
            NodeNotFoundError: If the array does not exist.
            LabelError: If a label does not exist.
            SelectionError: If the array has no place on the earth.
            TooMuch: If the picture needs more than the limits allow.
        """
        pyramid = await self._planes.pyramid(request.path)
        index = await self.index(request)
        style = await self.style(pyramid, request)
        versions = tuple(self._hierarchy.version_key(level.array) for level in pyramid.levels)
        key = ("map", versions, index, style, grid, request.nodata, request.resampling)

        async def make() -> bytes:
            values = await self._values(pyramid, index, grid, request)
            return await self._chunks.compute(lambda: render(values, style))

        return await self._planes.tiles.get(key, make)

    async def style(self, pyramid: Pyramid, request: MapRequest) -> Style:
        """Return the mapping of the values of a pyramid to colours.

        Raises:
            BadQuery: If the picture cannot have these colours.
        """
        cmap = request.colormap or (LABELS if pyramid.labels is not None else _COLORMAP)
        if cmap == RGB:
            raise BadQuery("maps do not support the colour map rgb")
        colours = Colours(cmap, request.low, request.high, below=request.below, above=request.above)
        return await self._planes.style(pyramid, colours)

    async def point(self, request: MapRequest, longitude: float, latitude: float) -> tuple[Any, str]:
        """Return the value of the element at a point, ``None`` if it is missing, and its unit.

        Raises:
            NodeNotFoundError: If the array does not exist.
            SelectionError: If the array has no place on the earth, or does not cover the point.
        """
        pyramid = await self._planes.pyramid(request.path)
        place, index = await self.place(pyramid), await self.index(request)
        (row,), beyond_y = place.y.cells(converted(np.array([latitude]), "y", CRS84, place.crs))
        (column,), beyond_x = place.x.cells(converted(np.array([longitude]), "x", CRS84, place.crs))
        if beyond_x.any() or beyond_y.any():
            raise SelectionError(
                f"{request.path!r} does not cover longitude {longitude:g} and latitude {latitude:g}; bounds: "
                f"{', '.join(f'{number:g}' for number in place.bounds)}",
                shape=pyramid.shape,
            )
        finest = pyramid.levels[0]
        presentation = await self._described.presentation(finest.array)
        view = finest.select((*index, int(row), int(column)))
        numbers = await self._chunks.read(view, partial(_with_nodata, presentation, request.nodata))
        value = (
            None if np.ma.getmaskarray(numbers).any() or np.isnan(np.ma.getdata(numbers)).any() else numbers[()].item()
        )
        return value, presentation.unit

    async def index(self, request: MapRequest) -> tuple[int, ...]:
        """Return the positions of labels on the axes outside of the plane; by default 0."""
        return await self._planes.index(await self._planes.pyramid(request.path), labels=dict(request.labels))

    async def _values(
        self, pyramid: Pyramid, index: tuple[int, ...], grid: PixelGrid, request: MapRequest
    ) -> npt.NDArray[Any]:
        place = await self.place(pyramid)
        centres, edges = _coordinates(grid, place.crs, edges=False), _coordinates(grid, place.crs, edges=True)
        steps = _steps(place, edges)
        level = pyramid.coarsest([float(np.median(item)) for item in steps])
        sizes = level.shape[-2:]
        axes = [places.scaled(size) for places, size in zip((place.y, place.x), sizes, strict=True)]
        presentation = await self._described.presentation(level.array)
        is_category = presentation.encoding.flags is not None or pyramid.labels is not None
        is_nearest = is_category or _is_magnified(level, steps)
        methods: Sequence[Resampling] = ["nearest"] if is_nearest else ["average", "nearest"]
        if request.resampling:
            methods = [request.resampling]
        for method in methods:
            windows = [Window.of(*item, method) for item in zip(axes, centres, edges, strict=True)]
            if not all(len(window.elements) for window in windows):
                break
            key = (*level.index(index), *(as_slice(window.elements) for window in windows))
            view = level.select(key)
            if method != methods[-1] and not self._allows(view):
                continue
            return await self._chunks.read(view, partial(_resampled, presentation, request.nodata, windows, method))
        return np.ma.masked_array(np.zeros((grid.height, grid.width), np.float32), mask=True)

    def _allows(self, view: AsyncSelection) -> bool:
        try:
            self._chunks.check(view)
        except TooMuch:
            return False
        return True

    # -------------------------------------------------------------- places

    async def place(self, pyramid: Pyramid) -> Place:
        """Return the place of the finest level of a pyramid.

        Raises:
            SelectionError: If its last two axes have no coordinates on the earth.
            Unsupported: If its coordinate reference system is not supported.
        """
        array = pyramid.levels[0].array
        return await self._hierarchy.cached(
            ("place", self._hierarchy.version_key(array)), partial(self._place, pyramid)
        )

    async def _place(self, pyramid: Pyramid) -> Place:
        array, (rows, columns) = pyramid.levels[0].array, (await self._planes.axes(pyramid))[-2:]
        crs = CRS84 if is_geographic(rows, columns) else await self._crs(array, rows, columns)
        is_degrees = crs == CRS84
        group = self._hierarchy.relative_path(array).rpartition("/")[0]
        y = await self._centres(group, rows, pyramid.shape[0])
        x = await self._centres(group, columns, pyramid.shape[1])
        return Place(
            crs,
            AxisPlaces.of(x, columns.name, is_longitude=is_degrees),
            AxisPlaces.of(y, rows.name, is_latitude=is_degrees),
        )

    async def _crs(self, array: AsyncArray, rows: Axis, columns: Axis) -> str:
        path = self._hierarchy.relative_path(array)
        meaning = await self._described.meaning(path)
        crs = meaning.crs
        for link in meaning.links:
            if crs is None and link.kind == "grid mapping":
                try:
                    node = await self._hierarchy.node(join(path.rpartition("/")[0], link.path))
                except NodeNotFoundError:
                    continue
                crs = meaning_of(node.metadata).crs
        if crs is None:
            raise SelectionError(
                f"{array.name} has no place on a map: its last two axes {rows.name!r} and {columns.name!r} need latitudes and "
                "longitudes (with the units degrees_north and degrees_east), or the array a coordinate reference system",
                shape=array.shape,
            )
        code = _code(crs)
        if code not in _WEB_CODES:
            raise Unsupported(
                f"{array.name} has the coordinate reference system {crs.label}; maps support longitudes and latitudes "
                "(EPSG:4326) and EPSG:3857"
            )
        return _WEB_CODES[code]

    async def _centres(self, group: str, axis: Axis, size: int) -> npt.NDArray[np.float64]:
        """Return the coordinates of the centres of elements: stored ones, or those that conventions specify."""
        node = await stored_coordinate(self._described, group, axis.name, size)
        if node is not None and node.dtype.kind in "iuf":
            presentation = await self._described.presentation(node)
            numbers = await self._chunks.read(node.view[:], presentation.numbers)
            return np.ma.filled(np.ma.asarray(numbers).astype(np.float64), np.nan)
        if axis.step is None:
            raise SelectionError(
                f"the axis {axis.name!r} has no coordinates; store them in an array {axis.name!r} of one axis in the same group",
                shape=(size,),
            )
        return axis.coordinates(size)


def _coordinates(grid: PixelGrid, crs: str, *, edges: bool) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the coordinates of the rows and the columns of pixels in another system."""
    rows, columns = grid.rows(edges=edges), grid.columns(edges=edges)
    return converted(rows, "y", grid.crs, crs), converted(columns, "x", grid.crs, crs)


def _steps(
    place: Place, edges: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
) -> list[npt.NDArray[np.float64]]:
    """Return the elements of the finest level that pixels cover, for rows and columns inside of the array."""
    steps = [
        np.abs(np.diff(places.positions(pixels))) for places, pixels in zip((place.y, place.x), edges, strict=True)
    ]
    known = [item[np.isfinite(item)] for item in steps]
    return [item if len(item) else np.ones(1) for item in known]


def _is_magnified(level: Level, steps: Sequence[npt.NDArray[np.float64]]) -> bool:
    """Return whether all pixels are smaller than elements, so that their average is the nearest element."""
    return all(item.max() < factor for item, factor in zip(steps, level.factors[-2:], strict=True))


def _with_nodata(presentation: Presentation, nodata: float | None, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = presentation.numbers(stored)
    if values.dtype.kind not in "biuf":
        raise SelectionError(f"a map needs real numbers, found {values.dtype}", shape=values.shape)
    return values if nodata is None else np.ma.masked_equal(values, nodata)


def _resampled(
    presentation: Presentation,
    nodata: float | None,
    windows: Sequence[Window],
    method: Resampling,
    stored: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    return resample(_with_nodata(presentation, nodata, stored), windows[0], windows[1], method)


def _code(crs: CRS) -> str:
    """Return the authority and the code of a coordinate reference system; empty if they are unknown."""
    if crs.code:
        return crs.code.upper()
    identifier: Mapping[str, Any] = (crs.projjson or {}).get("id") or {}
    if identifier:
        return f"{identifier.get('authority')}:{identifier.get('code')}".upper()
    tail = crs.wkt.replace(" ", "").upper()[-40:]
    for name in _WEB_CODES:
        authority, _, code = name.partition(":")
        if tail.endswith((f'AUTHORITY["{authority}","{code}"]]', f'ID["{authority}",{code}]]')):
            return name
    return ""
