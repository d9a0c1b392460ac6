"""Records of the files from which arrays were ingested, so that another file into the same array is an error.

A record is an attribute of a single array, or of the group below which a file with several arrays was stored.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from zarrasync.bulk.files.sources.engines import is_zarr
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.identify import identity_of
from zarrasync.errors import NodeExistsError
from zarrasync.stores.local import local_path

__all__ = ["check_record", "identify_source", "record_of", "unfinished"]

_ATTRIBUTE = "zarrasync_sources"
_VERSION = 1
_UNFINISHED = "unfinished"
"""The stamp of a file in the record of an array that has some of its values. No file has this stamp."""


def identify_source(url: str, group: str = "") -> SourceFile:
    """Return the identity of a file. Zarr hierarchies and URLs are known by their location alone.

    Args:
        url: A path or a URL.
        group: The group inside the file.

    Raises:
        FileNotFoundError: If a local file does not exist.
    """
    path = local_path(url) if url.startswith("file://") else url
    if "://" in path:
        file = SourceFile(path)
    elif is_zarr(path) or os.path.isdir(path):
        file = SourceFile(os.path.abspath(path))
    else:
        file = identity_of(path, {})
    place = f"{file.name.rstrip('/')}/{group.strip('/')}".rstrip("/")
    return SourceFile(place, file.size, file.stamp)


def record_of(
    file: SourceFile, paths: Collection[str] = ("",), known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the attribute that records a file.

    Args:
        file: The file.
        paths: The paths of its arrays below the node with the attribute.
        known: The attributes of that node. Records of other arrays stay.
    """
    records = {**_records(known or {}), **dict.fromkeys(paths, file)}
    files = [[*item.to_json(), [path for path in records if records[path] == item]] for item in set(records.values())]
    return {_ATTRIBUTE: {"version": _VERSION, "files": sorted(files, key=repr)}}


def unfinished(file: SourceFile) -> SourceFile:
    """Return what to record instead of a file while its values replace other ones. It equals no file."""
    return replace(file, stamp=_UNFINISHED)


def check_record(
    attributes: Mapping[str, Any], file: SourceFile, place: str, store: Any, paths: Collection[str] = ("",)
) -> None:
    """Check that arrays were not ingested from another file.

    Args:
        attributes: The attributes with the record. Arrays without one may contain anything.
        file: The file to ingest.
        place: The path of the node with the attributes, for messages.
        store: The store, for messages.
        paths: The paths of the arrays below the node.

    Raises:
        NodeExistsError: If one was ingested from another file, the file has changed, or replacing values was interrupted.
    """
    for path in paths:
        record = _records(attributes).get(path)
        if record is None or record == file:
            continue
        name = f"/{'/'.join(part for part in (place, path) if part)}"
        raise NodeExistsError(
            f"{name} in {store!r} contains {_difference(record, file)}",
            path=name.strip("/"),
            store=repr(store),
        )


def _difference(record: SourceFile, file: SourceFile) -> str:
    """Return the end of a message about an array that was not ingested from a file."""
    if record.stamp == _UNFINISHED:
        return (
            f"only some values of {record.url}, because an ingestion with mode='r+' was interrupted; repeat it with mode='r+', "
            "or pass mode='w' to replace all values"
        )
    what = "which has changed since" if record.url == file.url else f"not {file.url}"
    return f"the values of {record.url}, {what}; pass mode='w' to replace them, or write to another path"


def _records(attributes: Mapping[str, Any]) -> dict[str, SourceFile]:
    """Return the files by the paths of their arrays. Records of other versions are ignored."""
    value = attributes.get(_ATTRIBUTE)
    try:
        if not isinstance(value, Mapping) or value["version"] != _VERSION:
            return {}
        return {path: SourceFile(url, size, stamp) for url, size, stamp, paths in value["files"] for path in paths}
    except (KeyError, TypeError, ValueError):
        return {}
