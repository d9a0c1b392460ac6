"""Workloads: arrays of certain shapes, chunks and codecs, with values from one seed, and the tasks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


def _entry(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _blosc(cname: str) -> dict[str, Any]:
    return _entry("blosc", cname=cname, clevel=5, shuffle="shuffle", typesize=4, blocksize=0)


@dataclass(frozen=True)
class Workload:
    """One array of float32.

    Attributes:
        title: The title in tables.
        shape: Elements along each axis.
        chunks: The shape of (inner) chunks.
        codec: The compressor's v3 entry, or for v2 its numcodecs configuration.
        shards: The shape of shards, or ``None``.
        zarr_format: 2 or 3.
        filters: v2 filters.
        order: The order of elements inside a chunk.
        tasks: The tasks that are measured.
    """

    title: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codec: dict[str, Any] | None = None
    shards: tuple[int, ...] | None = None
    zarr_format: int = 3
    filters: tuple[dict[str, Any], ...] = ()
    order: str = "C"
    tasks: tuple[str, ...] = ("read", "write")

    def data(self) -> np.ndarray:
        """Return values that compress like measured fields: a random walk of quarter steps."""
        rng = np.random.default_rng(20)
        steps = rng.integers(-2, 3, size=self.shape, dtype="i1")
        return np.cumsum(steps, axis=-1, dtype="f4") / 4

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * 4

    def codecs(self) -> list[dict[str, Any]]:
        """Return all codecs as in a v3 document."""
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


_CODECS: dict[str, tuple[str, dict[str, Any]]] = {
    "raw": ("raw", {}),
    "zstd": ("zstd-1", {"codec": _entry("zstd", level=1, checksum=False)}),
    "blosc-lz4": ("blosc-lz4", {"codec": _blosc("lz4")}),
    "blosc-zstd": ("blosc-zstd", {"codec": _blosc("zstd")}),
    "gzip": ("gzip-5", {"codec": _entry("gzip", level=5)}),
    "lz4": ("lz4", {"codec": _entry("numcodecs.lz4", acceleration=1)}),
    "v2-delta": (
        "v2, delta and zlib-1",
        {"codec": {"id": "zlib", "level": 1}, "filters": ({"id": "delta", "dtype": "<f4"},), "zarr_format": 2},
    ),
    "v2-F": ("v2, zstd-1, F order", {"codec": {"id": "zstd", "level": 1}, "order": "F", "zarr_format": 2}),
}
_SIZES = {
    "4m": ("4 MiB chunks", (8192, 8192), (1024, 1024)),
    "1m": ("1 MiB chunks", (4096, 8192), (512, 512)),
    "64k": ("64 KiB chunks", (4096, 4096), (128, 128)),
    "tiny": ("10,000 chunks of 1.6 KB", (2000, 2000), (20, 20)),
}
_SELECTIONS = ("points", "mask", "orthogonal", "strided", "threads", "async", "dask")
_EXTRA = {"zstd-64k": _SELECTIONS, "blosc-lz4-tiny": ("element", "chunk", "open"), "raw-4m": ("disk",)}


def _all() -> dict[str, Workload]:
    workloads = {}
    for codec, (codec_title, options) in _CODECS.items():
        for size, (size_title, shape, chunks) in _SIZES.items():
            name = f"{codec}-{size}"
            if codec in ("gzip", "v2-delta") and size == "4m":  # slow to compress: fewer of them
                shape = (4096, 8192)
            total = int(np.prod(shape)) * 4
            amount = f"{total >> 20} MiB" if total >= 1 << 24 else f"{total // 10**6} MB"
            tasks = ("read", "write", "memory") if codec in ("raw", "blosc-lz4") else ("read", "write")
            tasks += _EXTRA.get(name, ())
            workloads[name] = Workload(f"{amount}, {size_title}, {codec_title}", shape, chunks, tasks=tasks, **options)
    workloads["shards-128k"] = Workload(
        "256 MiB, 32 MiB shards of 128 KiB, blosc-lz4", (8192, 8192), (128, 256), _blosc("lz4"), (2048, 4096)
    )
    for name, title, codec in (
        ("shards-4k", "blosc-lz4", _blosc("lz4")),
        ("shards-4k-zstd", "zstd-1", _entry("zstd", level=1, checksum=False)),
        ("shards-4k-raw", "raw", None),
    ):
        workloads[name] = Workload(
            f"128 MiB, 64 MiB shards of 4 KiB, {title}",
            (512, 256, 256),
            (16, 8, 8),
            codec,
            (256, 256, 256),
            tasks=("read", "write", "boxes", "inner"),
        )
    return workloads


WORKLOADS = _all()
QUICK = {
    "raw-4m": ("read", "write"),
    "zstd-4m": ("read", "write"),
    "blosc-lz4-4m": ("read", "write"),
    "gzip-1m": ("read", "write"),
    "zstd-64k": ("read", "write", "points", "mask", "orthogonal", "strided", "threads", "async"),
    "raw-tiny": ("read", "write"),
    "blosc-lz4-tiny": ("read", "write", "element", "chunk", "open"),
    "shards-128k": ("read", "write"),
    "shards-4k": ("read", "boxes", "inner"),
    "shards-4k-raw": ("read",),
}
"""The rows of ``make bench``; ``make bench-full`` runs all."""
