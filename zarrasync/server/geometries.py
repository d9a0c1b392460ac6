"""Geometries of requests: points, and polygons with the cells that they cover; from well-known text and GeoJSON. No IO."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display.values import strict
from zarrasync.server.limits import BadQuery, TooMuch

Floats = npt.NDArray[np.float64]

_WKT = re.compile(r"\s*(?P<kind>[A-Za-z]+?)\s*(?P<more>ZM|Z|M)?\s*(?P<body>\(.*\))\s*", re.DOTALL | re.IGNORECASE)
_INNERMOST = re.compile(r"\(([^()]*)\)")
_SHAPES = {
    "POINT": re.compile(r"@"),
    "MULTIPOINT": re.compile(r"@|\(@(,@)*\)"),
    "POLYGON": re.compile(r"\(@(,@)*\)"),
    "MULTIPOLYGON": re.compile(r"\(\(@(,@)*\)(,\(@(,@)*\))*\)"),
}
"""The structure of each kind of geometry, with ``@`` for a list of positions in parentheses."""
_MOST_POINTS = 100_000
_MOST_CROSSINGS = 4_000_000
"""The most edges of cells that polygons cross."""
OVERLAP = 1e-6
"""How much of a cell may be in polygons more than once, because of rounding."""
_ROUNDING = 1e-9
"""The share of a cell below which it is outside of polygons, as rounding makes it."""
_MOST_SHOWN = 60


@dataclass(frozen=True)
class Points:
    """One or several points.

    Attributes:
        x: Their eastings or longitudes.
        y: Their northings or latitudes.
        z: Their heights; ``None`` without any.
        is_single: Whether the geometry is a ``POINT``.
    """

    x: Floats
    y: Floats
    z: Floats | None = None
    is_single: bool = True


@dataclass(frozen=True)
class Region:
    """A box, and polygons in it.

    Attributes:
        west: The smallest x; larger than ``east`` if the box crosses the antimeridian.
        south: The smallest y.
        east: The largest x.
        north: The largest y.
        rings: The closed rings of the polygons, of shape ``(n, 2)``; empty for all of the box. Shells turn left, holes
            right.
    """

    west: float
    south: float
    east: float
    north: float
    rings: tuple[Floats, ...] = ()

    def coverage(self, x: Floats, y: Floats) -> Floats:
        """Return the share of each cell that lies in the polygons, of shape ``(len(y) - 1, len(x) - 1)``.

        Args:
            x: The edges of the columns, which increase.
            y: The edges of the rows, which increase.

        Raises:
            BadQuery: If the polygons overlap or cross themselves. Overlaps that are small within a cell may remain unnoticed.
            TooMuch: If their edges cross the edges of too many cells.
        """
        begin, end = self._cut(x, y)
        middle, climb = (begin + end) / 2, begin[:, 1] - end[:, 1]  # shells turn left, so they go down in the west
        row, column = (np.searchsorted(lines, middle[:, axis], "right") - 1 for axis, lines in ((1, y), (0, x)))
        is_beside = (row >= 0) & (row < len(y) - 1)  # others have no cells to the east of them
        row, column = row[is_beside], np.clip(column[is_beside], 0, len(x) - 2)
        climb, east = climb[is_beside], x[column + 1] - np.clip(middle[is_beside, 0], x[0], x[-1])
        shape, cells = (len(y) - 1, len(x) - 1), row * (len(x) - 1) + column
        share: Floats
        heights: Floats
        share, heights = (  # type: ignore[assignment]  # they are floats, as there are weights
            np.bincount(cells, weights, math.prod(shape)).reshape(shape) for weights in (climb * east, climb)
        )
        share /= np.diff(x)  # in place, as there may be many cells
        share -= heights
        share += np.cumsum(heights, axis=1, out=heights)
        share /= np.diff(y)[:, None]
        if share.size and (share.min() < -OVERLAP or share.max() > 1 + OVERLAP):
            raise BadQuery("the polygons overlap or cross themselves, so that it is unclear what they contain")
        share[share < _ROUNDING], share[share > 1 - _ROUNDING] = 0.0, 1.0
        return share

    def _cut(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return the ends of the parts into which the lines of a grid cut the edges."""
        begin, end = self._edges
        number = np.arange(len(begin))
        owners, shares = [number, number], [np.zeros(len(begin)), np.ones(len(begin))]
        for axis, lines in enumerate((x, y)):
            low, high = np.minimum(begin, end)[:, axis], np.maximum(begin, end)[:, axis]
            first, stop = np.searchsorted(lines, low, "right"), np.searchsorted(lines, high, "left")
            counts = np.maximum(stop - first, 0)
            if counts.sum() > _MOST_CROSSINGS:
                raise TooMuch(
                    f"the polygons cross the edges of more than {_MOST_CROSSINGS:,} cells; request parts of them"
                )
            owner = np.repeat(number, counts)
            crossed = np.arange(len(owner)) + np.repeat(first - np.cumsum(counts) + counts, counts)
            owners.append(owner)
            shares.append((lines[crossed] - begin[owner, axis]) / (end - begin)[owner, axis])
        owner, share = np.concatenate(owners), np.concatenate(shares)
        order = np.lexsort((share, owner))
        places = begin[owner] + share[:, None] * (end - begin)[owner]
        is_part = np.diff(owner[order]) == 0
        return places[order][:-1][is_part], places[order][1:][is_part]

    @property
    def _edges(self) -> tuple[Floats, Floats]:
        """The first and the last positions of the edges."""
        return np.concatenate([ring[:-1] for ring in self.rings]), np.concatenate([ring[1:] for ring in self.rings])

    def divided(self, parts: int) -> Region:
        """Return the same polygons with further positions: each edge is shorter than a share of the extent.

        Args:
            parts: The number of edges along the extent.

        Raises:
            TooMuch: If there are too many positions.
        """
        extent = math.hypot(self.east - self.west, self.north - self.south) or 1.0
        rings = []
        for ring in self.rings:
            lengths = np.hypot(*np.diff(ring, axis=0).T)
            counts = np.maximum(np.ceil(lengths / extent * parts), 1).astype(np.intp)
            if counts.sum() > _MOST_CROSSINGS:
                raise TooMuch(
                    f"the polygons have edges that are more than {_MOST_CROSSINGS // parts:,} times their extent"
                )
            owner = np.repeat(np.arange(len(counts)), counts)
            share = (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)) / counts[owner]
            rings.append(np.concatenate([ring[owner] + share[:, None] * np.diff(ring, axis=0)[owner], ring[-1:]]))
        return Region.of(rings)

    @classmethod
    def of(cls, rings: Sequence[Floats]) -> Region:
        """Return the region of closed rings."""
        every = np.concatenate(rings)
        (west, south), (east, north) = every.min(0).tolist(), every.max(0).tolist()
        return cls(west, south, east, north, tuple(rings))

    def contains(self, x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
        """Return which cells have their centre in the polygons or on their boundary, of shape ``(len(y), len(x))``."""
        inside = np.zeros((len(y), len(x)), np.bool_)
        begin, end = self._edges
        for row, height in enumerate(y):
            crosses = (begin[:, 1] <= height) != (end[:, 1] <= height)
            inside[row] = np.searchsorted(np.sort(_crossings(begin[crosses], end[crosses], height)), x) % 2
            touches = (np.minimum(begin, end)[:, 1] <= height) & (height <= np.maximum(begin, end)[:, 1])
            for first, last in zip(begin[touches], end[touches], strict=True):
                inside[row] |= _on_edge(first, last, x, height)
        return inside


def _crossings(begin: Floats, end: Floats, height: float) -> Floats:
    """Return the x at which edges cross a height."""
    share = (height - begin[:, 1]) / (end[:, 1] - begin[:, 1])
    return np.asarray(begin[:, 0] + share * (end[:, 0] - begin[:, 0]))


def _on_edge(first: Floats, last: Floats, x: Floats, height: float) -> npt.NDArray[np.bool_]:
    """Return which positions of a height lie on an edge that touches it."""
    if first[1] == last[1]:
        return np.asarray((min(first[0], last[0]) <= x) & (x <= max(first[0], last[0])))
    return np.asarray(x == _crossings(first[None], last[None], height)[0])


# ------------------------------------------------------------------ geometries


def parse_coords(text: str, kinds: Sequence[str], name: str = "coords") -> Points | Region:
    """Parse a geometry in well-known text.

    Args:
        text: The geometry.
        kinds: The allowed kinds, such as ``["POINT", "MULTIPOINT"]``.
        name: The parameter with the geometry, for messages.

    Raises:
        BadQuery: If it is not one of these geometries.
        TooMuch: If it has too many positions.
    """
    example = "POLYGON((5 45,10 45,10 48,5 48,5 45))" if kinds[0] == "POLYGON" else "POINT(8.5 47.4)"
    found = repr(text[:_MOST_SHOWN]) if text else "nothing"
    wrong = BadQuery(f"{name} must be a {' or '.join(kinds)} in well-known text, such as {example}; found {found}")
    match = _WKT.fullmatch(text)
    kind = match["kind"].upper() if match is not None else ""
    if match is None or kind not in kinds:
        raise wrong
    structure = re.sub(r"\s", "", _INNERMOST.sub("@", match["body"]))
    if not _SHAPES[kind].fullmatch(structure):
        raise wrong
    try:
        items = [_positions(item, (match["more"] or "").upper()) for item in _INNERMOST.findall(match["body"])]
    except ValueError:
        raise wrong from None
    if sum(map(len, items)) > _MOST_POINTS:
        raise TooMuch(f"{name} has more than {_MOST_POINTS:,} positions; request parts of them")
    if kind.endswith("POINT"):
        if (kind == "POINT" and len(items[0]) != 1) or len({item.shape[1] for item in items}) != 1:
            raise wrong
        positions = np.concatenate(items)
        heights = positions[:, 2] if positions.shape[1] == 3 else None
        return Points(positions[:, 0], positions[:, 1], heights, kind == "POINT")
    rings = tuple(item[:, :2] for item in items)
    for ring in rings:
        if len(ring) < 4 or (ring[0] != ring[-1]).any():
            raise BadQuery(
                f"each ring of a polygon in {name} needs at least four positions, and ends with the first one"
            )
    is_shell = [structure[match.start() - 1] == "(" for match in re.finditer("@", structure)]
    return Region.of(
        [ring if turns_left(ring) == left else ring[::-1] for ring, left in zip(rings, is_shell, strict=True)]
    )


def turns_left(ring: Floats) -> bool:
    """Return whether a closed ring, of shape (points, 2), turns left: whether its area lies to the left of its edges."""
    x, y = (ring - ring[0]).T
    return bool((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0)


def _positions(text: str, more: str) -> Floats:
    """Return positions, of shape (points, 2 or 3).

    Raises:
        ValueError: If they are not numbers, or lists of different lengths.
    """
    if not text.isascii() or "_" in text:  # NumPy accepts 1_000 and digits of other scripts, as parse_number does not
        raise ValueError("not positions")
    positions = np.array([item.split() for item in text.split(",")], np.float64)
    wanted = {"": (2, 3), "Z": (3,), "M": (3,), "ZM": (4,)}[more]
    if positions.ndim != 2 or positions.shape[1] not in wanted or not np.isfinite(positions).all():
        raise ValueError("not positions")
    return positions[:, : 2 if more == "M" else 3]


def as_wkt(geometry: Mapping[str, Any], name: str = "coords") -> str:
    """Return a geometry of GeoJSON in well-known text.

    Raises:
        BadQuery: If it is not a geometry of points or polygons.
    """
    depths = {"Point": 0, "MultiPoint": 1, "Polygon": 2, "MultiPolygon": 3}
    kind = geometry.get("type")
    if kind not in depths:
        raise BadQuery(f"{name} must be well-known text, or a geometry of GeoJSON: {', '.join(depths)}")
    try:
        return f"{kind}({_nested(geometry.get('coordinates'), depths[kind])})"
    except (TypeError, ValueError, OverflowError):
        raise BadQuery(f"the coordinates of the {kind} in {name} are not valid GeoJSON") from None


def _nested(items: Any, depth: int) -> str:
    if not isinstance(items, list):
        raise TypeError("not a list")
    if not depth:
        return " ".join(repr(float(item)) for item in items)
    return ",".join(_nested(item, 0) if depth == 1 else f"({_nested(item, depth - 1)})" for item in items)


def parse_features(body: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Parse a Feature or a FeatureCollection of GeoJSON.

    Returns:
        The document, and its features.

    Raises:
        BadQuery: If it is neither.
    """
    try:
        document = strict(json.loads(body))
    except (ValueError, RecursionError) as error:  # also of the encoding
        raise BadQuery(f"the body is not valid JSON: {error}") from None
    kind = document.get("type") if isinstance(document, dict) else None
    features = document.get("features") if kind == "FeatureCollection" else [document]
    if kind not in ("Feature", "FeatureCollection") or not isinstance(features, list):
        raise BadQuery("the body must be a Feature or a FeatureCollection of GeoJSON")
    if not all(isinstance(item, dict) and item.get("type") == "Feature" for item in features):
        raise BadQuery("the features of the body must be Features of GeoJSON")
    if not all(isinstance(item.get("properties"), dict | None) for item in features):
        raise BadQuery("the properties of a feature must be an object or null")
    return document, features


def region_of(feature: Mapping[str, Any], name: str) -> Region:
    """Return the polygons of a feature.

    Args:
        feature: The feature.
        name: The parameter with the geometry, for messages.

    Raises:
        BadQuery: If its geometry is not a Polygon or a MultiPolygon.
        TooMuch: If it has too many positions.
    """
    geometry = feature.get("geometry")
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise BadQuery(f"{name} must be a Polygon or a MultiPolygon of GeoJSON")
    if not geometry.get("coordinates"):
        raise BadQuery(f"{name} has no coordinates: a {geometry['type']} of GeoJSON needs rings of positions")
    region = parse_coords(as_wkt(geometry, name), ("POLYGON", "MULTIPOLYGON"), name)
    assert isinstance(region, Region)  # of both kinds
    return region
