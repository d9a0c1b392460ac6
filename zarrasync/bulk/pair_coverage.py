"""Which chunks an iterable of regions has covered, to find those that it left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from zarrasync.indexing.regions import Region, clip
from zarrasync.model.chunk_grids import Grid

_MOST_CHUNKS = 1 << 28
"""The number of chunks above which a mask of them would take too much memory, so that nothing is recorded."""


class PairCoverage:
    """Records regions, which may overlap and cut chunks.

    Args:
        grid: The chunk grid.
        start: The first index along each axis of the part of the array to cover.
        stop: The index after the last one along each axis.
    """

    def __init__(self, grid: Grid, start: Sequence[int], stop: Sequence[int]) -> None:
        self._grid, self._part = grid, tuple(map(slice, start, stop))
        bounds = [self._touched(number, part) for number, part in enumerate(self._part)]
        self._first = tuple(first for first, _ in bounds)
        shape = tuple(last - first for first, last in bounds)
        self.count = math.prod(shape)
        """The number of chunks to cover."""
        self._complete = np.zeros(shape if self.count <= _MOST_CHUNKS else (0,) * len(shape), bool)
        self._cut: dict[tuple[int, ...], list[Region]] = {}

    def add(self, region: Region) -> None:
        """Record a region of the array."""
        if not self._complete.size or any(part.start >= part.stop for part in region):
            return
        touched = [self._touched(number, part) for number, part in enumerate(region)]
        complete = [
            self._covered(number, part, *at) for number, (part, at) in enumerate(zip(region, touched, strict=True))
        ]
        inside = zip(complete, self._first, strict=True)
        self._complete[tuple(slice(a - first, max(a, b) - first) for (a, b), first in inside)] = True
        if complete == touched:
            return
        for coords in product(*(range(*bounds) for bounds in touched)):
            if not all(a <= i < b for i, (a, b) in zip(coords, complete, strict=True)):
                self._cut.setdefault(coords, []).append(region)

    def missing(self) -> Iterator[tuple[tuple[int, ...], Region]]:
        """Yield the grid coordinates and the part to cover of each chunk that the regions do not cover completely."""
        for position in np.argwhere(~self._complete):
            coords = tuple(int(i) + first for i, first in zip(position, self._first, strict=True))
            part = clip(self._grid.box(coords), self._part)
            if not self._is_union(part, self._cut.get(coords, ())):
                yield coords, part

    def _is_union(self, part: Region, regions: Sequence[Region]) -> bool:
        """Return whether regions together cover a part of the array."""
        if not regions:
            return False
        covered = np.zeros([axis.stop - axis.start for axis in part], bool)
        for region in regions:
            common = clip(part, region)
            covered[tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(common, part, strict=True))] = True
        return bool(covered.all())

    def _touched(self, number: int, part: slice) -> tuple[int, int]:
        """Return the first chunk along an axis that a slice touches, and the chunk after the last one."""
        axis = self._grid.axes[number]
        return (axis.find(part.start), axis.find(part.stop - 1) + 1) if part.start < part.stop else (0, 0)

    def _covered(self, number: int, part: slice, first: int, last: int) -> tuple[int, int]:
        """Return the same for the chunks that a slice covers, as far as they are to be covered."""
        axis, whole = self._grid.axes[number], self._part[number]
        first += part.start > max(axis.start(first), whole.start)
        last -= part.stop < min(axis.start(last - 1) + axis.size(last - 1), whole.stop)
        return first, last
