"""Exact conversion of numbers between data types, as the ``cast_value`` codec specifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zarrasync.codecs.elements import integer_limits
from zarrasync.codecs.spec import Array
from zarrasync.model.dtypes import DataType
from zarrasync.model.fill_values import is_float

__all__ = ["MODES", "cast"]

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
    if dtype.type.__module__ == "ml_dtypes":
        import ml_dtypes

        top = ml_dtypes.finfo(dtype).max  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
    else:
        top = np.finfo(dtype).max
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
