"""``bytes``: elements in C order, and ``transpose``: axes in another order (Zarr v3 core codecs)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec
from zarrasync.codecs.bound_chain import BoundChain
from zarrasync.codecs.partial import Locator, Piece
from zarrasync.codecs.spec import Array, ArraySpec, Buffer, as_bytes_view
from zarrasync.errors import MetadataError
from zarrasync.indexing.axis_order import assign
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection
from zarrasync.model.dtypes import has_order

__all__ = ["BytesCodec", "TransposeCodec"]

_WORTHWHILE = 1 << 14
"""Chunks of fewer bytes are read whole: finding a part of one would cost more."""


@dataclass(frozen=True)
class BytesCodec(ArrayBytesCodec):
    """The elements one after the other, in C order, without padding.

    Attributes:
        endian: ``"little"`` or ``"big"``; ``None`` for elements of one byte.
        stored: The exact dtype of the stored elements where one word for all does not say it
            (structured types of mixed byte order, which v2 has).
    """

    name = "bytes"
    brief = True
    endian: str | None = "little"
    stored: np.dtype[Any] | None = None

    def __post_init__(self) -> None:
        if self.endian not in ("little", "big", None):
            raise ValueError(f"endian is 'little' or 'big', found {self.endian!r}")

    def configuration(self) -> dict[str, Any]:
        return {"endian": self.endian} if self.endian else {}

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        if unknown := set(configuration) - {"endian"}:
            raise ValueError(f"unknown member {min(unknown)!r}")
        return cls(configuration.get("endian"))

    def settle(self, spec: ArraySpec) -> Codec:
        if self.stored is not None:
            if self.stored.fields is not None:
                return self
            big = self.stored.newbyteorder(">") == self.stored
            return BytesCodec(("big" if big else "little") if has_order(self.stored) else None)
        if not has_order(spec.dtype.numpy):
            return replace(self, endian=None)
        return replace(self, endian=self.endian or sys.byteorder)

    def stored_form(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype that elements have when stored."""
        if self.stored is not None:
            return self.stored
        if self.endian is None:  # a structured type needs none (zarr-python writes none), and is little then
            return dtype if dtype.fields is None else dtype.newbyteorder("<")
        return dtype.newbyteorder("<" if self.endian == "little" else ">")

    def bind(self, spec: ArraySpec) -> _BoundBytes:
        return _BoundBytes(self, spec)


class _BoundBytes:
    __slots__ = ("_codec", "_small", "_spec", "_stored", "divisible", "encoded_size", "stored_dtype")

    def __init__(self, codec: BytesCodec, spec: ArraySpec) -> None:
        dtype = spec.dtype.numpy
        if spec.dtype.is_variable:
            raise MetadataError(
                f"codec 'bytes' can not store data type {spec.dtype.name!r}, whose elements vary in size; "
                "use 'vlen-utf8' or 'vlen-bytes'"
            )
        if codec.stored is None and codec.endian is None and dtype.fields is None and has_order(dtype):
            raise MetadataError(f"codec 'bytes' needs 'endian' for data type {spec.dtype.name!r}")
        self._codec, self._spec = codec, spec
        self._stored = codec.stored_form(dtype)
        self._small = spec.dtype.small_parts
        # Integers of less than a byte are not just their bytes: others may have left anything in the upper bits.
        self.stored_dtype: np.dtype[Any] | None = None if self._small else self._stored
        size = math.prod(spec.shape) * dtype.itemsize
        self.encoded_size: int | None = size
        self.divisible = size >= _WORTHWHILE

    def decode(self, data: Buffer) -> Array:
        if len(data) != self.encoded_size:
            raise self._codec.fail(f"the value has {len(data)} bytes, the chunk {self.encoded_size}")
        if not self.encoded_size:
            return np.zeros(self._spec.shape, self._spec.dtype.numpy)
        array = np.frombuffer(data, self._stored).reshape(self._spec.shape)
        if self._small:
            array = np.array(array, self._spec.dtype.numpy)
            for names, part in self._small:
                own = _part(array, names)
                own[...] = extended(own, part.bits)
        return array

    def encode(self, array: Array) -> Buffer:
        if not self.encoded_size:  # strings of no length, which NumPy makes one long
            return b""
        for names, part in self._small:
            check_limits(self._codec, _part(array, names), part.limits)
        if array.dtype == self._stored and array.flags.c_contiguous:
            return as_bytes_view(array)
        stored = np.empty(array.shape, self._stored)
        assign(stored, array)
        return as_bytes_view(stored)

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """One run of rows: axes held at one index are stepped into, the next one is cut."""
        if not self.encoded_size or not self.divisible:  # (of no size it is not divisible)
            return None
        shape, bounds = self._spec.shape, projection.bounds()
        lead = 0
        while lead < len(shape) - 1 and bounds[lead][0] == bounds[lead][1]:
            lead += 1
        if lead == len(shape):
            return None
        first, last = bounds[lead]
        row = math.prod(shape[lead + 1 :]) * self._spec.dtype.numpy.itemsize
        length = (last - first + 1) * row
        if 2 * length > self.encoded_size:
            return None
        origin = [*(low for low, _ in bounds[:lead]), first, *(0 for _ in shape[lead + 1 :])]
        start, stride = 0, row
        for axis in range(lead, -1, -1):
            start += origin[axis] * stride
            stride *= shape[axis]
        part = (*(1 for _ in shape[:lead]), last - first + 1, *shape[lead + 1 :])
        chain = BoundChain((), self._codec, (), self._spec.replace(shape=part))
        moved = projection.shift(origin)
        return _found(Piece(start, length, chain, ChunkRun(tuple(origin), moved, moved.covers(part)), out))

    def merge(self, data: Buffer, projection: Projection, values: Array) -> Buffer:
        chunk = np.array(self.decode(data))
        projection.write(chunk, values)
        return self.encode(chunk)


def _part(array: Array, names: Sequence[str]) -> Array:
    """A field of fields of structured elements, as a view."""
    return reduce(lambda view, name: view[name], names, array)


def extended(array: Array, bits: int) -> Array:
    """Integers of the lowest bits of bytes: the upper bits become those that the value has."""
    room = np.uint8(8 - bits)
    shifted: Array = (array.view(np.uint8) << room).view(array.dtype)
    value: Array = shifted >> array.dtype.type(room)
    return value


def check_limits(codec: Codec, array: Array, limits: tuple[int, int] | None) -> None:
    """Complain about integers that have no room.

    Raises:
        CodecError: If there is one.
    """
    if limits is not None and array.size and (int(array.min()) < limits[0] or int(array.max()) > limits[1]):
        raise codec.fail(f"values are from {limits[0]} to {limits[1]}, found {array.min()} to {array.max()}", "encode")


def _found(piece: Piece) -> Locator:
    """A search that needs no reading."""
    yield from ()
    return [piece]


@dataclass(frozen=True)
class TransposeCodec(ArrayArrayCodec):
    """The axes in another order.

    Attributes:
        order: Axis ``order[i]`` of the array is axis ``i`` of what is stored.
    """

    name = "transpose"
    brief = True
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        order = tuple(self.order)
        if not all(type(n) is int for n in order) or sorted(order) != list(range(len(order))):
            raise ValueError(f"order must be a permutation of the axes, found {list(order)}")
        object.__setattr__(self, "order", order)

    def configuration(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    @property
    def permutation(self) -> tuple[int, ...]:
        return self.order

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if len(self.order) != len(spec.shape):
            raise MetadataError(
                f"codec 'transpose' has an order of {len(self.order)} axes, the array has {len(spec.shape)}"
            )
        return spec.replace(shape=tuple(spec.shape[axis] for axis in self.order))

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return array.transpose(self.order)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return array.transpose(back)
