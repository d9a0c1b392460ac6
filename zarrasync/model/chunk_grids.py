"""Chunk grids: the division of an array's index space into boxes.

A grid is a product of independent axes. An axis maps indices to chunks, and chunks to their first index. It uses
arithmetic if all chunks have the same size, and a list of sizes otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import ShapeError

Edges: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""The sizes of chunks along each axis, or ``None`` for an axis with one size."""


MAX_LISTED_CHUNKS = 1 << 20
"""The maximum number of chunks along an axis with listed sizes."""


@dataclass(frozen=True, slots=True)
class RegularAxis:
    """Axis with chunks of one size. The last chunk may extend beyond the array."""

    extent: int
    chunk: int

    @property
    def nchunks(self) -> int:
        """The number of chunks; 0 if the extent is 0."""
        return -(-self.extent // self.chunk) if self.extent else 0

    def start(self, chunk: int) -> int:
        """Return the first index of a chunk."""
        return chunk * self.chunk

    def start_all(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first index of each chunk."""
        return chunks * self.chunk

    def size(self, chunk: int) -> int:
        """Return the stored size of a chunk, which may extend beyond the array."""
        return self.chunk

    def find(self, index: int) -> int:
        """Return the chunk that contains an index."""
        return index // self.chunk

    def find_all(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the chunk that contains each index."""
        return indices // self.chunk


@dataclass(frozen=True)
class ListedAxis:
    """Axis with a list of chunk sizes. Some chunks may lie beyond the array."""

    extent: int
    edges: tuple[int, ...]

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.edges, dtype=np.int64)))

    @property
    def nchunks(self) -> int:
        """The number of chunks; 0 if the extent is 0."""
        return self.find(self.extent - 1) + 1 if self.extent else 0

    def start(self, chunk: int) -> int:
        """Return the first index of a chunk."""
        return int(self._starts[chunk])

    def start_all(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first index of each chunk."""
        return self._starts[chunks]

    def size(self, chunk: int) -> int:
        """Return the stored size of a chunk, which may extend beyond the array."""
        return self.edges[chunk]

    def find(self, index: int) -> int:
        """Return the chunk that contains an index."""
        return int(np.searchsorted(self._starts, index, "right")) - 1

    def find_all(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the chunk that contains each index."""
        return np.searchsorted(self._starts, indices, "right") - 1


GridAxis: TypeAlias = RegularAxis | ListedAxis
"""One axis of a chunk grid."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The chunk grid of an array of a given shape."""

    axes: tuple[GridAxis, ...]

    def __contains__(self, coords: tuple[int, ...]) -> bool:
        """Return whether a chunk has these coordinates."""
        return all(i < n for i, n in zip(coords, self.shape, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return tuple(axis.nchunks for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return math.prod(self.shape)

    def box(self, first: tuple[int, ...], last: tuple[int, ...] | None = None) -> tuple[slice, ...]:
        """Return the box of a chunk, or of all chunks between two corners, clipped to the array."""
        bounds = zip(self.axes, first, last or first, strict=True)
        return tuple(slice(axis.start(a), min(axis.start(b) + axis.size(b), axis.extent)) for axis, a, b in bounds)

    def chunk_shape(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Return the stored shape of a chunk."""
        return tuple(axis.size(i) for axis, i in zip(self.axes, coords, strict=True))


def regular_grid(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Grid:
    """Return a grid of equal chunks.

    See section "Regular grids" of the Zarr v3 core specification.

    Raises:
        ShapeError: If the lengths differ or a chunk has no elements.
    """
    if len(shape) != len(chunks):
        raise ShapeError(
            f"chunks {chunks} must have one size for each axis of shape {shape}",
            found=chunks,
            wanted=shape,
        )
    if any(c < 1 for c in chunks):
        raise ShapeError(f"chunks must be at least 1 along each axis, found {chunks}", found=chunks)
    return Grid(tuple(RegularAxis(n, c) for n, c in zip(shape, chunks, strict=True)))


def expand_sizes(sizes: Any) -> tuple[int, ...]:
    """Expand a list of sizes and ``[size, count]`` pairs to a size per chunk.

    Raises:
        TypeError, ValueError: If the value is not such a list, or specifies more than ``MAX_LISTED_CHUNKS`` chunks.
    """
    if not isinstance(sizes, list | tuple) or not sizes:
        raise TypeError("expected a list of sizes")
    expanded: list[int] = []
    for item in sizes:
        size, count = item if isinstance(item, list | tuple) else (item, 1)
        if type(size) is not int or type(count) is not int or not 1 <= size < 1 << 40 or count < 1:
            raise ValueError("sizes and counts must be at least 1")
        if len(expanded) + count > MAX_LISTED_CHUNKS:
            raise ValueError(f"an axis can have at most {MAX_LISTED_CHUNKS} listed sizes")
        expanded.extend([size] * count)
    return tuple(expanded)


def grid_of(shape: tuple[int, ...], chunks: tuple[int, ...], edges: Edges | None) -> Grid:
    """Return a rectilinear grid, or a regular grid if no sizes are listed.

    See "rectilinear" in zarr-extensions.

    Args:
        shape: The array's shape.
        chunks: The size of chunks along each axis without a list of sizes.
        edges: The listed sizes of chunks along each axis, or ``None``.

    Raises:
        ShapeError: If the chunks do not match the shape.
    """
    grid = regular_grid(shape, chunks)
    if edges is None:
        return grid
    axes: list[GridAxis] = []
    for number, (axis, sizes) in enumerate(zip(grid.axes, edges, strict=True)):
        if sizes is not None and (not sizes or min(sizes) < 1 or sum(sizes) < axis.extent):
            raise ShapeError(
                f"chunks of sizes {list(sizes)[:20]} along axis {number} do not cover its {axis.extent} elements",
                found=sizes,
            )
        axes.append(axis if sizes is None else ListedAxis(axis.extent, sizes))
    return Grid(tuple(axes))


def coords_outside(old_shape: tuple[int, ...], new_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates in a grid of ``old_shape`` that are outside a grid of ``new_shape``."""
    for axis, (old_count, new_count) in enumerate(zip(old_shape, new_shape, strict=True)):
        # Earlier axes are limited to the common part, so that no coordinates are repeated.
        before = [min(a, b) for a, b in zip(old_shape[:axis], new_shape[:axis], strict=True)]
        spans = [range(n) for n in before] + [range(new_count, old_count)] + [range(n) for n in old_shape[axis + 1 :]]
        yield from lazy_product(spans)


def lazy_product(spans: list[range]) -> Iterator[tuple[int, ...]]:
    """Yield the product of ranges. Unlike ``itertools.product``, this does not keep the members in memory."""
    if not spans:
        yield ()
        return
    for first in spans[0]:
        for others in lazy_product(spans[1:]):
            yield (first, *others)


def guess_chunks(shape: tuple[int, ...], itemsize: int, target: int = 4 << 20) -> tuple[int, ...]:
    """Return a chunk shape of at most about ``target`` bytes, by halving the longest axes."""
    chunks = [max(n, 1) for n in shape]
    while chunks and math.prod(chunks) * max(itemsize, 1) > target:
        longest = max(range(len(chunks)), key=lambda axis: chunks[axis])
        if chunks[longest] == 1:
            break
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)
