"""The process of one engine: reads commands from standard input, and prints measurements.

A command is a line of JSON: ``{"task": …, "workload": …, "source": …, "target": …, "values": …, "check": …}``. ``source``
is an array, ``target`` the place for another one, and ``values`` a file with the values to write there.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
from tasks import COLD, LATENCIES, TASKS, WRITES, forget_files
from workloads import WORKLOADS, Workload

CALLS = 200


def peak() -> int:
    """Return the peak of resident memory in bytes since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> int:
    """Reset the peak, and return the memory in use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return peak()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(function: Any) -> tuple[dict[str, float], Any]:
    """Return time, CPU time and memory growth of a call, and its result."""
    before, used = reset_peak(), cpu()
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    return {"ms": seconds * 1e3, "cpu_ms": (cpu() - used) * 1e3, "peak_mb": (peak() - before) / 1e6}, result


def latency(function: Any) -> dict[str, float]:
    """Return the median time of many calls."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return {"ms": sorted(times)[CALLS // 2] * 1e3, "cpu_ms": 0.0, "peak_mb": 0.0}


def total(result: Any) -> float | None:
    """Return the sum of values, by which engines are compared."""
    if result is None or not isinstance(result, np.ndarray | np.generic | list):
        return None
    parts: list[Any] = result if isinstance(result, list) else [result]
    return float(sum(np.asarray(part).sum(dtype="f8") for part in parts))


def writer(
    engine: engines.Engine, task: str, workload: Workload, command: dict[str, Any], data: dict[str, Any]
) -> Callable[[], None]:
    """Return the call that writes an array. ``data`` keeps the values of the last workload."""
    target = engines.fresh(Path(command["target"]))
    if task == "trip":
        return lambda: engine.round_trip(Path(command["source"]), target, workload)
    if command["workload"] not in data:
        data.clear()
        data[command["workload"]] = np.load(command["values"])
    values = data[command["workload"]]
    return lambda: engine.write(target, workload, values)


def run(engine: engines.Engine, command: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Run a command, and return its measurements."""
    task, workload, source = command["task"], WORKLOADS[command["workload"]], Path(command["source"])
    kind = task.removesuffix(COLD)
    if kind in LATENCIES:
        call = LATENCIES[kind](engine, source, workload)
        first = call()
        results = latency(call)
    else:
        call = (
            writer(engine, kind, workload, command, data) if kind in WRITES else TASKS[kind](engine, source, workload)
        )
        if kind != task:
            forget_files(source)
        results, first = measure(call)
    if kind == "trip" and command.get("check"):
        target = engine.open(Path(command["target"]), workload)
        first = engine.get(target, workload.whole)
    if command.get("check") and (value := total(first)) is not None:
        results["sum"] = value
    return results


def main() -> None:
    name = sys.argv[1]
    try:
        engine = engines.make(name)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({"version": engine.version}), flush=True)
    data: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            results = run(engine, json.loads(line), data)
        except Exception as error:  # failures of peers are reported
            results = {"failed": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
