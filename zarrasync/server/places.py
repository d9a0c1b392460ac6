"""Places of elements along an axis, by the coordinates of their centres: for tiles, pictures, points and boxes. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions.meaning import CIRCLE

Bounds: TypeAlias = tuple[float, float, float, float]
"""The least x, the least y, the greatest x and the greatest y."""
Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]
Index: TypeAlias = slice | Indices

_SLACK = 1e-3
"""How far a coordinate may be beyond the ends of an axis, and elements around the globe differ from 360 degrees, because of
rounding, as a share of an element."""
_ROUNDING = 1e-9
"""How much a coordinate may differ because of rounding: as a share of its magnitude at the ends of an axis, in its own unit at
the ends of an interval, and as a share of a turn."""
_MOST_TURNS = 10_000
"""The turns around the globe beyond which the rounding of longitudes is not negligible."""


@dataclass(frozen=True, eq=False)
class AxisPlaces:
    """The places of elements along an axis.

    Attributes:
        edges: The coordinates of the edges of the elements, which increase or decrease. An axis with one element has no
            extent.
        is_longitude: Whether coordinates that differ by 360 are the same place.
        is_cyclic: Whether the elements cover all longitudes.
    """

    edges: Floats
    is_longitude: bool = False
    is_cyclic: bool = False

    @classmethod
    def of(
        cls, centres: npt.NDArray[Any], name: str, *, is_longitude: bool = False, is_latitude: bool = False
    ) -> AxisPlaces:
        """Return the places of elements.

        Args:
            centres: The coordinates of the centres.
            name: The name of the axis, for messages.
            is_longitude: Whether they are longitudes in degrees.
            is_latitude: Whether they are latitudes in degrees, so that edges are at most at the poles.

        Raises:
            SelectionError: If they neither increase nor decrease, or are not finite.
        """
        middles = centres.astype(np.float64)
        steps = np.diff(middles)
        if not len(middles) or not np.isfinite(middles).all() or not (np.all(steps > 0) or np.all(steps < 0)):
            raise SelectionError(
                f"the coordinates of {name!r} must be finite, and increase or decrease", shape=centres.shape
            )
        around = np.concatenate([steps[:1], steps, steps[-1:]]) if len(steps) else np.zeros(2)
        edges = np.concatenate([middles[:1] - around[:1] / 2, middles + around[1:] / 2])
        if is_latitude:
            edges = np.clip(edges, -90.0, 90.0)
        is_cyclic = is_longitude and abs(abs(edges[-1] - edges[0]) - CIRCLE) <= abs(around).max() * _SLACK
        return cls(edges, is_longitude, bool(is_cyclic))

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def is_ascending(self) -> bool:
        """Whether the coordinates increase."""
        return bool(self.edges[-1] >= self.edges[0])

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest coordinate that the elements cover."""
        least, greatest = sorted((float(self.edges[0]), float(self.edges[-1])))
        return least, greatest

    def positions(self, coordinates: Floats) -> Floats:
        """Return the positions of coordinates in units of elements: 2.5 is the centre of the element 2.

        Positions outside of the axis are NaN. On a cyclic axis, positions go on beyond its ends, so that they increase or
        decrease with the coordinates.

        Raises:
            SelectionError: If a longitude is too far from 0 for its place to be known.
        """
        least, greatest = self.bounds
        slack = max(_SLACK * (greatest - least) / len(self), _ROUNDING * max(abs(least), abs(greatest), 1.0))
        turns: Floats = np.zeros(np.shape(coordinates))
        if self.is_longitude:
            turns = np.floor((coordinates - least + slack) / CIRCLE)
            if not (abs(turns[~np.isnan(turns)]) <= _MOST_TURNS).all():
                raise SelectionError(
                    f"a longitude is more than {_MOST_TURNS:,} turns around the globe; use those from -180 to 360",
                    shape=(),
                )
            coordinates = coordinates - turns * CIRCLE
        numbers = np.arange(len(self.edges), dtype=np.float64)
        order = slice(None, None, 1 if self.is_ascending else -1)
        found = np.interp(coordinates, self.edges[order], numbers[order])
        if self.is_cyclic:
            return found + turns * (len(self) if self.is_ascending else -len(self))
        return np.where((coordinates >= least - slack) & (coordinates <= greatest + slack), found, np.nan)

    def cells(self, coordinates: Floats) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """Return the elements that contain coordinates, and which coordinates are outside of all elements.

        On the edge of two elements, the one with the greater coordinate is chosen, as by pandas for equal distances.
        """
        positions = self.positions(coordinates)
        outside = np.isnan(positions)
        usable = np.where(outside, 0.0, positions)
        numbers = (np.floor(usable) if self.is_ascending else np.ceil(usable) - 1).astype(np.intp)
        return (numbers % len(self) if self.is_cyclic else np.clip(numbers, 0, len(self) - 1)), outside

    def between(self, values: npt.NDArray[Any], low: float, high: float) -> tuple[Index, npt.NDArray[Any]]:
        """Return the elements with centres in an interval, and the centres in the direction of the axis.

        Longitudes have the range of the interval, which may cross the antimeridian.

        Args:
            values: The coordinates of all centres.
            low: The least coordinate.
            high: The greatest coordinate.
        """
        turns: Floats = np.zeros(len(values))
        if self.is_longitude:  # they move around the globe to lie in the 360 degrees from the least one on
            turns = -np.floor((values.astype(np.float64) - low) / CIRCLE + _ROUNDING)
        shown = values if not turns.any() else (values + turns * CIRCLE).astype(_float_type(values))
        inside = np.flatnonzero((low - _ROUNDING <= shown) & (shown <= high + _ROUNDING))
        if len(np.unique(turns[inside])) > 1:
            inside = inside[np.argsort(shown[inside], kind="stable")]
            inside = inside if self.is_ascending else inside[::-1]
        return as_slice(inside), shown[inside]

    def near(self, values: npt.NDArray[Any], coordinates: Floats) -> npt.NDArray[Any]:
        """Return values, of which longitudes are less than half a circle from coordinates."""
        turns = np.round((coordinates - values.astype(np.float64)) / CIRCLE) if self.is_longitude else np.zeros(1)
        return (values + turns * CIRCLE).astype(_float_type(values)) if turns.any() else values

    def scaled(self, size: int) -> AxisPlaces:
        """Return the places of another number of elements of equal extents in positions, such as of a coarser level."""
        if size == len(self):
            return self
        numbers = np.linspace(0, len(self), size + 1)
        edges = np.interp(numbers, np.arange(len(self) + 1.0), self.edges)
        return AxisPlaces(edges, self.is_longitude, self.is_cyclic)


def _float_type(values: npt.NDArray[Any]) -> np.dtype[Any]:
    return values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)


def as_slice(elements: Indices) -> Index:
    """Return evenly spaced indices as a slice, which is faster to read."""
    if len(elements) < 2:
        start = int(elements[0]) if len(elements) else 0
        return slice(start, start + len(elements))
    step = int(elements[1] - elements[0])
    if not step or (np.diff(elements) != step).any():
        return elements
    stop = int(elements[-1]) + (1 if step > 0 else -1)
    return slice(int(elements[0]), stop if stop >= 0 else None, step)
