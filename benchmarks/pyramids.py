"""Compare pyramids with ome-zarr-py and dask, and measure a sparse source of 100 GB.

python benchmarks/pyramids.py               prints two Markdown tables
python benchmarks/pyramids.py --size 4096   uses smaller planes for the comparison
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import PyramidAxes, sync

CHUNKS = (1, 512, 512)
LEVELS = 5
SPARSE_SHAPE = (25, 46_080, 46_080)  # 106 GB of uint16
SPARSE_CHUNKS = (1, 1024, 1024)


def write_source(path: Path, size: int) -> None:
    """Write three planes of an image with noise, whose chunks compress about 2 : 1."""
    rng = np.random.default_rng(0)
    array = sync.create_array(
        path, path="0", shape=(3, size, size), dtype="u2", chunks=CHUNKS, dimension_names=tuple("cyx")
    )
    for plane in range(3):
        array[plane] = rng.poisson(200, (size, size)).astype("u2")


def write_sparse_source(path: Path) -> None:
    """Write an array of 106 GB with 150 stored chunks."""
    array = sync.create_array(
        path, path="0", shape=SPARSE_SHAPE, dtype="u2", chunks=SPARSE_CHUNKS, dimension_names=tuple("zyx")
    )
    rng = np.random.default_rng(0)
    for plane in range(0, SPARSE_SHAPE[0], 5):
        for number in range(30):
            row, column = (1024 * int(n) for n in rng.integers(0, 45, 2))
            values = rng.poisson(200, (1024, 1024)).astype("u2")
            array[plane, row : row + 1024, column : column + 1024] = values + np.uint16(number)


# ------------------------------------------------------------------ tasks


def with_zarrasync(source: Path, target: Path) -> None:
    """Copy the array and compute levels on threads."""
    sync.pyramid(source, path="0", dest=target, levels=LEVELS, axes=PyramidAxes(factors={"y": 2, "x": 2}))


def with_processes(source: Path, target: Path) -> None:
    """Copy the array and compute levels on two processes."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        sync.pyramid(
            source,
            path="0",
            dest=target,
            levels=LEVELS,
            axes=PyramidAxes(factors={"y": 2, "x": 2}),
            executor=executor,
        )


def with_ome_zarr(source: Path, target: Path) -> None:
    """Write the image with ome-zarr-py, with local means."""
    import dask.array as da
    from ome_zarr.scale import Methods
    from ome_zarr.writer import write_image

    image = da.from_zarr(str(source), component="0")
    write_image(image, str(target), axes="cyx", scale_factors=[2, 4, 8, 16], method=Methods.LOCAL_MEAN)


def with_dask(source: Path, target: Path) -> None:
    """Coarsen with dask, level by level from the stored level before."""
    import dask.array as da

    array = da.from_zarr(str(source), component="0")
    for level in range(LEVELS):
        if level:
            array = da.coarsen(np.mean, array, {1: 2, 2: 2}, trim_excess=True).astype("u2").rechunk(CHUNKS)
        array.to_zarr(str(target), component=str(level))
        array = da.from_zarr(str(target), component=str(level))


TASKS: dict[str, Callable[[Path, Path], None]] = {
    "zarrasync": with_zarrasync,
    "zarrasync, 2 processes": with_processes,
    "ome-zarr-py": with_ome_zarr,
    "dask.array.coarsen": with_dask,
}


def peak_memory() -> float:
    """Return the peak of this process's memory in MiB. ``getrusage`` also counts the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def run_task(name: str, source: Path, target: Path) -> dict[str, Any]:
    """Run one task in this process, and return its seconds and its peak of memory."""
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    if name == "sparse":
        sync.pyramid(source, path="0", axes=PyramidAxes(factors={"y": 2, "x": 2}))
    else:
        TASKS[name](source, target)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "seconds": time.perf_counter() - begin,
        "cpu": sum(item.ru_utime + item.ru_stime for item in usage),
        "memory": peak_memory(),
    }


def measure(name: str, source: Path, target: Path) -> dict[str, Any]:
    """Run one task in a new process."""
    command = [sys.executable, __file__, "--task", name, "--source", str(source), "--target", str(target)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def compare(folder: Path, size: int, rounds: int) -> None:
    """Print the comparison of all tasks."""
    source = folder / "source.zarr"
    write_source(source, size)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in TASKS}
    for _ in range(rounds):
        for name in TASKS:
            target = folder / "target.zarr"
            results[name].append(measure(name, source, target))
            shutil.rmtree(target)
    nbytes = 3 * size * size * 2
    print(
        f"\n3 planes of {size:,} x {size:,} uint16 ({nbytes / 2**20:.0f} MiB), {LEVELS} levels, {os.cpu_count()} cores\n"
    )
    print("| | seconds | CPU seconds | memory, MiB |\n|---|--:|--:|--:|")
    for name, items in results.items():
        best = min(items, key=lambda item: item["seconds"])
        print(f"| {name} | {best['seconds']:.1f} | {best['cpu']:.1f} | {best['memory']:.0f} |")


def measure_sparse(folder: Path) -> None:
    """Print the time and the memory for a sparse source."""
    source = folder / "sparse.zarr"
    write_sparse_source(source)
    result = measure("sparse", source, source)
    stored = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    print(
        f"\n{np.prod(SPARSE_SHAPE) * 2 / 1e9:.0f} GB with 150 stored chunks of 2 MiB, {stored / 2**20:.0f} MiB with all levels\n"
    )
    print("| | seconds | memory, MiB |\n|---|--:|--:|")
    print(f"| all levels | {result['seconds']:.1f} | {result['memory']:.0f} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    for name in ("task", "source", "target"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        print(json.dumps(run_task(args.task, Path(args.source), Path(args.target))))
        return
    with tempfile.TemporaryDirectory(prefix="pyramids-") as folder:
        compare(Path(folder), args.size, args.rounds)
        measure_sparse(Path(folder))


if __name__ == "__main__":
    main()
