"""Measures how fast files in the page cache are read into memory at various offsets from a page boundary.

    python benchmarks/alignment.py [DIRECTORY]

Shows why zarrasync does not read into large blocks of malloc, which begin 16 bytes after a page boundary.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import ram_disk

PAGE, FILES, SIZE = 4096, 16, 4 << 20
OFFSETS = (0, 1, 16, 31, 32, 64, 2048, 4064)
ROUNDS = 9


def read(paths: list[Path], memory: memoryview) -> float:
    """Return the milliseconds to read the files one after the other into the same memory."""
    start = time.perf_counter()
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.readv(handle, [memory])
        os.close(handle)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    block = np.ones(SIZE + 2 * PAGE, np.uint8)
    first = -block.ctypes.data % PAGE
    times: dict[int, list[float]] = {offset: [] for offset in OFFSETS}
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) if len(sys.argv) > 1 else ram_disk("pages") as folder:
        paths = [Path(folder) / str(number) for number in range(FILES)]
        for path in paths:
            path.write_bytes(np.random.default_rng(1).bytes(SIZE))
        for _ in range(ROUNDS):
            for offset in OFFSETS:
                times[offset].append(read(paths, memoryview(block)[first + offset : first + offset + SIZE]))
    print(f"malloc put a block of {len(block):,} bytes {block.ctypes.data % PAGE} bytes after a page boundary")
    for offset, runs in times.items():
        print(f"{FILES * SIZE >> 20} MiB to {offset:5,} bytes after a page boundary: {statistics.median(runs):6.1f} ms")


if __name__ == "__main__":
    main()
