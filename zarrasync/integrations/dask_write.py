"""Writing several dask arrays in one computation, in blocks aligned to chunks, so that intermediate results are computed once."""

from __future__ import annotations

import math
import uuid
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask.array as da
import dask.base
import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from zarrasync import sync
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.cancel import CancelFlag, cancel_flag
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.bulk.jobs.boxes import UNSIZED_BYTES
from zarrasync.bulk.jobs.verification import compare_values
from zarrasync.display.progress import IngestReport, ignore_progress, part_of
from zarrasync.errors import ShapeError
from zarrasync.integrations.dask_targets import WriteTarget, current_cluster, stop_in_process
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import GridAxis
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import CountingStore
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import Unaligned, is_allowed, is_safe_for_jobs

_SMALL_BYTES = 64 << 20
"""Bytes of a block that need not be split."""
_POLL_SECONDS = 0.2
"""Seconds after which a thread that waits for a cluster checks whether its call was cancelled."""
_BLOCK = np.dtype([("stored", "u8"), ("requests", "u8"), ("begin", "f8"), ("end", "f8")])
"""Record of a written block: bytes and requests since the last record, and times of the clock."""


@dataclass(frozen=True)
class DaskWrite:
    """One dask array to write into one array.

    Attributes:
        source: The dask array.
        target: The array, in a ``CountingStore``.
        start: The position of the source's first element in it.
    """

    source: Any
    target: AsyncArray
    start: tuple[int, ...]

    def aligned(self) -> DaskWrite:
        """Return the same write with blocks of whole stored values, except at the edges of the source.

        Blocks that become longer along some axes are split along others, so that they do not grow much.
        """
        axes = self.target.metadata.grid.axes
        chunks = self._aligned_chunks()
        not_longer = [max(new) <= max(old) for new, old in zip(chunks, self.source.chunks, strict=True)]
        limit = max(_SMALL_BYTES, _largest(self.source.chunks) * self._itemsize)
        for number in np.flatnonzero(not_longer).tolist():
            parts = -(-_largest(chunks) * self._itemsize // limit)
            chunks[number] = _split(chunks[number], axes[number], self.start[number], parts)
        return replace(self, source=self.source.rechunk(tuple(chunks)))

    @property
    def held_bytes(self) -> int:
        """Approximate bytes that wait in memory until a row of longer blocks is complete."""
        pairs = list(zip(self._aligned_chunks(), self.source.chunks, strict=True))
        if all(max(new) <= max(old) for new, old in pairs):
            return 0
        return math.prod(max(*new, *old) for new, old in pairs) * self._itemsize

    @property
    def _itemsize(self) -> int:
        return self.source.dtype.itemsize or UNSIZED_BYTES

    def _aligned_chunks(self) -> list[tuple[int, ...]]:
        axes = self.target.metadata.grid.axes
        return [_align(*item) for item in zip(self.source.chunks, axes, self.start, strict=True)]


def _align(sizes: Sequence[int], axis: GridAxis, start: int) -> tuple[int, ...]:
    """Return sizes of blocks along an axis, with each end moved up to the end of a stored value."""
    if not any(sizes):
        return (0,)
    ends = start + np.cumsum(sizes)
    chunks = axis.find_all(ends[ends > start] - 1)
    return tuple(np.diff(np.unique([start, *np.minimum(axis.start_all(chunks + 1), ends[-1])])).tolist())


def _largest(chunks: Sequence[Sequence[int]]) -> int:
    """Return the number of elements of the largest block."""
    return math.prod(max(sizes, default=0) for sizes in chunks)


def _split(sizes: Sequence[int], axis: GridAxis, start: int, parts: int) -> tuple[int, ...]:
    """Return sizes of blocks along an axis, each cut into a number of parts, or into single stored values."""
    if parts <= 1 or not any(sizes):
        return tuple(sizes)
    ends, end = set[int](), start
    for size in sizes:
        first, last = axis.find(end), axis.find(end + size - 1)
        step = max(1, (last - first + 1) // parts)
        ends.update(axis.start(chunk) for chunk in range(first + step, last + 1, step))
        end += size
        ends.add(end)
    return tuple(np.diff([start, *sorted(ends)]).tolist())


# ------------------------------------------------------------------ blocks that share chunks


def check_blocks(
    source: Any,
    target: ArrayMetadata,
    start: tuple[int, ...],
    unaligned: Unaligned,
    *,
    safe: bool,
    append_axis: int | None = None,
) -> None:
    """Check that blocks do not share chunks, unless that is allowed.

    Args:
        source: A dask array.
        target: The metadata of the array that is written.
        start: The position of the source in it.
        unaligned: Whether blocks may share chunks.
        safe: Whether the store keeps the values of all writers.
        append_axis: An axis along which no other writer writes next to the source.

    Raises:
        ShapeError: If blocks share chunks and that is not allowed.
    """
    shared = _shared_axes(source.chunks, target, start, () if append_axis is None else (append_axis,))
    if not shared or is_allowed(unaligned, safe=safe):
        return
    raise ShapeError(
        f"blocks of the source share chunks along the axes {shared}; rechunk it to multiples of "
        f"{target.write_chunks}: source.rechunk({_aligned_blocks(source, target)}); "
        "or pass unaligned='allow' if no other writer is active",
        found=source.chunksize,
        wanted=target.write_chunks,
    )


def _shared_axes(
    chunks: tuple[tuple[int, ...], ...], target: ArrayMetadata, start: tuple[int, ...], inside: Container[int]
) -> list[int]:
    """Return the axes along which a stored value belongs to several blocks, or is partly outside the source.

    Args:
        chunks: The sizes of blocks along each axis.
        target: The metadata of the array that is written.
        start: The position of the blocks in it.
        inside: Axes along which stored values may be partly outside.
    """
    shared = []
    for number, (sizes, axis, first) in enumerate(zip(chunks, target.grid.axes, start, strict=True)):
        edges = first + np.cumsum([0, *sizes])
        if number in inside:
            edges = edges[1:-1]
        edges = edges[(edges > 0) & (edges < axis.extent)]
        if (axis.start_all(axis.find_all(edges)) != edges).any():
            shared.append(number)
    return shared


def _aligned_blocks(source: Any, target: ArrayMetadata) -> tuple[int, ...]:
    """Return the shape of the source's blocks, rounded up to whole stored values of the target."""
    units = target.write_chunks
    return tuple(-(-size // unit) * unit for size, unit in zip(source.chunksize, units, strict=True))


# ------------------------------------------------------------------ writing


async def write_together(
    writes: Sequence[DaskWrite],
    *,
    verify: bool,
    progress: Progress = ignore_progress,
    options: Mapping[str, Any] | None = None,
) -> list[IngestReport]:
    """Write arrays in one computation on the configured scheduler.

    Args:
        writes: The arrays, with blocks that do not share chunks.
        verify: Read each block back and compare it.
        progress: Called with the number of bytes written since its last call. Blocks that other processes write are
            reported at the end.
        options: Options of the computation, such as ``num_workers``.

    Returns:
        A report per array, including the requests of other processes.

    Raises:
        StoreError: If other processes would write into copies of a store in the memory of this process.
        ChecksumError: If a value that was read back differs.
    """
    begin, reports = clock.monotonic(), [_report_of(write, verify) for write in writes]
    with ExitStack() as stack:
        parts = [stack.enter_context(part_of(progress, *_progress_of(write))) for write in writes]
        targets = [WriteTarget(sync.Array(w.target), progress=part) for w, part in zip(writes, parts, strict=True)]
        lazy = [_lazy_blocks(write, target, verify) for write, target in zip(writes, targets, strict=True)]
        # On new threads, because blocks may wait for threads of any pool.
        blocks = await run_in_new_thread(partial(_compute, lazy, targets, options or {}))
        for report, target, part in zip(reports, targets, parts, strict=True):
            part(report.nbytes - target.reported)
    for report in _with_counts(blocks, reports):
        report.seconds = clock.monotonic() - begin
    return reports


def _progress_of(write: DaskWrite) -> tuple[str, int, int]:
    """Return the name, the number of bytes, and the number of rows of a write."""
    return write.target.name, _report_of(write).nbytes, write.source.shape[0] if write.source.shape else 0


def write_later(writes: Sequence[DaskWrite], *, verify: bool) -> Any:
    """Return a dask object whose computation, on any scheduler, writes arrays and returns their reports.

    Args:
        writes: The arrays, with blocks that do not share chunks.
        verify: Read all values back and compare them.
    """
    lazy = [_lazy_blocks(write, WriteTarget(sync.Array(write.target)), verify) for write in writes]
    return delayed(_with_counts)(lazy, [_report_of(write, verify) for write in writes])


def _report_of(write: DaskWrite, verify: bool = False) -> IngestReport:
    blocks, itemsize = write.source.npartitions, max(write.target.dtype.itemsize, 1)
    return IngestReport(blocks, nbytes=write.source.size * itemsize, verified=blocks if verify else 0)


def _with_counts(blocks: Sequence[npt.NDArray[Any]], reports: list[IngestReport]) -> list[IngestReport]:
    """Return the reports of written arrays, with the requests that wrote blocks in any process, and the time between them."""
    for values, report in zip(blocks, reports, strict=True):
        report.stored, report.requests = int(values["stored"].sum()), int(values["requests"].sum())
        written = values[values["end"] > 0]
        if written.size:
            report.seconds = max(float(written["end"].max() - written["begin"].min()), 0.0)
    return reports


# ------------------------------------------------------------------ computation


def _lazy_blocks(write: DaskWrite, target: WriteTarget, verify: bool) -> Any:
    """Return a dask array that writes another one when it is computed. Its values describe the written blocks."""
    if verify and not is_safe_for_jobs(write.target.store):
        between = _shared_axes(write.source.chunks, write.target.metadata, write.start, range(write.source.ndim))
        if between:
            raise ShapeError(
                f"verify=True cannot find values that blocks lose to each other, and blocks share chunks along the axes {between}; "
                f"rechunk the source: source.rechunk({_aligned_blocks(write.source, write.target.metadata)}), or omit verify"
            )
    chunks = tuple((1,) * n for n in write.source.numblocks)
    meta = np.empty((0,) * write.source.ndim, _BLOCK)
    name = f"zarrasync-write-{uuid.uuid4().hex}"
    arguments = {"target": target, "start": write.start, "verify": verify}
    return da.map_blocks(_write_block, write.source, name=name, chunks=chunks, dtype=meta.dtype, meta=meta, **arguments)


def _write_block(
    block: Any, target: WriteTarget, start: tuple[int, ...], verify: bool, block_info: Any = None
) -> npt.NDArray[Any]:
    """Write a block, and return its record.

    Blocks of an array that are written at the same time share the counts, whose sum is right.
    """
    block, written = np.asanyarray(block), np.zeros((1,) * np.ndim(block), _BLOCK)
    if block.size:
        location, store = block_info[0]["array-location"], target.array.store
        region = tuple(slice(a + x, b + x) for (a, b), x in zip(location, start, strict=True))
        written["begin"] = clock.wall_time()
        target.write(region, block)
        if verify:
            bridge.run(compare_values(target.array.async_, region, block), blocking=store.blocking)
        written["end"] = clock.wall_time()
        if isinstance(store, CountingStore):
            counts = store.reset()
            written["stored"], written["requests"] = counts.bytes_written, counts.requests
    return written


def compute_only(arrays: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Compute the blocks of dask arrays on the configured scheduler, and keep none, so that their errors are raised.

    Args:
        arrays: The arrays.
        options: Options for the computation.
    """
    blocks = [block for array in arrays for block in array.to_delayed().ravel()]
    dask.base.compute(*map(delayed(_forget), blocks), **options)


def _forget(block: Any) -> None:
    """Return nothing for a block."""


def _compute(lazy: Sequence[Any], targets: Sequence[WriteTarget], options: Mapping[str, Any]) -> Any:
    """Compute arrays. No block is written after this returns or raises."""
    flag = cancel_flag()
    for target in targets:
        target.flag = flag
    try:
        client = current_cluster()
        if client is not None:
            return _compute_on_cluster(client, lazy, targets, options, flag)
        return dask.base.compute(*lazy, **options)
    except Exception as error:
        for target in targets:
            target.stop()
            if target.refusal is not None:
                raise target.refusal from error
        raise


def _compute_on_cluster(
    client: Any, lazy: Sequence[Any], targets: Sequence[WriteTarget], options: Mapping[str, Any], flag: CancelFlag
) -> Any:
    from dask import distributed

    futures = client.compute(list(lazy), **options)
    try:
        while not flag.cancelled and not any(future.status == "error" for future in futures):
            with suppress(TimeoutError):
                distributed.wait(futures, timeout=_POLL_SECONDS)
                break
        if flag.cancelled:
            raise RuntimeError("the write was given up")
        return client.gather(futures)
    except BaseException:
        with suppress(OSError):  # some workers cannot be reached
            client.cancel(futures)  # does not stop tasks that have begun
            client.run(stop_in_process, [target.token for target in targets])
        raise
