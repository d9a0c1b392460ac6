"""The axes and the coordinate systems of OME-Zarr images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zarrasync.metadata.conventions.meaning import Axis
from zarrasync.metadata.conventions.reader import Reader

_PREFIXES = [
    "atto",
    "centi",
    "deci",
    "exa",
    "femto",
    "giga",
    "hecto",
    "kilo",
    "mega",
    "micro",
    "milli",
    "nano",
    "peta",
    "pico",
    "tera",
    "yocto",
    "yotta",
    "zepto",
    "zetta",
]
_UNITS = {
    "space": {"angstrom", "foot", "inch", "meter", "mile", "parsec", "yard", *(f"{p}meter" for p in _PREFIXES)},
    "time": {"day", "hour", "minute", "second", *(f"{prefix}second" for prefix in _PREFIXES)},
}
_RANK = {"time": 0, "space": 2}
"""Times are first and spatial axes last; channels and others are between them."""


def parse_axes(value: Any, location: str, reader: Reader) -> tuple[Axis, ...]:
    """Return the axes of an image, and report those that the specification does not allow."""
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        value = [{"name": name, "type": _guess_kind(name)} for name in value]  # as in version 0.3
    axes = []
    for place, item in reader.objects(value, location):
        kind, unit = item.get("type"), item.get("unit")
        axis = Axis(
            reader.string(item, "name", place),
            kind=kind if isinstance(kind, str) else "",
            unit=unit if isinstance(unit, str) else "",
        )
        if axis.unit and axis.kind in _UNITS and axis.unit not in _UNITS[axis.kind]:
            reader.warn(f"{place}.unit", f"{axis.unit!r} is not a unit of {axis.kind}, such as {_example(axis.kind)!r}")
        axes.append(axis)
    if axes:
        _check_axes(axes, location, reader)
    return tuple(axes)


def _guess_kind(name: str) -> str:
    return {"t": "time", "c": "channel"}.get(name, "space")


def _example(kind: str) -> str:
    return "micrometer" if kind == "space" else "second"


def _check_axes(axes: Sequence[Axis], location: str, reader: Reader) -> None:
    """Report a number, an order or names of axes that the specification does not allow."""
    names, kinds = [axis.name for axis in axes], [axis.kind for axis in axes]
    if not 2 <= len(axes) <= 5:
        reader.error(location, f"an image has 2 to 5 axes, found {len(axes)}")
    elif not 2 <= kinds.count("space") <= 3 and kinds.count("array") < 2:
        reader.error(location, f"2 or 3 axes must have the type 'space', found {kinds.count('space')}")
    for kind in ("time", "channel"):
        if kinds.count(kind) > 1:
            reader.error(location, f"at most one axis may have the type {kind!r}, found {kinds.count(kind)}")
    if len({*names}) < len(names):
        reader.error(location, f"names of axes must differ, found {', '.join(names)}")
    ranks = [_RANK.get(kind, 1) for kind in kinds]
    if ranks != sorted(ranks):
        order = ", ".join(axis.label for axis in axes)
        reader.error(location, f"time must come first, then channels, then spatial axes; found {order}")


def parse_systems(value: Any, location: str, reader: Reader) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of coordinate systems by name, and report those that the specification does not allow."""
    items = reader.objects(value, location)
    names = [reader.string(item, "name", place) for place, item in items]
    reader.check_differ(names, location)
    pairs = zip(names, items, strict=True)
    return {name: parse_axes(item.get("axes"), f"{place}.axes", reader) for name, (place, item) in pairs if name}


def end_of(item: Mapping[str, Any], side: str) -> tuple[str, str]:
    """Return the name of the coordinate system that a transformation begins or ends with, and the path of its group.

    Drafts of version 0.6 have the name itself instead of an object.

    Args:
        item: The transformation.
        side: ``"input"`` or ``"output"``.
    """
    end = item.get(side)
    if not isinstance(end, Mapping):
        return (end if isinstance(end, str) else ""), ""
    name, path = end.get("name"), end.get("path")
    return (name if isinstance(name, str) else ""), (path if isinstance(path, str) else "")
