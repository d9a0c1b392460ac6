"""C-Blosc's decompression into memory that is there, out of the library that numcodecs brings.

numcodecs checks such memory in Python, 2 to 3 µs a call in which no other thread gets the interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np

from zarrasync.codecs.base import Buffer

__all__ = ["decompress_rows"]

_Function: TypeAlias = Callable[[int, int, int, int], int]


@cache
def _function() -> _Function | None:
    """``blosc_decompress_ctx``; ``None`` in a build of numcodecs that keeps it to itself."""
    from numcodecs import blosc

    try:
        found = ctypes.CDLL(blosc.__file__).blosc_decompress_ctx
    except (AttributeError, OSError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found.restype = ctypes.c_int
    return found


def decompress_rows(values: Sequence[Buffer], rows: Sequence[Buffer], size: int) -> bool:
    """Decompress values whose headers have been checked, each into memory of ``size`` bytes.

    Returns:
        Whether that was possible; if not, what ``rows`` hold is undefined.
    """
    decompress = _function()
    if decompress is None:
        return False
    for value, row in zip(values, rows, strict=True):
        if decompress(_address(value), _address(row), size, 1) != size:
            return False
    return True


_at: Callable[[Buffer], ctypes.c_char] = ctypes.c_char.from_buffer


def _address(data: Buffer) -> int:
    try:
        return ctypes.addressof(_at(data))
    except TypeError:  # it can not be changed
        return np.frombuffer(data, np.uint8).ctypes.data
