"""The index of a shard, and the order in which shards contain their inner chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.base import Codec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.partial import Range
from zarrasync.codecs.spec import ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError
from zarrasync.model.dtypes import DataType

ChunkOrder: TypeAlias = Literal["C", "F", "morton"]
"""The last axis varies fastest, or the first one, or all take turns bit by bit (Z order, as in zarr-python)."""

_MOST_ORDERED = 1 << 24
"""Largest number of inner chunks whose order is computed, which takes 500 MB."""
_ZARR_PYTHON_ORDERS: dict[str, ChunkOrder] = {
    "morton": "morton",
    "lexicographic": "C",
    "unordered": "C",
    "colexicographic": "F",
}


def order_of(sharding: Any) -> ChunkOrder:
    """Return the order of a sharding codec of zarr-python, which has the option since zarr-python 3.2.

    Raises:
        MetadataError: If the order is unknown.
    """
    order = getattr(sharding, "subchunk_write_order", "morton")
    if order not in _ZARR_PYTHON_ORDERS:
        raise MetadataError(
            f"codec 'sharding_indexed': subchunk_write_order must be one of {', '.join(_ZARR_PYTHON_ORDERS)}, found {order!r}"
        )
    return _ZARR_PYTHON_ORDERS[order]


@lru_cache(maxsize=16)
def storage_order(order: ChunkOrder, grid_shape: tuple[int, ...]) -> npt.NDArray[np.int64] | None:
    """Return the numbers of inner chunks, counted in C order, in the order in which they are stored.

    Args:
        order: The order.
        grid_shape: The number of inner chunks along each axis.

    Returns:
        The numbers, or ``None`` if they ascend.

    Raises:
        MetadataError: If there are too many inner chunks.
    """
    if order == "C":
        return None
    if math.prod(grid_shape) > _MOST_ORDERED:
        raise MetadataError(
            f"codec 'sharding_indexed': {math.prod(grid_shape):,} inner chunks cannot be stored in the order {order!r}; "
            f"at most {_MOST_ORDERED:,} can, others only in C order"
        )
    numbers = np.arange(math.prod(grid_shape), dtype=np.int64)
    if order == "F":
        numbers = numbers.reshape(grid_shape).transpose().reshape(-1)
    elif order == "morton":
        numbers = np.argsort(_morton_codes(grid_shape), kind="stable").astype(np.int64, copy=False)
    return None if (numbers[1:] > numbers[:-1]).all() else numbers


def _morton_codes(grid_shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return for each chunk the bits of its coordinates, interleaved, without the bits that an axis does not need."""
    coords = np.indices(grid_shape, np.int64).reshape(len(grid_shape), -1)
    widths = [(size - 1).bit_length() for size in grid_shape]
    codes = np.zeros(coords.shape[1], np.int64)
    position = 0
    for bit in range(max(widths, default=0)):
        for axis, width in enumerate(widths):
            if bit < width:
                codes |= (coords[axis] >> bit & 1) << position
                position += 1
    return codes


IndexTable: TypeAlias = npt.NDArray[np.int64]
"""Offset and length of each inner chunk in C order, of shape ``(number, 2)``; length -1 for absent ones."""

_MISSING = 2**64 - 1
"""Offset and length of absent inner chunks in encoded indexes."""
_CACHED_BYTES = 8 << 20
"""Bytes of encoded indexes whose tables are kept."""
_MAX_POSITION = 1 << 62
_UINT64 = DataType("uint64", np.dtype("u8"))


class ShardIndex:
    """Decodes and encodes the indexes of shards of one kind.

    Args:
        codec: The sharding codec, which messages name.
        chain: The codecs of the index.
        grid_shape: The number of inner chunks along each axis.
        size_bounds: The least and the most bytes of an inner chunk.
        at_end: Whether the index is at the end of the shard.

    Attributes:
        size: Bytes of an encoded index.
        byte_range: The range of the index in a shard.
    """

    def __init__(
        self,
        codec: Codec,
        chain: CodecChain,
        grid_shape: tuple[int, ...],
        size_bounds: tuple[int, int],
        *,
        at_end: bool,
    ) -> None:
        self._codec, self._grid_shape, self._size_bounds, self._at_end = codec, grid_shape, size_bounds, at_end
        self._chain = chain.bind(ArraySpec((*grid_shape, 2), _UINT64, np.uint64(_MISSING)))
        if self._chain.encoded_size is None:
            raise MetadataError("codec 'sharding_indexed': index_codecs must make an index of a fixed size")
        self.size = self._chain.encoded_size
        self.byte_range = Range(0, self.size, suffix=at_end)
        self._tables: dict[bytes, IndexTable] = {}

    def parse(self, data: Buffer) -> IndexTable:
        """Decode an index. The tables of ``bytes`` are cached.

        Raises:
            CodecError: If it is damaged.
        """
        if not isinstance(data, bytes):
            return self._decode(data)
        table = self._tables.get(data)
        if table is None:
            if len(self._tables) * self.size > _CACHED_BYTES:
                self._tables.clear()
            table = self._tables[data] = self._decode(data)
        return table

    def _decode(self, data: Buffer) -> IndexTable:
        try:
            entries = self._chain.decode(data).reshape(-1, 2)
        except CodecError as error:
            raise self._codec.fail(f"its index is damaged: {error}") from error
        is_missing = (entries == np.uint64(_MISSING)).all(axis=1)
        present = entries[~is_missing]
        if len(present) and int(present.max()) >= _MAX_POSITION:
            raise self._codec.fail("its index contains an impossible byte range")
        least, most = self._size_bounds
        sizes = entries[:, 1]
        is_possible = (sizes >= np.uint64(least)) & (sizes <= np.uint64(most))
        for number in np.flatnonzero(~is_missing & ~is_possible):
            length = int(sizes[number])
            raise self._codec.fail(f"its index gives {length} bytes for inner chunk {number}, which is impossible")
        table = entries.astype(np.int64)
        table[is_missing] = (0, -1)
        return table

    def parse_shard(self, shard: Buffer) -> tuple[memoryview, IndexTable]:
        """Return a view of a whole shard, and its index, whose chunks all lie inside the shard.

        Raises:
            CodecError: If the shard is damaged.
        """
        view = memoryview(shard)
        if len(view) < self.size:
            raise self._codec.fail(f"the shard has {len(view)} bytes, fewer than its index needs ({self.size})")
        table = self.parse(view[-self.size :] if self._at_end else view[: self.size])
        for number in np.flatnonzero(table.sum(axis=1) > len(view)):
            offset, length = table[number].tolist()
            raise self._codec.fail(
                f"its index puts inner chunk {number} at bytes {offset} to {offset + length} of {len(view)}"
            )
        return view, table

    def encode(self, lengths: Sequence[int], order: npt.NDArray[np.intp] | None = None) -> Buffer:
        """Encode the index of chunks that are stored one after the other.

        Args:
            lengths: The bytes of each inner chunk; -1 for absent ones.
            order: The numbers of the chunks in the order in which they are stored; ascending if not given.
        """
        sizes = np.array(lengths, np.int64)
        if order is None:
            ends = np.maximum(sizes, 0).cumsum()
        else:
            ends = np.empty_like(sizes)
            ends[order] = np.maximum(sizes[order], 0).cumsum()
        start = 0 if self._at_end else self.size
        entries = np.stack([start + ends - sizes, sizes], axis=-1).view(np.uint64)
        entries[sizes < 0] = _MISSING
        encoded = self._chain.encode(entries.reshape(*self._grid_shape, 2))
        assert encoded is not None
        return encoded
