"""Erasing so that whoever is killed meanwhile leaves nothing that is taken for data later."""

from __future__ import annotations

from collections.abc import Container

from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.stores import Store

__all__ = ["erase_below", "left_over"]


async def erase_below(store: Store, prefix: str, documents: Container[str]) -> None:
    """Erase all below a prefix, documents first: nothing is left that is an array with a part of its chunks.

    Args:
        store: The store. One that blocks does it in its own way.
        prefix: The prefix.
        documents: The last parts of documents' keys.
    """
    if store.blocking:
        await store.erase_prefix(prefix)
        return
    listed = await store.list_prefix(prefix)
    for first in (True, False):
        if keys := [key for key in listed if (key.rpartition("/")[2] in documents) is first]:
            await store.erase_values(keys)


async def left_over(store: Store, metadata: ArrayMetadata | GroupMetadata) -> list[str]:
    """The keys in an array's chunk store that chunks of it would have."""
    assert isinstance(metadata, ArrayMetadata)
    return [key for key in await store.list_prefix("") if metadata.keys.decode(key, metadata.ndim) is not None]
