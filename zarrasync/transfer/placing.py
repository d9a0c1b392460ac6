"""Decoding chunks and placing what is wanted of them: the part of reading that computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._runtime import cancel_flag
from zarrasync.codecs.base import Array, Buffer, Locator, Piece, Range
from zarrasync.codecs.chain import BoundChain, as_bytes_view
from zarrasync.errors import CodecError, MissingChunkError
from zarrasync.indexing import Part
from zarrasync.stores.base import Request, clip
from zarrasync.transfer.common import Chunks, Fields, Missing
from zarrasync.transfer.jobs import Progress, scratch

__all__ = ["LARGE", "Placing", "Rows"]

LARGE = 128 << 20
"""No memory larger than this is set aside for values that may be smaller or absent."""


class Rows:
    """Where chunks are decoded to.

    Attributes:
        each: Memory per chunk.
        memory: All of it, of shape ``(count, size)``; ``None`` if it is the chunks' very place in the output.
    """

    __slots__ = ("each", "memory")

    def __init__(
        self, memory: npt.NDArray[np.uint8] | None, each: Sequence[npt.NDArray[np.uint8]] | None = None
    ) -> None:
        self.memory = memory
        self.each = list(memory) if each is None and memory is not None else each or ()

    def section(self, start: int, stop: int) -> Rows:
        """A part of it."""
        return Rows(None if self.memory is None else self.memory[start:stop], self.each[start:stop])

    def fitting(self, count: int, size: int) -> Rows:
        """Rows of another number and size in the same memory."""
        assert self.memory is not None
        if self.memory.shape[1] == size:
            return self.section(0, count)
        return Rows(self.memory.reshape(-1)[: count * size].reshape(count, size))


class Placing:
    """One read's output, and what is needed to fill it."""

    def __init__(self, chunks: Chunks, out: Array, missing: Missing, fields: Fields, progress: Progress | None) -> None:
        self.chunks, self.out, self.fields, self.progress = chunks, out, fields, progress
        self.missing = missing
        self.absent: list[str] = []
        self.chain = chunks.metadata.chain
        self.flag = cancel_flag()

    # -------------------------------------------------------------- chunks

    def direct(self, chain: BoundChain, part: Part, out: Array) -> Rows | None:
        """The places of a part's chunks in the output, if one may decode right into them."""
        if not chain.direct or not part.full or self.fields is not None:
            return None
        stack = part.stacked(out)
        places = [stack[number, ...] for number in range(part.count)]
        if places[0].shape != chain.spec.shape or not places[0].flags.c_contiguous:
            return None
        return Rows(None, [as_bytes_view(place) for place in places])

    @contextmanager
    def rows(self, chain: BoundChain, count: int) -> Iterator[Rows | None]:
        """Memory to decode so many chunks into; none where decoding makes its own."""
        size = chain.raw_size
        if not size or size * count > LARGE or chain.stored_dtype is None:
            yield None
            return
        with scratch("decode", count * size) as memory:
            yield Rows(memory.reshape(count, size))

    def place(
        self,
        chain: BoundChain,
        part: Part,
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
                    own = None if rows is None else rows.section(number, number + 1)
                    self.place(chain, single, [value], keys[number : number + 1], out, own)
            return
        try:
            boxes = self._decode(chain, values, rows)  # type: ignore[arg-type]  # none is None
            if boxes is not None:
                part.read(boxes if self.fields is None else boxes[self.fields], out)
        except CodecError as error:
            if not keys:
                raise
            raise self.chunks.locate(error, keys[_culprit(chain, values)]) from error

    def _decode(self, chain: BoundChain, values: Sequence[Buffer], rows: Rows | None) -> Array | None:
        """The decoded chunks, one after the other along a first axis; ``None`` if they are in place."""
        if rows is None:
            return chain.decode(values[0])[np.newaxis]
        boxes = None if rows.memory is None else chain.boxes(rows.memory)
        if rows.memory is not None and (
            boxes is None or (chain.is_raw and len(values) == 1 and values[0] is not rows.each[0])
        ):
            return chain.decode(values[0], rows.each[0])[np.newaxis]
        for value, row in zip(values, rows.each, strict=True):
            if value is not row:
                chain.unwrap(value, row)
        return boxes

    # -------------------------------------------------------------- parts of values

    def place_found(self, key: str, part: Part, search: Locator, data: Buffer | None) -> None:
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
            self.fill(part, self.out, key)
            self.report(part)
            return
        self.place_pieces(key, self.present(pieces), view, 0)

    def present(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Those of some pieces that are not absent; absent ones are filled here."""
        for piece in pieces:
            if piece.length < 0:
                self.fill(piece.part, piece.out, None)
                self.report(piece.part)
        return [piece for piece in pieces if piece.length >= 0]

    def place_pieces(self, key: str, pieces: Sequence[Piece], view: memoryview, origin: int) -> None:
        """Decode and place pieces of a value, of which the bytes from ``origin`` on are there."""
        if not pieces:
            return
        largest = max(pieces, key=lambda piece: (piece.chain.raw_size or 0) * piece.part.count)
        with self.rows(largest.chain, largest.part.count) as rows:
            for piece in pieces:
                if self.flag.set:
                    return
                start = piece.start - origin
                try:
                    self._place_piece(key, piece, view[start : start + piece.length], rows)
                except CodecError as error:
                    raise self.chunks.locate(error, key) from error

    def _place_piece(self, key: str, piece: Piece, data: memoryview, rows: Rows | None) -> None:
        if len(data) < piece.length:
            raise self.cut_short(key, piece)
        chain, part = piece.chain, piece.part
        if part.count > 1 and chain.is_raw and piece.length == part.count * (chain.raw_size or 0):
            boxes = chain.boxes(np.frombuffer(data, np.uint8).reshape(part.count, -1))
            assert boxes is not None  # runs are made of such chunks
            part.read(boxes if self.fields is None else boxes[self.fields], piece.out)
        else:
            values = [data[start : start + length] for start, length in piece.entries] if piece.entries else [data]
            own = self.direct(chain, part, piece.out)
            if own is None and rows is not None and chain.raw_size:
                own = rows.fitting(part.count, chain.raw_size)
            self.place(chain, part, values, (), piece.out, own)
        if self.progress is not None:
            self.report(part)

    def cut_short(self, key: str, piece: Piece) -> CodecError:
        """The error for a value that ends too early."""
        end = piece.start + piece.length
        error = CodecError(f"the value ends before byte {end}, where its part at {piece.start} should")
        return self.chunks.locate(error, key)

    # -------------------------------------------------------------- what is absent, and what is done

    def fill(self, part: Part, out: Array, key: str | None) -> None:
        """Place the fill value for what is absent; ``key`` is that of an absent value."""
        if key is not None and self.missing == "error":
            self.absent.append(self.chunks.full_key(key))
        fill: Any = self.chain.spec.scalar
        part.fill(out, fill if self.fields is None else fill[self.fields])

    def report(self, part: Part) -> None:
        """Tell of progress."""
        if self.progress is not None:
            self.progress(part.size * self.out.itemsize)

    def complain(self) -> None:
        """Raise if chunks were absent and should not have been.

        Raises:
            MissingChunkError: With their keys.
        """
        if self.absent:
            count, keys = len(self.absent), sorted(self.absent)[:100]
            shown = ", ".join(keys[:3]) + (", …" if count > 3 else "")
            raise MissingChunkError(
                f"{count} of the chunks in this selection are absent from {self.chunks.store!r}: {shown}",
                keys=keys,
                count=count,
            )


def _culprit(chain: BoundChain, values: Sequence[Buffer | None]) -> int:
    """The number of the first value that does not decode."""
    for number, value in enumerate(values):
        try:
            chain.decode(value)  # type: ignore[arg-type]  # none is None
        except CodecError:
            return number
    return 0


def _clip(view: memoryview, wanted: Range) -> Buffer:
    return clip(view, Request("", wanted.start, wanted.length, wanted.suffix))  # type: ignore[no-any-return]
