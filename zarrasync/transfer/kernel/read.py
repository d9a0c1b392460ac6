"""Reading local files with the compiled kernel: jobs, each of which reads a stretch of the chunks in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from zarrasync._kernel.structs import ABSENT, LEFT, ArrayStruct, worker
from zarrasync.indexing.chunk_runs import AnyRun, ChunkRun, PointRun, runs_at, runs_of_groups
from zarrasync.indexing.projection import Projection
from zarrasync.transfer.kernel.plan import (
    KernelPart,
    kernel_part,
    kernel_points,
    listed_parts,
    named_array,
    split_part,
)
from zarrasync.transfer.limits import FILE, JOB_CHUNKS, KERNEL_CHUNKS, ONE_THREAD, POINT
from zarrasync.transfer.place import Placement
from zarrasync.transfer.threads import ThreadJob, run_jobs, thread_count


class _Stretch(NamedTuple):
    """The chunks ``begin`` to ``end`` of a part, numbered in C order."""

    part: KernelPart
    begin: int
    end: int


class KernelRead:
    """A read by the kernel.

    Args:
        placement: The output.
        array: The description of the array.
        parts: The selection: one part, or one for each of the listed chunks.
        left: Runs that the kernel does not support.
    """

    def __init__(
        self, placement: Placement, array: ArrayStruct, parts: Sequence[KernelPart], left: Sequence[AnyRun] = ()
    ) -> None:
        self._placement, self._chunks = placement, placement.chunks
        self._array, self._parts = array, parts
        self._left: list[AnyRun] = list(left)
        self._absent: list[ChunkRun] = []

    @classmethod
    def of(cls, placement: Placement, projection: Projection) -> KernelRead | None:
        """Return the read of a selection, or ``None`` if the kernel does not support it."""
        array = _array_for(placement)
        if array is None:
            return None
        if projection.point_axes:
            part = kernel_points(placement.chunks, array, projection, placement.out)
        else:
            part = kernel_part(placement.chunks, projection, placement.out)
        return None if part is None else cls(placement, array, [part])

    @classmethod
    def listed(cls, placement: Placement, runs: Sequence[AnyRun]) -> KernelRead | None:
        """Return the read of chunks of one shape, or ``None`` if the kernel does not support any."""
        array = _array_for(placement)
        if array is None:
            return None
        points = [run for run in runs if isinstance(run, PointRun)]
        single_runs = [run for run in runs if not isinstance(run, PointRun)]
        parts, left = listed_parts(placement.chunks, single_runs, placement.out)
        return cls(placement, array, parts, [*points, *left]) if parts else None

    async def run(self) -> Sequence[AnyRun]:
        """Read, and return the runs that are left to Python because the kernel cannot read them."""
        placement, config, parts = self._placement, self._chunks.config, self._parts
        total = sum([part.total for part in parts])
        work = self._bytes_to_decode(total) + total * FILE
        if work <= ONE_THREAD and len(parts) == 1:
            self._read([_Stretch(parts[0], 0, total)])
        else:
            threads = thread_count(config, work, config.pool_size)
            if self._array.is_sharded and threads > 1 and total < 2 * threads and parts[0].points is None:
                wanted = -(-2 * threads // len(parts))
                parts = [one for part in parts for one in split_part(self._chunks, part, placement.out, wanted)]
            async with self._chunks.budget(2 * threads * min(placement.chain.nbytes, config.coalesce_size)):
                run_jobs(self._jobs(parts, work // total, threads), config, placement.flag, threads)
        self._note_absent()
        return self._left

    def _jobs(self, parts: Sequence[KernelPart], unit: int, threads: int) -> list[ThreadJob]:
        """Return jobs for the chunks of parts, each of which takes as long as to decode ``unit`` bytes."""
        total = sum([part.total for part in parts])
        length = max(1, min(KERNEL_CHUNKS, self._chunks.config.batch_bytes // max(1, unit), -(-total // threads)))
        stretches = [
            _Stretch(part, begin, min(begin + length, part.total))
            for part in parts
            for begin in range(0, part.total, length)
        ]
        together = 1 if parts[0].run is None else min(JOB_CHUNKS, length)
        return [partial(self._read, stretches[at : at + together]) for at in range(0, len(stretches), together)]

    def _bytes_to_decode(self, total: int) -> int:
        """Estimate the bytes that are decoded."""
        chain, out, points = self._placement.chain, self._placement.out, self._parts[0].points
        if points is not None:
            unit = chain.innermost_chain
            whole = total * unit.nbytes
            return min(whole, POINT * len(out) + 2 * out.nbytes) if unit.is_raw else whole
        return min(total * chain.nbytes, 2 * out.nbytes) if chain.supports_partial_reads else total * chain.nbytes

    def _read(self, stretches: Sequence[_Stretch]) -> None:
        own, placement = worker(), self._placement
        for part, begin, end in stretches:
            statuses = ctypes.create_string_buffer(end - begin)
            array, points = named_array(self._chunks, self._array, part), part.points
            elements = own.read(
                *(own.address, ctypes.addressof(array), part.axes, points and ctypes.addressof(points.struct)),
                *(part.out, begin, end, statuses, placement.flag.address),
            )
            self._chunks.count_files(own)
            if placement.progress is not None and elements:
                placement.progress(elements * placement.out.itemsize)
            found = statuses.raw
            if LEFT in found:
                self._left.extend(self._runs(part, begin, found, LEFT))
            if ABSENT in found and (placement.missing == "error" or part.run is not None):
                self._absent.extend(self._runs(part, begin, found, ABSENT))

    def _runs(self, part: KernelPart, begin: int, statuses: bytes, wanted: int) -> Sequence[ChunkRun]:
        """Return the runs of the chunks with a status; the first status belongs to the chunk ``begin``."""
        if part.run is not None:
            return [part.run]
        numbers = [begin + number for number, status in enumerate(statuses) if status == wanted]
        grid, points = self._chunks.metadata.grid, part.points
        if points is None:
            return runs_at(part.projection, grid, numbers)
        return runs_of_groups(part.projection, grid, points.order, points.edges, numbers)

    def _note_absent(self) -> None:
        """Note absent chunks, which have the fill value already. Of a listed chunk, several parts may be left or absent."""
        if self._parts[0].run is not None:
            self._left = list({id(run): run for run in self._left}.values())
            left = set(map(id, self._left))
            self._absent = list({id(run): run for run in self._absent if id(run) not in left}.values())
        for run in self._absent:
            self._placement.note_absent(run)
            if self._placement.missing == "error":
                self._placement.absent.append(self._chunks.full_key(self._chunks.key(run.coords)))


def _array_for(placement: Placement) -> ArrayStruct | None:
    """Return the description of an array, or ``None`` if the kernel cannot read its chunks as the caller wants."""
    array = placement.chunks.kernel_array
    is_read_by_field = placement.fields is not None
    if array is None or is_read_by_field or (array.is_sharded and placement.missing == "error"):
        return None
    return array
