"""Reading from asynchronous stores: tasks fetch values, and the codec threads decode and place them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.gather import for_each
from zarrasync.codecs.spec import Buffer
from zarrasync.indexing.chunk_runs import AnyRun
from zarrasync.stores.values import Request, Value
from zarrasync.transfer.codec_runner import CodecRunner
from zarrasync.transfer.limits import FETCHED_CHUNKS, FETCHED_TOGETHER
from zarrasync.transfer.place import Placement
from zarrasync.transfer.plan import batches
from zarrasync.transfer.shard_search import (
    ShardChanged,
    ShardSearch,
    Span,
    group_spans,
    split_runs,
    wants_whole,
)

__all__ = ["read_async"]


async def read_async(placement: Placement, runs: Sequence[AnyRun]) -> None:
    """Read runs of chunks with concurrent requests, which the store limits.

    Args:
        placement: The output.
        runs: The runs.

    Raises:
        CodecError: If a chunk is damaged.
        StoreError: If the store fails.
    """
    await _AsyncRead(placement).run(runs)


async def _call(read: Callable[[], Awaitable[None]]) -> None:
    await read()


class _AsyncRead:
    def __init__(self, placement: Placement) -> None:
        assert not driven()
        self._placement = placement
        self._chunks, self._chain, self._store = placement.chunks, placement.chain, placement.chunks.store
        self._codec_runner = CodecRunner(placement.chunks.config)

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
        try:
            await for_each(_call, work, concurrency)
        finally:
            self._placement.flag.cancel()
            await self._codec_runner.join()

    async def _read_batch(self, runs: Sequence[AnyRun]) -> None:
        """Read whole chunks."""
        keys = [key for run in runs for key in self._chunks.keys(run)]
        nbytes = len(keys) * self._chain.nbytes
        async with self._chunks.budget(nbytes):
            values = await self._store.fetch([Request(key, limit=self._chunks.limit) for key in keys])
            data = [None if value is None else value.data for value in values]
            await self._codec_runner.run(partial(self._placement.place_runs, runs, keys, data), nbytes)

    async def _read_part(self, search: ShardSearch) -> None:
        """Read the wanted inner chunks of a shard."""
        if wants_whole(self._placement, search.part):
            await self._read_shard(search)
            return
        try:
            await search.run_async(partial(self._store.fetch, versions=True), self._fetch_index)
            if search.pieces is None:
                self._placement.place_found(search.key, search.part, None)
                return
            groups = group_spans(search.spans(leave_work=False), self._chunks.config.coalesce_size)
            await for_each(partial(self._read_spans, search), groups, self._chunks.concurrency)
        except ShardChanged:
            await self._read_shard(search.restarted())

    async def _fetch_index(self, requests: Sequence[Request]) -> Sequence[Value | None]:
        """Fetch the index of a shard once for all tasks that need it."""
        fetch = partial(self._store.fetch, requests, versions=True)
        return list(await self._chunks.index_flights.share(tuple(requests), fetch))

    async def _read_spans(self, search: ShardSearch, spans: Sequence[Span]) -> None:
        total = sum(span.length for span in spans)
        async with self._chunks.budget(total):
            requests = [Request(search.key, span.start, span.length, limit=self._chunks.limit) for span in spans]
            values = await self._store.fetch(requests, versions=search.version is not None)
            pieces = search.fetched(spans, values)
            await self._codec_runner.run(partial(self._placement.place_found, search.key, search.part, pieces), total)

    async def _read_shard(self, search: ShardSearch) -> None:
        """Read a whole shard."""
        nbytes = self._chain.nbytes
        async with self._chunks.budget(nbytes):
            (value,) = await self._store.fetch([Request(search.key, limit=self._chunks.limit)])
            data = None if value is None else value.data
            await self._codec_runner.run(partial(self._place_shard, search, data), nbytes)

    def _place_shard(self, search: ShardSearch, data: Buffer | None) -> None:
        self._placement.place_found(search.key, search.part, search.run_inside(data))
