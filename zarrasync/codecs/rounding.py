"""Numbers of one type as numbers of another, exactly as the ``cast_value`` codec asks."""

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
"""Holds all integers of 64 bits where the platform has such a type."""


def cast(array: Array, source: DataType, target: DataType, rounding: str, out_of_range: str | None) -> Array:
    """Every value as the other type's.

    Args:
        array: The values.
        source: Their data type.
        target: The other one.
        rounding: How to round what has no exact counterpart: one of ``MODES``.
        out_of_range: What becomes of values that the target has no room for: ``"clamp"`` takes the nearest end
            (or infinity, where it has one), ``"wrap"`` counts modulo the integers' number, ``None`` is an error.

    Raises:
        ValueError: If a value has no counterpart; says which one.
    """
    with np.errstate(all="ignore"):
        if is_float(target.numpy):
            return _to_float(array, target.numpy, rounding, out_of_range)
        if is_float(source.numpy):
            return _float_to_integer(array.astype(_wide(source.numpy)), target, rounding, out_of_range)
        return _to_integer(array, target, out_of_range)


def _wide(dtype: np.dtype[Any]) -> Any:
    """A type that holds all values of the given one, with room to compute in."""
    return _LONG if dtype.kind in "iu" and dtype.itemsize == 8 else np.float64


def _complain(values: Array, why: str) -> None:
    if values.size:
        raise ValueError(f"{values[0]!s} {why}")


def _to_integer(array: Array, target: DataType, out_of_range: str | None) -> Array:
    low, high = integer_limits(target)
    bad = (array < low) | (array > high)
    if not bad.any():
        return array.astype(target.numpy)
    if out_of_range == "clamp":
        found = np.where(bad, 0, array).astype(target.numpy)
        found[array < low], found[array > high] = low, high
        return found
    if out_of_range == "wrap":
        return _wrapped(array.astype(np.int64, copy=False).view(np.uint64), target)
    _complain(array[bad], f"is not from {low} to {high}")
    raise AssertionError


def _wrapped(words: Array, target: DataType) -> Array:
    """The lowest bits of words as integers."""
    room = np.uint64(64 - target.bits)
    kind: Any = np.int64 if target.numpy.kind == "i" else np.uint64
    found: Array = ((words << room).view(kind) >> kind(room)).astype(target.numpy)
    return found


_WHOLE: dict[str, Callable[[Array], Array]] = {
    "nearest-even": np.rint,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
}


def _half_away(values: Array) -> Array:
    whole = np.trunc(values)
    found: Array = whole + np.copysign(np.abs(values - whole) >= 0.5, values)
    return found


def _float_to_integer(values: Array, target: DataType, rounding: str, out_of_range: str | None) -> Array:
    _complain(values[~np.isfinite(values)], "is no integer")
    whole = _WHOLE.get(rounding, _half_away)(values)
    low, high = integer_limits(target)
    # The ends are powers of two, which floats hold; one less than them they may not.
    below, above = whole < float(low), whole >= float(high + 1)
    if (below | above).any():
        if out_of_range == "wrap":
            rest = np.fmod(whole, 2.0**64)
            rest = np.where(rest >= 2.0**63, rest - 2.0**64, np.where(rest < -(2.0**63), rest + 2.0**64, rest))
            return _wrapped(rest.astype(np.int64).view(np.uint64), target)
        if out_of_range != "clamp":
            _complain(values[below | above], f"is not from {low} to {high}")
    inside = np.where(below | above, 0, whole)
    found = inside.astype(target.numpy)
    found[below], found[above] = low, high
    return found


def _to_float(array: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    values = array.astype(_wide(array.dtype))
    found = values.astype(dtype)
    back = found.astype(values.dtype)
    if bool(((back == values) | (np.isnan(values) & np.isnan(back))).all()):
        return found
    top, step = _top(dtype)
    has_infinity = bool(np.isinf(dtype.type(np.inf)))
    if not np.isnan(float(dtype.type(np.nan))):
        _complain(values[np.isnan(values)], "is no value of the type")
    if not has_infinity:
        _complain(values[np.isinf(values)], "is no value of the type")
    up, down = _limits(top, step, rounding)
    above, below = np.isfinite(values) & (values > up), np.isfinite(values) & (values < -down)
    if rounding.startswith("nearest"):  # half a step above the greatest value rounds away from it
        above, below = np.isfinite(values) & (values >= up), np.isfinite(values) & (values <= -down)
    if (above | below).any() and out_of_range != "clamp":
        _complain(values[above | below], f"is not from {-top} to {top}")
    inside = np.isfinite(values) & ~above & ~below
    rounded = _round(np.where(inside, values, 0), dtype, rounding, top)
    found = np.where(inside, rounded, found)
    end = np.inf if has_infinity else top
    found[above], found[below] = end, -end
    return found


def _top(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The greatest value of a floating-point type, and the step below it."""
    if dtype.type.__module__ == "ml_dtypes":
        import ml_dtypes

        top = ml_dtypes.finfo(dtype).max  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
    else:
        top = np.finfo(dtype).max
    greatest = np.array(top, dtype)
    return _LONG(float(top)), _LONG(float(top)) - _LONG(float(np.nextafter(greatest, np.zeros((), dtype))))


def _limits(top: Any, step: Any, rounding: str) -> tuple[Any, Any]:
    """Beyond which magnitudes, upwards and downwards, rounding leaves the type."""
    if rounding.startswith("nearest"):
        return top + step / 2, top + step / 2
    beyond = np.nextafter(top + step, _LONG(0))  # what is smaller than the next step is rounded back
    return {
        "towards-zero": (beyond, beyond),
        "towards-positive": (top, beyond),
        "towards-negative": (beyond, top),
    }[rounding]


def _round(values: Array, dtype: np.dtype[Any], rounding: str, top: Any) -> Array:
    """Values within a type's range, rounded by the two of its values around each."""
    near = np.clip(values, -top, top).astype(dtype)
    back = near.astype(values.dtype)
    zero, far = np.zeros((), dtype), np.where(values < 0, -top, top).astype(dtype)
    # ``near`` may be either neighbour, and where a conversion rounds twice, the wrong one of them.
    over = np.abs(back) > np.abs(values)
    inner = np.where(over, np.nextafter(near, zero), near)
    outer = np.where(over, near, np.nextafter(near, far))
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
            odd = (inner.view(word) & word.type(1)).astype(bool)
            away = (size - low > high - size) | (middle & odd)
    found = np.where(away & ~exact, outer, np.where(exact, near, inner)).astype(dtype)
    # A value that is rounded to zero keeps its sign.
    signed: Array = np.where((found == 0) & negative, -np.abs(found), found).astype(dtype)
    return signed
