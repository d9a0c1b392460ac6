"""``cast_value`` (zarr-extensions): numbers stored as another data type, with exact conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from zarrasync.codecs.base import (
    ArrayArrayCodec,
    Codec,
    check_members,
    float_info,
    integer_limits,
    is_real_number,
    transform_elements,
)
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType, from_json, to_json
from zarrasync.model.fill_values import fill_from_json, is_float

_ScalarMap: TypeAlias = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class CastValueCodec(ArrayArrayCodec):
    """``cast_value``: numbers converted to another data type.

    See "cast_value" in zarr-extensions.

    Attributes:
        data_type: The data type that is stored.
        rounding: ``"nearest-even"``, ``"towards-zero"``, ``"towards-positive"``, ``"towards-negative"`` or
            ``"nearest-away"``.
        out_of_range: ``"clamp"``, ``"wrap"``, or ``None`` to raise an error for values beyond the range of the type.
        encode_map: Pairs of values that are converted to each other, as in documents.
        decode_map: The same for decoding.
    """

    name = "cast_value"
    data_type: DataType
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    encode_map: _ScalarMap = field(default=(), hash=False)
    decode_map: _ScalarMap = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if self.rounding not in MODES:
            raise ValueError(f"rounding must be one of {', '.join(MODES)}; found {self.rounding!r}")
        if self.out_of_range not in (None, "clamp", "wrap"):
            raise ValueError(f"out_of_range must be 'clamp' or 'wrap', found {self.out_of_range!r}")
        if not is_real_number(self.data_type):
            raise ValueError(f"numbers cannot be stored as data type {self.data_type.name!r}")
        if self.out_of_range == "wrap" and is_float(self.data_type.numpy):
            raise ValueError("floating-point numbers do not wrap; out_of_range may be 'clamp'")

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "data_type", "rounding", "out_of_range", "scalar_map")
        maps = configuration.get("scalar_map", {})
        check_members(maps, "encode", "decode")
        return cls(
            from_json(configuration["data_type"]),
            configuration.get("rounding", "nearest-even"),
            configuration.get("out_of_range"),
            tuple((a, b) for a, b in maps.get("encode", ())),
            tuple((a, b) for a, b in maps.get("decode", ())),
        )

    def configuration(self) -> dict[str, Any]:
        members: dict[str, Any] = {"data_type": to_json(self.data_type)}
        if self.rounding != "nearest-even":
            members["rounding"] = self.rounding
        if self.out_of_range is not None:
            members["out_of_range"] = self.out_of_range
        maps = {"encode": self.encode_map, "decode": self.decode_map}
        if any(maps.values()):
            members["scalar_map"] = {name: [list(pair) for pair in pairs] for name, pairs in maps.items() if pairs}
        return members

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if not is_real_number(spec.dtype):
            raise MetadataError(f"codec 'cast_value' takes real numbers, not data type {spec.dtype.name!r}")
        _parse_map(self.encode_map, spec.dtype, self.data_type)
        _parse_map(self.decode_map, self.data_type, spec.dtype)
        fill = np.array([spec.fill_value], spec.dtype.numpy)
        try:
            stored = self._convert(self.encode_map, spec.dtype, self.data_type, fill)
            decoded = self._convert(self.decode_map, self.data_type, spec.dtype, stored)
        except ValueError as error:
            raise MetadataError(
                f"codec 'cast_value' cannot store the fill value {spec.fill_value!r}: {error}"
            ) from error
        if not (decoded[0] == fill[0] or (np.isnan(decoded[0]) and np.isnan(fill[0]))):
            raise MetadataError(f"codec 'cast_value' changes the fill value {spec.fill_value!r} to {decoded[0]!r}")
        return spec.replace(dtype=self.data_type, fill_value=stored[0])

    def _convert(self, scalar_map: _ScalarMap, source: DataType, target: DataType, flat: Array) -> Array:
        is_mapped = np.zeros(flat.shape, bool)
        replacements: list[tuple[Array, Any]] = []
        for key, value in _parse_map(scalar_map, source, target):
            matches = (np.isnan(flat) if np.isnan(key) else flat == key) & ~is_mapped
            is_mapped |= matches
            replacements.append((matches, value))
        # "wrap" concerns integers. On the way back to floats, only rounding can leave their range.
        out_of_range = self.out_of_range
        if is_float(target.numpy) and out_of_range == "wrap":
            out_of_range = "clamp"
        converted = np.zeros(flat.shape, target.numpy)
        converted[~is_mapped] = cast(flat[~is_mapped], source, target, self.rounding, out_of_range)
        for matches, value in replacements:
            converted[matches] = value
        return converted

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        convert = partial(self._convert, self.encode_map, spec.dtype, self.data_type)
        return transform_elements(self, "encode", convert, array, spec.dtype.numpy)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        convert = partial(self._convert, self.decode_map, self.data_type, spec.dtype)
        return transform_elements(self, "decode", convert, array, self.data_type.numpy)


def _parse_map(scalar_map: _ScalarMap, source: DataType, target: DataType) -> list[tuple[Any, Any]]:
    """Return the pairs of a scalar map as values of the data types."""
    aliases = {"+Infinity": "Infinity"}  # used in the specification's example
    return [
        (
            fill_from_json(source, aliases.get(a, a) if isinstance(a, str) else a),
            fill_from_json(target, aliases.get(b, b) if isinstance(b, str) else b),
        )
        for a, b in scalar_map
    ]


MODES = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
_LONG: Any = np.longdouble if np.finfo(np.longdouble).nmant >= 63 else np.float64
"""Represents all 64-bit integers if the platform has such a type."""


def cast(array: Array, source: DataType, target: DataType, rounding: str, out_of_range: str | None) -> Array:
    """Convert values to another data type.

    Args:
        array: The values.
        source: Their data type.
        target: The data type to convert to.
        rounding: How to round values without an exact counterpart: one of ``MODES``.
        out_of_range: How to treat values beyond the range of the target: ``"clamp"`` uses the nearest limit (or
            infinity, if the type has one), ``"wrap"`` the remainder modulo the number of integers, ``None`` raises.

    Raises:
        ValueError: If a value has no counterpart. The message names it.
    """
    with np.errstate(all="ignore"):
        if is_float(target.numpy):
            return _to_float(array, target.numpy, rounding, out_of_range)
        if is_float(source.numpy):
            return _float_to_integer(array.astype(_wide(source.numpy)), target, rounding, out_of_range)
        return _to_integer(array, target, out_of_range)


def _wide(dtype: np.dtype[Any]) -> Any:
    """Return a float type that represents all values of a dtype, with extra precision for computations."""
    return _LONG if dtype.kind in "iu" and dtype.itemsize == 8 else np.float64


def _reject(values: Array, reason: str) -> None:
    """Raise ``ValueError`` if there are values."""
    if values.size:
        raise ValueError(f"{values[0]!s} {reason}")


def _to_integer(array: Array, target: DataType, out_of_range: str | None) -> Array:
    low, high = integer_limits(target)
    is_outside = (array < low) | (array > high)
    if not is_outside.any():
        return array.astype(target.numpy)
    if out_of_range == "clamp":
        clamped = np.where(is_outside, 0, array).astype(target.numpy)
        clamped[array < low], clamped[array > high] = low, high
        return clamped
    if out_of_range == "wrap":
        return _wrapped(array.astype(np.int64, copy=False).view(np.uint64), target)
    _reject(array[is_outside], f"is not from {low} to {high}")
    raise AssertionError


def _wrapped(words: Array, target: DataType) -> Array:
    """Return the lowest bits of 64-bit words as integers."""
    shift = np.uint64(64 - target.bits)
    kind: Any = np.int64 if target.numpy.kind == "i" else np.uint64
    wrapped: Array = ((words << shift).view(kind) >> kind(shift)).astype(target.numpy)
    return wrapped


_ROUND_TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "nearest-even": np.rint,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
}


def _half_away(values: Array) -> Array:
    truncated = np.trunc(values)
    rounded: Array = truncated + np.copysign(np.abs(values - truncated) >= 0.5, values)
    return rounded


def _float_to_integer(values: Array, target: DataType, rounding: str, out_of_range: str | None) -> Array:
    _reject(values[~np.isfinite(values)], "is not an integer")
    integers = _ROUND_TO_INTEGER.get(rounding, _half_away)(values)
    low, high = integer_limits(target)
    # Floats represent the limits -2**n and 2**n exactly, but not always 2**n - 1.
    below, above = integers < float(low), integers >= float(high + 1)
    if (below | above).any():
        if out_of_range == "wrap":
            remainder = np.fmod(integers, 2.0**64)
            too_low = np.where(remainder < -(2.0**63), remainder + 2.0**64, remainder)
            remainder = np.where(remainder >= 2.0**63, remainder - 2.0**64, too_low)
            return _wrapped(remainder.astype(np.int64).view(np.uint64), target)
        if out_of_range != "clamp":
            _reject(values[below | above], f"is not from {low} to {high}")
    converted = np.where(below | above, 0, integers).astype(target.numpy)
    converted[below], converted[above] = low, high
    return converted


def _to_float(array: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    values = array.astype(_wide(array.dtype))
    converted = values.astype(dtype)
    back = converted.astype(values.dtype)
    if bool(((back == values) | (np.isnan(values) & np.isnan(back))).all()):
        return converted
    top, step = _top(dtype)
    has_infinity = bool(np.isinf(dtype.type(np.inf)))
    if not np.isnan(float(dtype.type(np.nan))):
        _reject(values[np.isnan(values)], "is not a value of the type")
    if not has_infinity:
        _reject(values[np.isinf(values)], "is not a value of the type")
    up, down = _limits(top, step, rounding)
    above, below = np.isfinite(values) & (values > up), np.isfinite(values) & (values < -down)
    if rounding.startswith("nearest"):  # half a step above the greatest value rounds beyond it
        above, below = np.isfinite(values) & (values >= up), np.isfinite(values) & (values <= -down)
    if (above | below).any() and out_of_range != "clamp":
        _reject(values[above | below], f"is not from {-top} to {top}")
    inside = np.isfinite(values) & ~above & ~below
    rounded = _round(np.where(inside, values, 0), dtype, rounding, top)
    result = np.where(inside, rounded, converted)
    limit = np.inf if has_infinity else top
    result[above], result[below] = limit, -limit
    return result


def _top(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the greatest value of a floating-point type, and the step below it."""
    top = float_info(dtype).max
    greatest = np.array(top, dtype)
    return _LONG(float(top)), _LONG(float(top)) - _LONG(float(np.nextafter(greatest, np.zeros((), dtype))))


def _limits(top: Any, step: Any, rounding: str) -> tuple[Any, Any]:
    """Return the positive and the negative magnitude beyond which rounding leaves the range of the type."""
    if rounding.startswith("nearest"):
        return top + step / 2, top + step / 2
    beyond = np.nextafter(top + step, _LONG(0))  # smaller magnitudes round back to the greatest value
    return {
        "towards-zero": (beyond, beyond),
        "towards-positive": (top, beyond),
        "towards-negative": (beyond, top),
    }[rounding]


def _round(values: Array, dtype: np.dtype[Any], rounding: str, top: Any) -> Array:
    """Round values within the range of a type to one of its two neighbours."""
    near = np.clip(values, -top, top).astype(dtype)
    back = near.astype(values.dtype)
    zero, far = np.zeros((), dtype), np.where(values < 0, -top, top).astype(dtype)
    # ``near`` may be either neighbour; if the conversion rounds twice, it may be the wrong one.
    is_outer = np.abs(back) > np.abs(values)
    inner = np.where(is_outer, np.nextafter(near, zero), near)
    outer = np.where(is_outer, near, np.nextafter(near, far))
    exact = back == values
    low, high = np.abs(inner.astype(values.dtype)), np.abs(outer.astype(values.dtype))
    size, negative = np.abs(values), values < 0
    if rounding == "towards-zero":
        away = np.zeros(values.shape, bool)
    elif rounding == "towards-positive":
        away = ~negative
    elif rounding == "towards-negative":
        away = negative
    else:
        middle = size - low == high - size
        if rounding == "nearest-away":
            away = (size - low > high - size) | middle
        else:
            word = np.dtype(f"u{dtype.itemsize}")
            is_odd = (inner.view(word) & word.type(1)).astype(bool)
            away = (size - low > high - size) | (middle & is_odd)
    rounded = np.where(away & ~exact, outer, np.where(exact, near, inner)).astype(dtype)
    # A value that is rounded to zero keeps its sign.
    signed: Array = np.where((rounded == 0) & negative, -np.abs(rounded), rounded).astype(dtype)
    return signed
