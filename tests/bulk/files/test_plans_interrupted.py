"""Plans of jobs whose commands are killed, finished, and abandoned."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.bulk.files.ingestion import make_job
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.planned_job import FilesWork
from zarrasync.bulk.files.running.publish import publish_arrays, publish_group
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.jobs import claim as claims
from zarrasync.bulk.reports import FilesReport
from zarrasync.errors import NodeNotFoundError, StoreError, UnsupportedOperation, WriteConflictError

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.dying import dying_store, in_child, names
from tests.support.ingested import read_journal, run_all, work_of
from tests.support.netcdf import assert_same, day, joined, visible_length, write_days
from zarrasync.nodes.node import run_blocking

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
CHUNKS = {"time": 10, "lat": 4}
NEVER = 10**6


def plan_and_die(paths: list[Path], out: Path, puts: int, plan: Path, append: bool) -> None:
    def save(made: FilesPlan, report: FilesReport) -> None:
        plan.write_text(json.dumps(made.to_json()))

    request = parameters_of(
        files=paths, store=dying_store(out, puts), concat="time", append=append, tasks=2, chunks=CHUNKS
    )
    make_job(request).plan_only(FileWorkers(), save)


def continue_and_die(action: str, out: Path, puts: int, file: Path) -> None:
    plan = FilesPlan.from_json(json.loads(file.read_text()))
    work = work_of(plan, dying_store(out, puts))
    if action == "run":
        run_all(work)
    elif action == "finish":
        work.finish(verify=False)
    else:
        work.abandon()


@pytest.mark.processes
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_of_any_command_of_a_plan(tmp_path: Path, step: int):
    """A command that is killed while it stores or erases any value can be repeated."""
    paths = write_days(tmp_path / "nc", range(4))
    out, plan = tmp_path / "out.zarr", tmp_path / "plan"
    for known in (paths[:2], paths):
        for command in ("plan", "run", "finish"):
            puts, code = 0, -1
            while code:
                if command == "plan":
                    code = in_child(plan_and_die, known, out, puts, plan, known == paths)
                else:
                    code = in_child(continue_and_die, command, out, puts, plan)
                assert code in (0, -signal.SIGKILL)
                assert visible_length(out) in ((0, 48) if known != paths else (48, 96))
                puts += step
        assert_same(out, joined(known))
        sync.ingest(known, tmp_path / "x.zarr", concat="time", chunks=CHUNKS, append=True)
        assert names(out) == names(tmp_path / "x.zarr")


def test_a_plan_is_made_again(tmp_path: Path):
    """The process may have been killed before it returned the plan. Other files still have to wait."""
    paths = write_days(tmp_path / "nc", range(2))
    out, plan = tmp_path / "out.zarr", tmp_path / "plan"
    plan_and_die(paths[:1], out, 100, plan, append=False)
    first = plan.read_text()
    plan.unlink()
    plan_and_die(paths[:1], out, 100, plan, append=False)
    assert plan.read_text() == first
    with pytest.raises(WriteConflictError, match=r"a plan of day0.nc .* is not finished"):
        plan_and_die(paths, out, 100, plan, append=False)


def killed_commands(folder: Path, command: str, *, append: bool) -> Iterator[tuple[list[Path], Path, Path]]:
    """Yield files, a destination, and its plan, whose command was killed while it stored or erased each value in turn."""
    paths, puts = write_days(folder / "nc", range(2)), 0
    while True:
        out, plan = folder / f"{puts}.zarr", folder / f"{puts}.plan"
        if append:
            sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)
        plan_and_die(paths, out, NEVER, plan, append)
        continue_and_die("run", out, NEVER, plan)
        code = in_child(continue_and_die, command, out, puts, plan)
        assert code in (0, -signal.SIGKILL)
        if not code:
            assert puts > 2
            return
        yield paths, out, plan
        puts += 1


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the message of the conflict with another writer that a function raises; empty if it returns."""
    try:
        function(*args, **kwargs)
    except WriteConflictError as error:
        return str(error)
    return ""


@pytest.mark.processes
@pytest.mark.parametrize("append", [False, True])
def test_a_plan_is_abandoned_after_a_killed_finish(tmp_path: Path, append: bool):
    """Rows that readers may see already are never erased."""
    outcomes = set()
    for paths, out, plan in killed_commands(tmp_path, "finish", append=append):
        message = error_of(continue_and_die, "abandon", out, NEVER, plan)
        if message:
            is_over = not (out / ".ingest/claim").exists()
            assert ("it was finished" if is_over else "complete it with `zarrasync ingest finish PLAN`") in message
            continue_and_die("finish", out, NEVER, plan)
            assert_same(out, joined(paths))
            outcomes.add("finished")
        else:
            assert visible_length(out) == (24 if append else 0)
            sync.ingest(paths, out, concat="time", chunks=CHUNKS, append=append)
            assert_same(out, joined(paths))
            outcomes.add("abandoned")
        assert not (out / ".ingest").exists()
    assert outcomes == {"abandoned", "finished"}


@pytest.mark.processes
@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("command", ["finish", "abandon"])
def test_a_killed_command_keeps_the_plan(tmp_path: Path, command: str, append: bool):
    """No other job takes the place of the plan, until its rows are being published."""
    outcomes = set()
    for paths, out, plan in killed_commands(tmp_path, command, append=append):
        made = plan.read_text()
        message = error_of(sync.ingest, paths, out, concat="time", chunks=CHUNKS, append=append, wait=0)
        if message:
            assert "is not finished" in message
            plan.unlink()
            plan_and_die(paths, out, NEVER, plan, append)
            assert plan.read_text() == made
            if command == "abandon":
                with contextlib.suppress(NodeNotFoundError):  # values are erased after the marks of their tasks
                    continue_and_die("finish", out, NEVER, plan)
            if (out / ".ingest").exists():
                continue_and_die("run", out, NEVER, plan)
                continue_and_die("finish", out, NEVER, plan)
            outcomes.add("kept")
        else:
            outcomes.add("published")
        assert_same(out, joined(paths))
        assert sync.validate(out, data=True).ok
        assert not (out / ".ingest").exists()
    assert "kept" in outcomes


def test_a_store_without_claims_has_no_plans(tmp_path: Path):
    paths, store = write_days(tmp_path / "nc", range(1)), stores.LocalStore(tmp_path / "out.zarr")
    store.conditional = False
    with pytest.raises(UnsupportedOperation, match="run the job in one call"):
        make_job(parameters_of(files=paths, store=store, concat="time")).plan_only(FileWorkers())
    assert not store.root.exists()


def test_a_plan_for_existing_rows(tmp_path: Path):
    """The dataset contains its files in any case, so that does not show whether the plan was finished."""
    dataset, path, jobs = day(0).assign(count=("time", np.arange(24))), tmp_path / "day0.nc", list[FilesWork]()
    dataset.to_netcdf(path)
    store = stores.LocalStore(tmp_path / "out.zarr")
    sync.ingest(path, store, concat="time")
    for name in ("t2m", "count"):  # the plan contains the values of the second one
        sync.open_array(store, path=name, mode="r+")[:] = -1

    def make() -> FilesWork:
        plan, _ = make_job(parameters_of(files=[path], store=store, concat="time", region="auto")).plan_only(
            FileWorkers()
        )
        assert plan is not None
        assert {array.name for array in plan.arrays if array.kind == "inline"} == {"count", "time"}
        jobs.append(work_of(plan, store))
        return jobs[-1]

    def check_unfinished(job: FilesWork) -> None:
        with pytest.raises(NodeNotFoundError, match="not been run"):
            job.finish(verify=False)
        job.abandon()
        with pytest.raises(WriteConflictError, match="it was finished, abandoned, or replaced"):
            job.finish(verify=False)

    check_unfinished(make())
    run_all(make())
    report = jobs[-1].finish(verify=True)
    assert "the plan was finished before" not in report.notes
    assert_same(store.root, dataset)
    for _ in range(2):
        assert "the plan was finished before" in jobs[-1].finish(verify=False).notes
    assert make().digest == jobs[0].digest  # it is made again, so it is not finished any more
    assert "finished" not in read_journal(store)
    check_unfinished(jobs[-1])
    run_all(make())
    assert "the plan was finished before" not in jobs[-1].finish(verify=False).notes
    assert "the plan was finished before" in jobs[0].finish(verify=False).notes


def test_an_abandoned_plan_is_not_finished_by_another_job(tmp_path: Path):
    """The dataset then contains its files, which were added by the other job."""
    paths, out, plan = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr", tmp_path / "plan"
    for append in (False, True):
        plan_and_die(paths[: 1 + append], out, NEVER, plan, append)
        continue_and_die("abandon", out, NEVER, plan)
        sync.ingest(paths[: 1 + append], out, concat="time", chunks=CHUNKS, append=append)
        assert "it was finished, abandoned, or replaced" in error_of(continue_and_die, "finish", out, NEVER, plan)


@pytest.mark.processes
def test_a_finish_of_a_plan_for_existing_rows_is_killed(tmp_path: Path):
    """It can be repeated, and reports that it was finished as soon as it was."""
    path, out = write_days(tmp_path / "nc", [0])[0], tmp_path / "out.zarr"
    sync.ingest(path, out, concat="time", chunks=CHUNKS)
    request = parameters_of(files=[path], store=stores.LocalStore(out), concat="time", region="auto")

    def finish(puts: int) -> list[str]:
        return work_of(plan, dying_store(out, puts)).finish(verify=False).notes

    for puts in itertools.count():
        sync.open_array(out, path="t2m", mode="r+")[:] = -1
        plan, _ = make_job(request).plan_only(FileWorkers())
        assert plan is not None
        run_all(work_of(plan, request.store))
        is_killed = in_child(finish, puts) != 0
        is_open = (out / ".ingest/claim").exists()
        assert ("the plan was finished before" in finish(NEVER)) == (not is_open)
        assert_same(out, joined([path]))
        assert "the plan was finished before" in finish(NEVER)
        if not is_killed:
            break


class HandingStore(stores.LocalStore):
    """A store in which another command does something right before a claim is stored."""

    before: Any = None

    async def put(self, key: str, *args: Any, **kwargs: Any) -> Any:
        before, self.before = self.before, None
        if before is not None and key.endswith("/claim"):
            before()
        return await super().put(key, *args, **kwargs)


class FailingStore(stores.LocalStore):
    """A store that fails to store labels, after its claim was removed."""

    async def put(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if key.startswith("time/c"):
            shutil.rmtree(self.root / ".ingest")
            raise StoreError("the disk is full", key=key)
        return await super().put(key, *args, **kwargs)


@pytest.mark.parametrize("is_planned", [True, False])
def test_the_error_is_raised_if_the_claim_is_gone(tmp_path: Path, is_planned: bool):
    (path,), store = write_days(tmp_path / "nc", range(1)), FailingStore(tmp_path / "out.zarr")
    if not is_planned:
        with pytest.raises(StoreError, match="the disk is full"):
            sync.ingest(path, store, concat="time")
        return
    plan, _ = make_job(parameters_of(files=[path], store=store, concat="time")).plan_only(FileWorkers())
    assert plan is not None
    work = work_of(plan, store)
    run_all(work)
    with pytest.raises(StoreError, match="the disk is full"):
        work.finish(verify=False)


@pytest.mark.processes
def test_two_tasks_at_once_after_a_killed_finish(tmp_path: Path):
    """Each of them gives the claim back to the plan."""
    paths, plan = write_days(tmp_path / "nc", range(2)), tmp_path / "plan"
    out = tmp_path / "out.zarr"
    plan_and_die(paths, out, NEVER, plan, append=False)
    digest = FilesPlan.from_json(json.loads(plan.read_text())).digest
    assert in_child(finish_and_die, out, digest) == -signal.SIGKILL
    store = HandingStore(out)
    tokens: list[Any] = []
    store.before = lambda: tokens.append(claims.Claim(stores.LocalStore(out), "").token_for_plan(digest))
    tokens.append(claims.Claim(store, "").token_for_plan(digest))
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    continue_and_die("run", out, NEVER, plan)
    continue_and_die("finish", out, NEVER, plan)
    assert_same(out, joined(paths))


def finish_and_die(out: Path, digest: str) -> None:
    claims.Claim(stores.LocalStore(out), "").acquire(0, digest)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_job_that_publishes_late_keeps_the_rows_of_others(tmp_path: Path, zarr_format: int):
    """Its process was suspended while it published. Another process has completed that, and has appended rows."""
    out: dict[str, bytes] = {}
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3), number, "f4"))
    request = parameters_of(
        files=str(tmp_path / "0.npy"), store=out, concat="time", dims="lat,lon", zarr_format=zarr_format
    )
    plan, _ = make_job(request).plan_only(FileWorkers())
    assert plan is not None
    store = stores.MemoryStore(out)
    work = work_of(plan, store)
    run_all(work)
    work.finish(verify=False)
    options: dict[str, Any] = {"concat": "time", "dims": "lat,lon", "append": True}
    sync.ingest(str(tmp_path / "1.npy"), out, **options)
    expected = dict(out)
    handle = plan.handle(store, work.config)
    run_blocking(store, publish_arrays(plan, handle))
    run_blocking(store, publish_group(plan, handle, is_independent=True))
    assert sync.open_array(out, path="values").shape == (2, 2, 3)
    report = sync.ingest(str(tmp_path / "*.npy"), out, **options)
    assert isinstance(report, FilesReport)
    assert report.known == 2
    assert sync.open_array(out, path="values")[:, 0, 0].tolist() == [0, 1]
    assert out.keys() == expected.keys()
