"""Planning of blocks: regions of whole chunks, which can be written without reading existing data."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import cast

from zarrasync.indexing.regions import Region, clip
from zarrasync.model.chunk_grids import Grid, RegularAxis

__all__ = ["plan_blocks", "plan_chosen_blocks", "whole_block"]


def whole_block(grid: Grid, source_chunks: tuple[int, ...] | None, extent: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape of the smallest block of whole chunks that contains whole chunks of the source.

    Args:
        grid: The chunk grid of the array to write.
        source_chunks: The chunk shape of the source.
        extent: The lengths of the array, or of the region of it, that is cut into blocks.

    Returns:
        The shape; ``None`` if the grid is not regular or the source has no chunks.
    """
    chunk_shape = _regular_chunks(grid)
    if chunk_shape is None or source_chunks is None:
        return None
    return tuple(map(min, _source_limits(chunk_shape, source_chunks), extent))


def plan_blocks(
    grid: Grid,
    source_chunks: tuple[int, ...] | None,
    most: int,
    start: tuple[int, ...] | None = None,
    stop: tuple[int, ...] | None = None,
    least_count: int = 1,
) -> Iterator[Region]:
    """Cut an array, or a region of it, into blocks of whole chunks.

    Args:
        grid: The chunk grid of the array to write.
        source_chunks: The chunk shape of the source. If possible, blocks do not cut chunks of the source, so that each
            chunk is read once.
        most: The maximum number of elements of a block, unless a single chunk is larger.
        start: The start of the region along each axis. Default: the start of the array.
        stop: The end of the region along each axis. Default: the end of the array.
        least_count: The minimum number of blocks, if the region has that many chunks.
    """
    start = start or (0,) * len(grid.axes)
    stop = stop or tuple(axis.extent for axis in grid.axes)
    chunk_shape = _regular_chunks(grid)
    if chunk_shape is None:
        ends = [[axis.start(i) + axis.size(i) for i in range(axis.nchunks)] for axis in grid.axes]
        cuts = [_cut(a, b, axis_ends) for a, b, axis_ends in zip(start, stop, ends, strict=True)]
        return cast("Iterator[Region]", product(*cuts))
    extent = [b - a for a, b in zip(start, stop, strict=True)]

    def may_double(shape: Sequence[int], axis: int) -> bool:
        longer = [2 * size if number == axis else size for number, size in enumerate(shape)]
        count = math.prod(-(-total // size) for total, size in zip(extent, longer, strict=True))
        return math.prod(longer) <= most and count >= least_count

    whole = whole_block(grid, source_chunks, extent)
    if whole is not None and math.prod(whole) <= most:
        shape = _source_limits(chunk_shape, source_chunks)
    else:
        shape = _grow_to_source(chunk_shape, source_chunks, may_double)
    for axis in reversed(range(len(shape))):
        while shape[axis] < extent[axis] and may_double(shape, axis):
            shape[axis] *= 2
    cuts = [
        _cut(a, b, range(a // size * size + size, b + size, size))
        for a, b, size in zip(start, stop, shape, strict=True)
    ]
    return cast("Iterator[Region]", product(*cuts))


def plan_chosen_blocks(
    grid: Grid,
    chosen: Iterable[tuple[int, ...]],
    source_chunks: tuple[int, ...] | None,
    most: int,
    start: tuple[int, ...],
    stop: tuple[int, ...],
) -> Iterator[Region]:
    """Join chosen chunks into blocks. The time does not depend on the number of other chunks.

    Args:
        grid: The chunk grid of the array to write.
        chosen: The grid coordinates of the chunks.
        source_chunks: As for ``plan_blocks``.
        most: As for ``plan_blocks``.
        start: The start of the region along each axis.
        stop: The end of the region along each axis.
    """
    chunk_shape = _regular_chunks(grid)
    group_shape = [1] * len(grid.axes)  # in chunks
    if chunk_shape is not None:
        shape = _grow_to_source(chunk_shape, source_chunks, lambda shape, axis: 2 * math.prod(shape) <= most)
        group_shape = [size // chunk_size for size, chunk_size in zip(shape, chunk_shape, strict=True)]
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for coords in sorted(chosen):
        groups.setdefault(tuple(i // n for i, n in zip(coords, group_shape, strict=True)), []).append(coords)
    region = tuple(map(slice, start, stop))
    for group in groups.values():
        axes = list(zip(*group, strict=True))
        first, last = tuple(map(min, axes)), tuple(map(max, axes))
        is_box = len(group) == math.prod(b - a + 1 for a, b in zip(first, last, strict=True))
        boxes = [(first, last)] if is_box else zip(group, group, strict=True)
        yield from (clip(grid.box(a, b), region) for a, b in boxes)


def _regular_chunks(grid: Grid) -> tuple[int, ...] | None:
    """Return the chunk shape of a regular grid, or ``None`` for other grids."""
    sizes = tuple(axis.chunk for axis in grid.axes if isinstance(axis, RegularAxis))
    return sizes if len(sizes) == len(grid.axes) else None


def _grow_to_source(
    chunk_shape: Sequence[int],
    source_chunks: Sequence[int] | None,
    may_double: Callable[[Sequence[int], int], bool],
) -> list[int]:
    """Return the shape of blocks that contain whole chunks of the source, as far as ``may_double`` allows."""
    shape, limits = list(chunk_shape), _source_limits(chunk_shape, source_chunks)
    for axis in reversed(range(len(shape))):
        while shape[axis] < limits[axis] and may_double(shape, axis):
            shape[axis] = min(2 * shape[axis], limits[axis])
    return shape


def _source_limits(chunk_shape: Sequence[int], source_chunks: Sequence[int] | None) -> list[int]:
    """Return the multiples of the chunk's lengths that contain a chunk of the source."""
    return [max(-(-s // t) * t, t) for s, t in zip(source_chunks or chunk_shape, chunk_shape, strict=True)]


def _cut(start: int, stop: int, ends: Collection[int]) -> list[slice]:
    """Split a range at the given indices."""
    parts = []
    for end in ends:
        if end > start and start < stop:
            parts.append(slice(start, min(end, stop)))
            start = min(end, stop)
    return parts
