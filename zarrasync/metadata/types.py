"""The model: what an array and a group are, whatever format they are stored in.

Formats translate their documents into these values and back. Nothing else in the library knows
how a document looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from typing import Any, Self

from zarrasync._util.frozen import freeze
from zarrasync.codecs import ArraySpec, BoundChain, CodecChain, ShardingCodec
from zarrasync.errors import MetadataError, ShapeError
from zarrasync.model.chunk_grids import MAX_LISTED_CHUNKS, Edges, Grid, grid_of
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.storage_transformers import StorageTransformer

__all__ = ["ArrayMetadata", "GroupMetadata", "NodeMetadata", "Source"]


_MAX_AXES = 64
_MAX_CHUNK = 1 << 62
"""Bytes of a chunk that can never be, so that sizes fit into 64 bits everywhere."""
_CHECKED = 256
"""Shapes of chunks that are checked when metadata is made; others when they are first used."""


@dataclass(frozen=True, slots=True)
class Source:
    """The documents that metadata was read from, so that a rewrite keeps what the model does not say.

    Attributes:
        zarr_format: The format they are in.
        documents: Parsed documents by store key.
        versions: The stored documents' versions by store key, filled in by who fetched them.
    """

    zarr_format: int | str
    documents: Mapping[str, Mapping[str, Any]]
    versions: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeMetadata:
    """What arrays and groups share.

    Attributes:
        attributes: The user's attributes.
        source: Where it was read from.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    source: Source | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", freeze(self.attributes))


@dataclass(frozen=True)
class GroupMetadata(NodeMetadata):
    """A group's metadata."""


@dataclass(frozen=True)
class ArrayMetadata(NodeMetadata):
    """An array's metadata.

    Attributes:
        shape: The array's shape.
        dtype: Its data type.
        write_chunks: The shape of the stored values: of shards where there are some, of chunks otherwise. Where their
            sizes differ along an axis, the greatest.
        keys: How a stored value's coordinates become its key.
        codecs: The codecs of a stored value.
        fill_value: What absent elements read as; ``None`` leaves it undefined (v2's ``null``).
        dimension_names: A name or ``None`` per axis, if any were given.
        edges: Per axis the sizes of the stored values, where they differ.
        transformers: What stands between the array and its store, the nearest to the array first.
        notes: What a user should hear of when the array is opened.
    """

    shape: tuple[int, ...]
    dtype: DataType
    write_chunks: tuple[int, ...]
    keys: ChunkKeyEncoding
    codecs: CodecChain
    fill_value: Any
    dimension_names: tuple[str | None, ...] | None = None
    edges: Edges | None = None
    transformers: tuple[StorageTransformer, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.grid  # complains if they do not fit
        if len(self.shape) > _MAX_AXES:
            raise MetadataError(
                f"an array has at most {_MAX_AXES} axes here (NumPy's limit), this one {len(self.shape)}"
            )
        if math.prod(self.write_chunks) * max(self.dtype.numpy.itemsize, 1) >= _MAX_CHUNK:
            raise MetadataError(
                f"chunks of {self.write_chunks} elements of {self.dtype.name!r} are larger than any memory"
            )
        if self.dimension_names is not None and len(self.dimension_names) != len(self.shape):
            raise MetadataError(
                f"dimension_names {list(self.dimension_names)} must have one entry per axis of shape {self.shape}"
            )
        _ = self.chain  # complains about codecs that can not take the chunks
        for shape in islice(self._shapes(), _CHECKED):
            self.chain_of(shape)

    def __getstate__(self) -> dict[str, Any]:
        # What is derived is derived again: bound codecs are not for pickling.
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}

    def from_source(self, source: Source | None) -> Self:
        """The same from other documents that say the same. What is derived, such as bound codecs, is derived again."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__getstate__(), source=source)
        return found

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @cached_property
    def grid(self) -> Grid:
        """The grid of stored values."""
        return grid_of(self.shape, self.write_chunks, self.edges)

    def _shapes(self) -> Iterator[tuple[int, ...]]:
        """The shapes that stored values have, where they differ."""
        if self.edges is not None:
            sizes = zip(self.edges, self.write_chunks, strict=True)
            yield from product(*(sorted({n, *(own or ())}) for own, n in sizes))

    @cached_property
    def read_grid(self) -> Grid:
        """The grid of the smallest parts that can be read alone."""
        # Inner chunks are all alike, and shards end where one of them does.
        return grid_of(self.shape, self.chunks, self.edges if self._sharding is None else None)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of the smallest part that can be read alone: inner chunks where there are shards."""
        sharding, steps = self._sharding, self.codecs.array_array
        if sharding is None or any(codec.permutation is None for codec in steps):
            return self.write_chunks
        shape = self.write_chunks
        order = list(range(len(shape)))
        for codec in steps:
            order = [order[axis] for axis in codec.permutation or ()]
        return tuple(sharding.chunk_shape[order.index(axis)] for axis in range(len(shape)))

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The shape of shards, if the array has them."""
        return None if self._sharding is None else self.write_chunks

    @property
    def inner_codecs(self) -> CodecChain:
        """The codecs of the smallest part that can be read alone."""
        return self.codecs if self._sharding is None else self._sharding.codecs

    @property
    def _sharding(self) -> ShardingCodec | None:
        maker = self.codecs.array_bytes
        return maker if isinstance(maker, ShardingCodec) else None

    @cached_property
    def chain(self) -> BoundChain:
        """The codecs bound to a stored value's shape."""
        return self.codecs.bind(self.spec)

    @cached_property
    def _chains(self) -> dict[tuple[int, ...], BoundChain]:
        return {}

    def chain_of(self, shape: tuple[int, ...]) -> BoundChain:
        """The codecs bound to the shape of one stored value."""
        if shape == self.write_chunks:
            return self.chain
        found = self._chains.get(shape)
        if found is None:
            found = self._chains[shape] = self.codecs.bind(self.spec.replace(shape=shape))
        return found

    @property
    def spec(self) -> ArraySpec:
        """What the codecs get."""
        fill = self.dtype.default_fill() if self.fill_value is None else self.fill_value
        return ArraySpec(self.write_chunks, self.dtype, fill, self.fill_value is None)

    def with_shape(self, shape: tuple[int, ...]) -> ArrayMetadata:
        """A copy with another shape.

        Raises:
            ShapeError: If it has another number of axes or a negative size.
        """
        if len(shape) != self.ndim or any(n < 0 for n in shape):
            raise ShapeError(
                f"an array of shape {self.shape} can not be resized to {shape}: "
                f"it needs {self.ndim} sizes, none of them negative",
                found=shape,
                wanted=self.shape,
            )
        if self.edges is None:
            return replace(self, shape=shape)
        # New chunks are as large as the last one.
        for own, n in zip(self.edges, shape, strict=True):
            if own is not None and len(own) + max(n - sum(own), 0) // own[-1] > MAX_LISTED_CHUNKS:
                raise ShapeError(
                    f"{n} elements would take more than {MAX_LISTED_CHUNKS} chunks of listed sizes", found=shape
                )
        longer = tuple(
            None if own is None else own + (own[-1],) * -(-max(n - sum(own), 0) // own[-1])
            for own, n in zip(self.edges, shape, strict=True)
        )
        return replace(self, shape=shape, edges=longer)
