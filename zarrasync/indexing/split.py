"""Splitting the projection of a selection into one projection for each touched chunk of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from zarrasync.indexing.axis_cuts import cut_axis, touched
from zarrasync.indexing.chunk_runs import ChunkRun, split_walked
from zarrasync.indexing.projection import IntArray, Projection, Selector, indices_of, reorder
from zarrasync.model.chunk_grids import Grid, RegularAxis

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
    for length in reversed(lengths):
        number, place = divmod(number, length)
        places.append(place)
    return places[::-1]
