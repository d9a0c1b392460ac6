"""Choosing between reading a chunk or shard as a whole and searching it for the inner chunks that a read needs."""

from __future__ import annotations

from collections.abc import Sequence

from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.points import Run
from zarrasync.transfer.place import Placement
from zarrasync.transfer.shard_search import ShardSearch

__all__ = ["split_runs", "wants_whole"]


def split_runs(placement: Placement, runs: Sequence[Run]) -> tuple[list[Run], list[ShardSearch]]:
    """Split runs into those whose chunks are read whole, and searches for parts of single chunks."""
    chain = placement.chain
    if not chain.supports_partial_reads:
        return list(runs), []
    whole: list[Run] = []
    searches: list[ShardSearch] = []
    for run in runs:
        if run.is_full and chain.stored_dtype is not None:
            whole.append(run)
            continue
        for part in run.singles():
            locator = chain.locate(part.projection, placement.out)
            if locator is None:
                whole.append(part)
            else:
                searches.append(ShardSearch(placement, placement.chunks.key(part.coords), part, locator))
    return whole, searches


def wants_whole(placement: Placement, part: ChunkRun) -> bool:
    """Return whether to read a whole shard, because most of it is needed and it easily fits into memory."""
    chunks, nbytes = placement.chunks, placement.chain.nbytes
    most = chunks.config.coalesce_size if chunks.store.blocking else chunks.config.memory_budget // 4
    return nbytes <= most and 2 * part.size * (placement.chain.spec.dtype.itemsize or 16) >= nbytes
