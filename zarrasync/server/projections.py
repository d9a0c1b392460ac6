"""Coordinate reference systems of maps: longitudes and latitudes, Web Mercator, and all others if pyproj is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from zarrasync.server.limits import BadQuery, Unsupported
from zarrasync.server.places import Bounds, Floats

CRS84 = "OGC:CRS84"
"""Longitudes and latitudes in degrees."""
MERCATOR = "EPSG:3857"
"""The projection of most maps on the web, in metres."""
RADIUS = 6378137.0
"""The radius of the sphere in the projection of maps on the web."""

METRES_PER_DEGREE = np.pi * RADIUS / 180
"""Metres along the equator of that sphere."""

_BUILT_IN = {"EPSG:4326": CRS84, CRS84: CRS84, MERCATOR: MERCATOR, "EPSG:900913": MERCATOR}
_CODE = re.compile(r"[A-Za-z]{2,20}:[A-Za-z0-9_.]{1,20}")
_FILES = re.compile(
    r"\b(?:init|file|model|catalog)="
    r'|grids=(?!@null(?:[\s"]|$))'
    r'|PARAMETERFILE\["[^"]*","(?!@null")'
    r'|"value"\s*:\s*"(?!@null")',
    re.IGNORECASE,
)
"""Parts of a definition that name local files: in notations of PROJ, in well-known text, and in PROJJSON."""
_NODES = 12
"""Points along each axis of a grid that are transformed exactly, if a polynomial suffices for the others."""
_DENSITY = 21
"""The points along each side of an area, whose extent in another system is the extent of these points."""
_METRES = {
    **dict.fromkeys(("m", "metre", "meter", "metres", "meters"), 1.0),
    **dict.fromkeys(("km", "kilometre", "kilometer", "kilometres", "kilometers"), 1000.0),
}
_INSTALL = "reference systems other than EPSG:4326 and EPSG:3857 need pyproj: pip install 'zarrasync[maps]'"


def parse_crs(text: str, name: str) -> str:
    """Return the reference system that a parameter names: ``CRS84``, ``MERCATOR``, or an authority and a code.

    Args:
        text: An authority and a code, such as ``epsg:32632``.
        name: The name of the parameter, for messages.

    Raises:
        BadQuery: If it is not the code of a reference system.
        Unsupported: If pyproj is needed, and not installed.
    """
    if not _CODE.fullmatch(text):
        raise BadQuery(f"{name} must be the code of a reference system, such as epsg:32632; found {text[:40]!r}")
    authority, _, code = text.upper().partition(":")
    try:
        # PROJ takes milliseconds to find that a code is unknown.
        if text.upper() in _BUILT_IN or code in _codes(authority):
            return crs_name(text)
    except Unsupported as error:
        raise Unsupported(f"{name} is {text}; {error}") from None
    except ValueError:
        pass
    raise BadQuery(f"{name} must be the code of a reference system, such as epsg:32632; {text} is unknown")


@lru_cache(maxsize=64)
def _codes(authority: str) -> frozenset[str]:
    """Return the codes of an authority's reference systems.

    Raises:
        Unsupported: If pyproj is not installed.
    """
    _pyproj()
    from pyproj.database import get_codes

    return frozenset(code.upper() for code in get_codes(authority, "CRS", allow_deprecated=True))


@lru_cache(maxsize=256)
def crs_name(text: str) -> str:
    """Return the name of a reference system for ``transformed``.

    Args:
        text: An authority and a code, well-known text, or PROJJSON.

    Raises:
        Unsupported: If pyproj is needed, and not installed.
        ValueError: If it is not a reference system.
    """
    if text.upper() in _BUILT_IN:
        return _BUILT_IN[text.upper()]
    if _FILES.search(text):  # which the author of a store could choose
        raise ValueError("it refers to a local file; store a code or well-known text without grids")
    pyproj = _pyproj()
    try:
        system = pyproj.CRS.from_user_input(text)
    except pyproj.exceptions.ProjError as error:
        raise ValueError(f"{text[:80]!r} is not a reference system: {error}") from None
    if not (system.is_geographic or system.is_projected):
        raise ValueError(f"{text[:80]!r} is not a reference system of places on a map")
    found: str = system.to_string()
    return _BUILT_IN.get(found, found)


def crs_of_grid_mapping(attributes: Mapping[str, Any]) -> str:
    """Return the name, for ``transformed``, of the reference system that the CF attributes of a grid mapping specify.

    Raises:
        Unsupported: If pyproj is not installed.
        ValueError: If they are not attributes of a grid mapping.
    """
    pyproj = _pyproj()
    for name in ("crs_wkt", "spatial_ref"):
        if name in attributes:
            if not isinstance(text := attributes[name], str):
                raise ValueError(f"{name} must be well-known text")
            return crs_name(text)
    try:
        wkt: str = pyproj.CRS.from_cf(dict(attributes)).to_wkt()
    except (pyproj.exceptions.ProjError, KeyError, TypeError) as error:
        raise ValueError(f"{attributes.get('grid_mapping_name')!r} is not a supported grid mapping: {error}") from None
    return crs_name(wkt)


def units_per(unit: str, crs: str) -> float:
    """Return how many units of a reference system coordinates with an own unit have: 1000 for kilometres.

    Raises:
        Unsupported: If they cannot be compared.
    """
    metres, name = (None, "degree") if crs == CRS84 else (1.0, "metre") if crs == MERCATOR else _unit_of(crs)
    plain = unit.lower().replace("_", " ")
    if plain in ("", name.lower()) or (metres is None and plain.startswith("degree")):
        return 1.0
    if metres is None or plain not in _METRES:
        raise Unsupported(f"the coordinates have the unit {unit!r}, and their reference system {crs[:60]} has {name!r}")
    return _METRES[plain] / metres


@lru_cache(maxsize=256)
def _unit_of(crs: str) -> tuple[float | None, str]:
    """Return the metres of the unit of a system, ``None`` for degrees, and its name."""
    found = _pyproj().CRS.from_user_input(crs)
    axis = found.axis_info[0] if found.axis_info else None
    if axis is None:
        raise Unsupported(f"the reference system {crs[:60]} has no axes")
    return None if found.is_geographic else axis.unit_conversion_factor, axis.unit_name


# ------------------------------------------------------------------ coordinates


def is_separable(source: str, target: str) -> bool:
    """Return whether each axis can be converted independently, by ``converted``."""
    return source == target or {source, target} <= {CRS84, MERCATOR}


def converted(values: Floats, axis: Literal["x", "y"], source: str, target: str) -> Floats:
    """Return coordinates along one axis in another system.

    Args:
        values: The coordinates.
        axis: The axis.
        source: Their system.
        target: The other system. ``is_separable`` must be true of both.
    """
    if source == target:
        return values
    if axis == "x":
        return values / METRES_PER_DEGREE if target == CRS84 else values * METRES_PER_DEGREE
    if target == CRS84:
        return np.degrees(np.arctan(np.sinh(values / RADIUS)))
    with np.errstate(divide="ignore"):
        return RADIUS * np.arcsinh(np.tan(np.radians(np.clip(values, -90.0, 90.0))))


def transformed(x: Floats, y: Floats, source: str, target: str) -> tuple[Floats, Floats]:
    """Return the coordinates of points in another system; NaN for points without coordinates there.

    Args:
        x: Eastings or longitudes of any shape.
        y: Northings or latitudes of the same shape.
        source: Their system.
        target: The other system.

    Raises:
        Unsupported: If pyproj is needed, and not installed.
    """
    if is_separable(source, target):
        return converted(x, "x", source, target), converted(y, "y", source, target)
    found = _transformer(source, target).transform(x, y)
    return tuple(np.where(np.isfinite(item), item, np.nan) for item in found)  # type: ignore[return-value]  # two


def transformed_grid(
    x: Floats, y: Floats, source: str, target: str, tolerances: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Return the coordinates in another system of the points of a grid, of shape (rows, columns); see ``transformed``.

    Of a large grid, few points are transformed, if polynomials through them are close enough to others of its points.

    Args:
        x: Evenly spaced eastings or longitudes of the columns.
        y: Evenly spaced northings or latitudes of the rows.
        source: Their system.
        target: The other system.
        tolerances: How far the coordinates may be from the exact ones, along both axes.
    """
    if min(len(x), len(y)) > 4 * _NODES:
        nodes = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)  # Chebyshev's, between which errors are small
        (node_x, weights_x), (node_y, weights_y) = _polynomial(x, nodes), _polynomial(y, nodes)
        exact = transformed(*np.meshgrid(node_x, node_y), source, target)
        # Not by matrix products: the threads of BLAS would wait in loops for the next one.
        found = [np.einsum("rj,jc->rc", weights_y, np.einsum("ji,ci->jc", item, weights_x)) for item in exact]
        columns, rows = (np.linspace(0, len(axis) - 1, 2 * _NODES).astype(np.intp) for axis in (x, y))
        probes = transformed(*np.meshgrid(x[columns], y[rows]), source, target)
        if all(  # not if one is NaN
            (abs(item[np.ix_(rows, columns)] - probe) <= tolerance).all()
            for item, probe, tolerance in zip(found, probes, tolerances, strict=True)
        ):
            return found[0], found[1]
    return transformed(*np.meshgrid(x, y), source, target)


def _polynomial(axis: Floats, nodes: Floats) -> tuple[Floats, Floats]:
    """Return the coordinates of nodes from -1 to 1 along an axis, and their weights in the polynomial at its points."""
    middle, half = (axis[0] + axis[-1]) / 2, (axis[-1] - axis[0]) / 2
    of_points, of_nodes = (chebvander(places, _NODES - 1) for places in ((axis - middle) / half, nodes))
    of_nodes[:, 1:] *= 2  # sums over the nodes then are coefficients
    return middle + half * nodes, np.einsum("pk,ik->pi", of_points, of_nodes) / _NODES


def bounds_in(bounds: Bounds, source: str, target: str) -> Bounds:
    """Return the bounds of an area in another system. Those over the antimeridian end beyond 180 degrees.

    Raises:
        BadQuery: If the other system does not contain the area.
        Unsupported: If pyproj is needed, and not installed.
    """
    if is_separable(source, target):
        west, east = (float(converted(np.array(value), "x", source, target)) for value in bounds[::2])
        south, north = (float(converted(np.array(value), "y", source, target)) for value in bounds[1::2])
        return west, south, east, north
    west, south, east, north = _transformer(source, target).transform_bounds(*bounds, densify_pts=_DENSITY)
    if not np.isfinite([west, south, east, north]).all():
        raise BadQuery(
            f"the area {','.join(f'{bound:g}' for bound in bounds)} of {source[:60]} is not within {target[:60]}"
        )
    return west, south, east + 360.0 * (east < west and target == CRS84), north


@lru_cache(maxsize=64)
def _transformer(source: str, target: str) -> Any:
    pyproj = _pyproj()
    try:
        return pyproj.Transformer.from_crs(source, target, always_xy=True)
    except pyproj.exceptions.ProjError as error:
        raise BadQuery(f"there is no transformation from {source[:60]} to {target[:60]}") from error


def _pyproj() -> Any:
    try:
        import pyproj
    except ImportError:
        raise Unsupported(_INSTALL) from None
    return pyproj
