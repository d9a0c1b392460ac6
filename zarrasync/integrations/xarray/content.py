"""The arrays of a dataset, opened with few round trips, and what conventions specify about them. Levels of pyramids are datasets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import zarrasync as za
from zarrasync import sync
from zarrasync._concurrency.gather import gather, in_background
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, StoreError
from zarrasync.metadata import GroupMetadata, NodeMetadata
from zarrasync.metadata.conventions import Axis, Meaning, axes_of, axis_names, meaning_of
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of, listed_members, parent_metadata
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.open_nodes import open_node_at, resolve_node
from zarrasync.nodes.walk import Listings, begin_listings
from zarrasync.stores import Store, StoreLike, resolve


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
class GroupOpener:
    """A store, and how to open its groups.

    Attributes:
        store: The store.
        zarr_format: The format; ``None`` to detect it.
        consolidated: Whether to use consolidated metadata; ``None`` to use it if it exists.
        config: Settings as users pass them.
    """

    store: Store
    zarr_format: int | str | None = None
    consolidated: bool | None = None
    config: Any = None

    @classmethod
    def of(cls, store: StoreLike, *, storage_options: Any = None, config: Any = None, **options: Any) -> GroupOpener:
        """Return the opener for arguments of the engine.

        As in xarray's own engines, ``~`` in a path is the user's home directory.
        """
        expanded = os.path.expanduser(store) if isinstance(store, str) else store
        return cls(resolve(expanded, storage_options, config), config=config, **options)

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


@dataclass(frozen=True)
class Content:
    """The arrays of a dataset.

    Attributes:
        group: The group that contains the arrays.
        arrays: The arrays by the name of the variable.
        meanings: What conventions specify about each array, also those that its group follows.
        attributes: The attributes of the dataset.
    """

    group: sync.Group
    arrays: Mapping[str, sync.Array]
    meanings: Mapping[str, Meaning]
    attributes: Mapping[str, Any]

    def axes(self, name: str) -> tuple[Axis, ...]:
        """Return the axes of an array, or an empty tuple if no convention specifies them."""
        axes = self.meanings[name].axes
        return axes_of(self.arrays[name].metadata, axes) if axes else ()


def group_content(
    group: sync.Group, arrays: Mapping[str, sync.Array], meaning: Meaning, levels: Mapping[str, Meaning] | None = None
) -> Content:
    """Return the content of a dataset with all arrays of a group.

    Args:
        group: The group.
        arrays: Its arrays by name.
        meaning: What conventions specify about the group, also those that the group above it follows.
        levels: What conventions specify about arrays that are levels of a pyramid in a group above.
    """
    meanings = {
        name: meaning.for_member(name, meaning_of(array.metadata), is_array=True) for name, array in arrays.items()
    }
    return Content(
        group, arrays, meanings | {name: own for name, own in (levels or {}).items() if name in arrays}, group.attrs
    )


def _group_of_level(meaning: Meaning, path: str) -> str:
    """Return the path of the group that a level belongs to with its coordinates, or an empty string.

    That is the group around an array, if it is not the pyramid's own group and does not contain other levels.
    """
    parent = path.rpartition("/")[0]
    levels = [level for level in meaning.levels if level.path.rpartition("/")[0] == parent]
    return parent if len(levels) == 1 else ""


def level_content(
    group: sync.Group,
    array: sync.Array,
    path: str,
    meaning: Meaning,
    companions: Mapping[str, sync.Array] | None = None,
) -> Content:
    """Return the content of a dataset with a level of a pyramid.

    The attributes of the group describe all levels, so the dataset does not have them.

    Args:
        group: The group.
        array: The array.
        path: The path of the array relative to the group.
        meaning: What conventions specify about the group.
        companions: Stored coordinates and the grid mapping of the array, by name.
    """
    own = meaning.for_member(path, meaning_of(array.metadata), is_array=True)
    name = meaning.variable
    others = {key: other for key, other in (companions or {}).items() if key != name}
    meanings = {key: meaning_of(other.metadata) for key, other in others.items()}
    return Content(group, {name: array, **others}, {name: own, **meanings}, {})


def names_of(variables: str | Iterable[str] | None) -> set[str]:
    """Return the names of variables that are left out, as xarray accepts them."""
    return {variables} if isinstance(variables, str) else set(variables or ())


async def open_content(opener: GroupOpener, path: str, level: int | None, dropped: Collection[str]) -> Content:
    """Open the content of a dataset.

    Args:
        opener: The store.
        path: The path of the group, or of a level that is an array.
        level: The level of a pyramid; ``None`` for the finest level if the levels are arrays, otherwise the group itself.
        dropped: Names of variables that are left out.

    Raises:
        NodeNotFoundError: If the node or the level does not exist.
        NodeTypeError: If the node is an array, but not a level of a pyramid.
        ValueError: If the group does not have the level.
    """
    async with AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(opener.open(path))
        except NodeTypeError:
            content = await _level_at(opener, path, dropped) if path and level is None else None
            if content is None:
                raise
            return content
        group = opened.group
        meaning = meaning_of(group.metadata)
        if level is not None:
            return await _level(group, _path_of_level(group, meaning, level), meaning, dropped)
        member = await group.get(meaning.levels[0].path) if meaning.levels else None
        if isinstance(member, AsyncArray):
            return await _array_level(group, member, meaning.levels[0].path, meaning, dropped)
        calls: list[Callable[[], Awaitable[Any]]] = [opened.members, opened.parent_metadata]
        members, parent_found = await gather(calls)
    if parent_found is not None:
        meaning = meaning_of(parent_found).for_member(group.basename, meaning, is_array=False)
    return group_content(sync.Group(group), _arrays(members, dropped), meaning)


async def _level_at(opener: GroupOpener, path: str, dropped: Collection[str]) -> Content | None:
    """Return the content of a dataset with the array at a path; ``None`` if no group above it has it as a level."""
    parent, _, name = path.rpartition("/")
    while True:
        async with opener.open(parent) as opened:
            meaning = meaning_of(opened.group.metadata)
            if any(level.path == name for level in meaning.levels):
                return await _level(opened.group, name, meaning, dropped)
        if not parent:
            return None
        parent, _, last = parent.rpartition("/")
        name = join(last, name)


def _arrays(members: Iterable[tuple[str, AsyncArray | AsyncGroup]], dropped: Collection[str]) -> dict[str, sync.Array]:
    return {name: sync.Array(node) for name, node in members if isinstance(node, AsyncArray) and name not in dropped}


def _path_of_level(group: AsyncGroup, meaning: Meaning, level: int) -> str:
    """Return the path of a level of a pyramid.

    Raises:
        ValueError: If the group does not have it.
    """
    count = len(meaning.levels)
    if not count:
        raise ValueError(f"level={level} was requested, but no convention specifies levels of the group {group.name}")
    if not -count <= level < count:
        raise ValueError(f"level={level} is out of range: {group.name} has {count} levels, 0 to {count - 1}")
    return meaning.levels[level].path


async def _level(group: AsyncGroup, path: str, meaning: Meaning, dropped: Collection[str]) -> Content:
    """Return the content of a level, which is an array or a group."""
    member = await group.getitem(path)
    if isinstance(member, AsyncArray):
        return await _array_level(group, member, path, meaning, dropped)
    meaning = meaning.for_member(path, meaning_of(member.metadata), is_array=False)
    return group_content(sync.Group(member), _arrays(await member.members(), dropped), meaning)


async def _array_level(
    group: AsyncGroup, array: AsyncArray, path: str, meaning: Meaning, dropped: Collection[str]
) -> Content:
    """Return the content of a level that is an array: its own group, or the array with coordinates next to it that fit."""
    place = _group_of_level(meaning, path)
    if place:
        inner = await group.getitem(place)
        assert isinstance(inner, AsyncGroup)
        level = meaning.for_member(path, meaning_of(array.metadata), is_array=True)
        arrays = _arrays(await inner.members(), dropped)
        return group_content(sync.Group(inner), arrays, meaning_of(inner.metadata), {array.basename: level})
    above = path.rpartition("/")[0]
    own = meaning.for_member(path, meaning_of(array.metadata), is_array=True)
    sizes = {axis.name: n for axis, n in zip(axes_of(array.metadata, own.axes), array.shape, strict=True) if axis.name}
    linked = [link.path for link in meaning_of(array.metadata).links if "/" not in link.path]
    names = [name for name in dict.fromkeys([*sizes, *linked]) if join(above, name) != path and name not in dropped]
    nodes = await gather([partial(group.get, join(above, name)) for name in names])
    companions = {}
    for name, node in zip(names, nodes, strict=True):
        if isinstance(node, AsyncArray):
            dims = axis_names(node.metadata) or ([name] if node.ndim == 1 else [None] * node.ndim)
            if all(sizes.get(dim or "") == n for dim, n in zip(dims, node.shape, strict=True)):
                companions[name] = sync.Array(node)
    return level_content(sync.Group(group), sync.Array(array), path, meaning, companions)


async def open_tree(opener: GroupOpener, path: str, dropped: Collection[str]) -> dict[str, Content]:
    """Open the contents of the datasets of a tree.

    Args:
        opener: The store.
        path: The path of the root of the tree.
        dropped: Names of variables that are left out.

    Returns:
        The contents by path relative to the root: of all groups, and of the levels of pyramids that are arrays.
    """
    async with opener.open(path, deep=True) as opened:
        members = await opened.members(None)
    nodes = {path: sync.Array(node) if isinstance(node, AsyncArray) else sync.Group(node) for path, node in members}
    return tree_contents(sync.Group(opened.group), nodes, dropped)


def tree_contents(
    root: sync.Group, members: Mapping[str, sync.Array | sync.Group], dropped: Collection[str]
) -> dict[str, Content]:
    """Return the contents of datasets by path: of all groups, and of the levels of pyramids that are arrays.

    Args:
        root: The root of the tree.
        members: All nodes below the root by relative path.
        dropped: Names of variables that are left out.
    """
    groups = {"": root, **{path: node for path, node in members.items() if isinstance(node, sync.Group)}}
    arrays: dict[str, dict[str, sync.Array]] = {path: {} for path in groups}
    for path, node in members.items():
        parent, _, name = path.rpartition("/")
        if isinstance(node, sync.Array) and name not in dropped:
            arrays[parent][name] = node
    contents: dict[str, Content] = {}
    meanings: dict[str, Meaning] = {}
    levels: dict[str, dict[str, Meaning]] = {path: {} for path in groups}
    for path, group in groups.items():
        own = meanings.setdefault(path, meaning_of(group.metadata))
        for level in own.levels:
            place = join(path, level.path)
            parent, _, name = place.rpartition("/")
            if place in groups:
                inner = meaning_of(groups[place].metadata)
                meanings[place] = own.for_member(level.path, inner, is_array=False)
            elif name not in arrays.get(parent, {}):
                continue
            elif _group_of_level(own, level.path):
                array_meaning = meaning_of(arrays[parent][name].metadata)
                levels[parent][name] = own.for_member(level.path, array_meaning, is_array=True)
            else:
                contents[place] = level_content(group, arrays[parent].pop(name), level.path, own)
    return {path: group_content(groups[path], arrays[path], meanings[path], levels[path]) for path in groups} | contents
