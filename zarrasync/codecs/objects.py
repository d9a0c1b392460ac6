"""Arrays of Python objects in Zarr v2, by codecs of numcodecs: JSON, MessagePack, nested arrays and pickles."""

from __future__ import annotations

import json
import math
import pickle
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarrasync._util.output_budget import check_budget, reason_of
from zarrasync.codecs.base import ArrayBytesCodec
from zarrasync.codecs.chunk_budget import memory_size, variable_budget
from zarrasync.codecs.numcodecs import numcodecs_codec
from zarrasync.codecs.object_sizes import check_json, check_msgpack
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError

__all__ = ["OBJECT_CODECS", "ObjectCodec"]

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


class _BoundObjects(BoundWhole):
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
        elements = pickle.loads(data) if codec.runs_code else numcodecs_codec(codec.config).decode(data)  # noqa: S301
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
    return bool(value == decoded) or (value != value and decoded != decoded)  # noqa: PLR0124  # NaN


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
