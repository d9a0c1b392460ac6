"""Which chunks of a grid a region touches: counted and pictured without a visit to each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from zarrasync.grids import Axis, Grid, ListedAxis
from zarrasync.regions import IntArray, Region, Selector

__all__ = ["Coverage"]

Touched: TypeAlias = range | IntArray
"""Chunk numbers along an axis, ascending."""


@dataclass(frozen=True)
class Coverage:
    """The chunks that a region touches.

    Attributes:
        grid: The grid.
        group: Axes on which points lie.
        points: The grid coordinates of points' chunks on these axes, each once: one column per axis.
        axes: Per axis the chunks that are touched, whatever is touched along the others.
    """

    grid: Grid
    group: tuple[int, ...]
    points: IntArray
    axes: tuple[Touched, ...]

    @classmethod
    def of(cls, region: Region, grid: Grid) -> Coverage:
        """What a region touches of a grid."""
        indices = [np.asarray(region.box[axis]) for axis in region.group]
        found = [grid.axes[axis].find_all(own) for axis, own in zip(region.group, indices, strict=True)]
        points = np.unique(np.stack(found, axis=1), axis=0) if found else np.zeros((1, 0), np.int64)
        axes = tuple(_touched(selector, axis) for selector, axis in zip(region.box, grid.axes, strict=True))
        return cls(grid, region.group, points, axes)

    @property
    def rest(self) -> list[int]:
        """Axes that have no points: each is on its own."""
        return [axis for axis in range(len(self.axes)) if axis not in self.group]

    @cached_property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.points) * math.prod(len(self.axes[axis]) for axis in self.rest)

    @cached_property
    def elements(self) -> int:
        """The number of elements in these chunks, as they are stored."""
        points = np.ones(len(self.points), np.int64)
        for column, number in enumerate(self.group):
            points = points * _sizes(self.points[:, column], self.grid.axes[number])
        return int(points.sum()) * math.prod(
            sum(_sizes(self.axes[axis], self.grid.axes[axis]).tolist())
            if isinstance(self.grid.axes[axis], ListedAxis)
            else len(self.axes[axis]) * self.grid.axes[axis].size(0)
            for axis in self.rest
        )

    def plane(self, down: int, across: int) -> Sequence[tuple[Touched, Touched]]:
        """What is touched in the plane of two axes: boxes, each as the chunks along one and along the other."""
        if down in self.group and across in self.group:
            columns = [self.group.index(down), self.group.index(across)]
            pairs = np.unique(self.points[:, columns], axis=0)
            return [(pairs[i : i + 1, 0], pairs[i : i + 1, 1]) for i in range(len(pairs))]
        return [(self.axes[down], self.axes[across])]


def _touched(selector: Selector, axis: Axis) -> Touched:
    if not isinstance(selector, slice):
        return np.unique(axis.find_all(selector))
    along = range(selector.start, selector.stop, selector.step)
    if not along:
        return range(0)
    low, high = min(along[0], along[-1]), max(along[0], along[-1])
    first, last = axis.find(low), axis.find(high)
    smallest = min(axis.edges) if isinstance(axis, ListedAxis) else axis.size(0)
    if abs(selector.step) <= smallest:
        return range(first, last + 1)
    return np.unique(axis.find_all(np.arange(low, high + 1, abs(selector.step))))


def _sizes(chunks: Touched, axis: Axis) -> IntArray:
    if isinstance(axis, ListedAxis):
        return np.asarray(axis.edges, np.int64)[np.asarray(chunks, np.int64)]
    return np.full(len(chunks), axis.size(0), np.int64)
