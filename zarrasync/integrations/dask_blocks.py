"""Blocks of a dask array, aligned to the chunks of the array that they are written into."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from zarrasync.indexing.regions import Region
from zarrasync.model.chunk_grids import Axis
from zarrasync.nodes.array import AsyncArray

__all__ = ["DaskWrite"]

_SMALL_BYTES = 64 << 20
"""Bytes of a block that need not be split."""
_UNSIZED_BYTES = 16
"""Assumed size of an element if the data type has none."""


@dataclass(frozen=True)
class DaskWrite:
    """One dask array to write into one array.

    Attributes:
        source: The dask array.
        target: The array, in a ``CountingStore``.
        start: The position of the source's first element in it.
    """

    source: Any
    target: AsyncArray
    start: tuple[int, ...]

    def aligned(self) -> DaskWrite:
        """Return the same write with blocks of whole stored values, except at the edges of the source.

        Blocks that become longer along some axes are split along others, so that they do not grow much.
        """
        axes = self.target.metadata.grid.axes
        chunks = self._aligned_chunks()
        not_longer = [max(new) <= max(old) for new, old in zip(chunks, self.source.chunks, strict=True)]
        limit = max(_SMALL_BYTES, _largest(self.source.chunks) * self._itemsize)
        for number in np.flatnonzero(not_longer).tolist():
            parts = -(-_largest(chunks) * self._itemsize // limit)
            chunks[number] = _split(chunks[number], axes[number], self.start[number], parts)
        return replace(self, source=self.source.rechunk(tuple(chunks)))

    @property
    def held_bytes(self) -> int:
        """Approximate bytes that wait in memory until a row of longer blocks is complete."""
        pairs = list(zip(self._aligned_chunks(), self.source.chunks, strict=True))
        if all(max(new) <= max(old) for new, old in pairs):
            return 0
        return math.prod(max(*new, *old) for new, old in pairs) * self._itemsize

    def regions(self) -> Iterator[Region]:
        """Yield the region of each block in the target, in C order."""
        edges = [
            [start, *(start + np.cumsum(sizes)).tolist()]
            for start, sizes in zip(self.start, self.source.chunks, strict=True)
        ]
        return product(*([slice(a, b) for a, b in pairwise(axis_edges)] for axis_edges in edges))

    @property
    def _itemsize(self) -> int:
        return self.source.dtype.itemsize or _UNSIZED_BYTES

    def _aligned_chunks(self) -> list[tuple[int, ...]]:
        axes = self.target.metadata.grid.axes
        return [_align(*item) for item in zip(self.source.chunks, axes, self.start, strict=True)]


def _align(sizes: Sequence[int], axis: Axis, start: int) -> tuple[int, ...]:
    """Return sizes of blocks along an axis, with each end moved up to the end of a stored value."""
    stop = start + sum(sizes)
    ends, end = {stop}, start
    for size in sizes:
        end += size
        if start < end < stop:
            chunk = axis.find(end - 1)
            ends.add(min(stop, axis.start(chunk) + axis.size(chunk)))
    return tuple(np.diff([start, *sorted(ends)]).tolist()) if stop > start else (0,)


def _largest(chunks: Sequence[Sequence[int]]) -> int:
    """Return the number of elements of the largest block."""
    return math.prod(max(sizes, default=0) for sizes in chunks)


def _split(sizes: Sequence[int], axis: Axis, start: int, parts: int) -> tuple[int, ...]:
    """Return sizes of blocks along an axis, each cut into a number of parts, or into single stored values."""
    if parts <= 1 or not any(sizes):
        return tuple(sizes)
    ends, end = set[int](), start
    for size in sizes:
        first, last = axis.find(end), axis.find(end + size - 1)
        step = max(1, (last - first + 1) // parts)
        ends.update(axis.start(chunk) for chunk in range(first + step, last + 1, step))
        end += size
        ends.add(end)
    return tuple(np.diff([start, *sorted(ends)]).tolist())
