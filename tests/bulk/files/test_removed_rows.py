"""Rows that were removed with ``resize`` after their job, and came back as fill values."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from zarrasync import stores, sync
from zarrasync.bulk.files.functions import FilesRequest, make_job
from zarrasync.bulk.files.records.row_samples import RowSample, add_samples
from zarrasync.bulk.files.records.spans import common, difference, union
from zarrasync.bulk.files.running.planned_job import PlannedJob
from zarrasync.bulk.files.running.pool import FileWorkers
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.config import Config
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.dying import dying_store, in_child
from tests.support.ingested import journal_key, put_journal, read_journal
from tests.support.netcdf import assert_same, day, joined, write_days

OPTIONS: dict[str, Any] = {"concat": "time", "chunks": {"time": 10, "lat": 4}, "append": True}


def resize(store: Any, lengths: list[int], *names: str) -> None:
    """Resize arrays with rows, to one length after the other."""
    arrays = dict(sync.open_group(store, mode="r+").arrays())
    rows = arrays["t2m"].shape[0] if "t2m" in arrays else arrays["a"].shape[0]
    chosen = [array for name, array in arrays.items() if array.shape[0] == rows and (not names or name in names)]
    for length, array in itertools.product(lengths, chosen):
        array.resize((length, *array.shape[1:]))


def resize_in_repository(place: Path, lengths: list[int], name: str) -> None:
    icechunk, zarr = pytest.importorskip("icechunk"), pytest.importorskip("zarr")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))
    for length in lengths:
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path=name, mode="r+")
        array.resize((length, *array.shape[1:]))
        session.commit("resize")


def again(report: Any) -> list[str]:
    assert isinstance(report, FilesReport)
    return [note.partition(",")[0] for note in report.notes if "written again" in note]


@pytest.mark.parametrize(("names", "length", "count"), covering([["t2m"], ["time"], []], [0, 25, 48], [3, 4]))
async def test_removed_rows_are_written_again(api: Api, tmp_path: Path, names: list[str], length: int, count: int):
    paths, out = write_days(tmp_path / "nc", range(4)), tmp_path / "out.zarr"
    sync.ingest(paths[:3], out, **OPTIONS)
    resize(out, [length, 72], *names)
    report = await api(api.ingest(paths[:count], out, **OPTIONS))
    assert again(report) == [f"{72 - length} rows ({length}:72) written again"]
    assert_same(out, joined(paths[:count]))
    report = await api(api.ingest(paths[:count], out, **OPTIONS))
    assert (report.known, report.files, report.notes) == (count, 0, [])


@pytest.mark.parametrize("way", ["format 2", "executor", "plan", "skip", "replace", "without append", "icechunk"])
async def test_other_ways(api: Api, tmp_path: Path, way: str):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    options: dict[str, Any] = {**OPTIONS}
    store: Any = out
    if way == "format 2":
        options["zarr_format"] = 2
    elif way in ("skip", "replace"):
        options["on_duplicate"] = way
    elif way == "without append":
        del options["append"]
    elif way == "icechunk":
        pytest.importorskip("icechunk")
        store = f"{out}|icechunk:"
    await api(api.ingest(paths, store, **options))
    (resize_in_repository if way == "icechunk" else resize)(out, [30, 72], "t2m")
    if way == "plan":
        plan, _ = make_job(FilesRequest(paths, store, "time", append=True, tasks=3)).plan_only(FileWorkers())
        assert plan is not None
        job = PlannedJob.of(
            type(plan).from_json(json.loads(json.dumps(plan.to_json()))), stores.LocalStore(out), Config()
        )
        job.run_independently(FileWorkers())
        job.finish()
    elif way == "executor":
        with ThreadPoolExecutor(2) as executor:
            await api(api.ingest(paths, store, executor=executor, **options))
    else:
        assert again(await api(api.ingest(paths, store, **options))) == ["42 rows (30:72) written again"]
    with xr.open_dataset(store, engine="zarrasync") as found:
        xr.testing.assert_equal(found.load(), joined(paths))


def write_arrays(folder: Path, count: int) -> list[Path]:
    """Write files whose rows have no labels: two arrays with large rows, one with small rows, and one of fill values."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.npz" for number in range(count)]
    for number, path in enumerate(paths):
        values = np.random.default_rng(number).random((8, 40))
        empty = np.full((8, 40), np.nan)
        np.savez(path, a=values, b=values + 1, small=np.arange(8) + 1 + number, empty=empty)
    return paths


@pytest.mark.parametrize("name", ["a", "small"])
async def test_rows_without_labels(api: Api, tmp_path: Path, name: str):
    paths, store = write_arrays(tmp_path / "nc", 5), stores.MemoryStore()
    options: dict[str, Any] = {"concat": "time", "dims": "time,x", "chunks": {"time": 3}, "append": True}
    for path in paths:
        values = dict(np.load(path))
        np.savez(path, **{**values, "small": values["small"][:, None]})
    await api(api.ingest(paths[:4], store, **options))
    assert (await api(api.ingest(paths[:4], store, **options))).known == 4
    resize(store, [19, 32], name)
    report = await api(api.ingest(paths, store, **options))
    assert again(report) == ["13 rows (19:32) written again"]
    assert (report.known, report.files, report.rows) == (2, 3, 21)
    for key in ("a", "b", "small", "empty"):
        expected = np.concatenate([np.load(path)[key] for path in paths])
        np.testing.assert_array_equal(sync.open_array(store, path=key)[:], expected)


async def test_files_that_the_job_does_not_have(api: Api, tmp_path: Path):
    """Their rows stay recorded, also if others are appended to them, until a job has the files."""
    paths, out = write_days(tmp_path / "nc", range(6)), tmp_path / "out.zarr"
    sync.ingest(paths[:3], out, **OPTIONS)
    resize(out, [30, 72], "t2m")
    for path in paths[3:5]:
        report = await api(api.ingest(path, out, **OPTIONS))
        (note,) = report.notes
        assert note.startswith("42 rows (30:72) were removed from ")
        assert note.endswith("ingest day1.nc, day2.nc again to restore them")
    report = await api(api.ingest(paths[1], out, **OPTIONS))
    assert [note.partition(" from")[0] for note in report.notes] == [
        "18 rows (30:48) written again, because they were removed",
        "24 rows (48:72) were removed",
    ]
    assert (await api(api.ingest(paths[4], out, **OPTIONS))).notes == [
        "24 rows (48:72) were removed from an array, and contain fill values; ingest day2.nc again to restore them"
    ]
    await api(api.ingest(paths, out, **OPTIONS))
    assert_same(out, joined(paths))
    assert (await api(api.ingest(paths, out, **OPTIONS))).notes == []
    assert "lost" not in read_journal(out)


async def test_rows_are_recorded_before_others_are_written(api: Api, tmp_path: Path):
    """A job that writes the last rows again would make them look complete."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    sync.ingest(paths, out, **OPTIONS)
    resize(out, [30, 72], "t2m")
    report = await api(api.ingest(paths[2], out, concat="time", region="auto"))
    assert [note.partition(" from")[0] for note in report.notes][1:] == ["18 rows (30:48) were removed"]
    assert again(await api(api.ingest(paths, out, **OPTIONS))) == ["18 rows (30:48) written again"]
    assert_same(out, joined(paths))


async def test_labels_of_files_that_the_job_does_not_have(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(4)), tmp_path / "out.zarr"
    sync.ingest(paths[:3], out, **OPTIONS)
    resize(out, [24, 72])
    with pytest.raises(ShapeError, match=r"24 rows of 'time', the first is row 24, .* day1.nc"):
        await api(api.ingest(paths[2:], out, **OPTIONS))
    await api(api.ingest(paths[1:], out, **OPTIONS))
    assert_same(out, joined(paths))


async def test_changed_values_are_not_replaced(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    sync.ingest(paths, out, **OPTIONS)
    array = sync.open_array(out, path="t2m", mode="r+")
    array[30:] = 1
    array[47, 0, 0] = array.fill_value
    report = await api(api.ingest(paths, out, **OPTIONS))
    assert (report.known, report.notes) == (2, [])
    assert (array[30:47] == 1).all()


async def test_all_rows_of_files_are_replaced_on_request(api: Api, tmp_path: Path):
    """They are not only restored where rows were removed."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    sync.ingest(paths, out, **OPTIONS)
    sync.open_array(out, path="t2m", mode="r+")[24:] = 1
    resize(out, [40, 72])
    report = await api(api.ingest(paths, out, on_duplicate="replace", **OPTIONS))
    assert again(report) == ["32 rows (40:72) written again"]
    assert_same(out, joined(paths))


async def test_rows_that_another_file_replaces(api: Api, tmp_path: Path):
    """The journal names the file that has written rows last, and its values are restored."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    other = tmp_path / "other.nc"
    day(2, seed=9).to_netcdf(other)
    sync.ingest(paths, out, concat="time", chunks={"time": 10}, decode=True)
    sync.ingest(other, out, concat="time", region="auto", decode=True)
    expected = sync.open_array(out, path="t2m")[:]
    resize(out, [60, 72], "t2m")
    await api(api.ingest([*paths, other], out, concat="time", append=True, on_duplicate="skip", decode=True))
    np.testing.assert_array_equal(sync.open_array(out, path="t2m")[:60], expected[:60])


def ingest_and_die(paths: list[Path], out: Path, puts: int) -> None:
    sync.ingest(paths, dying_store(out, puts), **OPTIONS)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
@pytest.mark.parametrize("names", [["t2m"], []], ids=["values", "all"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_while_rows_are_restored(tmp_path: Path, names: list[str], step: int):
    paths = write_days(tmp_path / "nc", range(3))
    for puts in itertools.count(0, step):
        sync.ingest(paths, out := tmp_path / f"{puts}.zarr", **OPTIONS)
        resize(out, [24, 72], *names)
        code = in_child(ingest_and_die, paths, out, puts)
        sync.ingest(paths, out, **OPTIONS)
        assert_same(out, joined(paths))
        if not code:
            return
        assert code == -signal.SIGKILL


async def test_requests_of_a_repeated_job(api: Api, tmp_path: Path):
    """One chunk of each array with rows is read."""
    paths, store = write_days(tmp_path / "nc", range(3)), stores.MemoryStore()
    sync.ingest(paths, store, **OPTIONS)
    requests = []
    for is_sampled in (True, False):
        counting = stores.CountingStore(store)
        report = await api(api.ingest(paths, counting, **OPTIONS))
        assert report.known == 3
        requests.append(report.requests)
        journal = read_journal(store)
        assert sorted(journal.pop("samples")) == ["t2m", "time"] if is_sampled else True
        put_journal(store, journal, journal_key(store))
    assert requests[0] - requests[1] == 2


def test_spans():
    assert union([(5, 7), (0, 3), (3, 4), (6, 9), (9, 9)]) == ((0, 4), (5, 9))
    assert difference([(0, 10), (20, 30)], [(2, 3), (5, 22), (30, 31)]) == ((0, 2), (3, 5), (22, 30))
    assert common([(0, 10), (20, 30)], [(5, 22), (29, 40)]) == ((5, 10), (20, 22), (29, 30))


def test_samples_of_several_jobs():
    def sample(length: int, *rows: int) -> RowSample:
        return RowSample(length, 0, ((rows[0], rows[1]), (0, 5)))

    samples = add_samples({}, {"a": sample(10, 5, 9), "b": sample(10, 9, 10)}, [(0, 10)])
    samples = add_samples(samples, {"a": sample(20, 15, 18)}, [(10, 20)])
    assert samples == {"a": sample(20, 15, 18), "b": sample(10, 9, 10)}
    assert add_samples(samples, {"a": sample(6, 4, 6)}, [(2, 6)]) == samples
    samples = add_samples(samples, {"a": sample(16, 10, 12)}, [(8, 16)])  # "b" has only fill values there now
    assert samples == {"a": sample(20, 10, 12)}
    assert add_samples(samples, {}, [(11, 12)]) == {}
