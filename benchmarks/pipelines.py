"""Measures zarr-python with its own codec pipelines, with the pipeline of zarrs-python, and with ours.

    python benchmarks/pipelines.py [--rounds N] [--only WORKLOAD …] [--engines PIPELINE …] [--out DIRECTORY] [--write-docs]

Each pipeline runs in a separate process. Rounds are interleaved, and the median counts. The arrays are written by
zarrasync, on a RAM disk if there is one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import engines
import numpy as np
import report
from harness import EngineProcess, make_parser, markdown_table, medians, parse_publishable, ram_disk, save
from run import Job, collect, start_engines, warm_memory
from tasks import LATENCIES, TITLES
from workloads import WORKLOADS

OURS, FUSED = "zarrasync pipeline", "zarr-python fused"
TASKS: dict[str, tuple[str, ...]] = {
    "raw-4m": ("read", "write", "memory"),
    "zstd-4m": ("read", "write"),
    "blosc-lz4-1m": ("read", "write", "memory"),
    "gzip-1m": ("read", "write"),
    "v2-F-1m": ("read", "write"),
    "zstd-64k": ("read", "write", "points", "mask", "orthogonal", "strided", "threads", "async", "dask"),
    "blosc-lz4-tiny": ("read", "write", "element", "chunk"),
    "shards-128k": ("read", "write"),
    "shards-4k": ("read", "write", "boxes", "inner"),
    "shards-4k-zstd": ("read", "write", "boxes"),
    "shards-4k-raw": ("read", "write", "boxes"),
}


def run(workers: list[EngineProcess], chosen: list[str], rounds: int, root: Path) -> list[dict[str, Any]]:
    """Return a row of medians for each task and workload."""
    rows = []
    for workload in chosen:
        source, values = root / workload, root / f"{workload}.npy"
        np.save(values, WORKLOADS[workload].data())
        engines.Zarrasync().write(source, WORKLOADS[workload], np.load(values, mmap_mode="r"))
        for task in TASKS[workload]:
            results = collect(workers, Job(task, workload, source, values, root), rounds)
            times = {name: medians(runs, ("ms",)) for name, runs in results.items() if runs}
            rows.append({"task": task, "workload": workload, "results": times})
            print(f"{task:<11}{workload:<15}", {name: round(r["ms"], 2) for name, r in times.items() if "ms" in r})
        shutil.rmtree(source)
        values.unlink()
    return rows


def page(section: dict[str, Any]) -> str:
    """Return milliseconds, and how many times as fast as the fused pipeline ours is, as Markdown."""
    lines, names = [], list(section["versions"])
    for row in section["rows"]:
        small, results = row["task"] in LATENCIES, row["results"]
        title = TITLES[row["task"]] + (", µs" if small else "")
        times = {name: results[name]["ms"] for name in names if "ms" in results.get(name, {})}
        cells = [f"{times[name] * (1e3 if small else 1):,.0f}" if name in times else "–" for name in names]
        gain = f"{times[FUSED] / times[OURS]:.2f}" if {FUSED, OURS} <= set(times) else "–"
        lines.append([title, WORKLOADS[row["workload"]].title, *cells, gain])
    table = markdown_table(["task", "array (float32)", *names, "fused / ours"], lines, labels=2)
    return f"{report.measured(section)}\n\n{table}"


def main() -> None:
    parser = make_parser(__doc__, only=TASKS, engines=engines.PIPELINES, rounds=5)
    args = parse_publishable(parser)
    workers = start_engines(list(args.engines or engines.PIPELINES), all_needed=args.write_docs)
    versions = {worker.name: worker.hello["version"] for worker in workers}
    warm_memory()
    with ram_disk("pipelines") as root:
        rows = run(workers, list(args.only or TASKS), args.rounds, Path(root))
    for worker in workers:
        worker.kill()
    save(args, "pipelines", page, {"versions": versions, "rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
