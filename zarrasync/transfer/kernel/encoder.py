"""Encoding shards in memory with the compiled kernel, for stores whose values it cannot write itself."""

from __future__ import annotations

import ctypes
from typing import Literal

import numpy as np

from zarrasync._kernel.structs import EMPTY, LEFT, ArrayStruct, ValueStruct, worker
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.errors import CodecError
from zarrasync.indexing.projection import Projection
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel.plan import chunk_axes, kernel_part

__all__ = ["KernelEncoder"]


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
