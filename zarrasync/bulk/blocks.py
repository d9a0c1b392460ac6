"""Writing a source into an array block by block, and verifying the stored values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import compute
from zarrasync._concurrency.retry import RetryCounts
from zarrasync.bulk.block_plan import BlockPlan
from zarrasync.bulk.block_runner import BlockRunner
from zarrasync.bulk.checksum import checksum
from zarrasync.bulk.jobs.compare import compare_values
from zarrasync.bulk.jobs.plan_place import job_name
from zarrasync.bulk.pair_coverage import PairCoverage
from zarrasync.bulk.sources import Source
from zarrasync.display.progress import IngestReport, ProgressLike, ignore_progress, report_progress, skip_of
from zarrasync.display.text import counted
from zarrasync.errors import ChecksumError, ShapeError
from zarrasync.indexing.regions import Region, corners
from zarrasync.nodes.access import chunks_of, handle_of, transform_of, with_handle
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import CountingStore
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import Unaligned, check_region, is_safe_for_jobs

Block: TypeAlias = npt.NDArray[Any]
_BLOCKS_PER_PROCESS = 8
"""The memory of a process is divided among this many blocks if that costs nothing, so that all processes have some."""
Bounds: TypeAlias = tuple[tuple[int, int], ...]
"""A region as a dictionary key: the start and the stop along each axis."""


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
        region: As for ``Ingestion``.
        unaligned: As for ``Ingestion``.
        resume: As for ``Ingestion.run``.
        is_new: As for ``Ingestion.run``.
        is_hidden: As for ``Ingestion.run``.
        verify: As for ``Ingestion.run``.
        concurrency: As for ``Ingestion``.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
            its last call, or a ``Monitor``.

    Returns:
        A report of blocks, bytes and requests.
    """
    begin, report, retries, counting = clock.monotonic(), IngestReport(), RetryCounts(), target.store
    assert isinstance(counting, CountingStore)
    ingestion = Ingestion(source, target, region, unaligned, report, concurrency)
    rows = source.shape[0] if source.shape else 0
    name = target.name if target.path else job_name(counting, "")
    with retries, report_progress(progress, ingestion.nbytes, f"ingest {name}", rows) as callback:
        options: Any = {"resume": resume, "is_new": is_new, "is_hidden": is_hidden, "verify": verify}
        await ingestion.run(callback or ignore_progress, **options)
    counts = counting.reset()
    report.stored, report.requests = counts.bytes_written, counts.requests
    report.retries, report.conflicts = retries.retries, retries.conflicts
    report.seconds = clock.monotonic() - begin
    return report


def for_job(array: AsyncArray, unaligned: Unaligned, write_empty_chunks: bool | None = None) -> AsyncArray:
    """Return an array in a ``CountingStore`` whose settings are replaced by the arguments of a job."""
    handle = handle_of(array)
    empty = handle.config.write_empty_chunks if write_empty_chunks is None else write_empty_chunks
    config = replace(handle.config, unaligned=unaligned, write_empty_chunks=empty)
    return with_handle(array, replace(handle, store=CountingStore(handle.store), config=config))


class Ingestion:
    """Writes one source into one array.

    Args:
        source: The source.
        target: The array.
        region: The part of the array to write; ``None`` for the whole array.
        unaligned: Whether the region may cut chunks.
        report: The report to add counts to.
        concurrency: The number of blocks at a time; 0 for a default that suits the store.
        chosen: The grid coordinates of the stored values to write; ``None`` for all.

    Raises:
        ShapeError: If the source does not fit the region, or the region cuts chunks and ``unaligned`` does not allow
            that.
    """

    def __init__(
        self,
        source: Source,
        target: AsyncArray,
        region: Region | None,
        unaligned: Unaligned,
        report: IngestReport,
        concurrency: int = 0,
        chosen: Collection[tuple[int, ...]] | None = None,
    ) -> None:
        self.source, self.target, self.report = source, target, report
        self.plan = BlockPlan(source, target, region, chosen)
        self._unaligned: Unaligned = unaligned
        self._concurrency = concurrency
        self._checked_safety: bool | None = None
        self._check_alignment()
        self._checksums: dict[Bounds, int] = {}
        self._covered = (
            None if source.pairs is None else PairCoverage(target.metadata.grid, self.plan.start, self.plan.stop)
        )
        self._lock = thread_lock()

    @property
    def nbytes(self) -> int:
        """The size of the source in memory, in bytes."""
        return self.plan.nbytes

    async def run(
        self, progress: Progress, *, resume: bool, is_new: bool, verify: bool, is_hidden: bool = False
    ) -> None:
        """Write all blocks.

        Args:
            progress: Called with the number of bytes written since the last call.
            resume: Skip blocks that are already stored.
            is_new: Whether no chunk to write exists in the store. Chunks that contain only the fill value then need not
                be erased.
            verify: Read all values back and compare them.
            is_hidden: Whether the document of the array is not stored yet.

        Raises:
            ShapeError: If the source is an iterable that does not yield the values of all chunks.
            ChecksumError: If the values read back differ.
        """
        runner = self._runner(progress, is_new=is_new, verify=verify)
        if resume:
            await self.plan.leave_out_stored()
        await runner.run(self._write)
        self._check_coverage()
        if verify:
            if not is_hidden:
                await self.target.refresh()
            regions = [tuple(slice(start, stop) for start, stop in bounds) for bounds in self._checksums]
            await runner.run_regions(self._compare, regions)

    async def remaining(self, progress: Progress, *, resume: bool, processes: int) -> list[Region]:
        """Return the regions to write, for ``run_regions`` in other processes. The source must not be an iterable.

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

    async def run_regions(self, regions: Iterable[Region], progress: Progress, *, is_new: bool) -> None:
        """Write some of the regions of ``remaining``.

        Args:
            regions: The regions.
            progress: As for ``run``.
            is_new: As for ``run``.
        """
        await self._runner(progress, is_new=is_new, verify=False).run_regions(self._write, regions)

    def _runner(self, progress: Progress, *, is_new: bool, verify: bool) -> BlockRunner:
        self._progress, self._verify = progress, verify
        self._skip = skip_of(progress)
        self._all_absent = is_new and self.source.pairs is None  # pairs may have overlapping regions
        return BlockRunner(self.source, self.target, self.plan, self._concurrency, self._skip)

    # -------------------------------------------------------------- writing

    async def _write(self, region: Region, values: Any) -> None:
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
            values = await self.source.get(self.plan.to_source(region))
        convert = partial(self._convert, region, values)
        if self._verify:
            block = await compute(convert)
        else:
            block = await transfer.run_conversion(convert, values, self.target.dtype)
        if not is_stored:
            await self._store(region, block)
            with self._lock:
                self.report.blocks += 1
                self.report.nbytes += self.plan.size(region)
            self._progress(self.plan.size(region))

    def _convert(self, region: Region, values: Any) -> Block:
        """Convert values to the array's data type, and keep their checksum for ``verify``."""
        shape = tuple(part.stop - part.start for part in region)
        block = transfer.as_array(values, self.target.dtype, self.target.metadata.spec.fill_value)
        if block.shape != shape:
            raise ShapeError(
                f"the values for [{_text(region)}] have shape {block.shape}, expected {shape}",
                found=block.shape,
                wanted=shape,
            )
        if self._verify:
            block = transfer.cast(block, self.target.dtype)
            if not self.source.converts:
                transfer.check_cast(values, block)
            with self._lock:
                self._checksums[_bounds(region)] = checksum(block)
        return block

    async def _store(self, region: Region, block: Block) -> None:
        transform = transform_of(self.target.view[region])
        check = self._check_alignment if self.source.pairs is None else partial(self._check_pair, region)
        await transfer.write(chunks_of(self.target), transform, block, all_absent=self._all_absent, check=check)

    def _check_alignment(self) -> None:
        """Check that the region may cut chunks. Checked again if the store turns out to be unsafe."""
        is_safe = is_safe_for_jobs(self.target.store)
        if is_safe is not self._checked_safety:
            check_region(chunks_of(self.target), self.plan.start, self.plan.stop, self._unaligned, safe=is_safe)
            self._checked_safety = is_safe

    def _check_pair(self, region: Region) -> None:
        """Check that a region from an iterable may cut chunks."""
        is_safe = is_safe_for_jobs(self.target.store)
        check_region(chunks_of(self.target), *corners(region), self._unaligned, safe=is_safe)

    def _check_coverage(self) -> None:
        """Check that an iterable has yielded the values of all chunks that are not stored."""
        if self._covered is None:
            return
        missing = [part for _, part in self._covered.missing() if not self.plan.is_stored(part)]
        if missing:
            parts = ", ".join(f"[{_text(self.plan.to_source(part))}]" for part in missing[:5])
            more = ", …" if len(missing) > 5 else ""
            raise ShapeError(
                f"the iterable ended without values for {len(missing):,} of {counted(self._covered.count, 'chunk')} of "
                f"{self.target.name} in {self.target.store!r}: {parts}{more}. All values that it yielded are stored. "
                "Yield the others, also if they equal the fill value, and continue with mode='a'"
            )

    # -------------------------------------------------------------- comparing

    async def _compare(self, region: Region, _: Any) -> None:
        bounds = _bounds(region)
        try:
            await compare_values(self.target, region, self._checksums[bounds])
        except ChecksumError:
            if self._is_overwritten(bounds):
                return
            raise
        with self._lock:
            self.report.verified += 1

    def _is_overwritten(self, bounds: Bounds) -> bool:
        """Return whether an iterable yielded another block that overlaps this one."""
        overlaps = (
            all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(bounds, other, strict=True))
            for other in self._checksums
            if other != bounds
        )
        return self.source.pairs is not None and any(overlaps)


def _bounds(region: Region) -> Bounds:
    return tuple((part.start, part.stop) for part in region)


def _text(region: Region) -> str:
    return ", ".join(f"{part.start}:{part.stop}" for part in region)
