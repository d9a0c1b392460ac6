"""OME-Zarr images: axes, coordinate systems, levels of pyramids, and names of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrasync.metadata.conventions.meaning import Axis, Level, Link, Meaning, Reader
from zarrasync.metadata.conventions.ome_transforms import (
    Transformation,
    chain,
    check_scale_first,
    count_inputs,
    located_axes,
    read_transformation,
)

_NESTED_KEYS = ("0.2", "0.3", "0.4")
"""Versions in which chunks are in nested directories."""
_OLD_AXES = ("t", "c", "z", "y", "x")
"""The axes of images before version 0.3."""
_TO_LABELS = ("identity", "scale", "translation")
"""Types of transformations that may lead to the coordinate system of a label image."""


def interpret_image(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    """Return the meaning of an image, of which the first pyramid is the default."""
    pyramids = [_Pyramid(item, place, version, reader).meaning() for place, item in reader.objects(value, location)]
    separator = "/" if version in _NESTED_KEYS else ""
    first = pyramids[0] if pyramids else Meaning()
    return replace(first, titles=("image",), is_ordered=True, variable="image", key_separator=separator)


class _Pyramid:
    """The interpretation of one pyramid.

    Args:
        item: The object in the list ``multiscales``.
        location: Its location.
        version: The version of OME-Zarr; empty if it is unknown.
        reader: Collects deviations.
    """

    def __init__(self, item: Mapping[str, Any], location: str, version: str, reader: Reader) -> None:
        self._item, self._location, self._version, self._reader = item, location, version, reader
        self._datasets = reader.objects(item.get("datasets"), f"{location}.datasets")
        self._has_systems = "coordinateSystems" in item  # from version 0.6 on
        place = f"{location}.coordinateSystems"
        self._systems = parse_systems(item["coordinateSystems"], place, reader) if self._has_systems else {}
        self._intrinsic = next((name for _, dataset in self._datasets if (name := _output(dataset))), "")
        self._axes = self._find_axes()
        self._links: list[Link] = []
        self._texts: list[str] = []

    def meaning(self) -> Meaning:
        levels = self._levels()
        if self._has_systems:
            self._check_transformations()
        others = [f"{name} ({_labels(axes)})" for name, axes in self._systems.items() if name != self._intrinsic]
        facts = {"Other coordinate systems": ", ".join(others), "Transformations": "; ".join(self._texts)}
        return Meaning(
            axes=self._axes,
            levels=levels,
            links=tuple(self._links),
            facts={label: text for label, text in facts.items() if text},
            systems=tuple(self._systems),
        )

    def _find_axes(self) -> tuple[Axis, ...]:
        """Return the axes of the coordinate system that the levels are transformed to, without coordinates."""
        item, location, reader = self._item, self._location, self._reader
        if self._version in ("0.1", "0.2") and "axes" not in item:
            return parse_axes(list(_OLD_AXES), location, Reader())
        if not self._version and item.keys().isdisjoint(("axes", "coordinateSystems")):
            return ()
        if not self._has_systems:
            return parse_axes(item.get("axes"), f"{location}.axes", reader)
        if self._intrinsic and self._systems and self._intrinsic not in self._systems:
            message = f"there is no coordinate system {self._intrinsic!r}, the output of the levels"
            reader.error(f"{location}.coordinateSystems", message)
            return ()
        return self._systems.get(self._intrinsic) or next(iter(self._systems.values()), ())

    def _levels(self) -> tuple[Level, ...]:
        levels: dict[str, Level] = {}
        for place, dataset in self._datasets:
            path = self._reader.path(dataset, "path", place)
            if path in levels:
                self._reader.error(f"{place}.path", f"{path!r} is the path of another level")
            elif path:
                levels[path] = Level(path, self._level_axes(dataset, path, place), place)
        return tuple(levels.values())

    def _level_axes(self, dataset: Mapping[str, Any], path: str, place: str) -> tuple[Axis, ...]:
        """Return the axes of a level with the coordinates of its elements."""
        axes, item, name = self._axes, self._item, "coordinateTransformations"
        if not axes or (name not in dataset and not self._has_systems and "axes" not in item):
            return axes  # versions before 0.4 have no transformations
        parts: list[Transformation] = []
        if name in dataset or not _is_old(item):
            location = f"{place}.{name}"
            parts = self._read_list(dataset.get(name), location)
            check_scale_first(dataset.get(name), location, self._reader, is_single=self._has_systems)
            self._check_ends(dataset.get(name), path, location)
        # In version 0.6 and in SpatialData, transformations of the pyramid lead to other coordinate systems.
        if name in item and not _output(item):
            parts += self._read_list(item[name], f"{self._location}.{name}")
        whole = chain(parts) if parts else Transformation(None)
        if whole.outputs not in (None, len(axes)):
            self._reader.error(place, f"the transformation has {whole.outputs} outputs, but there are {len(axes)} axes")
        found = located_axes(axes, whole.matrix) if parts or name in dataset else _indexed(axes)
        if parts and any(axis.step is None for axis in found):
            self._texts.append(f"{path}: {whole.text}")
        self._links += whole.links
        return found

    def _read_list(self, value: Any, location: str) -> list[Transformation]:
        """Return a list of transformations, the first of which is applied to the indices of the array."""
        parts: list[Transformation] = []
        count = len(self._axes)
        for place, item in self._reader.objects(value, location):
            inputs = (item.get("type") == "affine" and count_inputs(item)) or count  # the array may have other axes
            parts.append(read_transformation(item, inputs, place, self._reader))
            count = parts[-1].outputs or count
        return parts

    def _check_ends(self, value: Any, path: str, location: str) -> None:
        """Report transformations of a level that do not lead from its array to the system of all levels."""
        for number, item in enumerate(value if self._has_systems and isinstance(value, list) else ()):
            if not isinstance(item, Mapping):
                continue
            _warn_of_names(item, f"{location}[{number}]", self._reader)
            name, source = end_of(item, "input")
            if (source or name * isinstance(item.get("input"), str)).strip("/") != path:
                self._reader.error(f"{location}[{number}].input", f"expected the path of the level, {path!r}")
            target, _ = end_of(item, "output")
            if target != self._intrinsic or not target:
                expected = f"the system {self._intrinsic!r} of the other levels" if self._intrinsic else "a name"
                self._reader.error(f"{location}[{number}].output", f"expected {expected}, found {target!r}")

    def _check_transformations(self) -> None:
        """Check the transformations between coordinate systems, and collect their descriptions."""
        value = self._item.get("coordinateTransformations")
        if value is None:
            return
        for place, item in self._reader.objects(value, f"{self._location}.coordinateTransformations"):
            found = _read_edge(item, place, self._systems, "label image", self._reader)
            self._texts.append(found.text)
            self._links += found.links
            ends = [end_of(item, side) for side in ("input", "output")]
            if (self._intrinsic, "") not in [(name, path) for name, path in ends]:
                message = f"the input or the output must be {self._intrinsic!r}, the coordinate system of the levels"
                self._reader.error(place, message)
            if any(path for _, path in ends) and item.get("type") not in _TO_LABELS:
                kinds = ", ".join(_TO_LABELS)
                self._reader.error(f"{place}.type", f"a transformation to a label image must have the type {kinds}")


def interpret_scene(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    """Return the meaning of a group that relates the coordinate systems of several images."""
    if not isinstance(value, Mapping):
        reader.error(location, "expected an object")
        return Meaning(titles=("scene",))
    place = f"{location}.coordinateSystems"
    systems = parse_systems(value["coordinateSystems"], place, reader) if "coordinateSystems" in value else {}
    items = reader.objects(value.get("coordinateTransformations"), f"{location}.coordinateTransformations")
    edges = [_read_edge(item, place, systems, "image", reader) for place, item in items]
    links = {link.path: link for edge in edges for link in edge.links}
    images = [link.path for link in links.values() if link.kind == "image"]
    facts = {
        "Images": ", ".join(images),
        "Coordinate systems": ", ".join(f"{name} ({_labels(axes)})" for name, axes in systems.items()),
        "Transformations": "; ".join(edge.text for edge in edges),
    }
    return Meaning(
        titles=("scene",),
        links=tuple(dict.fromkeys(link for edge in edges for link in edge.links)),
        facts={label: text for label, text in facts.items() if text},
        systems=tuple(systems),
    )


def _read_edge(
    item: Mapping[str, Any], location: str, systems: Mapping[str, tuple[Axis, ...]], kind: str, reader: Reader
) -> Transformation:
    """Return a transformation between coordinate systems, with links to the groups of other documents.

    Args:
        item: The transformation.
        location: Its location.
        systems: The axes of the coordinate systems of this document.
        kind: The kind of nodes whose coordinate systems are referred to with a path.
        reader: Collects deviations.
    """
    ends, links = [], []
    for side in ("input", "output"):
        name, path = end_of(item, side)
        place = f"{location}.{side}"
        ends.append(systems.get(name, ()) if not path else ())
        if not name:
            reader.error(place, "expected an object with the name of a coordinate system")
        elif path:
            path = reader.path({"path": path}, "path", place)
            links += [Link(path, kind, place, system=name)] if path else []
        elif name not in systems:
            listed = ", ".join(systems) or "none"
            reader.error(place, f"there is no coordinate system {name!r}; known: {listed}")
    _warn_of_names(item, location, reader)
    source, target = ends
    found = read_transformation(item, len(source) or count_inputs(item) or len(target), location, reader)
    if found.outputs is not None and target and found.outputs != len(target):
        message = (
            f"the transformation has {found.outputs} outputs, but {end_of(item, 'output')[0]!r} has {len(target)} axes"
        )
        reader.error(location, message)
    names = [f"{path}/{name}" if path else name for name, path in (end_of(item, "input"), end_of(item, "output"))]
    return replace(found, text=f"{' to '.join(names)}: {found.text}", links=(*links, *found.links))


def _warn_of_names(item: Mapping[str, Any], location: str, reader: Reader) -> None:
    for side in ("input", "output"):
        if isinstance(item.get(side), str):
            reader.warn(f"{location}.{side}", "drafts of version 0.6 have a string here; expected an object")


def _output(holder: Mapping[str, Any]) -> str:
    """Return the name of the coordinate system that a level or a pyramid is transformed to; empty if it has no name."""
    value = holder.get("coordinateTransformations")
    names = [
        end_of(item, "output")[0] for item in (value if isinstance(value, list) else ()) if isinstance(item, Mapping)
    ]
    return next(filter(None, names), "")


def _indexed(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return tuple(replace(axis, step=1.0) for axis in axes)


def _is_old(item: Mapping[str, Any]) -> bool:
    axes = item.get("axes")
    return isinstance(axes, list) and all(isinstance(axis, str) for axis in axes)


def _labels(axes: tuple[Axis, ...]) -> str:
    return ", ".join(axis.label for axis in axes)


# ------------------------------------------------------------------ channels


def with_channels(meaning: Meaning, omero: Any) -> Meaning:
    """Return the meaning of an image with the names of its channels."""
    channels = omero.get("channels") if isinstance(omero, Mapping) else None
    labels = tuple(
        channel["label"]
        for channel in (channels if isinstance(channels, list) else ())
        if isinstance(channel, Mapping) and isinstance(channel.get("label"), str)
    )
    if not labels:
        return meaning

    def labelled(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(axis, labels=labels) if axis.kind == "channel" else axis for axis in axes)

    levels = tuple(replace(level, axes=labelled(level.axes)) for level in meaning.levels)
    facts = {**meaning.facts, "Channels": ", ".join(labels)}
    return replace(meaning, axes=labelled(meaning.axes), levels=levels, facts=facts)


# ------------------------------------------------------------------ axes


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
