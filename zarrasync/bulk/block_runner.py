"""Concurrent work on blocks: on threads for blocking stores, in tasks of an event loop for asynchronous ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias

from zarrasync._concurrency import bridge
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive, driven
from zarrasync._concurrency.gates import FifoGate
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute, iterate_in_worker
from zarrasync.bulk.block_plan import BlockPlan
from zarrasync.bulk.sources import Source, pair_of
from zarrasync.indexing.regions import Region
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import run_on_store
from zarrasync.transfer.threads import ThreadJob, run_jobs

Work: TypeAlias = Callable[[Region, Any], Coroutine[Any, Any, None]]
"""Work on a region of the array and its values. If the values are ``None``, the work reads them from the source."""
_CONCURRENT_BLOCKS = 8
"""Default number of blocks in flight to an asynchronous store."""
_END = object()


class BlockRunner:
    """Runs work on the blocks of a source, within limits of concurrency and memory.

    Args:
        source: The source.
        target: The array that the blocks belong to.
        plan: The blocks.
        concurrency: The number of blocks at a time; 0 for a default that suits the store.
        skip: Called with the number of bytes of skipped blocks.
    """

    def __init__(
        self,
        source: Source,
        target: AsyncArray,
        plan: BlockPlan,
        concurrency: int,
        skip: Callable[[int], None],
    ) -> None:
        self._source, self._target, self._plan, self._skip = source, target, plan, skip
        self._on_threads = driven() or (target.store.blocking and not source.asynchronous)
        self._concurrency = concurrency or (target.config.pool_size if self._on_threads else _CONCURRENT_BLOCKS)

    async def run(self, work: Work) -> None:
        """Work on all blocks of the source."""
        if self._source.pairs is not None:
            run_pairs = self._pairs_on_threads if self._on_threads else self._pairs_on_loop
            await self._start(partial(run_pairs, work))
        else:
            concurrency = self._plan.fit_memory(self._concurrency)
            await self.run_regions(work, self._plan.regions(concurrency, self._skip), concurrency)

    async def run_regions(self, work: Work, regions: Iterable[Region], concurrency: int = 0) -> None:
        """Work on some regions."""
        run = self._regions_on_threads if self._on_threads else self._regions_on_loop
        await self._start(partial(run, work, regions, concurrency or self._concurrency))

    async def _start(self, run: Callable[[], Any]) -> None:
        await (run_on_store(run, self._target.store) if self._on_threads else run())

    # -------------------------------------------------------------- regions

    async def _regions_on_threads(self, work: Work, regions: Iterable[Region], threads: int) -> None:
        planned = list(regions)
        if len(planned) <= threads:  # each write shares its chunks among the threads
            for region in planned:
                await work(region, None)
            return
        jobs: Iterable[ThreadJob] = (partial(_drive, work, [(region, None)]) for region in planned)
        run_jobs(iter(jobs), self._target.config, cancel_flag(), threads)

    async def _regions_on_loop(self, work: Work, regions: Iterable[Region], concurrency: int) -> None:
        await for_each(lambda region: work(region, None), regions, concurrency)

    # -------------------------------------------------------------- pairs of a region and its values

    async def _pairs_on_threads(self, work: Work) -> None:
        with closing(self._pair_jobs(work)) as jobs:
            run_jobs(jobs, self._target.config, cancel_flag(), self._concurrency)

    def _pair_jobs(self, work: Work) -> Generator[ThreadJob, None, None]:
        """Yield a job for each pair as soon as there is memory for it."""
        pairs: Any = self._source.pairs
        steps = bridge.iterate(pairs, blocking=False) if self._source.asynchronous else None
        memory = self._memory_gate()

        def run(pair: list[tuple[Region, Any]], size: int) -> None:
            try:
                _drive(work, pair)
            finally:
                memory.release(size)

        try:
            for item in pairs if steps is None else steps:
                pair, size = self._resolve(item)
                drive(memory.acquire(size))
                job = partial(run, [pair], size)
                del item, pair
                yield job
                del job
        finally:
            if steps is not None:
                steps.close()

    async def _pairs_on_loop(self, work: Work) -> None:
        """Take pairs as they arrive, at most one in advance."""
        pairs: Any = self._source.pairs
        source = aiter(pairs) if self._source.asynchronous else iterate_in_worker(iter(pairs))
        turn, slots, memory = asyncio.Lock(), FifoGate(self._concurrency, shared=False), self._memory_gate()

        async def take() -> tuple[tuple[Region, Any], int] | None:
            async with turn:
                item = await anext(source, _END)
                if item is _END:
                    return None
                pair, size = await compute(partial(self._resolve, item))  # copies the values
                await slots.acquire()
                await memory.acquire(size)
                return pair, size

        async def worker(_: int) -> None:
            while (item := await take()) is not None:
                pair, size = item
                try:
                    await work(*pair)
                finally:
                    slots.release()
                    memory.release(size)
                del item, pair  # free the block before waiting for the next one

        try:
            await for_each(worker, range(self._concurrency + 1), self._concurrency + 1)
        finally:
            await _close(source)

    def _memory_gate(self) -> FifoGate:
        return FifoGate(self._plan.memory_limit, shared=False)

    def _resolve(self, item: Any) -> tuple[tuple[Region, Any], int]:
        """Return the region and the values of an iterable's item, and their size in bytes."""
        region, values = pair_of(item)
        target_region = self._plan.to_target(region)
        return (target_region, values), self._plan.size(target_region)


def _drive(work: Work, block: list[tuple[Region, Any]]) -> None:
    """Run work on this thread. The list is emptied, because a waiting thread may keep a reference to its last job."""
    drive(work(*block.pop()))


async def _close(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
