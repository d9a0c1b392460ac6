"""Writing all of a source into an array, block by block: which blocks, and what happens to them."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive, driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute, iterate_in_worker
from zarrasync._concurrency.retry import RetryCounts
from zarrasync.bulk.checksum import checksum
from zarrasync.bulk.sources import Source, pair_of
from zarrasync.display.progress import Bar, IngestReport, report_progress
from zarrasync.errors import ChecksumError, ShapeError
from zarrasync.indexing.chunk_blocks import plan_blocks, plan_chosen_blocks
from zarrasync.indexing.coverage import partial_chunks, touched_chunks
from zarrasync.indexing.regions import Region, corners, resolve_corners, split_region
from zarrasync.nodes.access import chunks_of, handle_of, stored_chunks, transform_of, with_handle
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import CountingStore
from zarrasync.transfer.threads import Job, Progress, run_jobs
from zarrasync.transfer.unaligned import Unaligned, check_region, is_safe_for_jobs

__all__ = ["Ingestion", "write_blocks"]

Block: TypeAlias = npt.NDArray[Any]
_SPARSE = 8
"""Where fewer than one in so many stored values are written, no others are looked at."""
_AT_ONCE = 8
"""Blocks on their way to a store behind a network, at the most."""


async def write_blocks(
    source: Source,
    target: AsyncArray,
    region: Region | None,
    unaligned: Unaligned,
    *,
    resume: bool = False,
    fresh: bool = False,
    verify: bool = False,
    concurrency: int = 0,
    progress: bool | Progress = False,
) -> IngestReport:
    """Write all of a source into an array, and report on it.

    Args:
        source: What is written.
        target: Where to: an array in a store that counts.
        region: As for ``Ingestion``, as are ``unaligned`` and ``concurrency``.
        unaligned: What to do about chunks that the region cuts.
        resume: As for ``Ingestion.run``, as are ``fresh`` and ``verify``.
        fresh: Whether no chunk that is written can be there yet.
        verify: Read everything again at the end, and compare.
        concurrency: Blocks at the same time.
        progress: Show a progress bar, or call this with the bytes done since the last call.
    """
    begin, report, tally, counting = clock.monotonic(), IngestReport(), RetryCounts(), target.store
    assert isinstance(counting, CountingStore)
    work = Ingestion(source, target, region, unaligned, report, concurrency)
    rows = source.shape[0] if source.shape else 0
    with tally, report_progress(progress, work.nbytes, f"ingest {target.name}", rows) as tell:
        await work.run(tell or _silent, resume=resume, fresh=fresh, verify=verify)
    counts = counting.reset()
    report.stored, report.requests = counts.bytes_written, counts.requests
    report.retries, report.conflicts = tally.retries, tally.conflicts
    report.seconds = clock.monotonic() - begin
    return report


def _silent(nbytes: int) -> None:
    """Progress that nobody wants to hear of."""


class Ingestion:
    """One ingestion: which blocks, and what happened to them.

    Args:
        source: What is written.
        target: Where to.
        region: The part of the target that the source is for; all of it if not given.
        unaligned: What to do about chunks that the region cuts.
        report: Where to count.
        concurrency: Blocks at the same time; 0: as many as suit the store.
        only: The grid coordinates of the stored values to write; all if not given.

    Raises:
        ShapeError: If the source does not fit.
    """

    def __init__(
        self,
        source: Source,
        target: AsyncArray,
        region: tuple[slice, ...] | None,
        unaligned: Unaligned,
        report: IngestReport,
        concurrency: int = 0,
        only: Collection[tuple[int, ...]] | None = None,
    ) -> None:
        self.source, self.target, self.report, self.concurrency = source, target, report, concurrency
        self.only = only
        self.start, self.stop = resolve_corners(source.shape, target.shape, region)
        self.nbytes = math.prod(source.shape) * max(target.dtype.itemsize, 1)
        self._unaligned: Unaligned = unaligned
        self._compared: bool | None = None
        self._check()
        self._sums: dict[tuple[tuple[int, int], ...], int] = {}
        self._mutex = thread_lock()
        self._there: set[tuple[int, ...]] = set()

    async def run(self, tell: Progress, *, resume: bool, fresh: bool, verify: bool) -> None:
        """Write all blocks.

        Args:
            tell: Called as bytes are done.
            resume: Leave out what is there.
            fresh: Whether no chunk that is written can be there yet (all was erased, or what is there is left out), so
                that those of nothing but the fill value need not be erased.
            verify: Read everything again at the end, and compare.
        """
        self.tell, self.keep_sums = tell, verify
        self.skip = tell.skip if isinstance(tell, Bar) else tell
        self.absent = fresh and self.source.pairs is None  # whose regions may come twice
        if resume:
            # Of a chunk that the region cuts the others' part may be what is there.
            cut = partial_chunks(tuple(map(slice, self.start, self.stop)), self.target.metadata.grid)
            self._there = await stored_chunks(self.target) - set(cut)
        await self._each(self._write_now, self._write)
        if verify:
            await self.target.refresh()
            regions = [tuple(slice(a, b) for a, b in spot) for spot in self._sums]
            await self._each(self._compare_now, self._compare, regions)

    # -------------------------------------------------------------- side by side

    async def _each(
        self,
        now: Callable[[Region, Any], None],
        later: Callable[[Region, Any], Awaitable[None]],
        regions: Iterable[Region] | None = None,
    ) -> None:
        """Do something with each block: on threads where nothing waits for a loop, else in tasks."""
        blocking = self.target.store.blocking
        if driven() or (blocking and not self.source.asynchronous):
            await run_on_store(partial(self._on_threads, now, regions), self.target.store)
        else:
            await self._on_loop(later, regions)

    async def _on_threads(self, work: Callable[[Region, Any], None], regions: Iterable[Region] | None) -> None:
        settings = self.target.config
        threads = self.concurrency or settings.pool_size
        if regions is None and self.source.pairs is not None:
            with closing(self._pair_jobs(work)) as pairs:
                run_jobs(pairs, settings, cancel_flag(), threads)
            return
        if regions is None:
            threads = self._in_memory(threads)
        planned = list(self._regions(threads) if regions is None else regions)
        if len(planned) <= threads:  # a write shares its chunks itself
            for region in planned:
                work(region, None)
            return
        jobs: Iterator[Job] = (partial(work, region, None) for region in planned)
        run_jobs(jobs, settings, cancel_flag(), threads)

    def _pair_jobs(self, work: Callable[[Region, Any], None]) -> Generator[Job, None, None]:
        """Jobs of blocks as they come, each when there is room for it."""
        given: Any = self.source.pairs
        steps = bridge.iterate(given, blocking=False) if self.source.asynchronous else None
        room, taken, given_back = self._room, 0, threading.Condition()

        def begun(item: Any) -> Job:
            nonlocal taken
            held = [pair_of(item)]  # threads that wait for their next job have the last one in their hands
            size = self._size_of(held[0])
            with given_back:
                given_back.wait_for(lambda: not taken or taken + size <= room)
                taken += size

            def job() -> None:
                nonlocal taken
                try:
                    work(*held.pop())
                finally:
                    with given_back:
                        taken -= size
                        given_back.notify()

            return job

        try:
            yield from map(begun, given if steps is None else steps)
        finally:
            if steps is not None:
                steps.close()

    async def _on_loop(self, work: Callable[[Region, Any], Awaitable[None]], regions: Iterable[Region] | None) -> None:
        if regions is None and self.source.pairs is not None:
            await self._pairs_on_loop(work, self.concurrency or _AT_ONCE)
            return

        async def one(region: Region) -> None:
            await work(region, None)

        count = self._in_memory(self.concurrency or _AT_ONCE)
        await for_each(one, self._regions(count) if regions is None else regions, count)

    async def _pairs_on_loop(self, work: Callable[[Region, Any], Awaitable[None]], count: int) -> None:
        """Take blocks as they come, and no more of them than are worked on, and there is room for."""
        pairs: Any = self.source.pairs
        source = aiter(pairs) if self.source.asynchronous else iterate_in_worker(iter(pairs))
        running: dict[asyncio.Future[None], int] = {}
        try:
            async for item in source:
                pair = await compute(partial(pair_of, item))  # which copies it
                size = self._size_of(pair)
                while running and (len(running) >= count or sum(running.values()) + size > self._room):
                    for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                        del running[task]
                        task.result()
                running[asyncio.ensure_future(work(*pair))] = size
                del item, pair
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if (close := getattr(source, "aclose", None)) is not None:
                await close()

    # -------------------------------------------------------------- one block

    def _size_of(self, pair: tuple[Region, Any]) -> int:
        return self._size(self._place(pair[0]))

    @property
    def _room(self) -> int:
        """Bytes of blocks in memory at a time, so that what encodes them has its part of the budget, too."""
        return max(1, 3 * self.target.config.memory_budget // 4)

    def _in_memory(self, count: int) -> int:
        """How many of the smallest blocks that are written whole to have at a time."""
        unit = max(self.target.metadata.chain.nbytes, 1)
        return count if self.source.instant else max(1, min(count, self._room // unit))

    def _regions(self, at_once: int) -> Iterator[Region]:
        metadata = self.target.metadata
        most = self.target.config.memory_budget // (4 * at_once) // (metadata.dtype.itemsize or 16)
        if self.only is not None and len(self.only) < metadata.grid.size // _SPARSE:
            few = list(plan_chosen_blocks(metadata.grid, self.only, self.source.chunks, most, self.start, self.stop))
            self.skip(self.nbytes - sum(map(self._size, few)))
            yield from few
            return
        for region in plan_blocks(metadata.grid, self.source.chunks, most, self.start, self.stop, at_once):
            if not self._there and self.only is None:
                yield region
                continue
            parts = dict(split_region(region, metadata.grid))
            wanted = [at for at in parts if self.only is None or at in self.only]
            there = sum(at in self._there for at in wanted)
            if len(wanted) == len(parts) and there in (0, len(parts)):
                yield region
                continue
            self.skip(self._size(region) - sum(self._size(parts[at]) for at in wanted))
            yield from (parts[at] for at in wanted)

    def _of_source(self, region: Region) -> Region:
        """A region of the array as one of the source."""
        return tuple(slice(s.start - a, s.stop - a) for s, a in zip(region, self.start, strict=True))

    def _place(self, region: Any) -> Region:
        """The region of the array that one of the source goes to."""
        parts = region if isinstance(region, tuple) else (region,)
        if len(parts) != len(self.source.shape) or not all(isinstance(s, slice) for s in parts):
            raise ShapeError(f"a block's region is a tuple of {len(self.source.shape)} slices, found {region!r}")
        found = []
        for s, n, offset in zip(parts, self.source.shape, self.start, strict=True):
            begin, end, step = s.indices(n)
            if step != 1:
                raise ShapeError(f"a block's region has no steps, found {region!r}")
            found.append(slice(begin + offset, max(begin, end) + offset))
        return tuple(found)

    def _is_there(self, region: Region) -> bool:
        """Whether an earlier run has stored all of a block: others' parts of chunks that it cuts do not tell."""
        if not self._there:
            return False
        grid = self.target.metadata.grid
        cut = any(True for _ in partial_chunks(region, grid))
        return not cut and all(at in self._there for at in touched_chunks(region, grid))

    def _begin(self, region: Region, given: Any) -> tuple[Region, bool, bool]:
        """Where a block goes, whether its values are wanted, and whether they are to be written."""
        place = region if given is None else self._place(region)
        if not self._is_there(place):
            return place, True, True
        with self._mutex:
            self.report.skipped += 1
        self.skip(self._size(place))
        return place, self.keep_sums, False  # to compare it, it takes the source's values

    def _size(self, region: Region) -> int:
        count: int = math.prod(s.stop - s.start for s in region)
        return count * max(self.target.dtype.itemsize, 1)

    def _ready(self, region: Region, given: Any) -> Block:
        """A block as the array has it."""
        shape = tuple(s.stop - s.start for s in region)
        block = transfer.as_array(given, self.target.dtype, self.target.metadata.spec.fill_value)
        if block.shape != shape:
            raise ShapeError(f"the block of {_shown(region)} has shape {block.shape}, not {shape}", found=block.shape)
        if self.keep_sums:
            block = transfer.cast(block, self.target.dtype)
            if not self.source.converts:
                transfer.check_cast(given, block)
            with self._mutex:
                self._sums[tuple((s.start, s.stop) for s in region)] = checksum(block)
        return block

    def _note(self, region: Region) -> None:
        with self._mutex:
            self.report.blocks += 1
            self.report.nbytes += self._size(region)
        self.tell(self._size(region))

    def _write_now(self, region: Region, given: Any) -> None:
        place, wanted, missing = self._begin(region, given)
        if not wanted:
            return
        block = self._ready(place, self.source.get_now(self._of_source(place)) if given is None else given)
        if missing:
            drive(self._store(place, block))
            self._note(place)

    async def _write(self, region: Region, given: Any) -> None:
        place, wanted, missing = self._begin(region, given)
        if not wanted:
            return
        found = await self.source.get(self._of_source(place)) if given is None else given
        fit, dtype = partial(self._ready, place, found), self.target.dtype
        block = await (compute(fit) if self.keep_sums else transfer.run_conversion(fit, found, dtype))
        if missing:
            await self._store(place, block)
            self._note(place)

    def _check(self) -> None:
        """Complain about chunks that the region cuts: at first, and if it turns out that the store can not compare."""
        compared = is_safe_for_jobs(self.target.store)
        if compared is not self._compared:
            check_region(chunks_of(self.target), self.start, self.stop, self._unaligned, safe=compared)
            self._compared = compared

    def _check_pair(self, place: Region) -> None:
        """Complain about chunks that a block cuts which was given with its place."""
        check_region(chunks_of(self.target), *corners(place), self._unaligned, safe=is_safe_for_jobs(self.target.store))

    async def _store(self, place: Region, block: Block) -> None:
        target = self.target
        where = transform_of(target.view[place])
        check = self._check if self.source.pairs is None else partial(self._check_pair, place)
        await transfer.write(chunks_of(target), where, block, all_absent=self.absent, check=check)

    def _compare_now(self, region: Region, _: Any) -> None:
        self._judge(region, drive(self.target.view[region].read()))

    async def _compare(self, region: Region, _: Any) -> None:
        found = await self.target.view[region].read()
        await compute(partial(self._judge, region, found))

    def _judge(self, region: Region, found: Block) -> None:
        block = transfer.as_array(found, self.target.dtype, self.target.metadata.spec.fill_value)
        own = tuple((s.start, s.stop) for s in region)
        if checksum(block) != self._sums[own]:
            if self._came_again(own):
                return
            raise ChecksumError(
                f"{self.target.name}[{_shown(region)}] in {self.target.store!r} is not what was written there"
            )
        with self._mutex:
            self.report.verified += 1

    def _came_again(self, own: tuple[tuple[int, int], ...]) -> bool:
        """Whether a part of a block was written again, by another block that an iterable gave."""
        overlap = (
            all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(own, other, strict=True))
            for other in self._sums
            if other != own
        )
        return self.source.pairs is not None and any(overlap)


def _shown(region: Region) -> str:
    return ", ".join(f"{s.start}:{s.stop}" for s in region)


def for_job(array: AsyncArray, unaligned: Unaligned) -> AsyncArray:
    """Return an array with the job's own choice of what may be written in part, in place of its settings'."""
    handle = handle_of(array)
    return with_handle(array, replace(handle, config=replace(array.config, unaligned=unaligned)))
