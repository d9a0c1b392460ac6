"""Ingesting files while processes are killed, while others write, and while readers look on."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.bulk.files import claim as claims
from zarrasync.errors import NodeExistsError, NodeNotFoundError, WriteConflictError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import assert_same, joined, write_days

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
CHUNKS = {"time": 10, "lat": 4}


class DyingStore(stores.LocalStore):
    """A store whose process is killed before it stores the n-th value, and before all later ones."""

    left = 0

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self._count()
        return await super().put(key, data, if_version=if_version)

    async def put_values(self, keys: Any, values: Any) -> None:
        for key, value in zip(keys, values, strict=True):
            self._count()
            await super().put_values([key], [value])

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def ingest_and_die(paths: list[Path], out: Path, puts: int, options: dict[str, Any]) -> None:
    store = DyingStore(out)
    store.left = puts
    sync.ingest(paths, store, concat="time", chunks=CHUNKS, **options)


def in_child(function: Any, *arguments: Any) -> int:
    """Run a function in a process, and return its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def visible_length(out: Path) -> int:
    """Return the number of rows that readers see. All variables must have it."""
    try:
        with xr.open_dataset(out, engine="zarrasync") as dataset:
            assert not np.isnan(dataset.t2m.to_numpy()).any()
            np.testing.assert_array_equal(np.diff(dataset.time.to_numpy()), np.timedelta64(1, "h"))
            return dataset.sizes["time"]
    except NodeNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("zarr_format", "step"),
    [(3, 7), (2, 7), pytest.param(3, 1, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)],
)
def test_a_kill_before_any_value_is_stored(tmp_path: Path, zarr_format: int, step: int):
    """Readers see nothing of an unfinished job, and a rerun completes it. Then the same for an append."""
    paths = write_days(tmp_path / "nc", range(4))
    out, puts, finished = tmp_path / "out.zarr", 0, 0
    while finished < 2:
        known = paths[:2] if not finished else paths
        options = {"append": bool(finished), "zarr_format": zarr_format}
        code = in_child(ingest_and_die, known, out, puts, options)
        assert code in (0, -signal.SIGKILL)
        before, after = (0, 48) if not finished else (48, 96)
        assert visible_length(out) in (before, after)
        if code == 0:
            assert puts > 8
            assert_same(out, joined(known))
            assert sync.validate(out, data=True).ok
            assert not (out / ".ingest").exists()
            finished, puts = finished + 1, 0
        else:
            puts += step


def test_a_rerun_skips_finished_tasks(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(4))
    out = tmp_path / "out.zarr"
    assert in_child(ingest_and_die, paths, out, 24, {}) == -signal.SIGKILL
    report = sync.ingest(paths, out, concat="time", chunks=CHUNKS)
    assert report.blocks + report.skipped >= 1
    assert_same(out, joined(paths))


def test_other_files_do_not_continue_an_unfinished_job(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(3))
    out = tmp_path / "out.zarr"
    in_child(ingest_and_die, paths[:2], out, 6, {})
    with pytest.raises(NodeExistsError, match=r"an ingestion of day0.nc, day1.nc into .* was interrupted"):
        sync.ingest(paths[2], out, concat="time")
    with pytest.raises(NodeExistsError, match="was interrupted"):  # again: the claim still names the first files
        sync.ingest(paths[2], out, concat="time")
    sync.ingest(paths[2], out, concat="time", mode="w")
    assert_same(out, joined(paths[2:]))


def test_an_interrupted_append_does_not_keep_others_out(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(4))
    out = tmp_path / "out.zarr"
    sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)
    in_child(ingest_and_die, paths[:2], out, 6, {"append": True})
    sync.ingest([paths[0], paths[1], paths[2]], out, concat="time", append=True)
    sync.ingest(paths, out, concat="time", append=True)
    assert_same(out, joined(paths))


def append(paths: list[Path], out: Path) -> None:
    sync.ingest(paths, out, concat="time", append=True, on_duplicate="skip")


def test_two_at_once(tmp_path: Path):
    """Two jobs with the same new files, as from cron: one adds them, the other finds them."""
    paths = write_days(tmp_path / "nc", range(6))
    out = tmp_path / "out.zarr"
    sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)
    context = multiprocessing.get_context("fork")
    for known in range(2, 5):
        jobs = [context.Process(target=append, args=(paths[:known], out)) for _ in range(2)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join(60)
            assert job.exitcode == 0
        assert_same(out, joined(paths[:known]))


def test_a_running_job_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = write_days(tmp_path / "nc", range(2))
    out = tmp_path / "out.zarr"
    sync.ingest(paths[:1], out, concat="time")
    claim = claims.Claim(stores.LocalStore(out), "")
    claim.acquire(0)
    with pytest.raises(WriteConflictError, match="another job writes / in"):
        sync.ingest(paths, out, concat="time", append=True, wait=0)
    claim.release()
    sync.ingest(paths, out, concat="time", append=True, wait=0)

    # A job of another machine that ended without a trace.
    monkeypatch.setattr(claims, "_DEAD_SECONDS", 0.3)
    (out / ".ingest").mkdir()
    (out / ".ingest/claim").write_text(json.dumps({"owner": "0.1.2", "beat": 5, "state": "running"}))
    (third,) = write_days(tmp_path / "nc", [2])
    sync.ingest(third, out, concat="time", append=True)
    assert_same(out, joined([*paths, third]))


def test_a_suspended_job_notices_that_it_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claims, "_BEAT_SECONDS", 600)
    monkeypatch.setattr(claims, "_DEAD_SECONDS", 0.2)
    store = stores.MemoryStore({})
    one, two = claims.Claim(store, "a"), claims.Claim(store, "a")
    one.acquire(0)
    two.acquire(30)
    with pytest.raises(WriteConflictError, match="taken over"):
        one.update(plan="x")
    with pytest.raises(WriteConflictError, match="taken over"):
        one.check()
    one.release()
    two.update(plan="y")
    two.release()


@pytest.mark.slow
def test_readers_see_equal_lengths_while_writers_are_killed(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(8))
    out, ended, failures = tmp_path / "out.zarr", threading.Event(), list[BaseException]()
    sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)

    def read() -> None:
        last = 0
        while not ended.is_set():
            try:
                length = visible_length(out)
                assert length >= last
                last = length
            except BaseException as error:
                failures.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        kills, choice = 0, random.Random(0)
        for known in range(2, 9):
            for puts in (*choice.sample(range(8), 3), 1000):
                code = in_child(ingest_and_die, paths[:known], out, puts, {"append": True})
                assert code in (0, -signal.SIGKILL)
                kills += code != 0
    finally:
        ended.set()
        reader.join()
    assert failures == []
    assert kills >= 10
    assert_same(out, joined(paths))


@pytest.mark.slow
def test_killed_workers_are_replaced(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(12))
    out, reports = tmp_path / "out.zarr", list[Any]()
    options: dict[str, Any] = {"concat": "time", "chunks": {"time": 24}, "processes": 2}
    job = threading.Thread(target=lambda: reports.append(sync.ingest(paths, out, **options)))
    job.start()
    while not (children := multiprocessing.active_children()) and job.is_alive():
        job.join(0.05)
    os.kill(children[0].pid or 0, signal.SIGKILL)
    job.join(120)
    assert reports[0].rows == 288
    assert_same(out, joined(paths))
