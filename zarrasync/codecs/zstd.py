"""``zstd`` (zarr-extensions): Zstandard by the packages zstandard and numcodecs, whichever is faster for a size."""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from zarrasync._kernel.structs import ZSTD
from zarrasync._util.memory import check_budget
from zarrasync.codecs.base import BytesBytesCodec, Decoder, KernelStep, Out, check_integer
from zarrasync.codecs.decompression import checked_decoder, numcodecs_module, with_size_header
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import UnknownCodecError

_SMALL = 1 << 17
"""Size below which contexts that are kept per thread are faster than numcodecs, which creates one per call."""
_STEP, _LARGEST_WINDOW = 1 << 20, 1 << 27
"""Bytes that are decompressed at a time if their number is not known, and bytes of the window for that."""


# -------------------------------------------------------------- frames


def _content_size(data: Buffer) -> int | None:
    """Return the content size in a frame header (RFC 8878, 3.1.1.1), or ``None`` if it has none."""
    if len(data) < 5 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":  # skippable frames have other magic numbers
        raise ValueError("not a zstd frame")
    header_size, start, end, offset = _HEADERS[data[4]]
    if len(data) < header_size:
        raise ValueError("the value ends within the header of a zstd frame")
    return int.from_bytes(data[start:end], "little") + offset if start < end else None


def _header(descriptor: int) -> tuple[int, int, int, int]:
    """Return the layout of a frame header that has a descriptor (RFC 8878, 3.1.1.1.1).

    Returns:
        The size of the header with the magic number, start and end of the content size in it, and an offset of that size.
    """
    is_single_segment, kind = descriptor >> 5 & 1, descriptor >> 6
    # The size follows the window, which single segments lack, and the number of a dictionary.
    start = 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    end = start + (is_single_segment, 2, 4, 8)[kind]
    return end, start, end, 256 if kind == 1 else 0


_HEADERS = [_header(descriptor) for descriptor in range(256)]
_WORD = struct.Struct("<I")


def _frame_size(data: Buffer) -> int:
    """Return the bytes of a frame with its header, blocks and checksum (RFC 8878, 3.1.1)."""
    position = _HEADERS[data[4]][0]
    while True:
        block: int = _WORD.unpack_from(data, position - 1)[0] >> 8  # 3 bytes: last flag, type, size
        position += 3 + (1 if block & 6 == 2 else block >> 3)
        if block & 1:
            return position + (4 if _has_checksum(data) else 0)


def _has_checksum(frame: Buffer) -> bool:
    """Return whether a checksum follows the blocks of a frame (RFC 8878, 3.1.1.1.1)."""
    return len(frame) > 4 and bool(frame[4] & 4)


# -------------------------------------------------------------- libraries


class _Contexts(threading.local):
    """Contexts of a thread, made by zstandard. Creating one takes longer than coding a small chunk."""

    def __init__(self, zstandard: Any) -> None:
        decompressor = zstandard.ZstdDecompressor()
        self._decompress: Callable[[Any], bytes] = partial(decompressor.decompress, allow_extra_data=False)
        self._make_compressor = zstandard.ZstdCompressor
        self._compressors: dict[tuple[int, bool], Any] = {}

    def decompress(self, data: Buffer, out: Out = None) -> Buffer:
        decoded = self._decompress(data)
        if out is not None:
            out[...] = np.frombuffer(decoded, np.uint8)
        return decoded

    def compress(self, data: Buffer, level: int, checksum: bool) -> bytes:
        compressor = self._compressors.get((level, checksum))
        if compressor is None:
            compressor = self._make_compressor(level=level, write_checksum=checksum)
            self._compressors[level, checksum] = compressor
        return compressor.compress(data)  # type: ignore[no-any-return]  # zstandard is imported when it is used


class _Calls:
    """The same functions of numcodecs, which makes a context for each call."""

    def __init__(self, zstd: Any) -> None:
        self.decompress: Callable[..., Buffer] = zstd.decompress
        self.compress: Callable[[Buffer, int, bool], bytes] = zstd.compress


@cache
def _for_small() -> _Contexts | _Calls:
    """Return the functions for small values."""
    try:
        import zstandard
    except ImportError:  # it has no builds for some Pythons
        return _Calls(numcodecs_module("zstd"))
    return _Contexts(zstandard)


@cache
def _for_large() -> _Contexts | _Calls:
    """Return the functions for large values. numcodecs decompresses into memory of the caller."""
    try:
        return _Calls(numcodecs_module("zstd"))
    except UnknownCodecError:  # it cannot be imported
        return _for_small()


def _start_stream(data: Buffer) -> Any:
    """Return a reader of the content of a frame."""
    try:
        from zstandard import ZstdDecompressor
    except ImportError:
        try:
            zstd = import_module("compression.zstd")  # of the standard library from Python 3.14 on
        except ImportError:
            raise ValueError(
                "the frame does not declare the size of its content; reading it needs Python 3.14 or newer, or zstandard: "
                "pip install zstandard"
            ) from None
        window = {zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW.bit_length() - 1}
        return zstd.ZstdFile(io.BytesIO(data), options=window)
    return ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(memoryview(data))


def _decode_undeclared(data: Buffer, limit: int) -> bytes:
    """Decompress a frame whose header has no content size, as streaming writers make them."""
    if _frame_size(data) != len(data):
        raise ValueError("the value is not a single complete frame")
    parts, total = list[bytes](), 0
    with _start_stream(data) as reader:
        while part := reader.read(_STEP):
            total += len(part)
            check_budget(limit, total, at_least=True)
            parts.append(part)
    return b"".join(parts)


zstd_decoder = with_size_header(_content_size, _for_large, _for_small, _SMALL, _decode_undeclared)


# -------------------------------------------------------------- the codec


@dataclass(frozen=True)
class ZstdCodec(BytesBytesCodec):
    """``zstd``: Zstandard, RFC 8878.

    See "zstd" in zarr-extensions.

    Attributes:
        level: -131072 to 22. Higher is smaller and slower; 0 is the library's default (3).
        checksum: Whether to store a checksum of the content. Every decoder verifies it.
    """

    name = "zstd"
    brief = True
    level: int = 0
    checksum: bool = True

    def __post_init__(self) -> None:
        check_integer("level", self.level, -131072, 22)
        if not isinstance(self.checksum, bool):
            raise ValueError(f"checksum must be true or false, found {self.checksum!r}")

    def configuration(self) -> dict[str, Any]:
        return {"level": self.level, "checksum": self.checksum}

    def has_checksum(self, data: Buffer | None = None) -> bool:
        return self.checksum if data is None else _has_checksum(data)

    @property
    def fills(self) -> bool:
        return True

    @property
    def kernel_step(self) -> KernelStep | None:
        return (ZSTD, self.level, int(self.checksum))

    def encode(self, data: Buffer) -> Buffer:
        functions = _for_small() if len(data) < _SMALL else _for_large()
        return functions.compress(data, self.level, self.checksum)

    def decoder(self, size: int | None, limit: int) -> Decoder:
        return checked_decoder(self, zstd_decoder(size, limit), size)
