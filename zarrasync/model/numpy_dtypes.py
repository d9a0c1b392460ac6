"""Properties of the NumPy dtypes of stored elements."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["has_byte_order", "is_raw", "packed"]


def packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a structured dtype without C alignment, because stored elements have no padding."""
    if dtype.fields is None:
        return dtype
    return np.dtype([(name, packed(dtype[name])) for name in dtype.names or ()])


def has_byte_order(dtype: np.dtype[Any]) -> bool:
    """Return whether stored elements of a dtype have a byte order."""
    if dtype.fields is not None:
        return any(has_byte_order(dtype[name].base) for name in dtype.names or ())
    if dtype.kind in "TO" or is_raw(dtype) or dtype.kind == "S":
        return False
    return dtype.itemsize > 1


def is_raw(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are uninterpreted bytes."""
    return dtype.type is np.void and dtype.fields is None
