"""Runs of chunks: selections split along a chunk grid into chunks that are fetched, decoded and copied together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.axis_cuts import cut_axis, group_points, touched
from zarrasync.indexing.projection import (
    IntArray,
    Projection,
    Selector,
    assign,
    indices_of,
    length,
    numpy_index,
    reorder,
    section,
)
from zarrasync.model.chunk_grids import Grid, RegularAxis


class ChunkRun(NamedTuple):
    """The touched elements of one chunk, or of several neighbouring chunks along an axis with the same source.

    Attributes:
        coords: The grid coordinates of the chunk, or of the first chunk of a run.
        projection: The touched elements of the chunk and their destination. All chunks of a run have the same source,
            and their targets follow each other along the axis.
        is_full: Whether all elements of a chunk that lie inside the array are touched, in order.
        axis: The axis along which the chunks of a run follow each other.
        count: The number of chunks. Runs of several chunks have a basic projection.
    """

    coords: tuple[int, ...]
    projection: Projection
    is_full: bool
    axis: int = 0
    count: int = 1  # type: ignore[assignment]  # hides the method of tuples, which is not used

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.count * self.projection.size

    def section(self, start: int, stop: int) -> ChunkRun:
        """Return the run of the chunks ``start`` to ``stop`` of this run."""
        if self.count == stop - start:
            return self
        axis, target = self.axis, self.projection.target
        first = target[axis]
        assert isinstance(first, slice)
        length = first.stop - first.start
        shifted = slice(first.start + start * length, first.stop + start * length, 1)
        coords = (*self.coords[:axis], self.coords[axis] + start, *self.coords[axis + 1 :])
        projection = Projection((), self.projection.source, (*target[:axis], shifted, *target[axis + 1 :]), True)
        return ChunkRun(coords, projection, self.is_full, axis, stop - start)

    def singles(self) -> Iterator[ChunkRun]:
        """Return the chunks one by one."""
        return iter((self,)) if self.count == 1 else (self.section(i, i + 1) for i in range(self.count))

    def stacked(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the targets of all chunks as one view of the output, with an additional first axis for the chunks.

        For example, the targets of 3 chunks of shape (2, 4) in a row along axis 1 are the view ``out[0:2, 0:12]``,
        reshaped from (2, 12) to (2, 3, 4) and transposed to (3, 2, 4).
        """
        axis, target = self.axis, self.projection.target
        if self.count == 1:
            return out[(*target, ...)][np.newaxis]  # without the ellipsis, indexing without axes would return a copy
        first = target[axis]
        assert isinstance(first, slice)
        length = first.stop - first.start
        view = out[(*target[:axis], slice(first.start, first.start + self.count * length), *target[axis + 1 :])]
        shape = view.shape
        view = view.reshape(*shape[:axis], self.count, length, *shape[axis + 1 :])  # splitting an axis never copies
        return view.transpose(axis, *range(axis), *range(axis + 1, len(shape) + 1))

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy elements from the decoded chunks, which are stacked along the first axis of ``boxes``."""
        if self.projection.is_basic:
            assign(self.stacked(out), boxes[(slice(None), *self.projection.source)])
        else:
            self.projection.read(boxes[0], out)

    def write(self, boxes: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Copy elements into the decoded chunks, which are stacked along the first axis of ``boxes``."""
        if self.projection.is_basic:
            assign(boxes[(slice(None), *self.projection.source)], self.stacked(values))
        else:
            self.projection.write(boxes[0], values)

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Set the targets of all chunks to one value."""
        if self.projection.is_basic:
            self.stacked(out)[...] = value
        else:
            self.projection.fill(out, value)


_MOST_OF_INDICES, _MOST_BESIDE_SLICES = 1 << 16, 1 << 11
"""The number of elements per chunk up to which point runs are faster than indexing chunk by chunk: if all axes have index
arrays, and if one axis has an index array and others have slices."""

_LONGEST_SLICE = 1 << 20
"""The maximum length of a slice to convert to an array, which takes memory."""


@dataclass(frozen=True, slots=True, eq=False)
class PointRun:
    """Single touched elements of several chunks. A point run is read like a ``ChunkRun`` of several chunks.

    Along the *walked* axes, the chunks have different coordinates and different touched indices. Along all other axes,
    they have the same coordinate and the same touched indices.

    Attributes:
        chunks: The grid coordinates of the chunks, of shape (chunks, axes).
        edges: The position of each chunk's first index along the walked axes, then the number of these indices, of shape
            (chunks + 1,).
        axes: The walked axes.
        dim: The output dimension of the walked axes.
        elements: The indices inside the chunks, and their destination.
    """

    chunks: IntArray
    edges: IntArray
    axes: tuple[int, ...]
    dim: int
    elements: Projection

    @property
    def is_full(self) -> bool:
        """Whether all elements of a chunk are known to be touched, in order. Always false."""
        return False

    @property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.chunks)

    @property
    def coords(self) -> tuple[int, ...]:
        """The grid coordinates of the first chunk."""
        return tuple(self.chunks[0].tolist())

    @property
    def projection(self) -> Projection:
        """The elements of the first chunk."""
        return self._between(0, int(self.edges[1]))

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.elements.size

    def _between(self, start: int, stop: int) -> Projection:
        """Return the elements at the positions ``start`` to ``stop`` of the walked axes."""
        source, target = list(self.elements.source), list(self.elements.target)
        for axis in self.axes:
            source[axis] = indices_of(source[axis])[start:stop]
        target[self.dim] = section(target[self.dim], start, stop - start)
        return Projection(self.elements.point_axes, tuple(source), tuple(target))

    def section(self, start: int, stop: int) -> PointRun:
        """Return the run of the chunks ``start`` to ``stop`` of this run."""
        first, last = int(self.edges[start]), int(self.edges[stop])
        edges = self.edges[start : stop + 1] - first
        return PointRun(self.chunks[start:stop], edges, self.axes, self.dim, self._between(first, last))

    def singles(self) -> Iterator[ChunkRun]:
        """Return the chunks one by one."""
        for coords, (start, stop) in zip(self.chunks.tolist(), pairwise(self.edges.tolist()), strict=True):
            yield ChunkRun(tuple(coords), self._between(start, stop), False)

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy elements from the decoded chunks, which are stacked along the first axis of ``boxes``.

        The elements are taken by their positions in memory. A position is a sum of offsets: of the chunk and the walked
        axes, which are combined point by point, and of each other axis, which are combined orthogonally.
        """
        flat, (chunk_stride, *strides) = _flatten(boxes)
        shares = [indices_of(selector) * stride for selector, stride in zip(self.elements.source, strides, strict=True)]
        positions = np.repeat(np.arange(self.count) * chunk_stride, np.diff(self.edges))
        for axis in self.axes:
            positions = positions + shares[axis]
        terms = [share for axis, share in enumerate(shares) if axis not in self.axes]
        terms.insert(self.dim, positions)
        out[numpy_index(self.elements.target, 0, out.shape)] = flat.take(reduce(np.add.outer, terms))


AnyRun: TypeAlias = ChunkRun | PointRun
"""Chunks that are read together."""


def _flatten(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], list[int]]:
    """Return the elements in memory order, and the stride of each axis in elements."""
    strides = [stride // array.itemsize for stride in array.strides]
    if 1 + sum((count - 1) * stride for count, stride in zip(array.shape, strides, strict=True)) != array.size:
        return _flatten(np.ascontiguousarray(array))
    return array.ravel(order="K"), strides


# ------------------------------------------------------------------ splitting into point runs


def split_points(projection: Projection, grid: Grid) -> list[PointRun] | None:
    """Split a projection with index arrays into point runs.

    Returns ``None`` if the projection has only slices, or has point axes and other axes, or if ``split_chunks`` is
    faster because each chunk has many touched elements.
    """
    source = projection.source
    if projection.point_axes:
        has_only_points = len(projection.point_axes) == len(source)
        return split_walked(projection, grid, projection.point_axes, 0) if has_only_points else None
    array_count = sum(not isinstance(selector, slice) for selector in source)
    if not array_count:
        return None
    # Walk the axis with the largest range of chunks.
    spans = zip(grid.axes, projection.bounds(), strict=True)
    distances = [axis.find(high) - axis.find(low) for axis, (low, high) in spans]
    axis = distances.index(max(distances))
    if not distances[axis] or (isinstance(source[axis], slice) and length(source[axis]) > _LONGEST_SLICE):
        return None
    most = _MOST_OF_INDICES if array_count > 1 or len(source) == 1 else _MOST_BESIDE_SLICES
    return split_walked(projection, grid, (axis,), axis, most)


def split_walked(
    projection: Projection, grid: Grid, axes: tuple[int, ...], dim: int, most: float = math.inf
) -> list[PointRun] | None:
    """Split a projection into runs that walk the given axes together, one run for each chunk along the other axes.

    Returns ``None`` if a chunk has more than ``most`` touched elements on average.

    Args:
        projection: The projection.
        grid: The chunk grid.
        axes: The axes to walk.
        dim: The output dimension of the walked axes.
        most: The maximum number of elements per chunk.
    """
    source, target = list(projection.source), list(projection.target)
    groups = group_points([grid.axes[axis] for axis in axes], [indices_of(source[axis]) for axis in axes], target[dim])
    other_axes = [axis for axis in range(len(source)) if axis not in axes]
    other_dims = [number for number in range(len(target)) if number != dim]
    pairs = list(zip(other_axes, other_dims, strict=True))
    all_cuts = [cut_axis(source[axis], target[to], grid.axes[axis]) for axis, to in pairs]
    if projection.size > most * len(groups.chunks) * math.prod(len(cuts.chunks) for cuts in all_cuts):
        return None
    for axis, indices in zip(axes, groups.indices, strict=True):
        source[axis] = indices
    target[dim] = groups.target
    runs = []
    for rows in product(*(zip(cuts.chunks, cuts.sources, cuts.targets, strict=True) for cuts in all_cuts)):
        chunks = np.empty((len(groups.chunks), len(source)), np.int64)
        chunks[:, axes] = groups.chunks
        for (axis, to), (chunk, selector, where) in zip(pairs, rows, strict=True):
            chunks[:, axis], source[axis], target[to] = chunk, selector, where
        elements = Projection(projection.point_axes, tuple(source), tuple(target))
        runs.append(PointRun(chunks, groups.edges, axes, dim, elements))
    return runs


# ------------------------------------------------------------------ splitting into runs of chunks


_new = tuple.__new__
"""Creates a named tuple from its fields. Unlike calling the class, this does not call a Python function."""


def split_chunks(projection: Projection, grid: Grid, longest_run: int = 1) -> list[ChunkRun]:
    """Split a projection along a chunk grid.

    Args:
        projection: The projection.
        grid: The chunk grid of the box.
        longest_run: The maximum number of neighbouring chunks with equal sources to join into one run.
    """
    if projection.is_basic:
        run = _only_chunk(projection, grid)
        return [run] if run is not None else _split_axes(projection, grid, longest_run)
    if projection.point_axes:
        runs = split_walked(projection, grid, projection.point_axes, 0) or ()
        return [single for run in runs for single in run.singles()]
    return _split_axes(projection, grid, longest_run)


def _only_chunk(projection: Projection, grid: Grid) -> ChunkRun | None:
    """Return the run of a basic projection that touches a single chunk, or ``None`` if it touches several.

    Most small reads touch one chunk. The arithmetic of regular axes is inlined to save calls.
    """
    coords: list[int] = []
    source: list[slice] = []
    is_full = True
    selector: slice
    for selector, axis in zip(projection.source, grid.axes, strict=True):  # type: ignore[assignment]  # it is basic
        start, stop = selector.start, selector.stop
        if type(axis) is not RegularAxis or stop <= start:
            return None
        chunk, first = divmod(start, axis.chunk)
        begin = start - first
        end = begin + axis.chunk
        if stop > end:
            return None
        if first or selector.step != 1 or stop < min(end, axis.extent):
            is_full = False
        coords.append(chunk)
        source.append(slice(first, stop - begin, selector.step))
    inside = _new(Projection, ((), tuple(source), projection.target, True))
    return _new(ChunkRun, (tuple(coords), inside, is_full, 0, 1))


def _split_axes(projection: Projection, grid: Grid, longest_run: int) -> list[ChunkRun]:
    """Cut each axis separately. The runs are the products of the cuts of all axes, column by column.

    For example, cuts with the chunks [0, 1] along one axis and [7] along another have the products (0, 7) and (1, 7). The
    products of the other columns are the sources, targets, … of these chunks in the same order.
    """
    is_basic = _has_only_slices(projection)
    axis, lengths = 0, [1] * len(grid.axes)
    if is_basic and longest_run > 1:  # join along the last of the axes with the most chunks
        counts = [len(touched(*pair)) for pair in zip(projection.source, grid.axes, strict=True)]
        axis = max(range(len(counts)), key=lambda number: (counts[number], number))
        lengths[axis] = longest_run
    all_cuts = list(map(cut_axis, projection.source, projection.target, grid.axes, lengths))
    columns = zip(
        product(*[cuts.chunks for cuts in all_cuts]),
        product(*[cuts.sources for cuts in all_cuts]),
        product(*[cuts.targets for cuts in all_cuts]),
        product(*[cuts.is_full for cuts in all_cuts]),
        product(*[cuts.counts for cuts in all_cuts]),
        strict=True,
    )
    return [
        _new(
            ChunkRun,
            (coords, _new(Projection, ((), source, target, is_basic)), False not in is_full, axis, math.prod(counts)),
        )
        for coords, source, target, is_full, counts in columns
    ]


def _has_only_slices(projection: Projection) -> bool:
    return projection.is_basic or set(map(type, (*projection.source, *projection.target))) <= {slice}


def runs_at(projection: Projection, grid: Grid, numbers: Sequence[int]) -> list[ChunkRun]:
    """Return the runs of some of the chunks that a projection touches, each of one chunk.

    Args:
        projection: The projection, without point axes.
        grid: The chunk grid of the box.
        numbers: The numbers of the chunks among all touched ones, in C order.
    """
    all_cuts = list(map(cut_axis, projection.source, projection.target, grid.axes))
    is_basic = _has_only_slices(projection)
    runs: list[ChunkRun] = []
    lengths = [len(cuts.chunks) for cuts in all_cuts]
    for number in numbers:
        pairs = list(zip(all_cuts, _places_of(number, lengths), strict=True))
        inside = Projection(
            (),
            tuple(cuts.sources[place] for cuts, place in pairs),
            tuple(cuts.targets[place] for cuts, place in pairs),
            is_basic,
        )
        coords = tuple(cuts.chunks[place] for cuts, place in pairs)
        runs.append(ChunkRun(coords, inside, all(cuts.is_full[place] for cuts, place in pairs)))
    return runs


def runs_of_groups(
    projection: Projection, grid: Grid, order: IntArray, edges: IntArray, numbers: Sequence[int]
) -> list[ChunkRun]:
    """Return the runs of groups of points, each of which is in one chunk.

    Args:
        projection: The projection, with point axes.
        grid: The chunk grid of the box.
        order: The numbers of the points, group by group.
        edges: The position of the first point of each group in ``order``, then the number of points.
        numbers: The numbers of the runs, which are counted chunk by chunk along the other axes, and then by group.
    """
    point_axes = projection.point_axes
    other_axes = [axis for axis in range(len(projection.source)) if axis not in point_axes]
    others = [(axis, projection.source[axis], projection.target[dim]) for dim, axis in enumerate(other_axes, 1)]
    all_cuts = [cut_axis(selector, target, grid.axes[axis]) for axis, selector, target in others]
    lengths = [len(cuts.chunks) for cuts in all_cuts]
    runs: list[ChunkRun] = []
    for number in numbers:
        other, group = divmod(number, len(edges) - 1)
        points = order[edges[group] : edges[group + 1]]
        coords, source = [0] * len(projection.source), list[Selector](projection.source)
        target = [reorder(projection.target[0], points)]
        for axis in point_axes:
            indices = indices_of(source[axis])[points]
            coords[axis] = grid.axes[axis].find(int(indices[0]))
            source[axis] = indices - grid.axes[axis].start(coords[axis])
        for axis, cuts, place in zip(other_axes, all_cuts, _places_of(other, lengths), strict=True):
            coords[axis], source[axis] = cuts.chunks[place], cuts.sources[place]
            target.append(cuts.targets[place])
        runs.append(ChunkRun(tuple(coords), Projection(point_axes, tuple(source), tuple(target)), False))
    return runs


def _places_of(number: int, lengths: Sequence[int]) -> list[int]:
    """Return the position along each axis of an item of a box of the given shape, numbered in C order."""
    places: list[int] = []
    for size in reversed(lengths):
        number, place = divmod(number, size)
        places.append(place)
    return places[::-1]
