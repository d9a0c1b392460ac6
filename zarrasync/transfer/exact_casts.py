"""Whether casts change values: only the rounding of floating-point numbers, which another data type implies, may."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.spec import Array
from zarrasync.errors import EncodingError
from zarrasync.model.fill_values import is_float

_TOGETHER = 1 << 20
"""Elements that are compared together, because a comparison takes several times their memory."""


def with_own_type(values: Any, dtype: np.dtype[Any]) -> Any:
    """Return lists and foreign arrays as arrays of their own data type, because NumPy would cut their values to ``dtype``."""
    is_other = dtype.kind in "OT" or (dtype.kind == "V" and not is_float(dtype))
    return values if is_other else np.asanyarray(values)


def may_change(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether a cast may change values, so that ``check_cast`` has to compare them."""
    if source == target or target.kind in "OT":
        return False
    if source.names is not None and target.names is not None:
        pairs = zip(source.names, target.names, strict=False)
        return any(may_change(source[own].base, target[other].base) for own, other in pairs)
    if source.kind in "iu" and source.itemsize == 8 and target.kind in "fc":
        return True  # a safe cast for NumPy
    return source.kind in "OT" or not np.can_cast(source, target, "safe")


def check_cast(values: Array, result: Array, origin: Sequence[int] = ()) -> None:
    """Check that a cast has not changed values, apart from rounding floating-point numbers. Masked values are not compared.

    Args:
        values: The values before the cast.
        result: The cast values.
        origin: The indices of the first value, for messages; by default zeros.

    Raises:
        EncodingError: If a value has changed; names the first one.
    """
    if not may_change(values.dtype, result.dtype) or not result.size:
        return
    values, result = (values, result) if result.ndim else (values[None], result[None])
    rows, first, count = max(1, _TOGETHER * len(result) // result.size), None, 0
    for start in range(0, len(result), rows):
        part = slice(start, start + rows)
        if (changed := _changed(np.ma.getdata(values[part]), result[part]) & ~_masked(values[part])).any():
            first = first or (start + int(np.argwhere(changed)[0][0]), *map(int, np.argwhere(changed)[0][1:]))
            count += int(changed.sum())
    if first is None:
        return
    value, index = np.ma.getdata(values)[first], tuple(map(sum, zip(first, origin or (0,) * len(first), strict=False)))
    shown = repr(value.item()) if isinstance(value, np.generic) and value.dtype.kind not in "mM" else str(value)
    raise EncodingError(
        f"the value {shown} at index {', '.join(map(str, index))} cannot be stored as {result.dtype}, in which it would "
        f"become {result[first]}; {count:,} of {result.size:,} values are affected; choose a data type that represents "
        "them, or convert the values first",
        index=index,
        value=value.item() if isinstance(value, np.generic) else value,
    )


def _masked(values: Array) -> npt.NDArray[np.bool_]:
    mask = np.ma.getmaskarray(values)
    return np.zeros(values.shape, np.bool_) if mask.dtype.names is not None else mask


def _changed(values: Array, result: Array) -> npt.NDArray[np.bool_]:
    """Return which values have changed."""
    own, other = values.dtype, result.dtype
    if own.names is not None and other.names is not None:
        return _changed_fields(values, result)
    with np.errstate(all="ignore"):
        if own.kind == "O":
            return _changed_objects(values, result)
        if own.kind in "SUT" or other.kind in "SU":
            return _changed_strings(values, result)
        if own.kind in "mM" and other.kind in "mM":
            return np.asarray((result.astype(own) != values) & ~np.isnat(values))
        if own.kind in "mM":
            return np.isnat(values) | _changed(values.astype(np.int64), result)
        if other.kind in "mM":
            absent = np.isnan(values) if own.kind in "fc" else np.False_
            return np.asarray(_changed(values, result.astype(np.int64)) & ~(absent & np.isnat(result)))
        return _changed_numbers(values, result)


def _changed_fields(values: Array, result: Array) -> npt.NDArray[np.bool_]:
    changed = np.zeros(values.shape, np.bool_)
    for own, other in zip(values.dtype.names or (), result.dtype.names or (), strict=False):
        if may_change(values.dtype[own].base, result.dtype[other].base):
            inner = _changed(values[own], result[other])
            changed |= inner.any(axis=tuple(range(changed.ndim, inner.ndim)))
    return changed


def _changed_numbers(values: Array, result: Array) -> npt.NDArray[np.bool_]:
    is_complex = values.dtype.kind == "c" and result.dtype.kind != "c"
    changed = np.asarray(np.imag(values) != 0) if is_complex else np.zeros(values.shape, np.bool_)
    values = np.real(values) if is_complex else values
    if _is_inexact(values.dtype) and _is_inexact(result.dtype):
        for has in (np.isfinite, np.isnan, np.isinf):  # some formats of machine learning have no infinity
            changed |= has(values) & ~has(result)
        return changed
    changed |= result.astype(values.dtype) != values
    if values.dtype.kind in "iu":
        real = np.real(result)
        changed |= (real < 0) != (values < 0)  # integers of equal size with and without a sign
        limit = float(np.iinfo(values.dtype).max) + 1
        changed |= real.astype(np.float64) >= limit  # which some processors cast to the largest one
    elif result.dtype.kind in "iu":
        changed |= values.astype(np.float64) >= float(np.iinfo(result.dtype).max) + 1
    return changed


def _is_inexact(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "c" or is_float(dtype)


def _changed_strings(values: Array, result: Array) -> npt.NDArray[np.bool_]:
    """Return which strings are cut. NumPy parses numbers and times in strings, and refuses other strings."""
    if result.dtype.kind in "mM":
        return np.asarray(_changed(values.astype(result.dtype.kind), result))
    if result.dtype.kind not in "SU":
        return np.zeros(values.shape, np.bool_)
    if values.dtype.kind in "SU":
        return np.asarray(result.astype(values.dtype) != values)
    return np.asarray(result.astype(values.dtype if values.dtype.kind == "T" else "U") != values.astype("T"))


def _changed_objects(values: Array, result: Array) -> npt.NDArray[np.bool_]:
    if result.dtype.kind in "mM":
        return _changed(values.astype(result.dtype.kind), result)
    pairs = zip(values.reshape(-1).tolist(), result.reshape(-1).tolist(), strict=True)
    is_string, is_inexact = result.dtype.kind in "SU", _is_inexact(result.dtype)
    compare = _is_cut if is_string else _is_other_number if is_inexact else _is_other_integer
    return np.array([compare(value, stored) for value, stored in pairs], np.bool_).reshape(values.shape)


def _is_cut(value: Any, stored: Any) -> bool:
    if isinstance(value, bytes) != isinstance(stored, bytes):
        stored = stored.encode() if isinstance(stored, str) else stored.decode()
    return bool((value if isinstance(value, str | bytes) else str(value)) != stored)


def _is_other_integer(value: Any, stored: Any) -> bool:
    return not isinstance(value, str) and bool(value != stored)


def _is_other_number(value: Any, stored: Any) -> bool:
    if isinstance(value, Integral):
        return bool(value != stored)
    return isinstance(value, float) and bool(np.isfinite(value)) and not bool(np.isfinite(stored))
