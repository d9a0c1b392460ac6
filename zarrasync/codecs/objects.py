"""Elements that vary in size: ``vlen-utf8`` and ``vlen-bytes``, and Python objects in Zarr v2 by codecs of numcodecs.

The layout of ``vlen-utf8`` and ``vlen-bytes``, which numcodecs shares: the number of elements, then the length and the bytes
of each element. All integers are 32-bit little-endian.
"""

from __future__ import annotations

import json
import math
import pickle
import reprlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarrasync._util.memory import BudgetExceeded, check_budget, reason_of
from zarrasync.codecs.base import ArrayBytesCodec, Codec
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.chunk_properties import memory_size, variable_budget
from zarrasync.codecs.numcodecs import numcodecs_codec
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError

_VALUE, _MAP, _MAP_ENTRY = 72, 240, 104
"""Bytes of a number or an empty container with its place in a list, of a dictionary, and of an entry in one."""
_NO_DATA = frozenset((0xC0, 0xC1, 0xC2, 0xC3))
_PAYLOAD = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Bytes after the first one of MessagePack's numbers and small extensions."""
_LENGTH_WIDTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length of byte strings, extensions and strings."""
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9))
_COUNT_WIDTHS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Bytes of the number of entries of arrays and maps."""
_MAPS = frozenset((0xDE, 0xDF))


def text_size(utf8: Buffer) -> int:
    """Return the bytes of Python's string for UTF-8. Its characters all take 1, 2 or 4 bytes."""
    octets = np.frombuffer(utf8, np.uint8)
    largest = int(octets.max(initial=0))
    width = 1 if largest < 0xC4 else 2 if largest < 0xF0 else 4
    return width * int(np.count_nonzero((octets & 0xC0) != 0x80))


def check_json(data: bytes, budget: int) -> None:
    """Check that the objects of a JSON document fit into a budget.

    Raises:
        BudgetExceeded: If they may not.
    """
    text = text_size(data)
    strings = 4 * len(data) if b"\\u" in data else text
    maps = data.count(b"{")
    values = 1 + data.count(b",") + data.count(b"[") + data.count(b":") + maps
    check_budget(budget, text + strings + _VALUE * values + _MAP * maps)


def check_msgpack(data: bytes, budget: int) -> None:
    """Check that the objects of a MessagePack value fit into a budget.

    Raises:
        BudgetExceeded: If they do not.
        ValueError: If an array declares more elements than there are bytes.
    """
    if _MAP * len(data) <= budget:  # however many objects there are
        return
    total, position = 0, 0
    while position < len(data):
        nbytes, position = _next_object(data, position)
        total += nbytes
        check_budget(budget, total, at_least=True)


def _next_object(data: bytes, position: int) -> tuple[int, int]:
    """Return the bytes of an object without those that it contains, and the position after it or of the first of these."""
    code = data[position]
    position += 1
    if code < 0x80 or code >= 0xE0 or code in _NO_DATA:
        return _VALUE, position
    if code in _PAYLOAD:
        return _VALUE, position + _PAYLOAD[code]
    if code < 0xA0 or code in _COUNT_WIDTHS:
        count, position = (code & 15, position) if code < 0xA0 else _integer(data, position, _COUNT_WIDTHS[code])
        if count > len(data) - position:
            raise ValueError(f"an array or map of {count:,} elements in {len(data) - position:,} bytes")
        is_map = code < 0x90 or code in _MAPS
        return (_MAP + _MAP_ENTRY * count if is_map else _VALUE + 8 * count), position
    length, position = (code & 31, position) if code < 0xC0 else _integer(data, position, _LENGTH_WIDTHS[code])
    end = position + length + (code in _EXTENSIONS)
    is_text = code < 0xC0 or code >= 0xD9
    return _VALUE + (text_size(memoryview(data)[position:end]) if is_text else length), end


def _integer(data: bytes, position: int, width: int) -> tuple[int, int]:
    """Return a big-endian integer, and the position after it."""
    return int.from_bytes(data[position : position + width], "big"), position + width


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


class _BoundVlen(BoundArrayBytes):
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


OBJECT_CODECS = ("json2", "msgpack2", "vlen-array", "categorize", "pickle")
"""IDs of numcodecs' object codecs. Unpickling runs code that the data refers to, so it requires a trusted store."""


@dataclass(frozen=True)
class ObjectCodec(ArrayBytesCodec):
    """Python objects as bytes, by a numcodecs codec.

    See "Filters" in the Zarr v2 specification: arrays of data type ``|O`` start with such a filter.

    Attributes:
        config: The numcodecs configuration.
    """

    config: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        if self.config.get("id") not in OBJECT_CODECS:
            raise MetadataError(
                f"{self.config.get('id')!r} is not a codec of objects; use one of {', '.join(OBJECT_CODECS)}"
            )
        numcodecs_codec(self.config)  # rejects an invalid configuration

    @property
    def label(self) -> str:
        return str(self.config["id"])

    @property
    def runs_code(self) -> bool:
        """Whether decoding runs code that the data refers to."""
        return self.label == "pickle"

    def bind(self, spec: ArraySpec) -> _BoundObjects:
        dtype_kinds = "OSU" if self.label == "categorize" else "O"
        if spec.dtype.numpy.kind not in dtype_kinds:
            raise MetadataError(f"codec {self.label!r} stores objects, the array has data type {spec.dtype.name!r}")
        return _BoundObjects(self, spec)


class _BoundObjects(BoundArrayBytes):
    def __init__(self, codec: ObjectCodec, spec: ArraySpec) -> None:
        self._codec, self._spec = codec, spec

    def decode(self, data: Buffer) -> Array:
        return self.decode_within(data, variable_budget(len(data), self._spec))

    def decode_within(self, data: Buffer, budget: int) -> Array:
        """Decode a chunk that may take so many bytes in memory."""
        try:
            encoded = bytes(data)
            self._check_size(encoded, budget)
            elements = self._objects(encoded)
        except CodecError:
            raise
        except Exception as error:  # codecs of other packages raise errors of any kind
            raise self._codec.fail(reason_of(error)) from error
        if elements.size != math.prod(self._spec.shape):
            raise self._wrong_count(elements.size)
        return elements.reshape(self._spec.shape)

    def _check_size(self, data: bytes, budget: int) -> None:
        """Check that the elements will fit into a budget. Pickles run code, so nothing is promised for them."""
        if self._codec.label == "json2":
            check_json(data, budget)
        elif self._codec.label == "msgpack2":
            check_msgpack(data, budget)
        else:
            check_budget(budget, memory_size(self._spec) + len(data))

    def _wrong_count(self, count: object) -> CodecError:
        return self._codec.fail(f"the value has {count} elements, expected {math.prod(self._spec.shape)}")

    def _objects(self, data: bytes) -> Array:
        """Return the elements. Their declared number is checked before memory is allocated for them."""
        codec, count = self._codec, math.prod(self._spec.shape)
        if codec.label in ("json2", "msgpack2"):
            items = json.loads(data) if codec.label == "json2" else _unpack_msgpack(data)
            shape = items[-1]
            is_valid = isinstance(shape, list) and len(shape) <= 64
            is_valid = is_valid and all(type(n) is int and 0 <= n <= count for n in shape)
            if not is_valid or math.prod(shape) != count:
                raise self._wrong_count(reprlib.repr(shape))
            return _flatten(items[:-2], shape, count)
        if codec.label == "vlen-array" and (declared := int.from_bytes(data[:4], "little")) != count:
            raise self._wrong_count(declared)
        if codec.label == "categorize":
            labels = len(codec.config["labels"])
            most = np.frombuffer(data, codec.config.get("astype", "u1")).max(initial=0)
            if most > labels:
                raise codec.fail(f"the value contains label {most}, but only {labels} labels")
        # Opening the array has checked config.allow_pickle.
        elements = pickle.loads(data) if codec.runs_code else numcodecs_codec(codec.config).decode(data)  # noqa: S301  # allowed by the user
        if isinstance(elements, np.ndarray):
            return np.asarray(elements, self._spec.dtype.numpy).reshape(-1)
        return _flatten(elements, (count,), count)

    def encode(self, array: Array) -> Buffer:
        try:
            data: bytes = bytes(
                numcodecs_codec(self._codec.config).encode(np.array(array, dtype=self._spec.dtype.numpy, order="C"))
            )
        except Exception as error:
            raise self._codec.fail(reason_of(error), "encode") from error
        if not self._codec.runs_code:  # pickles keep every object, and decoding them runs code
            self._check_round_trip(array.reshape(-1).tolist(), data)
        return data

    def _check_round_trip(self, values: list[Any], data: bytes) -> None:
        """Raise an error if the codec does not store one of the values: numcodecs casts and drops without notice."""
        try:
            decoded = self._objects(data).reshape(-1).tolist()
        except Exception as error:
            raise self._codec.fail(f"the values cannot be read back: {error}", "encode") from error
        for value, result in zip(values, decoded, strict=True):
            try:
                is_same = _is_same(value, result)
            except Exception:  # objects of the user define how they compare
                is_same = False
            if not is_same:
                raise self._codec.fail(f"{reprlib.repr(value)} would be read back as {reprlib.repr(result)}", "encode")


def _is_same(value: Any, decoded: Any) -> bool:
    """Return whether a decoded object has the value that was encoded. Sequences may change their type."""
    if value is None:
        is_sequence = isinstance(decoded, str | bytes | list | tuple | np.ndarray)
        return decoded is None or (is_sequence and len(decoded) == 0)  # codecs of strings and arrays have no None
    if isinstance(value, np.ndarray) and value.dtype.kind != "O" and isinstance(decoded, np.ndarray):
        return np.array_equal(value, decoded, equal_nan=value.dtype.kind in "fcmM")
    if isinstance(value, list | tuple | np.ndarray):
        are_sequences = isinstance(decoded, list | tuple | np.ndarray) and len(value) == len(decoded)
        return are_sequences and all(map(_is_same, value, decoded))
    if isinstance(value, Mapping):
        are_mappings = isinstance(decoded, Mapping) and value.keys() == decoded.keys()
        return are_mappings and all(_is_same(item, decoded[key]) for key, item in value.items())
    return bool(value == decoded) or (value != value and decoded != decoded)  # NaN


def _unpack_msgpack(data: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def _flatten(items: Any, shape: Sequence[int], count: int) -> Array:
    """Return the elements of nested lists, one level per axis, as a flat array of objects."""
    for _ in shape[1:]:
        items = [item for inner in items for item in inner]
    if len(items) != count:
        raise ValueError(f"{len(items)} elements, but {count} are declared")
    out = np.empty(count, object)
    for number, item in enumerate(items):  # NumPy would turn lists of equal length into axes
        out[number] = item
    return out
