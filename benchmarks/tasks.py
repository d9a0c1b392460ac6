"""Tasks: each returns the call to measure for an engine and a workload."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from engine import Engine
from workloads import Workload

Call = Callable[[], Any]
POINTS = 100_000
THREADS = 8
READS = 200
AT_ONCE = 8
"""Chunks that are read at the same time in the task ``"chunks"``."""
COLD = "-cold"
"""The end of the names of tasks that find none of the array's files in memory."""


def random_boxes(workload: Workload, size: int, count: int) -> list[tuple[slice, ...]]:
    rng = np.random.default_rng(5)
    starts = [rng.integers(0, n - size + 1, count).tolist() for n in workload.shape]
    return [tuple(slice(a, a + size) for a in corner) for corner in zip(*starts, strict=True)]


def random_indices(workload: Workload, count: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(5)
    return tuple(rng.integers(0, n, count) for n in workload.shape)


def read(engine: Engine, path: Path, workload: Workload) -> Call:
    array = engine.open(path, workload)
    engine.touch(array, workload)
    return lambda: engine.get(array, workload.whole)


def chunks(engine: Engine, path: Path, workload: Workload) -> Call:
    """Read chunk by chunk (or shard by shard), some at a time, and keep one element of each."""
    array, lengths = engine.open(path, workload), workload.shards or workload.chunks
    engine.touch(array, workload)
    starts = product(*(range(0, n, step) for n, step in zip(workload.shape, lengths, strict=True)))
    boxes = [tuple(slice(a, a + n) for a, n in zip(corner, lengths, strict=True)) for corner in starts]
    return lambda: engine.each(array, boxes, AT_ONCE)


def memory(engine: Engine, path: Path, workload: Workload) -> Call:
    array = engine.in_memory(workload)
    return lambda: engine.get(array, workload.whole)


def points(engine: Engine, path: Path, workload: Workload) -> Call:
    array, where = engine.open(path, workload), random_indices(workload, POINTS)
    return lambda: engine.points(array, where)


def mask(engine: Engine, path: Path, workload: Workload) -> Call:
    array, where = engine.open(path, workload), np.zeros(workload.shape, bool)
    where[random_indices(workload, POINTS)] = True
    return lambda: engine.mask(array, where)


def orthogonal(engine: Engine, path: Path, workload: Workload) -> Call:
    array = engine.open(path, workload)
    where = tuple(np.sort(indices) for indices in random_indices(workload, 500))
    return lambda: engine.orthogonal(array, where)


def strided(engine: Engine, path: Path, workload: Workload) -> Call:
    array = engine.open(path, workload)
    return lambda: engine.get(array, (slice(0, workload.shape[0], 7), slice(0, workload.shape[1], 5)))


def boxes(engine: Engine, path: Path, workload: Workload) -> Call:
    array, parts = engine.open(path, workload), random_boxes(workload, 64, 40)
    return lambda: np.concatenate([np.asarray(engine.get(array, box)) for box in parts])


def changes(engine: Engine, path: Path, workload: Workload) -> Call:
    """Write boxes that cut chunks, with the values that the array has there."""
    array, size = engine.open_for_changes(path, workload), 64 if len(workload.shape) == 3 else 300
    parts = [(box, np.array(engine.get(array, box))) for box in random_boxes(workload, size, 40)]

    def call() -> None:
        for box, values in parts:
            engine.change(array, box, values)

    return call


def threads(engine: Engine, path: Path, workload: Workload) -> Call:
    """Read the whole array once per thread, block by block, each beginning with another block."""
    array, rows = engine.open(path, workload), workload.shape[0] // THREADS

    def work(first: int) -> None:
        for block in [*range(first, THREADS), *range(first)]:
            engine.get(array, (slice(block * rows, (block + 1) * rows), slice(0, workload.shape[1])))

    def call() -> None:
        with ThreadPoolExecutor(THREADS) as crew:
            list(crew.map(work, range(THREADS)))

    return call


def boxes_apart(workload: Workload) -> list[tuple[slice, ...]]:
    """Boxes that share no chunk: 2 x 2 chunks each, most of them."""
    starts = [range(0, n, 2 * c) for n, c in zip(workload.shape, workload.chunks, strict=True)]
    boxes = [
        tuple(slice(a + 20, a + 2 * c) for a, c in zip(at, workload.chunks, strict=True)) for at in product(*starts)
    ]
    return boxes[:READS]


def concurrent(engine: Engine, path: Path, workload: Workload) -> Call:
    parts = boxes_apart(workload)
    return lambda: engine.concurrent(path, workload, parts)


def dask(engine: Engine, path: Path, workload: Workload) -> Call:
    from dask.array import from_array

    array = engine.open(path, workload)

    class Source:
        shape, dtype, ndim = workload.shape, np.dtype(workload.dtype), len(workload.shape)

        def __getitem__(self, key: Any) -> np.ndarray:
            return np.asarray(engine.get(array, key))

    lengths: Any = tuple(8 * n for n in workload.chunks)
    blocks = from_array(Source(), chunks=lengths, name=False)
    return lambda: blocks.compute(scheduler="threads")


def element(engine: Engine, path: Path, workload: Workload) -> Call:
    array = engine.open(path, workload)
    return lambda: engine.element(array, (7, 11))


def chunk(engine: Engine, path: Path, workload: Workload) -> Call:
    array = engine.open(path, workload)
    return lambda: engine.get(array, tuple(slice(0, n) for n in workload.chunks))


def open_array(engine: Engine, path: Path, workload: Workload) -> Call:
    engine.touch(engine.open(path, workload), workload)
    return lambda: engine.open(path, workload)


def forget_files(path: Path) -> None:
    """Drop the contents of files from the page cache. They must be on a disk, and stored there already."""
    for file in filter(Path.is_file, path.rglob("*")):
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


TASKS: dict[str, Callable[[Engine, Path, Workload], Call]] = {
    "read": read,
    "chunks": chunks,
    "memory": memory,
    "points": points,
    "mask": mask,
    "orthogonal": orthogonal,
    "strided": strided,
    "boxes": boxes,
    "changes": changes,
    "threads": threads,
    "async": concurrent,
    "dask": dask,
}
LATENCIES: dict[str, Callable[[Engine, Path, Workload], Call]] = {
    "element": element,
    "chunk": chunk,
    "inner": chunk,
    "open": open_array,
}
"""Tasks that are called many times, and whose median counts."""

WRITES = ("write", "disk", "trip")
"""Tasks that write an array."""

TITLES = {
    "read": "read",
    "write": "write",
    "chunks": "read chunk by chunk, 8 at once",
    "trip": "read and write again",
    "read-cold": "read, cold",
    "chunks-cold": "read chunk by chunk, 8 at once, cold",
    "trip-cold": "read, cold, and write again",
    "disk": "write to the disk",
    "memory": "read from memory",
    "points": "100,000 random points",
    "mask": "mask of 100,000",
    "orthogonal": "500 x 500 orthogonal",
    "strided": "every 7th, every 5th",
    "boxes": "40 random 64³ boxes",
    "changes": "write 40 random boxes",
    "threads": "8 threads read all",
    "async": "200 reads at once",
    "dask": "read through dask",
    "element": "one element",
    "chunk": "one chunk",
    "inner": "one inner chunk",
    "open": "open",
}
