"""Writing chunks of local files with the kernel, and encoding shards with it in memory."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Literal

import numpy as np

from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.locks import KeyLocks
from zarrasync._kernel.structs import EMPTY, LATER, LEFT, ArrayStruct, ValueStruct, worker
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.errors import CodecError
from zarrasync.indexing.axis_cuts import numbers_of, touched
from zarrasync.indexing.chunk_runs import ChunkRun, runs_at
from zarrasync.indexing.projection import Projection
from zarrasync.stores.local_files import temporary_path
from zarrasync.stores.local_locks import Place, held_places, lock_file
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel.plan import KernelPart, chunk_axes, kernel_part, listed_parts, named_array
from zarrasync.transfer.limits import FILE, JOB_CHUNKS, WRITE_FACTOR
from zarrasync.transfer.threads import Progress, ThreadJob, run_jobs, thread_count


class KernelWrite:
    """A write by the kernel.

    Args:
        chunks: The chunks.
        array: Their description.
        parts: The selection: one part, or one for each of the listed chunks, which are replaced.
        left: Runs that the kernel does not support.

    Attributes:
        left: The runs of the chunks that are left to Python.
        empty: The keys of chunks that contain only the fill value and must be erased.
    """

    def __init__(
        self, chunks: Chunks, array: ArrayStruct, parts: Sequence[KernelPart], left: Sequence[ChunkRun] = ()
    ) -> None:
        self._chunks, self._array, self._parts = chunks, array, parts
        self._columns: list[Sequence[int]] = []
        self._is_whole, self._stages = True, False
        if parts[0].run is None:
            source = parts[0].projection.source
            self._columns = [numbers_of(touched(*pair)) for pair in zip(source, chunks.metadata.grid.axes, strict=True)]
            lengths = zip(source, chunks.chain.spec.shape, strict=True)
            whole = [_count_whole(selector, length) for selector, length in lengths if isinstance(selector, slice)]
            self._is_whole = math.prod(whole) == parts[0].total
            self._stages = chunks.metadata.keys.separator == "/" and bool(self._columns)
        self.left: list[ChunkRun] = list(left)
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
        return None if part is None else cls(chunks, array, [part])

    @classmethod
    def listed(cls, chunks: Chunks, runs: Sequence[ChunkRun], values: Array) -> KernelWrite | None:
        """Return the write of whole chunks of one shape, or ``None`` if the kernel does not support any."""
        array, shape = chunks.kernel_target, chunks.chain.spec.shape
        if array is None:
            return None
        whole, partial_runs = list[ChunkRun](), list[ChunkRun]()
        for run in runs:
            (whole if run.is_full and run.projection.covers(shape) else partial_runs).append(run)
        parts, left = listed_parts(chunks, whole, values)
        return cls(chunks, array, parts, [*partial_runs, *left]) if parts else None

    async def run(self, flag: CancelFlag, progress: Progress | None) -> None:
        """Write the chunks."""
        parts, nbytes, config = self._parts, self._chunks.chain.nbytes, self._chunks.config
        total = sum([part.total for part in parts])
        if total == 1:  # nothing to share
            async with self._chunks.budget(2 * nbytes):
                self._write(flag, progress, parts[0], 0, 1)
            return
        threads = thread_count(config, WRITE_FACTOR * total * (nbytes + 2 * FILE), total)
        length = max(1, min(JOB_CHUNKS, config.batch_bytes // nbytes, -(-total // threads)))
        if self._stages and length > (width := len(self._columns[-1])):
            length -= length % width  # whole folders
        jobs: list[ThreadJob] = [
            partial(self._write, flag, progress, part, begin, min(begin + length, part.total))
            for part in parts
            for begin in range(0, part.total, length)
        ]
        async with self._chunks.budget(threads * 2 * nbytes):
            run_jobs(jobs, config, flag, threads)

    def _write(self, flag: CancelFlag, progress: Progress | None, part: KernelPart, begin: int, end: int) -> None:
        """Write the chunks ``begin`` to ``end`` of a part, numbered in C order.

        Folders that do not exist appear in one step, and need no locks. Other chunks are locked together.
        """
        statuses = bytes([LATER]) * (end - begin)
        if self._stages:
            statuses = self._call(part, range(begin, end), flag)
        for first, last in _stretches(statuses, LATER):
            replaced = drive(self._replace(flag, part, begin + first, begin + last))
            statuses = statuses[:first] + replaced + statuses[last:]
        if LEFT in statuses:
            self.left.extend(self._runs(part, [begin + at for at, status in enumerate(statuses) if status == LEFT]))
        if progress is not None:
            if self._is_whole:
                progress((end - begin - statuses.count(LEFT)) * self._chunks.chain.nbytes)
            else:
                done = self._runs(part, [begin + at for at, status in enumerate(statuses) if status != LEFT])
                progress(sum([run.size for run in done]) * self._chunks.chain.spec.dtype.numpy.itemsize)

    def _runs(self, part: KernelPart, numbers: list[int]) -> Sequence[ChunkRun]:
        """Return the runs of chunks of a part, which are numbered in C order."""
        return [part.run] if part.run is not None else runs_at(part.projection, self._chunks.metadata.grid, numbers)

    async def _replace(self, flag: CancelFlag, part: KernelPart, begin: int, end: int) -> bytes:
        """Replace or change chunks under their locks; return their statuses. If the caller holds one, they are left."""
        chunks = self._chunks
        if part.run is None:
            keys = chunks.metadata.keys.encode_box(self._columns, begin, end)
        else:
            keys = [chunks.key(part.run.coords)]
        places: Sequence[Place] = chunks.store.lock_identities(keys)  # type: ignore[assignment]  # of local files
        held = held_places.get()
        if held and not set(places).isdisjoint(held.values()):  # the kernel would release a lock of the caller
            return bytes([LEFT]) * len(keys)
        async with KeyLocks(lambda: places):
            statuses = self._call(part, range(begin, end), flag, places)
        if EMPTY in statuses:
            self.empty.extend([key for key, status in zip(keys, statuses, strict=True) if status == EMPTY])
        return statuses

    def _call(self, part: KernelPart, numbers: range, flag: CancelFlag, places: Sequence[Place] | None = None) -> bytes:
        """Write chunks with one call of the kernel; return what became of each.

        The caller holds the locks of the places within the process. Without places, only new folders are written.
        """
        own, statuses, chunks = worker(), ctypes.create_string_buffer(len(numbers)), self._chunks
        folders, locks, array = None, -1, named_array(chunks, self._array, part)
        if places is not None:
            folders, locks = struct.pack(f"={2 * len(places)}Q", *[n for at in places for n in at[:2]]), lock_file()
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


class KernelEncoder:
    """Encodes the shards of a write.

    Args:
        chunks: The shards.
        array: Their description.
        values: The values of the whole write.
    """

    def __init__(self, chunks: Chunks, array: ArrayStruct, values: Array) -> None:
        self._chunks, self._array, self._values = chunks, array, values
        self._axes = chunk_axes(chunks)

    @classmethod
    def of(cls, chunks: Chunks, values: Array) -> KernelEncoder | None:
        """Return an encoder; ``None`` if the kernel cannot encode the shards, or chunks are stored alone."""
        array = chunks.kernel_shard
        return None if array is None or values.dtype != chunks.chain.spec.dtype.numpy else cls(chunks, array, values)

    def encode(self, projection: Projection, stored: Buffer | None) -> Buffer | Literal[False] | None:
        """Encode a shard.

        Args:
            projection: The elements of the shard, and their places in the values.
            stored: The stored shard, which keeps its other elements; ``None`` for an absent one.

        Returns:
            The encoded shard, ``None`` if it contains only the fill value, and ``False`` if it is left to Python.

        Raises:
            CodecError: If the encoded shard does not fit into memory.
        """
        if any(not isinstance(selector, slice) or selector.step != 1 for selector in projection.source):
            return False
        part = kernel_part(self._chunks, projection, self._values, self._axes)
        if part is None or part.total != 1:
            return False
        own, encoded = worker(), ValueStruct()
        old = None if stored is None else np.frombuffer(stored, np.uint8)
        status = own.encode(
            *(own.address, ctypes.addressof(self._array), part.axes, part.out),
            *((None, 0) if old is None else (old.ctypes.data, len(old))),
            *(int(self._chunks.chain.spec.undefined), ctypes.addressof(encoded)),
        )
        if status in (LEFT, EMPTY):
            return None if status == EMPTY else False
        try:
            data = np.empty(encoded.size, np.uint8)
        except MemoryError as error:
            own.take(own.address, ctypes.addressof(encoded), None)
            raise CodecError(f"an encoded shard of {encoded.size:,} bytes does not fit into memory") from error
        own.take(own.address, ctypes.addressof(encoded), data.ctypes.data)
        return data
