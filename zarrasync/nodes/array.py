"""Arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.cancel import run_cleanup
from zarrasync._concurrency.loop_turns import take_turn
from zarrasync.codecs import Codec
from zarrasync.display.info import Info, array_info, complete_array_info
from zarrasync.errors import ShapeError
from zarrasync.indexing import parse
from zarrasync.indexing.labels import LabelMethod
from zarrasync.indexing.transform import Transform
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import Meaning, meaning_of
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.metadata.create import parse_sizes
from zarrasync.model.chunk_grids import Grid
from zarrasync.model.paths import join
from zarrasync.nodes.append_resize import Append, check_append_shape, chunks_at, resize
from zarrasync.nodes.base import AsyncNode
from zarrasync.nodes.coordinates import CoordinateCache, Labelled, parse_queries, selected, wanted_axes
from zarrasync.nodes.decoded import AsyncDecodedArray, decoded_at
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle, call_method, run_on_store, stored_coords, stored_sizes
from zarrasync.nodes.selection import Accessor, AsyncSelection, SelectedArray
from zarrasync.transfer.chunk_cache import ChunkCache, cache_for


class AsyncArray(SelectedArray, AsyncNode[ArrayMetadata]):
    """An N-dimensional array of chunks in a store.

    Indexing returns a lazy ``AsyncSelection``, which is read when it is awaited. Arrays are returned by ``open_array``,
    ``create_array`` and the methods of groups. ``resize``, ``append`` and ``update_attributes`` change an array in place.

    Example:
        >>> array = await za.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
        >>> await array[1:3].write(7)
        >>> await array[:, 0]
        array([0, 7, 7, 0], dtype=int32)
    """

    _cached_chunks: transfer.Chunks | None = None
    """The chunks for the metadata of the last call, reused while the metadata is the same object."""
    _cached_decoded: AsyncDecodedArray | None = None
    _decoding: None = None  # pyright: ignore[reportIncompatibleMethodOverride]  # each read asks for it, without a call
    """Indexing returns stored numbers; see ``decoded``."""

    # -------------------------------------------------------------- properties

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements in memory, in native byte order."""
        return self._cell.metadata.dtype.numpy

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The shape of shards, the smallest part that can be written alone, or ``None`` if the array is not sharded."""
        return self._cell.metadata.shards

    @property
    def read_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of chunks (inner chunks if the array is sharded) along each axis, cut at the end of the array."""
        return _axis_sizes(self._cell.metadata.read_grid)

    @property
    def write_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of shards (chunks if the array is not sharded) along each axis, cut at the end of the array."""
        return _axis_sizes(self._cell.metadata.grid)

    @property
    def fill_value(self) -> Any:
        """The value of elements in chunks that do not exist, or ``None`` if it is undefined (Zarr v2)."""
        value = self._cell.metadata.fill_value
        return value.copy() if isinstance(value, np.void) else value  # records are mutable

    @property
    def filters(self) -> tuple[Codec, ...]:
        """The array -> array codecs (of inner chunks if the array is sharded)."""
        return self._cell.metadata.inner_codecs.array_array

    @property
    def serializer(self) -> Codec:
        """The array -> bytes codec (of inner chunks if the array is sharded)."""
        return self._cell.metadata.inner_codecs.array_bytes

    @property
    def compressors(self) -> tuple[Codec, ...]:
        """The bytes -> bytes codecs (of inner chunks if the array is sharded)."""
        return self._cell.metadata.inner_codecs.bytes_bytes

    @property
    def cdata_shape(self) -> tuple[int, ...]:
        """The number of chunks (inner chunks if the array is sharded) along each axis."""
        return self._cell.metadata.read_grid.shape

    @property
    def nchunks(self) -> int:
        """The number of chunks (inner chunks if the array is sharded)."""
        return math.prod(self.cdata_shape)

    @property
    def chunk_cache(self) -> ChunkCache | None:
        """The cache of decoded chunks that ``config.chunk_cache_bytes`` specifies, which arrays share; ``None`` without one.

        Example:
            >>> config = {"chunk_cache_bytes": 1 << 24, "chunk_cache_max_age": 60.0}
            >>> array = await za.create_array({}, data=np.arange(8), chunks=(4,), config=config)
            >>> for _ in range(3):
            ...     _ = await array[5]
            >>> array.chunk_cache.stats.hits > 0
            True
        """
        return cache_for(self._cell.handle.config)

    @property
    def info(self) -> Info:
        """A summary of the metadata. Makes no requests."""
        return array_info(self._cell.metadata, self.name, self.store, self.zarr_format)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} shape={self.shape} dtype={self._cell.metadata.dtype.numpy} {self.store!r}>"

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
    def decoded(self) -> AsyncDecodedArray:
        """The physical values of the array, by the conventions of CF. Makes no requests.

        Bounds of times, which inherit their units from the coordinate, are decoded if the metadata of the group is
        consolidated. ``open_array(decode=True)`` and ``sel`` of a group look for the coordinate.

        Example:
            >>> attributes = {"scale_factor": 0.5, "units": "K"}
            >>> array = await za.create_array({}, data=np.array([546], "i2"), attributes=attributes)
            >>> await array.decoded[0]
            np.float64(273.0)
        """
        if self._cached_decoded is None:
            self._cached_decoded = decoded_at(self, self._cell.handle)
        return self._cached_decoded

    @property
    def blocks(self) -> Accessor:
        """Block indexing: whole shards (chunks if the array is not sharded) by their grid coordinates.

        Example:
            >>> array = await za.create_array({}, data=np.arange(4), chunks=(2,))
            >>> await array.blocks[1]
            array([2, 3])
        """
        return Accessor(self.view, partial(_parse_block, self._cell.metadata))

    # -------------------------------------------------------------- selecting by coordinates

    @cached_property
    def _coordinates(self) -> CoordinateCache:
        """The coordinates that ``sel`` has read, until the array is refreshed."""
        return CoordinateCache(self.store, self.path.rpartition("/")[0])

    async def sel(
        self,
        mapping: Mapping[str, Any] | None = None,
        *,
        points: Mapping[str, Any] | None = None,
        method: LabelMethod | None = None,
        tolerance: Any = None,
        decode: bool = True,
        **coordinates: Any,
    ) -> AsyncSelection:
        """Select a part of the array by the coordinates in its group.

        Labels are physical values: dates, degrees, names. The array with the name of the dimension contains them, another
        one-dimensional array along it, or a convention such as OME-Zarr computes them. A dimension without labels takes
        positions. Coordinates are read once; after ``refresh`` they are read again.

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
            The part as a lazy selection.

        Raises:
            LabelError: If a coordinate or a label does not exist.
            CodecError: If times cannot be decoded.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("lat", data=[60.0, 50.0, 40.0], dimension_names=["lat"])
            >>> t2m = await group.create_array("t2m", data=np.arange(3), dimension_names=["lat"])
            >>> await (await t2m.sel(lat=slice(45, 60))).read()
            array([0, 1])
        """
        await take_turn()
        queries = parse_queries(mapping, points, method, tolerance, coordinates)
        wanted = await self._wanted(queries)
        positions = await self._coordinates.positions(wanted, self._cell.handle.format)
        axes = self._coordinates.axes(self.basename, self._cell.metadata)
        return selected(self.decoded if decode else self, axes, positions, wanted)

    async def _wanted(self, queries: Mapping[str, Query]) -> dict[str, Labelled]:
        """Return the axes that labels select, by coordinate. Raises the errors of ``sel``."""
        siblings = await self._coordinates.arrays([*queries], self._find_siblings)
        return wanted_axes(queries, {self.basename: self}, siblings, self._coordinates, self.name)

    async def to_xarray(self, **options: Any) -> Any:
        """Open the array as a variable of xarray with the coordinates in its group, with the engine ``"zarrasync"``.

        Args:
            **options: Arguments of ``xarray.open_dataset`` and of the engine, such as ``chunks={}`` for dask.

        Returns:
            An ``xarray.DataArray`` with lazy values.

        Raises:
            ImportError: If xarray is not installed.

        Example:
            >>> group = await za.create_group({})
            >>> t2m = await group.create_array("t2m", data=[280.0, 281.5], dimension_names=["time"])
            >>> (await t2m.to_xarray()).dims
            ('time',)
        """
        return await call_method(self, "array", "to_xarray", "xarray", options)

    async def show(self) -> Any:
        """Show the array in a notebook, in the viewer of the server, whose requests the kernel answers without a server.

        Readers without a kernel see its card and the last picture of the viewer.

        Returns:
            A widget. Its attribute ``address`` contains the shown node and view, and may be set.

        Raises:
            ImportError: If ``anywidget`` is not installed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(6.0).reshape(2, 3), chunks=(2, 3))
            >>> widget = await array.show()
        """
        return await call_method(self, "array", "show", "show", {})

    async def _find_siblings(self, names: Sequence[str] | None) -> dict[str, SelectedArray]:
        """Return the arrays with these names in the group of the array, and note the meaning of the group."""
        handle, parent = self._cell.handle, self.path.rpartition("/")[0]
        names = names or ()
        paths = [join(parent, name) for name in names]
        look_up = partial(find_all, handle, [*paths, *([parent] if self.path else [])], (handle.format,))
        found = await run_on_store(look_up, handle.store)
        group = found[-1] if self.path else None
        self._coordinates.above = Meaning() if group is None else meaning_of(group.metadata)
        nodes = zip(names, paths, found, strict=False)
        return {
            name: AsyncArray(handle.at(path), node.metadata)
            for name, path, node in nodes
            if node is not None and isinstance(node.metadata, ArrayMetadata)
        }

    # -------------------------------------------------------------- reading and writing

    async def setitem(self, selection: Any, value: npt.ArrayLike) -> None:
        """Write ``array[selection] = value`` with NumPy's indexing rules.

        Args:
            selection: Integers, slices, integer arrays, masks, ``...``, ``newaxis`` or names of structured fields.
            value: The values, broadcast to the selection's shape.

        Raises:
            SelectionError: If the selection does not fit the array.
            ShapeError: As for ``AsyncSelection.write``.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(3,), dtype="i4")
            >>> await array.setitem(slice(1, 3), [5, 6])
            >>> await array[...]
            array([0, 5, 6], dtype=int32)
        """
        await self[selection].write(value)

    async def get_basic_selection(
        self, selection: Any = Ellipsis, *, out: Any = None, fields: str | list[str] | None = None
    ) -> npt.NDArray[Any]:
        """Read with basic indexing.

        Args:
            selection: Integers, slices, ``...`` and ``newaxis``.
            out: An array of the selection's shape and dtype to read into.
            fields: The structured fields to read. By default all fields.

        Returns:
            As ``AsyncSelection.read``.

        Raises:
            SelectionError: If the selection does not fit the array.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(9).reshape(3, 3))
            >>> await array.get_basic_selection((slice(0, 2), 1))
            array([1, 4])
        """
        return await self._pick(selection, parse.basic, fields).read(out)

    async def set_basic_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write with basic indexing.

        Args:
            selection: Integers, slices, ``...`` and ``newaxis``.
            value: The values, broadcast to the selection's shape.
            fields: The structured fields to write. Other fields keep their values. By default all fields.

        Raises:
            SelectionError: If the selection does not fit the array.
            ShapeError: As for ``AsyncSelection.write``.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(3,), dtype="i4")
            >>> await array.set_basic_selection(slice(1, 3), 7)
            >>> await array[...]
            array([0, 7, 7], dtype=int32)
        """
        await self._pick(selection, parse.basic, fields).write(value)

    async def get_orthogonal_selection(
        self, selection: Any, *, out: Any = None, fields: str | list[str] | None = None
    ) -> npt.NDArray[Any]:
        """Read with orthogonal indexing, as ``oindex``.

        Args:
            selection: An integer, slice, list of integers or mask for each axis.
            out: An array of the selection's shape and dtype to read into.
            fields: The structured fields to read. By default all fields.

        Returns:
            As ``AsyncSelection.read``.

        Raises:
            SelectionError: If the selection does not fit the array.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(9).reshape(3, 3))
            >>> await array.get_orthogonal_selection(([0, 2], [0, 1]))
            array([[0, 1],
                   [6, 7]])
        """
        return await self._pick(selection, parse.orthogonal, fields).read(out)

    async def set_orthogonal_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write with orthogonal indexing, as ``oindex``.

        Args:
            selection: An integer, slice, list of integers or mask for each axis.
            value: The values, broadcast to the selection's shape.
            fields: The structured fields to write. Other fields keep their values. By default all fields.

        Raises:
            SelectionError: If the selection does not fit the array.
            ShapeError: As for ``AsyncSelection.write``.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(2, 3), dtype="i4")
            >>> await array.set_orthogonal_selection(([0, 1], [0, 2]), 7)
            >>> await array[...]
            array([[7, 0, 7],
                   [7, 0, 7]], dtype=int32)
        """
        await self._pick(selection, parse.orthogonal, fields).write(value)

    async def get_coordinate_selection(
        self, selection: Any, *, out: Any = None, fields: str | list[str] | None = None
    ) -> npt.NDArray[Any]:
        """Read with coordinate indexing, as ``vindex``.

        Args:
            selection: An integer or integer array for each axis. They are broadcast against each other.
            out: An array of the selection's shape and dtype to read into.
            fields: The structured fields to read. By default all fields.

        Returns:
            As ``AsyncSelection.read``.

        Raises:
            SelectionError: If the selection does not fit the array.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(9).reshape(3, 3))
            >>> await array.get_coordinate_selection(([0, 2], [0, 1]))
            array([0, 7])
        """
        return await self._pick(selection, parse.coordinate, fields).read(out)

    async def set_coordinate_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write with coordinate indexing, as ``vindex``.

        Args:
            selection: An integer or integer array for each axis. They are broadcast against each other.
            value: The values, broadcast to the selection's shape.
            fields: The structured fields to write. Other fields keep their values. By default all fields.

        Raises:
            SelectionError: If the selection does not fit the array.
            ShapeError: As for ``AsyncSelection.write``.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(2, 3), dtype="i4")
            >>> await array.set_coordinate_selection(([0, 1], [0, 2]), [5, 6])
            >>> await array[...]
            array([[5, 0, 0],
                   [0, 0, 6]], dtype=int32)
        """
        await self._pick(selection, parse.coordinate, fields).write(value)

    async def get_mask_selection(
        self, mask: npt.ArrayLike, *, out: Any = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read the elements where a mask is true.

        Args:
            mask: A boolean array of the array's shape.
            out: A one-dimensional array of the result's length and dtype to read into.
            fields: The structured fields to read. By default all fields.

        Returns:
            A one-dimensional array of the elements in C order.

        Raises:
            SelectionError: If the mask has a different shape.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(4))
            >>> await array.get_mask_selection([True, False, False, True])
            array([0, 3])
        """
        return await self._pick(mask, parse.mask, fields).read(out)

    async def set_mask_selection(
        self, mask: npt.ArrayLike, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write the elements where a mask is true.

        Args:
            mask: A boolean array of the array's shape.
            value: One value for all elements, or one value per element in C order.
            fields: The structured fields to write. Other fields keep their values. By default all fields.

        Raises:
            SelectionError: If the mask has a different shape.
            ShapeError: As for ``AsyncSelection.write``.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(4,), dtype="i4")
            >>> await array.set_mask_selection([True, False, False, True], [5, 6])
            >>> await array[...]
            array([5, 0, 0, 6], dtype=int32)
        """
        await self._pick(mask, parse.mask, fields).write(value)

    async def get_block_selection(
        self, selection: Any, *, out: Any = None, fields: str | list[str] | None = None
    ) -> npt.NDArray[Any]:
        """Read whole shards (chunks if the array is not sharded), as ``blocks``.

        Args:
            selection: Grid coordinates, as integers and slices.
            out: An array of the selection's shape and dtype to read into.
            fields: The structured fields to read. By default all fields.

        Returns:
            As ``AsyncSelection.read``.

        Raises:
            SelectionError: If the selection does not fit the grid.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(4), chunks=(2,))
            >>> await array.get_block_selection(1)
            array([2, 3])
        """
        return await self._pick(selection, partial(_parse_block, self._cell.metadata), fields).read(out)

    async def set_block_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write whole shards (chunks if the array is not sharded), as ``blocks``.

        Args:
            selection: Grid coordinates, as integers and slices.
            value: The values, broadcast to the selection's shape.
            fields: The structured fields to write. Other fields keep their values. By default all fields.

        Raises:
            SelectionError: If the selection does not fit the grid.
            ShapeError: As for ``AsyncSelection.write``.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(4,), dtype="i4", chunks=(2,))
            >>> await array.set_block_selection(1, 7)
            >>> await array[...]
            array([0, 0, 7, 7], dtype=int32)
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
        """Change the shape in place. Elements inside both shapes keep their positions.

        Elements outside the new shape are erased, also in chunks that lie partly inside. If the array grows again, they
        read as fill values. Several writers may enlarge an array at the same time. Shrink an array only while no one
        else is writing, because rows that another writer appends meanwhile may be erased.

        Args:
            shape: The new shape, with the same number of axes.

        Raises:
            ShapeError: If the new shape has a different number of axes or a negative size.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(2, 3), dtype="i4")
            >>> await array.resize((4, 3))
            >>> array.shape
            (4, 3)
        """
        new_shape = parse_sizes("shape", shape, 0)
        self._cell.metadata.with_shape(new_shape)  # raises an error before anything is changed
        await run_on_store(partial(resize, self._cell, new_shape), self.store)

    async def append(self, data: npt.ArrayLike, axis: int = 0) -> tuple[int, ...]:
        """Append values along an axis.

        If the store supports conditional writes, several writers may append at the same time, also from different
        processes and machines: each writer gets separate rows. On object stores the new rows read as fill values until
        their values are written, because the longer shape is stored first to reserve them.

        Args:
            data: The values. The sizes of all axes except ``axis`` must equal the array's.
            axis: The axis to extend.

        Returns:
            The new shape.

        Raises:
            ShapeError: If the sizes of the other axes differ or the axis does not exist. Also if the store supports
                neither locks nor conditional writes, so that another writer's rows could be lost, and
                ``config.unaligned`` does not allow that.
            ReadOnlyError: If the array was opened for reading.
            WriteConflictError: If other writers kept changing the array until ``config.total_timeout``.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(0, 3), dtype="i4", chunks=(10, 3))
            >>> await array.append([[1, 2, 3], [4, 5, 6]])
            (2, 3)
        """
        fill = self._cell.metadata.spec.fill_value
        values = await transfer.run_conversion(partial(transfer.as_array, data, self.dtype, fill), data, self.dtype)
        axis = index(axis)
        if not -self.ndim <= axis < self.ndim:
            raise ShapeError(
                f"cannot append to {self.name} along axis {axis}: the array has shape {self.shape}", found=self.shape
            )
        axis %= self.ndim
        check_append_shape(values.shape, axis, self.shape)
        append = Append(self._cell, values, axis)
        try:
            await run_on_store(append.run, self.store)
        except BaseException:
            if append.undo is not None:
                await run_cleanup(partial(run_on_store, append.undo, self.store))
            raise
        return self.shape

    # -------------------------------------------------------------- stored values

    async def nchunks_initialized(self) -> int:
        """Return the number of stored shards (chunks if the array is not sharded). Lists their keys.

        Raises:
            UnsupportedOperation: If the store cannot list.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(4,), dtype="i4", chunks=(2,))
            >>> await array.view[:2].write(7)
            >>> await array.nchunks_initialized()
            1
        """
        grid = self._cell.metadata.grid
        return sum(coords in grid for coords in await stored_coords(self._chunks))

    async def nbytes_stored(self) -> int:
        """Return the encoded size of all stored shards (chunks if the array is not sharded), in bytes. Lists their keys.

        Raises:
            UnsupportedOperation: If the store cannot list.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.zeros(4, "i4"), fill_value=1, compressors=None)
            >>> await array.nbytes_stored()
            16
        """
        return sum((await stored_sizes(self._chunks)).values())

    async def info_complete(self) -> Info:
        """Return ``info`` with the number of stored chunks or shards and their compression ratio. Lists their keys.

        Raises:
            UnsupportedOperation: If the store cannot list.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(4,), dtype="i4", chunks=(2,))
            >>> await array.view[:2].write(7)
            >>> (await array.info_complete())["Chunks"]
            '1 of 2 are stored'
        """
        return complete_array_info(self.info, self._cell.metadata, (await stored_sizes(self._chunks)).values())


def _parse_block(metadata: ArrayMetadata, key: Any, shape: tuple[int, ...]) -> Transform:
    return parse.block(key, metadata.grid, shape)


def _axis_sizes(grid: Grid) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(min(axis.size(i), axis.extent - axis.start(i)) for i in range(axis.nchunks)) for axis in grid.axes
    )
