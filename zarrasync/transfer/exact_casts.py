"""Whether casts change values: only the rounding of floating-point numbers, which another data type implies, may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.spec import Array
from zarrasync.errors import EncodingError
from zarrasync.model.exact_numbers import changed_numbers, is_inexact
from zarrasync.model.fill_values import is_float
from zarrasync.transfer.convert_values import as_array, cast

_TOGETHER = 1 << 20
"""Elements that are compared together, because a comparison takes several times their memory."""


def _with_own_type(values: Any, dtype: np.dtype[Any]) -> Any:
    """Return lists and foreign arrays as arrays of the data type of their values, because NumPy would cut their values to ``dtype``."""
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


def as_exact_array(values: Any, dtype: np.dtype[Any], fill: Any, origin: Sequence[int] = ()) -> Array:
    """Convert values to an array that can be stored as a dtype without changing them; see ``check_cast``.

    Args:
        values: The values. Masked elements become the fill value, and are not checked.
        dtype: The dtype.
        fill: The fill value.
        origin: The indices of the first value, for messages; by default zeros.

    Raises:
        CodecError: If the dtype has no such values.
        EncodingError: If it does not represent a value.
    """
    values = _with_own_type(values, dtype)
    array = as_array(values, dtype, fill)
    if isinstance(values, np.ndarray) and may_change(values.dtype, dtype):
        with np.errstate(over="ignore"):  # such numbers are refused
            array = cast(array, dtype)
        check_cast(values, array, origin)
    return array


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
    first, count = None, 0
    for start, changed in _changes(np.atleast_1d(values), np.atleast_1d(result)):
        if first is None and changed.any():
            row, *others = map(int, np.argwhere(changed)[0])
            first = (start + row, *others)
        count += int(changed.sum())
    if first is not None:
        raise _error(values, result, first[: values.ndim], origin, count)


def _changes(values: Array, result: Array) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yield which values of the rows that begin at an index have changed."""
    rows = max(1, _TOGETHER * len(result) // result.size)
    for start in range(0, len(result), rows):
        part = slice(start, start + rows)
        yield start, _changed(np.ma.getdata(values[part]), result[part]) & ~_masked(values[part])


def _error(values: Array, result: Array, place: tuple[int, ...], origin: Sequence[int], count: int) -> EncodingError:
    index = tuple(at + start for at, start in zip(place, origin or (0,) * len(place), strict=True))
    value, is_time = np.ma.getdata(values)[place], values.dtype.kind in "mM"
    value = value.item() if isinstance(value, np.generic) and not is_time else value
    at = f" at index {', '.join(map(str, index))}" if index else ""
    return EncodingError(
        f"the value {value if is_time else repr(value)}{at} cannot be stored as {result.dtype}, in which it would become "
        f"{result[place]}; {count:,} of {result.size:,} values are affected; choose a data type that represents them, or "
        "convert the values first",
        index=index,
        value=value,
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
            return np.asarray(np.isnat(values)) | _changed(values.astype(np.int64), result)
        if other.kind in "mM":
            absent = np.isnan(values) if own.kind in "fc" else np.False_
            return _changed(values, result.astype(np.int64)) & ~(absent & np.isnat(result))
        return changed_numbers(values, result)


def _changed_fields(values: Array, result: Array) -> npt.NDArray[np.bool_]:
    changed = np.zeros(values.shape, np.bool_)
    for own, other in zip(values.dtype.names or (), result.dtype.names or (), strict=False):
        if may_change(values.dtype[own].base, result.dtype[other].base):
            inner = _changed(values[own], result[other])
            changed |= inner.any(axis=tuple(range(changed.ndim, inner.ndim)))
    return changed


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
    compare = (
        _is_cut if result.dtype.kind in "SU" else _is_other_number if is_inexact(result.dtype) else _is_other_integer
    )
    pairs = zip(values.reshape(-1).tolist(), result.reshape(-1).tolist(), strict=True)
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
