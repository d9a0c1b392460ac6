"""The record of the file from which a single array was ingested, next to the array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from zarrasync.bulk.files.records.source_values import FILE, change_sources
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.nodes.node import NodeHandle

__all__ = [
    "UNFINISHED",
    "FileRecord",
    "complete_record",
    "in_group",
    "is_same",
    "parse_record",
    "record_file",
]

UNFINISHED = "unfinished"
"""The stamp of a file in the record of an array that has some of its values. No file has this stamp."""
_COMPLETE = "complete"
"""The member of a value that is true if the array contains all values of its file."""


class FileRecord(NamedTuple):
    """The file of an array.

    Attributes:
        file: The file, as it is recorded.
        is_complete: Whether the array contains all of its values. Otherwise, the job may have been interrupted.
    """

    file: SourceFile
    is_complete: bool


def parse_record(value: Mapping[str, Any]) -> FileRecord | None:
    """Return the file in the value next to an array. Records of other versions are ignored."""
    try:
        return FileRecord(SourceFile(*value[FILE]), value.get(_COMPLETE) is True)
    except (KeyError, TypeError):
        return None


def in_group(file: SourceFile, group: str) -> SourceFile:
    """Return the identity of a group inside a file."""

    def inside(url: str) -> str:
        head, mark, query = url.partition("?") if "://" in url else (url, "", "")
        return f"{head.rstrip('/')}/{group.strip('/')}".rstrip("/") + mark + query

    return SourceFile(inside(file.url), file.size, file.stamp, inside(file.identity) if file.identity else "")


def is_same(record: SourceFile, file: SourceFile) -> bool:
    """Return whether a record means a file, which has not changed, under any of its names."""
    own = file.recorded
    is_unchanged = record.size is None or (record.size, record.stamp) == (own.size, own.stamp)  # else by its location
    return is_unchanged and own.url == record.url


async def record_file(handle: NodeHandle, file: SourceFile) -> None:
    """Record the file of an array, some of whose values the array may contain."""
    await change_sources(handle, lambda present: {FILE: file.recorded.to_json(), _COMPLETE: False})


async def complete_record(handle: NodeHandle, file: SourceFile) -> None:
    """Record that an array contains all values of its file. An array without a record may contain anything, and gets none."""

    def change(present: Mapping[str, Any]) -> Mapping[str, Any]:
        record = parse_record(present)
        return {} if record is None or not is_same(record.file, file) else {_COMPLETE: True}

    await change_sources(handle, change)
