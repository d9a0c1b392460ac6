"""Which coordinates are longitudes and latitudes, and which axes run to the east, to the north, upwards, and in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from zarrasync.metadata.conventions.meaning import Axis

Role: TypeAlias = Literal["x", "y", "z", "t", ""]
"""What an axis stands for: to the east, to the north, vertical, time, or something else."""
CIRCLE = 360.0
"""The degrees of a parallel."""
HORIZONTAL = ("axis", "standard_name")
"""Attributes that specify the role of an axis, besides its unit."""
_UNITS: dict[str, Role] = {
    **dict.fromkeys((f"{word}{end}" for word in ("degree", "degrees") for end in ("east", "e")), "x"),
    **dict.fromkeys((f"{word}{end}" for word in ("degree", "degrees") for end in ("north", "n")), "y"),
}
"""Units of longitudes and latitudes, in lower case, without underscores and spaces."""
_STANDARD_NAMES: dict[str, Role] = {
    **dict.fromkeys(("longitude", "projection_x_coordinate", "grid_longitude"), "x"),
    **dict.fromkeys(("latitude", "projection_y_coordinate", "grid_latitude"), "y"),
    **dict.fromkeys(("air_pressure", "altitude", "depth", "height", "model_level_number"), "z"),
    **dict.fromkeys(("ocean_sigma_coordinate", "atmosphere_hybrid_sigma_pressure_coordinate"), "z"),
    "time": "t",
    **dict.fromkeys(("forecast_reference_time", "forecast_period"), ""),
}
_LETTERS: dict[str, Role] = {"X": "x", "Y": "y", "Z": "z", "T": "t"}
_NAMES: dict[str, Role] = {
    **dict.fromkeys(("x", "lon", "longitude", "easting"), "x"),
    **dict.fromkeys(("y", "lat", "latitude", "northing"), "y"),
    **dict.fromkeys(("z", "level", "lev", "plev", "depth", "height", "altitude"), "z"),
    **dict.fromkeys(("pressure_level", "isobaricinhpa"), "z"),
    **dict.fromkeys(("time", "valid_time", "t"), "t"),
}


def is_longitude(unit: str, attributes: Mapping[str, Any], name: str = "") -> bool:
    """Return whether coordinates are longitudes, so that those that differ by 360 degrees are the same place.

    Args:
        unit: Their unit.
        attributes: Their attributes. A standard name decides, if there is one.
        name: Their name, which decides if the unit is missing or ``degrees``; empty to leave it out.
    """
    return _is("longitude", unit, attributes, name)


def is_latitude(unit: str, attributes: Mapping[str, Any], name: str = "") -> bool:
    """Return whether coordinates are latitudes, with the arguments of ``is_longitude``."""
    return _is("latitude", unit, attributes, name)


def is_geographic(rows: Axis, columns: Axis) -> bool:
    """Return whether the axes of rows and columns have latitudes and longitudes in degrees."""
    return is_latitude(rows.unit, rows.attributes, rows.name) and is_longitude(
        columns.unit, columns.attributes, columns.name
    )


def _is(kind: str, unit: str, attributes: Mapping[str, Any], name: str) -> bool:
    standard_name = attributes.get("standard_name")
    if standard_name is not None:
        return bool(standard_name == kind)
    unit = _plain(unit)
    if unit in ("", "degrees", "degree"):
        return name.lower() in (kind, kind[:3])
    return _UNITS.get(unit) == _STANDARD_NAMES[kind]


def role_of(unit: str, attributes: Mapping[str, Any], name: str = "") -> Role:
    """Return the role of an axis by the attributes and the unit of its coordinates, or else by their name."""
    standard_name, letter = attributes.get("standard_name"), str(attributes.get("axis")).upper()
    if isinstance(standard_name, str) and standard_name in _STANDARD_NAMES:
        return _STANDARD_NAMES[standard_name]
    if letter in _LETTERS:
        return _LETTERS[letter]
    if _plain(unit) in _UNITS:
        return _UNITS[_plain(unit)]
    return "z" if "positive" in attributes else _NAMES.get(name.lower(), "")


def _plain(unit: str) -> str:
    return unit.lower().replace("_", "").replace(" ", "")
