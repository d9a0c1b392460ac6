"""Writing a source into an array block by block, and verifying the stored values.

Blocks are written on threads for blocking stores, and in tasks of an event loop for asynchronous ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive, driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import first_error, for_each
from zarrasync._concurrency.offload import compute, iterate_in_worker
from zarrasync._concurrency.semaphores import FifoSemaphore
from zarrasync.bulk.block_plan import BlockPlan, PairCoverage
from zarrasync.bulk.checksum import checksum
from zarrasync.bulk.jobs.plan_location import job_name
from zarrasync.bulk.jobs.verification import compare_values
from zarrasync.bulk.reports import measured
from zarrasync.bulk.sources import Source
from zarrasync.display.progress import IngestReport, ProgressLike, skip_of
from zarrasync.display.text import counted
from zarrasync.errors import ChecksumError, ShapeError
from zarrasync.indexing.regions import Region, corners, region_text
from zarrasync.nodes.access import chunks_of, handle_of, transform_of, with_handle
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import CountingStore
from zarrasync.transfer.threads import Progress, ThreadJob, run_jobs
from zarrasync.transfer.unaligned import Unaligned, check_region, is_safe_for_jobs

Block: TypeAlias = npt.NDArray[Any]
Work: TypeAlias = Callable[[Region], Coroutine[Any, Any, None]]
Pair: TypeAlias = tuple[Region, Any]
"""A region of the array and its values."""
_BLOCKS_PER_PROCESS = 8
"""The memory of a process is divided among this many blocks if that costs nothing, so that all processes have some."""
_CONCURRENT_BLOCKS = 8
"""Default number of blocks in flight to an asynchronous store."""


async def write_blocks(
    source: Source,
    target: AsyncArray,
    region: Region | None,
    unaligned: Unaligned,
    *,
    resume: bool = False,
    is_new: bool = False,
    is_hidden: bool = False,
    verify: bool = False,
    concurrency: int = 0,
    progress: ProgressLike = False,
) -> IngestReport:
    """Write a whole source into an array.

    Args:
        source: The source.
        target: The array, in a ``CountingStore``.
        region: As for ``BlockWriter``.
        unaligned: As for ``BlockWriter``.
        resume: As for ``BlockWriter.run``.
        is_new: As for ``BlockWriter.run``.
        is_hidden: As for ``BlockWriter.run``.
        verify: As for ``BlockWriter.run``.
        concurrency: As for ``BlockWriter``.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
            its last call, or a ``Monitor``.

    Returns:
        A report of blocks, bytes and requests.
    """
    counting = target.store
    assert isinstance(counting, CountingStore)
    writer = BlockWriter(source, target, region, unaligned, concurrency)
    report, rows = writer.report, source.shape[0] if source.shape else 0
    name = target.name if target.path else job_name(counting, "")
    with measured(report, progress, writer.plan.nbytes, f"ingest {name}", rows) as advance:
        await writer.run(advance, resume=resume, is_new=is_new, is_hidden=is_hidden, verify=verify)
    counts = counting.reset()
    report.stored, report.requests = counts.bytes_written, counts.requests
    return report


def for_job(array: AsyncArray, unaligned: Unaligned, write_empty_chunks: bool | None = None) -> AsyncArray:
    """Return an array in a ``CountingStore`` whose settings are replaced by the arguments of a job."""
    handle = handle_of(array)
    empty = handle.config.write_empty_chunks if write_empty_chunks is None else write_empty_chunks
    config = replace(handle.config, unaligned=unaligned, write_empty_chunks=empty)
    return with_handle(array, replace(handle, store=CountingStore(handle.store), config=config))


class BlockWriter:
    """Writes one source into one array.

    Args:
        source: The source.
        target: The array.
        region: The part of the array to write; ``None`` for the whole array.
        unaligned: Whether the region may cut chunks.
        concurrency: The number of blocks at a time; 0 for a default that suits the store.
        chosen: The grid coordinates of the stored values to write; ``None`` for all.

    Attributes:
        plan: The blocks.
        report: The report, to which counts are added.

    Raises:
        ShapeError: If the source does not fit the region, or the region cuts chunks and ``unaligned`` does not allow
            that.
    """

    def __init__(
        self,
        source: Source,
        target: AsyncArray,
        region: Region | None = None,
        unaligned: Unaligned = "allow",
        concurrency: int = 0,
        chosen: Collection[tuple[int, ...]] | None = None,
    ) -> None:
        self.plan, self.report = BlockPlan(source, target, region, chosen), IngestReport()
        self._source, self._target = source, target
        self._unaligned: Unaligned = unaligned
        self._on_threads = driven() or (target.store.blocking and not source.asynchronous)
        self._concurrency = concurrency or (target.config.pool_size if self._on_threads else _CONCURRENT_BLOCKS)
        self._checked_safety: bool | None = None
        self._check_alignment()
        self._checksums: dict[tuple[tuple[int, ...], ...], int] = {}
        """The checksums of written blocks by their corners."""
        pairs, grid = source.pairs, target.metadata.grid
        self._covered = None if pairs is None else PairCoverage(grid, self.plan.start, self.plan.stop)
        self._lock = thread_lock()

    async def run(
        self,
        progress: Progress,
        *,
        regions: Iterable[Region] | None = None,
        resume: bool = False,
        is_new: bool = False,
        verify: bool = False,
        is_hidden: bool = False,
    ) -> IngestReport:
        """Write all blocks.

        Args:
            progress: Called with the number of bytes written since the last call.
            regions: Some of the regions that ``remaining`` has returned. Default: all of the source.
            resume: Skip blocks that are already stored.
            is_new: Whether no chunk to write exists in the store. Chunks that contain only the fill value then need not
                be erased.
            verify: Read all values back and compare them.
            is_hidden: Whether the document of the array is not stored yet.

        Returns:
            The report.

        Raises:
            ShapeError: If the source is an iterable that does not yield the values of all chunks.
            ChecksumError: If the values read back differ.
        """
        self._progress, self._skip, self._verify = progress, skip_of(progress), verify
        self._all_absent = is_new and self._source.pairs is None  # pairs may have overlapping regions
        if resume:
            await self.plan.leave_out_stored()
        if self._source.pairs is not None:
            await (
                run_on_store(self._pairs_on_threads, self._target.store) if self._on_threads else self._write_pairs()
            )
            self._check_coverage()
        else:
            concurrency = self._concurrency
            if regions is None:
                concurrency = self.plan.fit_memory(concurrency)
                regions = self.plan.regions(concurrency, self._skip)
            await self._each(self._write, regions, concurrency)
        if verify:
            if not is_hidden:
                await self._target.refresh()
            written = [tuple(map(slice, *bounds)) for bounds in self._checksums]
            await self._each(self._compare, written, self._concurrency)
        return self.report

    async def remaining(self, progress: Progress, *, resume: bool, processes: int) -> list[Region]:
        """Return the regions to write, for ``run`` in other processes. The source must not be an iterable.

        Args:
            progress: The progress of the job, which also counts skipped bytes.
            resume: Leave out blocks that are already stored.
            processes: The number of processes that share the memory. Each of them has one region in memory.
        """
        skip = skip_of(progress)
        if resume:
            await self.plan.leave_out_stored()
        concurrency = self.plan.fit_memory(_BLOCKS_PER_PROCESS * processes, processes)
        regions = list(self.plan.regions(concurrency, skip))
        stored = [region for region in regions if self.plan.is_stored(region)]
        self.report.skipped += len(stored)
        skip(sum(map(self.plan.size, stored)))
        return [region for region in regions if not self.plan.is_stored(region)]

    # -------------------------------------------------------------- regions

    async def _each(self, work: Work, regions: Iterable[Region], concurrency: int) -> None:
        """Work on regions, several at a time."""
        if self._on_threads:
            await run_on_store(partial(self._each_on_threads, work, list(regions), concurrency), self._target.store)
        else:
            await for_each(work, regions, concurrency)

    async def _each_on_threads(self, work: Work, regions: Collection[Region], threads: int) -> None:
        if len(regions) <= threads:  # each write shares its chunks among the threads
            for region in regions:
                await work(region)
            return
        jobs: Iterable[ThreadJob] = (partial(_drive, work, region) for region in regions)
        run_jobs(iter(jobs), self._target.config, cancel_flag(), threads)

    # -------------------------------------------------------------- pairs of a region and its values

    async def _pairs_on_threads(self) -> None:
        with closing(self._pair_jobs()) as jobs:
            run_jobs(jobs, self._target.config, cancel_flag(), self._concurrency)

    def _pair_jobs(self) -> Generator[ThreadJob, None, None]:
        """Yield a job for each pair as soon as there is memory for it."""
        pairs: Any = self._source.pairs
        steps = bridge.iterate(pairs, blocking=False) if self._source.asynchronous else None
        memory = FifoSemaphore(self.plan.memory_limit, shared=False)

        def run(pair: list[Pair], size: int) -> None:
            try:
                drive(self._write(*pair.pop()))  # a waiting thread may keep a reference to its last job
            finally:
                memory.release(size)

        with nullcontext() if steps is None else closing(steps):
            for item in pairs if steps is None else steps:
                pair, size = self._resolve(item)
                drive(memory.acquire(size))
                job = partial(run, [pair], size)
                del item, pair
                yield job
                del job

    async def _write_pairs(self) -> None:
        """Write pairs as they arrive. At most one is taken in advance."""
        pairs: Any = self._source.pairs
        items = aiter(pairs) if self._source.asynchronous else iterate_in_worker(iter(pairs))
        slots, memory = (FifoSemaphore(n, shared=False) for n in (self._concurrency, self.plan.memory_limit))

        async def write(pair: list[Pair], size: int) -> None:
            try:
                await self._write(*pair.pop())
            finally:
                slots.release()
                memory.release(size)

        try:
            async with asyncio.TaskGroup() as group:
                async for item in items:
                    pair, size = await compute(partial(self._resolve, item))  # copies the values
                    await slots.acquire()
                    await memory.acquire(size)
                    group.create_task(write([pair], size))
                    del item, pair  # free the block before waiting for the next one
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            if (close := getattr(items, "aclose", None)) is not None:
                await close()

    def _resolve(self, item: Any) -> tuple[Pair, int]:
        """Return the region and the values of an iterable's item, and their size in bytes.

        Arrays are copied, because the iterable may reuse their memory.

        Raises:
            TypeError: If the item is not a pair.
        """
        if not isinstance(item, tuple | list) or len(item) != 2 or item[1] is None:
            raise TypeError(
                f"the iterable must yield pairs of a region and its values, found {type(item).__name__}: {item!r:.80}"
            )
        region, values = self.plan.to_target(item[0]), item[1]
        return (region, values.copy() if isinstance(values, np.ndarray) else values), self.plan.size(region)

    def _check_coverage(self) -> None:
        """Check that an iterable has yielded the values of all chunks that are not stored."""
        assert self._covered is not None
        missing = [part for _, part in self._covered.missing() if not self.plan.is_stored(part)]
        if missing:
            parts = ", ".join(f"[{region_text(self.plan.to_source(part))}]" for part in missing[:5])
            more = ", …" if len(missing) > 5 else ""
            raise ShapeError(
                f"the iterable ended without values for {len(missing):,} of {counted(self._covered.count, 'chunk')} of "
                f"{self._target.name} in {self._target.store!r}: {parts}{more}. All values that it yielded are stored. "
                "Yield the others, also if they equal the fill value, and continue with mode='a'"
            )

    # -------------------------------------------------------------- writing

    async def _write(self, region: Region, values: Any = None) -> None:
        """Write a region. Without values, they are read from the source."""
        if self._covered is not None:
            with self._lock:
                self._covered.add(region)
        is_stored = self.plan.is_stored(region)
        if is_stored:
            with self._lock:
                self.report.skipped += 1
            self._skip(self.plan.size(region))
            if not self._verify:
                return
        if values is None:
            values = await self._source.get(self.plan.to_source(region))
        dtype, origin = self._target.dtype, tuple(part.start for part in self.plan.to_source(region))
        computes = self._verify or (isinstance(values, np.ndarray) and transfer.may_change(values.dtype, dtype))
        convert = partial(self._convert, region, values, origin)
        block = await transfer.run_conversion(convert, values, dtype, computes=computes)
        if not is_stored:
            await self._store(region, block)
            with self._lock:
                self.report.blocks += 1
                self.report.nbytes += self.plan.size(region)
            self._progress(self.plan.size(region))

    def _convert(self, region: Region, values: Any, origin: tuple[int, ...]) -> Block:
        """Convert values to the array's data type, and keep their checksum for ``verify``.

        Raises:
            EncodingError: If the data type does not represent a value.
        """
        shape, dtype = tuple(part.stop - part.start for part in region), self._target.dtype
        block = transfer.as_exact_array(values, dtype, self._target.metadata.spec.fill_value, origin)
        if block.shape != shape:
            message = f"the values for [{region_text(region)}] have shape {block.shape}, expected {shape}"
            raise ShapeError(message, found=block.shape, wanted=shape)
        if self._verify:
            block = transfer.cast(block, dtype)
            with self._lock:
                self._checksums[corners(region)] = checksum(block)
        return block

    async def _store(self, region: Region, block: Block) -> None:
        transform = transform_of(self._target.view[region])
        check = partial(self._check_alignment, None if self._source.pairs is None else region)
        await transfer.write(chunks_of(self._target), transform, block, all_absent=self._all_absent, check=check)

    def _check_alignment(self, region: Region | None = None) -> None:
        """Check that a region from an iterable, or all of the region, may cut chunks.

        The latter is checked again only if the store turns out to be unsafe.
        """
        is_safe = is_safe_for_jobs(self._target.store)
        if region is not None or is_safe is not self._checked_safety:
            start, stop = (self.plan.start, self.plan.stop) if region is None else corners(region)
            check_region(chunks_of(self._target), start, stop, self._unaligned, safe=is_safe)
            self._checked_safety = is_safe

    # -------------------------------------------------------------- comparing

    async def _compare(self, region: Region) -> None:
        bounds = corners(region)
        try:
            await compare_values(self._target, region, self._checksums[bounds])
        except ChecksumError:
            others = (other for other in self._checksums if other != bounds)
            if self._source.pairs is not None and any(_overlap(bounds, other) for other in others):
                return  # the iterable yielded another block that overlaps this one
            raise
        with self._lock:
            self.report.verified += 1


def _drive(work: Work, region: Region) -> None:
    drive(work(region))


def _overlap(bounds: tuple[tuple[int, ...], ...], other: tuple[tuple[int, ...], ...]) -> bool:
    return all(max(a, c) < min(b, d) for a, b, c, d in zip(*bounds, *other, strict=True))
