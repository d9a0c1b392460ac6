"""The descriptions that the kernel works from. See ``kernel.h``, whose structs these are."""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from typing import Any

from zarrasync._kernel.library import kernel
from zarrasync._kernel.symbols import symbols

__all__ = [
    "ABSENT",
    "AXIS",
    "BLOSC",
    "CRC32C",
    "LEFT",
    "LZ4",
    "MAX_AXES",
    "MAX_STEPS",
    "ZSTD",
    "ArrayStruct",
    "ChainStruct",
    "StepStruct",
    "worker",
]

MAX_AXES, MAX_STEPS = 32, 8
CRC32C, BLOSC, ZSTD, LZ4 = 1, 2, 3, 4
"""Codecs."""
ABSENT, LEFT = 1, 2
"""What became of a chunk: it is not stored, or Python has to do it."""
AXIS = struct.Struct("=11q")
"""``za_axis``, whose members have one size on all platforms that the kernel supports."""

_I64 = ctypes.c_int64


class StepStruct(ctypes.Structure):
    """``za_step``."""

    _fields_ = [("kind", _I64), ("size", _I64), ("settings", _I64 * 5)]


class ChainStruct(ctypes.Structure):
    """``za_chain``."""

    _fields_ = [
        ("raw_size", _I64),
        ("item_size", _I64),
        ("word_size", _I64),
        ("least", _I64),
        ("most", _I64),
        ("size_hint", _I64),
        ("step_count", _I64),
        ("steps", StepStruct * MAX_STEPS),
        ("strides", _I64 * MAX_AXES),
        ("fill", ctypes.c_char_p),
    ]


class ArrayStruct(ctypes.Structure):
    """``za_array``."""

    _fields_ = [
        ("axis_count", _I64),
        ("directory", ctypes.c_char_p),
        ("head", ctypes.c_char_p),
        ("separator", _I64),
        ("value_limit", _I64),
        ("is_sharded", _I64),
        ("index_at_end", _I64),
        ("index_is_big_endian", _I64),
        ("index_has_checksum", _I64),
        ("inner_count", _I64),
        ("inner_strides", _I64 * MAX_AXES),
        ("chain", ChainStruct),
    ]


_FUNCTIONS = [
    "blosc_decompress_ctx",
    "blosc_compress_ctx",
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_decompressDCtx",
    "ZSTD_getFrameContentSize",
    "ZSTD_findFrameCompressedSize",
    "ZSTD_createCCtx",
    "ZSTD_freeCCtx",
    "ZSTD_CCtx_setParameter",
    "ZSTD_compress2",
    "ZSTD_compressBound",
    "LZ4_decompress_safe",
    "LZ4_compress_fast",
    "LZ4_compressBound",
]
"""The members of ``za_functions``."""


class _Worker:
    """The kernel's memory for one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        functions = (ctypes.c_void_p * len(_FUNCTIONS))(*[symbols()[name] for name in _FUNCTIONS])
        self.address: int = library.zarrasync_new_worker(functions)
        if not self.address:
            raise MemoryError("not enough memory for the compiled kernel")
        weakref.finalize(self, library.zarrasync_free_worker, self.address).atexit = False


_threads = threading.local()


def worker() -> int:
    """Return the address of this thread's worker."""
    own: _Worker | None = getattr(_threads, "worker", None)
    if own is None:
        library: Any = kernel("auto")
        own = _threads.worker = _Worker(library)
    return own.address
