"""The values of a copy: stored values are copied unchanged, or decoded and encoded again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import filterfalse, islice

from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.block_plan import memory_limit
from zarrasync.bulk.copy.rechunk import copy_decoded, is_blocking
from zarrasync.bulk.jobs.boxes import UNSIZED_BYTES
from zarrasync.bulk.jobs.compare import compare_arrays
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.display.progress import IngestReport, skip_of
from zarrasync.indexing.chunk_blocks import BlockShapes
from zarrasync.indexing.regions import Region, corners, touched_chunks
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.nodes.access import chunks_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Request
from zarrasync.transfer.threads import Progress

_BATCH = 256
"""The number of stored values between two calls of the progress callback."""


async def copy_values(
    source: AsyncArray,
    target: AsyncArray,
    region: Region | None,
    progress: Progress,
    *,
    workers: Workers,
    verify: bool = False,
    resume: bool = False,
    is_new: bool = True,
) -> IngestReport:
    """Copy the values of an array, or of a region of whole stored values.

    Args:
        source: The array to copy.
        target: The new array.
        region: The region; ``None`` for all values. ``resume`` and ``workers`` apply to all values only.
        progress: Called with the number of bytes copied since the last call.
        workers: Where the values are copied.
        verify: Whether to read the values back and compare them.
        resume: Whether to keep the stored values of the target.
        is_new: Whether the target has no other stored values.
    """
    begin, report = clock.monotonic(), IngestReport()
    if not has_same_values(source.metadata, target.metadata):
        await copy_decoded(source, target, region, report, progress, resume=resume, is_new=is_new, workers=workers)
    else:
        grid, existing = source.metadata.grid, await stored_chunks(target) if resume else set()
        every = lazy_product([range(n) for n in grid.shape]) if region is None else touched_chunks(region, grid)
        known = [coords for coords in existing if coords in grid]
        skipped = sum(_value_size(source, coords) for coords in known)
        skip_of(progress)(skipped)
        missing = filterfalse(existing.__contains__, every)
        copy = partial(_copy_values, source, target)
        report = await workers.share(copy, missing, progress, source.store, target.store)
        if not workers.is_local:  # their reports do not count absent values
            skip_of(progress)(source.nbytes - skipped - report.nbytes)
        report.skipped = len(known)
    if verify:
        start, stop = ((0,) * target.ndim, target.shape) if region is None else corners(region)
        shapes = BlockShapes(target.metadata.grid, source.chunks, start=start, stop=stop)
        most = memory_limit(source.config) // workers.count // 2  # both arrays are in memory
        blocks = shapes.blocks(most // (target.metadata.dtype.itemsize or UNSIZED_BYTES))
        await compare_arrays(source, target, blocks, workers)
        report.verified = report.blocks
    report.seconds = clock.monotonic() - begin
    return report


def _value_size(array: AsyncArray, coords: tuple[int, ...]) -> int:
    """Return the decoded size of a stored value, in bytes."""
    count: int = math.prod(part.stop - part.start for part in array.metadata.grid.box(coords))
    return count * array.dtype.itemsize


async def _copy_values(
    source: AsyncArray, target: AsyncArray, coordinates: Iterable[tuple[int, ...]], progress: Progress
) -> IngestReport:
    """Copy the stored values at grid coordinates without decoding them."""
    report = IngestReport()
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
    return report
