"""Reports of measurements: rows on the terminal, tables in Markdown, and a plot."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from harness import markdown_table
from tasks import LATENCIES, TITLES
from workloads import PUBLISHED, WORKLOADS

OURS, PURE, FLOOR = "zarrasync", "zarrasync without kernel", "floor"
NO_PEERS = (OURS, PURE, FLOOR)


def print_row(row: dict[str, Any]) -> None:
    cells = "  ".join(f"{name} {r['ms']:.2f}" if "ms" in r else f"{name} –" for name, r in row["results"].items())
    ratio = f"{row['ratio']:.2f} x {row['best_peer']}" if row["ratio"] else "no peer"
    print(f"{row['task']:<12}{row['workload']:<15} {ratio:<24} {cells}", flush=True)


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return milliseconds, and the ratios of the best peer and the floor to zarrasync, as Markdown."""
    lines = []
    for row in rows:
        small = row["task"] in LATENCIES
        title = TITLES[row["task"]] + (", µs" if small else "")
        cells = []
        for name in names:
            result = row["results"].get(name, {})
            cells.append(f"{result['ms'] * (1e3 if small else 1):,.0f}" if "ms" in result else "–")
        ratio = f"{row['ratio']:.2f} ({row['best_peer']})" if row["ratio"] else "–"
        floor = f"{row['floor_ratio']:.2f}" if row["floor_ratio"] else "–"
        lines.append([title, WORKLOADS[row["workload"]].title, *cells, ratio, floor])
    return markdown_table(["task", "array", *names, "best peer / ours", "floor / ours"], lines, labels=2)


def resources(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return CPU time and memory growth as Markdown."""
    lines = []
    for row in rows:
        if row["task"] in LATENCIES:
            continue
        cells = []
        for name in names:
            r = row["results"].get(name, {})
            cells.append(f"{r['cpu_ms']:,.0f} / {max(r['peak_mb'], 0):,.0f}" if "ms" in r else "–")
        lines.append([TITLES[row["task"]], WORKLOADS[row["workload"]].title, *cells])
    return markdown_table(["task", "array", *names], lines, labels=2)


def kinds(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of whole reads and writes by the size of chunks, and of the published cases by task."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for task in ("read", "write"):
        for size, is_tiny in (("64 KiB and more", False), ("less", True)):
            matches = [
                row
                for row in rows
                if row["task"] == task and row["workload"] not in PUBLISHED and _is_tiny(row) is is_tiny
            ]
            if matches:
                kinds[f"{task}, chunks of {size}"] = matches
    for task in next(iter(PUBLISHED.values())).tasks:
        matches = [row for row in rows if row["task"] == task and row["workload"] in PUBLISHED]
        if matches:
            kinds[f"published cases, {TITLES[task]}"] = matches
    return kinds


def summary(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return geometric means over rows of one kind, and over those that all libraries support."""
    best, floor = "best peer / ours, geometric mean (least)", "floor / ours, geometric mean (least)"
    lines = []
    for kind, subset in kinds(rows).items():
        able = [row for row in subset if all("ms" in row["results"].get(name, {}) for name in names)]
        common = [row["ratio"] for row in able if row["ratio"]]
        ratios = [row["ratio"] for row in subset if row["ratio"]]
        floors = [row["floor_ratio"] for row in subset if row["floor_ratio"]]
        lines.append(
            [
                kind,
                str(len(subset)),
                _mean_and_least(ratios),
                f"{_mean_and_least(common)} of {len(common)}",
                _mean_and_least(floors),
            ]
        )
    return markdown_table(["rows", "number", best, "the same, rows that all libraries can do", floor], lines)


def by_peer(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return geometric means of each peer's time over zarrasync's, and the number of rows that it supports."""
    peers = [name for name in names if name not in (OURS, FLOOR)]
    lines = []
    for kind, subset in kinds(rows).items():
        ratios = [ratios_of(subset, peer) for peer in peers]
        cells = [f"{mean(found):.2f} of {len(found)}" if found else "–" for found in ratios]
        lines.append([kind, *cells])
    return markdown_table(["rows", *peers], lines)


def ratios_of(rows: list[dict[str, Any]], peer: str) -> list[float]:
    """Return a library's time over zarrasync's in the rows that both can do."""
    results = [(row["results"].get(peer, {}), row["results"].get(OURS, {})) for row in rows]
    return [theirs["ms"] / ours["ms"] for theirs, ours in results if "ms" in theirs and "ms" in ours]


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _is_tiny(row: dict[str, Any]) -> bool:
    return WORKLOADS[row["workload"]].chunk_nbytes < 1 << 16


def _mean_and_least(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.2f} ({min(values):.2f})"


def plot(rows: list[dict[str, Any]], names: list[str], target: Path) -> None:
    """Plot a bar per engine and row: time relative to zarrasync, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if "ms" in row["results"][OURS]]
    figure, axes = plt.subplots(figsize=(10, 0.62 * len(shown) + 1.6), layout="constrained")
    height = 0.84 / len(names)
    palette = ["#1b4965", "#f4a259", "#f7c59f", "#bc4b51", "#8cb369", "#5b8e7d", "#9a8fb8", "#b8b8b8"]
    for number, (name, colour) in enumerate(zip(names, palette, strict=False)):
        pairs = [(i, row["results"].get(name, {})) for i, row in enumerate(shown)]
        points = [(i, r["ms"] / shown[i]["results"][OURS]["ms"]) for i, r in pairs if "ms" in r]
        positions = [i + (number - (len(names) - 1) / 2) * height for i, _ in points]
        axes.barh(positions, [v for _, v in points], height=height, color=colour, label=name)
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


def measured(section: dict[str, Any]) -> str:
    """Return a sentence about the date, the machine and the versions of a measurement."""
    listed = ", ".join(f"{name} {number}" for name, number in section["versions"].items() if name not in (PURE, FLOOR))
    medians = f" Medians of {section['rounds']} interleaved rounds." if "rounds" in section else ""
    note = f" {section['note']}" if "note" in section else ""
    return f"Measured on {section['date']}: {section['machine']}. {listed}.{medians}{note}"


def page(section: dict[str, Any], shown: Mapping[str, Collection[str]] | None = None) -> str:
    """Return the results of local files as Markdown.

    Args:
        section: The rows, which the geometric means are computed from, and versions and times of imports.
        shown: The tasks in the tables by workload; by default all.
    """
    rows, names, times = section["rows"], list(section["versions"]), section["import_ms"]
    chosen = [row for row in rows if shown is None or row["task"] in shown.get(row["workload"], ())]
    published = [row for row in chosen if row["workload"] in PUBLISHED]
    general = [row for row in chosen if row["workload"] not in PUBLISHED]
    parts = [
        measured(section),
        summary(rows, names),
        "Time of each library / ours, as a geometric mean and the number of rows that the library can do:",
        by_peer(rows, names),
    ]
    if general:
        note = (
            "Milliseconds, unless the task names another unit. Values are float32, unless the array names another type:"
        )
        parts += [note, table(general, names)]
    if published:
        parts += ["Milliseconds of the cases that are published as `zarr_benchmarks`:", table(published, names)]
    parts += ["CPU milliseconds / growth of the peak memory during the call in MB:", resources(chosen, names)]
    if times:
        listed = ", ".join(f"`{name}` {ms:.0f}" for name, ms in times.items())
        parts.append(f"Milliseconds to start Python and import a package: {listed}.")
    return "\n\n".join(parts)
