"""Copies of files in a hierarchy that are not part of a Zarr node, such as Parquet tables of SpatialData."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from zarrasync import formats
from zarrasync._concurrency.gates import Permits, byte_budget
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.reports import CopyReport
from zarrasync.errors import ChecksumError, NodeExistsError
from zarrasync.nodes.erase import is_of_job
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Request, Store

_CONCURRENT_FILES = 8


def plan_files(keys: Collection[str], source: NodeHandle, dest: NodeHandle) -> dict[str, str]:
    """Return the keys of files that are not part of a Zarr node or of a job, and their keys in the copy.

    Args:
        keys: All keys below the source.
        source: The node to copy.
        dest: The new node.

    Raises:
        NodeExistsError: If two files would have the same key in the copy.
    """
    prefixes, new_prefixes = source.format.erase_prefixes(source.path), dest.format.erase_prefixes(dest.path)
    new_keys = {}
    for key in sorted(key for key in keys if not (formats.may_be_zarr(key) or is_of_job(key))):
        number = next(number for number, prefix in enumerate(prefixes) if key.startswith(prefix))
        # In a format with several prefixes, the last one is for chunks, and files are usually next to chunks.
        new_prefix = new_prefixes[number] if len(prefixes) == len(new_prefixes) else new_prefixes[-1]
        new_keys[key] = new_prefix + key[len(prefixes[number]) :]
    if len(set(new_keys.values())) < len(new_keys):
        raise NodeExistsError(f"two files below {source.name} in {source.store!r} would have the same key in the copy")
    return new_keys


async def check_free(dest: NodeHandle, keys: Sequence[str]) -> None:
    """Check that the keys of copied files do not exist.

    Raises:
        NodeExistsError: If a key exists.
    """
    values = await run_on_store(partial(dest.store.fetch, [Request(key, 0, 1) for key in keys]), dest.store)
    existing = [key for key, value in zip(keys, values, strict=True) if value is not None]
    if existing:
        raise NodeExistsError(
            f"{existing[0]!r} exists in {dest.store!r} and would be replaced by a file of the source; pass "
            "overwrite=True to replace it, or copy without all_files",
            path=dest.path,
            store=repr(dest.store),
        )


async def copy_files(
    source: Store, dest: NodeHandle, new_keys: Mapping[str, str], report: CopyReport, *, resume: bool, verify: bool
) -> None:
    """Copy whole files within the memory budget.

    Args:
        source: The store of the files.
        dest: The copy.
        new_keys: The keys of the files in the copy, by their keys in the source.
        report: The report to add counts to.
        resume: Keep existing files of the same size.
        verify: Read all files back and compare them.

    Raises:
        ChecksumError: If ``verify`` is set and a file differs.
    """
    budget = byte_budget(dest.config)

    async def copy_file(key: str) -> None:
        stat = await run_on_store(partial(source.stat, key), source)
        if stat is None:  # another process has erased it
            return
        new_key, size = new_keys[key], stat.size or 0
        existing = await run_on_store(partial(dest.store.stat, new_key), dest.store) if resume else None
        is_kept = existing is not None and existing.size == stat.size
        if is_kept and not verify:
            report.skipped += 1
            return
        async with Permits(budget, size):
            (value,) = await run_on_store(partial(source.fetch, [Request(key)]), source)
            if value is None:
                return
            if not is_kept:
                await run_on_store(partial(dest.store.put, new_key, value.data), dest.store)
            if verify:
                (copied,) = await run_on_store(partial(dest.store.fetch, [Request(new_key)]), dest.store)
                if copied is None or bytes(copied.data) != bytes(value.data):
                    raise ChecksumError(
                        f"verification failed: {new_key!r} in {dest.store!r} differs from {key!r} in {source!r}; "
                        "another writer may have changed either of them"
                    )
        report.skipped += is_kept
        report.files += not is_kept

    is_blocking = source.blocking and dest.store.blocking
    await for_each(copy_file, list(new_keys), 1 if is_blocking else _CONCURRENT_FILES)
