"""Codecs that transform arrays: ``transpose``, ``reshape``, ``bitround``, ``scale_offset`` and ``packbits``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from zarrasync.codecs.base import (
    ArrayArrayCodec,
    ArrayBytesCodec,
    Codec,
    check_limits,
    check_members,
    float_info,
    integer_limits,
    is_real_number,
    transform_elements,
)
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType
from zarrasync.model.fill_values import fill_from_json, is_float


@dataclass(frozen=True)
class BitroundCodec(ArrayArrayCodec):
    """``bitround``: rounds numbers to some bits, half to even, so that they compress well. Decoding changes nothing.

    See "bitround" in zarr-extensions.

    Attributes:
        keepbits: The number of mantissa bits to keep, at least 1; for integers, of bits from the highest set one.
    """

    name = "bitround"
    keepbits: int

    def __post_init__(self) -> None:
        if type(self.keepbits) is not int or self.keepbits < 1:
            raise ValueError(f"keepbits must be an integer of at least 1, found {self.keepbits!r}")

    def configuration(self) -> dict[str, Any]:
        return {"keepbits": self.keepbits}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        dtype = _component_dtype(spec.dtype)
        if dtype is None or not (dtype.kind in "iumM" or is_float(dtype)) or spec.dtype.bits < 8:
            raise MetadataError(f"codec 'bitround' rounds numbers, not data type {spec.dtype.name!r}")
        return spec

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        dtype = _component_dtype(spec.dtype)
        assert dtype is not None
        native = np.ascontiguousarray(array, spec.dtype.numpy)
        words = np.frombuffer(native.tobytes(), f"u{dtype.itemsize}").copy()
        self._round(words, dtype)
        return words.view(spec.dtype.numpy).reshape(array.shape)

    def _round(self, words: Array, dtype: np.dtype[Any]) -> None:
        """Round numbers of a dtype, given as unsigned integers of its width, in place."""
        kind = words.dtype.type
        if is_float(dtype):
            mantissa = int(float_info(dtype).nmant)
            if self.keepbits >= mantissa:
                return
            drop = np.full(words.shape, mantissa - self.keepbits, words.dtype)
            with np.errstate(invalid="ignore"):
                rounds = ~np.isnan(words.view(dtype))  # rounding could turn NaN into a number
        else:
            # The highest set bit. frexp is exact unless the conversion to float rounds up to the next power of two.
            high = np.frexp(words.astype(np.float64))[1].astype(np.int64)
            high -= (high > 0) & (words >> np.maximum(high - 1, 0).astype(words.dtype) == 0)
            rounds = high > self.keepbits
            drop = np.where(rounds, high - self.keepbits, 1).astype(words.dtype)
        one = kind(1)
        increment = ((words >> drop) & one) + ((one << (drop - one)) - one)
        rounded = words + increment
        rounded[rounded < words] = kind(np.iinfo(kind).max)  # instead of wrapping around to zero
        words[rounds] = (rounded & ~((one << drop) - one))[rounds]

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return array


def _component_dtype(data_type: DataType) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a number, or of the parts of a complex one; ``None`` if it is not a number."""
    dtype = data_type.numpy
    if data_type.is_complex:
        return dtype.fields["real"][0] if dtype.fields is not None else np.dtype(f"f{dtype.itemsize // 2}")
    return None if data_type.is_variable or dtype.fields is not None else dtype


@dataclass(frozen=True)
class ScaleOffsetCodec(ArrayArrayCodec):
    """``scale_offset``: stores ``(value - offset) * scale``, computed in the array's own data type.

    See "scale_offset" in zarr-extensions.

    Attributes:
        offset: The offset, in the form of a fill value in documents.
        scale: The scale, in the same form.
    """

    name = "scale_offset"
    offset: Any = field(default=0, hash=False)
    scale: Any = field(default=1, hash=False)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "offset", "scale")
        return cls(**configuration)

    def configuration(self) -> dict[str, Any]:
        return {"offset": self.offset, "scale": self.scale}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "configuration": self.configuration()}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if not is_real_number(spec.dtype):
            raise MetadataError(f"codec 'scale_offset' takes real numbers, not data type {spec.dtype.name!r}")
        _, scale = self._parameters(spec.dtype)
        if not scale or not np.isfinite(scale):
            raise MetadataError(f"codec 'scale_offset': a scale of {scale} would lose all values")
        try:
            fill = self._encode_flat(np.array([spec.fill_value], spec.dtype.numpy), spec.dtype)[0]
        except ValueError as error:
            raise MetadataError(
                f"codec 'scale_offset' cannot store the fill value {spec.fill_value!r}: {error}"
            ) from error
        return spec.replace(fill_value=fill)

    def _parameters(self, data_type: DataType) -> tuple[Any, Any]:
        """Return offset and scale as values of a data type."""
        return fill_from_json(data_type, self.offset), fill_from_json(data_type, self.scale)

    def _encode_flat(self, flat: Array, data_type: DataType) -> Array:
        offset, scale = self._parameters(data_type)
        if is_float(data_type.numpy):
            with np.errstate(all="ignore"):
                encoded: Array = (flat - offset) * scale
                return encoded
        low, high = integer_limits(data_type)
        offset, scale = int(offset), int(scale)
        _check_range(flat, low + offset, high + offset, low, high)
        flat = flat - data_type.numpy.type(offset)
        bounds = sorted((_divide_toward_zero(low, scale), _divide_toward_zero(high, scale)))
        _check_range(flat, bounds[0], bounds[1], low, high)
        product: Array = flat * data_type.numpy.type(scale)
        return product

    def _decode_flat(self, flat: Array, data_type: DataType) -> Array:
        offset, scale = self._parameters(data_type)
        if is_float(data_type.numpy):
            with np.errstate(all="ignore"):
                decoded: Array = flat / scale + offset
                return decoded
        low, high = integer_limits(data_type)
        offset, scale = int(offset), int(scale)
        divisor = data_type.numpy.type(scale)
        remainder = flat % divisor
        if scale < 0:  # the lowest integer has no positive counterpart
            _check_range(flat, min(low * scale, high * scale), max(low * scale, high * scale), low, high)
        if remainder.any():
            raise ValueError(f"{flat[remainder != 0][0]} is not a multiple of the scale {scale}")
        flat = flat // divisor
        _check_range(flat, low - offset, high - offset, low, high)
        total: Array = flat + data_type.numpy.type(offset)
        return total

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        function = partial(self._encode_flat, data_type=spec.dtype)
        return transform_elements(self, "encode", function, array, spec.dtype.numpy)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        function = partial(self._decode_flat, data_type=spec.dtype)
        return transform_elements(self, "decode", function, array, spec.dtype.numpy)


def _divide_toward_zero(limit: int, scale: int) -> int:
    return int(math.copysign(1, limit) * math.copysign(1, scale)) * (abs(limit) // abs(scale))


def _check_range(flat: Array, least: int, most: int, low: int, high: int) -> None:
    """Raise ``ValueError`` if a value is not from ``least`` to ``most``, so that a result leaves ``low`` to ``high``."""
    is_outside = (flat < least) | (flat > most)
    if is_outside.any():
        raise ValueError(f"{flat[is_outside][0]} leaves the range from {low} to {high} during the conversion")


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


class _BoundPackbits(BoundArrayBytes):
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
        self.encoded_size = self._packed_size + (codec.padding_encoding != "none")

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


@dataclass(frozen=True)
class TransposeCodec(ArrayArrayCodec):
    """``transpose``: the axes in another order.

    See "transpose" in the Zarr v3 codec specifications.

    Attributes:
        order: Axis ``order[i]`` of the chunk is axis ``i`` of the stored array.
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
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return array.transpose(inverse)


@dataclass(frozen=True)
class ReshapeCodec(ArrayArrayCodec):
    """``reshape``: the elements in C order with another shape.

    See "reshape" in zarr-extensions.

    Attributes:
        shape: For each axis of the stored array its size, or the axes of the chunk whose product is its size, or (at
            most once) -1 for the remaining size.
    """

    name = "reshape"
    shape: tuple[int | tuple[int, ...], ...]

    def __post_init__(self) -> None:
        entries = tuple(tuple(item) if isinstance(item, list | tuple) else item for item in self.shape)
        for item in entries:
            numbers, least = (item, 0) if isinstance(item, tuple) else ((item,), -1)
            if not all(type(n) is int and n >= least for n in numbers) or item == 0:
                raise ValueError(f"shape may contain sizes, lists of axes and at most one -1; found {item!r}")
        if sum(item == -1 for item in entries) > 1:
            raise ValueError("shape contains more than one -1")
        object.__setattr__(self, "shape", entries)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "shape")
        if not isinstance(configuration["shape"], list):
            raise ValueError(f"shape must be a list, found {configuration['shape']!r}")
        return cls(tuple(configuration["shape"]))

    def configuration(self) -> dict[str, Any]:
        return {"shape": [list(item) if isinstance(item, tuple) else item for item in self.shape]}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        source = spec.shape
        axes = [axis for item in self.shape if isinstance(item, tuple) for axis in item]
        if any(axis >= len(source) for axis in axes) or any(b <= a for a, b in pairwise(axes)):
            raise MetadataError(f"codec 'reshape': axes {axes} must be in order and axes of shape {source}")
        sizes = [math.prod(source[axis] for axis in item) if isinstance(item, tuple) else item for item in self.shape]
        fixed_size = math.prod(size for size in sizes if size != -1)
        if -1 in sizes and fixed_size and math.prod(source) % fixed_size == 0:
            sizes[sizes.index(-1)] = math.prod(source) // fixed_size
        if math.prod(sizes) != math.prod(source) or -1 in sizes:
            raise MetadataError(f"codec 'reshape' cannot turn shape {source} into {list(self.shape)}")
        for number, item in enumerate(self.shape):
            if not isinstance(item, tuple) or not item:
                continue
            before, after = math.prod(source[: item[0]]), math.prod(source[item[-1] + 1 :])
            if math.prod(sizes[:number]) != before or math.prod(sizes[number + 1 :]) != after:
                raise MetadataError(
                    f"codec 'reshape': axes {list(item)} of {source} do not keep their place in {sizes}"
                )
        return spec.replace(shape=tuple(sizes))

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return np.ascontiguousarray(array).reshape(self.encoded_spec(spec).shape)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return np.ascontiguousarray(array).reshape(spec.shape)
