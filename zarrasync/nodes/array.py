"""Arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.shield import run_cleanup
from zarrasync._util.short_tracebacks import shorten_methods
from zarrasync.codecs import Codec
from zarrasync.display import html
from zarrasync.display.info import Info, array_info, complete_array_info
from zarrasync.errors import ShapeError
from zarrasync.indexing import parse
from zarrasync.indexing.transform import Transform, identity
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.chunk_shapes import parse_sizes
from zarrasync.model.chunk_grids import Grid
from zarrasync.nodes.append_resize import Append, check_append_shape, chunks_at, resize
from zarrasync.nodes.base import AsyncNode
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.selection import Accessor, AsyncSelection, NotAwaited, select
from zarrasync.nodes.stored_chunks import stored_coords, stored_sizes

__all__ = ["AsyncArray"]


@shorten_methods()
class AsyncArray(NotAwaited, AsyncNode[ArrayMetadata]):
    """An N-dimensional array of chunks in a store.

    Indexing returns a lazy ``AsyncSelection``, which is read when it is awaited:

        block = await array[0:10, ::2]
        await array[0:10].write(values)

    Arrays are returned by ``open_array``, ``create_array`` and groups. ``resize``, ``append`` and
    ``update_attributes`` change an array in place.
    """

    _cached_chunks: transfer.Chunks | None = None
    """The chunks as they were when last asked for, to be used while the metadata is the same."""

    # -------------------------------------------------------------- properties

    @property
    def metadata(self) -> ArrayMetadata:
        """The array's metadata."""
        return self._cell.metadata

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return self._cell.metadata.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements in memory, in native byte order."""
        return self._cell.metadata.dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._cell.metadata.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._cell.metadata.size

    @property
    def nbytes(self) -> int:
        """The size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of the smallest part that can be read alone: of inner chunks if the array is sharded.

        In a rectilinear grid the largest size along each axis; see ``read_chunk_sizes``.
        """
        return self._cell.metadata.chunks

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The shape of shards, which are written as a whole, or ``None`` if the array is not sharded."""
        return self._cell.metadata.shards

    @property
    def read_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Per axis the sizes of chunks (inner chunks if the array is sharded), without what is beyond the array's end."""
        return _axis_sizes(self._cell.metadata.read_grid)

    @property
    def write_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Per axis the sizes of shards (chunks if it is not sharded), without what is beyond the array's end."""
        return _axis_sizes(self._cell.metadata.grid)

    @property
    def fill_value(self) -> Any:
        """The value of elements in chunks that do not exist, or ``None`` if it is undefined (Zarr v2)."""
        value = self._cell.metadata.fill_value
        return value.copy() if isinstance(value, np.void) else value  # fields of a record can be assigned to

    @property
    def filters(self) -> tuple[Codec, ...]:
        """The array -> array codecs, of inner chunks if the array is sharded."""
        return self._cell.metadata.inner_codecs.array_array

    @property
    def serializer(self) -> Codec:
        """The array -> bytes codec, of inner chunks if the array is sharded."""
        return self._cell.metadata.inner_codecs.array_bytes

    @property
    def compressors(self) -> tuple[Codec, ...]:
        """The bytes -> bytes codecs, of inner chunks if the array is sharded."""
        return self._cell.metadata.inner_codecs.bytes_bytes

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Per axis its name or ``None``, or ``None`` if the array has no dimension names."""
        return self._cell.metadata.dimension_names

    @property
    def cdata_shape(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return self._cell.metadata.read_grid.shape

    @property
    def nchunks(self) -> int:
        """The number of chunks."""
        return math.prod(self.cdata_shape)

    @property
    def info(self) -> Info:
        """A summary that takes no requests."""
        return array_info(self._cell.metadata, self.name, self.store, self.zarr_format)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} shape={self.shape} dtype={self._cell.metadata.dtype.numpy} {self.store!r}>"

    def _repr_html_(self) -> str:
        return html.array(self._cell.metadata, self.info.items, self.name)

    def _portable_handle(self) -> NodeHandle:
        handle = self._cell.handle
        copies = handle.consolidated
        return handle if copies is None else replace(handle, consolidated=copies.without_documents())

    @property
    def _chunks(self) -> transfer.Chunks:
        cached, metadata = self._cached_chunks, self._cell.metadata
        if cached is not None and cached.metadata is metadata:
            return cached
        chunks = self._cached_chunks = chunks_at(self._cell.handle, metadata)
        return chunks

    # -------------------------------------------------------------- selecting

    @property
    def view(self) -> AsyncSelection:
        """The whole array as a lazy selection."""
        return AsyncSelection(self, identity(self.shape))

    def __getitem__(self, key: Any) -> AsyncSelection:
        return select(self, key)

    @property
    def oindex(self) -> Accessor:
        """Orthogonal indexing: an integer, slice, list of integers or mask for each axis independently."""
        return self.view.oindex

    @property
    def vindex(self) -> Accessor:
        """Coordinate indexing: points, as an integer array per axis, or a mask of the array's shape."""
        return self.view.vindex

    @property
    def blocks(self) -> Accessor:
        """Block indexing: whole shards (chunks if the array is not sharded) by their grid coordinates."""
        return Accessor(self.view, partial(_parse_block, self._cell.metadata))

    # -------------------------------------------------------------- reading and writing

    async def getitem(self, selection: Any) -> Any:
        """Read ``array[selection]`` with the semantics of NumPy."""
        return await self[selection].read()

    async def setitem(self, selection: Any, value: npt.ArrayLike) -> None:
        """Write ``array[selection] = value`` with the semantics of NumPy."""
        await self[selection].write(value)

    async def get_basic_selection(
        self, selection: Any = Ellipsis, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read with basic indexing.

        Args:
            selection: Integers, slices, ``...`` and ``newaxis``.
            out: An array of the selection's shape and dtype to read into.
            fields: Names of structured fields to read alone.

        Returns:
            As ``AsyncSelection.read``.
        """
        return await self._pick(selection, parse.basic, fields).read(out)

    async def set_basic_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write with basic indexing.

        Args:
            selection: Integers, slices, ``...`` and ``newaxis``.
            value: The values, broadcast to the selection's shape.
            fields: Names of structured fields to write alone.
        """
        await self._pick(selection, parse.basic, fields).write(value)

    async def get_orthogonal_selection(
        self, selection: Any, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read with orthogonal indexing, as ``oindex``.

        Args:
            selection: An integer, slice, list of integers or mask per axis.
            out: An array of the selection's shape and dtype to read into.
            fields: Names of structured fields to read alone.

        Returns:
            As ``AsyncSelection.read``.
        """
        return await self._pick(selection, parse.orthogonal, fields).read(out)

    async def set_orthogonal_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write with orthogonal indexing, as ``oindex``.

        Args:
            selection: An integer, slice, list of integers or mask per axis.
            value: The values, broadcast to the selection's shape.
            fields: Names of structured fields to write alone.
        """
        await self._pick(selection, parse.orthogonal, fields).write(value)

    async def get_coordinate_selection(
        self, selection: Any, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read with coordinate indexing, as ``vindex``.

        Args:
            selection: Integers or integer arrays per axis, which are broadcast against each other.
            out: An array of the selection's shape and dtype to read into.
            fields: Names of structured fields to read alone.

        Returns:
            As ``AsyncSelection.read``.
        """
        return await self._pick(selection, parse.coordinate, fields).read(out)

    async def set_coordinate_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write with coordinate indexing, as ``vindex``.

        Args:
            selection: Integers or integer arrays per axis, which are broadcast against each other.
            value: The values, broadcast to the selection's shape.
            fields: Names of structured fields to write alone.
        """
        await self._pick(selection, parse.coordinate, fields).write(value)

    async def get_mask_selection(
        self, mask: npt.ArrayLike, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read the elements where a mask is true.

        Args:
            mask: A boolean array of the array's shape.
            out: An array of the selection's shape and dtype to read into.
            fields: Names of structured fields to read alone.

        Returns:
            A one-dimensional array of the elements in C order.
        """
        return await self._pick(mask, parse.mask, fields).read(out)

    async def set_mask_selection(
        self, mask: npt.ArrayLike, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write the elements where a mask is true.

        Args:
            mask: A boolean array of the array's shape.
            value: The values, one for all or one per element in C order.
            fields: Names of structured fields to write alone.
        """
        await self._pick(mask, parse.mask, fields).write(value)

    async def get_block_selection(
        self, selection: Any, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read whole shards (chunks if the array is not sharded), as ``blocks``.

        Args:
            selection: Integers and slices of grid coordinates.
            out: An array of the selection's shape and dtype to read into.
            fields: Names of structured fields to read alone.

        Returns:
            As ``AsyncSelection.read``.
        """
        return await self._pick(selection, partial(_parse_block, self._cell.metadata), fields).read(out)

    async def set_block_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write whole shards (chunks if the array is not sharded), as ``blocks``.

        Args:
            selection: Integers and slices of grid coordinates.
            value: The values, broadcast to the selection's shape.
            fields: Names of structured fields to write alone.
        """
        await self._pick(selection, partial(_parse_block, self._cell.metadata), fields).write(value)

    def _pick(
        self,
        selection: Any,
        parser: Callable[[Any, tuple[int, ...]], Transform],
        fields: str | list[str] | None,
    ) -> AsyncSelection:
        view = self.view if fields is None else self.view[fields]
        return view._select(selection, parser)

    # -------------------------------------------------------------- changing the shape

    async def resize(self, shape: int | tuple[int, ...]) -> None:
        """Change the shape in place. No element is moved.

        Elements outside the new shape are erased, also in chunks that are partly inside, so that growing the array
        again shows fill values. Several writers may make an array longer at the same time. Make it smaller only while
        nobody else is writing, because rows that others append meanwhile may be erased.

        Args:
            shape: The new shape, with as many axes as the old one.

        Raises:
            ShapeError: If it has another number of axes or a negative size.
            ReadOnlyError: If the array was opened for reading.
        """
        new_shape = parse_sizes("shape", shape, 0)
        self._cell.metadata.with_shape(new_shape)  # raises an error before anything is changed
        await run_on_store(partial(resize, self._cell, new_shape), self.store)

    async def append(self, data: npt.ArrayLike, axis: int = 0) -> tuple[int, ...]:
        """Append values along an axis.

        Several writers may append at the same time, also from other processes and machines, if the store has
        conditional writes: each gets rows of its own. Object stores show fill values in the new rows until their
        values are written, because the longer shape is stored first to reserve them. Other stores do not.

        Args:
            data: The values. Their other axes have the array's sizes.
            axis: The axis to extend.

        Returns:
            The new shape.

        Raises:
            ShapeError: If the other axes differ, there is no such axis, or the store can neither lock nor compare, so
                that rows of other writers could be lost, and ``config.unaligned`` does not allow that.
        """
        fill = self._cell.metadata.spec.fill_value
        values = await transfer.run_conversion(partial(transfer.as_array, data, self.dtype, fill), data, self.dtype)
        axis = index(axis)
        if not -self.ndim <= axis < self.ndim:
            raise ShapeError(f"there is no axis {axis} in an array of shape {self.shape}", found=self.shape)
        axis %= self.ndim
        check_append_shape(values.shape, axis, self.shape)
        append = Append(self._cell, values, axis)
        try:
            await run_on_store(append.run, self.store)
        except BaseException:
            if append.needs_undo:
                await run_cleanup(partial(run_on_store, append.undo, self.store))
            raise
        return self.shape

    # -------------------------------------------------------------- stored values

    async def nchunks_initialized(self) -> int:
        """Count the stored values (shards, or chunks if there are no shards). Lists their keys.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        grid = self._cell.metadata.grid
        return sum(coords in grid for coords in await stored_coords(self._chunks))

    async def nbytes_stored(self) -> int:
        """Return the encoded size in bytes of all stored values (shards, or chunks). Lists their keys.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        return sum((await stored_sizes(self._chunks)).values())

    async def info_complete(self) -> Info:
        """Return ``info`` with the number of stored values and their compression ratio. Lists their keys.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        return complete_array_info(self.info, self._cell.metadata, (await stored_sizes(self._chunks)).values())


def _parse_block(metadata: ArrayMetadata, key: Any, shape: tuple[int, ...]) -> Transform:
    return parse.block(key, metadata.grid, shape)


def _axis_sizes(grid: Grid) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(min(axis.size(i), axis.extent - axis.start(i)) for i in range(axis.nchunks)) for axis in grid.axes
    )
