"""Groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Never, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._util.short_tracebacks import shorten_methods
from zarrasync.display import html
from zarrasync.display.info import Info, Tree, group_info, render_tree
from zarrasync.errors import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError, ShapeError
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import checked_attributes
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.base import AsyncNode
from zarrasync.nodes.create import bind_format, create_node
from zarrasync.nodes.create_array import create_array_at
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.explain_missing import add_members
from zarrasync.nodes.find import find
from zarrasync.nodes.kinds import Metadata, wrong_kind
from zarrasync.nodes.move import move_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.walk import walk, warn_of_failures

__all__ = ["AsyncGroup", "create_group_at", "find_or_create", "make_node"]

T = TypeVar("T")


@shorten_methods()
class AsyncGroup(AsyncNode[GroupMetadata]):
    """A group: a node that contains arrays and groups by name.

        t2m = await group["t2m"]
        names = await group.array_keys()

    Groups are returned by ``open_group``, ``create_group`` and other groups.
    """

    # -------------------------------------------------------------- properties

    @property
    def metadata(self) -> GroupMetadata:
        """The group's metadata."""
        return self._cell.metadata

    @property
    def info(self) -> Info:
        """A summary that takes no requests."""
        return group_info(self._cell.metadata, self.name, self.store, self.zarr_format)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.store!r}>"

    def _repr_html_(self) -> str:
        copies = self._cell.handle.consolidated
        members = None if copies is None else copies.members(self.path)
        return html.group(self._cell.metadata, self.info.items, self.name, members)

    # -------------------------------------------------------------- members

    def __getitem__(self, name: str) -> _PendingMember:
        return _PendingMember(self, name)

    # Without these methods Python would try group[0], group[1], …

    def __contains__(self, name: object) -> Never:
        raise TypeError(f"use `await group.contains({name!r})` with an asynchronous group")

    def __iter__(self) -> Never:
        raise TypeError("use `async for name in group` with an asynchronous group")

    async def setitem(self, name: str, value: npt.ArrayLike) -> None:
        """Store values as an array, replacing an existing node.

        Args:
            name: The name of the array.
            value: Its values.
        """
        await self.create_array(name, data=value, overwrite=True)

    async def getitem(self, name: str) -> AsyncArray | AsyncGroup:
        """Return a member, or a node further below by its relative path (``"a/b"``).

        Raises:
            NodeNotFoundError: If there is no such node.
        """
        try:
            return await self._find_member(name)
        except NodeNotFoundError as error:
            handle = self._cell.handle
            await run_on_store(partial(add_members, error, handle, handle.child(name).path), self.store)
            raise

    async def _find_member(self, name: str) -> AsyncArray | AsyncGroup:
        handle = self._cell.handle.child(name)
        node = await run_on_store(partial(find, handle, (handle.format,)), self.store)
        return make_node(handle, node.metadata)

    async def get(self, name: str, default: T | None = None) -> AsyncArray | AsyncGroup | T | None:
        """Return a member, or the default if there is none."""
        try:
            return await self._find_member(name)
        except NodeNotFoundError:
            return default

    async def contains(self, name: str) -> bool:
        """Return whether there is a member of that name."""
        return await self.get(name) is not None

    async def members(self, max_depth: int | None = 0) -> tuple[tuple[str, AsyncArray | AsyncGroup], ...]:
        """Return the members, with one listing per group and one batch of documents per level.

        Members that cannot be read are left out, with a warning that names them.

        Args:
            max_depth: How many levels of groups below this one to look into; ``None`` for all.

        Returns:
            Pairs of relative path and node, sorted by path.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        handle = self._cell.handle
        nodes, failures = await run_on_store(partial(walk, handle, max_depth), self.store)
        warn_of_failures(handle, failures)
        return tuple((path, make_node(handle.below(path), metadata)) for path, metadata in nodes)

    async def arrays(self) -> tuple[tuple[str, AsyncArray], ...]:
        """Return the members that are arrays, as pairs of name and array."""
        return tuple((name, node) for name, node in await self.members() if isinstance(node, AsyncArray))

    async def groups(self) -> tuple[tuple[str, AsyncGroup], ...]:
        """Return the members that are groups, as pairs of name and group."""
        return tuple((name, node) for name, node in await self.members() if isinstance(node, AsyncGroup))

    async def keys(self) -> tuple[str, ...]:
        """Return the names of the members."""
        return tuple(name for name, _ in await self.members())

    async def array_keys(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        return tuple(name for name, _ in await self.arrays())

    async def group_keys(self) -> tuple[str, ...]:
        """Return the names of the groups."""
        return tuple(name for name, _ in await self.groups())

    async def nmembers(self, max_depth: int | None = 0) -> int:
        """Return the number of members; see ``members``."""
        return len(await self.members(max_depth))

    async def tree(self, max_depth: int | None = None) -> Tree:
        """Return the hierarchy below as a string; notebooks show a tree that unfolds.

        Nodes that cannot be read are marked.

        Args:
            max_depth: How many levels of groups below this one to look into; ``None`` for all.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        nodes, failures = await run_on_store(partial(walk, self._cell.handle, max_depth), self.store)
        return render_tree(self.name, nodes, {path: str(failure) for path, failure in failures.items()})

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.keys():
            yield name

    # -------------------------------------------------------------- creating

    async def create_array(self, name: str, *, overwrite: bool = False, **options: Any) -> AsyncArray:
        """Create an array below this group.

        Args:
            name: Its name or relative path. Missing groups above it are created.
            overwrite: Replace an existing node.
            **options: As for ``zarrasync.create_array``: ``shape``, ``dtype``, ``data``, ``chunks``, ``shards``,
                ``filters``, ``serializer``, ``compressors``, ``fill_value``, ``order``, ``attributes``,
                ``chunk_key_encoding``, ``dimension_names``.

        Raises:
            NodeExistsError: If a node exists and ``overwrite`` is not set.
        """
        return await create_array_at(self._cell.handle.child(name), overwrite=overwrite, **options)

    async def create_group(
        self, name: str, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> AsyncGroup:
        """Create a group below this one.

        Args:
            name: Its name or relative path. Missing groups above it are created.
            attributes: Its attributes.
            overwrite: Replace an existing node.

        Raises:
            NodeExistsError: If a node exists and ``overwrite`` is not set.
        """
        return await create_group_at(self._cell.handle.child(name), attributes=attributes, overwrite=overwrite)

    async def require_array(
        self, name: str, *, shape: Any, dtype: Any = None, exact: bool = False, **options: Any
    ) -> AsyncArray:
        """Return an array, and create it if it does not exist.

        Args:
            name: Its name.
            shape: The shape it must have.
            dtype: The data type it must have. Another one that can be cast to it is accepted unless ``exact`` is set.
            exact: Accept only that data type.
            **options: As for ``create_array``.

        Raises:
            NodeTypeError: If it is a group, or the data type differs.
            ShapeError: If the shape differs.
        """
        create = partial(self.create_array, name, shape=shape, dtype=dtype, **options)
        array = await find_or_create(lambda: self.get(name), create)
        if not isinstance(array, AsyncArray):
            raise wrong_kind(array.name, array.path, array.metadata, ", not an array")
        _check_array(array, (shape,) if isinstance(shape, int) else tuple(shape), dtype, exact=exact)
        return array

    async def require_group(self, name: str, *, attributes: Mapping[str, Any] | None = None) -> AsyncGroup:
        """Return a group, and create it if it does not exist.

        Args:
            name: Its name.
            attributes: Attributes of a group that is created.

        Raises:
            NodeTypeError: If it is an array.
        """
        create = partial(self.create_group, name, attributes=attributes)
        group = await find_or_create(lambda: self.get(name), create)
        if not isinstance(group, AsyncGroup):
            raise wrong_kind(group.name, group.path, group.metadata, ", not a group")
        return group

    # -------------------------------------------------------------- changing

    async def delete(self, name: str, *, all_files: bool = False) -> None:
        """Erase a member and all nodes below it, even if its metadata is damaged.

        Args:
            name: Its name or relative path.
            all_files: Also erase files that are not part of any Zarr node. They are kept by default.

        Raises:
            NodeNotFoundError: If there is no such member.
        """
        with suppress(MetadataError):
            await self.getitem(name)
        erase = partial(erase_node, self._cell.handle.child(name), all_files=all_files)
        await run_on_store(erase, self.store)

    async def move(self, source: str, dest: str) -> None:
        """Move a member to another name or path below this group. Its values are copied, then erased.

        Args:
            source: Its name or relative path.
            dest: The new name or relative path. Missing groups above it are created.

        Raises:
            NodeNotFoundError: If there is no such member.
            NodeExistsError: If there is a node at the new path.
        """
        await self.getitem(source)
        source, dest = normalize_path(source), normalize_path(dest)
        if source == dest:
            return
        if f"{dest}/".startswith(f"{source}/"):
            raise NodeExistsError(f"{source!r} cannot be moved below itself, to {dest!r}", path=dest)
        handle = self._cell.handle
        if await self.contains(dest):
            raise NodeExistsError(f"there is a node at {handle.child(dest).name} already", path=dest)
        parent = dest.rpartition("/")[0]
        if parent:
            await self.require_group(parent)
        await run_on_store(partial(move_node, handle.child(source), handle.child(dest)), self.store)


class _PendingMember:
    """A member that is opened when awaited: ``await group["name"]``."""

    def __init__(self, group: AsyncGroup, name: str) -> None:
        self._group, self._name = group, name

    def __await__(self) -> Generator[Any, None, AsyncArray | AsyncGroup]:
        return self._group.getitem(self._name).__await__()

    def __repr__(self) -> str:
        return f"<member {self._name!r} of {self._group!r}, to be opened with await>"

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(f"the member {self._name!r} is not open yet: (await group[{self._name!r}]).{name}")

    def __getitem__(self, key: Any) -> Never:
        raise TypeError(f"the member {self._name!r} is not open yet: (await group[{self._name!r}])[...]")


def make_node(handle: NodeHandle, metadata: Metadata) -> AsyncArray | AsyncGroup:
    """Return the array or group for a handle and the metadata that was found there."""
    return AsyncArray(handle, metadata) if isinstance(metadata, ArrayMetadata) else AsyncGroup(handle, metadata)


async def create_group_at(
    handle: NodeHandle, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
) -> AsyncGroup:
    """Create a group.

    Args:
        handle: Where to create it, and in which format.
        attributes: Its attributes.
        overwrite: Replace an existing node.
    """
    handle = await bind_format(handle, overwrite=overwrite)
    metadata = GroupMetadata(attributes=checked_attributes(attributes))
    handle = await run_on_store(partial(create_node, handle, metadata, overwrite=overwrite), handle.store)
    return AsyncGroup(handle, metadata)


async def find_or_create(
    find_existing: Callable[[], Awaitable[AsyncArray | AsyncGroup | None]],
    create: Callable[[], Awaitable[AsyncArray | AsyncGroup]],
) -> AsyncArray | AsyncGroup:
    """Return the existing node, or a new one, or that of another writer who was faster to create it."""
    node = await find_existing()
    if node is not None:
        return node
    try:
        return await create()
    except NodeExistsError:
        node = await find_existing()
        if node is None:
            raise
        return node


def _check_array(array: AsyncArray, shape: tuple[int, ...], dtype: Any, *, exact: bool) -> None:
    """Check the shape and the data type of an existing array."""
    if array.shape != shape:
        raise ShapeError(f"{array.name} has shape {array.shape}, not {shape}", found=array.shape, wanted=shape)
    if dtype is None:
        return
    expected = np.dtype(dtype)
    if not (array.dtype == expected if exact else np.can_cast(array.dtype, expected)):
        raise NodeTypeError(
            f"{array.name} has data type {array.dtype}, not {expected}", path=array.path, found=str(array.dtype)
        )
