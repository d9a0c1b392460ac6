"""Writing several dask arrays in one computation, so that intermediate results are computed once."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import deque
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
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.checksum import checksum
from zarrasync.display.progress import IngestReport, part_of
from zarrasync.errors import ChecksumError
from zarrasync.indexing.regions import Region
from zarrasync.integrations.dask_blocks import DaskWrite
from zarrasync.integrations.dask_targets import LocalTarget, current_cluster, refusal_behind, target_of
from zarrasync.metadata import ArrayMetadata
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import CountingStore, Store
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
    begin = clock.monotonic()
    with ExitStack() as stack:
        parts = [stack.enter_context(_part(write, progress)) for write in writes]
        pairs = zip(writes, parts, strict=True)
        targets = [_StoppableTarget(target_of(sync.Array(write.target)), progress=part) for write, part in pairs]
        lazy = [_lazy_blocks(write, target, verify) for write, target in zip(writes, targets, strict=True)]
        # On a new thread, because blocks may wait for threads of any pool.
        blocks = await run_in_new_thread(partial(_compute, lazy, targets, options or {}))
        for write, target, part in zip(writes, targets, parts, strict=True):
            part(_report_of(write).nbytes - target.reported)
    reports = []
    for write, values in zip(writes, blocks, strict=True):
        report = _report_of(write)
        if verify:
            compared = zip(write.regions(), values["checksum"].reshape(-1).tolist(), strict=True)
            await for_each(partial(_compare, write.target), compared, _CONCURRENT_READS)
            report.verified = report.blocks
        _add_counts(report, values, write.target.store)
        report.seconds = clock.monotonic() - begin
        reports.append(report)
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
    targets = [_StoppableTarget(target_of(sync.Array(write.target))) for write in writes]
    lazy = [_lazy_blocks(write, target, verify) for write, target in zip(writes, targets, strict=True)]
    regions = [list(write.regions()) if verify else [] for write in writes]
    finish: Any = delayed(_finish)  # untyped
    return finish(lazy, targets, regions, [_report_of(write) for write in writes])


def _report_of(write: DaskWrite) -> IngestReport:
    return IngestReport(write.source.npartitions, nbytes=write.source.size * max(write.target.dtype.itemsize, 1))


def _finish(
    blocks: Sequence[npt.NDArray[Any]],
    targets: Sequence[_StoppableTarget],
    regions: Sequence[Sequence[Region]],
    reports: Sequence[IngestReport],
) -> Sequence[IngestReport]:
    """Return the reports of written arrays, after comparing their values."""
    for values, target, expected, report in zip(blocks, targets, regions, reports, strict=True):
        begin, array = clock.monotonic(), target.stored
        pairs = zip(expected, values["checksum"].reshape(-1).tolist(), strict=bool(expected))
        bridge.run(for_each(partial(_compare, array.async_), pairs, _CONCURRENT_READS), blocking=array.store.blocking)
        report.verified = len(expected)
        _add_counts(report, values, array.store)
        written = [record for record in values.reshape(-1) if record["end"]]
        if written:
            duration = max(record["end"] for record in written) - min(record["begin"] for record in written)
            report.seconds = max(float(duration), 0.0) + clock.monotonic() - begin
    return reports


def _add_counts(report: IngestReport, blocks: npt.NDArray[Any], store: Store) -> None:
    """Add the requests that wrote blocks, in any process, and those that read them back in this process."""
    assert isinstance(store, CountingStore)
    rest = store.reset()
    report.stored = int(blocks["stored"].sum()) + rest.bytes_written
    report.requests = int(blocks["requests"].sum()) + rest.requests


async def _compare(target: AsyncArray, expected: tuple[Region, int]) -> None:
    region, expected_checksum = expected
    block = await target.view[region].read()
    if await compute(partial(checksum, block)) != expected_checksum:
        text = ", ".join(f"{part.start}:{part.stop}" for part in region)
        raise ChecksumError(f"{target.name}[{text}] in {target.store!r} differs from the written values")


# ------------------------------------------------------------------ targets that can be stopped


class _StoppableTarget:
    """An array that blocks are written into until it is stopped. There is one per token in each process."""

    def __init__(self, array: sync.Array | LocalTarget, token: str = "", progress: Progress = ignore_progress) -> None:
        self.array: Any = array
        self.reported = 0
        """The number of bytes that were reported to ``progress``, in this process."""
        self._progress = progress
        self.token = token or uuid.uuid4().hex
        self.flag: CancelFlag | None = None
        """The cancel flag of the call that computes, in its process."""
        self._stopped, self._writing, self._changed = False, 0, threading.Condition()

    @property
    def stored(self) -> sync.Array:
        """The array."""
        array: sync.Array = self.array.array if isinstance(self.array, LocalTarget) else self.array
        return array

    @property
    def stopped(self) -> bool:
        """Whether no more blocks are written."""
        return self._stopped or (self.flag is not None and self.flag.cancelled)

    def write(self, region: Region, block: npt.NDArray[Any]) -> None:
        with self._changed:
            if self.stopped:
                raise RuntimeError("the write was given up")
            self._writing += 1
        try:
            self.array[region] = block
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
        nbytes = block.size * max(self.array.dtype.itemsize, 1)
        with self._changed:
            self.reported += nbytes
        self._progress(nbytes)

    def stop(self) -> None:
        """Reject further writes, and wait for the running ones to end."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._writing)

    def __reduce__(self) -> Any:
        return _target_in_process, (self.array, self.token)

    def __dask_tokenize__(self) -> Any:
        return self.token


_targets: weakref.WeakValueDictionary[str, _StoppableTarget] = weakref.WeakValueDictionary()
_stopped_tokens: deque[str] = deque(maxlen=10_000)
_lock = thread_lock()


def _target_in_process(array: sync.Array, token: str) -> _StoppableTarget:
    """Return this process's target with a token."""
    with _lock:
        target = _targets.get(token)
        if target is None:
            target = _targets[token] = _StoppableTarget(array, token)
            if token in _stopped_tokens:
                target.stop()
        return target


def _stop_in_process(tokens: Sequence[str]) -> None:
    """Stop targets in this process, including those that arrive later."""
    with _lock:
        _stopped_tokens.extend(tokens)
        targets = [target for token in tokens if (target := _targets.get(token)) is not None]
    for target in targets:
        target.stop()


# ------------------------------------------------------------------ computation


def _lazy_blocks(write: DaskWrite, target: _StoppableTarget, verify: bool) -> Any:
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
    target: _StoppableTarget,
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
        location, store = block_info[0]["array-location"], target.stored.store
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


def _compute(lazy: Sequence[Any], targets: Sequence[_StoppableTarget], options: Mapping[str, Any]) -> Sequence[Any]:
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
            if (refusal := refusal_behind(target.array)) is not None:
                raise refusal from error
        raise


def _compute_on_cluster(
    client: Any,
    lazy: Sequence[Any],
    targets: Sequence[_StoppableTarget],
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
            client.run(_stop_in_process, [target.token for target in targets])
        raise
