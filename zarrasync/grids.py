"""Chunk grids: how an array's index space is cut into boxes.

A grid is a product of axes, each cut on its own. What indexing needs of an axis is which chunk
holds an index and where a chunk begins; a rectilinear axis answers the same questions from a
list of edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zarrasync.errors import ShapeError

__all__ = ["Axis", "Grid", "RegularAxis", "guess_chunks", "outside", "regular_grid"]


class Axis(Protocol):
    """One axis of a chunk grid."""

    @property
    def extent(self) -> int:
        """Elements along the axis."""

    @property
    def nchunks(self) -> int:
        """Chunks along the axis; none where the extent is zero."""

    def start(self, chunk: int) -> int:
        """The first index of a chunk."""

    def start_all(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first indices of chunks."""

    def size(self, chunk: int) -> int:
        """The stored size of a chunk, which may reach past the extent."""

    def find(self, index: int) -> int:
        """The chunk that holds an index."""

    def find_all(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The chunks that hold the indices."""


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


@dataclass(frozen=True, slots=True)
class Grid:
    """A chunk grid bound to an array's shape."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(axis.nchunks for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return math.prod(self.shape)

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


def outside(old: tuple[int, ...], kept: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The coordinates of a grid of shape ``old`` that a smaller one of shape ``kept`` lacks, lazily."""
    for axis, (count, rest) in enumerate(zip(old, kept, strict=True)):
        # Before this axis what both have, so that no coordinates come twice.
        before = [min(a, b) for a, b in zip(old[:axis], kept[:axis], strict=True)]
        spans = [range(n) for n in before] + [range(rest, count)] + [range(n) for n in old[axis + 1 :]]
        yield from _lazy_product(spans)


def _lazy_product(spans: list[range]) -> Iterator[tuple[int, ...]]:
    """``itertools.product`` without holding the ranges' members."""
    if not spans:
        yield ()
        return
    for first in spans[0]:
        for others in _lazy_product(spans[1:]):
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
