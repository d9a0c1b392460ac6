"""Consolidated metadata after a change: the copies of documents in the groups above a node."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from zarrasync._concurrency.gather import gather
from zarrasync.errors import UnsupportedOperation, ZarrError
from zarrasync.model.paths import ancestors
from zarrasync.nodes.consolidated import Consolidated, ConsolidatedCopies, replace_copies
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle
from zarrasync.nodes.walk import documents_below, warn_of_failures
from zarrasync.stores.changes import count_change


async def update_copies(
    node: NodeHandle,
    keys: Iterable[str],
    erased_prefixes: Sequence[str] = (),
    *,
    paths: Iterable[str] | None = None,
    new_groups: Iterable[str] = (),
) -> list[str]:
    """Update the copies of documents in all groups above a node. One batch of requests finds the groups that have any.

    A group that was found by its path, without the caller opening it, may be out of the caller's reach. If its copies
    cannot be stored, a warning names it.

    Args:
        node: The location of the node. Nothing is done if its caller updates the copies.
        keys: The keys of changed documents at and below the node, and of new groups above it.
        erased_prefixes: Prefixes below which everything was erased.
        paths: The paths of all changed nodes, if other nodes changed.
        new_groups: The paths of groups that contain no copies, because they have just been created.

    Returns:
        The paths of the groups that contain copies.

    Raises:
        WriteConflictError: If other writers kept changing the copies that the node was opened with.
        StoreError: If those copies cannot be stored.
    """
    changed = list(keys)
    paths = [node.path] if paths is None else list(paths)
    for path in {node.path, *paths}:
        count_change(node.store, path, below=bool(erased_prefixes))
    if not node.keeps_copies or not (changed or erased_prefixes):
        return []
    opened = node.consolidated
    if opened is not None:
        await opened.update(node.store, changed, erased_prefixes, config=node.config)
    above = {group for path in paths for group in ancestors(path)}.difference(new_groups)
    own = [] if opened is None else [opened.path]
    above.difference_update(own)
    if not above or not node.store.supports_consolidated_metadata:
        return own
    handle = node.without_consolidated()
    found = await find_all(handle, sorted(above), (node.format,), strict=False, consolidated=None)
    copies = [group.consolidated for group in found if group is not None and group.consolidated is not None]
    await gather([partial(_update_or_warn, group, node, changed, erased_prefixes) for group in copies])
    return own + [group.path for group in copies]


async def _update_or_warn(
    group: Consolidated, node: NodeHandle, changed: Sequence[str], erased_prefixes: Sequence[str]
) -> None:
    own, below = set(node.format.document_keys(group.path)), tuple(node.format.erase_prefixes(group.path))
    keys = [key for key in changed if key not in own and key.startswith(below)]
    try:
        await group.update(node.store, keys, erased_prefixes, config=node.config)
    except ZarrError as error:
        warnings.warn(
            f"the consolidated metadata of the group /{group.path} in {node.store!r} does not contain the change of "
            f"{node.name}, because it cannot be stored: {error}; consolidate the group again",
            UserWarning,
            stacklevel=2,
        )


async def consolidate(group: NodeHandle) -> None:
    """Store copies of all documents below a group in a document of the group.

    Nodes that cannot be read are left out, with a warning that names them. A reader with incomplete copies would look
    them up in the store.

    Changes made through a group with consolidated metadata wait for the lock and are added afterwards. Changes by
    other processes are detected, and then all documents are read again.

    Raises:
        UnsupportedOperation: If the store does not support consolidated metadata.
        StoreError: If the store failed, or the request for each node of a remote store.
    """
    if not group.store.supports_consolidated_metadata:
        raise UnsupportedOperation(
            f"{group.store!r} does not support consolidated metadata; its own listings replace it", key=group.path
        )

    failures: Mapping[str, ZarrError] = {}

    async def copy(group_documents: Mapping[str, bytes]) -> ConsolidatedCopies:
        nonlocal failures
        documents, failures = await documents_below(group)
        return _copies(group, group_documents, documents)

    await replace_copies(group.store, group.format, group.path, copy, group.config)
    warn_of_failures(group, failures)


async def add_copies(group: NodeHandle, documents: Mapping[str, bytes]) -> None:
    """Store copies of documents below a group, next to existing ones. No document except the group's is read.

    Args:
        group: The group.
        documents: Documents by key that the caller has just stored, which are all documents below the group unless
            another writer has added copies of others.
    """

    async def add(group_documents: Mapping[str, bytes]) -> ConsolidatedCopies:
        existing = group.format.parse_consolidated(group.path, group_documents) or {}
        return _copies(group, group_documents, {**existing, **documents})

    await replace_copies(group.store, group.format, group.path, add, group.config)


def _copies(
    group: NodeHandle, group_documents: Mapping[str, bytes], documents: Mapping[str, bytes]
) -> ConsolidatedCopies:
    """Return what consolidated metadata consists of, for the stored documents of a group and of all nodes below it."""
    below = {key: group.format.copied_document(key, data) for key, data in documents.items()}
    return ConsolidatedCopies(group.format.own_documents(group.path, group_documents), below)
