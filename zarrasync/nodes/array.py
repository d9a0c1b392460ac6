"""Arrays."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.shield import run_cleanup
from zarrasync.codecs import Codec
from zarrasync.display.info import Info, array_info, size_text
from zarrasync.errors import ShapeError, StoreError
from zarrasync.indexing import parse as selectors
from zarrasync.indexing.axis_maps import Stride
from zarrasync.indexing.transform import Transform, identity
from zarrasync.metadata.create import sizes_of
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.chunk_grids import Grid, coords_outside
from zarrasync.nodes.base import AsyncNode
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.selection import Accessor, AsyncSelection, Awaited, select
from zarrasync.transfer.unaligned import check_append

__all__ = ["AsyncArray"]

_Undo: TypeAlias = list[Callable[[], Coroutine[Any, Any, None]]]
_MANY = 1000


class AsyncArray(Awaited, AsyncNode[ArrayMetadata]):
    """An N-dimensional array of chunks in a store.

    Indexing gives a lazy ``AsyncSelection``; awaiting that reads it:

        block = await array[0:10, ::2]
        await array[0:10].write(values)

    Arrays come from ``open_array``, ``create_array`` and groups. ``resize``, ``append`` and
    ``update_attributes`` change an array in place.
    """

    _kind = ArrayMetadata
    _held: transfer.Chunks | None = None
    """What the engine needs to know of the array, as it was when it was last asked for."""

    # -------------------------------------------------------------- what it is

    @property
    def metadata(self) -> ArrayMetadata:
        """The array's metadata."""
        return self._metadata

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._metadata.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of elements in memory."""
        return self._metadata.dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._metadata.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._metadata.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of the smallest part that can be read alone (inner chunks where there are shards).

        Where chunks differ in size, the greatest; ``read_chunk_sizes`` has all.
        """
        return self._metadata.chunks

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The shape of shards, the unit of writing; ``None`` if there are none."""
        return self._metadata.shards

    @property
    def read_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Per axis the sizes of its chunks (inner chunks where there are shards), cut off at the array's end."""
        return _sizes(self._metadata.read_grid)

    @property
    def write_chunk_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Per axis the sizes of its shards, or chunks where there are none, cut off at the array's end."""
        return _sizes(self._metadata.grid)

    @property
    def fill_value(self) -> Any:
        """What absent elements read as; ``None`` where that is undefined (v2)."""
        value = self._metadata.fill_value
        return value.copy() if isinstance(value, np.void) else value  # fields of a record can be assigned to

    @property
    def filters(self) -> tuple[Codec, ...]:
        """The array -> array codecs (of the inner chunks, where there are shards)."""
        return self._metadata.inner_codecs.array_array

    @property
    def serializer(self) -> Codec:
        """The array -> bytes codec (of the inner chunks, where there are shards)."""
        return self._metadata.inner_codecs.array_bytes

    @property
    def compressors(self) -> tuple[Codec, ...]:
        """The bytes -> bytes codecs (of the inner chunks, where there are shards)."""
        return self._metadata.inner_codecs.bytes_bytes

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """A name or ``None`` per axis, if any were given."""
        return self._metadata.dimension_names

    @property
    def cdata_shape(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return self._metadata.read_grid.shape

    @property
    def nchunks(self) -> int:
        """The number of chunks."""
        return math.prod(self.cdata_shape)

    @property
    def info(self) -> Info:
        """What is known of the array without reading, for people."""
        return array_info(self._metadata, self.name, self.store, self.zarr_format)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name} shape={self.shape} dtype={self._metadata.dtype.numpy} {self.store!r}>"
        )

    def _repr_html_(self) -> str:
        from zarrasync.display import html

        return html.array(self._metadata, self.info, self.name)

    def _portable(self) -> NodeHandle:
        known = self._handle.consolidated
        return self._handle if known is None else replace(self._handle, consolidated=known.without_documents())

    @property
    def _chunks(self) -> transfer.Chunks:
        held = self._held
        if held is not None and held.metadata is self._metadata:
            return held
        node = self._handle
        prefix = node.format.chunk_prefix(node.path)
        held = self._held = transfer.Chunks(
            node.chunk_store(self._metadata), self._metadata, node.config, prefix, node.store, node.name
        )
        return held

    # -------------------------------------------------------------- selecting

    @property
    def view(self) -> AsyncSelection:
        """The whole array as a lazy selection."""
        return AsyncSelection(self, identity(self.shape))

    def __getitem__(self, key: Any) -> AsyncSelection:
        return select(self, key)

    @property
    def oindex(self) -> Accessor:
        """Orthogonal indexing: each axis on its own, by integers, slices, integer lists or masks."""
        return self.view.oindex

    @property
    def vindex(self) -> Accessor:
        """Coordinate indexing: points given by an integer array per axis, or a mask."""
        return self.view.vindex

    @property
    def blocks(self) -> Accessor:
        """Block indexing: whole shards (chunks where there are none) by their grid coordinates."""
        return Accessor(self.view, partial(_block, self._metadata))

    # -------------------------------------------------------------- reading and writing

    async def getitem(self, selection: Any) -> Any:
        """Read ``array[selection]``, with NumPy's meaning of it."""
        return await self[selection].read()

    async def setitem(self, selection: Any, value: npt.ArrayLike) -> None:
        """Write ``array[selection] = value``."""
        await self[selection].write(value)

    async def get_basic_selection(
        self, selection: Any = Ellipsis, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read by integers, slices, ``...`` and ``newaxis``.

        Args:
            selection: The selection.
            out: An array to read into.
            fields: Structured fields to read alone.
        """
        return await self._pick(selection, selectors.basic, fields).read(out)

    async def set_basic_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write by integers, slices, ``...`` and ``newaxis``."""
        await self._pick(selection, selectors.basic, fields).write(value)

    async def get_orthogonal_selection(
        self, selection: Any, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read each axis on its own, as ``oindex`` does."""
        return await self._pick(selection, selectors.orthogonal, fields).read(out)

    async def set_orthogonal_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write each axis on its own, as ``oindex`` does."""
        await self._pick(selection, selectors.orthogonal, fields).write(value)

    async def get_coordinate_selection(
        self, selection: Any, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read points, as ``vindex`` does."""
        return await self._pick(selection, selectors.coordinate, fields).read(out)

    async def set_coordinate_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write points, as ``vindex`` does."""
        await self._pick(selection, selectors.coordinate, fields).write(value)

    async def get_mask_selection(
        self, mask: npt.ArrayLike, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read where a boolean array of the array's shape is true; one-dimensional, in C order."""
        return await self._pick(mask, selectors.mask, fields).read(out)

    async def set_mask_selection(
        self, mask: npt.ArrayLike, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write where a boolean array of the array's shape is true."""
        await self._pick(mask, selectors.mask, fields).write(value)

    async def get_block_selection(
        self, selection: Any, *, out: npt.NDArray[Any] | None = None, fields: str | list[str] | None = None
    ) -> Any:
        """Read whole shards (chunks where there are none), as ``blocks`` does."""
        return await self._pick(selection, partial(_block, self._metadata), fields).read(out)

    async def set_block_selection(
        self, selection: Any, value: npt.ArrayLike, *, fields: str | list[str] | None = None
    ) -> None:
        """Write whole shards (chunks where there are none), as ``blocks`` does."""
        await self._pick(selection, partial(_block, self._metadata), fields).write(value)

    def _pick(self, selection: Any, parse: Any, fields: str | list[str] | None) -> AsyncSelection:
        view = self.view if fields is None else self.view[fields]
        return view._select(selection, parse)

    # -------------------------------------------------------------- changing

    async def resize(self, shape: int | tuple[int, ...]) -> None:
        """Change the shape in place; nothing is moved.

        What a smaller shape cuts off is erased, also inside chunks at the new edge, so that growing
        again shows the fill value there. Many may make an array longer at the same time; make it smaller while nobody
        else writes, as what others append meanwhile may be cut off, too.

        Args:
            shape: The new shape, with as many axes as the old one.

        Raises:
            ShapeError: If it has another number of axes or a negative size.
            ReadOnlyError: If the array was opened for reading.
        """
        wanted = sizes_of("shape", shape, 0)
        self._metadata.with_shape(wanted)  # complains before anything is touched
        cuts = any(new < old for new, old in zip(wanted, self.shape, strict=True))
        await run_on_store(partial(self._change, partial(self._resize, wanted), fresh=cuts), self.store)

    async def _resize(self, shape: tuple[int, ...], old: ArrayMetadata) -> ArrayMetadata:
        # Data goes first: a crash in between leaves an array that is too long, not one that can bring
        # back what was cut off.
        target = old.with_shape(shape)
        if any(new < was for new, was in zip(target.shape, old.shape, strict=True)):
            present = AsyncArray(self._handle, old)
            await present._clear_edges(target)  # first, as it is likelier to fail, and takes less away
            await present._erase_outside(target)
        if any(new > was for new, was in zip(target.shape, old.shape, strict=True)):
            await self._clear_pending(old)
        return target

    async def _clear_pending(self, present: ArrayMetadata) -> None:
        """Erase what somebody has left beyond the array who was killed while appending rows, before its shape."""
        note = await self.store.pending(self._document)
        if note is None:
            return
        with contextlib.suppress(ValueError, TypeError):  # it was cut short, and no row written yet
            shape = tuple(map(max, json.loads(note), present.shape))
            if len(shape) == self.ndim and shape != present.shape:
                longer = AsyncArray(self._handle, present.with_shape(shape))
                await longer._erase_outside(present)
                await longer._clear_edges(present)
        await self.store.set_pending(self._document, None)

    @property
    def _document(self) -> str:
        """The key of the document that tells of it."""
        return self._handle.format.document_keys(self.path)[0]

    async def _erase_outside(self, target: ArrayMetadata) -> None:
        """Erase stored values that a smaller shape cuts off whole."""
        chunks, old, kept = self._chunks, self._metadata.grid.shape, target.grid.shape
        count = math.prod(old) - math.prod(map(min, old, kept))
        if count > _MANY and chunks.store.listable:  # most of them will not be there
            found = ((key, self._metadata.keys.decode(key, self.ndim)) for key in await chunks.store.list_prefix(""))
            gone = (key for key, at in found if at is not None and any(i >= n for i, n in zip(at, kept, strict=True)))
        else:
            gone = (chunks.key(at) for at in coords_outside(old, kept))
        while batch := list(islice(gone, _MANY)):
            await chunks.store.erase_values(batch)

    async def _clear_edges(self, target: ArrayMetadata) -> None:
        """Fill what a smaller shape cuts off chunks that stay."""
        old = self._metadata
        # Per axis: what stays, and how far the chunks reach that hold it.
        kept = [min(new, was) for new, was in zip(target.shape, old.shape, strict=True)]
        edges = [
            min(axis.extent, axis.start(last := axis.find(n - 1)) + axis.size(last)) if n else 0
            for n, axis in zip(kept, old.grid.axes, strict=True)
        ]
        for axis, (start, stop) in enumerate(zip(kept, edges, strict=True)):
            if start < stop and 0 not in edges:
                box = [slice(0, edge) for edge in edges]
                box[axis] = slice(start, stop)
                await self._clear(tuple(box))

    async def _clear(self, box: tuple[slice, ...]) -> None:
        """Fill a part of what is there."""
        metadata = self._metadata
        transform = selectors.basic(box, metadata.shape)
        await transfer.write(self._chunks, transform, metadata.spec.scalar, only_present=True)

    async def append(self, data: npt.ArrayLike, axis: int = 0) -> tuple[int, ...]:
        """Add values at the end of an axis.

        Many may append at the same time, also from other processes and machines, where the store can compare
        versions: each gets rows of its own. A reader never sees fill values where they will be, but on object
        stores, where the new shape is stored first: it is what tells other writers that the place is taken.

        Args:
            data: Values whose other axes have the array's sizes.
            axis: The axis to extend.

        Returns:
            The new shape.

        Raises:
            ShapeError: If the other axes differ, there is no such axis, or others' rows could be lost, as the store can
                neither compare nor keep them out, and ``config.unaligned`` does not allow that.
        """
        fill = self._metadata.spec.fill_value
        values = await transfer.run_conversion(partial(transfer.as_array, data, self.dtype, fill), data, self.dtype)
        axis = index(axis)
        if not -self.ndim <= axis < self.ndim:
            raise ShapeError(f"there is no axis {axis} in an array of shape {self.shape}", found=self.shape)
        axis %= self.ndim
        self._check_append(values.shape, axis, self.shape)
        undo: _Undo = []
        put = self._append_reserved
        if not self.store.bounded and (self.store.exclusive or not self.store.conditional):
            put = self._append_whole
        try:
            await run_on_store(partial(put, values, axis, undo), self.store)
        except BaseException:  # a thread may have done all of it before it noticed that it was cancelled
            for step in undo:
                await run_cleanup(partial(run_on_store, step, self.store))
            raise
        return self.shape

    async def _append_whole(self, values: npt.NDArray[Any], axis: int, undo: _Undo) -> None:
        """Write values behind the end, then the shape; ``undo`` gets what takes back as much as was done."""
        grown: ArrayMetadata | None = None

        async def write_and_grow(old: ArrayMetadata) -> ArrayMetadata:
            nonlocal grown
            self._check_append(values.shape, axis, old.shape)  # another writer may have resized it
            longer = _longer(old, axis, values.shape[axis])
            check_append(self._chunks, longer, axis, old.shape[axis], longer.shape[axis])
            await self._clear_pending(old)
            await self.store.set_pending(self._document, _note(longer))
            grown = longer
            undo[:] = [partial(self._withdraw, grown, axis, 0)]
            await self._write_at(grown, values, axis, old.shape[axis])
            return grown

        def stored() -> None:
            assert grown is not None
            undo[:] = [partial(self._withdraw, grown, axis, values.shape[axis])]

        await self._change(write_and_grow, stored=stored)
        assert grown is not None
        with contextlib.suppress(StoreError):  # a note that stays does no harm
            async with self._handle.lock():
                if await self.store.pending(self._document) == _note(grown):  # and not somebody else's by now
                    await self.store.set_pending(self._document, None)

    async def _append_reserved(self, values: npt.NDArray[Any], axis: int, undo: _Undo) -> None:
        """Make the array longer, then write values there; ``undo`` gets what takes back as much as was done."""
        count = values.shape[axis]

        def taken(start: int) -> None:
            undo[:] = [partial(self._give_back, axis, start, start + count)]

        start = await self._reserve(axis, values.shape, taken=taken)
        await self._write_at(self._metadata, values, axis, start)
        undo[:] = [partial(self._give_back, axis, start, start + count, whole=True)]

    async def _reserve(
        self,
        axis: int,
        shape: tuple[int, ...],
        at: int | None = None,
        taken: Callable[[int], None] = lambda start: None,
    ) -> int:
        """Make the array longer for values of a shape; where along the axis they go, which nobody else will write.

        That is its end, or ``at``, the place that was reserved in another array of the same dataset. ``taken`` hears of it
        also if the call is cancelled meanwhile.
        """
        start = 0

        async def grow(old: ArrayMetadata) -> ArrayMetadata:
            nonlocal start
            self._check_append(shape, axis, old.shape)  # another writer may have resized it
            start = old.shape[axis] if at is None else at
            stop = start + shape[axis]
            longer = _longer(old, axis, max(0, stop - old.shape[axis]))
            check_append(self._chunks, longer, axis, start, stop)
            return longer

        await self._change(grow, stored=lambda: taken(start))
        return start

    async def _write_at(self, metadata: ArrayMetadata, values: npt.NDArray[Any], axis: int, start: int) -> None:
        """Write values at a place along an axis of the array as it will be."""
        maps = tuple(Stride(number, start if number == axis else 0, 1) for number in range(self.ndim))
        check = partial(check_append, self._chunks, metadata, axis, start, start + values.shape[axis])
        chunks = AsyncArray(self._handle, metadata)._chunks
        await transfer.write(chunks, Transform(values.shape, maps), values, check=check)

    async def _withdraw(self, grown: ArrayMetadata, axis: int, count: int) -> None:
        """Take back what was written behind the end: it would come back when the array grows.

        Args:
            grown: The array as it would be.
            axis: The axis that was extended.
            count: By how much its stored shape has grown.
        """

        async def shrink(present: ArrayMetadata) -> ArrayMetadata:
            if count and present.shape[axis] != grown.shape[axis]:
                return present  # others have appended behind it, to whom it must not become a hole
            target = _longer(present, axis, -count)
            beyond = AsyncArray(self._handle, grown)
            await beyond._erase_outside(target)  # first, as there may be no room to write
            await beyond._clear_edges(target)
            await self.store.set_pending(self._document, None)
            return target

        await self._change(shrink, fresh=True)

    async def _give_back(self, axis: int, start: int, stop: int, *, whole: bool = False) -> None:
        """Take back a place at the end of an axis; nothing is left there, unless all was written and others came behind."""

        async def shrink(old: ArrayMetadata) -> ArrayMetadata:
            return _longer(old, axis, start - stop) if old.shape[axis] == stop else old

        if whole:
            await self.refresh()
            if self.shape[axis] != stop:
                return
        # First the values: as long as the array is that long the place is nobody else's.
        place = tuple(slice(start, stop) if n == axis else slice(None) for n in range(self.ndim))
        try:
            await AsyncArray(self._handle, self._metadata)._clear(place)
        finally:
            await self._change(shrink, fresh=True)

    def _check_append(self, given: tuple[int, ...], axis: int, shape: tuple[int, ...]) -> None:
        others = [n for number, n in enumerate(shape) if number != axis]
        if len(given) != len(shape) or [n for number, n in enumerate(given) if number != axis] != others:
            raise ShapeError(
                f"values of shape {given} can not be appended to shape {shape} along axis {axis}: "
                "the other axes must agree",
                found=given,
                wanted=shape,
            )

    # -------------------------------------------------------------- looking

    async def nchunks_initialized(self) -> int:
        """How many stored values (shards, or chunks where there are none) exist. Lists their keys.

        Raises:
            UnsupportedOperation: If the store can not list.
        """
        return await run_on_store(self._count_stored, self.store)

    async def nbytes_stored(self) -> int:
        """Bytes of all stored values (shards, or chunks where there are none), compressed as they are. Lists their keys.

        Raises:
            UnsupportedOperation: If the store can not list.
        """
        return sum((await self._sizes()).values())

    async def info_complete(self) -> Info:
        """``info``, and what it takes a listing to know: how many values are stored, and how well they compress.

        Raises:
            UnsupportedOperation: If the store can not list.
        """
        sizes = await self._sizes()
        nbytes = sum(sizes.values())
        each = self._metadata.chain.nbytes * len(sizes)
        more = {
            "Shards" if self.shards else "Chunks": f"{len(sizes):,} of {self._metadata.grid.size:,} are stored",
            "Stored size": size_text(nbytes),
            "Compression": f"{each / nbytes:.1f} : 1" if nbytes else "nothing is stored",
        }
        items = dict(self.info.items)
        store = items.pop("Store")
        return Info({**items, **more, "Store": store})

    async def _count_stored(self) -> int:
        grid = self._metadata.grid
        return sum(at in grid for at in await self._stored())

    async def _sizes(self) -> dict[tuple[int, ...], int]:
        """The bytes of the stored values that exist, by their grid coordinates."""
        store = self._chunks.store
        listed = await run_on_store(partial(store.list_sizes, ""), store)
        named = ((self._metadata.keys.decode(key, self.ndim), size) for key, size in listed.items())
        return {at: size for at, size in named if at is not None and at in self._metadata.grid}

    async def _stored(self) -> set[tuple[int, ...]]:
        """The grid coordinates of the stored values that exist, also of those outside the shape. Lists their keys."""
        store = self._chunks.store
        listed = await run_on_store(partial(store.list_prefix, ""), store)
        return {at for key in listed if (at := self._metadata.keys.decode(key, self.ndim)) is not None}


def _block(metadata: ArrayMetadata, key: Any, shape: tuple[int, ...]) -> Transform:
    return selectors.block(key, metadata.grid, shape)


def _note(metadata: ArrayMetadata) -> bytes:
    """What is noted while rows are written before the shape that they need."""
    return json.dumps(metadata.shape).encode()


def _longer(old: ArrayMetadata, axis: int, count: int) -> ArrayMetadata:
    return old.with_shape(tuple(n + count if number == axis else n for number, n in enumerate(old.shape)))


def _sizes(grid: Grid) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(min(axis.size(i), axis.extent - axis.start(i)) for i in range(axis.nchunks)) for axis in grid.axes
    )
