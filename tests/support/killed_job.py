"""A process that ingests files with one of several engines. Tests kill it: ``python -m tests.support.killed_job JSON``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from zarrasync import sync
from zarrasync.errors import NodeNotFoundError


def run_tasks(files: list[str], store: str, plan: str, options: dict[str, Any]) -> None:
    """Make a plan or continue one, run its tasks one by one, and finish it."""
    credentials = {"storage_options": options["storage_options"]} if "storage_options" in options else {}
    try:
        planned = sync.open_plan(plan, **credentials)
    except NodeNotFoundError:
        planned = sync.plan_ingest(files, store, concat="time", append=True, plan=plan, tasks=4, **options)
    for task in planned.tasks:
        planned.run(task.number, **credentials)
    planned.finish(**credentials)


def engine_of(name: str, stack: ExitStack) -> Any:
    """Return the executor with a name."""
    if name == "dask":
        from dask.distributed import Client, LocalCluster

        cluster = LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None)
        return stack.enter_context(Client(stack.enter_context(cluster)))
    if name == "ray":
        ray = importlib.import_module("ray")

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        stack.callback(ray.shutdown)
        return ray
    return 2


def main(arguments: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Run the job, and tell when it begins."""
    files, store, options = arguments["files"], arguments["store"], arguments["options"]
    with ExitStack() as stack:
        if arguments["engine"] == "tasks":
            tell("begin")
            run_tasks(files, store, arguments["plan"], options)
        else:
            executor = engine_of(arguments["engine"], stack)
            tell("begin")
            sync.ingest_files(files, store, concat="time", append=True, executor=executor, **options)
        tell("end")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), lambda word: print(word, flush=True))  # noqa: T201
