"""The blocks of a source: the regions of an array that they are written to, and the blocks to skip."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any

from zarrasync.bulk.sources import Source
from zarrasync.config import Config
from zarrasync.errors import ShapeError
from zarrasync.indexing.chunk_blocks import plan_blocks, plan_chosen_blocks, whole_block
from zarrasync.indexing.coverage import partial_chunks, touched_chunks
from zarrasync.indexing.regions import Region, resolve_corners, split_region
from zarrasync.nodes.access import stored_chunks
from zarrasync.nodes.array import AsyncArray

__all__ = ["BlockPlan", "memory_limit"]

_SPARSE = 8
"""If fewer than one in this many stored values are written, the plan visits only those."""
_UNSIZED_BYTES = 16
"""Assumed size in bytes of an element whose data type has no fixed size."""


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
        self.start, self.stop = resolve_corners(source.shape, target.shape, region)
        self.nbytes = math.prod(source.shape) * max(target.dtype.itemsize, 1)
        self._stored: set[tuple[int, ...]] = set()

    async def leave_out_stored(self) -> None:
        """Skip blocks that an earlier run has stored. Lists the keys of the array."""
        # Stored values that the region covers in part may come from other writers.
        cut = partial_chunks(tuple(map(slice, self.start, self.stop)), self._target.metadata.grid)
        self._stored = await stored_chunks(self._target) - set(cut)

    # -------------------------------------------------------------- memory

    @property
    def memory_limit(self) -> int:
        """Maximum bytes of blocks in memory at a time."""
        return memory_limit(self._target.config)

    def fit_memory(self, concurrency: int) -> int:
        """Return the number of smallest blocks to write at a time, at most ``concurrency``.

        A few blocks that contain whole chunks of the source are better than many that share them, because each block
        reads and decodes its chunks of the source. The threads then share the chunks of each block.
        """
        if self._source.in_memory:  # blocks are views
            return concurrency
        unit = self._whole_bytes or max(self._target.metadata.chain.nbytes, 1)
        return max(1, min(concurrency, self.memory_limit // unit))

    @cached_property
    def _whole_bytes(self) -> int:
        """Bytes of the smallest block that contains whole chunks of the source; 0 if memory does not suffice for it."""
        extent = [b - a for a, b in zip(self.start, self.stop, strict=True)]
        shape = whole_block(self._target.metadata.grid, self._source.chunks, extent)
        nbytes = 0 if shape is None else math.prod(shape) * (self._target.dtype.itemsize or _UNSIZED_BYTES)
        return nbytes if nbytes <= self.memory_limit else 0

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
        grid, dtype, chosen = self._target.metadata.grid, self._target.metadata.dtype, self._chosen
        itemsize = dtype.itemsize or _UNSIZED_BYTES
        most = self._target.config.memory_budget // (4 * concurrency) // itemsize
        if concurrency * self._whole_bytes <= self.memory_limit:
            most = max(most, self._whole_bytes // itemsize)
        corners = self.start, self.stop
        if chosen is not None and len(chosen) < grid.size // _SPARSE:
            blocks = list(plan_chosen_blocks(grid, chosen, self._source.chunks, most, *corners))
            skip(self.nbytes - sum(map(self.size, blocks)))
            yield from blocks
            return
        for block in plan_blocks(grid, self._source.chunks, most, *corners, concurrency):
            yield from self._remaining_parts(block, skip)

    def _remaining_parts(self, block: Region, skip: Callable[[int], None]) -> Iterator[Region]:
        """Yield a block, or only the parts of it that must be written, one per stored value."""
        if not self._stored and self._chosen is None:
            yield block
            return
        parts = dict(split_region(block, self._target.metadata.grid))
        chosen = [coords for coords in parts if self._chosen is None or coords in self._chosen]
        stored = sum(coords in self._stored for coords in chosen)
        if len(chosen) == len(parts) and stored in (0, len(parts)):
            yield block
            return
        skip(self.size(block) - sum(self.size(parts[coords]) for coords in chosen))
        yield from (parts[coords] for coords in chosen)

    def is_stored(self, region: Region) -> bool:
        """Return whether an earlier run has stored all of a region. Always false if the region cuts stored values."""
        if not self._stored:
            return False
        grid = self._target.metadata.grid
        if any(True for _ in partial_chunks(region, grid)):
            return False
        return all(coords in self._stored for coords in touched_chunks(region, grid))

    def to_source(self, region: Region) -> Region:
        """Return the region of the source that is written to a region of the array."""
        return tuple(slice(part.start - a, part.stop - a) for part, a in zip(region, self.start, strict=True))

    def to_target(self, region: Any) -> Region:
        """Return the region of the array for a region of the source that a user passed.

        Raises:
            ShapeError: If the region is not a tuple of slices without steps.
        """
        parts = region if isinstance(region, tuple) else (region,)
        if len(parts) != len(self._source.shape) or not all(isinstance(part, slice) for part in parts):
            raise ShapeError(
                f"the region of a block must be a tuple of {len(self._source.shape)} slices, found {region!r}"
            )
        slices = []
        for part, n, offset in zip(parts, self._source.shape, self.start, strict=True):
            start, stop, step = part.indices(n)
            if step != 1:
                raise ShapeError(f"the slices of a block's region must have step 1, found {region!r}")
            slices.append(slice(start + offset, max(start, stop) + offset))
        return tuple(slices)
