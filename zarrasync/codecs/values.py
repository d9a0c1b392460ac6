"""Codecs that change values or shapes: ``bitround``, ``cast_value``, ``scale_offset`` and ``reshape`` (zarr-extensions)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, Codec
from zarrasync.codecs.rounding import MODES, cast
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType, from_json, to_json
from zarrasync.model.fill_values import fill_from_json, is_float

__all__ = ["BitroundCodec", "CastValueCodec", "ReshapeCodec", "ScaleOffsetCodec"]


def _is_number(data_type: DataType) -> bool:
    return not data_type.is_complex and (data_type.numpy.kind in "iu" or is_float(data_type.numpy))


def _only(configuration: Mapping[str, Any], *known: str) -> None:
    if unknown := set(configuration) - set(known):
        raise ValueError(f"unknown member {min(unknown)!r}")


def _converted(
    codec: Codec, direction: str, function: Callable[[Array], Array], array: Array, dtype: np.dtype[Any]
) -> Array:
    """The outcome of a computation on elements in native order, of the array's shape."""
    try:
        return function(np.ascontiguousarray(array, dtype).reshape(-1)).reshape(array.shape)
    except ValueError as error:
        raise codec.fail(str(error), direction) from error


# ------------------------------------------------------------------ bitround


@dataclass(frozen=True)
class BitroundCodec(ArrayArrayCodec):
    """Rounds numbers to so many bits, half to even, so that they compress well. What is decoded is what is stored.

    Attributes:
        keepbits: Bits of the mantissa (of integers: from the highest set bit on) that are kept, at least 1.
    """

    name = "bitround"
    keepbits: int

    def __post_init__(self) -> None:
        if type(self.keepbits) is not int or self.keepbits < 1:
            raise ValueError(f"keepbits is an integer of at least 1, found {self.keepbits!r}")

    def configuration(self) -> dict[str, Any]:
        return {"keepbits": self.keepbits}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        part = _part(spec.dtype)
        if part is None or not (part.kind in "iumM" or is_float(part)) or (spec.dtype.bits < 8):
            raise MetadataError(f"codec 'bitround' rounds numbers, not data type {spec.dtype.name!r}")
        return spec

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        part = _part(spec.dtype)
        assert part is not None
        whole = np.ascontiguousarray(array, spec.dtype.numpy)
        words = np.frombuffer(whole.tobytes(), f"u{part.itemsize}").copy()
        self._round(words, part)
        return words.view(spec.dtype.numpy).reshape(array.shape)

    def _round(self, words: Array, part: np.dtype[Any]) -> None:
        kind = words.dtype.type
        if is_float(part):
            mantissa = _mantissa(part)
            if self.keepbits >= mantissa:
                return
            drop = np.full(words.shape, mantissa - self.keepbits, words.dtype)
            with np.errstate(invalid="ignore"):
                rounded = ~np.isnan(words.view(part))  # rounding could make another number of it
        else:
            # The highest set bit: exact for all 64 of them where the float does not round up to the next power.
            high = np.frexp(words.astype(np.float64))[1].astype(np.int64)
            high -= (high > 0) & (words >> np.maximum(high - 1, 0).astype(words.dtype) == 0)
            rounded = high > self.keepbits
            drop = np.where(rounded, high - self.keepbits, 1).astype(words.dtype)
        one = kind(1)
        more = ((words >> drop) & one) + ((one << (drop - one)) - one)
        summed = words + more
        summed[summed < words] = kind(np.iinfo(kind).max)  # rather than to start again from zero
        words[rounded] = (summed & ~((one << drop) - one))[rounded]

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return array


def _part(data_type: DataType) -> np.dtype[Any] | None:
    """The NumPy dtype of a number's components."""
    dtype = data_type.numpy
    if data_type.is_complex:
        return dtype.fields["real"][0] if dtype.fields is not None else np.dtype(f"f{dtype.itemsize // 2}")
    return None if data_type.is_variable or dtype.fields is not None else dtype


def _mantissa(part: np.dtype[Any]) -> int:
    if part.type.__module__ == "ml_dtypes":
        import ml_dtypes

        return int(ml_dtypes.finfo(part).nmant)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
    return int(np.finfo(part).nmant)


# ------------------------------------------------------------------ cast_value


@dataclass(frozen=True)
class CastValueCodec(ArrayArrayCodec):
    """Numbers as numbers of another type.

    Attributes:
        data_type: The type that is stored.
        rounding: ``"nearest-even"``, ``"towards-zero"``, ``"towards-positive"``, ``"towards-negative"`` or
            ``"nearest-away"``.
        out_of_range: ``"clamp"``, ``"wrap"``, or ``None``: values that have no room are an error.
        encode_map: Pairs of values, as documents have them, that are converted in a way of their own.
        decode_map: The same for the way back.
    """

    name = "cast_value"
    data_type: DataType
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    encode_map: tuple[tuple[Any, Any], ...] = field(default=(), hash=False)
    decode_map: tuple[tuple[Any, Any], ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if self.rounding not in MODES:
            raise ValueError(f"rounding is one of {', '.join(MODES)}; found {self.rounding!r}")
        if self.out_of_range not in (None, "clamp", "wrap"):
            raise ValueError(f"out_of_range is 'clamp' or 'wrap', found {self.out_of_range!r}")
        if not _is_number(self.data_type):
            raise ValueError(f"numbers can not be stored as data type {self.data_type.name!r}")
        if self.out_of_range == "wrap" and is_float(self.data_type.numpy):
            raise ValueError("floating-point numbers do not wrap; out_of_range may be 'clamp'")

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        _only(configuration, "data_type", "rounding", "out_of_range", "scalar_map")
        maps = configuration.get("scalar_map", {})
        _only(maps, "encode", "decode")
        return cls(
            from_json(configuration["data_type"]),
            configuration.get("rounding", "nearest-even"),
            configuration.get("out_of_range"),
            tuple((a, b) for a, b in maps.get("encode", ())),
            tuple((a, b) for a, b in maps.get("decode", ())),
        )

    def configuration(self) -> dict[str, Any]:
        found: dict[str, Any] = {"data_type": to_json(self.data_type)}
        if self.rounding != "nearest-even":
            found["rounding"] = self.rounding
        if self.out_of_range is not None:
            found["out_of_range"] = self.out_of_range
        maps = {"encode": self.encode_map, "decode": self.decode_map}
        if any(maps.values()):
            found["scalar_map"] = {name: [list(pair) for pair in pairs] for name, pairs in maps.items() if pairs}
        return found

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if not _is_number(spec.dtype):
            raise MetadataError(f"codec 'cast_value' takes real numbers, not data type {spec.dtype.name!r}")
        self._pairs(self.encode_map, spec.dtype, self.data_type)
        self._pairs(self.decode_map, self.data_type, spec.dtype)
        fill = np.array([spec.fill_value], spec.dtype.numpy)
        try:
            stored = self._run(self.encode_map, spec.dtype, self.data_type, fill)
            back = self._run(self.decode_map, self.data_type, spec.dtype, stored)
        except ValueError as error:
            raise MetadataError(
                f"codec 'cast_value' can not store the fill value {spec.fill_value!r}: {error}"
            ) from error
        if not (back[0] == fill[0] or (np.isnan(back[0]) and np.isnan(fill[0]))):
            raise MetadataError(f"codec 'cast_value' makes {back[0]!r} of the fill value {spec.fill_value!r}")
        return spec.replace(dtype=self.data_type, fill_value=stored[0])

    @staticmethod
    def _pairs(pairs: tuple[tuple[Any, Any], ...], source: DataType, target: DataType) -> list[tuple[Any, Any]]:
        plus = {"+Infinity": "Infinity"}  # as the text's own example has it
        return [
            (
                fill_from_json(source, plus.get(a, a) if isinstance(a, str) else a),
                fill_from_json(target, plus.get(b, b) if isinstance(b, str) else b),
            )
            for a, b in pairs
        ]

    def _run(self, pairs: tuple[tuple[Any, Any], ...], source: DataType, target: DataType, flat: Array) -> Array:
        mapped = np.zeros(flat.shape, bool)
        chosen: list[tuple[Array, Any]] = []
        for key, value in self._pairs(pairs, source, target):
            hit = (np.isnan(flat) if np.isnan(key) else flat == key) & ~mapped
            mapped |= hit
            chosen.append((hit, value))
        # "wrap" is about integers; on the way back to floats nothing can be out of their range but by rounding.
        rule = self.out_of_range
        if is_float(target.numpy) and rule == "wrap":
            rule = "clamp"
        found = np.zeros(flat.shape, target.numpy)
        found[~mapped] = cast(flat[~mapped], source, target, self.rounding, rule)
        for hit, value in chosen:
            found[hit] = value
        return found

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        run = partial(self._run, self.encode_map, spec.dtype, self.data_type)
        return _converted(self, "encode", run, array, spec.dtype.numpy)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        run = partial(self._run, self.decode_map, self.data_type, spec.dtype)
        return _converted(self, "decode", run, array, self.data_type.numpy)


# ------------------------------------------------------------------ scale_offset


@dataclass(frozen=True)
class ScaleOffsetCodec(ArrayArrayCodec):
    """Stores ``(value - offset) * scale``, computed in the array's own data type.

    Attributes:
        offset: As a fill value of the array stands in documents.
        scale: Likewise.
    """

    name = "scale_offset"
    offset: Any = field(default=0, hash=False)
    scale: Any = field(default=1, hash=False)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        _only(configuration, "offset", "scale")
        return cls(**configuration)

    def configuration(self) -> dict[str, Any]:
        return {"offset": self.offset, "scale": self.scale}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "configuration": self.configuration()}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if not _is_number(spec.dtype):
            raise MetadataError(f"codec 'scale_offset' takes real numbers, not data type {spec.dtype.name!r}")
        _, scale = self._numbers(spec.dtype)
        if not scale or not np.isfinite(scale):
            raise MetadataError(f"codec 'scale_offset': a scale of {scale} loses all values")
        try:
            fill = self._forth(np.array([spec.fill_value], spec.dtype.numpy), spec.dtype)[0]
        except ValueError as error:
            raise MetadataError(
                f"codec 'scale_offset' can not store the fill value {spec.fill_value!r}: {error}"
            ) from error
        return spec.replace(fill_value=fill)

    def _numbers(self, data_type: DataType) -> tuple[Any, Any]:
        return fill_from_json(data_type, self.offset), fill_from_json(data_type, self.scale)

    def _forth(self, flat: Array, data_type: DataType) -> Array:
        offset, scale = self._numbers(data_type)
        if is_float(data_type.numpy):
            with np.errstate(all="ignore"):
                found: Array = (flat - offset) * scale
                return found
        low, high = data_type.limits or _range(data_type)
        offset, scale = int(offset), int(scale)
        _within(flat, low + offset, high + offset, low, high)
        flat = flat - data_type.numpy.type(offset)
        ends = sorted((_toward_zero(low, scale), _toward_zero(high, scale)))
        _within(flat, ends[0], ends[1], low, high)
        product: Array = flat * data_type.numpy.type(scale)
        return product

    def _back(self, flat: Array, data_type: DataType) -> Array:
        offset, scale = self._numbers(data_type)
        if is_float(data_type.numpy):
            with np.errstate(all="ignore"):
                found: Array = flat / scale + offset
                return found
        low, high = data_type.limits or _range(data_type)
        offset, scale = int(offset), int(scale)
        factor = data_type.numpy.type(scale)
        rest = flat % factor
        if scale < 0:  # the lowest integer has no counterpart
            _within(flat, min(low * scale, high * scale), max(low * scale, high * scale), low, high)
        if rest.any():
            raise ValueError(f"{flat[rest != 0][0]} is no multiple of the scale {scale}")
        flat = flat // factor
        _within(flat, low - offset, high - offset, low, high)
        total: Array = flat + data_type.numpy.type(offset)
        return total

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return _converted(self, "encode", partial(self._forth, data_type=spec.dtype), array, spec.dtype.numpy)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return _converted(self, "decode", partial(self._back, data_type=spec.dtype), array, spec.dtype.numpy)


def _range(data_type: DataType) -> tuple[int, int]:
    info = np.iinfo(data_type.numpy)
    return int(info.min), int(info.max)


def _toward_zero(end: int, scale: int) -> int:
    return int(math.copysign(1, end) * math.copysign(1, scale)) * (abs(end) // abs(scale))


def _within(flat: Array, least: int, most: int, low: int, high: int) -> None:
    bad = (flat < least) | (flat > most)
    if bad.any():
        raise ValueError(f"{flat[bad][0]} leaves the range from {low} to {high} on the way")


# ------------------------------------------------------------------ reshape


@dataclass(frozen=True)
class ReshapeCodec(ArrayArrayCodec):
    """The elements, in C order, in another shape.

    Attributes:
        shape: Per axis of the stored array a size, the axes of the given array whose sizes make it, or (once)
            -1 for what is left.
    """

    name = "reshape"
    shape: tuple[int | tuple[int, ...], ...]

    def __post_init__(self) -> None:
        entries = tuple(tuple(item) if isinstance(item, list | tuple) else item for item in self.shape)
        for item in entries:
            numbers, least = (item, 0) if isinstance(item, tuple) else ((item,), -1)
            if not all(type(n) is int and n >= least for n in numbers) or item == 0:
                raise ValueError(f"shape has sizes, lists of axes and one -1 at the most; found {item!r}")
        if sum(item == -1 for item in entries) > 1:
            raise ValueError("shape has more than one -1")
        object.__setattr__(self, "shape", entries)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        _only(configuration, "shape")
        if not isinstance(configuration["shape"], list):
            raise ValueError(f"shape is a list, found {configuration['shape']!r}")
        return cls(tuple(configuration["shape"]))

    def configuration(self) -> dict[str, Any]:
        return {"shape": [list(item) if isinstance(item, tuple) else item for item in self.shape]}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        given = spec.shape
        axes = [axis for item in self.shape if isinstance(item, tuple) for axis in item]
        if any(axis >= len(given) for axis in axes) or any(b <= a for a, b in pairwise(axes)):
            raise MetadataError(f"codec 'reshape': axes {axes} must be in order and axes of shape {given}")
        sizes = [math.prod(given[axis] for axis in item) if isinstance(item, tuple) else item for item in self.shape]
        known = math.prod(size for size in sizes if size != -1)
        if -1 in sizes and known and math.prod(given) % known == 0:
            sizes[sizes.index(-1)] = math.prod(given) // known
        if math.prod(sizes) != math.prod(given) or -1 in sizes:
            raise MetadataError(f"codec 'reshape' can not make shape {list(self.shape)} of {given}")
        for number, item in enumerate(self.shape):
            if not isinstance(item, tuple) or not item:
                continue
            before, after = math.prod(given[: item[0]]), math.prod(given[item[-1] + 1 :])
            if math.prod(sizes[:number]) != before or math.prod(sizes[number + 1 :]) != after:
                raise MetadataError(f"codec 'reshape': axes {list(item)} of {given} do not keep their place in {sizes}")
        return spec.replace(shape=tuple(sizes))

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return np.ascontiguousarray(array).reshape(self.encoded_spec(spec).shape)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return np.ascontiguousarray(array).reshape(spec.shape)
