"""What the measurements look like: a row on the terminal, tables in Markdown, a plot."""

from __future__ import annotations

import math
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from tasks import LATENCIES, TITLES
from workloads import WORKLOADS

OURS, FLOOR = "zarrasync", "floor"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def print_row(row: dict[str, Any]) -> None:
    cells = "  ".join(f"{name} {r['ms']:.2f}" if "ms" in r else f"{name} –" for name, r in row["results"].items())
    ratio = f"{row['ratio']:.2f} x {row['best_peer']}" if row["ratio"] else "no peer"
    print(f"{row['task']:<11}{row['workload']:<15} {ratio:<24} {cells}", flush=True)


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """The results as Markdown: milliseconds, and how much the best peer and the floor take for each of ours."""
    lines = [
        "| task | array (float32) | " + " | ".join(names) + " | best peer / ours | floor / ours |",
        "|---|---|" + "--:|" * (len(names) + 2),
    ]
    for row in rows:
        small = row["task"] in LATENCIES
        title = TITLES[row["task"]] + (", µs" if small else "")
        cells = []
        for name in names:
            result = row["results"].get(name, {})
            cells.append(f"{result['ms'] * (1e3 if small else 1):,.0f}" if "ms" in result else "–")
        ratio = f"{row['ratio']:.2f} ({row['best_peer']})" if row["ratio"] else "–"
        floor = f"{row['floor_ratio']:.2f}" if row["floor_ratio"] else "–"
        cells += [ratio, floor]
        lines.append(f"| {title} | {WORKLOADS[row['workload']].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def resources(rows: list[dict[str, Any]], names: list[str]) -> str:
    """CPU time and memory growth as Markdown."""
    lines = ["| task | array | " + " | ".join(names) + " |", "|---|---|" + "--:|" * len(names)]
    for row in rows:
        if row["task"] in LATENCIES:
            continue
        cells = []
        for name in names:
            r = row["results"].get(name, {})
            cells.append(f"{r['cpu_ms']:,.0f} / {max(r['peak_mb'], 0):,.0f}" if "ms" in r else "–")
        lines.append(f"| {TITLES[row['task']]} | {WORKLOADS[row['workload']].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _kinds(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Whole reads and writes, by the size of chunks."""
    found: dict[str, list[dict[str, Any]]] = {}
    for task in ("read", "write"):
        for what, wanted in (("64 KiB and more", False), ("less", True)):
            own = [row for row in rows if row["task"] == task and _tiny(row) is wanted]
            if own:
                found[f"{task}, chunks of {what}"] = own
    return found


def summary(rows: list[dict[str, Any]]) -> str:
    """Geometric means over rows of one kind, and over those of them that every library can do."""
    best, floor = "best peer / ours, geometric mean (least)", "floor / ours, geometric mean (least)"
    lines = [
        f"| rows | number | {best} | the same, rows that all libraries can do | {floor} |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind, own in _kinds(rows).items():
        common = [row["ratio"] for row in own if all("ms" in result for result in row["results"].values())]
        ratios = [row["ratio"] for row in own if row["ratio"]]
        floors = [row["floor_ratio"] for row in own if row["floor_ratio"]]
        lines.append(f"| {kind} | {len(own)} | {_mean(ratios)} | {_mean(common)} of {len(common)} | {_mean(floors)} |")
    return "\n".join(lines)


def by_peer(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Geometric means of a peer's time over ours, and of how many rows: not every peer can do all."""
    peers = [name for name in names if name not in (OURS, FLOOR)]
    lines = ["| rows | " + " | ".join(peers) + " |", "|---|" + "--:|" * len(peers)]
    for kind, own in _kinds(rows).items():
        cells = []
        for peer in peers:
            results = [(row["results"].get(peer, {}), row["results"][OURS]) for row in own]
            ratios = [r["ms"] / ours["ms"] for r, ours in results if "ms" in r and "ms" in ours]
            cells.append(f"{_mean(ratios).partition(' ')[0]} of {len(ratios)}" if ratios else "–")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _tiny(row: dict[str, Any]) -> bool:
    return bool(np.prod(WORKLOADS[row["workload"]].chunks) * 4 < 1 << 16)


def _mean(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{math.exp(sum(map(math.log, values)) / len(values)):.2f} ({min(values):.2f})"


def plot(rows: list[dict[str, Any]], names: list[str], target: Path) -> None:
    """A bar per engine and row: time relative to ours, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if "ms" in row["results"][OURS]]
    figure, axes = plt.subplots(figsize=(10, 0.62 * len(shown) + 1.6), layout="constrained")
    height = 0.84 / len(names)
    palette = ["#1b4965", "#f4a259", "#f7c59f", "#bc4b51", "#8cb369", "#5b8e7d", "#b8b8b8"]
    for place, (name, colour) in enumerate(zip(names, palette, strict=False)):
        pairs = [(i, row["results"].get(name, {})) for i, row in enumerate(shown)]
        points = [(i, r["ms"] / shown[i]["results"][OURS]["ms"]) for i, r in pairs if "ms" in r]
        where = [i + (place - (len(names) - 1) / 2) * height for i, _ in points]
        axes.barh(where, [v for _, v in points], height=height, color=colour, label=name)
    axes.axvline(1, color="#1b4965", lw=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(shown)), [f"{row['task']} {row['workload']}" for row in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("time relative to zarrasync (less is better)")
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def machine() -> str:
    """What this runs on."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, {versions}"


def page(
    rows: list[dict[str, Any]],
    times: dict[str, float],
    versions: dict[str, str],
    rounds: int,
    shown: dict[str, tuple[str, ...]] | None = None,
) -> str:
    """What was measured, as Markdown.

    Args:
        rows: All of it; what the geometric means are of.
        times: What importing packages takes.
        versions: Of the engines.
        rounds: How many there were.
        shown: The workloads and tasks that the tables are for; all if none are given.
    """
    names = list(versions)
    chosen = [row for row in rows if shown is None or row["task"] in shown.get(row["workload"], ())]
    listed = ", ".join(f"{name} {number}" for name, number in versions.items() if name != FLOOR)
    parts = [
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {machine()}. {listed}. Medians of {rounds} interleaved rounds.",
        summary(rows),
        "Time of each library / ours, as a geometric mean and the number of rows that the library can do:",
        by_peer(rows, names),
        "Milliseconds, unless the task names another unit:",
        table(chosen, names),
        "CPU milliseconds / growth of the peak memory during the call in MB:",
        resources(chosen, names),
    ]
    if times:
        listed = ", ".join(f"`{name}` {ms:.0f}" for name, ms in times.items())
        parts.append(f"Milliseconds to start Python and import a package: {listed}.")
    return "\n\n".join(parts) + "\n"


def write_docs(path: Path, text: str) -> None:
    """Put the measured part between its marks."""
    old = path.read_text()
    head, rest = old.split(BEGIN)
    path.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}")
