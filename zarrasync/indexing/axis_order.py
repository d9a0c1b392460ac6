"""Copies between NumPy arrays whose axes lie in different orders in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["assign", "in_c_order"]

_SMALLEST_STRIDE = 2048
"""Strides of a multiple of this many bytes use so few sets of the cache that the elements evict each other."""

_CACHE_LINE = 64
"""Bytes of a cache line."""

_SMALLEST_COPY = 1 << 17
"""Bytes below which everything stays in the cache anyway."""


def assign(out: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Do ``out[...] = values`` for values of the same shape, fast also if their axes lie in another order.

    NumPy walks along the rows of the output. If the values are in Fortran order and their sizes are powers of two, as
    those of chunks are, the elements of a row evict each other from the cache. Narrow strips of rows stay in it.
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
    """Return the values in C order in memory: the same array if it is, otherwise a copy."""
    if values.flags.c_contiguous:
        return values
    out = np.empty(values.shape, values.dtype)
    assign(out, values)
    return out
