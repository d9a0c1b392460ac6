"""Chunk grids: how an array's index space is cut into boxes.

A grid is a product of axes, each cut on its own. What indexing needs of an axis is which chunk
holds an index and where a chunk begins; a rectilinear axis answers the same questions from a
list of edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import ShapeError

__all__ = [
    "MOST_EDGES",
    "Axis",
    "Edges",
    "Grid",
    "ListedAxis",
    "RegularAxis",
    "grid_of",
    "guess_chunks",
    "lazy_product",
    "outside",
    "regular_grid",
    "unrolled",
]

Edges: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""Per axis the sizes of its chunks; ``None`` for an axis whose chunks are all alike."""


MOST_EDGES = 1 << 20
"""Chunks along an axis whose sizes can be listed."""


class Axis(Protocol):
    """One axis of a chunk grid."""

    @property
    def extent(self) -> int:
        """Elements along the axis."""
        ...

    @property
    def nchunks(self) -> int:
        """Chunks along the axis; none where the extent is zero."""
        ...

    def start(self, chunk: int) -> int:
        """The first index of a chunk."""
        ...

    def start_all(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first indices of chunks."""
        ...

    def size(self, chunk: int) -> int:
        """The stored size of a chunk, which may reach past the extent."""
        ...

    def find(self, index: int) -> int:
        """The chunk that holds an index."""
        ...

    def find_all(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The chunks that hold the indices."""
        ...


@dataclass(frozen=True, slots=True)
class RegularAxis:
    """An axis cut into chunks of one size; the last one may reach past the extent."""

    extent: int
    chunk: int

    @property
    def nchunks(self) -> int:
        return -(-self.extent // self.chunk) if self.extent else 0

    def start(self, chunk: int) -> int:
        return chunk * self.chunk

    def start_all(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return chunks * self.chunk

    def size(self, chunk: int) -> int:
        return self.chunk

    def find(self, index: int) -> int:
        return index // self.chunk

    def find_all(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return indices // self.chunk


@dataclass(frozen=True)
class ListedAxis:
    """An axis cut into chunks of the sizes that are listed; some of them may lie past the extent."""

    extent: int
    edges: tuple[int, ...]

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.edges, dtype=np.int64)))

    @property
    def nchunks(self) -> int:
        return self.find(self.extent - 1) + 1 if self.extent else 0

    def start(self, chunk: int) -> int:
        return int(self._starts[chunk])

    def start_all(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._starts[chunks]

    def size(self, chunk: int) -> int:
        return self.edges[chunk]

    def find(self, index: int) -> int:
        return int(np.searchsorted(self._starts, index, "right")) - 1

    def find_all(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._starts, indices, "right") - 1


@dataclass(frozen=True, slots=True)
class Grid:
    """A chunk grid bound to an array's shape."""

    axes: tuple[Axis, ...]

    def __contains__(self, coords: tuple[int, ...]) -> bool:
        """Whether there is a chunk of these coordinates."""
        return all(i < n for i, n in zip(coords, self.shape, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(axis.nchunks for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return math.prod(self.shape)

    def box(self, first: tuple[int, ...], last: tuple[int, ...] | None = None) -> tuple[slice, ...]:
        """Where a chunk lies, or all from a first to a last one; cut off at the array's end."""
        ends = zip(self.axes, first, last or first, strict=True)
        return tuple(slice(axis.start(a), min(axis.start(b) + axis.size(b), axis.extent)) for axis, a, b in ends)

    def chunk_shape(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """The stored shape of one chunk."""
        return tuple(axis.size(i) for axis, i in zip(self.axes, coords, strict=True))


def regular_grid(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Grid:
    """The regular grid of the v3 core specification ("Regular grids").

    Raises:
        ShapeError: If the lengths differ or a chunk has no elements.
    """
    if len(shape) != len(chunks):
        raise ShapeError(
            f"chunks {chunks} have {len(chunks)} dimensions, the shape {shape} has {len(shape)}",
            found=chunks,
            wanted=shape,
        )
    if any(c < 1 for c in chunks):
        raise ShapeError(f"chunks {chunks}: each axis needs at least 1 element", found=chunks)
    return Grid(tuple(RegularAxis(n, c) for n, c in zip(shape, chunks, strict=True)))


def unrolled(sizes: Any) -> tuple[int, ...]:
    """A list of sizes and ``[size, count]`` pairs as sizes alone.

    Raises:
        TypeError, ValueError: If it is no such list, or names more chunks than make sense.
    """
    if not isinstance(sizes, list | tuple) or not sizes:
        raise TypeError("expected a list of sizes")
    found: list[int] = []
    for item in sizes:
        size, count = item if isinstance(item, list | tuple) else (item, 1)
        if type(size) is not int or type(count) is not int or not 1 <= size < 1 << 40 or count < 1:
            raise ValueError("sizes and counts are at least 1")
        if len(found) + count > MOST_EDGES:
            raise ValueError(f"more than {MOST_EDGES} chunks along an axis can not be listed")
        found.extend([size] * count)
    return tuple(found)


def grid_of(shape: tuple[int, ...], chunks: tuple[int, ...], edges: Edges | None) -> Grid:
    """The rectilinear grid of zarr-extensions; a regular one where no sizes are listed.

    Args:
        shape: The array's shape.
        chunks: The size of chunks along each axis that has but one.
        edges: Per axis the sizes of its chunks, or ``None``.

    Raises:
        ShapeError: If chunks and shape do not fit.
    """
    grid = regular_grid(shape, chunks)
    if edges is None:
        return grid
    axes: list[Axis] = []
    for number, (axis, sizes) in enumerate(zip(grid.axes, edges, strict=True)):
        if sizes is not None and (not sizes or min(sizes) < 1 or sum(sizes) < axis.extent):
            raise ShapeError(
                f"chunks of sizes {list(sizes)[:20]} along axis {number} do not cover its {axis.extent} elements",
                found=sizes,
            )
        axes.append(axis if sizes is None else ListedAxis(axis.extent, sizes))
    return Grid(tuple(axes))


def outside(old: tuple[int, ...], kept: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The coordinates of a grid of shape ``old`` that a smaller one of shape ``kept`` lacks, lazily."""
    for axis, (count, rest) in enumerate(zip(old, kept, strict=True)):
        # Before this axis what both have, so that no coordinates come twice.
        before = [min(a, b) for a, b in zip(old[:axis], kept[:axis], strict=True)]
        spans = [range(n) for n in before] + [range(rest, count)] + [range(n) for n in old[axis + 1 :]]
        yield from lazy_product(spans)


def lazy_product(spans: list[range]) -> Iterator[tuple[int, ...]]:
    """``itertools.product`` without holding the ranges' members."""
    if not spans:
        yield ()
        return
    for first in spans[0]:
        for others in lazy_product(spans[1:]):
            yield (first, *others)


def guess_chunks(shape: tuple[int, ...], itemsize: int, target: int = 4 << 20) -> tuple[int, ...]:
    """A chunk shape of about ``target`` bytes: the longest axes are halved until it fits."""
    chunks = [max(n, 1) for n in shape]
    while chunks and math.prod(chunks) * max(itemsize, 1) > target:
        longest = max(range(len(chunks)), key=lambda axis: chunks[axis])
        if chunks[longest] == 1:
            break
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)
