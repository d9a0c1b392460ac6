"""``packbits`` (zarr-extensions): elements without their unused bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayBytesCodec
from zarrasync.codecs.elements import check_limits
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError

__all__ = ["PackbitsCodec"]


@dataclass(frozen=True)
class PackbitsCodec(ArrayBytesCodec):
    """``packbits``: the significant bits of elements without gaps, the lowest first.

    See "packbits" in zarr-extensions.

    Attributes:
        padding_encoding: Position of a byte with the number of padding bits: ``"first_byte"``, ``"last_byte"`` or
            ``"none"``.
        first_bit: The lowest bit that is kept; ``None`` for the lowest of the data type.
        last_bit: The highest bit that is kept; ``None`` for the highest of the data type.
    """

    name = "packbits"
    padding_encoding: str = "none"
    first_bit: int | None = None
    last_bit: int | None = None

    def __post_init__(self) -> None:
        if self.padding_encoding not in ("none", "first_byte", "last_byte"):
            raise ValueError(
                f"padding_encoding must be 'none', 'first_byte' or 'last_byte'; found {self.padding_encoding!r}"
            )
        for bit in (self.first_bit, self.last_bit):
            if bit is not None and (type(bit) is not int or bit < 0):
                raise ValueError(f"bit numbers must be integers of at least 0, found {bit!r}")

    def configuration(self) -> dict[str, Any]:
        padding = {"padding_encoding": self.padding_encoding} if self.padding_encoding != "none" else {}
        bits = {"first_bit": self.first_bit, "last_bit": self.last_bit}
        return {**padding, **{name: bit for name, bit in bits.items() if bit is not None}}

    def bind(self, spec: ArraySpec) -> _BoundPackbits:
        return _BoundPackbits(self, spec)


class _BoundPackbits(BoundWhole):
    def __init__(self, codec: PackbitsCodec, spec: ArraySpec) -> None:
        data_type = spec.dtype
        has_numpy_bits = data_type.numpy.kind in "biufcmM" or data_type.bits < 8 or data_type.name.endswith("float16")
        is_small_float = data_type.name.removeprefix("complex_").startswith(("bfloat", "float"))
        if data_type.is_variable or not (has_numpy_bits or is_small_float):
            raise MetadataError(f"codec 'packbits' packs numbers, not data type {data_type.name!r}")
        self._codec, self._spec = codec, spec
        self._width = 8 * data_type.numpy.itemsize // data_type.components
        self._first = codec.first_bit or 0
        self._last = data_type.bits - 1 if codec.last_bit is None else codec.last_bit
        if not self._first <= self._last < data_type.bits:
            raise MetadataError(
                f"codec 'packbits': bits {self._first} to {self._last} of data type {data_type.name!r}, "
                f"which has {data_type.bits}"
            )
        self._count = math.prod(spec.shape) * data_type.components
        self._bits_per_number = self._last - self._first + 1
        self._packed_size = -(-self._count * self._bits_per_number // 8)
        self._padding = 8 * self._packed_size - self._count * self._bits_per_number
        self.encoded_size: int | None = self._packed_size + (codec.padding_encoding != "none")

    def encode(self, array: Array) -> Buffer:
        data_type = self._spec.dtype
        check_limits(self._codec, array, data_type.limits)
        little = np.ascontiguousarray(array).astype(data_type.numpy.newbyteorder("<"), copy=False)
        octets = np.frombuffer(little.tobytes(), np.uint8).reshape(self._count, self._width // 8)
        bits = np.unpackbits(octets, axis=1, bitorder="little")[:, self._first : self._last + 1]
        packed = np.packbits(bits.reshape(-1), bitorder="little").tobytes()
        padding = bytes([self._padding])
        position = self._codec.padding_encoding
        return padding + packed if position == "first_byte" else packed + padding if position == "last_byte" else packed

    def decode(self, data: Buffer) -> Array:
        packed = self._without_padding_byte(np.frombuffer(data, np.uint8))
        if len(packed) != self._packed_size:
            raise self._codec.fail(f"the value has {len(packed)} bytes of packed bits, expected {self._packed_size}")
        data_type = self._spec.dtype
        bits = np.zeros((self._count, self._width), np.uint8)
        unpacked = np.unpackbits(packed, count=self._count * self._bits_per_number, bitorder="little")
        bits[:, self._first : self._last + 1] = unpacked.reshape(self._count, self._bits_per_number)
        if data_type.numpy.kind == "i":
            bits[:, self._last + 1 :] = bits[:, self._last, np.newaxis]  # extend the sign
        octets = np.packbits(bits, axis=1, bitorder="little")
        little = data_type.numpy.newbyteorder("<")
        return np.frombuffer(octets.tobytes(), little).reshape(self._spec.shape)

    def _without_padding_byte(self, encoded: Array) -> Array:
        position = self._codec.padding_encoding
        # Some writers omit the byte if all bits are kept.
        is_omitted = self._bits_per_number == self._width and len(encoded) == self._packed_size
        if position == "none" or is_omitted or not len(encoded):
            return encoded
        padding = int(encoded[0] if position == "first_byte" else encoded[-1])
        if padding != self._padding:
            raise self._codec.fail(f"it declares {padding} bits of padding, expected {self._padding}")
        return encoded[1:] if position == "first_byte" else encoded[:-1]
