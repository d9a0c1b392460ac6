"""The places of arrays on the earth, and the pixels of pictures in units of their elements. No IO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zarrasync.metadata.conventions.meaning import CIRCLE
from zarrasync.server.limits import TooMuch
from zarrasync.server.map_grid import PixelGrid, Resampling, Window
from zarrasync.server.places import AxisPlaces, Bounds, Floats
from zarrasync.server.projections import CRS84, bounds_in, converted, is_separable, transformed_grid

_MOST_REPROJECTED = 1 << 20
"""The most pixels of a picture in another reference system than the array. Each needs 200 bytes until it is drawn."""
_SAMPLED = 32
"""Rows and columns of pixels from which the level of a pyramid is chosen, at least."""
_TOLERANCE = 1e-4
"""How far a pixel may be from its exact position in an array of another reference system, in elements."""


@dataclass(frozen=True, eq=False)
class Place:
    """The place of an array on the earth.

    Attributes:
        crs: The coordinate reference system of its axes: a code, or well-known text.
        x: The places of its columns.
        y: The places of its rows.
    """

    crs: str
    x: AxisPlaces
    y: AxisPlaces

    @cached_property
    def bounds(self) -> Bounds:
        """The covered longitudes and latitudes. Longitudes are from -180 to 180 if all are covered."""
        (west, east), (south, north) = self.x.bounds, self.y.bounds
        west, south, east, north = bounds_in((west, south, east, north), self.crs, CRS84)
        if self.x.is_cyclic or east - west >= 360:
            return -180.0, south, 180.0, north
        turns = 360.0 * math.floor((west + 180) / 360)  # plain numbers, which documents spell
        return west - turns, south, east - turns, north


@dataclass(frozen=True, eq=False)
class SeparablePixels:
    """Pixels in the rows and columns of an array.

    Attributes:
        place: The place of the array.
        centres: The coordinates of the centres of the pixels, along rows and columns.
        edges: The coordinates of their edges.
    """

    place: Place
    centres: tuple[Floats, Floats]
    edges: tuple[Floats, Floats]

    @classmethod
    def of(cls, place: Place, grid: PixelGrid) -> SeparablePixels:
        """Return the pixels of a picture."""

        def coordinates(*, edges: bool) -> tuple[Floats, Floats]:
            rows, columns = grid.rows(edges=edges), grid.columns(edges=edges)
            return converted(rows, "y", grid.crs, place.crs), converted(columns, "x", grid.crs, place.crs)

        return cls(place, coordinates(edges=False), coordinates(edges=True))

    @property
    def steps(self) -> list[Floats]:
        """The elements of the finest level that pixels cover along each axis, of those inside of the array."""
        axes = zip((self.place.y, self.place.x), self.edges, strict=True)
        return [_known(np.abs(np.diff(places.positions(pixels)))) for places, pixels in axes]

    def windows(self, sizes: Sequence[int], method: Resampling) -> list[Window]:
        """Return the elements of a level with these sizes that pixels show, along each axis."""
        axes = [places.scaled(size) for places, size in zip((self.place.y, self.place.x), sizes, strict=True)]
        return [Window.of(*item, method) for item in zip(axes, self.centres, self.edges, strict=True)]


@dataclass(frozen=True, eq=False)
class ReprojectedPixels:
    """Pixels that are not in the rows and columns of an array, because its reference system is another one.

    Attributes:
        place: The place of the array.
        coordinates: The coordinates of the centres of the pixels along each axis, and of those around the picture.
        positions: The positions of the centres of the pixels along each axis; NaN outside of the array.
    """

    place: Place
    coordinates: tuple[Floats, Floats]
    positions: tuple[Floats, Floats]

    @classmethod
    def of(cls, place: Place, grid: PixelGrid) -> ReprojectedPixels:
        """Return the pixels of a picture."""
        if grid.width * grid.height > _MOST_REPROJECTED:
            raise TooMuch(
                f"the picture has {grid.width * grid.height:,} pixels in another reference system than the array, more than "
                f"{_MOST_REPROJECTED:,}; request parts of it"
            )
        framed = grid.framed()
        tolerances = [_TOLERANCE * float(abs(np.diff(places.edges)).min()) for places in (place.x, place.y)]
        x, y = transformed_grid(framed.columns(), framed.rows(), grid.crs, place.crs, (tolerances[0], tolerances[1]))
        inner = (slice(1, -1), slice(1, -1))
        down, across = (places.positions(values[inner]) for places, values in ((place.y, y), (place.x, x)))
        down[np.isnan(across)] = across[np.isnan(down)] = np.nan
        return cls(place, (y, x), (down, across))

    @property
    def steps(self) -> list[Floats]:
        """The elements of the finest level that pixels cover along each axis, of a sample of those inside of the array."""
        every = max(min(self.positions[0].shape) // _SAMPLED, 1)
        return [_known(extents) for extents in self._extents(every)]

    def _extents(self, every: int = 1) -> list[Floats]:
        """Return how many elements of the finest level pixels cover along each axis; NaN outside of the array.

        Args:
            every: Only of each so many rows and columns of pixels.
        """
        found = []
        for places, values, positions in zip(
            (self.place.y, self.place.x), self.coordinates, self.positions, strict=True
        ):
            middle, left, right, above, below = (
                item[::every, ::every]
                for item in (positions, values[1:-1, :-2], values[1:-1, 2:], values[:-2, 1:-1], values[2:, 1:-1])
            )
            steps = (right - left) / 2, (below - above) / 2
            if places.is_longitude:
                steps = _shortest(steps[0]), _shortest(steps[1])
            numbers = np.clip(np.nan_to_num(middle), 0, len(places) - 1).astype(np.intp)
            covered = np.hypot(*steps) / np.abs(np.diff(places.edges))[numbers]
            found.append(np.where(np.isnan(middle), np.nan, np.minimum(np.nan_to_num(covered), len(places))))
        return found

    def windows(self, sizes: Sequence[int], method: Resampling) -> list[Window]:
        """Return the elements of a level with these sizes that pixels show, along each axis."""
        extents = self._extents() if method == "average" else [np.zeros(1), np.zeros(1)]
        windows = []
        for places, size, positions, extent in zip(
            (self.place.y, self.place.x), sizes, self.positions, extents, strict=True
        ):
            scale = size / len(places)
            middle = positions if scale == 1 else positions * scale
            ends = (
                (middle - extent * (scale / 2), middle + extent * (scale / 2))
                if method == "average"
                else (middle, middle)
            )
            windows.append(Window.at(places.scaled(size), middle, ends, method))
        return windows


def pixels_of(place: Place, grid: PixelGrid) -> SeparablePixels | ReprojectedPixels:
    """Return the pixels of a picture in units of the elements of an array."""
    return (SeparablePixels if is_separable(grid.crs, place.crs) else ReprojectedPixels).of(place, grid)


def _shortest(steps: Floats) -> Floats:
    """Return differences of longitudes the shorter way round."""
    return (steps + CIRCLE / 2) % CIRCLE - CIRCLE / 2


def _known(steps: Floats) -> Floats:
    found = steps[np.isfinite(steps)]
    return found if found.size else np.ones(1)
