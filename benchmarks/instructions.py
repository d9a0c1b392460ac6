"""Count the machine instructions per chunk of small reads and writes, with the compiled kernel and without it.

    python benchmarks/instructions.py              prints the table
    python benchmarks/instructions.py --check      exits with 1 if a row is over its limit
    python benchmarks/instructions.py --row "raw"  counts only rows whose name contains this

Valgrind's callgrind counts, so the numbers depend neither on the machine's speed nor on its load. They contain the
interpreter, the codecs and the C library, but not the kernel of the operating system. Each row is done for one number of
chunks and for twice as many; the difference is what a chunk costs, and the rest is what a call costs.

The limits are for Python 3.13 on x86-64. This needs valgrind with its headers, and a C compiler. It takes half a minute.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import zarrasync as za
from zarrasync import sync

MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
MODES = ("require", "off")


class Row(NamedTuple):
    """A task with limits.

    Attributes:
        name: The name of the task.
        limits: The most instructions per chunk, in thousands, with the kernel and without it.
        prepare: A function of a folder, the number of chunks and the mode, which returns the task.
        chunks: The smaller number of chunks. Both numbers must take the same way through the library, which depends on the
            size of the selection.
    """

    name: str
    limits: tuple[int, int]
    prepare: Callable[[Path, int, str], Callable[[], Any]]
    chunks: int = 32


def array(folder: Path, mode: str, chunks: int, size: int, **options: Any) -> tuple[Any, Any]:
    """Return an array of float32 with so many chunks of one size, and its values."""
    values = (np.arange(chunks * size, dtype="f4") % 251).reshape(-1, size)
    config = za.Config(threads=1, native=mode)  # type: ignore[arg-type]  # one of MODES
    options.setdefault("compressors", None)
    made = sync.create_array(
        tempfile.mkdtemp(dir=folder), shape=values.shape, dtype="f4", chunks=(1, size), config=config, **options
    )
    made[...] = values
    return made, values


def read(size: int, **options: Any) -> Callable[[Path, int, str], Callable[[], Any]]:
    """Return a task that reads chunks of one size with one call."""

    def prepare(folder: Path, chunks: int, mode: str) -> Callable[[], Any]:
        a, values = array(folder, mode, chunks, size, **options)
        assert (a[...] == values).all()
        return lambda: a[...]

    return prepare


def write(size: int, **options: Any) -> Callable[[Path, int, str], Callable[[], Any]]:
    """Return a task that writes whole chunks with one call."""

    def prepare(folder: Path, chunks: int, mode: str) -> Callable[[], Any]:
        a, values = array(folder, mode, chunks, size, **options)

        def task() -> None:
            a[...] = values

        return task

    return prepare


def write_parts(size: int, **options: Any) -> Callable[[Path, int, str], Callable[[], Any]]:
    """Return a task that writes the first half of each chunk."""

    def prepare(folder: Path, chunks: int, mode: str) -> Callable[[], Any]:
        a, values = array(folder, mode, chunks, size, **options)
        half = values[:, : size // 2]

        def task() -> None:
            a[:, : size // 2] = half

        return task

    return prepare


def read_elements(size: int, **options: Any) -> Callable[[Path, int, str], Callable[[], Any]]:
    """Return a task that reads one element of each chunk, with one call each."""

    def prepare(folder: Path, chunks: int, mode: str) -> Callable[[], Any]:
        a, _ = array(folder, mode, chunks, size, **options)
        return lambda: [a[i, 5] for i in range(chunks)]

    return prepare


BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
SHARD = {"shards": (16, 256)}

ROWS = [
    Row("read raw chunks of 400 bytes", (1, 12), read(100)),
    Row("read blosc chunks of 1.6 KB", (6, 46), read(400, compressors=BLOSC), 64),
    Row("read zstd chunks of 16 KiB", (50, 116), read(4096, compressors=ZSTD), 96),
    Row("read gzip chunks of 1.6 KB", (62, 99), read(400, compressors=GZIP), 64),
    Row("read raw inner chunks of 1 KiB", (1, 42), read(256, **SHARD), 96),
    Row("read one element", (57, 145), read_elements(100)),
    Row("write raw chunks of 400 bytes", (32, 67), write(100)),
    Row("write blosc chunks of 1.6 KB", (107, 156), write(400, compressors=BLOSC)),
    Row("write zstd chunks of 16 KiB", (145, 200), write(4096, compressors=ZSTD)),
    Row("write raw inner chunks of 1 KiB", (3, 50), write(256, **SHARD)),
    # Without the kernel, a third is for the lock, which is on the place of the file and not on its path.
    Row("write halves of raw chunks of 400 bytes", (33, 300), write_parts(100)),
]


def work(names: list[str], marks: str) -> None:
    """Do the rows between marks for callgrind, which runs this process."""
    mark = ctypes.CDLL(marks)
    begun = False
    with tempfile.TemporaryDirectory() as temporary:
        tasks = [
            (f"{mode}|{chunks}|{row.name}", row.prepare(Path(temporary), chunks, mode))
            for row in ROWS
            if row.name in names
            for mode in MODES
            for chunks in (row.chunks, 2 * row.chunks)
        ]
        for name, task in tasks:
            task()
            task()
            gc.collect()
            gc.disable()
            if not begun:
                mark.begin()
                begun = True
            mark.zero()
            task()
            mark.dump(name.encode())
            gc.enable()


def counts(names: list[str]) -> dict[tuple[str, int, str], int]:
    """Return the instructions of each row, by mode, number of chunks, and name."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "marks.c").write_text(MARKS)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "marks.so", folder / "marks.c"], check=True)
        tool = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = [*tool, sys.executable, __file__, "--work", str(folder / "marks.so"), *names]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        return dict(read_dumps(folder))


def read_dumps(folder: Path) -> Iterator[tuple[tuple[str, int, str], int]]:
    """Yield the rows and totals of callgrind's files."""
    for path in folder.glob("out.*"):
        text = path.read_text()
        found = re.search(r"^desc: Trigger: Client Request: (\w+)\|(\d+)\|(.+)$", text, re.MULTILINE)
        if found:
            mode, chunks, name = found.groups()
            totals = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            assert totals
            yield (mode, int(chunks), name), int(totals.group(1))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row is over its limit")
    parser.add_argument("--row", default="", metavar="TEXT", help="count only rows whose name contains this")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.names, options.work)
        return 0
    rows = [row for row in ROWS if options.row in row.name]
    counted = counts([row.name for row in rows])
    print("thousands of instructions per chunk, and per call without chunks")
    print(f"{'task':<42} {'kernel':>8} {'limit':>8} {'per call':>9} {'python':>8} {'limit':>8} {'per call':>9}")
    exceeded = False
    for row in rows:
        line = f"{row.name:<42}"
        for mode, limit in zip(MODES, row.limits, strict=True):
            one, two = counted[mode, row.chunks, row.name], counted[mode, 2 * row.chunks, row.name]
            per_chunk = (two - one) / row.chunks / 1000
            exceeded |= per_chunk > limit
            line += f" {per_chunk:>7.1f}{'!' if per_chunk > limit else ' '} {limit:>8} {(2 * one - two) / 1000:>9.0f}"
        print(line)
    return int(exceeded and options.check)


if __name__ == "__main__":
    raise SystemExit(main())
