"""``bytes`` (Zarr v3 core codecs): elements in C order."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayBytesCodec, Codec, check_limits, check_members
from zarrasync.codecs.byte_ranges import BoundArrayBytes, Locator, Piece
from zarrasync.codecs.chain import BoundChain
from zarrasync.codecs.spec import Array, ArraySpec, Buffer, as_bytes_view
from zarrasync.errors import MetadataError
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection, assign
from zarrasync.model.dtypes import has_byte_order

_DIVISIBLE_SIZE = 1 << 14
"""Size of chunks below which reading a whole chunk is faster than locating a part."""


@dataclass(frozen=True)
class BytesCodec(ArrayBytesCodec):
    """``bytes``: the elements in C order without padding.

    See "Bytes codec" in the Zarr v3 codec specifications.

    Attributes:
        endian: ``"little"`` or ``"big"``; ``None`` for elements of one byte.
        stored: The exact dtype of stored elements, for structured types of mixed byte order (which v2 supports).
    """

    name = "bytes"
    brief = True
    endian: str | None = "little"
    stored: np.dtype[Any] | None = None

    def __post_init__(self) -> None:
        if self.endian not in ("little", "big", None):
            raise ValueError(f"endian must be 'little' or 'big', found {self.endian!r}")

    def configuration(self) -> dict[str, Any]:
        return {"endian": self.endian} if self.endian else {}

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "endian")
        return cls(configuration.get("endian"))

    def settle(self, spec: ArraySpec) -> Codec:
        if self.stored is not None:
            if self.stored.fields is not None:
                return self
            is_big = self.stored.newbyteorder(">") == self.stored
            return BytesCodec(("big" if is_big else "little") if has_byte_order(self.stored) else None)
        if not has_byte_order(spec.dtype.numpy):
            return replace(self, endian=None)
        return replace(self, endian=self.endian or sys.byteorder)

    def stored_dtype_of(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of stored elements for the dtype of elements in memory."""
        if self.stored is not None:
            return self.stored
        if self.endian is None:  # zarr-python omits it for structured types and stores them little-endian
            return dtype if dtype.fields is None else dtype.newbyteorder("<")
        return dtype.newbyteorder("<" if self.endian == "little" else ">")

    def bind(self, spec: ArraySpec) -> _BoundBytes:
        return _BoundBytes(self, spec)


class _BoundBytes(BoundArrayBytes):
    def __init__(self, codec: BytesCodec, spec: ArraySpec) -> None:
        dtype = spec.dtype.numpy
        if spec.dtype.is_variable:
            raise MetadataError(
                f"codec 'bytes' cannot store data type {spec.dtype.name!r}, whose elements vary in size; "
                "use 'vlen-utf8' or 'vlen-bytes'"
            )
        if codec.stored is None and codec.endian is None and dtype.fields is None and has_byte_order(dtype):
            raise MetadataError(f"codec 'bytes' needs 'endian' for data type {spec.dtype.name!r}")
        self._codec, self._spec = codec, spec
        self._stored = codec.stored_dtype_of(dtype)
        self._small = spec.dtype.small_parts
        # Integers of less than a byte need decoding: other writers may leave anything in the upper bits.
        self.stored_dtype = None if self._small else self._stored
        size = math.prod(spec.shape) * dtype.itemsize
        self.encoded_size = size
        self.divisible = size >= _DIVISIBLE_SIZE
        self._part_chain: BoundChain | None = None

    def decode(self, data: Buffer) -> Array:
        if len(data) != self.encoded_size:
            raise self._codec.fail(f"the value has {len(data)} bytes, expected {self.encoded_size}")
        if not self.encoded_size:
            return np.zeros(self._spec.shape, self._spec.dtype.numpy)
        array = np.frombuffer(data, self._stored).reshape(self._spec.shape)
        if self._small:
            array = np.array(array, self._spec.dtype.numpy)
            for names, small_type in self._small:
                field = _nested_field(array, names)
                field[...] = _sign_extended(field, small_type.bits)
        return array

    def encode(self, array: Array) -> Buffer:
        if not self.encoded_size:  # NumPy represents strings of length 0 with one character
            return b""
        for names, small_type in self._small:
            check_limits(self._codec, _nested_field(array, names), small_type.limits)
        if array.dtype == self._stored and array.flags.c_contiguous:
            return as_bytes_view(array)
        stored = np.empty(array.shape, self._stored)
        assign(stored, array)
        return as_bytes_view(stored)

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """Locate one contiguous block of rows.

        Leading axes on which a single index is selected are entered; the block is a range of the next axis. Return
        ``None`` if the block is more than half of the chunk.
        """
        if not self.encoded_size or not self.divisible:  # without a size there is nothing to divide
            return None
        shape, bounds = self._spec.shape, projection.bounds()
        axis = 0
        while axis < len(shape) - 1 and bounds[axis][0] == bounds[axis][1]:
            axis += 1
        if axis == len(shape):
            return None
        first, last = bounds[axis]
        row_size = math.prod(shape[axis + 1 :]) * self._spec.dtype.numpy.itemsize
        length = (last - first + 1) * row_size
        if 2 * length > self.encoded_size:
            return None
        origin = [*(low for low, _ in bounds[:axis]), first, *(0 for _ in shape[axis + 1 :])]
        start, stride = 0, row_size
        for leading_axis in range(axis, -1, -1):
            start += origin[leading_axis] * stride
            stride *= shape[leading_axis]
        block_shape = (*(1 for _ in shape[:axis]), last - first + 1, *shape[axis + 1 :])
        shifted = projection.shift(origin)
        run = ChunkRun(tuple(origin), shifted, shifted.covers(block_shape))
        return _located(Piece(start, length, self._chain_of(block_shape), run, out))

    def _chain_of(self, shape: tuple[int, ...]) -> BoundChain:
        """Return the chain that decodes a block of rows. Selections often touch blocks of one shape, so keep the last."""
        chain = self._part_chain
        if chain is None or chain.spec.shape != shape:
            chain = self._part_chain = BoundChain((), self._codec, (), self._spec.replace(shape=shape))
        return chain


def _nested_field(array: Array, names: Sequence[str]) -> Array:
    """Return a view of a field inside fields of structured elements."""
    return reduce(lambda view, name: view[name], names, array)


def _sign_extended(array: Array, bits: int) -> Array:
    """Return integers whose upper bits follow from the lowest ``bits`` bits."""
    shift = np.uint8(8 - bits)
    shifted: Array = (array.view(np.uint8) << shift).view(array.dtype)
    value: Array = shifted >> array.dtype.type(shift)
    return value


def _located(piece: Piece) -> Locator:
    """Return a search that needs no reading."""
    yield from ()
    return [piece]
