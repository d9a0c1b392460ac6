"""The cuts of a selector along one axis of a chunk grid: the touched chunks, and the touched elements of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.projection import IntArray, Selector, reorder
from zarrasync.model.chunk_grids import GridAxis, ListedAxis, RegularAxis

Touched: TypeAlias = range | IntArray
"""Distinct chunk numbers along an axis in ascending order."""


# ------------------------------------------------------------------ touched chunks


def touched(selector: Selector, axis: GridAxis) -> Touched:
    """Return the chunks that a selector touches, in constant time if a slice touches all chunks in its range."""
    if not isinstance(selector, slice):
        return np.unique(axis.find_all(selector))
    start, step = selector.start, selector.step or 1
    count = len(range(start, selector.stop, step))
    last = start + (count - 1) * step
    if not count:
        return range(0)
    if isinstance(axis, RegularAxis):  # the arithmetic is inlined, because most reads pass through this branch
        size = axis.chunk
        if step <= size:
            return range(start // size, last // size + 1)
        return np.arange(start, last + 1, step) // size  # each index lies in a different chunk
    chunks = range(axis.find(start), axis.find(last) + 1)
    if step == 1:
        return chunks
    numbers: IntArray = np.asarray(chunks, np.int64)
    begins = axis.start_all(numbers)
    ends = np.minimum(begins + sizes_of(numbers, axis), last + 1)
    # The first index of the slice at or after the start of a chunk lies in the chunk, unless the slice skips the chunk.
    firsts = start + -(-np.maximum(begins - start, 0) // step) * step
    matches: IntArray = numbers[firsts < ends]
    return matches


def count_touched(selector: Selector, axis: GridAxis) -> tuple[int, int]:
    """Return the number of touched chunks and of the elements that they store. Does not list chunks of regular axes."""
    if not isinstance(selector, slice) or not isinstance(axis, RegularAxis):
        chunks = touched(selector, axis)
        return len(chunks), int(sizes_of(chunks, axis).sum())
    step = selector.step or 1
    # If the step exceeds the chunk size, each index lies in a different chunk.
    count = len(touched(selector, axis) if step <= axis.chunk else range(selector.start, selector.stop, step))
    return count, count * axis.chunk


def partly_touched(selector: Selector, axis: GridAxis) -> Collection[int]:
    """Return the chunks of which some, but not all, elements inside the array are touched."""
    if not isinstance(selector, slice):
        chunks, counts = np.unique(axis.find_all(np.unique(selector)), return_counts=True)
        return set(chunks[counts < sizes_inside(chunks, axis)].tolist())
    numbers = touched(selector, axis)
    if not len(numbers):
        return ()
    if (selector.step or 1) > 1:  # at most every second element is touched
        return set(np.asarray(numbers)[sizes_inside(numbers, axis) > 1].tolist())
    first, last = int(numbers[0]), int(numbers[-1])
    partial = {first} if selector.start > axis.start(first) else set()
    if selector.stop < min(axis.start(last) + axis.size(last), axis.extent):
        partial.add(last)
    return partial


def numbers_of(chunks: Touched) -> Sequence[int]:
    """Return the numbers of chunks as Python integers."""
    return chunks if isinstance(chunks, range) else cast("list[int]", chunks.tolist())


def sizes_of(chunks: Touched, axis: GridAxis) -> IntArray:
    """Return the stored sizes of chunks, which may extend beyond the end of the array."""
    if isinstance(axis, ListedAxis):
        return np.asarray(axis.edges, np.int64)[np.asarray(chunks, np.int64)]
    return np.full(len(chunks), axis.size(0), np.int64)


def sizes_inside(chunks: Touched, axis: GridAxis) -> IntArray:
    """Return the sizes of the parts of chunks that lie inside the array."""
    begins = axis.start_all(np.asarray(chunks, np.int64))
    sizes: IntArray = np.minimum(begins + sizes_of(chunks, axis), axis.extent) - begins
    return sizes


# ------------------------------------------------------------------ cuts


@dataclass(frozen=True, slots=True, eq=False)
class AxisCuts:
    """A selector along an axis, cut at the boundaries of chunks. Each attribute is a column with one entry per cut.

    For example, the slice ``3:9`` along chunks of 4 elements, with the target ``0:6``, has the columns::

        chunks   [0,            1,            2]
        sources  [slice(3, 4),  slice(0, 4),  slice(0, 1)]
        targets  [slice(0, 1),  slice(1, 5),  slice(5, 6)]
        is_full  [False,        True,         False]
        counts   [1,            1,            1]

    Attributes:
        chunks: The number of the chunk, or of the first chunk of a run.
        sources: The indices inside the chunk. All chunks of a run have the same source.
        targets: The destination of these indices. In a run, the targets of later chunks follow the first chunk's.
        is_full: Whether the cut contains all indices of the chunk that lie inside the array, in order.
        counts: The number of chunks: more than 1 for a run.
    """

    chunks: Sequence[int]
    sources: Sequence[Selector]
    targets: Sequence[Selector]
    is_full: Sequence[bool]
    counts: Sequence[int]


def cut_axis(selector: Selector, target: Selector, axis: GridAxis, longest: int = 1) -> AxisCuts:
    """Cut a source selector at the boundaries of chunks.

    For example, the slice ``0:12`` along chunks of 4 becomes a single cut with the chunk 0, the source ``0:4``, the target
    ``0:4`` and the count 3, if runs may be that long.

    Args:
        selector: The source indices along the axis.
        target: The destination of these indices.
        axis: The axis of the chunk grid.
        longest: The maximum number of neighbouring chunks with equal sources to join into a run, if the axis is regular, and
            selector and target are slices.
    """
    if not isinstance(selector, slice):
        return _cut_indices(selector, target, axis)
    chunks = touched(selector, axis)
    start, step, extent = selector.start, selector.step, axis.extent
    last = start + (len(range(start, selector.stop, step)) - 1) * step
    is_joined = longest > 1 and len(chunks) > 1 and isinstance(target, slice) and target.step == 1
    if is_joined and isinstance(axis, RegularAxis) and isinstance(chunks, range) and axis.chunk % step == 0:
        chunks, counts = _join(chunks, start % axis.chunk < step, last + step >= chunks.stop * axis.chunk, longest)
    else:
        counts = [1] * len(chunks)
    sources: list[Selector] = []
    is_full: list[bool] = []
    places: list[tuple[int, int]] = []
    position = 0
    for (begin, size), chunk_count in zip(_extents(chunks, axis), counts, strict=True):
        end = min(extent, begin + size)
        first = start + position * step
        count = ((last if last < end else end - 1) - first) // step + 1
        sources.append(slice(first - begin, first - begin + (count - 1) * step + 1, step))
        is_full.append(count == end - begin and step == 1)
        places.append((position, position + count))
        position += count * chunk_count
    return AxisCuts(numbers_of(chunks), sources, _cut_target(target, places), is_full, counts)


def _join(chunks: range, first_is_equal: bool, last_is_equal: bool, longest: int) -> tuple[IntArray, list[int]]:
    """Return the first chunk of each run, and the number of its chunks.

    The first chunk and the last one are separate runs if their sources differ from the sources of the chunks between.
    """
    begin = chunks.start + (not first_is_equal)
    end = max(begin, chunks.stop - (not last_is_equal))
    edges = [*chunks[: begin - chunks.start], *range(begin, end, longest), *chunks[end - chunks.start :], chunks.stop]
    return np.array(edges[:-1], np.int64), [after - before for before, after in pairwise(edges)]


def _extents(chunks: Touched, axis: GridAxis) -> Iterable[tuple[int, int]]:
    """Return the first index and the size of each chunk."""
    if isinstance(chunks, range) and isinstance(axis, RegularAxis):
        size = axis.chunk
        return zip(range(chunks.start * size, chunks.stop * size, size), repeat(size), strict=False)
    begins = axis.start_all(np.asarray(chunks, np.int64))
    return zip(begins.tolist(), sizes_of(chunks, axis).tolist(), strict=True)


def _cut_indices(indices: IntArray, target: Selector, axis: GridAxis) -> AxisCuts:
    """Implement ``cut_axis`` for an index array."""
    groups = group_points([axis], [indices], target)
    edges, inside = groups.edges.tolist(), groups.indices[0]
    count = len(groups.chunks)
    return AxisCuts(
        groups.chunks[:, 0].tolist(),
        [inside[start:stop] for start, stop in pairwise(edges)],
        _cut_target(groups.target, list(pairwise(edges))),
        [False] * count,
        [1] * count,
    )


def _cut_target(target: Selector, cuts: Sequence[tuple[int, int]]) -> list[Selector]:
    """Return the parts of a target between positions."""
    if not isinstance(target, slice):
        return [target[begin:end] for begin, end in cuts]
    start, step = target.start, target.step
    return [
        slice(start + begin * step, stop if (stop := start + end * step) >= 0 else None, step) for begin, end in cuts
    ]


class PointGroups(NamedTuple):
    """Points ordered by chunk.

    For example, the points 1, 9, 2 along chunks of 4 elements, with the targets 0, 1, 2, have the columns::

        chunks   [[0], [2]]
        edges    [0, 2, 3]
        indices  [[1, 2, 1]]
        target   [0, 2, 1]

    Attributes:
        chunks: The distinct coordinates of the chunks along the axes of the points, of shape (chunks, axes).
        edges: The position of the first point of each chunk, then the number of points, of shape (chunks + 1,).
        indices: The indices of the points inside their chunks, along each axis.
        target: The destination of the points.
    """

    chunks: IntArray
    edges: IntArray
    indices: list[IntArray]
    target: Selector


def group_points(axes: Sequence[GridAxis], indices: Sequence[IntArray], target: Selector) -> PointGroups:
    """Group points by chunk, in ascending order of chunks. Points of the same chunk keep their order.

    Args:
        axes: The axes of the points.
        indices: The indices of the points along each axis.
        target: The destination of the points.
    """
    coords = [axis.find_all(values) for axis, values in zip(axes, indices, strict=True)]
    numbers, count = _number_chunks(coords, [axis.nchunks for axis in axes])
    order, edges = _sort_chunks(numbers, count)
    inside = [values - axis.start_all(chunks) for values, axis, chunks in zip(indices, axes, coords, strict=True)]
    firsts = edges[:-1]
    if order is not None:
        inside, firsts = [values[order] for values in inside], order[firsts]
        target = reorder(target, order)
    return PointGroups(np.stack([chunks[firsts] for chunks in coords], axis=1), edges, inside, target)


def _number_chunks(coords: Sequence[IntArray], counts: Sequence[int]) -> tuple[IntArray, int]:
    """Return a number for each chunk from its coordinates, and an upper bound of the numbers.

    Args:
        coords: The coordinates of the chunks along each axis.
        counts: The number of chunks along each axis.
    """
    if math.prod(counts) >= 1 << 63:  # number only the coordinates that occur, so that the product fits into 64 bits
        pairs = [np.unique(chunks, return_inverse=True) for chunks in coords]
        coords, counts = [np.asarray(inverse) for _, inverse in pairs], [len(names) for names, _ in pairs]
    numbers = coords[0]
    for chunks, count in zip(coords[1:], counts[1:], strict=True):
        numbers = numbers * count + chunks
    return numbers, math.prod(counts)


def _sort_chunks(numbers: IntArray, count: int) -> tuple[IntArray | None, IntArray]:
    """Return the order that sorts points by chunk, and the position of the first point of each chunk.

    The order is ``None`` if the points are already sorted.
    """
    if not len(numbers):
        return None, np.zeros(1, np.int64)
    order: IntArray | None = None
    if bool((numbers[1:] < numbers[:-1]).any()):
        keys: npt.NDArray[Any] = numbers.astype(np.uint16) if count <= 1 << 16 else numbers  # NumPy has a radix sort
        order = np.argsort(keys, kind="stable")
        numbers = keys[order]
    return order, np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1, [len(numbers)]])
