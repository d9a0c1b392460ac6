"""Groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Never, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.loop_turns import take_turn
from zarrasync.display import html
from zarrasync.display.info import Info, Tree, group_info, render_tree
from zarrasync.errors import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError, ShapeError, StoreError
from zarrasync.indexing.labels import LabelMethod
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import meaning_of
from zarrasync.metadata.create import checked_attributes
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.base import AsyncNode
from zarrasync.nodes.coordinates import CoordinateCache, parse_queries, selected, wanted_axes
from zarrasync.nodes.create import bind_format, create_array_at, create_node
from zarrasync.nodes.decoded import decoded_members
from zarrasync.nodes.documents import Metadata, check_partial, wrong_kind
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.find import add_members, find
from zarrasync.nodes.move import move_node
from zarrasync.nodes.node import NodeHandle, call_method, run_on_store
from zarrasync.nodes.selection import AsyncSelection, SelectedArray
from zarrasync.nodes.walk import walk, warn_of_failures

T = TypeVar("T")
N = TypeVar("N", bound="AsyncArray | AsyncGroup")


class AsyncGroup(AsyncNode[GroupMetadata]):
    """A group: a node that contains arrays and groups by name.

    Groups are returned by ``open_group``, ``create_group`` and the methods of other groups.

    Example:
        >>> group = await za.create_group({})
        >>> t2m = await group.create_array("t2m", shape=(4, 4), dtype="f4")
        >>> await group.array_keys()
        ('t2m',)
        >>> (await group["t2m"]).shape
        (4, 4)
    """

    # -------------------------------------------------------------- properties

    @property
    def metadata(self) -> GroupMetadata:
        """The group's metadata."""
        return self._cell.metadata

    @property
    def info(self) -> Info:
        """A summary of the metadata. Makes no requests."""
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

    # Without these methods Python would call group[0], group[1], …

    def __contains__(self, name: object) -> Never:
        raise TypeError(f"use `await group.contains({name!r})` with an asynchronous group")

    def __iter__(self) -> Never:
        raise TypeError("use `async for name in group` with an asynchronous group")

    async def setitem(self, name: str, value: npt.ArrayLike) -> None:
        """Store values as an array, replacing an existing node.

        Args:
            name: The name of the array, or its relative path.
            value: The values.

        Raises:
            ReadOnlyError: If the group was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> await group.setitem("lat", [0.5, 1.5])
            >>> await (await group.getitem("lat")).getitem(0)
            np.float64(0.5)
        """
        await self.create_array(name, data=value, overwrite=True)

    async def getitem(self, name: str) -> AsyncArray | AsyncGroup:
        """Open a member by its name, or a node further below by its relative path (``"a/b"``).

        Args:
            name: The name or relative path.

        Returns:
            The array or group.

        Raises:
            NodeNotFoundError: If no node exists at the path.
            MetadataError: If the documents are invalid. Its field ``problems`` lists all problems.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("model/t2m", shape=(4, 4), dtype="f4")
            >>> (await group.getitem("model/t2m")).shape
            (4, 4)
        """
        try:
            return await self._find_member(name)
        except NodeNotFoundError as error:
            handle = self._cell.handle
            await run_on_store(partial(add_members, error, handle, handle.child(name).path), self.store)
            raise

    async def get_array(self, name: str) -> AsyncArray:
        """Open an array by its name or relative path, as ``getitem`` does.

        Args:
            name: The name or relative path.

        Returns:
            The array.

        Raises:
            NodeTypeError: If the node is a group.
            NodeNotFoundError: If no node exists at the path.
            MetadataError: If the documents are invalid.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("t2m", shape=(4, 4), dtype="f4")
            >>> (await group.get_array("t2m")).shape
            (4, 4)
        """
        return expect(await self.getitem(name), AsyncArray, ", not an array")

    async def get_group(self, name: str) -> AsyncGroup:
        """Open a group by its name or relative path, as ``getitem`` does.

        Args:
            name: The name or relative path.

        Returns:
            The group.

        Raises:
            NodeTypeError: If the node is an array.
            NodeNotFoundError: If no node exists at the path.
            MetadataError: If the documents are invalid.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_group("model")
            >>> (await group.get_group("model")).name
            '/model'
        """
        return expect(await self.getitem(name), AsyncGroup, ", not a group")

    async def _find_member(self, name: str) -> AsyncArray | AsyncGroup:
        handle = self._cell.handle.child(name)
        node = await run_on_store(partial(find, handle, (handle.format,)), self.store)
        return make_node(handle, node.metadata)

    async def get(self, name: str, default: T | None = None) -> AsyncArray | AsyncGroup | T | None:
        """Open a member, or return the default if it does not exist.

        Args:
            name: The name or relative path.
            default: The value to return if no node exists at the path.

        Returns:
            The array or group, or the default.

        Raises:
            MetadataError: If the documents are invalid. Its field ``problems`` lists all problems.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> await group.get("t2m", "missing")
            'missing'
        """
        try:
            return await self._find_member(name)
        except NodeNotFoundError:
            return default

    async def contains(self, name: str) -> bool:
        """Return whether a member exists. A member whose documents are invalid or cannot be read exists as well.

        Args:
            name: The name or relative path.

        Raises:
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> await group.contains("t2m")
            False
        """
        try:
            return await self.get(name) is not None
        except MetadataError:
            return True
        except StoreError as error:
            check_partial(error)
            if not self.store.is_local:  # a server may refuse keys that do not exist
                raise
            return True

    async def members(self, max_depth: int | None = 0) -> tuple[tuple[str, AsyncArray | AsyncGroup], ...]:
        """Return the members. Takes one listing per group and one batch of requests per level.

        Members that cannot be read are omitted, with a warning that names them.

        Args:
            max_depth: The number of levels of groups below this one to descend into; ``None`` for all.

        Returns:
            Pairs of relative path and node, sorted by path.

        Raises:
            UnsupportedOperation: If the store cannot list.
            StoreError: If the store failed, or the request for each member in a remote store.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("model/t2m", shape=(4, 4), dtype="f4")
            >>> [path for path, node in await group.members(max_depth=None)]
            ['model', 'model/t2m']
        """
        handle = self._cell.handle
        nodes, failures = await run_on_store(partial(walk, handle, max_depth), self.store)
        warn_of_failures(handle, failures)
        return tuple((path, make_node(handle.below(path), metadata)) for path, metadata in nodes)

    async def arrays(self) -> tuple[tuple[str, AsyncArray], ...]:
        """Return the members that are arrays.

        Returns:
            Pairs of name and array, sorted by name.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("t2m", shape=(4, 4), dtype="f4")
            >>> [(name, array.shape) for name, array in await group.arrays()]
            [('t2m', (4, 4))]
        """
        return tuple((name, node) for name, node in await self.members() if isinstance(node, AsyncArray))

    async def groups(self) -> tuple[tuple[str, AsyncGroup], ...]:
        """Return the members that are groups.

        Returns:
            Pairs of name and group, sorted by name.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_group("model")
            >>> [(name, member.path) for name, member in await group.groups()]
            [('model', 'model')]
        """
        return tuple((name, node) for name, node in await self.members() if isinstance(node, AsyncGroup))

    async def keys(self) -> tuple[str, ...]:
        """Return the names of the members, sorted.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_group("model")
            >>> await group.keys()
            ('model',)
        """
        return tuple(name for name, _ in await self.members())

    async def array_keys(self) -> tuple[str, ...]:
        """Return the names of the members that are arrays, sorted.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("t2m", shape=(4, 4), dtype="f4")
            >>> await group.array_keys()
            ('t2m',)
        """
        return tuple(name for name, _ in await self.arrays())

    async def group_keys(self) -> tuple[str, ...]:
        """Return the names of the members that are groups, sorted.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_group("model")
            >>> await group.group_keys()
            ('model',)
        """
        return tuple(name for name, _ in await self.groups())

    async def nmembers(self, max_depth: int | None = 0) -> int:
        """Return the number of members.

        Args:
            max_depth: The number of levels of groups below this one to descend into; ``None`` for all.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("model/t2m", shape=(4, 4), dtype="f4")
            >>> await group.nmembers(max_depth=None)
            2
        """
        return len(await self.members(max_depth))

    async def tree(self, max_depth: int | None = None) -> Tree:
        """Return the hierarchy below the group as a string. Notebooks show it as a tree that unfolds.

        Nodes that cannot be read are marked.

        Args:
            max_depth: The number of levels of groups below this one to descend into; ``None`` for all.

        Returns:
            A string with one line per node.

        Raises:
            UnsupportedOperation: If the store cannot list.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("model/t2m", shape=(4, 4), dtype="f4")
            >>> await group.tree()
            /
            └── model
                └── t2m (4, 4) float32
        """
        nodes, failures = await run_on_store(partial(walk, self._cell.handle, max_depth), self.store)
        return render_tree(self.name, nodes, {path: str(failure) for path, failure in failures.items()})

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.keys():
            yield name

    # -------------------------------------------------------------- selecting by coordinates

    @cached_property
    def _coordinates(self) -> CoordinateCache:
        """The coordinates that ``sel`` has read, until the group is refreshed."""
        return CoordinateCache(self.store, self.path)

    async def sel(
        self,
        mapping: Mapping[str, Any] | None = None,
        *,
        points: Mapping[str, Any] | None = None,
        method: LabelMethod | None = None,
        tolerance: Any = None,
        decode: bool = True,
        **coordinates: Any,
    ) -> dict[str, AsyncSelection]:
        """Select a part of each array of the group by coordinates.

        Labels are physical values: dates, degrees, names. The array with the name of the dimension contains them, another
        one-dimensional array along it, or a convention such as OME-Zarr computes them. A dimension without labels takes
        positions. The members are listed and coordinates are read once; after ``refresh`` they are read again.

        Args:
            mapping: Labels by coordinate, for names that are not possible as keywords.
            points: Labels that are selected together, by coordinate: ``{"lat": [47.4, 46.2], "lon": [8.5, 6.1]}`` selects two
                places. Their dimensions take the place of the first of these coordinates.
            method: How to find labels that do not exist: ``"nearest"``, ``"pad"`` (or ``"ffill"``, the label before),
                ``"backfill"`` (or ``"bfill"``, the label after). By default, labels must exist. Slices and names ignore it.
            tolerance: The largest distance of a label, or a mapping from coordinates to distances.
            decode: Return physical values. Otherwise stored numbers.
            **coordinates: A label, a list of labels, a mask, or a slice for each coordinate. Both ends of a slice are
                included, and need not exist if the coordinate is sorted. Partial dates such as ``"1990-05"`` stand for
                all times in the period. Longitudes that go round the globe may be given in any range.

        Returns:
            A lazy selection for each array, by name. Arrays without the selected dimensions are whole.

        Raises:
            LabelError: If a coordinate or a label does not exist.
            CodecError: If times cannot be decoded.
            UnsupportedOperation: If the store cannot list, and the metadata is not consolidated. Use ``sel`` of an array.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> attributes = {"units": "days since 2000-01-01"}
            >>> _ = await group.create_array("time", data=[0, 1, 31], dimension_names=["time"], attributes=attributes)
            >>> _ = await group.create_array("t2m", data=[5.0, 6.0, 7.0], dimension_names=["time"])
            >>> january = await group.sel(time="2000-01")
            >>> await january["t2m"].read()
            array([5., 6.])
        """
        await take_turn()
        queries = parse_queries(mapping, points, method, tolerance, coordinates)
        cache, format_ = self._coordinates, self._cell.handle.format
        arrays = await cache.arrays(None, self._find_arrays)
        wanted = wanted_axes(queries, arrays, arrays, cache, self.name)
        positions = await cache.positions(wanted, format_)
        sources = decoded_members(arrays, format_) if decode else arrays
        return {
            name: selected(source, cache.axes(name, source.metadata), positions, wanted)
            for name, source in sources.items()
        }

    async def to_xarray(self, **options: Any) -> Any:
        """Open the group as a dataset of xarray, with the engine ``"zarrasync"``.

        Args:
            **options: Arguments of ``xarray.open_dataset`` and of the engine, such as ``chunks={}`` for dask.

        Returns:
            An ``xarray.Dataset`` with lazy variables.

        Raises:
            ImportError: If xarray is not installed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("t2m", data=[280.0, 281.5], dimension_names=["time"])
            >>> dataset = await group.to_xarray()
            >>> dataset.t2m.mean().item()
            280.75
        """
        return await call_method(self, "group", "to_xarray", "xarray", options)

    async def show(self) -> Any:
        """Show the group in a notebook, in the viewer of the server, whose requests the kernel answers without a server.

        Readers without a kernel see its card and the last picture of the viewer.

        Returns:
            A widget. Its attribute ``address`` contains the shown node and view, and may be set.

        Raises:
            ImportError: If ``anywidget`` is not installed.

        Example:
            >>> group = await za.create_group({})
            >>> widget = await group.show()
        """
        return await call_method(self, "group", "show", "show", {})

    async def _find_arrays(self, _: object) -> dict[str, SelectedArray]:
        self._coordinates.above = meaning_of(self._cell.metadata)
        return dict(await self.arrays())

    # -------------------------------------------------------------- creating

    async def create_array(self, name: str, *, overwrite: bool = False, **options: Any) -> AsyncArray:
        """Create an array below this group.

        Args:
            name: The name or relative path of the array. Missing groups above it are created.
            overwrite: Replace an existing node.
            **options: As for ``zarrasync.create_array``: ``shape``, ``dtype``, ``data``, ``chunks``, ``shards``,
                ``filters``, ``serializer``, ``compressors``, ``fill_value``, ``order``, ``attributes``,
                ``chunk_key_encoding``, ``dimension_names``.

        Returns:
            The new array.

        Raises:
            NodeExistsError: If a node exists and ``overwrite`` is not set.
            ShapeError: If the shapes of the array, its chunks and its shards are inconsistent.
            MetadataError: If the data type, a codec or the fill value is invalid.
            ReadOnlyError: If the group was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> array = await group.create_array("model/t2m", shape=(4, 4), dtype="f4", chunks=(2, 2))
            >>> array.name
            '/model/t2m'
        """
        return await create_array_at(self._cell.handle.child(name), overwrite=overwrite, **options)

    async def create_group(
        self, name: str, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> AsyncGroup:
        """Create a group below this one.

        Args:
            name: The name or relative path of the group. Missing groups above it are created.
            attributes: The attributes. JSON must be able to represent them.
            overwrite: Replace an existing node.

        Returns:
            The new group.

        Raises:
            NodeExistsError: If a node exists and ``overwrite`` is not set.
            MetadataError: If JSON cannot represent an attribute.
            ReadOnlyError: If the group was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> member = await group.create_group("model", attributes={"title": "test"})
            >>> member.attrs["title"]
            'test'
        """
        return await create_group_at(self._cell.handle.child(name), attributes=attributes, overwrite=overwrite)

    async def require_array(
        self, name: str, *, shape: Any, dtype: Any = None, exact: bool = False, **options: Any
    ) -> AsyncArray:
        """Open an array. Create it if it does not exist.

        Args:
            name: The name or relative path of the array.
            shape: The required shape.
            dtype: The required data type. Unless ``exact`` is set, an existing array may have another data type that
                NumPy can cast to it safely.
            exact: Accept no data type except ``dtype``.
            **options: Options of a new array, as for ``create_array``.

        Returns:
            The array.

        Raises:
            NodeTypeError: If a group exists at the path, or the array has a different data type.
            ShapeError: If the array has a different shape.
            ReadOnlyError: If the group was opened for reading and the array does not exist.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> new = await group.require_array("t2m", shape=(4, 4), dtype="f4")
            >>> existing = await group.require_array("t2m", shape=(4, 4))
            >>> existing == new
            True
        """
        create = partial(self.create_array, name, shape=shape, dtype=dtype, **options)
        array = expect(await find_or_create(lambda: self.get(name), create), AsyncArray, ", not an array")
        _check_array(array, (shape,) if isinstance(shape, int) else tuple(shape), dtype, exact=exact)
        return array

    async def require_group(self, name: str, *, attributes: Mapping[str, Any] | None = None) -> AsyncGroup:
        """Open a group. Create it if it does not exist.

        Args:
            name: The name or relative path of the group.
            attributes: Attributes of a new group.

        Returns:
            The group.

        Raises:
            NodeTypeError: If an array exists at the path.
            ReadOnlyError: If this group was opened for reading and the member does not exist.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> member = await group.require_group("model")
            >>> member.path
            'model'
        """
        create = partial(self.create_group, name, attributes=attributes)
        return expect(await find_or_create(lambda: self.get(name), create), AsyncGroup, ", not a group")

    # -------------------------------------------------------------- changing

    async def delete(self, name: str, *, all_files: bool = False) -> None:
        """Erase a member and all nodes below it, even if its metadata is damaged.

        Args:
            name: The name or relative path of the member.
            all_files: Also erase files that are not part of any Zarr node. They are kept by default.

        Raises:
            NodeNotFoundError: If the member does not exist.
            ReadOnlyError: If the group was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_group("model")
            >>> await group.delete("model")
            >>> await group.keys()
            ()
        """
        with suppress(MetadataError):
            await self.getitem(name)
        erase = partial(erase_node, self._cell.handle.child(name), all_files=all_files)
        await run_on_store(erase, self.store)

    async def move(self, source: str, dest: str) -> None:
        """Move a member to another name or path below this group. Its values are copied, then erased.

        Pause other writers of the member: values that they overwrite meanwhile may be lost.

        Args:
            source: The name or relative path of the member.
            dest: The new name or relative path. Missing groups above it are created.

        Raises:
            NodeNotFoundError: If the member does not exist.
            NodeExistsError: If a node exists at the new path.
            WriteConflictError: If another writer stored new values meanwhile. They remain at the old path.
            UnsupportedOperation: If the store cannot list.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_group("run1")
            >>> await group.move("run1", "archive/run1")
            >>> await group.keys()
            ('archive',)
        """
        await self.getitem(source)
        source, dest = normalize_path(source), normalize_path(dest)
        if source == dest:
            return
        if f"{dest}/".startswith(f"{source}/"):
            raise NodeExistsError(f"cannot move {source!r} below itself, to {dest!r}", path=dest)
        handle = self._cell.handle
        if await self.contains(dest):
            raise NodeExistsError(
                f"cannot move {source!r} to {dest!r}: a node exists at {handle.child(dest).name}", path=dest
            )
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
        raise AttributeError(f"open the member {self._name!r} first: (await group[{self._name!r}]).{name}")

    def __getitem__(self, key: Any) -> Never:
        raise TypeError(f"open the member {self._name!r} first: (await group[{self._name!r}])[...]")


def make_node(handle: NodeHandle, metadata: Metadata) -> AsyncArray | AsyncGroup:
    """Return the array or group for a handle and its stored metadata."""
    return AsyncArray(handle, metadata) if isinstance(metadata, ArrayMetadata) else AsyncGroup(handle, metadata)


def expect(node: AsyncArray | AsyncGroup, kind: type[N], hint: str = "", *, shows_store: bool = False) -> N:
    """Return a node of an expected kind.

    Args:
        node: A node.
        kind: ``AsyncArray`` or ``AsyncGroup``.
        hint: The end of the message about a node of the other kind.
        shows_store: Whether the message contains the store.

    Raises:
        NodeTypeError: If the node is of the other kind.
    """
    if not isinstance(node, kind):
        subject = f"{node.name} in {node.store!r}" if shows_store else node.name
        raise wrong_kind(subject, node.path, node.metadata, hint)
    return node


async def create_group_at(
    handle: NodeHandle, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
) -> AsyncGroup:
    """Create a group.

    Args:
        handle: The location and the format of the new group.
        attributes: The attributes.
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
    """Return the existing node, or create it. If another writer creates it first, return that node."""
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
