"""Records of the files from which arrays were ingested, so that another file into the same array is an error."""

from __future__ import annotations

import os
from dataclasses import replace

from zarrasync.bulk.files.records.file_records import UNFINISHED, in_group, is_same, parse_record
from zarrasync.bulk.files.records.source_values import read_sources
from zarrasync.bulk.files.sources.engines import is_zarr
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.identify import local_file, source_name
from zarrasync.errors import NodeExistsError
from zarrasync.stores import Store

__all__ = ["check_record", "identify_source", "unfinished"]


def identify_source(url: str, group: str = "") -> SourceFile:
    """Return the identity of a file. Zarr hierarchies and URLs are known by their location alone.

    Args:
        url: A path or a URL.
        group: The group inside the file.

    Raises:
        FileNotFoundError: If a local file does not exist.
    """
    path = source_name(url)
    if "://" in path:
        return in_group(SourceFile(path), group)
    if is_zarr(path) or os.path.isdir(path):
        file = local_file(path) if os.path.exists(path) else SourceFile(os.path.abspath(path))
        return in_group(SourceFile(file.url, identity=file.identity), group)
    return in_group(local_file(path), group)


def unfinished(file: SourceFile) -> SourceFile:
    """Return what to record instead of a file while its values replace other ones. It equals no file."""
    return replace(file, stamp=UNFINISHED)


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
    record = parse_record(value)
    if record is not None and not is_same(record.file, file):
        difference = _difference(record.file, file)
        raise NodeExistsError(f"/{path} in {store!r} contains {difference}", path=path, store=repr(store))


def _difference(record: SourceFile, file: SourceFile) -> str:
    """Return the end of a message about an array that was not ingested from a file."""
    if record.stamp == UNFINISHED:
        return (
            f"only some values of {record.short_name}, because an ingestion with mode='r+' was interrupted; repeat it with "
            "mode='r+', or pass mode='w' to replace all values"
        )
    what = "which has changed since" if record.url == file.recorded.url else f"not {file.name}"
    return f"the values of {record.short_name}, {what}; pass mode='w' to replace them, or write to another path"
