"""Encoding and storing chunks: replacing whole chunks, and changing parts of others without losing another writer's changes.

Every value is written under its key lock. Partial writes of one process never lose each other's updates, and a partial
write never undoes a whole write that began after it. If the store can compare versions, a partial write replaces only
the version that it has read. If another process or machine has changed the value meanwhile, the write starts again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.backoff import ConflictBackoff
from zarrasync._concurrency.cancel import CancelFlag, cancel_flag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gather import for_each
from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.errors import CodecError, UnsupportedOperation, WriteConflictError
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import assign
from zarrasync.stores.values import ABSENT, Request
from zarrasync.transfer.chunks import Chunks, Fields, dtype_of
from zarrasync.transfer.convert_values import cast
from zarrasync.transfer.kernel.write import KernelEncoder
from zarrasync.transfer.limits import ERASED_TOGETHER, SMALL, WRITE_FACTOR
from zarrasync.transfer.place import ScratchMemory
from zarrasync.transfer.plan import batches
from zarrasync.transfer.threads import Progress, ThreadJob, codec_runner, run_jobs, thread_count


class Encoder:
    """Encodes the chunks of a write. The result for a chunk that contains only the fill value is ``None``.

    Args:
        chunks: The chunks, all of one stored shape.
        chain: Their codecs.
        values: The values of the whole write.
        fields: The structured fields to write; all if ``None``.
    """

    def __init__(self, chunks: Chunks, chain: BoundChain, values: Array, fields: Fields) -> None:
        self._chunks, self._chain = chunks, chain
        self._values, self._fields = values, fields
        self._keep_empty = chunks.config.write_empty_chunks
        self._kernel = KernelEncoder.of(chunks, values) if fields is None else None

    def whole(self, part: ChunkRun) -> Buffer | None:
        """Encode a chunk that is replaced completely."""
        chain, spec = self._chain, self._chain.spec
        if self._kernel is not None and (data := self._kernel.encode(part.projection, None)) is not False:
            return data
        values = self._values[(*part.projection.target, ...)]
        if values.shape != spec.shape:
            chunk = spec.new_array()
            with np.errstate(invalid="ignore"):
                part.projection.write(chunk, self._values)
        else:
            chunk = cast(values, spec.dtype.numpy)
        if not self._keep_empty and chain.is_fill(chunk):
            return None
        is_shard = chain.innermost_chain is not chain  # which gathers its inner chunks itself
        if is_shard or chunk.flags.c_contiguous or chain.is_raw or spec.dtype.is_variable or not chunk.nbytes:
            return chain.encode(chunk)
        return self._contiguous(chunk)

    def _contiguous(self, chunk: Array) -> Buffer | None:
        """Encode a chunk for a compressor, which needs contiguous memory. Scratch memory is faster than fresh pages."""
        with ScratchMemory("encode", chunk.nbytes) as memory:
            boxes = self._chain.view_chunks(memory[np.newaxis])
            if boxes is None:
                copy = memory.view(chunk.dtype).reshape(chunk.shape)
                copy[...] = chunk
                data = self._chain.encode(copy)
            else:
                assign(boxes[0], chunk)
                data = self._chain.compress(memory)
            if isinstance(data, np.ndarray) and np.may_share_memory(data, memory):
                return data.tobytes()
            return data

    def run(self, run: ChunkRun, keys: Sequence[str], rows: npt.NDArray[np.uint8]) -> list[Buffer | None]:
        """Encode a run of small chunks, each of which is replaced completely.

        Args:
            run: The run.
            keys: The keys of its chunks.
            rows: Memory for the chunks' elements, one row per chunk. The results may share it.
        """
        boxes = self._chain.view_chunks(rows)
        assert boxes is not None  # runs are made of such chunks
        if not run.projection.covers(self._chain.spec.shape):
            boxes[...] = self._chain.spec.scalar
        with np.errstate(invalid="ignore"):
            run.write(boxes, self._values)
        try:
            return self._chain.encode_rows(rows, keep_empty=self._keep_empty)
        except CodecError:
            for key, row in zip(keys, rows, strict=True):
                try:
                    self._chain.encode_rows(row[np.newaxis], keep_empty=self._keep_empty)
                except CodecError as error:
                    self._chunks.locate(error, key)
                    raise
            raise

    def merged(self, part: ChunkRun, stored: Buffer | None) -> Buffer | None:
        """Replace a part of a stored chunk (``None``: an absent one), and encode the chunk."""
        if self._kernel is not None and (encoded := self._kernel.encode(part.projection, stored)) is not False:
            return encoded
        if self._fields is None and self._values.dtype == self._chain.spec.dtype.numpy:
            data, empty = self._chain.merge(stored, part.projection, self._values)
        elif self._fields is None:
            with np.errstate(invalid="ignore"):  # of values that are cast
                data, empty = self._chain.merge(stored, part.projection, self._values)
        else:
            chunk = self._chain.spec.new_array()
            if stored is not None:
                chunk[...] = self._chain.decode(stored)
            part.projection.write(chunk[self._fields], self._values)
            data, empty = self._chain.encode(chunk), self._chain.is_fill(chunk)
        return None if empty and not self._keep_empty else data


Compute: TypeAlias = Callable[[Callable[[], Any], int], Awaitable[Any]]
"""Runs a function that works on a number of bytes, on this thread or on a codec thread."""


class WriteOptions(NamedTuple):
    """How values are written.

    Attributes:
        fields: The structured fields to write; all if ``None``.
        progress: Called with the number of bytes done since the last call.
        all_absent: Whether no chunk of the selection is stored, so that none has to be erased.
        only_present: Whether to skip absent chunks, as when clearing.
    """

    fields: Fields = None
    progress: Progress | None = None
    all_absent: bool = False
    only_present: bool = False


class ChunkWriter:
    """Writes values into chunks of one stored shape.

    Args:
        chunks: The chunks.
        values: The values of the whole write.
        options: How to write them.
    """

    def __init__(self, chunks: Chunks, values: Array, options: WriteOptions) -> None:
        self._chunks, self._chain, self._store, self._options = chunks, chunks.chain, chunks.store, options
        self._encoder = Encoder(chunks, self._chain, values, options.fields)
        self._compares = chunks.store.conditional
        # The locks of other stores on many values may hold within the process only.
        self._locks_together = self._compares or not chunks.store.exclusive_locks
        self._empty: list[str] = []
        """Keys of chunks that contain only the fill value and must be erased."""

    # -------------------------------------------------------------- scheduling

    async def write_blocking(self, runs: Sequence[ChunkRun], empty: Sequence[str] = ()) -> None:
        """Write runs of chunks on this thread and helpers.

        Args:
            runs: The runs.
            empty: Keys of other chunks to erase, as they would contain only the fill value.
        """
        self._empty.extend(empty)
        chunks, count = self._chunks, sum([run.count for run in runs])
        if count == 1 and self._chain.nbytes <= SMALL:
            await self._write_part(runs[0], _here)
            if self._empty:
                await self._erase_empty()
            return
        flag = cancel_flag()
        most = 1 if chunks.is_interpreted(decoding=False) else count
        threads = thread_count(chunks.config, WRITE_FACTOR * count * self._chain.nbytes, most)
        async with chunks.budget(threads * self._bytes_to_encode):
            run_jobs(self._jobs(flag, runs, threads), chunks.config, flag, threads)
            await self._erase_empty()

    def _jobs(self, flag: CancelFlag, runs: Sequence[ChunkRun], threads: int) -> list[ThreadJob]:
        groups = batches(runs, self._chain.nbytes, self._chunks.config, threads)

        def write(group: Sequence[ChunkRun]) -> None:
            for run in group:
                if run.count > 1 and self._locks_together and not self._options.only_present and self._replaces(run):
                    if flag.cancelled:
                        return
                    drive(self._write_run(run))
                    continue
                for part in run.singles():
                    if flag.cancelled:
                        return
                    drive(self._write_part(part, _here))

        return [partial(write, group) for group in groups]

    async def write_async(self, parts: Sequence[ChunkRun]) -> None:
        """Write chunks with concurrent requests, which the store limits."""
        async with codec_runner(self._chunks.config) as runner:

            async def write(part: ChunkRun) -> None:
                nbytes = self._bytes_to_encode if part.is_full else 2 * self._chain.nbytes
                async with self._chunks.budget(nbytes):
                    await self._write_part(part, runner.run)

            await for_each(write, parts, self._chunks.concurrency)
        await self._erase_empty()

    @property
    def _bytes_to_encode(self) -> int:
        """Bytes of memory for encoding a value: its elements and its encoded form, or for a shard only the latter."""
        return self._chain.nbytes if self._chain.supports_partial_reads else 2 * self._chain.nbytes

    # -------------------------------------------------------------- whole chunks

    def _replaces(self, part: ChunkRun) -> bool:
        """Return whether a part replaces (or clears) the whole stored chunk.

        A chunk at the array's edge extends beyond it. Another writer may have extended the array and written there.
        """
        guarded = self._compares or self._store.exclusive_locks or self._options.only_present
        whole = not guarded or part.projection.covers(self._chain.spec.shape)
        keeps_empty = self._options.only_present and self._chunks.config.write_empty_chunks
        return part.is_full and whole and self._options.fields is None and not keeps_empty

    async def _write_run(self, run: ChunkRun) -> None:
        """Replace neighbouring small chunks: they are gathered, encoded and stored together."""
        size = self._chain.raw_size
        assert size is not None
        keys = self._chunks.keys(run)
        with ScratchMemory("encode", run.count * size) as memory:
            encoded = self._encoder.run(run, keys, memory.reshape(run.count, size))
            self._empty.extend([key for key, value in zip(keys, encoded, strict=True) if value is None])
            stored = {key: value for key, value in zip(keys, encoded, strict=True) if value is not None}
            async with self._store.locks(list(stored)):
                await self._store.put_values(list(stored), list(stored.values()))
        if self._options.progress is not None:
            self._report(run)

    async def _write_part(self, part: ChunkRun, compute: Compute) -> None:
        """Write one chunk."""
        key = self._chunks.key(part.coords)
        try:
            if not self._replaces(part):
                await self._change(key, part, compute)
            elif self._options.only_present:
                self._empty.append(key)  # cleared completely, even if no element equals the fill value
            else:
                data = await compute(partial(self._encoder.whole, part), self._chain.nbytes)
                if data is None:
                    self._empty.append(key)
                else:
                    async with self._store.lock(key):
                        await self._store.put(key, data)
        except CodecError as error:
            self._chunks.locate(error, key)
            raise
        if self._options.progress is not None:
            self._report(part)

    async def _erase_empty(self) -> None:
        """Erase chunks that were overwritten with only the fill value, many keys per request."""
        if self._options.all_absent:
            return
        many = ERASED_TOGETHER if self._locks_together else 1
        for start in range(0, len(self._empty), many):
            keys = self._empty[start : start + many]
            async with self._store.locks(keys) if self._locks_together else self._store.lock(keys[0]):
                await self._store.erase_values(keys)

    # -------------------------------------------------------------- parts of chunks

    async def _change(self, key: str, part: ChunkRun, compute: Compute) -> None:
        """Change a part of a chunk in the way that the store supports."""
        async with self._store.lock(key):
            if not self._compares:
                await self._change_locked(key, part, compute)
                return
            if not self._is_mostly_absent(part) or not await self._create(key, part, compute):
                await self._compare_and_swap(key, part, compute)

    def _is_mostly_absent(self, part: ChunkRun) -> bool:
        """Return whether a chunk is at the array's edge and probably not stored yet."""
        options = self._options
        return part.is_full and options.fields is None and not (self._store.exclusive_locks or options.only_present)

    async def _change_locked(self, key: str, part: ChunkRun, compute: Compute) -> None:
        """Change a chunk while this call holds its lock, so that no other call changes it."""
        (value,) = await self._store.fetch([Request(key, limit=self._chunks.limit)])
        if value is None and self._options.only_present:
            return
        data = await self._merge(part, None if value is None else value.data, compute)
        if data is not None:
            await self._store.put(key, data)
        elif value is not None:
            await self._store.erase(key)

    async def _create(self, key: str, part: ChunkRun, compute: Compute) -> bool:
        """Create a chunk at the array's edge, which is usually absent; ``False`` if it is stored, or may be."""
        data = await self._merge(part, None, compute)
        if data is None:
            return False
        try:
            await self._store.put(key, data, if_version=ABSENT)
        except WriteConflictError:
            return False
        return True

    async def _compare_and_swap(self, key: str, part: ChunkRun, compute: Compute) -> None:
        """Change a chunk, and repeat that if another writer has changed it meanwhile."""
        backoff: ConflictBackoff | None = None
        while True:
            (value,) = await self._store.fetch([Request(key, limit=self._chunks.limit)], versions=True)
            if value is None and self._options.only_present:
                return
            data = await self._merge(part, None if value is None else value.data, compute)
            try:
                if data is not None:
                    await self._store.put(key, data, if_version=ABSENT if value is None else value.version)
                elif value is not None:
                    await self._erase(key, value.version)
            except WriteConflictError as conflict:
                if backoff is None:
                    target = f"a part of {self._chunks.full_key(key)!r}"
                    backoff = ConflictBackoff(self._chunks.config.total_timeout, target)
                await backoff.after(conflict)
            else:
                return

    async def _merge(self, part: ChunkRun, stored: Buffer | None, compute: Compute) -> Buffer | None:
        data: Buffer | None = await compute(partial(self._encoder.merged, part, stored), self._chain.nbytes)
        return data

    async def _erase(self, key: str, version: object) -> None:
        """Erase a chunk that contains only the fill value, if it still has the version that was read."""
        try:
            await self._store.erase(key, if_version=version)
        except UnsupportedOperation:  # the store compares in writes only: an empty value stays
            await self._store.put(key, self._chain.encode_fill_chunk(), if_version=version)

    def _report(self, run: ChunkRun) -> None:
        assert self._options.progress is not None
        self._options.progress(run.size * dtype_of(self._chunks, self._options.fields).itemsize)


async def _here(function: Callable[[], Any], nbytes: int) -> Any:
    return function()
