"""Planning of ingestions, copies and rechunking: the shapes of blocks, and whether an intermediate array saves time.

A block is a region of whole chunks of the destination, so that none of its chunks is changed in part. Each block decodes all chunks of the source that it touches, so a chunk that several
blocks touch is decoded several times. The planner chooses the block shape that decodes the least within a given size.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.regions import Region, clip
from zarrasync.model.chunk_grids import Grid, GridAxis, RegularAxis, regular_grid

Coords = tuple[int, ...]
Box = tuple[Coords, Coords]
"""The coordinates of the first and the last chunk of a box of chunks."""

_ENOUGH_PASSES = 2
"""Writing and reading raw values takes about as long as decoding them once, so two passes need no intermediate array."""
_FILE_ELEMENTS = 8192
"""Writing and reading the file of a chunk takes as long as decoding about this many elements."""
_LEAST_PARTS = 32
"""The least number of chunks of an intermediate array in a block."""


class Cost(NamedTuple):
    """The cost of reading all blocks. Costs along several axes are multiplied; the first number counts most.

    Attributes:
        decoded: The number of chunks of the source that are decoded; a chunk counts once for each block that touches it.
        requested: The same number for the stored values of the source, such as shards.
        blocks: The number of blocks.
    """

    decoded: int
    requested: int
    blocks: int


class BlockShape(NamedTuple):
    """The shape of blocks.

    Attributes:
        elements: The number of elements of the largest block.
        cost: The cost to read all blocks.
        counts: The number of chunks of a block along each axis.
    """

    elements: int
    cost: Cost
    counts: Coords


class Blocks:
    """The blocks into which an array, or a region of it, is cut.

    Args:
        grid: The chunk grid of the array.
        counts: The number of chunks of a block along each axis.
        start: The start of the region along each axis. Default: the start of the array.
        stop: The end of the region along each axis. Default: the end of the array.
    """

    def __init__(self, grid: Grid, counts: Coords, start: Coords | None = None, stop: Coords | None = None) -> None:
        self._grid, self._counts = grid, counts
        self._start, self._stop = _corners(grid, start, stop)
        self._first = [axis.find(a) if axis.extent else 0 for axis, a in zip(grid.axes, self._start, strict=True)]

    def __iter__(self) -> Iterator[Region]:
        """Yield the region of each block."""
        cuts = map(_cuts, self._grid.axes, self._start, self._stop, self._counts)
        return cast("Iterator[Region]", product(*cuts))

    def of_chunks(self, chosen: Iterable[Coords]) -> Iterator[Region]:
        """Yield regions of chosen chunks. None of them extends beyond its block.

        The time does not depend on the number of other chunks.
        """
        region = tuple(map(slice, self._start, self._stop))
        groups: dict[Coords, list[Coords]] = {}
        for coords in sorted(chosen):
            block = tuple((i - a) // n for i, a, n in zip(coords, self._first, self._counts, strict=True))
            groups.setdefault(block, []).append(coords)
        for group in groups.values():
            yield from (clip(self._grid.box(*box), region) for box in join_chunks(group))


def join_chunks(chunks: Collection[Coords]) -> list[Box]:
    """Join chunks into boxes, which contain no other chunks."""
    boxes = [(coords, coords) for coords in chunks]
    for axis in reversed(range(len(boxes[0][0]) if boxes else 0)):

        def without_axis(box: Box, axis: int = axis) -> list[Coords]:
            return [corner[:axis] + corner[axis + 1 :] for corner in box]

        boxes.sort(key=lambda box: (without_axis(box), box[0][axis]))
        joined: list[Box] = []
        for box in boxes:
            before = joined[-1] if joined else None
            if before and before[1][axis] + 1 == box[0][axis] and without_axis(before) == without_axis(box):
                joined[-1] = before[0], box[1]
            else:
                joined.append(box)
        boxes = joined
    return sorted(boxes)


# ------------------------------------------------------------------ costs


class BlockShapes:
    """The useful shapes of blocks, of which larger ones decode less of the source.

    Args:
        grid: The chunk grid of the array to write.
        source_chunks: The shape of the chunks of the source; ``None`` if it has none.
        stored_chunks: The shape of its stored values, such as shards. Default: ``source_chunks``.
        start: The start of the region to write along each axis. Default: the start of the array.
        stop: The end of the region along each axis. Default: the end of the array.
    """

    def __init__(
        self,
        grid: Grid,
        source_chunks: Coords | None,
        stored_chunks: Coords | None = None,
        start: Coords | None = None,
        stop: Coords | None = None,
    ) -> None:
        start, stop = self._start, self._stop = _corners(grid, start, stop)
        self._grid = grid
        extent = [max(b - a, 1) for a, b in zip(start, stop, strict=True)]
        decoded = source_chunks or (1,) * len(extent)
        requested = stored_chunks or decoded
        self._shapes = [BlockShape(1, Cost(1, 1, 1), ())]
        for options in reversed(list(map(_axis_options, grid.axes, start, stop, decoded, requested))):
            self._shapes = _useful(_combine(option, shape) for shape in reversed(self._shapes) for option in options)
        self._chunks = math.prod(-(-n // chunk) for n, chunk in zip(extent, decoded, strict=True))

    def within(self, most: int) -> BlockShape:
        """Return the cheapest shape of at most ``most`` elements. If all shapes are larger, return the smallest one."""
        position = bisect_right(self._shapes, most, key=lambda shape: shape.elements)
        return self._shapes[max(position - 1, 0)]

    def blocks(self, most: int) -> Blocks:
        """Return the blocks of the shape that ``within`` returns."""
        return Blocks(self._grid, self.within(most).counts, self._start, self._stop)

    def passes(self, most: int) -> float:
        """Return how often each chunk of the source is decoded, on average, with blocks of at most ``most`` elements."""
        return self.within(most).cost.decoded / self._chunks


def intermediate_chunks(shape: Coords, source_chunks: Coords, target_chunks: Coords, most: int) -> Coords | None:
    """Return the chunk shape of an intermediate array by way of which an array is copied to other chunks.

    This is the algorithm of the library rechunker: the intersection of the largest block of whole chunks of the source
    and the largest block of whole chunks of the copy. In one stage, blocks of the first kind are written to the
    intermediate array, in the next one, blocks of the second kind are read from it. Each chunk is then decoded once. Large
    intersections are divided into several chunks, because threads copy chunks while they write them.

    Args:
        shape: The shape of the array.
        source_chunks: The chunk shape of the source.
        target_chunks: The chunk shape of the copy.
        most: The maximum number of elements of a block.

    Returns:
        The shape; ``None`` if it is cheaper to copy in one stage.
    """
    if math.prod(shape) <= most:
        return None
    source, target = regular_grid(shape, source_chunks), regular_grid(shape, target_chunks)
    direct, inverse = BlockShapes(target, source_chunks), BlockShapes(source, target_chunks)
    passes = direct.passes(most)
    if passes <= _ENOUGH_PASSES:
        return None
    largest = zip(
        shape, source_chunks, inverse.within(most).counts, target_chunks, direct.within(most).counts, strict=True
    )
    chunks = tuple(min(n, chunk * count, other * others) for n, chunk, count, other, others in largest)
    chunks = _divide(chunks, max(most // _LEAST_PARTS, _FILE_ELEMENTS))
    stages = BlockShapes(regular_grid(shape, chunks), source_chunks), BlockShapes(target, chunks)
    cost = sum(stage.passes(most) for stage in stages) + _FILE_ELEMENTS / math.prod(chunks)
    return chunks if cost < passes else None


def _divide(chunks: Coords, most: int) -> Coords:
    """Divide chunks into equal parts until they have at most about ``most`` elements."""
    lengths = list(chunks)
    while math.prod(lengths) > most and max(lengths) > 1:
        factors = [(next((f for f in range(2, n + 1) if n % f == 0), n), -n) for n in lengths]
        factor, axis = min((factor, axis) for axis, factor in enumerate(factors) if lengths[axis] > 1)
        lengths[axis] //= factor[0]
    return tuple(lengths)


def _corners(grid: Grid, start: Coords | None, stop: Coords | None) -> tuple[Coords, Coords]:
    return start or (0,) * len(grid.axes), stop or tuple(axis.extent for axis in grid.axes)


def _cuts(axis: GridAxis, start: int, stop: int, count: int) -> list[slice]:
    """Cut a range of an axis into parts of ``count`` chunks."""
    if start >= stop:
        return []
    inner = [axis.start(chunk) for chunk in range(axis.find(start), axis.find(stop - 1) + 1, count)][1:]
    return list(map(slice, [start, *inner], [*inner, stop]))


def _axis_options(axis: GridAxis, start: int, stop: int, decoded: int, requested: int) -> list[BlockShape]:
    """Return the useful lengths of blocks along one axis, each with its cost.

    Args:
        axis: The axis of the array to write.
        start: The start of the region to write.
        stop: The end of the region.
        decoded: The length of the source's chunks.
        requested: The length of the source's stored values.
    """
    if start >= stop:
        return [BlockShape(1, Cost(1, 1, 1), (1,))]
    total = axis.find(stop - 1) - axis.find(start) + 1
    counts, blocks = {1}, 1
    while blocks <= total:
        counts.add(-(-total // blocks))
        blocks += 1 + blocks // 8
    if isinstance(axis, RegularAxis):  # blocks that do not cut chunks of the source
        counts |= {math.lcm(length, axis.chunk) // axis.chunk for length in (decoded, requested)}
    options = []
    for count in counts:
        if count <= total:
            length, starts = _block_starts(axis, start, stop, count)
            chunks, values = (_touched(starts, size, stop - start) for size in (decoded, requested))
            options.append(BlockShape(length, Cost(chunks, values, len(starts)), (count,)))
    return _useful(options)


def _block_starts(axis: GridAxis, start: int, stop: int, count: int) -> tuple[int, range | npt.NDArray[np.int64]]:
    """Return the length of the longest block of ``count`` chunks, and the distances of all blocks from the start."""
    if isinstance(axis, RegularAxis):
        length = count * axis.chunk
        return min(length, stop - start), range(0, stop - start, length)
    chunks = np.arange(axis.find(start), axis.find(stop - 1) + 1, count)
    starts = np.maximum(axis.start_all(chunks) - start, 0)
    return int(np.diff(starts, append=stop - start).max()), starts


def _touched(starts: range | npt.NDArray[np.int64], chunk: int, extent: int) -> int:
    """Return the number of pairs of a block and a chunk of the source that it touches, along one axis.

    The starts of blocks and chunks cut the axis into as many pieces. Starts that coincide count once.
    """
    if isinstance(starts, range):
        common = len(range(0, extent, math.lcm(starts.step, chunk)))
    else:
        common = int(np.count_nonzero(starts % chunk == 0))
    return len(starts) + len(range(0, extent, chunk)) - common


def _combine(one: BlockShape, other: BlockShape) -> BlockShape:
    """Return the shape of blocks whose axes are the axes of both shapes, in this order."""
    cost = Cost(*(a * b for a, b in zip(one.cost, other.cost, strict=True)))
    return BlockShape(one.elements * other.elements, cost, one.counts + other.counts)


def _useful(shapes: Iterable[BlockShape]) -> list[BlockShape]:
    """Return the shapes that cost less than all smaller ones, in the order of size. Of equal ones, the first remains."""
    useful: list[BlockShape] = []
    for shape in sorted(shapes, key=lambda shape: shape[:2]):
        if not useful or shape.cost < useful[-1].cost:
            useful.append(shape)
    return useful
