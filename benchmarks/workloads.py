"""What is measured: arrays of certain shapes, chunks and codecs, made from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


def _entry(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


ZSTD = _entry("zstd", level=1, checksum=False)
BLOSC = _entry("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4, blocksize=0)
GZIP = _entry("gzip", level=5)


@dataclass(frozen=True)
class Workload:
    """One array.

    Attributes:
        title: For the table.
        shape: Elements along each axis (float32).
        chunks: The shape of (inner) chunks.
        shards: The shape of shards, if there are some.
        codec: The compressor's v3 entry.
    """

    title: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    codec: dict[str, Any] | None = None

    def data(self) -> np.ndarray:
        """Values that compress about as measured fields do: a random walk of quarter steps."""
        rng = np.random.default_rng(20)
        steps = rng.integers(-2, 3, size=self.shape, dtype="i1")
        return np.cumsum(steps, axis=-1, dtype="f4") / 4

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * 4

    def codecs(self) -> list[dict[str, Any]]:
        """The whole chain as a v3 document has it."""
        inner = [_entry("bytes", endian="little"), *([self.codec] if self.codec else [])]
        if self.shards is None:
            return inner
        index = [_entry("bytes", endian="little"), {"name": "crc32c"}]
        return [
            _entry(
                "sharding_indexed",
                chunk_shape=list(self.chunks),
                codecs=inner,
                index_codecs=index,
                index_location="end",
            )
        ]


WORKLOADS = {
    "raw-4m": Workload("512 MiB, 4 MiB chunks, raw", (8192, 16384), (1024, 1024)),
    "zstd-4m": Workload("512 MiB, 4 MiB chunks, zstd-1", (8192, 16384), (1024, 1024), codec=ZSTD),
    "blosc-4m": Workload("512 MiB, 4 MiB chunks, blosc-lz4", (8192, 16384), (1024, 1024), codec=BLOSC),
    "shards": Workload("512 MiB, 32 MiB shards of 128 KiB, blosc-lz4", (8192, 16384), (128, 256), (2048, 4096), BLOSC),
    "tiny-raw": Workload("16 MB, 10,000 chunks of 1.6 KB, raw", (2000, 2000), (20, 20)),
    "tiny-blosc": Workload("16 MB, 10,000 chunks of 1.6 KB, blosc-lz4", (2000, 2000), (20, 20), codec=BLOSC),
    "zstd-64k": Workload("64 MiB, 64 KiB chunks, zstd-1", (4096, 4096), (128, 128), codec=ZSTD),
    "gzip-1m": Workload("64 MiB, 1 MiB chunks, gzip-5", (4096, 4096), (512, 512), codec=GZIP),
}
