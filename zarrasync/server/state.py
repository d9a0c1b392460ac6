"""What is served: a hierarchy in a store, with what the server remembers of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync import config as settings
from zarrasync import stores
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.pools import codec_pool
from zarrasync.display.explanation import Explanation
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, UnsupportedOperation
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.split import split_chunks
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import array_of, fields_of, handle_of, transform_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open as open_node
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.cache import Cache
from zarrasync.server.limits import BadQuery, Limits, TooMuch

__all__ = ["Broken", "Source"]

T = TypeVar("T")
Member = AsyncArray | AsyncGroup
_DEEPEST = 64
"""Parts of a path; each more costs whoever looks for what is not there."""
_VERSIONS = 4
"""Versions of an array's metadata that are told apart: who holds an older one may go on with it."""


@dataclass(frozen=True)
class Broken:
    """A member whose documents make no sense.

    Attributes:
        name: Its name.
        message: What is wrong with it.
    """

    name: str
    message: str


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
            max_chunk_bytes=min(values.max_chunk_bytes or limits.max_chunk_bytes, limits.max_chunk_bytes),
            max_document_bytes=min(values.max_document_bytes, limits.max_document_bytes),
        )
        self.chunks: Cache[npt.NDArray[Any]] = Cache(cache_bytes, max_age, lambda chunk: chunk.nbytes + 200)
        self._known: Cache[Any] = Cache(1024, max_age)
        self._marks: dict[str, list[tuple[int, ArrayMetadata]]] = {}

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
        if path.count("/") >= _DEEPEST:
            raise BadQuery(f"paths have at most {_DEEPEST} parts")
        return await self.remember(("node", path), lambda: self.open(path))

    async def open(self, path: str) -> Member:
        """The node at a path, as it is now.

        Raises:
            NodeNotFoundError: If there is none.
        """
        if path and isinstance(root := await self.remember("root", self._root), AsyncGroup):
            return await root.getitem(path)  # in the root's format: that costs its own documents alone
        return await open_node(self.store, path=join(self.path, path), mode="r", config=self.config)

    async def _root(self) -> Member | None:
        try:
            return await self.node("")
        except NodeNotFoundError:
            return None  # arrays may lie in a store without one

    async def array(self, path: str) -> AsyncArray:
        """The array at a path.

        Raises:
            NodeTypeError: If a group is there.
        """
        node = await self.node(path)
        if not isinstance(node, AsyncArray):
            raise NodeTypeError(f"{node.name} is a group, not an array", path=path, found="group", wanted="array")
        return node

    async def members(self, path: str) -> tuple[tuple[str, Member | Broken], ...] | None:
        """The members of a group by name; ``None`` where the store can not list them."""
        found = await self.remember(("members", normalize_path(path)), lambda: self._members(path))
        return None if found is _UNKNOWN else found

    async def everything(self) -> tuple[tuple[str, Member], ...] | None:
        """All nodes below the root that can be read, if they can be listed and are not too many."""
        found = await self.remember("everything", self._everything)
        return None if found is _UNKNOWN else found

    async def _everything(self) -> Any:
        found: list[tuple[str, Member]] = []
        level = [""]
        while level:
            listed = await gather([partial(self._members, path) for path in level])
            below: list[tuple[str, Member]] = []
            for path, members in zip(level, listed, strict=True):
                if members is _UNKNOWN or len(found) + len(members) > self.limits.max_members:
                    return _UNKNOWN
                below.extend((join(path, name), node) for name, node in members if not isinstance(node, Broken))
            found.extend(below)
            level = [path for path, node in below if isinstance(node, AsyncGroup)]
        return tuple(found)

    async def _members(self, path: str) -> Any:
        """The members of a group; those whose documents make no sense among them, so that the others can be seen."""
        node = await self.node(path)
        if not isinstance(node, AsyncGroup):
            return ()
        try:
            return await node.members()
        except UnsupportedOperation:
            return _UNKNOWN
        except MetadataError:
            names = await run_on_store(partial(handle_of(node).children, 0), self.store)
            return tuple(zip(names, await gather([partial(self._member, node, name) for name in names]), strict=True))

    async def _member(self, group: AsyncGroup, name: str) -> Member | Broken:
        try:
            return await group.getitem(name)
        except (MetadataError, NodeNotFoundError) as error:
            return Broken(name, str(error))

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
        limits = self.limits
        _refuse_over(view.size if cells else 0, limits.max_cells, "elements in words")
        _refuse_over(view.nbytes, limits.max_result_bytes, "bytes")
        plan = view.explain()
        _refuse_over(plan.decoded_bytes, limits.max_decoded_bytes, "bytes of chunks to decode")
        _refuse_over(plan.chunks, limits.max_chunks, "chunks")
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
        if (
            not view.size
            or view.dtype.kind in "OT"
            or view.dtype.hasobject
            or plan.decoded_bytes > self.chunks.max_size // 4
        ):
            values = np.asarray(await view.read())
            if values.dtype.kind in "OT":  # whose size is known only now
                _refuse_over(_text_bytes(values), self.limits.max_result_bytes, "bytes")
            return await self.work(partial(finish, values))
        array, layout = array_of(view), transform_of(view).layout
        parts = split_chunks(layout.projection(), array.metadata.read_grid)
        chunks = await self._gathered(array, parts)

        def place() -> T:
            buffer = np.empty(layout.buffer_shape, array.dtype)
            for part in parts:
                part.projection.read(chunks[part.coords], buffer)
            result = layout.to_result(buffer)
            fields = fields_of(view)
            return finish(result if fields is None else result[fields])

        return await self.work(place)

    async def work(self, job: Callable[[], T]) -> T:
        """The result of something that keeps a processor busy, on the threads that decode."""
        return await asyncio.get_running_loop().run_in_executor(codec_pool(self.config), job)

    async def _gathered(self, array: AsyncArray, parts: list[ChunkRun]) -> dict[tuple[int, ...], npt.NDArray[Any]]:
        """The chunks of parts, by their coordinates."""
        mark = self.mark(array)
        found = {part.coords: self.chunks.find((mark, part.coords)) for part in parts}
        missing = [at for at, chunk in found.items() if chunk is None]
        self.chunks.hits += len(found) - len(missing)
        if not missing:
            return {at: chunk for at, chunk in found.items() if chunk is not None}
        low, high = tuple(map(min, zip(*missing, strict=True))), tuple(map(max, zip(*missing, strict=True)))
        self.chunks.misses += len(missing)
        if math.prod(b - a + 1 for a, b in zip(low, high, strict=True)) == len(missing):
            made = await self._box(array, mark, low, high)  # one read, which knows which chunks lie together
        else:
            boxes = await gather([partial(self._box, array, mark, at, at) for at in missing])
            made = {at: chunk for box in boxes for at, chunk in box.items()}
        return {at: made[at] if chunk is None else chunk for at, chunk in found.items()}

    def mark(self, array: AsyncArray) -> tuple[str, int]:
        """The name of an array's chunks: another one when its metadata was read anew, as its shape may have changed."""
        known = self._marks.setdefault(array.path, [])
        for number, metadata in known:
            if metadata is array.metadata or metadata == array.metadata:
                return array.path, number
        known.append((known[-1][0] + 1 if known else 0, array.metadata))
        del known[:-_VERSIONS]
        return array.path, known[-1][0]

    async def _box(
        self, array: AsyncArray, mark: Hashable, low: tuple[int, ...], high: tuple[int, ...]
    ) -> dict[tuple[int, ...], npt.NDArray[Any]]:
        """All chunks of a box of the grid, read together."""

        async def read() -> dict[tuple[int, ...], npt.NDArray[Any]]:
            grid = array.metadata.read_grid
            box = grid.box(low, high)
            block = np.asarray(await array.view[(*box, ...)].read())
            made = {}
            for at in product(*(range(a, b + 1) for a, b in zip(low, high, strict=True))):
                own = zip(grid.box(at), box, strict=True)
                cut: tuple[Any, ...] = tuple(slice(s.start - b.start, s.stop - b.start) for s, b in own)
                made[at] = block[(*cut, ...)].copy(order="K")
                self.chunks.keep((mark, at), made[at])
            return made

        return await self.chunks.share((mark, low, high), read)

    async def close(self) -> None:
        """Let go of the store's connections."""
        await self.store.close()


_UNKNOWN = object()


def _refuse_over(found: int, most: int, what: str) -> None:
    if found > most:
        raise TooMuch(f"the request is for {found:,} {what}, the limit is {most:,}")


def _text_bytes(values: npt.NDArray[Any]) -> int:
    """Bytes that values of any length take in an array where all are as long as the longest."""
    lengths = [len(item) if hasattr(item, "__len__") else 8 for item in values.reshape(-1).tolist()]
    return 4 * max(lengths, default=0) * len(lengths)
