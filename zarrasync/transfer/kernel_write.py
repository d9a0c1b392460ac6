"""Writing local files with the compiled kernel: jobs, each of which replaces a stretch of whole chunks in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from itertools import groupby

from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.drive import drive
from zarrasync._kernel.structs import EMPTY, LATER, LEFT, ArrayStruct, worker
from zarrasync.codecs.spec import Array
from zarrasync.indexing.axis_cuts import numbers_of, touched
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection
from zarrasync.indexing.split import runs_at
from zarrasync.stores.temporary_names import temporary_path
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel_plan import KernelPart, kernel_part
from zarrasync.transfer.threads import Job, Progress, run_jobs

__all__ = ["KernelWrite", "write_part"]

_ALONE = 1 << 18
"""Bytes that one thread writes in less time than sharing the work would take."""
_SMALL = 1 << 16
"""Bytes of a single chunk below which it is written without the byte budget, which takes longer than the write."""
_MOST = 256
"""Chunks in one call, which are locked together."""


class KernelWrite:
    """A write by the kernel.

    Args:
        chunks: The chunks.
        array: Their description.
        part: The description of the selection.

    Attributes:
        left: The runs of the chunks that are left to Python, such as those that are written in part.
        empty: The keys of chunks that contain only the fill value and must be erased.
    """

    def __init__(self, chunks: Chunks, array: ArrayStruct, part: KernelPart) -> None:
        self._chunks, self._array, self._part = chunks, array, part
        pairs = zip(part.projection.source, chunks.metadata.grid.axes, strict=True)
        self._columns = [numbers_of(touched(*pair)) for pair in pairs]
        self._stages = chunks.metadata.keys.separator == "/" and bool(self._columns)
        self.left: list[ChunkRun] = []
        self.empty: list[str] = []

    @classmethod
    def of(cls, chunks: Chunks, projection: Projection, values: Array) -> KernelWrite | None:
        """Return the write of a selection, or ``None`` if the kernel does not support it."""
        array = chunks.kernel_target
        if array is None:
            return None
        several = bool(array.is_sharded)  # a single chunk is not faster, unless it consists of inner chunks
        for selector, length in zip(projection.source, chunks.chain.spec.shape, strict=True):
            if not isinstance(selector, slice) or selector.step != 1:
                return None
            if -(-selector.start // length) * length + length > selector.stop:  # no chunk is written as a whole
                return None
            several = several or selector.stop - selector.start > length
        part = kernel_part(chunks, projection, values) if several else None
        return None if part is None else cls(chunks, array, part)

    async def run(self, flag: CancelFlag, progress: Progress | None) -> None:
        """Write whole chunks."""
        total, nbytes, config = self._part.total, self._chunks.chain.nbytes, self._chunks.config
        if total == 1 and nbytes <= _SMALL:
            self._write_stretch(flag, progress, 0, 1)
            return
        threads = max(1, min(config.pool_size, total, total * nbytes // _ALONE))
        length = max(1, min(_MOST, config.batch_bytes // nbytes, -(-total // threads)))
        if self._stages and length > (width := len(self._columns[-1])):
            length -= length % width  # whole folders
        jobs: list[Job] = [
            partial(self._write_stretch, flag, progress, begin, min(begin + length, total))
            for begin in range(0, total, length)
        ]
        async with self._chunks.budget(min(threads, total) * 2 * nbytes):
            run_jobs(jobs, config, flag, threads)

    def _write_stretch(self, flag: CancelFlag, progress: Progress | None, begin: int, end: int) -> None:
        """Write the chunks ``begin`` to ``end`` of the selection, numbered in C order.

        Folders that do not exist appear in one step, and need no locks. The other chunks are locked and replaced.
        """
        statuses = self._call(flag, begin, end, stages=True) if self._stages else bytes([LATER]) * (end - begin)
        for first, last in _stretches(statuses, LATER):
            replaced = drive(self._replace(flag, begin + first, begin + last))
            statuses = statuses[:first] + replaced + statuses[last:]
        if LEFT in statuses:
            numbers = [begin + number for number, status in enumerate(statuses) if status == LEFT]
            self.left.extend(runs_at(self._part.projection, self._chunks.metadata.grid, numbers))
        if progress is not None:
            progress((end - begin - statuses.count(LEFT)) * self._chunks.chain.nbytes)

    async def _replace(self, flag: CancelFlag, begin: int, end: int) -> bytes:
        """Replace chunks under their locks; return their statuses."""
        keys = self._chunks.metadata.keys.encode_box(self._columns, begin, end)
        async with self._chunks.store.locks(keys):
            statuses = self._call(flag, begin, end, stages=False)
        if EMPTY in statuses:
            self.empty.extend([key for key, status in zip(keys, statuses, strict=True) if status == EMPTY])
        return statuses

    def _call(self, flag: CancelFlag, begin: int, end: int, *, stages: bool) -> bytes:
        return write_part(self._chunks, self._array, self._part, range(begin, end), flag, stages=stages)


def write_part(
    chunks: Chunks, array: ArrayStruct, part: KernelPart, numbers: range, flag: CancelFlag, *, stages: bool = False
) -> bytes:
    """Replace chunks with one call of the kernel.

    Args:
        chunks: The chunks.
        array: Their description.
        part: The elements to write.
        numbers: The numbers of the chunks, of all that the part touches.
        flag: Set when the write is cancelled.
        stages: Whether to write only folders that do not exist, which needs no locks.

    Returns:
        What became of each chunk.
    """
    own, statuses = worker(), ctypes.create_string_buffer(len(numbers))
    keeps_fill = chunks.chain.spec.undefined or chunks.config.write_empty_chunks
    own.write(
        *(own.address, ctypes.addressof(array), part.axes, part.out, numbers.start, numbers.stop, statuses),
        *(flag.address, temporary_path("").encode(), int(keeps_fill), int(stages)),
    )
    chunks.count_files(own)
    return statuses.raw


def _stretches(statuses: bytes, wanted: int) -> Iterator[tuple[int, int]]:
    """Return begin and end of each stretch of chunks with a status."""
    for status, group in groupby(range(len(statuses)), statuses.__getitem__):
        if status == wanted:
            numbers = list(group)
            yield numbers[0], numbers[-1] + 1
