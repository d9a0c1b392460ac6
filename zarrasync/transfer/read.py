"""Reading a selection: check, plan, run; a few elements of one chunk are read without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._util.memory import KEPT, aligned_empty, keep_freed_memory
from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array, as_bytes_view
from zarrasync.errors import CodecError, SelectionError, ShapeError
from zarrasync.indexing.chunk_runs import AnyRun
from zarrasync.indexing.transform import Transform
from zarrasync.stores.values import Request
from zarrasync.transfer.chunks import Chunks, Fields, Missing, dtype_of
from zarrasync.transfer.kernel.read import KernelRead
from zarrasync.transfer.limits import ONE_THREAD, PAGES, SMALL
from zarrasync.transfer.place import ContentBudget, Placement, PlaceOptions, missing_chunks
from zarrasync.transfer.plan import ReadPlan, new_buffer, plan_read
from zarrasync.transfer.read_runs import read_async, read_blocking
from zarrasync.transfer.threads import Progress

InnerKey: TypeAlias = tuple[int | slice, ...]
"""The NumPy key that selects elements inside a chunk."""


class SingleChunk(NamedTuple):
    """The only chunk that a selection touches.

    Attributes:
        chunks: The array's chunks.
        transform: The selection.
        coords: The coordinates of the chunk.
        inner_key: Selects the elements inside it.
        byte_range: Start and length in the stored chunk, if it is raw and only the elements are fetched.
    """

    chunks: Chunks
    transform: Transform
    coords: tuple[int, ...]
    inner_key: InnerKey
    byte_range: tuple[int, int] | None

    @classmethod
    def of(cls, chunks: Chunks, transform: Transform) -> SingleChunk | None:
        """Return the chunk, or ``None`` if a plan is needed.

        Shards, and parts of raw chunks that are not contiguous, need plans, which fetch byte ranges. Large chunks are
        decoded into their place. Asynchronous stores need tasks, unless the event loop itself decodes the chunk.
        """
        metadata, blocking = chunks.metadata, chunks.store.blocking
        chain = metadata.chain
        if metadata.edges is not None or chain.innermost_chain is not chain or chain.spec.dtype.is_variable:
            return None
        most = ONE_THREAD if blocking else SMALL
        if not (blocking or chain.is_quick) or (chain.nbytes > most and not chain.is_raw):
            return None
        touched = transform.single_chunk(metadata.grid.axes)
        if touched is None or 0 < chunks.config.max_chunk_bytes < chain.nbytes:
            return None
        if not chain.supports_partial_reads:
            return cls(chunks, transform, *touched, None)
        byte_range = _contiguous_range(chain, touched[1]) if chain.decodes_to_output else None
        return (
            None
            if byte_range is None or (not blocking and byte_range[1] > most)
            else cls(chunks, transform, *touched, byte_range)
        )

    async def read(self) -> Array:
        """Read the selection. An absent chunk has the fill value."""
        chunks, chain = self.chunks, self.chunks.metadata.chain
        async with chunks.budget(min(chain.nbytes, chunks.config.coalesce_size)):
            key = chunks.key(self.coords)
            try:
                result = await (
                    self._fetch_elements(key, *self.byte_range) if self.byte_range else self._fetch_chunk(key)
                )
            except CodecError as error:
                chunks.locate(error, key)
                raise
            if result is None:
                layout = self.transform.layout
                buffer = new_buffer(chain, layout, chain.spec.dtype.numpy)
                buffer[...] = chain.spec.scalar
                result = layout.to_result(buffer)
            return result

    async def _fetch_chunk(self, key: str) -> Array | None:
        """Fetch and decode the chunk, and return the selected elements as a new array."""
        chunks, chain = self.chunks, self.chunks.metadata.chain
        reads_into_memory = chunks.store.blocking and chain.read_size_hint
        space = np.empty(chain.read_size_hint, np.uint8) if reads_into_memory else None
        (value,) = await chunks.store.fetch_values([key], [space], chunks.limit)
        if value is None:
            return None
        order: Literal["C", "K"] = "C" if chain.memory_axis_order is None else "K"
        return np.array(chain.decode(value)[(*self.inner_key, ...)], chain.spec.dtype.numpy, order=order)

    async def _fetch_elements(self, key: str, start: int, length: int) -> Array | None:
        """Fetch contiguous elements of a raw chunk into the result."""
        chain = self.chunks.metadata.chain
        out = (aligned_empty if length >= PAGES else np.empty)(self.transform.shape, chain.spec.dtype.numpy)
        memory = as_bytes_view(out)
        (value,) = await self.chunks.store.fetch(
            [Request(key, start, length, out=memoryview(memory), limit=self.chunks.limit)]
        )
        if value is None:
            return None
        if len(value.data) != length or value.size not in (None, chain.nbytes):
            raise CodecError(f"the value has {value.size} bytes, expected {chain.nbytes}")
        data = np.frombuffer(value.data, np.uint8)
        if not np.may_share_memory(data, memory):
            memory[...] = data
        return out


def _contiguous_range(chain: BoundChain, inner_key: InnerKey) -> tuple[int, int] | None:
    """Return start and length in bytes of elements that are contiguous in a raw chunk; ``None`` if they are not.

    They are contiguous if only one index is selected on every axis before a partially selected axis. In a chunk of
    shape ``(4, 5, 6)``, ``[2, 1:3, :]`` is contiguous, and ``[1:3, 1:3, :]`` is not.
    """
    shape = chain.spec.shape
    start, length, stride, whole = 0, chain.spec.dtype.numpy.itemsize, chain.spec.dtype.numpy.itemsize, True
    for axis in range(len(shape) - 1, -1, -1):
        item = inner_key[axis]
        first, count = (item, 1) if isinstance(item, int) else (item.start, item.stop - item.start)
        if count > 1 and (not whole or (isinstance(item, slice) and item.step != 1)):
            return None
        start += first * stride
        length *= count
        stride *= shape[axis]
        whole = whole and count == shape[axis]
    return start, length


async def read(
    chunks: Chunks,
    transform: Transform,
    *,
    out: Array | None = None,
    missing: Missing = "fill",
    fields: Fields = None,
    progress: Progress | None = None,
) -> Array:
    """Read a selection.

    Args:
        chunks: The array's chunks.
        transform: The selection.
        out: An array of the selection's shape to read into; a new one if not given.
        missing: How to treat an absent chunk: ``"fill"`` returns fill values, ``"error"`` raises.
        fields: The structured fields to read; all if ``None``.
        progress: Called with the number of bytes done since the last call.

    Returns:
        ``out``, or a new array in native byte order.

    Raises:
        ShapeError: If ``out`` has another shape or dtype, or is read-only.
        MissingChunkError: If a chunk is absent and ``missing`` is ``"error"``.
        CodecError: If a chunk does not decode. The message contains its key.
        StoreError: If a chunk could not be read for another reason than absence.
        SelectionError: If the result would be larger than ``config.max_read_bytes``.
    """
    dtype = chunks.metadata.dtype.numpy if fields is None else dtype_of(chunks, fields)
    size, limit = transform.size, chunks.config.max_read_bytes
    if limit:
        _check_size(limit, transform, size * dtype.itemsize)
    if out is not None:
        _check_out(out, transform, dtype)
    if not size:
        return np.empty(transform.shape, dtype) if out is None else out
    if size * dtype.itemsize >= KEPT:
        keep_freed_memory()
    is_simple = out is None and fields is None and progress is None and missing == "fill"
    if is_simple and (result := await _read_small(chunks, transform)) is not None:
        return result
    layout = transform.layout
    buffer = None if out is None else layout.to_buffer(out)
    if out is not None and buffer is not None and not np.may_share_memory(buffer, out):
        out[...] = await read(chunks, transform, missing=missing, fields=fields, progress=progress)
        return out
    plan = plan_read(chunks, transform, buffer, fields)
    absent: list[str] = []
    content = ContentBudget(limit, limit - plan.buffer.nbytes) if limit and chunks.metadata.dtype.is_variable else None
    options = PlaceOptions(fields, missing, absent, progress, content)
    if chunks.store.blocking:
        await _run_blocking(plan, options)
    else:
        await _run_async(plan, options)
    if absent:
        raise missing_chunks(chunks, absent)
    return layout.to_result(plan.buffer) if out is None else out


async def _read_small(chunks: Chunks, transform: Transform) -> Array | None:
    """Read a few elements without a plan: by one call of the kernel, or in Python if they are in one chunk.

    Returns ``None`` if the selection needs a plan, or a chunk cannot be read, which the plan then explains.
    """
    reader = None if chunks.unproven else chunks.ranges_reader
    if reader is None:
        chunk = SingleChunk.of(chunks, transform)
        if chunk is None:
            return None
        if not chunks.store.blocking:
            return await chunk.read()
        return await run_in_worker(chunk.read, computing=chunks.store.is_local)
    if not reader.suits(transform):
        return None

    async def run() -> Array | None:
        return reader.read(transform)

    return await run_in_worker(run, computing=chunks.store.is_local)


async def _run_blocking(plan: ReadPlan, options: PlaceOptions) -> None:
    """Carry out a plan on a blocking store: on this thread if the call is driven, else on a worker."""

    async def run() -> None:
        flag = cancel_flag()
        placement = Placement(plan.chunks, plan.buffer, options, flag)
        kernel_read = KernelRead.of(placement, plan.projection)
        if kernel_read is not None:
            await _read_runs(placement, (), kernel_read)
            return
        for chunks, runs in plan.groups():
            placement = Placement(chunks, plan.buffer, options, flag)
            if chunks.shape is not None:
                await read_listed_runs(placement, runs)
            else:
                await read_blocking(placement, runs)

    await run_in_worker(run, computing=plan.chunks.store.is_local)


async def read_listed_runs(placement: Placement, runs: Sequence[AnyRun]) -> None:
    """Read chunks of one shape from a blocking store.

    Args:
        placement: The output.
        runs: The elements of each chunk, and their places in the output.
    """
    await _read_runs(placement, runs, KernelRead.listed(placement, runs))


async def _read_runs(placement: Placement, runs: Sequence[AnyRun], kernel_read: KernelRead | None) -> None:
    """Read with the kernel, if there is one, and the remaining runs in Python."""
    left = runs if kernel_read is None else await kernel_read.run()
    if left:
        await read_blocking(placement, left)


async def _run_async(plan: ReadPlan, options: PlaceOptions) -> None:
    """Carry out a plan on an asynchronous store, with bounded concurrency."""

    async def run(group: tuple[Chunks, Sequence[AnyRun]]) -> None:
        chunks, runs = group
        flag = cancel_flag()
        await read_async(Placement(chunks, plan.buffer, options, flag), runs)

    await for_each(run, plan.groups(), plan.chunks.concurrency)


def _check_size(limit: int, transform: Transform, nbytes: int) -> None:
    if nbytes > limit:
        raise SelectionError(
            f"the selection of shape {transform.shape} has {nbytes:,} bytes, "
            f"more than config.max_read_bytes = {limit:,}",
            shape=transform.shape,
        )


def _check_out(out: Array, transform: Transform, dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, found {type(out).__name__}")
    if out.shape != transform.shape or out.dtype != dtype:
        raise ShapeError(
            f"out has shape {out.shape} and dtype {out.dtype}, the selection {transform.shape} and {dtype}",
            found=out.shape,
            wanted=transform.shape,
        )
    if not out.flags.writeable:
        raise ShapeError("out cannot be written to: it is a read-only array")
