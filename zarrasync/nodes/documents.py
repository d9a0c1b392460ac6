"""Metadata documents as stored values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from zarrasync._concurrency.gather import gather
from zarrasync.config import Config
from zarrasync.errors import MetadataError
from zarrasync.stores import Store, Value

__all__ = ["document_bytes", "put_documents"]


def document_bytes(config: Config, key: str, value: Value | None) -> bytes | None:
    """Return a fetched document, or ``None`` if it does not exist.

    Raises:
        MetadataError: If it is larger than ``config.max_document_bytes``.
    """
    if value is None:
        return None
    if len(value.data) > config.max_document_bytes:
        raise MetadataError(
            f"{key}: the document has {len(value.data):,} bytes, "
            f"config.max_document_bytes is {config.max_document_bytes:,}"
        )
    return bytes(value.data)


async def put_documents(
    store: Store, documents: Mapping[str, bytes], versions: Mapping[str, object]
) -> dict[str, object]:
    """Store documents.

    Args:
        store: The store.
        documents: The documents by key.
        versions: By key the version that must still be stored (``ABSENT`` for none). Other keys are overwritten.

    Returns:
        The new versions by key.

    Raises:
        WriteConflictError: If another version is stored.
    """
    puts = [partial(store.put, key, data, if_version=versions.get(key)) for key, data in documents.items()]
    return dict(zip(documents, await gather(puts), strict=True))
