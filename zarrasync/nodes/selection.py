"""Lazy selections of arrays: indexing makes no requests, ``read`` and ``write`` do."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Never, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.loop_turns import take_turn
from zarrasync._concurrency.offload import compute
from zarrasync.display import html
from zarrasync.display.explanation import Explanation, explain
from zarrasync.display.info import Info
from zarrasync.display.progress import ProgressLike, report_progress
from zarrasync.errors import SelectionError
from zarrasync.indexing import parse
from zarrasync.indexing.key_items import split_fields
from zarrasync.indexing.regions import Region
from zarrasync.indexing.transform import Transform, compose, identity
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import GridAxis, RegularAxis, guess_chunks, lazy_product
from zarrasync.nodes.base import NodeProperties
from zarrasync.nodes.like_numpy import NotAwaited, memory_of
from zarrasync.nodes.node import call_method, check_separator
from zarrasync.transfer.unaligned import check_assignment

T = TypeVar("T")

_LONG = 1 << 16
"""Bytes of numbers that are decoded and encoded on a worker thread. Dates of cftime take some microseconds each."""


class Decoder(Protocol):
    """How stored numbers become values, for arrays of decoded values."""

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
    def decode_into(self, stored: npt.NDArray[Any], out: npt.NDArray[Any]) -> None: ...
    def check_out(self, out: npt.NDArray[Any], shape: tuple[int, ...]) -> None: ...
    def encode(self, values: npt.ArrayLike, name: str) -> npt.NDArray[Any]: ...


class LazyValues(NotAwaited):
    """Base class of arrays and selections, whose values are read when they are awaited."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the values."""

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all values in memory, in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            kind = "a selection" if isinstance(self, AsyncSelection) else "an array"
            raise TypeError(f"{kind} without dimensions has no length")
        return self.shape[0]


class SelectedArray(LazyValues, NodeProperties):
    """Base class of arrays of stored numbers and of decoded values, which selections are parts of."""

    @property
    def metadata(self) -> ArrayMetadata:
        """The array's metadata."""
        metadata: ArrayMetadata = self._cell.metadata
        return metadata

    @property
    @abstractmethod
    def info(self) -> Info:
        """A summary of the metadata. Makes no requests."""

    @property
    @abstractmethod
    def _chunks(self) -> transfer.Chunks:
        """The stored chunks."""

    @property
    @abstractmethod
    def _decoding(self) -> Decoder | None:
        """How stored numbers become values; ``None`` for stored numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return self.metadata.shape

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of chunks, or of inner chunks if the array is sharded: the smallest part that can be read alone.

        In a rectilinear grid these are the largest sizes along each axis; see ``read_chunk_sizes`` of the stored array.
        """
        return self.metadata.chunks

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """The name of each axis (``None`` for an axis without one), or ``None`` if the array has no dimension names."""
        return self.metadata.dimension_names

    def _repr_html_(self) -> str:
        return html.array(self.metadata, self.info.items, self.name)

    @property
    def view(self) -> AsyncSelection:
        """The whole array as a lazy selection.

        Example:
            >>> array = await za.create_array({}, data=np.arange(8))
            >>> array.view[2:5].shape
            (3,)
        """
        return AsyncSelection(self, identity(self.shape))

    def __getitem__(self, key: Any) -> AsyncSelection:
        return select(self, key)

    @property
    def oindex(self) -> Accessor:
        """Orthogonal indexing: an integer, slice, list of integers or mask for each axis independently.

        Example:
            >>> array = await za.create_array({}, data=np.arange(9).reshape(3, 3))
            >>> await array.oindex[[0, 2], [0, 1]]
            array([[0, 1],
                   [6, 7]])
        """
        return self.view.oindex

    @property
    def vindex(self) -> Accessor:
        """Coordinate indexing: points, as an integer array per axis, or a mask of the array's shape.

        Example:
            >>> array = await za.create_array({}, data=np.arange(9).reshape(3, 3))
            >>> await array.vindex[[0, 2], [0, 1]]
            array([0, 7])
        """
        return self.view.vindex

    async def getitem(self, selection: Any) -> npt.NDArray[Any]:
        """Read ``array[selection]`` with NumPy's indexing rules.

        Args:
            selection: Integers, slices, integer arrays, masks, ``...``, ``newaxis`` or names of structured fields.

        Returns:
            As ``AsyncSelection.read``.

        Raises:
            SelectionError: If the selection does not fit the array.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(8))
            >>> await array.getitem(slice(2, 5))
            array([2, 3, 4])
        """
        return await self[selection].read()


class Accessor(NotAwaited):
    """A kind of indexing, as ``array.oindex[...]``. Returns lazy selections."""

    def __init__(self, view: AsyncSelection, parser: Callable[[Any, tuple[int, ...]], Transform]) -> None:
        self._view, self._parser = view, parser

    def __getitem__(self, key: Any) -> AsyncSelection:
        return self._view._select(key, self._parser)


class AsyncSelection(LazyValues):
    """A part of an array that has not been read yet.

    Indexing a selection again returns a smaller selection. ``await`` reads it.

    Example:
        >>> array = await za.create_array({}, data=np.arange(8))
        >>> part = array.view[2:8][::2]
        >>> await part.read()
        array([2, 4, 6])
    """

    __slots__ = ("_exact", "_fields", "_transform", "array")

    def __init__(
        self,
        array: SelectedArray,
        transform: Transform,
        fields: str | list[str] | None = None,
        exact: bool = False,
    ) -> None:
        self.array, self._transform, self._fields, self._exact = array, transform, fields, exact

    # -------------------------------------------------------------- properties

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._transform.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the result."""
        dtype = self.array.dtype
        return dtype if self._fields is None else dtype[self._fields]

    def __eq__(self, other: object) -> Never:
        raise TypeError("asynchronous selections cannot be compared; use (await array[...]) == values")

    def __bool__(self) -> Never:
        raise TypeError("asynchronous selections are neither true nor false; use (await array[...]).any() or .all()")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.array.name} shape={self.shape} dtype={self.dtype}>"

    # -------------------------------------------------------------- indexing

    def __getitem__(self, key: Any) -> AsyncSelection:
        return self._select(key, parse.numpy_style)

    @property
    def oindex(self) -> Accessor:
        """Orthogonal indexing: an integer, slice, list of integers or mask for each dimension independently."""
        return Accessor(self, parse.orthogonal)

    @property
    def vindex(self) -> Accessor:
        """Coordinate indexing: points, as an integer array per dimension, or a mask of the selection's shape."""
        return Accessor(self, parse.coordinate)

    def _select(self, key: Any, parser: Callable[[Any, tuple[int, ...]], Transform]) -> AsyncSelection:
        fields, key = split_fields(key, self.dtype)
        if fields is not None and self._fields is not None:
            raise SelectionError(f"the selection already has fields: {self._fields!r}", shape=self.shape)
        transform = compose(self._transform, parser(key, self.shape))
        fields = fields if fields is not None else self._fields
        return AsyncSelection(self.array, transform, fields, not transform.shape and _keeps_array(key))

    # -------------------------------------------------------------- reading and writing

    def __await__(self) -> Generator[Any, None, npt.NDArray[Any]]:
        return self.read().__await__()

    @overload
    async def read(
        self, out: None = None, missing: Literal["fill", "error"] = "fill", progress: ProgressLike = False
    ) -> npt.NDArray[Any]: ...

    @overload
    async def read(self, out: T, missing: Literal["fill", "error"] = "fill", progress: ProgressLike = False) -> T: ...

    async def read(
        self,
        out: Any = None,
        missing: Literal["fill", "error"] = "fill",
        progress: ProgressLike = False,
    ) -> Any:
        """Read the selection.

        Args:
            out: An array of the selection's shape and dtype to read into: of NumPy, or of any library that supports DLPack or
                the buffer protocol.
            missing: ``"fill"``: chunks that do not exist read as the fill value. ``"error"``: they raise an error.
            progress: ``True`` to show a progress bar, a function that is called with the number of bytes read since
                its last call, or a ``Monitor``.

        Returns:
            ``out`` if given, otherwise a new NumPy array of the selection's shape and dtype, in the memory order of the
            stored chunks (C or Fortran). If every axis is indexed by an integer, a NumPy scalar.

        Raises:
            MissingChunkError: If chunks do not exist and ``missing`` is ``"error"``.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed. A chunk that does not exist is not a failure.
            ShapeError: If ``out`` has a different shape or dtype.

        Example:
            >>> array = await za.create_array({}, data=np.arange(8))
            >>> await array.view[2:5].read()
            array([2, 3, 4])
        """
        if missing not in ("fill", "error"):
            raise ValueError(f"missing must be 'fill' or 'error', found {missing!r}")
        chunks, decoding = self.array._chunks, self.array._decoding
        target = out if out is None or type(out) is np.ndarray else memory_of(out)
        stored_out = target if decoding is None else None
        if chunks.cache is None or stored_out is not None or missing == "error" or progress or chunks.unproven:
            read = partial(transfer.read, chunks, self._transform, out=stored_out, missing=missing, fields=self._fields)
        else:
            read = partial(chunks.cache.read, chunks, self._transform, self._fields)
        await take_turn()
        if decoding is not None:
            self._check_decoded(decoding, target)
        if progress:
            with report_progress(progress, self._stored_bytes, f"read {self.array.name}") as report:
                result = await read(progress=report)
        else:
            result = await read()
        if chunks.unproven and self._fields is None:
            await check_separator(chunks, self._transform, result)
        if decoding is not None:
            decode: Any = partial(decoding.decode, result)
            if target is not None:
                decode = partial(decoding.decode_into, result, target)
            result = decode() if result.nbytes < _LONG else await compute(decode)
        return out if out is not None else self._finish(result)

    @property
    def _stored_bytes(self) -> int:
        """The size of the selected stored elements in memory, in bytes."""
        dtype = self.array.metadata.dtype.numpy
        return self.size * (dtype if self._fields is None else dtype[self._fields]).itemsize

    def _check_decoded(self, decoding: Decoder, out: npt.NDArray[Any] | None) -> None:
        """Check the size of decoded values, and the array to read them into."""
        limit = self.array.config.max_read_bytes
        if 0 < limit < self.nbytes:
            raise SelectionError(
                f"the decoded values of shape {self.shape} have {self.nbytes:,} bytes, more than config.max_read_bytes = "
                f"{limit:,}",
                shape=self.shape,
            )
        if out is not None:
            decoding.check_out(out, self.shape)

    def _finish(self, result: npt.NDArray[Any]) -> Any:
        """Return a scalar instead of an array without dimensions, if NumPy would."""
        return result if result.shape or self._exact else result[()]

    def _read_at_once(self) -> Any:
        """Read a few elements of local files in some microseconds, without a coroutine, locks, or anything to cancel.

        Returns ``None`` if ``read`` has to do it, which also raises the errors.
        """
        chunks = self.array._chunks
        if self._fields is not None or chunks.unproven:
            return None
        if chunks.cache is None:
            reader = chunks.ranges_reader
            result = None if reader is None else reader.read(self._transform)
        else:
            result = chunks.cache.read_at_once(chunks, self._transform)
        if result is None:
            return None
        decoding = self.array._decoding
        return self._finish(result if decoding is None else decoding.decode(result))

    async def write(self, values: npt.ArrayLike, progress: ProgressLike = False) -> None:
        """Write values to the selection.

        A chunk that the selection covers in part is read, changed and written back. Locks or conditional writes keep
        concurrent changes of other writers to the rest of the chunk. If the store supports neither, the write raises an
        error.

        Args:
            values: The values, broadcast to the selection's shape. Masked elements become the fill value, or the number
                for missing values if the array is decoded.
            progress: ``True`` to show a progress bar, a function that is called with the number of bytes written
                since its last call, or a ``Monitor``.

        Raises:
            ShapeError: If the values do not broadcast to the selection's shape, or chunks are covered in part and
                ``config.unaligned`` does not allow that on this store.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, shape=(4,), dtype="i4")
            >>> await array.view[1:3].write(7)
            >>> await array[...]
            array([0, 7, 7, 0], dtype=int32)
        """
        chunks, transform, fields, decoding = self.array._chunks, self._transform, self._fields, self.array._decoding
        check = partial(check_assignment, chunks, transform, fields)
        await take_turn()
        if decoding is not None:
            encode = partial(decoding.encode, values, self.array.name)
            values = await transfer.run_conversion(encode, values, self.array.metadata.dtype.numpy, computes=True)
        write = partial(transfer.write, chunks, transform, values, fields=fields, check=check)
        if progress:
            with report_progress(progress, self._stored_bytes, f"write {self.array.name}") as report:
                await write(progress=report)
        else:
            await write()

    # -------------------------------------------------------------- block by block

    def chunks(self, unit: tuple[int, ...] | Literal["auto"] = "auto") -> AsyncBlocks:
        """Read the selection block by block. The next block is read while the caller processes the current one.

        Args:
            unit: The shape of a block. Blocks at the edges are smaller. ``"auto"``: the shape of a shard (or chunk),
                reduced to at most an eighth of ``config.memory_budget``.

        Returns:
            An iterator over pairs: the location of a block in the selection, as a tuple of slices, and its values. Its
            length is the number of blocks.

        Raises:
            SelectionError: If ``unit`` does not have a positive size for each axis.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = await za.create_array({}, data=np.arange(4), chunks=(2,))
            >>> len(array.view.chunks())
            2
            >>> async for region, block in array.view.chunks():
            ...     print(region[0].start, block.sum())
            0 1
            2 5
        """
        axes = self._block_axes(unit)
        return AsyncBlocks(self._read_blocks(self._regions(axes)), math.prod(axis.nchunks for axis in axes))

    async def _read_blocks(self, regions: Iterator[Region]) -> AsyncIterator[tuple[Region, npt.NDArray[Any]]]:
        next_block: asyncio.Task[Any] | None = None
        try:
            region = next(regions, None)
            while region is not None:
                next_region = next(regions, None)
                block = await (next_block if next_block is not None else self[(*region, ...)].read())
                next_block = None
                if next_region is not None and not driven():
                    next_block = asyncio.ensure_future(self[(*next_region, ...)].read())
                yield region, block
                region = next_region
        finally:
            if next_block is not None:
                next_block.cancel()

    def _regions(self, axes: Sequence[GridAxis]) -> Iterator[Region]:
        for coords in lazy_product([range(axis.nchunks) for axis in axes]):
            starts = [axis.start(number) for axis, number in zip(axes, coords, strict=True)]
            stops = [start + axis.size(n) for axis, start, n in zip(axes, starts, coords, strict=True)]
            yield tuple(slice(start, min(stop, n)) for start, stop, n in zip(starts, stops, self.shape, strict=True))

    def _block_axes(self, unit: tuple[int, ...] | Literal["auto"]) -> Sequence[GridAxis]:
        """Return the axes of the selection, divided into blocks."""
        shape, metadata = self.shape, self.array.metadata
        if unit != "auto":
            if len(unit) != len(shape) or any(size < 1 for size in unit):
                raise SelectionError(
                    f"unit must have a positive size for each axis of a selection of shape {shape}, found {unit}",
                    shape=shape,
                )
            return [RegularAxis(n, size) for n, size in zip(shape, unit, strict=True)]
        if metadata.edges is not None and shape == metadata.shape:
            return metadata.grid.axes
        write_chunks = metadata.write_chunks
        largest = write_chunks if len(write_chunks) == len(shape) else shape
        sizes = guess_chunks(largest, self.dtype.itemsize, self.array.config.memory_budget // 8)
        return [RegularAxis(n, size) for n, size in zip(shape, sizes, strict=True)]

    # -------------------------------------------------------------- explaining

    def explain(self) -> Explanation:
        """Count the chunks, requests and bytes that reading the selection takes. Makes no requests.

        Returns:
            The counts. Notebooks show them with a picture of the chunks.

        Example:
            >>> array = await za.create_array({}, shape=(8, 8), dtype="f8", chunks=(4, 4))
            >>> array.view[:2].explain()
            / (2, 8) float64: 2 chunks, 2 requests, 256 B decoded for 128 B (50%)
        """
        dtype = str(self.dtype)
        if self.array._decoding is not None:
            dtype = f"{dtype} from {self.array.metadata.dtype.numpy}"
        return explain(self.array.name, self.array.metadata, self._transform, dtype, self.nbytes, self._stored_bytes)

    async def show(self) -> Any:
        """Show the array in a notebook at the place of the selection, as ``show`` of the array does.

        Returns:
            A widget.

        Raises:
            ImportError: If ``anywidget`` is not installed.
            SelectionError: If the selection does not consist of integers and slices with elements.

        Example:
            >>> array = await za.create_array({}, data=np.arange(6.0).reshape(2, 3), chunks=(2, 3))
            >>> widget = await array.view[:, 1:].show()
        """
        return await call_method(self, "selection", "show", "show", {})

    def _repr_html_(self) -> str:
        return self.explain().to_html("Selection")


class AsyncBlocks(AsyncIterator[tuple[Region, npt.NDArray[Any]]]):
    """The blocks of a selection, which are read one after the other. Their number is the length.

    Args:
        source: Reads the blocks.
        count: The number of blocks.
    """

    def __init__(self, source: AsyncIterator[tuple[Region, npt.NDArray[Any]]], count: int) -> None:
        self._source: Any = source
        self._count = count

    def __len__(self) -> int:
        return self._count

    async def __anext__(self) -> tuple[Region, npt.NDArray[Any]]:
        pair: tuple[Region, npt.NDArray[Any]] = await anext(self._source)
        return pair

    @property
    def ag_running(self) -> bool:
        """Whether a block is being read."""
        return bool(self._source.ag_running)

    async def aclose(self) -> None:
        """Stop reading."""
        await self._source.aclose()


def select(array: SelectedArray, key: Any) -> AsyncSelection:
    """Return ``array.view[key]`` with fewer calls, because they are much of the cost of small reads."""
    metadata = array.metadata
    fields, transform = None, parse.simple(key, metadata.shape)
    if transform is None:
        fields, key = split_fields(key, metadata.dtype.numpy)
        transform = parse.numpy_style(key, metadata.shape)
    return AsyncSelection(array, transform, fields, not transform.shape and _keeps_array(key))


def _keeps_array(key: Any) -> bool:
    """Return whether a key contains ``...``, so that a result without dimensions is an array rather than a scalar."""
    for item in key if isinstance(key, tuple) else (key,):  # noqa: SIM110  # `any` takes three times as long
        if item is Ellipsis:
            return True
    return False
