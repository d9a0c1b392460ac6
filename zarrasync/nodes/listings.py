"""Listings of a group that begin early, so that its members are found with few round trips.

One listing of a group with few keys names all documents below it, which are then fetched together, whatever the depth.
At the same time the group's directory is listed, in case there are too many keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from zarrasync._concurrency.gather import begun
from zarrasync.errors import StoreError
from zarrasync.nodes.documents import check_partial
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Listing, Store

__all__ = ["KeysBelow", "Listings", "begin_listings", "group_listings"]

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

    Args:
        store: The store.
        prefix: Empty, or ending with ``/``.
        deep: Whether more than the keys and prefixes directly under the prefix are needed.
        certain: Whether consolidated metadata cannot replace the listing, so that it may take long.
    """
    async with AsyncExitStack() as stack:
        directory: Callable[[], Awaitable[Listing]] | None = None
        list_below: Callable[[], Awaitable[KeysBelow]] | None = None
        if deep and store.flat:
            list_below = partial(_all_keys, store, prefix)
        elif store.quick_listing or (certain and not store.blocking and not store.flat):
            directory = await stack.enter_async_context(begun(partial(store.list_dir, prefix)))
            list_below = partial(_few_keys, store, prefix) if deep and store.quick_listing else None
        below = None if list_below is None else await stack.enter_async_context(begun(list_below))
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
