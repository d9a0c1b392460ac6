"""Groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Never, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.gather import for_each, gather
from zarrasync.display.info import Info, Tree, group_info, render_tree
from zarrasync.errors import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError, ShapeError
from zarrasync.metadata.create import attributes_of, check_options, plan_array
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.base import AsyncNode
from zarrasync.nodes.node import Metadata, NodeHandle, find, find_all, run_on_store
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.stores import Request

__all__ = [
    "AsyncGroup",
    "as_node",
    "create_array_at",
    "create_group_at",
    "create_planned_array",
    "plan_array_at",
    "plan_with_data",
]

T = TypeVar("T")
_COPY = 8
"""Values that ``move`` copies at a time."""


class AsyncGroup(AsyncNode[GroupMetadata]):
    """A group: a node that holds arrays and groups by name.

        t2m = await group["t2m"]
        names = await group.array_keys()

    Groups come from ``open_group``, ``create_group`` and other groups.
    """

    _kind = GroupMetadata

    # -------------------------------------------------------------- what it is

    @property
    def metadata(self) -> GroupMetadata:
        """The group's metadata."""
        return self._metadata

    @property
    def info(self) -> Info:
        """What is known of the group without reading, for people."""
        return group_info(self._metadata, self.name, self.store, self.zarr_format)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.store!r}>"

    def _repr_html_(self) -> str:
        from zarrasync.display import html

        known = self._handle.consolidated
        members = None if known is None else known.members(self.path)
        return html.group(self._metadata, self.info, self.name, members)

    # -------------------------------------------------------------- members

    def __getitem__(self, name: str) -> _Member:
        return _Member(self, name)

    # Python would otherwise try group[0], group[1], … for these.

    def __contains__(self, name: object) -> Never:
        raise TypeError(f"an asynchronous group is asked with `await group.contains({name!r})`")

    def __iter__(self) -> Never:
        raise TypeError("the names in an asynchronous group come with `async for name in group`")

    async def setitem(self, name: str, value: npt.ArrayLike) -> None:
        """Store values as an array of that name, replacing what is there."""
        await self.create_array(name, data=value, overwrite=True)

    async def getitem(self, name: str) -> AsyncArray | AsyncGroup:
        """The member of a name, or below members by a path (``"a/b"``).

        Raises:
            NodeNotFoundError: If there is none.
        """
        node = self._handle.child(name)
        found = await run_on_store(partial(find, node, (node.format,)), self.store)
        return as_node(node, found.metadata)

    async def get(self, name: str, default: T | None = None) -> AsyncArray | AsyncGroup | T | None:
        """The member of a name, or the default if there is none."""
        try:
            return await self.getitem(name)
        except NodeNotFoundError:
            return default

    async def contains(self, name: str) -> bool:
        """Whether there is a member of that name."""
        return await self.get(name) is not None

    async def members(self, max_depth: int | None = 0) -> tuple[tuple[str, AsyncArray | AsyncGroup], ...]:
        """Members by name: one listing and one batch of documents per level.

        Args:
            max_depth: How many levels of groups below this one to look into; ``None`` for all.

        Returns:
            Pairs of path (relative to this group) and node, sorted by path.

        Raises:
            UnsupportedOperation: If the store can not list.
        """
        found = await run_on_store(partial(self._walk, max_depth), self.store)
        return tuple((path, as_node(self._handle.child(path), metadata)) for path, metadata in found)

    async def _walk(self, max_depth: int | None) -> list[tuple[str, Metadata]]:
        if max_depth is not None and max_depth < 0:
            raise ValueError(f"max_depth is at least 0 or None, found {max_depth}")
        found: list[tuple[str, Metadata]] = []
        level, depth = [""], 0
        while level:
            nodes = [self._handle.at(join(self.path, path)) for path in level]
            listed = await gather([partial(node.children, max_depth) for node in nodes])
            paths = {
                join(above, name): implied
                for above, own in zip(level, listed, strict=True)
                for name, implied in own.items()
            }
            documented = [path for path, implied in paths.items() if not implied]
            loaded = await find_all(
                self._handle, [join(self.path, path) for path in documented], (self._handle.format,)
            )
            members = {path: node.metadata for path, node in zip(documented, loaded, strict=True) if node is not None}
            members.update({path: GroupMetadata() for path, implied in paths.items() if implied})
            found.extend(members.items())
            if self._handle.format.separates_metadata or (max_depth is not None and depth >= max_depth):
                break
            level = [path for path, metadata in members.items() if isinstance(metadata, GroupMetadata)]
            depth += 1
        return sorted(found, key=lambda item: item[0])

    async def arrays(self) -> tuple[tuple[str, AsyncArray], ...]:
        """The arrays among the members, by name."""
        return tuple((name, node) for name, node in await self.members() if isinstance(node, AsyncArray))

    async def groups(self) -> tuple[tuple[str, AsyncGroup], ...]:
        """The groups among the members, by name."""
        return tuple((name, node) for name, node in await self.members() if isinstance(node, AsyncGroup))

    async def keys(self) -> tuple[str, ...]:
        """The names of the members."""
        return tuple(name for name, _ in await self.members())

    async def array_keys(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(name for name, _ in await self.arrays())

    async def group_keys(self) -> tuple[str, ...]:
        """The names of the groups."""
        return tuple(name for name, _ in await self.groups())

    async def nmembers(self, max_depth: int | None = 0) -> int:
        """The number of members."""
        return len(await self.members(max_depth))

    async def tree(self, max_depth: int | None = None) -> Tree:
        """The hierarchy below, as text that shows itself as such."""
        found = await run_on_store(partial(self._walk, max_depth), self.store)
        return render_tree(self.name, found)

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.keys():
            yield name

    # -------------------------------------------------------------- creating

    async def create_array(self, name: str, *, overwrite: bool = False, **options: Any) -> AsyncArray:
        """Create an array below this group.

        Args:
            name: Its name, or a path; groups on the way are made.
            overwrite: Replace what is there.
            **options: As for ``zarrasync.create_array``: ``shape``, ``dtype``, ``data``, ``chunks``, ``shards``,
                ``filters``, ``serializer``, ``compressors``, ``fill_value``, ``order``, ``attributes``,
                ``chunk_key_encoding``, ``dimension_names``.

        Raises:
            NodeExistsError: If a node is there and ``overwrite`` is not set.
        """
        return await create_array_at(self._handle.child(name), overwrite=overwrite, **options)

    async def create_group(
        self, name: str, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> AsyncGroup:
        """Create a group below this one.

        Raises:
            NodeExistsError: If a node is there and ``overwrite`` is not set.
        """
        return await create_group_at(self._handle.child(name), attributes=attributes, overwrite=overwrite)

    async def require_array(
        self, name: str, *, shape: Any, dtype: Any = None, exact: bool = False, **options: Any
    ) -> AsyncArray:
        """The array of that name, created if there is none.

        Args:
            name: The name.
            shape: The shape it must have.
            dtype: The data type it must have, or one that can be cast to it unless ``exact``.
            exact: Whether the data type must be the very one.
            **options: As for ``create_array``.

        Raises:
            NodeTypeError: If a group is there, or the data type differs.
            ShapeError: If the shape differs.
        """
        create = partial(self.create_array, name, shape=shape, dtype=dtype, **options)
        found = await find_or_create(lambda: self.get(name), create)
        if not isinstance(found, AsyncArray):
            raise NodeTypeError(
                f"{found.name} is a group, not an array", path=found.path, found="group", wanted="array"
            )
        wanted = (shape,) if isinstance(shape, int) else tuple(shape)
        if found.shape != wanted:
            raise ShapeError(f"{found.name} has shape {found.shape}, not {wanted}", found=found.shape, wanted=wanted)
        if dtype is not None and not (
            found.dtype == np.dtype(dtype) if exact else np.can_cast(found.dtype, np.dtype(dtype))
        ):
            raise NodeTypeError(
                f"{found.name} has data type {found.dtype}, not {np.dtype(dtype)}",
                path=found.path,
                found=str(found.dtype),
            )
        return found

    async def require_group(self, name: str, *, attributes: Mapping[str, Any] | None = None) -> AsyncGroup:
        """The group of that name, created if there is none.

        Raises:
            NodeTypeError: If an array is there.
        """
        create = partial(self.create_group, name, attributes=attributes)
        found = await find_or_create(lambda: self.get(name), create)
        if not isinstance(found, AsyncGroup):
            raise NodeTypeError(
                f"{found.name} is an array, not a group", path=found.path, found="array", wanted="group"
            )
        return found

    # -------------------------------------------------------------- changing

    async def delete(self, name: str) -> None:
        """Erase a member and everything below it, be its metadata damaged or not.

        Raises:
            NodeNotFoundError: If there is none.
        """
        with suppress(MetadataError):
            await self.getitem(name)
        await run_on_store(self._handle.child(name).erase, self.store)

    async def move(self, source: str, dest: str) -> None:
        """Give a member another name or place below this group. Its values are copied, then erased.

        Raises:
            NodeNotFoundError: If there is no such member.
            NodeExistsError: If the destination exists.
        """
        await self.getitem(source)
        if join(normalize_path(source), "") == join(normalize_path(dest), ""):
            return
        if f"{normalize_path(dest)}/".startswith(f"{normalize_path(source)}/"):
            raise NodeExistsError(f"{source!r} can not be moved below itself to {dest!r}", path=dest)
        if await self.contains(dest):
            raise NodeExistsError(f"there is a node at {self._handle.child(dest).name} already", path=dest)
        parent = normalize_path(dest).rpartition("/")[0]
        if parent:
            await self.require_group(parent)
        await run_on_store(partial(self._move, self._handle.child(source), self._handle.child(dest)), self.store)

    async def _move(self, source: NodeHandle, dest: NodeHandle) -> None:
        dest.format.check_path(dest.path)
        old, new = source.format, dest.format
        moves = dict(zip(old.erase_keys(source.path), new.erase_keys(dest.path), strict=True))
        for begin, target in zip(old.erase_prefixes(source.path), new.erase_prefixes(dest.path), strict=True):
            for key in await self.store.list_prefix(begin):
                moves[key] = target + key[len(begin) :]

        async def copy(key: str) -> None:
            (value,) = await self.store.fetch([Request(key)])
            if value is not None:
                await self.store.put(moves[key], value.data)

        await for_each(copy, list(moves), 1 if self.store.blocking else _COPY)
        if source.consolidated is not None:
            await source.consolidated.note(
                self.store, [moves[key] for key in source.consolidated.documents if key in moves]
            )
        await source.erase()


class _Member:
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


async def find_or_create(
    find: Callable[[], Awaitable[AsyncArray | AsyncGroup | None]],
    make: Callable[[], Awaitable[AsyncArray | AsyncGroup]],
) -> AsyncArray | AsyncGroup:
    """The node that is there, or a new one, or that of somebody else who has been faster to make it."""
    found = await find()
    if found is not None:
        return found
    try:
        return await make()
    except NodeExistsError:
        found = await find()
        if found is None:
            raise
        return found


def as_node(node: NodeHandle, metadata: Metadata) -> AsyncArray | AsyncGroup:
    """The object for a node's metadata."""
    return AsyncArray(node, metadata) if isinstance(metadata, ArrayMetadata) else AsyncGroup(node, metadata)


async def _bound(node: NodeHandle, *, overwrite: bool) -> NodeHandle:
    """A place with the format as its store speaks it, unless nothing of the store is to be left."""
    known = node.format.unread_entry_point is None or (overwrite and not node.path)
    return node if known else await run_on_store(node.bind, node.store)


async def create_array_at(node: NodeHandle, *, overwrite: bool = False, **options: Any) -> AsyncArray:
    """Create an array at a place, and write its ``data`` if there is some, which is read before anything is replaced."""
    node, metadata, data = await plan_array_at(node, overwrite=overwrite, **options)
    return await create_planned_array(node, metadata, data, overwrite=overwrite)


async def plan_array_at(
    node: NodeHandle, *, overwrite: bool = False, **options: Any
) -> tuple[NodeHandle, ArrayMetadata, npt.NDArray[Any] | None]:
    """A place as its store speaks of it, an array for it, and its values; nothing is written."""
    node = await _bound(node, overwrite=overwrite)
    metadata, data = await plan_with_data(node, options)
    return node, metadata, data


async def create_planned_array(
    node: NodeHandle, metadata: ArrayMetadata, data: Any, *, overwrite: bool = False, clear: bool = False
) -> AsyncArray:
    """Make an array that was planned, and write its values, if there are some.

    ``clear`` erases chunks first that lie there without an array.
    """
    node = await run_on_store(partial(node.create, metadata, overwrite=overwrite, clear=clear), node.store)
    array = AsyncArray(node, metadata)
    if data is not None:
        await array.view.write(data)
    return array


async def plan_with_data(node: NodeHandle, options: dict[str, Any]) -> tuple[ArrayMetadata, Any]:
    """An array's metadata, and its values as it will hold them; all that can be wrong with either is found here."""
    check_options(options)
    options["data"] = data = await _read_now(options.get("data"))
    metadata = plan_array(node.format, **options)
    return metadata, None if data is None else transfer.as_storable(data, metadata)


async def _read_now(data: Any) -> Any:
    """Values that are in memory, of some that may be read when they are looked at."""
    lazy = getattr(data, "_async", data)  # of the synchronous API
    if isinstance(lazy, AsyncArray | AsyncSelection):
        whole = lazy[...]
        return bridge.run(whole.read(), blocking=whole.array.store.blocking) if driven() else await whole.read()
    return np.asanyarray(data) if hasattr(data, "shape") and not isinstance(data, np.ndarray) else data


async def create_levels(
    root: NodeHandle,
    paths: Iterable[str],
    make: Callable[[NodeHandle, str], Coroutine[Any, Any, AsyncArray | AsyncGroup]],
) -> dict[str, AsyncArray | AsyncGroup]:
    """Make nodes, those of one level side by side; of what lies above them it is known then that it is there.

    Args:
        root: The place that paths are relative to.
        paths: Where to, with all groups above.
        make: Makes the node of a place and its path.
    """
    made: dict[str, AsyncArray | AsyncGroup] = {}

    def place(path: str) -> NodeHandle:
        above, _, name = path.rpartition("/")
        group = made.get(above) if path else None
        return group._handle.child(name) if isinstance(group, AsyncGroup) else root.at(join(root.path, path))

    levels: dict[int, list[str]] = {}
    for path in paths:
        levels.setdefault(path.count("/") + bool(path), []).append(path)
    for _, level in sorted(levels.items()):
        made.update(zip(level, await gather([partial(make, place(path), path) for path in level]), strict=True))
    return made


async def create_group_at(
    node: NodeHandle, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
) -> AsyncGroup:
    """Create a group at a place."""
    node = await _bound(node, overwrite=overwrite)
    metadata = GroupMetadata(attributes=attributes_of(attributes))
    node = await run_on_store(partial(node.create, metadata, overwrite=overwrite), node.store)
    return AsyncGroup(node, metadata)
