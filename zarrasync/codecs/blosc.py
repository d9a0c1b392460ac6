"""``blosc`` (Zarr v3 core codecs): Blosc 1 by numcodecs.

numcodecs' blosc is switched to per-call contexts (``use_threads = False``): its own threads serialise on a global lock,
and chunks are decoded in parallel anyway.
"""

from __future__ import annotations

import math
import struct
import sys
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

from zarrasync._kernel.structs import BLOSC
from zarrasync.codecs.base import BytesBytesCodec, Codec, Decoder, KernelStep, check_integer
from zarrasync.codecs.decompression import checked_decoder, numcodecs_module, with_size_header
from zarrasync.codecs.spec import ArraySpec, Buffer
from zarrasync.errors import MetadataError

_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_CNAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_LARGEST = (1 << 31) - 1 - 16
"""Bytes that blosc can compress: its header declares signed 32-bit sizes."""


@cache
def _blosc() -> ModuleType:
    module = numcodecs_module("blosc")
    module.use_threads = False  # type: ignore[attr-defined]  # a setting, not a function of the module
    return module


_HEADER_SIZES = struct.Struct("<4xI4xI")
"""Decoded and encoded size in a blosc header."""


def _decoded_size(data: Buffer) -> int:
    if len(data) < _HEADER_SIZES.size:
        raise ValueError("shorter than a blosc header")
    decoded: int
    decoded, encoded = _HEADER_SIZES.unpack_from(data)
    if encoded != len(data):
        raise ValueError(f"its header declares {encoded} stored bytes, found {len(data)}")
    return decoded


blosc_decoder = with_size_header(_decoded_size, _blosc)


@dataclass(frozen=True)
class BloscCodec(BytesBytesCodec):
    """``blosc``: shuffling and a fast compressor over cache-sized blocks.

    See "Blosc" in the Zarr v3 codec specifications.

    Attributes:
        cname: ``"lz4"``, ``"zstd"``, ``"lz4hc"``, ``"zlib"``, ``"blosclz"`` or ``"snappy"``.
        clevel: 0 to 9.
        shuffle: ``"noshuffle"``, ``"shuffle"`` or ``"bitshuffle"``; ``None`` shuffles bits of
            one-byte elements and bytes of others.
        typesize: Bytes of an element; ``None`` uses the array's.
        blocksize: Bytes of a block; 0 lets blosc choose.
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
            raise ValueError(f"cname must be one of {', '.join(_CNAMES)}; found {self.cname!r}")
        if self.shuffle is not None and self.shuffle not in _SHUFFLES:
            raise ValueError(f"shuffle must be one of {', '.join(_SHUFFLES)}; found {self.shuffle!r}")
        check_integer("clevel", self.clevel, 0, 9)
        check_integer("blocksize", self.blocksize, 0, 2**31 - 1)
        if self.typesize is not None:
            check_integer("typesize", self.typesize, 1, 2**31 - 1)

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
        if (spec.dtype.itemsize or 0) * math.prod(spec.shape) > _LARGEST:
            raise MetadataError(
                f"codec blosc compresses at most {_LARGEST:,} bytes, a chunk of shape {spec.shape} and data type "
                f"{spec.dtype.name} has {(spec.dtype.itemsize or 0) * math.prod(spec.shape):,}; use smaller chunks or zstd"
            )
        size = self.typesize or spec.dtype.itemsize or 1
        return replace(self, typesize=size, shuffle=self.shuffle or ("bitshuffle" if size == 1 else "shuffle"))

    @property
    def fills(self) -> bool:
        return True

    @property
    def kernel_step(self) -> KernelStep | None:
        name = int.from_bytes(self.cname.encode().ljust(8, b"\0"), sys.byteorder)
        return (
            BLOSC,
            self.clevel,
            _SHUFFLES.index(self.shuffle or "noshuffle"),
            self.blocksize,
            self._header_typesize,
            name,
        )

    @property
    def _header_typesize(self) -> int:
        """The element size in the header, which has one byte for it. Like c-blosc, shuffle larger elements as bytes."""
        typesize = self.typesize or 1
        return typesize if typesize < 256 else 1

    def encode(self, data: Buffer) -> Buffer:
        if not len(data):
            raise self.fail("the value has no bytes", "encode")
        shuffle = _SHUFFLES.index(self.shuffle or "noshuffle")
        settings = self.cname.encode(), self.clevel, shuffle, self.blocksize, self._header_typesize
        try:
            return _blosc().compress(data, *settings)  # type: ignore[no-any-return]  # numcodecs has no types
        except (ValueError, RuntimeError) as error:
            raise self.fail(str(error), "encode") from error

    def decoder(self, size: int | None, limit: int) -> Decoder:
        return checked_decoder(self, blosc_decoder(size, limit), size)
