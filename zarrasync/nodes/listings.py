"""Listings of a group that begin early, so that its members are found with few round trips.

One listing of a group with few keys names all documents below it, which are then fetched together, whatever the depth.
At the same time the group's directory is listed, in case there are too many keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from zarrasync._concurrency.begun import begun
from zarrasync.errors import MetadataError, StoreError
from zarrasync.model.paths import is_key
from zarrasync.nodes.documents import check_partial, fetch_documents
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Listing, Store
from zarrasync.stores.key_index import KeyIndex
from zarrasync.stores.wrappers import ListedDirectory, ListedStore

__all__ = ["Listings", "begin_listings", "with_listings"]

_FEW = 1000
"""Number of keys that object stores return in one response."""


@dataclass(frozen=True)
class Listings:
    """Listings of a prefix that have begun.

    Attributes:
        prefix: The prefix.
        directory: Waits for the keys and prefixes directly under it; ``None`` if they are not requested.
        below: Waits for all keys below it; its result is ``None`` if there are too many. ``None`` if not requested.
    """

    prefix: str
    directory: Callable[[], Awaitable[Listing]] | None = None
    below: Callable[[], Awaitable[list[str] | None]] | None = None

    async def attach(self, group: NodeHandle, max_depth: int | None) -> NodeHandle:
        """Return a handle for a walk, with the listings, and with the documents if all keys are known.

        Args:
            group: The group.
            max_depth: The number of levels of groups below it whose documents are needed; ``None`` for all.

        Raises:
            UnsupportedOperation: If the store cannot list.
            StoreError: If the listing failed.
        """
        format_ = group.format
        if group.consolidated is not None or format_.separates_metadata:
            return group
        assert format_.listing_prefix(group.path) == self.prefix
        keys = await self._few_keys()
        if keys is not None:
            return await _with_documents(group, keys, max_depth)
        if self.directory is None:
            return group
        return replace(group, store=ListedDirectory(group.store, self.prefix, await self.directory()))

    async def _few_keys(self) -> list[str] | None:
        if self.below is None:
            return None
        try:
            return await self.below()
        except StoreError as error:
            if self.directory is None:
                raise
            check_partial(error)
            return None  # the walk lists one directory after the other


@asynccontextmanager
async def begin_listings(store: Store, prefix: str, *, deep: bool) -> AsyncIterator[Listings]:
    """List a prefix until the end of the block, as far as that takes few requests.

    Args:
        store: The store.
        prefix: Empty, or ending with ``/``.
        deep: Whether more than the keys and prefixes directly under the prefix are needed.
    """
    async with AsyncExitStack() as stack:
        directory: Callable[[], Awaitable[Listing]] | None = None
        list_below: Callable[[], Awaitable[list[str] | None]] | None = None
        if deep and store.flat:
            list_below = partial(store.list_prefix, prefix)
        elif store.quick_listing:
            directory = await stack.enter_async_context(begun(partial(store.list_dir, prefix)))
            list_below = partial(store.list_few, prefix, _FEW) if deep else None
        below = None if list_below is None else await stack.enter_async_context(begun(list_below))
        yield Listings(prefix, directory, below)


async def with_listings(group: NodeHandle, max_depth: int | None) -> NodeHandle:
    """Return a handle for a walk, as ``Listings.attach`` does, after listing the group.

    A walk that needs only the members of the group lists them itself.
    """
    if max_depth == 0 or group.consolidated is not None or group.format.separates_metadata:
        return group
    async with begin_listings(group.store, group.format.listing_prefix(group.path), deep=True) as listings:
        return await listings.attach(group, max_depth)


async def _with_documents(group: NodeHandle, keys: list[str], max_depth: int | None) -> NodeHandle:
    """Return a handle that knows all keys below a group, and the documents of the nodes up to a depth."""
    format_, store, index = group.format, group.store, KeyIndex(keys)
    names = tuple(format_.document_keys(""))
    start = len(format_.listing_prefix(group.path))
    documents = [
        key
        for key in keys
        if key.endswith(names)
        and key.rpartition("/")[2] in names
        and 1 <= key.count("/", start) <= (max_depth + 1 if max_depth is not None else len(key))
        and is_key(key)
    ]
    try:
        values = await fetch_documents(store, documents, group.config, versions=store.conditional and store.writeable)
    except (MetadataError, StoreError) as error:
        check_partial(error)  # the walk fetches those that can be read
        return replace(group, store=ListedStore(store, index))
    return replace(group, store=ListedStore(store, index, dict(zip(documents, values, strict=True))))
