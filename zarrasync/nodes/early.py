"""Requests of a walk that begin before it is known whether they are needed, so that a level takes one round trip.

While the documents of the nodes on a level are fetched, the nodes are also listed, in case they are groups. If one
listing names all keys below a group, the documents of all nodes below it are fetched together with the next level.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from zarrasync import formats
from zarrasync._concurrency.gather import begun
from zarrasync.errors import MetadataError, StoreError
from zarrasync.metadata import GroupMetadata
from zarrasync.model.paths import is_key, join
from zarrasync.nodes.documents import check_partial, document_bytes, fetch_documents
from zarrasync.nodes.listings import Listings, begin_listings
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Listing, Request, Value
from zarrasync.stores.key_index import KeyIndex
from zarrasync.stores.values import clip
from zarrasync.stores.wrappers import WrapperStore

__all__ = ["Survey", "survey_of"]

_TOGETHER = 128
"""Largest number of requests for a level that listings are added to. Stores make as many at the same time."""
_DEEP = 8
"""Largest number of groups on a level that are also listed with all keys below them, up to one response."""


class Survey:
    """The requests of a walk for the nodes below a group. Without early ones, if the store has no quick listings.

    Attributes:
        root: The handle of the group, for the requests of the walk.
    """

    def __init__(self, root: NodeHandle, store: _EarlyStore | None) -> None:
        self.root, self._store = root, store

    async def prepare(self, paths: Iterable[str]) -> None:
        """Fetch the documents of nodes on a level, given by their paths relative to the group."""
        if self._store is not None:
            await self._store.prepare([join(self.root.path, path) for path in paths])

    async def keep(self, groups: Iterable[str]) -> None:
        """End all listings except for groups, given by their paths relative to the root, and nodes below them."""
        if self._store is not None:
            listing_prefix = self.root.format.listing_prefix
            await self._store.keep(tuple(listing_prefix(join(self.root.path, path)) for path in groups))


@asynccontextmanager
async def survey_of(group: NodeHandle, listings: Listings, max_depth: int | None) -> AsyncIterator[Survey]:
    """Return the requests of a walk, until the end of the block.

    Args:
        group: The group.
        listings: Its listings that have begun.
        max_depth: The number of levels of groups below it whose members are needed; ``None`` for all.
    """
    has_begun = listings.directory is not None or listings.below is not None
    if not has_begun or group.consolidated is not None or group.format.separates_metadata:
        yield Survey(group, None)
        return
    assert group.format.listing_prefix(group.path) == listings.prefix
    store = _EarlyStore(group, listings, max_depth)
    try:
        yield Survey(replace(group, store=store), store)
    finally:
        await store.keep(())


class _EarlyStore(WrapperStore):
    """A store some of whose directories and documents are requested before the walk asks for them.

    Args:
        group: The group that the walk begins with.
        listings: Its listings.
        max_depth: As for ``survey_of``.
    """

    _is_shown = False

    def __init__(self, group: NodeHandle, listings: Listings, max_depth: int | None) -> None:
        super().__init__(group.store)
        self._group, self._max_depth = group, max_depth
        self._listings = {listings.prefix: listings}
        self._open: dict[str, AsyncExitStack] = {}
        self._begun = {listings.prefix}
        """Prefixes whose listings have begun, some of which may have ended."""
        self._complete: dict[str, KeyIndex] = {}
        self._groups: set[str] = set()
        self._arrays: set[str] = set()
        """Paths of nodes below listed prefixes, as far as keys show them."""
        self._deeper: list[str] = []
        """Documents below prefixes all of whose keys are known, which have not been fetched."""
        self._documents: dict[str, Value | None] = {}

    @property
    def flat(self) -> bool:
        return False

    async def list_dir(self, prefix: str) -> Listing:
        index, listings = self._index_of(prefix), self._listings.get(prefix)
        if index is None and listings is not None:
            keys, is_complete = await listings.keys_below()
            if is_complete:
                index = self._complete[prefix] = KeyIndex(keys)
                self._deeper += self._documents_among(keys)
            else:
                self._look_at(keys)
                if listings.directory is not None:
                    return await listings.directory()
        return await self.inner.list_dir(prefix) if index is None else index.list_dir(prefix)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        if any(request.key not in self._documents and self._may_exist(request.key) for request in requests):
            return await self.inner.fetch(requests, versions=versions)
        values = [self._documents.get(request.key) for request in requests]
        return [
            None if value is None else value._replace(data=clip(value.data, request))
            for value, request in zip(values, requests, strict=True)
        ]

    async def prepare(self, paths: Iterable[str]) -> None:
        """Fetch the documents of nodes on a level and of known nodes below. List the nodes at the same time.

        If some documents cannot be fetched, none is kept, and the walk fetches those that can be read.
        """
        format_, config, nodes = self._group.format, self._group.config, await self._known_nodes(paths)
        documents_of_nodes = [key for path in nodes for key in format_.document_keys(path)]
        keys = list(dict.fromkeys(key for key in (*documents_of_nodes, *self._deeper) if self._is_unknown(key)))
        self._deeper = []
        versions = self.conditional and self.writeable
        async with begun(partial(fetch_documents, self.inner, keys, config, versions=versions)) as documents:
            await self._begin(nodes, len(keys))
            try:
                values = await documents() if keys else []
            except (MetadataError, StoreError) as error:
                check_partial(error)
                return
        self._documents.update(zip(keys, values, strict=True))

    async def keep(self, prefixes: tuple[str, ...]) -> None:
        """End listings that are not of these prefixes and not below them."""
        for prefix in [prefix for prefix in self._open if not prefix.startswith(prefixes)]:
            await self._open.pop(prefix).aclose()
            del self._listings[prefix]

    async def _known_nodes(self, paths: Iterable[str]) -> list[str]:
        """Return the paths of nodes, and of the members of those groups among them that were listed before."""
        nodes, format_ = list(paths), self._group.format
        for path in nodes:  # includes those that are added
            prefix = format_.listing_prefix(path)
            if prefix in self._listings and self._is_group(path):
                with suppress(StoreError):  # which the walk raises
                    listing = await self.list_dir(prefix)
                    nodes += [prefix + name for name in format_.children(path, listing.keys, listing.prefixes)]
        return nodes

    def _is_group(self, path: str) -> bool:
        """Return whether a node is known to be a group, from keys or its documents."""
        if path in self._groups:
            return True
        documents = {key: self._documents.get(key) for key in self._group.format.document_keys(path)}
        with suppress(MetadataError):
            found = {key: document_bytes(value) for key, value in documents.items()}
            return isinstance(formats.parse(self._group.format, path, found), GroupMetadata)
        return False

    async def _begin(self, paths: Iterable[str], requests: int) -> None:
        """List nodes, and known groups further below, if the store makes so many requests at the same time."""
        room = min(_TOGETHER, self.concurrency) - requests if self.quick_listing else 0
        groups = dict.fromkeys(path for path in self._groups if self._is_unlisted(path))
        nodes = groups | dict.fromkeys(path for path in paths if self._is_unlisted(path) and path not in self._arrays)
        targets = list(nodes if len(nodes) <= room else groups)[: max(room, 0)]
        for path in targets:
            prefix, stack = self._group.format.listing_prefix(path), AsyncExitStack()
            listings = begin_listings(self.inner, prefix, deep=len(targets) <= _DEEP)
            self._listings[prefix], self._open[prefix] = await stack.enter_async_context(listings), stack
            self._begun.add(prefix)

    def _is_unlisted(self, path: str) -> bool:
        prefix = self._group.format.listing_prefix(path)
        is_known = prefix in self._begun or self._index_of(prefix) is not None
        return not is_known and self._is_needed(self._level(path) + 1)

    def _is_unknown(self, key: str) -> bool:
        return key not in self._documents and self._may_exist(key)

    def _may_exist(self, key: str) -> bool:
        index = self._index_of(key)
        return index is None or key in index

    def _index_of(self, key: str) -> KeyIndex | None:
        """Return all keys below a prefix of a key, if they are known."""
        return next((index for prefix, index in self._complete.items() if key.startswith(prefix)), None)

    # -------------------------------------------------------------- what keys show

    def _look_at(self, keys: Iterable[str]) -> None:
        """Note the groups and arrays that keys of documents and chunks belong to."""
        for key in keys:
            node = formats.likely_node(key)
            if node is None or not is_key(node):
                continue
            if not formats.is_document(key):
                self._arrays.add(node)
            group = node.rpartition("/")[0]
            while group not in self._groups and self._level(group) >= 0:
                self._groups.add(group)
                group = group.rpartition("/")[0]

    def _documents_among(self, keys: Iterable[str]) -> list[str]:
        names = tuple(self._group.format.document_keys(""))
        return [
            key
            for key in keys
            if key.endswith(names)
            and key.rpartition("/")[2] in names
            and self._is_needed(self._level(key.rpartition("/")[0]))
            and is_key(key)
        ]

    def _level(self, path: str) -> int:
        """Return the number of groups between the group that the walk begins with and a node; -1 for that group."""
        start = len(self._group.format.listing_prefix(self._group.path))
        return path.count("/", start) if len(path) > start else -1

    def _is_needed(self, level: int) -> bool:
        return level >= 0 and (self._max_depth is None or level <= self._max_depth)
