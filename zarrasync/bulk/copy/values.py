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
from zarrasync.bulk.block_plan import UNSIZED_BYTES, memory_limit
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.copy.rechunk import copy_decoded, is_blocking
from zarrasync.bulk.jobs.workers import Workers, share
from zarrasync.bulk.reports import add_reports
from zarrasync.display.progress import IngestReport, skip_of
from zarrasync.errors import ChecksumError
from zarrasync.indexing.chunk_blocks import Blocks, BlockShapes
from zarrasync.indexing.regions import Region, corners, touched_chunks
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.nodes.access import chunks_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Request
from zarrasync.transfer.threads import Progress

__all__ = ["compare_values", "copy_values"]

_BATCH = 256
"""The number of stored values between two calls of the progress callback."""
_ALONE = 8 << 20
"""Bytes of an array that this process copies in less time than sharing the work would take."""

_COMPARED = 1 << 20
"""Bytes to compare at a time, because the comparison copies them."""


async def copy_values(
    source: AsyncArray,
    target: AsyncArray,
    region: Region | None,
    progress: Progress,
    *,
    resume: bool = False,
    is_new: bool = True,
    workers: Workers | None = None,
) -> IngestReport:
    """Copy the values of an array, or of a region of whole stored values.

    Args:
        source: The array to copy.
        target: The new array.
        region: The region; ``None`` for all values. ``resume`` and ``workers`` apply to all values only.
        progress: Called with the number of bytes copied since the last call.
        resume: Whether to keep the stored values of the target.
        is_new: Whether the target has no other stored values.
        workers: Where large arrays are copied. Default: this process.
    """
    begin, report = clock.monotonic(), IngestReport()
    if workers is None or source.nbytes <= _ALONE:
        workers = Workers()
    if has_same_values(source.metadata, target.metadata):
        existing = await stored_chunks(target) if resume else set()
        await _copy_stored(source, target, region, existing, report, progress, workers)
    else:
        await copy_decoded(source, target, region, report, progress, resume=resume, is_new=is_new, workers=workers)
    report.seconds = clock.monotonic() - begin
    return report


async def _copy_stored(
    source: AsyncArray,
    target: AsyncArray,
    region: Region | None,
    existing: set[tuple[int, ...]],
    report: IngestReport,
    progress: Progress,
    workers: Workers,
) -> None:
    """Copy stored values without decoding them, except for existing ones."""
    grid = source.metadata.grid

    def is_missing(coords: tuple[int, ...]) -> bool:
        return coords not in existing

    every = lazy_product([range(n) for n in grid.shape]) if region is None else touched_chunks(region, grid)
    coordinates = filter(is_missing, every)
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
    bridge.run(copying, blocking=is_blocking(source, target))
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
    concurrency = 1 if is_blocking(source, target) else min(origin.concurrency, dest.concurrency)
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


async def compare_values(
    source: AsyncArray, target: AsyncArray, region: Region | None = None, workers: Workers | None = None
) -> None:
    """Compare the values of two arrays.

    Args:
        source: One of them.
        target: The other one.
        region: The region to compare; ``None`` for all values.
        workers: Where large arrays are compared. Default: this process.

    Raises:
        ChecksumError: If the values differ.
    """
    box = tuple(slice(0, n) for n in target.shape) if region is None else region
    regions = _compared_blocks(source, target, box, 1 if workers is None else workers.count)
    if workers is None or workers.is_local or source.nbytes <= _ALONE:
        await _compare_regions(source, target, regions)
        return
    jobs = [partial(_compare_part, source, target, part) for part in share(list(regions))]
    await workers.sum_reports(jobs, ignore_progress, source.store, target.store)


def _compared_blocks(source: AsyncArray, target: AsyncArray, region: Region, processes: int) -> Blocks:
    """Return blocks of a region of which both arrays fit into the memory of a process."""
    metadata = target.metadata
    most = memory_limit(source.config) // processes // 2 // (metadata.dtype.itemsize or UNSIZED_BYTES)
    start, stop = corners(region)
    return BlockShapes(metadata.grid, source.chunks, start=start, stop=stop).blocks(most)


def _compare_part(source: AsyncArray, target: AsyncArray, regions: Sequence[Region]) -> IngestReport:
    """Compare some regions, in another process."""
    bridge.run(_compare_regions(source, target, regions), blocking=is_blocking(source, target))
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
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    pairs = zip(
        *(np.array_split(values.reshape(-1), values.nbytes // _COMPARED + 1) for values in (one, other)), strict=True
    )
    return all(a.tobytes() == b.tobytes() for a, b in pairs)
