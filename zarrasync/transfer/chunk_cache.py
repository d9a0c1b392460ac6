"""A cache of decoded chunks, which arrays share. Entries are trusted for a while, and then compared by version."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from zarrasync._concurrency import clock
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import SingleFlight, gather
from zarrasync._concurrency.loop_turns import take_turn
from zarrasync._concurrency.offload import compute, run_in_worker
from zarrasync._concurrency.semaphores import FifoSemaphore, Held
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.config import Config
from zarrasync.indexing.chunk_runs import ChunkRun, split_chunks
from zarrasync.indexing.parse import basic
from zarrasync.indexing.transform import Transform
from zarrasync.stores.base import Store
from zarrasync.stores.values import ABSENT, Request, Value
from zarrasync.stores.wrappers import WrapperStore
from zarrasync.transfer.chunks import Chunks, Fields
from zarrasync.transfer.plan import new_buffer
from zarrasync.transfer.read import read

_ENTRY = 200
"""Bytes of an entry besides its values."""
_SMALL = 1 << 18
"""Bytes of a result that is put together on an event loop."""
_FEW = 8
"""Chunks of a small selection that is put together on an event loop."""
_SHARE = 4
"""A selection whose chunks need more than this fraction of the cache is read without it."""
Coords: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class CacheStats:
    """Statistics of a ``ChunkCache``.

    Attributes:
        hits: Number of chunks that were cached, without or with a check, or that another call was reading.
        misses: Number of chunks that were read and decoded.
        checks: Number of stored values whose version was compared, which takes a request each.
        nbytes: Current size of the cache, in bytes.
        chunks: Current number of chunks.
    """

    hits: int
    misses: int
    checks: int
    nbytes: int
    chunks: int


class _Entry(NamedTuple):
    """A decoded chunk.

    Attributes:
        values: The elements inside the array, read-only.
        extent: The shape of the array then.
        value_key: The key of the stored value (chunk or shard) that contains it.
        version: The version of that value; ``None`` if it is unknown.
        checked_at: When it was known to be current.
        changes: The number of changes of this process then.
        anchor: A store in memory, which is kept alive, because its identity is its address: another one could get it.
    """

    values: Array
    extent: Coords
    value_key: str
    version: object
    checked_at: float
    changes: int
    anchor: Store | None

    def fits(self, chunks: Chunks, coords: Coords) -> bool:
        """Return whether the chunk has its present shape inside the array, which grows with it."""
        return self.extent == chunks.metadata.shape or self.values.shape == _shape(chunks, coords)


class _Selection(NamedTuple):
    """A selection of an array's chunks."""

    chunks: Chunks
    transform: Transform
    fields: Fields
    runs: Sequence[ChunkRun]


class ChunkCache:
    """A cache of decoded chunks. Arrays whose settings have the same ``chunk_cache_bytes`` share one.

    Chunks are trusted for ``max_age`` seconds. Then one request per stored value compares its version, without reading its
    data. Writes of this process are noticed at once. Results are copies.

    Args:
        max_bytes: The maximum size of the chunks.
        max_age: Seconds for which chunks are trusted; 0 to compare versions on each read.
    """

    def __init__(self, max_bytes: int, max_age: float = 0.0) -> None:
        self.max_bytes, self.max_age = max_bytes, max_age
        self._lock = thread_lock()
        self._entries: OrderedDict[tuple[Any, ...], _Entry] = OrderedDict()
        self._flights = SingleFlight()
        self._turns: WeakValueDictionary[Any, FifoSemaphore] = WeakValueDictionary()
        self._nbytes = self._requested = self._misses = self._checks = 0

    @property
    def stats(self) -> CacheStats:
        """Statistics so far."""
        with self._lock:
            return CacheStats(
                self._requested - self._misses, self._misses, self._checks, self._nbytes, len(self._entries)
            )

    def clear(self) -> None:
        """Remove all chunks."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    def suits(self, chunks: Chunks, transform: Transform) -> bool:
        """Return whether the cache can serve a selection: of elements of fixed size, and not too large."""
        if not transform.size or chunks.metadata.dtype.is_variable or chunks.metadata.dtype.numpy.hasobject:
            return False
        return self._fits(chunks, transform.size * chunks.metadata.dtype.numpy.itemsize)

    @property
    def read_bytes(self) -> int:
        """The most bytes of decoded chunks that one read takes from the cache."""
        return self.max_bytes // _SHARE

    def _fits(self, chunks: Chunks, nbytes: int) -> bool:
        limit = chunks.config.max_read_bytes
        return nbytes <= self.read_bytes and not 0 < limit < nbytes

    # -------------------------------------------------------------- reading

    async def read(self, chunks: Chunks, transform: Transform, fields: Fields = None) -> Array:
        """Read a selection. Concurrent tasks of an event loop, and concurrent threads, that miss the same chunks read them once.

        Args:
            chunks: The array's chunks.
            transform: The selection.
            fields: The structured fields to read; all if ``None``.

        Raises:
            CodecError, StoreError: As ``transfer.read``.
        """
        is_small = transform.size * chunks.metadata.dtype.numpy.itemsize < _SMALL and _is_in_few(chunks, transform)
        look_up = partial(self._look_up, chunks, transform, fields)
        selection, present, result = look_up() if is_small else await compute(look_up)
        if selection is None:
            return await read(chunks, transform, fields=fields)
        if result is not None:
            return result
        missing = [run.coords for run in selection.runs if run.coords not in present]
        present = {**present, **await self._load_once(selection, missing)}
        await take_turn()  # many calls may have waited for the same chunks
        place = partial(_placed, selection, present)
        return place() if is_small else await compute(place)

    def _look_up(
        self, chunks: Chunks, transform: Transform, fields: Fields
    ) -> tuple[_Selection | None, dict[Coords, Array], Array | None]:
        """Return a selection, its trusted chunks, and the result if these are all. The selection is ``None`` if it does not fit."""
        selection = self._select(chunks, transform, fields)
        if selection is None:
            return None, {}, None
        present = self._trusted(selection)
        with self._lock:
            self._requested += len(selection.runs)
        return selection, present, _placed(selection, present) if len(present) == len(selection.runs) else None

    def read_at_once(self, chunks: Chunks, transform: Transform) -> Array | None:
        """Read a small selection of trusted chunks without a coroutine; ``None`` if that is not possible."""
        if not self.max_age or transform.size * chunks.metadata.dtype.numpy.itemsize >= _SMALL:
            return None
        selection = self._select(chunks, transform, None)
        present = {} if selection is None else self._trusted(selection)
        if selection is None or len(present) < len(selection.runs):
            return None
        with self._lock:
            self._requested += len(present)
        return _placed(selection, present)

    def _select(self, chunks: Chunks, transform: Transform, fields: Fields) -> _Selection | None:
        if not self.suits(chunks, transform):
            return None
        runs = split_chunks(transform.layout.projection(), chunks.metadata.read_grid)
        chunk_bytes = math.prod(chunks.metadata.chunks) * chunks.metadata.dtype.numpy.itemsize
        fits = self._fits(chunks, len(runs) * chunk_bytes)
        return _Selection(chunks, transform, fields, runs) if fits else None

    def _trusted(self, selection: _Selection) -> dict[Coords, Array]:
        """Return the chunks that need no check."""
        chunks, now = selection.chunks, clock.monotonic()
        changes, key, found = chunks.changes.count, chunks.cache_key, {}
        with self._lock:
            for run in selection.runs:
                entry = self._entries.get((key, run.coords))
                if entry is None or entry.changes != changes or not now - entry.checked_at < self.max_age:
                    continue
                if entry.fits(chunks, run.coords):
                    self._entries.move_to_end((key, run.coords))
                    found[run.coords] = entry.values
        return found

    async def _load_once(self, selection: _Selection, missing: Sequence[Coords]) -> dict[Coords, Array]:
        """Return chunks that are not trusted. Other calls that need them at the same time wait for them."""
        chunks = selection.chunks
        load, name = partial(self._load, chunks, missing), (*_state(chunks), *missing)
        if not driven():
            is_local = chunks.store.is_local
            call = partial(run_in_worker, load, computing=is_local) if chunks.store.blocking else load
            return await self._flights.share(("load", *name), call)
        with self._lock:
            turn = self._turns.setdefault(name, FifoSemaphore(1))
        async with Held(turn, 1):
            found = self._trusted(selection)  # another thread has just read them
            rest = [coords for coords in missing if coords not in found]
            return {**found, **(await self._load(chunks, rest) if rest else {})}

    async def _load(self, chunks: Chunks, missing: Sequence[Coords]) -> dict[Coords, Array]:
        """Return chunks that are not trusted: cached ones whose version is current, and others, which are read."""
        found = await self._checked(chunks, missing)
        wanted = [coords for coords in missing if coords not in found]
        if not wanted:
            return found
        first, last = tuple(map(min, zip(*wanted, strict=True))), tuple(map(max, zip(*wanted, strict=True)))
        if math.prod(b - a + 1 for a, b in zip(first, last, strict=True)) == len(wanted):
            boxes = [await self._share_box(chunks, first, last)]  # one read combines adjacent byte ranges
        else:
            boxes = await gather([partial(self._share_box, chunks, coords, coords) for coords in wanted])
        return found | {coords: values for box in boxes for coords, values in box.items()}

    async def _checked(self, chunks: Chunks, missing: Sequence[Coords]) -> dict[Coords, Array]:
        """Return cached chunks whose stored values still have the same version."""
        changes, key = chunks.changes.count, chunks.cache_key
        with self._lock:
            entries = {coords: self._entries.get((key, coords)) for coords in missing}
        old = {
            coords: entry
            for coords, entry in entries.items()
            if entry is not None and entry.version is not None and entry.fits(chunks, coords)
        }
        if not old:
            return {}
        now = clock.monotonic()
        versions = await self._versions(chunks, {entry.value_key for entry in old.values()})
        with self._lock:
            self._checks += len(versions)
        current = {coords: entry for coords, entry in old.items() if versions[entry.value_key] == entry.version}
        self._put(key, {coords: entry._replace(checked_at=now, changes=changes) for coords, entry in current.items()})
        return {coords: entry.values for coords, entry in current.items()}

    @staticmethod
    async def _versions(chunks: Chunks, keys: Iterable[str]) -> dict[str, object]:
        keys = list(keys)
        values = await gather([partial(chunks.store.stat, key) for key in keys])
        return {key: ABSENT if value is None else value.version for key, value in zip(keys, values, strict=True)}

    async def _share_box(self, chunks: Chunks, first: Coords, last: Coords) -> dict[Coords, Array]:
        box = partial(self._read_box, chunks, first, last)
        if chunks.store.blocking:  # on a thread without an event loop
            return await box()
        name = *_state(chunks), first, last
        return await self._flights.share(("box", *name), box)

    async def _read_box(self, chunks: Chunks, first: Coords, last: Coords) -> dict[Coords, Array]:
        """Read all chunks of a box of the grid together, with the versions of the values that contain them."""
        grid, now, changes = chunks.metadata.read_grid, clock.monotonic(), chunks.changes.count
        coords = list(product(*(range(a, b + 1) for a, b in zip(first, last, strict=True))))
        keys = {place: _value_key(chunks, place) for place in coords}
        with self._lock:
            self._misses += len(coords)
        region = grid.box(first, last)
        transform = basic((*region, ...), chunks.metadata.shape)
        if chunks.store.is_local:  # one system call each; a recorder would keep compiled code from reading
            versions: Mapping[str, object] = await self._versions(chunks, set(keys.values()))
            block = await read(chunks, transform)
        else:
            recorder = _VersionRecorder(chunks.store)
            block = await read(replace(chunks, store=recorder), transform)
            versions = recorder.seen
        anchor = None if chunks.store.lasting_identity else chunks.store
        entries = {}
        for place in coords:
            parts = zip(grid.box(place), region, strict=True)
            inside: tuple[Any, ...] = tuple(slice(s.start - r.start, s.stop - r.start) for s, r in parts)
            values = block[(*inside, ...)].copy(order="K")
            values.flags.writeable = False
            entries[place] = _Entry(
                values, chunks.metadata.shape, keys[place], versions.get(keys[place]), now, changes, anchor
            )
        self._put(chunks.cache_key, entries)
        return {place: entry.values for place, entry in entries.items()}

    def _put(self, key: object, entries: Mapping[Coords, _Entry]) -> None:
        """Store chunks, and evict those that were not used for the longest time."""
        with self._lock:
            for coords, entry in entries.items():
                before = self._entries.pop((key, coords), None)
                self._nbytes += entry.values.nbytes + _ENTRY - (0 if before is None else before.values.nbytes + _ENTRY)
                self._entries[key, coords] = entry
            while self._nbytes > self.max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._nbytes -= oldest.values.nbytes + _ENTRY


class _VersionRecorder(WrapperStore):
    """A store that notes the version of each value that is read. Values that changed meanwhile have none.

    Attributes:
        seen: The versions by key.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.seen: dict[str, object] = {}

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        values = await self.inner.fetch(requests, versions=True)
        for request, value in zip(requests, values, strict=True):
            version = ABSENT if value is None else value.version
            same = self.seen.setdefault(request.key, version)
            if same != version:
                self.seen[request.key] = None
        return values

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> list[Buffer | None]:
        return await Store.fetch_values(self, keys, spaces, limit)


def _placed(selection: _Selection, present: Mapping[Coords, Array]) -> Array:
    """Put a result together from chunks."""
    layout = selection.transform.layout
    buffer = new_buffer(selection.chunks.metadata.chain, layout, selection.chunks.metadata.dtype.numpy)
    for run in selection.runs:
        run.projection.read(present[run.coords], buffer)
    values = layout.to_result(buffer)
    return values if selection.fields is None else values[selection.fields]


def _is_in_few(chunks: Chunks, transform: Transform) -> bool:
    """Return whether a selection touches only a few chunks, without finding them."""
    numbers = transform.ranges()
    if numbers is None:
        return transform.size <= _FEW
    count = 1
    for axis, start, step, length in zip(
        chunks.metadata.read_grid.axes, numbers[::3], numbers[1::3], numbers[2::3], strict=True
    ):
        if length:
            count *= min(length, axis.find(start + (length - 1) * step) - axis.find(start) + 1)
    return count <= _FEW


def _state(chunks: Chunks) -> tuple[object, ...]:
    """Return what reads must have in common to share values: those before an append read less of the last chunks."""
    return chunks.cache_key, chunks.changes.count, chunks.metadata.shape


def _shape(chunks: Chunks, coords: Coords) -> tuple[int, ...]:
    """Return the shape of a chunk inside the array, which grows with it."""
    return tuple(part.stop - part.start for part in chunks.metadata.read_grid.box(coords))


def _value_key(chunks: Chunks, coords: Coords) -> str:
    """Return the key of the stored value that contains a chunk."""
    axes = zip(chunks.metadata.grid.axes, chunks.metadata.read_grid.axes, coords, strict=True)
    return chunks.key(tuple(stored.find(read_axis.start(place)) for stored, read_axis, place in axes))


@lru_cache(maxsize=16)
def _shared(max_bytes: int, max_age: float) -> ChunkCache:
    return ChunkCache(max_bytes, max_age)


def cache_for(config: Config) -> ChunkCache | None:
    """Return the cache that arrays with these settings share; ``None`` without one."""
    return _shared(config.chunk_cache_bytes, config.chunk_cache_max_age) if config.chunk_cache_bytes else None
