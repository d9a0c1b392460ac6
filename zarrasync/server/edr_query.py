"""Parameters of OGC API EDR: geometries, boxes, times, heights, and parameters in the bodies of requests. No IO."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from zarrasync.metadata.conventions.cf_labels import Query
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
_MOST_HEIGHTS = 10_000
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
        rings: The closed rings of the polygons, of shape ``(n, 2)``, also of holes; empty for all of the box.
    """

    west: float
    south: float
    east: float
    north: float
    rings: tuple[Floats, ...] = ()

    def contains(self, x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
        """Return which cells have their centre in the polygons or on their boundary, of shape ``(len(y), len(x))``."""
        inside = np.zeros((len(y), len(x)), np.bool_)
        begin = np.concatenate([ring[:-1] for ring in self.rings])
        end = np.concatenate([ring[1:] for ring in self.rings])
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


def parse_coords(text: str, kinds: Sequence[str]) -> Points | Region:
    """Parse a geometry in well-known text.

    Args:
        text: The geometry.
        kinds: The allowed kinds, such as ``["POINT", "MULTIPOINT"]``.

    Raises:
        BadQuery: If it is not one of these geometries.
        TooMuch: If it has too many positions.
    """
    match = _WKT.fullmatch(text)
    kind = match["kind"].upper() if match is not None else ""
    if match is None or kind not in kinds:
        raise _wrong(text, kinds)
    lists: list[str] = _INNERMOST.findall(match["body"])
    if not _SHAPES[kind].fullmatch(re.sub(r"\s", "", _INNERMOST.sub("@", match["body"]))):
        raise _wrong(text, kinds)
    items = [_positions(item, (match["more"] or "").upper(), text, kinds) for item in lists]
    if sum(map(len, items)) > _MOST_POINTS:
        raise TooMuch(f"coords has more than {_MOST_POINTS:,} positions; request parts of them")
    if kind.endswith("POINT"):
        if (kind == "POINT" and len(items[0]) != 1) or len({item.shape[1] for item in items}) != 1:
            raise _wrong(text, kinds)
        positions = np.concatenate(items)
        heights = positions[:, 2] if positions.shape[1] == 3 else None
        return Points(positions[:, 0], positions[:, 1], heights, kind == "POINT")
    rings = tuple(item[:, :2] for item in items)
    for ring in rings:
        if len(ring) < 4 or (ring[0] != ring[-1]).any():
            raise BadQuery(
                "each ring of a polygon in coords needs at least four positions, and ends with the first one"
            )
    every = np.concatenate(rings)
    (west, south), (east, north) = every.min(0).tolist(), every.max(0).tolist()
    return Region(west, south, east, north, rings)


def _positions(text: str, more: str, whole: str, kinds: Sequence[str]) -> Floats:
    try:
        positions = np.array([item.split() for item in text.split(",")], np.float64)
    except ValueError:  # no numbers, or lists of different lengths
        raise _wrong(whole, kinds) from None
    wanted = {"": (2, 3), "Z": (3,), "M": (3,), "ZM": (4,)}[more]
    if positions.ndim != 2 or positions.shape[1] not in wanted or not np.isfinite(positions).all():
        raise _wrong(whole, kinds)
    return positions[:, : 2 if more == "M" else 3]


def _wrong(text: str, kinds: Sequence[str]) -> BadQuery:
    example = "POLYGON((5 45,10 45,10 48,5 48,5 45))" if kinds[0] == "POLYGON" else "POINT(8.5 47.4)"
    found = repr(text[:_MOST_SHOWN]) if text else "nothing"
    return BadQuery(f"coords must be a {' or '.join(kinds)} in well-known text, such as {example}; found {found}")


def parse_box(text: str) -> tuple[Region, Query | None]:
    """Parse ``west,south,east,north``, or the same with the smallest and the largest height, each after the y.

    Returns:
        The box, and the heights if there are any.

    Raises:
        BadQuery: If it is not a box.
    """
    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (4, 6) or not np.isfinite(numbers).all():
        raise BadQuery(f"bbox must be west,south,east,north, such as 5,45,10,48; found {text[:_MOST_SHOWN]!r}")
    half = len(numbers) // 2
    (west, south), (east, north) = numbers[:2], numbers[half : half + 2]
    if south > north:
        raise BadQuery(f"the south of bbox, {south:g}, must not exceed its north, {north:g}")
    heights = Query(slice(numbers[2], numbers[5])) if half == 3 else None
    return Region(west, south, east, north), heights


# ------------------------------------------------------------------ times and heights


def parse_datetime(text: str) -> Query | None:
    """Parse an instant or an interval of ISO 8601, whose ends may be open: ``2024-03-01/..``. ``None`` for all times."""
    first, slash, last = (part.strip() for part in text.partition("/"))
    if not slash:
        return Query(first) if first not in ("", "..") else None
    start, stop = (None if part in ("", "..") else part for part in (first, last))
    return None if start is stop is None else Query(slice(start, stop))


def parse_heights(text: str) -> Query | None:
    """Parse heights: one, several with commas, an interval ``100/500``, or ``R5/100/50`` for five ones from 100 on.

    Raises:
        BadQuery: If they are not numbers.
        TooMuch: If there are too many.
    """
    if text in ("", ".."):
        return None
    parts = text.split("/")
    try:
        if len(parts) == 3 and parts[0][:1] == "R":
            count = int(parts[0][1:])
            if count > _MOST_HEIGHTS:
                raise TooMuch(f"z has {count:,} heights, more than the limit of {_MOST_HEIGHTS:,}")
            return Query(float(parts[1]) + float(parts[2]) * np.arange(count))
        if len(parts) == 2:
            low, high = (None if part in ("", "..") else float(part) for part in parts)
            is_reversed = low is not None and high is not None and low > high
            return Query(slice(high, low) if is_reversed else slice(low, high))
        heights = np.array([float(item) for item in text.split(",")])
    except ValueError:
        raise BadQuery(f"z must be heights such as 850, 1000,850 or 100/500, found {text[:_MOST_SHOWN]!r}") from None
    return Query(heights if len(heights) > 1 else float(heights[0]))


# ------------------------------------------------------------------ bodies


def parse_body(body: bytes, content_type: str) -> tuple[tuple[str, str], ...]:
    """Parse the parameters in the body of a request.

    The body is a form, or a JSON object whose ``coords`` may be a geometry of GeoJSON.

    Raises:
        BadQuery: If it is neither.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/x-www-form-urlencoded":
            return tuple(parse_qsl(body.decode("ascii"), keep_blank_values=True))
        values = json.loads(body) if kind == "application/json" else None
    except (ValueError, RecursionError) as error:  # also of the encoding
        raise BadQuery(f"the body is not valid: {error}") from None
    if not isinstance(values, dict):
        raise BadQuery("a body is a form (application/x-www-form-urlencoded), or a JSON object of parameters")
    return tuple((name, _as_text(name, value)) for name, value in values.items())


def _as_text(name: str, value: Any) -> str:
    if name == "coords" and isinstance(value, Mapping):
        return _as_wkt(value)
    if isinstance(value, list) and name != "coords":
        return ",".join(_as_text(name, item) for item in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadQuery(f"{name[:_MOST_SHOWN]} must be a string, a number or a list of them")
    return str(value)


def _as_wkt(geometry: Mapping[str, Any]) -> str:
    depths = {"Point": 0, "MultiPoint": 1, "Polygon": 2, "MultiPolygon": 3}
    kind = geometry.get("type")
    if kind not in depths:
        raise BadQuery(f"coords must be well-known text, or a geometry of GeoJSON: {', '.join(depths)}")
    try:
        return f"{kind}({_nested(geometry.get('coordinates'), depths[kind])})"
    except (TypeError, ValueError):
        raise BadQuery(f"the coordinates of the {kind} in coords are not valid GeoJSON") from None


def _nested(items: Any, depth: int) -> str:
    if not isinstance(items, list):
        raise TypeError("not a list")
    if not depth:
        return " ".join(repr(float(item)) for item in items)
    return ",".join(_nested(item, 0) if depth == 1 else f"({_nested(item, depth - 1)})" for item in items)
