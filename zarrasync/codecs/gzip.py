"""``gzip`` (Zarr v3 core codecs), and the fastest available implementation of DEFLATE."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from zarrasync._kernel.structs import GZIP
from zarrasync.codecs.base import BytesBytesCodec, Decoder, KernelStep, check_integer
from zarrasync.codecs.decompression import DecoderFactory, checked_decoder, stream_decoder
from zarrasync.codecs.spec import Buffer

GZIP_WINDOW, ZLIB_WINDOW, RAW_WINDOW = 31, 15, -15
"""The ``wbits`` argument of zlib that selects the container format."""


@cache
def fastest_zlib(name: str) -> Any:
    """Return a module with the functions of zlib if it is installed, else the standard library's."""
    try:
        return import_module(name)
    except ImportError:
        return zlib


def deflate(data: Buffer, level: int, wbits: int) -> bytes:
    """Compress as gzip or zlib, see ``GZIP_WINDOW``; with zlib-ng in half the time at the same size."""
    return fastest_zlib("zlib_ng.zlib_ng").compress(data, level, wbits=wbits)  # type: ignore[no-any-return]  # zlib-ng has no types


def inflate_decoder(wbits: int) -> DecoderFactory:
    """Return a factory of decoders for gzip or zlib, see ``GZIP_WINDOW``; with isal they take about half the time."""
    return stream_decoder(lambda: fastest_zlib("isal.isal_zlib").decompressobj(wbits=wbits))


gzip_decoder = inflate_decoder(GZIP_WINDOW)


@dataclass(frozen=True)
class GzipCodec(BytesBytesCodec):
    """``gzip``: RFC 1952.

    See "gzip" in the Zarr v3 codec specifications.

    Attributes:
        level: 0 (store) to 9 (smallest); -1, which Java writers use, is zlib's default (6).
    """

    name = "gzip"
    brief = True
    level: int = 5

    def __post_init__(self) -> None:
        check_integer("level", self.level, -1, 9)

    def configuration(self) -> dict[str, Any]:
        return {"level": self.level}

    def has_checksum(self, data: Buffer | None = None) -> bool:
        return True

    @property
    def kernel_step(self) -> KernelStep | None:
        return (GZIP, self.level)

    def encode(self, data: Buffer) -> Buffer:
        return deflate(data, self.level, GZIP_WINDOW)

    def decoder(self, size: int | None, limit: int) -> Decoder:
        return checked_decoder(self, gzip_decoder(size, limit), size)
