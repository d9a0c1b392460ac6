"""``gzip``, ``zstd``, ``blosc`` and ``crc32c``, and the rule that all decompression follows.

The rule: a decompressor knows how many bytes must come out before it takes memory for them. What
a header declares is compared with what the chunk needs; where there is no header the output is
cut off one byte past the limit. So a damaged or hostile value is an error, not a crash, a hang or
an allocation.

numcodecs' blosc is switched to its per-call contexts (``use_threads = False``): its own threads
serialise on a global lock, and the engine runs chunks in parallel anyway.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from zarrasync.codecs._functions import blosc_rows, numcodecs_module, zstd_rows
from zarrasync.codecs.base import BatchDecoder, BytesBytesCodec, Codec, Decoder, Out, RowsDecoder
from zarrasync.codecs.spec import ArraySpec, Buffer
from zarrasync.errors import ChecksumError, MetadataError

__all__ = ["BloscCodec", "Crc32cCodec", "GzipCodec", "ZstdCodec", "bounded_decoder", "deflate"]

_MEMBERS = 1000
"""Members of a gzip or bzip2 value; parallel compressors make some, only an attack makes so many."""
_LZMA_MEMORY = 1 << 30
"""Bytes that LZMA may take to decompress; its presets need a fifteenth of that at the most."""
_SMALL = 1 << 15
"""Below this, decompressing into new bytes is faster than numcodecs' checks of a caller's memory."""
_MEDIUM = 1 << 17
"""Below this, zstd with contexts that are used again is faster than numcodecs, which makes one per call."""


@cache
def _blosc() -> ModuleType:
    module = numcodecs_module("blosc")
    module.use_threads = False  # type: ignore[attr-defined]  # a setting, not a function of the module
    return module


@cache
def _inflate() -> ModuleType:
    """The zlib of isal (about twice as fast) where it is installed, the standard library's otherwise."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    found: ModuleType = isal_zlib
    return found


@cache
def _deflate() -> ModuleType:
    """zlib-ng (twice as fast at the same size) where it is installed, the standard library's zlib otherwise."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib
    found: ModuleType = zlib_ng
    return found


def deflate(data: Buffer, level: int, wbits: int) -> bytes:
    """Compress as gzip (``wbits`` 31) or zlib (15)."""
    return _deflate().compress(data, level, wbits=wbits)  # type: ignore[no-any-return]  # zlib-ng has no types


# ------------------------------------------------------------------ declared sizes


_BLOSC_SIZES = struct.Struct("<4xI4xI")


def _blosc_size(data: Buffer) -> int:
    if len(data) < _BLOSC_SIZES.size:
        raise ValueError("shorter than a blosc header")
    found: int
    found, stored = _BLOSC_SIZES.unpack_from(data)
    if stored != len(data):
        raise ValueError(f"its header declares {stored} stored bytes, there are {len(data)}")
    return found


def _blosc_sizes(values: Sequence[Buffer], size: int) -> bool:
    """Whether each of several values is as long as its header says, and holds so many bytes."""
    header = _BLOSC_SIZES.unpack_from
    try:
        return [header(value) for value in values] == [(size, len(value)) for value in values]
    except struct.error:
        return False


def _zstd_size(data: Buffer) -> int | None:
    """The content size in a zstd frame header (RFC 8878, 3.1.1.1), if it has one."""
    if bytes(data[:4]) != b"\x28\xb5\x2f\xfd":  # a frame that may be skipped has other ones
        raise ValueError("not a zstd frame")
    found: int = _frame_content_size()(data)
    return None if found < 0 else found


@cache
def _frame_content_size() -> Callable[[Any], int]:
    from zstandard import frame_content_size

    return frame_content_size


_WORD = struct.Struct("<I")


def _zstd_length(data: Buffer) -> int:
    """Bytes of a zstd frame with its header, blocks and checksum (RFC 8878, 3.1.1)."""
    at: int = _frame_header_size()(data)
    while True:
        block: int = _WORD.unpack_from(data, at - 1)[0] >> 8  # three bytes: is it the last, its kind, its size
        at += 3 + (1 if block & 6 == 2 else block >> 3)
        if block & 1:
            return at + (4 if data[4] & 4 else 0)


def _are_frames(values: Sequence[Buffer], size: int) -> bool:
    """Whether each of several values is one frame of zstd and nothing else, and says that it holds so many bytes."""
    try:
        return all(_zstd_size(value) == size and _zstd_length(value) == len(value) for value in values)
    except Exception as error:
        if not _refuses(error):
            raise
        return False


@cache
def _frame_header_size() -> Callable[[Any], int]:
    from zstandard import frame_header_size

    return frame_header_size


def _lz4_size(data: Buffer) -> int:
    if len(data) < 4:
        raise ValueError("shorter than an lz4 header")
    return int.from_bytes(bytes(data[:4]), "little")


class _Contexts(threading.local):
    """zstd's contexts of a thread; making one takes longer than a small chunk."""

    def __init__(self) -> None:
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        self._decompress: Callable[[Any], bytes] = partial(decompressor.decompress, allow_extra_data=False)
        self.decompress_all: Any = getattr(decompressor, "multi_decompress_to_buffer", None)
        self._compressors: dict[tuple[int, bool], Any] = {}

    def decompress(self, data: Buffer) -> bytes:
        return self._decompress(data)

    def compressor(self, level: int, checksum: bool) -> Any:
        found = self._compressors.get((level, checksum))
        if found is None:
            import zstandard

            found = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
            self._compressors[level, checksum] = found
        return found


@cache
def _contexts() -> _Contexts:
    return _Contexts()


def _with_header(
    declared: Callable[[Buffer], int | None],
    load: Callable[[], ModuleType],
    small: Callable[[], Any] | None = None,
) -> Callable[[int | None, int], Decoder]:
    """What makes decoders of values that declare their size.

    Args:
        declared: Reads the size; ``None`` where a value does not say it.
        load: Gives the module of numcodecs that decodes into memory.
        small: Gives what is faster for little data.
    """
    least = _SMALL if small is None else _MEDIUM

    @cache
    def functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
        return load().decompress, (small or load)().decompress

    def decoder(size: int | None, limit: int) -> Decoder:
        def decode(data: Buffer, out: Out) -> Buffer:
            found = declared(data)
            wanted = found if size is None else size
            if wanted is None:
                raise ValueError("the value does not declare its size and the chunk does not fix it")
            if found != wanted and found is not None:
                raise ValueError(f"the value holds {found} bytes, the chunk needs {size}")
            if wanted > limit:
                raise ValueError(f"the value declares {wanted} bytes, at most {limit} make sense")
            into, whole = functions()
            if out is not None and wanted >= least:
                into(data, out)
                return out
            if wanted == 0:
                return b""
            if found is None:
                space = np.empty(wanted, np.uint8)
                into(data, space)
                return space
            return whole(data)  # type: ignore[no-any-return]  # numcodecs has no types

        return decode

    return decoder


def _streamed(start: Callable[[], Any]) -> Callable[[int | None, int], Decoder]:
    """What makes decoders that are cut off: ``start`` makes objects with ``decompress(data, max_length)``."""

    def decoder(size: int | None, limit: int) -> Decoder:
        most = limit if size is None else size

        def decode(data: Buffer, out: Out) -> Buffer:
            parts: list[bytes] = []
            found = 0
            while True:
                stream = start()
                part = stream.decompress(data, most - found + 1)
                parts.append(part)
                found += len(part)
                if len(parts) > _MEMBERS:
                    raise ValueError(f"more than {_MEMBERS} members one after the other")
                if found > most:
                    raise ValueError(f"more than {most} bytes come out")
                if not stream.eof:
                    raise ValueError("the value is cut short")
                data = memoryview(stream.unused_data)
                if len(data) == 0 or not any(data):  # another member follows, or nothing but padding
                    break
            return parts[0] if len(parts) == 1 else b"".join(parts)

        return decode

    return decoder


def _bz2() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _lzma() -> Any:
    import lzma

    return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)


def _raw_lzma(container: int, filters: Any) -> Any:
    import lzma

    if container != lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(format=container, memlimit=_LZMA_MEMORY)
    return lzma.LZMADecompressor(format=container, filters=filters)


_DECODERS: dict[str, Callable[[int | None, int], Decoder]] = {
    "blosc": _with_header(_blosc_size, _blosc),
    "zstd": _with_header(_zstd_size, partial(numcodecs_module, "zstd"), _contexts),
    "lz4": _with_header(_lz4_size, partial(numcodecs_module, "lz4")),
    "gzip": _streamed(lambda: _inflate().decompressobj(wbits=31)),
    "zlib": _streamed(lambda: _inflate().decompressobj(wbits=15)),
    "bz2": _streamed(_bz2),
    "lzma": _streamed(_lzma),
}


FILLING = frozenset(("blosc", "zstd", "lz4"))
"""Kinds whose decoders make large results in memory that they are given."""

_REFUSALS = (
    ValueError, TypeError, RuntimeError, OSError, EOFError, OverflowError, MemoryError, SystemError, zlib.error
)  # fmt: skip
"""What decompressors raise where a value, or a parameter that only they understand, makes no sense."""


def _refuses(error: Exception) -> bool:
    """Whether an error is about the value; some libraries have an error class of their own."""
    return isinstance(error, _REFUSALS) or type(error).__name__ in ("IsalError", "error", "LZMAError", "ZstdError")


def _or_none(decode: BatchDecoder) -> BatchDecoder:
    """A decoder of several values that gives nothing where one of them is damaged: alone it shows which."""

    def careful(values: Sequence[Buffer]) -> Sequence[Buffer] | None:
        try:
            return decode(values)
        except Exception as error:
            if not _refuses(error):
                raise
            return None

    return careful


def bounded_decoder(
    codec: Codec, kind: str, size: int | None, limit: int, config: Mapping[str, Any] | None = None
) -> Decoder | None:
    """What decompresses by the rule; ``None`` if there is no such decompressor here.

    It raises ``CodecError`` for a value that is damaged or of the wrong size.

    Args:
        codec: Who asks, for messages.
        kind: The numcodecs id.
        size: The exact number of bytes that must come out, if known.
        limit: The most that may come out.
        config: The numcodecs configuration, where the decoder needs it.
    """
    make = _DECODERS.get(kind)
    if kind == "lzma" and config is not None and config.get("filters") is not None:
        make = _streamed(partial(_raw_lzma, config.get("format", 1), config["filters"]))
    if make is None:
        return None
    unbounded = make(size, limit)

    def decode(data: Buffer, out: Out) -> Buffer:
        try:
            found = unbounded(data, out)
        except Exception as error:
            if not _refuses(error):
                raise
            raise codec.fail(str(error) or type(error).__name__) from error
        if size is not None and len(found) != size:
            raise codec.fail(f"{len(found)} bytes came out, the chunk needs {size}")
        return found

    return decode


# ------------------------------------------------------------------ the codecs


@dataclass(frozen=True)
class _Compressor(BytesBytesCodec):
    def decoder(self, size: int | None, limit: int) -> Decoder:
        found = bounded_decoder(self, self.name, size, limit)
        assert found is not None
        return found

    @property
    def fills(self) -> bool:
        return self.name in FILLING

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        return self.decoder(size, limit)(data, out)


@dataclass(frozen=True)
class GzipCodec(_Compressor):
    """gzip (RFC 1952).

    Attributes:
        level: 0 (store) to 9 (smallest); -1, which Java writers put down, is zlib's own choice (6).
    """

    name = "gzip"
    brief = True
    level: int = 5

    def __post_init__(self) -> None:
        _check_int("level", self.level, -1, 9)

    def configuration(self) -> dict[str, Any]:
        return {"level": self.level}

    def encode(self, data: Buffer) -> Buffer:
        return deflate(data, self.level, 31)


@dataclass(frozen=True)
class ZstdCodec(_Compressor):
    """Zstandard (RFC 8878).

    Attributes:
        level: -131072 to 22; higher is smaller and slower, 0 is the library's default (3).
        checksum: Store a checksum of the content.
    """

    name = "zstd"
    brief = True
    level: int = 0
    checksum: bool = False

    def __post_init__(self) -> None:
        _check_int("level", self.level, -131072, 22)
        if not isinstance(self.checksum, bool):
            raise ValueError(f"checksum is true or false, found {self.checksum!r}")

    def configuration(self) -> dict[str, Any]:
        return {"level": self.level, "checksum": self.checksum}

    @property
    def unlocked(self) -> bool:
        return _contexts().decompress_all is not None

    def batch_decoder(self, size: int | None) -> BatchDecoder | None:
        if size is None or not 0 < size < _MEDIUM:
            return None

        @_or_none
        def decode(values: Sequence[Buffer]) -> Sequence[Buffer] | None:
            several = _contexts().decompress_all
            if several is None or not _are_frames(values, size):  # it trusts sizes, and takes no notice of what follows
                return None
            return [memoryview(found) for found in several(values)]

        return decode

    def rows_decoder(self, size: int | None) -> RowsDecoder | None:
        if not size:
            return None
        return lambda values, rows: _are_frames(values, size) and zstd_rows(values, rows, size)

    def encode(self, data: Buffer) -> Buffer:
        if len(data) < _MEDIUM:
            return _contexts().compressor(self.level, self.checksum).compress(data)  # type: ignore[no-any-return]  # looked up by name
        return numcodecs_module("zstd").compress(data, self.level, self.checksum)  # type: ignore[no-any-return]  # numcodecs has no types

    def encode_all(self, values: Sequence[Buffer]) -> Sequence[Buffer]:
        several = getattr(_contexts().compressor(self.level, self.checksum), "multi_compress_to_buffer", None)
        if several is None or len(values) < 2 or not all(0 < len(value) < _MEDIUM for value in values):
            return super().encode_all(values)
        return [memoryview(found) for found in several(values)]


_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_CNAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


@dataclass(frozen=True)
class BloscCodec(_Compressor):
    """Blosc 1: shuffling and a fast compressor over cache-sized blocks.

    Attributes:
        cname: ``"lz4"``, ``"zstd"``, ``"lz4hc"``, ``"zlib"``, ``"blosclz"`` or ``"snappy"``.
        clevel: 0 to 9.
        shuffle: ``"noshuffle"``, ``"shuffle"`` or ``"bitshuffle"``; ``None`` shuffles bits of
            one-byte elements and bytes of others.
        typesize: Bytes of an element; ``None`` takes the array's.
        blocksize: 0 lets blosc choose.
    """

    name = "blosc"
    brief = True
    cname: str = "zstd"
    clevel: int = 5
    shuffle: str | None = None
    typesize: int | None = None
    blocksize: int = 0

    def __post_init__(self) -> None:
        if self.cname not in _CNAMES:
            raise ValueError(f"cname is one of {', '.join(_CNAMES)}; found {self.cname!r}")
        if self.shuffle is not None and self.shuffle not in _SHUFFLES:
            raise ValueError(f"shuffle is one of {', '.join(_SHUFFLES)}; found {self.shuffle!r}")
        _check_int("clevel", self.clevel, 0, 9)
        _check_int("blocksize", self.blocksize, 0, 2**31 - 1)
        if self.typesize is not None:
            _check_int("typesize", self.typesize, 1, 2**31 - 1)

    def configuration(self) -> dict[str, Any]:
        return {
            "typesize": self.typesize or 1,
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": self.shuffle or "noshuffle",
            "blocksize": self.blocksize,
        }

    def settle(self, spec: ArraySpec) -> Codec:
        if self.cname == "snappy":
            raise MetadataError("codec blosc: numcodecs' blosc has no snappy; lz4 is as fast")
        size = self.typesize or spec.dtype.itemsize or 1
        return replace(self, typesize=size, shuffle=self.shuffle or ("bitshuffle" if size == 1 else "shuffle"))

    def batch_decoder(self, size: int | None) -> BatchDecoder | None:
        if size is None or not 0 < size < _SMALL:
            return None

        @_or_none
        def decode(values: Sequence[Buffer]) -> Sequence[Buffer] | None:
            if not _blosc_sizes(values, size):
                return None
            decompress = _blosc().decompress
            return [decompress(value) for value in values]

        return decode

    def rows_decoder(self, size: int | None) -> RowsDecoder | None:
        if not size:
            return None
        return lambda values, rows: _blosc_sizes(values, size) and blosc_rows(values, rows, size)

    def encode(self, data: Buffer) -> Buffer:
        return self.encode_all((data,))[0]

    def encode_all(self, values: Sequence[Buffer]) -> Sequence[Buffer]:
        if not all(map(len, values)):
            raise self.fail("there are no bytes", "encode")
        typesize = self.typesize or 1
        # Elements wider than a byte of the header can say are shuffled as single bytes, as c-blosc does.
        wide = typesize if typesize < 256 else 1
        settings = self.cname.encode(), self.clevel, _SHUFFLES.index(self.shuffle or "noshuffle"), self.blocksize, wide
        compress = _blosc().compress
        try:
            return [compress(value, *settings) for value in values]
        except (ValueError, RuntimeError) as error:
            raise self.fail(str(error), "encode") from error


@dataclass(frozen=True)
class Crc32cCodec(BytesBytesCodec):
    """The bytes followed by their CRC-32C, little-endian."""

    name = "crc32c"
    brief = True

    def encoded_size(self, size: int) -> int:
        return size + 4

    def encode(self, data: Buffer) -> Buffer:
        return b"".join((data, _crc32c(data).to_bytes(4, "little")))

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        view = memoryview(data)
        if len(view) < 4:
            raise self.fail(f"a value of {len(view)} bytes has no room for a checksum")
        body, stored = view[:-4], int.from_bytes(view[-4:], "little")
        if size is not None and len(body) != size:
            raise self.fail(f"the value has {len(body)} bytes before the checksum, the chunk needs {size}")
        found = _crc32c(body)
        if found != stored:
            raise ChecksumError(
                f"codec crc32c: the stored checksum is {stored:#010x}, that of the bytes {found:#010x}", codec=self.name
            )
        return body


@cache
def _crc_function() -> Callable[[Any], int]:
    import crc32c

    function: Callable[[Any], int] = crc32c.crc32c
    return function


def _crc32c(data: Buffer) -> int:
    return _crc_function()(data)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is an integer from {low} to {high}, found {value!r}")
