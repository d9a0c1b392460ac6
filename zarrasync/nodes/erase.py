"""Erasing nodes so that an interruption leaves nothing that is later taken for data."""

from __future__ import annotations

from zarrasync import formats
from zarrasync.display.text import counted
from zarrasync.errors import NodeExistsError
from zarrasync.metadata import ArrayMetadata
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Store

__all__ = ["erase_below", "erase_node", "leftover_chunks"]


async def erase_node(handle: NodeHandle) -> None:
    """Erase a node and everything below it."""
    keys, prefixes = handle.format.erase_keys(handle.path), handle.format.erase_prefixes(handle.path)
    if keys:
        await handle.store.erase_values(keys)
    for prefix in prefixes:
        await erase_below(handle.store, prefix)
    if handle.consolidated is not None:
        await handle.consolidated.update(handle.store, keys, prefixes)


async def erase_below(store: Store, prefix: str) -> None:
    """Erase all keys that start with a prefix, documents first, so that no array with a part of its chunks is left.

    Blocking stores have their own way: local files disappear all at once.
    """
    if not store.blocking:
        documents = [key for key in await store.list_prefix(prefix) if formats.is_document(key)]
        if documents:
            await store.erase_values(documents)
    await store.erase_prefix(prefix)


async def leftover_chunks(handle: NodeHandle, metadata: ArrayMetadata) -> list[str]:
    """Return the keys of chunks at the path of a new array, left by a process that was killed while erasing one.

    Args:
        handle: The location of the new array.
        metadata: Its metadata.

    Returns:
        Keys in the array's chunk store. Chunks outside its grid and of other formats are not part of it, and not
        returned.

    Raises:
        NodeExistsError: If there are other nodes below the path, or values that are not Zarr next to the chunks, so
            that the origin of the chunks is unclear.
        UnsupportedOperation: If the store cannot list.
    """
    store = handle.chunk_store(metadata)
    if store.bounded:  # it has no chunks of an array that does not exist
        return []
    coords = {key: metadata.keys.decode(key, metadata.ndim) for key in await store.list_prefix("")}
    others = sorted(key for key, at in coords.items() if at is None)
    if nodes := [key for key in others if "/" in key and formats.is_document(key)]:
        raise NodeExistsError(
            f"{handle.name} in {handle.store!r} is a group without a document: other nodes lie below it "
            f"({', '.join(nodes[:3])}); pass overwrite=True or mode='w' to replace them",
            path=handle.path,
            store=repr(handle.store),
        )
    chunks = sorted(key for key, at in coords.items() if at is not None and at in metadata.grid)
    foreign = [key for key in others if not formats.may_be_zarr(key)]
    if chunks and foreign:
        raise NodeExistsError(
            f"{counted(len(chunks), 'value')} where chunks of {handle.name} in {handle.store!r} will be "
            f"({', '.join(chunks[:3])}) may not be left over from an array, as other things lie beside "
            f"({', '.join(foreign[:3])}): erase them, or use another path",
            path=handle.path,
            store=repr(handle.store),
        )
    return chunks
