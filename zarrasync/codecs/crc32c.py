"""``crc32c`` (Zarr v3 core codecs): a checksum after the bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from zarrasync._kernel.structs import CRC32C
from zarrasync.codecs.base import BytesBytesCodec, KernelStep, Out
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import ChecksumError


@dataclass(frozen=True)
class Crc32cCodec(BytesBytesCodec):
    """``crc32c``: the bytes followed by their CRC-32C, little-endian.

    See "CRC32C checksum" in the Zarr v3 codec specifications.
    """

    name = "crc32c"
    brief = True

    def has_checksum(self, data: Buffer | None = None) -> bool:
        return True

    @property
    def kernel_step(self) -> KernelStep | None:
        return (CRC32C,)

    def encoded_size(self, size: int) -> int:
        return size + 4

    def encode(self, data: Buffer) -> Buffer:
        return b"".join((data, _crc32c()(data).to_bytes(4, "little")))

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        view = memoryview(data)
        if len(view) < 4:
            raise self.fail(f"a value of {len(view)} bytes is too short for a checksum")
        content, stored = view[:-4], int.from_bytes(view[-4:], "little")
        if size is not None and len(content) != size:
            raise self.fail(f"the value has {len(content)} bytes before the checksum, expected {size}")
        computed = _crc32c()(content)
        if computed != stored:
            raise ChecksumError(
                f"codec crc32c: the stored checksum is {stored:#010x}, but the bytes have checksum {computed:#010x}",
                codec=self.name,
            )
        return content


@cache
def _crc32c() -> Callable[[Any], int]:
    import crc32c

    function: Callable[[Any], int] = crc32c.crc32c
    return function
