"""Changing the shape of an array: ``resize``, and ``append``, which several writers may call at the same time.

The order of writes determines the state after an interruption. ``resize`` erases the data outside a smaller shape before
it stores the shape, so that growing the array again shows fill values. ``append`` uses one of two orders:

* If the store supports conditional writes, ``append`` *reserves* rows: it stores the longer shape first, which shows
  other writers that the rows are taken, and then writes the values.
* If the store's locks exclude all other writers, ``append`` writes the values first, then the shape, so that readers
  never see fill values. A *pending* note in the store makes the next writer erase the values if the process is killed
  between the two steps.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from operator import contains
from typing import Any, TypeAlias

import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync.errors import ShapeError, StoreError, WriteConflictError
from zarrasync.indexing import parse
from zarrasync.indexing.regions import clip
from zarrasync.indexing.transform import Stride, Transform
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import coords_outside
from zarrasync.nodes.base import MetadataCell
from zarrasync.nodes.node import NodeHandle, stored_coords
from zarrasync.transfer import Chunks
from zarrasync.transfer.chunk_cache import cache_for
from zarrasync.transfer.unaligned import check_append

Cell: TypeAlias = MetadataCell[ArrayMetadata]
_BATCH = 1000
"""The number of values to erase with one call. If more may exist, the existing keys are listed first."""


def chunks_at(handle: NodeHandle, metadata: ArrayMetadata) -> Chunks:
    """Return the chunks of an array, described by metadata that may differ from the stored metadata."""
    prefix = handle.format.chunk_prefix(handle.path)
    limit = metadata.chain_of(metadata.write_chunks, handle.config.max_chunk_bytes).value_limit
    store = handle.chunk_store(metadata)
    unproven = [metadata.keys.separator] if metadata.keys.is_implied and metadata.ndim > 1 else []
    cache = cache_for(handle.config)
    config, name = handle.config, handle.name
    return Chunks(store, metadata, config, prefix, handle.store, name, limit=limit, unproven=unproven, cache=cache)


# ------------------------------------------------------------------ resize


async def resize(cell: Cell, shape: tuple[int, ...]) -> None:
    """Change the shape of an array; see ``AsyncArray.resize``."""
    handle = cell.handle

    async def change(present: ArrayMetadata) -> ArrayMetadata:
        # Data is erased first, so that no interruption makes erased data reappear when the array grows.
        target = present.with_shape(shape)
        if _is_smaller(target.shape, present.shape):
            await _erase_beyond(handle, present, target)
        if _is_smaller(present.shape, target.shape):
            await erase_pending(handle, present)
        return target

    await cell.change(change, fresh=_is_smaller(shape, cell.metadata.shape))


def _is_smaller(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether a shape is smaller than another along any axis."""
    return any(size < other_size for size, other_size in zip(shape, other, strict=True))


async def _erase_beyond(
    handle: NodeHandle, present: ArrayMetadata, target: ArrayMetadata, *, whole_first: bool = False
) -> None:
    """Erase the elements of an array outside a smaller shape.

    Chunks at the new edge are rewritten first, because writing fails more often than erasing, and an early failure keeps
    more data. With ``whole_first`` they are rewritten last, because the store may be full.
    """
    for step in (_erase_outside, _clear_edges) if whole_first else (_clear_edges, _erase_outside):
        await step(chunks_at(handle, present), target)


async def _erase_outside(chunks: Chunks, target: ArrayMetadata) -> None:
    """Erase the stored values that lie completely outside a smaller shape."""
    metadata, target_grid = chunks.metadata, target.grid.shape
    grid = metadata.grid.shape
    count = math.prod(grid) - math.prod(map(min, grid, target_grid))
    if count > _BATCH and chunks.store.listable:  # most of them do not exist
        decoded = ((key, metadata.keys.decode(key, metadata.ndim)) for key in await chunks.store.list_prefix(""))
        keys = (
            key
            for key, coords in decoded
            if coords is not None and any(i >= n for i, n in zip(coords, target_grid, strict=True))
        )
    else:
        keys = (chunks.key(coords) for coords in coords_outside(grid, target_grid))
    while batch := list(islice(keys, _BATCH)):
        await chunks.store.erase_values(batch)
        chunks.changes.add()


async def _clear_edges(chunks: Chunks, target: ArrayMetadata) -> None:
    """Write fill values to the elements outside a smaller shape, in chunks that lie partly inside."""
    metadata = chunks.metadata
    kept = [min(new, old) for new, old in zip(target.shape, metadata.shape, strict=True)]
    chunk_ends = [
        min(axis.extent, axis.start(last := axis.find(size - 1)) + axis.size(last)) if size else 0
        for size, axis in zip(kept, metadata.grid.axes, strict=True)
    ]
    for axis, (start, stop) in enumerate(zip(kept, chunk_ends, strict=True)):
        if start < stop and 0 not in chunk_ends:
            box = [slice(0, end) for end in chunk_ends]
            box[axis] = slice(start, stop)
            await fill_box(chunks, tuple(box))


async def fill_box(chunks: Chunks, box: tuple[slice, ...]) -> None:
    """Write fill values to a box of elements, in chunks that exist."""

    async def fill(part: tuple[slice, ...]) -> None:
        transform = parse.basic(part, chunks.metadata.shape)
        await transfer.write(chunks, transform, chunks.metadata.spec.scalar, only_present=True)

    await for_each(fill, await _stored_parts(chunks, box), chunks.concurrency)


async def _stored_parts(chunks: Chunks, box: tuple[slice, ...]) -> list[tuple[slice, ...]]:
    """Return a box, or its parts in stored chunks if it touches so many that most of them do not exist."""
    grid = chunks.metadata.grid
    box = tuple(slice(*part.indices(axis.extent)[:2]) for part, axis in zip(box, grid.axes, strict=True))
    touched = [range(axis.find(s.start), axis.find(s.stop - 1) + 1) for axis, s in zip(grid.axes, box, strict=True)]
    if math.prod(map(len, touched)) <= _BATCH or not chunks.store.listable:
        return [box]
    stored = [coords for coords in await stored_coords(chunks) if all(map(contains, touched, coords))]
    return [clip(box, grid.box(coords)) for coords in stored]


# ------------------------------------------------------------------ pending notes


def _pending_note(metadata: ArrayMetadata) -> bytes:
    """Return the note to store while values are written beyond the stored shape."""
    return json.dumps(metadata.shape).encode()


async def _pending(handle: NodeHandle) -> bytes | None:
    directories = handle.store.directories
    return None if directories is None else await compute(partial(directories.pending, handle.document_key))


async def _set_pending(handle: NodeHandle, note: bytes | None) -> None:
    if (directories := handle.store.directories) is not None:
        await compute(partial(directories.set_pending, handle.document_key, note))


async def erase_pending(handle: NodeHandle, present: ArrayMetadata) -> None:
    """Erase values beyond the shape that remain from an append whose process was killed."""
    note = await _pending(handle)
    if note is None:
        return
    with contextlib.suppress(ValueError, TypeError):  # an incomplete note: no values were written yet
        shape = tuple(map(max, json.loads(note), present.shape))
        if len(shape) == present.ndim and shape != present.shape:
            await _erase_beyond(handle, present.with_shape(shape), present, whole_first=True)
    await _set_pending(handle, None)


# ------------------------------------------------------------------ append


class Append:
    """One append of values to an array.

    Args:
        cell: The array.
        values: The values, converted to the array's dtype.
        axis: The axis to extend, counted from 0.
    """

    def __init__(self, cell: Cell, values: npt.NDArray[Any], axis: int) -> None:
        self._cell, self._values, self._axis = cell, values, axis
        self._handle, self._count = cell.handle, values.shape[axis]
        self.undo: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Undoes what an append that failed or was cancelled has stored. A thread may have completed all of it."""

    async def run(self) -> None:
        """Append the values.

        Raises:
            ShapeError: As for ``AsyncArray.append``.
        """
        store = self._handle.store
        if store.checks_bounds or (store.conditional and not store.exclusive_locks):
            await self.reserve_then_write()
        else:
            await self.write_then_grow()

    async def reserve_then_write(self) -> None:
        """Store the longer shape, then write the values to its new rows."""

        def on_reserved(start: int) -> None:
            self.undo = partial(give_back_rows, self._cell, self._axis, start, start + self._count)

        start = await reserve_rows(self._cell, self._axis, self._values.shape, on_reserved=on_reserved)
        await self._write(self._cell.metadata, self._cell.metadata, start)
        self.undo = partial(self._give_back_written, start)

    async def _give_back_written(self, start: int) -> None:
        """Give back rows that contain values, unless other writers have appended after them."""
        await self._cell.refresh()
        stop = start + self._count
        if self._cell.metadata.shape[self._axis] == stop:
            await give_back_rows(self._cell, self._axis, start, stop)

    async def write_then_grow(self) -> None:
        """Write the values beyond the end, then store the longer shape."""
        handle, axis = self._handle, self._axis
        grown: ArrayMetadata | None = None

        async def write_and_grow(present: ArrayMetadata) -> ArrayMetadata:
            nonlocal grown
            check_append_shape(self._values.shape, axis, present.shape)  # another writer may have resized it
            start = present.shape[axis]
            grown = _grow(present, axis, self._count)
            check_append(chunks_at(handle, present), grown, axis, start, start + self._count)
            await erase_pending(handle, present)
            await _set_pending(handle, _pending_note(grown))
            self.undo = partial(self._withdraw, grown, 0)
            await self._write(present, grown, start)
            return grown

        def on_stored() -> None:
            assert grown is not None
            self.undo = partial(self._withdraw, grown, self._count)

        await self._cell.change(write_and_grow, on_stored=on_stored)
        assert grown is not None
        if handle.store.directories is None:
            return
        with contextlib.suppress(StoreError):  # a note that remains does no harm
            async with handle.lock():
                if await _pending(handle) == _pending_note(grown):  # not another writer's
                    await _set_pending(handle, None)

    async def _write(self, present: ArrayMetadata, grown: ArrayMetadata, start: int) -> None:
        """Write the values to the new rows of the grown array."""
        axis, shape = self._axis, self._values.shape
        maps = tuple(Stride(number, start if number == axis else 0, 1) for number in range(grown.ndim))
        check = partial(check_append, chunks_at(self._handle, present), grown, axis, start, start + self._count)
        await transfer.write(chunks_at(self._handle, grown), Transform(shape, maps), self._values, check=check)

    async def _withdraw(self, grown: ArrayMetadata, count: int) -> None:
        """Erase values beyond the end, which would reappear when the array grows.

        Args:
            grown: The metadata that the append stores.
            count: The number of rows that the stored shape already includes.
        """
        handle, axis = self._handle, self._axis

        async def shrink(present: ArrayMetadata) -> ArrayMetadata:
            if count and present.shape[axis] != grown.shape[axis]:
                return present  # erasing the values would leave a gap before the rows of a later append
            target = _grow(present, axis, -count)
            await _erase_beyond(handle, grown, target, whole_first=True)
            await _set_pending(handle, None)
            return target

        await self._cell.change(shrink, fresh=True)


def check_append_shape(values_shape: tuple[int, ...], axis: int, shape: tuple[int, ...]) -> None:
    """Check that values can be appended to an array along an axis.

    Raises:
        ShapeError: If the sizes of the other axes differ.
    """
    others = [size for number, size in enumerate(shape) if number != axis]
    values_others = [size for number, size in enumerate(values_shape) if number != axis]
    if len(values_shape) != len(shape) or values_others != others:
        raise ShapeError(
            f"cannot append values of shape {values_shape} to an array of shape {shape} along axis {axis}: "
            "the sizes of all other axes must be equal",
            found=values_shape,
            wanted=shape,
        )


async def reserve_rows(
    cell: Cell,
    axis: int,
    shape: tuple[int, ...],
    start: int | None = None,
    on_reserved: Callable[[int], None] = lambda start: None,
    *,
    is_end: bool = False,
) -> int:
    """Reserve rows of an array for values. No other writer gets these rows.

    Args:
        cell: The array.
        axis: The axis to extend.
        shape: The shape of the values.
        start: The first row, if rows were already reserved in another array of the same dataset. ``None`` for the end
            of the array.
        on_reserved: Called with the first row once the rows are reserved, even if the caller has been cancelled.
        is_end: Whether the first row must still be the end of the array.

    Returns:
        The first row.

    Raises:
        WriteConflictError: If the first row is not the end, because another writer has changed the length.
    """
    first_row = 0

    async def grow(present: ArrayMetadata) -> ArrayMetadata:
        nonlocal first_row
        check_append_shape(shape, axis, present.shape)  # another writer may have resized it
        first_row = present.shape[axis] if start is None else start
        if is_end and first_row != present.shape[axis]:
            raise WriteConflictError(
                f"{cell.handle.place} has {present.shape[axis]} rows now, and not {first_row}, because "
                "another writer has changed its length; repeat the call",
                key=cell.handle.document_key,
            )
        stop = first_row + shape[axis]
        grown = _grow(present, axis, max(0, stop - present.shape[axis]))
        check_append(chunks_at(cell.handle, present), grown, axis, first_row, stop)
        return grown

    await cell.change(grow, on_stored=lambda: on_reserved(first_row))
    return first_row


async def give_back_rows(cell: Cell, axis: int, start: int, stop: int) -> None:
    """Write fill values to reserved rows, then remove the rows if they are still the last ones.

    The fill values are written first, because no other writer gets the rows as long as the array has them.
    """

    async def shrink(present: ArrayMetadata) -> ArrayMetadata:
        return _grow(present, axis, start - stop) if present.shape[axis] == stop else present

    box = tuple(slice(start, stop) if number == axis else slice(None) for number in range(cell.metadata.ndim))
    await fill_box(chunks_at(cell.handle, cell.metadata), box)
    await cell.change(shrink, fresh=True)


def _grow(metadata: ArrayMetadata, axis: int, count: int) -> ArrayMetadata:
    """Return the metadata of an array with more rows along an axis, or fewer if the count is negative."""
    return metadata.with_shape(tuple(size + count * (number == axis) for number, size in enumerate(metadata.shape)))
