"""``n5_default`` (zarr-extensions): the blocks of N5 datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayBytesCodec
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.configuration import check_members
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError

__all__ = ["N5Codec"]

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


class _BoundN5(BoundWhole):
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
