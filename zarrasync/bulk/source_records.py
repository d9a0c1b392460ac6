"""Records of the files from which arrays were ingested, so that another file into the same array is an error."""

from __future__ import annotations

import os
from dataclasses import replace

from zarrasync.bulk.files.records.journal import FILE, change_sources, read_sources
from zarrasync.bulk.files.sources.engines import is_zarr
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.identify import local_file, source_name
from zarrasync.errors import NodeExistsError
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Store

_UNFINISHED = "unfinished"
"""The stamp of a file in the record of an array that has some of its values. No file has this stamp."""


def identify_source(url: str) -> SourceFile:
    """Return the identity of a file. Zarr hierarchies and URLs are known by their location alone.

    Raises:
        FileNotFoundError: If a local file does not exist.
    """
    path = source_name(url)
    if "://" in path:
        return SourceFile(path)
    if is_zarr(path) or os.path.isdir(path):
        path, real = os.path.abspath(path), os.path.realpath(path)
        return SourceFile(path, identity="" if real == path else real)
    return local_file(path)


def unfinished(file: SourceFile) -> SourceFile:
    """Return what to record instead of a file while its values replace other ones. It equals no file."""
    return replace(file, stamp=_UNFINISHED)


async def record_file(handle: NodeHandle, file: SourceFile) -> None:
    """Record the file of an array, some of whose values the array may contain."""
    await change_sources(handle, lambda present: {FILE: file.recorded.to_json()})


async def check_record(store: Store, path: str, file: SourceFile) -> None:
    """Check that an array was not ingested from another file. An array without a record may contain anything.

    Args:
        store: The store.
        path: The path of the array.
        file: The file to ingest.

    Raises:
        NodeExistsError: If one was ingested from another file, the file has changed, or replacing values was interrupted.
    """
    (value,) = await read_sources(store, [path])
    try:
        record, own = SourceFile(*value[FILE]), file.recorded
    except (KeyError, TypeError):  # no record, or of another version
        return
    is_unchanged = record.size is None or (record.size, record.stamp) == (own.size, own.stamp)  # else by its location
    if own.url != record.url or not is_unchanged:
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
