"""A cluster of dask or Ray that outlives the clients that tests kill: ``python -m tests.support.standing_cluster dask``.

It prints its address. For each line of its input, it kills a worker, and prints how many it has killed. It ends with its input.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

Cluster: TypeAlias = tuple[str, Callable[[], list[int]]]
"""The address of a cluster, and a function that returns the process ids of its workers."""


@contextmanager
def dask_cluster() -> Iterator[Cluster]:
    """Start a cluster of dask."""
    from dask.distributed import LocalCluster

    with LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:

        def workers() -> list[int]:
            nannies: Any = cluster.workers
            processes = [nanny.process for nanny in nannies.values() if nanny.process is not None]
            # Dask does not replace workers that end while they start, and a job waits forever if none is left.
            running = [process.pid for process in processes if process.status.name == "running"]
            return running if len(running) > 1 else []

        yield cluster.scheduler_address, workers


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """Start a cluster of Ray."""
    psutil, ray = importlib.import_module("psutil"), importlib.import_module("ray")
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)

    def workers() -> list[int]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and "Agent" not in title:  # a node ends with its agents
                    found.append(process.pid)
        return found

    yield context.address_info["address"], workers
    ray.shutdown()


def main(name: str) -> None:
    """Serve a cluster until the input ends."""
    with {"dask": dask_cluster, "ray": ray_cluster}[name]() as (address, workers):
        print(address, flush=True)  # noqa: T201
        for _ in sys.stdin:
            pids = workers()
            with suppress(ProcessLookupError):
                for pid in random.sample(pids, min(1, len(pids))):
                    os.kill(pid, signal.SIGKILL)
            print(min(1, len(pids)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
