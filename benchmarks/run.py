"""Reads and writes whole arrays with zarrasync and every peer that is installed.

    python benchmarks/run.py [--rounds N] [--only WORKLOAD …] [--out DIRECTORY] [--write-docs]

Each engine has a process of its own; rounds are interleaved (engine after engine on one workload, then
again), the median counts. Files lie on a RAM disk where there is one, so that the page cache and
the journal do not decide. Prints a table, and writes results.json and results.png.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import engines
import numpy as np
from workloads import WORKLOADS

HERE = Path(__file__).parent
OURS = "zarrasync"


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


def warm_memory() -> None:
    """Use most of the free memory once.

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
    for _ in range(int(0.8 * available) // block):
        held.append(np.empty(block, "u1"))
        held[-1][::4096] = 1


def run(workers: list[Worker], chosen: list[str], rounds: int, root: Path) -> list[dict[str, Any]]:
    """All measurements: one row per task and workload."""
    rows = []
    for workload in chosen:
        source = root / workload
        engines.Zarrasync().write(source, WORKLOADS[workload], WORKLOADS[workload].data())
        tasks = [("read", source), ("write", root / "written")]
        if workload in ("tiny-raw", "tiny-blosc"):
            tasks.append(("element", source))
        for task, path in tasks:
            found: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
            for number in range(rounds):
                # Who comes first after memory was freed or grown pays for fresh pages: take turns.
                turn = number % len(workers)
                for worker in workers[turn:] + workers[:turn]:
                    if any("failed" in answer for answer in found[worker.name]):
                        continue
                    target = path if task != "write" else path / worker.name.replace(" ", "-")
                    command = {"task": task, "workload": workload, "path": str(target), "check": not number}
                    found[worker.name].append(worker.ask(**command))
                    if task == "write":
                        shutil.rmtree(target, ignore_errors=True)
            rows.append(summarise(task, workload, found))
            print_row(rows[-1])
        shutil.rmtree(source)
    return rows


def summarise(task: str, workload: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of one row, and what they say."""
    results: dict[str, Any] = {}
    sums = {round(a["sum"], 3) for answers in found.values() for a in answers if "sum" in a}
    if len(sums) > 1:
        raise SystemExit(f"{task} {workload}: the engines read different values: {sums}")
    for name, answers in found.items():
        failed = next((a["failed"] for a in answers if "failed" in a), None)
        if failed:
            results[name] = {"failed": failed}
        else:
            results[name] = {k: statistics.median(a[k] for a in answers) for k in ("ms", "cpu_ms", "peak_mb")}
    peers = {name: r["ms"] for name, r in results.items() if name != OURS and "ms" in r}
    best = min(peers, key=peers.__getitem__) if peers else None
    ratio = peers[best] / results[OURS]["ms"] if best else None
    return {"task": task, "workload": workload, "results": results, "best_peer": best, "ratio": ratio}


def print_row(row: dict[str, Any]) -> None:
    cells = "  ".join(f"{name} {r['ms']:.2f}" if "ms" in r else f"{name} failed" for name, r in row["results"].items())
    ratio = f"{row['ratio']:.2f} x {row['best_peer']}" if row["ratio"] else "no peer"
    print(f"{row['task']:<8}{row['workload']:<11} {ratio:<24} {cells}", flush=True)


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """The results as Markdown: milliseconds, and how much the best peer takes for each of ours."""
    lines = [
        "| task | array (float32) | " + " | ".join(names) + " | best peer / ours |",
        "|---|---|" + "--:|" * (len(names) + 1),
    ]
    for row in rows:
        unit, factor = ("one element, µs", 1e3) if row["task"] == "element" else (f"{row['task']}, ms", 1)
        cells = []
        for name in names:
            result = row["results"].get(name, {})
            cells.append(f"{result['ms'] * factor:,.0f}" if "ms" in result else "–")
        ratio = f"{row['ratio']:.2f} ({row['best_peer']})" if row["ratio"] else "–"
        lines.append(f"| {unit} | {WORKLOADS[row['workload']].title} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def resources(rows: list[dict[str, Any]], names: list[str]) -> str:
    """CPU time and memory growth as Markdown."""
    lines = ["| task | array | " + " | ".join(names) + " |", "|---|---|" + "--:|" * len(names)]
    for row in rows:
        if row["task"] == "element":
            continue
        cells = []
        for name in names:
            r = row["results"].get(name, {})
            cells.append(f"{r['cpu_ms']:,.0f} / {r['peak_mb']:,.0f}" if "ms" in r else "–")
        lines.append(f"| {row['task']} | {WORKLOADS[row['workload']].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], names: list[str], target: Path) -> None:
    """A bar per engine and row: time relative to ours, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if "ms" in row["results"][OURS]]
    figure, axes = plt.subplots(figsize=(10, 0.62 * len(shown) + 1.6), layout="constrained")
    height = 0.84 / len(names)
    colours = dict(zip(names, ["#1b4965", "#f4a259", "#f7c59f", "#bc4b51", "#8cb369", "#5b8e7d"], strict=False))
    for place, name in enumerate(names):
        pairs = [(i, row["results"].get(name, {})) for i, row in enumerate(shown)]
        points = [(i, r["ms"] / shown[i]["results"][OURS]["ms"]) for i, r in pairs if "ms" in r]
        where = [i + (place - (len(names) - 1) / 2) * height for i, _ in points]
        axes.barh(where, [v for _, v in points], height=height, color=colours[name], label=name)
    axes.axvline(1, color="#1b4965", lw=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(shown)), [f"{row['task']} {row['workload']}" for row in shown])
    axes.invert_yaxis()
    axes.set_xlabel("time relative to zarrasync (less is better)")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def machine() -> str:
    """What this runs on."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), model
        )
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, Python {platform.python_version()}, NumPy {np.__version__}"


def page(rows: list[dict[str, Any]], versions: dict[str, str], rounds: int) -> str:
    """docs/performance.md."""
    names = list(versions)
    listed = ", ".join(f"{name} {versions[name]}" for name in names)
    return f"""# Performance

Generated by `make bench` on {datetime.now(UTC):%Y-%m-%d}: {machine()}. {listed}.

Whole arrays of float32 on a RAM disk. Each engine runs in a process of its own; {rounds} rounds are interleaved and the
median counts. The last column is the best peer's time divided by ours: above 1 we are faster.

{table(rows, names)}

CPU milliseconds / growth of peak memory in MB over what was in use before the call:

{resources(rows, names)}

Arrays of many tiny chunks are where an interpreter's cost per chunk shows: per chunk we spend some microseconds on
opening and closing a file, calling the codec and placing the values, which the compiled engines do not.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), help="workloads to run")
    parser.add_argument("--engines", nargs="*", choices=list(engines.ENGINES), help="engines to run")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md")
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
    print(machine())
    print(", ".join(f"{name} {number}" for name, number in versions.items()), flush=True)
    warm_memory()
    with tempfile.TemporaryDirectory(dir=base, prefix="zarrasync-bench-") as root:
        rows = run(workers, given.only or list(WORKLOADS), given.rounds, Path(root))
    for worker in workers:
        worker.close()
    text = page(rows, versions, given.rounds)
    (given.out / "results.json").write_text(
        json.dumps({"machine": machine(), "versions": versions, "rounds": given.rounds, "rows": rows}, indent=1)
    )
    plot(rows, list(versions), given.out / "results.png")
    if given.write_docs:
        (HERE.parent / "docs" / "performance.md").write_text(text)
    print()
    print(text)


if __name__ == "__main__":
    main()
