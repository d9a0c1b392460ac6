"""Count the Python calls that small reads and writes make: a cost per chunk that does not depend on the machine.

    python benchmarks/calls.py           prints the table
    python benchmarks/calls.py --check   exits with 1 if a row is over its limit
    python benchmarks/calls.py --trace "one raw chunk"   prints the calls of a row, indented

Calls of Python functions are counted with ``sys.setprofile`` (calls of C functions are not), after a first call that
fills caches. All rows are local files on one thread through the synchronous API.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from zarrasync import sync


class Count(NamedTuple):
    """Python calls of a task.

    Attributes:
        calls: Functions entered, generators resumed and coroutines stepped.
        modules: Files that these are in.
        depth: The deepest nesting.
        lines: Each call as ``(depth, "module.function")``.
    """

    calls: int
    modules: int
    depth: int
    lines: list[tuple[int, str]]


class Row(NamedTuple):
    """A task, and the most calls that it may make."""

    name: str
    limit: int
    task: Callable[[], Any]


def count(task: Callable[[], Any]) -> Count:
    """Count the calls of a task that has been done before."""
    task()
    task()
    depth, deepest, lines = 0, 0, list[tuple[int, str]]()
    package = str(Path(sync.__file__).parent)

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth, deepest
        if event == "call":
            depth += 1
            deepest = max(deepest, depth)
            path = frame.f_code.co_filename
            name = path.removeprefix(package).removesuffix(".py").strip("/").replace("/", ".")
            lines.append((depth, f"{name}.{frame.f_code.co_qualname}"))
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        task()
    finally:
        sys.setprofile(None)
    lines, deepest = lines[1:], deepest - 1  # the task itself
    return Count(len(lines), len({line.rpartition(".")[0] for _, line in lines}), deepest, lines)


def rows(folder: Path) -> list[Row]:
    """Return the tasks, over arrays in a folder."""
    config = {"threads": 1}

    def array(name: str, shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> Any:
        values = np.arange(np.prod(shape), dtype="f4").reshape(shape) + 1
        return sync.create_array(
            folder / name, shape=shape, dtype="f4", chunks=chunks, config=config, **options
        ), values

    raw, values = array("raw", (240_000,), (80_000,), compressors=None)
    raw[...] = values
    gzip, values = array("gzip", (8000,), (800,), compressors={"name": "gzip", "configuration": {"level": 1}})
    gzip[...] = values
    plane, values = array("plane", (200, 200), (100, 200), compressors=None)
    plane[...] = values
    small, values = array("small", (8000,), (100,), compressors=None)
    small[...] = values
    shards, values = array("shards", (400, 400), (100, 100), shards=(200, 200))
    shards[...] = values
    chunk, part, block = np.ones(800, "f4"), np.ones(4, "f4"), np.ones((10, 200), "f4")

    def partial_write() -> None:
        gzip[3:7] = part

    def whole_write() -> None:
        gzip[800:1600] = chunk

    def partial_write_of_plane() -> None:
        plane[0:10] = block

    return [
        Row("one raw chunk", 15, lambda: raw[0:1000]),
        Row("one raw chunk, whole", 16, lambda: raw[0:80_000]),
        Row("three raw chunks", 16, lambda: raw[...]),
        Row("rows of a plane", 15, lambda: plane[0:10]),
        Row("one small compressed chunk", 15, lambda: gzip[0:800]),
        Row("one element", 16, lambda: small[150]),
        Row("part of a shard", 15, lambda: shards[0:10, 0:10]),
        Row("whole write of a chunk", 102, whole_write),
        Row("partial write", 116, partial_write),
        Row("partial write of a plane", 128, partial_write_of_plane),
    ]


def main() -> int:
    """Print the table or a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row is over its limit")
    parser.add_argument("--trace", metavar="ROW", help="print the calls of one row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = rows(Path(folder))
        if options.trace:
            for depth, name in count(next(row.task for row in tasks if row.name == options.trace)).lines:
                print("  " * depth + name)
            return 0
        print(f"{'task':<28} {'calls':>6} {'limit':>6} {'modules':>8} {'depth':>6}")
        exceeded = False
        for row in tasks:
            counted = count(row.task)
            over = counted.calls > row.limit
            exceeded |= over
            mark = "  over" if over else ""
            print(f"{row.name:<28} {counted.calls:>6} {row.limit:>6} {counted.modules:>8} {counted.depth:>6}{mark}")
    return int(exceeded and options.check)


if __name__ == "__main__":
    raise SystemExit(main())
