"""Erasing so that whoever is killed meanwhile leaves nothing that is taken for data later."""

from __future__ import annotations

from zarrasync import formats
from zarrasync.errors import UnsupportedOperation
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.stores import Store

__all__ = ["erase_below", "left_over"]


async def erase_below(store: Store, prefix: str) -> None:
    """Erase all below a prefix, documents first: nothing is left that is an array with a part of its chunks.

    What blocks does that in its own way: files are gone all at once.
    """
    if not store.blocking:
        documents = [key for key in await store.list_prefix(prefix) if formats.is_document(key)]
        if documents:
            await store.erase_values(documents)
    await store.erase_prefix(prefix)


async def left_over(store: Store, metadata: ArrayMetadata | GroupMetadata) -> list[str]:
    """The keys of chunks that lie where a new array's will, as somebody was killed who erased one.

    None if anything else lies there, which may be somebody's, nor those outside of the grid.

    Args:
        store: The array's chunk store.
        metadata: The array.
    """
    assert isinstance(metadata, ArrayMetadata)
    if store.bounded:  # of an array that is not there nothing can be
        return []
    try:
        listed = await store.list_prefix("")
    except UnsupportedOperation:
        return []
    places = [metadata.keys.decode(key, metadata.ndim) for key in listed]
    if None in places:
        return []
    counts = metadata.grid.shape
    inside = (at is not None and all(i < n for i, n in zip(at, counts, strict=True)) for at in places)
    return [key for key, wanted in zip(listed, inside, strict=True) if wanted]
