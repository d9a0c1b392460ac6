"""Jobs of all engines that are killed at random moments while readers look on: all processes, clients of clusters, or workers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bulk.jobs.test_readers import DAYS, HOURS, reader, write_day
from zarrasync import FileOptions, Layout, sync

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform == "win32", reason="kills groups of processes")]
PACKAGES = {"dask": ("distributed",), "ray": ("ray",), "icechunk": ("icechunk", "2")}
PLACES = ("local", "s3", "icechunk")
FEW = [(engine, "local", 2, 0) for engine in ("processes", "tasks")]
MANY = [(name, place, 6, part) for name in ("processes", "dask", "tasks") for place in PLACES for part in range(1, 7)]
MANY += [("ray", place, 6, 1) for place in PLACES]
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled"}  # otherwise each client of Ray needs a token


def open_place(name: str, tmp_path: Path, request: pytest.FixtureRequest, number: int) -> tuple[str, dict[str, Any]]:
    """Return the URL of a destination, and the options with which it is opened."""
    if name == "s3":
        url, options = request.getfixturevalue("s3")
        return f"{url}/{number}", {"storage_options": options}
    if name == "icechunk":
        return f"{tmp_path / f'repo{number}'}|icechunk:", {}
    return str(tmp_path / f"out{number}.zarr"), {}


def run(arguments: dict[str, Any], seconds: float | None) -> float | None:
    """Run a job, and kill it some seconds after it began. Return its duration, or ``None`` if it was killed."""
    command = [sys.executable, "-m", "tests.support.killed_job", json.dumps(arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, env=ENVIRONMENT, **pipes) as process:

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(3600 if seconds is None else seconds, kill)
        assert process.stdout is not None
        words = [process.stdout.readline().strip()]
        begin = time.monotonic()
        timer.start()
        rest, errors = process.communicate()
        timer.cancel()
        kill()  # processes that its death has left
        words += rest.split()
    duration = time.monotonic() - begin
    if words == ["begin", "end"]:
        return duration
    assert process.returncode == -signal.SIGKILL, errors
    return None


@contextmanager
def watched(store: str, options: dict[str, Any], *, is_visible: bool) -> Iterator[list[int]]:
    """Read a dataset in a loop while the block runs, and yield the numbers of rows.

    Args:
        store: The URL of the dataset.
        options: The options with which it is opened.
        is_visible: Whether readers may see rows whose values are still missing.
    """

    def read() -> int:
        group: Any = sync.open_group(store, **options)
        rows, values = group["time"].shape[0], group["t"][...]
        assert rows <= len(values) or is_visible
        values = values[:rows]
        expected = np.broadcast_to(np.arange(len(values))[:, None], (len(values), 50))
        np.testing.assert_array_equal(values, np.where(np.isnan(values), np.nan, expected) if is_visible else expected)
        time.sleep(0.01)
        return rows

    def check(rows: int) -> None:
        assert rows in (HOURS, DAYS * HOURS)

    with reader(read, check) as seen:
        yield seen
    values = sync.open_group(store, **options)["t"][...]
    np.testing.assert_array_equal(values, np.broadcast_to(np.arange(DAYS * HOURS)[:, None], (DAYS * HOURS, 50)))
    assert seen[-1] == DAYS * HOURS


@pytest.mark.parametrize(
    ("engine", "place", "kills", "part"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY)],
    ids=str,
)
def test_kills(tmp_path: Path, request: pytest.FixtureRequest, engine: str, place: str, kills: int, part: int):
    """Readers find whole days in order at any time, and a job that is repeated completes the archive."""
    skip_without(engine, place)
    draw, killed, number = random.Random(f"{engine} {place} {part}"), 0, 0
    typical: float | None = None
    while killed < kills:
        arguments = new_archive(engine, place, tmp_path, request, number)
        with watched(arguments["store"], arguments["options"], is_visible=False):
            if typical is None:
                typical = run(arguments, None)
                assert typical is not None
            else:
                while run(arguments, draw.uniform(0, typical)) is None:
                    killed += 1
        number += 1


def skip_without(*names: str) -> None:
    """Skip a test without the packages of an engine and a place."""
    for name in names:
        if name in PACKAGES:
            pytest.importorskip(*PACKAGES[name])


def new_archive(engine: str, place: str, tmp_path: Path, request: pytest.FixtureRequest, number: int) -> dict[str, Any]:
    """Make an archive of one day, and return the arguments of a job that adds the other days."""
    files = [write_day(tmp_path / f"nc{number}", day) for day in range(DAYS)]  # workers may still read earlier ones
    store, options = open_place(place, tmp_path, request, number)
    sync.ingest_files(files[0], store, concat="time", layout=Layout(chunks={"time": 10, "x": 20}), **options)
    return {
        "engine": engine,
        "files": [str(file) for file in files[1:]],
        "store": store,
        "plan": str(tmp_path / f"plan{number}.json"),
        "options": options,
    }


# ------------------------------------------------------------------ clusters that survive


@contextmanager
def helper(*arguments: str) -> Iterator[tuple[Callable[[str], None], Callable[[], str]]]:
    """Start a module of ``tests.support`` with arguments. Yield functions that write and read a line."""
    command = [sys.executable, "-m", f"tests.support.{arguments[0]}", *arguments[1:]]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, env=ENVIRONMENT, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        try:
            yield lambda line: print(line, file=stdin, flush=True), lambda: stdout.readline().strip()
            stdin.close()
            process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Cluster:
    """A cluster, and a process that forks its clients.

    Attributes:
        tell_cluster: Writes a line to the cluster.
        ask_cluster: Reads one.
        tell_jobs: Writes a line to the process that forks clients.
        ask_jobs: Reads one.
        killed: The number of processes that were killed.
    """

    tell_cluster: Callable[[str], None]
    ask_cluster: Callable[[], str]
    tell_jobs: Callable[[str], None]
    ask_jobs: Callable[[], str]
    killed: int = 0

    def run(self, arguments: dict[str, Any], seconds: float | None = None, victim: str = "") -> float | None:
        """Run a job, and kill its client or a worker some seconds after it began.

        Returns:
            Its duration, or ``None`` if it was killed.
        """
        self.tell_jobs(json.dumps(arguments))
        pid = int(self.ask_jobs())
        assert (line := self.ask_jobs()) == "begin", line
        begin, timer = time.monotonic(), threading.Timer(seconds or 0.0, self._kill, [pid, victim])
        if seconds is not None:
            timer.start()
        words = []
        while not (line := self.ask_jobs()).startswith("exit"):
            words.append(line)  # with messages of Ray about workers that ended
        duration = time.monotonic() - begin
        if seconds is not None:
            timer.cancel()
            timer.join()
        assert line in ("exit 0", f"exit {-signal.SIGKILL}"), words
        return duration if line == "exit 0" else None

    def _kill(self, pid: int, victim: str) -> None:
        if victim == "worker":
            self.tell_cluster("kill")
            self.killed += int(self.ask_cluster())
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def test_tasks_of_killed_clients_count(tmp_path: Path, s3: tuple[str, dict[str, Any]]):
    """Tasks that the workers of a cluster have finished before its client is killed do not run again."""
    distributed = pytest.importorskip("distributed")
    (url, options), width = s3, 6_000_000
    files, step = [str(tmp_path / f"{day}.npy") for day in range(4)], width // 4
    for day, file in enumerate(files):  # each one is a task
        np.lib.format.open_memmap(file, "w+", "f4", (6, width))[:, ::step] = day
    layout, source = Layout(chunks={"time": 6, "x": width}), FileOptions(dims=("time", "x"))
    sync.ingest_files(files[0], url, concat="time", layout=layout, source=source, storage_options=options)
    with helper("standing_cluster", "dask") as (_, ask):
        arguments: dict[str, Any] = {"engine": "dask", "address": ask(), "files": files, "store": url}
        arguments |= {"dims": source.dims, "options": {"storage_options": options}}
        command = [sys.executable, "-m", "tests.support.killed_job", json.dumps(arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            told = [client.stdout.readline().strip() for _ in range(3)]
            client.kill()
        assert told == ["begin", "progress", "progress"]  # first of tasks that were finished before, which are none
        with distributed.Client(arguments["address"]) as executor:
            report = sync.ingest_files(
                files, url, concat="time", append=True, source=source, executor=executor, storage_options=options
            )
    assert report.skipped >= 1
    assert report.skipped + report.tasks == 3
    stored = sync.open_group(url, storage_options=options)["values"][:, ::step]
    np.testing.assert_array_equal(stored, np.broadcast_to(np.repeat(np.arange(4), 6)[:, None], (24, 4)))


CLUSTERS = [
    (engine, job, place, victim, 6, part)
    for engine, parts in (("dask", 3), ("ray", 1))
    for job in ("ingest", "append")
    for place in PLACES
    for victim in ("client", "worker")
    for part in range(1, parts + 1)
    if job == "ingest" or (engine == "dask" and place != "icechunk")
]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "job", "place", "victim", "kills", "part"), CLUSTERS, ids=str)
def test_kills_beside_a_cluster(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    engine: str,
    job: str,
    place: str,
    victim: str,
    kills: int,
    part: int,
):
    """The workers of a killed client may continue for a while, and a job survives the death of a worker."""
    skip_without(engine, place)
    draw, number, typical = random.Random(f"{engine} {job} {place} {victim} {part}"), 0, math.inf
    with helper("standing_cluster", engine) as cluster_pipes, helper("killed_job") as job_pipes:
        cluster = Cluster(*cluster_pipes, *job_pipes)
        address = cluster.ask_cluster()
        while cluster.killed < kills and number < 4 * kills:  # a cluster may not replace all workers
            arguments = new_archive(engine, place, tmp_path, request, number) | {"address": address, "job": job}
            with watched(arguments["store"], arguments["options"], is_visible=job == "append"):
                # Workers import modules in the first jobs, which take longer than all others.
                seconds = None if number < 2 else draw.uniform(0, typical)
                if (duration := cluster.run(arguments, seconds, victim)) is not None:
                    typical = min(typical, duration)
                while duration is None:
                    assert victim == "client"
                    seconds = draw.uniform(0, typical) if cluster.killed < kills else None
                    duration = cluster.run(arguments, seconds, victim)
            number += 1
        assert cluster.killed
