"""Moving nodes inside a store."""

from __future__ import annotations

from zarrasync._concurrency.gather import for_each
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Request

__all__ = ["move_node"]

_CONCURRENT_COPIES = 8


async def move_node(source: NodeHandle, dest: NodeHandle) -> None:
    """Copy all values of a node and of the nodes below it to another path of the same store, then erase the source.

    Raises:
        InvalidKeyError: If the format does not allow the new path.
    """
    store = source.store
    dest.format.check_path(dest.path)
    new_keys = dict(zip(source.format.erase_keys(source.path), dest.format.erase_keys(dest.path), strict=True))
    prefixes = zip(source.format.erase_prefixes(source.path), dest.format.erase_prefixes(dest.path), strict=True)
    for prefix, new_prefix in prefixes:
        for key in await store.list_prefix(prefix):
            new_keys[key] = new_prefix + key[len(prefix) :]

    async def copy(key: str) -> None:
        (value,) = await store.fetch([Request(key)])
        if value is not None:
            await store.put(new_keys[key], value.data)

    await for_each(copy, list(new_keys), 1 if store.blocking else _CONCURRENT_COPIES)
    copies = source.consolidated
    if copies is not None:
        moved = [new_keys[key] for key in copies.documents if key in new_keys]
        await copies.update(store, moved, config=source.config)
    await erase_node(source, all_files=True)  # they have moved as well
