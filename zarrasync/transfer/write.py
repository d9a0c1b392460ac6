"""Writing: encode whole values, merge into partial ones, leave out what is empty.

Every value is written under its key lock, so partial writes of one process never lose each other's
updates, and a whole write is not undone by a partial one that began before it. Among processes and machines
a partial write replaces just the value it has seen, where the store can compare, and begins again otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gates import FifoGate, Permits
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.retry import ConflictBackoff
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.errors import CodecError, ConditionsUnsupported, UnsupportedOperation, WriteConflictError
from zarrasync.indexing.chunk_selection import ChunkRun, assign
from zarrasync.indexing.transform import Transform
from zarrasync.stores.base import ABSENT, Request
from zarrasync.transfer.chunks import Chunks, Fields, batches, carry_out, dtype_of, run_parts
from zarrasync.transfer.convert_values import beside, cast, fit
from zarrasync.transfer.threads import Computer, Job, Progress, scratch

__all__ = ["write"]

_ERASE = 1000
Compute = Callable[[Callable[[], Any], int], Awaitable[Any]]


async def write(
    chunks: Chunks,
    transform: Transform,
    values: npt.ArrayLike,
    *,
    fields: Fields = None,
    progress: Progress | None = None,
    absent: bool = False,
    present: bool = False,
    check: Callable[[], None] | None = None,
) -> None:
    """Write a selection.

    Chunks that end up holding nothing but the fill value are erased rather than stored, unless
    ``config.write_empty_chunks`` is set.

    Args:
        chunks: The array's chunks.
        transform: The selection.
        values: What to write; broadcast to the selection's shape and cast to the array's data type. Masked
            elements become the fill value.
        fields: Structured fields to write alone.
        progress: Called as bytes are done.
        absent: Whether none of the chunks is there that the selection covers, so that none need be erased.
        present: Whether to leave alone what is absent: to clear what is there.
        check: Complains about chunks that are cut and must not be; called again if it turns out that the store can not
            compare.

    Raises:
        ShapeError: If the values do not broadcast to the selection, or ``check`` says so.
        CodecError: If values can not be encoded, or a chunk that is changed in part does not decode.
        StoreError: If a value could not be read or stored.
    """
    asked = chunks.store.conditional
    if check is not None:
        check()
    dtype, fill = dtype_of(chunks, fields), chunks.metadata.spec.fill_value
    fill = fill if fields is None else fill[fields]
    try:
        given = await beside(partial(fit, values, transform.shape, dtype, fill, chunks.metadata.dtype), values, dtype)
    except CodecError as error:
        error.at(f"/{chunks.prefix}".rstrip("/") or "/", repr(chunks.origin or chunks.store))
        raise
    if not transform.size:
        return
    buffer = transform.layout.to_buffer(given)
    parts = chunks.parts(transform, runs=chunks.store.blocking)
    told = progress if progress is None or chunks.store.blocking else _Told(progress)
    operation = partial(_Writing, values=buffer, fields=fields, progress=told, absent=absent, present=present)
    while True:
        compare = chunks.store.conditional
        if check is not None and compare != asked:
            check()
        try:
            await carry_out(chunks, parts, partial(operation, compare=compare))
            return
        except ConditionsUnsupported:
            if chunks.store.conditional:
                raise
            if isinstance(told, _Told):
                told.begin_again()


class _Told:
    """Tells on one event loop how many bytes are done, and none of them twice where a write begins again."""

    def __init__(self, tell: Progress) -> None:
        self._tell, self._done, self._most = tell, 0, 0

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        if self._done > self._most:
            more, self._most = self._done - self._most, self._done
            self._tell(more)

    def begin_again(self) -> None:
        self._done = 0


class _Writing:
    """One write, and what its jobs share."""

    def __init__(
        self,
        chunks: Chunks,
        values: Array,
        fields: Fields,
        progress: Progress | None,
        absent: bool,
        present: bool,
        compare: bool,
    ) -> None:
        self.compare = compare
        # Locks on many values hold within the process: others notice changes, or have locks on each.
        self.together = compare or not chunks.store.exclusive
        self.chunks, self.values, self.fields, self.progress = chunks, values, fields, progress
        self.absent, self.present = absent, present
        self.itemsize = dtype_of(chunks, fields).itemsize
        self.chain = chunks.chain
        self.store = chunks.store
        self.keep_empty = chunks.config.write_empty_chunks
        self.empty: list[str] = []

    def _replaces(self, part: ChunkRun) -> bool:
        """Whether a part replaces its stored value, or clears it, without looking at what is there.

        A chunk at the array's edge reaches beyond it. Somebody else may have made the array longer, and written there.
        """
        guarded = self.compare or self.store.exclusive or self.present
        whole = not guarded or part.projection.covers(self.chain.spec.shape)
        return part.is_full and whole and self.fields is None and not (self.present and self.keep_empty)

    @property
    def _room(self) -> int:
        """Bytes that encoding a value takes: it and its encoded form, of a shard the latter alone."""
        return self.chain.nbytes if self.chain.supports_partial_reads else 2 * self.chain.nbytes

    # -------------------------------------------------------------- the two ways

    async def on_threads(self, parts: Sequence[ChunkRun]) -> None:
        """Carry it out on a blocking store, on this thread and helpers."""
        flag, nbytes = cancel_flag(), self.chain.nbytes
        threads = self.chunks.threads(decoding=False)

        def job(batch: Sequence[ChunkRun]) -> None:
            for run in batch:
                if run.count > 1 and self.together and not self.present and self._replaces(run):
                    if flag.cancelled:
                        return
                    drive(self._write_run(run))
                    continue
                for part in run.singles():
                    if flag.cancelled:
                        return
                    drive(self._write_part(part, _here))

        def jobs(parts: Sequence[ChunkRun], threads: int) -> list[Job]:
            return [partial(job, batch) for batch in batches(parts, nbytes, self.chunks.config, threads)]

        async with self.chunks.taken(min(threads, sum(part.count for part in parts)) * self._room):
            run_parts(parts, jobs, self.chunks, flag, threads)
            await self._erase_empty()

    async def on_loop(self, parts: Sequence[ChunkRun], in_flight: FifoGate) -> None:
        """Carry it out on an asynchronous store."""
        computer = Computer(self.chunks.config)
        nbytes = self.chain.nbytes

        async def one(part: ChunkRun) -> None:
            async with Permits(in_flight, 1), self.chunks.taken(self._room if part.is_full else 2 * nbytes):
                await self._write_part(part, computer.run)

        try:
            await for_each(one, parts, self.chunks.concurrency)
            await self._erase_empty()
        finally:
            await computer.join()

    # -------------------------------------------------------------- one value

    async def _write_part(self, part: ChunkRun, compute: Compute) -> None:
        key, nbytes = self.chunks.key(part.coords), self.chain.nbytes
        try:
            if self.present and self._replaces(part):
                self.empty.append(key)  # cleared whole, also where no element says that it is empty
            elif self._replaces(part):
                data = await compute(partial(self._encode, part), nbytes)
                if data is None:
                    self.empty.append(key)
                else:
                    async with self.store.lock(key):
                        await self.store.put(key, data)
            else:
                await self._change_part(key, part, compute)
        except CodecError as error:
            self.chunks.locate(error, key)
            raise
        if self.progress is not None:
            self.progress(part.projection.size * self.itemsize)

    async def _change_part(self, key: str, part: ChunkRun, compute: Compute) -> None:
        """Replace a part of a value, again and again until nobody else has changed it meanwhile."""
        nbytes, compare = self.chain.nbytes, self.compare
        patience = ConflictBackoff(self.chunks.config.total_timeout, f"a part of {self.chunks.full_key(key)!r}")
        # At the edge there will mostly be nothing; that there is something is told by the attempt to write.
        hopeful = part.is_full and self.fields is None and compare and not (self.store.exclusive or self.present)
        async with self.store.lock(key):
            while True:
                (old,) = (None,) if hopeful else await self.store.fetch([Request(key)], versions=compare)
                if old is None and self.present:
                    return
                data = await compute(partial(self._merge, part, None if old is None else old.data), nbytes)
                version = None if not compare else ABSENT if old is None else old.version
                try:
                    if data is not None:
                        await self.store.put(key, data, if_version=version)
                    elif hopeful:  # there may be something to erase
                        hopeful = False
                        continue
                    elif old is not None:
                        await self._erase(key, version)
                except WriteConflictError as conflict:
                    if not hopeful:
                        await patience.after(conflict)
                    hopeful = False
                else:
                    return

    async def _erase(self, key: str, version: object) -> None:
        """Erase a value that holds nothing any more, if it is still the one that was looked at."""
        try:
            await self.store.erase(key, if_version=version)
        except UnsupportedOperation:  # it can compare when it writes only: then an empty value stays
            await self.store.put(key, self.chain.encode_fill_chunk(), if_version=version)

    async def _write_run(self, run: ChunkRun) -> None:
        """Replace small chunks that follow each other: they are gathered, encoded and stored together."""
        chain = self.chain
        assert chain.raw_size is not None
        keys = self.chunks.keys(run)
        with scratch("encode", run.count * chain.raw_size) as memory:
            rows = memory.reshape(run.count, chain.raw_size)
            self._gather(run, rows)
            encoded = dict(zip(keys, self._encode_rows(keys, rows), strict=True))
            self.empty.extend(key for key, value in encoded.items() if value is None)
            kept = {key: value for key, value in encoded.items() if value is not None}
            async with self.store.locks(list(kept)):
                await self.store.put_values(list(kept), list(kept.values()))
        if self.progress is not None:
            self.progress(run.size * self.itemsize)

    def _encode_rows(self, keys: Sequence[str], rows: npt.NDArray[np.uint8]) -> list[Buffer | None]:
        try:
            return self.chain.encode_rows(rows, keep_empty=self.keep_empty)
        except CodecError:
            for key, row in zip(keys, rows, strict=True):
                try:
                    self.chain.encode_rows(row[np.newaxis], keep_empty=self.keep_empty)
                except CodecError as error:
                    self.chunks.locate(error, key)
                    raise
            raise

    def _gather(self, run: ChunkRun, rows: npt.NDArray[np.uint8]) -> None:
        """The chunks of a run in their stored form, one a row."""
        boxes = self.chain.view_chunks(rows)
        assert boxes is not None  # runs are made of such chunks
        if not run.projection.covers(self.chain.spec.shape):
            boxes[...] = self.chain.spec.scalar
        with np.errstate(invalid="ignore"):
            run.write(boxes, self.values)

    async def _erase_empty(self) -> None:
        """Erase values that were overwritten with nothing, many to a request."""
        if self.absent:
            return
        many = _ERASE if self.together else 1
        for start in range(0, len(self.empty), many):
            keys = self.empty[start : start + many]
            async with self.store.locks(keys) if self.together else self.store.lock(keys[0]):
                await self.store.erase_values(keys)

    def _encode(self, part: ChunkRun) -> Buffer | None:
        """The encoded value of a chunk that is replaced whole; ``None`` if it is not to be stored."""
        given = self.values[(*part.projection.target, ...)]
        spec = self.chain.spec
        if given.shape != spec.shape:
            chunk = spec.new_array()
            with np.errstate(invalid="ignore"):
                part.projection.write(chunk, self.values)
        else:
            chunk = cast(given, spec.dtype.numpy)
        if not self.keep_empty and self.chain.is_fill(chunk):
            return None
        shard = self.chain.innermost_chain is not self.chain  # which has its own way with inner chunks
        if shard or chunk.flags.c_contiguous or self.chain.is_raw or spec.dtype.is_variable or not chunk.nbytes:
            return self.chain.encode(chunk)
        # A compressor wants the chunk in one piece; the memory for that is used again and again.
        with scratch("encode", chunk.nbytes) as memory:
            boxes = self.chain.view_chunks(memory[np.newaxis])
            if boxes is None:
                whole = memory.view(chunk.dtype).reshape(chunk.shape)
                whole[...] = chunk
                data = self.chain.encode(whole)
            else:
                assign(boxes[0], chunk)
                data = self.chain.compress(memory)
            if isinstance(data, np.ndarray) and np.may_share_memory(data, memory):
                return data.tobytes()
            return data

    def _merge(self, part: ChunkRun, present: Buffer | None) -> Buffer | None:
        """The encoded value of a chunk that is replaced in part; ``None`` if it is not to be stored."""
        if self.fields is None:
            values = self.values
            with np.errstate(invalid="ignore"):
                data, empty = self.chain.merge(present, part.projection, values)
        else:
            chunk = self.chain.spec.new_array()
            if present is not None:
                chunk[...] = self.chain.decode(present)
            part.projection.write(chunk[self.fields], self.values)
            data, empty = self.chain.encode(chunk), self.chain.is_fill(chunk)
        return None if empty and not self.keep_empty else data


async def _here(function: Callable[[], Any], nbytes: int) -> Any:
    return function()
