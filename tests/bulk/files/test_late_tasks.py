"""Tasks that a cluster gives away a second time, or whose process was suspended, and that end after their job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from zarrasync import stores
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.fencing import TaskLease
from zarrasync.errors import WriteConflictError

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.dying import names
from tests.support.netcdf import assert_same, joined, write_days

OPTIONS: dict[str, Any] = {"concat": "time", "chunks": {"time": 24}}


class KeepingExecutor:
    """An executor that runs each call at once, and keeps it for a second time."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, call: Any) -> Future[Any]:
        self.calls.append(call)
        future: Future[Any] = Future()
        future.set_result(call())
        return future


class HookedStore(stores.LocalStore):
    """A store that calls a function with each key before it stores a value."""

    hook: Callable[[str], None] = staticmethod(lambda key: None)

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self.hook(key)
        return await super().put(key, data, if_version=if_version)


async def test_a_task_that_runs_again_after_its_job(api: Api, tmp_path: Path):
    paths, executor = write_days(tmp_path / "nc", range(2)), KeepingExecutor()
    await api(api.ingest(paths, out := tmp_path / "out.zarr", executor=executor, **OPTIONS))
    before = names(out)
    for call in executor.calls:
        with pytest.raises(WriteConflictError, match="the job of this task has ended"):
            call()
    assert names(out) == before
    assert_same(out, joined(paths))


async def test_a_task_that_begins_again_while_its_result_is_published(api: Api, tmp_path: Path):
    """It would end after the job, and nobody would remove its mark."""
    paths, executor = write_days(tmp_path / "nc", range(2)), KeepingExecutor()
    late: list[Future[Any]] = []
    is_written, is_over = threading.Event(), threading.Event()

    def hook(key: str) -> None:
        if key == ".ingest/record":
            late.append(threads.submit(executor.calls[-1]))
            late[0].add_done_callback(lambda call: is_written.set())
            assert is_written.wait(60)
        elif late and key.startswith(".ingest/task-"):
            is_written.set()
            assert is_over.wait(60)

    store = HookedStore(out := tmp_path / "out.zarr")
    store.hook = hook
    with ThreadPoolExecutor(1) as threads:
        await api(api.ingest(paths, store, executor=executor, **OPTIONS))
        is_over.set()
        assert isinstance(late[0].exception(60), WriteConflictError)
    assert not (out / ".ingest").exists()
    assert_same(out, joined(paths))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_run_that_others_consider_as_ended(tmp_path: Path, *, is_known: bool):
    """Its process was suspended. Whether it knows that or not, it leaves nothing after the job."""
    store = stores.LocalStore(tmp_path)
    claim = Claim(store, "")
    claim.acquire(0)
    token = claim.token()
    assert token is not None
    with TaskLease(store, token) as run, pytest.raises(WriteConflictError, match="this process was suspended"):
        (note,) = tmp_path.glob(".ingest/run-*")
        note.unlink()
        claim.release()
        if is_known:
            run.change_now(lambda entry: entry)
        run.mark(".ingest/task-x-0")
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_known", [False, True])
def test_a_job_that_others_consider_as_ended(tmp_path: Path, *, is_known: bool):
    store = stores.LocalStore(tmp_path)
    one, two = Claim(store, ""), Claim(store, "")
    one.acquire(0)
    (tmp_path / ".ingest/claim").unlink()
    two.acquire(0)
    two.update(plan="x")
    if not is_known:
        one.mark("x", 1)
    with pytest.raises(WriteConflictError, match="another job has taken over"):
        one.update(plan="x")
    if is_known:
        with pytest.raises(WriteConflictError, match="another job has taken over"):
            one.mark("x", 1)
    assert two.folder.finished("x") == set()
    one.release()
    two.release()
    assert names(tmp_path) == []
