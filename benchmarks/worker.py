"""One engine in a process of its own: takes commands on standard input, answers with measurements.

A command is a line of JSON: ``{"task": "read" | "write" | "element", "workload": …, "path": …}``.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import engines
from workloads import WORKLOADS

ELEMENTS = 200


def peak() -> int:
    """The process's peak resident memory in bytes since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> int:
    """Start a new peak; returns the memory in use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return peak()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(function: Any) -> dict[str, float]:
    """Time, CPU time and memory growth of a call."""
    before, used = reset_peak(), cpu()
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    found = {"ms": seconds * 1e3, "cpu_ms": (cpu() - used) * 1e3, "peak_mb": (peak() - before) / 1e6}
    del result
    return found


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
        command = json.loads(line)
        workload, path = WORKLOADS[command["workload"]], Path(command["path"])
        try:
            if command["task"] == "write":
                if command["workload"] not in data:
                    data.clear()
                    data[command["workload"]] = workload.data()
                values = data[command["workload"]]
                engines.fresh(path)
                answer = measure(lambda: engine.write(path, workload, values))  # called at once
            else:
                array = engine.open(path)
                if command["task"] == "read":
                    engine.element(array)  # the first access sets things up
                    answer = measure(lambda: engine.read(array))
                    if command.get("check"):
                        answer["sum"] = float(engine.read(array).sum(dtype="f8"))
                else:
                    times = []
                    for _ in range(ELEMENTS):
                        start = time.perf_counter()
                        engine.element(array)
                        times.append(time.perf_counter() - start)
                    answer = {"ms": sorted(times)[ELEMENTS // 2] * 1e3, "cpu_ms": 0.0, "peak_mb": 0.0}
        except Exception as error:  # a peer's failure is a row's result
            answer = {"failed": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
