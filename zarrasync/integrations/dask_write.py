"""Writing several dask arrays in one computation, so that intermediate results are computed once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any

import dask.array as da
import dask.base
import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from zarrasync import sync, transfer
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.cancel import CancelFlag, cancel_flag
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.bulk.blocks import ignore_progress, verify_block
from zarrasync.bulk.checksum import checksum
from zarrasync.display.progress import IngestReport, part_of
from zarrasync.indexing.regions import Region
from zarrasync.integrations.dask_blocks import DaskWrite
from zarrasync.integrations.dask_targets import WriteTarget, current_cluster, stop_in_process
from zarrasync.metadata import ArrayMetadata
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import CountingStore
from zarrasync.transfer.threads import Progress

__all__ = ["compute_only", "write_later", "write_together"]

_POLL_SECONDS = 0.2
"""Seconds after which a thread that waits for a cluster checks whether its call was cancelled."""
_CONCURRENT_READS = 8
"""Blocks that are read back at the same time."""
_BLOCK = np.dtype([("checksum", "u4"), ("stored", "u8"), ("requests", "u8"), ("begin", "f8"), ("end", "f8")])
"""Record of a written block: its checksum, bytes and requests since the last record, and times of the clock."""


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
        verify: Read all values back and compare them.
        progress: Called with the number of bytes written since its last call. Blocks that other processes write are
            reported at the end.
        options: Options of the computation, such as ``num_workers``.

    Returns:
        A report per array, including the requests of other processes.

    Raises:
        StoreError: If other processes would write into copies of a store in the memory of this process.
        ChecksumError: If a value that was read back differs.
    """
    begin, reports = clock.monotonic(), list(map(_report_of, writes))
    with ExitStack() as stack:
        parts = [stack.enter_context(_part(write, progress)) for write in writes]
        targets = [WriteTarget(sync.Array(w.target), progress=part) for w, part in zip(writes, parts, strict=True)]
        lazy = [_lazy_blocks(write, target, verify) for write, target in zip(writes, targets, strict=True)]
        # On new threads, because blocks may wait for threads of any pool.
        blocks = await run_in_new_thread(partial(_compute, lazy, targets, options or {}))
        for report, target, part in zip(reports, targets, parts, strict=True):
            part(report.nbytes - target.reported)
    reports = await run_in_new_thread(partial(_finish, blocks, targets, _regions(writes, verify), reports))
    for report in reports:
        report.seconds = clock.monotonic() - begin
    return reports


def _part(write: DaskWrite, progress: Progress) -> AbstractContextManager[Progress]:
    rows = write.source.shape[0] if write.source.shape else 0
    return part_of(progress, write.target.name, _report_of(write).nbytes, rows)


def write_later(writes: Sequence[DaskWrite], *, verify: bool) -> Any:
    """Return a dask object whose computation, on any scheduler, writes arrays and returns their reports.

    Args:
        writes: The arrays, with blocks that do not share chunks.
        verify: Read all values back and compare them.
    """
    targets = [WriteTarget(sync.Array(write.target)) for write in writes]
    lazy = [_lazy_blocks(write, target, verify) for write, target in zip(writes, targets, strict=True)]
    finish: Any = delayed(_finish)  # untyped
    return finish(lazy, targets, _regions(writes, verify), list(map(_report_of, writes)))


def _report_of(write: DaskWrite) -> IngestReport:
    return IngestReport(write.source.npartitions, nbytes=write.source.size * max(write.target.dtype.itemsize, 1))


def _regions(writes: Sequence[DaskWrite], verify: bool) -> list[list[Region]]:
    """Return the regions of each array to read back."""
    return [list(write.regions()) if verify else [] for write in writes]


def _finish(
    blocks: Sequence[npt.NDArray[Any]],
    targets: Sequence[WriteTarget],
    regions: Sequence[Sequence[Region]],
    reports: list[IngestReport],
) -> list[IngestReport]:
    """Return the reports of written arrays, after comparing their values."""
    for values, target, expected, report in zip(blocks, targets, regions, reports, strict=True):
        begin, array, store = clock.monotonic(), target.array.async_, target.array.store
        pairs = zip(expected, values["checksum"].reshape(-1).tolist(), strict=bool(expected))
        bridge.run(for_each(partial(_verify, array), pairs, _CONCURRENT_READS), blocking=False)
        report.verified = len(expected)
        # The requests that wrote blocks, in any process, and those that read them back in this process.
        assert isinstance(store, CountingStore)
        rest = store.reset()
        report.stored = int(values["stored"].sum()) + rest.bytes_written
        report.requests = int(values["requests"].sum()) + rest.requests
        written = [record for record in values.reshape(-1) if record["end"]]
        if written:
            duration = max(record["end"] for record in written) - min(record["begin"] for record in written)
            report.seconds = max(float(duration), 0.0) + clock.monotonic() - begin
    return reports


async def _verify(array: AsyncArray, expected: tuple[Region, int]) -> None:
    await verify_block(array, *expected)


# ------------------------------------------------------------------ computation


def _lazy_blocks(write: DaskWrite, target: WriteTarget, verify: bool) -> Any:
    """Return a dask array that writes another one when it is computed. Its values describe the written blocks."""
    chunks = tuple((1,) * n for n in write.source.numblocks)
    meta = np.empty((0,) * write.source.ndim, _BLOCK)
    name = f"zarrasync-write-{uuid.uuid4().hex}"
    metadata = write.target.metadata if verify else None
    arguments = {"target": target, "start": write.start, "metadata": metadata}
    map_blocks: Any = da.map_blocks  # untyped
    return map_blocks(_write_block, write.source, name=name, chunks=chunks, dtype=meta.dtype, meta=meta, **arguments)


def _write_block(
    block: Any,
    target: WriteTarget,
    start: tuple[int, ...],
    metadata: ArrayMetadata | None,
    block_info: Any = None,
) -> npt.NDArray[Any]:
    """Write a block, and return its record.

    Blocks of an array that are written at the same time share the counts, whose sum is right.
    """
    block, written = np.asanyarray(block), np.zeros((1,) * np.ndim(block), _BLOCK)
    if metadata is not None:
        dtype = metadata.dtype.numpy
        block = transfer.cast(transfer.as_array(block, dtype, metadata.spec.fill_value), dtype)
        written["checksum"] = checksum(block)
    if block.size:
        location, store = block_info[0]["array-location"], target.array.store
        written["begin"] = clock.wall_time()
        target.write(tuple(slice(a + x, b + x) for (a, b), x in zip(location, start, strict=True)), block)
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
    forget: Any = delayed(_forget)  # untyped
    compute_all: Any = dask.base.compute
    compute_all(*[forget(block) for block in blocks], **options)


def _forget(block: Any) -> None:
    """Return nothing for a block."""


def _compute(lazy: Sequence[Any], targets: Sequence[WriteTarget], options: Mapping[str, Any]) -> Sequence[Any]:
    """Compute arrays. No block is written after this returns or raises."""
    flag = cancel_flag()
    for target in targets:
        target.flag = flag
    try:
        client = current_cluster()
        if client is not None:
            return _compute_on_cluster(client, lazy, targets, options, flag)
        compute_all: Any = dask.base.compute  # untyped
        values: Sequence[Any] = compute_all(*lazy, **options)
        return values
    except Exception as error:
        for target in targets:
            target.stop()
            if target.refusal is not None:
                raise target.refusal from error
        raise


def _compute_on_cluster(
    client: Any,
    lazy: Sequence[Any],
    targets: Sequence[WriteTarget],
    options: Mapping[str, Any],
    flag: CancelFlag,
) -> Sequence[Any]:
    from dask import distributed

    wait: Any = distributed.wait  # untyped
    futures = client.compute(list(lazy), **options)
    try:
        while not flag.cancelled and not any(future.status == "error" for future in futures):
            with suppress(TimeoutError):
                wait(futures, timeout=_POLL_SECONDS)
                break
        if flag.cancelled:
            raise RuntimeError("the write was given up")
        values: Sequence[Any] = client.gather(futures)
        return values
    except BaseException:
        with suppress(OSError):  # some workers cannot be reached
            client.cancel(futures)  # does not stop tasks that have begun
            client.run(stop_in_process, [target.token for target in targets])
        raise
