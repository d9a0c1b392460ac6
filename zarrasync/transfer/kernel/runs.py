"""Reading and writing chunks with the compiled kernel one by one, by their keys.

For chunks that are not a box of a regular grid: the chunks of a grid with several shapes, and those that a caller lists.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.drive import drive
from zarrasync._kernel.structs import ABSENT, EMPTY, LEFT, ArrayStruct, worker
from zarrasync.codecs.spec import Array
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.points import PointRun, Run
from zarrasync.model.chunk_grids import RegularAxis
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel.plan import KernelPart, kernel_part, split_part
from zarrasync.transfer.kernel.write import replace_part
from zarrasync.transfer.place import Placement
from zarrasync.transfer.threads import Job, Progress, run_jobs

__all__ = ["read_runs", "write_runs"]

_ALONE = 1 << 20
"""Bytes that one thread reads or writes in less time than sharing the work would take."""
_MOST = 256
"""Chunks in one job."""


class _Work(NamedTuple):
    """A chunk, or a part of a large shard.

    Attributes:
        number: The number of the chunk among all.
        part: Its elements.
    """

    number: int
    part: KernelPart


class _Singles:
    """Chunks of one shape, and what becomes of them.

    Attributes:
        runs: The chunks.
        work: What the kernel has to do.
    """

    def __init__(self, chunks: Chunks, array: ArrayStruct, runs: Iterable[ChunkRun], out: Array) -> None:
        self._chunks, self._array, self._out = chunks, array, out
        self._axes = tuple([RegularAxis(length, length) for length in chunks.chain.spec.shape])
        self.runs = [single for run in runs for single in run.singles()]
        self.work: list[_Work] = []
        self._numbers: dict[int, set[int]] = {LEFT: set(), ABSENT: set(), EMPTY: set()}
        for number, run in enumerate(self.runs):
            part = kernel_part(chunks, run.projection, out, self._axes)
            if part is None or not part.total:
                self._numbers[LEFT].add(number)
            else:
                self.work.append(_Work(number, part))

    def split(self, wanted: int) -> None:
        """Split a few shards, so that several threads can read each of them."""
        if self._array.is_sharded and len(self.work) < wanted:
            pieces = -(-wanted // len(self.work))
            self.work = [
                _Work(number, piece)
                for number, part in self.work
                for piece in split_part(self._chunks, part, self._out, pieces, self._axes)
            ]

    def jobs(self, function: partial[None], threads: int) -> list[Job]:
        """Return jobs that call a function with a few of the chunks each."""
        length = max(1, min(_MOST, -(-len(self.work) // (2 * threads))))
        return [partial(function, self.work[at : at + length]) for at in range(0, len(self.work), length)]

    def key(self, number: int) -> str:
        return self._chunks.key(self.runs[number].coords)

    def array(self, key: str) -> ArrayStruct:
        """Return the description of the array with only the chunk of a key."""
        named = ArrayStruct.from_buffer_copy(self._array)
        named.head, named.separator = key.encode(), 0
        return named

    def note(self, number: int, status: int) -> None:
        """Note what became of a chunk, or of a part of it."""
        if status in self._numbers:
            self._numbers[status].add(number)

    def those(self, status: int) -> list[ChunkRun]:
        """Return the chunks with a status. Those with a part that is left have no other."""
        left = self._numbers[LEFT] if status != LEFT else ()
        return [self.runs[number] for number in sorted(self._numbers[status].difference(left))]


async def read_runs(placement: Placement, runs: Sequence[Run]) -> Sequence[Run]:
    """Read chunks of local files.

    Args:
        placement: The output.
        runs: The chunks.

    Returns:
        The runs that are left to Python. The elements of the others are in the output.
    """
    chunks, config, chain = placement.chunks, placement.chunks.config, placement.chain
    array = chunks.kernel_array
    if array is None or placement.fields is not None or (array.is_sharded and placement.missing == "error"):
        return runs
    singles = _Singles(chunks, array, [run for run in runs if not isinstance(run, PointRun)], placement.out)
    if not singles.work:
        return runs
    nbytes = len(singles.work) * chain.nbytes
    if chain.supports_partial_reads:
        nbytes = min(nbytes, 2 * placement.out.nbytes)
    threads = min(config.pool_size, 1 + nbytes // _ALONE)
    if threads > 1:
        singles.split(2 * threads)
    async with chunks.budget(2 * threads * min(chain.nbytes, config.coalesce_size)):
        run_jobs(singles.jobs(partial(_read, placement, singles), threads), config, placement.flag, threads)
    for run in singles.those(ABSENT):  # they have the fill value already
        placement.note_absent(run, chunks.key(run.coords))
        if placement.missing == "error":
            placement.absent.append(chunks.full_key(chunks.key(run.coords)))
    return [*(run for run in runs if isinstance(run, PointRun)), *singles.those(LEFT)]


def _read(placement: Placement, singles: _Singles, work: Sequence[_Work]) -> None:
    own, status, chunks = worker(), ctypes.create_string_buffer(1), placement.chunks
    for number, part in work:
        array = singles.array(singles.key(number))
        elements = own.read(
            own.address, ctypes.addressof(array), part.axes, None, part.out, 0, 1, status, placement.flag.address
        )
        chunks.count_files(own)
        singles.note(number, status.raw[0])
        if placement.progress is not None and elements:
            placement.progress(elements * placement.out.itemsize)


async def write_runs(
    chunks: Chunks, values: Array, runs: Sequence[ChunkRun], flag: CancelFlag, progress: Progress | None = None
) -> tuple[Sequence[ChunkRun], Sequence[str]]:
    """Replace whole chunks that are local files.

    Args:
        chunks: The chunks.
        values: The values of the whole write.
        runs: The chunks to write.
        flag: Set when the write is cancelled.
        progress: Called with the number of bytes done.

    Returns:
        The runs that are left to Python, and the keys of chunks that contain only the fill value and must be erased.
    """
    array, config, shape = chunks.kernel_target, chunks.config, chunks.chain.spec.shape
    if array is None:
        return runs, ()
    whole, left = list[ChunkRun](), list[ChunkRun]()
    for run in runs:
        (whole if run.is_full and run.projection.covers(shape) else left).append(run)
    singles = _Singles(chunks, array, whole, values)
    if not singles.work:
        return runs, ()
    threads = max(1, min(config.pool_size, len(singles.work), len(singles.work) * chunks.chain.nbytes // _ALONE))
    async with chunks.budget(threads * 2 * chunks.chain.nbytes):
        run_jobs(singles.jobs(partial(_write, chunks, singles, flag, progress), threads), config, flag, threads)
    left += singles.those(LEFT)
    return left, [chunks.key(run.coords) for run in singles.those(EMPTY)]


def _write(
    chunks: Chunks, singles: _Singles, flag: CancelFlag, progress: Progress | None, work: Sequence[_Work]
) -> None:
    async def write(number: int, part: KernelPart) -> None:
        key = singles.key(number)
        (status,) = await replace_part(chunks, singles.array(key), part, range(1), flag, [key])
        singles.note(number, status)
        if progress is not None and status != LEFT:
            progress(chunks.chain.nbytes)

    for number, part in work:
        drive(write(number, part))
