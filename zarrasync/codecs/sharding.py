"""``sharding_indexed`` (Zarr v3 core codecs, ZEP 2): many inner chunks and an index of them in one value.

Partial reads of a shard fetch byte ranges: first the index, then the inner chunks (see ``byte_ranges``). Each level of nested
shards costs one batch of reads, however many shards are involved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from zarrasync._util.memory import join_buffers
from zarrasync.codecs.base import ArrayBytesCodec, Codec, check_members
from zarrasync.codecs.byte_ranges import BoundArrayBytes, Locator, Piece, Range, search_inside, search_together
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.crc32c import Crc32cCodec
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.chunk_runs import ChunkRun, split_chunks
from zarrasync.indexing.projection import Projection
from zarrasync.model.chunk_grids import regular_grid
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


_CHUNK_OVERHEAD = 256
"""Bytes that codecs may add to an inner chunk of any size."""
_LARGEST_INDEX = 1 << 40
"""An upper limit for the bytes of an index, larger than any memory."""
DEFAULT_INDEX = CodecChain.of((BytesCodec("little"), Crc32cCodec()))


@dataclass(frozen=True)
class ShardingCodec(ArrayBytesCodec):
    """``sharding_indexed``: inner chunks and an index of their offsets and lengths.

    See "Sharding codec" in the Zarr v3 codec specifications.

    Attributes:
        chunk_shape: The shape of the inner chunks; it divides the shard's.
        codecs: The codecs of the inner chunks: a ``CodecChain`` or a sequence of codecs.
        index_codecs: The codecs of the index. The size of an encoded index must not depend on its content.
        index_location: ``"end"`` or ``"start"``.
        order: The order in which new shards contain their inner chunks. It is not a part of the metadata.
    """

    name = "sharding_indexed"
    chunk_shape: tuple[int, ...]
    codecs: CodecChain
    index_codecs: CodecChain = DEFAULT_INDEX
    index_location: str = "end"
    order: ChunkOrder = "C"

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_shape", tuple(self.chunk_shape))
        for name in ("codecs", "index_codecs"):
            codecs = getattr(self, name)
            if not isinstance(codecs, CodecChain):
                object.__setattr__(self, name, CodecChain.of(codecs))
        if self.index_location not in ("start", "end"):
            raise ValueError(f"index_location must be 'start' or 'end', found {self.index_location!r}")
        if self.order not in get_args(ChunkOrder):
            raise ValueError(f"order must be one of {', '.join(get_args(ChunkOrder))}, found {self.order!r}")

    def has_checksum(self) -> bool:
        return self.codecs.has_checksum()

    def configuration(self) -> dict[str, Any]:
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.to_json() for codec in self.codecs.codecs],
            "index_codecs": [codec.to_json() for codec in self.index_codecs.codecs],
            "index_location": self.index_location,
        }

    @classmethod
    def parse(cls, configuration: Mapping[str, Any], parse_codecs: Callable[[Any, str], CodecChain]) -> ShardingCodec:
        """Return the codec of a document; ``parse_codecs`` parses the inner lists."""
        check_members(configuration, "chunk_shape", "codecs", "index_codecs", "index_location")
        shape = configuration["chunk_shape"]
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError(f"chunk_shape must be a list of positive integers, found {shape!r}")
        return cls(
            tuple(shape),
            parse_codecs(configuration["codecs"], "codecs"),
            parse_codecs(configuration["index_codecs"], "index_codecs"),
            configuration.get("index_location", "end"),
        )

    def settle(self, spec: ArraySpec) -> Codec:
        inner = self.codecs.settle(spec.replace(shape=self.chunk_shape))
        return replace(self, codecs=inner)

    def bind(self, spec: ArraySpec) -> BoundSharding:
        return BoundSharding(self, spec)


def in_order_of(codec: ShardingCodec, original: Any) -> ShardingCodec:
    """Return a codec whose shards contain inner chunks in the order of a codec of zarr-python. Metadata omits it."""
    codecs = getattr(original, "codecs", ())  # other packages may name them differently
    chain, inner = codec.codecs, next((item for item in codecs if hasattr(item, "index_codecs")), None)
    if inner is not None and isinstance(chain.array_bytes, ShardingCodec):
        chain = replace(chain, array_bytes=in_order_of(chain.array_bytes, inner))
    return replace(codec, codecs=chain, order=order_of(original))


class BoundSharding(BoundArrayBytes):
    """The codec bound to shards of one shape.

    Attributes:
        grid: The grid of inner chunks in the shard.
        inner: The codecs of inner chunks.
        index_codecs: The codecs of the index.
        index_at_end: Whether the index is at the end.
        order: The numbers of inner chunks in the order in which new shards contain them; ``None`` for C order.
    """

    divisible = True

    def __init__(self, codec: ShardingCodec, spec: ArraySpec) -> None:
        chunk_shape = codec.chunk_shape
        if len(chunk_shape) != len(spec.shape) or any(n % c for n, c in zip(spec.shape, chunk_shape, strict=True)):
            raise MetadataError(
                f"codec 'sharding_indexed': inner chunks {chunk_shape} must divide shards {spec.shape} along each axis"
            )
        self._spec = spec
        self.grid = regular_grid(spec.shape, chunk_shape)
        self.inner = codec.codecs.bind(spec.replace(shape=chunk_shape))
        self.index_at_end = codec.index_location == "end"
        self.index_codecs = codec.index_codecs.codecs
        self._index = ShardIndex(
            codec, codec.index_codecs, self.grid.shape, self.inner.size_bounds, at_end=self.index_at_end
        )
        if self._index.size > _LARGEST_INDEX:
            raise MetadataError(
                f"codec 'sharding_indexed': the index of {self.grid.size:,} inner chunks {chunk_shape} in shards "
                f"{spec.shape} has {self._index.size:,} bytes, which is larger than any memory"
            )
        self.encoded_limit = self._index.size + self.grid.size * (2 * self.inner.nbytes + _CHUNK_OVERHEAD)
        self._strides = [math.prod(self.grid.shape[axis + 1 :]) for axis in range(len(chunk_shape))]
        self.order = storage_order(codec.order, self.grid.shape)
        self._whole_shard = tuple(slice(0, n, 1) for n in spec.shape)

    def _number(self, coords: tuple[int, ...]) -> int:
        """Return the position of an inner chunk in C order."""
        return sum([i * stride for i, stride in zip(coords, self._strides, strict=True)])

    # -------------------------------------------------------------- reading

    def locate(self, projection: Projection, out: Array) -> Locator:
        """Read the index, then locate the inner chunks of a projection."""
        (data,) = yield [self._index.byte_range]
        if data is None:
            return None
        return (yield from self._locate_inner(self._index.parse(data), projection, out))

    def _locate_inner(self, table: IndexTable, projection: Projection, out: Array) -> Locator:
        pieces: list[Piece] = []
        searches: list[Locator] = []
        for run in split_chunks(projection, self.grid, self.inner.run_length):
            # Whether parts of an inner chunk can be located is the same for all chunks of a run.
            if run.is_full or self.inner.locate(run.projection, out) is None:
                pieces.extend(self._contiguous_pieces(table, run, out))
                continue
            for part in run.singles():
                offset, length = table[self._number(part.coords)].tolist()
                search = self.inner.locate(part.projection, out) if length >= 0 else None
                if search is None:
                    pieces.append(Piece(offset, length, self.inner, part, out))
                else:
                    searches.append(search_inside(search, offset, length))
        if searches:
            pieces.extend((yield from search_together(searches)) or ())
        return pieces

    def _contiguous_pieces(self, table: IndexTable, run: ChunkRun, out: Array) -> Iterator[Piece]:
        """Divide a run of inner chunks into pieces whose chunks are all present and stored contiguously."""
        first, stride = self._number(run.coords), self._strides[run.axis] if run.count > 1 else 1
        entries = table[first : first + run.count * stride : stride].tolist()
        begin, (start, length) = 0, entries[0]
        end = start + length
        for number, (offset, size) in enumerate(entries[1:], 1):
            if offset != end or size < 0 or length < 0:
                yield self._piece(run, begin, number, entries, out)
                begin = number
            end, length = offset + size, size
        yield self._piece(run, begin, run.count, entries, out)

    def _piece(self, run: ChunkRun, begin: int, end: int, entries: list[list[int]], out: Array) -> Piece:
        part, (start, length) = run.section(begin, end), entries[begin]
        if end - begin == 1:
            return Piece(start, length, self.inner, part, out)
        relative = [(offset - start, size) for offset, size in entries[begin:end]]
        return Piece(start, sum(size for _, size in relative), self.inner, part, out, relative)

    def decode(self, data: Buffer) -> Array:
        view, table = self._index.parse_shard(data)
        out = self._spec.new_array()
        for part in split_chunks(Projection((), self._whole_shard, self._whole_shard, is_basic=True), self.grid):
            offset, length = table[self._number(part.coords)].tolist()
            if length >= 0:
                part.projection.read(self.inner.decode(view[offset : offset + length]), out)
        return out

    # -------------------------------------------------------------- writing

    def encode(self, array: Array) -> Buffer | None:
        return self._join(self._encode_chunks(array), self.inner.nbytes * self.grid.size)

    def _encode_chunks(self, array: Array) -> Iterator[Buffer | None]:
        """Yield the encoded inner chunks in C order, each as soon as it is ready."""
        ready: dict[int, Buffer | None] = {}
        next_number = 0
        projection = Projection((), self._whole_shard, self._whole_shard, is_basic=True)
        for run in split_chunks(projection, self.grid, self.inner.run_length):
            first = self._number(run.coords)
            if run.count > 1:
                ready.update(zip(count(first, self._strides[run.axis]), self._encode_run(run, array), strict=False))
            else:
                chunk = array[(*run.projection.target, ...)]
                ready[first] = None if self.inner.is_fill(chunk) else self.inner.encode(chunk)
            while next_number in ready:
                yield ready.pop(next_number)
                next_number += 1

    def _encode_run(self, run: ChunkRun, array: Array) -> list[Buffer | None]:
        """Gather the inner chunks of a run in contiguous memory and encode them together."""
        rows = np.empty((run.count, self.inner.raw_size or 0), np.uint8)
        chunks = self.inner.view_chunks(rows)
        assert chunks is not None  # otherwise the run length is 1
        run.write(chunks, array)
        return self.inner.encode_rows(rows)

    def merge(self, data: Buffer | None, projection: Projection, values: Array) -> Buffer | None:
        """Return the encoded shard with the elements of a projection replaced. Other inner chunks keep their bytes.

        ``data`` is ``None`` if the shard is absent.
        """
        chunks: list[Buffer | None] = [None] * self.grid.size
        if data is not None:
            view, table = self._index.parse_shard(data)
            chunks = [None if length < 0 else view[offset : offset + length] for offset, length in table.tolist()]
        for part in split_chunks(projection, self.grid):
            number = self._number(part.coords)
            merged, is_empty = self.inner.merge(None if part.is_full else chunks[number], part.projection, values)
            chunks[number] = None if is_empty else merged
        return self._join(chunks, sum(len(chunk) for chunk in chunks if chunk is not None))

    def encode_empty(self) -> Buffer:
        """Return a shard in which all inner chunks are absent."""
        return self._index.encode([-1] * self.grid.size)

    def _join(self, chunks: Iterable[Buffer | None], size_hint: int) -> Buffer | None:
        """Return the shard of encoded inner chunks in C order, or ``None`` if all are absent.

        Args:
            chunks: The inner chunks; ``None`` for absent ones.
            size_hint: An estimate of their total number of bytes.
        """
        if self.order is not None:
            return self._join_in_order(list(chunks))
        lengths: list[int] = []

        def present() -> Iterator[Buffer]:
            for chunk in chunks:
                lengths.append(-1 if chunk is None else len(chunk))
                if chunk is not None:
                    yield chunk

        def parts() -> Iterator[Buffer]:
            if self.index_at_end:
                yield from present()
                yield self._index.encode(lengths)
            else:  # the index needs the lengths of all chunks
                encoded: Sequence[Buffer] = list(present())
                yield self._index.encode(lengths)
                yield from encoded

        data = join_buffers(parts(), size_hint + self._index.size)
        return data if max(lengths) >= 0 else None

    def _join_in_order(self, chunks: Sequence[Buffer | None]) -> Buffer | None:
        """Return the shard of encoded inner chunks, which are stored in another order than C order."""
        assert self.order is not None
        stored = [chunk for number in self.order.tolist() if (chunk := chunks[number]) is not None]
        if not stored:
            return None
        index = self._index.encode([-1 if chunk is None else len(chunk) for chunk in chunks], self.order)
        return join_buffers([*stored, index] if self.index_at_end else [index, *stored], sum(map(len, stored)))
