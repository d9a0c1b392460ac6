"""The descriptions that the kernel works from. See ``kernel.h``, whose structs these are."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import weakref
from typing import Any, NamedTuple

from zarrasync._kernel.library import kernel
from zarrasync._kernel.symbols import symbols

MAX_AXES, MAX_STEPS = 32, 8
CRC32C, BLOSC, ZSTD, LZ4, GZIP, ZLIB, SHUFFLE, DELTA = 1, 2, 3, 4, 5, 6, 7, 8
"""Codecs."""
ABSENT, LEFT, EMPTY, LATER = 1, 2, 3, 4
"""What became of a chunk: it is not stored, Python has to do it, it contains only the fill value, or its folder exists."""
AXIS = struct.Struct("=11q")
"""``za_axis``, whose members have one size on all platforms that the kernel supports."""

_LEAST_KEPT, _MOST_KEPT, _KEPT_TOGETHER = 32 << 20, 72 << 20, 256 << 20
"""Bytes of buffers. The largest ones suffice for shards of 64 MiB."""

_I64 = ctypes.c_int64


_TRAFFIC = struct.Struct("=5q")
"""``za_traffic``."""


class Traffic(NamedTuple):
    """What a call of the kernel read and wrote.

    Attributes:
        fetches: Number of values or byte ranges that were read, or found absent.
        absent: Number of absent values.
        bytes_read: Number of bytes that were read.
        puts: Number of values that were stored.
        bytes_written: Number of bytes that were stored.
    """

    fetches: int
    absent: int
    bytes_read: int
    puts: int
    bytes_written: int


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
        ("root", _I64),
        ("head", ctypes.c_char_p),
        ("separator", _I64),
        ("value_limit", _I64),
        ("is_sharded", _I64),
        ("index_at_end", _I64),
        ("index_is_big_endian", _I64),
        ("index_has_checksum", _I64),
        ("inner_count", _I64),
        ("inner_strides", _I64 * MAX_AXES),
        ("inner_order", ctypes.c_void_p),
        ("chain", ChainStruct),
        ("lengths", _I64 * MAX_AXES),
        ("inner_lengths", _I64 * MAX_AXES),
        ("order", _I64 * MAX_AXES),
    ]
    can_write: bool
    """Whether the kernel can encode the chunks as well. Not a member of ``za_array``."""


class ValueStruct(ctypes.Structure):
    """``za_value``."""

    _fields_ = [("data", ctypes.c_void_p), ("size", _I64), ("buffer", _I64 * 3)]


class PointsStruct(ctypes.Structure):
    """``za_points``."""

    _fields_ = [
        ("count", _I64),
        ("group_count", _I64),
        ("out_stride", _I64),
        ("indices", ctypes.c_void_p * MAX_AXES),
        ("order", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("edges", ctypes.c_void_p),
    ]


_FUNCTIONS = [
    "blosc_decompress_ctx",
    "blosc_compress_ctx",
    "blosc_getitem",
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_decompressDCtx",
    "ZSTD_decompressStream",
    "ZSTD_initDStream",
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
    "isal_inflate_init",
    "isal_inflate_stateless",
    "isal_adler32",
    "crc32_gzip_refl",
    "zng_deflateInit2",
    "zng_deflate",
    "zng_deflateReset",
    "zng_deflateEnd",
    "zng_deflateBound",
]
"""The members of ``za_functions``."""


_DECODERS = {
    BLOSC: "blosc_decompress_ctx",
    ZSTD: "ZSTD_decompressDCtx",
    LZ4: "LZ4_decompress_safe",
    GZIP: "isal_inflate_stateless",
    ZLIB: "isal_inflate_stateless",
}
_ENCODERS = {
    BLOSC: "blosc_compress_ctx",
    ZSTD: "ZSTD_compress2",
    LZ4: "LZ4_compress_fast",
    GZIP: "zng_deflate",
    ZLIB: "zng_deflate",
}
"""A function of each codec's family, which is complete or missing."""
_BUILT_IN = (CRC32C, SHUFFLE, DELTA)
"""Codecs that need no library."""


def can_decode(kind: int) -> bool:
    """Return whether an installed library has the functions that decode a codec."""
    return kind in _BUILT_IN or symbols()[_DECODERS[kind]] is not None


def can_encode(kind: int) -> bool:
    """Return whether an installed library has the functions that encode a codec."""
    return kind in _BUILT_IN or symbols()[_ENCODERS[kind]] is not None


def _largest_kept() -> int:
    """Return the size in bytes of a buffer above which a thread frees it after each call: less on many cores, which have as many threads.

    The system clears the pages of new memory, which takes as long as to decode them.
    """
    return max(_LEAST_KEPT, min(_MOST_KEPT, _KEPT_TOGETHER // (os.cpu_count() or 1)))


class Worker:
    """The kernel's memory for one thread, and its functions.

    Args:
        system: The address of a table of system calls, ``za_system``; by default, the C library's.

    Attributes:
        address: Of the ``za_worker``.
        decode: ``zarrasync_decode``.
        encode: ``zarrasync_encode``.
        take: ``zarrasync_take``.
        read: ``zarrasync_read``.
        read_ranges: ``zarrasync_read_ranges``.
        sort_points: ``zarrasync_sort_points``.
        write: ``zarrasync_write``.
    """

    __slots__ = (
        "__weakref__",
        "_traffic",
        "address",
        "decode",
        "encode",
        "read",
        "read_ranges",
        "sort_points",
        "take",
        "write",
    )

    def __init__(self, system: int | None = None) -> None:
        library: Any = kernel("auto")
        functions = (ctypes.c_void_p * len(_FUNCTIONS))(*[symbols()[name] for name in _FUNCTIONS])
        self.address: int = library.zarrasync_new_worker(functions, system, _largest_kept())
        if not self.address:
            raise MemoryError("not enough memory for the compiled kernel")
        weakref.finalize(self, library.zarrasync_free_worker, self.address).atexit = False
        self.decode, self.encode, self.take = library.zarrasync_decode, library.zarrasync_encode, library.zarrasync_take
        self.read, self.write = library.zarrasync_read, library.zarrasync_write
        self.read_ranges = library.zarrasync_read_ranges
        self._traffic = (ctypes.c_char * _TRAFFIC.size).from_address(self.address)
        self.sort_points = library.zarrasync_sort_points

    def traffic(self) -> Traffic:
        """Return what the last call read and wrote."""
        return Traffic._make(_TRAFFIC.unpack(self._traffic))


_threads = threading.local()


def worker() -> Worker:
    """Return this thread's worker. The kernel must be active."""
    try:
        return _threads.worker  # type: ignore[no-any-return]  # attributes of threads have no types
    except AttributeError:
        own = _threads.worker = Worker()
        return own
