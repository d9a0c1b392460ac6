"""Ingesting files while processes are killed, while others write, and while readers look on."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.ingested import ingest_in_tasks
from tests.support.shifted_clock import ShiftedClock
from tests.support.strict_s3 import BUCKET, s3_client, serve_s3
from zarrasync import config, stores, sync
from zarrasync._concurrency import clock
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.jobs import claim as claims
from zarrasync.bulk.jobs.fencing import TaskLease
from zarrasync.bulk.reports import FilesReport
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError, NodeNotFoundError, WriteConflictError, ZarrError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.dying import DyingStore, dying_store, in_child, names
from tests.support.netcdf import PACKED, assert_same, day, joined, visible_length, write_days

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
CHUNKS: dict[str, Any] = {"time": 10, "lat": 4}


def ingest_and_die(paths: list[Path], out: Path, puts: int, options: dict[str, Any]) -> None:
    sync.ingest(paths, dying_store(out, puts), concat="time", chunks=CHUNKS, **options)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("zarr_format", "step"),
    [(3, 7), (2, 7), pytest.param(3, 1, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)],
)
def test_a_kill_while_any_value_is_stored_or_erased(tmp_path: Path, zarr_format: int, step: int):
    """Readers see nothing of an unfinished job, and a rerun completes it. Then the same for an append."""
    paths = write_days(tmp_path / "nc", range(4))
    out, puts, finished = tmp_path / "out.zarr", 0, 0
    expected = []
    for known in (paths[:2], paths):
        sync.ingest(known, tmp_path / "x.zarr", concat="time", chunks=CHUNKS, zarr_format=zarr_format, append=True)
        expected.append(names(tmp_path / "x.zarr"))
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
            assert names(out) == expected[finished]
            finished, puts = finished + 1, 0
        else:
            puts += step


@pytest.mark.processes
def test_finished_tasks_of_a_job_that_was_replaced_do_not_count(tmp_path: Path):
    """Two jobs with different rows at the same place are killed in turn, then the first one is run again."""
    paths = write_days(tmp_path / "nc", range(2))
    day(1, seed=9).to_netcdf(other := tmp_path / "other.nc", encoding=PACKED)
    out = tmp_path / "out.zarr"
    sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)
    last, options = 0, {"append": True, "executor": map}  # tasks of executors are marked, also single ones
    while not list(out.glob(".ingest/task-*")):
        last += 1
        assert in_child(ingest_and_die, paths, out, last, options) == -signal.SIGKILL
    in_child(ingest_and_die, [other], out, last, options)
    sync.ingest(paths, out, concat="time", append=True)
    assert_same(out, joined(paths))


@pytest.mark.smoke
@pytest.mark.processes
def test_a_rerun_skips_finished_tasks(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(4))
    out = tmp_path / "out.zarr"
    assert in_child(ingest_and_die, paths, out, 24, {}) == -signal.SIGKILL
    report = sync.ingest(paths, out, concat="time", chunks=CHUNKS)
    assert report.blocks + report.skipped >= 1
    assert_same(out, joined(paths))


@pytest.mark.processes
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


@pytest.mark.processes
def test_an_interrupted_append_does_not_keep_others_out(tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(4))
    out = tmp_path / "out.zarr"
    sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)
    in_child(ingest_and_die, paths[:2], out, 6, {"append": True})
    sync.ingest([paths[0], paths[1], paths[2]], out, concat="time", append=True)
    sync.ingest(paths, out, concat="time", append=True)
    assert_same(out, joined(paths))


def test_a_task_that_goes_on_is_waited_for(tmp_path: Path):
    """A worker may go on for a while after its job was killed. Nobody continues the job before it has ended."""
    store = stores.LocalStore(tmp_path)
    one, two, three = (claims.Claim(store, "") for _ in range(3))
    one.acquire(0)
    token = one.token()
    assert token is not None
    taken = threading.Event()

    def take_over() -> None:
        two.acquire(60)
        taken.set()

    with TaskLease(store, token):
        one.restore()
        thread = threading.Thread(target=take_over)
        thread.start()
        while json.loads((tmp_path / ".ingest/claim").read_text())["token"] == token.id:
            thread.join(0.01)
        assert not taken.wait(0.6)  # it looks four times a second
    thread.join(60)
    assert taken.is_set()
    with pytest.raises(WriteConflictError, match="another process continues it"), TaskLease(store, token):
        pass
    two.release()
    assert names(tmp_path) == []
    three.acquire(0)
    three.release()


class HandingStore(stores.LocalStore):
    """A store in which another job takes a claim as soon as it is erased."""

    next: Any = None

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await super().erase(key, if_version=if_version)
        if key == ".ingest/claim" and if_version is not None:
            self.next()


def test_a_claim_that_is_taken_at_once_stays(tmp_path: Path):
    store, plain = HandingStore(tmp_path), stores.LocalStore(tmp_path)
    one, two = claims.Claim(store, ""), claims.Claim(plain, "")
    store.next = lambda: two.acquire(0)
    one.acquire(0)
    one.release()
    two.update(plan="x")
    two.release()
    assert names(tmp_path) == []


def note_process(folder: Path) -> None:
    (folder / str(os.getpid())).touch()


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells this")
def test_a_process_that_was_killed_is_gone_before_its_parent_notices(tmp_path: Path):
    store = stores.LocalStore(tmp_path)
    child = os.fork()
    if not child:
        claims.Claim(store, "").acquire(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        claim = claims.Claim(store, "")
        claim.acquire(0)
        claim.release()
    finally:
        os.waitpid(child, 0)


def start_workers_and_die(folder: Path) -> None:
    call = partial(note_process, folder)
    FileWorkers(2).run(range(4), lambda number: call, lambda number, result: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.processes
def test_workers_end_with_their_job(tmp_path: Path):
    in_child(start_workers_and_die, tmp_path)
    numbers = [path.name for path in tmp_path.iterdir()]
    assert numbers
    wait_until(lambda: not any(Path(f"/proc/{number}").exists() for number in numbers))


def append(paths: list[Path], out: Path) -> None:
    sync.ingest(paths, out, concat="time", append=True, on_duplicate="skip")


@pytest.mark.processes
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


@pytest.mark.processes
@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_is_killed_last(tmp_path: Path, number: int):
    """One of two idle workers holds a lock. If it is killed when the job has ended already, nothing waits for it."""
    before = set(multiprocessing.active_children())
    workers = FileWorkers(2)
    workers.run(range(8), lambda task: partial(note_process, tmp_path), lambda task, result: None)
    children = sorted(child.pid or 0 for child in set(multiprocessing.active_children()) - before)
    assert len(children) == 2
    os.kill(children[number], signal.SIGSTOP)
    closing = threading.Thread(target=workers.close, daemon=True)
    closing.start()
    closing.join(0.5)
    with contextlib.suppress(ProcessLookupError):
        os.kill(children[number], signal.SIGKILL)
    closing.join(60)
    assert not closing.is_alive()


class StoppingStore(DyingStore):
    """A store whose process stops before it stores the n-th value, until it is killed."""

    def _count(self, key: str = "") -> None:
        self.left -= 1
        if self.left < 0:
            (self.root.parent / "stopped").touch()
            signal.pause()


def append_and_stop(paths: list[Path], out: Path, puts: int) -> None:
    store = StoppingStore(out)
    store.left = puts
    sync.ingest(paths, store, concat="time", append=True)


def append_on_command_line(paths: list[Path], out: Path, log: Path) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os._exit(main(["ingest", *map(str, paths), str(out), "--concat", "time", "--append", "--wait", "60"]))


@pytest.mark.processes
@pytest.mark.parametrize("puts", [2, 6])
def test_a_job_that_waits_continues_after_a_kill(tmp_path: Path, puts: int):
    """Two jobs at once, as from cron. The first one is killed, then the second one completes its work."""
    paths = write_days(tmp_path / "nc", range(3))
    out, log = tmp_path / "out.zarr", tmp_path / "log"
    sync.ingest(paths[:1], out, concat="time", chunks=CHUNKS)
    context = multiprocessing.get_context("fork")
    first = context.Process(target=append_and_stop, args=(paths[:2], out, puts))
    first.start()
    wait_until((tmp_path / "stopped").exists)
    second = context.Process(target=append_on_command_line, args=(paths, out, log))
    second.start()
    wait_until(lambda: log.exists() and "waiting up to 60 s for another job that writes / in" in log.read_text())
    assert second.is_alive()
    first.kill()
    second.join(60)
    assert second.exitcode == 0
    assert_same(out, joined(paths))
    first.join()
    assert not [name for name in names(out) if ".ingest" in name or "partial" in name]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_running_job_is_waited_for(tmp_path: Path):
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
    (out / ".ingest").mkdir()
    (out / ".ingest/claim").write_text(json.dumps({"owner": "0.1.2", "beat": 5, "state": "running"}))
    (third,) = write_days(tmp_path / "nc", [2])
    with clock.replaced(ShiftedClock(50)):
        sync.ingest(third, out, concat="time", append=True)
    assert_same(out, joined([*paths, third]))


def test_a_suspended_job_notices_that_it_was_replaced():
    store = stores.MemoryStore({})
    one, two = claims.Claim(store, "a"), claims.Claim(store, "a")
    one.acquire(0)
    with clock.replaced(ShiftedClock(50)):  # the first one is dead after less than the time of a beat
        two.acquire(600)
    with pytest.raises(WriteConflictError, match="taken over"):
        one.update(plan="x")
    with pytest.raises(WriteConflictError, match="taken over"):
        one.check()
    one.release()
    two.update(plan="y")
    two.release()


def test_a_suspended_job_does_not_release_the_claim_of_another():
    """It ends without an error, because its result is published, by itself or by the other job."""
    store = stores.MemoryStore(values := {})
    one, two = claims.Claim(store, ""), claims.Claim(store, "")
    one.acquire(0)
    with clock.replaced(ShiftedClock(50)):
        two.acquire(600)
    values[two.folder.task_key("x", 7)] = b""
    one.release()
    assert two.folder.finished("x") == {7}
    two.update(plan="x")
    two.release()
    assert not values


def test_a_suspended_job_stops_in_the_middle_of_a_task(tmp_path: Path):
    """It notices when it has written a block that another job has taken over its claim."""
    day(0, lat=100, lon=400).to_netcdf(path := tmp_path / "0.nc")
    out = tmp_path / "out.zarr"
    calls: list[int] = []

    def take_over(nbytes: int) -> None:
        if not nbytes:
            return
        calls.append(nbytes)
        (out / ".ingest/claim").write_text(json.dumps({"owner": "0.1.2", "id": "x", "beat": 0, "state": "running"}))
        wait_until(lambda: not any(thread.name == "zarrasync-lease" for thread in threading.enumerate()))

    small = replace(config.get(), memory_budget=1 << 20, threads=1)
    with pytest.raises(WriteConflictError, match="another job has taken over"):
        sync.ingest(path, out, concat="time", chunks={"time": 1}, progress=take_over, config=small)
    assert calls == [calls[0]]
    assert not list(out.glob(".ingest/task-*"))


def ingest_and_kill(paths: list[Path], out: Path, victim: str) -> None:
    """Ingest files on two processes, and kill some processes as soon as a task has ended."""
    os.setpgid(0, 0)

    def kill(nbytes: int) -> None:
        workers = multiprocessing.active_children()
        if not nbytes or len(workers) < 2 or (out / "killed").exists():
            return
        (out / "killed").touch()
        if victim == "group":
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid() if victim == "job" else workers[0].pid or 0, signal.SIGKILL)

    ingest_in_tasks(paths, out, append=True, chunks=CHUNKS, executor=2, progress=kill)


@pytest.mark.processes
@pytest.mark.parametrize("victim", ["job", "worker", "group"])
def test_processes_of_a_job_are_killed(tmp_path: Path, victim: str):
    """FileWorkers are replaced. Without the job, they end, and a rerun completes their work."""
    paths, out = write_days(tmp_path / "nc", range(6)), tmp_path / "out.zarr"
    sync.ingest(paths[:2], out, concat="time", chunks=CHUNKS)
    code = in_child(ingest_and_kill, paths, out, victim)
    assert code == (0 if victim == "worker" else -signal.SIGKILL)
    assert visible_length(out) == (144 if victim == "worker" else 48)
    (out / "killed").unlink()
    report = sync.ingest(paths, out, concat="time", append=True, chunks=CHUNKS)
    assert isinstance(report, FilesReport)
    assert (report.known == 6) == (victim == "worker")
    assert_same(out, joined(paths))
    assert sync.validate(out, data=True).ok
    assert not [name for name in names(out) if ".ingest" in name or "partial" in name]


class _Shapes(stores.WrapperStore):
    """Compares the lengths of all arrays after each change, as a reader without consolidated metadata could."""

    uneven: tuple[str, ...] = ()

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        version = await self.inner.put(key, data, if_version=if_version)
        lengths = {}
        for other in await self.inner.list_prefix(""):
            if other.endswith("/zarr.json") and (document := json.loads(await self.inner.get(other) or b"{}")).get(
                "shape"
            ):
                names = document["dimension_names"]
                lengths |= {other: document["shape"][names.index("time")]} if "time" in names else {}
        labels = lengths.get("time/zarr.json", 0)
        self.uneven += tuple(f"{other} after {key}" for other, length in lengths.items() if length > labels)
        return version


def test_labels_become_visible_first(tmp_path: Path):
    store = _Shapes(stores.MemoryStore())
    paths = write_days(tmp_path, range(4))
    for stop in (1, 2, 4):
        sync.ingest(paths[:stop], store, concat="time", append=stop > 1, chunks=CHUNKS)
    assert sync.open_array(store, path="time").shape[0] > 0
    assert store.uneven == ()


LEFT = {"state": "left", "publishing": True, "plan": "a" * 32}


@pytest.mark.parametrize(
    "files",
    [
        *({"claim": {"owner": owner}} for owner in (5, "x", "a.b", ["x"], {"x": 1}, "zz.zz.zz")),
        *({"claim": {"state": "left", "created": created}} for created in ("x", [1], 1.5, None)),
        *({"claim": {"state": state}} for state in ([], {}, 5)),
        *({"claim": content} for content in (b"\xff", b"[" * 100_000, [], "x", b"")),
        *({"claim": LEFT, "record": record} for record in (b"\xff", [], {}, 5, b"", b"[" * 100_000, {"plan": 5})),
        *(
            {"claim": LEFT, "record": {"plan": {"version": 1, **plan}}}
            for plan in ({}, {"reader": 5}, {"path": 7, "files": [1]})
        ),
        {"claim": {"state": "left"}, "run-x": {"owner": 5, "beat": [1]}},
        {"claim": {"state": "left"}, "task-a-x": {}},
    ],
    ids=lambda files: f"{json.dumps(files, default=repr)[:70]}",
)
def test_damaged_files_of_jobs(tmp_path: Path, files: dict[str, Any]):
    """The next job continues, or its error names the file and says what to do."""
    store = stores.MemoryStore()
    paths = write_days(tmp_path, range(3))
    sync.ingest(paths[:2], store, concat="time", chunks=CHUNKS)
    length = sync.open_array(store, path="time").shape[0]
    for name, content in files.items():
        store.values[f".ingest/{name}"] = content if isinstance(content, bytes) else json.dumps(content).encode()
    found: ZarrError | None = None
    try:
        sync.ingest(paths, store, concat="time", append=True, chunks=CHUNKS, wait=0.3)
    except ZarrError as error:
        found = error
    if found is not None:
        assert isinstance(found, WriteConflictError) or ".ingest/record" in str(found)
        for name in files:
            store.values.pop(f".ingest/{name}", None)
        sync.ingest(paths, store, concat="time", append=True, chunks=CHUNKS)
    assert sync.open_array(store, path="time").shape[0] == length * 3 // 2


KILLED = """
import os, signal, sys
from zarrasync import sync
kill = lambda nbytes: nbytes and os.kill(os.getpid(), signal.SIGKILL)
options = {"key": "test", "secret": "test", "endpoint_url": sys.argv[2]}
sync.ingest(sys.argv[3:], sys.argv[1], storage_options=options, concat="time", progress=kill)
"""


@pytest.mark.processes
def test_a_job_that_writes_to_a_bucket_is_killed(tmp_path: Path):
    paths, url = write_days(tmp_path / "nc", range(3)), f"s3://{BUCKET}/out.zarr"
    with serve_s3(tmp_path) as options:
        command = [sys.executable, "-c", KILLED, url, options["endpoint_url"], *map(str, paths)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        with pytest.raises(NodeNotFoundError):
            sync.open_group(url, storage_options=options)
        sync.ingest(paths, url, storage_options=options, concat="time", verify=True)
        with xr.open_dataset(url, engine="zarrasync", storage_options=options) as found:
            xr.testing.assert_equal(found.load(), joined(paths))
        with closing(s3_client(options)) as client:
            keys = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert not [key for key in keys if ".ingest" in key]
