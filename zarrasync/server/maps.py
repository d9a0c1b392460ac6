"""Maps of arrays: their places on the earth, tiles and pictures in the coordinate systems of maps, and values at points."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync._util.advice import in_terms_of
from zarrasync.display.presentation import Presentation
from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions import CRS, Axis, meaning_of
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.metadata.conventions.meaning import is_geographic
from zarrasync.model.paths import join
from zarrasync.nodes.access import array_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.coordinates import stored_coordinate
from zarrasync.server.described import Described
from zarrasync.server.geometries import Region
from zarrasync.server.images import CUSTOM, RGB, Style, render
from zarrasync.server.limits import TooMuch, Unsupported
from zarrasync.server.map_grid import PixelGrid, Resampling, Window, resample
from zarrasync.server.map_places import Place, pixels_of
from zarrasync.server.map_statistics import CELL_BYTES, StatisticsOptions, Zone, band_statistics
from zarrasync.server.places import AxisPlaces
from zarrasync.server.planes import Planes
from zarrasync.server.projections import CRS84, crs_name, crs_of_grid_mapping, is_separable, transformed, units_per
from zarrasync.server.pyramid import Level, Pyramid
from zarrasync.server.query import Colours
from zarrasync.server.responses import NEAREST

_MANY = 1 << 20
"""Coordinates from which on pixels are located on another thread than the event loop."""
_IDENTIFIER = re.compile(r'(?:AUTHORITY|ID)\["(\w+)","?(\w+)"?\]\]$', re.IGNORECASE)
"""The authority and the code at the end of well-known text."""


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
        table: Own colours as JSON, instead of a colour map; see ``Colours``.
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
    table: str = ""


class _Shown(NamedTuple):
    """The elements that a picture shows.

    Attributes:
        level: The level of the pyramid.
        view: The elements.
        windows: The elements of each pixel along each axis.
        method: How elements become pixels.
    """

    level: Level
    view: AsyncSelection
    windows: Sequence[Window]
    method: Resampling


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

        draw = partial(self._draw, pyramid, index, grid, request, style)
        return await self._planes.tiles.get(key, draw)

    async def style(self, pyramid: Pyramid, request: MapRequest) -> Style:
        """Return the mapping of the values of a pyramid to colours.

        Raises:
            BadQuery: If the picture cannot have these colours.
        """
        cmap = request.colormap or (CUSTOM if request.table else pyramid.colormap)
        colours = Colours(
            cmap, request.low, request.high, below=request.below, above=request.above, table=request.table
        )
        return await self._planes.style(pyramid, colours)

    async def point(self, request: MapRequest, x: float, y: float, crs: str = CRS84) -> tuple[Any, str]:
        """Return the value of the element at a point, ``None`` if it is missing, and its unit.

        Args:
            request: The variable.
            x: The longitude, or the easting in another system.
            y: The latitude, or the northing.
            crs: The coordinate reference system of the point.

        Raises:
            NodeNotFoundError: If the array does not exist.
            SelectionError: If the array has no place on the earth, or does not cover the point.
        """
        pyramid = await self._planes.pyramid(request.path)
        place, index = await self.place(pyramid), await self.index(request)
        transform = partial(transformed, np.array([x]), np.array([y]), crs, place.crs)
        east, north = transform() if is_separable(crs, place.crs) else await self._chunks.compute(transform)
        (row,), beyond_y = place.y.cells(north)
        (column,), beyond_x = place.x.cells(east)
        if beyond_x.any() or beyond_y.any():
            where = f"longitude {x:g} and latitude {y:g}" if crs == CRS84 else f"x {x:g} and y {y:g} of {crs}"
            raise SelectionError(
                f"{request.path!r} does not cover {where}; bounds: {', '.join(f'{number:g}' for number in place.bounds)}",
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

    async def statistics(
        self, request: MapRequest, options: StatisticsOptions, region: Region | None = None, crs: str = CRS84
    ) -> dict[str, Any]:
        """Return statistics of the cells in polygons, or of a sample of all cells.

        Args:
            request: The variable.
            options: Which statistics.
            region: The polygons; ``None`` for all of the plane, of which a sample of chunks is read if it is large.
            crs: The coordinate reference system of the polygons.

        Returns:
            The statistics by their names, with the unit and whether they were computed from a sample.

        Raises:
            BadQuery: If the polygons overlap, or their reference system does not suit the array.
            NodeNotFoundError: If the array does not exist.
            SelectionError: If the array has no place on the earth, although there are polygons.
            TooMuch: If the polygons contain more cells than the limits allow.
        """
        pyramid, index = await self._planes.pyramid(request.path), await self.index(request)
        if region is None:
            view, zone = self._planes.sample(pyramid, index), None
        else:
            place = await self.place(pyramid)
            zone = await self._chunks.compute(partial(Zone.of, place, region, crs))
            view = pyramid.view(pyramid.levels[0], index, zone.rows, zone.columns)
            self._chunks.check_memory(view.size, CELL_BYTES, "cells of polygons")
        presentation = await self._described.presentation(array_of(view))
        weigh = partial(_weighted, presentation, request.nodata, zone, options)
        facts = await self._chunks.read(view, weigh)
        is_sample = region is None and view.size < math.prod(pyramid.shape)
        return {**facts, "description": request.path, "unit": presentation.unit, "is_sample": is_sample}

    async def index(self, request: MapRequest) -> tuple[int, ...]:
        """Return the positions of labels on the axes outside of the plane; by default 0."""
        with in_terms_of((NEAREST, "write nearest::LABEL")):
            return await self._planes.index(await self._planes.pyramid(request.path), labels=dict(request.labels))

    async def _draw(
        self, pyramid: Pyramid, index: tuple[int, ...], grid: PixelGrid, request: MapRequest, style: Style
    ) -> bytes:
        place = await self.place(pyramid)
        presentation = await self._described.presentation(pyramid.levels[0].array)
        has_means = presentation.encoding.has_means and pyramid.labels is None
        locate = partial(self._locate, pyramid, index, place, grid, request, style, has_means=has_means)
        is_quick = is_separable(grid.crs, place.crs) and len(place.x) + len(place.y) < _MANY
        shown = locate() if is_quick else await self._chunks.compute(locate)
        if shown is None:
            samples = (pyramid.samples,) if style.cmap == RGB else ()
            nothing = np.ma.masked_array(np.zeros((*samples, grid.height, grid.width), np.float32), mask=True)
            return await self._chunks.compute(partial(render, nothing, style))
        presentation = await self._described.presentation(shown.level.array)
        resampled = partial(_resampled, presentation, pyramid, request.nodata, shown.windows, shown.method)
        return await self._chunks.read(shown.view, lambda stored: render(resampled(stored), style))

    def _locate(
        self,
        pyramid: Pyramid,
        index: tuple[int, ...],
        place: Place,
        grid: PixelGrid,
        request: MapRequest,
        style: Style,
        *,
        has_means: bool,
    ) -> _Shown | None:
        """Return the elements that a picture shows; ``None`` if all of its pixels are outside of the array."""
        pixels = pixels_of(place, grid)
        steps = pixels.steps
        level = pyramid.coarsest([float(np.median(item)) for item in steps])

        def shown(method: Resampling) -> _Shown | None:
            windows = pixels.windows(level.shape[-2:], method)
            if not all(len(window.elements) for window in windows):
                return None
            view = pyramid.view(level, index, windows[0].elements, windows[1].elements, style.cmap)
            return _Shown(level, view, windows, method)

        if request.resampling:
            return shown(request.resampling)
        averaged = shown("average") if has_means and not _is_magnified(level, steps) else None
        return averaged if averaged is not None and self._allows(averaged.view) else shown("nearest")

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
        group, is_degrees = self._hierarchy.relative_path(array).rpartition("/")[0], crs == CRS84
        scales = [1.0 if is_degrees else units_per(axis.unit, crs) for axis in (rows, columns)]
        y = scales[0] * await self._centres(group, rows, pyramid.shape[0])
        x = scales[1] * await self._centres(group, columns, pyramid.shape[1])
        place = Place(
            crs,
            AxisPlaces.of(x, columns.name, is_longitude=is_degrees),
            AxisPlaces.of(y, rows.name, is_latitude=is_degrees),
        )
        await self._chunks.compute(lambda: place.bounds)  # the first transformation of a system takes long
        return place

    async def _crs(self, array: AsyncArray, rows: Axis, columns: Axis) -> str:
        """Return the reference system of an array: its own one, or the system of its grid mapping."""
        path = self._hierarchy.relative_path(array)
        meaning = await self._described.meaning(path)
        crs, attributes = meaning.crs, dict[str, Any]()
        for link in meaning.links:
            if crs is None and link.kind == "grid mapping":
                node = await self._hierarchy.find(join(path.rpartition("/")[0], link.path))
                if node is not None:
                    crs, attributes = meaning_of(node.metadata).crs, dict(node.attrs)
        if crs is None and "grid_mapping_name" not in attributes:
            raise SelectionError(
                f"{array.name} has no place on a map: its last two axes {rows.name!r} and {columns.name!r} need latitudes and "
                "longitudes (with the units degrees_north and degrees_east), or the array a coordinate reference system",
                shape=array.shape,
            )
        label = crs.label if crs is not None else attributes["grid_mapping_name"]
        try:
            find = partial(crs_name, _notation(crs)) if crs is not None else partial(crs_of_grid_mapping, attributes)
            return await self._chunks.compute(find)
        except Unsupported as error:
            raise Unsupported(f"{array.name} has the coordinate reference system {label}; {error}") from None
        except ValueError as error:
            raise SelectionError(f"the reference system of {array.name}: {error}", shape=array.shape) from None

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


def _is_magnified(level: Level, steps: Sequence[npt.NDArray[np.float64]]) -> bool:
    """Return whether all pixels are smaller than elements, so that their average is the nearest element."""
    return all(item.max() < factor for item, factor in zip(steps, level.factors[-2:], strict=True))


def _with_nodata(presentation: Presentation, nodata: float | None, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = presentation.numbers(stored)
    if values.dtype.kind not in "biuf":
        raise SelectionError(f"a map needs real numbers, found {values.dtype}", shape=values.shape)
    if nodata is None:
        return values
    numbers = np.ma.getdata(values)
    if numbers.dtype.kind == "f":
        return np.ma.masked_where(numbers == float(nodata), values, copy=False)
    is_whole = math.isfinite(nodata) and nodata == int(nodata)  # integers are compared exactly
    return np.ma.masked_where(numbers == int(nodata), values, copy=False) if is_whole else values


def _weighted(
    presentation: Presentation,
    nodata: float | None,
    zone: Zone | None,
    options: StatisticsOptions,
    stored: npt.NDArray[Any],
) -> dict[str, Any]:
    values = _with_nodata(presentation, nodata, stored)
    weights = np.ones(values.shape) if zone is None else zone.weights(options.weights)
    return band_statistics(values, weights, options)


def _resampled(
    presentation: Presentation,
    pyramid: Pyramid,
    nodata: float | None,
    windows: Sequence[Window],
    method: Resampling,
    stored: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    values = pyramid.turned(_with_nodata(presentation, nodata, stored))
    if values.ndim == 2:
        return resample(values, windows[0], windows[1], method)
    return np.ma.stack([resample(sample, windows[0], windows[1], method) for sample in values])


def _notation(crs: CRS) -> str:
    """Return a reference system in a notation that is known: its code if it has one."""
    identifier: Mapping[str, Any] = (crs.projjson or {}).get("id") or {}
    if crs.code or identifier:
        return crs.code or f"{identifier.get('authority')}:{identifier.get('code')}"
    if crs.projjson:
        return json.dumps(crs.projjson)
    found = _IDENTIFIER.search(re.sub(r"\s", "", crs.wkt)[-40:])
    return f"{found[1]}:{found[2]}" if found is not None else crs.wkt
