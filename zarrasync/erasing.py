"""Erasing so that whoever is killed meanwhile leaves nothing that is taken for data later."""

from __future__ import annotations

from zarrasync import formats
from zarrasync.errors import NodeExistsError, UnsupportedOperation
from zarrasync.metadata import ArrayMetadata
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


async def left_over(store: Store, metadata: ArrayMetadata, path: str) -> list[str]:
    """The keys of chunks that lie where those of a new array will, as somebody was killed who erased one.

    Args:
        store: The chunk store of the array that will be.
        metadata: That array.
        path: Its path.

    Raises:
        NodeExistsError: If other nodes lie below the path, or the chunks lie among other things: nobody can tell whose they are.
    """
    if store.bounded:  # of an array that is not there nothing can be
        return []
    try:
        listed = await store.list_prefix("")
    except UnsupportedOperation:
        return []
    places = {key: metadata.keys.decode(key, metadata.ndim) for key in listed}
    others = [key for key, at in places.items() if at is None and ("/" in key or not formats.is_document(key))]
    if nodes := sorted(filter(formats.is_document, others)):
        raise NodeExistsError(
            f"/{path} in {store!r} is a group without a document: other nodes lie below it ({', '.join(nodes[:3])}); "
            "pass overwrite=True or mode='w' to replace them all",
            path=path,
            store=repr(store),
        )
    inside = [key for key, at in places.items() if at is not None and at in metadata.grid]
    if inside and others:
        raise NodeExistsError(
            f"{len(inside):,} values lie at /{path} in {store!r} where chunks will be ({', '.join(sorted(inside)[:3])}), "
            f"and others beside them ({', '.join(sorted(others)[:3])}): erase what is left of an array, or take another path",
            path=path,
            store=repr(store),
        )
    return inside
