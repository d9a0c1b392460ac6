"""Blocks of a dask array, aligned to the chunks of the array that they are written into."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from zarrasync.errors import ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import GridAxis
from zarrasync.nodes.array import AsyncArray
from zarrasync.transfer.unaligned import Unaligned, is_allowed

__all__ = ["DaskWrite", "check_blocks"]

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


def _align(sizes: Sequence[int], axis: GridAxis, start: int) -> tuple[int, ...]:
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


def _split(sizes: Sequence[int], axis: GridAxis, start: int, parts: int) -> tuple[int, ...]:
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


# ------------------------------------------------------------------ blocks that share chunks


def check_blocks(
    source: Any,
    target: ArrayMetadata,
    start: tuple[int, ...],
    unaligned: Unaligned,
    *,
    safe: bool,
    append_axis: int | None = None,
) -> None:
    """Check that blocks do not share chunks, unless that is allowed.

    Args:
        source: A dask array.
        target: The metadata of the array that is written.
        start: The position of the source in it.
        unaligned: Whether blocks may share chunks.
        safe: Whether the store keeps the values of all writers.
        append_axis: An axis along which no other writer writes next to the source.

    Raises:
        ShapeError: If blocks share chunks and that is not allowed.
    """
    shared = _shared_axes(source.chunks, target, start, append_axis)
    if not shared or is_allowed(unaligned, safe=safe):
        return
    raise ShapeError(
        f"blocks of the source share chunks along the axes {shared}; rechunk it to multiples of "
        f"{target.write_chunks}: source.rechunk({_aligned_blocks(source, target)}); "
        "or pass unaligned='allow' if no other writer is active",
        found=source.chunksize,
        wanted=target.write_chunks,
    )


def _shared_axes(
    chunks: tuple[tuple[int, ...], ...], target: ArrayMetadata, start: tuple[int, ...], append_axis: int | None
) -> list[int]:
    """Return the axes along which a stored value belongs to several blocks, or is partly outside the source."""
    shared = []
    for number, (sizes, axis, first) in enumerate(zip(chunks, target.grid.axes, start, strict=True)):
        edges, edge = [first], first
        for size in sizes:
            edge += size
            edges.append(edge)
        if number == append_axis:
            edges = edges[1:-1]
        inside = (edge for edge in edges if 0 < edge < axis.extent)
        if any(edge != axis.start(axis.find(edge)) for edge in inside):
            shared.append(number)
    return shared


def _aligned_blocks(source: Any, target: ArrayMetadata) -> tuple[int, ...]:
    """Return the shape of the source's blocks, rounded up to whole stored values of the target."""
    units = target.write_chunks
    return tuple(-(-size // unit) * unit for size, unit in zip(source.chunksize, units, strict=True))
