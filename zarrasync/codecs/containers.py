"""Codecs that contain other codecs and add a header: ``conditional`` and ``n5_default``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayBytesCodec, BytesBytesCodec, Codec, Out, check_members
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError


@dataclass(frozen=True)
class ConditionalCodec(BytesBytesCodec):
    """``conditional``: codecs that are applied to a chunk if they make it smaller; a header lists which were applied.

    See "conditional" in zarr-extensions.

    Attributes:
        codecs: Bytes -> bytes codecs, in the order of encoding.
        header_bits: Bits of the header, a multiple of 8; ``None`` for as many as are needed.
    """

    name = "conditional"
    codecs: tuple[BytesBytesCodec, ...]
    header_bits: int | None = None

    def __post_init__(self) -> None:
        bits = self.header_bits
        if bits is not None and (type(bits) is not int or bits % 8 or not len(self.codecs) <= bits <= 1 << 16):
            raise ValueError(f"header_bits must be a multiple of 8 of at least {len(self.codecs)}, found {bits!r}")

    @classmethod
    def parse(
        cls, configuration: Mapping[str, Any], parse_codec: Callable[[Any, str], Codec | None]
    ) -> ConditionalCodec:
        """Return the codec of a document; ``parse_codec`` parses an entry of the inner list."""
        check_members(configuration, "codecs", "header_bits")
        codecs: list[BytesBytesCodec] = []
        for number, entry in enumerate(configuration["codecs"]):
            codec = parse_codec(entry, f"codecs[{number}]")
            if not isinstance(codec, BytesBytesCodec):
                raise ValueError(f"codecs must be bytes -> bytes codecs, found {entry!r}")
            codecs.append(codec)
        return cls(tuple(codecs), configuration.get("header_bits"))

    def configuration(self) -> dict[str, Any]:
        header = {} if self.header_bits is None else {"header_bits": self.header_bits}
        return {"codecs": [codec.to_json() for codec in self.codecs], **header}

    def settle(self, spec: ArraySpec) -> Codec:
        settled = tuple(codec.settle(spec) for codec in self.codecs)
        return ConditionalCodec(settled, self.header_bits)  # type: ignore[arg-type]  # settled codecs keep their kind

    @property
    def _header_size(self) -> int:
        return (self.header_bits or 8 * -(-len(self.codecs) // 8)) // 8

    def encode(self, data: Buffer) -> Buffer:
        applied = 0
        for number, codec in enumerate(self.codecs):
            encoded = codec.encode(data)
            if len(encoded) < len(data):
                data, applied = encoded, applied | 1 << number
        return b"".join((applied.to_bytes(self._header_size, "little"), data))

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        view = memoryview(data)
        if len(view) < self._header_size:
            raise self.fail(f"a value of {len(view)} bytes is shorter than the header of {self._header_size} bytes")
        applied = int.from_bytes(view[: self._header_size], "little")
        if applied >> len(self.codecs):
            raise self.fail(f"its header refers to more than the {len(self.codecs)} configured codecs")
        content: Buffer = view[self._header_size :]
        applied_codecs = [codec for number, codec in enumerate(self.codecs) if applied >> number & 1]
        for codec in reversed(applied_codecs):
            content = codec.decode(content, size if codec is applied_codecs[0] else None, limit, None)
        if size is not None and len(content) != size:
            raise self.fail(f"the result has {len(content)} bytes, expected {size}")
        return content


_DATA_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


@dataclass(frozen=True)
class N5Codec(ArrayBytesCodec):
    """``n5_default``: a header with the block's shape, then big-endian elements with the first axis fastest.

    See "n5_default" in zarr-extensions.

    Attributes:
        codecs: The codecs of the bytes after the header: ``transpose``, ``bytes``, and at most one compressor.
    """

    name = "n5_default"
    codecs: CodecChain

    def __post_init__(self) -> None:
        orders = [codec.permutation for codec in self.codecs.array_array]
        is_reversed = len(orders) == 1 and orders[0] is not None and orders[0] == tuple(reversed(range(len(orders[0]))))
        serializer = self.codecs.array_bytes
        is_big_endian = isinstance(serializer, BytesCodec) and serializer.endian in ("big", None)
        if not is_reversed or not is_big_endian or len(self.codecs.bytes_bytes) > 1:
            raise ValueError(
                "codecs must be 'transpose' (reversed axes), 'bytes' (big-endian), and at most one compressor"
            )

    @classmethod
    def parse(cls, configuration: Mapping[str, Any], parse_codecs: Callable[[Any, str], CodecChain]) -> N5Codec:
        """Return the codec of a document; ``parse_codecs`` parses the inner list."""
        check_members(configuration, "codecs")
        return cls(parse_codecs(configuration["codecs"], "codecs"))

    def configuration(self) -> dict[str, Any]:
        return {"codecs": [codec.to_json() for codec in self.codecs.codecs]}

    def has_checksum(self) -> bool:
        return self.codecs.has_checksum()

    def bind(self, spec: ArraySpec) -> _BoundN5:
        return _BoundN5(self, spec)


class _BoundN5(BoundArrayBytes):
    def __init__(self, codec: N5Codec, spec: ArraySpec) -> None:
        if spec.dtype.numpy.kind not in "iuf" or spec.dtype.bits < 8 or spec.dtype.name not in _DATA_TYPES:
            raise MetadataError(f"codec 'n5_default' stores numbers, not data type {spec.dtype.name!r}")
        self._codec, self._spec = codec, spec
        self._full_block = codec.codecs.bind(spec)
        self._most_elements = 4 * math.prod(spec.shape) + (1 << 20)
        self.encoded_limit = 4 + 4 * len(spec.shape) + self._most_elements * spec.dtype.numpy.itemsize

    def encode(self, array: Array) -> Buffer:
        shape = self._spec.shape
        header = np.array([0, len(shape)], ">u2").tobytes() + np.array(shape, ">u4").tobytes()
        body = self._full_block.encode(array)
        assert body is not None
        return b"".join((header, body))

    def decode(self, data: Buffer) -> Array:
        shape, view = self._spec.shape, memoryview(data)
        start = 4 + 4 * len(shape)
        if len(view) < start:
            raise self._codec.fail(f"a value of {len(view)} bytes is shorter than the header of {start} bytes")
        mode, ndim = np.frombuffer(view[:4], ">u2").tolist()
        if mode != 0 or ndim != len(shape):
            raise self._codec.fail(f"a block of mode {mode} with {ndim} dimensions, expected mode 0 with {len(shape)}")
        block_shape = tuple(np.frombuffer(view[4:start], ">u4").tolist())
        if block_shape == shape:
            return self._full_block.decode(view[start:])
        if math.prod(block_shape) > self._most_elements:
            raise self._codec.fail(f"a block of shape {block_shape} in an array of chunks {shape}")
        # Blocks at the edge may end there, or reach beyond the chunk.
        block = self._codec.codecs.bind(self._spec.replace(shape=block_shape)).decode(view[start:])
        chunk = self._spec.new_array()
        common = tuple(slice(0, min(a, b)) for a, b in zip(block_shape, shape, strict=True))
        chunk[common] = block[common]
        return chunk
