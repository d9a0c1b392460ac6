"""Compares single reads and writes with other libraries, interleaved in one process, so that a busy machine slows all alike.

    python benchmarks/readers.py [--only ROW …] [--rounds N] [--delay MS] [--out DIRECTORY] [--write-docs]

Local rows count CPU time of the process, which other programs change little; remote rows count elapsed time. Engines take
turns in bursts, and the median of the bursts counts: the least one would choose bursts whose CPU time the system has counted
late, in the next burst. ``ratio`` is the shortest time of another library divided by ours.
Prints a table and writes readers.json and readers.md.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import remote
from engine import Engine
from engines import TensorStore, Zarrasync, Zarrista, ZarrPythonFused
from harness import columns, make_parser, markdown_table, parse_publishable, ram_disk, save
from servers import nginx
from workloads import WORKLOADS, Workload

Call = Callable[[], Any]
Clock = Callable[[], float]
BURST_SECONDS = 0.1
"""The time for which an engine makes calls before it is the next one's turn. The CPU time of other threads than the caller's is
up to date only to some milliseconds."""
ENGINES: dict[str, type[Engine]] = {
    "zarrasync": Zarrasync,
    "zarrista": Zarrista,
    "tensorstore": TensorStore,
    "zarr-python fused": ZarrPythonFused,
}
REMOTE: dict[str, type[remote.Engine]] = {
    "zarrasync": remote.Zarrasync,
    "zarrista": remote.Zarrista,
    "tensorstore": remote.TensorStore256,
    "zarr-python fused": remote.ZarrPythonFused256,
}
CODECS = {"raw": "raw", "zstd": "zstd-1", "blosc-lz4": "blosc-lz4", "blosc-zstd": "blosc-zstd"}
SIZES = {"64k": "64 KiB", "1m": "1 MiB", "4m": "4 MiB"}
BOX = 20
"""Elements of a small box along each axis."""
MOST_ABSENT = 1_000_000


# ------------------------------------------------------------------ measuring


def median_times(calls: dict[str, Call], rounds: int, clock: Clock) -> dict[str, float]:
    """Return the median time of a call of each engine in milliseconds. Engines take turns in bursts."""
    counts = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        call()  # opens files, starts threads
        start = clock()
        call()
        counts[name] = max(1, min(5000, int(BURST_SECONDS / max(clock() - start, 1e-6))))
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            for _ in range(counts[name]):
                call()
            times[name].append((clock() - start) / counts[name] * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def engines() -> dict[str, Engine]:
    """Return the libraries that are installed."""
    found = {}
    for name, kind in ENGINES.items():
        try:
            found[name] = kind()
        except ImportError:
            print(f"{name}: not installed")
    return found


# ------------------------------------------------------------------ local rows


def part_of_chunk(folder: Path, codec: str, size: str, width: int) -> dict[str, Call]:
    """Read an element, or a box, in the middle of a chunk."""
    full = WORKLOADS[f"{codec}-{size}"]
    workload = Workload("", tuple(2 * n for n in full.chunks), full.chunks, full.codec)
    path = folder / f"{codec}-{size}"
    if not path.exists():
        Zarrasync().write(path, workload, workload.data())
    start = tuple(n // 2 + 3 for n in full.chunks)
    box = tuple(slice(a, a + width) for a in start)

    def call(engine: Engine) -> Call:
        array = engine.open(path, workload)
        return (lambda: engine.element(array, start)) if width == 1 else (lambda: engine.get(array, box))

    return {name: call(engine) for name, engine in engines().items()}


def whole_read(folder: Path, name: str) -> dict[str, Call]:
    """Read all of an array."""
    workload, path = WORKLOADS[name], folder / name
    Zarrasync().write(path, workload, workload.data())

    def call(engine: Engine) -> Call:
        array = engine.open(path, workload)
        return lambda: engine.get(array, workload.whole)

    return {name: call(engine) for name, engine in engines().items()}


def whole_write(folder: Path, name: str) -> dict[str, Call]:
    """Write all of an array to new files."""
    workload = WORKLOADS[name]
    values = workload.data()

    def call(number: int, engine: Engine) -> Call:
        path = folder / f"{name}-{number}"

        def write() -> None:
            shutil.rmtree(path, ignore_errors=True)
            engine.write(path, workload, values)

        return write

    return {name: call(number, engine) for number, (name, engine) in enumerate(engines().items())}


def absent_chunks(folder: Path) -> dict[str, Call]:
    """Read a million absent chunks of a memory store."""
    from zarrasync import sync

    array = sync.create_array({}, shape=MOST_ABSENT, dtype="i1", chunks=1)
    return {"zarrasync": lambda: array[...]}


LOCAL: dict[str, tuple[str, Callable[[Path], dict[str, Call]]]] = {
    **{
        f"{what}-{codec}-{size}": (
            f"{title} of a {size_title} chunk, {codec_title}",
            lambda folder, codec=codec, size=size, width=width: part_of_chunk(folder, codec, size, width),
        )
        for what, title, width in (("element", "one element", 1), ("box", f"{BOX} x {BOX} elements", BOX))
        for codec, codec_title in CODECS.items()
        for size, size_title in SIZES.items()
    },
    "shards": ("read " + WORKLOADS["u2-zstd-shards"].title, lambda folder: whole_read(folder, "u2-zstd-shards")),
    "write": ("write " + WORKLOADS["f8-raw-2m"].title, lambda folder: whole_write(folder, "f8-raw-2m")),
    "absent": ("read 1,000,000 absent chunks of a memory store", absent_chunks),
}
DISTANT = ("big", "medium", "fewer")
"""Rows of ``remote.py``."""
NAMES = (*LOCAL, *DISTANT)


# ------------------------------------------------------------------ remote rows


@contextmanager
def distant(folder: Path, name: str, delay: int) -> Iterator[dict[str, Call]]:
    """Yield the reads of an array on a server whose responses begin after a delay."""
    from zarrasync import sync

    sync.create_array(folder / name, dtype="f4", **remote.ARRAYS_OF[name])[...] = remote.data(name)
    with nginx(folder, folder / "nginx", delay) as url, asyncio.Runner() as runner:
        calls: dict[str, Call] = {}
        for engine_name, kind in REMOTE.items():
            try:
                read = runner.run(kind(url).run(name))
            except ImportError:
                continue

            async def once(read: Any = read) -> Any:
                return await read()

            calls[engine_name] = lambda once=once: runner.run(once())
        yield calls


# ------------------------------------------------------------------ results


def render(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    rows = results["rows"]
    names = [name for name in columns(rows) if name not in ("title", "ratio", "clock")]
    return markdown_table(
        ["read or write", "time", *names, "best other / ours"],
        [
            [row["title"], row["clock"], *(milliseconds(row.get(name)) for name in names), f"{row['ratio']:.2f}"]
            for row in rows.values()
        ],
        labels=2,
    )


def milliseconds(time: float | None) -> str:
    """Return a time for the table."""
    if time is None:
        return "–"
    return f"{time * 1e3:,.0f} µs" if time < 1 else f"{time:,.1f} ms" if time < 100 else f"{time:,.0f} ms"


def main() -> None:
    parser = make_parser(__doc__, only=NAMES, rounds=20)
    parser.add_argument("--delay", type=int, default=50, help="milliseconds before the responses of the server")
    args = parse_publishable(parser)
    rows: dict[str, dict[str, Any]] = {}

    def add(name: str, title: str, clock: str, times: dict[str, float]) -> None:
        others = [value for engine, value in times.items() if engine != "zarrasync"]
        ratio = min(others) / times["zarrasync"] if others else float("nan")
        rows[name] = {"title": title, "clock": clock, **times, "ratio": ratio}
        print(name, {engine: milliseconds(value) for engine, value in times.items()}, f"{ratio:.2f}", flush=True)

    with ram_disk("readers") as name:
        folder = Path(name)
        for row in args.only or NAMES:
            if row in LOCAL:
                title, prepare = LOCAL[row]
                rounds = 2 if row == "absent" else args.rounds
                add(row, title, "CPU", median_times(prepare(folder), rounds, time.process_time))
            else:
                with distant(folder, row, args.delay) as calls:
                    times = median_times(calls, max(3, args.rounds // 4), time.perf_counter)
                add(row, f"{remote.TASKS[row]}, {args.delay} ms away", "elapsed", times)
    save(args, "readers", render, {"rows": rows, "delay": args.delay})


if __name__ == "__main__":
    main()
