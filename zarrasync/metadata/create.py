"""From the parameters of a creating call to an array's metadata. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from inspect import signature
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zarrasync._util import json as _json
from zarrasync.codecs import ArraySpec, BytesCodec, Codec, ZstdCodec
from zarrasync.errors import MetadataError, NodeTypeError, ShapeError
from zarrasync.metadata.format import Format, RequestedCodecs
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model import dtypes, fill_values
from zarrasync.model.chunk_grids import Edges, expand_sizes, guess_chunks
from zarrasync.model.dtypes import DataType

__all__ = [
    "ChunksLike",
    "ShapeLike",
    "attributes_of",
    "check_axes",
    "check_options",
    "check_same",
    "chunk_shapes",
    "plan_array",
    "sizes_of",
]

ShapeLike = int | Iterable[int]
ChunksLike = int | Iterable[int | Iterable[int]]
"""One size for all axes, or for each axis one size or a list of sizes."""
CodecLike = Codec | str | Mapping[str, Any] | Any
_UNSET: Any = object()


def plan_array(
    format_: Format,
    *,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | DataType | None = None,
    data: npt.ArrayLike | None = None,
    chunks: ChunksLike | Literal["auto"] | bool | None = "auto",
    shards: ChunksLike | Literal["auto"] | None = None,
    filters: CodecLike | Sequence[CodecLike] | None = "auto",
    serializer: CodecLike = "auto",
    compressors: CodecLike | Sequence[CodecLike] | None = "auto",
    fill_value: Any = _UNSET,
    order: Literal["C", "F"] = "C",
    attributes: Mapping[str, Any] | None = None,
    chunk_key_encoding: Any = None,
    dimension_names: Sequence[str | None] | None = None,
) -> ArrayMetadata:
    """Settle everything that a creating call leaves open.

    Raises:
        ShapeError: If shapes, chunks and shards do not fit each other.
        MetadataError: If a type, codec or fill value is wrong.
        UnsupportedByFormat: If the format can not say it.
    """
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', found {order!r}")
    if data is not None:
        given = np.asarray(data)
        shape = given.shape if shape is None else shape
        dtype = _dtype_of(given) if dtype is None else dtype
    if shape is None:
        raise TypeError("an array needs a shape (or data)")
    sizes = sizes_of("shape", shape, 0)
    data_type = dtypes.from_numpy(np.float64 if dtype is None else dtype)
    if _is_auto(serializer):
        serializer = _in_order_of(dtype)
    itemsize = data_type.itemsize or 16
    stored = chunks if shards in (None, False) else shards
    edges = _edges(stored, sizes)
    if edges is not None:
        listed: Any = stored
        greatest = tuple(max(own) if own else n for own, n in zip(edges, listed, strict=True))
        chunks, shards = (greatest, shards) if stored is chunks else (chunks, greatest)
    inner, outer = chunk_shapes(sizes, itemsize, chunks, shards)
    fill = data_type.default_fill() if fill_value is _UNSET else fill_values.as_fill(data_type, fill_value)
    fill = format_.fill_value(data_type, fill)
    spec = ArraySpec(outer, data_type, data_type.default_fill() if fill is None else fill)
    wanted = RequestedCodecs(
        () if _is_auto(filters) else _listed(filters),
        serializer,
        (ZstdCodec(level=0),) if _is_auto(compressors) else _listed(compressors),
        order,
        inner if shards not in (None, False) else None,
    )
    if dimension_names is not None:
        named = all(name is None or isinstance(name, str) for name in dimension_names)
        if isinstance(dimension_names, str) or not named or len(dimension_names) != len(sizes):
            raise MetadataError(
                f"dimension_names {dimension_names!r} must have one entry per axis of shape {sizes}, a name or None"
            )
    return ArrayMetadata(
        sizes,
        data_type,
        outer,
        format_.key_encoding(chunk_key_encoding, len(sizes)),
        format_.chain(wanted, spec),
        fill,
        None if dimension_names is None else tuple(dimension_names),
        edges,
        attributes=attributes_of(attributes),
    )


def _in_order_of(dtype: Any) -> Any:
    """The serializer that keeps the byte order of a dtype which is not this machine's."""
    try:
        given = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return "auto"  # a name of Zarr's
    if given.kind in "TO" or given.isnative:
        return "auto"
    return BytesCodec(None, dtypes.packed(given))


def _dtype_of(given: npt.NDArray[Any]) -> Any:
    if given.dtype.kind == "O" and given.size:
        first = given.reshape(-1)[0]
        return bytes if isinstance(first, bytes) else str if isinstance(first, str) else given.dtype
    return str if given.dtype.kind == "T" else given.dtype


@cache
def _parameters() -> tuple[str, ...]:
    return tuple(name for name, p in signature(plan_array).parameters.items() if p.kind is p.KEYWORD_ONLY)


def check_options(options: Iterable[str]) -> None:
    """Complain about a name that is no parameter of a creating call.

    Raises:
        TypeError: Names the parameter that was probably meant.
    """
    for name in options:
        known = _parameters()
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the parameters are {', '.join(known)}"
            raise TypeError(f"creating an array takes no parameter {name!r}; {hint}")


def check_same(present: ArrayMetadata, name: str, **options: Any) -> None:
    """Complain if an array that is there is not the one that parameters of a creating call describe.

    Its sizes may differ: it may have been appended to since it was created with these parameters.

    Raises:
        ShapeError: If the number of axes, chunks or shards differ.
        NodeTypeError: If the data type differs.
    """
    shape = options.get("shape")
    if shape is not None and len(sizes := sizes_of("shape", shape, 0)) != present.ndim:
        raise ShapeError(f"{name} is there with shape {present.shape}, not {sizes}", found=present.shape, wanted=sizes)
    for what, own in (("chunks", present.chunks), ("shards", present.shards)):
        given = options.get(what)
        if given is None or isinstance(given, bool) or _is_auto(given) or _edges(given, present.shape) is not None:
            continue
        wanted = _expand(what, given, present.shape)
        if wanted != own:
            raise ShapeError(f"{name} is there with {what} {own}, not {wanted}", found=own or (), wanted=wanted)
    if options.get("dtype") is not None:
        data_type = dtypes.from_numpy(options["dtype"])
        if data_type.numpy != present.dtype.numpy:
            raise NodeTypeError(f"{name} is there with data type {present.dtype.name}, not {data_type.name}")


def check_axes(what: str, given: Any, numbers: Iterable[int]) -> None:
    """Complain about a shape that none of several arrays has axes for.

    Raises:
        ShapeError: If each of them, of which there is one at least, has another number of axes.
    """
    counts = set(numbers)
    if isinstance(given, list | tuple) and counts and len(given) not in counts:
        found = ", ".join(map(str, sorted(counts)))
        raise ShapeError(f"{what} {tuple(given)} do not fit arrays of {found} dimensions", found=tuple(given))


def attributes_of(value: Any) -> dict[str, Any]:
    """Attributes as a user gives them, in the form in which they will be read back.

    Raises:
        MetadataError: If they are no mapping from names to values, or JSON can not say one.
    """
    if value is not None and not isinstance(value, Mapping):
        raise MetadataError(f"attributes are a mapping from names to values, found {value!r}")
    given = dict(value or {})
    try:
        _json.dump(given)
    except MetadataError:
        for name, item in given.items():
            try:
                _json.dump({name: item})
            except MetadataError as error:
                why = error.__cause__ or error
                raise MetadataError(f"the attribute {name!r} can not be written as JSON: {why}") from error
        raise
    return dict(_json.to_plain(given))


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _listed(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def sizes_of(what: str, value: Any, least: int) -> tuple[int, ...]:
    """Integers that are given as one or several of them.

    Raises:
        ShapeError: If they are none, or one is less than the least.
    """
    try:
        if isinstance(value, str):
            raise TypeError
        sizes = (
            (operator.index(value),) if isinstance(value, int | np.integer) else tuple(operator.index(n) for n in value)
        )
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what} is an integer or a sequence of integers, found {value!r}") from error
    if any(n < least for n in sizes):
        raise ShapeError(f"{what} {sizes}: sizes are at least {least}", found=sizes)
    return sizes


def chunk_shapes(
    shape: tuple[int, ...], itemsize: int, chunks: Any, shards: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of inner chunks and of stored values (the same without shards)."""
    if chunks is None or chunks is False:
        inner = tuple(max(n, 1) for n in shape)
    elif _is_auto(chunks) or chunks is True:
        # Parts of a shard are read alone, so they may be small; a chunk of its own costs a request.
        inner = guess_chunks(shape, itemsize, (4 << 20) if shards is None else (256 << 10))
    else:
        inner = _expand("chunks", chunks, shape)
    if shards is None or shards is False:
        return inner, inner
    outer = (
        _auto_shards(shape, inner, itemsize) if _is_auto(shards) or shards is True else _expand("shards", shards, shape)
    )
    if _is_auto(chunks) or chunks is True:
        inner = tuple(_divisor(n, c) for n, c in zip(outer, inner, strict=True))
    if any(n % c for n, c in zip(outer, inner, strict=True)):
        raise ShapeError(
            f"shards {outer} must be multiples of chunks {inner} along each axis", found=outer, wanted=inner
        )
    return inner, outer


def _edges(value: Any, shape: tuple[int, ...]) -> Edges | None:
    """The sizes of chunks along each axis, where they are listed: ``[[10, 20, 30], 5]``; none for the one size of an axis."""
    if not isinstance(value, list | tuple) or not any(isinstance(item, list | tuple) for item in value):
        return None
    if len(value) != len(shape):
        raise ShapeError(f"chunks {value!r} has {len(value)} axes, the shape {shape} has {len(shape)}", wanted=shape)
    try:
        return tuple(expand_sizes(own) if isinstance(own, list | tuple) else None for own in value)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"chunks {value!r}: a list of sizes per axis, or one size: {error}") from error


def _expand(what: str, value: ShapeLike, shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes = sizes_of(what, value, 1 if what == "shards" else -1)
    if isinstance(value, int | np.integer):
        sizes = sizes * len(shape)
    if len(sizes) != len(shape):
        raise ShapeError(
            f"{what} {sizes} has {len(sizes)} dimensions, the shape {shape} has {len(shape)}", found=sizes, wanted=shape
        )
    sizes = tuple(max(extent, 1) if n == -1 else n for n, extent in zip(sizes, shape, strict=True))
    if any(n < 1 for n in sizes):
        raise ShapeError(f"{what} {sizes}: each axis needs at least 1 element", found=sizes)
    return sizes


def _auto_shards(shape: tuple[int, ...], inner: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Shards of about 64 MiB: the chunk is doubled along the axis it covers least of."""
    outer = list(inner)
    while np.prod(outer, dtype=np.float64) * itemsize * 2 <= 64 << 20:
        room = [axis for axis in range(len(outer)) if outer[axis] < shape[axis]]
        if not room:
            break
        axis = min(room, key=lambda axis: outer[axis] / shape[axis])
        outer[axis] *= 2
    return tuple(outer)


def _divisor(size: int, wanted: int) -> int:
    """The divisor of a size that comes nearest to what is wanted, from below; all of it if none comes near."""
    found = next(n for n in range(min(wanted, size), 0, -1) if size % n == 0)
    return found if 4 * found >= min(wanted, size) else size
