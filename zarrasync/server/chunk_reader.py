"""Reading selections through a cache of decoded chunks, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.offload import codec_pool, run_in_worker
from zarrasync.nodes.access import array_of, chunks_of, fields_of, transform_of
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.hierarchy import Hierarchy
from zarrasync.server.limits import TooMuch
from zarrasync.transfer.chunk_cache import ChunkCache

T = TypeVar("T")
_FEW = 1 << 12
"""Elements of a selection that is checked on the thread of the event loop."""


class _Unwritten(NamedTuple):
    """Values that all equal the fill value, such as the values of a deleted array."""

    values: npt.NDArray[Any]


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
        self.cache = ChunkCache(cache_bytes, hierarchy.max_age)

    def check(self, view: AsyncSelection, *, as_text: bool = False, itemsize: int = 0) -> None:
        """Check a selection against the limits, without reading anything.

        Args:
            view: The selection.
            as_text: Whether the response formats the elements, as JSON or CSV.
            itemsize: The bytes of an element of the response, if it is larger than a stored element.

        Raises:
            TooMuch: If it exceeds the limits.
        """
        limits = self._limits
        _check_limit(view.size if as_text else 0, limits.max_cells, "formatted elements")
        _check_limit(max(view.nbytes, view.size * itemsize), limits.max_result_bytes, "bytes")
        explanation = view.explain()
        _check_limit(explanation.decoded_bytes, limits.max_decoded_bytes, "bytes of chunks to decode")
        _check_limit(explanation.chunks, limits.max_chunks, "chunks")

    def check_memory(self, count: int, itemsize: int, what: str) -> None:
        """Check the memory to compute with elements against the limit of decoded bytes.

        Raises:
            TooMuch: If it is larger.
        """
        _check_limit(count, self._limits.max_decoded_bytes // itemsize, what)

    async def read(self, view: AsyncSelection, render: Callable[[npt.NDArray[Any]], T]) -> T:
        """Return the rendered values of a selection. Concurrent requests for a chunk read it once.

        Args:
            view: The selection.
            render: Renders the values, on another thread.

        Raises:
            TooMuch: If the selection exceeds the limits.
            NodeNotFoundError: If the array has been deleted.
        """
        if view.size > _FEW:
            await self.compute(partial(self.check, view))
        else:
            self.check(view)
        array, chunks, transform = array_of(view), chunks_of(array_of(view)), transform_of(view)
        finish = partial(self._rendered, chunks.metadata.chain.spec.scalar, render)
        if self.cache.suits(chunks, transform) and not chunks.unproven:
            result = await self.compute(partial(finish, await self.cache.read(chunks, transform, fields_of(view))))
        elif chunks.store.blocking:

            async def read_and_render() -> T | _Unwritten:  # on one thread, while a cache of its core has the values
                return finish(np.asarray(await view.read()))

            result = await run_in_worker(read_and_render, computing=chunks.store.is_local)
        else:
            result = await self.compute(partial(finish, np.asarray(await view.read())))
        if not isinstance(result, _Unwritten):
            return result
        await self._hierarchy.confirm(array)
        return await self.compute(partial(render, result.values))

    def _rendered(
        self, fill_value: Any, render: Callable[[npt.NDArray[Any]], T], values: npt.NDArray[Any]
    ) -> T | _Unwritten:
        """Return the rendered values, unless all are the fill value."""
        if values.dtype.kind in "OT":  # their size is unknown until they are read
            _check_limit(_fixed_length_bytes(values), self._limits.max_result_bytes, "bytes")
        elif values.size and values.dtype.names is None and _is_all(values.reshape(-1)[:1], fill_value):
            return _Unwritten(values) if _is_all(values, fill_value) else render(values)
        return render(values)

    async def compute(self, function: Callable[[], T]) -> T:
        """Return the result of a function, which runs on a codec thread."""
        return await asyncio.get_running_loop().run_in_executor(codec_pool(self._hierarchy.config), function)


def _check_limit(number: int, limit: int, unit: str) -> None:
    if number > limit:
        raise TooMuch(f"the request needs {number:,} {unit}, more than the limit of {limit:,}; select fewer elements")


def _is_all(values: npt.NDArray[Any], fill_value: Any) -> bool:
    """Return whether all values are the fill value, which may be NaN."""
    return bool(np.all(values == fill_value if fill_value == fill_value else values != values))


def _fixed_length_bytes(values: npt.NDArray[Any]) -> int:
    """Return the bytes of variable-length values in an array of fixed-length ones."""
    if values.dtype.kind == "T" and not hasattr(values.dtype, "na_object"):
        return 4 * int(np.strings.str_len(values).max(initial=0)) * values.size
    lengths = [len(item) if hasattr(item, "__len__") else 8 for item in values.reshape(-1).tolist()]
    return 4 * max(lengths, default=0) * len(lengths)
