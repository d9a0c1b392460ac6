"""Reading local files with the compiled kernel: jobs, each of which reads a stretch of the chunks in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

from zarrasync._kernel.structs import ABSENT, LEFT, ArrayStruct, worker
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection
from zarrasync.indexing.split import runs_at, runs_of_groups
from zarrasync.transfer.kernel.plan import KernelPart, kernel_part, split_part
from zarrasync.transfer.kernel.points import kernel_points
from zarrasync.transfer.kernel.ranges import FILE
from zarrasync.transfer.place import Placement
from zarrasync.transfer.threads import Job, run_jobs

__all__ = ["ALONE", "KernelRead"]

ALONE = 1 << 20
"""Bytes that one thread reads in less time than sharing the work would take."""
_POINT = 4096
"""Bytes that are read in the time that reading one element of a raw chunk takes."""
_MOST = 4096
"""Chunks in one call, between which it cannot be cancelled by Ctrl-C."""


class KernelRead:
    """A read by the kernel.

    Args:
        placement: The output.
        array: The description of the array.
        part: The description of the selection.
    """

    def __init__(self, placement: Placement, array: ArrayStruct, part: KernelPart) -> None:
        self._placement, self._chunks = placement, placement.chunks
        self._array, self._part = array, part
        self._left: list[ChunkRun] = []

    @classmethod
    def of(cls, placement: Placement, projection: Projection) -> KernelRead | None:
        """Return the read of a selection, or ``None`` if the kernel does not support it."""
        array = placement.chunks.kernel_array
        if array is None or placement.fields is not None or (array.is_sharded and placement.missing == "error"):
            return None
        if projection.point_axes:
            part = kernel_points(placement.chunks, array, projection, placement.out)
        else:
            part = kernel_part(placement.chunks, projection, placement.out)
        return None if part is None else cls(placement, array, part)

    async def run(self) -> Sequence[ChunkRun]:
        """Read, and return the runs of chunks that are left to Python because the kernel cannot read them."""
        part, placement, config = self._part, self._placement, self._chunks.config
        work = self._bytes_to_decode() + part.total * FILE
        threads = min(config.pool_size, 1 + work // ALONE) if work > ALONE else 1
        if threads == 1 and part.total <= _MOST and work <= ALONE:
            self._run_stretch(part, 0, part.total)
            return self._left
        parts: Sequence[KernelPart] = [part]
        if self._array.is_sharded and part.total < 2 * threads and part.points is None:
            parts = split_part(self._chunks, part, placement.out, 2 * threads)
        unit = max(1, work // part.total)
        length = max(1, min(_MOST, config.batch_bytes // unit, -(-part.total // threads)))
        jobs: list[Job] = [
            partial(self._run_stretch, one, begin, min(begin + length, one.total))
            for one in parts
            for begin in range(0, one.total, length)
        ]
        async with self._chunks.budget(2 * threads * min(self._placement.chain.nbytes, config.coalesce_size)):
            run_jobs(jobs, config, placement.flag, threads)
        return self._left

    def _bytes_to_decode(self) -> int:
        """Estimate the bytes that are decoded."""
        chain, placement = self._placement.chain, self._placement
        if self._part.points is not None:
            unit = chain.innermost_chain
            whole = self._part.total * unit.nbytes
            return min(whole, _POINT * len(placement.out) + 2 * placement.out.nbytes) if unit.is_raw else whole
        if not chain.supports_partial_reads:
            return self._part.total * chain.nbytes
        return min(self._part.total * chain.nbytes, 2 * placement.out.nbytes)

    def _run_stretch(self, part: KernelPart, begin: int, end: int) -> None:
        """Read the chunks ``begin`` to ``end`` of a part, numbered in C order."""
        statuses = ctypes.create_string_buffer(end - begin)
        own, flag = worker(), self._placement.flag
        array, points = ctypes.addressof(self._array), part.points and ctypes.addressof(part.points.struct)
        elements = own.read(own.address, array, part.axes, points, part.out, begin, end, statuses, flag.address)
        self._chunks.count_files(own)
        placement = self._placement
        if placement.progress is not None and elements:
            placement.progress(elements * placement.out.itemsize)
        found = statuses.raw
        if LEFT in found:
            self._left.extend(self._runs(part, begin, found, LEFT))
        if placement.missing == "error" and ABSENT in found:
            for run in self._runs(part, begin, found, ABSENT):
                placement.absent.append(self._chunks.full_key(self._chunks.key(run.coords)))

    def _runs(self, part: KernelPart, begin: int, statuses: bytes, wanted: int) -> Sequence[ChunkRun]:
        """Return the runs of the chunks with a status; the first status belongs to the chunk ``begin``."""
        numbers = [begin + number for number, status in enumerate(statuses) if status == wanted]
        grid, points = self._chunks.metadata.grid, part.points
        if points is None:
            return runs_at(part.projection, grid, numbers)
        return runs_of_groups(part.projection, grid, points.order, points.edges, numbers)
