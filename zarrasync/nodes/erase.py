"""Erasing so that whoever is killed meanwhile leaves nothing that is taken for data later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zarrasync import formats
from zarrasync.display.info import counted
from zarrasync.errors import NodeExistsError
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.stores import Store

if TYPE_CHECKING:
    from zarrasync.nodes.node import NodeHandle

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


async def left_over(node: NodeHandle, metadata: ArrayMetadata) -> list[str]:
    """The keys of chunks that lie where those of a new array will, as somebody was killed who erased one.

    Args:
        node: The array's place.
        metadata: The array that will be.

    Returns:
        Keys of its chunk store. Chunks of other grids and formats are no part of it, and stay.

    Raises:
        NodeExistsError: If other nodes lie below, or the chunks lie among other things: nobody can tell whose they are.
        UnsupportedOperation: If the store can not list.
    """
    store = node.chunk_store(metadata)
    if store.bounded:  # of an array that is not there nothing can be
        return []
    places = {key: metadata.keys.decode(key, metadata.ndim) for key in await store.list_prefix("")}
    others = sorted(key for key, at in places.items() if at is None)
    if nodes := [key for key in others if "/" in key and formats.is_document(key)]:
        raise NodeExistsError(
            f"{node.name} in {node.store!r} is a group without a document: other nodes lie below it "
            f"({', '.join(nodes[:3])}); pass overwrite=True or mode='w' to replace them all",
            path=node.path,
            store=repr(node.store),
        )
    inside = sorted(key for key, at in places.items() if at is not None and at in metadata.grid)
    strange = [key for key in others if not formats.may_be_zarr(key)]
    if inside and strange:
        raise NodeExistsError(
            f"{counted(len(inside), 'value')} where chunks of {node.name} in {node.store!r} will be "
            f"({', '.join(inside[:3])}) cannot be told from somebody's own, as other things lie beside "
            f"({', '.join(strange[:3])}): erase what is left of an array, or take another path",
            path=node.path,
            store=repr(node.store),
        )
    return inside
