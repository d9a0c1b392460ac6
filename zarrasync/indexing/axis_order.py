"""Fast copies between NumPy arrays with different orders of axes in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["assign", "in_c_order"]

_SMALLEST_STRIDE = 2048
"""With strides of a multiple of this many bytes, elements share so few cache sets that they evict each other."""

_CACHE_LINE = 64
"""The size of a cache line in bytes."""

_SMALLEST_COPY = 1 << 17
"""The size in bytes below which all values fit into the cache."""


def assign(out: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Perform ``out[...] = values`` for arrays of the same shape, also fast if the memory order of their axes differs.

    NumPy iterates along the rows of the output. If the values are in Fortran order and their sizes are powers of two, as
    chunk sizes often are, the elements of a row evict each other from the cache. Narrow strips of rows stay in the cache.
    """
    if values.nbytes >= _SMALLEST_COPY and values.itemsize <= 8 and values.ndim > 1 and out.shape == values.shape:
        axis = min(range(out.ndim), key=lambda number: (out.shape[number] == 1, abs(out.strides[number])))
        width = max(16, _CACHE_LINE // (values.itemsize or 1))
        if values.strides[axis] % _SMALLEST_STRIDE == 0 < values.strides[axis] and out.shape[axis] > 2 * width:
            for start in range(0, out.shape[axis], width):
                strip = (*(slice(None),) * axis, slice(start, start + width))
                out[strip] = values[strip]
            return
    out[...] = values


def in_c_order(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in C order: the same array if it already is in C order, otherwise a copy."""
    if values.flags.c_contiguous:
        return values
    out = np.empty(values.shape, values.dtype)
    assign(out, values)
    return out
