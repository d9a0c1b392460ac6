"""Chains of codecs: ``CodecChain`` is checked once, and ``BoundChain`` decodes and encodes one kind of chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zarrasync._util.memory import OutputBudget
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Decoder, Out
from zarrasync.codecs.byte_ranges import BoundArrayBytes, Locator
from zarrasync.codecs.chunk_properties import (
    ArrayStep,
    decoded_axis_order,
    encoded_sizes,
    fixed_budget,
    memory_size,
    run_length,
    variable_budget,
)
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.codecs.third_party import checked, checked_serializer
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.projection import Projection
from zarrasync.model.fill_values import fill_word, is_fill, rows_with_only

_CHEAP_COPY = 1 << 15
"""Bytes of a decoded chunk below which one more copy is cheaper than another step of the interpreter."""
_MOST = 1 << 62
"""Bytes of an encoded chunk if only memory limits them."""
_MARGIN = 1 << 16
"""How many bytes a stored value may be longer than expected before it is refused."""


class BoundChain:
    """A chain of codecs bound to one kind of chunk.

    The attributes are computed once, so that code that runs for every chunk only reads them.

    Attributes:
        spec: The spec of the decoded chunk.
        nbytes: Bytes of a decoded chunk in memory, without the content of elements that vary in size.
        raw_size: Bytes of a raw chunk, which the array -> bytes codec returns; ``None`` if that depends on the data.
        encoded_size: Bytes of an encoded chunk; ``None`` if that depends on the data.
        read_size_hint: Size of a buffer that holds most encoded chunks; 0 if unknown.
        stored_dtype: The dtype of the stored elements if raw bytes are just the elements in C order, else ``None``.
        is_raw: Whether encoded bytes are just the elements.
        decodes_to_output: Whether raw bytes are the chunk's own memory, so that a chunk can be decoded straight into a
            contiguous block of the output.
        decodes_into_buffer: Whether large chunks are decoded into memory of the caller without a copy.
        supports_partial_reads: Whether parts of an encoded chunk can be located and decoded on their own.
        is_quick: Whether small chunks decode so quickly that an event loop may do it itself.
        run_length: How many chunks to decode into one block of memory and place in one step; 1 if that does not help.
        memory_axis_order: For each axis its position in the memory of decoded elements (of inner chunks in
            shards), the slowest first; ``None`` for C order or if it depends on the data.
        innermost_chain: The chain of the smallest parts that can be read alone: inner chunks of shards, or chunks.
    """

    def __init__(
        self,
        array_array: Sequence[ArrayArrayCodec],
        array_bytes: ArrayBytesCodec,
        bytes_bytes: Sequence[BytesBytesCodec],
        spec: ArraySpec,
    ) -> None:
        self.spec = spec
        self.nbytes = memory_size(spec)
        self._is_variable = spec.nbytes is None
        self._array_steps, stored_spec = _array_steps(array_array, spec)
        self._serializer = serializer = checked_serializer(array_bytes, stored_spec)
        self._compressors = tuple(map(checked, bytes_bytes))

        self._sizes = encoded_sizes(serializer.encoded_size, bytes_bytes)
        raw_size, self.encoded_size = self._sizes[0], self._sizes[-1]
        self.raw_size = raw_size
        # Most encoded chunks are at most an eighth and 4 KiB larger than the raw chunk.
        self.read_size_hint = self.encoded_size or (raw_size + raw_size // 8 + 4096 if raw_size else 0)
        self._budget = fixed_budget(raw_size, getattr(serializer, "encoded_limit", None), spec)
        decoders = [] if self._is_variable or self._budget is None else self._make_decoders(self._budget)
        # The first codec decodes last. Only its result may go into memory of the caller.
        self._decode_outer, self._decode_last = tuple(decoders[:-1]), decoders[-1] if decoders else None

        self._inner_chain: BoundChain | None = getattr(serializer, "inner", None)
        inner = self._inner_chain
        self.innermost_chain: BoundChain = self if inner is None else inner.innermost_chain
        stored_dtype = self.stored_dtype = serializer.stored_dtype
        self.is_raw = stored_dtype is not None and not self._compressors
        self.decodes_into_buffer = self._compressors[0].fills if self._compressors else stored_dtype is not None
        self.supports_partial_reads: bool = (
            not self._compressors
            and getattr(serializer, "divisible", True)
            and all(codec.permutation is not None for codec, _ in self._array_steps)
        )
        self.is_quick = raw_size is not None and all(codec.brief for codec in (*array_array, array_bytes, *bytes_bytes))
        self._fill_word = fill_word(spec.scalar)

        self._stored_shape = stored_spec.shape
        inner_order = None if inner is None else inner.memory_axis_order
        order = decoded_axis_order(inner_order or list(range(len(stored_spec.shape))), self._array_steps)
        # For each axis of the chunk, its number in the stored shape; ``None`` if decoding takes more than a view.
        self._view_axes = order if stored_dtype is not None and raw_size else None
        memory_order = self._view_axes if inner is None else order
        self.memory_axis_order = None if memory_order is None or memory_order == sorted(memory_order) else memory_order
        # NumPy considers None equal to the dtype float64, so compare with None first.
        is_native = stored_dtype is not None and stored_dtype == spec.dtype.numpy
        self.decodes_to_output = not self._array_steps and is_native and bool(raw_size)
        self.run_length = 1
        if self._view_axes is not None and raw_size:
            self.run_length = run_length(raw_size, decodes_into_buffer=self.decodes_into_buffer)

    def _make_decoders(self, budget: int) -> list[Decoder]:
        """Return the functions that undo the bytes -> bytes codecs within a budget, in the order of decoding."""
        codecs = zip(self._compressors, self._sizes, strict=False)
        return [codec.decoder(size, budget) for codec, size in codecs][::-1]

    @property
    def size_bounds(self) -> tuple[int, int]:
        """The least and the most bytes of an encoded chunk."""
        if self.encoded_size is not None:
            return self.encoded_size, self.encoded_size
        return 0, _MOST if self._budget is None else 2 * self._budget

    @property
    def compressors(self) -> Sequence[tuple[BytesBytesCodec, int | None]]:
        """The bytes -> bytes codecs, each with the number of bytes that it decodes to, if that is known."""
        return list(zip(self._compressors, self._sizes, strict=False))

    @property
    def sharding(self) -> BoundArrayBytes | None:
        """The codec of shards whose parts can be read alone, if no axes are reordered before it."""
        return self._serializer if self._inner_chain and self.supports_partial_reads and not self._array_steps else None

    @property
    def raw_strides(self) -> tuple[int, ...] | None:
        """The distance in bytes of neighbouring elements in a raw chunk along each axis; see ``view_chunks``."""
        if self._view_axes is None or self.stored_dtype is None:
            return None
        sizes = [self.stored_dtype.itemsize]
        for length in self._stored_shape[:0:-1]:
            sizes.append(sizes[-1] * length)
        return tuple(sizes[len(sizes) - 1 - axis] for axis in self._view_axes)

    @property
    def value_limit(self) -> int | None:
        """Maximum number of bytes to read of a stored value: enough to decode it, or to report that it is too long."""
        largest = self.size_bounds[1]
        if largest >= _MOST:
            return None
        origin = self._budget.origin if self._is_variable and self._budget else f"a chunk has {self.nbytes:,} bytes"
        return OutputBudget(2 * largest + _MARGIN, origin)

    # -------------------------------------------------------------- decoding whole chunks

    def decode(self, data: Buffer, workspace: npt.NDArray[np.uint8] | None = None) -> Array:
        """Decode a chunk.

        Args:
            data: The encoded bytes.
            workspace: Memory of ``raw_size`` bytes for the last step; the result may live in it.

        Returns:
            An array of the chunk's shape. It may share memory with ``data`` or ``workspace`` and may have the stored
            byte order.

        Raises:
            CodecError: If the bytes are damaged.
        """
        if self._is_variable:
            array = self._decode_variable(data)
        else:
            array = self._serializer.decode(self._decompress(data, workspace))
        for codec, spec in reversed(self._array_steps):
            array = codec.decode(array, spec)
        if array.shape != self.spec.shape:
            raise CodecError(f"the result has shape {array.shape}, expected {self.spec.shape}")
        return array

    def _decompress(self, data: Buffer, out: Out) -> Buffer:
        for decode in self._decode_outer:
            data = decode(data, None)
        return data if self._decode_last is None else self._decode_last(data, out)

    def _decode_variable(self, data: Buffer) -> Array:
        """Undo all codecs but the array -> array codecs, within a budget that may depend on the stored bytes."""
        budget = variable_budget(len(data), self.spec)
        for decode in self._make_decoders(budget):
            data = decode(data, None)
        decode_within = getattr(self._serializer, "decode_within", None)
        array: Array = self._serializer.decode(data) if decode_within is None else decode_within(data, budget)
        return array

    def decompress_into(self, values: Sequence[Buffer], rows: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Undo the bytes -> bytes codecs of several chunks, each into its own memory.

        Args:
            values: The encoded chunks. Raw chunks may already be the corresponding row.
            rows: Memory of ``raw_size`` bytes for each.

        Raises:
            CodecError: If the bytes are damaged.
        """
        for value, row in zip(values, rows, strict=True):
            data = value if value is row else self._decompress(value, row)
            if data is not row:
                if len(data) != len(row):
                    self._serializer.decode(data)  # raises an error that names the sizes
                if len(row) >= _CHEAP_COPY:
                    row[...] = np.frombuffer(data, np.uint8)  # releases the GIL
                else:
                    memoryview(row)[:] = memoryview(data).cast("B")

    def view_chunks(self, rows: npt.NDArray[np.uint8]) -> Array | None:
        """Return a view of raw chunks, one per row, as an array of shape ``(number, *shape)``.

        ``None`` if decoding takes more than a view.
        """
        if self._view_axes is None:
            return None
        assert self.stored_dtype is not None
        stack = rows.view(self.stored_dtype).reshape(len(rows), *self._stored_shape)
        return stack.transpose(0, *(axis + 1 for axis in self._view_axes))

    # -------------------------------------------------------------- encoding whole chunks

    def encode(self, array: Array) -> Buffer | None:
        """Encode a chunk of the full shape; ``None`` if nothing needs storing (an empty shard).

        Raises:
            CodecError: If a codec cannot represent a value.
        """
        for codec, spec in self._array_steps:
            array = codec.encode(array, spec)
        data = self._serializer.encode(array)
        if data is not None:
            data = self.compress(data)
        return data

    def compress(self, data: Buffer) -> Buffer:
        """Apply the bytes -> bytes codecs to a raw chunk."""
        for codec in self._compressors:
            data = codec.encode(data)
        return data

    def encode_rows(self, rows: npt.NDArray[np.uint8], *, keep_empty: bool = False) -> list[Buffer | None]:
        """Encode raw chunks, one per row (see ``view_chunks``); ``None`` for those that hold only the fill value.

        Args:
            rows: The raw chunks.
            keep_empty: Whether to encode chunks that hold only the fill value as well.
        """
        keep_empty |= self.spec.undefined
        is_empty = np.zeros(len(rows), np.bool_) if keep_empty else self._fill_rows(rows)
        values: Sequence[Buffer] = list(rows[~is_empty] if is_empty.any() else rows)
        for codec in self._compressors:
            values = [codec.encode(value) for value in values]
        remaining = iter(values)
        return [None if empty else next(remaining) for empty in is_empty.tolist()]

    def encode_fill_chunk(self) -> Buffer:
        """Encode a chunk that holds only the fill value, for callers that need a stored value."""
        data = self.encode(self.spec.new_array())
        if data is not None:
            return data
        return self.compress(self._serializer.encode_empty())  # type: ignore[attr-defined]  # only shards encode to None

    def is_fill(self, array: Array) -> bool:
        """Return whether every element is the fill value, bit for bit. Always false if the array has no fill value."""
        return not self.spec.undefined and is_fill(array, self.spec.fill_value, self._fill_word)

    def _fill_rows(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return for each raw chunk whether it holds only the fill value."""
        assert self.stored_dtype is not None
        return rows_with_only(rows, np.frombuffer(self.spec.scalar.astype(self.stored_dtype).tobytes(), np.uint8))

    # -------------------------------------------------------------- parts of chunks

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """Return a search for the bytes of a projection, or ``None`` if only whole chunks can be decoded."""
        if not self.supports_partial_reads:
            return None
        return self._serializer.locate(*self._permute(projection, out))

    def decoded_bytes(self, projection: Projection, out: Array) -> int:
        """Estimate how many bytes have to be decoded to read a projection."""
        if not self.supports_partial_reads:
            return self.nbytes
        inner = self._inner_chain
        if inner is None:
            return projection.size * out.itemsize
        touched = self._permute(projection, out)[0].count_chunks(inner.spec.shape)
        return min(self.nbytes, inner.nbytes * touched)

    def merge(self, data: Buffer | None, projection: Projection, values: Array) -> tuple[Buffer | None, bool]:
        """Replace the elements of a projection.

        Args:
            data: The stored chunk, or ``None`` if it is absent.
            projection: The elements to replace; its targets refer to ``values``.
            values: The new values.

        Returns:
            The encoded chunk, and whether it holds only the fill value now.
        """
        if self._inner_chain is not None and self.supports_partial_reads:
            # Inner chunks that are not touched stay as they are, also absent.
            merged = self._serializer.merge(data, *self._permute(projection, values))  # type: ignore[arg-type]  # shards may be absent
            return merged, merged is None
        chunk = self.spec.new_array() if data is None else np.array(self.decode(data), self.spec.dtype.numpy, order="C")
        projection.write(chunk, values)
        return self.encode(chunk), self.is_fill(chunk)

    def _permute(self, projection: Projection, out: Array) -> tuple[Projection, Array]:
        """Return a projection and its output with the axes that the array -> bytes codec receives."""
        for codec, _ in self._array_steps:
            assert codec.permutation is not None
            projection, out = projection.permute(codec.permutation, out)
        return projection, out


def _array_steps(codecs: Sequence[ArrayArrayCodec], spec: ArraySpec) -> tuple[tuple[ArrayStep, ...], ArraySpec]:
    """Return each array -> array codec with the spec it receives, and the spec after all of them."""
    steps: list[ArrayStep] = []
    for codec in codecs:
        steps.append((checked(codec), spec))
        spec = codec.encoded_spec(spec)
    return tuple(steps), spec


@dataclass(frozen=True, slots=True)
class CodecChain:
    """Codecs in the order of encoding.

    See "Codecs" in the Zarr v3 core specification.

    Attributes:
        array_array: The array -> array codecs.
        array_bytes: The array -> bytes codec.
        bytes_bytes: The bytes -> bytes codecs.
    """

    array_array: tuple[ArrayArrayCodec, ...]
    array_bytes: ArrayBytesCodec
    bytes_bytes: tuple[BytesBytesCodec, ...]

    @classmethod
    def of(cls, codecs: Iterable[Codec]) -> CodecChain:
        """Return the chain of a list of codecs.

        Raises:
            MetadataError: If they are out of order or there is not exactly one array -> bytes codec.
        """
        codecs = tuple(codecs)
        names = ", ".join(codec.label for codec in codecs) or "none"
        serializers = [codec for codec in codecs if isinstance(codec, ArrayBytesCodec)]
        if len(serializers) != 1:
            raise MetadataError(
                f"codecs need exactly one array -> bytes codec (such as 'bytes'), found {len(serializers)} in: {names}"
            )
        position = codecs.index(serializers[0])
        before, after = codecs[:position], codecs[position + 1 :]
        array_array = tuple(codec for codec in before if isinstance(codec, ArrayArrayCodec))
        bytes_bytes = tuple(codec for codec in after if isinstance(codec, BytesBytesCodec))
        if len(array_array) != len(before) or len(bytes_bytes) != len(after):
            raise MetadataError(
                f"codecs are out of order: array -> array, then {serializers[0].label}, then bytes -> bytes; "
                f"found {names}"
            )
        return cls(array_array, serializers[0], bytes_bytes)

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """All codecs, in order."""
        return (*self.array_array, self.array_bytes, *self.bytes_bytes)

    def settle(self, spec: ArraySpec) -> CodecChain:
        """Return the chain with open parameters of its codecs, such as an element size, set for a kind of chunk."""
        settled: list[Codec] = []
        for codec in self.codecs:
            settled_codec = codec.settle(spec)
            settled.append(settled_codec)
            if isinstance(settled_codec, ArrayArrayCodec):
                spec = settled_codec.encoded_spec(spec)
        return CodecChain.of(settled)

    def has_checksum(self, data: Buffer | None = None) -> bool:
        """Return whether encoded bytes contain checksums of all elements, so that reading detects damage.

        Args:
            data: The encoded bytes, if they are known.
        """
        if not self.bytes_bytes:
            return self.array_bytes.has_checksum()
        *inner, outer = self.bytes_bytes
        others: tuple[ArrayBytesCodec | BytesBytesCodec, ...] = (self.array_bytes, *inner)
        return outer.has_checksum(data) or any(codec.has_checksum() for codec in others)

    def bind(self, spec: ArraySpec) -> BoundChain:
        """Bind the chain to one kind of chunk.

        Raises:
            MetadataError: If a codec does not support the arrays it would receive.
        """
        return BoundChain(self.array_array, self.array_bytes, self.bytes_bytes, spec)
