"""Compare copies from maps to time series with a loop over zarr-python and with the p2p rechunk of dask.

python benchmarks/rechunk.py               prints a Markdown table
python benchmarks/rechunk.py --times 500   uses a smaller array
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import machine, markdown_table, rotate

MIB = 1 << 20
SHAPE = (180, 360)
MAPS = 10
"""The number of maps in a chunk of the source."""
SERIES = (20, 20)
"""The shape of chunks of the copy along the axes of a map."""


def write_source(path: Path, times: int) -> None:
    """Write maps with noise, whose chunks compress about 3 : 1."""
    from zarrasync import sync

    array = sync.create_array(path, shape=(times, *SHAPE), dtype="f4", chunks=(MAPS, *SHAPE))
    chance = np.random.default_rng(0)
    for start in range(0, times, MAPS):
        array[start : start + MAPS] = np.round(chance.normal(280, 5, (MAPS, *SHAPE)), 1)


# ------------------------------------------------------------------ tasks


def with_zarrasync(source: Path, target: Path, budget: int, start: Callable[[], None], executor: Any = None) -> None:
    """Copy within a memory budget."""
    from zarrasync import sync

    chunks = (sync.open_array(source).shape[0], *SERIES)
    start()
    sync.copy(source, target, chunks=chunks, config={"memory_budget": budget * MIB}, executor=executor)


def with_processes(source: Path, target: Path, budget: int, start: Callable[[], None]) -> None:
    """Copy on two processes."""
    with_zarrasync(source, target, budget, start, executor=2)


def with_loop(source: Path, target: Path, budget: int, start: Callable[[], None]) -> None:
    """Copy with a loop over zarr-python, by as many rows as need about half of the memory."""
    import zarr

    maps = zarr.open_array(source)
    start()
    series = zarr.create_array(target, shape=maps.shape, dtype=maps.dtype, chunks=(maps.shape[0], *SERIES))
    rows = max(1, budget * MIB // 2 // (maps.nbytes // SHAPE[0]) // SERIES[0]) * SERIES[0]
    for row in range(0, SHAPE[0], rows):
        series[:, row : row + rows] = maps[:, row : row + rows]


def with_dask(source: Path, target: Path, budget: int, start: Callable[[], None]) -> None:
    """Copy with the p2p rechunk of dask, on two processes."""
    import dask.array as da
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        start()
        maps = da.from_zarr(str(source))
        maps.rechunk((maps.shape[0], *SERIES), method="p2p").to_zarr(str(target))


TASKS: dict[str, Callable[..., None]] = {
    "zarrasync": with_zarrasync,
    "zarrasync, 2 processes": with_processes,
    "zarr-python, loop": with_loop,
    "dask, p2p": with_dask,
}
BUDGETS = {
    "zarrasync": (96, 192, 431),
    "zarrasync, 2 processes": (192,),
    "zarr-python, loop": (192, 431),
    "dask, p2p": (0,),
}


class Usage(threading.Thread):
    """Watches the memory of this process and of those that it starts, without what their imports take."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process, self._ended = psutil.Process(), threading.Event()
        self._imports: dict[int, int] = {}
        self._own = self.peak = 0

    def _sizes(self) -> dict[int, int]:
        sizes = {}
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                sizes[process.pid] = process.memory_info().rss
        return sizes

    @staticmethod
    def _cpu() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(item.ru_utime + item.ru_stime for item in usage)

    def begin(self) -> None:
        """Begin, after the imports."""
        self._imports = self._sizes()
        self._own = self._imports[self._process.pid]
        self._begin, self._begin_cpu = time.perf_counter(), self._cpu()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            sizes = self._sizes().items()
            self.peak = max(self.peak, sum(max(0, n - self._imports.get(pid, self._own)) for pid, n in sizes))

    def end(self) -> dict[str, float]:
        """Return the seconds, the seconds of the processors, and the peak in MiB."""
        seconds, cpu = time.perf_counter() - self._begin, self._cpu() - self._begin_cpu
        self._ended.set()
        self.join()
        return {"seconds": seconds, "cpu": cpu, "memory": self.peak / MIB}


def run_task(name: str, source: Path, target: Path, budget: int) -> None:
    """Run one task in this process, and print its seconds and its peak of memory."""
    usage = Usage()
    TASKS[name](source, target, budget, usage.begin)
    print(json.dumps(usage.end()))


def measure(name: str, source: Path, target: Path, budget: int) -> dict[str, float]:
    """Run one task in a new process."""
    command = [sys.executable, __file__, "--task", name, "--source", str(source), "--target", str(target)]
    output = subprocess.run([*command, "--budget", str(budget)], check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=2000, help="the number of maps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="*", choices=list(TASKS), default=list(TASKS))
    for name in ("task", "source", "target", "budget"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        run_task(args.task, Path(args.source), Path(args.target), int(args.budget))
        return
    runs = [(name, budget) for name in args.engines for budget in BUDGETS[name]]
    results: dict[tuple[str, int], list[dict[str, float]]] = {run: [] for run in runs}
    with tempfile.TemporaryDirectory(prefix="rechunk-") as folder:
        source, target = Path(folder, "maps.zarr"), Path(folder, "series.zarr")
        write_source(source, args.times)
        for number in range(args.rounds):
            for name, budget in rotate(runs, number):
                results[name, budget].append(measure(name, source, target, budget))
                shutil.rmtree(target)
    nbytes = 4 * args.times * np.prod(SHAPE)
    print(f"\n{machine()}. {nbytes / MIB:.0f} MiB, medians of {args.rounds} rounds.\n")
    rows = [
        (name, f"{budget} MiB" if budget else "", *(f"{statistics.median(item[key] for item in items):.{digits}f}"
         for key, digits in (("seconds", 1), ("cpu", 1), ("memory", 0))))
        for (name, budget), items in results.items()
    ]  # fmt: skip
    print(markdown_table(("", "budget", "seconds", "CPU seconds", "memory, MiB"), rows, labels=2))


if __name__ == "__main__":
    main()
