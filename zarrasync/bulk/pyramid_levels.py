"""Computing one level of a pyramid from the one before it, in this process or in others."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency import bridge
from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync.bulk.blocks import Ingestion, ignore_progress
from zarrasync.bulk.downsample import Method, downsample
from zarrasync.bulk.sources import Source
from zarrasync.display.progress import IngestReport
from zarrasync.errors import StoreError, UnsupportedOperation
from zarrasync.indexing.coverage import coarser_chunks
from zarrasync.indexing.regions import Region
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.nodes.access import stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.transfer.threads import Progress

__all__ = ["Reduction", "compute_level"]

_CONCURRENT_READS = 8
"""Number of blocks that are read at a time at least, among which memory is divided."""
_MOST_JOBS = 256
"""The number of jobs for other processes per level, which bounds the messages between processes."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Reduction:
    """The computation of one level. It can be sent to other processes.

    Attributes:
        source: The level before.
        target: The level to compute.
        factors: The number of elements along each axis that become one.
        method: The method.
        missing: The value of missing elements; ``None`` if there are none.
    """

    source: AsyncArray
    target: AsyncArray
    factors: tuple[int, ...]
    method: Method
    missing: Any

    async def run(
        self, chosen: Collection[tuple[int, ...]] | None, progress: Progress, concurrency: int, *, is_new: bool
    ) -> IngestReport:
        """Compute stored values of the level.

        Args:
            chosen: Their grid coordinates; ``None`` for all.
            progress: Called with the number of bytes written since the last call.
            concurrency: The number of blocks at a time; 0 for a default that suits the store.
            is_new: Whether none of them exists in the store.
        """
        report = IngestReport()
        is_blocking = self.source.store.blocking
        source = Source(
            self.target.shape,
            self.target.dtype,
            self._read_now if is_blocking else self._read,
            asynchronous=not is_blocking,
            chunks=tuple(-(-n // f) for n, f in zip(self.source.metadata.write_chunks, self.factors, strict=True)),
        )
        ingestion = Ingestion(source, self.target, None, "allow", report, concurrency, chosen)
        await ingestion.run(progress, resume=False, is_new=is_new, verify=False)
        return report

    def _read_now(self, region: Region) -> npt.NDArray[Any]:
        return drive(self._read(region))

    async def _read(self, region: Region) -> npt.NDArray[Any]:
        """Return the values of a region of the level. The level before is read part by part."""
        result = np.empty([part.stop - part.start for part in region], self.target.dtype)
        for part in self._parts(region):
            values = await self.source.view[self._above(part)].read()
            place = tuple(slice(p.start - r.start, p.stop - r.start) for p, r in zip(part, region, strict=True))
            result[place] = await compute(partial(downsample, values, self.factors, self.method, self.missing))
        return result

    def _above(self, region: Region) -> Region:
        """Return the region of the level before that a region of this level consists of."""
        items = zip(region, self.factors, self.source.shape, strict=True)
        return tuple(slice(part.start * factor, min(part.stop * factor, n)) for part, factor, n in items)

    def _parts(self, region: Region) -> Iterator[Region]:
        """Cut a region into parts that are small enough to read, if possible along chunks of the level before."""
        config, chunks = self.source.config, self.source.metadata.chunks
        limit = config.memory_budget // (4 * max(config.pool_size, _CONCURRENT_READS))
        units = [max(1, chunk // factor) for chunk, factor in zip(chunks, self.factors, strict=True)]
        sizes = [part.stop - part.start for part in region]
        nbytes = math.prod(self.factors) * max(self.source.dtype.itemsize, 1)
        while math.prod(sizes) * nbytes > limit:
            axis = max(range(len(sizes)), key=lambda axis: sizes[axis] / units[axis])
            if sizes[axis] <= units[axis]:
                break
            sizes[axis] = units[axis] * -(-sizes[axis] // (2 * units[axis]))
        axes = [
            [slice(start, min(start + size, part.stop)) for start in range(part.start, part.stop, size)]
            for part, size in zip(region, sizes, strict=True)
        ]
        return product(*axes)


async def compute_level(
    reduction: Reduction,
    *,
    resume: bool,
    executor: Executor | None,
    concurrency: int,
    progress: Progress,
    skip: Progress,
) -> IngestReport:
    """Compute a level. Parts of it for which the level before has no stored values are absent without being computed.

    Args:
        reduction: The level.
        resume: Whether to keep existing stored values.
        executor: Runs jobs in other processes; ``None`` for threads of this process.
        concurrency: The number of blocks at a time in a process; 0 for a default that suits the store.
        progress: Called with the number of bytes written since the last call.
        skip: Called with the number of bytes that need not be computed.

    Raises:
        StoreError: If other processes would write into copies of a store in the memory of this process.
    """
    target = reduction.target
    skipped = 0
    existing: set[tuple[int, ...]] = set()
    is_new = not resume
    try:
        if resume:
            existing, is_new = await stored_chunks(target), True
        chosen = await _chosen(reduction)
    except UnsupportedOperation:  # the store cannot list
        chosen = None
    if existing:
        everything = chosen if chosen is not None else {*lazy_product([range(n) for n in target.metadata.grid.shape])}
        chosen = everything - existing
        skipped = len(everything) - len(chosen)
    if executor is None or chosen == set():
        report = await reduction.run(chosen, progress, concurrency, is_new=is_new)
    else:
        sizes = [range(n) for n in target.metadata.grid.shape]
        coordinates = sorted(chosen) if chosen is not None else list(lazy_product(sizes))
        report = await _run_elsewhere(executor, reduction, coordinates, progress, concurrency, is_new=is_new)
        skip(target.nbytes - report.nbytes)
    report.skipped = skipped
    return report


async def _chosen(reduction: Reduction) -> set[tuple[int, ...]] | None:
    """Return the grid coordinates of values to which stored values of the level before contribute. ``None`` for all."""
    source, target = reduction.source, reduction.target
    if target.config.write_empty_chunks:
        return None
    stored = filter(source.metadata.grid.__contains__, await stored_chunks(source))
    return coarser_chunks(stored, source.metadata.grid, target.metadata.grid, reduction.factors)


# ------------------------------------------------------------------ other processes


async def _run_elsewhere(
    executor: Executor,
    reduction: Reduction,
    coordinates: Sequence[tuple[int, ...]],
    progress: Progress,
    concurrency: int,
    *,
    is_new: bool,
) -> IngestReport:
    store = reduction.target.store
    if not store.portable:
        raise StoreError(
            f"{store!r} exists only in this process, so levels that other processes compute would be lost; write to files "
            "or an object store, or omit the executor"
        )
    size = -(-len(coordinates) // _MOST_JOBS)
    parts = [coordinates[start : start + size] for start in range(0, len(coordinates), size)]
    jobs = [partial(_run_part, reduction, part, concurrency, is_new) for part in parts]
    return await run_in_new_thread(partial(_collect, executor, jobs, progress))


def _run_part(reduction: Reduction, chosen: Sequence[tuple[int, ...]], concurrency: int, is_new: bool) -> IngestReport:
    """Compute some stored values, in another process."""
    work = reduction.run({*chosen}, ignore_progress, concurrency, is_new=is_new)
    return bridge.run(work, blocking=reduction.target.store.blocking)


def _collect(executor: Executor, jobs: Iterable[Callable[[], IngestReport]], progress: Progress) -> IngestReport:
    """Run jobs and return the sum of their reports. After a failure, jobs that have not begun are cancelled."""
    report = IngestReport()
    pending: set[Future[IngestReport]] = {executor.submit(job) for job in jobs}
    try:
        while pending:
            done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                part = future.result()
                report.blocks += part.blocks
                report.nbytes += part.nbytes
                progress(part.nbytes)
            raise_if_cancelled()
    except BaseException:
        for future in pending:
            future.cancel()
        wait(pending)  # nothing is written after this call has ended
        raise
    return report
