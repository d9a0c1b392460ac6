"""Run simulations: ``python -m tests.simulation --seeds 1000``, or one again: ``python -m tests.simulation --seed 17``."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.scenarios import KERNEL, SCENARIOS, draw
from tests.simulation.shrink import shrink
from tests.simulation.world import run

__all__ = ["Summary", "main", "simulate"]

_BATCH = 200


@dataclass
class Summary:
    """What some simulations have shown.

    Attributes:
        seeds: How many there were, by scenario.
        failed: The seeds that failed, and why.
        cpu_seconds: The time they took.
    """

    seeds: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    def add(self, other: Summary) -> None:
        """Count other simulations, too."""
        self.seeds += other.seeds
        self.failed.update(other.failed)
        self.cpu_seconds += other.cpu_seconds

    def __str__(self) -> str:
        total = self.seeds.total()
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.seeds.items()))
        speed = total / self.cpu_seconds if self.cpu_seconds else 0.0
        return f"{total} seeds ({kinds}), {speed:.0f} a second and core, {len(self.failed)} failed"


def simulate(seeds: Iterable[int], only: str = "", *, kernel: str = "", stop: bool = False) -> Summary:
    """Run seeds one after the other.

    Args:
        seeds: The seeds.
        only: The scenario to run; by default the seed decides.
        kernel: One of ``KERNEL``; by default the seed decides.
        stop: Whether to stop at the first failure.
    """
    summary, begin = Summary(), time.process_time()
    for seed in seeds:
        plan = draw(seed, only, kernel)
        error = run(plan, SCENARIOS[plan.scenario]).error
        summary.seeds[plan.scenario] += 1
        if error is not None:
            summary.failed[seed] = f"{plan.scenario}: {type(error).__name__}: {error}"
            if stop:
                break
    gc.collect()
    summary.cpu_seconds = time.process_time() - begin
    return summary


def main() -> int:
    """Run what the command line asks for; 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one seed, make its plan smaller, and print what happened")
    parser.add_argument("--scenario", default="", choices=["", *SCENARIOS], help="only this scenario")
    parser.add_argument("--kernel", default="", choices=["", *KERNEL], help="whether the compiled kernel is on")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _explain(arguments.seed, arguments.scenario, arguments.kernel)
    summary = Summary()
    for part in _run_batches(arguments):
        summary.add(part)
        for seed, reason in part.failed.items():
            print(f"seed {seed}: {reason[:600]}", flush=True)
        if arguments.stop and summary.failed:
            break
    print(summary)
    if summary.failed:
        print(f"to run one again: python -m tests.simulation --seed {min(summary.failed)}")
    return 1 if summary.failed else 0


def _run_batches(arguments: argparse.Namespace) -> Iterator[Summary]:
    first, last = arguments.first, arguments.first + arguments.seeds
    batches = [range(start, min(start + _BATCH, last)) for start in range(first, last, _BATCH)]
    run_batch = partial(simulate, only=arguments.scenario, kernel=arguments.kernel, stop=arguments.stop)
    if arguments.processes == 1:
        yield from map(run_batch, batches)
        return
    with ProcessPoolExecutor(arguments.processes) as pool:
        jobs = [pool.submit(run_batch, batch) for batch in batches]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            for job in jobs:
                job.cancel()


def _explain(seed: int, only: str, kernel: str) -> int:
    plan = draw(seed, only, kernel)
    kind = SCENARIOS[plan.scenario]
    outcome = run(plan, kind, detailed=True)
    print(outcome if outcome.error is None else shrink(outcome, kind))
    return 0 if outcome.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
