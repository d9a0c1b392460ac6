"""Listing the nodes below a group."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from zarrasync import formats
from zarrasync._concurrency.gather import gather
from zarrasync.errors import MetadataError, StoreError, ZarrError
from zarrasync.metadata import GroupMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.documents import check_partial, document_bytes, fetch_documents
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.kinds import Metadata
from zarrasync.nodes.listings import Listings, group_listings, with_documents
from zarrasync.nodes.node import NodeHandle

__all__ = ["Walk", "documents_below", "nodes_below", "walk", "walk_listed", "warn_of_failures"]


class Walk(NamedTuple):
    """The nodes below a group.

    Attributes:
        nodes: Relative paths and metadata, sorted by path.
        failures: The error of each node that cannot be read, and of each group that cannot be listed, by relative path.
    """

    nodes: list[tuple[str, Metadata]]
    failures: Mapping[str, ZarrError]


async def nodes_below(group: NodeHandle, max_depth: int | None) -> list[tuple[str, Metadata]]:
    """Return relative paths and metadata of the nodes below a group, sorted by path.

    Args:
        group: The group.
        max_depth: The number of levels of groups below this one to descend into; ``None`` for all.

    Raises:
        UnsupportedOperation: If the store cannot list.
        MetadataError: If a node is invalid.
        StoreError: If a node cannot be read.
    """
    nodes, failures = await walk(group, max_depth)
    for failure in failures.values():
        raise failure
    return nodes


async def walk(group: NodeHandle, max_depth: int | None) -> Walk:
    """Find the nodes below a group.

    If the group has few keys, this takes one listing and one batch of requests. Otherwise it takes one listing per group
    and one batch of requests per level; consolidated metadata saves them. Nodes that cannot be read are returned as failures.

    Args:
        group: The group.
        max_depth: The number of levels of groups below this one to descend into; ``None`` for all.

    Raises:
        UnsupportedOperation: If the store cannot list.
        StoreError: If the whole store failed, not only single requests.
    """
    if max_depth is not None and max_depth < 0:
        raise ValueError(f"max_depth must be None or at least 0, found {max_depth}")
    async with group_listings(group, max_depth) as listings:
        return await walk_listed(group, listings, max_depth)


async def walk_listed(group: NodeHandle, listings: Listings, max_depth: int | None) -> Walk:
    """Find the nodes below a group whose listings have begun. See ``walk``."""
    nodes: list[tuple[str, Metadata]] = []
    failures: dict[str, ZarrError] = {}
    level, depth = [""], 0
    root = await with_documents(group, listings, max_depth)
    while level:
        members = await _members_of(root, level, max_depth, failures)
        nodes.extend(members.items())
        if group.format.separates_metadata or (max_depth is not None and depth >= max_depth):
            break
        level = [path for path, metadata in members.items() if isinstance(metadata, GroupMetadata)]
        depth += 1
    has_failed = all(isinstance(failure, StoreError) for failure in failures.values())
    if failures and has_failed and not nodes and not group.store.near:  # credentials may have expired, for instance
        raise next(iter(failures.values()))
    return Walk(sorted(nodes, key=lambda item: item[0]), failures)


def warn_of_failures(group: NodeHandle, failures: Mapping[str, ZarrError]) -> None:
    """Warn of nodes that cannot be read."""
    for path, failure in failures.items():
        warnings.warn(f"{group.child(path).name} cannot be read and is omitted: {failure}", stacklevel=3)


async def _members_of(
    root: NodeHandle, groups: Sequence[str], max_depth: int | None, failures: dict[str, ZarrError]
) -> dict[str, Metadata]:
    """Return the metadata of the members of all groups on one level, by path. All paths are relative to the root."""
    if root.consolidated is None:
        listings = await gather([partial(_children, root, path, max_depth, failures) for path in groups])
    else:  # without requests
        listings = [await _children(root, path, max_depth, failures) for path in groups]
    is_implicit = {
        join(path, name): implicit
        for path, listing in zip(groups, listings, strict=True)
        for name, implicit in listing.items()
    }
    documented = [path for path, implicit in is_implicit.items() if not implicit]
    try:
        found = await find_all(root, [join(root.path, path) for path in documented], (root.format,))
    except (MetadataError, StoreError) as error:
        check_partial(error)
        found = await gather([partial(_find, root, path, failures) for path in documented])
    members = {path: node.metadata for path, node in zip(documented, found, strict=True) if node is not None}
    members.update({path: GroupMetadata() for path, implicit in is_implicit.items() if implicit})
    return members


async def _children(
    root: NodeHandle, path: str, max_depth: int | None, failures: dict[str, ZarrError]
) -> Mapping[str, bool]:
    try:
        return await root.at(join(root.path, path)).children(max_depth)
    except StoreError as error:
        if not path:
            raise
        check_partial(error)
        failures[path] = error
        return {}


async def _find(root: NodeHandle, path: str, failures: dict[str, ZarrError]) -> FoundNode | None:
    try:
        (node,) = await find_all(root, [join(root.path, path)], (root.format,))
    except (MetadataError, StoreError) as error:
        check_partial(error)
        failures[path] = error
        return None
    return node


async def documents_below(group: NodeHandle) -> tuple[dict[str, bytes], dict[str, ZarrError]]:
    """Return all metadata documents below a group by key, with as many round trips as ``walk``.

    Nodes that cannot be read are left out. Their errors are returned by relative path.
    """
    format_, documents, failures = group.format, dict[str, bytes](), dict[str, ZarrError]()
    async with group_listings(group, None) as listings_of_group:
        root, level = await with_documents(group, listings_of_group, None), [""]
        while level:
            listings = await gather([partial(_children, root, path, None, failures) for path in level])
            paths = [join(path, name) for path, listing in zip(level, listings, strict=True) for name in listing]
            keys_of = {path: format_.document_keys(join(root.path, path)) for path in paths}
            fetched = await _fetch_documents(root, keys_of, failures)
            level = []
            for path, found in fetched.items():
                try:
                    metadata = formats.parse(format_, join(root.path, path), found)
                except MetadataError as error:
                    failures[path] = error
                    continue
                documents.update({key: data for key, data in found.items() if data is not None})
                if isinstance(metadata, GroupMetadata) and not format_.separates_metadata:
                    level.append(path)
    return documents, failures


async def _fetch_documents(
    root: NodeHandle, keys_of: Mapping[str, Sequence[str]], failures: dict[str, ZarrError]
) -> dict[str, dict[str, bytes | None]]:
    """Return the documents of nodes by relative path and key, without the nodes that cannot be read."""
    try:
        values = iter(
            await fetch_documents(root.store, [key for keys in keys_of.values() for key in keys], root.config)
        )
    except (MetadataError, StoreError) as error:
        check_partial(error)
        if len(keys_of) == 1:
            failures.update(dict.fromkeys(keys_of, error))
            return {}
        single = await gather(
            [partial(_fetch_documents, root, {path: keys}, failures) for path, keys in keys_of.items()]
        )
        return {path: found for part in single for path, found in part.items()}
    return {path: {key: document_bytes(next(values)) for key in keys} for path, keys in keys_of.items()}
