"""Several dask arrays into stored ones in one computation, so that what they have in common is computed once."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import dask.array as da
import dask.base
import numpy as np
import numpy.typing as npt

from zarrasync import sync, transfer
from zarrasync.array import AsyncArray
from zarrasync.blocks import Region
from zarrasync.errors import ChecksumError
from zarrasync.ingesting import IngestReport, checksum
from zarrasync.integrations.dask import OfThisProcess
from zarrasync.metadata import ArrayMetadata
from zarrasync.stores import CountingStore
from zarrasync.transfer.common import side_by_side

__all__ = ["Share", "write_together"]

_POLL = 0.2
"""Seconds after which somebody who waits for a cluster looks whether he still is to."""
_AT_ONCE = 8


class Share(NamedTuple):
    """What is written into one array.

    Attributes:
        source: A dask array.
        target: The array, in a store that counts.
        start: Where in it the source's first element goes.
    """

    source: Any
    target: AsyncArray
    start: tuple[int, ...]

    def aligned(self) -> Share:
        """With blocks of whole stored values, but where the first and the last ones are cut."""
        chunks = [
            _cuts(*own) for own in zip(self.source.chunks, self.target.metadata.grid.axes, self.start, strict=True)
        ]
        return self._replace(source=self.source.rechunk(tuple(chunks)))

    def regions(self) -> Iterator[Region]:
        """Where the blocks go, in C order."""
        ends = [[a, *(a + np.cumsum(sizes)).tolist()] for a, sizes in zip(self.start, self.source.chunks, strict=True)]
        return product(*([slice(a, b) for a, b in pairwise(own)] for own in ends))


def _cuts(sizes: Sequence[int], axis: Any, start: int) -> tuple[int, ...]:
    """Sizes of blocks along an axis, each end moved up to the next one of a stored value."""
    stop = start + sum(sizes)
    ends = {stop}
    at = start
    for size in sizes:
        at += size
        if start < at < stop:
            chunk = axis.find(at - 1)
            ends.add(min(stop, axis.start(chunk) + axis.size(chunk)))
    return tuple(np.diff([start, *sorted(ends)]).tolist()) if stop > start else (0,)


async def write_together(shares: Sequence[Share], *, verify: bool) -> list[IngestReport]:
    """Write all of them, on whatever dask is set to compute with; what that does elsewhere is not counted.

    Args:
        shares: The arrays.
        verify: Read everything again at the end, and compare.

    Raises:
        StoreError: If other processes would write into copies of a store that is in this one's memory.
        ChecksumError: If ``verify`` finds a difference.
    """
    begin = time.monotonic()
    shares = [share.aligned() for share in shares]
    goals = [_Goal(sync.Array(share.target)) for share in shares]
    written = [_written(share, goal, verify) for share, goal in zip(shares, goals, strict=True)]
    stopped = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_compute, written, goals, stopped))
    try:
        sums = await asyncio.shield(work)
    except asyncio.CancelledError:
        stopped.set()
        for goal in goals:
            goal.stopped = True
        await asyncio.wait([work])
        raise
    reports = []
    for share, own in zip(shares, sums, strict=True):
        report = IngestReport(share.source.npartitions, nbytes=share.source.size * max(share.target.dtype.itemsize, 1))
        if verify:
            pairs = zip(share.regions(), own.reshape(-1).tolist(), strict=True)
            await side_by_side(partial(_compare, share.target), pairs, _AT_ONCE)
            report.verified = report.blocks
        store = share.target.store
        assert isinstance(store, CountingStore)
        counts = store.reset()
        report.stored, report.requests = counts.bytes_written, counts.requests
        report.seconds = time.monotonic() - begin
        reports.append(report)
    return reports


async def _compare(target: AsyncArray, expected: tuple[Region, int]) -> None:
    region, own = expected
    if await asyncio.to_thread(checksum, await target.view[region].read()) != own:
        spot = ", ".join(f"{s.start}:{s.stop}" for s in region)
        raise ChecksumError(f"{target.name}[{spot}] in {target.store!r} is not what was written there")


class _Goal:
    """An array that blocks are written into as long as nobody stops that."""

    def __init__(self, array: sync.Array | OfThisProcess) -> None:
        self.array: Any = array
        if isinstance(array, sync.Array) and not array.store.portable:
            self.array = OfThisProcess(array)
        self.stopped, self._busy, self._change = False, 0, threading.Condition()

    def write(self, region: Region, block: npt.NDArray[Any]) -> None:
        with self._change:
            if self.stopped:
                raise RuntimeError("the write was given up")
            self._busy += 1
        try:
            self.array[region] = block
        finally:
            with self._change:
                self._busy -= 1
                self._change.notify_all()

    def stop(self) -> None:
        """Begin no more blocks, and wait for those that have begun."""
        with self._change:
            self.stopped = True
            self._change.wait_for(lambda: not self._busy)

    def __reduce__(self) -> Any:
        return _Goal, (self.array,)

    def __dask_tokenize__(self) -> Any:
        return uuid.uuid4().hex


def _written(share: Share, goal: _Goal, verify: bool) -> Any:
    """A dask array that, once it is computed, has written another one: a checksum for each block."""
    blocks = tuple((1,) * n for n in share.source.numblocks)
    meta = np.empty((0,) * share.source.ndim, np.uint32)
    name = f"zarrasync-write-{uuid.uuid4().hex}"
    how = {"goal": goal, "start": share.start, "metadata": share.target.metadata if verify else None}
    make: Any = da.map_blocks  # it has no types
    return make(_write_block, share.source, name=name, chunks=blocks, dtype=meta.dtype, meta=meta, **how)


def _write_block(
    block: Any,
    goal: _Goal,
    start: tuple[int, ...],
    metadata: ArrayMetadata | None,
    block_info: Any = None,
) -> npt.NDArray[np.uint32]:
    block = np.asanyarray(block)
    found = 0
    if metadata is not None:
        dtype = metadata.dtype.numpy
        block = transfer.cast(transfer.as_array(block, dtype, metadata.spec.fill_value), dtype)
        found = checksum(block)
    if block.size:
        location = block_info[0]["array-location"]
        goal.write(tuple(slice(a + x, b + x) for (a, b), x in zip(location, start, strict=True)), block)
    return np.full((1,) * block.ndim, found, np.uint32)


def _compute(written: Sequence[Any], goals: Sequence[_Goal], stopped: threading.Event) -> Sequence[Any]:
    """Compute all of it; when this returns or raises, nothing of it is written by this process any more."""
    try:
        compute: Any = dask.base.compute
        get_scheduler: Any = dask.base.get_scheduler
        client = getattr(get_scheduler(collections=written), "__self__", None)
        if not hasattr(client, "gather"):
            found: Sequence[Any] = compute(*written)
            return found
        return _on_cluster(client, written, stopped)
    except Exception as error:
        for goal in goals:
            goal.stop()
            if (
                isinstance(goal.array, OfThisProcess) and goal.array.sent
            ):  # schedulers say that something can not be serialized
                raise goal.array.refusal from error
        raise


def _on_cluster(client: Any, written: Sequence[Any], stopped: threading.Event) -> Sequence[Any]:
    from dask import distributed

    wait: Any = distributed.wait  # it has no types
    futures = client.compute(list(written))
    try:
        while not stopped.is_set() and not any(future.status == "error" for future in futures):
            with suppress(TimeoutError):
                wait(futures, timeout=_POLL)
                break
        if stopped.is_set():
            raise RuntimeError("the write was given up")
        found: Sequence[Any] = client.gather(futures)
        return found
    finally:
        client.cancel(futures)
