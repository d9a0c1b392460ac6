"""Encoding the values of a write: whole chunks, runs of small ones, and parts merged into stored chunks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.errors import CodecError
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import assign
from zarrasync.transfer.chunks import Chunks, Fields
from zarrasync.transfer.convert_values import cast
from zarrasync.transfer.kernel.write import KernelEncoder
from zarrasync.transfer.place import ScratchMemory


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
