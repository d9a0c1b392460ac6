"""Records of the files from which arrays were ingested, so that another file into the same array is an error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrasync.bulk.files.records.source_values import FILE, change_sources, read_sources
from zarrasync.bulk.files.sources.engines import is_zarr
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.identify import identity_of
from zarrasync.errors import NodeExistsError
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Store
from zarrasync.stores.local import local_path

__all__ = ["check_records", "identify_source", "record_file", "unfinished"]

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
    head, mark, query = file.url.partition("?") if "://" in path else (file.url, "", "")
    place = f"{head.rstrip('/')}/{group.strip('/')}".rstrip("/")
    return SourceFile(place + mark + query, file.size, file.stamp)


async def record_file(handle: NodeHandle, file: SourceFile) -> None:
    """Record the file of an array."""
    await change_sources(handle, lambda present: {FILE: file.recorded.to_json()})


def unfinished(file: SourceFile) -> SourceFile:
    """Return what to record instead of a file while its values replace other ones. It equals no file."""
    return replace(file, stamp=_UNFINISHED)


async def check_records(store: Store, paths: Sequence[str], file: SourceFile) -> None:
    """Check that arrays were not ingested from another file. Arrays without a record may contain anything.

    Args:
        store: The store.
        paths: The paths of the arrays.
        file: The file to ingest.

    Raises:
        NodeExistsError: If one was ingested from another file, the file has changed, or replacing values was interrupted.
    """
    for path, value in zip(paths, await read_sources(store, paths), strict=True):
        record = _record(value)
        if record is not None and record != file.recorded:
            difference = _difference(record, file)
            raise NodeExistsError(f"/{path} in {store!r} contains {difference}", path=path, store=repr(store))


def _difference(record: SourceFile, file: SourceFile) -> str:
    """Return the end of a message about an array that was not ingested from a file."""
    if record.stamp == _UNFINISHED:
        return (
            f"only some values of {record.short_name}, because an ingestion with mode='r+' was interrupted; repeat it with "
            "mode='r+', or pass mode='w' to replace all values"
        )
    what = "which has changed since" if record.url == file.recorded.url else f"not {file.name}"
    return f"the values of {record.short_name}, {what}; pass mode='w' to replace them, or write to another path"


def _record(value: Mapping[str, Any]) -> SourceFile | None:
    """Return the file of an array. Records of other versions are ignored."""
    try:
        return SourceFile(*value[FILE])
    except (KeyError, TypeError):
        return None
