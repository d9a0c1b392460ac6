"""C functions of codec libraries that are installed with other packages, for the kernel to call.

The extension modules of numcodecs, zstandard, isal and zlib-ng contain whole C libraries, and most of their builds export
the functions. A function that a build hides is ``None``, and Python decodes such chunks.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec

_ZSTD_DECODER = (
    "ZSTD_createDCtx ZSTD_decompressDCtx ZSTD_decompressStream ZSTD_findFrameCompressedSize ZSTD_freeDCtx "
    "ZSTD_getFrameContentSize ZSTD_initDStream"
)
_ZSTD_ENCODER = "ZSTD_CCtx_setParameter ZSTD_compress2 ZSTD_compressBound ZSTD_createCCtx ZSTD_freeCCtx"
_ZLIB = "adler32 crc32 deflate deflateBound deflateEnd deflateInit2_ deflateReset inflate inflateEnd inflateInit2_ inflateReset zlibVersion"
_ZLIB_NG = (
    "zlibng_version zng_adler32 zng_crc32 zng_deflate zng_deflateBound zng_deflateEnd zng_deflateInit2 zng_deflateReset zng_inflate "
    "zng_inflateEnd zng_inflateInit2 zng_inflateReset"
)
_ISAL = "crc32_gzip_refl isal_adler32 isal_inflate isal_inflate_init isal_inflate_reset isal_inflate_stateless"
_BLOSC = "blosc_cbuffer_metainfo blosc_cbuffer_sizes blosc_cbuffer_validate blosc_compress_ctx blosc_decompress_ctx blosc_getitem"
_LZ4 = "LZ4_compressBound LZ4_compress_default LZ4_compress_fast LZ4_decompress_safe LZ4_versionNumber"

# The functions of a line work on the same structs, so all of them come from the first of these modules that has them all.
_FAMILIES = (
    (_BLOSC, ("numcodecs.blosc",)),
    (
        _ZSTD_DECODER,
        ("numcodecs.zstd", "zstandard._cffi", "numcodecs.blosc"),
    ),  # zstandard lacks the decoder in assembly
    (_ZSTD_ENCODER, ("zstandard._cffi", "numcodecs.zstd", "numcodecs.blosc")),  # zstandard has a newer version
    (_LZ4, ("numcodecs.lz4", "numcodecs.blosc")),
    (_ISAL, ("isal.isal_zlib", "isal.igzip_lib")),
    (_ZLIB_NG, ("zlib_ng.zlib_ng",)),
    (_ZLIB, ("zlib",)),
)


_libraries: dict[str, ctypes.CDLL] = {}
"""The loaded libraries by path. An address is valid while its library is loaded."""


@cache
def symbols() -> dict[str, int | None]:
    """Return the addresses of functions by their names, ``None`` if no installed library exports one of its family."""
    found: dict[str, int | None] = {}
    for line, modules in _FAMILIES:
        names = line.split()
        complete = filter(None, (_addresses(names, module) for module in modules))
        found.update(next(complete, dict.fromkeys(names)))
    return found


def _addresses(names: list[str], module: str) -> dict[str, int | None] | None:
    """Return the addresses of functions in an extension module, or ``None`` if it lacks one of them."""
    path = _extension(module)
    if path is None:
        return None
    try:
        # The module is not imported, which would take long. By default, its symbols stay local to it (RTLD_LOCAL).
        library = _libraries[path] = _libraries.get(path) or ctypes.CDLL(path)
        return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names}
    except (AttributeError, OSError):
        return None


def _extension(module: str) -> str | None:
    """Return the path of an extension module, without importing it or its package."""
    package = module.rpartition(".")[0]
    spec = find_spec(package or module)
    if package and spec is not None:
        locations = spec.submodule_search_locations
        spec = PathFinder.find_spec(module, locations) if locations else None
    return spec.origin if spec is not None and spec.has_location else None
