"""The values of a copy: stored values are copied unchanged, or decoded and encoded again."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.blocks import Ingestion
from zarrasync.bulk.reports import CopyReport
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport, skip_of
from zarrasync.errors import ChecksumError, UnsupportedOperation
from zarrasync.indexing.chunk_blocks import plan_blocks
from zarrasync.indexing.coverage import coarser_chunks
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.nodes.access import chunks_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Request
from zarrasync.transfer.threads import Progress

__all__ = ["compare_arrays", "copy_array"]

_BATCH = 256
"""The number of stored values between two calls of the progress callback."""
_WORTH_LISTING = 64
"""The number of stored values of a target above which listing the source saves time."""


async def copy_array(
    source: AsyncArray, target: AsyncArray, report: CopyReport, progress: Progress, *, resume: bool, is_new: bool
) -> None:
    """Copy all values of an array.

    Args:
        source: The array to copy.
        target: The new array.
        report: The report to add counts to.
        progress: Called with the number of bytes copied since the last call.
        resume: Whether to keep the stored values of the target.
        is_new: Whether the target has no other stored values.
    """
    begin, ingested = clock.monotonic(), IngestReport()
    if has_same_values(source.metadata, target.metadata):
        await _copy_stored(source, target, await stored_chunks(target) if resume else set(), ingested, progress)
    else:
        await _copy_decoded(source, target, ingested, progress, resume=resume, is_new=is_new)
    ingested.seconds = clock.monotonic() - begin
    report.copied += ingested.blocks
    report.skipped += ingested.skipped
    report.nbytes += ingested.nbytes
    report.members[target.name] = ingested


async def _copy_decoded(
    source: AsyncArray, target: AsyncArray, report: IngestReport, progress: Progress, *, resume: bool, is_new: bool
) -> None:
    """Decode values and encode them again in the layout of the target."""
    chosen = await _chosen_values(source, target, is_new=is_new)
    ingestion = Ingestion(source_of(source, {}), target, None, "allow", report, chosen=chosen)
    await ingestion.run(progress, resume=resume, is_new=is_new, verify=False)


async def _chosen_values(source: AsyncArray, target: AsyncArray, *, is_new: bool) -> set[tuple[int, ...]] | None:
    """Return the grid coordinates of the values to write, for which the source has stored values. ``None`` for all.

    All other elements have the fill value, and finding that out by reading them is slow if they are many. If the fill
    value is undefined, reading cannot find it out at all.
    """
    source_spec, target_spec, grid = source.metadata.spec, target.metadata.spec, target.metadata.grid
    same_fill = repr(source_spec.fill_value) == repr(target_spec.fill_value)
    saves_time = grid.size > _WORTH_LISTING and same_fill
    if target.config.write_empty_chunks or not (target_spec.undefined or saves_time):
        return None
    try:
        stored = await stored_chunks(source)
        # Values of the target may have to be erased.
        existing = set() if is_new or target_spec.undefined else await stored_chunks(target)
    except UnsupportedOperation:
        return None
    chosen = set(filter(grid.__contains__, existing))
    present = filter(source.metadata.grid.__contains__, stored)
    return chosen | coarser_chunks(present, source.metadata.grid, grid, (1,) * source.ndim)


async def _copy_stored(
    source: AsyncArray, target: AsyncArray, existing: set[tuple[int, ...]], report: IngestReport, progress: Progress
) -> None:
    """Copy stored values without decoding them, except for existing ones."""
    origin, dest = chunks_of(source), chunks_of(target)
    is_blocking = origin.store.blocking and dest.store.blocking
    concurrency = 1 if is_blocking else min(origin.concurrency, dest.concurrency)
    grid, chain = source.metadata.grid, source.metadata.chain
    # Absent chunks have a defined value in the source, but readers of the target may fill them with any value.
    becomes_undefined = target.metadata.spec.undefined > source.metadata.spec.undefined
    absent = chain.encode_fill_chunk() if becomes_undefined else None

    def size_of(coords: tuple[int, ...]) -> int:
        count: int = math.prod(part.stop - part.start for part in grid.box(coords))
        return count * source.dtype.itemsize

    async def copy_one(coords: tuple[int, ...]) -> None:
        async with origin.budget(chain.nbytes):
            requests = [Request(origin.key(coords), limit=origin.limit)]
            (value,) = await run_on_store(partial(origin.store.fetch, requests), origin.store)
            data = absent if value is None else value.data
            if data is not None:
                await run_on_store(partial(dest.store.put, dest.key(coords), data), dest.store)
                report.blocks += 1
                report.nbytes += size_of(coords)

    coordinates = lazy_product([range(n) for n in grid.shape])
    while batch := list(islice(coordinates, _BATCH)):
        missing = [coords for coords in batch if coords not in existing]
        await for_each(copy_one, missing, concurrency)
        report.skipped += len(batch) - len(missing)
        progress(sum(map(size_of, missing)))
        if len(missing) < len(batch):
            skip_of(progress)(sum(size_of(coords) for coords in batch if coords in existing))


async def compare_arrays(source: AsyncArray, target: AsyncArray) -> None:
    """Compare all values of two arrays.

    Raises:
        ChecksumError: If the values differ.
    """
    metadata = target.metadata
    most = source.config.memory_budget // 8 // (metadata.dtype.itemsize or 16)
    for region in plan_blocks(metadata.grid, source.metadata.write_chunks, most):
        values, copied = [await array.view[(*region, ...)].read() for array in (source, target)]
        if not _are_equal(values, copied):
            text = ", ".join(f"{part.start}:{part.stop}" for part in region)
            raise ChecksumError(
                f"verification failed: {target.name}[{text}] in {target.store!r} differs from {source.name} in "
                f"{source.store!r}; another writer may have changed either of them"
            )


def _are_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are equal bit by bit."""
    if one.dtype.kind in "TO":
        return bool(one.shape == other.shape and one.astype(object).tolist() == other.astype(object).tolist())
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
