"""The blocks of a source: the regions of an array that they are written to, the blocks to skip, and chunks left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from zarrasync.bulk.jobs.boxes import UNSIZED_BYTES
from zarrasync.bulk.sources import Source
from zarrasync.config import Config
from zarrasync.errors import ShapeError
from zarrasync.indexing.block_shapes import Blocks, BlockShapes
from zarrasync.indexing.regions import Region, clip, partial_chunks, resolve_corners, touched_chunks
from zarrasync.model.chunk_grids import Grid
from zarrasync.nodes.access import stored_chunks
from zarrasync.nodes.array import AsyncArray

_SPARSE = 8
"""If fewer than one in this many stored values are written, the plan visits only those."""
_SAME_COST = 1.05
"""Smaller blocks may decode chunks of the source this many times as often, because they share the memory better."""


def memory_limit(settings: Config) -> int:
    """Return the maximum bytes of blocks in memory at a time. The rest of the memory budget is for encoding them."""
    return max(1, 3 * settings.memory_budget // 4)


class BlockPlan:
    """The blocks in which a source is written to an array.

    Args:
        source: The source.
        target: The array.
        region: The part of the array to write; ``None`` for the whole array.
        chosen: The grid coordinates of the stored values to write; ``None`` for all.

    Attributes:
        start: The first index of the region along each axis.
        stop: The index after the last one along each axis.
        nbytes: The size of the source in memory, in bytes.
        memory_limit: Maximum bytes of blocks in memory at a time.

    Raises:
        ShapeError: If the source and the region have different shapes.
    """

    def __init__(
        self,
        source: Source,
        target: AsyncArray,
        region: Region | None = None,
        chosen: Collection[tuple[int, ...]] | None = None,
    ) -> None:
        self._source, self._target, self._chosen = source, target, chosen
        self.memory_limit = memory_limit(target.config)
        self.start, self.stop = resolve_corners(source.shape, target.shape, region)
        self.nbytes = math.prod(source.shape) * max(target.dtype.itemsize, 1)
        self._stored: set[tuple[int, ...]] = set()

    async def leave_out_stored(self) -> None:
        """Skip blocks that an earlier run has stored. Lists the keys of the array."""
        # Stored values that the region covers in part may come from other writers.
        cut = partial_chunks(tuple(map(slice, self.start, self.stop)), self._target.metadata.grid)
        self._stored = await stored_chunks(self._target) - set(cut)

    # -------------------------------------------------------------- memory

    def fit_memory(self, concurrency: int, least: int = 1) -> int:
        """Return the number of blocks to have in memory at a time.

        A few large blocks are better than many small ones that decode the same chunks of the source. The threads then share
        the chunks of each block.

        Args:
            concurrency: The maximum, which is returned if all chunks can be decoded equally often.
            least: The minimum.
        """
        if self._source.in_memory:  # blocks are views
            return concurrency
        fewest = self._shapes.passes(self._most_elements(least))
        while concurrency > least:
            most = self._most_elements(concurrency)
            if self._shapes.within(most).elements <= most and self._shapes.passes(most) <= _SAME_COST * fewest:
                return concurrency
            concurrency //= 2
        return least

    def _most_elements(self, concurrency: int) -> int:
        return self.memory_limit // concurrency // (self._target.metadata.dtype.itemsize or UNSIZED_BYTES)

    @cached_property
    def _shapes(self) -> BlockShapes:
        grid, source = self._target.metadata.grid, self._source
        return BlockShapes(grid, source.chunks, source.layout.get("shards"), self.start, self.stop)

    def _blocks(self, concurrency: int) -> Blocks:
        """Return the blocks for a number of them in memory. They are only as large as saves decoding."""
        most = self._most_elements(concurrency)
        small = max(1, min(most // 3, math.prod(self._source.shape) // concurrency))
        is_enough = self._shapes.passes(small) <= _SAME_COST * self._shapes.passes(most)
        return self._shapes.blocks(small if is_enough else most)

    def size(self, region: Region) -> int:
        """Return the size of a region in memory, in bytes."""
        count: int = math.prod(part.stop - part.start for part in region)
        return count * max(self._target.dtype.itemsize, 1)

    # -------------------------------------------------------------- regions

    def regions(self, concurrency: int, skip: Callable[[int], None]) -> Iterator[Region]:
        """Yield the regions of the array to write. Each one consists of whole stored values.

        Args:
            concurrency: The number of regions that are written at a time.
            skip: Called with the number of bytes that are skipped.
        """
        grid, chosen, blocks = self._target.metadata.grid, self._chosen, self._blocks(concurrency)
        if chosen is None and not self._stored:
            yield from blocks
            return
        groups: Iterable[tuple[int, Collection[tuple[int, ...]]]]
        if chosen is not None and len(chosen) < grid.size // _SPARSE:
            groups = [(self.nbytes, chosen)]
        else:
            groups = ((self.size(block), self._chosen_chunks(block)) for block in blocks)
        for nbytes, chunks in groups:
            missing = blocks.of_chunks(coords for coords in chunks if coords not in self._stored)
            parts = [*missing, *blocks.of_chunks(self._stored.intersection(chunks))]
            skip(nbytes - sum(map(self.size, parts)))
            yield from parts

    def _chosen_chunks(self, region: Region) -> list[tuple[int, ...]]:
        """Return the grid coordinates of the stored values to write in a region."""
        touched = touched_chunks(region, self._target.metadata.grid)
        return [coords for coords in touched if self._chosen is None or coords in self._chosen]

    def is_stored(self, region: Region) -> bool:
        """Return whether an earlier run has stored all of a region. Always false if the region cuts stored values."""
        grid = self._target.metadata.grid
        is_whole = bool(self._stored) and next(partial_chunks(region, grid), None) is None
        return is_whole and self._stored.issuperset(touched_chunks(region, grid))

    def to_source(self, region: Region) -> Region:
        """Return the region of the source that is written to a region of the array."""
        return tuple(slice(part.start - a, part.stop - a) for part, a in zip(region, self.start, strict=True))

    def to_target(self, region: Any) -> Region:
        """Return the region of the array for a region of the source that a user passed.

        Raises:
            ShapeError: If the region is not a tuple of slices without steps.
        """
        parts, shape = region if isinstance(region, tuple) else (region,), self._source.shape
        if len(parts) != len(shape) or not all(isinstance(part, slice) and part.step in (None, 1) for part in parts):
            raise ShapeError(
                f"the region of a block must be a tuple of {len(shape)} slices without steps, found {region!r}"
            )
        bounds = (part.indices(n) for part, n in zip(parts, shape, strict=True))
        pairs = zip(bounds, self.start, strict=True)
        return tuple(slice(start + offset, max(start, stop) + offset) for (start, stop, _), offset in pairs)


# ------------------------------------------------------------------ regions that an iterable yields


_MOST_CHUNKS = 1 << 28
"""The number of chunks above which a mask of them would take too much memory, so that nothing is recorded."""


class PairCoverage:
    """Records regions that an iterable yields, which may overlap and cut chunks, to find chunks that it left out.

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
        complete = [self._covered(number, part, *touched[number]) for number, part in enumerate(region)]
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
