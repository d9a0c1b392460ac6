"""Workloads: arrays of certain shapes, chunks and codecs, with values from one seed, and the tasks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


def _entry(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _blosc(cname: str) -> dict[str, Any]:
    return _entry("blosc", cname=cname, clevel=5, shuffle="shuffle", typesize=4, blocksize=0)


def _zstd(level: int) -> dict[str, Any]:
    return _entry("zstd", level=level, checksum=False)


@dataclass(frozen=True)
class Workload:
    """One array.

    Attributes:
        title: The title in tables, which names the data type unless it is float32.
        shape: Elements along each axis.
        chunks: The shape of (inner) chunks.
        codec: The compressor's v3 entry, or for v2 its numcodecs configuration.
        shards: The shape of shards, or ``None``.
        zarr_format: 2 or 3.
        filters: v2 filters.
        order: The order of elements inside a chunk.
        tasks: The tasks that are measured.
        dtype: The data type.
        values: ``"walk"``: a random walk, which compresses like measured fields. ``"cubic"``: a polynomial of the indices.
    """

    title: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codec: dict[str, Any] | None = None
    shards: tuple[int, ...] | None = None
    zarr_format: int = 3
    filters: tuple[dict[str, Any], ...] = ()
    order: Literal["C", "F"] = "C"
    tasks: tuple[str, ...] = ("read", "write")
    dtype: str = "f4"
    values: str = "walk"

    def data(self) -> np.ndarray:
        """Return the values. In ``"walk"`` they go in quarter steps, or in whole steps for integers."""
        if self.values == "cubic":
            i, j, k = np.ogrid[tuple(slice(0, n) for n in self.shape)]
            return (k + j * j // 32 + i**3).astype(self.dtype)
        rng = np.random.default_rng(20)
        steps = rng.integers(-2, 3, size=self.shape, dtype="i1")
        if np.dtype(self.dtype).kind == "f":
            return np.cumsum(steps, axis=-1, dtype=self.dtype) / 4
        return np.cumsum(steps, axis=-1, dtype=self.dtype)

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the elements of an (inner) chunk."""
        return int(np.prod(self.chunks)) * self.itemsize

    @property
    def whole(self) -> tuple[slice, ...]:
        """The selection of all elements."""
        return tuple(slice(0, n) for n in self.shape)

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
    "zstd": ("zstd-1", {"codec": _zstd(1)}),
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
_SELECTIONS = ("changes", "points", "mask", "orthogonal", "strided", "threads", "async", "dask")
_EXTRA = {"zstd-64k": _SELECTIONS, "blosc-lz4-tiny": ("changes", "element", "chunk", "open"), "raw-4m": ("disk",)}


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
        ("shards-4k-zstd", "zstd-1", _zstd(1)),
        ("shards-4k-raw", "raw", None),
    ):
        workloads[name] = Workload(
            f"128 MiB, 64 MiB shards of 4 KiB, {title}",
            (512, 256, 256),
            (16, 8, 8),
            codec,
            (256, 256, 256),
            tasks=("read", "write", "changes", "boxes", "inner"),
        )
    return workloads


_OTHERS = {
    "u2-zstd-4m": Workload("uint16, 64 MiB, 4 MiB chunks, zstd-3", (4096, 8192), (1024, 2048), _zstd(3), dtype="u2"),
    "f8-raw-2m": Workload("float64, 128 MiB, 2 MiB chunks, raw", (4096, 4096), (512, 512), dtype="f8"),
    "u1-raw-400": Workload("uint8, 1 MB, 2,500 chunks of 400 bytes, raw", (1000, 1000), (20, 20), dtype="u1"),
    "f4-blosc-1600": Workload("5.8 MB, 3,600 chunks of 1.6 KB, blosc-lz4", (96, 150, 100), (4, 10, 10), _blosc("lz4")),
    "u2-zstd-shards": Workload(
        "uint16, 64 MiB, 2 MiB shards of 32 KiB, zstd-3", (4096, 8192), (128, 128), _zstd(3), (1024, 1024), dtype="u2"
    ),
    "i4-raw-shards": Workload(
        "int32, 16 MiB, 1 MiB shards of 4 KiB, raw", (2048, 2048), (32, 32), None, (512, 512), dtype="i4"
    ),
    "v2-F-blosc": Workload(
        "v2, 32 MiB, 512 KiB chunks, blosc-lz4, F order",
        (2048, 4096),
        (256, 512),
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
        zarr_format=2,
        order="F",
    ),
    "v2-zlib": Workload(
        "v2, 32 MiB, 1 MiB chunks, zlib-1", (2048, 4096), (512, 512), {"id": "zlib", "level": 1}, zarr_format=2
    ),
}
"""Arrays of other types and layouts, so that not all depends on float32 and on square chunks of few sizes."""

PUBLISHED = {
    name: Workload(
        f"uint16, 512 MiB, {title}",
        (1024, 512, 512),
        chunks,
        codec,
        shards,
        tasks=("read", "chunks", "trip", "read-cold", "chunks-cold", "trip-cold"),
        dtype="u2",
        values="cubic",
    )
    for name, title, chunks, codec, shards in (
        ("cube-raw", "chunks of 256³, raw", (256, 256, 256), None, None),
        ("cube-zstd", "chunks of 256³, zstd-0", (256, 256, 256), _zstd(0), None),
        ("cube-shards", "shards of 256³ with chunks of 64³, zstd-0", (64, 64, 64), _zstd(0), (256, 256, 256)),
    )
}
"""The cases that zarrs publishes in zarr_benchmarks, with a quarter of the elements: the same values, types and chunks."""

WORKLOADS = {**_all(), **_OTHERS, **PUBLISHED}
QUICK = {
    "raw-4m": ("read", "write"),
    "zstd-4m": ("read", "write"),
    "blosc-lz4-4m": ("read", "write"),
    "gzip-1m": ("read", "write"),
    "zstd-64k": ("read", "write", "changes", "points", "mask", "orthogonal", "strided", "threads", "async"),
    "raw-tiny": ("read", "write"),
    "blosc-lz4-tiny": ("read", "write", "changes", "element", "chunk", "open"),
    "shards-128k": ("read", "write"),
    "shards-4k": ("read", "changes", "boxes", "inner"),
    "shards-4k-raw": ("read",),
    "blosc-zstd-64k": ("read", "write"),
    **{name: workload.tasks for name, workload in _OTHERS.items()},
    **{name: workload.tasks for name, workload in PUBLISHED.items()},
}
"""The rows of ``make bench``; ``make bench-full`` runs all."""
