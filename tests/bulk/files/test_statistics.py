"""Statistics of stored values, compared with the files."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.bulk.files.functions import FilesRequest, make_job
from zarrasync.bulk.files.running import planned_job, statistics
from zarrasync.bulk.files.running.pool import FileWorkers
from zarrasync.cli import main
from zarrasync.display.job_progress import JobProgress, Monitor
from zarrasync.errors import ChecksumError, WriteConflictError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import PACKED, day, joined, write_days


def with_gaps(number: int) -> Any:
    dataset = day(number)
    return dataset.assign(t2m=dataset.t2m.where(dataset.t2m > 275))


def expected(dataset: Any, name: str) -> tuple[int, int, float, float, float]:
    values = dataset[name].astype("f8")
    numbers = (float(getattr(values, key)()) for key in ("min", "max", "mean"))
    low, high, mean = numbers
    return values.size, int(values.isnull().sum()), low, high, mean


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zarr_format": 2},
        {"decode": True},
        pytest.param({"executor": 2}, marks=pytest.mark.processes),
        {"encoding": {"t2m": {"dtype": "f8"}}},
    ],
)
async def test_packed_and_missing_values(api: Api, tmp_path: Path, options: dict[str, Any]):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.nc")
        with_gaps(number).to_netcdf(paths[-1], encoding={} if "encoding" in options else PACKED)
    arguments = {"concat": "time", "chunks": {"time": 7}, **options}
    store: Any = tmp_path / "out.zarr"
    report = await api(api.ingest(paths[:2], store, statistics=True, **arguments))
    found = {item.name: item for item in report.statistics}
    assert sorted(found) == ["lat", "lon", "mask", "t2m", "time"]
    for name in ("t2m", "mask", "lat"):
        files, stored = found[name].files, found[name].stored
        summary = (files.count, files.invalid, files.minimum, files.maximum, files.mean)
        assert summary == pytest.approx(expected(joined(paths[:2]), name), rel=1e-6)
        assert (stored.count, stored.invalid, stored.minimum) == (files.count, files.invalid, files.minimum)
    assert expected(joined(paths[:2]), "t2m")[1] > 0
    appended = await api(api.ingest(paths, store, statistics=True, append=True, **arguments))
    (t2m,) = [item for item in appended.statistics if item.name == "t2m"]
    assert (t2m.files.count, t2m.differences) == (24 * 6 * 8, [])  # the new rows
    again = await api(api.ingest(paths, store, statistics=True, append=True, **arguments))
    assert (again.known, again.files) == (3, 0)
    (t2m,) = [item for item in again.statistics if item.name == "t2m"]
    assert t2m.stored.mean == pytest.approx(expected(joined(paths), "t2m")[4], rel=1e-6)


@pytest.mark.parametrize("region", [(0, 0, 0), (slice(2, 4), slice(None), slice(None))])
async def test_values_that_differ(api: Api, tmp_path: Path, region: Any):
    paths = write_days(tmp_path / "nc", range(2), packed=False)
    await api(api.ingest(paths, store := {}, concat="time"))
    array = sync.open_array(store, path="t2m", mode="r+")
    array[region] = np.nan
    count = int(np.isnan(array[:]).sum())
    with pytest.raises(ChecksumError, match=f"t2m: missing 0 in the files, {count} stored, .*mean .*region='auto'"):
        await api(api.ingest(paths, store, concat="time", statistics=True))
    await api(api.ingest(paths, store, concat="time", region="auto", statistics=True))
    await api(api.ingest(paths, store, concat="time", statistics=True))


async def test_a_single_file(api: Api, tmp_path: Path):
    (path,) = write_days(tmp_path / "nc", [0])
    first = await api(api.ingest(path, store := {}, statistics=True))
    again = await api(api.ingest(path, store, statistics=True))
    assert again.known == 1
    assert [item.to_dict() for item in first.statistics] == [item.to_dict() for item in again.statistics]
    sync.open_array(store, path="mask", mode="r+")[0, 0] = 100
    with pytest.raises(ChecksumError, match="mask: max 1 in the files, 100 stored"):
        await api(api.ingest(path, store, statistics=True))


async def test_progress(api: Api, tmp_path: Path):
    """The comparison is a job of its own, with the size of the values that it reads."""
    ended: dict[str, tuple[int, int]] = {}

    class Log(Monitor):
        def ended(self, job: JobProgress, error: BaseException | None) -> None:
            if job.parent is None:
                ended[job.label] = job.done, job.total

    paths, store = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    for _ in range(2):
        await api(api.ingest(paths, store, concat="time", chunks={"time": 7}, statistics=True, progress=Log()))
        assert ended.pop("compare out.zarr") == (2 * 3456, 2 * 3456)
        assert "ingest out.zarr" in ended


async def test_rows_without_labels_and_values_without_numbers(api: Api, tmp_path: Path):
    for number in range(3):
        names = np.array([f"a{number}", "b"])
        times = np.array(["NaT", f"200{number}-01-01"], "M8[s]")
        np.savez(tmp_path / f"{number}.npz", values=np.array([number, np.inf]), names=names, times=times)
    options: dict[str, Any] = {"concat": "row", "dims": "row", "append": True, "statistics": True}
    await api(api.ingest(tmp_path / "1.npz", store := {}, **options))
    await api(api.ingest(str(tmp_path / "*.npz"), store, **options))
    report = await api(api.ingest(str(tmp_path / "*.npz"), store, **options))
    found = {item.name: item.stored for item in report.statistics}
    values, names, times = found["values"], found["names"], found["times"]
    assert (values.count, values.infinite, values.minimum, values.maximum, values.mean) == (6, 3, 0, 2, 1)
    assert (names.count, names.mean) == (6, None)
    assert (times.count, times.invalid, times.minimum) == (6, 3, 946684800)
    with pytest.raises(ValueError, match="statistics are compared for files"):
        await api(api.ingest(np.arange(3), {}, statistics=True))


@pytest.mark.parametrize("width", [3, 40], ids=["values in the plan", "values of tasks"])
@pytest.mark.parametrize("is_text", [True, False])
async def test_strings_and_complex_numbers_are_compared(api: Api, tmp_path: Path, is_text: bool, width: int):
    paths = [tmp_path / f"{number}.npz" for number in range(2)]
    for number, path in enumerate(paths):
        values = np.arange(4 * width).reshape(4, width) + number
        np.savez(path, data=values.astype("U5") if is_text else values + 1j)
    options: dict[str, Any] = {"concat": "row", "dims": "row,x", "append": True, "statistics": True}
    report = await api(api.ingest(paths, store := {}, **options))
    (data,) = report.statistics
    assert (data.files.count, data.differences) == (8 * width, [])
    assert data.to_dict()["files"] == data.to_dict()["stored"]
    assert data.to_dict()["files"]["checksum"] != "0"
    assert (await api(api.ingest(paths, store, **options))).known == 2
    sync.open_array(store, path="data", mode="r+")[1, 2] = "bad" if is_text else 7j
    with pytest.raises(ChecksumError, match=r"data: checksum [0-9a-f]+ in the files, [0-9a-f]+ stored"):
        await api(api.ingest(paths, store, **options))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    paths = [str(path) for path in write_days(tmp_path / "nc", range(2))]
    assert main(["ingest", *paths, "a.zarr", "--concat", "time", "--statistics", "--quiet", "--report", "a.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["variable", "values", "missing", "min", "max", "mean", "stored", "values"]
    assert lines[2].split()[:3] == ["t2m", "2,304", "0"]
    assert all(line.endswith("equal") for line in lines[2:])
    assert ">equal</td>" in Path("a.html").read_text()
    sync.open_array("a.zarr", path="t2m", mode="r+")[0] = 0
    words = ["ingest", *paths, "a.zarr", "--concat", "time", "--statistics", "--report", "a.json"]
    assert main(words) == 1
    assert "statistics of a.zarr differ from the files: t2m: mean" in (error := capsys.readouterr().err)
    assert "--region auto" in error
    done = json.loads(Path("a.json").read_text())["done"]
    assert [item["name"] for item in done["statistics"] if item["differences"]] == ["t2m"]
    plan = ["ingest", "plan", *paths, "b.zarr", "--concat", "time", "--statistics", "--plan", "p"]
    assert main(plan) == 0
    assert main(["ingest", "run", "p"]) == 0
    capsys.readouterr()
    assert main(["ingest", "finish", "p", "--json"]) == 0
    statistics = json.loads(capsys.readouterr().out)["statistics"]
    assert [item["name"] for item in statistics] == ["t2m", "mask", "time", "lat", "lon"]
    assert all(item["files"] == item["stored"] and not item["differences"] for item in statistics)


@pytest.mark.parametrize("is_known", [False, True])
async def test_other_jobs_wait_for_the_comparison(api: Api, tmp_path: Path, *, is_known: bool):
    """Otherwise they could change the values before they are compared."""
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    other = tmp_path / "other.nc"
    day(1, seed=7).to_netcdf(other, encoding=PACKED)
    errors: list[BaseException | None] = []

    class ChangingMonitor(Monitor):
        def started(self, job: JobProgress) -> None:
            if job.label == "compare out.zarr":
                call = threads.submit(sync.ingest, other, out, concat="time", region="auto", wait=0)
                errors.append(call.exception(60))

    if is_known:
        sync.ingest(paths, out, concat="time")
    with ThreadPoolExecutor(1) as threads:
        await api(api.ingest(paths, out, concat="time", statistics=True, progress=ChangingMonitor()))
    assert [type(error) for error in errors] == [WriteConflictError]
    assert not (out / ".ingest").exists()
    sync.ingest(other, out, concat="time", region="auto", wait=0)
    sync.open_array(out, path="t2m", mode="r+")[0, 0, 0] = 1
    with pytest.raises(ChecksumError, match="t2m: mean"):
        await api(api.ingest(paths, out, concat="time", statistics=True))
    assert not (out / ".ingest").exists()


@pytest.mark.parametrize("is_finished", [False, True])
def test_other_jobs_wait_while_a_plan_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_finished: bool):
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    check, errors = statistics.check_statistics, list[BaseException | None]()

    def check_meanwhile(*arguments: Any) -> None:
        errors.append(threads.submit(sync.ingest, paths, out, concat="time", region="auto", wait=0).exception(60))
        check(*arguments)

    monkeypatch.setattr(planned_job, "check_statistics", check_meanwhile)
    plan, _ = make_job(FilesRequest(paths, out, "time")).plan_only(FileWorkers())
    assert plan is not None
    job = planned_job.PlannedJob.of(plan, stores.LocalStore(out), za.config.get())
    job.run_independently(FileWorkers())
    if is_finished:
        job.finish()
    with ThreadPoolExecutor(1) as threads:
        job.finish(statistics=True)
    assert [type(error) for error in errors] == [WriteConflictError]
    assert not (out / ".ingest").exists()
