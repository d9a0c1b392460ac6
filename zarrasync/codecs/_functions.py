"""numcodecs, and decompression into memory that is there, by functions of the C libraries that it brings.

numcodecs itself checks such memory in Python, 2 to 3 µs a call in which no other thread gets the interpreter,
and makes a context of zstd for each. A build that keeps the functions to itself has none: then numcodecs does it.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from zarrasync.codecs.spec import Buffer

__all__ = ["blosc_rows", "numcodecs_module", "zstd_rows"]

_Function: TypeAlias = Callable[..., Any]
_NO_ADDRESS = (BufferError, TypeError, ValueError)
"""What comes of memory that is too small, read-only or not in one piece."""
_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_size_t


@cache
def numcodecs_module(name: str) -> ModuleType:
    """A module of numcodecs, which tells everybody who imports it that it would rather have another crc32c."""
    with warnings.catch_warnings(record=True):  # it puts its own filter before those that would ignore it
        return import_module(f"numcodecs.{name}")


@cache
def _function(module: str, name: str, result: Any, *arguments: Any) -> _Function | None:
    path = numcodecs_module(module).__file__
    try:
        found = getattr(ctypes.CDLL(path), name)
    except (AttributeError, OSError):
        return None
    found.restype, found.argtypes = result, arguments
    return found  # type: ignore[no-any-return]  # of C


def blosc_rows(values: Sequence[Buffer], rows: Sequence[Buffer], size: int) -> bool:
    """Decompress values of Blosc whose headers have been checked, each into memory of ``size`` bytes.

    Returns:
        Whether that was possible; if not, what ``rows`` hold is undefined.
    """
    decompress = _function("blosc", "blosc_decompress_ctx", ctypes.c_int, _ADDRESS, _ADDRESS, _SIZE, ctypes.c_int)
    if decompress is None:
        return False
    space = ctypes.c_char * size
    try:
        return all(
            decompress(_address(value), _at(row, space), size, 1) == size
            for value, row in zip(values, rows, strict=True)
        )
    except _NO_ADDRESS:
        return False


def zstd_rows(values: Sequence[Buffer], rows: Sequence[Buffer], size: int) -> bool:
    """Decompress frames of zstd, each into memory of ``size`` bytes; see ``blosc_rows``."""
    decompress = _function("zstd", "ZSTD_decompressDCtx", _SIZE, _ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _SIZE)
    context = _zstd_context()
    if decompress is None or context is None:
        return False
    space = ctypes.c_char * size
    try:
        return all(
            decompress(context, _at(row, space), size, _address(value), len(value)) == size  # errors are large numbers
            for value, row in zip(values, rows, strict=True)
        )
    except _NO_ADDRESS:
        return False


class _Context:
    """A context of zstd, which one thread at a time may use."""

    def __init__(self, make: _Function, free: _Function) -> None:
        self.address: int | None = make()
        weakref.finalize(self, free, self.address).atexit = False


_of_thread = threading.local()


def _zstd_context() -> int | None:
    found: _Context | None = getattr(_of_thread, "zstd", None)
    if found is None:
        make, free = _function("zstd", "ZSTD_createDCtx", _ADDRESS), _function("zstd", "ZSTD_freeDCtx", _SIZE, _ADDRESS)
        if make is None or free is None:
            return None
        found = _of_thread.zstd = _Context(make, free)
    return found.address


def _at(memory: Any, space: Any = ctypes.c_char) -> int:
    """Where memory that may be written to, and has so much space, lies."""
    return ctypes.addressof(space.from_buffer(memory))


def _address(data: Any) -> Any:
    """Where bytes lie, which may be read-only, or what ``ctypes`` takes for that."""
    if type(data) is bytes:
        return data
    try:
        return _at(data)
    except TypeError:
        return np.frombuffer(data, np.uint8).ctypes.data
