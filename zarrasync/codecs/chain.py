"""Chains of codecs: checked once, bound to a chunk's spec once, then called per chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Out
from zarrasync.codecs.partial import Locator
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.codecs.third_party import watched, watched_maker
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.chunk_selection import Projection

__all__ = ["JOINED", "BoundChain", "CodecChain", "as_bytes_view", "is_fill"]


JOINED = 1 << 15
"""Bytes of a decoded chunk below which a copy more is cheaper than a step of the interpreter."""
_COPIED = 1 << 17
"""Bytes of a decoded chunk from which on a copy more costs more than placing each chunk by itself."""
_PIECE = 1 << 16
"""Elements that are compared with the fill value in one step."""
_WORDS = (1, 2, 4, 8)
"""Bytes of elements that are compared as one integer."""
_RUN = 2 << 20
"""Bytes of decoded chunks that are placed in one step: enough that the interpreter's part does not count."""


@dataclass(frozen=True, slots=True)
class CodecChain:
    """Codecs in the order of encoding: array -> array ones, one array -> bytes, bytes -> bytes ones."""

    array_array: tuple[ArrayArrayCodec, ...]
    array_bytes: ArrayBytesCodec
    bytes_bytes: tuple[BytesBytesCodec, ...]

    @classmethod
    def of(cls, codecs: Iterable[Codec]) -> CodecChain:
        """Sort out a list of codecs.

        Raises:
            MetadataError: If their order makes no sense or there is not exactly one array -> bytes codec.
        """
        codecs = tuple(codecs)
        names = ", ".join(codec.label for codec in codecs) or "none"
        makers = [codec for codec in codecs if isinstance(codec, ArrayBytesCodec)]
        if len(makers) != 1:
            raise MetadataError(
                f"codecs need exactly one array -> bytes codec (such as 'bytes'), found {len(makers)} in: {names}"
            )
        where = codecs.index(makers[0])
        before, after = codecs[:where], codecs[where + 1 :]
        first = tuple(codec for codec in before if isinstance(codec, ArrayArrayCodec))
        last = tuple(codec for codec in after if isinstance(codec, BytesBytesCodec))
        if len(first) != len(before) or len(last) != len(after):
            raise MetadataError(
                f"codecs are out of order: array -> array, then {makers[0].label}, then bytes -> bytes; found {names}"
            )
        return cls(first, makers[0], last)

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """All codecs, in order."""
        return (*self.array_array, self.array_bytes, *self.bytes_bytes)

    def settle(self, spec: ArraySpec) -> CodecChain:
        """The chain with parameters that were left open settled for a chunk's spec."""
        settled: list[Codec] = []
        for codec in self.codecs:
            own = codec.settle(spec)
            settled.append(own)
            if isinstance(own, ArrayArrayCodec):
                spec = own.encoded_spec(spec)
        return CodecChain.of(settled)

    def bind(self, spec: ArraySpec) -> BoundChain:
        """The chain for one kind of chunk.

        Raises:
            MetadataError: If a codec can not take what it would get.
        """
        return BoundChain(self, spec)


class BoundChain:
    """A chain bound to a chunk's spec: what decodes and encodes chunks.

    Attributes:
        spec: The spec of the decoded chunk.
        nbytes: Bytes of a decoded chunk in memory (an estimate where elements vary in size).
        raw_size: Bytes that the array -> bytes codec makes, or ``None`` where that depends on the data.
        innermost_chain: What decodes the smallest parts that can be read alone: inner chunks of shards, or chunks.
        stored_dtype: The dtype of a workspace that ``decode`` fills; set where decoded memory is just
            the elements in C order.
        decodes_to_output: Whether that memory is the chunk as it is in memory, so that one may decode into the output.
        is_raw: Whether the stored bytes are just the elements.
        decodes_into_buffer: Whether large chunks are decoded right into memory that is there.
        run_length: How many chunks to decode into one piece of memory and place in one step; 1 where decoded memory
            is not just the elements, or they would have to be copied there.
        decodes_batches: Whether several chunks are decoded in one go (``decompress_batch``).
        encoded_size: Bytes of an encoded chunk, where all have the same.
        supports_partial_reads: Whether parts of an encoded chunk can be found and decoded on their own.
        is_quick: Whether little chunks are decoded so quickly that an event loop may do it itself.
        read_size_hint: A size that holds most encoded chunks.
        memory_axis_order: For each axis where it stands in the memory of decoded elements, of inner chunks where there are some,
            the slowest first; ``None`` where that is C order, or depends on the data.
    """

    __slots__ = (
        "_bare",
        "_batch",
        "_before",
        "_chain",
        "_fill_bits",
        "_inner_shape",
        "_last",
        "_limit",
        "_maker",
        "_order",
        "_rows",
        "_steps",
        "_wrap",
        "decodes_batches",
        "decodes_into_buffer",
        "decodes_to_output",
        "encoded_size",
        "innermost_chain",
        "is_quick",
        "is_raw",
        "memory_axis_order",
        "nbytes",
        "raw_size",
        "read_size_hint",
        "run_length",
        "spec",
        "stored_dtype",
        "supports_partial_reads",
    )

    _bare: BoundChain | None
    memory_axis_order: list[int] | None

    def __init__(self, chain: CodecChain, spec: ArraySpec) -> None:
        self.spec = spec
        self.nbytes = 16 * math.prod(spec.shape) if spec.nbytes is None else spec.nbytes
        steps: list[tuple[ArrayArrayCodec, ArraySpec]] = []
        for codec in chain.array_array:
            steps.append((watched(codec), spec))
            spec = codec.encoded_spec(spec)
        self._steps = tuple(steps)
        self._maker = watched_maker(chain.array_bytes, spec)
        self._wrap = tuple(map(watched, chain.bytes_bytes))
        sizes: list[int | None] = [self._maker.encoded_size]
        for wrapper in chain.bytes_bytes:
            size = sizes[-1]
            sizes.append(None if size is None else wrapper.encoded_size(size))
        self.raw_size, self.encoded_size = sizes[0], sizes[-1]
        bound = self.raw_size if self.raw_size is not None else 4 * (self.spec.nbytes or 1 << 30) + (1 << 28)
        self._limit = bound + bound // 4 + 65536
        # What the first codec was given comes out last, and may go right into memory.
        undo = [codec.decoder(size, self._limit) for codec, size in zip(self._wrap, sizes, strict=False)]
        self._before, self._last = tuple(reversed(undo[1:])), undo[0] if undo else None
        only = self._wrap[0] if len(self._wrap) == 1 else None
        self._batch = None if only is None else only.batch_decoder(self.raw_size)
        self._rows = None if only is None else only.rows_decoder(self.raw_size)
        self._chain, self._bare, self.decodes_batches = chain, None, self._batch is not None
        self.read_size_hint = self.encoded_size or (bound + bound // 8 + 4096 if self.raw_size else 0)
        self.stored_dtype = self._maker.stored_dtype
        inner: BoundChain | None = getattr(self._maker, "inner", None)
        self.innermost_chain: BoundChain = self if inner is None else inner.innermost_chain
        # (NumPy holds that None and float64 are equal dtypes, so ask for None first.)
        plain = not steps and self.stored_dtype is not None and self.stored_dtype == self.spec.dtype.numpy
        self.decodes_to_output = plain and bool(self.raw_size)
        self.is_raw = self.stored_dtype is not None and not self._wrap
        divisible = getattr(self._maker, "divisible", True) and not self._wrap
        self.supports_partial_reads = divisible and all(codec.permutation is not None for codec, _ in steps)
        self.is_quick = self.raw_size is not None and all(codec.brief for codec in chain.codecs)
        self._fill_bits = _bits(self.spec.scalar)
        self._inner_shape = spec.shape
        order: list[int] | None = (inner and inner.memory_axis_order) or list(range(len(spec.shape)))
        for codec, _ in reversed(steps):
            order = _undo(order, codec.permutation)
        self._order = None if order is None or self.stored_dtype is None or not self.raw_size else order
        turned = self._order if inner is None else order
        self.memory_axis_order = None if turned is None or turned == sorted(turned) else turned
        self.decodes_into_buffer = self.is_raw or (bool(self._wrap) and self._wrap[0].fills)
        alone = self._order is None or not self.raw_size or (self.raw_size >= _COPIED and not self.decodes_into_buffer)
        self.run_length = 1 if alone else max(1, min(256, _RUN // (self.raw_size or 1)))

    @property
    def size_bounds(self) -> tuple[int, int]:
        """How few and how many bytes an encoded chunk may have."""
        return (0, 2 * self._limit) if self.encoded_size is None else (self.encoded_size, self.encoded_size)

    @property
    def releases_gil(self) -> bool:
        """Whether several chunks are coded without the interpreter, so that threads pay however small they are."""
        return self.decodes_batches and self._wrap[0].unlocked

    # -------------------------------------------------------------- whole chunks

    def decode(self, data: Buffer, workspace: npt.NDArray[np.uint8] | None = None) -> Array:
        """Decode a chunk.

        Args:
            data: The encoded bytes.
            workspace: Memory of ``raw_size`` bytes for the last step; the result may live in it.

        Returns:
            An array of the chunk's shape, which may share memory with ``data`` or ``workspace`` and may
            be in the stored byte order.

        Raises:
            CodecError: If the bytes are damaged.
        """
        array = self._maker.decode(self._unwrapped(data, workspace))
        for step, spec in reversed(self._steps):
            array = step.decode(array, spec)
        if array.shape != self.spec.shape:
            raise CodecError(f"an array of shape {array.shape} came out, the chunk has {self.spec.shape}")
        return array

    def decompress_into(self, values: Sequence[Buffer], rows: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Undo the bytes -> bytes codecs of values, each into memory of ``raw_size`` bytes unless it is that.

        Raises:
            CodecError: If the bytes are damaged.
        """
        if self._rows is not None and self._rows(values, rows):
            return
        for value, row in zip(values, rows, strict=True):
            data = value if value is row else self._unwrapped(value, row)
            if data is not row:
                if len(data) != len(row):
                    self._maker.decode(data)  # complains
                if len(row) >= JOINED:
                    row[...] = np.frombuffer(data, np.uint8)  # while others have the interpreter
                else:
                    memoryview(row)[:] = memoryview(data).cast("B")

    def _unwrapped(self, data: Buffer, out: Out) -> Buffer:
        for decode in self._before:
            data = decode(data, None)
        return data if self._last is None else self._last(data, out)

    def decompress_batch(self, values: Sequence[Buffer | None]) -> tuple[BoundChain, Sequence[Buffer | None]]:
        """Undo the bytes -> bytes codecs of several values in one go, where that pays.

        Args:
            values: Encoded chunks; ``None`` for absent ones, which stay so.

        Returns:
            The chain that decodes what the values are now, and those; both as they were where each
            had better be decoded alone, as it may be the only one or damaged.
        """
        if self._batch is None:
            return self, values
        present = [value for value in values if value is not None]
        found = self._batch(present) if len(present) > 1 else None
        if found is None:
            return self, values
        if self._bare is None:
            self._bare = replace(self._chain, bytes_bytes=()).bind(self.spec)
        rest = iter(found)
        return self._bare, [None if value is None else next(rest) for value in values]

    def view_chunks(self, rows: npt.NDArray[np.uint8]) -> Array | None:
        """Unwrapped chunks, one a row, as one array of ``(number, *shape)`` that shares their memory.

        ``None`` where decoding takes more than a view.
        """
        if self._order is None:
            return None
        assert self.stored_dtype is not None
        stack = rows.view(self.stored_dtype).reshape(len(rows), *self._inner_shape)
        return stack.transpose(0, *(axis + 1 for axis in self._order))

    def encode(self, array: Array) -> Buffer | None:
        """Encode a chunk of the full shape; ``None`` if nothing needs storing (an empty shard).

        Raises:
            CodecError: If a value can not be said by a codec.
        """
        for step, spec in self._steps:
            array = step.encode(array, spec)
        data = self._maker.encode(array)
        if data is not None:
            data = self.compress(data)
        return data

    def encode_fill_chunk(self) -> Buffer:
        """The value of a chunk of nothing but the fill value, for where there has to be one."""
        data = self.encode(self.spec.new_array())
        if data is not None:
            return data
        return self.compress(self._maker.encode_empty())  # type: ignore[attr-defined]  # only shards come to nothing

    def compress(self, data: Buffer) -> Buffer:
        """Apply the bytes -> bytes codecs; the way back of ``decompress_into``."""
        for codec in self._wrap:
            data = codec.encode(data)
        return data

    def encode_rows(self, rows: npt.NDArray[np.uint8], *, keep_empty: bool = False) -> list[Buffer | None]:
        """The encoded chunks of the memory of ``view_chunks``; ``None`` for those that hold nothing but the fill value."""
        keep_empty |= self.spec.undefined
        empty = np.zeros(len(rows), np.bool_) if keep_empty else self.fill_rows(rows)
        values: Sequence[Buffer] = list(rows[~empty] if empty.any() else rows)
        for codec in self._wrap:
            values = codec.encode_all(values)
        rest = iter(values)
        return [None if gone else next(rest) for gone in empty.tolist()]

    def fill_rows(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Per chunk of the memory of ``view_chunks`` whether every element is the fill value, bit for bit."""
        assert self.stored_dtype is not None
        fill = np.frombuffer(self.spec.scalar.astype(self.stored_dtype).tobytes(), np.uint8)
        width = len(fill) if len(fill) in _WORDS else 1
        bits = fill.view(f"u{width}")
        words = rows.view(bits.dtype).reshape(len(rows), -1, len(bits))
        # Nearly always the first element tells, or the last.
        empty: npt.NDArray[np.bool_] = (words[:, [0, -1]] == bits).all(axis=(1, 2))
        for number in np.flatnonzero(empty):
            empty[number] = _all_are(words[number], bits) if len(bits) > 1 else _all_are(words[number, :, 0], bits[0])
        return empty

    def is_fill(self, array: Array) -> bool:
        """Whether every element is the fill value, bit for bit."""
        return not self.spec.undefined and is_fill(array, self.spec.fill_value, self._fill_bits)

    # -------------------------------------------------------------- parts of chunks

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """How to find the projection's bytes without the whole chunk; ``None`` if that is not possible."""
        if not self.supports_partial_reads:
            return None
        return self._maker.locate(*self._permute(projection, out))

    def decoded_bytes(self, projection: Projection, out: Array) -> int:
        """About how many bytes have to be decoded to read a projection."""
        if not self.supports_partial_reads:
            return self.nbytes
        inner: BoundChain | None = getattr(self._maker, "inner", None)
        if inner is None:
            return projection.size * out.itemsize
        return min(self.nbytes, inner.nbytes * self._permute(projection, out)[0].blocks(inner.spec.shape))

    def merge(self, data: Buffer | None, projection: Projection, values: Array) -> tuple[Buffer | None, bool]:
        """The chunk with the elements of a projection replaced by ``values``.

        Args:
            data: The encoded chunk as it is, or ``None`` if there is none.
            projection: What to replace; places refer to ``values``.
            values: The new values.

        Returns:
            The encoded chunk, and whether it now holds nothing but the fill value.
        """
        if data is not None and self.supports_partial_reads and self.raw_size is None:
            merged = self._maker.merge(data, *self._permute(projection, values))
            return merged, merged is None
        chunk = self.spec.new_array() if data is None else self._own(self.decode(data))
        projection.write(chunk, values)
        return self.encode(chunk), self.is_fill(chunk)

    def _permute(self, projection: Projection, out: Array) -> tuple[Projection, Array]:
        """A projection of the chunk, and its output, as the array -> bytes codec sees them."""
        for step, _ in self._steps:
            assert step.permutation is not None
            projection, out = projection.permute(step.permutation, out)
        return projection, out

    def _own(self, array: Array) -> Array:
        """The array as one that may be written to, in native order."""
        return np.array(array, dtype=self.spec.dtype.numpy, order="C")


def _undo(order: list[int] | None, permutation: tuple[int, ...] | None) -> list[int] | None:
    """An order of axes with a permutation undone after it."""
    if order is None or permutation is None:
        return None
    return [order[permutation.index(axis)] for axis in range(len(permutation))]


def as_bytes_view(array: Array) -> npt.NDArray[np.uint8]:
    """A contiguous array's memory as bytes, without a copy."""
    return array.reshape(-1).view(np.uint8) if array.dtype.itemsize else np.empty(0, np.uint8)


def _bits(fill: Array) -> Any:
    """A fill value as an unsigned integer of its width, or ``None`` where there is no such integer."""
    if fill.dtype.kind in "biufcmM" and fill.dtype.itemsize in _WORDS:
        return fill.reshape(1).view(f"u{fill.dtype.itemsize}")[0]
    return None


def is_fill(array: Array, fill_value: Any, bits: Any = None) -> bool:
    """Whether every element is the fill value, bit for bit (so -0.0 is not 0.0, and NaN is NaN)."""
    if not array.size:
        return True
    if bits is not None and array.dtype.isnative:
        words = array.view(bits.dtype)
        if words[(0,) * words.ndim] != bits or words[(-1,) * words.ndim] != bits:
            return False
        return _all_are(words, bits) if words.ndim else True
    if array.dtype.kind in "TO":
        # Objects may compare as they like; only what is of the same kind can be the fill value.
        kind = type(fill_value)
        return all(type(value) is kind and value == fill_value for value in array.reshape(-1).tolist())
    same = np.ascontiguousarray(array)
    fill = np.asarray(fill_value, array.dtype)
    if not fill.dtype.itemsize:
        return True
    rows = as_bytes_view(same).reshape(-1, fill.dtype.itemsize)
    return bool((rows == np.frombuffer(fill.tobytes(), np.uint8)).all())


def _all_are(words: Array, bits: Any) -> bool:
    """Whether words are all the same.

    Piece by piece: most arrays that are not empty show it soon, and what is compared stays in the cache.
    """
    words, bits = _widened(words, bits)
    step = max(1, _PIECE * len(words) // words.size)
    return all(bool((words[start : start + step] == bits).all()) for start in range(0, len(words), step))


def _widened(words: Array, bits: Any) -> tuple[Array, Any]:
    """Memory in words as long as its rows allow, so that there are fewer to compare."""
    size = words.itemsize
    if not bits.ndim and words.strides[-1] == size:
        for width in _WORDS[:0:-1]:
            if width > size and words.shape[-1] * size % width == 0:
                return words.view(f"u{width}"), np.full(width // size, bits, words.dtype).view(f"u{width}")[0]
    return words, bits
