"""The chunks that a selection or a region touches, counted and drawn without listing them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np

from zarrasync.errors import ShapeError
from zarrasync.indexing.axis_cuts import (
    Touched,
    count_touched,
    numbers_of,
    partly_touched,
    sizes_inside,
    sizes_of,
    touched,
)
from zarrasync.indexing.projection import IntArray, Projection, Selector
from zarrasync.model.chunk_grids import Grid, GridAxis

_MOST_DRAWN = 1 << 16
"""The number of chunks along an axis up to which a picture shows the chunks that a slice skips."""


def touched_chunks(box: Sequence[Selector], grid: Grid) -> Iterator[tuple[int, ...]]:
    """Return the grid coordinates of the chunks that a box, or any selector for each axis, touches, in C order."""
    return product(*(numbers_of(touched(selector, axis)) for selector, axis in zip(box, grid.axes, strict=True)))


def partial_chunks(box: Sequence[Selector], grid: Grid) -> Iterator[tuple[int, ...]]:
    """Return the grid coordinates of the chunks that a box touches only in part, in C order."""
    partial = [partly_touched(selector, axis) for selector, axis in zip(box, grid.axes, strict=True)]
    if not any(partial):
        return iter(())
    return (
        coords
        for coords in touched_chunks(box, grid)
        if any(i in numbers for i, numbers in zip(coords, partial, strict=True))
    )


def coarser_chunks(
    chunks: Iterable[tuple[int, ...]], grid: Grid, coarser: Grid, factors: Sequence[int]
) -> set[tuple[int, ...]]:
    """Return the chunks of another grid that overlap chunks of a grid.

    Args:
        chunks: Grid coordinates of chunks of the grid.
        grid: The grid.
        coarser: The other grid.
        factors: The number of elements of the grid along each axis per element of the other grid.
    """
    found: set[tuple[int, ...]] = set()
    for coords in chunks:
        box = (
            slice(part.start // factor, -(-part.stop // factor))
            for part, factor in zip(grid.box(coords), factors, strict=True)
        )
        found.update(touched_chunks(tuple(box), coarser))
    return found


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
        """The distinct grid coordinates of the points' chunks along the point axes, of shape (chunks, axes)."""
        if not self.projection.point_axes:
            return np.zeros((1, 0), np.int64)
        return np.unique(self._chunks_of(self._indices()), axis=0)

    def _indices(self) -> IntArray:
        """Return the indices of the points along the point axes, of shape (points, axes)."""
        return np.stack([np.asarray(self.projection.source[axis]) for axis in self.projection.point_axes], axis=1)

    def _chunks_of(self, indices: IntArray) -> IntArray:
        """Return the grid coordinates of points along the point axes, of shape (points, axes)."""
        axes = [self.grid.axes[axis] for axis in self.projection.point_axes]
        return np.stack([axis.find_all(indices[:, column]) for column, axis in enumerate(axes)], axis=1)

    @cached_property
    def axes(self) -> tuple[Touched, ...]:
        """The chunks to draw along each axis, independent of the selectors along other axes."""
        return tuple(
            _touched_for_drawing(selector, axis)
            for selector, axis in zip(self.projection.source, self.grid.axes, strict=True)
        )

    @cached_property
    def _counts(self) -> list[tuple[int, int]]:
        """The number of touched chunks and of their elements, along each axis without points."""
        return [count_touched(selector, axis) for selector, axis in self._others()]

    def _others(self) -> list[tuple[Selector, GridAxis]]:
        """Return the selectors and axes without points."""
        pairs = zip(self.projection.source, self.grid.axes, strict=True)
        return [pair for number, pair in enumerate(pairs) if number not in self.projection.point_axes]

    @property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.points) * math.prod(count for count, _ in self._counts)

    @property
    def elements(self) -> int:
        """The number of stored elements of these chunks."""
        points = np.ones(len(self.points), np.int64)
        for column, number in enumerate(self.projection.point_axes):
            points = points * sizes_of(self.points[:, column], self.grid.axes[number])
        return int(points.sum()) * math.prod(elements for _, elements in self._counts)

    def chunks(self) -> Iterator[tuple[int, ...]]:
        """Return the grid coordinates of the chunks."""
        if not self.projection.point_axes:
            return touched_chunks(self.projection.source, self.grid)
        return (coords for coords, _ in self._with_points(self.points, [False] * len(self.points)))

    def partial_chunks(self) -> Iterator[tuple[int, ...]]:
        """Return the grid coordinates of the chunks that are touched only in part."""
        if not self.projection.point_axes:
            return partial_chunks(self.projection.source, self.grid)
        chunks, counts = np.unique(self._chunks_of(np.unique(self._indices(), axis=0)), axis=0, return_counts=True)
        inside = np.ones(len(chunks), np.int64)
        for column, axis in enumerate(self.projection.point_axes):
            inside = inside * sizes_inside(chunks[:, column], self.grid.axes[axis])
        return (coords for coords, is_partial in self._with_points(chunks, (counts < inside).tolist()) if is_partial)

    def _with_points(self, points: IntArray, is_partial: Sequence[bool]) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Yield the grid coordinates of each chunk, and whether the chunk is touched only in part.

        Args:
            points: The grid coordinates of the points' chunks along the point axes.
            is_partial: Whether each of these is touched only in part.
        """
        pairs, point_axes = self._others(), self.projection.point_axes
        partial = [partly_touched(selector, axis) for selector, axis in pairs]
        for others in product(*(numbers_of(touched(selector, axis)) for selector, axis in pairs)):
            others_partial = any(i in numbers for i, numbers in zip(others, partial, strict=True))
            for point, point_partial in zip(points.tolist(), is_partial, strict=True):
                coords = list(others)
                for axis, number in zip(point_axes, point, strict=True):
                    coords.insert(axis, number)
                yield tuple(coords), point_partial or others_partial

    def plane(self, down: int, across: int) -> Sequence[tuple[Touched, Touched]]:
        """Return the touched boxes in the plane of two axes, each as the chunks along both axes."""
        point_axes = self.projection.point_axes
        if down in point_axes and across in point_axes:
            pairs = np.unique(self.points[:, [point_axes.index(down), point_axes.index(across)]], axis=0)
            return [(pairs[i : i + 1, 0], pairs[i : i + 1, 1]) for i in range(len(pairs))]
        return [(self.axes[down], self.axes[across])]


def _touched_for_drawing(selector: Selector, axis: GridAxis) -> Touched:
    """Return the touched chunks. If they are too many for a picture, gaps between them are ignored."""
    if isinstance(selector, slice) and selector.start < selector.stop:
        first, last = axis.find(selector.start), axis.find(selector.stop - 1)
        if last - first > _MOST_DRAWN:
            return range(first, last + 1)
    return touched(selector, axis)


Region: TypeAlias = tuple[slice, ...]
"""A box of an array: for each axis a slice with a start, a stop and no step."""


def corners(region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the starts and the stops of a region along all axes."""
    return tuple(s.start for s in region), tuple(s.stop for s in region)


def region_text(region: Region) -> str:
    """Return a region as users write it, without brackets."""
    return ", ".join(f"{part.start}:{part.stop}" for part in region)


def resolve_corners(
    source_shape: tuple[int, ...], array_shape: tuple[int, ...], region: Sequence[slice] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the corners of the region that a source is written to.

    Args:
        source_shape: The shape of the source.
        array_shape: The shape of the array.
        region: The region, with slices as users pass them; ``None`` for the whole array.

    Raises:
        ShapeError: If the region does not fit the array, or its shape differs from the source's.
    """
    if region is None:
        region = tuple(slice(0, size) for size in array_shape)
    without_steps = isinstance(region, tuple | list) and all(
        isinstance(s, slice) and s.step in (None, 1) for s in region
    )
    if not without_steps or len(region) != len(array_shape):
        raise ShapeError(f"region must be a tuple of {len(array_shape)} slices without steps, found {region!r}")
    limits = [s.indices(size)[:2] for s, size in zip(region, array_shape, strict=True)]
    shape = tuple(max(0, stop - start) for start, stop in limits)
    if shape != source_shape:
        raise ShapeError(
            f"the source has shape {source_shape}, but the region has shape {shape}", found=source_shape, wanted=shape
        )
    return tuple(start for start, _ in limits), tuple(stop for _, stop in limits)


def clip(region: Region, other: Region) -> Region:
    """Return the intersection of two regions."""
    return tuple(
        slice(max(one.start, two.start), min(one.stop, two.stop)) for one, two in zip(region, other, strict=True)
    )
