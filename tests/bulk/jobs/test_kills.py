"""Jobs of all engines that are killed at random moments, with all their processes, while readers look on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bulk.jobs.test_readers import DAYS, HOURS, reader, write_day
from zarrasync import Layout, sync

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform == "win32", reason="kills groups of processes")]
PACKAGES = {"dask": ("distributed",), "ray": ("ray",), "icechunk": ("icechunk", "2")}
PLACES = ("local", "s3", "icechunk")
FEW = [(engine, "local", 2, 0) for engine in ("processes", "tasks")]
MANY = [(name, place, 6, part) for name in ("processes", "dask", "tasks") for place in PLACES for part in range(1, 7)]
MANY += [("ray", place, 6, 1) for place in PLACES]


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
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:

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


@pytest.mark.parametrize(
    ("engine", "place", "kills", "part"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY)],
    ids=str,
)
def test_kills(tmp_path: Path, request: pytest.FixtureRequest, engine: str, place: str, kills: int, part: int):
    """Readers find whole days in order at any time, and a job that is repeated completes the archive."""
    for name in (engine, place):
        if name in PACKAGES:
            pytest.importorskip(*PACKAGES[name])
    files = [write_day(tmp_path / "nc", day) for day in range(DAYS)]
    draw, killed, number = random.Random(f"{engine} {place} {part}"), 0, 0
    typical: float | None = None
    while killed < kills:
        store, options = open_place(place, tmp_path, request, number)
        sync.ingest_files(files[0], store, concat="time", layout=Layout(chunks={"time": 10, "x": 20}), **options)
        arguments = {
            "engine": engine,
            "files": [str(file) for file in files[1:]],
            "store": store,
            "plan": str(tmp_path / f"plan{number}.json"),
            "options": options,
        }

        def read(store: str = store, options: dict[str, Any] = options) -> int:
            group = sync.open_group(store, **options)
            rows, values = group["time"].shape[0], group["t"][...]
            assert rows <= len(values)
            np.testing.assert_array_equal(values[:rows], np.broadcast_to(np.arange(rows)[:, None], (rows, 50)))
            time.sleep(0.01)
            return rows

        def check(rows: int) -> None:
            assert rows in (HOURS, DAYS * HOURS)

        with reader(read, check) as seen:
            if typical is None:
                typical = run(arguments, None)
                assert typical is not None
            else:
                while run(arguments, draw.uniform(0, typical)) is None:
                    killed += 1
        assert seen[-1] == DAYS * HOURS
        number += 1
