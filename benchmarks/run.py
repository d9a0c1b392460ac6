"""Measures zarrasync and all installed peers.

    python benchmarks/run.py [--full] [--rounds N] [--only WORKLOAD …] [--tasks TASK …] [--engines ENGINE …]
                             [--out DIRECTORY] [--write-docs]

Each engine runs in a separate process. Rounds are interleaved (engine after engine on one workload, then again), and the
median counts. Files are on a RAM disk if there is one, so that the page cache and the journal do not matter. Tasks that
end with "-cold" use the disk of the directory for results, and drop the files from the page cache before each call.
Prints a table, and writes results.json, results.md and results.png.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engines
import numpy as np
import report
from harness import EngineProcess, installed, machine, make_parser, medians, parse_publishable, ram_disk, rotate, save
from tasks import COLD, TITLES
from workloads import QUICK, WORKLOADS

HERE = Path(__file__).parent
SLOW = 250
"""Milliseconds from which on a peer is measured in fewer rounds if it is far behind."""
BEHIND, FAR_BEHIND = 3, 8
"""Ratios to the fastest engine from which on two rounds, or one, are enough."""


_WARM = 6 << 30
"""More bytes of memory than all workers need at a time."""


def warm_memory() -> None:
    """Touch as much free memory as will be needed.

    The host of a virtual machine allocates a page when it is used for the first time, which the first engine would pay
    for.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    block = 256 << 20
    blocks = []
    for _ in range(min(int(0.8 * available), _WARM) // block):
        blocks.append(np.empty(block, "u1"))
        blocks[-1][::4096] = 1


def run(
    workers: list[EngineProcess], chosen: dict[str, tuple[str, ...]], rounds: int, root: Path, disk: Path
) -> list[Any]:
    """Return all measurements: one row per task and workload."""
    rows = []
    for workload, names in chosen.items():
        source, values = root / workload, root / f"{workload}.npy"
        np.save(values, WORKLOADS[workload].data())
        engines.Zarrasync().write(source, WORKLOADS[workload], np.load(values, mmap_mode="r"))
        cold = disk / workload
        if any(name.endswith(COLD) for name in names):
            shutil.copytree(source, cold)
            os.sync()  # unwritten pages stay in memory
        for task in names:
            is_cold = task.endswith(COLD)
            job = Job(task, workload, cold if is_cold else source, values, disk if is_cold or task == "disk" else root)
            rows.append(measure(workers, job, rounds))
            report.print_row(rows[-1])
        shutil.rmtree(source)
        shutil.rmtree(cold, ignore_errors=True)
        values.unlink()
    return rows


@dataclass(frozen=True)
class Job:
    """A task on an array.

    Attributes:
        task: Its name.
        workload: The name of the array.
        source: The directory of the stored array.
        values: The file with its values.
        scratch: The directory for arrays that the task writes.
    """

    task: str
    workload: str
    source: Path
    values: Path
    scratch: Path


def measure(workers: list[EngineProcess], job: Job, rounds: int) -> dict[str, Any]:
    """Return one row."""
    return summarise(job.task, job.workload, collect(workers, job, rounds))


def collect(workers: list[EngineProcess], job: Job, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the results of all rounds of a task, by engine."""
    results: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    written = job.scratch / "written"
    for number in range(rounds):
        for worker in rotate(workers, number):
            runs = results[worker.name]
            is_decided = worker.name != report.FLOOR and _is_far_behind(runs, results)
            if is_decided or any("failed" in result for result in runs):
                continue
            paths = {"source": job.source, "target": written / worker.name.replace(" ", "-"), "values": job.values}
            command = {"task": job.task, "workload": job.workload, "check": not number}
            runs.append(worker.ask(json.dumps({**command, **{name: str(path) for name, path in paths.items()}})))
            shutil.rmtree(written, ignore_errors=True)
    sums = {round(result["sum"], 2) for runs in results.values() for result in runs if "sum" in result}
    if len(sums) > 1:
        raise SystemExit(f"{job.task} {job.workload}: the engines read different values: {sums}")
    return results


def _is_far_behind(runs: list[dict[str, Any]], results: dict[str, list[dict[str, Any]]]) -> bool:
    """Return whether an engine is so much slower than the fastest one that no more rounds are needed."""
    times = [result["ms"] for result in runs if "ms" in result]
    if not times or min(times) <= SLOW:
        return False
    fastest = min(result["ms"] for others in results.values() for result in others if "ms" in result)
    return min(times) > (BEHIND if len(times) > 1 else FAR_BEHIND) * fastest


def summarise(task: str, workload: str, rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of one row, and the ratios to the best peer and to the floor."""
    results = {name: medians(runs, ("ms", "cpu_ms", "peak_mb")) for name, runs in rounds.items() if runs}
    ours = results[report.OURS].get("ms")
    peers = {name: r["ms"] for name, r in results.items() if name not in report.NO_PEERS and "ms" in r}
    best = min(peers, key=peers.__getitem__) if peers else None
    floor = results.get(report.FLOOR, {}).get("ms")
    return {
        "task": task,
        "workload": workload,
        "results": results,
        "best_peer": best,
        "ratio": peers[best] / ours if best and ours else None,
        "floor_ratio": floor / ours if floor and ours else None,
    }


def imports(rounds: int) -> dict[str, float]:
    """Return the milliseconds of processes that import one package each."""
    packages = ["", "numpy", "zarrasync", "zarrasync.sync", "zarr", "zarrista", "tensorstore"]
    times: dict[str, list[float]] = {name: [] for name in packages}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds + 1):  # the first one compiles
        for name in packages:
            start = time.perf_counter()
            process = subprocess.run(
                [sys.executable, "-c", f"import {name}" if name else ""],
                env=environment,
                check=False,
                capture_output=True,
            )
            if not process.returncode:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name or "nothing": statistics.median(runs[1:]) for name, runs in times.items() if len(runs) > 1}


def chosen_tasks(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the tasks to measure by workload."""
    plan = {name: workload.tasks for name, workload in WORKLOADS.items()} if args.full else QUICK
    if args.only:
        plan = {name: WORKLOADS[name].tasks if args.full or name not in QUICK else QUICK[name] for name in args.only}
    if args.tasks:
        plan = {name: tuple(task for task in tasks if task in args.tasks) for name, tasks in plan.items()}
    return {name: tasks for name, tasks in plan.items() if tasks}


def start_engines(names: list[str], *, all_needed: bool) -> list[EngineProcess]:
    """Start the processes of all installed engines, or end if all are needed and one is not installed."""
    command = [sys.executable, str(HERE / "worker.py")]
    workers = [EngineProcess(name, [*command, name], engines.ALL[name].environment) for name in names]
    return installed(workers, all_needed=all_needed)


def main() -> None:
    parser = make_parser(__doc__, only=WORKLOADS, engines=engines.ENGINES, rounds=3)
    parser.add_argument(
        "--full", action="store_true", help="every workload and task, without the default pipeline of zarr-python"
    )
    parser.add_argument("--tasks", nargs="*", choices=list(TITLES), help="tasks to run")
    args = parse_publishable(parser)
    args.out.mkdir(parents=True, exist_ok=True)
    default = [name for name in engines.ENGINES if not args.full or name != engines.SLOWEST]
    workers = start_engines(list(args.engines or default), all_needed=args.write_docs)
    versions = {worker.name: worker.hello["version"] for worker in workers}
    print(machine())
    print(", ".join(f"{name} {number}" for name, number in versions.items()), flush=True)
    warm_memory()
    with ram_disk("bench") as root, tempfile.TemporaryDirectory(dir=args.out, prefix="disk-") as disk:
        rows = run(workers, chosen_tasks(args), args.rounds, Path(root), Path(disk))
    for worker in workers:
        worker.kill()
    times = imports(5) if not args.only else {}
    results = {"versions": versions, "rounds": args.rounds, "rows": rows, "import_ms": times}
    report.plot(rows, list(versions), args.out / "results.png")
    save(args, "full" if args.full else "local", report.page, results)


if __name__ == "__main__":
    main()
