"""``vlen-utf8`` and ``vlen-bytes`` (zarr-extensions): elements whose sizes vary.

The layout, which numcodecs shares: the number of elements, then the length and the bytes of each element. All integers
are 32-bit little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync._util.output_budget import BudgetExceeded, check_budget, reason_of
from zarrasync.codecs.base import ArrayBytesCodec, Codec
from zarrasync.codecs.chunk_budget import memory_size, variable_budget
from zarrasync.codecs.object_sizes import text_size
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError

__all__ = ["VlenBytesCodec", "VlenUtf8Codec"]

_BLOCK = 1 << 20
"""Bytes of elements that are copied to the result at a time."""
_LONG = 1 << 16
"""Bytes of an element from which on the width of its characters in memory matters."""
_length_at = struct.Struct("<I").unpack_from


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
        return self.decode_within(data, variable_budget(len(data), self._spec))

    def decode_within(self, data: Buffer, budget: int) -> Array:
        """Decode a chunk that may take so many bytes in memory."""
        count, view = math.prod(self._spec.shape), bytes(data)
        if len(view) < 4 or int.from_bytes(view[:4], "little") != count:
            declared = int.from_bytes(view[:4], "little") if len(view) >= 4 else "no"
            raise self._codec.fail(f"the value has {declared} elements, expected {count}")
        content_size = len(view) - 4 - 4 * count
        if content_size < 0:
            raise self._codec.fail(f"the value is cut short: {len(view)} bytes with {count} elements")
        try:
            check_budget(budget, memory_size(self._spec) + content_size)
            out = np.empty(count, self._spec.dtype.numpy)
            for first, elements in self._blocks(view, count):
                out[first : first + len(elements)] = self._texts(elements, budget) if self._is_text else elements
        except UnicodeDecodeError as error:
            raise self._codec.fail(f"an element is not UTF-8: {error}") from error
        except (BudgetExceeded, MemoryError) as error:
            raise self._codec.fail(reason_of(error)) from error
        return out.reshape(self._spec.shape)

    def _blocks(self, view: bytes, count: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield elements in blocks, so that only some of them exist twice, each with the number of its first element."""
        elements, first, position, end_of_block, size = list[bytes](), 0, 4, _BLOCK, len(view)
        for number in range(count):
            begin = position + 4
            if begin > size or (position := begin + _length_at(view, position)[0]) > size:
                raise self._codec.fail(f"the value is cut short at element {number} of {count}")
            elements.append(view[begin:position])
            if position > end_of_block:
                yield first, elements
                elements, first, end_of_block = [], number + 1, position + _BLOCK
        if elements:
            yield first, elements

    def _texts(self, elements: Sequence[bytes], budget: int) -> list[str]:
        if max(map(len, elements)) > _LONG:
            check_budget(budget, max(map(text_size, elements)))
        return [element.decode() for element in elements]

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
