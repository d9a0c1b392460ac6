"""Reading runs of chunks: as jobs of threads for blocking stores, and as tasks for asynchronous ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.drive import drive, driven
from zarrasync._concurrency.gather import for_each
from zarrasync.codecs.spec import Buffer
from zarrasync.indexing.chunk_runs import AnyRun
from zarrasync.stores.values import Request, Value
from zarrasync.transfer.limits import COALESCED_JOB, CONTIGUOUS_COPY, FETCHED_CHUNKS, FETCHED_TOGETHER, LARGEST_SCRATCH
from zarrasync.transfer.place import DecodeMemory, Placement, ScratchMemory
from zarrasync.transfer.plan import batches
from zarrasync.transfer.shard_search import (
    Fetch,
    ShardChanged,
    ShardSearch,
    Span,
    group_spans,
    split_runs,
    wants_whole,
)
from zarrasync.transfer.threads import CodecRunner, ThreadJob, codec_runner, run_jobs, thread_count

_TAKEN = nullcontext()


async def read_blocking(placement: Placement, runs: Sequence[AnyRun]) -> None:
    """Read runs of chunks on this thread and helpers.

    Args:
        placement: The output.
        runs: The runs.

    Raises:
        CodecError: If a chunk is damaged.
        StoreError: If the store fails.
        asyncio.CancelledError: If the call was cancelled.
    """
    await _BlockingRead(placement).run(runs)


class _Read:
    """The steps of reading parts of shards, for blocking and asynchronous stores."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._chunks, self._chain, self._store = placement.chunks, placement.chain, placement.chunks.store

    def _budget(self, nbytes: int) -> AbstractAsyncContextManager[None]:
        return _TAKEN  # the whole read has reserved its bytes already

    async def _compute(self, function: Callable[[], None], nbytes: int) -> None:
        function()

    async def _find(self, search: ShardSearch, fetch_index: Fetch, most: int, *, leave_work: bool) -> list[list[Span]]:
        """Find the wanted inner chunks of a shard. Return the byte ranges that are left to read, in groups."""
        if wants_whole(self._placement, search.part):
            await self._read_shard(search)
            return []
        await search.run(partial(self._store.fetch, versions=True), fetch_index)
        if search.pieces is None:
            self._placement.place_found(search.key, search.part, None)
            return []
        return group_spans(search.spans(leave_work=leave_work), most)

    async def _read_spans(self, search: ShardSearch, spans: Sequence[Span], space: memoryview | None = None) -> None:
        """Fetch byte ranges of a shard, decode and place the inner chunks in them."""
        requests, end = [], 0
        for span in spans:
            start, end = end, end + span.length
            into = None if space is None else space[start:end]
            requests.append(Request(search.key, span.start, span.length, False, into, self._chunks.limit))
        async with self._budget(end):
            values = await self._store.fetch(requests, versions=search.version is not None)
            pieces = search.fetched(spans, values)
            await self._compute(partial(self._placement.place_found, search.key, search.part, pieces), end)

    async def _read_shard(self, search: ShardSearch) -> None:
        """Read a whole shard."""
        async with self._budget(self._chain.nbytes):
            (value,) = await self._store.fetch([Request(search.key, limit=self._chunks.limit)])
            data = None if value is None else value.data
            await self._compute(partial(self._place_shard, search, data), self._chain.nbytes)

    def _place_shard(self, search: ShardSearch, data: Buffer | None) -> None:
        self._placement.place_found(search.key, search.part, search.run_inside(data))


class _BlockingRead(_Read):
    async def run(self, runs: Sequence[AnyRun]) -> None:
        chunks, chain, threads = self._chunks, self._chain, 1
        if not chunks.is_interpreted(decoding=True):
            out = self._placement.out
            work = sum([run.count * chain.decoded_bytes(run.projection, out) for run in runs])
            threads = thread_count(chunks.config, work, chunks.config.pool_size)
        async with chunks.budget(2 * threads * min(chain.nbytes, chunks.config.coalesce_size)):
            run_jobs(self._jobs(runs, threads), chunks.config, self._placement.flag, threads)

    def _jobs(self, runs: Sequence[AnyRun], threads: int) -> list[ThreadJob]:
        whole, searches = split_runs(self._placement, runs)
        jobs: list[ThreadJob] = [partial(self._search, search) for search in searches]
        groups = batches(whole, self._chain.nbytes, self._chunks.config, threads)
        jobs.extend([partial(self._read_chunks, group) for group in groups])
        return jobs

    # -------------------------------------------------------------- whole chunks

    def _read_chunks(self, runs: Sequence[AnyRun]) -> None:
        """Fetch, decode and place whole chunks. Reads of small chunks spend most of their time in this loop.

        It needs only keys, memory and the codec chain, so compiled code can replace it.
        """
        chain = self._chain
        count = runs[0].count if len(runs) == 1 else sum([run.count for run in runs])
        keys = [key for run in runs for key in self._chunks.keys(run)]
        hint = chain.read_size_hint
        if chain.is_raw and not (len(runs) < count and chain.nbytes < CONTIGUOUS_COPY):
            self._read_raw_chunks(runs, keys, count)
        elif 0 < hint * count <= LARGEST_SCRATCH:
            with ScratchMemory("read", hint * count) as memory:
                self._placement.place_runs(runs, keys, self._fetch(keys, list(memory.reshape(count, hint))))
        else:
            self._placement.place_runs(runs, keys, self._fetch(keys, [None] * count))

    def _read_raw_chunks(self, runs: Sequence[AnyRun], keys: Sequence[str], count: int) -> None:
        """Read raw chunks directly into the output, or into scratch memory from which they are placed."""
        chain, placement = self._chain, self._placement
        spaces: list[npt.NDArray[np.uint8] | None] = []
        memories: list[DecodeMemory | None] = []
        with placement.workspace(chain, count) as workspace:
            for run in runs:
                memory = placement.output_memory(chain, run, placement.out)
                if workspace is not None and memory is None:
                    memory = workspace.memory(chain, run.count, len(spaces))
                memories.append(memory)
                spaces.extend(memory.each if memory is not None else [None] * run.count)
            placement.place_runs(runs, keys, self._fetch(keys, spaces), memories)

    def _fetch(self, keys: Sequence[str], spaces: Sequence[npt.NDArray[np.uint8] | None]) -> Sequence[Buffer | None]:
        return drive(self._store.fetch_values(keys, spaces, self._chunks.limit))

    # -------------------------------------------------------------- parts of shards

    def _search(self, search: ShardSearch) -> list[ThreadJob] | None:
        """Find the wanted inner chunks of a shard; further jobs fetch and decode them."""
        leave_work, most = self._chunks.kernel_decoder is not None, min(self._chunks.config.batch_bytes, COALESCED_JOB)
        fetch_index = partial(self._store.fetch, versions=True)
        try:
            groups = drive(self._find(search, fetch_index, most, leave_work=leave_work))
        except ShardChanged:
            drive(self._read_shard(search.restarted()))
            return None
        return [partial(self._read_group, search, group) for group in groups]

    def _read_group(self, search: ShardSearch, spans: Sequence[Span]) -> None:
        total = sum([span.length for span in spans])
        try:
            if 0 < total <= LARGEST_SCRATCH:
                with ScratchMemory("read", total) as memory:
                    drive(self._read_spans(search, spans, memoryview(memory)))
            else:
                drive(self._read_spans(search, spans))
        except ShardChanged:
            drive(self._read_shard(search.restarted()))


async def read_async(placement: Placement, runs: Sequence[AnyRun]) -> None:
    """Read runs of chunks with concurrent requests, which the store limits.

    Args:
        placement: The output.
        runs: The runs.

    Raises:
        CodecError: If a chunk is damaged.
        StoreError: If the store fails.
    """
    async with codec_runner(placement.chunks.config) as runner:
        await _AsyncRead(placement, runner).run(runs)


async def _call(read: Callable[[], Awaitable[None]]) -> None:
    await read()


class _AsyncRead(_Read):
    def __init__(self, placement: Placement, runner: CodecRunner) -> None:
        assert not driven()
        super().__init__(placement)
        self._runner = runner

    def _budget(self, nbytes: int) -> AbstractAsyncContextManager[None]:
        return self._chunks.budget(nbytes)

    async def _compute(self, function: Callable[[], None], nbytes: int) -> None:
        await self._runner.run(function, nbytes)

    async def run(self, runs: Sequence[AnyRun]) -> None:
        config, concurrency, nbytes = self._chunks.config, self._chunks.concurrency, self._chain.nbytes
        whole, searches = split_runs(self._placement, runs)
        # Small values that are fetched together are decoded together, mostly without the interpreter.
        most = max(
            1, min(FETCHED_CHUNKS, concurrency // 4, min(FETCHED_TOGETHER, config.memory_budget // 4) // max(nbytes, 1))
        )
        groups = batches(whole, nbytes, config, config.pool_size, most)
        work: list[Callable[[], Awaitable[None]]] = [
            *(partial(self._read_batch, group) for group in groups),
            *(partial(self._read_part, search) for search in searches),
        ]
        await for_each(_call, work, concurrency)

    async def _read_batch(self, runs: Sequence[AnyRun]) -> None:
        """Read whole chunks."""
        keys = [key for run in runs for key in self._chunks.keys(run)]
        nbytes = len(keys) * self._chain.nbytes
        async with self._chunks.budget(nbytes):
            values = await self._store.fetch([Request(key, limit=self._chunks.limit) for key in keys])
            data = [None if value is None else value.data for value in values]
            await self._compute(partial(self._placement.place_runs, runs, keys, data), nbytes)

    async def _read_part(self, search: ShardSearch) -> None:
        """Read the wanted inner chunks of a shard."""
        most = self._chunks.config.coalesce_size
        try:
            groups = await self._find(search, self._fetch_index, most, leave_work=False)
            await for_each(partial(self._read_spans, search), groups, self._chunks.concurrency)
        except ShardChanged:
            await self._read_shard(search.restarted())

    async def _fetch_index(self, requests: Sequence[Request]) -> Sequence[Value | None]:
        """Fetch the index of a shard once for all tasks that need it."""
        fetch = partial(self._store.fetch, requests, versions=True)
        return list(await self._chunks.index_flights.share(tuple(requests), fetch))
