"""Updating consolidated metadata in the groups above a node that was opened by its path, without its root group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from zarrasync._concurrency.gather import gather
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle

__all__ = ["update_copies_above"]


async def update_copies_above(node: NodeHandle, keys: Iterable[str], erased_prefixes: Sequence[str] = ()) -> None:
    """Update the copies of documents in all groups above a node, with one batch of requests if no group has copies.

    Args:
        node: The location of the node.
        keys: The keys of changed documents at and below the node. Documents of groups above it are included.
        erased_prefixes: Prefixes below which everything was erased.

    Raises:
        WriteConflictError: If other writers kept changing the copies.
    """
    if not node.path or not node.store.supports_consolidated_metadata:
        return
    changed, paths, path = list(keys), list[str](), node.path
    while path:
        path = path.rpartition("/")[0]
        paths.append(path)
    found = await find_all(node.without_consolidated(), paths, (node.format,), strict=False, consolidated=None)
    updates = []
    for path, group in zip(paths, found, strict=True):  # from the node upwards
        if group is not None and group.consolidated is not None:
            changes = (node.store, tuple(changed), tuple(erased_prefixes))
            updates.append(partial(group.consolidated.update, *changes, config=node.config))
        changed.extend(node.format.document_keys(path))
    await gather(updates)
