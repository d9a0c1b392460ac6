"""Points grouped by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.selectors import IntArray, Selector, reorder
from zarrasync.model.chunk_grids import Axis

__all__ = ["PointGroups", "group_points"]


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


def group_points(axes: Sequence[Axis], indices: Sequence[IntArray], target: Selector) -> PointGroups:
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
