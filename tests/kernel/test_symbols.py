"""Functions of installed codec libraries: each address is called on real data."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import zlib
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_ulong, c_void_p, create_string_buffer

import numcodecs
import numpy as np
import pytest

from zarrasync._kernel.symbols import symbols

DATA = np.arange(5000, dtype="u2").tobytes()
SIZE = len(DATA)


def call(name: str, result, *arguments):
    """Call a function. Arguments are converted as ctypes does it, so numbers that are not ``int`` have a ctypes type."""
    address = symbols()[name]
    if address is None:
        pytest.skip(f"no installed library exports {name}")
    kinds = [c_char_p if isinstance(value, bytes) else type(value) for value in arguments]
    return ctypes.CFUNCTYPE(result, *kinds)(address)(*arguments)


def test_blosc():
    out, back = create_string_buffer(SIZE + 16), create_string_buffer(SIZE)
    size = call(
        *("blosc_compress_ctx", c_int, c_int(5), c_int(1), c_size_t(2), c_size_t(SIZE), DATA),
        *(out, c_size_t(len(out)), b"zstd", c_size_t(0), c_int(1)),
    )
    packed = out.raw[:size]
    assert 16 < size < SIZE
    assert numcodecs.Blosc().decode(packed) == DATA
    content, stored, block = c_size_t(), c_size_t(), c_size_t()
    call("blosc_cbuffer_sizes", None, packed, pointer(content), pointer(stored), pointer(block))
    assert (content.value, stored.value) == (SIZE, size)
    assert call("blosc_cbuffer_validate", c_int, packed, c_size_t(size), pointer(content)) == 0
    assert call("blosc_cbuffer_validate", c_int, packed, c_size_t(size - 1), pointer(content)) < 0
    element, flags = c_size_t(), c_int()
    call("blosc_cbuffer_metainfo", None, packed, pointer(element), pointer(flags))
    assert element.value == 2
    assert call("blosc_decompress_ctx", c_int, packed, back, c_size_t(SIZE), c_int(1)) == SIZE
    assert back.raw == DATA


def pointer(value):
    return c_void_p(ctypes.addressof(value))


def test_zstd():
    bound = call("ZSTD_compressBound", c_size_t, c_size_t(SIZE))
    out, back = create_string_buffer(bound), create_string_buffer(SIZE)
    encoder, decoder = c_void_p(call("ZSTD_createCCtx", c_void_p)), c_void_p(call("ZSTD_createDCtx", c_void_p))
    assert call("ZSTD_CCtx_setParameter", c_size_t, encoder, c_int(100), c_int(3)) in (
        0,
        3,
    )  # 3: the level that was set
    size = call("ZSTD_compress2", c_size_t, encoder, out, c_size_t(bound), DATA, c_size_t(SIZE))
    packed = out.raw[:size]
    assert numcodecs.Zstd().decode(packed) == DATA
    assert call("ZSTD_getFrameContentSize", c_uint64, packed, c_size_t(size)) == SIZE
    assert call("ZSTD_findFrameCompressedSize", c_size_t, packed + b"more", c_size_t(size + 4)) == size
    assert call("ZSTD_decompressDCtx", c_size_t, decoder, back, c_size_t(SIZE), packed, c_size_t(size)) == SIZE
    assert back.raw == DATA
    failure = call("ZSTD_decompressDCtx", c_size_t, decoder, back, c_size_t(SIZE - 1), packed, c_size_t(size))
    assert failure == 2**64 - 70  # the destination is too small
    assert call("ZSTD_freeCCtx", c_size_t, encoder) == 0
    assert call("ZSTD_freeDCtx", c_size_t, decoder) == 0


@pytest.mark.parametrize("fast", [False, True])
def test_lz4(fast):
    bound = call("LZ4_compressBound", c_int, c_int(SIZE))
    out, back = create_string_buffer(bound), create_string_buffer(SIZE)
    name, more = ("LZ4_compress_fast", [c_int(4)]) if fast else ("LZ4_compress_default", [])
    size = call(name, c_int, DATA, out, c_int(SIZE), c_int(bound), *more)
    packed = out.raw[:size]
    assert numcodecs.LZ4().decode(SIZE.to_bytes(4, "little") + packed) == DATA
    assert call("LZ4_decompress_safe", c_int, packed, back, c_int(size), c_int(SIZE)) == SIZE
    assert back.raw == DATA
    assert call("LZ4_decompress_safe", c_int, packed, back, c_int(size), c_int(SIZE - 1)) < 0
    assert call("LZ4_versionNumber", c_int) >= 10_900


class Stream(ctypes.Structure):
    """The parts of streams that point to data."""

    def connect(self, data, out) -> None:
        self.next_in, self.avail_in = ctypes.cast(ctypes.c_char_p(data), c_void_p), len(data)
        self.next_out, self.avail_out = ctypes.addressof(out), len(out)


class ZlibStream(Stream):
    """z_stream. zlib-ng's has the same layout on 64-bit Unix."""

    _fields_ = (
        *(("next_in", c_void_p), ("avail_in", c_uint), ("total_in", c_ulong)),
        *(("next_out", c_void_p), ("avail_out", c_uint), ("total_out", c_ulong), ("rest", c_void_p * 8)),
    )


@pytest.mark.skipif(ctypes.sizeof(c_ulong) != 8, reason="z_stream has another layout")
@pytest.mark.parametrize("prefix", ["", "zng_"])
@pytest.mark.parametrize("window", [15, 31], ids=["zlib", "gzip"])
def test_zlib(prefix, window):
    start, size = (c_uint32, c_uint32) if prefix else (c_ulong, c_uint)
    for name in ("crc32", "adler32"):
        first = getattr(zlib, name)(b"")
        assert call(f"{prefix}{name}", c_uint32, start(first), DATA, size(SIZE)) == getattr(zlib, name)(DATA)
    version = call("zlibng_version" if prefix else "zlibVersion", c_char_p)
    # zlib's functions for a start compare the version and the size of the struct; those of zlib-ng do not.
    suffix, check = ("", []) if prefix else ("_", [version, c_int(14 * 8)])
    stream = ZlibStream()
    method = [c_int(6), c_int(8), c_int(window), c_int(8), c_int(0)]
    assert call(f"{prefix}deflateInit2{suffix}", c_int, pointer(stream), *method, *check) == 0
    out = create_string_buffer(call(f"{prefix}deflateBound", c_ulong, pointer(stream), c_ulong(SIZE)))
    for _ in range(2):
        stream.connect(DATA, out)
        assert call(f"{prefix}deflate", c_int, pointer(stream), c_int(4)) == 1  # to the end
        packed = out.raw[: stream.total_out]
        assert zlib.decompress(packed, window) == DATA
        assert call(f"{prefix}deflateReset", c_int, pointer(stream)) == 0
    assert call(f"{prefix}deflateEnd", c_int, pointer(stream)) == 0
    stream, back = ZlibStream(), create_string_buffer(SIZE)
    assert call(f"{prefix}inflateInit2{suffix}", c_int, pointer(stream), c_int(window), *check) == 0
    for _ in range(2):
        stream.connect(packed, back)
        assert call(f"{prefix}inflate", c_int, pointer(stream), c_int(4)) == 1
        assert back.raw == DATA
        assert call(f"{prefix}inflateReset", c_int, pointer(stream)) == 0
    assert call(f"{prefix}inflateEnd", c_int, pointer(stream)) == 0


@pytest.mark.parametrize("stateless", [False, True])
def test_isal(stateless):
    assert call("crc32_gzip_refl", c_uint32, c_uint32(0), DATA, c_uint64(SIZE)) == zlib.crc32(DATA)
    assert call("isal_adler32", c_uint32, c_uint32(1), DATA, c_uint64(SIZE)) == zlib.adler32(DATA)
    packed = zlib.compress(DATA, wbits=-15)
    back, state = create_string_buffer(SIZE), create_string_buffer(1 << 18)  # more than the struct needs
    stream = IsalStream.from_buffer(state)
    call("isal_inflate_init", None, pointer(state))
    for _ in range(2):
        stream.connect(packed, back)
        assert call("isal_inflate_stateless" if stateless else "isal_inflate", c_int, pointer(state)) == 0
        assert (stream.total_out, stream.avail_in) == (SIZE, 0)
        assert back.raw == DATA
        call("isal_inflate_reset", None, pointer(state))


class IsalStream(Stream):
    """The beginning of inflate_state."""

    _fields_ = (
        *(("next_out", c_void_p), ("avail_out", c_uint32), ("total_out", c_uint32)),
        *(("next_in", c_void_p), ("read_in", c_uint64), ("avail_in", c_uint32), ("read_in_length", c_uint32)),
    )


@pytest.mark.processes
def test_they_are_found_without_imports():
    """Importing numcodecs takes as long as all the rest."""
    code = "import sys; from zarrasync._kernel.symbols import symbols; symbols(); print('numcodecs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="wheels for other systems hide the functions")
def test_the_wheels_for_linux_export_them():
    missing = [name for name, address in symbols().items() if address is None]
    assert missing == []
