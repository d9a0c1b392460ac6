"""Finding the inner chunks of a shard that a read needs, and coalescing their byte ranges."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeAlias

from zarrasync._concurrency.drive import drive
from zarrasync.codecs.byte_ranges import Locator, Piece, Range, run_search
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import CodecError
from zarrasync.indexing.chunk_runs import AnyRun, ChunkRun
from zarrasync.stores.values import Request, Value, clip
from zarrasync.transfer.limits import JOB_CHUNKS
from zarrasync.transfer.place import FetchedPiece, Placement

Fetch: TypeAlias = Callable[[Sequence[Request]], Coroutine[Any, Any, Sequence[Value | None]]]
"""Fetches byte ranges of a shard, with the version of the shard."""


class ShardChanged(Exception):
    """A shard was replaced after its index and before its inner chunks were fetched."""


class Span(NamedTuple):
    """A byte range that covers neighbouring pieces of one shard.

    Attributes:
        start: Its first byte in the shard.
        length: Its length in bytes.
        pieces: The pieces.
    """

    start: int
    length: int
    pieces: list[Piece]


class ShardSearch:
    """A search for the pieces of one shard that a read needs.

    Attributes:
        key: The shard's key.
        part: The shard's part of the selection.
        pieces: The pieces, after ``run``; ``None`` if the shard is absent.
        version: The version of the shard that they were found in, if the store has versions.
    """

    def __init__(self, placement: Placement, key: str, part: ChunkRun, locator: Locator) -> None:
        self._placement, self._locator = placement, locator
        self._indexes = placement.chunks.indexes
        self.key, self.part = key, part
        self.pieces: list[Piece] | None = None
        self.version: object = None
        self._size: int | None = None
        self._cached = self._indexes.get(key)
        self._knows_version = False

    async def run(self, fetch: Fetch, fetch_index: Fetch) -> None:
        """Search for the pieces.

        Args:
            fetch: Fetches byte ranges.
            fetch_index: Fetches the index, which several reads may need at the same time.

        Raises:
            ShardChanged: If the shard is replaced meanwhile.
            CodecError: If its index is damaged.
        """

        async def fetch_ranges(ranges: Sequence[Range]) -> Sequence[Buffer | None]:
            cached = self._take_cached()
            if cached is not None:
                return cached
            fetch_some = fetch if self._knows_version else fetch_index
            return self._data(await fetch_some(self._requests(ranges)))

        has_cached = self._cached is not None
        try:
            self.pieces = await run_search(self._locator, fetch_ranges)
            if has_cached and self._finds_nothing():
                self._start_again()
                self.pieces = await run_search(self._locator, fetch_ranges)
        except CodecError as error:
            self._placement.chunks.locate(error, self.key)
            raise
        self._check_size()

    def run_inside(self, value: Buffer | None) -> list[FetchedPiece] | None:
        """Search inside a value that was fetched whole; return the pieces with their bytes, ``None`` if it is absent."""
        view = None if value is None else memoryview(value)

        async def slice_ranges(ranges: Sequence[Range]) -> list[Buffer | None]:
            return [None if view is None else clip(view, request) for request in self._requests(ranges)]

        try:
            self.pieces = drive(run_search(self._locator, slice_ranges))
        except CodecError as error:
            self._placement.chunks.locate(error, self.key)
            raise
        if self.pieces is None or view is None:
            return None
        return cut(self._placement.present(self.key, self.pieces), view)

    def restarted(self) -> ShardSearch:
        """Return a new search, without the results from a version of the shard that no longer exists."""
        self._indexes.drop(self.key)
        return ShardSearch(self._placement, self.key, self.part, self._new_locator())

    def _new_locator(self) -> Locator:
        locator = self._placement.chain.locate(self.part.projection, self._placement.out)
        assert locator is not None
        return locator

    def spans(self, *, leave_work: bool) -> list[Span]:
        """Return the byte ranges to fetch, and place the fill value for absent pieces.

        Args:
            leave_work: Whether to make ranges short enough that several threads can share the decoding.
        """
        config = self._placement.chunks.config
        pieces = self._placement.present(self.key, self.pieces or [])
        most = config.coalesce_size
        if leave_work:
            most = min(most, max(config.batch_bytes, sum(piece.length for piece in pieces) // 4))
        return coalesce(pieces, config.coalesce_gap, most)

    def fetched(self, spans: Sequence[Span], values: Sequence[Value | None]) -> list[FetchedPiece] | None:
        """Return the pieces of spans with their bytes; ``None`` if the value is absent, as this first fetch shows.

        Raises:
            ShardChanged: If the shard's version differs from the version in which the pieces were found.
        """
        if not self._knows_version and all(value is None for value in values):  # a raw chunk, which has no index
            return None
        pieces: list[FetchedPiece] = []
        for span, value in zip(spans, values, strict=True):
            if value is None or (self.version is not None and value.version != self.version):
                raise ShardChanged
            pieces.extend(cut(span.pieces, memoryview(value.data), span.start))
        return pieces

    def _requests(self, ranges: Sequence[Range]) -> list[Request]:
        limit = self._placement.chunks.limit
        return [Request(self.key, range_.start, range_.length, range_.suffix, limit=limit) for range_ in ranges]

    def _take_cached(self) -> list[Buffer | None] | None:
        """Return the cached index once, in place of the first fetch."""
        cached, self._cached = self._cached, None
        if cached is None:
            return None
        self._knows_version, self.version, self._size = True, cached.version, cached.size
        return [cached.data]

    def _data(self, values: Sequence[Value | None]) -> list[Buffer | None]:
        """Return fetched bytes, all of one version of the shard; cache them if they are the index."""
        if not self._knows_version:
            self._knows_version = True
            self.version, self._size = next(((v.version, v.size) for v in values if v is not None), (None, None))
            if len(values) == 1 and (value := values[0]) is not None and value.version is not None:
                index = value._replace(data=bytes(value.data))
                self._indexes.put(self.key, index)
                return [index.data]
        elif any(value is None or value.version != self.version for value in values):
            raise ShardChanged
        return [None if value is None else value.data for value in values]

    def _finds_nothing(self) -> bool:
        """Return whether no inner chunk will be fetched, so that no version can reveal an outdated cached index."""
        return not any(piece.length >= 0 for piece in self.pieces or ())

    def _start_again(self) -> None:
        self._indexes.drop(self.key)
        self._locator, self._knows_version, self._size = self._new_locator(), False, None

    def _check_size(self) -> None:
        for piece in self.pieces or ():
            if self._size is not None and piece.start + piece.length > self._size:
                raise self._placement.truncated(self.key, piece)


def split_runs(placement: Placement, runs: Sequence[AnyRun]) -> tuple[list[AnyRun], list[ShardSearch]]:
    """Split runs into those whose chunks are read whole, and searches for parts of single chunks."""
    chain = placement.chain
    if not chain.supports_partial_reads:
        return list(runs), []
    whole: list[AnyRun] = []
    searches: list[ShardSearch] = []
    for run in runs:
        if run.is_full and chain.stored_dtype is not None:
            whole.append(run)
            continue
        for part in run.singles():
            locator = chain.locate(part.projection, placement.out)
            if locator is None:
                whole.append(part)
            else:
                searches.append(ShardSearch(placement, placement.chunks.key(part.coords), part, locator))
    return whole, searches


def wants_whole(placement: Placement, part: ChunkRun) -> bool:
    """Return whether to read a whole shard, because most of it is needed and it easily fits into memory."""
    chunks, nbytes = placement.chunks, placement.chain.nbytes
    most = chunks.config.coalesce_size if chunks.store.blocking else chunks.config.memory_budget // 4
    return nbytes <= most and 2 * part.size * (placement.chain.spec.dtype.itemsize or 16) >= nbytes


def coalesce(pieces: Sequence[Piece], gap: int, most: int) -> list[Span]:
    """Cover pieces with byte ranges.

    Args:
        pieces: The pieces.
        gap: Maximum number of bytes between two pieces that are fetched together.
        most: Maximum number of bytes in a range.
    """
    spans: list[Span] = []
    start, stop, members = 0, -1, list[Piece]()
    for piece in sorted(pieces, key=lambda piece: piece.start):
        end = piece.start + piece.length
        if members and (piece.start - stop > gap or end - start > most):
            spans.append(Span(start, stop - start, members))
            members = []
        if not members:
            start, stop = piece.start, end
        members.append(piece)
        stop = max(stop, end)
    if members:
        spans.append(Span(start, stop - start, members))
    return spans


def group_spans(spans: Sequence[Span], most: int) -> list[list[Span]]:
    """Group spans into batches of at most ``most`` bytes."""
    groups: list[list[Span]] = []
    size = 0
    for span in spans:
        if not groups or size + span.length > most or len(groups[-1]) >= JOB_CHUNKS:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += span.length
    return groups


def cut(pieces: Sequence[Piece], view: memoryview, origin: int = 0) -> list[FetchedPiece]:
    """Return pieces with their bytes. ``view`` begins at byte ``origin`` of the value."""
    return [(piece, view[piece.start - origin : piece.start - origin + piece.length]) for piece in pieces]
