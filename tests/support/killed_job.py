"""A process that adds files to a dataset with one of several engines. Tests kill it: ``python -m tests.support.killed_job JSON``.

Without an argument, the process reads the arguments of jobs from its input, and forks a process for each of them, which need
not import anything. It prints the number of the process, and at the end its exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from zarrasync import FileOptions, sync
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


def run_append(files: list[str], store: str, options: dict[str, Any]) -> None:
    """Append files as lazy arrays of dask, which a cluster computes if one is connected."""
    import xarray as xr

    from zarrasync.integrations.xarray import write_dataset

    parts = [xr.open_dataset(file, engine="h5netcdf", chunks={"time": 8, "x": 50}) for file in files]
    dataset = xr.concat(parts, "time").drop_encoding()
    write_dataset(dataset, store, append_dim="time", on_duplicate="skip", **options)


def engine_of(name: str, stack: ExitStack, address: str = "") -> Any:
    """Return the executor with a name, of the cluster at an address or of one in this process."""
    if name == "dask" and address:
        from dask.distributed import Client

        return stack.enter_context(Client(address))
    if name == "dask":
        from dask.distributed import Client, LocalCluster

        cluster = LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None)
        return stack.enter_context(Client(stack.enter_context(cluster)))
    if name == "ray":
        ray = importlib.import_module("ray")

        place: dict[str, Any] = {"address": address} if address else {"num_cpus": 2, "include_dashboard": False}
        ray.init(**place, log_to_driver=False, configure_logging=False)
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
            executor = engine_of(arguments["engine"], stack, arguments.get("address", ""))
            tell("begin")
            if arguments.get("job") == "append":
                run_append(files, store, options)
                tell("end")
                return
            if dims := arguments.get("dims"):
                options |= {"source": FileOptions(dims=dims), "progress": lambda nbytes: tell("progress")}
            sync.ingest_files(files, store, concat="time", append=True, executor=executor, **options)
        tell("end")


def tell(word: object) -> None:
    """Print a word for the test at once."""
    print(word, flush=True)  # noqa: T201


def serve() -> None:
    """Fork a process for each job of the input."""
    for line in sys.stdin:
        arguments = json.loads(line)
        for name in ("distributed", "h5netcdf", "xarray", "zarrasync.integrations.xarray"):
            if arguments["engine"] == "dask":
                importlib.import_module(name)
        if pid := os.fork():
            tell(f"exit {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
            continue
        code = 1
        try:
            tell(os.getpid())
            main(arguments, tell)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), tell) if sys.argv[1:] else serve()
