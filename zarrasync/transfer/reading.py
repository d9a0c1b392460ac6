"""Reading: find, fetch, decode, place."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._runtime import cancel_flag, drive, driven, in_worker
from zarrasync.codecs.base import Array, Buffer, Locator, Piece, Range
from zarrasync.codecs.chain import BoundChain
from zarrasync.errors import CodecError, MissingChunkError, SelectionError, ShapeError
from zarrasync.indexing import Part, Region, Transform
from zarrasync.stores.base import Request, Value, clip
from zarrasync.transfer.common import Chunks, Fields, Missing, batches, dtype_of, side_by_side, spread, whole_target
from zarrasync.transfer.jobs import Computer, Job, Progress, run_jobs, scratch

__all__ = ["read"]

_SMALL = 1 << 15
_LARGE = 128 << 20
"""No memory larger than this is set aside for values that may be smaller or absent."""
Workspace: TypeAlias = "npt.NDArray[np.uint8] | None"


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
        ShapeError: If ``out`` has another shape or data type.
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
    if out is not None and (out.shape != transform.shape or out.dtype != dtype):
        raise ShapeError(
            f"out has shape {out.shape} and dtype {out.dtype}, the selection {transform.shape} and {dtype}",
            found=out.shape,
            wanted=transform.shape,
        )
    if not transform.size:
        return np.empty(transform.shape, dtype) if out is None else out
    layout = transform.layout
    if out is None:
        buffer = np.empty(layout.buffer_shape, dtype)
    else:
        buffer = layout.to_buffer(out)
        if not np.may_share_memory(buffer, out):
            out[...] = await read(chunks, transform, missing=missing, fields=fields, progress=progress)
            return out
    operation = _Reading(chunks, buffer, missing, fields, progress)
    parts = chunks.parts(transform)
    if chunks.store.blocking:
        await in_worker(partial(operation.on_threads, parts))
    else:
        await operation.on_loop(parts)
    operation.complain()
    return layout.to_result(buffer) if out is None else out


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


class _Reading:
    """One read, and what its jobs share."""

    def __init__(self, chunks: Chunks, out: Array, missing: Missing, fields: Fields, progress: Progress | None) -> None:
        self.chunks, self.out, self.fields, self.progress = chunks, out, fields, progress
        self.missing = missing
        self.absent: list[str] = []
        self.chain = chunks.metadata.chain
        self.store = chunks.store
        self.flag = cancel_flag()

    # -------------------------------------------------------------- what is read how

    def search(self, part: Part) -> Locator | None:
        """A search for the wanted part of a value, where that beats reading it whole."""
        if self.chain.stored_dtype is not None and part.full:
            return None
        return self.chain.locate(part.region, self.out) if self.chain.can_locate else None

    def wants_whole(self, part: Part) -> bool:
        """Whether to read a shard in one piece, as most of it is wanted and it fits well into memory."""
        most = self.chunks.config.coalesce_size if self.store.blocking else self.chunks.config.memory_budget // 4
        return self.chain.nbytes <= most and 2 * part.region.size * _itemsize(self) >= self.chain.nbytes

    # -------------------------------------------------------------- on threads

    async def on_threads(self, parts: Sequence[Part]) -> None:
        """Carry it out on a blocking store, on this thread and helpers."""
        self.flag = cancel_flag()
        nbytes = self.chain.nbytes
        threads = self.chunks.threads(nbytes)
        async with self.chunks.taken(2 * threads * min(nbytes, self.chunks.config.coalesce_size)):
            run_jobs(self._jobs(parts, nbytes, threads), self.chunks.config, self.flag, threads)

    def _jobs(self, parts: Sequence[Part], nbytes: int, threads: int) -> Iterator[Job]:
        whole: list[Part] = []
        searched: list[tuple[Part, Locator]] = []
        for part in parts:
            search = self.search(part)
            if search is None:
                whole.append(part)
            else:
                searched.append((part, search))
        for part, search in spread(searched, threads):
            yield partial(self._search_job, part, search)
        for batch in batches(whole, nbytes, self.chunks.config, threads):
            yield partial(self._chunk_job, batch)

    def _chunk_job(self, batch: Sequence[Part]) -> None:
        """Fetch, decode and place whole chunks. This is the loop that small chunks spend their time in."""
        size = self.chain.read_hint * len(batch)
        if 0 < size <= _LARGE:
            with scratch("read", size) as memory:
                self._fetch_and_place(batch, memoryview(memory))
        else:
            self._fetch_and_place(batch, None)
        if self.progress is not None:
            self.progress(sum(part.region.size for part in batch) * self.out.itemsize)

    def _fetch_and_place(self, batch: Sequence[Part], memory: memoryview | None) -> None:
        chain, out, shape = self.chain, self.out, self.chain.spec.shape
        encode, hint = self.chunks.metadata.keys.encode, chain.read_hint
        plain = chain.direct and self.fields is None
        targets = [whole_target(part, out, shape) if plain else None for part in batch]
        requests = []
        for number, (part, target) in enumerate(zip(batch, targets, strict=True)):
            if target is not None and chain.is_raw and target.nbytes:
                into: memoryview | None = memoryview(target.reshape(-1).view(np.uint8))
            else:
                into = None if memory is None else memory[number * hint : (number + 1) * hint]
            requests.append(Request(encode(part.coords), 0, None, False, into))
        values = drive(self.store.fetch(requests))
        with self.workspace(chain) as workspace:
            for part, target, request, value in zip(batch, targets, requests, values, strict=True):
                if self.flag.set:
                    return
                if value is None:
                    self.fill(part.region, out, request.key)
                elif target is None:
                    self.place(chain, value.data, part.region, out, request.key, workspace)
                elif value.data is not request.into or not chain.is_raw:
                    self._decode_into(chain, value.data, target, request.key)

    def _search_job(self, part: Part, search: Locator) -> list[Job] | None:
        """Find the pieces of a value that are wanted; their decoding makes jobs of its own."""
        key = self.chunks.key(part.coords)
        if self.wants_whole(part):
            (value,) = drive(self.store.fetch([Request(key)]))
            self.place_from(key, part, search, None if value is None else value.data)
            return None
        find = self._find(key, search)
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
            self.fill(part.region, self.out, key)
            self._report(part.region)
            return None
        spans = self.spans(key, found.pieces)
        size = sum(span.length for span in spans)
        groups = _group(spans, self.chunks.config.batch_bytes if size < 4 << 20 else 1 << 20)
        return [partial(self._span_job, key, part, group, found.version) for group in groups]

    def _span_job(self, key: str, part: Part, spans: Sequence[_Span], version: object) -> None:
        """Fetch spans of a value, decode their pieces, place them."""
        total = sum(span.length for span in spans)
        try:
            if 0 < total <= _LARGE:
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
        for span, value in zip(spans, values, strict=True):
            self.place_span(key, span, value, version)

    def _read_again(self, key: str, part: Part) -> None:
        """Read a value that changed meanwhile, in one piece."""
        (value,) = drive(self.store.fetch([Request(key)]))
        self.place_from(key, part, self._fresh(part), None if value is None else value.data)

    def _fresh(self, part: Part) -> Locator:
        search = self.chain.locate(part.region, self.out)
        assert search is not None
        return search

    # -------------------------------------------------------------- on a loop

    async def on_loop(self, parts: Sequence[Part]) -> None:
        """Carry it out on an asynchronous store."""
        assert not driven()
        computer = Computer(self.chunks.config)
        try:
            await side_by_side(partial(self._read_part, computer), parts, min(self.chunks.concurrency, len(parts)))
        finally:
            self.flag.set = True
            await computer.join()

    async def _read_part(self, computer: Computer, part: Part) -> None:
        key, search = self.chunks.key(part.coords), self.search(part)
        if search is None or self.wants_whole(part):
            await self._read_whole(computer, key, part, search)
            return
        find = self._find(key, search)
        try:
            asked = next(find)
            while True:
                asked = find.send(await self.store.fetch(asked, versions=True))
        except StopIteration as stop:
            found: _Found = stop.value
        except _Changed:
            await self._read_whole(computer, key, part, self._fresh(part))
            return
        if found.pieces is None:
            self.fill(part.region, self.out, key)
            self._report(part.region)
            return
        groups = _group(self.spans(key, found.pieces), self.chunks.config.coalesce_size)
        read = partial(self._read_spans, computer, key, found.version)
        try:
            await side_by_side(read, groups, min(len(groups), self.chunks.concurrency))
        except _Changed:
            await self._read_whole(computer, key, part, self._fresh(part))

    async def _read_whole(self, computer: Computer, key: str, part: Part, search: Locator | None) -> None:
        nbytes = self.chain.nbytes
        async with self.chunks.taken(2 * nbytes):
            (value,) = await self.store.fetch([Request(key)])
            await computer.run(partial(self._place_whole, key, part, search, value), nbytes)

    async def _read_spans(self, computer: Computer, key: str, version: object, spans: Sequence[_Span]) -> None:
        total = sum(span.length for span in spans)
        async with self.chunks.taken(2 * total):
            requests = [Request(key, span.start, span.length) for span in spans]
            values = await self.store.fetch(requests, versions=version is not None)

            def work() -> None:
                for span, value in zip(spans, values, strict=True):
                    self.place_span(key, span, value, version)

            await computer.run(work, total)

    def _place_whole(self, key: str, part: Part, search: Locator | None, value: Value | None) -> None:
        if search is not None:
            self.place_from(key, part, search, None if value is None else value.data)
            return
        if value is None:
            self.fill(part.region, self.out, key)
        else:
            plain = self.chain.direct and self.fields is None
            target = whole_target(part, self.out, self.chain.spec.shape) if plain else None
            if target is not None:
                self._decode_into(self.chain, value.data, target, key)
            else:
                with self.workspace(self.chain) as workspace:
                    self.place(self.chain, value.data, part.region, self.out, key, workspace)
        if self.progress is not None:
            self.progress(part.region.size * self.out.itemsize)

    # -------------------------------------------------------------- searches

    def _find(self, key: str, search: Locator) -> Generator[list[Request], list[Value | None], _Found]:
        """Run a search, whoever does the IO: yields requests, is sent values.

        Raises:
            _Changed: If the value is another one than at the first request.
            CodecError: If what was found can not be.
        """
        version: object = None
        size: int | None = None
        first = True
        pieces: list[Piece] | None = None
        try:
            ranges = next(search)
            while True:
                values = yield [Request(key, r.start, r.length, r.suffix) for r in ranges]
                if first:
                    version, size = next(((v.version, v.size) for v in values if v is not None), (None, None))
                elif any(value is None or value.version != version for value in values):
                    raise _Changed
                first = False
                ranges = search.send([None if value is None else value.data for value in values])
        except StopIteration as stop:
            pieces = stop.value
        except CodecError as error:
            raise self.chunks.locate(error, key) from error
        for piece in pieces or ():
            if size is not None and piece.start + piece.length > size:
                raise self._cut_short(key, piece)
        return _Found(pieces, version)

    def spans(self, key: str, pieces: list[Piece]) -> list[_Span]:
        """Pieces by where they lie, near ones together; absent ones are filled here."""
        gap, most = self.chunks.config.coalesce_gap, self.chunks.config.coalesce_size
        spans: list[_Span] = []
        start, stop, own = 0, -1, list[Piece]()
        for piece in sorted(pieces, key=lambda piece: piece.start):
            if piece.length < 0:
                self.fill(piece.region, piece.out, None)
                self._report(piece.region)
                continue
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

    # -------------------------------------------------------------- placing

    def place_from(self, key: str, part: Part, search: Locator, data: Buffer | None) -> None:
        """Do a search inside a value that is there in full, and place what it finds."""
        view = None if data is None else memoryview(data)
        try:
            ranges = next(search)
            while True:
                ranges = search.send([None if view is None else _clip(view, r) for r in ranges])
        except StopIteration as stop:
            pieces: list[Piece] | None = stop.value
        except CodecError as error:
            raise self.chunks.locate(error, key) from error
        if pieces is None or view is None:
            self.fill(part.region, self.out, key)
            self._report(part.region)
            return
        present = [piece for piece in pieces if piece.length >= 0]
        for piece in pieces:
            if piece.length < 0:
                self.fill(piece.region, piece.out, None)
                self._report(piece.region)
        self.place_pieces(key, present, view, 0)

    def place_span(self, key: str, span: _Span, value: Value | None, version: object) -> None:
        """Decode and place the pieces of a span."""
        if value is None or (version is not None and value.version != version):
            raise _Changed
        self.place_pieces(key, span.pieces, memoryview(value.data), span.start)

    def place_pieces(self, key: str, pieces: Sequence[Piece], view: memoryview, origin: int) -> None:
        """Decode and place pieces of a value, of which the bytes from ``origin`` on are there."""
        if not pieces:
            return
        with self.workspace(max((piece.chain for piece in pieces), key=_raw_size)) as workspace:
            for piece in pieces:
                if self.flag.set:
                    return
                start = piece.start - origin
                self.place_piece(key, piece, view[start : start + piece.length], workspace)

    def place_piece(self, key: str, piece: Piece, data: memoryview, workspace: Workspace) -> None:
        """Decode and place one piece."""
        if len(data) < piece.length:
            raise self._cut_short(key, piece)
        chain, region = piece.chain, piece.region
        target = None
        if chain.direct and region.plain and self.fields is None:
            target = piece.out[(*region.place, ...)]
            shape = chain.spec.shape
            if target.shape != shape or not target.flags.c_contiguous or not _covers(region, shape):
                target = None
        if target is not None:
            self._decode_into(chain, data, target, key)
        else:
            self.place(chain, data, region, piece.out, key, workspace)
        if self.progress is not None:
            self._report(region)

    def _cut_short(self, key: str, piece: Piece) -> CodecError:
        full = self.chunks.full_key(key)
        end = piece.start + piece.length
        return CodecError(f"{full}: the value ends before byte {end}, where its part at {piece.start} should", key=full)

    def _report(self, region: Region) -> None:
        if self.progress is not None:
            self.progress(region.size * self.out.itemsize)

    def _decode_into(self, chain: BoundChain, data: Buffer, target: Array, key: str) -> None:
        try:
            chain.decode_into(data, target)
        except CodecError as error:
            raise self.chunks.locate(error, key) from error

    def workspace(self, chain: BoundChain) -> AbstractContextManager[Workspace]:
        """Memory to decode chunks into that do not lie contiguously in the output."""
        size = chain.raw_size
        if size is None or size < _SMALL or chain.is_raw:
            return nullcontext()
        return scratch("decode", size)

    def place(
        self, chain: BoundChain, data: Buffer, region: Region, out: Array, key: str, workspace: Workspace
    ) -> None:
        """Decode a chunk and place what is wanted of it."""
        if workspace is not None and len(workspace) != chain.raw_size:
            workspace = workspace[: chain.raw_size] if chain.raw_size is not None else None
        try:
            box = chain.decode(data, workspace)
        except CodecError as error:
            raise self.chunks.locate(error, key) from error
        region.read(box if self.fields is None else box[self.fields], out)

    def fill(self, region: Region, out: Array, key: str | None) -> None:
        """Place the fill value for what is absent; ``key`` is that of an absent value."""
        if key is not None and self.missing == "error":
            self.absent.append(self.chunks.full_key(key))
        fill: Any = self.chain.spec.scalar
        region.fill(out, fill if self.fields is None else fill[self.fields])

    def complain(self) -> None:
        """Raise if chunks were absent and should not have been.

        Raises:
            MissingChunkError: With their keys.
        """
        if self.absent:
            count, keys = len(self.absent), sorted(self.absent)[:100]
            shown = ", ".join(keys[:3]) + (", …" if count > 3 else "")
            raise MissingChunkError(
                f"{count} of the chunks in this selection are absent from {self.store!r}: {shown}",
                keys=keys,
                count=count,
            )


def _group(spans: Sequence[_Span], most: int) -> list[list[_Span]]:
    """Spans by the batch that they are fetched in."""
    groups: list[list[_Span]] = []
    size = most
    for span in spans:
        if size + span.length > most or len(groups[-1]) >= 256:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += span.length
    return groups


def _raw_size(chain: BoundChain) -> int:
    return chain.raw_size or 0


def _clip(view: memoryview, wanted: Range) -> Buffer:
    return clip(view, Request("", wanted.start, wanted.length, wanted.suffix))  # type: ignore[no-any-return]


def _covers(region: Region, shape: tuple[int, ...]) -> bool:
    """Whether a region is a whole box, in order."""
    return all(
        isinstance(s, slice) and s.start == 0 and s.step == 1 and s.stop == n
        for s, n in zip(region.box, shape, strict=True)
    )


def _itemsize(reading: _Reading) -> int:
    return reading.chunks.metadata.dtype.itemsize or 16
