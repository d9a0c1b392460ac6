"""What is served: a hierarchy in a store, with what the server remembers of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync import config as settings
from zarrasync import stores
from zarrasync._calls import together
from zarrasync._runtime import codec_pool
from zarrasync.array import AsyncArray
from zarrasync.errors import NodeTypeError, UnsupportedOperation
from zarrasync.group import AsyncGroup
from zarrasync.hierarchy import ConfigLike, open
from zarrasync.keys import join, normalize_path
from zarrasync.regions import Part
from zarrasync.selection import AsyncSelection, Explanation
from zarrasync.server.cache import Cache
from zarrasync.server.limits import Limits, TooMuch

__all__ = ["Source"]

T = TypeVar("T")
Member = AsyncArray | AsyncGroup


class Source:
    """A hierarchy, its nodes for a while, and its decoded chunks as far as there is room.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The node of it that is the root of what is served.
        limits: What requests may cost.
        cache_bytes: Bytes of decoded chunks to remember.
        max_age: Seconds for which what was read is believed.
        storage_options: Options for the filesystem of a URL.
        config: Settings.

    Attributes:
        store: The store, counting what is asked of it.
        chunks: The decoded chunks.
    """

    def __init__(
        self,
        store: Any,
        *,
        path: str,
        limits: Limits,
        cache_bytes: int,
        max_age: float,
        storage_options: Mapping[str, Any] | None,
        config: ConfigLike,
    ) -> None:
        self.store = stores.CountingStore(stores.resolve(store, storage_options))
        self.path, self.limits, self.max_age = normalize_path(path), limits, max_age
        values = settings.resolve(config)
        self.config = replace(
            values,
            max_chunk_bytes=values.max_chunk_bytes or limits.max_chunk_bytes,
            max_document_bytes=min(values.max_document_bytes, limits.max_document_bytes),
        )
        self.chunks: Cache[npt.NDArray[Any]] = Cache(cache_bytes, max_age, lambda chunk: chunk.nbytes + 200)
        self._known: Cache[Any] = Cache(4096, max_age)
        self._marks: dict[str, tuple[Any, int]] = {}

    async def remember(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call gives, or has given a while ago."""
        found: T = await self._known.get(name, make)
        return found

    # -------------------------------------------------------------- nodes

    async def node(self, path: str) -> Member:
        """The node at a path.

        Raises:
            NodeNotFoundError: If there is none.
            InvalidKeyError: If it is no path.
        """
        path = normalize_path(path)
        return await self.remember(("node", path), lambda: self._open(path))

    async def _open(self, path: str) -> Member:
        if path:
            root = await self.node("")
            if isinstance(root, AsyncGroup):
                return await root.getitem(path)
        return await open(self.store, path=join(self.path, path), mode="r", config=self.config)

    async def array(self, path: str) -> AsyncArray:
        """The array at a path.

        Raises:
            NodeTypeError: If a group is there.
        """
        node = await self.node(path)
        if not isinstance(node, AsyncArray):
            raise NodeTypeError(f"{node.name} is a group, not an array", path=path, found="group", wanted="array")
        return node

    async def members(self, path: str) -> tuple[tuple[str, Member], ...] | None:
        """The members of a group by name; ``None`` where the store can not list them."""
        found = await self.remember(("members", normalize_path(path)), lambda: self._members(path, 0))
        return None if found is _UNKNOWN else found

    async def everything(self) -> tuple[tuple[str, Member], ...] | None:
        """All nodes below the root, if they can be listed and are not too many."""
        found = await self.remember("everything", lambda: self._members("", None))
        return None if found is _UNKNOWN or len(found) > self.limits.max_members else found

    async def _members(self, path: str, depth: int | None) -> Any:
        node = await self.node(path)
        try:
            return await node.members(depth) if isinstance(node, AsyncGroup) else ()
        except UnsupportedOperation:
            return _UNKNOWN

    # -------------------------------------------------------------- values

    def check(self, view: AsyncSelection, *, cells: bool = False) -> Explanation:
        """Complain about a selection that costs too much. Costs nothing itself.

        Args:
            view: The selection.
            cells: Whether each element is said in words.

        Returns:
            What it costs.

        Raises:
            TooMuch: If it exceeds the limits.
        """
        limits, plan = self.limits, view.explain()
        for found, most, what in (
            (view.size if cells else 0, limits.max_cells, "elements in words"),
            (plan.result_bytes, limits.max_result_bytes, "bytes"),
            (plan.decoded_bytes, limits.max_decoded_bytes, "bytes of chunks to decode"),
            (plan.chunks, limits.max_chunks, "chunks"),
        ):
            if found > most:
                raise TooMuch(f"the request is for {found:,} {what}, the limit is {most:,}")
        return plan

    async def read(self, view: AsyncSelection, finish: Callable[[npt.NDArray[Any]], T]) -> T:
        """What is made of the elements of a selection, on the threads that decode.

        Chunks come from what is remembered, or are read once for all who wait.

        Args:
            view: The selection.
            finish: Makes the answer of the values.

        Raises:
            TooMuch: If it exceeds the limits.
        """
        plan = self.check(view)
        if not view.size or view.dtype.hasobject or plan.decoded_bytes > self.chunks.max_size // 4:
            values = np.asarray(await view.read())
            return await self.work(partial(finish, values))
        array, layout = view.array, view._transform.layout
        parts = list(layout.region().split(array.metadata.read_grid))
        chunks = await self._gathered(array, parts)

        def place() -> T:
            buffer = np.empty(layout.buffer_shape, array.dtype)
            for part in parts:
                part.region.read(chunks[part.coords], buffer)
            result = layout.to_result(buffer)
            return finish(result if view._fields is None else result[view._fields])

        return await self.work(place)

    async def work(self, job: Callable[[], T]) -> T:
        """The result of something that keeps a processor busy, on the threads that decode."""
        return await asyncio.get_running_loop().run_in_executor(codec_pool(self.config), job)

    async def _gathered(self, array: AsyncArray, parts: list[Part]) -> dict[tuple[int, ...], npt.NDArray[Any]]:
        """The chunks of parts, by their coordinates."""
        mark = self._mark(array)
        found = {part.coords: self.chunks.find((mark, part.coords)) for part in parts}
        missing = [at for at, chunk in found.items() if chunk is None]
        self.chunks.hits += len(found) - len(missing)
        if not missing:
            return {at: chunk for at, chunk in found.items() if chunk is not None}
        low, high = tuple(map(min, zip(*missing, strict=True))), tuple(map(max, zip(*missing, strict=True)))
        if array.ndim and math.prod(b - a + 1 for a, b in zip(low, high, strict=True)) == len(missing) > 1:
            # A box of chunks is one read, which knows which of them lie together.
            self.chunks.misses += len(missing)
            made = await self._box(array, mark, low, high)
        else:
            calls = [lambda at=at: self.chunks.get((mark, at), lambda: self._chunk(array, at)) for at in missing]
            made = dict(zip(missing, await together(calls), strict=True))
        return {at: made[at] if chunk is None else chunk for at, chunk in found.items()}

    def _mark(self, array: AsyncArray) -> tuple[str, int]:
        """The name of an array's chunks: another one when its metadata was read anew, as its shape may have changed."""
        metadata, number = self._marks.get(array.path, (None, 0))
        if metadata is not array.metadata:
            number += 1
            self._marks[array.path] = array.metadata, number
        return array.path, number

    async def _box(
        self, array: AsyncArray, mark: Hashable, low: tuple[int, ...], high: tuple[int, ...]
    ) -> dict[tuple[int, ...], npt.NDArray[Any]]:
        """All chunks of a box of the grid, read together."""

        async def read() -> dict[tuple[int, ...], npt.NDArray[Any]]:
            grid = array.metadata.read_grid
            starts = [axis.start(a) for axis, a in zip(grid.axes, low, strict=True)]
            stops = [min(axis.start(b) + axis.size(b), axis.extent) for axis, b in zip(grid.axes, high, strict=True)]
            block = np.asarray(await array.view[tuple(map(slice, starts, stops))].read())
            made = {}
            for at in product(*(range(a, b + 1) for a, b in zip(low, high, strict=True))):
                cut = tuple(
                    slice(axis.start(i) - start, axis.start(i) - start + axis.size(i))
                    for axis, i, start in zip(grid.axes, at, starts, strict=True)
                )
                made[at] = block[cut].copy()
                self.chunks.keep((mark, at), made[at])
            return made

        return await self.chunks.share((mark, low, high), read)

    async def _chunk(self, array: AsyncArray, at: tuple[int, ...]) -> npt.NDArray[Any]:
        grid = array.metadata.read_grid
        starts = [axis.start(i) for axis, i in zip(grid.axes, at, strict=True)]
        stops = [min(start + axis.size(i), axis.extent) for axis, i, start in zip(grid.axes, at, starts, strict=True)]
        return np.asarray(await array.view[(*map(slice, starts, stops), ...)].read())

    async def close(self) -> None:
        """Let go of the store's connections."""
        await self.store.close()


_UNKNOWN = object()
