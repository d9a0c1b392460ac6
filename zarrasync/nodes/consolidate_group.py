"""Consolidating a group: collecting the documents below it and storing copies. ``consolidated`` keeps them up to date."""

from __future__ import annotations

from zarrasync.errors import UnsupportedOperation
from zarrasync.nodes.consolidated import put_consolidated
from zarrasync.nodes.documents import fetch_documents
from zarrasync.nodes.node import NodeHandle
from zarrasync.nodes.walk import documents_below

__all__ = ["consolidate"]


async def consolidate(group: NodeHandle) -> None:
    """Store copies of all documents below a group in a document of the group.

    Changes made through a group with consolidated metadata wait for the lock and are added afterwards.

    Raises:
        UnsupportedOperation: If the store does not support consolidated metadata.
    """
    if not group.store.supports_consolidated_metadata:
        raise UnsupportedOperation(
            f"{group.store!r} does not support consolidated metadata; its own listings replace it", key=group.path
        )
    keys, copies_key = group.format.document_keys(group.path), group.format.consolidated_key(group.path)
    async with group.store.lock(copies_key or keys[0]):
        documents = await documents_below(group)
        values = await fetch_documents(group.store, keys, group.config)
        group_documents = {key: bytes(value.data) for key, value in zip(keys, values, strict=True) if value is not None}
        await put_consolidated(group.store, group.format, group.path, group_documents, documents)
