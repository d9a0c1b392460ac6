"""Consolidating a group: collecting the documents below it and storing copies. ``consolidated`` keeps them up to date."""

from __future__ import annotations

from collections.abc import Mapping

from zarrasync.errors import UnsupportedOperation, ZarrError
from zarrasync.nodes.consolidated import GroupCopies, replace_copies
from zarrasync.nodes.node import NodeHandle
from zarrasync.nodes.walk import documents_below, warn_of_failures

__all__ = ["add_copies", "consolidate"]


async def consolidate(group: NodeHandle) -> None:
    """Store copies of all documents below a group in a document of the group.

    Nodes that cannot be read are left out, with a warning that names them. A reader with incomplete copies would look
    them up in the store.

    Changes made through a group with consolidated metadata wait for the lock and are added afterwards. Changes by
    other processes are detected, and then all documents are read again.

    Raises:
        UnsupportedOperation: If the store does not support consolidated metadata.
    """
    if not group.store.supports_consolidated_metadata:
        raise UnsupportedOperation(
            f"{group.store!r} does not support consolidated metadata; its own listings replace it", key=group.path
        )

    failures: Mapping[str, ZarrError] = {}

    async def copy(group_documents: Mapping[str, bytes]) -> GroupCopies:
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

    async def add(group_documents: Mapping[str, bytes]) -> GroupCopies:
        existing = group.format.parse_consolidated(group.path, group_documents) or {}
        return _copies(group, group_documents, {**existing, **documents})

    await replace_copies(group.store, group.format, group.path, add, group.config)


def _copies(group: NodeHandle, group_documents: Mapping[str, bytes], documents: Mapping[str, bytes]) -> GroupCopies:
    """Return what consolidated metadata consists of, for the stored documents of a group and of all nodes below it."""
    below = {key: group.format.copied_document(key, data) for key, data in documents.items()}
    return GroupCopies(group.format.own_documents(group.path, group_documents), below)
