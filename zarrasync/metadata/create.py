"""Metadata of a new array from the parameters of ``create_array``, among them the shapes of its chunks and shards."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from inspect import signature
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zarrasync._util import json as _json
from zarrasync._util.advice import suggest
from zarrasync.codecs import ArraySpec, BytesCodec, Codec, ZstdCodec
from zarrasync.errors import MetadataError, NodeTypeError, ShapeError
from zarrasync.metadata.format import Format, RequestedCodecs
from zarrasync.metadata.node_metadata import ArrayMetadata
from zarrasync.model import dtypes, fill_values
from zarrasync.model.chunk_grids import Edges, expand_sizes, guess_chunks
from zarrasync.model.dtypes import DataType, packed

CodecLike = Codec | str | Mapping[str, Any] | Any
_REMEDY = "; omit the parameter to use the existing array, or pass mode='w' to replace it"


class _Default(Enum):
    """The type of ``DEFAULT``, which help() shows by its name."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return self.name


DEFAULT: Any = _Default.DEFAULT
"""The default of parameters that accept ``None`` as a value."""


def plan_array(
    format_: Format,
    *,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | DataType | None = None,
    data: npt.ArrayLike | None = None,
    chunks: ChunksLike | Literal["auto"] | bool | None = "auto",
    shards: ShardsLike | Literal["auto"] | None = None,
    filters: CodecLike | Sequence[CodecLike] | None = "auto",
    serializer: CodecLike = "auto",
    compressors: CodecLike | Sequence[CodecLike] | None = "auto",
    fill_value: Any = DEFAULT,
    order: Literal["C", "F"] = "C",
    attributes: Mapping[str, Any] | None = None,
    chunk_key_encoding: Any = None,
    dimension_names: Sequence[str | None] | None = None,
) -> ArrayMetadata:
    """Return the metadata of a new array, with defaults for parameters that are not specified.

    Raises:
        ShapeError: If the shapes of the array, its chunks and its shards are inconsistent.
        MetadataError: If the data type, a codec or the fill value is invalid.
        UnsupportedByFormat: If the format does not support a parameter.
    """
    if order not in ("C", "F"):
        raise ValueError(f"order must be 'C' or 'F', found {order!r}")
    if data is not None:
        values = _as_values(data)
        shape = values.shape if shape is None else shape
        dtype = _dtype_of(values) if dtype is None else dtype
    if shape is None:
        raise TypeError("a new array needs shape or data")
    array_shape = parse_sizes("shape", shape, 0)
    shards, index_location = split_shards(shards)
    data_type = _type_of_objects(dtypes.from_numpy(np.float64 if dtype is None else dtype), filters)
    if is_auto(serializer):
        serializer = _serializer_of(dtype)
    has_shards = shards is not None and shards is not False
    stored_chunks = shards if has_shards else chunks
    edges = listed_edges(stored_chunks, array_shape)
    if edges is not None:
        sizes: Any = stored_chunks
        largest = tuple(max(own_sizes) if own_sizes else n for own_sizes, n in zip(edges, sizes, strict=True))
        chunks, shards = (chunks, largest) if has_shards else (largest, shards)
    inner, outer = plan_chunk_shapes(array_shape, data_type.itemsize or 16, chunks, shards)
    fill = data_type.default_fill() if fill_value is DEFAULT else fill_values.as_fill(data_type, fill_value)
    fill = format_.fill_value(data_type, fill)
    spec = ArraySpec(outer, data_type, data_type.default_fill() if fill is None else fill)
    requested = RequestedCodecs(
        () if is_auto(filters) else _as_tuple(filters),
        serializer,
        (ZstdCodec(level=0),) if is_auto(compressors) else _as_tuple(compressors),
        order,
        inner if has_shards else None,
        index_location,
    )
    _check_dimension_names(dimension_names, array_shape)
    return ArrayMetadata(
        array_shape,
        data_type,
        outer,
        format_.key_encoding(chunk_key_encoding),
        format_.chain(requested, spec),
        fill,
        None if dimension_names is None else tuple(dimension_names),
        edges,
        attributes=checked_attributes(attributes),
    )


def _serializer_of(dtype: Any) -> Any:
    """Return a serializer with the byte order of a dtype, or ``"auto"`` if the byte order is native."""
    try:
        numpy_dtype = np.dtype(dtype.to_native_dtype() if hasattr(dtype, "to_native_dtype") else dtype)
    except (TypeError, ValueError, SyntaxError):
        return "auto"  # a data type that only Zarr defines
    if numpy_dtype.kind in "TO" or numpy_dtype.isnative:
        return "auto"
    return BytesCodec(None, packed(numpy_dtype))


def _as_values(data: Any) -> npt.NDArray[Any]:
    """Return data as an array.

    Raises:
        TypeError: If it is a generator, a set or another iterable that NumPy takes for a single object.
    """
    values = np.asarray(data)
    is_object = values.dtype == object and not values.ndim and not hasattr(data, "__array__")
    if is_object and isinstance(data, Iterable) and not isinstance(data, Mapping):
        raise TypeError(f"data is an array or nested lists of values, found {type(data).__name__}; pass list(data)")
    return values


def _type_of_objects(data_type: DataType, filters: Any) -> DataType:
    """Return strings or bytes for objects whose filter stores such values, as zarr-python 2 declares them."""
    if data_type != dtypes.OBJECT or is_auto(filters):
        return data_type
    first: Any = next(iter(_as_tuple(filters)), None)
    config = first.get_config() if hasattr(first, "get_config") else first
    kind = config.get("id") if isinstance(config, Mapping) else None
    return {"vlen-utf8": dtypes.STRING, "vlen-bytes": dtypes.BYTES}.get(str(kind), data_type)


def _dtype_of(values: npt.NDArray[Any]) -> Any:
    """Return the dtype of values, or ``str`` or ``bytes`` for an object array of such values."""
    if values.dtype.kind == "O" and values.size:
        first = values.reshape(-1)[0]
        return bytes if isinstance(first, bytes) else str if isinstance(first, str) else values.dtype
    return str if values.dtype.kind == "T" else values.dtype


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _check_dimension_names(names: Any, shape: tuple[int, ...]) -> None:
    if names is None:
        return
    if not isinstance(names, Sequence):
        raise MetadataError(f"dimension_names is a sequence with one entry per axis, found {names!r}")
    are_names = all(name is None or isinstance(name, str) for name in names)
    if isinstance(names, str) or not are_names or len(names) != len(shape):
        raise MetadataError(
            f"dimension_names must contain a string or None for each axis of shape {shape}, found {names!r}"
        )


# -------------------------------------------------------------- checks of parameters


@cache
def array_parameters() -> tuple[str, ...]:
    """Return the names of the parameters of new arrays."""
    return tuple(name for name, p in signature(plan_array).parameters.items() if p.kind is p.KEYWORD_ONLY)


def check_options(options: Iterable[str]) -> None:
    """Check the names of keyword arguments.

    Raises:
        TypeError: If a name is not a parameter of ``create_array``. The message suggests a similar name.
    """
    for name in options:
        parameters = array_parameters()
        if name not in parameters:
            hint = suggest(name, parameters, f"the parameters are {', '.join(parameters)}")
            raise TypeError(f"unknown parameter {name!r} for a new array; {hint}")


def check_matches(existing: ArrayMetadata, name: str, **options: Any) -> None:
    """Check that an existing array matches the parameters of ``create_array``.

    The sizes of its axes may differ, because it may have grown since it was created with these parameters.

    Args:
        existing: The metadata of the existing array.
        name: The name of the array, for messages.
        **options: The parameters.

    Raises:
        ShapeError: If the array has a different number of axes, or different chunks or shards.
        NodeTypeError: If the array has a different data type.
    """
    shape = options.get("shape")
    if shape is not None and len(sizes := parse_sizes("shape", shape, 0)) != existing.ndim:
        message = f"{name} exists with shape {existing.shape}, not {sizes}{_REMEDY}"
        raise ShapeError(message, found=existing.shape, wanted=sizes)
    for parameter, existing_sizes in (("chunks", existing.chunks), ("shards", existing.shards)):
        value = options.get(parameter)
        value = split_shards(value)[0] if parameter == "shards" else value
        if value is None or isinstance(value, bool) or is_auto(value):
            continue
        if listed_edges(value, existing.shape) is not None:
            continue
        sizes = chunk_shape_of(parameter, value, existing.shape)
        if sizes != existing_sizes:
            message = f"{name} exists with {parameter} {existing_sizes}, not {sizes}{_REMEDY}"
            raise ShapeError(message, found=existing_sizes or (), wanted=sizes)
    if options.get("dtype") is not None:
        data_type = dtypes.from_numpy(options["dtype"])
        if data_type.numpy != existing.dtype.numpy:
            raise NodeTypeError(
                f"{name} exists with data type {existing.dtype.name}, not {data_type.name}{_REMEDY}",
                found=existing.dtype.name,
                wanted=data_type.name,
            )


def check_axis_count(parameter: str, value: Any, axis_counts: Iterable[int]) -> None:
    """Check that at least one of several arrays has the number of axes of a shape.

    Args:
        parameter: The name of the parameter, for messages.
        value: The shape. Values that are not a list or tuple are not checked.
        axis_counts: The number of axes of each array.

    Raises:
        ShapeError: If no array has the number of axes of the shape.
    """
    counts = set(axis_counts)
    if isinstance(value, list | tuple) and counts and len(value) not in counts:
        dimensions = ", ".join(map(str, sorted(counts)))
        raise ShapeError(
            f"{parameter} {tuple(value)} must have a size for each axis, but the arrays have {dimensions} dimensions",
            found=tuple(value),
        )


def checked_attributes(value: Any) -> dict[str, Any]:
    """Return attributes as a reader will get them.

    Raises:
        MetadataError: If the attributes are not a mapping from names to values that JSON can represent.
    """
    if value is not None and not isinstance(value, Mapping):
        raise MetadataError(f"attributes must be a mapping from names to values, found {value!r}")
    attributes = dict(value or {})
    try:
        _json.dump(attributes)
    except MetadataError:
        for name, item in attributes.items():
            try:
                _json.dump({name: item})
            except MetadataError as error:
                reason = error.__cause__ or error
                message = f"the attribute {name!r} cannot be written as JSON: {reason}; use strings, numbers, lists and mappings"
                raise MetadataError(message) from None
        raise
    return dict(_json.to_plain(attributes))


# ------------------------------------------------------------------ shapes of chunks and shards


ShapeLike = int | Iterable[int]
ChunksLike = int | Iterable[int | Iterable[int]]
"""One size for all axes, or for each axis one size or a list of sizes."""
ShardsLike = ChunksLike | Mapping[str, Any]
"""A shape, or a mapping with a shape and the location of the index."""

_CHUNK_BYTES, _INNER_CHUNK_BYTES = 4 << 20, 256 << 10
"""Target sizes in bytes. Inner chunks may be small, because one shard contains many. Other chunks take a request each."""
_SHARD_BYTES = 64 << 20


def is_auto(value: Any) -> bool:
    """Return whether a parameter is ``"auto"``."""
    return isinstance(value, str) and value == "auto"


def parse_sizes(parameter: str, value: Any, least: int) -> tuple[int, ...]:
    """Return an integer or a sequence of integers as a tuple.

    Args:
        parameter: The name of the parameter, for messages.
        value: The value of the parameter.
        least: The smallest allowed integer.

    Raises:
        ShapeError: If the value is neither an integer nor a sequence of integers, or an integer is too small.
    """
    try:
        if isinstance(value, str):
            raise TypeError
        sizes = (
            (operator.index(value),) if isinstance(value, int | np.integer) else tuple(operator.index(n) for n in value)
        )
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{parameter} must be an integer or a sequence of integers, found {value!r}") from error
    if any(n < least for n in sizes):
        raise ShapeError(f"{parameter} must be at least {least} along each axis, found {sizes}", found=sizes)
    return sizes


def split_shards(shards: Any) -> tuple[Any, str]:
    """Return the shape of shards and the location of their index.

    Args:
        shards: A shape, or a mapping ``{"shape": ..., "index_location": "start"}`` as in zarr-python.

    Raises:
        ShapeError: If the mapping has no shape, or has unknown members.
    """
    if not isinstance(shards, Mapping):
        return shards, "end"
    if "shape" not in shards or shards.keys() - {"shape", "index_location"}:
        raise ShapeError(
            f"shards must be a shape or a mapping with 'shape' and 'index_location', found {dict(shards)!r}"
        )
    return shards["shape"], shards.get("index_location", "end")


def plan_chunk_shapes(
    shape: tuple[int, ...], itemsize: int, chunks: Any, shards: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of inner chunks and of stored values. Without shards they are equal.

    Args:
        shape: The array's shape.
        itemsize: The size of an element in bytes.
        chunks: The shape of chunks. ``"auto"`` or ``True``: chosen by size; ``None`` or ``False``: a single chunk.
        shards: The shape of shards. ``"auto"`` or ``True``: chosen by size; ``None`` or ``False``: no shards.

    Raises:
        ShapeError: If a shape is invalid, or shards are not multiples of chunks.
    """
    if chunks is None or chunks is False:
        inner = tuple(max(n, 1) for n in shape)
    elif is_auto(chunks) or chunks is True:
        inner = guess_chunks(shape, itemsize, _CHUNK_BYTES if shards is None else _INNER_CHUNK_BYTES)
    else:
        inner = chunk_shape_of("chunks", chunks, shape)
    if shards is None or shards is False:
        return inner, inner
    if is_auto(shards) or shards is True:
        outer = _auto_shards(shape, inner, itemsize)
    else:
        outer = chunk_shape_of("shards", shards, shape)
    if is_auto(chunks) or chunks is True:
        inner = tuple(_near_divisor(n, c) for n, c in zip(outer, inner, strict=True))
    if any(n % c for n, c in zip(outer, inner, strict=True)):
        raise ShapeError(
            f"shards {outer} must be multiples of chunks {inner} along each axis", found=outer, wanted=inner
        )
    return inner, outer


def listed_edges(value: Any, shape: tuple[int, ...]) -> Edges | None:
    """Return the listed sizes of chunks along each axis, as in ``[[10, 20, 30], 5]``.

    The result is ``None`` for axes with one size, and ``None`` if no axis has a list of sizes.

    Raises:
        ShapeError: If the lists do not match the shape.
    """
    if not isinstance(value, list | tuple) or not any(isinstance(item, list | tuple) for item in value):
        return None
    if len(value) != len(shape):
        raise ShapeError(f"chunks {value!r} must have one entry for each axis of shape {shape}", wanted=shape)
    try:
        return tuple(expand_sizes(item) if isinstance(item, list | tuple) else None for item in value)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"chunks {value!r} must contain a size or a list of sizes for each axis: {error}") from error


def chunk_shape_of(parameter: str, value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of chunks or shards for a parameter: one size, or a size for each axis. -1 means a whole axis.

    Raises:
        ShapeError: If the parameter does not match the shape.
    """
    sizes = parse_sizes(parameter, value, 1 if parameter == "shards" else -1)
    if isinstance(value, int | np.integer):
        sizes = sizes * len(shape)
    if len(sizes) != len(shape):
        raise ShapeError(
            f"{parameter} {sizes} must have one size for each axis of shape {shape}",
            found=sizes,
            wanted=shape,
        )
    sizes = tuple(max(extent, 1) if n == -1 else n for n, extent in zip(sizes, shape, strict=True))
    if any(n < 1 for n in sizes):
        raise ShapeError(
            f"{parameter} must be at least 1 along each axis, or -1 for a whole axis; found {sizes}", found=sizes
        )
    return sizes


def _auto_shards(shape: tuple[int, ...], inner: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a shape of at most 64 MiB: the chunk's, doubled repeatedly along the axis that it covers least of."""
    outer = list(inner)
    while np.prod(outer, dtype=np.float64) * itemsize * 2 <= _SHARD_BYTES:
        growing = [axis for axis in range(len(outer)) if outer[axis] < shape[axis]]
        if not growing:
            break
        axis = min(growing, key=lambda axis: outer[axis] / shape[axis])
        outer[axis] *= 2
    return tuple(outer)


def _near_divisor(size: int, target: int) -> int:
    """Return the largest divisor of a size up to a target. If it is below a quarter of the target, return the size."""
    limit = min(target, size)
    divisor = next(n for n in range(limit, 0, -1) if size % n == 0)
    return divisor if 4 * divisor >= limit else size
