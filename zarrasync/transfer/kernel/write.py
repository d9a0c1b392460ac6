"""Writing local files with the compiled kernel: jobs, each of which writes a stretch of chunks.

One call replaces or changes many chunks, and locks each among all processes of the machine while it is stored.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.locks import KeyLocks
from zarrasync._kernel.structs import EMPTY, LATER, LEFT, ArrayStruct, worker
from zarrasync.codecs.spec import Array
from zarrasync.indexing.axis_cuts import numbers_of, touched
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection
from zarrasync.indexing.split import runs_at
from zarrasync.stores.local_locks import Place, held_places
from zarrasync.stores.lock_file import lock_file
from zarrasync.stores.temporary_names import temporary_path
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel.plan import KernelPart, kernel_part
from zarrasync.transfer.threads import Job, Progress, run_jobs

__all__ = ["KernelWrite", "replace_part"]

_ALONE = 1 << 18
"""Bytes that one thread writes in less time than sharing the work would take."""
_FILE = 1 << 15
"""Bytes that are written in the time that making a file takes."""
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
        left: The runs of the chunks that are left to Python.
        empty: The keys of chunks that contain only the fill value and must be erased.
    """

    def __init__(self, chunks: Chunks, array: ArrayStruct, part: KernelPart) -> None:
        self._chunks, self._array, self._part = chunks, array, part
        source = part.projection.source
        self._columns = [numbers_of(touched(*pair)) for pair in zip(source, chunks.metadata.grid.axes, strict=True)]
        lengths = zip(source, chunks.chain.spec.shape, strict=True)
        whole = [_count_whole(selector, length) for selector, length in lengths if isinstance(selector, slice)]
        self._is_whole = math.prod(whole) == part.total
        self._stages = chunks.metadata.keys.separator == "/" and bool(self._columns)
        self.left: list[ChunkRun] = []
        self.empty: list[str] = []

    @classmethod
    def of(cls, chunks: Chunks, projection: Projection, values: Array) -> KernelWrite | None:
        """Return the write of a selection, or ``None`` if the kernel does not support it."""
        array = chunks.kernel_target
        if array is None:
            return None
        is_faster = bool(array.is_sharded)  # a single whole chunk is not, unless it consists of inner chunks
        for selector, length in zip(projection.source, chunks.chain.spec.shape, strict=True):
            if not isinstance(selector, slice) or selector.step != 1:
                return None
            is_faster = is_faster or selector.stop - selector.start != length or selector.start % length != 0
        part = kernel_part(chunks, projection, values) if is_faster else None
        return None if part is None else cls(chunks, array, part)

    async def run(self, flag: CancelFlag, progress: Progress | None) -> None:
        """Write the chunks."""
        total, nbytes, config = self._part.total, self._chunks.chain.nbytes, self._chunks.config
        if total == 1 and nbytes <= _SMALL:
            self._write_stretch(flag, progress, 0, 1)
            return
        threads = max(1, min(config.pool_size, total, total * (nbytes + _FILE) // _ALONE))
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

        Folders that do not exist appear in one step, and need no locks. Other chunks are locked together.
        """
        statuses = bytes([LATER]) * (end - begin)
        if self._stages:
            statuses = _write_part(self._chunks, self._array, self._part, range(begin, end), flag)
        for first, last in _stretches(statuses, LATER):
            replaced = drive(self._replace(flag, begin + first, begin + last))
            statuses = statuses[:first] + replaced + statuses[last:]
        if LEFT in statuses:
            self.left.extend(self._runs(number for number, status in enumerate(statuses, begin) if status == LEFT))
        if progress is not None:
            if self._is_whole:
                progress((end - begin - statuses.count(LEFT)) * self._chunks.chain.nbytes)
            else:
                done = self._runs(number for number, status in enumerate(statuses, begin) if status != LEFT)
                progress(sum([run.size for run in done]) * self._chunks.chain.spec.dtype.numpy.itemsize)

    def _runs(self, numbers: Iterable[int]) -> Sequence[ChunkRun]:
        """Return the runs of chunks, which are numbered in C order."""
        return runs_at(self._part.projection, self._chunks.metadata.grid, list(numbers))

    async def _replace(self, flag: CancelFlag, begin: int, end: int) -> bytes:
        """Replace chunks under their locks; return their statuses."""
        keys = self._chunks.metadata.keys.encode_box(self._columns, begin, end)
        statuses = await replace_part(self._chunks, self._array, self._part, range(begin, end), flag, keys)
        if EMPTY in statuses:
            self.empty.extend([key for key, status in zip(keys, statuses, strict=True) if status == EMPTY])
        return statuses


async def replace_part(
    chunks: Chunks, array: ArrayStruct, part: KernelPart, numbers: range, flag: CancelFlag, keys: Sequence[str]
) -> bytes:
    """Replace or change chunks under their locks.

    Args:
        chunks: The chunks.
        array: Their description.
        part: The elements to write.
        numbers: The numbers of the chunks, of all that the part touches.
        flag: Set when the write is cancelled.
        keys: The keys of these chunks.

    Returns:
        What became of each chunk. If the caller has locked one of them, they are left.
    """
    places: Sequence[Place] = chunks.store.lock_identities(keys)  # type: ignore[assignment]  # of local files
    held = held_places.get()
    if held and not set(places).isdisjoint(held.values()):  # the kernel would release a lock of the caller
        return bytes([LEFT]) * len(numbers)
    async with KeyLocks(lambda: places):
        return _write_part(chunks, array, part, numbers, flag, places)


def _write_part(
    chunks: Chunks,
    array: ArrayStruct,
    part: KernelPart,
    numbers: range,
    flag: CancelFlag,
    places: Sequence[Place] | None = None,
) -> bytes:
    """Write chunks with one call of the kernel; return what became of each.

    The caller holds the locks of the places within the process. Without places, only new folders are written.
    """
    own, statuses = worker(), ctypes.create_string_buffer(len(numbers))
    folders, locks = None, -1
    if places is not None:
        folders, locks = struct.pack(f"={2 * len(places)}Q", *[n for place in places for n in place[:2]]), lock_file()
    own.write(
        *(own.address, ctypes.addressof(array), part.axes, part.out, numbers.start, numbers.stop, statuses),
        *(flag.address, temporary_path("").encode(), _keeps_fill(chunks), folders, locks),
    )
    chunks.count_files(own)
    return statuses.raw


def _count_whole(selector: slice, length: int) -> int:
    """Return how many chunks of a length a slice with step 1 contains."""
    count: int = selector.stop // length + -selector.start // length
    return max(0, count)


def _keeps_fill(chunks: Chunks) -> int:
    """Return whether chunks that contain only the fill value are stored."""
    return int(chunks.chain.spec.undefined or chunks.config.write_empty_chunks)


def _stretches(statuses: bytes, wanted: int) -> Iterator[tuple[int, int]]:
    """Return begin and end of each stretch of chunks with a status."""
    for status, group in groupby(range(len(statuses)), statuses.__getitem__):
        if status == wanted:
            numbers = list(group)
            yield numbers[0], numbers[-1] + 1
