"""Moving nodes inside a store."""

from __future__ import annotations

from collections.abc import Mapping

from zarrasync import formats
from zarrasync._concurrency.gates import Permits, byte_budget
from zarrasync._concurrency.gather import for_each
from zarrasync.config import Config
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Request, Store

__all__ = ["move_node", "move_values"]


async def move_node(source: NodeHandle, dest: NodeHandle) -> None:
    """Copy all values of a node and of the nodes below it to another path of the same store, then erase the source.

    The copies in flight fit into the memory budget. Documents are copied last, so that an interruption leaves no array
    with only some of its chunks.

    Raises:
        InvalidKeyError: If the format does not allow the new path.
    """
    dest.format.check_path(dest.path)
    new_keys = dict(zip(source.format.erase_keys(source.path), dest.format.erase_keys(dest.path), strict=True))
    sizes = dict.fromkeys(new_keys, 0)  # documents
    prefixes = zip(source.format.erase_prefixes(source.path), dest.format.erase_prefixes(dest.path), strict=True)
    for prefix, new_prefix in prefixes:
        listed = await source.store.list_sizes(prefix)
        sizes.update(listed)
        new_keys.update({key: new_prefix + key[len(prefix) :] for key in listed})
    await _copy_values(source.store, new_keys, sizes, source.config)
    copies = source.consolidated
    if copies is not None:
        moved = [new_keys[key] for key in copies.documents if key in new_keys]
        await copies.update(source.store, moved, config=source.config)
    await erase_node(source, all_files=True)  # they have moved as well


async def move_values(store: Store, prefix: str, new_prefix: str, config: Config) -> None:
    """Move all values below a prefix, such as a whole hierarchy, to another prefix of the same store."""
    sizes = await store.list_sizes(prefix)
    await _copy_values(store, {key: new_prefix + key[len(prefix) :] for key in sizes}, sizes, config)
    await store.erase_values([key for key in sizes if formats.is_document(key)])
    await store.erase_prefix(prefix)


async def _copy_values(store: Store, new_keys: Mapping[str, str], sizes: Mapping[str, int], config: Config) -> None:
    """Copy values to new keys, documents last."""
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
