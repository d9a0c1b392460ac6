"""What conventions specify about a node: axes with units, roles and coordinates, levels of a pyramid, the CRS, related nodes.

A ``Reader`` reads attributes of unknown structure, and collects the locations of values that have another type than expected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Affine: TypeAlias = tuple[float, float, float, float, float, float]
"""Coefficients a to f: x = a * column + b * row + c, y = d * column + e * row + f, from the corner of the first cell."""
RGBA: TypeAlias = tuple[int, int, int, int]
"""Red, green, blue and opacity from 0 to 255."""


@dataclass(frozen=True)
class Axis:
    """An axis, and the coordinates of its elements.

    Attributes:
        name: The name; empty if it is unknown.
        kind: ``"space"``, ``"time"``, ``"channel"`` or another kind; empty if it is unknown.
        unit: The unit of the coordinates.
        step: The distance between elements; ``None`` if the coordinates are unknown.
        origin: The coordinate of the first element.
        size: The number of elements that the attributes specify, if they do.
        labels: The names of the elements, such as channels.
        attributes: Further CF attributes of the coordinates, such as ``standard_name``.
    """

    name: str
    kind: str = ""
    unit: str = ""
    step: float | None = None
    origin: float = 0.0
    size: int | None = None
    labels: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with the unit or the kind: ``x [micrometer]``, ``c (channel)``."""
        note = f" [{self.unit}]" if self.unit else f" ({self.kind})" if self.kind not in ("", "space") else ""
        return f"{self.name or 'unnamed'}{note}"

    @property
    def has_coordinates(self) -> bool:
        """Whether the coordinates differ from the indices, or have a physical meaning. Channels are only numbered."""
        return self.step is not None and (self.kind in ("space", "time") or (self.step, self.origin) != (1.0, 0.0))

    def coordinates(self, size: int) -> npt.NDArray[np.float64]:
        """Return the coordinates of the first elements."""
        return self.origin + (self.step or 0.0) * np.arange(size, dtype=np.float64)


@dataclass(frozen=True)
class CRS:
    """A coordinate reference system, in at least one notation.

    Attributes:
        code: Authority and code, such as ``EPSG:4326``.
        wkt: Well-known text.
        projjson: PROJJSON.
    """

    code: str = ""
    wkt: str = ""
    projjson: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """The code, or else the name."""
        if self.code:
            return self.code
        name = (self.projjson or {}).get("name")
        quoted = self.wkt.partition('"')[2].partition('"')[0]
        return name if isinstance(name, str) else quoted or "unnamed CRS"


@dataclass(frozen=True)
class Level:
    """One resolution of a pyramid.

    Attributes:
        path: The path of its array or group, relative to the group of the pyramid.
        axes: The axes. Axes of an array correspond by name, or else by position.
        location: The location of the description in the attributes.
        affine: The affine transformation of the last two axes, if the convention specifies one.
    """

    path: str
    axes: tuple[Axis, ...]
    location: str
    affine: Affine | None = None

    @property
    def label(self) -> str:
        """The path with the steps along axes that have coordinates: ``0 (y 0.65, x 0.65)``."""
        steps = [f"{axis.name} {axis.step:g}".strip() for axis in self.axes if axis.step and axis.has_coordinates]
        return f"{self.path} ({', '.join(steps)})" if steps else self.path


@dataclass(frozen=True)
class Link:
    """A reference to another node.

    Attributes:
        path: The path relative to the group, or to the group that contains the array.
        kind: The kind of node: ``"well"``, ``"image"``, ``"label image"``, ``"coordinate"``.
        location: The location of the reference in the attributes.
        is_required: Whether the node must exist.
        system: The name of the coordinate system of the node that is referred to, if one is.
    """

    path: str
    kind: str
    location: str
    is_required: bool = True
    system: str = ""


@dataclass(frozen=True)
class Labels:
    """What a label image specifies about its labels.

    Attributes:
        colours: Colours of labels. Others have no specified colour.
        properties: Properties of labels, for display.
    """

    colours: Mapping[int, RGBA] = field(default_factory=dict)
    properties: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Violation:
    """A deviation from a convention.

    Attributes:
        severity: ``"error"`` if a requirement is violated, ``"warning"`` if a recommendation is.
        location: The location in the attributes, such as ``ome.multiscales[0].axes``.
        message: The problem, and the expected value.
    """

    severity: Literal["error", "warning"]
    location: str
    message: str


@dataclass(frozen=True)
class Meaning:
    """What conventions specify about a node.

    Attributes:
        titles: The conventions, and the kind of object: ``OME-Zarr 0.5 image``.
        axes: The axes of an array, or of the arrays in a group.
        affine: The affine transformation of the last two axes, if the convention specifies one.
        levels: The levels of a pyramid, from the finest one on.
        crs: The coordinate reference system.
        unit: The unit of the values.
        is_ordered: Whether the convention requires that levels become smaller.
        variable: The name of the variable when a level that is an array is opened as a dataset.
        dtype_kinds: NumPy's codes of the data types that arrays of the levels may have; empty for all.
        key_separator: The separator that chunk keys of the levels must have; empty for any.
        links: Related nodes.
        systems: The names of the coordinate systems that other nodes can refer to.
        labels: Colours and properties of the labels, if it is a label image.
        facts: More facts for display, by label.
        violations: Deviations from the conventions.
    """

    titles: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    affine: Affine | None = None
    levels: tuple[Level, ...] = ()
    crs: CRS | None = None
    unit: str = ""
    is_ordered: bool = False
    variable: str = "data"
    dtype_kinds: str = ""
    key_separator: str = ""
    links: tuple[Link, ...] = ()
    systems: tuple[str, ...] = ()
    labels: Labels | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()

    def for_member(self, path: str, own: Meaning, *, is_array: bool) -> Meaning:
        """Return the meaning of a member of this group: its own, completed with what the group specifies.

        Args:
            path: The path of the member relative to the group.
            own: The meaning of the member's own attributes.
            is_array: Whether it is an array. What the group specifies in general applies to its arrays only.
        """
        level = next((level for level in self.levels if level.path == path), None)
        if level is None and not (is_array and "/" not in path):
            return own
        axes, affine = (self.axes, self.affine) if level is None else (level.axes, level.affine)
        if own.affine is not None or any(axis.step is not None for axis in own.axes):
            axes, affine = own.axes, own.affine
        labels = own.labels if level is None else own.labels or self.labels
        return replace(own, axes=axes or own.axes, affine=affine, crs=own.crs or self.crs, labels=labels)


def merge(meanings: Sequence[Meaning]) -> Meaning:
    """Return what several conventions specify about one node. Of contradicting statements the first one counts."""
    if len(meanings) == 1:
        return meanings[0]
    located = next((meaning for meaning in meanings if meaning.axes), Meaning())
    pyramid = next((meaning for meaning in meanings if meaning.levels), Meaning())
    return replace(
        pyramid,
        titles=tuple(dict.fromkeys(title for meaning in meanings for title in meaning.titles)),
        axes=located.axes,
        affine=located.affine,
        crs=next((meaning.crs for meaning in meanings if meaning.crs is not None), None),
        unit=next((meaning.unit for meaning in meanings if meaning.unit), ""),
        links=tuple(link for meaning in meanings for link in meaning.links),
        systems=tuple(dict.fromkeys(name for meaning in meanings for name in meaning.systems)),
        labels=next((meaning.labels for meaning in meanings if meaning.labels is not None), None),
        facts={label: text for meaning in reversed(meanings) for label, text in meaning.facts.items()},
        violations=tuple(violation for meaning in meanings for violation in meaning.violations),
    )


# ------------------------------------------------------------------ roles of axes


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


def unit_of(axis: Axis) -> str:
    """Return the unit of an axis, which is degrees for names such as ``lat`` and ``longitude`` without a unit."""
    if axis.unit or axis.name is None:
        return axis.unit
    for has_degrees, unit in ((is_latitude, "degrees_north"), (is_longitude, "degrees_east")):
        if has_degrees("", axis.attributes, axis.name):
            return unit
    return ""


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


_LARGEST = 1 << 1000
"""A limit for integers, which JSON allows to exceed the range of floats."""


class Reader:
    """Reads values of attributes, and collects deviations with their locations.

    Attributes:
        violations: The deviations so far.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def error(self, location: str, message: str) -> None:
        """Add a deviation from what the convention requires."""
        self.violations.append(Violation("error", location, message))

    def warn(self, location: str, message: str) -> None:
        """Add a deviation from what the convention recommends."""
        self.violations.append(Violation("warning", location, message))

    def objects(self, value: Any, location: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the objects of a list that must not be empty, with their locations."""
        if not isinstance(value, list) or not value:
            self.error(location, f"expected a list with at least one object, found {short(value)}")
            return []
        items = [(f"{location}[{number}]", item) for number, item in enumerate(value)]
        for place, item in items:
            if not isinstance(item, Mapping):
                self.error(place, f"expected an object, found {short(item)}")
        return [(place, item) for place, item in items if isinstance(item, Mapping)]

    def string(self, item: Mapping[str, Any], name: str, location: str) -> str:
        """Return a string that is required and not empty; an empty string if it is missing."""
        value = item.get(name)
        if isinstance(value, str) and value:
            return value
        self.error(f"{location}.{name}", f"expected a string that is not empty, found {short(value)}")
        return ""

    def path(self, item: Mapping[str, Any], name: str, location: str) -> str:
        """Return a relative path that is required."""
        return self.relative(self.string(item, name, location), f"{location}.{name}")

    def relative(self, path: str, location: str) -> str:
        """Return a path that must be relative; an empty string if it is not."""
        if path.startswith("/") or ".." in path.split("/"):
            self.error(location, f"the path {short(path)} must be relative to the group and stay inside it")
            return ""
        return path.removeprefix("./").strip("/")

    def check_differ(self, names: Sequence[str], location: str) -> None:
        """Report names that occur more than once."""
        repeated = [name for name, count in Counter(names).items() if name and count > 1]
        if repeated:
            self.error(location, f"{', '.join(repeated)} must occur only once")

    def numbers(self, value: Any, count: int, location: str) -> list[float]:
        """Return a list of finite numbers of a required length; an empty list if it is not one."""
        if isinstance(value, list) and len(value) == count and all(is_number(item) for item in value):
            return [float(item) for item in value]
        self.error(location, f"expected {count} numbers, found {short(value)}")
        return []


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number that a float can represent."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST


def short(value: Any) -> str:
    """Return a value as short text for a message."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
