"""Reading and writing listed chunks with the engine: the part that needs nothing of zarr-python.

The caller has selected chunks already: it lists a key for each, and which of its elements go where. So any library that
cuts selections itself can use these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zarrasync._concurrency.cancel import CancelFlag, cancel_flag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array
from zarrasync.indexing.chunk_runs import AnyRun, ChunkRun
from zarrasync.stores.changes import count_stored
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.limits import SMALL
from zarrasync.transfer.place import Placement, PlaceOptions
from zarrasync.transfer.read import read_listed_runs
from zarrasync.transfer.read_runs import read_async
from zarrasync.transfer.write import write_listed_runs
from zarrasync.transfer.write_chunks import ChunkWriter, WriteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedChunks(Chunks):
    """Chunks of one shape, whose only coordinate is their position in a list.

    Attributes:
        listed: The key of each chunk.
        bound: The codecs of a chunk.
    """

    listed: Sequence[str]
    bound: BoundChain

    @property
    def chain(self) -> BoundChain:
        return self.bound

    @property
    def are_shards(self) -> bool:
        """Whether the chunks are shards."""
        return self.bound.innermost_chain is not self.bound

    def key(self, coords: tuple[int, ...]) -> str:
        return self.listed[coords[0]]

    def keys(self, run: AnyRun) -> list[str]:
        assert isinstance(run, ChunkRun)
        return list(self.listed[run.coords[0] : run.coords[0] + run.count])


class _ListedPlacement(Placement):
    """A placement that notes which of the listed chunks are absent."""

    def __init__(self, chunks: Chunks, out: Array, flag: CancelFlag, absent: set[int]) -> None:
        super().__init__(chunks, out, PlaceOptions(None, "fill", [], None, None), flag)
        self._absent = absent

    def note_absent(self, run: ChunkRun) -> None:
        self._absent.update(range(run.coords[0], run.coords[0] + run.count))


async def read_listed(chunks: ListedChunks, runs: Sequence[ChunkRun], out: Array) -> set[int]:
    """Read chunks into an array.

    Args:
        chunks: The chunks.
        runs: The elements of each chunk, and their destination.
        out: The destination.

    Returns:
        The positions of absent chunks, whose elements were set to the fill value.

    Raises:
        CodecError: If a chunk does not decode.
        Exception: What the store raises.
    """
    absent = set[int]()

    async def work() -> None:
        await read_listed_runs(_ListedPlacement(chunks, out, cancel_flag(), absent), runs)

    if _is_instant(chunks, len(runs)):
        drive(work())
    elif chunks.store.blocking:
        await run_in_worker(work, computing=chunks.store.is_local)
    else:
        placement = _ListedPlacement(chunks, out, cancel_flag(), absent)
        await read_async(placement, runs)
    return absent


def _is_instant(chunks: ListedChunks, count: int) -> bool:
    """Return whether reading takes less time than another thread would take to begin: a little from memory."""
    chain, store = chunks.chain, chunks.store
    from_memory = store.blocking and store.is_local and not store.parallel
    return from_memory and chain.is_quick and not chain.supports_partial_reads and count * chain.nbytes <= SMALL


async def write_listed(chunks: ListedChunks, runs: Sequence[ChunkRun], values: Array) -> None:
    """Write values into chunks.

    Args:
        chunks: The chunks.
        runs: The elements of each chunk that are replaced, and where the values are.
        values: The values.

    Raises:
        CodecError: If values do not encode, or a chunk that is changed in part does not decode.
        Exception: What the store raises.
    """

    async def work() -> None:
        await write_listed_runs(chunks, values, runs, WriteOptions())

    try:
        if chunks.store.blocking:
            await run_in_worker(work, computing=chunks.store.is_local)
        else:
            await ChunkWriter(chunks, values, WriteOptions()).write_async(runs)
    finally:
        count_stored(chunks.store, chunks.listed[0])
