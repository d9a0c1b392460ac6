"""Many files into repositories of icechunk on several processes, which share one commit."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.ingested import ingest_in_tasks
from zarrasync.errors import StoreError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
icechunk = pytest.importorskip("icechunk", "2", reason="icechunk 1 cannot fork sessions with changes")
from tests.support.icechunk_branch import messages, repository, stored
from tests.support.netcdf import day, joined, write_days

FIRST = "Repository initialized"


class Pickling(ThreadPoolExecutor):
    """An executor that sends calls and results as bytes, like one with other processes."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_call, pickle.dumps(fn))


def _call(data: bytes) -> Any:
    return pickle.loads(pickle.dumps(pickle.loads(data)()))  # made by this test


@contextlib.contextmanager
def workers(kind: str) -> Iterator[dict[str, Any]]:
    """Provide the arguments that name workers."""
    if kind == "processes":
        yield {"executor": 2}
    elif kind == "dask":
        distributed = pytest.importorskip("distributed")
        options: dict[str, Any] = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
        with distributed.LocalCluster(2, **options) as cluster, distributed.Client(cluster) as client:
            yield {"executor": client}
    else:
        make: Any = Pickling if kind == "pickling" else ThreadPoolExecutor
        with make(3) as executor:
            yield {"executor": executor}


KINDS = [
    "threads",
    "pickling",
    pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.slow]),
    pytest.param("dask", marks=[pytest.mark.processes, pytest.mark.slow]),
]


@pytest.mark.parametrize("kind", KINDS)
def test_all_workers_share_a_commit(tmp_path: Path, kind: str):
    """Readers see the dataset before or after a job. The rows of two jobs share a chunk."""
    paths, place, seen = write_days(tmp_path / "nc", range(6)), tmp_path / "repo", list[int]()
    url = f"{place}|icechunk:"

    def look(nbytes: int) -> None:
        store = repository(place).readonly_session("main").store
        with contextlib.suppress(FileNotFoundError):
            seen.append(xr.open_zarr(store, consolidated=False).sizes["time"])

    options: dict[str, Any] = {"chunks": {"time": 7, "lat": 4}, "progress": look}
    with workers(kind) as shared:
        report = ingest_in_tasks(paths[:3], url, verify=True, **options, **shared)
        assert report.tasks == 11
        xr.testing.assert_equal(stored(place), joined(paths[:3]))
        report = ingest_in_tasks(paths, url, append=True, verify=True, **options, **shared)
        assert (report.files, report.known, report.tasks > 10) == (3, 3, True)
        assert ingest_in_tasks(paths, url, append=True, **options, **shared).files == 0
    history = ["zarrasync ingest: 3 files with 72 rows", "zarrasync ingest: 3 files with 72 rows", FIRST]
    assert messages(place) == history
    assert set(seen) == {72}
    xr.testing.assert_equal(stored(place), joined(paths))


def test_datasets_that_are_replaced(tmp_path: Path):
    """All of a dataset with other chunks, then some rows of it."""
    paths, place = write_days(tmp_path / "nc", range(3), packed=False), tmp_path / "repo"
    url = f"{place}|icechunk:"
    options: dict[str, Any] = {"path": "deep/er", "verify": True}
    with workers("pickling") as shared:
        ingest_in_tasks(paths[:2], url, chunks={"time": 7}, **options, **shared)
        ingest_in_tasks(paths, url, mode="w", chunks={"time": 5, "lon": 3}, **options, **shared)
        xr.testing.assert_equal(stored(place, "deep/er"), joined(paths))
        day(1, seed=9).to_netcdf(paths[1])
        ingest_in_tasks(paths[1], url, region="auto", **options, **shared)
    xr.testing.assert_equal(stored(place, "deep/er"), joined(paths))
    assert len(messages(place)) == 4


@pytest.mark.parametrize(("length", "tasks"), [(24, (1, 1)), (26, (5, 3))])
def test_no_two_tasks_write_the_same_chunk(tmp_path: Path, length: int, tasks: tuple[int, int]):
    """The chunks of two variables begin at the same rows or not, and rows of one chunk are replaced in several places."""
    (tmp_path / "nc").mkdir()
    days = [day(n).assign(u=day(n, seed=n + 50).t2m) for n in range(5)]
    for number, dataset in enumerate(days):
        dataset.to_netcdf(tmp_path / f"nc/{number}.nc")
    url = f"{tmp_path / 'repo'}|icechunk:"
    options: dict[str, Any] = {"verify": True}
    chunks = {"t2m": {"chunks": (13, 6, 8)}, "u": {"chunks": (length, 6, 8)}}
    expected = xr.concat(days, "time", data_vars="minimal")
    with workers("pickling") as shared:
        report = ingest_in_tasks(tmp_path / "nc/*.nc", url, encoding=chunks, **options, **shared)
        assert report.tasks == tasks[0]
        xr.testing.assert_equal(stored(tmp_path / "repo"), expected)
        rows = [*range(3, 5), *range(8, 10), *range(30, 32), *range(80, 82)]
        later = expected.isel(time=rows) + 1
        later.assign(mask=expected.mask).to_netcdf(tmp_path / "later.nc")
        report = ingest_in_tasks(tmp_path / "later.nc", url, append=True, on_duplicate="replace", **options, **shared)
        assert report.tasks == tasks[1]
    for name in ("t2m", "u"):
        expected[name][rows] += 1
    xr.testing.assert_equal(stored(tmp_path / "repo"), expected)


def kill_a_worker() -> None:
    for process in multiprocessing.active_children()[:1]:
        process.kill()


@pytest.mark.processes
@pytest.mark.slow
def test_a_worker_that_is_killed(tmp_path: Path):
    paths, place, kills = write_days(tmp_path / "nc", range(6)), tmp_path / "repo", list[int]()

    def kill(nbytes: int) -> None:
        if nbytes and len(kills) < 2:
            kills.append(nbytes)
            kill_a_worker()

    ingest_in_tasks(paths, f"{place}|icechunk:", chunks={"time": 7}, executor=2, progress=kill)
    assert len(kills) == 2
    assert messages(place) == ["zarrasync ingest: 6 files with 144 rows", FIRST]
    xr.testing.assert_equal(stored(place), joined(paths))


@pytest.mark.processes
@pytest.mark.slow
def test_workers_of_dask_that_are_always_killed(tmp_path: Path):
    """Dask gives a task up. The job fails without a commit."""
    dask, place = pytest.importorskip("dask"), tmp_path / "repo"
    pytest.importorskip("distributed")
    paths = write_days(tmp_path / "nc", range(10))
    ingest_in_tasks(paths[:1], f"{place}|icechunk:", chunks={"time": 7})
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), workers("dask") as shared:
        waiting = list(shared["executor"].run(os.getpid).values())

        def kill(nbytes: int) -> None:
            while nbytes and waiting:
                os.kill(waiting.pop(), signal.SIGKILL)

        with pytest.raises(StoreError, match="the processes that ran task"):
            ingest_in_tasks(paths, f"{place}|icechunk:", append=True, progress=kill, **shared)
    assert len(messages(place)) == 2
    xr.testing.assert_equal(stored(place), joined(paths[:1]))


@pytest.mark.processes
@pytest.mark.slow
def test_workers_that_are_always_killed(tmp_path: Path):
    """The job fails without a commit. It can be repeated."""
    paths, place, has_ended = write_days(tmp_path / "nc", range(6)), tmp_path / "repo", threading.Event()
    url = f"{place}|icechunk:"
    options: dict[str, Any] = {"append": True, "chunks": {"time": 7}}
    ingest_in_tasks(paths[:2], url, **options)
    before = stored(place)

    def kill() -> None:
        while not has_ended.wait(0.01):
            kill_a_worker()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(StoreError, match="ended 3 times"):
            ingest_in_tasks(paths, url, executor=2, **options)
    finally:
        has_ended.set()
        thread.join()
    assert len(messages(place)) == 2
    xr.testing.assert_equal(stored(place), before)
    ingest_in_tasks(paths, url, executor=2, **options)
    assert len(messages(place)) == 3
    xr.testing.assert_equal(stored(place), joined(paths))


def test_a_task_that_fails(tmp_path: Path):
    """A file cannot be read any more. The changes of other tasks are not committed."""
    paths, place = write_days(tmp_path / "nc", range(4), packed=False), tmp_path / "repo"
    url = f"{place}|icechunk:"
    options: dict[str, Any] = {"append": True, "chunks": {"time": 24}}
    ingest_in_tasks(paths[:1], url, **options)

    (away := tmp_path / "away").mkdir()

    def move(nbytes: int) -> None:
        for path in paths if nbytes else []:
            path.rename(away / path.name)

    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match=r"FileNotFoundError"):
        ingest_in_tasks(paths, url, progress=move, executor=executor, **options)
    assert len(messages(place)) == 2
    xr.testing.assert_equal(stored(place), joined([away / paths[0].name]))
    for path in paths:
        (away / path.name).rename(path)
    with ThreadPoolExecutor(1) as executor:
        ingest_in_tasks(paths, url, executor=executor, **options)
    assert len(messages(place)) == 3
    xr.testing.assert_equal(stored(place), joined(paths))


# ------------------------------------------------------------------ sessions, and other storage


def test_sessions(tmp_path: Path):
    """Changes that the session has before the job are kept. The caller commits."""
    paths, place = write_days(tmp_path / "nc", range(3)), tmp_path / "repo"
    session = icechunk.Repository.create(icechunk.local_filesystem_storage(str(place))).writable_session("main")
    options: dict[str, Any] = {"append": True, "chunks": {"time": 7}}
    with workers("pickling") as shared:
        ingest_in_tasks(paths[:2], session, **options, **shared)
        ingest_in_tasks(paths, session, **options, **shared)
    assert messages(place) == [FIRST]
    session.commit("both")
    xr.testing.assert_equal(stored(place), joined(paths))


def test_a_repository_in_memory(tmp_path: Path):
    """Other processes have other memory."""
    paths = write_days(tmp_path / "nc", range(2))
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    with workers("pickling") as shared, pytest.raises(StoreError):
        ingest_in_tasks(paths, session, chunks={"time": 7}, **shared)
