"""The versions of OME-Zarr that belong to formats, and the conversion of attributes between them. No IO.

Version 0.4 is for format 2, where the attributes of a group contain the metadata. Version 0.5 is for format 3, where the
attribute ``ome`` contains the same metadata with one common version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.metadata.conventions.ome import ATTRIBUTES, interpret_ome
from zarrasync.metadata.format import Format

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
    version = members.get("version", _NEW) if is_new else _version_of(members)
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


def _version_of(members: Mapping[str, Any]) -> str:
    """Return the version of metadata up to 0.4, which is 0.4 if no member specifies one."""
    for key in _WITH_VERSION:
        value = members.get(key)
        item = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(item, Mapping) and isinstance(item.get("version"), str):
            return str(item["version"])
    return _OLD


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
