"""``vlen-utf8`` and ``vlen-bytes`` (zarr-extensions): elements whose sizes vary.

The layout, which numcodecs shares: the number of elements, then the length and the bytes of each element. All integers
are 32-bit little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayBytesCodec, Codec
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError

__all__ = ["VlenBytesCodec", "VlenUtf8Codec"]


@dataclass(frozen=True)
class _Vlen(ArrayBytesCodec):
    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        return cls()

    def bind(self, spec: ArraySpec) -> _BoundVlen:
        if spec.dtype.name != self._data_type():
            raise MetadataError(
                f"codec {self.name!r} stores data type {self._data_type()!r}, the array has {spec.dtype.name!r}"
            )
        return _BoundVlen(self, spec)

    def _data_type(self) -> str:
        return "string" if self.name == "vlen-utf8" else "bytes"


@dataclass(frozen=True)
class VlenUtf8Codec(_Vlen):
    """``vlen-utf8``: strings of varying length, as UTF-8.

    See "vlen-utf8" in zarr-extensions.
    """

    name = "vlen-utf8"


@dataclass(frozen=True)
class VlenBytesCodec(_Vlen):
    """``vlen-bytes``: byte strings of varying length.

    See "vlen-bytes" in zarr-extensions.
    """

    name = "vlen-bytes"


class _BoundVlen(BoundWhole):
    def __init__(self, codec: _Vlen, spec: ArraySpec) -> None:
        self._codec, self._spec = codec, spec
        self._is_text = codec.name == "vlen-utf8"

    def decode(self, data: Buffer) -> Array:
        count = math.prod(self._spec.shape)
        view = bytes(data)
        if len(view) < 4 or int.from_bytes(view[:4], "little") != count:
            declared = int.from_bytes(view[:4], "little") if len(view) >= 4 else "no"
            raise self._codec.fail(f"the value has {declared} elements, expected {count}")
        values, position = [], 4
        for number in range(count):
            begin = position + 4
            position = begin + int.from_bytes(view[position:begin], "little")
            if begin > len(view) or position > len(view):
                raise self._codec.fail(f"the value is cut short at element {number} of {count}")
            values.append(view[begin:position])
        out = np.empty(count, self._spec.dtype.numpy)
        try:
            out[:] = [value.decode() for value in values] if self._is_text else values
        except UnicodeDecodeError as error:
            raise self._codec.fail(f"an element is not UTF-8: {error}") from error
        return out.reshape(self._spec.shape)

    def encode(self, array: Array) -> Buffer:
        parts = [array.size.to_bytes(4, "little")]
        for value in array.reshape(-1).tolist():
            try:
                data = value.encode() if self._is_text else _bytes(value)
            except (AttributeError, TypeError, UnicodeEncodeError) as error:
                expected = "a string" if self._is_text else "bytes"
                raise self._codec.fail(f"{value!r} is not {expected}", "encode") from error
            parts += (len(data).to_bytes(4, "little"), data)
        return b"".join(parts)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError  # bytes(5) would be five zeros
    return bytes(value)
