"""What reading and writing share."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gates import FifoGate, Permits, byte_budget
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._concurrency.single_flight import SingleFlight
from zarrasync.codecs import BoundChain
from zarrasync.config import Config
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.chunk_selection import ChunkRun, PointRun, Run
from zarrasync.indexing.transform import Transform
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.stores.base import Store
from zarrasync.transfer.threads import Job, run_jobs

__all__ = ["Chunks", "Missing", "batches", "carry_out", "run_parts"]

Missing: TypeAlias = Literal["fill", "error"]
Fields: TypeAlias = "str | list[str] | None"
T = TypeVar("T")
R = TypeVar("R", bound=Run)
R_contra = TypeVar("R_contra", bound=Run, contravariant=True)
_SMALL = 1 << 15
"""Bytes of a chunk below which the interpreter's part of its decoding counts."""

_TRIAL, _STRETCH = 64, 4096
"""Chunks for each thread whose time tells whether several pay, and chunks after which that is tried again."""
_PAYS = 0.8
"""What several threads have to take of the time of one: where they take turns in the interpreter they lose now and then."""

Index: TypeAlias = tuple[bytes, object, "int | None"]
"""A shard's index, and the shard's version and size."""


class Indexes:
    """Indexes of shards by key, each with the version of the shard it belongs to.

    An index is used only together with bytes that are then fetched from the shard, whose version tells
    whether it is still the shard's. So a shard that was replaced is noticed, and nothing need be asked.
    """

    def __init__(self, most: int = 8 << 20) -> None:
        self._known: OrderedDict[str, Index] = OrderedDict()
        self._room = most
        self._lock = thread_lock()

    def get(self, key: str) -> Index | None:
        """What is known of a shard."""
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            return known

    def put(self, key: str, index: bytes, version: object, size: int | None) -> None:
        """Keep an index; the oldest ones make room."""
        with self._lock:
            self._forget(key)
            self._known[key] = index, version, size
            self._room -= len(index)
            while self._room < 0:
                _, (gone, _, _) = self._known.popitem(last=False)
                self._room += len(gone)

    def drop(self, key: str) -> None:
        """Forget an index."""
        with self._lock:
            self._forget(key)

    def _forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        self._room += len(known[0]) if known is not None else 0


@dataclass(frozen=True, slots=True)
class Chunks:
    """What the engine needs to know of an array.

    Attributes:
        store: Where the chunks lie, under keys relative to the array.
        metadata: The array's metadata.
        config: The settings it was opened with.
        prefix: What stands before a chunk's key in the store that the user gave; for messages.
        origin: That store; for messages.
        indexes: Indexes of shards that were read before.
        flights: Indexes of shards that are on their way.
        shape: The shape of the stored values, where the array has some of different shapes.
    """

    store: Store
    metadata: ArrayMetadata
    config: Config
    prefix: str = ""
    origin: Store | None = None
    indexes: Indexes = field(default_factory=Indexes, compare=False, repr=False)
    flights: SingleFlight = field(default_factory=SingleFlight, compare=False, repr=False)
    shape: tuple[int, ...] | None = None

    @property
    def chain(self) -> BoundChain:
        """The codecs of a stored value."""
        return self.metadata.chain if self.shape is None else self.metadata.chain_of(self.shape)

    def alike(self, parts: Sequence[R]) -> list[tuple[Chunks, Sequence[R]]]:
        """Parts by the shape of their stored values."""
        if self.metadata.edges is None:
            return [(self, parts)]
        found: dict[tuple[int, ...], list[R]] = {}
        for part in parts:
            found.setdefault(self.metadata.grid.chunk_shape(part.coords), []).append(part)
        return [(replace(self, shape=shape), own) for shape, own in found.items()]

    def taken(self, nbytes: int) -> Permits:
        """Hold bytes of the process's budget for the length of a block."""
        return Permits(byte_budget(self.config), nbytes)

    @property
    def concurrency(self) -> int:
        """How many requests to have in flight."""
        return self.config.concurrency or self.store.concurrency

    def key(self, coords: tuple[int, ...]) -> str:
        """The key of a stored value, relative to the store."""
        return self.metadata.keys.encode(coords)

    def keys(self, part: Run) -> list[str]:
        """The keys of a part's stored values."""
        if isinstance(part, PointRun):
            return [self.key(coords) for coords in part.chunks.tolist()]
        return self.metadata.keys.encode_run(part.coords, part.axis, part.count)

    def parts(self, transform: Transform, *, runs: bool = False) -> list[ChunkRun]:
        """The shares of all stored values that a selection touches.

        Args:
            transform: The selection.
            runs: Whether values that follow each other may make one part, where that pays.

        Raises:
            MetadataError: If a chunk is larger than the settings allow.
        """
        self.check_size()
        run = self.metadata.chain.run_length if runs and self.metadata.edges is None else 1
        return list(transform.layout.projection().split(self.metadata.grid, run))

    def runs(self, transform: Transform) -> Sequence[Run]:
        """``parts`` for reading, with values of which single elements are picked in one."""
        chain = self.metadata.chain
        if chain.run_length > 1 and self.metadata.edges is None and not chain.supports_partial_reads:
            points = transform.layout.projection().gather(self.metadata.grid)
            if points is not None:
                self.check_size()
                return points
        return self.parts(transform, runs=True)

    def check_size(self) -> None:
        """Complain of chunks that are too large.

        Raises:
            MetadataError: If they are larger than the settings allow.
        """
        limit, nbytes = self.config.max_chunk_bytes, self.metadata.chain.nbytes
        if limit and nbytes > limit:
            raise MetadataError(
                f"{self.prefix or 'the array'}: a chunk decodes to {nbytes:,} bytes, config.max_chunk_bytes is {limit:,}"
            )

    def threads(self, *, decoding: bool) -> int:
        """Threads that pay.

        The interpreter runs one at a time. Handing it over costs more than small chunks gain, unless what they
        take is mostly the store's work or that of a codec that takes many, which others can run beside.
        """
        chain = self.chain
        unit = chain.innermost_chain
        if not _is_locked():
            return self.config.pool_size
        beside = unit.is_raw if unit is not chain else self.store.parallel and (unit.is_raw or not decoding)
        beside |= unit.releases_gil
        return 1 if unit.nbytes < _SMALL and not beside else self.config.pool_size

    @property
    def doubtful(self) -> bool:
        """Whether threads may be in each other's way."""
        unit = self.chain.innermost_chain
        return _is_locked() and unit is self.chain and unit.nbytes < _SMALL and not unit.releases_gil

    def full_key(self, key: str) -> str:
        """A key as the user's store has it."""
        return self.prefix + key

    def locate(self, error: CodecError, key: str) -> CodecError:
        """An error with the chunk it is about."""
        return error.at(self.full_key(key), repr(self.origin or self.store))


_is_locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
"""Whether the interpreter runs one thread at a time, as all do but free-threaded ones."""


def run_parts(
    parts: Sequence[R],
    make: Callable[[Sequence[R], int], Sequence[Job]],
    chunks: Chunks,
    flag: CancelFlag,
    threads: int,
) -> None:
    """Do the jobs of parts on as many threads as pay.

    After each of the system's calls a thread waits for the interpreter. Whether several are faster with small chunks is a
    matter of how long these calls take, so that it is tried: files are in memory, or on a disk far away.

    Args:
        parts: What to do.
        make: Makes jobs of parts for a number of threads.
        chunks: Where the chunks are.
        flag: Set from elsewhere to stop; set here on failure.
        threads: Threads to use at the most.
    """

    def work(parts: Sequence[R], threads: int) -> float:
        begin = clock.monotonic()
        run_jobs(make(parts, threads), chunks.config, flag, threads)
        return clock.monotonic() - begin

    if threads == 1 or not chunks.doubtful:
        work(parts, threads)
        return
    waiting, left = deque(parts), sum(part.count for part in parts)
    while left >= 4 * _TRIAL * threads:
        alone, shared = _take(waiting, _TRIAL), _take(waiting, _TRIAL * threads)
        pays = work(alone, 1) * threads * _PAYS > work(shared, threads)
        work(_take(waiting, _STRETCH), threads if pays else 1)
        left -= _TRIAL * (1 + threads) + _STRETCH
    work(list(waiting), threads)


def _take(waiting: deque[R], count: int) -> list[R]:
    """The parts of so many chunks at the beginning, which are taken away."""
    head = list[R]()
    while count and waiting:
        part: R = waiting.popleft()
        if part.count > count:
            waiting.appendleft(part.section(count, part.count))  # type: ignore[arg-type]  # of its own kind
            part = part.section(0, count)  # type: ignore[assignment]  # likewise
        head.append(part)
        count -= part.count
    return head


def batches(parts: Sequence[R], nbytes: int, settings: Config, threads: int, most: int = 256) -> list[list[R]]:
    """Put parts whose chunks have a size into batches that make a job, enough of them for all threads."""
    most = max(1, min(most, settings.batch_bytes // max(nbytes, 1)))
    most = max(1, min(most, -(-sum(part.count for part in parts) // threads)))
    made: list[list[R]] = []
    room = 0
    for run in parts:
        for start in range(0, run.count, most):
            part: R = run.section(start, min(start + most, run.count))  # type: ignore[assignment]  # of its own kind
            if room < part.count:
                made.append([])
                room = most
            made[-1].append(part)
            room -= part.count
    return made


def dtype_of(chunks: Chunks, fields: Fields) -> np.dtype[Any]:
    """The dtype of a selection of fields."""
    dtype = chunks.metadata.dtype.numpy
    return dtype if fields is None else dtype[fields]


class Operation(Protocol[R_contra]):
    """A read or a write of stored values of one shape."""

    async def on_threads(self, parts: Sequence[R_contra], /) -> None:
        """Carry it out on a blocking store."""

    async def on_loop(self, parts: Sequence[R_contra], in_flight: FifoGate, /) -> None:
        """Carry it out on an asynchronous store, with as many values at a time as the gate lets through."""


async def carry_out(chunks: Chunks, parts: Sequence[R], begin: Callable[[Chunks], Operation[R]]) -> None:
    """Read or write parts, in the way that suits the store: an operation for each shape of stored values."""
    blocking, in_flight = chunks.store.blocking, FifoGate(chunks.concurrency)

    async def one(item: tuple[Chunks, Sequence[R]]) -> None:
        operation = begin(item[0])
        await (
            run_in_worker(partial(operation.on_threads, item[1]), computing=chunks.store.near)
            if blocking
            else operation.on_loop(item[1], in_flight)
        )

    await for_each(one, chunks.alike(parts), 1 if blocking else chunks.concurrency)
