"""The engine's view of an array: the location of its chunks, their codecs, and the settings."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import SingleFlight
from zarrasync._concurrency.semaphores import Held, byte_budget
from zarrasync._kernel.library import can_confine, kernel
from zarrasync._kernel.structs import ArrayStruct, Worker
from zarrasync.codecs import BoundChain
from zarrasync.codecs.kernel_chain import KernelDecoder, describe_chain
from zarrasync.codecs.spec import Array
from zarrasync.config import Config
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.chunk_runs import AnyRun, PointRun
from zarrasync.indexing.transform import Transform
from zarrasync.metadata import ArrayMetadata
from zarrasync.stores.base import DirectFiles, Store
from zarrasync.stores.changes import Changes
from zarrasync.stores.values import Value
from zarrasync.transfer.kernel.ranges import RangesReader
from zarrasync.transfer.limits import INTERPRETED, ONE_THREAD, SMALL

Missing: TypeAlias = Literal["fill", "error"]
"""How to treat an absent chunk: as fill values, or as an error."""
Fields: TypeAlias = "str | list[str] | None"
"""Names of the structured fields to read or write; all if ``None``."""
R = TypeVar("R", bound=AnyRun)


class ChunkCacheLike(Protocol):
    """The methods of a ``ChunkCache``, which reads through the classes of this module."""

    async def read(self, chunks: Chunks, transform: Transform, fields: Fields = None) -> Array: ...
    def read_at_once(self, chunks: Chunks, transform: Transform) -> Array | None: ...


_NO_BUDGET = nullcontext()
_NO_LIMIT = (1 << 62) - 1
_has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
"""Whether the interpreter runs one thread at a time, as all but free-threaded builds do."""


class ShardIndexCache:
    """Indexes by key. The least recently used ones are removed first.

    A cached index is used only together with bytes that are fetched from the shard afterwards. If their version differs
    from the index's, the shard was replaced, so that detecting this takes no extra request.

    Args:
        capacity: Bytes of indexes to keep.
    """

    def __init__(self, capacity: int = 8 << 20) -> None:
        self._indexes: OrderedDict[str, Value] = OrderedDict()
        self._room = capacity
        self._lock = thread_lock()

    def get(self, key: str) -> Value | None:
        """Return the index of a shard, if it is cached."""
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                self._indexes.move_to_end(key)
            return index

    def put(self, key: str, index: Value) -> None:
        """Cache the index of a shard."""
        with self._lock:
            self._remove(key)
            self._indexes[key] = index
            self._room -= len(index.data)
            while self._room < 0:
                _, evicted = self._indexes.popitem(last=False)
                self._room += len(evicted.data)

    def drop(self, key: str) -> None:
        """Forget the index of a shard."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: str) -> None:
        index = self._indexes.pop(key, None)
        self._room += len(index.data) if index is not None else 0


@dataclass(frozen=True)
class Chunks:
    """The stored chunks (or shards) of an array.

    Attributes:
        store: The store of the chunks, with keys relative to the array.
        metadata: The array's metadata.
        config: The settings with which the array was opened.
        prefix: The prefix of a chunk's key in the store that the user passed; for messages.
        origin: That store; for messages.
        name: The array's name, such as ``/a/b``; for messages.
        indexes: Cached indexes of shards.
        index_flights: Running requests for indexes of shards.
        shape: The shape of the stored chunks, if the array has chunks of different shapes.
        limit: The most bytes of a stored value that are read; ``None`` for any number.
        cache: A cache of decoded chunks.
        unproven: Non-empty until a read shows whether the separator of chunk keys is right, which documents of version 2 may
            omit.
    """

    store: Store
    metadata: ArrayMetadata
    config: Config
    prefix: str = ""
    origin: Store | None = None
    name: str = ""
    indexes: ShardIndexCache = field(default_factory=ShardIndexCache, compare=False, repr=False)
    index_flights: SingleFlight = field(default_factory=SingleFlight, compare=False, repr=False)
    shape: tuple[int, ...] | None = None
    limit: int | None = None
    unproven: list[str] = field(default_factory=list, compare=False, repr=False)
    cache: ChunkCacheLike | None = field(default=None, compare=False, repr=False)

    @property
    def chain(self) -> BoundChain:
        """The codecs of a stored chunk."""
        metadata, max_nbytes = self.metadata, self.config.max_chunk_bytes
        if self.shape is None and not max_nbytes:
            return metadata.chain
        return metadata.chain_of(self.shape or metadata.write_chunks, max_nbytes)

    @cached_property
    def cache_key(self) -> tuple[Any, ...]:
        """Identifies the array and its viewer in a cache, and how its chunks are decoded."""
        metadata = self.metadata
        layout = (metadata.dtype, metadata.codecs, metadata.fill_value, metadata.chunks, metadata.edges)
        store = self.origin or self.store
        return store.identity, store.viewer, self.name, repr(layout)

    @cached_property
    def changes(self) -> Changes:
        """The changes of the array by this process."""
        return Changes(self.origin or self.store, self.name.strip("/"))

    @cached_property
    def _files(self) -> DirectFiles | None:
        return self.store.direct_files

    @cached_property
    def kernel_array(self) -> ArrayStruct | None:
        """The description for the compiled kernel, or ``None`` if it cannot read or write the chunks.

        It can if they are local files of one shape, and if it has their codecs.
        """
        files = self._files
        array = None if files is None else self._describe()
        if array is not None and files is not None:
            if files.root and not can_confine():
                return None
            keys = self.metadata.keys
            array.directory, array.head = files.directory, keys.head(self.metadata.ndim).encode()
            array.root = files.root
            array.separator = ord(keys.separator)
            array.value_limit = _NO_LIMIT if self.limit is None else self.limit
        return array

    @cached_property
    def kernel_shard(self) -> ArrayStruct | None:
        """The description of shards; ``None`` if the kernel cannot encode them in memory, or chunks are stored alone."""
        if self.chain.sharding is None or self.config.write_empty_chunks:
            return None
        array = self._describe()
        return array if array is not None and array.can_write else None

    def _describe(self) -> ArrayStruct | None:
        """Describe the chunks, except for their names. ``None`` without the kernel, and if it has not all codecs."""
        if kernel(self.config.native) is None or (self.metadata.edges is not None and self.shape is None):
            return None  # in the second case, the chunks have several shapes
        array = ArrayStruct()
        array.axis_count = self.metadata.ndim
        return array if describe_chain(self.chain, array) else None

    @property
    def kernel_target(self) -> ArrayStruct | None:
        """The same description, or ``None`` if the kernel cannot replace chunks."""
        array, files = self.kernel_array, self._files
        if array is None or not array.can_write or files is None or files.fsync or not self.store.writeable:
            return None
        return None if array.is_sharded and self.config.write_empty_chunks else array

    @cached_property
    def ranges_reader(self) -> RangesReader | None:
        """Reads a few elements at once with the compiled kernel, if it can read the chunks and the settings allow it."""
        config, array, files = self.config, self.kernel_array, self._files
        if array is None or files is None or 0 < config.max_chunk_bytes < self.metadata.chain.nbytes:
            return None
        return RangesReader(array, self.chain, min(ONE_THREAD, config.max_read_bytes or ONE_THREAD), files.counter)

    def count_files(self, own: Worker) -> None:
        """Let the store count what the last call of the kernel read and wrote."""
        if self._files is not None and self._files.counter is not None:
            self._files.counter(own.traffic())

    @cached_property
    def kernel_decoder(self) -> KernelDecoder | None:
        """Decodes values in memory with the compiled kernel, or ``None`` if it cannot decode the chunks."""
        return None if kernel(self.config.native) is None else KernelDecoder.of(self.chain.innermost_chain)

    def is_interpreted(self, *, decoding: bool) -> bool:
        """Return whether the interpreter, which runs one thread at a time, takes most of the time of coding the chunks.

        Then more threads make it slower. Measured with files of 1.6 KB: two threads read no faster than one, and write
        them in 1.6 times the time.
        """
        unit = self.chain.innermost_chain
        if unit.nbytes >= INTERPRETED or not _has_lock():
            return False
        kernel_helps = (self.kernel_decoder if decoding else self.kernel_shard) is not None
        return not kernel_helps and (
            unit is self.chain or not unit.is_raw
        )  # raw inner chunks are copied in long stretches

    @property
    def concurrency(self) -> int:
        """Maximum number of requests in flight."""
        return self.config.concurrency or self.store.concurrency

    def by_shape(self, runs: Sequence[R]) -> list[tuple[Chunks, Sequence[R]]]:
        """Group runs by the shape of their stored chunks: a regular grid has one shape."""
        if self.metadata.edges is None:
            return [(self, runs)]
        groups: dict[tuple[int, ...], list[R]] = {}
        for run in runs:
            groups.setdefault(self.metadata.grid.chunk_shape(run.coords), []).append(run)
        return [(replace(self, shape=shape), group) for shape, group in groups.items()]

    def key(self, coords: tuple[int, ...]) -> str:
        """Return the key of a chunk, relative to the store."""
        return self.metadata.keys.encode(coords)

    def keys(self, run: AnyRun) -> list[str]:
        """Return the keys of a run's chunks."""
        if isinstance(run, PointRun):
            return [self.key(coords) for coords in run.chunks.tolist()]
        return self.metadata.keys.encode_run(run.coords, run.axis, run.count)

    def full_key(self, key: str) -> str:
        """Return the full key in the user's store."""
        return self.prefix + key

    def locate(self, error: CodecError, key: str) -> CodecError:
        """Add the key of the chunk to an error."""
        return error.at(self.full_key(key), repr(self.origin or self.store))

    def budget(self, nbytes: int) -> AbstractAsyncContextManager[None]:
        """Reserve bytes of the process's memory budget for the length of an ``async with`` block.

        A thread that reads or writes a few bytes of a blocking store reserves none.
        """
        if nbytes <= SMALL and self.store.blocking:
            return _NO_BUDGET
        return Held(byte_budget(self.config), nbytes)

    def check_chunk_size(self) -> None:
        """Check that chunks are not larger than ``config.max_chunk_bytes``.

        Raises:
            MetadataError: If they are.
        """
        limit = self.config.max_chunk_bytes
        if limit and self.metadata.chain.nbytes > limit:
            raise MetadataError(
                f"{self.prefix or 'the array'}: a chunk decodes to {self.metadata.chain.nbytes:,} bytes, more than "
                f"config.max_chunk_bytes = {limit:,}"
            )


def dtype_of(chunks: Chunks, fields: Fields) -> np.dtype[Any]:
    """Return the dtype of some fields of an array."""
    dtype = chunks.metadata.dtype.numpy
    return dtype if fields is None else dtype[fields]
