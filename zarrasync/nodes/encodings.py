"""The meaning of the stored numbers of an array in its group, whose coordinates may specify the units of bounds."""

from __future__ import annotations

from collections.abc import Mapping

from zarrasync.errors import ZarrError
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions.cf_arrays import encoding_of, may_be_bounds, parent_of
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.nodes.access import handle_of, parent_metadata, readable_members
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup, make_node

__all__ = ["array_encoding"]


async def array_encoding(array: AsyncArray, siblings: Mapping[str, ArrayMetadata] | None = None) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    Bounds inherit the units and the calendar of their coordinate.

    Args:
        array: The array.
        siblings: The arrays of its group by name. By default they are read, if the array may contain bounds. If they
            cannot be listed, nothing is inherited.
    """
    handle, metadata = handle_of(array), array.metadata
    parent = None
    if handle.path and may_be_bounds(metadata):
        parent = parent_of(handle.basename, await _siblings(array) if siblings is None else siblings)
    return encoding_of(metadata, handle.format, parent)


async def _siblings(array: AsyncArray) -> dict[str, ArrayMetadata]:
    handle, group = handle_of(array), await parent_metadata(array)
    node = make_node(handle.at(handle.path.rpartition("/")[0]), group) if isinstance(group, GroupMetadata) else None
    if not isinstance(node, AsyncGroup):
        return {}
    try:
        members, _ = await readable_members(node)
    except ZarrError:  # the store cannot list
        return {}
    return {name: member.metadata for name, member in members if isinstance(member, AsyncArray)}
