"""Listing the nodes below a group."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from zarrasync._concurrency.gather import gather, in_background
from zarrasync.errors import MetadataError, StoreError, ZarrError
from zarrasync.metadata import GroupMetadata
from zarrasync.model.paths import is_key, join
from zarrasync.nodes.documents import Metadata, check_partial, fetch_documents
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Listing, Request, Store, Value
from zarrasync.stores.values import KeyIndex, clip
from zarrasync.stores.wrappers import WrapperStore

_FEW = 1000
"""Number of keys that object stores return in one response."""


class KeysBelow(NamedTuple):
    """Keys below a prefix.

    Attributes:
        keys: The keys.
        complete: Whether these are all keys.
    """

    keys: list[str]
    complete: bool


@dataclass(frozen=True)
class Listings:
    """Listings of a prefix that have begun.

    Attributes:
        prefix: The prefix.
        directory: Waits for the keys and prefixes directly under it; ``None`` if they are not requested.
        below: Waits for keys below it, as many as one request returns; ``None`` if they are not requested.
    """

    prefix: str
    directory: Callable[[], Awaitable[Listing]] | None = None
    below: Callable[[], Awaitable[KeysBelow]] | None = None

    async def keys_below(self) -> KeysBelow:
        """Return keys below the prefix, as far as they are known.

        Raises:
            UnsupportedOperation: If the store cannot list.
            StoreError: If the listing failed, and the directory is not listed.
        """
        if self.below is not None:
            try:
                return await self.below()
            except StoreError as error:
                if self.directory is None:
                    raise
                check_partial(error)
        return KeysBelow([], complete=False)


@asynccontextmanager
async def begin_listings(store: Store, prefix: str, *, deep: bool, certain: bool = False) -> AsyncIterator[Listings]:
    """List a prefix until the end of the block, as far as that takes few requests.

    One listing of a group with few keys names all documents below it, which are then fetched together. The directory is
    listed at the same time, in case there are too many keys.

    Args:
        store: The store.
        prefix: Empty, or ending with ``/``.
        deep: Whether more than the keys and prefixes directly under the prefix are needed.
        certain: Whether consolidated metadata cannot replace the listing, so that it may take long.
    """
    async with AsyncExitStack() as stack:
        directory: Callable[[], Awaitable[Listing]] | None = None
        list_below: Callable[[], Awaitable[KeysBelow]] | None = None
        if deep and store.flat_namespace:
            list_below = partial(_all_keys, store, prefix)
        elif store.quick_listing or (certain and not store.blocking and not store.flat_namespace):
            directory = await stack.enter_async_context(in_background(partial(store.list_dir, prefix)))
            list_below = partial(_few_keys, store, prefix) if deep and store.quick_listing else None
        below = None if list_below is None else await stack.enter_async_context(in_background(list_below))
        yield Listings(prefix, directory, below)


@asynccontextmanager
async def group_listings(group: NodeHandle, max_depth: int | None) -> AsyncIterator[Listings]:
    """List a group until the end of the block, as ``begin_listings`` does.

    A walk that needs only the members of the group lists them itself.
    """
    prefix = group.format.listing_prefix(group.path)
    if max_depth == 0 or group.consolidated is not None or group.format.separates_metadata:
        yield Listings(prefix)
    else:
        async with begin_listings(group.store, prefix, deep=True) as listings:
            yield listings


async def _all_keys(store: Store, prefix: str) -> KeysBelow:
    return KeysBelow(await store.list_prefix(prefix), complete=True)


async def _few_keys(store: Store, prefix: str) -> KeysBelow:
    keys = await store.list_few(prefix, _FEW)
    return KeysBelow([], complete=False) if keys is None else KeysBelow(keys, len(keys) < _FEW)


async def with_documents(group: NodeHandle, listings: Listings, max_depth: int | None) -> NodeHandle:
    """Return the handle of a group for a walk, with the documents of all nodes below it if one listing names them.

    They are fetched together. If some cannot be fetched, none is kept, and the walk fetches those that can be read.

    Args:
        group: The group.
        listings: Its listings that have begun.
        max_depth: The number of levels of groups below it whose members are needed; ``None`` for all.
    """
    store, format_ = group.store, group.format
    has_begun = listings.directory is not None or listings.below is not None
    if not has_begun or group.consolidated is not None or format_.separates_metadata:
        return group
    keys, is_complete = await listings.keys_below()
    documents: dict[str, Value | None] = {}
    if is_complete:
        names, start = tuple(format_.document_keys("")), len(listings.prefix)
        nodes = [key for key in keys if key.endswith(names) and key.rpartition("/")[2] in names and is_key(key)]
        wanted = [key for key in nodes if len(key.rpartition("/")[0]) > start]
        if max_depth is not None:
            wanted = [key for key in wanted if key.count("/", start) - 1 <= max_depth]
        try:
            values = await fetch_documents(store, wanted, group.config, versions=store.conditional and store.writeable)
            documents.update(zip(wanted, values, strict=True))
        except (MetadataError, StoreError) as error:
            check_partial(error)
    return replace(group, store=_ListedBefore(store, listings, KeyIndex(keys) if is_complete else None, documents))


class _ListedBefore(WrapperStore):
    """A store with answers to requests of a walk that are known already.

    Args:
        inner: The store.
        listings: Listings of the group.
        index: All keys below the group, if they are known.
        documents: The values of some of these keys.
    """

    _is_shown = False

    def __init__(
        self, inner: Store, listings: Listings, index: KeyIndex | None, documents: Mapping[str, Value | None]
    ) -> None:
        super().__init__(inner)
        self._listings, self._index, self._documents = listings, index, documents

    @property
    def flat_namespace(self) -> bool:
        return False

    async def list_dir(self, prefix: str) -> Listing:
        if self._index is not None and prefix.startswith(self._listings.prefix):
            return self._index.list_dir(prefix)
        if prefix == self._listings.prefix and self._listings.directory is not None:
            return await self._listings.directory()
        return await self.inner.list_dir(prefix)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        if not all(self._is_known(request.key) for request in requests):
            return await self.inner.fetch(requests, versions=versions)
        values = [self._documents.get(request.key) for request in requests]
        return [
            None if value is None else value._replace(data=clip(value.data, request))
            for value, request in zip(values, requests, strict=True)
        ]

    def _is_known(self, key: str) -> bool:
        if key in self._documents:
            return True
        return self._index is not None and key.startswith(self._listings.prefix) and key not in self._index


class Walk(NamedTuple):
    """The nodes below a group.

    Attributes:
        nodes: Relative paths and metadata, sorted by path.
        failures: The error of each node that cannot be read, and of each group that cannot be listed, by relative path.
    """

    nodes: list[tuple[str, Metadata]]
    failures: Mapping[str, ZarrError]


async def walk(group: NodeHandle, max_depth: int | None) -> Walk:
    """Find the nodes below a group.

    If the group has few keys, this takes one listing and one batch of requests. Otherwise it takes one listing per group
    and one batch of requests per level; consolidated metadata saves them. Nodes that cannot be read are returned as failures.

    Args:
        group: The group.
        max_depth: The number of levels of groups below this one to descend into; ``None`` for all.

    Raises:
        UnsupportedOperation: If the store cannot list.
        StoreError: If the store failed, or the request for each node of a remote store.
    """
    if max_depth is not None and max_depth < 0:
        raise ValueError(f"max_depth must be None or at least 0, found {max_depth}")
    async with group_listings(group, max_depth) as listings:
        return await walk_listed(group, listings, max_depth)


async def walk_listed(group: NodeHandle, listings: Listings, max_depth: int | None) -> Walk:
    """Find the nodes below a group whose listings have begun. See ``walk``."""
    nodes: list[tuple[str, Metadata]] = []
    failures: dict[str, ZarrError] = {}
    level, depth = [""], 0
    root = await with_documents(group, listings, max_depth)
    while level:
        members = await _members_of(root, level, max_depth, failures)
        nodes.extend(members.items())
        if group.format.separates_metadata or (max_depth is not None and depth >= max_depth):
            break
        level = [path for path, metadata in members.items() if isinstance(metadata, GroupMetadata)]
        depth += 1
    has_failed = all(isinstance(failure, StoreError) for failure in failures.values())
    if failures and has_failed and not nodes and not group.store.is_local:  # credentials may have expired, for instance
        raise next(iter(failures.values()))
    return Walk(sorted(nodes, key=lambda item: item[0]), failures)


def warn_of_failures(group: NodeHandle, failures: Mapping[str, ZarrError]) -> None:
    """Warn of nodes that cannot be read."""
    for path, failure in failures.items():
        warnings.warn(f"{group.child(path).name} cannot be read and is omitted: {failure}", stacklevel=3)


async def _members_of(
    root: NodeHandle, groups: Sequence[str], max_depth: int | None, failures: dict[str, ZarrError]
) -> dict[str, Metadata]:
    """Return the metadata of the members of all groups on one level, by path. All paths are relative to the root."""
    if root.consolidated is None:
        listings = await gather([partial(_children, root, path, max_depth, failures) for path in groups])
    else:  # without requests
        listings = [await _children(root, path, max_depth, failures) for path in groups]
    is_implicit = {
        join(path, name): implicit
        for path, listing in zip(groups, listings, strict=True)
        for name, implicit in listing.items()
    }
    documented = [path for path, implicit in is_implicit.items() if not implicit]
    try:
        found = await find_all(root, [join(root.path, path) for path in documented], (root.format,))
    except (MetadataError, StoreError) as error:
        check_partial(error)
        found = await gather([partial(_find, root, path, failures) for path in documented])
    members = {path: node.metadata for path, node in zip(documented, found, strict=True) if node is not None}
    members.update({path: GroupMetadata() for path, implicit in is_implicit.items() if implicit})
    return members


async def _children(
    root: NodeHandle, path: str, max_depth: int | None, failures: dict[str, ZarrError]
) -> Mapping[str, bool]:
    try:
        return await root.at(join(root.path, path)).children(max_depth)
    except StoreError as error:
        if not path:
            raise
        check_partial(error)
        failures[path] = error
        return {}


async def _find(root: NodeHandle, path: str, failures: dict[str, ZarrError]) -> FoundNode | None:
    try:
        (node,) = await find_all(root, [join(root.path, path)], (root.format,))
    except (MetadataError, StoreError) as error:
        check_partial(error)
        failures[path] = error
        return None
    return node


async def documents_below(group: NodeHandle) -> tuple[dict[str, bytes], Mapping[str, ZarrError]]:
    """Return all metadata documents below a group by key, without consolidated metadata. Takes the requests of ``walk``.

    Nodes that cannot be read are left out. Their errors are returned by relative path. Documents of arrays that the settings
    do not allow to open are included.
    """
    config = replace(group.config, dtype_fallback="allow", allow_pickle=True)
    nodes, failures = await walk(replace(group.without_consolidated(), config=config), None)
    sources = [metadata.source for _, metadata in nodes if metadata.source is not None]
    return {key: data for source in sources for key, data in source.data.items()}, failures
