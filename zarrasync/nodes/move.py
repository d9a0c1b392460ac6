"""Moving nodes inside a store."""

from __future__ import annotations

from zarrasync import formats
from zarrasync._concurrency.gates import Permits, byte_budget
from zarrasync._concurrency.gather import for_each
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Request

__all__ = ["move_node"]


async def move_node(source: NodeHandle, dest: NodeHandle) -> None:
    """Copy all values of a node and of the nodes below it to another path of the same store, then erase the source.

    The copies in flight fit into the memory budget. Documents are copied last, so that an interruption leaves no array
    with only some of its chunks.

    Raises:
        InvalidKeyError: If the format does not allow the new path.
    """
    store, config = source.store, source.config
    dest.format.check_path(dest.path)
    new_keys = dict(zip(source.format.erase_keys(source.path), dest.format.erase_keys(dest.path), strict=True))
    sizes = dict.fromkeys(new_keys, 0)  # documents
    prefixes = zip(source.format.erase_prefixes(source.path), dest.format.erase_prefixes(dest.path), strict=True)
    for prefix, new_prefix in prefixes:
        listed = await store.list_sizes(prefix)
        sizes.update(listed)
        new_keys.update({key: new_prefix + key[len(prefix) :] for key in listed})
    budget = byte_budget(config)

    async def copy(key: str) -> None:
        async with Permits(budget, sizes[key]):
            (value,) = await store.fetch([Request(key)])
            if value is not None:
                await store.put(new_keys[key], value.data)

    limit = 1 if store.blocking else config.concurrency or store.concurrency
    documents = {key for key in new_keys if formats.is_document(key)}
    await for_each(copy, [key for key in new_keys if key not in documents], limit)
    await for_each(copy, [key for key in new_keys if key in documents], limit)
    copies = source.consolidated
    if copies is not None:
        moved = [new_keys[key] for key in copies.documents if key in new_keys]
        await copies.update(store, moved, config=config)
    await erase_node(source, all_files=True)  # they have moved as well
