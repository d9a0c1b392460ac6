"""Stores as the engine's arguments specify them. Their groups are opened with few round trips."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import zarrasync as za
from zarrasync._concurrency.gather import in_background
from zarrasync.errors import MetadataError, NodeNotFoundError, StoreError
from zarrasync.metadata import GroupMetadata, NodeMetadata
from zarrasync.nodes.access import handle_of, listed_members, parent_metadata
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.open_nodes import open_node_at, resolve_node
from zarrasync.nodes.walk import Listings, begin_listings
from zarrasync.stores import Store, StoreLike, resolve

__all__ = ["OpenedGroup", "Source"]


@dataclass(frozen=True)
class OpenedGroup:
    """A group whose listing may have begun before the group was opened.

    Attributes:
        group: The group.
        listings: Its listings.
        root: The root of the store, if it was opened to look for consolidated metadata.
    """

    group: AsyncGroup
    listings: Listings
    root: AsyncGroup | None = None

    async def members(self, max_depth: int | None = 0) -> list[tuple[str, AsyncArray | AsyncGroup]]:
        """Return the nodes below the group by relative path. Those that cannot be read are omitted, with a warning."""
        return await listed_members(self.group, self.listings, max_depth)

    async def parent_metadata(self) -> NodeMetadata | None:
        """Return the metadata of the group that contains the group; ``None`` if it does not exist or cannot be read."""
        is_below_root = bool(self.group.path) and "/" not in self.group.path
        return self.root.metadata if self.root is not None and is_below_root else await parent_metadata(self.group)


@dataclass(frozen=True)
class Source:
    """A store, and how to open its groups.

    Attributes:
        store: The store.
        zarr_format: The format; ``None`` to detect it.
        consolidated: Whether to use consolidated metadata; ``None`` to use it if it exists.
        config: Settings as users pass them.
    """

    store: Store
    zarr_format: int | str | None
    consolidated: bool | None
    config: Any

    @classmethod
    def of(
        cls,
        store: StoreLike,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: int | str | None = None,
        consolidated: bool | None = None,
        config: Any = None,
    ) -> Source:
        """Return the source for arguments of the engine.

        As in xarray's own engines, ``~`` in a path is the user's home directory.
        """
        expanded = os.path.expanduser(store) if isinstance(store, str) else store
        return cls(resolve(expanded, storage_options, config), zarr_format, consolidated, config)

    @asynccontextmanager
    async def open(self, path: str, *, deep: bool = False) -> AsyncIterator[OpenedGroup]:
        """Open a group, from the consolidated metadata of the root if it exists.

        If that takes few requests, or consolidated metadata are not used, the group is listed at the same time. The
        listing ends with the block.

        Args:
            path: The path of the group.
            deep: Whether all nodes below the group are needed, or only its members.

        Raises:
            NodeNotFoundError: If no node exists at the path.
            NodeTypeError: If the node is an array.
        """
        handle, _ = resolve_node(self.store, path, self.zarr_format, None, self.config, "r")
        prefix = handle.format.listing_prefix(path)
        async with AsyncExitStack() as stack:
            listings = Listings(prefix)
            if self.consolidated is not True and not handle.format.separates_metadata:
                beginning = begin_listings(self.store, prefix, deep=deep, certain=self.consolidated is False)
                listings = await stack.enter_async_context(beginning)
            yield await self._open_group(path, listings)

    async def _open_group(self, path: str, listings: Listings) -> OpenedGroup:
        open_group = partial(za.open_group, self.store, zarr_format=self.zarr_format, config=self.config)
        open_directly: Callable[[], Awaitable[AsyncGroup]] = partial(
            open_group, path=path, use_consolidated=self.consolidated
        )
        if not path or self.consolidated is False:
            return OpenedGroup(await open_directly(), listings)
        async with AsyncExitStack() as stack:
            if self.store.quick_listing:  # where the listing has begun as well
                open_directly = await stack.enter_async_context(in_background(open_directly))
            root = await self._open_root()
            return OpenedGroup(await _copy_of(root, path) or await open_directly(), listings, root)

    async def _open_root(self) -> AsyncGroup | None:
        """Return the root, or ``None`` if it is not a readable group."""
        handle, candidates = resolve_node(self.store, "", self.zarr_format, None, self.config, "r")
        with suppress(NodeNotFoundError, MetadataError, StoreError):
            root = await open_node_at(handle, candidates, explain=False, consolidated=None, kind=GroupMetadata)
            return root if isinstance(root, AsyncGroup) else None
        return None


async def _copy_of(root: AsyncGroup | None, path: str) -> AsyncGroup | None:
    """Return a group of the consolidated metadata of the root; ``None`` if it is not there."""
    if root is None or handle_of(root).consolidated is None:
        return None
    with suppress(MetadataError, StoreError):
        member = await root.get(path)
        return member if isinstance(member, AsyncGroup) else None
    return None
