"""Reading from blocking stores: jobs that fetch, decode and place a batch of chunks on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.drive import drive
from zarrasync._util.memory import slows_copies
from zarrasync.codecs.spec import Buffer
from zarrasync.indexing.chunk_runs import AnyRun
from zarrasync.stores.values import Request
from zarrasync.transfer.limits import COALESCED_JOB, CONTIGUOUS_COPY, LARGEST_SCRATCH
from zarrasync.transfer.place import DecodeMemory, Placement
from zarrasync.transfer.plan import batches
from zarrasync.transfer.scratch import ScratchMemory
from zarrasync.transfer.shard_search import (
    ShardChanged,
    ShardSearch,
    Span,
    group_spans,
    split_runs,
    wants_whole,
)
from zarrasync.transfer.threads import ThreadJob, run_jobs, thread_count

__all__ = ["read_blocking"]


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


class _BlockingRead:
    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._chunks, self._chain, self._store = placement.chunks, placement.chain, placement.chunks.store

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
                if workspace is not None and (memory is None or slows_copies(memory.each[0])):
                    memory = workspace.memory(chain, run.count, len(spaces))
                memories.append(memory)
                spaces.extend(memory.each if memory is not None else [None] * run.count)
            placement.place_runs(runs, keys, self._fetch(keys, spaces), memories)

    def _fetch(self, keys: Sequence[str], spaces: Sequence[npt.NDArray[np.uint8] | None]) -> Sequence[Buffer | None]:
        return drive(self._store.fetch_values(keys, spaces, self._chunks.limit))

    # -------------------------------------------------------------- parts of shards

    def _search(self, search: ShardSearch) -> list[ThreadJob] | None:
        """Find the wanted inner chunks of a shard; further jobs fetch and decode them."""
        placement = self._placement
        if wants_whole(placement, search.part):
            self._read_shard(search)
            return None
        try:
            search.run(partial(self._store.fetch, versions=True))
        except ShardChanged:
            self._read_shard(search.restarted())
            return None
        if search.pieces is None:
            placement.place_found(search.key, search.part, None)
            return None
        spans = search.spans(leave_work=self._chunks.kernel_decoder is not None)
        groups = group_spans(spans, min(self._chunks.config.batch_bytes, COALESCED_JOB))
        return [partial(self._read_spans, search, group) for group in groups]

    def _read_spans(self, search: ShardSearch, spans: Sequence[Span]) -> None:
        """Fetch byte ranges of a shard, decode and place the inner chunks in them."""
        total = sum([span.length for span in spans])
        try:
            if 0 < total <= LARGEST_SCRATCH:
                with ScratchMemory("read", total) as memory:
                    self._fetch_spans(search, spans, memoryview(memory))
            else:
                self._fetch_spans(search, spans, None)
        except ShardChanged:
            self._read_shard(search.restarted())

    def _fetch_spans(self, search: ShardSearch, spans: Sequence[Span], memory: memoryview | None) -> None:
        requests, start = [], 0
        for span in spans:
            into = None if memory is None else memory[start : start + span.length]
            requests.append(Request(search.key, span.start, span.length, False, into, self._chunks.limit))
            start += span.length
        values = drive(self._store.fetch(requests, versions=search.version is not None))
        self._placement.place_found(search.key, search.part, search.fetched(spans, values))

    def _read_shard(self, search: ShardSearch) -> None:
        """Read a whole shard."""
        (value,) = drive(self._store.fetch([Request(search.key, limit=self._chunks.limit)]))
        self._placement.place_found(search.key, search.part, search.run_inside(None if value is None else value.data))
