"""OME-Zarr 0.1 to 0.6: images, label images, plates, wells and collections of images.

Up to version 0.4 the attributes of a group contain the metadata; from version 0.5 on, the attribute ``ome`` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarrasync.metadata.conventions.meaning import Axis, Level, Link, Meaning, merge
from zarrasync.metadata.conventions.ome_transforms import check_scale_first, parse_axes, transformed
from zarrasync.metadata.conventions.reader import Reader

__all__ = ["ATTRIBUTES", "interpret_ome", "ome_archive_comment"]

ATTRIBUTES = ("ome", "multiscales", "plate", "well", "labels", "image-label", "bioformats2raw.layout")
"""Attributes of which a group in OME-Zarr has at least one."""
_NESTED_KEYS = ("0.2", "0.3", "0.4")
"""Versions in which chunks are in nested directories."""
_OLD_AXES = ("t", "c", "z", "y", "x")
"""The axes of images before version 0.3."""


def interpret_ome(attributes: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning of a group in OME-Zarr, or ``None`` if its attributes follow another convention."""
    ome = attributes.get("ome")
    metadata, prefix = (ome, "ome.") if isinstance(ome, Mapping) else (attributes, "")
    if not prefix and not _is_ome(attributes):
        return None
    version = _version(metadata)
    reader = Reader()
    if prefix and not isinstance(metadata.get("version"), str):
        reader.warn("ome.version", "the version of OME-Zarr is missing")  # ome-zarr-py leaves it out of labels
    parts = [
        interpret(metadata[name], prefix + name, version, reader)
        for name, interpret in _KINDS.items()
        if name in metadata
    ]
    meaning = merge(parts) if parts else Meaning()
    if "image-label" in metadata:
        _check_colours(metadata["image-label"], f"{prefix}image-label", reader)
        meaning = replace(meaning, titles=("label image",), variable="labels", dtype_kinds="iu")
    is_generic = not version and meaning.levels and not meaning.axes  # pyramids of other software
    title = f"OME-Zarr {version or ('0.5' if prefix else '0.4')} {meaning.titles[0] if meaning.titles else 'group'}"
    meaning = _with_channels(meaning, metadata.get("omero"))
    return replace(meaning, titles=("multiscales",) if is_generic else (title,), violations=tuple(reader.violations))


def ome_archive_comment(document: bytes) -> bytes:
    """Return the comment of an archive in OME-Zarr: the version, and that its directory begins with all documents.

    Args:
        document: The document of the root group, of Zarr format 3.

    Returns:
        The comment, or nothing if the root is not in OME-Zarr.
    """
    try:
        version = json.loads(document)["attributes"]["ome"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""
    comment = {"ome": {"version": version, "zipFile": {"centralDirectory": {"jsonFirst": True}}}}
    return json.dumps(comment).encode() if isinstance(version, str) else b""


def _is_ome(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes without ``ome`` follow version 0.4 or earlier."""
    if isinstance(attributes.get("multiscales"), list):
        return True
    plate, well, labels = (attributes.get(name) for name in ("plate", "well", "labels"))
    return (
        (isinstance(plate, Mapping) and "wells" in plate)
        or (isinstance(well, Mapping) and "images" in well)
        or (isinstance(labels, list) and set(attributes) <= {"labels"})
        or "bioformats2raw.layout" in attributes
    )


def _version(metadata: Mapping[str, Any]) -> str:
    multiscales = metadata.get("multiscales")
    first = multiscales[0] if isinstance(multiscales, list) and multiscales else None
    for holder in (metadata, first, metadata.get("plate"), metadata.get("well"), metadata.get("image-label")):
        version = holder.get("version") if isinstance(holder, Mapping) else None
        if isinstance(version, str):
            return version
    return ""


# ------------------------------------------------------------------ images


def _interpret_image(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    """Return the meaning of an image, of which the first pyramid is the default."""
    pyramids = [_pyramid(item, place, version, reader) for place, item in reader.objects(value, location)]
    axes, levels = pyramids[0] if pyramids else ((), ())
    separator = "/" if version in _NESTED_KEYS else ""
    return Meaning(
        titles=("image",), axes=axes, levels=levels, is_ordered=True, variable="image", key_separator=separator
    )


def _pyramid(
    item: Mapping[str, Any], location: str, version: str, reader: Reader
) -> tuple[tuple[Axis, ...], tuple[Level, ...]]:
    datasets = reader.objects(item.get("datasets"), f"{location}.datasets")
    axes = _image_axes(item, datasets, location, version, reader)
    levels: list[Level] = []
    for place, dataset in datasets:
        path = reader.path(dataset, "path", place)
        if path in [level.path for level in levels]:
            reader.error(f"{place}.path", f"{path!r} is the path of another level")
        elif path:
            levels.append(Level(path, _level_axes(axes, item, dataset, (location, place), reader), place))
    return axes, tuple(levels)


def _image_axes(
    item: Mapping[str, Any], datasets: list[tuple[str, Mapping[str, Any]]], location: str, version: str, reader: Reader
) -> tuple[Axis, ...]:
    """Return the axes of the coordinate system that the levels of a pyramid are transformed to, without coordinates."""
    if version in ("0.1", "0.2") and "axes" not in item:
        return tuple(parse_axes(list(_OLD_AXES), location, Reader()))
    if not version and item.keys().isdisjoint(("axes", "coordinateSystems")):
        return ()
    if "coordinateSystems" not in item:
        return parse_axes(item.get("axes"), f"{location}.axes", reader)
    systems = reader.objects(item["coordinateSystems"], f"{location}.coordinateSystems")
    target = next((name for _, dataset in datasets for name in _outputs(dataset)), None)
    for place, system in systems:
        if target is None or system.get("name") == target:
            return parse_axes(system.get("axes"), f"{place}.axes", reader)
    reader.error(f"{location}.coordinateSystems", f"there is no coordinate system {target!r}, the output of the levels")
    return ()


def _outputs(dataset: Mapping[str, Any]) -> list[str]:
    """Return the names of the coordinate systems that a level is transformed to."""
    transformations = dataset.get("coordinateTransformations")
    names = []
    for item in transformations if isinstance(transformations, list) else ():
        output = item.get("output") if isinstance(item, Mapping) else None
        name = output.get("name") if isinstance(output, Mapping) else output
        if isinstance(name, str):
            names.append(name)
    return names


def _level_axes(
    axes: tuple[Axis, ...],
    item: Mapping[str, Any],
    dataset: Mapping[str, Any],
    locations: tuple[str, str],
    reader: Reader,
) -> tuple[Axis, ...]:
    """Return the axes of a level with the coordinates of its elements."""
    whole, place = locations
    name = "coordinateTransformations"
    if not axes or (name not in dataset and "axes" not in item and "coordinateSystems" not in item):
        return axes  # versions before 0.4 have no transformations
    indexed = tuple(replace(axis, step=1.0) for axis in axes)
    if name in dataset or not _is_old(item):
        indexed = transformed(indexed, dataset.get(name), f"{place}.{name}", reader)
        may_be_identity = "coordinateSystems" in item  # from version 0.6 on
        check_scale_first(dataset.get(name), f"{place}.{name}", reader, may_be_identity=may_be_identity)
    # In version 0.6 and in SpatialData, transformations of the pyramid lead to other coordinate systems.
    if name in item and not _outputs(item):
        indexed = transformed(indexed, item[name], f"{whole}.{name}", reader)
    return indexed


def _is_old(item: Mapping[str, Any]) -> bool:
    axes = item.get("axes")
    return isinstance(axes, list) and all(isinstance(axis, str) for axis in axes)


# ------------------------------------------------------------------ collections


def _interpret_plate(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    if not isinstance(value, Mapping):
        reader.error(location, "expected an object")
        return Meaning()
    names = {}
    for part in ("rows", "columns"):
        items = reader.objects(value.get(part), f"{location}.{part}")
        names[part] = [reader.string(item, "name", place) for place, item in items]
        reader.check_differ(names[part], f"{location}.{part}")
    rows, columns = names["rows"], names["columns"]
    links = []
    for place, well in reader.objects(value.get("wells"), f"{location}.wells"):
        path = reader.path(well, "path", place)
        row, _, column = path.partition("/")
        if path and (row not in rows or column not in columns):
            reader.error(f"{place}.path", f"{path!r} is not the name of a row, a slash, and the name of a column")
        elif path and (well.get("rowIndex"), well.get("columnIndex")) != (rows.index(row), columns.index(column)):
            expected = f"rowIndex {rows.index(row)} and columnIndex {columns.index(column)}"
            reader.error(place, f"the well {path!r} must have {expected}")
        if path:
            links.append(Link(path, "well", f"{place}.path"))
    counts = {"row": len(rows), "column": len(columns), "well": len(links)}
    facts = {"Plate": ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())}
    return Meaning(titles=("plate",), links=tuple(links), facts=facts)


def _interpret_well(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    images = value.get("images") if isinstance(value, Mapping) else None
    items = reader.objects(images, f"{location}.images")
    paths = [(place, reader.path(item, "path", place)) for place, item in items]
    reader.check_differ([path for _, path in paths], f"{location}.images")
    links = tuple(Link(path, "image", f"{place}.path") for place, path in paths if path)
    return Meaning(titles=("well",), links=links, facts={"Images": ", ".join(link.path for link in links)})


def _interpret_labels(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        reader.error(location, "expected a list of paths")
        return Meaning(titles=("labels",))
    links = tuple(Link(path.strip("/"), "label image", f"{location}[{n}]") for n, path in enumerate(value))
    return Meaning(titles=("labels",), links=links, facts={"Label images": ", ".join(value)})


def _interpret_series(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    if value != 3:
        reader.error(location, f"expected 3, found {value!r}")
    return Meaning(titles=("collection of images",))


_KINDS = {
    "plate": _interpret_plate,
    "multiscales": _interpret_image,
    "well": _interpret_well,
    "labels": _interpret_labels,
    "bioformats2raw.layout": _interpret_series,
}


def _check_colours(value: Any, location: str, reader: Reader) -> None:
    """Report colours and properties of labels without a label or with an invalid colour."""
    for part in ("colors", "properties"):
        if not isinstance(value, Mapping) or part not in value:
            continue
        items = reader.objects(value[part], f"{location}.{part}")
        for place, item in items:
            if "label-value" not in item:
                reader.error(f"{place}.label-value", "the value of the label is missing")
            if "rgba" in item and part == "colors" and not _is_colour(item["rgba"]):
                reader.error(f"{place}.rgba", f"expected four integers from 0 to 255, found {item['rgba']!r}")
        reader.check_differ([repr(item.get("label-value")) for _, item in items], f"{location}.{part}")


def _is_colour(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(type(n) is int and 0 <= n <= 255 for n in value)


def _with_channels(meaning: Meaning, omero: Any) -> Meaning:
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
