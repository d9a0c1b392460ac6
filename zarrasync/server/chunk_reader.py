"""Reading selections through a cache of decoded chunks, within limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.pools import codec_pool
from zarrasync.display.explanation import Explanation
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.split import split_chunks
from zarrasync.nodes.access import array_of, fields_of, transform_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.cache import Cache
from zarrasync.server.hierarchy import Hierarchy
from zarrasync.server.limits import TooMuch

__all__ = ["ChunkReader"]

T = TypeVar("T")
Coords = tuple[int, ...]
Chunks = dict[Coords, npt.NDArray[Any]]


class ChunkReader:
    """Reads selections of a hierarchy's arrays, and caches decoded chunks.

    Args:
        hierarchy: The hierarchy.
        cache_bytes: Bytes of decoded chunks to cache.

    Attributes:
        cache: The decoded chunks.
    """

    def __init__(self, hierarchy: Hierarchy, cache_bytes: int) -> None:
        self._hierarchy, self._limits = hierarchy, hierarchy.limits
        self.cache: Cache[npt.NDArray[Any]] = Cache(cache_bytes, hierarchy.max_age, lambda chunk: chunk.nbytes + 200)

    def check(self, view: AsyncSelection, *, as_text: bool = False, itemsize: int = 0) -> Explanation:
        """Check a selection against the limits, without reading anything.

        Args:
            view: The selection.
            as_text: Whether the response formats the elements, as JSON or CSV.
            itemsize: The bytes of an element of the response, if it is larger than a stored element.

        Returns:
            The chunks and bytes that it touches.

        Raises:
            TooMuch: If it exceeds the limits.
        """
        limits = self._limits
        _check_limit(view.size if as_text else 0, limits.max_cells, "formatted elements")
        _check_limit(max(view.nbytes, view.size * itemsize), limits.max_result_bytes, "bytes")
        explanation = view.explain()
        _check_limit(explanation.decoded_bytes, limits.max_decoded_bytes, "bytes of chunks to decode")
        _check_limit(explanation.chunks, limits.max_chunks, "chunks")
        return explanation

    async def read(self, view: AsyncSelection, render: Callable[[npt.NDArray[Any]], T]) -> T:
        """Return the rendered values of a selection. Concurrent requests for a chunk read it once.

        Args:
            view: The selection.
            render: Renders the values, on a codec thread.

        Raises:
            TooMuch: If the selection exceeds the limits.
        """
        explanation = self.check(view)
        is_variable = view.dtype.kind in "OT" or view.dtype.hasobject
        if not view.size or is_variable or explanation.decoded_bytes > self.cache.max_size // 4:
            values = np.asarray(await view.read())
            if values.dtype.kind in "OT":  # their size is unknown until they are read
                _check_limit(_fixed_length_bytes(values), self._limits.max_result_bytes, "bytes")
            return await self._compute(partial(render, values))
        array, layout, fields = array_of(view), transform_of(view).layout, fields_of(view)
        runs = split_chunks(layout.projection(), array.metadata.read_grid)
        chunks = await self._chunks(array, runs)

        def place_and_render() -> T:
            buffer = np.empty(layout.buffer_shape, array.dtype)
            for run in runs:
                run.projection.read(chunks[run.coords], buffer)
            values = layout.to_result(buffer)
            return render(values if fields is None else values[fields])

        return await self._compute(place_and_render)

    async def _compute(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(codec_pool(self._hierarchy.config), function)

    async def _chunks(self, array: AsyncArray, runs: Sequence[ChunkRun]) -> Chunks:
        """Return decoded chunks by their coordinates."""
        version = self._hierarchy.version_key(array)
        cached = {run.coords: self.cache.find((version, run.coords)) for run in runs}
        missing = [coords for coords, chunk in cached.items() if chunk is None]
        present = {coords: chunk for coords, chunk in cached.items() if chunk is not None}
        self.cache.hits += len(present)
        if not missing:
            return present
        self.cache.misses += len(missing)
        first, last = tuple(map(min, zip(*missing, strict=True))), tuple(map(max, zip(*missing, strict=True)))
        if math.prod(b - a + 1 for a, b in zip(first, last, strict=True)) == len(missing):
            boxes = [await self._read_box(array, version, first, last)]  # one read combines adjacent byte ranges
        else:
            boxes = await gather([partial(self._read_box, array, version, coords, coords) for coords in missing])
        return present | {coords: chunk for box in boxes for coords, chunk in box.items()}

    async def _read_box(self, array: AsyncArray, version: Hashable, first: Coords, last: Coords) -> Chunks:
        """Read all chunks of a box of the grid together."""

        async def read() -> Chunks:
            grid = array.metadata.read_grid
            region = grid.box(first, last)
            block = np.asarray(await array.view[(*region, ...)].read())
            chunks = {}
            for coords in product(*(range(a, b + 1) for a, b in zip(first, last, strict=True))):
                parts = zip(grid.box(coords), region, strict=True)
                inside: tuple[Any, ...] = tuple(slice(s.start - r.start, s.stop - r.start) for s, r in parts)
                chunks[coords] = block[(*inside, ...)].copy(order="K")
                self.cache.put((version, coords), chunks[coords])
            return chunks

        return await self.cache.share((version, first, last), read)


def _check_limit(number: int, limit: int, unit: str) -> None:
    if number > limit:
        raise TooMuch(f"the request needs {number:,} {unit}, more than the limit of {limit:,}")


def _fixed_length_bytes(values: npt.NDArray[Any]) -> int:
    """Return the bytes of variable-length values in an array of fixed-length ones."""
    lengths = [len(item) if hasattr(item, "__len__") else 8 for item in values.reshape(-1).tolist()]
    return 4 * max(lengths, default=0) * len(lengths)
