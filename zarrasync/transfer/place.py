"""Decoding chunks and placing their elements, or fill values for absent chunks: the part of reading that computes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby, takewhile
from operator import is_
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.cancel import CancelFlag, is_cancelled
from zarrasync._concurrency.fork import thread_lock
from zarrasync._util.memory import aligned_empty
from zarrasync.codecs.byte_ranges import ChunkDecoder, Piece
from zarrasync.codecs.kernel_chain import KernelDecoder
from zarrasync.codecs.spec import Array, Buffer, as_bytes_view
from zarrasync.errors import CodecError, MissingChunkError, SelectionError
from zarrasync.indexing.chunk_runs import AnyRun, ChunkRun, PointRun
from zarrasync.transfer.chunks import Chunks, Fields, Missing
from zarrasync.transfer.limits import CONTIGUOUS_COPY, LARGEST_KEPT, LARGEST_SCRATCH, SMALL
from zarrasync.transfer.threads import Progress


class _Kept(threading.local):
    def __init__(self) -> None:
        self.by_purpose: dict[str, npt.NDArray[np.uint8]] = {}


_kept = _Kept()


class ScratchMemory:
    """Memory of this thread for the length of a ``with`` block.

    Memory in use is not in the thread's cache, so nested calls get other memory.

    Args:
        purpose: What the memory is for; one piece is kept per purpose.
        size: Bytes.

    Raises:
        CodecError: On entering, if there is not enough memory.
    """

    __slots__ = ("_memory", "_purpose", "_size")

    def __init__(self, purpose: str, size: int) -> None:
        self._purpose, self._size = purpose, size

    def __enter__(self) -> npt.NDArray[np.uint8]:
        memory = _kept.by_purpose.pop(self._purpose, None)
        if memory is None or len(memory) < self._size:
            try:
                memory = aligned_empty(self._size)
            except MemoryError as error:
                raise CodecError(f"a chunk of {self._size:,} bytes does not fit into memory") from error
        self._memory = memory
        return memory[: self._size]

    def __exit__(self, *error: object) -> None:
        if len(self._memory) <= LARGEST_KEPT:
            _kept.by_purpose[self._purpose] = self._memory


FetchedPiece: TypeAlias = tuple[Piece, memoryview]
"""A piece of a stored value, and its bytes."""

_is_none = partial(is_, None)  # without a Python call per chunk


class DecodeMemory:
    """Memory that the chunks of a run are decoded into.

    Attributes:
        each: Memory per chunk.
        boxes: All of it as an array of the decoded chunks, if nothing remains to be done after decoding into it.
        in_output: Whether it is the chunks' final memory in the output.
    """

    __slots__ = ("boxes", "each", "in_output")

    def __init__(self, each: Sequence[npt.NDArray[np.uint8]], boxes: Array | None, *, in_output: bool = False) -> None:
        self.each, self.boxes, self.in_output = each, boxes, in_output

    def part(self, start: int, stop: int) -> DecodeMemory:
        """Return the memory of some of the chunks."""
        boxes = None if self.boxes is None else self.boxes[start:stop]
        return DecodeMemory(self.each[start:stop], boxes, in_output=self.in_output)


class Workspace:
    """Scratch memory for chunks that do not lie contiguously in the output. A context manager."""

    def __init__(self, size: int) -> None:
        self._scratch = ScratchMemory("decode", size)
        self._made: dict[tuple[ChunkDecoder, int, int], DecodeMemory] = {}

    def __enter__(self) -> Self:
        self._memory = self._scratch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.__exit__(*error)

    def memory(self, chain: ChunkDecoder, count: int, start: int = 0) -> DecodeMemory:
        """Return the memory of ``count`` chunks after the first ``start`` chunks."""
        memory = self._made.get((chain, count, start))
        if memory is None:
            size = chain.raw_size or 0
            rows = self._memory[start * size : (start + count) * size].reshape(count, size)
            memory = self._made[chain, count, start] = DecodeMemory(list(rows), chain.view_chunks(rows))
        return memory


class ContentBudget:
    """``config.max_read_bytes`` for elements that vary in size, whose content is known when their chunks are decoded.

    The threads of a read share it.

    Args:
        limit: The most bytes of the result.
        room: Those that are left for content.
    """

    def __init__(self, limit: int, room: int) -> None:
        self._limit, self._room, self._lock = limit, room, thread_lock()

    def take(self, run: AnyRun, boxes: Array) -> None:
        """Count the elements of a chunk that are about to be placed.

        Args:
            run: The elements.
            boxes: The decoded chunk, with an axis of length 1 in front.

        Raises:
            SelectionError: If the result is larger than the limit.
        """
        assert not isinstance(run, PointRun)
        size = _content_size(run.projection.pick(boxes[0, ...]))
        with self._lock:
            self._room -= size
            exceeded = self._room < 0
        if exceeded:
            raise SelectionError(
                f"the selected elements have more than {self._limit:,} bytes, which is config.max_read_bytes"
            )


def _content_size(elements: Array) -> int:
    """Return the characters of strings, or the bytes of objects."""
    if elements.dtype.kind == "T":
        return int(np.strings.str_len(elements).sum())
    return sum(map(_object_size, elements.reshape(-1).tolist()))


def _object_size(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else sys.getsizeof(value)


class PlaceOptions(NamedTuple):
    """How the elements of a read are placed.

    Attributes:
        fields: Structured fields to read alone.
        missing: What absent chunks are.
        absent: Keys of absent chunks, if these are an error.
        progress: Called with the number of bytes done.
        content: Limits the content of elements that vary in size.
    """

    fields: Fields
    missing: Missing
    absent: list[str]
    progress: Progress | None
    content: ContentBudget | None


class Placement:
    """The output of a read, and how chunks get into it. It has the ``PlaceOptions`` as attributes.

    Attributes:
        chunks: The chunks, all of one stored shape.
        chain: What decodes them.
        out: The output.
        flag: Set when the read is cancelled.
    """

    def __init__(self, chunks: Chunks, out: Array, options: PlaceOptions, flag: CancelFlag) -> None:
        self.chunks, self.chain, self.out, self.flag = chunks, chunks.chain, out, flag
        self.fields, self.missing, self.absent, self.progress, self.content = options

        self._decoder = chunks.kernel_decoder

    def _decoder_of(self, chain: ChunkDecoder) -> KernelDecoder | None:
        """Return what decodes chunks without the interpreter, if the kernel has the codecs."""
        return self._decoder if self._decoder is not None and self._decoder.chain is chain else None

    def _is_cancelled(self) -> bool:
        """Return whether the read, or the call that runs on this thread, is cancelled."""
        return self.flag.cancelled or is_cancelled()

    # -------------------------------------------------------------- memory to decode into

    def output_memory(self, chain: ChunkDecoder, run: AnyRun, out: Array) -> DecodeMemory | None:
        """Return the memory of a run's chunks in the output, if they can be decoded there."""
        shape = chain.spec.shape
        if isinstance(run, PointRun) or not run.is_full or not chain.decodes_to_output or self.fields is not None:
            return None
        if shape[-1:] != out.shape[-1:] and any(length != 1 for length in shape[:-1]):
            return None
        stack = run.stacked(out)
        boxes = [stack[number, ...] for number in range(run.count)]
        if boxes[0].shape != shape or not boxes[0].flags.c_contiguous:
            return None
        return DecodeMemory([as_bytes_view(box) for box in boxes], None, in_output=True)

    def decode_memory(
        self, chain: ChunkDecoder, run: AnyRun, out: Array, workspace: Workspace | None
    ) -> DecodeMemory | None:
        """Return what to decode a run's chunks into: the output, scratch memory, or ``None`` for new memory."""
        raw_run = run.count > 1 and chain.is_raw  # raw values need no decoding
        if raw_run and (chain.raw_size or 0) < CONTIGUOUS_COPY:
            return None
        memory = self.output_memory(chain, run, out)
        if raw_run or memory is not None or workspace is None or not chain.raw_size:
            return memory
        is_reused = run.count > 1 or chain.decodes_into_buffer or self._decoder_of(chain) is not None
        return workspace.memory(chain, run.count) if is_reused else None

    def workspace(self, chain: ChunkDecoder, count: int) -> Workspace | nullcontext[None]:
        """Return scratch memory for ``count`` chunks, unless decoding allocates memory itself."""
        size = chain.raw_size
        if not size or size * count > LARGEST_SCRATCH or chain.stored_dtype is None:
            return nullcontext()
        return Workspace(size * count)

    # -------------------------------------------------------------- whole chunks

    def place_runs(
        self,
        runs: Sequence[AnyRun],
        keys: Sequence[str],
        values: Sequence[Buffer | None],
        memories: Sequence[DecodeMemory | None] | None = None,
    ) -> None:
        """Decode the chunks of runs and place their elements.

        Args:
            runs: The runs.
            keys: The keys of all their chunks.
            values: The stored values; ``None`` for absent ones.
            memories: The memory to decode each run into; chosen here if not given.
        """
        most = runs[0].count if len(runs) == 1 else max(run.count for run in runs)
        chain, start = self.chain, 0
        with nullcontext() if memories is not None else self.workspace(chain, most) as workspace:
            for number, run in enumerate(runs):
                if self._is_cancelled():
                    return
                end = start + run.count
                stored = values[start:end]
                if memories is not None:
                    memory = memories[number]
                else:
                    is_absent = all(map(_is_none, stored))
                    memory = None if is_absent else self.decode_memory(chain, run, self.out, workspace)
                self._place_run(chain, run, stored, keys[start:end], memory)
                if self.progress is not None:
                    self.report(run)
                start = end

    def _place_run(
        self,
        chain: ChunkDecoder,
        run: AnyRun,
        values: Sequence[Buffer | None],
        keys: Sequence[str],
        memory: DecodeMemory | None,
    ) -> None:
        """Place a run of chunks, some of which may be absent. A raw chunk's value may already be in its memory."""
        if any(map(_is_none, values)):
            for start, part in _stretches(run, values):
                stop = start + part.count
                if values[start] is None:
                    self.fill_absent(part, keys[start:stop])
                else:
                    decoded = None if memory is None else memory.part(start, stop)
                    self._place_run(chain, part, values[start:stop], keys[start:stop], decoded)
            return
        try:
            self._place_present(chain, run, values, self.out, memory)  # type: ignore[arg-type]  # all are present
        except CodecError as error:
            self.chunks.locate(error, keys[_first_damaged(chain, values)])
            raise

    def _place_present(
        self, chain: ChunkDecoder, run: AnyRun, values: Sequence[Buffer], out: Array, memory: DecodeMemory | None
    ) -> None:
        if memory is not None and (
            memory.in_output or (memory.boxes is not None and not _would_only_copy(chain, values, memory))
        ):
            decoder = self._decoder_of(chain)
            if decoder is None or not decoder.decode(values, memory.each):
                chain.decompress_into(values, memory.each)  # raises an error if a value is damaged
            if memory.in_output:
                return
            boxes = memory.boxes
        elif len(values) > 1:
            for value in values:
                if len(value) != chain.raw_size:
                    chain.decode(value)  # raises
            boxes = chain.view_chunks(np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1))
        else:
            boxes = chain.decode(values[0], None if memory is None else memory.each[0])[np.newaxis]
            if self.content is not None:
                self.content.take(run, boxes)
        assert boxes is not None
        run.read(boxes if self.fields is None else boxes[self.fields], out)

    # -------------------------------------------------------------- pieces of values

    def present(self, key: str, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the stored pieces of a value, and place the fill value for the others."""
        for piece in pieces:
            if piece.length < 0:
                self.fill(piece.part, piece.out, [key] * piece.part.count)
                self.report(piece.part)
        return [piece for piece in pieces if piece.length >= 0]

    def place_found(self, key: str, part: ChunkRun, pieces: Sequence[FetchedPiece] | None) -> None:
        """Place the pieces of a part of a chunk or shard, or the fill value for ``None``, if it is absent."""
        if pieces is None:
            self.fill_absent(part, [key] * part.count)
            self.report(part)
        else:
            self.place_pieces(key, pieces)

    def place_pieces(self, key: str, fetched: Sequence[FetchedPiece]) -> None:
        """Decode and place pieces of the value of a key."""
        if not fetched:
            return
        largest = max((piece for piece, _ in fetched), key=lambda piece: (piece.chain.raw_size or 0) * piece.part.count)
        start = 0
        with self.workspace(largest.chain, largest.part.count) as workspace:
            while start < len(fetched) and not self._is_cancelled():
                count = self._place_together(fetched[start:])
                if not count:
                    self._place_piece(key, *fetched[start], workspace)
                start += count or 1

    def _place_together(self, fetched: Sequence[FetchedPiece]) -> int:
        """Decode the first pieces with one call of the kernel, and place them, if they are small; return how many."""
        chain, size = fetched[0][0].chain, fetched[0][0].chain.raw_size or SMALL
        decoder = self._decoder_of(chain)
        if decoder is None or size >= SMALL:
            return 0
        first = fetched[: self.chunks.config.batch_bytes // size]
        group = list(
            takewhile(lambda one: one[0].chain is chain and not one[0].entries and one[0].length == len(one[1]), first)
        )
        if len(group) < 2:
            return 0
        with Workspace(len(group) * size) as workspace:
            memory = workspace.memory(chain, len(group))
            if memory.boxes is None or not decoder.decode([data for _, data in group], memory.each):
                return 0
            for number, (piece, _) in enumerate(group):
                boxes = memory.boxes[number : number + 1]
                piece.part.read(boxes if self.fields is None else boxes[self.fields], piece.out)
                self.report(piece.part)
        return len(group)

    def _place_piece(self, key: str, piece: Piece, data: memoryview, workspace: Workspace | None) -> None:
        if len(data) < piece.length:
            raise self.truncated(key, piece)
        chain, part = piece.chain, piece.part
        try:
            if chain.is_raw and part.count > 1 and piece.length == part.count * (chain.raw_size or 0):
                boxes = chain.view_chunks(np.frombuffer(data, np.uint8).reshape(part.count, -1))
                assert boxes is not None  # runs are made of such chunks
                part.read(boxes if self.fields is None else boxes[self.fields], piece.out)
            else:
                memory = self.decode_memory(chain, part, piece.out, workspace)
                self._place_present(chain, part, _values(piece, data), piece.out, memory)
        except CodecError as error:
            self.chunks.locate(error, key)
            raise
        self.report(part)

    def truncated(self, key: str, piece: Piece) -> CodecError:
        """Return the error for a value that ends inside a piece."""
        end = piece.start + piece.length
        error = CodecError(f"the value is too short: its part from byte {piece.start} should end at byte {end}")
        return self.chunks.locate(error, key)

    # -------------------------------------------------------------- absent chunks, progress

    def fill(self, run: ChunkRun, out: Array, keys: Sequence[str]) -> None:
        """Place the fill value for absent chunks; each key belongs to a chunk or to the shard that it would be in."""
        if self.missing == "error":
            self.absent.extend(map(self.chunks.full_key, keys))
        fill: Any = self.chain.spec.scalar
        run.fill(out, fill if self.fields is None else fill[self.fields])

    def fill_absent(self, run: ChunkRun, keys: Sequence[str]) -> None:
        """Place the fill value for chunks, or whole shards, that are not stored."""
        self.note_absent(run)
        self.fill(run, self.out, keys)

    def note_absent(self, run: ChunkRun) -> None:
        """Note that chunks, or whole shards, are not stored."""

    def report(self, run: AnyRun) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(run.size * self.out.itemsize)


def missing_chunks(chunks: Chunks, absent: Sequence[str]) -> MissingChunkError:
    """Return the error for absent chunks, for a caller that passed ``missing="error"``.

    Args:
        chunks: The array's chunks.
        absent: The full keys of absent chunks.
    """
    count, keys = len(absent), sorted(set(absent))[:100]
    shown = ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
    message = f"{count} of the chunks in this selection are absent from {chunks.store!r}: {shown}"
    return MissingChunkError(f"{message}; write them, or read them with missing='fill'", keys=keys, count=count)


def _stretches(run: AnyRun, values: Sequence[Buffer | None]) -> Iterator[tuple[int, ChunkRun]]:
    """Split a run into stretches of absent and of present chunks, each with the number of its first chunk."""
    if isinstance(run, PointRun):
        yield from enumerate(run.singles())
        return
    start = 0
    for _, group in groupby(values, _is_none):
        stop = start + len(list(group))
        yield start, run.section(start, stop)
        start = stop


def _values(piece: Piece, data: memoryview) -> list[memoryview]:
    return [data[start : start + length] for start, length in piece.entries] if piece.entries else [data]


def _would_only_copy(chain: ChunkDecoder, values: Sequence[Buffer], memory: DecodeMemory) -> bool:
    """Return whether decoding would only copy a raw value, which can be placed without that copy."""
    return chain.is_raw and len(values) == 1 and values[0] is not memory.each[0]


def _first_damaged(chain: ChunkDecoder, values: Sequence[Buffer | None]) -> int:
    """Return the number of the first value that does not decode."""
    if len(values) == 1:
        return 0
    for number, value in enumerate(values):
        try:
            chain.decode(value)  # type: ignore[arg-type]  # all are present
        except CodecError:
            return number
    return 0
