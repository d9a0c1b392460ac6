"""Geometry of maps: tiles in matrix sets, and resampling of values to pixels. No IO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.server.limits import TooMuch
from zarrasync.server.places import AxisPlaces, Bounds, Floats, Indices
from zarrasync.server.projections import CRS84, MERCATOR, METRES_PER_DEGREE, RADIUS

Resampling: TypeAlias = Literal["nearest", "average", "bilinear"]

_HALF = math.pi * RADIUS
_PIXEL = 0.00028
"""The size of a pixel in metres, by which WMTS defines scales."""
MOST_ZOOM = 30
_MOST_TURNS = 16
"""Times that a picture may show the globe side by side."""
_MOST_COVERED = 64
"""The most elements along each axis whose average a pixel shows, if pixels are not in the rows and columns of the array."""


@dataclass(frozen=True)
class TileMatrixSet:
    """A set of grids of tiles. Each zoom doubles the number of rows and columns.

    Attributes:
        name: The name that OGC has registered.
        crs: The coordinate reference system.
        bounds: The covered area.
        columns: The number of columns at zoom 0, which has one row.
        metres: Metres per unit of the coordinates, for scales.
    """

    name: str
    crs: str
    bounds: Bounds
    columns: int
    metres: float

    def resolution(self, zoom: int) -> float:
        """Return the units per pixel of tiles of 256 pixels."""
        return (self.bounds[2] - self.bounds[0]) / (self.columns * 256 * 2.0**zoom)

    def scale(self, zoom: int) -> float:
        """Return the denominator of the scale of tiles of 256 pixels, by the definition of WMTS."""
        return self.resolution(zoom) * self.metres / _PIXEL

    def tile(self, zoom: int, x: int, y: int) -> Bounds:
        """Return the area of a tile.

        Raises:
            SelectionError: If the tile does not exist.
        """
        if not (0 <= zoom <= MOST_ZOOM and 0 <= x < self.columns << zoom and 0 <= y < 1 << zoom):
            raise SelectionError(f"{self.name} has no tile {zoom}/{x}/{y}", shape=())
        side = self.resolution(zoom) * 256
        west, north = self.bounds[0] + x * side, self.bounds[3] - y * side
        return west, north - side, west + side, north


MATRIX_SETS = {
    "WebMercatorQuad": TileMatrixSet("WebMercatorQuad", MERCATOR, (-_HALF, -_HALF, _HALF, _HALF), 1, 1.0),
    "WorldCRS84Quad": TileMatrixSet("WorldCRS84Quad", CRS84, (-180.0, -90.0, 180.0, 90.0), 2, METRES_PER_DEGREE),
}


@dataclass(frozen=True)
class PixelGrid:
    """The pixels of a picture on a map.

    Attributes:
        crs: The coordinate reference system.
        bounds: The area.
        width: The number of columns.
        height: The number of rows, the first of which is in the north.
    """

    crs: str
    bounds: Bounds
    width: int
    height: int

    def columns(self, *, edges: bool = False) -> Floats:
        """Return the coordinates of the centres of the columns, or of their edges."""
        return _spaced(self.bounds[0], self.bounds[2], self.width, edges=edges)

    def rows(self, *, edges: bool = False) -> Floats:
        """Return the coordinates of the centres of the rows from the north on, or of their edges."""
        return _spaced(self.bounds[3], self.bounds[1], self.height, edges=edges)

    def framed(self) -> PixelGrid:
        """Return the same pixels with one more on each side."""
        west, south, east, north = self.bounds
        across, down = (east - west) / self.width, (north - south) / self.height
        bounds = west - across, south - down, east + across, north + down
        return PixelGrid(self.crs, bounds, self.width + 2, self.height + 2)


def _spaced(first: float, last: float, count: int, *, edges: bool) -> Floats:
    places = np.arange(count + 1.0) if edges else np.arange(count) + 0.5
    return first + (last - first) * (places / count)


# ------------------------------------------------------------------ windows


@dataclass(frozen=True, eq=False)
class Window:
    """The elements along one axis that pixels of a picture show.

    Attributes:
        elements: The numbers of the elements that are read.
        first: For each pixel the place of its first element in ``elements``.
        sizes: For each pixel how many elements it shows; one number if all show as many.
        fraction: For each pixel the weight of the last element, if it lies between two; else one zero.
        is_inside: Whether the pixel shows an element.
    """

    elements: Indices
    first: npt.NDArray[np.integer[Any]]
    sizes: npt.NDArray[np.int32]
    fraction: Floats
    is_inside: npt.NDArray[np.bool_]

    @property
    def last(self) -> npt.NDArray[np.integer[Any]]:
        """For each pixel the place of its last element."""
        return self.first + (self.sizes - 1)

    @classmethod
    def of(cls, places: AxisPlaces, centres: Floats, edges: Floats, resampling: Resampling) -> Window:
        """Return the elements of rows or columns of pixels.

        Args:
            places: The places of elements along the axis.
            centres: The coordinates of the centres of the pixels.
            edges: The coordinates of the edges of the pixels.
            resampling: The method by which elements become pixels.
        """
        least, greatest = places.bounds
        ends = places.positions(edges if places.is_longitude else np.clip(edges, least, greatest))
        return cls.at(places, places.positions(centres), (ends[:-1], ends[1:]), resampling)

    @classmethod
    def at(cls, places: AxisPlaces, middle: Floats, ends: tuple[Floats, Floats], resampling: Resampling) -> Window:
        """Return the elements of pixels, in an array of any shape.

        Args:
            places: The places of elements along the axis.
            middle: The positions of the centres of the pixels; NaN outside of the array.
            ends: The positions between which each pixel lies.
            resampling: The method by which elements become pixels.
        """
        # Many threads compute places at once, and the memory of the temporary arrays remains with the process. Places in an
        # axis that is not cyclic are within it, and fit 32 bits.
        kind: type[np.integer[Any]] = np.intp if places.is_cyclic else np.int32
        is_inside = np.isfinite(middle)
        fraction: Floats = np.zeros(1)
        safe = np.where(is_inside, middle, 0.5)
        if resampling == "bilinear":
            safe -= 0.5
            first = np.floor(safe).astype(kind)
            fraction = safe % 1.0
            stop = first + 2
        else:
            first = np.floor(safe, out=safe).astype(kind)
            stop = first + 1
        if resampling == "average":
            first, stop = _covered(*ends, first)
        del safe
        size = len(places)
        if not is_inside.any():
            return cls(np.zeros(0, np.intp), np.zeros_like(first), np.ones(1, np.int32), fraction, is_inside)
        if not places.is_cyclic:
            np.clip(first, 0, size - 1, out=first)
            np.clip(stop, 1, size, out=stop)
        is_whole = bool(is_inside.all())
        shown = [items if is_whole else items[is_inside] for items in (first, stop)]
        begin, end = int(shown[0].min()), int(shown[1].max())
        if end - begin > _MOST_TURNS * size:
            raise TooMuch(f"the area goes around the globe more than {_MOST_TURNS} times; request a part of it")
        needed = np.ones(end - begin, np.bool_)
        if (shown[1] - shown[0]).max() <= 2:  # single elements may be far from each other
            needed[:] = False
            needed[shown[0] - begin] = needed[shown[1] - 1 - begin] = True
        sizes = (stop - first).astype(np.int32)
        sizes = sizes.flat[:1] if (sizes == sizes.flat[0]).all() else sizes  # a copy, as a view would keep all of them
        numbers = np.subtract(first, begin, out=first)
        if not is_whole:
            np.clip(numbers, 0, len(needed) - 1, out=numbers)
        # Pictures of many requests wait for their elements with these places, so that few bytes suffice for each.
        place = (np.cumsum(needed) - 1).astype(np.min_scalar_type(len(needed)))
        return cls((begin + np.flatnonzero(needed)) % size, place[numbers], sizes, fraction, is_inside)


def _covered(one: Floats, other: Floats, nearest: npt.NDArray[np.integer[Any]]) -> tuple[Indices, Indices]:
    """Return the first element of each pixel and the one after the last: those whose centres it covers, or the nearest."""
    begin, end = np.minimum(one, other), np.maximum(one, other)
    is_known = np.isfinite(begin) & np.isfinite(end)
    first = np.where(is_known, np.ceil(np.where(is_known, begin, 0) - 0.5), nearest).astype(np.intp)
    stop = np.where(is_known, np.ceil(np.where(is_known, end, 0) - 0.5), nearest + 1).astype(np.intp)
    is_empty = stop <= first
    return np.where(is_empty, nearest, first), np.where(is_empty, nearest + 1, stop)


def resample(
    values: npt.NDArray[np.generic], rows: Window, columns: Window, resampling: Resampling
) -> np.ma.MaskedArray:
    """Return the values of pixels.

    Args:
        values: The values of the elements of two windows, of shape (rows, columns). NaN and masked ones are missing.
        rows: The elements of the rows of pixels, or of each pixel.
        columns: The elements of the columns of pixels, or of each pixel.
        resampling: The method by which elements become pixels.

    Returns:
        Values of shape (height, width), masked outside of the array and where all values are missing.
    """
    down = (slice(None), None) if rows.first.ndim == 1 else ...
    outside = ~(rows.is_inside[down] & columns.is_inside)
    if not values.size:
        return np.ma.masked_array(np.zeros(outside.shape, values.dtype), mask=True)
    if resampling == "nearest":
        return np.ma.masked_array(np.ma.asarray(values)[rows.first[down], columns.first], outside, keep_mask=True)
    missing = np.ma.getmaskarray(values)
    numbers = np.ma.getdata(values).astype(np.float64)
    missing = missing | np.isnan(numbers)
    weights, numbers = (~missing).astype(np.float64), np.where(missing, 0.0, numbers)
    combine = _sums if resampling == "average" else _between
    if rows.first.ndim == 2:
        each = _box_sums if resampling == "average" else _between_four
        total, weight = np.moveaxis(each(np.stack([numbers, weights], axis=-1), rows, columns), -1, 0)
    else:
        total, weight = (combine(combine(item, rows, 0), columns, 1) for item in (numbers, weights))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.ma.masked_array(total / weight, outside | (weight <= 0.5 * (resampling == "bilinear")))


def _sums(values: Floats, window: Window, axis: int) -> Floats:
    """Return the sums of the elements of each pixel. An infinite element changes only the pixels that contain it."""
    size = values.shape[axis]
    first = np.minimum(window.first, size - 1)
    stop = np.clip(window.last, first, size - 1) + 1
    padded = np.concatenate([values, np.zeros_like(np.take(values, [0], axis=axis))], axis=axis)  # a place to stop at
    ranges = np.stack([first, stop], axis=1).reshape(-1)
    sums: Floats = np.add.reduceat(padded, ranges, axis=axis).take(np.arange(0, len(ranges), 2), axis=axis)
    return sums


def _between(values: Floats, window: Window, axis: int) -> Floats:
    """Return the values between two elements of each pixel."""
    last = np.maximum(window.last, window.first)
    shape = (-1, 1) if axis == 0 else (1, -1)
    fraction = np.where(last > window.first, window.fraction, 0.0).reshape(shape)
    below, above = np.take(values, window.first, axis=axis), np.take(values, last, axis=axis, mode="clip")
    result: Floats = below * (1 - fraction) + above * fraction
    return result


def _box_sums(values: Floats, rows: Window, columns: Window) -> Floats:
    """Return the sums of the elements in the box of each pixel, of some evenly spaced ones if there are many.

    Args:
        values: One or several values of each element, of shape (rows, columns, number).
        rows: The rows of each pixel.
        columns: The columns of each pixel.
    """
    heights, widths = (np.maximum(np.broadcast_to(item.sizes, item.first.shape), 1) for item in (rows, columns))
    down, across = (-(-sizes // _MOST_COVERED) for sizes in (heights, widths))
    heights, widths = -(-heights // down), -(-widths // across)
    total: Floats = np.zeros((*rows.first.shape, values.shape[-1]))
    for row in range(int(heights.max())):
        for column in range(int(widths[heights > row].max())):
            chosen = np.nonzero((heights > row) & (widths > column) & rows.is_inside)
            at = rows.first[chosen] + row * down[chosen], columns.first[chosen] + column * across[chosen]
            total[chosen] += values[at]
    return total


def _between_four(values: Floats, rows: Window, columns: Window) -> Floats:
    """Return the values between four elements of each pixel. The shapes are as for ``_box_sums``."""
    lasts = [np.maximum(window.last, window.first) for window in (rows, columns)]
    shares = [
        np.where(last > window.first, window.fraction, 0.0) for last, window in zip(lasts, (rows, columns), strict=True)
    ]
    result: Floats = np.zeros((*rows.first.shape, values.shape[-1]))
    for row, down in ((rows.first, 1 - shares[0]), (lasts[0], shares[0])):
        for column, across in ((columns.first, 1 - shares[1]), (lasts[1], shares[1])):
            at = np.minimum(row, len(values) - 1), np.minimum(column, values.shape[1] - 1)
            result += (down * across)[..., None] * values[at]
    return result
