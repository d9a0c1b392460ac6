"""The short way of reading a few elements in Python: one chunk, without a plan, jobs or tasks."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from zarrasync._util.memory import aligned_empty
from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array, as_bytes_view
from zarrasync.errors import CodecError
from zarrasync.indexing.transform import Transform
from zarrasync.stores.values import Request
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.limits import ONE_THREAD, PAGES, SMALL
from zarrasync.transfer.plan import new_buffer

InnerKey: TypeAlias = tuple[int | slice, ...]
"""The NumPy key that selects elements inside a chunk."""


class SingleChunk(NamedTuple):
    """The only chunk that a selection touches.

    Attributes:
        chunks: The array's chunks.
        transform: The selection.
        coords: The coordinates of the chunk.
        inner_key: Selects the elements inside it.
        byte_range: Start and length in the stored chunk, if it is raw and only the elements are fetched.
    """

    chunks: Chunks
    transform: Transform
    coords: tuple[int, ...]
    inner_key: InnerKey
    byte_range: tuple[int, int] | None

    @classmethod
    def of(cls, chunks: Chunks, transform: Transform) -> SingleChunk | None:
        """Return the chunk, or ``None`` if a plan is needed.

        Shards, and parts of raw chunks that are not contiguous, need plans, which fetch byte ranges. Large chunks are
        decoded into their place. Asynchronous stores need tasks, unless the event loop itself decodes the chunk.
        """
        metadata, blocking = chunks.metadata, chunks.store.blocking
        chain = metadata.chain
        if metadata.edges is not None or chain.innermost_chain is not chain or chain.spec.dtype.is_variable:
            return None
        most = ONE_THREAD if blocking else SMALL
        if not (blocking or chain.is_quick) or (chain.nbytes > most and not chain.is_raw):
            return None
        touched = transform.single_chunk(metadata.grid.axes)
        if touched is None or 0 < chunks.config.max_chunk_bytes < chain.nbytes:
            return None
        if not chain.supports_partial_reads:
            return cls(chunks, transform, *touched, None)
        byte_range = _contiguous_range(chain, touched[1]) if chain.decodes_to_output else None
        return (
            None
            if byte_range is None or (not blocking and byte_range[1] > most)
            else cls(chunks, transform, *touched, byte_range)
        )

    async def read(self) -> Array:
        """Read the selection. An absent chunk has the fill value."""
        chunks, chain = self.chunks, self.chunks.metadata.chain
        async with chunks.budget(min(chain.nbytes, chunks.config.coalesce_size)):
            key = chunks.key(self.coords)
            try:
                result = await (
                    self._fetch_elements(key, *self.byte_range) if self.byte_range else self._fetch_chunk(key)
                )
            except CodecError as error:
                chunks.locate(error, key)
                raise
            if result is None:
                layout = self.transform.layout
                buffer = new_buffer(chain, layout, chain.spec.dtype.numpy)
                buffer[...] = chain.spec.scalar
                result = layout.to_result(buffer)
            return result

    async def _fetch_chunk(self, key: str) -> Array | None:
        """Fetch and decode the chunk, and return the selected elements as a new array."""
        (value,) = await self.chunks.store.fetch([Request(key, limit=self.chunks.limit)])
        if value is None:
            return None
        chain = self.chunks.metadata.chain
        order: Literal["C", "K"] = "C" if chain.memory_axis_order is None else "K"
        return np.array(chain.decode(value.data)[(*self.inner_key, ...)], chain.spec.dtype.numpy, order=order)

    async def _fetch_elements(self, key: str, start: int, length: int) -> Array | None:
        """Fetch contiguous elements of a raw chunk into the result."""
        chain = self.chunks.metadata.chain
        out = (aligned_empty if length >= PAGES else np.empty)(self.transform.shape, chain.spec.dtype.numpy)
        memory = as_bytes_view(out)
        (value,) = await self.chunks.store.fetch(
            [Request(key, start, length, into=memoryview(memory), limit=self.chunks.limit)]
        )
        if value is None:
            return None
        if len(value.data) != length or value.size not in (None, chain.nbytes):
            raise CodecError(f"the value has {value.size} bytes, expected {chain.nbytes}")
        data = np.frombuffer(value.data, np.uint8)
        if not np.may_share_memory(data, memory):
            memory[...] = data
        return out


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
