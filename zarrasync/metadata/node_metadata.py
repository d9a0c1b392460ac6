"""Metadata of arrays and groups, independent of the Zarr format.

Formats convert documents to these objects and back. No other part of the library depends on the structure of documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from typing import Any, Never, Self

from zarrasync._util import json as _json
from zarrasync.codecs import ArraySpec, BoundChain, CodecChain, ShardingCodec
from zarrasync.errors import MetadataError, ShapeError
from zarrasync.metadata.extensions import StorageTransformer
from zarrasync.model.chunk_grids import MAX_LISTED_CHUNKS, Edges, Grid, grid_of
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType

_MAX_AXES = 64
_MAX_CHUNK = 1 << 62
"""An upper limit for the bytes of a chunk, larger than any memory. It keeps all sizes within 64 bits."""
_CHECKED_SHAPES = 256
"""The number of different chunk shapes to check when an array is opened. Others are checked when they are first used."""


@dataclass(frozen=True, slots=True)
class SourceDocuments:
    """The documents that metadata was read from. Rewriting them keeps members that the model does not represent.

    Documents are not kept parsed, because that takes ten times as much memory, and few of them are needed.

    Attributes:
        zarr_format: The format of the documents.
        data: The documents by store key.
        versions: The versions of the stored documents by store key. The caller that fetched the documents adds them.
    """

    zarr_format: int | str
    data: Mapping[str, bytes]
    versions: dict[str, object] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        """The parsed documents by store key."""
        return {key: _json.load(data, key) for key, data in self.data.items()}


@dataclass(frozen=True)
class NodeMetadata:
    """Base class of the metadata of arrays and groups.

    Attributes:
        attributes: The user's attributes.
        source: The documents that the metadata was read from, or ``None``.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    source: SourceDocuments | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", freeze(self.attributes))

    @property
    def documents(self) -> Mapping[str, dict[str, Any]]:
        """The parsed documents that the metadata was read from, by store key; empty for a new node."""
        return {} if self.source is None else self.source.documents

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are omitted, because bound codecs cannot be pickled.
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}

    def from_source(self, source: SourceDocuments | None) -> Self:
        """Return a copy with another source, without validation and without cached properties such as bound codecs."""
        copy, names, set_value = object.__new__(type(self)), self.__dataclass_fields__, object.__setattr__
        for name, value in [*self.__dict__.items()]:  # another thread may add a cached property
            if name in names:
                set_value(copy, name, value)  # copy.__dict__ would create a dict, another object per node
        set_value(copy, "source", source)
        return copy


@dataclass(frozen=True)
class GroupMetadata(NodeMetadata):
    """Metadata of a group."""


@dataclass(frozen=True)
class ArrayMetadata(NodeMetadata):
    """Metadata of an array.

    Attributes:
        shape: The shape of the array.
        dtype: The data type.
        write_chunks: The shape of stored values: shards, or chunks if the array is not sharded. Along an axis with
            listed sizes, the largest one.
        keys: The chunk key encoding.
        codecs: The codecs of a stored value.
        fill_value: The value of absent elements, or ``None`` if it is undefined (``null`` in v2).
        dimension_names: A name or ``None`` for each axis, or ``None`` if the array has no dimension names.
        edges: The listed sizes of stored values along each axis, or ``None`` for an axis with one size. ``None`` if all
            axes have one size.
        transformers: The storage transformers, starting with the one nearest to the array.
        notes: Messages for users who open the array.
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
        _ = self.grid  # raises an error if shape and chunks do not match
        if len(self.shape) > _MAX_AXES:
            raise MetadataError(
                f"arrays with {len(self.shape)} axes are not supported; the maximum, set by NumPy, is {_MAX_AXES}"
            )
        if math.prod(self.write_chunks) * max(self.dtype.numpy.itemsize, 1) >= _MAX_CHUNK:
            raise MetadataError(
                f"chunks of shape {self.write_chunks} and data type {self.dtype.name!r} are larger than any memory"
            )
        if self.dimension_names is not None and len(self.dimension_names) != len(self.shape):
            raise MetadataError(
                f"dimension_names must contain a string or None for each axis of shape {self.shape}, "
                f"found {list(self.dimension_names)}"
            )
        _ = self.chain  # raises an error if a codec does not support the chunks
        for shape in islice(self._edge_shapes(), _CHECKED_SHAPES):
            self.chain_of(shape)

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

    def _edge_shapes(self) -> Iterator[tuple[int, ...]]:
        """Yield the different shapes of stored values, if an axis has listed sizes."""
        if self.edges is not None:
            axes = zip(self.edges, self.write_chunks, strict=True)
            yield from product(*(sorted({largest, *(sizes or ())}) for sizes, largest in axes))

    @cached_property
    def read_grid(self) -> Grid:
        """The grid of chunks (inner chunks if the array is sharded), the smallest parts that can be read alone."""
        # Inner chunks have one size, which divides the sizes of shards.
        return grid_of(self.shape, self.chunks, self.edges if self._sharding is None else None)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of chunks (inner chunks if the array is sharded), the smallest parts that can be read alone."""
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
        """The shape of shards, or ``None`` if the array is not sharded."""
        return None if self._sharding is None else self.write_chunks

    @property
    def inner_codecs(self) -> CodecChain:
        """The codecs of chunks (inner chunks if the array is sharded)."""
        return self.codecs if self._sharding is None else self._sharding.codecs

    @property
    def _sharding(self) -> ShardingCodec | None:
        serializer = self.codecs.array_bytes
        return serializer if isinstance(serializer, ShardingCodec) else None

    @cached_property
    def chain(self) -> BoundChain:
        """The codecs bound to stored values."""
        return self.codecs.bind(self.spec)

    @cached_property
    def _chains(self) -> dict[tuple[tuple[int, ...], int], BoundChain]:
        return {}

    def chain_of(self, shape: tuple[int, ...], max_nbytes: int = 0) -> BoundChain:
        """Return the codecs bound to stored values of a shape.

        Args:
            shape: The shape.
            max_nbytes: The most bytes of a value in memory if its elements vary in size; 0 for the default.
        """
        if not self.dtype.is_variable:
            max_nbytes = 0  # sizes are known: one chain does for all limits
        if shape == self.write_chunks and not max_nbytes:
            return self.chain
        chain = self._chains.get((shape, max_nbytes))
        if chain is None:
            chain = self.codecs.bind(self.spec.replace(shape=shape, max_nbytes=max_nbytes))
            self._chains[shape, max_nbytes] = chain
        return chain

    @property
    def spec(self) -> ArraySpec:
        """The spec of stored values."""
        fill = self.dtype.default_fill() if self.fill_value is None else self.fill_value
        return ArraySpec(self.write_chunks, self.dtype, fill, self.fill_value is None)

    def with_layout(
        self, shape: tuple[int, ...], attributes: Mapping[str, Any], source: SourceDocuments | None
    ) -> ArrayMetadata:
        """Return an array on a regular grid that shares everything else with this one, also bound codecs."""
        copy = self.from_source(source)
        for name, value in (("shape", shape), ("attributes", freeze(attributes)), ("chain", self.chain)):
            object.__setattr__(copy, name, value)
        return copy

    def with_shape(self, shape: tuple[int, ...]) -> ArrayMetadata:
        """Return a copy with another shape. Along axes with listed sizes, new chunks have the size of the last one.

        Raises:
            ShapeError: If the shape has a different number of axes or a negative size.
        """
        if len(shape) != self.ndim or any(n < 0 for n in shape):
            raise ShapeError(
                f"cannot resize an array of shape {self.shape} to {shape}: "
                "the new shape must have one size of at least 0 for each axis",
                found=shape,
                wanted=self.shape,
            )
        if self.edges is None:
            return replace(self, shape=shape)
        for sizes, n in zip(self.edges, shape, strict=True):
            if sizes is not None and len(sizes) + max(n - sum(sizes), 0) // sizes[-1] > MAX_LISTED_CHUNKS:
                raise ShapeError(
                    f"cannot resize an axis with listed chunk sizes to {n} elements: that takes more than "
                    f"{MAX_LISTED_CHUNKS} chunks",
                    found=shape,
                )
        edges = tuple(
            None if sizes is None else sizes + (sizes[-1],) * -(-max(n - sum(sizes), 0) // sizes[-1])
            for sizes, n in zip(self.edges, shape, strict=True)
        )
        return replace(self, shape=shape, edges=edges)


# ------------------------------------------------------------------ read-only attributes


_MESSAGE = (
    "attributes are read-only here, because storing them takes a request; call `await node.update_attributes({...})`, "
    "or assign a whole value with `node.attrs[name] = value` in the synchronous API"
)


def _refuse(self: object, *args: Any, **kwargs: Any) -> Never:
    raise TypeError(_MESSAGE)


class FrozenDict(dict[str, Any]):
    """A read-only dict. It is equal to a plain dict with the same items. Copies and pickles are plain dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A read-only list. It is equal to a plain list with the same items. Copies and pickles are plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def freeze(value: Any) -> Any:
    """Return a JSON value with read-only dicts and lists at all levels."""
    if isinstance(value, dict):
        return value if type(value) is FrozenDict else FrozenDict({name: freeze(item) for name, item in value.items()})
    if isinstance(value, list):
        return value if type(value) is FrozenList else FrozenList([freeze(item) for item in value])
    return value
