"""Why there is no node where one was looked for."""

from __future__ import annotations

from zarrasync.errors import MetadataError
from zarrasync.formats import CANDIDATES
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.nodes.node import NodeHandle, find_all

__all__ = ["why_absent"]


async def why_absent(node: NodeHandle) -> str:
    """What can be said of a place where no node was found, for the message; nothing, if looking around fails."""
    try:
        return await _look_around(node)
    except (OSError, MetadataError):
        return ""


async def _look_around(node: NodeHandle) -> str:
    above = node.path
    paths = [node.path]
    while above:
        above = above.rpartition("/")[0]
        paths.append(above)
    plain = [candidate for candidate in CANDIDATES if candidate.unread_entry_point is None]
    found = await find_all(node, paths, plain, strict=False)
    if found[0] is not None:
        return f"there is a node of Zarr format {found[0].format.zarr_format}"
    for path, one in zip(paths[1:], found[1:], strict=True):
        if one is not None:
            kind = "an array, which has no members" if isinstance(one.metadata, ArrayMetadata) else "a group"
            return f"/{path} is {kind}"
    return node.store.describe(node.path)
