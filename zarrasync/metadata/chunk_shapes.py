"""Shapes of chunks and shards from the parameters of a new array."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from zarrasync.errors import ShapeError
from zarrasync.model.chunk_grids import Edges, expand_sizes, guess_chunks

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
