"""Lazy selections: a view says what would be read; reading or writing it is one step at the end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.drive import driven
from zarrasync.display.info import counted, size_text
from zarrasync.display.progress import reporting
from zarrasync.errors import SelectionError
from zarrasync.indexing import parse as selectors
from zarrasync.indexing.coverage import Coverage
from zarrasync.indexing.fields import split_fields
from zarrasync.indexing.regions import Region
from zarrasync.indexing.transform import Transform, compose
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.chunk_grids import Axis, RegularAxis, lazy_product
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import check_assignment

if TYPE_CHECKING:
    from zarrasync.nodes.array import AsyncArray

__all__ = ["Accessor", "AsyncSelection", "Awaited", "Explanation", "select"]


class Awaited:
    """What must be awaited. Python and NumPy would take it for a sequence, ask for its elements, and get selections."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> Never:
        raise TypeError("an assignment can not be awaited: await array[...].write(values)")

    def __array__(self, dtype: object = None, copy: object = None) -> Never:
        raise TypeError("NumPy can not await: values = await array[...], then np.asarray(values)")

    def __iter__(self) -> Never:
        raise TypeError(
            "iterate over what was read (await array[...]), or async for region, block in array.view.chunks()"
        )


class Accessor(Awaited):
    """One way of indexing, as ``array.oindex[...]``; gives a lazy selection."""

    def __init__(self, view: AsyncSelection, parse: Callable[[Any, tuple[int, ...]], Transform]) -> None:
        self._view, self._parse = view, parse

    def __getitem__(self, key: Any) -> AsyncSelection:
        return self._view._select(key, self._parse)


class AsyncSelection(Awaited):
    """A part of an array that has not been read yet.

    Indexing it again gives a part of the part. ``await`` reads it.
    """

    __slots__ = ("_exact", "_fields", "_transform", "array")

    def __init__(
        self,
        array: AsyncArray,
        transform: Transform,
        fields: str | list[str] | None = None,
        exact: bool = False,
    ) -> None:
        self.array, self._transform, self._fields, self._exact = array, transform, fields, exact

    # -------------------------------------------------------------- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what would be read."""
        return self._transform.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of what would be read."""
        dtype = self.array.dtype
        return dtype if self._fields is None else dtype[self._fields]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._transform.size

    @property
    def nbytes(self) -> int:
        """Bytes of what would be read, in memory."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a selection without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.array.name} shape={self.shape} dtype={self.dtype}>"

    # -------------------------------------------------------------- part of the part

    def __getitem__(self, key: Any) -> AsyncSelection:
        return self._select(key, selectors.numpy_style)

    @property
    def oindex(self) -> Accessor:
        """Orthogonal indexing: each axis on its own."""
        return Accessor(self, selectors.orthogonal)

    @property
    def vindex(self) -> Accessor:
        """Coordinate indexing: points, or a mask."""
        return Accessor(self, selectors.coordinate)

    def _select(self, key: Any, parse: Callable[[Any, tuple[int, ...]], Transform]) -> AsyncSelection:
        fields, key = split_fields(key, self.dtype)
        if fields is not None and self._fields is not None:
            raise SelectionError(f"the selection has its fields already: {self._fields!r}", shape=self.shape)
        transform = compose(self._transform, parse(key, self.shape))
        fields = fields if fields is not None else self._fields
        return AsyncSelection(self.array, transform, fields, not transform.shape and _keeps_array(key))

    # -------------------------------------------------------------- reading and writing

    def __await__(self) -> Generator[Any, None, Any]:
        return self.read().__await__()

    async def read(
        self,
        out: npt.NDArray[Any] | None = None,
        missing: Literal["fill", "error"] = "fill",
        progress: bool | Progress = False,
    ) -> Any:
        """Read the selection.

        Args:
            out: An array of the selection's shape and dtype to read into.
            missing: What absent chunks are: ``"fill"`` values or an ``"error"``.
            progress: Show a progress bar, or call this with the bytes done since the last call.

        Returns:
            ``out`` if given; else a NumPy array, in Fortran order if the chunks are stored so (in general with the axes
            in their order). A NumPy scalar where every axis is indexed by an integer.

        Raises:
            MissingChunkError: If chunks are absent and ``missing`` is ``"error"``.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed; never for a chunk that is absent.
            ShapeError: If ``out`` does not fit.
        """
        if missing not in ("fill", "error"):
            raise ValueError(f"missing is 'fill' or 'error', found {missing!r}")
        read = partial(
            transfer.read, self.array._chunks, self._transform, out=out, missing=missing, fields=self._fields
        )
        if progress:
            with reporting(progress, self.nbytes, f"read {self.array.name}") as report:
                result = await read(progress=report)
        else:
            result = await read()
        return result[()] if not result.shape and out is None and not self._exact else result

    async def write(self, values: npt.ArrayLike, progress: bool | Progress = False) -> None:
        """Write values, broadcast to the selection's shape.

        Chunks that are covered in part are read, changed and written back. Nothing is lost that others write at the
        same time to other parts of them: this is refused where a store can neither keep them out nor tell.

        Args:
            values: What to write. Masked elements of a NumPy masked array become the fill value.
            progress: Show a progress bar, or call this with the bytes done since the last call.

        Raises:
            ShapeError: If the values do not broadcast to the selection, or chunks are covered in part and
                ``config.unaligned`` does not allow that on this store.
            ReadOnlyError: If the array was opened for reading.
            StoreError: If the store failed.
        """
        chunks, transform, fields = self.array._chunks, self._transform, self._fields
        check = partial(check_assignment, chunks, transform, fields)
        write = partial(transfer.write, chunks, transform, values, fields=fields, check=check)
        if progress:
            with reporting(progress, self.nbytes, f"write {self.array.name}") as report:
                await write(progress=report)
        else:
            await write()

    async def chunks(
        self, unit: tuple[int, ...] | Literal["auto"] = "auto"
    ) -> AsyncIterator[tuple[Region, npt.NDArray[Any]]]:
        """Read the selection block by block, the next one while the caller works on this one.

        Args:
            unit: The shape of a block; by default the array's write unit, cut down to an eighth of the
                memory budget. Blocks at the edges are smaller.

        Yields:
            Where the block lies in the selection, as slices, and its values.
        """
        regions = self._regions(unit)
        ahead: asyncio.Task[Any] | None = None
        try:
            region = next(regions, None)
            while region is not None:
                following = next(regions, None)
                block = await (ahead if ahead is not None else self[(*region, ...)].read())
                ahead = None
                if following is not None and not driven():
                    ahead = asyncio.ensure_future(self[(*following, ...)].read())
                yield region, block
                region = following
        finally:
            if ahead is not None:
                ahead.cancel()

    def _regions(self, unit: tuple[int, ...] | Literal["auto"]) -> Iterator[Region]:
        axes = self._cut(unit)
        for block in lazy_product([range(axis.nchunks) for axis in axes]):
            starts = [axis.start(number) for axis, number in zip(axes, block, strict=True)]
            ends = [start + axis.size(n) for axis, start, n in zip(axes, starts, block, strict=True)]
            yield tuple(slice(start, min(end, n)) for start, end, n in zip(starts, ends, self.shape, strict=True))

    def _cut(self, unit: tuple[int, ...] | Literal["auto"]) -> Sequence[Axis]:
        """The axes as they are cut into blocks."""
        shape = self.shape
        if unit == "auto":
            metadata = self.array.metadata
            if metadata.edges is not None and shape == metadata.shape:
                return metadata.grid.axes
            whole = metadata.write_chunks
            steps = list(whole) if len(whole) == len(shape) else list(shape)
            budget = self.array.config.memory_budget // 8
            while math.prod(steps) * max(self.dtype.itemsize, 1) > budget and max(steps, default=1) > 1:
                longest = max(range(len(steps)), key=steps.__getitem__)
                steps[longest] = -(-steps[longest] // 2)
        else:
            steps = list(unit)
            if len(steps) != len(shape) or any(n < 1 for n in steps):
                raise SelectionError(f"unit {unit} must have a positive size per axis of shape {shape}", shape=shape)
        return [RegularAxis(n, max(step, 1)) for n, step in zip(shape, steps, strict=True)]

    # -------------------------------------------------------------- explaining

    def explain(self) -> Explanation:
        """What reading the selection would touch: numbers, and in a notebook a picture. Does no IO."""
        metadata = self.array.metadata
        projection = self._transform.layout.projection()
        stored, read = (Coverage(projection, grid) for grid in (metadata.grid, metadata.read_grid))
        each = metadata.chain.nbytes / math.prod(metadata.write_chunks)
        sharded = metadata.shards is not None
        touched = self.size > 0
        return Explanation(
            self.array.name,
            self.shape,
            str(self.dtype),
            read.count * touched,
            stored.count * touched if sharded else None,
            stored.count * touched * (2 if sharded else 1),
            (stored.count + sharded * read.count) * touched,
            round(read.elements * each) * touched,
            self.nbytes,
            read,
            metadata,
        )

    def _repr_html_(self) -> str:
        from zarrasync.display import html

        return html.explanation(self.explain(), "Selection")


def select(array: AsyncArray, key: Any) -> AsyncSelection:
    """Return ``array.view[key]`` in fewer steps, as small reads spend much of their time in them."""
    metadata = array.metadata
    fields, key = split_fields(key, metadata.dtype.numpy)
    transform = selectors.numpy_style(key, metadata.shape)
    return AsyncSelection(array, transform, fields, not transform.shape and _keeps_array(key))


def _keeps_array(key: Any) -> bool:
    """Return whether a key with ``...`` asks for an array without dimensions rather than a scalar, as in NumPy."""
    return key is Ellipsis or (isinstance(key, tuple) and any(item is Ellipsis for item in key))


@dataclass(frozen=True)
class Explanation:
    """What reading a selection touches.

    Attributes:
        name: The array.
        shape: The selection's shape.
        dtype: Its dtype.
        chunks: Chunks to decode.
        shards: Shards to look into, if the array has them.
        requests: Requests: one a chunk; two a shard (its index, then its chunks together).
        most_requests: Requests at the most: chunks that lie far from each other in a shard are asked for one by one.
        decoded_bytes: Bytes of these chunks, decoded.
        result_bytes: Bytes of the result.
        coverage: Which chunks these are.
        metadata: The array's metadata.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: int
    shards: int | None
    requests: int
    most_requests: int
    decoded_bytes: int
    result_bytes: int
    coverage: Coverage = field(repr=False, compare=False)
    metadata: ArrayMetadata = field(repr=False, compare=False)

    def __str__(self) -> str:
        shards = f" in {counted(self.shards, 'shard')}" if self.shards is not None else ""
        return (
            f"{self.name} {self.shape} {self.dtype}: {counted(self.chunks, 'chunk')}{shards}, {self.asked}, "
            f"{size_text(self.decoded_bytes)} decoded for {size_text(self.result_bytes)} ({self.used})"
        )

    @property
    def asked(self) -> str:
        """The number of requests, for people."""
        if self.most_requests <= self.requests:
            return counted(self.requests, "request")
        return f"about {self.requests:,} requests, at most {self.most_requests:,}"

    @property
    def used(self) -> str:
        """How much of what is decoded makes the result, for people."""
        used = self.result_bytes / self.decoded_bytes if self.decoded_bytes else 1.0
        return f"{used:.0%}" if used >= 0.01 or not used else "less than 1%"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from zarrasync.display import html

        return html.explanation(self, "Read")
