"""Statistics of cells on the earth, weighted by how much of each cell is in polygons. No IO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions.meaning import CIRCLE
from zarrasync.server.geometries import OVERLAP, Region, turns_left
from zarrasync.server.limits import BadQuery
from zarrasync.server.map_places import Place
from zarrasync.server.places import AxisPlaces, Floats, Indices
from zarrasync.server.projections import CRS84, converted, is_separable, transformed

Weights: TypeAlias = Literal["coverage", "area"]
"""The weight of a cell: the share of it in the polygons, or the area of that share in square metres."""

CELL_BYTES = 96
"""Memory for a cell of polygons whose statistics are requested: its value, its weight, and arrays to sort both."""

_RADIUS = 6371008.8
"""The mean radius of the earth in metres, of a sphere with its area."""
_MOST_CORNERS = 1 << 14
"""Cells whose corners are computed at a time. They need 250 bytes per cell."""
_PARTS = 256
"""Edges along the extent of polygons before they are transformed to another reference system."""


@dataclass(frozen=True)
class StatisticsOptions:
    """Options of statistics.

    Attributes:
        percentiles: The percentiles.
        bins: The number of bins of the histogram.
        limits: The values between which the bins are; ``None`` for the least and the greatest value.
        is_categorical: Whether the histogram has the count of each value.
        weights: The weights of cells.
    """

    percentiles: tuple[int, ...] = (2, 98)
    bins: int = 10
    limits: tuple[float, float] | None = None
    is_categorical: bool = False
    weights: Weights = "coverage"


@dataclass(frozen=True, eq=False)
class Zone:
    """The rows and columns of an array that polygons touch.

    Attributes:
        place: The place of the array.
        region: The polygons in the reference system of the array.
        rows: The rows.
        columns: The columns.
    """

    place: Place
    region: Region
    rows: Indices
    columns: Indices

    @classmethod
    def of(cls, place: Place, region: Region, crs: str) -> Zone:
        """Return the zone of polygons.

        Args:
            place: The place of an array.
            region: The polygons.
            crs: Their reference system, in which edges are straight.

        Raises:
            BadQuery: If the reference system of the array does not contain the polygons, or they are wider than the globe.
            TooMuch: If the polygons have too many edges.
        """
        for axis in (place.x, place.y):
            if len(axis) == 1:
                raise SelectionError(
                    "statistics of polygons need an array with at least two rows and columns", shape=(1,)
                )
        if crs != place.crs:
            rings = [
                np.stack(transformed(ring[:, 0], ring[:, 1], crs, place.crs), 1)
                for ring in region.divided(_PARTS).rings
            ]
            if place.x.is_longitude and not is_separable(crs, place.crs):
                rings = _unwrapped(rings, region)
            region = Region.of(rings)
            if not np.isfinite([region.west, region.south, region.east, region.north]).all():
                raise BadQuery(f"the polygons are not within the reference system {place.crs[:60]} of the array")
        if place.x.is_longitude and any(np.ptp(ring[:, 0]) > CIRCLE for ring in region.rings):
            raise BadQuery("the polygons are wider than the globe")
        rows = _touched(place.y, region.south, region.north, 0.0)
        columns = [_touched(place.x, region.west, region.east, turn) for turn in _turns(place.x, region)]
        return cls(place, region, rows, np.unique(np.concatenate([*columns, np.zeros(0, np.intp)])))

    def weights(self, kind: Weights) -> Floats:
        """Return the weight of each cell, of shape ``(len(rows), len(columns))``; 0 outside of the polygons.

        Raises:
            BadQuery: If the polygons overlap, or cross themselves.
            TooMuch: If they cross too many cells.
        """
        total: Floats = np.zeros((len(self.rows), len(self.columns)))
        for turn in _turns(self.place.x, self.region):
            columns = _touched(self.place.x, self.region.west, self.region.east, turn)
            if len(columns) and len(self.rows):
                share = self.region.coverage(_edges(self.place.x, columns) + turn, _edges(self.place.y, self.rows))
                total[:, np.searchsorted(self.columns, columns)] += _in_array(share, self.place)
        if total.max(initial=0.0) > 1 + OVERLAP:
            raise BadQuery("the polygons overlap around the globe, so that it is unclear what they contain")
        return total if kind == "coverage" or not total.size else total * self._areas()

    def _areas(self) -> Floats:
        """Return the areas of the cells on a sphere in square metres."""
        (south, north), (west, east) = (
            [places.edges[cells + end] for end in (0, 1)]
            for places, cells in ((self.place.y, self.rows), (self.place.x, self.columns))
        )
        if is_separable(self.place.crs, CRS84):
            south, north = (converted(values, "y", self.place.crs, CRS84) for values in (south, north))
            west, east = (converted(values, "x", self.place.crs, CRS84) for values in (west, east))
            heights = np.sin(np.radians(north)) - np.sin(np.radians(south))
            return np.abs(np.outer(heights, np.radians(east - west))) * _RADIUS**2
        count = max(_MOST_CORNERS // len(west), 1)
        parts = [slice(start, start + count) for start in range(0, len(south), count)]
        return np.concatenate([self._areas_in_space(south[part], north[part], west, east) for part in parts])

    def _areas_in_space(self, south: Floats, north: Floats, west: Floats, east: Floats) -> Floats:
        """Return the areas of rows of cells, from corners in three dimensions, because a cell may contain a pole."""
        corners = []
        for y, x in ((south, west), (south, east), (north, east), (north, west)):
            lon, lat = np.radians(transformed(*np.meshgrid(x, y), self.place.crs, CRS84))
            corners.append(np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1))
        diagonals = corners[2] - corners[0], corners[3] - corners[1]
        areas: Floats = np.linalg.norm(np.cross(*diagonals), axis=-1) / 2 * _RADIUS**2
        return areas


def _unwrapped(rings: Sequence[Floats], source: Region) -> list[Floats]:
    """Return transformed rings with longitudes that do not jump at the antimeridian.

    Args:
        rings: The rings. They may end in jumps of 360 degrees.
        source: The polygons before the transformation, whose shells turn left, and are followed by their holes.

    Raises:
        BadQuery: If one of them contains a pole.
    """
    found, middle = list[Floats](), 0.0
    for ring, before in zip(rings, source.rings, strict=True):
        longitudes = np.unwrap(ring[:, 0], period=CIRCLE)
        if abs(longitudes[0] - longitudes[-1]) > CIRCLE / 2:
            raise BadQuery("the polygons contain a pole; request parts of them on each side of it")
        own = (longitudes.min() + longitudes.max()) / 2
        if turns_left(before):
            middle = own
        else:  # a hole lies in its shell
            longitudes += np.round((middle - own) / CIRCLE) * CIRCLE
        found.append(np.stack([longitudes, ring[:, 1]], 1))
    return found


def _turns(places: AxisPlaces, region: Region) -> list[float]:
    """Return by how many degrees the cells must move to lie in the polygons, if they are longitudes."""
    if not places.is_longitude:
        return [0.0]
    least, greatest = places.bounds
    first, last = math.floor((region.west - greatest) / CIRCLE), math.ceil((region.east - least) / CIRCLE)
    return [turn * CIRCLE for turn in range(first, last + 1)]


def _touched(places: AxisPlaces, low: float, high: float, turn: float) -> Indices:
    """Return the cells that overlap an interval, after they have moved."""
    begin, end = np.sort(np.stack([places.edges[:-1], places.edges[1:]]), axis=0) + turn
    return np.flatnonzero((begin < high) & (end > low))


def _edges(places: AxisPlaces, cells: Indices) -> Floats:
    """Return the edges of adjacent cells in increasing order."""
    found = places.edges[int(cells[0]) : int(cells[-1]) + 2]
    return found if places.is_ascending else found[::-1]


def _in_array(share: Floats, place: Place) -> Floats:
    """Return values of increasing coordinates in the direction of the array."""
    return share[:: 1 if place.y.is_ascending else -1, :: 1 if place.x.is_ascending else -1]


# ------------------------------------------------------------------ statistics


def band_statistics(values: npt.NDArray[Any], weights: Floats, options: StatisticsOptions) -> dict[str, Any]:
    """Return statistics by the names of rio-tiler.

    Args:
        values: Real numbers. Masked ones, NaN and infinities are missing.
        weights: Their weights. Cells without weight do not count.
        options: Which statistics.
    """
    has_weight = weights > 0
    valid = has_weight & ~np.ma.getmaskarray(values) & np.isfinite(np.ma.getdata(values))
    numbers, share = np.ma.getdata(values)[valid], weights[valid]
    numbers = numbers.astype(np.uint8) if numbers.dtype.kind == "b" else numbers
    ends: Sequence[float | None] = [None] * len(options.percentiles)
    cells, count = int(has_weight.sum()), float(share.sum())
    facts: dict[str, Any] = dict.fromkeys(("min", "max", "mean"))
    facts |= {"count": count, "sum": 0.0, **dict.fromkeys(("std", "median", "majority", "minority")), "unique": 0}
    facts["histogram"] = [[], []]
    if len(numbers):
        exact = numbers.astype(np.float64)
        unique, counts = np.unique(numbers, return_counts=True)
        mean = float((exact * share).sum() / count)
        *ends, median = _quantiles(exact, share, [*(item / 100 for item in options.percentiles), 0.5])
        facts |= {
            "min": unique[0].item(),
            "max": unique[-1].item(),
            "mean": mean,
            "sum": float((exact * share).sum()),
            "std": math.sqrt(float(((exact - mean) ** 2 * share).sum() / count)),
            "median": median,
            "majority": unique[counts.argmax()].item(),
            "minority": unique[counts.argmin()].item(),
            "unique": len(unique),
            "histogram": [item.tolist() for item in _histogram(exact, unique, counts, options)],
        }
    facts |= {"valid_percent": round(100 * len(numbers) / cells, 2) if cells else 0.0}
    facts |= {"masked_pixels": cells - len(numbers), "valid_pixels": len(numbers)}
    return facts | {f"percentile_{item}": value for item, value in zip(options.percentiles, ends, strict=True)}


def _histogram(
    values: Floats, unique: npt.NDArray[Any], counts: npt.NDArray[Any], options: StatisticsOptions
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if options.is_categorical:
        return counts, unique
    try:
        return np.histogram(values, options.bins, options.limits)
    except ValueError as error:  # the values are too close to each other for so many bins
        raise BadQuery(f"the histogram cannot have {options.bins} bins: {error}") from None


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    """Return the least values below which, with them, there are these shares of the weight."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    places = np.minimum(np.searchsorted(below, np.array(shares) * below[-1]), len(order) - 1)
    found: list[float] = values[order[places]].tolist()
    return found
