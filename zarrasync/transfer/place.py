"""Decoding chunks and placing what is wanted of them: the part of reading that computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync.codecs.bound_chain import CHEAP_COPY
from zarrasync.codecs.partial import ChunkDecoder, Locator, Piece, Range
from zarrasync.codecs.spec import Array, Buffer, as_bytes_view
from zarrasync.errors import CodecError, MissingChunkError
from zarrasync.indexing.chunk_selection import ChunkRun, PointRun, Run
from zarrasync.stores.base import Request, clip
from zarrasync.transfer.chunks import Chunks, Fields, Missing
from zarrasync.transfer.threads import Progress, scratch

__all__ = ["LARGE", "Found", "Placing", "Rows", "Workspace", "absence", "cut"]

Found: TypeAlias = tuple[Piece, memoryview]
"""A piece and its bytes."""

LARGE = 128 << 20
"""No memory larger than this is set aside for values that may be smaller or absent."""
_WORTH = 1 << 17
"""Bytes of a single chunk from which on memory that is there beats what a decompressor makes: pages are not fresh."""


class Rows:
    """Where chunks are decoded to.

    Attributes:
        each: Memory per chunk.
        boxes: All of it as the decoded chunks, where decoding into it is all there is to do.
        direct: Whether it is the chunks' very place in the output.
    """

    __slots__ = ("boxes", "direct", "each")

    def __init__(self, each: Sequence[npt.NDArray[np.uint8]], boxes: Array | None, *, direct: bool = False) -> None:
        self.each, self.boxes, self.direct = each, boxes, direct

    def one(self, number: int) -> Rows:
        """The place of one chunk."""
        boxes = None if self.boxes is None else self.boxes[number : number + 1]
        return Rows(self.each[number : number + 1], boxes, direct=self.direct)


class Workspace:
    """Memory to decode chunks into that do not lie contiguously in the output."""

    def __init__(self, size: int) -> None:
        self._scratch = scratch("decode", size)
        self._made: dict[tuple[ChunkDecoder, int, int], Rows] = {}

    def __enter__(self) -> Self:
        self._memory = self._scratch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.__exit__(*error)

    def rows(self, chain: ChunkDecoder, count: int, start: int = 0) -> Rows:
        """The memory of so many chunks, after so many others; the same for the same."""
        known = self._made.get((chain, count, start))
        if known is None:
            size = chain.raw_size or 0
            memory = self._memory[start * size : (start + count) * size].reshape(count, size)
            known = self._made[chain, count, start] = Rows(list(memory), chain.view_chunks(memory))
        return known


class Placing:
    """One read's output, and what is needed to fill it; takes down the keys that should not be absent."""

    def __init__(
        self,
        chunks: Chunks,
        out: Array,
        missing: Missing,
        absent: list[str],
        fields: Fields,
        progress: Progress | None,
    ) -> None:
        self.chunks, self.out, self.fields, self.progress = chunks, out, fields, progress
        self.missing, self.absent = missing, absent
        self.chain = chunks.chain
        self.flag = cancel_flag()

    # -------------------------------------------------------------- chunks

    def direct(self, chain: ChunkDecoder, part: Run, out: Array) -> Rows | None:
        """The places of a part's chunks in the output, if one may decode right into them."""
        shape = chain.spec.shape
        if isinstance(part, PointRun) or not part.is_full or not chain.decodes_to_output or self.fields is not None:
            return None
        if shape[-1:] != out.shape[-1:] and any(length != 1 for length in shape[:-1]):
            return None
        stack = part.stacked(out)
        places = [stack[number, ...] for number in range(part.count)]
        if places[0].shape != shape or not places[0].flags.c_contiguous:
            return None
        return Rows([as_bytes_view(place) for place in places], None, direct=True)

    def room(self, chain: ChunkDecoder, part: Run, out: Array, workspace: Workspace | None) -> Rows | None:
        """Where to decode a part's chunks: right into the output, or into memory if there is some."""
        moved = part.count > 1 and chain.is_raw  # they are there already
        if moved and (chain.raw_size or 0) < CHEAP_COPY:
            return None
        rows = self.direct(chain, part, out)
        if moved:
            return rows  # if not to their places, better together than one by one
        if rows is not None or workspace is None or not chain.raw_size:
            return rows
        worth = part.count > 1 or (chain.decodes_into_buffer and chain.raw_size >= _WORTH)
        return workspace.rows(chain, part.count) if worth else None

    def workspace(self, chain: ChunkDecoder, count: int) -> Workspace | nullcontext[None]:
        """Memory to decode so many chunks into; none where decoding makes its own."""
        size = chain.raw_size
        if not size or size * count > LARGE or chain.stored_dtype is None:
            return nullcontext()
        return Workspace(size * count)

    def place(
        self,
        chain: ChunkDecoder,
        part: Run,
        values: Sequence[Buffer | None],
        keys: Sequence[str],
        out: Array,
        rows: Rows | None = None,
    ) -> None:
        """Decode the chunks of a part and place what is wanted of them.

        Args:
            chain: What decodes them.
            part: The part.
            values: Per chunk its bytes; ``None`` if it is absent.
            keys: Per chunk the key that it is stored under by itself; none for chunks inside a shard.
            out: Where to.
            rows: Where to decode to. A raw chunk's value may lie there already.
        """
        if any(value is None for value in values):
            for number, (single, value) in enumerate(zip(part.singles(), values, strict=True)):
                if value is None:
                    self.fill(single, out, keys[number] if keys else None)
                else:
                    own = None if rows is None else rows.one(number)
                    self.place(chain, single, [value], keys[number : number + 1], out, own)
            return
        try:
            self._place_present(chain, part, values, out, rows)  # type: ignore[arg-type]  # none is None
        except CodecError as error:
            if not keys:
                raise
            self.chunks.locate(error, keys[_culprit(chain, values)])
            raise

    def _place_present(
        self, chain: ChunkDecoder, part: Run, values: Sequence[Buffer], out: Array, rows: Rows | None
    ) -> None:
        if rows is not None and (rows.direct or (rows.boxes is not None and not _no_gain(chain, values, rows))):
            chain.decompress_into(values, rows.each)
            if rows.direct:
                return
            boxes = rows.boxes
        elif len(values) > 1:
            for value in values:
                if len(value) != chain.raw_size:
                    chain.decode(value)  # complains
            boxes = chain.view_chunks(np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1))
        else:
            boxes = chain.decode(values[0], None if rows is None else rows.each[0])[np.newaxis]
        assert boxes is not None
        part.read(boxes if self.fields is None else boxes[self.fields], out)

    # -------------------------------------------------------------- parts of values

    def place_found(self, key: str, part: ChunkRun, search: Locator, data: Buffer | None) -> None:
        """Do a search inside a value that is there in full, and place what it finds."""
        view = None if data is None else memoryview(data)
        try:
            ranges = next(search)
            while True:
                ranges = search.send([None if view is None else _clip(view, r) for r in ranges])
        except StopIteration as stop:
            pieces: list[Piece] | None = stop.value
        except CodecError as error:
            self.chunks.locate(error, key)
            raise
        if pieces is None or view is None:
            self.fill(part, self.out, key)
            self.report(part)
            return
        self.place_pieces(key, cut(self.present(key, pieces), view))

    def present(self, key: str, pieces: Sequence[Piece]) -> list[Piece]:
        """Those of some pieces of a value that are not absent; absent ones are filled here."""
        for piece in pieces:
            if piece.length < 0:
                self.fill(piece.part, piece.out, key)
                self.report(piece.part)
        return [piece for piece in pieces if piece.length >= 0]

    def place_pieces(self, key: str, found: Sequence[Found]) -> None:
        """Decode and place pieces of a value, each of which comes with its bytes."""
        if not found:
            return
        largest = max((piece for piece, _ in found), key=lambda own: (own.chain.raw_size or 0) * own.part.count)
        with self.workspace(largest.chain, largest.part.count) as workspace:
            for group in _together(found, self.chunks.config.batch_bytes):
                if self.flag.cancelled:
                    return
                try:
                    self._place_group(key, group, workspace)
                except CodecError as error:
                    self.chunks.locate(error, key)
                    raise

    def _place_group(self, key: str, group: Sequence[Found], workspace: Workspace | None) -> None:
        """Place pieces that are decoded together."""
        for piece, data in group:
            if len(data) < piece.length:
                raise self.cut_short(key, piece)
        piece, data = group[0]
        chain, start = piece.chain, 0
        if chain.is_raw and piece.part.count > 1 and piece.length == piece.part.count * (chain.raw_size or 0):
            boxes = chain.view_chunks(np.frombuffer(data, np.uint8).reshape(piece.part.count, -1))
            assert boxes is not None  # runs are made of such chunks
            piece.part.read(boxes if self.fields is None else boxes[self.fields], piece.out)
            self.report(piece.part)
            return
        chain, values = chain.decompress_batch([value for own in group for value in _values(*own)])
        for piece, _ in group:
            end = start + piece.part.count
            rows = self.room(chain, piece.part, piece.out, workspace)
            self._place_present(chain, piece.part, values[start:end], piece.out, rows)  # type: ignore[arg-type]  # none is None
            self.report(piece.part)
            start = end

    def cut_short(self, key: str, piece: Piece) -> CodecError:
        """The error for a value that ends too early."""
        end = piece.start + piece.length
        error = CodecError(f"the value ends before byte {end}, where its part at {piece.start} should")
        return self.chunks.locate(error, key)

    # -------------------------------------------------------------- what is absent, and what is done

    def fill(self, part: ChunkRun, out: Array, key: str | None) -> None:
        """Place the fill value for what is absent; ``key`` is that of the value it would be, or be in."""
        if key is not None and self.missing == "error":
            self.absent.extend([self.chunks.full_key(key)] * part.count)
        fill: Any = self.chain.spec.scalar
        part.fill(out, fill if self.fields is None else fill[self.fields])

    def report(self, part: Run) -> None:
        """Tell of progress."""
        if self.progress is not None:
            self.progress(part.size * self.out.itemsize)


def absence(chunks: Chunks, absent: Sequence[str]) -> MissingChunkError:
    """The error for chunks that are absent and should not be, by their full keys."""
    count, keys = len(absent), sorted(set(absent))[:100]
    shown = ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
    return MissingChunkError(
        f"{count} of the chunks in this selection are absent from {chunks.store!r}: {shown}", keys=keys, count=count
    )


def cut(pieces: Sequence[Piece], view: memoryview, origin: int = 0) -> list[Found]:
    """Pieces of a value with their bytes; ``view`` has those of the value from ``origin`` on."""
    return [(piece, view[piece.start - origin : piece.start - origin + piece.length]) for piece in pieces]


def _values(piece: Piece, data: memoryview) -> list[memoryview]:
    return [data[start : start + length] for start, length in piece.entries] if piece.entries else [data]


def _together(found: Sequence[Found], most: int) -> Iterator[Sequence[Found]]:
    """Pieces that follow each other and are decoded together, into so many bytes; others alone."""
    group: list[Found] = []
    room = 0
    for own in found:
        chain, count = own[0].chain, own[0].part.count
        if group and (room < count or chain is not group[0][0].chain):
            yield group
            group = []
        if not group:
            room = most // (chain.raw_size or most) if chain.decodes_batches else 0
        group.append(own)
        room -= count
    if group:
        yield group


def _no_gain(chain: ChunkDecoder, values: Sequence[Buffer], rows: Rows) -> bool:
    """Whether decoding into memory would but copy."""
    return chain.is_raw and len(values) == 1 and values[0] is not rows.each[0]


def _culprit(chain: ChunkDecoder, values: Sequence[Buffer | None]) -> int:
    """The number of the first value that does not decode."""
    for number, value in enumerate(values):
        try:
            chain.decode(value)  # type: ignore[arg-type]  # none is None
        except CodecError:
            return number
    return 0


def _clip(view: memoryview, wanted: Range) -> Buffer:
    return clip(view, Request("", wanted.start, wanted.length, wanted.suffix))  # type: ignore[no-any-return]  # a part of a buffer is one
