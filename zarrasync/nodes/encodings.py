"""The meaning of the stored numbers of an array in its group, whose coordinates may specify the units of bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.errors import ZarrError
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions.cf_arrays import encoding_of, may_be_bounds, parent_of
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.nodes.access import handle_of, parent_metadata, readable_members
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup, make_node

__all__ = ["array_encoding", "parent_attributes"]


async def array_encoding(array: AsyncArray, siblings: Mapping[str, ArrayMetadata] | None = None) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    Bounds inherit the units and the calendar of their coordinate.

    Args:
        array: The array.
        siblings: The arrays of its group by name. By default they are read, if the array may contain bounds. If they
            cannot be listed, nothing is inherited.
    """
    return encoding_of(array.metadata, handle_of(array).format, await parent_attributes(array, siblings))


async def parent_attributes(
    array: AsyncArray, siblings: Mapping[str, ArrayMetadata] | None = None
) -> Mapping[str, Any] | None:
    """Return the attributes of the coordinate whose bounds an array contains; ``None`` if it contains no bounds."""
    handle = handle_of(array)
    if not handle.path or not may_be_bounds(array.metadata):
        return None
    return parent_of(handle.basename, await _siblings(array) if siblings is None else siblings)


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
