"""Tasks of jobs with many files on executors, and the verification of what they store."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.shifted_clock import ShiftedClock
from zarrasync import config, sync
from zarrasync._concurrency import clock
from zarrasync.bulk.files.ingestion import make_job
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.records.plan import ArrayPlan, FilesPlan, FileVariable, Part, Segment
from zarrasync.bulk.files.running import tasks
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.files.sources.headers import ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.identify import identity_of
from zarrasync.errors import ChecksumError

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.ingested import read_journal, run_all, work_of
from tests.support.netcdf import assert_same, joined, write_days


def test_a_task_is_sent_without_the_files_of_others():
    count = 20_000
    unusual = {str(n): FileVariable(("t",), (f"days since {n}", "")) for n in range(count)}
    array = ArrayPlan("t", "rows", {}, axis=0, unusual=unusual)
    whole = ArrayPlan("w", "whole", {})
    files = [SourceFile(f"{n}.nc") for n in range(count)]
    segments = [Segment(4 * n, 4 * n + 4, count - 1 - n, 0) for n in range(count)]
    parts = [Part(4 * n, 4 * n + 6) for n in range(count - 1)] + [Part(array="w")]
    plan = FilesPlan(3, "", "t", 4 * count, files, ReaderOptions(), [array, whole], segments, parts)
    own = plan.for_part(parts[5])
    assert [own.files[n].url for _, _, n, _ in own.segments] == ["19994.nc", "19993.nc"]
    assert [segment[:2] for segment in own.segments] == [(20, 24), (24, 26)]
    found = [own.arrays[0].in_file(n).units for _, _, n, _ in own.segments]
    assert found == [("days since 19994", ""), ("days since 19993", "")]
    assert [array.name for array in own.arrays] == ["t"]
    assert len(pickle.dumps(own)) < 2000
    assert [array.name for array in plan.for_part(parts[-1]).arrays] == ["w"]
    assert plan.for_part(parts[-1]).files == [files[0]]


def test_all_that_a_plan_has_of_single_files_gets_their_new_numbers():
    names = [item.name for item in fields(ArrayPlan) if item.default_factory is dict]
    assert names == ["unusual"]
    numbered: dict[str, Any] = {name: {"5": name, "6": "another"} for name in names}
    array = ArrayPlan("t", "rows", {}, **numbered)
    own = array.for_files({3: 0, 5: 1})
    assert {name: getattr(own, name) for name in names} == {name: {"1": name} for name in names}


@pytest.mark.parametrize("is_short", [True, False])
async def test_only_headers_that_take_long_are_read_elsewhere(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_short: bool
):
    paths, elsewhere, read_headers = write_days(tmp_path / "nc", range(20)), [], tasks.read_headers

    def count(files: Any, *rest: Any) -> Any:
        elsewhere.extend(files)
        return read_headers(files, *rest)

    monkeypatch.setattr(tasks, "read_headers", count)
    with clock.replaced(ShiftedClock(0.01 if is_short else 100)), ThreadPoolExecutor(2) as executor:
        await api(api.ingest(paths, out := tmp_path / "out.zarr", concat="time", executor=executor))
    assert len(elsewhere) == (0 if is_short else 18)
    assert_same(out, joined(paths))


async def test_executors(api: Api, tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(3))
    out = tmp_path / "out.zarr"
    with ThreadPoolExecutor(2) as executor:
        await api(api.ingest(paths, out, concat="time", executor=executor))
    assert_same(out, joined(paths))
    with pytest.raises(TypeError, match="method submit"):
        await api(api.ingest(paths, {}, concat="time", executor="3"))
    with pytest.raises(ValueError, match="at least 1 process"):
        await api(api.ingest(paths, {}, concat="time", executor=0))


@pytest.mark.processes
@pytest.mark.slow
def test_a_dask_cluster(tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    paths = write_days(tmp_path / "nc", range(3))
    out = tmp_path / "out.zarr"
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        sync.ingest(paths, out, concat="time", executor=client, chunks={"time": 24})
    assert_same(out, joined(paths))


@pytest.mark.servers
@pytest.mark.slow
def test_a_dask_cluster_without_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A message says why nothing happens. The job continues when the cluster gets a worker."""
    distributed = pytest.importorskip("distributed")
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    options: dict[str, Any] = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    with (
        clock.replaced(ShiftedClock(100)),
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        job = threads.submit(sync.ingest, paths, out, concat="time", executor=client)
        while "has no workers" not in caplog.text:
            with contextlib.suppress(TimeoutError):
                job.result(0.05)
        cluster.scale(1)
        job.result(60)
    assert re.search(r"the cluster inproc://.* has no workers; 1 task waiting", caplog.text)
    assert_same(out, joined(paths))


async def test_verification_finds_other_values(api: Api, tmp_path: Path):
    path = write_days(tmp_path / "nc", [0], packed=False)
    await api(api.ingest(path, store := {}, concat="time", encoding={"t2m": {"dtype": "f4"}}, verify=True))
    rounding = {"t2m": {"filters": [{"name": "numcodecs.bitround", "configuration": {"keepbits": 2}}]}}
    with pytest.raises(ChecksumError, match=r"t2m\[.*differs from the written values"):
        await api(api.ingest(path, {}, concat="time", encoding=rounding, verify=True))
    assert read_journal(store)["files"]


async def test_a_failed_verification_of_labels_fails_again(api: Api, tmp_path: Path):
    path, out = write_days(tmp_path / "nc", [0], packed=False), tmp_path / "out.zarr"
    rounding = {"filters": [{"name": "numcodecs.bitround", "configuration": {"keepbits": 1}}], "dtype": "f8"}
    call = partial(api.ingest, path, out, concat="time", encoding={"time": rounding})
    for _ in range(3):
        with pytest.raises(ChecksumError, match=r"time\[.*differs from the files"):
            await api(call(verify=True))
        assert not (out / "zarr.json").exists()


def test_a_failed_verification_of_a_plan_fails_again(tmp_path: Path):
    (path,), out = write_days(tmp_path / "nc", [0], packed=False), tmp_path / "out.zarr"
    rounding = {"filters": [{"name": "numcodecs.bitround", "configuration": {"keepbits": 1}}], "dtype": "f8"}
    job = make_job(parameters_of(files=[path], store=out, concat="time", encoding={"time": rounding}))
    plan, _ = job.plan_only(FileWorkers())
    assert plan is not None
    plan = FilesPlan.from_json(plan.to_json())
    store = job.handle.store
    run_all(work_of(plan, store), verify=True)
    for _ in range(3):
        with pytest.raises(ChecksumError, match=r"time\[.*differs from the files"):
            work_of(plan, store).finish(verify=True)
        assert not (out / "zarr.json").exists()


def open_paths(folder: Path) -> list[str]:
    """Return the paths below a folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only /proc shows open files")
@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_threads_of_an_executor_leave_no_open_files(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """Files and local copies of remote files are closed and deleted at the end of the job."""
    sources: Any = write_days(tmp_path / "nc", range(4))
    memory = pytest.importorskip("fsspec").filesystem("memory")
    if kind == "remote":
        for path in sources:
            memory.pipe(f"/executor/{path.name}", path.read_bytes())
        sources = [f"memory://executor/{path.name}" for path in sources]
    (copies := tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    with ThreadPoolExecutor(2) as executor:
        await api(api.ingest(sources, {}, concat="time", executor=executor))
    assert open_paths(tmp_path) == []
    assert list(copies.iterdir()) == []
    if kind == "remote":
        memory.rm("/executor", recursive=True)


def test_a_worker_keeps_the_files_of_few_jobs_open(tmp_path: Path):
    """The files of earlier jobs are closed, except for those that a task still reads."""
    (path,) = write_days(tmp_path, [0])
    file, settings = identity_of(str(path), {}), config.get()
    ways = [ReaderOptions(dim=str(number)) for number in range(4)]
    shared = tasks.SharedFiles()
    with shared.use(ways[0], settings) as first:
        for way in ways[1:]:
            with shared.use(way, settings) as files:
                files.read(file, "t2m", (slice(0, 1), slice(None), slice(None)))
        assert [way.dim for way, _ in shared._known] == ["0", "3"]
        shared.forget([(ways[0], settings)])
        with shared.use(ways[0], settings) as again:
            assert again is not first
    assert {way.dim for way, _ in shared._known} == {"3", "0"}
    shared.forget(list(shared._known))
    assert not shared._known
    assert not shared._users
