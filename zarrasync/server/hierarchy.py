"""The served hierarchy and its nodes, which are read again after some time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from zarrasync import config as settings
from zarrasync import stores
from zarrasync._concurrency.gather import gather
from zarrasync.errors import NodeNotFoundError, NodeTypeError, StoreError, UnsupportedOperation, ZarrError
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import readable_members
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open as open_node
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.server.cache import Cache
from zarrasync.server.limits import BadQuery, Limits

T = TypeVar("T")
Member = AsyncArray | AsyncGroup
_MOST_PARTS = 64
"""Maximum number of parts of a path. Looking for a missing node takes requests for each part."""
_MOST_VERSIONS = 4
"""Number of versions of an array's metadata that are kept, because running requests may use an older one."""
_CACHE_BYTES = 64 << 20
"""Memory for cached nodes with their coordinates and other facts that were read."""
_LEAST_BYTES = _CACHE_BYTES >> 10
"""The least memory that the cache counts per object."""
_MOST_CONFIRMED, _CONFIRMED_SECONDS = 1000, 1.0
"""Arrays that are known to exist, and for how many seconds."""
_NODE_BYTES = 2048
"""Memory of a node without its coordinates."""


class Hierarchy:
    """A hierarchy whose nodes are cached for some time.

    Args:
        store: The store.
        path: The path of the node that is the root of the served hierarchy.
        limits: Limits of requests.
        max_age: Seconds for which nodes are not read again.
        config: Settings.

    Attributes:
        store: The store, which counts requests.
    """

    def __init__(
        self,
        store: stores.Store,
        *,
        path: str,
        limits: Limits,
        max_age: float,
        config: ConfigLike,
    ) -> None:
        self.store = stores.CountingStore(store)
        self.path, self.limits, self.max_age = normalize_path(path), limits, max_age
        values = settings.resolve(config)
        self.config = replace(
            values,
            max_chunk_bytes=min(values.max_chunk_bytes or limits.max_chunk_bytes, limits.max_chunk_bytes),
            max_document_bytes=min(values.max_document_bytes, limits.max_document_bytes),
            chunk_cache_bytes=0,  # the server has a cache with its own limits
            max_read_bytes=min(values.max_read_bytes or limits.max_decoded_bytes, limits.max_decoded_bytes),
        )
        self._cache: Cache[Any] = Cache(_CACHE_BYTES, max_age, _size_of)
        self._confirmed: Cache[Member] = Cache(_MOST_CONFIRMED, min(max_age, _CONFIRMED_SECONDS))
        self._versions: dict[str, list[tuple[int, ArrayMetadata]]] = {}

    async def cached(self, key: Hashable, compute: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a call, or the result of an earlier call with the same key."""
        value: T = await self._cache.get(key, compute)
        return value

    async def close(self) -> None:
        """Close the store's connections."""
        await self.store.close()

    # -------------------------------------------------------------- nodes

    async def node(self, path: str) -> Member:
        """Return the node at a path.

        Raises:
            NodeNotFoundError: If it does not exist.
            InvalidKeyError: If the path is invalid.
        """
        path = normalize_path(path)
        if path.count("/") >= _MOST_PARTS:
            raise BadQuery(f"a path may have at most {_MOST_PARTS} parts")
        return await self.cached(("node", path), lambda: self.open(path))

    async def open(self, path: str) -> Member:
        """Open the node at a path without the cache.

        Raises:
            NodeNotFoundError: If it does not exist.
        """
        return await self._open_below(await self.cached("root", partial(self.find, "")) if path else None, path)

    async def _open_below(self, root: Member | None, path: str) -> Member:
        if isinstance(root, AsyncGroup):
            return await root.getitem(path)  # in the root's format, which takes fewer requests than detecting it
        return await open_node(self.store, path=join(self.path, path), mode="r", config=self.config)

    async def confirm(self, array: AsyncArray) -> None:
        """Check that an array still exists, as absent chunks of a deleted one have the fill value.

        Raises:
            NodeNotFoundError: If it does not exist.
        """
        path = self.relative_path(array)

        async def look() -> Member:
            root = None
            if path:
                with suppress(NodeNotFoundError):  # a store may contain arrays without a group
                    root = await self._open_below(None, "")
            return await self._open_below(root, path)

        await self._confirmed.get(path, look)

    async def find(self, path: str) -> Member | None:
        """Return the node at a path; ``None`` if it does not exist, as the root of a store of arrays without a group."""
        try:
            return await self.node(path)
        except NodeNotFoundError:
            return None

    async def array(self, path: str) -> AsyncArray:
        """Return the array at a path.

        Raises:
            NodeTypeError: If it is a group.
        """
        node = await self.node(path)
        if not isinstance(node, AsyncArray):
            raise NodeTypeError(f"{node.name} is a group, not an array", path=path, found="group", wanted="array")
        return node

    def may_recover(self, error: ZarrError) -> bool:
        """Return whether a node may exist in spite of an error, because the store may respond to the next request.

        Local files do not recover: links that lead outside of the directory, or files of other kinds.
        """
        return isinstance(error, StoreError) and not self.store.is_local

    def relative_path(self, array: AsyncArray) -> str:
        """Return the path of an array relative to the root."""
        return array.path[len(self.path) + 1 :] if self.path else array.path

    # -------------------------------------------------------------- members

    async def members(self, path: str) -> tuple[tuple[str, Member | None], ...] | None:
        """Return the members of a group by name, ``None`` for those that cannot be read; ``None`` if the store cannot list them."""
        return await self.cached(("members", normalize_path(path)), lambda: self._members(path))

    async def descendants(self) -> tuple[tuple[str, Member], ...] | None:
        """Return all valid nodes below the root by path; ``None`` if they cannot be listed or exceed the limit."""
        return await self.cached("descendants", self._descendants)

    async def _descendants(self) -> tuple[tuple[str, Member], ...] | None:
        nodes: list[tuple[str, Member]] = []
        level = [""]
        while level:
            listed = await gather([partial(self._members, path) for path in level])
            next_level: list[tuple[str, Member]] = []
            for path, members in zip(level, listed, strict=True):
                if members is None or len(nodes) + len(members) > self.limits.max_members:
                    return None
                next_level.extend((join(path, name), node) for name, node in members if node is not None)
            nodes.extend(next_level)
            level = [path for path, node in next_level if isinstance(node, AsyncGroup)]
        return tuple(nodes)

    async def _members(self, path: str) -> tuple[tuple[str, Member | None], ...] | None:
        node = await self.node(path)
        if not isinstance(node, AsyncGroup):
            return ()
        try:
            members, failures = await readable_members(node)
        except UnsupportedOperation:
            return None
        for error in failures.values():  # otherwise nodes that exist would be absent from all responses for a while
            if self.may_recover(error):
                raise error
        return tuple(sorted([*members, *((name, None) for name in failures)], key=lambda item: item[0]))

    # -------------------------------------------------------------- versions

    def version_key(self, array: AsyncArray) -> tuple[str, int]:
        """Return a cache key for an array, which changes with its metadata: its shape may have changed."""
        versions = self._versions.setdefault(array.path, [])
        for number, metadata in versions:
            if metadata is array.metadata or metadata == array.metadata:
                return array.path, number
        versions.append((versions[-1][0] + 1 if versions else 0, array.metadata))
        del versions[:-_MOST_VERSIONS]
        return array.path, versions[-1][0]


def _size_of(value: object) -> int:
    """Return the memory of a cached object, most of which are the arrays of coordinates in it."""
    return max(_LEAST_BYTES, _array_bytes(value))


def _array_bytes(value: object) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, AsyncArray | AsyncGroup):
        return _NODE_BYTES
    if isinstance(value, tuple | list):
        return sum(map(_array_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_array_bytes(getattr(value, item.name)) for item in fields(value))
    return 0
