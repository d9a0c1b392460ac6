"""``sharding_indexed``: many inner chunks and an index of them in one value (ZEP 2).

A part of a shard is read as byte ranges: first the index, then the wanted inner chunks. The search
is a generator without IO (see ``Locator``), so that nested shards, files and object stores all use
the same one; each level of nesting costs one batch of reads however many shards are involved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._util.memory import joined
from zarrasync.codecs.base import ArrayBytesCodec, Codec
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.crc32c import Crc32cCodec
from zarrasync.codecs.partial import Locator, Piece, Range, search_inside, search_together
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection
from zarrasync.indexing.split import split_chunks
from zarrasync.model.chunk_grids import regular_grid
from zarrasync.model.dtypes import DataType

__all__ = ["BoundSharding", "ShardingCodec"]

_MISSING = 2**64 - 1
_PARSED = 8 << 20
"""Bytes of indexes that are kept in their parsed form."""
_UINT64 = DataType("uint64", np.dtype("u8"))
Index: TypeAlias = npt.NDArray[np.int64]
"""Offset and length per inner chunk in C order, of shape ``(number, 2)``; length -1 where absent."""
DEFAULT_INDEX = CodecChain.of((BytesCodec("little"), Crc32cCodec()))


@dataclass(frozen=True)
class ShardingCodec(ArrayBytesCodec):
    """Inner chunks and an index of their offsets and lengths.

    Attributes:
        chunk_shape: The shape of the inner chunks; it divides the shard's.
        codecs: The codecs of the inner chunks.
        index_codecs: The codecs of the index, whose size must not depend on its content.
        index_location: ``"end"`` or ``"start"``.
    """

    name = "sharding_indexed"
    chunk_shape: tuple[int, ...]
    codecs: CodecChain
    index_codecs: CodecChain = DEFAULT_INDEX
    index_location: str = "end"

    def __post_init__(self) -> None:
        if self.index_location not in ("start", "end"):
            raise ValueError(f"index_location is 'start' or 'end', found {self.index_location!r}")

    def configuration(self) -> dict[str, Any]:
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.to_json() for codec in self.codecs.codecs],
            "index_codecs": [codec.to_json() for codec in self.index_codecs.codecs],
            "index_location": self.index_location,
        }

    @classmethod
    def parse(cls, configuration: Mapping[str, Any], parse_codecs: Callable[[Any, str], CodecChain]) -> ShardingCodec:
        """The codec of a document; ``parse_codecs`` parses the lists inside."""
        known = {"chunk_shape", "codecs", "index_codecs", "index_location"}
        if unknown := set(configuration) - known:
            raise ValueError(f"unknown member {min(unknown)!r}")
        shape = configuration["chunk_shape"]
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError(f"chunk_shape is a list of positive integers, found {shape!r}")
        return cls(
            tuple(shape),
            parse_codecs(configuration["codecs"], "codecs"),
            parse_codecs(configuration["index_codecs"], "index_codecs"),
            configuration.get("index_location", "end"),
        )

    def settle(self, spec: ArraySpec) -> Codec:
        inner = self.codecs.settle(spec.replace(shape=self.chunk_shape))
        return ShardingCodec(self.chunk_shape, inner, self.index_codecs, self.index_location)

    def bind(self, spec: ArraySpec) -> BoundSharding:
        return BoundSharding(self, spec)


class BoundSharding:
    """The codec for shards of one shape."""

    encoded_size: int | None = None
    stored_dtype: np.dtype[Any] | None = None
    divisible = True

    def __init__(self, codec: ShardingCodec, spec: ArraySpec) -> None:
        inner = codec.chunk_shape
        if len(inner) != len(spec.shape) or any(n % c for n, c in zip(spec.shape, inner, strict=True)):
            raise MetadataError(
                f"codec 'sharding_indexed': inner chunks {inner} must divide shards {spec.shape} along each axis"
            )
        self._codec, self._spec = codec, spec
        self.grid = regular_grid(spec.shape, inner)
        self.inner = codec.codecs.bind(spec.replace(shape=inner))
        self._index = codec.index_codecs.bind(ArraySpec((*self.grid.shape, 2), _UINT64, np.uint64(_MISSING)))
        if self._index.encoded_size is None:
            raise MetadataError("codec 'sharding_indexed': index_codecs must make an index of a fixed size")
        self._index_size = self._index.encoded_size
        self._parsed: dict[bytes, Index] = {}
        self._strides = [math.prod(self.grid.shape[axis + 1 :]) for axis in range(len(inner))]

    # -------------------------------------------------------------- the index

    def _index_range(self) -> Range:
        return Range(0, self._index_size, suffix=self._codec.index_location == "end")

    def _parse_index(self, data: Buffer) -> Index:
        """The index; that of bytes which come again is not made again."""
        if not isinstance(data, bytes):
            return self._parse(data)
        known = self._parsed.get(data)
        if known is None:
            if len(self._parsed) * self._index_size > _PARSED:
                self._parsed.clear()
            known = self._parsed[data] = self._parse(data)
        return known

    def _parse(self, data: Buffer) -> Index:
        try:
            table = self._index.decode(data).reshape(-1, 2)
        except CodecError as error:
            raise self._codec.fail(f"its index is damaged: {error}") from error
        missing = (table == np.uint64(_MISSING)).all(axis=1)
        present = table[~missing]
        if len(present) and int(present.max()) >= 1 << 62:
            raise self._codec.fail("its index names bytes that no value can have")
        for number in np.flatnonzero(~missing & ~self._possible(table[:, 1])):
            length = int(table[number, 1])
            raise self._codec.fail(f"its index gives inner chunk {number} {length} bytes, which it can not have")
        entries = table.astype(np.int64)
        entries[missing] = (0, -1)
        return entries

    def _possible(self, sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of some sizes an encoded inner chunk may have."""
        least, most = self.inner.size_bounds
        return (sizes >= np.uint64(least)) & (sizes <= np.uint64(most))

    def _split_index(self, data: Buffer) -> tuple[memoryview, Index]:
        view = memoryview(data)
        if len(view) < self._index_size:
            raise self._codec.fail(f"the shard has {len(view)} bytes, its index alone needs {self._index_size}")
        at_end = self._codec.index_location == "end"
        index = self._parse_index(view[-self._index_size :] if at_end else view[: self._index_size])
        for number in np.flatnonzero(index.sum(axis=1) > len(view)):
            offset, length = index[number].tolist()
            raise self._codec.fail(
                f"its index puts inner chunk {number} at bytes {offset} to {offset + length} of {len(view)}"
            )
        return view, index

    def _number(self, coords: tuple[int, ...]) -> int:
        return sum([i * stride for i, stride in zip(coords, self._strides, strict=True)])

    # -------------------------------------------------------------- reading

    def locate(self, projection: Projection, out: Array) -> Locator:
        """Read the index, then say where the wanted inner chunks lie."""
        (data,) = yield [self._index_range()]
        if data is None:
            return None
        return (yield from self._locate_inner(self._parse_index(data), projection, out))

    def _locate_inner(self, index: Index, projection: Projection, out: Array) -> Locator:
        pieces: list[Piece] = []
        searches: list[Locator] = []
        for run in split_chunks(projection, self.grid, self.inner.run_length):
            if run.is_full or self.inner.locate(run.projection, out) is None:  # of a run's chunks for each the same
                pieces.extend(self._pieces(index, run, out))
                continue
            for part in run.singles():
                offset, length = index[self._number(part.coords)].tolist()
                search = self.inner.locate(part.projection, out) if length >= 0 else None
                if search is None:
                    pieces.append(Piece(offset, length, self.inner, part, out))
                else:
                    searches.append(search_inside(search, offset, length))
        if searches:
            pieces.extend((yield from search_together(searches)) or ())
        return pieces

    def _pieces(self, index: Index, run: ChunkRun, out: Array) -> Iterator[Piece]:
        """A run of inner chunks as pieces whose chunks are all there and lie one right after the other."""
        first, stride = self._number(run.coords), self._strides[run.axis] if run.count > 1 else 1
        entries = index[first : first + run.count * stride : stride].tolist()
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
        own = [(offset - start, size) for offset, size in entries[begin:end]]
        return Piece(start, sum(size for _, size in own), self.inner, part, out, own)

    def decode(self, data: Buffer) -> Array:
        view, index = self._split_index(data)
        out = self._spec.new_array()
        whole = tuple(slice(0, n, 1) for n in self._spec.shape)
        for part in split_chunks(Projection((), whole, whole, is_basic=True), self.grid):
            offset, length = index[self._number(part.coords)].tolist()
            if length >= 0:
                part.projection.read(self.inner.decode(view[offset : offset + length]), out)
        return out

    # -------------------------------------------------------------- writing

    def encode(self, array: Array) -> Buffer | None:
        return self._joined(self._encoded(array), self.inner.nbytes * self.grid.size)

    def _encoded(self, array: Array) -> Iterator[Buffer | None]:
        """The inner chunks in C order, as soon as they are made."""
        whole = tuple(slice(0, n, 1) for n in self._spec.shape)
        made: dict[int, Buffer | None] = {}
        following = 0
        for run in split_chunks(Projection((), whole, whole, is_basic=True), self.grid, self.inner.run_length):
            first = self._number(run.coords)
            if run.count > 1:  # they follow each other along one axis
                made.update(zip(count(first, self._strides[run.axis]), self._encoded_run(run, array), strict=False))
            else:
                chunk = array[(*run.projection.target, ...)]
                made[first] = None if self.inner.is_fill(chunk) else self.inner.encode(chunk)
            while following in made:
                yield made.pop(following)
                following += 1

    def _encoded_run(self, run: ChunkRun, array: Array) -> list[Buffer | None]:
        """Inner chunks that follow each other: they are gathered and encoded together."""
        rows = np.empty((run.count, self.inner.raw_size or 0), np.uint8)
        boxes = self.inner.view_chunks(rows)
        assert boxes is not None  # runs are made of such chunks
        run.write(boxes, array)
        return self.inner.encode_rows(rows)

    def merge(self, data: Buffer, projection: Projection, values: Array) -> Buffer | None:
        """Inner chunks that the projection does not touch keep their bytes as they are."""
        view, index = self._split_index(data)
        kept: list[Buffer | None] = [
            None if length < 0 else view[offset : offset + length] for offset, length in index.tolist()
        ]
        for part in split_chunks(projection, self.grid):
            number = self._number(part.coords)
            merged, empty = self.inner.merge(None if part.is_full else kept[number], part.projection, values)
            kept[number] = None if empty else merged
        return self._joined(kept, sum(len(value) for value in kept if value is not None))

    def encode_empty(self) -> Buffer:
        """A shard of absent inner chunks."""
        return self._table([-1] * self.grid.size)

    def _joined(self, values: Iterable[Buffer | None], room: int) -> Buffer | None:
        """The shard of the inner chunks, which hardly have more bytes than ``room``; ``None`` if all are absent."""
        lengths: list[int] = []
        at_end = self._codec.index_location == "end"

        def chunks() -> Iterator[Buffer]:
            for value in values:
                lengths.append(-1 if value is None else len(value))
                if value is not None:
                    yield value

        def parts() -> Iterator[Buffer]:
            if at_end:
                yield from chunks()
                yield self._table(lengths)
            else:  # which is known when all chunks are there
                there = list(chunks())
                yield self._table(lengths)
                yield from there

        data = joined(parts(), room + self._index_size)
        return data if max(lengths) >= 0 else None

    def _table(self, lengths: Sequence[int]) -> Buffer:
        """The encoded index of chunks that lie one behind the other; they are -1 long where absent."""
        sizes = np.array(lengths, np.int64)
        ends = np.maximum(sizes, 0).cumsum()
        start = 0 if self._codec.index_location == "end" else self._index_size
        index = np.stack([start + ends - sizes, sizes], axis=-1).view(np.uint64)
        index[sizes < 0] = _MISSING
        encoded = self._index.encode(index.reshape(*self.grid.shape, 2))
        assert encoded is not None
        return encoded
