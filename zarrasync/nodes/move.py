"""Moving nodes inside a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zarrasync import formats
from zarrasync._concurrency.gates import Permits, byte_budget
from zarrasync._concurrency.gather import for_each
from zarrasync.config import Config
from zarrasync.display.text import counted
from zarrasync.errors import WriteConflictError
from zarrasync.nodes.copies_above import update_copies
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Request, Store

__all__ = ["move_node", "move_values"]


async def move_node(source: NodeHandle, dest: NodeHandle) -> None:
    """Copy all values of a node and of the nodes below it to another path of the same store, then erase the copied ones.

    The copies in flight fit into the memory budget. Documents are copied last, so that an interruption leaves no array
    with only some of its chunks.

    Raises:
        InvalidKeyError: If the format does not allow the new path.
        WriteConflictError: If another writer has stored values meanwhile, which remain.
    """
    store, config = source.store, source.config
    dest.format.check_path(dest.path)
    old_prefixes = source.format.erase_prefixes(source.path)
    new_keys = dict(zip(source.format.erase_keys(source.path), dest.format.erase_keys(dest.path), strict=True))
    sizes = dict.fromkeys(new_keys, 0)  # documents
    for prefix, new_prefix in zip(old_prefixes, dest.format.erase_prefixes(dest.path), strict=True):
        listed = await store.list_sizes(prefix)
        sizes.update(listed)
        new_keys.update({key: new_prefix + key[len(prefix) :] for key in listed})
    copied = await _copy_values(store, new_keys, sizes, config)
    await update_copies(dest, [new_keys[key] for key in copied if _is_own_document(dest, key)])
    remaining = await _erase(store, copied, old_prefixes)
    await update_copies(source, source.format.erase_keys(source.path), old_prefixes)
    _refuse_remaining(remaining, source.name, dest.name)


def _is_own_document(node: NodeHandle, key: str) -> bool:
    """Return whether a value is a document of one node, rather than a chunk or the copies of several documents."""
    copies = node.format.consolidated_key("")
    has_only_copies = copies is not None and copies not in node.format.document_keys("")
    return formats.is_document(key) and not (has_only_copies and key.endswith(f"/{copies}"))


async def move_values(store: Store, prefix: str, new_prefix: str, config: Config) -> None:
    """Move all values below a prefix, such as a whole hierarchy, to another prefix of the same store.

    Raises:
        WriteConflictError: If another writer has stored values meanwhile, which remain.
    """
    sizes = await store.list_sizes(prefix)
    new_keys = {key: new_prefix + key[len(prefix) :] for key in sizes}
    copied = await _copy_values(store, new_keys, sizes, config)
    _refuse_remaining(await _erase(store, copied, (prefix,)), f"/{prefix}".rstrip("/"), f"/{new_prefix}".rstrip("/"))


async def _copy_values(
    store: Store, new_keys: Mapping[str, str], sizes: Mapping[str, int], config: Config
) -> Sequence[str]:
    """Copy values to new keys, documents last. Return the keys of the copied values, documents first."""
    budget, copied = byte_budget(config), set[str]()

    async def copy(key: str) -> None:
        async with Permits(budget, sizes[key]):
            (value,) = await store.fetch([Request(key)])
            if value is not None:
                await store.put(new_keys[key], value.data)
                copied.add(key)

    limit = 1 if store.blocking else config.concurrency or store.concurrency
    documents = [key for key in new_keys if formats.is_document(key)]
    others = [key for key in new_keys if not formats.is_document(key)]
    await for_each(copy, others, limit)
    await for_each(copy, documents, limit)
    return [key for key in (*documents, *others) if key in copied]


async def _erase(store: Store, keys: Sequence[str], prefixes: Sequence[str]) -> Sequence[str]:
    """Erase values, and the directories of prefixes below which no others are. Return the keys of the others."""
    # Documents first, so that an interruption leaves no array without some of its chunks.
    await store.erase_values([key for key in keys if formats.is_document(key)])
    await store.erase_values([key for key in keys if not formats.is_document(key)])
    remaining: list[str] = []
    for prefix in prefixes:
        found = await store.list_prefix(prefix)
        remaining += sorted(found)
        if not found and store.blocking and not store.flat:
            await store.erase_prefix(prefix)
    return remaining


def _refuse_remaining(keys: Sequence[str], source: str, dest: str) -> None:
    if keys:
        raise WriteConflictError(
            f"{source} was moved to {dest}, but another writer stored {counted(len(keys), 'value')} meanwhile, which "
            f"remain: {', '.join(keys[:3])}{', …' if len(keys) > 3 else ''}; copy them to the new place if they are "
            "needed, and erase them",
            key=keys[0],
        )
