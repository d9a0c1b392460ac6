"""The values of a copy: stored values are copied unchanged, or decoded and encoded again.

A copy to chunks of another orientation would decode each chunk of the source many times if memory is small. Then the
values are first written to an intermediate array of raw chunks in a temporary local folder.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import filterfalse, islice

from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.block_plan import memory_limit
from zarrasync.bulk.block_writer import BlockWriter
from zarrasync.bulk.jobs.boxes import UNSIZED_BYTES
from zarrasync.bulk.jobs.verification import compare_arrays
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import add_reports
from zarrasync.bulk.scratch_folders import new_scratch_folder, scratch_space
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport, ignore_progress, skip_of
from zarrasync.errors import UnsupportedOperation
from zarrasync.indexing.block_shapes import BlockShapes, intermediate_chunks
from zarrasync.indexing.regions import Region, coarser_chunks, corners, touched_chunks
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.nodes.access import chunks_of, handle_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import create_array_at
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Request, resolve
from zarrasync.transfer.threads import Progress

Chosen = set[tuple[int, ...]] | None
"""The grid coordinates of the stored values to write; ``None`` for all."""
_BATCH = 256
"""The number of stored values between two calls of the progress callback."""
_WORTH_LISTING = 64
"""The number of stored values of a target above which listing the source saves time."""


@dataclass(frozen=True)
class ArrayCopy:
    """The copy of an array, or of a region of whole stored values.

    Attributes:
        source: The array to copy.
        target: The new array.
        region: The region; ``None`` for all values. Then other processes can copy parts of it.
        workers: Where the values are copied.
        resume: Whether to keep the stored values of the target, if all values are copied.
        is_new: Whether the target has no other stored values.
        part: The region of the source that becomes the region of the target. Default: the same.
    """

    source: AsyncArray
    target: AsyncArray
    region: Region | None = None
    workers: Workers = field(default_factory=Workers)
    resume: bool = False
    is_new: bool = True
    part: Region | None = None

    async def run(self, progress: Progress, *, verify: bool = False) -> IngestReport:
        """Copy the values.

        Args:
            progress: Called with the number of bytes copied since the last call.
            verify: Whether to read the values back and compare them.
        """
        begin, source, target, workers = clock.monotonic(), self.source, self.target, self.workers
        is_kept = has_same_values(source.metadata, target.metadata)
        report = await (self._copy_stored(progress) if is_kept else self._copy_decoded(progress))
        if verify:
            start, stop = ((0,) * target.ndim, target.shape) if self.region is None else corners(self.region)
            shapes = BlockShapes(target.metadata.grid, source.chunks, start=start, stop=stop)
            most = memory_limit(source.config) // workers.count // 2  # both arrays are in memory
            blocks = shapes.blocks(most // (target.metadata.dtype.itemsize or UNSIZED_BYTES))
            await compare_arrays(source, target, blocks, workers)
            report.verified = report.blocks
        report.seconds = clock.monotonic() - begin
        return report

    async def _copy_stored(self, progress: Progress) -> IngestReport:
        """Copy stored values without decoding them."""
        source, target, grid = self.source, self.target, self.source.metadata.grid
        existing = await stored_chunks(target) if self.resume else set()
        every = (
            lazy_product([range(n) for n in grid.shape]) if self.region is None else touched_chunks(self.region, grid)
        )
        known = [coords for coords in existing if coords in grid]
        skipped = sum(_value_size(source, coords) for coords in known)
        skip_of(progress)(skipped)
        missing = filterfalse(existing.__contains__, every)
        copy = partial(_copy_values, source, target)
        report = await self.workers.share(copy, missing, progress, source.store, target.store)
        if not self.workers.is_local:  # their reports do not count absent values
            skip_of(progress)(source.nbytes - skipped - report.nbytes)
        report.skipped = len(known)
        return report

    async def _copy_decoded(self, progress: Progress) -> IngestReport:
        """Decode values and encode them again in the layout of the target. An intermediate array does not count as progress."""
        source, target, region, chosen = self.source, self.target, self.region, None
        if region is None or target.metadata.spec.undefined:
            chosen = await _chosen_values(source, target, is_new=self.is_new)
        if region is not None and chosen is not None:
            chosen.intersection_update(touched_chunks(region, target.metadata.grid))
        shape = target.shape if region is None else tuple(part.stop - part.start for part in region)
        chunks = self._intermediate_chunks(shape)
        if chunks is None:
            return await replace(self, part=region)._write_blocks(chosen, progress)  # noqa: SLF001  # the same copy
        async with _intermediate_array(target, shape, chunks) as middle:
            needed = await _chosen_values(source, middle, is_new=True) if region is None else None
            if self.resume:
                box = await _missing_box(target, chosen)
                within = set() if box is None else set(touched_chunks(box, middle.metadata.grid))
                needed = within if needed is None else needed & within
            first = ArrayCopy(source, middle, workers=self.workers, part=region)
            await first._write_blocks(needed, ignore_progress)
            return await replace(self, source=middle)._write_blocks(chosen, progress)  # noqa: SLF001  # its second stage

    async def _write_blocks(self, chosen: Chosen, progress: Progress) -> IngestReport:
        """Write the values block by block."""
        source, target, workers = self.source, self.target, self.workers
        values = source_of(source if self.part is None else source.view[(*self.part, ...)], {})
        values.chunks = source.chunks
        writer = BlockWriter(values, target, self.region, chosen=chosen)
        if workers.is_local:
            return await writer.run(progress, resume=self.resume, is_new=self.is_new)
        regions = await writer.remaining(progress, resume=self.resume, processes=workers.count)
        copy = partial(_copy_regions, source, target, self.is_new)
        add_reports(writer.report, await workers.share(copy, regions, progress, source.store, target.store))
        return writer.report

    def _intermediate_chunks(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the chunk shape of the intermediate array, or ``None`` to copy in one stage.

        Processes of other machines cannot read it, elements without a fixed size cannot be stored raw, and the disk may be
        too small.

        Args:
            shape: The shape of the array or region to copy.
        """
        target, itemsize = self.target, self.target.metadata.dtype.itemsize
        if not itemsize or not self.workers.is_on_this_machine:
            return None
        most = memory_limit(target.config) // self.workers.count // itemsize
        chunks = intermediate_chunks(shape, self.source.chunks, target.metadata.write_chunks, most)
        return chunks if math.prod(shape) * itemsize <= scratch_space() else None


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
    is_blocking = source.store.blocking and target.store.blocking
    concurrency = 1 if is_blocking else min(origin.concurrency, dest.concurrency)
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
    try:
        while batch := list(islice(remaining, _BATCH)):
            await for_each(copy_one, batch, concurrency)
            progress(sum(map(size_of, batch)))
    finally:
        dest.changes.add()
    return report


async def _copy_regions(
    source: AsyncArray, target: AsyncArray, is_new: bool, regions: Iterable[Region], progress: Progress
) -> IngestReport:
    """Copy some regions in another process."""
    return await BlockWriter(source_of(source, {}), target, concurrency=1).run(progress, regions=regions, is_new=is_new)


# ------------------------------------------------------------------ values to write


async def _chosen_values(source: AsyncArray, target: AsyncArray, *, is_new: bool) -> Chosen:
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


async def _missing_box(target: AsyncArray, chosen: Chosen) -> Region | None:
    """Return the smallest region with all values to write that are not stored, or ``None`` if all are stored."""
    every = lazy_product([range(n) for n in target.metadata.grid.shape]) if chosen is None else chosen
    stored = await stored_chunks(target)
    missing = [coords for coords in every if coords not in stored]
    if not missing:
        return None
    axes = list(zip(*missing, strict=True))
    return target.metadata.grid.box(tuple(map(min, axes)), tuple(map(max, axes)))


@asynccontextmanager
async def _intermediate_array(
    target: AsyncArray, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> AsyncIterator[AsyncArray]:
    """Provide an array of raw chunks with the data type and the fill value of the target."""
    folder = await compute(new_scratch_folder)
    try:
        config = replace(target.config, write_empty_chunks=False)
        yield await create_array_at(
            NodeHandle(resolve(folder.name), "", handle_of(target).format, config),
            shape=shape,
            dtype=target.metadata.dtype,
            chunks=chunks,
            filters=None,
            compressors=None,
            fill_value=target.metadata.spec.fill_value,
        )
    finally:
        await compute(folder.cleanup)
