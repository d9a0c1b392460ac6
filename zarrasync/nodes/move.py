"""Moving nodes inside a store.

A move copies values, and then erases the versions that it has copied. Moves in one hierarchy take turns, by locks, and in
object stores by leases, in the directories above the source. Otherwise moves in opposite directions could each erase what
the other one has copied: in object stores, equal values may have equal versions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from zarrasync import formats
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync._concurrency.semaphores import Held, byte_budget
from zarrasync.config import Config
from zarrasync.display.text import counted
from zarrasync.errors import UnsupportedOperation, WriteConflictError
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.erase import MOVES
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Request, Store
from zarrasync.stores.changes import count_change
from zarrasync.stores.leases import Turn


async def move_node(source: NodeHandle, dest: NodeHandle) -> None:
    """Copy all values of a node and of the nodes below it to another path of the same store, then erase the copied ones.

    The copies in flight fit into the memory budget. Documents are copied last, so that an interruption leaves no array
    with only some of its chunks.

    Raises:
        InvalidKeyError: If the format does not allow the new path.
        NodeNotFoundError: If the node does not exist any more.
        NodeExistsError: If a node exists at the new path by now.
        WriteConflictError: If another writer has stored values meanwhile, which remain.
    """
    store, config = source.store, source.config
    dest.format.check_path(dest.path)
    old_prefixes = source.format.erase_prefixes(source.path)
    async with _turn(store, source.path, f"the move of {source.name}", config) as check:
        new_keys = dict(zip(source.format.erase_keys(source.path), dest.format.erase_keys(dest.path), strict=True))
        if any(await store.fetch([Request(key) for key in dest.format.document_keys(dest.path)])):
            raise dest.exists_error(
                f"cannot move {source.name}: a node exists at {dest.name}; erase it first, or choose another path"
            )
        sizes = dict.fromkeys(new_keys, 0)  # documents
        for prefix, new_prefix in zip(old_prefixes, dest.format.erase_prefixes(dest.path), strict=True):
            listed = await store.list_sizes(prefix)
            sizes.update(listed)
            new_keys.update({key: new_prefix + key[len(prefix) :] for key in listed})
            if listed:
                new_keys.pop(prefix.rstrip("/"), None)  # in some formats, the key of an array without axes
        try:
            copied = await _copy_values(store, new_keys, sizes, config)
        finally:
            count_change(store, dest.path, below=True)
        if not copied:
            raise source.not_found_error(f"cannot move {source.name}: another process has moved or erased it")
        await update_copies(dest, [new_keys[key] for key in copied if _is_own_document(dest, key)])
        await check()
        try:
            remaining = await _erase(store, copied, old_prefixes, config)
        finally:
            count_change(store, source.path, below=True)
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
    async with _turn(store, prefix.rstrip("/"), f"the move of /{prefix}", config) as check:
        sizes = await store.list_sizes(prefix)
        new_keys = {key: new_prefix + key[len(prefix) :] for key in sizes}
        copied = await _copy_values(store, new_keys, sizes, config)
        await check()
        remaining = await _erase(store, copied, (prefix,), config)
    _refuse_remaining(remaining, f"/{prefix}".rstrip("/"), f"/{new_prefix}".rstrip("/"))


@asynccontextmanager
async def _turn(store: Store, path: str, name: str, config: Config) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Wait until no other move from a path, or from a directory above it, is running. Yield a check that this is still so."""
    keys = [join(above, MOVES) for above in ancestors(path)[::-1]]
    async with store.locks(keys), AsyncExitStack() as stack:
        seconds = config.total_timeout or 0
        leases = [await stack.enter_async_context(Turn(store.notes, key, name, seconds)) for key in keys]

        async def check() -> None:
            for lease in leases:
                await lease.check()

        yield check


async def _copy_values(
    store: Store, new_keys: Mapping[str, str], sizes: Mapping[str, int], config: Config
) -> Mapping[str, object]:
    """Copy values to new keys, documents last. Return the versions of the copied values by key, documents first."""
    budget, copied = byte_budget(config), dict[str, object]()

    async def copy(key: str) -> None:
        async with Held(budget, sizes[key]):
            (value,) = await store.fetch([Request(key)], versions=True)
            if value is not None:
                await store.put(new_keys[key], value.data)
                copied[key] = value.version

    documents = [key for key in new_keys if formats.is_document(key)]
    others = [key for key in new_keys if not formats.is_document(key)]
    await for_each(copy, others, _limit(store, config))
    await for_each(copy, documents, _limit(store, config))
    return {key: copied[key] for key in (*documents, *others) if key in copied}


def _limit(store: Store, config: Config) -> int:
    return 1 if store.blocking else config.concurrency or store.concurrency


async def _erase(store: Store, copied: Mapping[str, object], prefixes: Sequence[str], config: Config) -> Sequence[str]:
    """Erase values that still have a version, and directories that are empty then. Return the keys of other values.

    Args:
        store: The store.
        copied: The versions by key.
        prefixes: The prefixes of the directories.
        config: Settings.
    """
    unchanged = list[str]()

    async def erase(key: str) -> None:
        try:
            await store.erase(key, if_version=copied[key])
        except WriteConflictError:
            pass  # it remains
        except UnsupportedOperation:
            (value,) = await store.fetch([Request(key, 0, 1)], versions=True)
            if value is not None and value.version == copied[key]:
                unchanged.append(key)

    # Documents first, so that an interruption leaves no array without some of its chunks.
    for is_document in (True, False):
        await for_each(erase, [key for key in copied if formats.is_document(key) == is_document], _limit(store, config))
        if unchanged:
            await store.erase_values(unchanged)
            unchanged.clear()
    remaining: list[str] = []
    for prefix in prefixes:
        remaining += sorted(await store.list_prefix(prefix))
        if store.blocking and not store.flat_namespace:
            await _remove_directories(store, prefix)
    return remaining


async def _remove_directories(store: Store, prefix: str) -> None:
    """Remove a directory and those below it, as far as they are empty."""
    for below in (await store.list_dir(prefix)).prefixes:
        await _remove_directories(store, below)
    if (directories := store.directories) is not None:
        await compute(partial(directories.remove_empty, prefix))


def _refuse_remaining(keys: Sequence[str], source: str, dest: str) -> None:
    if keys:
        raise WriteConflictError(
            f"{source} was moved to {dest}, but another writer stored {counted(len(keys), 'value')} meanwhile, which "
            f"remain: {', '.join(keys[:3])}{', …' if len(keys) > 3 else ''}; copy them to the new place if they are "
            "needed, and erase them",
            key=keys[0],
        )
