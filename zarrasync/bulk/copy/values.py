"""The values of a copy: stored values are copied unchanged, or decoded and encoded again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.blocks import Ingestion, ignore_progress
from zarrasync.bulk.jobs.workers import Workers, share
from zarrasync.bulk.reports import CopyReport, add_reports
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport, skip_of
from zarrasync.errors import ChecksumError, UnsupportedOperation
from zarrasync.indexing.chunk_blocks import plan_blocks
from zarrasync.indexing.coverage import coarser_chunks, touched_chunks
from zarrasync.indexing.regions import Region, corners
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.nodes.access import chunks_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Request
from zarrasync.transfer.threads import Progress

__all__ = ["compare_arrays", "compare_box", "copy_array", "copy_box"]

_BATCH = 256
"""The number of stored values between two calls of the progress callback."""
_ALONE = 8 << 20
"""Bytes of an array that this process copies in less time than sharing the work would take."""
_BLOCKS_ELSEWHERE = 8
"""The number of blocks among which the memory of another process is divided, so that arrays have blocks for all processes."""
_WORTH_LISTING = 64
"""The number of stored values of a target above which listing the source saves time."""


async def copy_array(
    source: AsyncArray,
    target: AsyncArray,
    report: CopyReport,
    progress: Progress,
    *,
    resume: bool,
    is_new: bool,
    workers: Workers,
) -> None:
    """Copy all values of an array.

    Args:
        source: The array to copy.
        target: The new array.
        report: The report to add counts to.
        progress: Called with the number of bytes copied since the last call.
        resume: Whether to keep the stored values of the target.
        is_new: Whether the target has no other stored values.
        workers: Where large arrays are copied.
    """
    begin, ingested = clock.monotonic(), IngestReport()
    if source.nbytes <= _ALONE:
        workers = Workers()
    if has_same_values(source.metadata, target.metadata):
        existing = await stored_chunks(target) if resume else set()
        await _copy_stored(source, target, existing, ingested, progress, workers)
    else:
        await _copy_decoded(source, target, ingested, progress, resume=resume, is_new=is_new, workers=workers)
    ingested.seconds = clock.monotonic() - begin
    report.copied += ingested.blocks
    report.skipped += ingested.skipped
    report.nbytes += ingested.nbytes
    report.members[target.name] = ingested


async def _copy_decoded(
    source: AsyncArray,
    target: AsyncArray,
    report: IngestReport,
    progress: Progress,
    *,
    resume: bool,
    is_new: bool,
    workers: Workers,
) -> None:
    """Decode values and encode them again in the layout of the target."""
    chosen = await _chosen_values(source, target, is_new=is_new)
    ingestion = Ingestion(source_of(source, {}), target, None, "allow", report, chosen=chosen)
    if workers.is_local:
        await ingestion.run(progress, resume=resume, is_new=is_new, verify=False)
        return
    regions = await ingestion.remaining(progress, resume=resume, concurrency=_BLOCKS_ELSEWHERE)
    jobs = [partial(_copy_regions, source, target, part, is_new) for part in share(regions)]
    add_reports(report, await workers.sum_reports(jobs, progress, source.store, target.store))


async def copy_box(source: AsyncArray, target: AsyncArray, region: Region, report: IngestReport) -> None:
    """Copy a region of whole stored values, for which the target has none.

    Args:
        source: The array to copy.
        target: The new array.
        region: The region.
        report: The report to add counts to.
    """
    touched = touched_chunks(region, target.metadata.grid)
    if has_same_values(source.metadata, target.metadata):
        await _copy_values(source, target, touched, report, ignore_progress)
        return
    chosen = await _chosen_values(source, target, is_new=True) if target.metadata.spec.undefined else None
    part = source_of(source.view[(*region, ...)], {})
    part.chunks = source.metadata.write_chunks
    own = None if chosen is None else chosen.intersection(touched)
    ingestion = Ingestion(part, target, region, "allow", report, chosen=own)
    await ingestion.run(ignore_progress, resume=False, is_new=True, verify=False)


def _copy_regions(source: AsyncArray, target: AsyncArray, regions: Sequence[Region], is_new: bool) -> IngestReport:
    """Copy some regions, in another process."""
    report = IngestReport()
    ingestion = Ingestion(source_of(source, {}), target, None, "allow", report, concurrency=1)
    bridge.run(ingestion.run_regions(regions, is_new=is_new), blocking=_is_blocking(source, target))
    return report


def _is_blocking(source: AsyncArray, target: AsyncArray) -> bool:
    return source.store.blocking and target.store.blocking


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
    source: AsyncArray,
    target: AsyncArray,
    existing: set[tuple[int, ...]],
    report: IngestReport,
    progress: Progress,
    workers: Workers,
) -> None:
    """Copy stored values without decoding them, except for existing ones."""
    grid = source.metadata.grid

    def is_missing(coords: tuple[int, ...]) -> bool:
        return coords not in existing

    coordinates = filter(is_missing, lazy_product([range(n) for n in grid.shape]))
    if existing:
        known = [coords for coords in existing if coords in grid]
        report.skipped += len(known)
        skip_of(progress)(sum(_value_size(source, coords) for coords in known))
    if workers.is_local:
        await _copy_values(source, target, coordinates, report, progress)
        return
    jobs = [partial(_copy_part, source, target, part) for part in share(list(coordinates))]
    add_reports(report, await workers.sum_reports(jobs, progress, source.store, target.store))


def _copy_part(source: AsyncArray, target: AsyncArray, coordinates: Sequence[tuple[int, ...]]) -> IngestReport:
    """Copy some stored values, in another process."""
    report = IngestReport()
    copying = _copy_values(source, target, coordinates, report, ignore_progress)
    bridge.run(copying, blocking=_is_blocking(source, target))
    return report


def _value_size(array: AsyncArray, coords: tuple[int, ...]) -> int:
    """Return the decoded size of a stored value, in bytes."""
    count: int = math.prod(part.stop - part.start for part in array.metadata.grid.box(coords))
    return count * array.dtype.itemsize


async def _copy_values(
    source: AsyncArray,
    target: AsyncArray,
    coordinates: Iterable[tuple[int, ...]],
    report: IngestReport,
    progress: Progress,
) -> None:
    """Copy the stored values at grid coordinates without decoding them."""
    origin, dest = chunks_of(source), chunks_of(target)
    concurrency = 1 if _is_blocking(source, target) else min(origin.concurrency, dest.concurrency)
    chain, size_of = source.metadata.chain, partial(_value_size, source)
    # Absent chunks have a defined value in the source, but readers of the target may fill them with any value.
    becomes_undefined = target.metadata.spec.undefined > source.metadata.spec.undefined
    absent = chain.encode_fill_chunk() if becomes_undefined else None

    async def copy_one(coords: tuple[int, ...]) -> None:
        async with origin.budget(chain.nbytes):
            requests = [Request(origin.key(coords), limit=origin.limit)]
            (value,) = await run_on_store(partial(origin.store.fetch, requests), origin.store)
            data = absent if value is None else value.data
            if data is not None:
                await run_on_store(partial(dest.store.put, dest.key(coords), data), dest.store)
                report.blocks += 1
                report.nbytes += size_of(coords)

    remaining = iter(coordinates)
    while batch := list(islice(remaining, _BATCH)):
        await for_each(copy_one, batch, concurrency)
        progress(sum(map(size_of, batch)))


async def compare_arrays(source: AsyncArray, target: AsyncArray, workers: Workers) -> None:
    """Compare all values of two arrays.

    Args:
        source: One of them.
        target: The other one.
        workers: Where large arrays are compared.

    Raises:
        ChecksumError: If the values differ.
    """
    metadata = target.metadata
    most = source.config.memory_budget // 8 // (metadata.dtype.itemsize or 16)
    regions = plan_blocks(metadata.grid, source.metadata.write_chunks, most)
    if workers.is_local or source.nbytes <= _ALONE:
        await _compare_regions(source, target, regions)
        return
    jobs = [partial(_compare_part, source, target, part) for part in share(list(regions))]
    await workers.sum_reports(jobs, ignore_progress, source.store, target.store)


async def compare_box(source: AsyncArray, target: AsyncArray, region: Region) -> None:
    """Compare the values of a region of two arrays.

    Raises:
        ChecksumError: If the values differ.
    """
    metadata = target.metadata
    most = source.config.memory_budget // 8 // (metadata.dtype.itemsize or 16)
    await _compare_regions(
        source, target, plan_blocks(metadata.grid, source.metadata.write_chunks, most, *corners(region))
    )


def _compare_part(source: AsyncArray, target: AsyncArray, regions: Sequence[Region]) -> IngestReport:
    """Compare some regions, in another process."""
    bridge.run(_compare_regions(source, target, regions), blocking=_is_blocking(source, target))
    return IngestReport()


async def _compare_regions(source: AsyncArray, target: AsyncArray, regions: Iterable[Region]) -> None:
    for region in regions:
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
