"""Several dask arrays into stored ones in one computation, so that what they have in common is computed once."""

from __future__ import annotations

import asyncio
import math
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import dask.array as da
import dask.base
import numpy as np
import numpy.typing as npt

from zarrasync import sync, transfer
from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.blocks import checksum
from zarrasync.display.progress import IngestReport
from zarrasync.errors import ChecksumError
from zarrasync.indexing.regions import Region
from zarrasync.integrations.dask import OfThisProcess, cluster
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import CountingStore

__all__ = ["Share", "write_together"]

_POLL = 0.2
"""Seconds after which somebody who waits for a cluster looks whether he still is to."""
_AT_ONCE = 8
_BLOCK = 64 << 20
"""Bytes of a block that is small enough in any case."""


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
        """With blocks of whole stored values, but where the first and the last ones are cut.

        Where they become longer along an axis they become shorter along others, so that they do not grow much.
        """
        axes, itemsize = self.target.metadata.grid.axes, self.source.dtype.itemsize or 16
        chunks = [_cuts(*own) for own in zip(self.source.chunks, axes, self.start, strict=True)]
        kept = [max(new) <= max(old) for new, old in zip(chunks, self.source.chunks, strict=True)]
        limit = max(_BLOCK, _largest(self.source.chunks) * itemsize)
        for number in np.flatnonzero(kept).tolist():
            parts = -(-_largest(chunks) * itemsize // limit)
            chunks[number] = _split(chunks[number], axes[number], self.start[number], parts)
        return self._replace(source=self.source.rechunk(tuple(chunks)))

    @property
    def held(self) -> int:
        """Bytes that wait in memory for the rest of a row of blocks, about, where those that are stored are longer."""
        chunks = [
            _cuts(*own) for own in zip(self.source.chunks, self.target.metadata.grid.axes, self.start, strict=True)
        ]
        longer = [max(new) if max(new) > max(old) else 0 for new, old in zip(chunks, self.source.chunks, strict=True)]
        if not any(longer):
            return 0
        sizes = (own or max(old) for own, old in zip(longer, self.source.chunks, strict=True))
        return math.prod(sizes) * (self.source.dtype.itemsize or 16)

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


def _largest(chunks: Sequence[Sequence[int]]) -> int:
    """Elements of the largest block."""
    return math.prod(max(own, default=0) for own in chunks)


def _split(sizes: Sequence[int], axis: Any, start: int, parts: int) -> tuple[int, ...]:
    """Sizes of blocks, each cut into so many parts, if it has as many stored values along the axis."""
    if parts <= 1 or not any(sizes):
        return tuple(sizes)
    ends, at = set[int](), start
    for size in sizes:
        first, last = axis.find(at), axis.find(at + size - 1)
        step = max(1, (last - first + 1) // parts)
        ends.update(axis.start(chunk) for chunk in range(first + step, last + 1, step))
        ends.add(at := at + size)
    return tuple(np.diff([start, *sorted(ends)]).tolist())


async def write_together(shares: Sequence[Share], *, verify: bool) -> list[IngestReport]:
    """Write all of them, on whatever dask is set to compute with; what that does elsewhere is not counted.

    Args:
        shares: The arrays.
        verify: Read everything again at the end, and compare.

    Raises:
        StoreError: If other processes would write into copies of a store that is in this one's memory.
        ChecksumError: If ``verify`` finds a difference.
    """
    begin = clock.monotonic()
    shares = [share.aligned() for share in shares]
    goals = [_Goal(sync.Array(share.target)) for share in shares]
    written = [_written(share, goal, verify) for share, goal in zip(shares, goals, strict=True)]
    sums = await _on_a_thread(written, goals)
    reports = []
    for share, own in zip(shares, sums, strict=True):
        report = IngestReport(share.source.npartitions, nbytes=share.source.size * max(share.target.dtype.itemsize, 1))
        if verify:
            pairs = zip(share.regions(), own.reshape(-1).tolist(), strict=True)
            await for_each(partial(_compare, share.target), pairs, _AT_ONCE)
            report.verified = report.blocks
        store = share.target.store
        assert isinstance(store, CountingStore)
        counts = store.reset()
        report.stored, report.requests = counts.bytes_written, counts.requests
        report.seconds = clock.monotonic() - begin
        reports.append(report)
    return reports


async def _on_a_thread(written: Sequence[Any], goals: Sequence[_Goal]) -> Sequence[Any]:
    """Compute all of it on a thread of its own: others may be what blocks wait for. Nothing is written after this."""
    with ThreadPoolExecutor(1, "zarrasync-dask") as thread:
        work = partial(copy_context().run, _compute, written, goals)
        task = asyncio.get_running_loop().run_in_executor(thread, work)  # pyright: ignore[reportArgumentType]
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
                for goal in goals:
                    goal.stopped = True
    if cancelled is not None:
        task.exception()  # which nobody hears of
        raise cancelled
    return task.result()


async def _compare(target: AsyncArray, expected: tuple[Region, int]) -> None:
    region, own = expected
    found = await target.view[region].read()
    if await compute(partial(checksum, found)) != own:
        spot = ", ".join(f"{s.start}:{s.stop}" for s in region)
        raise ChecksumError(f"{target.name}[{spot}] in {target.store!r} is not what was written there")


class _Goal:
    """An array that blocks are written into as long as nobody stops that; in each process there is one of a number."""

    def __init__(self, array: sync.Array | OfThisProcess, number: str = "") -> None:
        self.array: Any = array
        if isinstance(array, sync.Array) and not array.store.portable:
            self.array = OfThisProcess(array)
        self.number = number or uuid.uuid4().hex
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
        return _goal_here, (self.array, self.number)

    def __dask_tokenize__(self) -> Any:
        return self.number


_here: weakref.WeakValueDictionary[str, _Goal] = weakref.WeakValueDictionary()
_given_up: deque[str] = deque(maxlen=10_000)
_lock = threading.Lock()


def _goal_here(array: sync.Array, number: str) -> _Goal:
    """The goal of a number in this process."""
    with _lock:
        found = _here.get(number)
        if found is None:
            found = _here[number] = _Goal(array, number)
            found.stopped = number in _given_up
        return found


def _give_up_here(numbers: Sequence[str]) -> None:
    """Stop goals in this process, those that are yet to arrive, too."""
    with _lock:
        _given_up.extend(numbers)
        known = [goal for number in numbers if (goal := _here.get(number)) is not None]
    for goal in known:
        goal.stop()


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


def _compute(written: Sequence[Any], goals: Sequence[_Goal]) -> Sequence[Any]:
    """Compute all of it; when this returns or raises, nothing of it is written any more."""
    try:
        client = cluster()
        if client is not None:
            return _on_cluster(client, written, goals)
        compute: Any = dask.base.compute  # it has no types
        found: Sequence[Any] = compute(*written)
        return found
    except Exception as error:
        for goal in goals:
            goal.stop()
            # Schedulers say that something can not be serialized.
            if isinstance(goal.array, OfThisProcess) and goal.array.sent:
                raise goal.array.refusal from error
        raise


def _on_cluster(client: Any, written: Sequence[Any], goals: Sequence[_Goal]) -> Sequence[Any]:
    from dask import distributed

    wait: Any = distributed.wait  # it has no types
    futures = client.compute(list(written))
    try:
        while not any(goal.stopped for goal in goals) and not any(future.status == "error" for future in futures):
            with suppress(TimeoutError):
                wait(futures, timeout=_POLL)
                break
        if any(goal.stopped for goal in goals):
            raise RuntimeError("the write was given up")
        found: Sequence[Any] = client.gather(futures)
        return found
    except BaseException:
        with suppress(OSError):  # workers that can not be reached
            client.cancel(futures)  # which does not stop what has begun
            client.run(_give_up_here, [goal.number for goal in goals])
        raise
