"""Writing local files with the compiled kernel: jobs, each of which replaces a stretch of whole chunks in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.drive import drive
from zarrasync._kernel.structs import EMPTY, LEFT, ArrayStruct, worker
from zarrasync.codecs.spec import Array
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection
from zarrasync.indexing.split import coords_at, runs_at
from zarrasync.stores.temporary_names import temporary_path
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel_plan import KernelPart, kernel_array, kernel_part
from zarrasync.transfer.threads import Job, Progress, run_jobs

__all__ = ["KernelWrite"]

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
        self._keeps_fill = int(chunks.chain.spec.undefined or chunks.config.write_empty_chunks)
        self.left: list[ChunkRun] = []
        self.empty: list[str] = []

    @classmethod
    def of(cls, chunks: Chunks, projection: Projection, values: Array) -> KernelWrite | None:
        """Return the write of a selection, or ``None`` if the kernel does not support it."""
        array = kernel_array(chunks)
        if array is None or not array.can_write or chunks.store.fsync or not chunks.store.writeable:
            return None
        if array.is_sharded and chunks.config.write_empty_chunks:
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
        jobs: list[Job] = [
            partial(self._write_stretch, flag, progress, begin, min(begin + length, total))
            for begin in range(0, total, length)
        ]
        async with self._chunks.budget(min(threads, total) * 2 * nbytes):
            run_jobs(jobs, config, flag, threads)

    def _write_stretch(self, flag: CancelFlag, progress: Progress | None, begin: int, end: int) -> None:
        """Write the chunks ``begin`` to ``end`` of the selection, numbered in C order."""
        grid, projection = self._chunks.metadata.grid, self._part.projection
        keys = list(map(self._chunks.key, coords_at(projection, grid, range(begin, end))))
        statuses = ctypes.create_string_buffer(end - begin)
        drive(self._write_locked(keys, partial(self._call, begin, end, statuses, flag)))
        found = statuses.raw
        if EMPTY in found:
            self.empty.extend([key for key, status in zip(keys, found, strict=True) if status == EMPTY])
        if LEFT in found:
            numbers = [begin + number for number, status in enumerate(found) if status == LEFT]
            self.left.extend(runs_at(projection, grid, numbers))
        if progress is not None:
            progress((end - begin - found.count(LEFT)) * self._chunks.chain.nbytes)

    async def _write_locked(self, keys: Sequence[str], call: Callable[[], None]) -> None:
        async with self._chunks.store.locks(keys):
            call()

    def _call(self, begin: int, end: int, statuses: ctypes.Array[ctypes.c_char], flag: CancelFlag) -> None:
        own, part = worker(), self._part
        own.write(
            own.address,
            ctypes.addressof(self._array),
            part.axes,
            part.out,
            begin,
            end,
            statuses,
            flag.address,
            temporary_path("").encode(),
            self._keeps_fill,
        )
