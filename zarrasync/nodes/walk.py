"""Listing the nodes below a group."""

from __future__ import annotations

from functools import partial

from zarrasync import formats
from zarrasync._concurrency.gather import gather
from zarrasync.metadata import GroupMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.documents import document_bytes
from zarrasync.nodes.find import find_all
from zarrasync.nodes.kinds import Metadata
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Request

__all__ = ["documents_below", "nodes_below"]


async def nodes_below(group: NodeHandle, max_depth: int | None) -> list[tuple[str, Metadata]]:
    """Return the nodes below a group, with one listing per group and one batch of documents per level.

    Args:
        group: The group.
        max_depth: How many levels of groups below this one to look into; ``None`` for all.

    Returns:
        Relative paths and metadata, sorted by path.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    if max_depth is not None and max_depth < 0:
        raise ValueError(f"max_depth is at least 0 or None, found {max_depth}")
    group = await group.with_listing() if max_depth != 0 else group
    nodes: list[tuple[str, Metadata]] = []
    level, depth = [""], 0
    while level:
        members = await _members_of(group, level, max_depth)
        nodes.extend(members.items())
        if group.format.separates_metadata or (max_depth is not None and depth >= max_depth):
            break
        level = [path for path, metadata in members.items() if isinstance(metadata, GroupMetadata)]
        depth += 1
    return sorted(nodes, key=lambda item: item[0])


async def _members_of(root: NodeHandle, groups: list[str], max_depth: int | None) -> dict[str, Metadata]:
    """Return the members of groups on one level: metadata by path. All paths are relative to the root."""
    listings = await gather([partial(root.at(join(root.path, path)).children, max_depth) for path in groups])
    is_implicit = {
        join(path, name): implicit
        for path, listing in zip(groups, listings, strict=True)
        for name, implicit in listing.items()
    }
    documented = [path for path, implicit in is_implicit.items() if not implicit]
    found = await find_all(root, [join(root.path, path) for path in documented], (root.format,))
    members = {path: node.metadata for path, node in zip(documented, found, strict=True) if node is not None}
    members.update({path: GroupMetadata() for path, implicit in is_implicit.items() if implicit})
    return members


async def documents_below(group: NodeHandle) -> dict[str, bytes]:
    """Return all metadata documents below a group by key, with one batch of requests per level."""
    format_, documents = group.format, dict[str, bytes]()
    level = [await group.with_listing()]
    while level:
        listings = await gather([partial(handle.children, None) for handle in level])
        members = [handle.child(name) for handle, names in zip(level, listings, strict=True) for name in names]
        keys_of = [format_.document_keys(member.path) for member in members]
        values = iter(await group.store.fetch([Request(key) for keys in keys_of for key in keys]))
        level = []
        for member, keys in zip(members, keys_of, strict=True):
            fetched = {key: document_bytes(group.config, key, next(values)) for key in keys}
            documents.update({key: data for key, data in fetched.items() if data is not None})
            is_group = isinstance(formats.parse(format_, member.path, fetched), GroupMetadata)
            if is_group and not format_.separates_metadata:
                level.append(member)
    return documents
