"""``zstd`` (zarr-extensions): Zstandard by the packages zstandard and numcodecs, whichever is faster for a size."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from zarrasync._kernel.structs import ZSTD
from zarrasync._util.output_budget import check_budget
from zarrasync.codecs.base import BatchDecoder, BytesBytesCodec, Decoder, KernelStep, Out, RowsDecoder
from zarrasync.codecs.configuration import check_integer
from zarrasync.codecs.decompression import checked_decoder, is_data_error, none_if_damaged, with_size_header
from zarrasync.codecs.native import numcodecs_module, zstd_rows
from zarrasync.codecs.spec import Buffer

__all__ = ["ZstdCodec", "zstd_decoder"]

_SMALL = 1 << 17
"""Size below which contexts that are kept per thread are faster than numcodecs, which creates one per call."""
_STEP, _LARGEST_WINDOW = 1 << 20, 1 << 27
"""Bytes that are decompressed at a time if their number is not known, and bytes of the window for that."""


# -------------------------------------------------------------- frames


def _content_size(data: Buffer) -> int | None:
    """Return the content size in a frame header (RFC 8878, 3.1.1.1), or ``None`` if it has none."""
    if bytes(data[:4]) != b"\x28\xb5\x2f\xfd":  # skippable frames have other magic numbers
        raise ValueError("not a zstd frame")
    size: int = _frame_content_size()(data)
    return None if size < 0 else size


@cache
def _frame_content_size() -> Callable[[Any], int]:
    from zstandard import frame_content_size

    return frame_content_size


@cache
def _frame_header_size() -> Callable[[Any], int]:
    from zstandard import frame_header_size

    return frame_header_size


_WORD = struct.Struct("<I")


def _frame_size(data: Buffer) -> int:
    """Return the bytes of a frame with its header, blocks and checksum (RFC 8878, 3.1.1)."""
    position: int = _frame_header_size()(data)
    while True:
        block: int = _WORD.unpack_from(data, position - 1)[0] >> 8  # 3 bytes: last flag, type, size
        position += 3 + (1 if block & 6 == 2 else block >> 3)
        if block & 1:
            return position + (4 if _has_checksum(data) else 0)


def _has_checksum(frame: Buffer) -> bool:
    """Return whether a checksum follows the blocks of a frame (RFC 8878, 3.1.1.1.1)."""
    return len(frame) > 4 and bool(frame[4] & 4)


def _are_single_frames(values: Sequence[Buffer], size: int) -> bool:
    """Return whether each value is exactly one frame that declares ``size`` bytes of content."""
    try:
        return all(_content_size(value) == size and _frame_size(value) == len(value) for value in values)
    except Exception as error:
        if not is_data_error(error):
            raise
        return False


# -------------------------------------------------------------- contexts


class _Contexts(threading.local):
    """Compression contexts of a thread. Creating one takes longer than coding a small chunk."""

    def __init__(self) -> None:
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        self._decompress: Callable[[Any], bytes] = partial(decompressor.decompress, allow_extra_data=False)
        self.decompress_all: Any = getattr(decompressor, "multi_decompress_to_buffer", None)
        self._compressors: dict[tuple[int, bool], Any] = {}

    def decompress(self, data: Buffer) -> bytes:
        return self._decompress(data)

    def compressor(self, level: int, checksum: bool) -> Any:
        compressor = self._compressors.get((level, checksum))
        if compressor is None:
            import zstandard

            compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
            self._compressors[level, checksum] = compressor
        return compressor


@cache
def _contexts() -> _Contexts:
    return _Contexts()


def _decode_undeclared(data: Buffer, limit: int) -> bytes:
    """Decompress a frame whose header has no content size, as streaming writers make them."""
    import zstandard

    if _frame_size(data) != len(data):
        raise ValueError("the value is not a single complete frame")
    parts, total = list[bytes](), 0
    with zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(memoryview(data)) as reader:
        while part := reader.read(_STEP):
            total += len(part)
            check_budget(limit, total, at_least=True)
            parts.append(part)
    return b"".join(parts)


zstd_decoder = with_size_header(_content_size, partial(numcodecs_module, "zstd"), _contexts, _SMALL, _decode_undeclared)


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
    def unlocked(self) -> bool:
        return _contexts().decompress_all is not None

    @property
    def fills(self) -> bool:
        return True

    @property
    def kernel_step(self) -> KernelStep | None:
        return (ZSTD, self.level, int(self.checksum))

    def encode(self, data: Buffer) -> Buffer:
        if len(data) < _SMALL:
            return _contexts().compressor(self.level, self.checksum).compress(data)  # type: ignore[no-any-return]  # looked up by name
        return numcodecs_module("zstd").compress(data, self.level, self.checksum)  # type: ignore[no-any-return]  # numcodecs has no types

    def encode_all(self, values: Sequence[Buffer]) -> Sequence[Buffer]:
        compress_all = getattr(_contexts().compressor(self.level, self.checksum), "multi_compress_to_buffer", None)
        if compress_all is None or len(values) < 2 or not all(0 < len(value) < _SMALL for value in values):
            return super().encode_all(values)
        return [memoryview(encoded) for encoded in compress_all(values)]

    def decoder(self, size: int | None, limit: int) -> Decoder:
        return checked_decoder(self, zstd_decoder(size, limit), size)

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        return self.decoder(size, limit)(data, out)

    def batch_decoder(self, size: int | None) -> BatchDecoder | None:
        if size is None or not 0 < size < _SMALL:
            return None

        @none_if_damaged
        def decode(values: Sequence[Buffer]) -> Sequence[Buffer] | None:
            decompress_all = _contexts().decompress_all
            # It trusts declared sizes and ignores bytes after the first frame.
            if decompress_all is None or not _are_single_frames(values, size):
                return None
            return [memoryview(decoded) for decoded in decompress_all(values)]

        return decode

    def rows_decoder(self, size: int | None) -> RowsDecoder | None:
        if not size:
            return None
        return lambda values, rows: _are_single_frames(values, size) and zstd_rows(values, rows, size)
