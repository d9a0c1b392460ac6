"""Erasing nodes in an order that leaves no invalid data after an interruption.

A file belongs to a node if a Zarr format uses names like its name (``formats.may_be_zarr``), or if it describes what an
interrupted job has stored in the node. Other files belong to the user.
"""

from __future__ import annotations

import re

from zarrasync import formats
from zarrasync.display.text import counted
from zarrasync.metadata import ArrayMetadata
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.node import JOB_FOLDER, NodeHandle
from zarrasync.stores import Store
from zarrasync.stores.changes import count_change
from zarrasync.stores.values import KeyIndex

APPENDS = ".appends"
"""Name of the value with the rows that writers are appending to a dataset. It lies in the array of the rows' labels."""
MOVES = ".moves"
"""Name of the lock or the lease that a move takes in a directory."""
JOB_RECORD = "record"
"""Name of the value in that folder that describes the result that the job publishes."""
JOB_PLAN = "plan.json"
"""Name of the value in that folder with the plan of a job whose tasks other processes run."""
JOB_TASK = "task-"
"""How the names of values in that folder begin that mark finished tasks."""
_JOB_RESULT = re.compile(
    rf"(?:.*/)?(?:{re.escape(APPENDS)}|{re.escape(MOVES)}|{re.escape(JOB_FOLDER)}/(?:{JOB_RECORD}|{JOB_TASK}[^/]*))"
)


def is_of_job(key: str) -> bool:
    """Return whether a key belongs to the state of a job, which has a meaning only at its place."""
    return JOB_FOLDER in key.split("/")[:-1]


async def erase_node(handle: NodeHandle, *, all_files: bool = False) -> None:
    """Erase a node and all nodes below it.

    Args:
        handle: The location of the node.
        all_files: Also erase files that are not part of any Zarr node.
    """
    keys, prefixes = handle.format.erase_keys(handle.path), handle.format.erase_prefixes(handle.path)
    try:
        if keys:
            await handle.store.erase_values(keys)
        for prefix in prefixes:
            await _erase_below(handle.store, prefix, all_files=all_files)
    finally:  # also if some values remain
        count_change(handle.store, handle.path, below=True)
    await update_copies(handle, keys, prefixes)


async def _erase_below(store: Store, prefix: str, *, all_files: bool) -> None:
    """Erase the keys that start with a prefix.

    Results of interrupted jobs are erased first, so that no later job counts erased values as stored. Then documents are
    erased, so that an interruption leaves no array with only some of its chunks. Blocking stores need no such order if all
    keys are erased, because they erase a prefix at once.
    """
    keys = await store.list_prefix(prefix)
    results = {key for key in keys if _JOB_RESULT.fullmatch(key)}
    kept = [] if all_files else [key for key in keys if key not in results and not formats.may_be_zarr(key)]
    if kept or not store.blocking:
        documents = [key for key in keys if formats.is_document(key)]
        for group in (sorted(results), documents):
            if group:
                await store.erase_values(group)
    if kept:
        await _erase_others(store, prefix, KeyIndex(keys), KeyIndex(kept))
    else:
        await store.erase_prefix(prefix)


async def _erase_others(store: Store, prefix: str, keys: KeyIndex, kept: KeyIndex) -> None:
    """Erase the keys that start with a prefix, except for kept keys, and the directories without kept keys."""
    has_directories = store.blocking and not store.flat_namespace
    erased: list[str] = []
    directories = [prefix]
    for directory in directories:
        if has_directories and not kept.list_prefix(directory):
            await store.erase_prefix(directory)
            continue
        listing, kept_keys = keys.list_dir(directory), set(kept.list_dir(directory).keys)
        erased.extend(key for key in listing.keys if key not in kept_keys)
        directories.extend(listing.prefixes)
    if erased:
        await store.erase_values(erased)


async def leftover_chunks(handle: NodeHandle, metadata: ArrayMetadata) -> list[str]:
    """Return the keys of chunks at the path of a new array that remain from an incompletely erased one.

    Args:
        handle: The location of the new array.
        metadata: Its metadata.

    Returns:
        Keys in the array's chunk store. Chunks outside the array's grid and chunks of other formats are not included.

    Raises:
        NodeExistsError: If other nodes exist below the path, or values that are not Zarr exist next to the chunks, so
            that the origin of the chunks is unclear.
        UnsupportedOperation: If the store cannot list.
    """
    store = handle.chunk_store(metadata)
    if store.checks_bounds:  # it has no chunks of an array that does not exist
        return []
    keys = [key for key in await store.list_prefix("") if not key.startswith(f"{JOB_FOLDER}/")]
    coords = {key: metadata.keys.decode(key, metadata.ndim) for key in keys}
    others = sorted(key for key, at in coords.items() if at is None)
    if nodes := [key for key in others if "/" in key and formats.is_document(key)]:
        raise handle.exists_error(
            f"{handle.place} is a group without a document: other nodes exist below it "
            f"({', '.join(nodes[:3])}); pass overwrite=True to replace them"
        )
    chunks = sorted(key for key, at in coords.items() if at is not None and at in metadata.grid)
    other_files = [key for key in others if not formats.may_be_zarr(key)]
    if chunks and other_files:
        raise handle.exists_error(
            f"cannot create {handle.place}: {counted(len(chunks), 'value')} exist under keys of its "
            f"chunks ({', '.join(chunks[:3])}), next to values that are not Zarr ({', '.join(other_files[:3])}); "
            "erase them, or use another path"
        )
    return chunks
