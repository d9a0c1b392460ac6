"""numcodecs, and functions of the C libraries that it bundles, which decompress into memory of the caller.

numcodecs' own functions check such memory in Python for 2 to 3 µs per call while they hold the GIL, and create a zstd
context per call. Some builds do not export the C functions; callers fall back to numcodecs then.
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

from zarrasync._concurrency.fork import reentrant_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import UnknownCodecError

__all__ = ["WARNINGS", "blosc_rows", "numcodecs_module", "zstd_rows"]

WARNINGS = reentrant_lock()
"""Held while filters of warnings are changed, which belong to the whole process. Otherwise two threads that restore them in
another order than they changed them would lose the filters of the program."""

_Function: TypeAlias = Callable[..., Any]
_NO_ADDRESS = (BufferError, TypeError, ValueError)
"""Errors for memory that is too small, read-only or not contiguous."""
_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_size_t


@cache
def numcodecs_module(name: str) -> ModuleType:
    """Import a module of numcodecs without its deprecation warning about crc32c.

    Raises:
        UnknownCodecError: If numcodecs cannot be imported.
    """
    try:
        with WARNINGS, warnings.catch_warnings(record=True):  # numcodecs inserts its own filter before others
            return import_module(f"numcodecs.{name}")
    except ImportError as error:
        raise UnknownCodecError(
            f"codecs of numcodecs, such as blosc and lz4, cannot be used, because Python cannot import it: {error}; "
            "install a build of numcodecs with its compiled modules (PyPy has none)"
        ) from error


@cache
def _function(module: str, name: str, result: Any, *arguments: Any) -> _Function | None:
    """Return a C function of the library behind a module of numcodecs, or ``None`` if it is not exported."""
    try:
        function = getattr(ctypes.CDLL(numcodecs_module(module).__file__), name)
    except (AttributeError, OSError, UnknownCodecError):
        return None
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # a C function


def blosc_rows(values: Sequence[Buffer], rows: Sequence[Buffer], size: int) -> bool:
    """Decompress blosc values whose headers have been checked, each into memory of ``size`` bytes.

    Returns:
        Whether all were decompressed. If not, the content of ``rows`` is undefined.
    """
    decompress = _function("blosc", "blosc_decompress_ctx", ctypes.c_int, _ADDRESS, _ADDRESS, _SIZE, ctypes.c_int)
    if decompress is None:
        return False
    memory = ctypes.c_char * size
    try:
        return all(
            decompress(_address(value), _writable_address(row, memory), size, 1) == size
            for value, row in zip(values, rows, strict=True)
        )
    except _NO_ADDRESS:
        return False


def zstd_rows(values: Sequence[Buffer], rows: Sequence[Buffer], size: int) -> bool:
    """Decompress zstd frames, each into memory of ``size`` bytes. See ``blosc_rows``."""
    decompress = _function("zstd", "ZSTD_decompressDCtx", _SIZE, _ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _SIZE)
    context = _zstd_context()
    if decompress is None or context is None:
        return False
    memory = ctypes.c_char * size
    try:
        return all(
            # Error codes are large numbers.
            decompress(context, _writable_address(row, memory), size, _address(value), len(value)) == size
            for value, row in zip(values, rows, strict=True)
        )
    except _NO_ADDRESS:
        return False


class _ZstdContext:
    """A zstd context. Only one thread at a time may use it."""

    def __init__(self, make: _Function, free: _Function) -> None:
        self.address: int | None = make()
        weakref.finalize(self, free, self.address).atexit = False


_thread_contexts = threading.local()


def _zstd_context() -> int | None:
    """Return the address of the thread's zstd context, or ``None`` if contexts cannot be created."""
    context: _ZstdContext | None = getattr(_thread_contexts, "zstd", None)
    if context is None:
        make, free = _function("zstd", "ZSTD_createDCtx", _ADDRESS), _function("zstd", "ZSTD_freeDCtx", _SIZE, _ADDRESS)
        if make is None or free is None:
            return None
        context = _thread_contexts.zstd = _ZstdContext(make, free)
    return context.address


def _writable_address(memory: Any, kind: Any = ctypes.c_char) -> int:
    """Return the address of writable memory that is at least as large as a ctypes type."""
    return ctypes.addressof(kind.from_buffer(memory))


def _address(data: Any) -> Any:
    """Return the address of memory that may be read-only, or an object that ctypes converts to it."""
    if type(data) is bytes:
        return data
    try:
        return _writable_address(data)
    except TypeError:
        return np.frombuffer(data, np.uint8).ctypes.data
