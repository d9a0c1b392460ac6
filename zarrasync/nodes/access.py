"""Internal access to arrays, groups and selections, for the integrations, the bulk operations and the server.

The handle, the chunks and the transform are private attributes of the public objects. Code of this project reads them
through the functions of this module, which may change between minor versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from zarrasync import transfer
from zarrasync.errors import ZarrError
from zarrasync.indexing.labels import Position
from zarrasync.indexing.transform import Transform
from zarrasync.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.metadata.conventions.registry import encoding_of, may_be_bounds, parent_of
from zarrasync.nodes import append_resize
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.decoded import AsyncDecodedArray
from zarrasync.nodes.find import find_all
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store, stored_coords
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.nodes.walk import Listings, walk, walk_listed, warn_of_failures
from zarrasync.stores import Store, resolve

N = TypeVar("N", bound=AsyncArray | AsyncGroup)


def as_async(value: Any) -> Any:
    """Return the asynchronous object that a synchronous one wraps. Other values are returned unchanged.

    A decoded array is returned as the selection of its values.
    """
    inner = getattr(value, "async_", value)
    if isinstance(inner, AsyncDecodedArray):
        return inner.view
    return inner if isinstance(inner, AsyncArray | AsyncGroup | AsyncSelection) else value


SourceLike: TypeAlias = Any
"""A store, what means one (``StoreLike``), or an array or group of either API."""


def resolve_source(value: SourceLike, options: Mapping[str, Any] | None, config: ConfigLike) -> Any:
    """Return the asynchronous object of an array or a group, or the store that another value means.

    Raises:
        ValueError: If there are options for an array or a group.
    """
    node = as_async(value)
    if not isinstance(node, AsyncArray | AsyncGroup):
        return resolve(value, options, config)
    if options:
        raise ValueError("source_options are options of a URL, but the source is an array or a group with a store")
    return node


def store_of(source: AsyncArray | AsyncGroup | Store) -> Store:
    """Return the store of a node, or the store itself."""
    return source.store if isinstance(source, AsyncArray | AsyncGroup) else source


# ------------------------------------------------------------------ nodes


def handle_of(node: AsyncArray | AsyncGroup) -> NodeHandle:
    """Return the handle of a node: its store, path, format, settings and consolidated metadata."""
    return node._cell.handle


def with_handle(node: N, handle: NodeHandle) -> N:
    """Return a node with the same metadata and another handle, for instance without consolidated metadata."""
    metadata: Any = node.metadata
    return type(node)(handle, metadata)


async def all_members(group: AsyncGroup) -> list[tuple[str, AsyncArray | AsyncGroup]]:
    """Return all nodes below a group by relative path, for operations that must not leave one out.

    Raises:
        UnsupportedOperation: If the store cannot list.
        ZarrError: If a node cannot be read.
    """
    handle = handle_of(group)
    nodes, failures = await run_on_store(partial(walk, handle, None), handle.store)
    for failure in failures.values():
        raise failure
    return [(path, make_node(handle.child(path), metadata)) for path, metadata in nodes]


async def readable_members(
    group: AsyncGroup,
) -> tuple[list[tuple[str, AsyncArray | AsyncGroup]], Mapping[str, ZarrError]]:
    """Return the members of a group by name, and the errors of those that cannot be read.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    handle = handle_of(group)
    nodes, failures = await run_on_store(partial(walk, handle, 0), handle.store)
    return [(name, make_node(handle.child(name), metadata)) for name, metadata in nodes], failures


async def listed_members(
    group: AsyncGroup, listings: Listings, max_depth: int | None
) -> list[tuple[str, AsyncArray | AsyncGroup]]:
    """Return the nodes below a group by relative path, as its method ``members`` does, from listings that have begun.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    handle = handle_of(group)
    nodes, failures = await walk_listed(handle, listings, max_depth)
    warn_of_failures(handle, failures)
    return [(path, make_node(handle.below(path), metadata)) for path, metadata in nodes]


async def parent_metadata(node: AsyncArray | AsyncGroup) -> NodeMetadata | None:
    """Return the metadata of the group that contains a node, or ``None`` if it does not exist or cannot be read."""
    handle = handle_of(node)
    if not handle.path:
        return None
    try:
        (found,) = await find_all(handle, [handle.path.rpartition("/")[0]], (handle.format,))
    except ZarrError:
        return None
    return None if found is None else found.metadata


async def replace_attributes(node: AsyncArray | AsyncGroup, attributes: Mapping[str, Any]) -> None:
    """Replace all attributes of a node with one write.

    Raises:
        MetadataError: If a value cannot be written as JSON.
        ReadOnlyError: If the node was opened for reading.
    """
    await node._set_attributes(attributes)


# ------------------------------------------------------------------ chunks and selections


def chunks_of(array: AsyncArray) -> transfer.Chunks:
    """Return the object that ``transfer`` reads and writes: the array's chunk store, its metadata and its settings."""
    return array._chunks


async def stored_chunks(array: AsyncArray) -> set[tuple[int, ...]]:
    """Return the grid coordinates of stored values (shards, or chunks if the array is not sharded). Lists their keys.

    Values outside the shape are included, because a writer that was killed may have left some.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    return await stored_coords(array._chunks)


def transform_of(selection: AsyncSelection) -> Transform:
    """Return the map from the coordinates of a selection to coordinates of its array."""
    return selection._transform


async def positions_of(array: AsyncArray, queries: Mapping[str, Query]) -> dict[str, Position]:
    """Return the positions that labels of coordinates select along the axes of an array, by dimension.

    Raises:
        LabelError: If a coordinate or a label does not exist.
    """
    wanted = await array._wanted(queries)
    return await array._coordinates.positions(wanted, handle_of(array).format)


def array_of(selection: AsyncSelection) -> AsyncArray:
    """Return the stored array of a selection."""
    array = selection.array.stored if isinstance(selection.array, AsyncDecodedArray) else selection.array
    assert isinstance(array, AsyncArray)
    return array


def fields_of(selection: AsyncSelection) -> str | list[str] | None:
    """Return the structured fields that a selection reads, or ``None`` for all fields."""
    return selection._fields


# ------------------------------------------------------------------ appending


async def reserve_rows(
    array: AsyncArray, axis: int, shape: tuple[int, ...], start: int | None = None, *, is_end: bool = False
) -> int:
    """Reserve rows at the end of an array for values that the caller will write. No other writer gets these rows.

    Args:
        array: The array. Its metadata is changed in place.
        axis: The axis to extend, counted from 0.
        shape: The shape of the values. The sizes of the other axes must equal the array's.
        start: The first row, if rows were already reserved in another array of the same dataset. ``None`` for the end
            of the array.
        is_end: Whether the first row must still be the end of the array.

    Returns:
        The first row.

    Raises:
        ShapeError: If the sizes of the other axes differ, or another writer's rows could be lost and
            ``config.unaligned`` does not allow that.
        WriteConflictError: If other writers kept changing the array until ``config.total_timeout``, or the first row is not
            its end.
    """
    return await append_resize.reserve_rows(array._cell, axis, shape, start, is_end=is_end)


async def give_back_rows(array: AsyncArray, axis: int, start: int, stop: int) -> None:
    """Undo ``reserve_rows``: write fill values to the rows, and remove them unless other writers appended after them.

    Args:
        array: The array.
        axis: The axis that was extended.
        start: The first row.
        stop: The row after the last one.
    """
    await append_resize.give_back_rows(array._cell, axis, start, stop)


async def array_encoding(array: AsyncArray, siblings: Mapping[str, ArrayMetadata] | None = None) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    Bounds inherit the units and the calendar of their coordinate.

    Args:
        array: The array.
        siblings: The arrays of its group by name. By default they are read, if the array may contain bounds. If they
            cannot be listed, nothing is inherited.
    """
    return encoding_of(array.metadata, handle_of(array).format, await parent_attributes(array, siblings))


async def parent_attributes(
    array: AsyncArray, siblings: Mapping[str, ArrayMetadata] | None = None
) -> Mapping[str, Any] | None:
    """Return the attributes of the coordinate whose bounds an array contains; ``None`` if it contains no bounds."""
    handle = handle_of(array)
    if not handle.path or not may_be_bounds(array.metadata):
        return None
    return parent_of(handle.basename, await _siblings(array) if siblings is None else siblings)


async def _siblings(array: AsyncArray) -> dict[str, ArrayMetadata]:
    handle, group = handle_of(array), await parent_metadata(array)
    node = make_node(handle.at(handle.path.rpartition("/")[0]), group) if isinstance(group, GroupMetadata) else None
    if not isinstance(node, AsyncGroup):
        return {}
    try:
        members, _ = await readable_members(node)
    except ZarrError:  # the store cannot list
        return {}
    return {name: member.metadata for name, member in members if isinstance(member, AsyncArray)}
