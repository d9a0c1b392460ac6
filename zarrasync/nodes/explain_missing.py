"""Explaining why a node was not found: the nearest node above it, the members of that node, and a similar name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from zarrasync.errors import MetadataError, NodeNotFoundError
from zarrasync.formats import CANDIDATES
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import ancestors
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle

__all__ = ["add_members", "add_reason"]

_MOST_SHOWN = 10


async def add_reason(error: NodeNotFoundError, handle: NodeHandle) -> None:
    """Add the existing nodes at or above a missing one to an error. Takes one batch of requests and one listing."""
    with suppress(OSError, MetadataError):
        error.args = (f"{error}{await _explain(handle)}",)


async def add_members(error: NodeNotFoundError, group: NodeHandle, path: str) -> None:
    """Add the members of the group above a missing node to an error, if that takes no remote request.

    Args:
        error: The error.
        group: A group above the missing node.
        path: The path of the missing node in the store.
    """
    if not group.store.blocking and group.consolidated is None:
        return
    with suppress(OSError, MetadataError):
        parent = group
        while (name := _next_name(parent, path)) in await parent.children():  # a listing for each level that exists
            parent = parent.at(f"{parent.path}/{name}".lstrip("/"))
        error.args = (f"{error}{await _members(parent, path)}",)


async def _explain(handle: NodeHandle) -> str:
    paths = [handle.path, *ancestors(handle.path)]
    plain = [candidate for candidate in CANDIDATES if candidate.unread_entry_point is None]
    node, *above = await find_all(handle, paths, plain, strict=False)
    if node is not None:
        return f"; a node of Zarr format {node.format.zarr_format} exists there: pass zarr_format={node.format.zarr_format!r}"
    for path, ancestor in zip(paths[1:], above, strict=True):
        if ancestor is None:
            continue
        if isinstance(ancestor.metadata, ArrayMetadata):
            return f"; /{path} is an array, which has no members"
        members = ""
        with suppress(OSError, MetadataError):
            members = await _members(replace(handle, path=path, format=ancestor.format), handle.path)
        return members or f"; /{path} is a group"
    return f"; {handle.store.describe(handle.path)}"


async def _members(group: NodeHandle, missing: str) -> str:
    """Return the members of a group and the most similar name as sentences, or an empty string without members."""
    names = sorted(await group.children())
    if not names:
        return ""
    shown = ", ".join(names[:_MOST_SHOWN]) + (f", … ({len(names)} in total)" if len(names) > _MOST_SHOWN else "")
    similar = get_close_matches(_next_name(group, missing), names, 1)
    return f". Members of {group.name}: {shown}." + (f" Did you mean {similar[0]!r}?" if similar else "")


def _next_name(group: NodeHandle, path: str) -> str:
    """Return the first name of a path below a group."""
    return path[len(group.path) :].strip("/").partition("/")[0]
