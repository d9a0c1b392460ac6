"""OME-Zarr 0.1 to 0.6: images, label images, plates, wells and collections of images.

Up to version 0.4 the attributes of a group contain the metadata; from version 0.5 on, the attribute ``ome`` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zarrasync.metadata.conventions.meaning import RGBA, Labels, Link, Meaning, Reader, merge, short
from zarrasync.metadata.conventions.ome_images import interpret_image, interpret_scene, with_channels
from zarrasync.metadata.format import Format

ATTRIBUTES = ("ome", "multiscales", "plate", "well", "labels", "image-label", "bioformats2raw.layout")
"""Attributes of which a group in OME-Zarr has at least one."""


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
    if "image-label" in metadata:
        label = interpret_image_label(metadata["image-label"], f"{prefix}image-label", reader)
        parts = [replace(part, variable=label.variable, dtype_kinds=label.dtype_kinds) for part in parts]
        parts.insert(0, label)
    meaning = merge(parts) if parts else Meaning()
    is_generic = not version and meaning.levels and not meaning.axes  # pyramids of other software
    title = f"OME-Zarr {version or ('0.5' if prefix else '0.4')} {meaning.titles[0] if meaning.titles else 'group'}"
    meaning = with_channels(meaning, metadata.get("omero"))
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
    first = multiscales[0] if isinstance(multiscales, list | tuple) and multiscales else None
    for holder in (metadata, first, metadata.get("plate"), metadata.get("well"), metadata.get("image-label")):
        version = holder.get("version") if isinstance(holder, Mapping) else None
        if isinstance(version, str):
            return version
    return ""


# ------------------------------------------------------------------ collections


def _interpret_plate(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    if not isinstance(value, Mapping):
        reader.error(location, "expected an object")
        return Meaning()
    names: dict[str, dict[str, int]] = {}  # the number of each
    for part in ("rows", "columns"):
        items = reader.objects(value.get(part), f"{location}.{part}")
        listed = [reader.string(item, "name", place) for place, item in items]
        reader.check_differ(listed, f"{location}.{part}")
        names[part] = {name: number for number, name in reversed(list(enumerate(listed)))}
    rows, columns = names["rows"], names["columns"]
    links = []
    for place, well in reader.objects(value.get("wells"), f"{location}.wells"):
        path = reader.path(well, "path", place)
        row, _, column = path.partition("/")
        if path and (row not in rows or column not in columns):
            reader.error(f"{place}.path", f"{path!r} is not the name of a row, a slash, and the name of a column")
        elif path and (well.get("rowIndex"), well.get("columnIndex")) != (rows[row], columns[column]):
            expected = f"rowIndex {rows[row]} and columnIndex {columns[column]}"
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
    places = [(f"{location}[{number}]", path) for number, path in enumerate(value)]
    paths = [(place, reader.relative(path, place)) for place, path in places]
    links = tuple(Link(path, "label image", place) for place, path in paths if path)
    return Meaning(titles=("labels",), links=links, facts={"Label images": ", ".join(value)})


def _interpret_series(value: Any, location: str, version: str, reader: Reader) -> Meaning:
    if value != 3:
        reader.error(location, f"expected 3, found {value!r}")
    return Meaning(titles=("collection of images",))


_KINDS = {
    "plate": _interpret_plate,
    "multiscales": interpret_image,
    "scene": interpret_scene,
    "well": _interpret_well,
    "labels": _interpret_labels,
    "bioformats2raw.layout": _interpret_series,
}


# ------------------------------------------------------------------ labels


_VALUE = "label-value"
_MOST_SHOWN = 8
"""Number of labels that a fact lists."""
_MOST_TEXT = 200
"""The most characters of the properties of a label."""


def interpret_image_label(value: Any, location: str, reader: Reader) -> Meaning:
    """Return what the object ``image-label`` specifies, and report labels without a value or with an invalid colour."""
    if not isinstance(value, Mapping):
        reader.error(location, f"expected an object, found {short(value)}")
        value = {}
    colours = {
        label: rgba
        for label, place, item in _items(value, "colors", location, reader)
        if (rgba := _colour(item, place, reader)) is not None
    }
    properties = _items(value, "properties", location, reader)
    texts = {
        label: _short(", ".join(f"{name} {_text(item[name])}" for name in item if name != _VALUE))
        for label, _, item in properties
        if len(item) > 1
    }
    facts = {
        "Label colours": _listed(f"{label}: {_hexadecimal(rgba)}" for label, rgba in colours.items()),
        "Label properties": _listed((f"{label}: {text}" for label, text in texts.items()), "; "),
    }
    return Meaning(
        titles=("label image",),
        variable="labels",
        dtype_kinds="iu",
        facts={name: text for name, text in facts.items() if text},
        labels=Labels(colours, texts),
    )


def _items(
    value: Mapping[str, Any], part: str, location: str, reader: Reader
) -> list[tuple[int, str, Mapping[str, Any]]]:
    """Return the labels of a list with the locations and the objects that describe them."""
    if part not in value:
        return []
    found: dict[int, tuple[int, str, Mapping[str, Any]]] = {}
    repeated = []
    for place, item in reader.objects(value[part], f"{location}.{part}"):
        label = item.get(_VALUE)
        if isinstance(label, float) and label.is_integer():  # 1.0 and 1 are the same number in JSON
            label = int(label)
        if _VALUE not in item:
            reader.error(f"{place}.{_VALUE}", "the value of the label is missing")
        elif type(label) is not int:
            reader.error(f"{place}.{_VALUE}", f"expected an integer, found {short(label)}")
        elif label in found:
            repeated.append(str(label))
        else:
            found[label] = (label, place, item)
    if repeated:
        reader.error(f"{location}.{part}", f"{', '.join(repeated[:_MOST_SHOWN])} must occur only once")
    return [*found.values()]


def _colour(item: Mapping[str, Any], place: str, reader: Reader) -> RGBA | None:
    value = item.get("rgba")
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 4 and all(type(n) is int and 0 <= n <= 255 for n in value):
        red, green, blue, alpha = value
        return red, green, blue, alpha
    reader.error(f"{place}.rgba", f"expected four integers from 0 to 255, found {short(value)}")
    return None


def _hexadecimal(rgba: RGBA) -> str:
    """Return a colour as ``#rrggbb``, with the opacity if it is not full."""
    return "#" + "".join(f"{part:02x}" for part in (rgba if rgba[3] < 255 else rgba[:3]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else short(value)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _listed(texts: Iterable[str], separator: str = ", ") -> str:
    items = list(texts)
    more = f"{separator}… {len(items) - _MOST_SHOWN:,} more" if len(items) > _MOST_SHOWN else ""
    return separator.join(items[:_MOST_SHOWN]) + more


# ------------------------------------------------------------------ versions


_OLD, _NEW = "0.4", "0.5"
_MEMBERS = (*(name for name in ATTRIBUTES if name != "ome"), "omero", "series")
"""The attributes that are members of ``ome`` from version 0.5 on."""
_WITH_VERSION = ("multiscales", "plate", "well", "image-label")
"""The members that contain the version up to version 0.4."""


def is_version_for(version: str, format_: Format) -> bool:
    """Return whether images of a version of OME-Zarr can be in a format: 0.4 in format 2, and later ones in others."""
    return (version < _NEW) == (format_.ome_version == _OLD)


def convert_ome(
    attributes: Mapping[str, Any], name: str, source_format: Format, target_format: Format, notes: list[str]
) -> Mapping[str, Any]:
    """Return the attributes of a group in the version of OME-Zarr for another format.

    Args:
        attributes: The attributes. Other attributes than OME-Zarr's are kept.
        name: The name of the group, for notes.
        source_format: The format of the group.
        target_format: The format to convert to.
        notes: A list, to which a note is added if the version cannot be converted, so that the attributes are kept.
    """
    expected = target_format.ome_version
    if source_format.ome_version == expected:
        return attributes
    is_new = isinstance(attributes.get("ome"), Mapping)
    title = next(iter(meaning.titles), "") if (meaning := interpret_ome(attributes)) is not None else ""
    is_series = attributes.keys() == {"series"} and expected == _NEW
    if not is_series and (is_new == (expected == _NEW) or not title.startswith("OME-Zarr")):
        return attributes
    members = attributes["ome"] if is_new else {key: attributes[key] for key in _MEMBERS if key in attributes}
    version = members.get("version", _NEW) if is_new else _version(members) or _OLD
    others = {key: value for key, value in attributes.items() if key != "ome" and key not in members}
    reason = (
        "" if version == (_NEW if is_new else _OLD) else f"only version {_NEW if is_new else _OLD} can be converted"
    )
    if is_new and not attributes.keys().isdisjoint(members):
        reason = "other attributes have the same names"
    if reason:
        notes.append(
            f"{name}: the attributes of OME-Zarr {version} are kept, which readers of the new format do not expect: {reason}"
        )
        return attributes
    if is_new:
        return others | {key: _with_version(key, value) for key, value in members.items() if key != "version"}
    return others | {"ome": {"version": _NEW} | {key: _without_version(value) for key, value in members.items()}}


def _without_version(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_version(item) for item in value]
    return {key: item for key, item in value.items() if key != "version"} if isinstance(value, Mapping) else value


def _with_version(key: str, value: Any) -> Any:
    """Return a member with the version in it, or in each object if it is a list."""
    if key not in _WITH_VERSION:
        return value
    if isinstance(value, list | tuple):
        return [_with_version(key, item) for item in value]
    return {**value, "version": _OLD} if isinstance(value, Mapping) else value
