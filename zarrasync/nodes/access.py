"""What the integrations, the bulk operations and the server use of arrays and groups beyond their public API.

Public objects keep their handle, their chunks and their transform private. The functions of this module are the
documented way to them for code of this project. They may change between minor versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from zarrasync import transfer
from zarrasync.errors import ZarrError
from zarrasync.indexing.transform import Transform
from zarrasync.nodes import append_resize
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.nodes.stored_chunks import stored_coords
from zarrasync.nodes.walk import nodes_below, walk

__all__ = [
    "all_members",
    "array_of",
    "as_async",
    "chunks_of",
    "fields_of",
    "give_back_rows",
    "handle_of",
    "readable_members",
    "replace_attributes",
    "reserve_rows",
    "stored_chunks",
    "transform_of",
    "with_handle",
]

N = TypeVar("N", AsyncArray, AsyncGroup)


def as_async(value: Any) -> Any:
    """Return the asynchronous object behind one of the synchronous API. Other values are returned as they are."""
    inner = getattr(value, "async_", None)
    return inner if isinstance(inner, AsyncArray | AsyncGroup | AsyncSelection) else value


# ------------------------------------------------------------------ nodes


def handle_of(node: AsyncArray | AsyncGroup) -> NodeHandle:
    """Return the handle of a node: its store, path, format, settings and consolidated metadata."""
    return node._cell.handle


def with_handle(node: N, handle: NodeHandle) -> N:
    """Return an object for the same metadata with another handle, for instance without consolidated metadata."""
    metadata: Any = node.metadata
    return type(node)(handle, metadata)


async def all_members(group: AsyncGroup) -> list[tuple[str, AsyncArray | AsyncGroup]]:
    """Return all nodes below a group by relative path, for operations that must not leave one out.

    Raises:
        UnsupportedOperation: If the store cannot list.
        ZarrError: If a node cannot be read.
    """
    handle = handle_of(group)
    nodes = await run_on_store(partial(nodes_below, handle, None), handle.store)
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


async def replace_attributes(node: AsyncArray | AsyncGroup, attributes: Mapping[str, Any]) -> None:
    """Store attributes in the place of all present ones, with one write.

    Raises:
        MetadataError: If a value cannot be written as JSON.
        ReadOnlyError: If the node was opened for reading.
    """
    await node._set_attributes(attributes)


# ------------------------------------------------------------------ chunks and selections


def chunks_of(array: AsyncArray) -> transfer.Chunks:
    """Return what ``transfer`` reads and writes: the store of the array's chunks, its metadata and its settings."""
    return array._chunks


async def stored_chunks(array: AsyncArray) -> set[tuple[int, ...]]:
    """Return the grid coordinates of stored values (shards, or chunks where there are none). Lists their keys.

    Values outside the shape are included, as a killed writer may have left some.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    return await stored_coords(array._chunks)


def transform_of(selection: AsyncSelection) -> Transform:
    """Return the map from the elements of a selection to those of its array."""
    return selection._transform


def array_of(selection: AsyncSelection) -> AsyncArray:
    """Return the array that a selection selects from."""
    assert isinstance(selection.array, AsyncArray)
    return selection.array


def fields_of(selection: AsyncSelection) -> str | list[str] | None:
    """Return the structured fields that a selection has, or ``None`` for all."""
    return selection._fields


# ------------------------------------------------------------------ appending


async def reserve_rows(array: AsyncArray, axis: int, shape: tuple[int, ...], start: int | None = None) -> int:
    """Make an array longer for values that the caller will write. No other writer gets the same rows.

    Args:
        array: The array. Its metadata is changed in place.
        axis: The axis to extend, counted from 0.
        shape: The shape of the values. On other axes it must be that of the array.
        start: Where along the axis the values go, if rows were reserved in another array of the same dataset.
            ``None`` for the end of the array.

    Returns:
        Where along the axis the values go.

    Raises:
        ShapeError: If the other axes differ, or the rows of other writers could be lost and ``config.unaligned`` does
            not allow that.
        WriteConflictError: If other writers kept changing the array until ``config.total_timeout``.
    """
    return await append_resize.reserve_rows(array._cell, axis, shape, start)


async def give_back_rows(array: AsyncArray, axis: int, start: int, stop: int) -> None:
    """Undo ``reserve_rows``: fill the rows, and make the array shorter unless other writers have appended after them.

    Args:
        array: The array.
        axis: The axis that was extended.
        start: The first row.
        stop: The row after the last one.
    """
    await append_resize.give_back_rows(array._cell, axis, start, stop)
