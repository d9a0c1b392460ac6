"""Explaining why a node was not found."""

from __future__ import annotations

from zarrasync.errors import MetadataError
from zarrasync.formats import CANDIDATES
from zarrasync.metadata import ArrayMetadata
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle

__all__ = ["explain_missing"]


async def explain_missing(handle: NodeHandle) -> str:
    """Return what exists at or above a path without a node, for the error message. Empty if that fails."""
    try:
        return await _explain(handle)
    except (OSError, MetadataError):
        return ""


async def _explain(handle: NodeHandle) -> str:
    path = handle.path
    paths = [path]
    while path:
        path = path.rpartition("/")[0]
        paths.append(path)
    plain = [candidate for candidate in CANDIDATES if candidate.unread_entry_point is None]
    node, *ancestors = await find_all(handle, paths, plain, strict=False)
    if node is not None:
        return f"there is a node of Zarr format {node.format.zarr_format}"
    for path, ancestor in zip(paths[1:], ancestors, strict=True):
        if ancestor is not None:
            is_array = isinstance(ancestor.metadata, ArrayMetadata)
            return f"/{path} is {'an array, which has no members' if is_array else 'a group'}"
    return handle.store.describe(handle.path)
