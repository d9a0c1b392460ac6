"""Commands that are not part of the command line: jobs on a cluster of dask, the cluster, and a reader."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

__all__ = ["cluster", "fsspec_options", "ingest_with_dask", "latest_session", "read"]

_ICECHUNK = "|icechunk:"


def ingest_with_dask(words: list[str]) -> int:
    """Ingest files on a cluster of dask: its address, the destination, and the arguments of ``ingest`` as JSON."""
    from distributed import Client

    from zarrasync import sync

    address, dest, arguments = words
    with Client(address, timeout="60s") as client:
        print(sync.ingest(store=dest, executor=client, **json.loads(arguments)))  # noqa: T201  # the output of a command
    return 0


def cluster(words: list[str]) -> int:
    """Run a cluster of dask with two worker processes until it is killed. Write its address into a file."""
    import os

    import dask.config
    from distributed import LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 10, "distributed.comm.timeouts.connect": "10s"})
    # By default, a cluster gives up a worker that is absent 15 s after it was killed, even if it was back in between.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"})
    options: dict[str, Any] = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    running: Any
    with LocalCluster(n_workers=2, **options) as running:
        with open(f"{words[0]}.partial", "w") as file:
            file.write(running.scheduler_address)
        os.replace(f"{words[0]}.partial", words[0])
        while True:
            time.sleep(60)


def read(words: list[str]) -> int:
    """Read a dataset again and again until a file appears; 1 if variables ever had different lengths."""
    import os

    dest, stop, options = words[0], words[1], json.loads(words[2])
    last, reads = 0, 0
    while not os.path.exists(stop):
        for lengths in (_lengths_of_zarr_python(dest, options), _lengths_of_zarrasync(dest, options)):
            if lengths is None:
                continue
            if len(set(lengths.values())) != 1 or (length := lengths["t2m"]) < last:
                print(f"variables have the lengths {lengths} after {last}", file=sys.stderr)  # noqa: T201  # the output of a command
                return 1
            last, reads = length, reads + 1
        time.sleep(0.05)
    print(f"{reads} reads, {last} rows")  # noqa: T201  # the output of a command
    return 0


def _lengths_of_zarr_python(dest: str, options: dict[str, Any]) -> dict[str, int] | None:
    import zarr

    try:
        if dest.endswith(_ICECHUNK):
            session = latest_session(dest.removesuffix(_ICECHUNK))
            group = zarr.open_group(session.store, mode="r")
        else:
            group = zarr.open_group(dest, mode="r", storage_options=fsspec_options(options))
    except FileNotFoundError:
        return None
    return _check_values(group["time"], group["t2m"])


def _lengths_of_zarrasync(dest: str, options: dict[str, Any]) -> dict[str, int] | None:
    from zarrasync import sync
    from zarrasync.errors import NodeNotFoundError

    try:
        if dest.endswith(_ICECHUNK):
            latest_session(dest.removesuffix(_ICECHUNK))
        group = sync.open_group(dest, storage_options=options or None)
    except (NodeNotFoundError, FileNotFoundError):
        return None
    return _check_values(group["time"], group["t2m"])


def latest_session(folder: str) -> Any:
    """Return a session of icechunk that reads the branch ``main``.

    Raises:
        FileNotFoundError: If the repository does not exist.
    """
    import icechunk

    storage = icechunk.local_filesystem_storage(folder)
    if not icechunk.Repository.exists(storage):
        raise FileNotFoundError(folder)
    return icechunk.Repository.open(storage).readonly_session("main")


def _check_values(times: Any, values: Any) -> dict[str, int]:
    """Return the lengths of the variables. Their last rows must contain values."""
    import numpy as np

    steps = np.diff(times[:])
    if len(steps) and not (steps == steps[0]).all():
        raise AssertionError(f"times are not in order: {times[:]}")
    if (values[-5:] == -32768).any():
        raise AssertionError(f"rows without values are visible: {values.shape}")
    return {"time": times.shape[0], "t2m": values.shape[0]}


def fsspec_options(options: dict[str, Any]) -> dict[str, Any] | None:
    """Return storage options in the form of s3fs."""
    if not options:
        return None
    return {
        "key": options["key"],
        "secret": options["secret"],
        "client_kwargs": {"endpoint_url": options["endpoint_url"]},
    }
