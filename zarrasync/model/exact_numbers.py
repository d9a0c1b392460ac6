"""Which numbers a cast to another data type changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.model.fill_values import is_float


def changed_numbers(values: npt.NDArray[Any], result: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers a cast has changed, apart from rounding floating-point numbers.

    Args:
        values: The numbers before the cast.
        result: The cast numbers.
    """
    is_complex = values.dtype.kind == "c" and result.dtype.kind != "c"
    changed: npt.NDArray[np.bool_] = np.zeros(values.shape, np.bool_)
    if is_complex:
        changed, values = np.asarray(np.imag(values) != 0), np.real(values)
    if is_inexact(values.dtype) and is_inexact(result.dtype):
        for has in (np.isfinite, np.isnan, np.isinf):  # some formats of machine learning have no infinity
            changed |= np.asarray(has(values) & ~has(result))
        return changed
    result = np.real(result) if result.dtype.kind == "c" else result
    with np.errstate(invalid="ignore", over="ignore"):  # integers have no infinity
        changed |= np.asarray(result.astype(values.dtype) != values)
    changed |= (result < 0) != (values < 0)  # integers of equal size with and without a sign
    if values.dtype.kind in "iu" and is_inexact(result.dtype):
        changed |= _is_outside(result, values.dtype)
    elif result.dtype.kind in "iu" and is_inexact(values.dtype):
        changed |= _is_outside(values, result.dtype)
    return changed


def _is_outside(numbers: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers are out of the range of integers. Processors differ in how they cast these."""
    limits, real = np.iinfo(dtype), numbers.astype(np.float64)
    return np.asarray(~((real >= float(limits.min)) & (real < float(limits.max) + 1)))


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are floating-point or complex numbers, which casts may round."""
    return dtype.kind == "c" or is_float(dtype)
