"""Tasks of a plan that write boxes of arrays, and the sizes of their reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zarrasync.indexing.axis_cuts import count_touched
from zarrasync.indexing.block_shapes import BlockShapes
from zarrasync.indexing.regions import Region, corners, region_text
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import Grid

UNSIZED_BYTES = 16
"""Assumed size in bytes of an element whose data type has no fixed size."""
_TASK_BYTES = 256 << 20
"""The decoded size of what a task reads, unless a single stored value needs more or there would be too many tasks."""
_MOST_TASKS = 10_000


class Box(NamedTuple):
    """A part of one array.

    Attributes:
        array: The path of the array, relative to the node of the plan.
        start: The first index along each axis.
        stop: The index after the last one along each axis.
    """

    array: str
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def region(self) -> Region:
        """The part as slices."""
        return tuple(map(slice, self.start, self.stop))

    def within(self, shape: Sequence[int]) -> Region | None:
        """Return the part of an array of a shape; ``None`` for all of it."""
        return None if self.stop == tuple(shape) and not any(self.start) else self.region

    def __str__(self) -> str:
        return f"/{self.array}[{region_text(self.region)}]"


class Sizes(NamedTuple):
    """What a task reads and writes.

    Attributes:
        source: The decoded size of the values that it needs, in bytes.
        read: The decoded size of the chunks that contain them, in bytes.
        written: The decoded size of the values that it writes, in bytes.
        requests: About how many requests it makes.
    """

    source: int
    read: int
    written: int
    requests: int

    @property
    def memory(self) -> int:
        """The size of the values that it has in memory, in bytes: also those that it reduces."""
        return self.written if self.source <= self.written else self.source + self.written


class Output(NamedTuple):
    """An array that tasks write.

    Attributes:
        path: Its path, relative to the node of the plan.
        source: The metadata of the array that they read.
        target: Its metadata.
        factors: The number of elements of the source along each axis that become one.
    """

    path: str
    source: ArrayMetadata
    target: ArrayMetadata
    factors: Sequence[int]


def make_tasks(stages: Sequence[Sequence[Output]], count: int) -> tuple[list[list[Box]], list[Sizes]]:
    """Return the boxes of each task, and the sizes of its reads and writes. Small boxes of one stage share a task.

    Args:
        stages: The arrays of each stage.
        count: About how many tasks to make; 0 for a number that suits the size.
    """
    total = sum(_nbytes(item) for stage in stages for item in stage)
    size = max(1, -(-total // count)) if count else max(_TASK_BYTES, total // _MOST_TASKS)
    boxes: list[list[Box]] = []
    sizes: list[Sizes] = []
    for stage in stages:
        first = len(boxes)
        for box, own in _boxes(stage, size):
            if len(boxes) > first and sizes[-1].source + own.source <= size:
                boxes[-1].append(box)
                sizes[-1] = Sizes(*map(sum, zip(sizes[-1], own, strict=True)))
            else:
                boxes.append([box])
                sizes.append(own)
    return boxes, sizes


def _boxes(stage: Sequence[Output], size: int) -> Iterator[tuple[Box, Sizes]]:
    """Yield boxes of whole stored values for which at most a number of bytes is read, unless one needs more."""
    for path, source, target, factors in stage:
        itemsize, cell = _itemsize(target), math.prod(factors)
        shapes = [zip(shape, factors, strict=True) for shape in (source.chunks, source.write_chunks)]
        near = [tuple(max(1, n // factor) for n, factor in pairs) for pairs in shapes]
        for region in BlockShapes(target.grid, *near).blocks(size // (itemsize * cell)):
            needed = finer_region(region, factors, source.shape)
            (reads, read), (writes, _) = _touched(needed, source.grid), _touched(region, target.grid)
            volume, written = (math.prod(part.stop - part.start for part in parts) for parts in (needed, region))
            sizes = Sizes(volume * itemsize, read * itemsize, written * itemsize, reads + writes)
            yield Box(path, *corners(region)), sizes


def finer_region(region: Region, factors: Sequence[int], shape: Sequence[int]) -> Region:
    """Return the region of an array whose elements become a region of a coarser one.

    Args:
        region: The region of the coarser array.
        factors: The number of elements along each axis that become one.
        shape: The shape of the array.
    """
    items = zip(region, factors, shape, strict=True)
    return tuple(slice(part.start * factor, min(part.stop * factor, n)) for part, factor, n in items)


def _touched(region: Region, grid: Grid) -> tuple[int, int]:
    """Return how many chunks a region touches, and how many elements they have."""
    counts = [count_touched(part, axis) for part, axis in zip(region, grid.axes, strict=True)]
    return math.prod(count for count, _ in counts), math.prod(elements for _, elements in counts)


def _nbytes(output: Output) -> int:
    """Return the decoded size of what tasks read for an array, in bytes."""
    return math.prod(output.target.shape) * math.prod(output.factors) * _itemsize(output.target)


def _itemsize(metadata: ArrayMetadata) -> int:
    return metadata.dtype.itemsize or UNSIZED_BYTES
