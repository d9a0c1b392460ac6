"""Which chunks of a grid a projection touches: counted and pictured without a visit to each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from zarrasync.indexing.chunk_selection import IntArray, Projection, Selector
from zarrasync.model.chunk_grids import Axis, Grid, ListedAxis

__all__ = ["Coverage"]

Touched: TypeAlias = range | IntArray
"""Chunk numbers along an axis, ascending."""


_DRAWN = 1 << 16
"""Chunks along an axis that are told apart where it is only about seeing them."""


@dataclass(frozen=True)
class Coverage:
    """The chunks that a projection touches.

    Attributes:
        projection: The projection.
        grid: The grid.
    """

    projection: Projection
    grid: Grid

    @cached_property
    def points(self) -> IntArray:
        """The grid coordinates of points' chunks on the axes that have points, each once: one column per axis."""
        axes = [self.grid.axes[axis] for axis in self.projection.point_axes]
        indices = [np.asarray(self.projection.source[axis]) for axis in self.projection.point_axes]
        found = [axis.find_all(own) for axis, own in zip(axes, indices, strict=True)]
        return np.unique(np.stack(found, axis=1), axis=0) if found else np.zeros((1, 0), np.int64)

    @cached_property
    def axes(self) -> tuple[Touched, ...]:
        """Per axis the chunks that are touched, whatever is touched along the others; for drawing them."""
        return tuple(_touched(own, axis) for own, axis in zip(self.projection.source, self.grid.axes, strict=True))

    @cached_property
    def _along(self) -> list[tuple[int, int]]:
        """Per axis without points the number of chunks, and of elements in them."""
        boxes = zip(self.projection.source, self.grid.axes, strict=True)
        return [
            _counted(own, axis) for number, (own, axis) in enumerate(boxes) if number not in self.projection.point_axes
        ]

    @cached_property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.points) * math.prod(count for count, _ in self._along)

    @cached_property
    def elements(self) -> int:
        """The number of elements in these chunks, as they are stored."""
        points = np.ones(len(self.points), np.int64)
        for column, number in enumerate(self.projection.point_axes):
            points = points * _sizes(self.points[:, column], self.grid.axes[number])
        return int(points.sum()) * math.prod(elements for _, elements in self._along)

    def plane(self, down: int, across: int) -> Sequence[tuple[Touched, Touched]]:
        """What is touched in the plane of two axes: boxes, each as the chunks along one and along the other."""
        point_axes = self.projection.point_axes
        if down in point_axes and across in point_axes:
            pairs = np.unique(self.points[:, [point_axes.index(down), point_axes.index(across)]], axis=0)
            return [(pairs[i : i + 1, 0], pairs[i : i + 1, 1]) for i in range(len(pairs))]
        return [(self.axes[down], self.axes[across])]


def _span(selector: slice, axis: Axis) -> tuple[int, int, int]:
    """The first and the last chunk of a slice, and how many elements it takes (0: none)."""
    along = range(selector.start, selector.stop, selector.step)
    if not along:
        return 0, -1, 0
    return axis.find(min(along[0], along[-1])), axis.find(max(along[0], along[-1])), len(along)


def _is_gapless(selector: slice, axis: Axis) -> bool:
    """Whether no chunk between the first and the last is left out."""
    smallest = min(axis.edges) if isinstance(axis, ListedAxis) else axis.size(0)
    return bool(abs(selector.step) <= smallest)


def _counted(selector: Selector, axis: Axis) -> tuple[int, int]:
    """How many chunks are touched along an axis, and the elements in them. Needs no list of them on a regular axis."""
    if isinstance(axis, ListedAxis) or not isinstance(selector, slice):
        found = _touched(selector, axis, exactly=True)
        return len(found), int(_sizes(found, axis).sum())
    first, last, taken = _span(selector, axis)
    count = last - first + 1 if _is_gapless(selector, axis) else taken  # a longer step: a chunk for each element
    return count, count * axis.size(0)


def _touched(selector: Selector, axis: Axis, *, exactly: bool = False) -> Touched:
    if not isinstance(selector, slice):
        return np.unique(axis.find_all(selector))
    first, last, taken = _span(selector, axis)
    if not taken or _is_gapless(selector, axis) or (not exactly and last - first > _DRAWN):
        return range(first, last + 1)
    if isinstance(axis, ListedAxis):
        chunks: IntArray = np.arange(first, last + 1)
        low, step = min(selector.start, selector.start + (taken - 1) * selector.step), abs(selector.step)
        starts = axis.start_all(chunks)
        ends = np.minimum(starts + np.asarray(axis.edges, np.int64)[chunks], low + (taken - 1) * step + 1)
        # The first element that is taken at or behind a chunk's beginning lies in it, or the chunk is left out.
        firsts = low + (np.maximum(starts - low, 0) + step - 1) // step * step
        found: IntArray = chunks[firsts < ends]
        return found
    return np.unique(axis.find_all(np.arange(selector.start, selector.stop, selector.step)))


def _sizes(chunks: Touched, axis: Axis) -> IntArray:
    if isinstance(axis, ListedAxis):
        return np.asarray(axis.edges, np.int64)[np.asarray(chunks, np.int64)]
    return np.full(len(chunks), axis.size(0), np.int64)
