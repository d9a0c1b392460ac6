"""The fast path of reads that touch a single chunk: without a plan, jobs or tasks."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._util.memory import aligned_empty
from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array, Buffer, as_bytes_view
from zarrasync.errors import CodecError
from zarrasync.indexing.transform import Transform
from zarrasync.stores.values import Request
from zarrasync.transfer.chunks import Chunks, Missing
from zarrasync.transfer.kernel.ranges import AT_ONCE
from zarrasync.transfer.place import missing_chunks
from zarrasync.transfer.plan import new_buffer
from zarrasync.transfer.scratch import LARGEST_SCRATCH, ScratchMemory

__all__ = ["SingleChunk", "find_single_chunk", "read_single_chunk"]

_COPIED = 1 << 20
"""Bytes of a chunk that is decoded alone and then copied: for larger ones, fresh memory costs more than a plan."""

InnerKey: TypeAlias = tuple[int | slice, ...]
"""The NumPy key that selects elements inside a chunk."""


class SingleChunk(NamedTuple):
    """The only chunk that a selection touches.

    Attributes:
        coords: Its coordinates.
        inner_key: Selects the elements inside it.
        byte_range: Start and length in the stored chunk, if the elements can be read directly into the result.
    """

    coords: tuple[int, ...]
    inner_key: InnerKey
    byte_range: tuple[int, int] | None


def find_single_chunk(chunks: Chunks, transform: Transform) -> SingleChunk | None:
    """Return the only chunk that a selection touches, if the fast path supports it.

    It supports blocking stores, and small chunks with quick codecs on asynchronous stores. Shards, and parts of raw
    chunks that are not contiguous, need plans, which fetch byte ranges.
    """
    metadata, blocking = chunks.metadata, chunks.store.blocking
    chain = metadata.chain
    if metadata.edges is not None or chain.innermost_chain is not chain or chain.spec.dtype.is_variable:
        return None
    if not blocking and (chain.supports_partial_reads or not chain.is_quick or chain.nbytes > AT_ONCE):
        return None
    touched = transform.single_chunk(metadata.grid.axes)
    if touched is None:
        return None
    coords, inner_key = touched
    if not chain.supports_partial_reads:
        # Plans decode larger chunks directly into the result, or into scratch memory.
        return SingleChunk(coords, inner_key, None) if chain.nbytes <= _COPIED else None
    byte_range = _contiguous_range(chain, inner_key) if chain.is_raw and chain.decodes_to_output else None
    return None if byte_range is None else SingleChunk(coords, inner_key, byte_range)


async def read_single_chunk(chunks: Chunks, transform: Transform, chunk: SingleChunk, missing: Missing) -> Array:
    """Read a selection that touches one chunk; see ``read``."""
    if chunks.config.max_chunk_bytes:
        chunks.check_chunk_size()
    read = _Read(chunks, transform, chunk, missing)
    if not chunks.store.blocking:
        return await read.asynchronously()
    if driven():
        return await read.here()
    return await run_in_worker(read.here, computing=chunks.store.near)


class _Read:
    """A read of one chunk."""

    __slots__ = ("_chain", "_chunk", "_chunks", "_missing", "_transform")

    def __init__(self, chunks: Chunks, transform: Transform, chunk: SingleChunk, missing: Missing) -> None:
        self._chunks, self._transform, self._chunk, self._missing = chunks, transform, chunk, missing
        self._chain = chunks.metadata.chain

    @property
    def _key(self) -> str:
        return self._chunks.key(self._chunk.coords)

    async def asynchronously(self) -> Array:
        """Read with a request, and decode on the event loop."""
        async with self._chunks.budget(self._chain.nbytes):
            (value,) = await self._chunks.store.fetch([Request(self._key, limit=self._chunks.limit)])
            return self._pick(None if value is None else value.data)

    async def here(self) -> Array:
        """Read from a blocking store on this thread."""
        if self._missing == "fill" and (reader := self._chunks.ranges_reader) is not None:
            needed = self._chain.nbytes if self._chunk.byte_range is None else self._chunk.byte_range[1]
            if needed <= AT_ONCE:
                result = reader.read(self._transform, self._chain.nbytes)
            else:
                async with self._chunks.budget(2 * needed):
                    result = reader.read(self._transform, self._chain.nbytes)
            if result is not None:
                return result
        if self._chunk.byte_range is not None:
            start, length = self._chunk.byte_range
            if length <= AT_ONCE:
                return await self._read_bytes(start, length)
            async with self._chunks.budget(2 * min(length, self._chunks.config.coalesce_size)):
                return await self._read_bytes(start, length)
        hint, fetch, limit = self._chain.read_size_hint, self._chunks.store.fetch_values, self._chunks.limit
        if self._chain.nbytes <= AT_ONCE:
            (value,) = await fetch([self._key], [np.empty(hint, np.uint8) if hint else None], limit)
            return self._pick(value)
        async with self._chunks.budget(2 * min(self._chain.nbytes, self._chunks.config.coalesce_size)):
            if not 0 < hint <= LARGEST_SCRATCH:
                (value,) = await fetch([self._key], [None], limit)
                return self._pick(value)
            with ScratchMemory("read", hint) as memory:
                (value,) = await fetch([self._key], [memory], limit)
                return self._pick(value)

    async def _read_bytes(self, start: int, length: int) -> Array:
        """Read contiguous elements of a raw chunk directly into the result."""
        dtype, shape = self._chunks.metadata.dtype.numpy, self._transform.shape
        out = aligned_empty(shape, dtype) if length >= AT_ONCE else np.empty(shape, dtype)
        memory, limit = as_bytes_view(out), self._chunks.limit
        if length == self._chain.nbytes:
            (data,) = await self._chunks.store.fetch_values([self._key], [memory], limit)
            return out if data is memory else self._pick(data)
        request = Request(self._key, start, length, False, memoryview(memory), limit)
        (value,) = await self._chunks.store.fetch([request])
        if value is None:
            return self._fill()
        if len(value.data) != length or value.size not in (None, self._chain.nbytes):
            error = CodecError(f"the value has {value.size} bytes, expected {self._chain.nbytes}")
            raise self._chunks.locate(error, self._key)
        data = np.frombuffer(value.data, np.uint8)
        if not np.may_share_memory(data, memory):
            memory[...] = data
        return out

    def _pick(self, value: Buffer | None) -> Array:
        """Decode the chunk, and return the selected elements as a new array."""
        if value is None:
            return self._fill()
        chain = self._chain
        try:
            chunk = chain.decode(value)
        except CodecError as error:
            self._chunks.locate(error, self._key)
            raise
        order: Literal["C", "K"] = "C" if chain.memory_axis_order is None else "K"
        return np.array(chunk[(*self._chunk.inner_key, ...)], self._chunks.metadata.dtype.numpy, order=order)

    def _fill(self) -> Array:
        """Return the result for an absent chunk."""
        if self._missing == "error":
            raise missing_chunks(self._chunks, [self._chunks.full_key(self._key)])
        layout = self._transform.layout
        buffer = new_buffer(self._chain, layout, self._chunks.metadata.dtype.numpy)
        buffer[...] = self._chain.spec.scalar
        return layout.to_result(buffer)


def _contiguous_range(chain: BoundChain, inner_key: InnerKey) -> tuple[int, int] | None:
    """Return start and length in bytes of elements that are contiguous in a raw chunk; ``None`` if they are not.

    They are contiguous if only one index is selected on every axis before a partially selected axis. In a chunk of
    shape ``(4, 5, 6)``, ``[2, 1:3, :]`` is contiguous, and ``[1:3, 1:3, :]`` is not.
    """
    shape = chain.spec.shape
    start, length, stride, whole = 0, chain.spec.dtype.numpy.itemsize, chain.spec.dtype.numpy.itemsize, True
    for axis in range(len(shape) - 1, -1, -1):
        item = inner_key[axis]
        first, count = (item, 1) if isinstance(item, int) else (item.start, item.stop - item.start)
        if count > 1 and (not whole or (isinstance(item, slice) and item.step != 1)):
            return None
        start += first * stride
        length *= count
        stride *= shape[axis]
        whole = whole and count == shape[axis]
    return start, length
