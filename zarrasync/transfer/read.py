"""Reading: find, fetch, decode, place."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive, driven
from zarrasync._concurrency.gates import FifoGate, Permits
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._util.memory import alias, empty
from zarrasync.codecs import BoundChain
from zarrasync.codecs.partial import Locator, Piece
from zarrasync.codecs.spec import Array, Buffer
from zarrasync.errors import CodecError, SelectionError, ShapeError
from zarrasync.indexing.chunk_selection import ChunkRun, Run
from zarrasync.indexing.transform import Layout, Transform
from zarrasync.stores.base import Request, Store, Value
from zarrasync.transfer.chunks import (
    Chunks,
    Fields,
    Index,
    Missing,
    batches,
    carry_out,
    dtype_of,
    run_parts,
)
from zarrasync.transfer.place import LARGE, Found, Placing, Rows, Workspace, absence, cut
from zarrasync.transfer.threads import Computer, Job, Progress, scratch

__all__ = ["read"]

_LITTLE = 1 << 16
"""Bytes of a chunk that is read with as few steps as there can be."""
_LARGE = 1 << 20
"""Bytes of a result that may lie anywhere in a block of memory, as such blocks are made of whole pages."""
_FEW = 256
"""Chunks that are read so, at the most."""
_ALONE = 1 << 20
"""Bytes that a thread decodes alone in less time than it takes to share them."""
_TOGETHER = 16
"""Values that are fetched together by one task, at the most: the first ones wait for the last one."""
_GROUP = 1 << 20
"""Bytes of spans that make one job, so that there is something left for other threads."""


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
        out: An array of the selection's shape to read into; a new one if none is given.
        missing: What an absent chunk is: ``"fill"`` values or an ``"error"``.
        fields: Structured fields to read alone.
        progress: Called as bytes are done.

    Returns:
        ``out``, or a new array in native byte order.

    Raises:
        ShapeError: If ``out`` has another shape or data type, or can not be written to.
        MissingChunkError: If a chunk is absent and ``missing`` is ``"error"``.
        CodecError: If a chunk does not decode; names its key.
        StoreError: If a chunk could not be read for another reason than absence.
        SelectionError: If the result would be larger than ``config.max_read_bytes``.
    """
    dtype = dtype_of(chunks, fields)
    nbytes, limit = transform.size * dtype.itemsize, chunks.config.max_read_bytes
    if limit and nbytes > limit:
        raise SelectionError(
            f"the selection of shape {transform.shape} has {nbytes:,} bytes, config.max_read_bytes is {limit:,}",
            shape=transform.shape,
        )
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError(f"out is a NumPy array, found {type(out).__name__}")
    if out is not None and (out.shape != transform.shape or out.dtype != dtype):
        raise ShapeError(
            f"out has shape {out.shape} and dtype {out.dtype}, the selection {transform.shape} and {dtype}",
            found=out.shape,
            wanted=transform.shape,
        )
    if out is not None and not out.flags.writeable:
        raise ShapeError("out can not be written to: it is a read-only array")
    if not transform.size:
        return np.empty(transform.shape, dtype) if out is None else out
    if out is None and fields is None and progress is None and _is_little(chunks):
        held = transform.within(chunks.metadata.grid.axes)
        if held is not None:
            chunks.check_size()
            work = partial(_read_one, chunks, transform, *held, missing)
            return await (run_in_worker(work, computing=chunks.store.near) if chunks.store.blocking else work())
    layout = transform.layout
    if out is None:
        buffer = _buffer(chunks.chain, layout, dtype)
    else:
        buffer = layout.to_buffer(out)
        if not np.may_share_memory(buffer, out):
            out[...] = await read(chunks, transform, missing=missing, fields=fields, progress=progress)
            return out
    absent: list[str] = []
    await carry_out(
        chunks, chunks.runs(transform), lambda alike: _Reading(alike, buffer, missing, absent, fields, progress)
    )
    if absent:
        raise absence(chunks, absent)
    return layout.to_result(buffer) if out is None else out


def _is_little(chunks: Chunks) -> bool:
    """Whether a chunk is read whole, and decoded sooner than it takes to share the work."""
    chain = chunks.metadata.chain
    little = chain.nbytes <= _LITTLE and not chain.supports_partial_reads and chunks.metadata.edges is None
    return little and (chain.is_quick or chunks.store.blocking)


async def _read_one(
    chunks: Chunks, transform: Transform, coords: tuple[int, ...], inside: tuple[int | slice, ...], missing: Missing
) -> Array:
    """Read what lies in one little chunk, with as few steps as there can be."""
    chain, key = chunks.chain, chunks.key(coords)
    if chunks.store.blocking:
        hint = chain.read_size_hint
        (value,) = await chunks.store.fetch_values([key], [np.empty(hint, np.uint8) if hint else None])
        return _found_in(chunks, transform, key, value, inside, missing)
    async with chunks.taken(chain.nbytes):
        (found,) = await chunks.store.fetch([Request(key)])
        return _found_in(chunks, transform, key, None if found is None else found.data, inside, missing)


def _found_in(
    chunks: Chunks,
    transform: Transform,
    key: str,
    value: Buffer | None,
    inside: tuple[int | slice, ...],
    missing: Missing,
) -> Array:
    """What is picked from one chunk, as an array of its own."""
    chain, dtype = chunks.chain, chunks.metadata.dtype.numpy
    if value is None:
        if missing == "error":
            raise absence(chunks, [chunks.full_key(key)])
        buffer = _buffer(chain, transform.layout, dtype)
        buffer[...] = chain.spec.scalar
        return transform.layout.to_result(buffer)
    try:
        chunk = chain.decode(value)
    except CodecError as error:
        chunks.locate(error, key)
        raise
    return np.array(chunk[(*inside, ...)], dtype, order="C" if chain.memory_axis_order is None else "K")


def _buffer(chain: BoundChain, layout: Layout, dtype: np.dtype[Any]) -> Array:
    """Memory for a result, in which elements lie as they do in chunks: to turn them around takes longer than to read them."""
    shape, turned = layout.buffer_shape, chain.memory_axis_order
    # Files of raw elements are read right into it, if they are contiguous there.
    make = empty if chain.is_raw and math.prod(shape) * dtype.itemsize >= _LARGE else np.empty
    if turned is None or layout.point_axes:
        return make(shape, dtype)
    axes = sorted(range(len(shape)), key=turned.__getitem__)
    return make(tuple(shape[axis] for axis in axes), dtype).transpose(turned)


class _Span(NamedTuple):
    """Pieces of one value that are fetched together."""

    start: int
    length: int
    pieces: list[Piece]


class _Found(NamedTuple):
    """What a search has found.

    Attributes:
        pieces: The pieces; ``None`` if the value is absent.
        version: The version of the value they were found in, where the store has such a thing.
    """

    pieces: list[Piece] | None
    version: object


class _Changed(Exception):
    """A value changed between the fetch of its index and that of its pieces."""


class _Reading(Placing):
    """One read: what is fetched, when and where."""

    @property
    def store(self) -> Store:
        """Where the chunks lie."""
        return self.chunks.store

    # -------------------------------------------------------------- what is read how

    def search(self, part: ChunkRun) -> Locator | None:
        """A search for the wanted part of a value, where that beats reading it whole."""
        if self.chain.stored_dtype is not None and part.is_full:
            return None
        return self.chain.locate(part.projection, self.out) if self.chain.supports_partial_reads else None

    def whole_and_searched(self, parts: Sequence[Run]) -> tuple[list[Run], list[tuple[ChunkRun, Locator]]]:
        """Parts that are read whole, and single ones of which pieces are searched for."""
        whole: list[Run] = []
        searches: list[tuple[ChunkRun, Locator]] = []
        for run in parts:
            if not self.chain.supports_partial_reads or (run.is_full and self.chain.stored_dtype is not None):
                whole.append(run)
                continue
            for part in run.singles():
                search = self.search(part)
                if search is None:
                    whole.append(part)
                else:
                    searches.append((part, search))
        return whole, searches

    def wants_whole(self, part: ChunkRun) -> bool:
        """Whether to read a shard in one piece, as most of it is wanted and it fits well into memory."""
        most = self.chunks.config.coalesce_size if self.store.blocking else self.chunks.config.memory_budget // 4
        return (
            self.chain.nbytes <= most
            and 2 * part.size * (self.chunks.metadata.dtype.itemsize or 16) >= self.chain.nbytes
        )

    # -------------------------------------------------------------- on threads

    async def on_threads(self, parts: Sequence[Run]) -> None:
        """Carry it out on a blocking store, on this thread and helpers."""
        self.flag = cancel_flag()
        nbytes = self.chain.nbytes
        count = parts[0].count if len(parts) == 1 else 0
        if 0 < count <= _FEW and count * nbytes <= _LITTLE and not self.chain.supports_partial_reads:
            self._chunk_job(parts)  # no ceremony for what is done in some microseconds
            return
        threads = self.chunks.threads(decoding=True)
        if threads > 1:
            work = sum(part.count * self.chain.decoded_bytes(part.projection, self.out) for part in parts)
            threads = min(threads, 1 + work // _ALONE)
        async with self.chunks.taken(2 * threads * min(nbytes, self.chunks.config.coalesce_size)):
            run_parts(parts, self._jobs, self.chunks, self.flag, threads)

    def _jobs(self, parts: Sequence[Run], threads: int) -> list[Job]:
        nbytes = self.chain.nbytes
        whole, searches = self.whole_and_searched(parts)
        jobs: list[Job] = [partial(self._search_job, part, search) for part, search in searches]
        jobs.extend(partial(self._chunk_job, batch) for batch in batches(whole, nbytes, self.chunks.config, threads))
        return jobs

    def _chunk_job(self, batch: Sequence[Run]) -> None:
        """Fetch, decode and place whole chunks. This is the loop that small chunks spend their time in."""
        count = batch[0].count if len(batch) == 1 else sum(part.count for part in batch)
        keys = [key for part in batch for key in self.chunks.keys(part)]
        hint = self.chain.read_size_hint
        if self.chain.is_raw:
            with self.workspace(self.chain, count) as workspace:
                self._read_in_place(batch, keys, workspace)
        elif 0 < hint * count <= LARGE:
            with scratch("read", hint * count) as memory:
                self._place_all(batch, keys, self._fetch(keys, list(memory.reshape(count, hint))))
        else:
            self._place_all(batch, keys, self._fetch(keys, [None] * count))

    def _fetch(self, keys: Sequence[str], spaces: Sequence[npt.NDArray[np.uint8] | None]) -> Sequence[Buffer | None]:
        return drive(self.store.fetch_values(keys, spaces))

    def _read_in_place(self, batch: Sequence[Run], keys: Sequence[str], workspace: Workspace | None) -> None:
        """Read raw chunks to where they are placed from, or right to their places."""
        spaces: list[npt.NDArray[np.uint8] | None] = []
        places: list[Rows | None] = []
        for part in batch:
            rows = self.direct(self.chain, part, self.out)
            if workspace is not None and (rows is None or alias(rows.each[0])):
                rows = workspace.rows(self.chain, part.count, len(spaces))
            places.append(rows)
            spaces.extend(rows.each if rows is not None else [None] * part.count)
        self._place_all(batch, keys, self._fetch(keys, spaces), places)

    def _place_all(
        self,
        batch: Sequence[Run],
        keys: Sequence[str],
        values: Sequence[Buffer | None],
        places: Sequence[Rows | None] | None = None,
    ) -> None:
        most = max(part.count for part in batch)
        chain, values = self.chain.decompress_batch(values)
        out, start = self.out, 0
        with nullcontext() if places is not None else self.workspace(chain, most) as workspace:
            for number, part in enumerate(batch):
                if self.flag.cancelled:
                    return
                rows = self.room(chain, part, out, workspace) if places is None else places[number]
                end = start + part.count
                self.place(chain, part, values[start:end], keys[start:end], out, rows)
                self.report(part)
                start = end

    def _search_job(self, part: ChunkRun, search: Locator) -> list[Job] | None:
        """Find the pieces of a value that are wanted; their decoding makes jobs of its own."""
        key = self.chunks.key(part.coords)
        if self.wants_whole(part):
            (value,) = drive(self.store.fetch([Request(key)]))
            self.place_found(key, part, search, None if value is None else value.data)
            return None
        find = self._find(key, part, search)
        try:
            asked = next(find)
            while True:
                asked = find.send(drive(self.store.fetch(asked, versions=True)))
        except StopIteration as stop:
            found: _Found = stop.value
        except _Changed:
            self._read_again(key, part)
            return None
        if found.pieces is None:
            self.fill(part, self.out, key)
            self.report(part)
            return None
        spans = self.spans(key, found.pieces)
        groups = _group(spans, min(self.chunks.config.batch_bytes, _GROUP))
        return [partial(self._span_job, key, part, group, found.version) for group in groups]

    def _span_job(self, key: str, part: ChunkRun, spans: Sequence[_Span], version: object) -> None:
        """Fetch spans of a value, decode their pieces, place them."""
        total = sum(span.length for span in spans)
        try:
            if 0 < total <= LARGE:
                with scratch("read", total) as memory:
                    self._fetch_spans(key, spans, version, memoryview(memory))
            else:
                self._fetch_spans(key, spans, version, None)
        except _Changed:
            self._read_again(key, part)

    def _fetch_spans(self, key: str, spans: Sequence[_Span], version: object, memory: memoryview | None) -> None:
        requests, start = [], 0
        for span in spans:
            into = None if memory is None else memory[start : start + span.length]
            requests.append(Request(key, span.start, span.length, False, into))
            start += span.length
        values = drive(self.store.fetch(requests, versions=version is not None))
        self.place_pieces(key, _pieces(spans, values, version))

    def _read_again(self, key: str, part: ChunkRun) -> None:
        """Read a value that changed meanwhile, in one piece."""
        (value,) = drive(self.store.fetch([Request(key)]))
        self.place_found(key, part, self._fresh(key, part), None if value is None else value.data)

    def _fresh(self, key: str, part: ChunkRun) -> Locator:
        """A search from the beginning, in a value that is not what it was."""
        self.chunks.indexes.drop(key)
        search = self.chain.locate(part.projection, self.out)
        assert search is not None
        return search

    # -------------------------------------------------------------- on a loop

    async def on_loop(self, parts: Sequence[Run], in_flight: FifoGate) -> None:
        """Carry it out on an asynchronous store."""
        assert not driven()
        config, concurrency, nbytes = self.chunks.config, self.chunks.concurrency, self.chain.nbytes
        whole, searches = self.whole_and_searched(parts)
        # Small values that are fetched together are decoded together, most of it without the interpreter.
        most = max(1, min(_TOGETHER, concurrency // 4, min(_ALONE, config.memory_budget // 4) // max(nbytes, 1)))
        several = batches(whole, nbytes, config, config.pool_size, most)
        computer = Computer(config)
        work: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            *((sum(part.count for part in batch), partial(self._read_batch, computer, batch)) for batch in several),
            *((1, partial(self._read_part, computer, part, search)) for part, search in searches),
        ]

        async def one(item: tuple[int, Callable[[], Awaitable[None]]]) -> None:
            async with Permits(in_flight, item[0]):
                await item[1]()

        try:
            await for_each(one, work, concurrency)
        finally:
            self.flag.cancel()
            await computer.join()

    async def _read_batch(self, computer: Computer, batch: Sequence[Run]) -> None:
        keys = [key for part in batch for key in self.chunks.keys(part)]
        nbytes = len(keys) * self.chain.nbytes
        async with self.chunks.taken(nbytes):
            values = await self.store.fetch([Request(key) for key in keys])
            data = [None if value is None else value.data for value in values]
            await computer.run(partial(self._place_all, batch, keys, data), nbytes)

    async def _read_part(self, computer: Computer, part: ChunkRun, search: Locator) -> None:
        key = self.chunks.key(part.coords)
        if self.wants_whole(part):
            await self._read_whole(computer, key, part, search)
            return
        find = self._find(key, part, search)
        try:
            asked = next(find)
            if self.chunks.indexes.get(key) is None:  # many may want it now
                fetch = partial(self.store.fetch, asked, versions=True)
                asked = find.send(list(await self.chunks.flights.share(tuple(asked), fetch)))
            while True:
                asked = find.send(await self.store.fetch(asked, versions=True))
        except StopIteration as stop:
            found: _Found = stop.value
        except _Changed:
            await self._read_whole(computer, key, part, self._fresh(key, part))
            return
        if found.pieces is None:
            self.fill(part, self.out, key)
            self.report(part)
            return
        groups = _group(self.spans(key, found.pieces), self.chunks.config.coalesce_size)
        read = partial(self._read_spans, computer, key, found.version)
        try:
            await for_each(read, groups, self.chunks.concurrency)
        except _Changed:
            await self._read_whole(computer, key, part, self._fresh(key, part))

    async def _read_whole(self, computer: Computer, key: str, part: ChunkRun, search: Locator) -> None:
        nbytes = self.chain.nbytes
        async with self.chunks.taken(nbytes):
            (value,) = await self.store.fetch([Request(key)])
            data = None if value is None else value.data
            await computer.run(partial(self.place_found, key, part, search, data), nbytes)

    async def _read_spans(self, computer: Computer, key: str, version: object, spans: Sequence[_Span]) -> None:
        total = sum(span.length for span in spans)
        async with self.chunks.taken(total):
            requests = [Request(key, span.start, span.length) for span in spans]
            values = await self.store.fetch(requests, versions=version is not None)
            found = _pieces(spans, values, version)
            await computer.run(partial(self.place_pieces, key, found), total)

    # -------------------------------------------------------------- searches

    def _find(self, key: str, part: ChunkRun, search: Locator) -> Generator[list[Request], list[Value | None], _Found]:
        """Run a search, whoever does the IO: yields requests, is sent values.

        Raises:
            _Changed: If the value is another one than at the first request.
            CodecError: If what was found can not be.
        """
        known = self.chunks.indexes.get(key)
        found = yield from self._look(key, search, known)
        if known is not None and not any(piece.length >= 0 for piece in found.pieces or ()):
            # Nothing will be fetched whose version could tell that the index is old.
            found = yield from self._look(key, self._fresh(key, part), None)
        return found

    def _look(
        self, key: str, search: Locator, known: Index | None
    ) -> Generator[list[Request], list[Value | None], _Found]:
        """A search that may begin with an index that is known."""
        version: object = None
        size: int | None = None
        first = True
        pieces: list[Piece] | None = None
        try:
            ranges = next(search)
            if known is not None:
                data, version, size = known
                first = False
                ranges = search.send([data])
            while True:
                values = yield [Request(key, r.start, r.length, r.suffix) for r in ranges]
                if first:
                    version, size = next(((v.version, v.size) for v in values if v is not None), (None, None))
                    values = self._remember(key, values)
                elif any(value is None or value.version != version for value in values):
                    raise _Changed
                first = False
                ranges = search.send([None if value is None else value.data for value in values])
        except StopIteration as stop:
            pieces = stop.value
        except CodecError as error:
            self.chunks.locate(error, key)
            raise
        for piece in pieces or ():
            if size is not None and piece.start + piece.length > size:
                raise self.cut_short(key, piece)
        return _Found(pieces, version)

    def _remember(self, key: str, values: list[Value | None]) -> list[Value | None]:
        """Keep what a search begins with, if its version can be compared later."""
        if len(values) == 1 and (value := values[0]) is not None and value.version is not None:
            data = bytes(value.data)
            values = [value._replace(data=data)]
            self.chunks.indexes.put(key, data, value.version, value.size)
        return values

    def spans(self, key: str, pieces: list[Piece]) -> list[_Span]:
        """Pieces by where they lie, near ones together; absent ones are filled here."""
        config, wanted = self.chunks.config, sorted(self.present(key, pieces), key=lambda piece: piece.start)
        gap, most = config.coalesce_gap, config.coalesce_size
        if (
            self.store.blocking and self.chain.innermost_chain.releases_gil
        ):  # who fetches a span decodes it: leave others something
            most = min(most, max(config.batch_bytes, sum(piece.length for piece in wanted) // 4))
        spans: list[_Span] = []
        start, stop, own = 0, -1, list[Piece]()
        for piece in wanted:
            end = piece.start + piece.length
            if own and (piece.start - stop > gap or end - start > most):
                spans.append(_Span(start, stop - start, own))
                own = []
            if not own:
                start, stop = piece.start, end
            own.append(piece)
            stop = max(stop, end)
        if own:
            spans.append(_Span(start, stop - start, own))
        return spans


def _pieces(spans: Sequence[_Span], values: Sequence[Value | None], version: object) -> list[Found]:
    """The pieces of spans that have been fetched.

    Raises:
        _Changed: If the value is not the one any more that they were found in.
    """
    found: list[Found] = []
    for span, value in zip(spans, values, strict=True):
        if value is None or (version is not None and value.version != version):
            raise _Changed
        found.extend(cut(span.pieces, memoryview(value.data), span.start))
    return found


def _group(spans: Sequence[_Span], most: int) -> list[list[_Span]]:
    """Spans by the batch that they are fetched in."""
    groups: list[list[_Span]] = []
    size = 0
    for span in spans:
        if not groups or size + span.length > most or len(groups[-1]) >= 256:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += span.length
    return groups
