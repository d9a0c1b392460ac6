"""The meaning of the stored numbers of an array in its group, whose coordinates may specify the units of bounds."""

from __future__ import annotations

from zarrasync.errors import ZarrError
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions.cf_arrays import encoding_of, may_be_bounds, parent_of
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.nodes.access import handle_of, parent_metadata, readable_members
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup, make_node

__all__ = ["array_encoding"]


async def array_encoding(array: AsyncArray) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    Bounds inherit the units and the calendar of their coordinate. Members of the group are read only if the array may
    contain bounds. If they cannot be listed, nothing is inherited.
    """
    handle, metadata = handle_of(array), array.metadata
    parent = None
    if handle.path and may_be_bounds(metadata):
        above, _, name = handle.path.rpartition("/")
        group = await parent_metadata(array)
        node = make_node(handle.at(above), group) if isinstance(group, GroupMetadata) else None
        if isinstance(node, AsyncGroup):
            try:
                members, _ = await readable_members(node)
            except ZarrError:
                members = []
            arrays = {key: member.metadata for key, member in members if isinstance(member.metadata, ArrayMetadata)}
            parent = parent_of(name, arrays)
    return encoding_of(metadata, handle.format, parent)
