"""Measures zarrasync and every peer that is installed.

    python benchmarks/run.py [--full] [--rounds N] [--only WORKLOAD …] [--tasks TASK …] [--engines ENGINE …]
                             [--out DIRECTORY] [--write-docs]

Each engine has a process of its own; rounds are interleaved (engine after engine on one workload, then
again), the median counts. Files lie on a RAM disk where there is one, so that the page cache and
the journal do not decide. Prints a table, and writes results.json, results.md and results.png.
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
from pathlib import Path
from typing import Any

import engines
import numpy as np
import report
from tasks import LATENCIES, TASKS
from workloads import QUICK, WORKLOADS

HERE = Path(__file__).parent
SLOW = 250
"""Milliseconds from which on a peer need not be measured in every round if it is far behind."""
BEHIND, FAR_BEHIND = 3, 8
"""Times as long as the fastest takes a peer of which two rounds, or one, tell enough: one may have been an accident."""


class Worker:
    """An engine's process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.hello = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"failed": "the process ended"}

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        if self.process.poll() is not None:
            return {"failed": "the process ended"}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


_WARM = 6 << 30
"""Bytes of memory that all workers need at a time, and some more."""


def warm_memory() -> None:
    """Use as much of the free memory as will be needed once.

    The host of a virtual machine hands out a page when it is used for the first time ever. Whoever
    happens to be first would pay for that.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    block = 256 << 20
    held = []
    for _ in range(min(int(0.8 * available), _WARM) // block):
        held.append(np.empty(block, "u1"))
        held[-1][::4096] = 1


def run(workers: list[Worker], chosen: dict[str, tuple[str, ...]], rounds: int, root: Path, disk: Path) -> list[Any]:
    """All measurements: one row per task and workload."""
    rows = []
    for workload, tasks in chosen.items():
        source, values = root / workload, root / f"{workload}.npy"
        np.save(values, WORKLOADS[workload].data())
        engines.Zarrasync().write(source, WORKLOADS[workload], np.load(values, mmap_mode="r"))
        for task in tasks:
            target = {"write": root / "written", "disk": disk}.get(task)
            rows.append(measure(workers, task, workload, rounds, source, target))
            report.print_row(rows[-1])
        shutil.rmtree(source)
        values.unlink()
    return rows


def measure(
    workers: list[Worker], task: str, workload: str, rounds: int, source: Path, target: Path | None
) -> dict[str, Any]:
    """One row."""
    found: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(rounds):
        # Who comes first after memory was freed or grown pays for fresh pages: take turns.
        turn = number % len(workers)
        for worker in workers[turn:] + workers[:turn]:
            own = found[worker.name]
            if any("failed" in answer for answer in own) or (worker.name != report.FLOOR and _is_known(own, found)):
                continue
            path = source if target is None else target / worker.name.replace(" ", "-")
            values = source.with_suffix(".npy")
            own.append(worker.ask(task=task, workload=workload, path=str(path), values=str(values), check=not number))
            if target is not None:
                shutil.rmtree(target, ignore_errors=True)
    return summarise(task, workload, found)


def _is_known(own: list[dict[str, Any]], found: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether an engine is slow beyond doubt."""
    times = [answer["ms"] for answer in own]
    if not times or min(times) <= SLOW:
        return False
    fastest = min(answer["ms"] for answers in found.values() for answer in answers if "ms" in answer)
    return min(times) > (BEHIND if len(times) > 1 else FAR_BEHIND) * fastest


def summarise(task: str, workload: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of one row, and what they say."""
    results: dict[str, Any] = {}
    sums = {round(a["sum"], 2) for answers in found.values() for a in answers if "sum" in a}
    if len(sums) > 1:
        raise SystemExit(f"{task} {workload}: the engines read different values: {sums}")
    for name, answers in found.items():
        failed = next((a["failed"] for a in answers if "failed" in a), None)
        if failed:
            results[name] = {"failed": failed}
        elif answers:
            results[name] = {k: statistics.median(a[k] for a in answers) for k in ("ms", "cpu_ms", "peak_mb")}
    ours = results[report.OURS].get("ms")
    peers = {name: r["ms"] for name, r in results.items() if name not in (report.OURS, report.FLOOR) and "ms" in r}
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
    """Milliseconds of a process that imports a package, beyond one that does nothing."""
    packages = ["", "numpy", "zarrasync", "zarrasync.sync", "zarr", "zarrista", "tensorstore"]
    times: dict[str, list[float]] = {name: [] for name in packages}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds + 1):  # the first one compiles
        for name in packages:
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", f"import {name}" if name else ""],
                env=environment,
                check=False,
                capture_output=True,
            )
            if not done.returncode:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name or "nothing": statistics.median(own[1:]) for name, own in times.items() if len(own) > 1}


def chosen_tasks(given: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """What to do with which array."""
    plan = {name: own.tasks for name, own in WORKLOADS.items()} if given.full else QUICK
    if given.only:
        plan = {name: WORKLOADS[name].tasks if given.full or name not in QUICK else QUICK[name] for name in given.only}
    if given.tasks:
        plan = {name: tuple(task for task in own if task in given.tasks) for name, own in plan.items()}
    return {name: own for name, own in plan.items() if own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="every workload and task")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), help="workloads to run")
    parser.add_argument("--tasks", nargs="*", choices=["write", "disk", *TASKS, *LATENCIES], help="tasks to run")
    parser.add_argument("--engines", nargs="*", choices=list(engines.ENGINES), help="engines to run")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument(
        "--write-docs", action="store_true", help="write docs/performance/local.md, with --full measurements.md"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    shm = Path("/dev/shm")
    base = shm if shm.is_dir() and os.access(shm, os.W_OK) else None
    workers = [Worker(name) for name in given.engines or engines.ENGINES]
    for worker in workers:
        if "missing" in worker.hello:
            print(f"{worker.name}: not installed ({worker.hello['missing']})")
    workers = [worker for worker in workers if "version" in worker.hello]
    versions = {worker.name: worker.hello["version"] for worker in workers}
    print(report.machine())
    print(", ".join(f"{name} {number}" for name, number in versions.items()), flush=True)
    warm_memory()
    with (
        tempfile.TemporaryDirectory(dir=base, prefix="zarrasync-bench-") as root,
        tempfile.TemporaryDirectory(dir=given.out, prefix="disk-") as disk,
    ):
        rows = run(workers, chosen_tasks(given), given.rounds, Path(root), Path(disk) / "written")
    for worker in workers:
        worker.close()
    times = imports(5) if not given.only else {}
    text = report.page(rows, times, versions, given.rounds)
    (given.out / "results.json").write_text(
        json.dumps(
            {
                "machine": report.machine(),
                "versions": versions,
                "rounds": given.rounds,
                "rows": rows,
                "import_ms": times,
            },
            indent=1,
        )
    )
    (given.out / "results.md").write_text(text)
    report.plot(rows, list(versions), given.out / "results.png")
    if given.write_docs:
        docs = HERE.parent / "docs"
        report.write_docs(docs / "performance" / "local.md", report.page(rows, times, versions, given.rounds, QUICK))
        if given.full:
            report.write_docs(docs / "performance" / "measurements.md", text)
    print()
    print(text)


if __name__ == "__main__":
    main()
