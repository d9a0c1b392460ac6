"""The axes and coordinate transformations of OME-Zarr images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrasync.metadata.conventions.meaning import Axis
from zarrasync.metadata.conventions.reader import Reader

__all__ = ["check_scale_first", "parse_axes", "transformed"]

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
    elif not 2 <= kinds.count("space") <= 3:
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


def transformed(axes: tuple[Axis, ...], value: Any, location: str, reader: Reader) -> tuple[Axis, ...]:
    """Return axes whose coordinates result from a list of transformations of the given axes.

    Coordinates are unknown after a transformation that is not a scale or a translation.
    """
    for place, item in reader.objects(value, location):
        axes = _apply(axes, item, place, reader)
    return axes


def _apply(axes: tuple[Axis, ...], item: Mapping[str, Any], location: str, reader: Reader) -> tuple[Axis, ...]:
    kind = item.get("type")
    match kind:
        case "identity":
            return axes
        case "sequence":
            return transformed(axes, item.get("transformations"), f"{location}.transformations", reader)
        case "scale" | "translation" if kind in item:
            numbers = reader.numbers(item[kind], len(axes), f"{location}.{kind}")
            if kind == "scale" and 0 in numbers:
                reader.error(f"{location}.{kind}", "a scale of 0 is not allowed")
                return _unknown(axes)
            if not numbers:
                return _unknown(axes)
            return tuple(_moved(axis, kind, number) for axis, number in zip(axes, numbers, strict=True))
    if not isinstance(kind, str):
        reader.error(f"{location}.type", "a transformation needs a type, such as 'scale'")
    else:
        reader.warn(
            location, f"the transformation {kind!r} is not a list of scales or offsets; coordinates are unknown"
        )
    return _unknown(axes)


def check_scale_first(value: Any, location: str, reader: Reader, *, may_be_identity: bool) -> None:
    """Report the transformations of a level unless they are one scale, and then at most one translation."""
    kinds = _kinds(value)
    allowed = [["scale"], ["scale", "translation"], *([["identity"]] if may_be_identity else [])]
    if kinds and kinds not in allowed:
        found = ", ".join(map(str, kinds))
        reader.error(location, f"a level has one scale, and then at most one translation; found {found}")


def _kinds(value: Any) -> list[Any]:
    """Return the types of transformations, also of those in sequences."""
    kinds: list[Any] = []
    for item in value if isinstance(value, list) else ():
        kind = item.get("type") if isinstance(item, Mapping) else None
        kinds += _kinds(item.get("transformations")) if kind == "sequence" else [kind]
    return kinds


def _moved(axis: Axis, kind: str, number: float) -> Axis:
    if axis.step is None:
        return axis
    if kind == "scale":
        return replace(axis, step=axis.step * number, origin=axis.origin * number)
    return replace(axis, origin=axis.origin + number)


def _unknown(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return tuple(replace(axis, step=None, origin=0.0) for axis in axes)
