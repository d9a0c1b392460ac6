"""Files that come late: rows that are inserted, or laid out beforehand, and what a killed job leaves behind."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import FileOptions, Layout, sync
from zarrasync.cli import main
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
pytest.importorskip("h5netcdf", reason="h5netcdf writes the files")
from tests.support.dying import dying_store, in_child

ROWS = 3


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [write(number) for number in range(12)]


def write(number: int, seed: int = 0, rows: int = ROWS) -> str:
    time = np.datetime64("2024-01-01", "ns") + (ROWS * number + np.arange(rows)) * np.timedelta64(8, "h")
    values = np.random.default_rng([number, seed]).normal(size=(rows, 5)).astype("f4")
    name, series = f"{number:02}.nc", values[:, 0]
    xr.Dataset({"v": (("time", "x"), values), "s": ("time", series)}, {"time": time}).to_netcdf(name, engine="h5netcdf")
    return name


def check(store: Any, files: list[str]) -> None:
    """Compare the dataset with files in the order of their rows."""
    parts = [xr.open_dataset(name, engine="h5netcdf").load() for name in files]
    with xr.open_dataset(store, engine="zarrasync") as found:
        for name in ("time", "v", "s"):
            np.testing.assert_array_equal(found[name].values, np.concatenate([part[name].values for part in parts]))
    assert sync.validate(store, data=True).ok


def options(rows: int = 4) -> dict[str, Any]:
    return {"concat": "time", "append": True, "layout": Layout(chunks={"time": rows})}


async def test_late_files_are_inserted_if_little_moves(api: Api, files: list[str]):
    await api(api.ingest_files([files[n] for n in (0, 1, 3)], "a.zarr", **options()))
    report = await api(api.ingest_files([*files[:4], files[5]], "a.zarr", **options()))
    assert (report.files, report.known, report.rows, report.left_out) == (2, 3, 6, [])
    check("a.zarr", [*files[:4], files[5]])
    report = await api(api.ingest_files([*files[:4], files[5]], "a.zarr", **options()))
    assert (report.files, report.known) == (0, 5)
    assert not Path("a.zarr/.ingest").exists()


async def test_late_files_are_left_out_if_much_moves(api: Api, files: list[str]):
    await api(api.ingest_files(files[4:8], "a.zarr", **options()))
    for _ in range(2):
        report = await api(api.ingest_files([files[0], *files[4:9]], "a.zarr", **options()))
        assert "00.nc: left out, because its rows come before" in report.left_out[0]
        assert "on_late='insert' to insert them, which writes" in report.left_out[0]
        check("a.zarr", files[4:9])
    with pytest.raises(ShapeError, match=r"00.nc is late: .* on_late='insert'"):
        await api(api.ingest_files([files[0], *files[4:10]], "a.zarr", on_late="error", **options()))
    await api(api.ingest_files([files[0], *files[4:10]], "a.zarr", on_late="insert", **options()))
    check("a.zarr", [files[0], *files[4:10]])
    report = await api(api.ingest_files([files[0], *files[4:10]], "a.zarr", **options()))
    assert (report.files, report.known) == (0, 7)


async def test_a_file_between_the_rows_of_another_one(api: Api, tmp_path: Path, files: list[str]):
    whole = xr.concat([xr.open_dataset(name, engine="h5netcdf") for name in files[:3]], "time").load()
    whole.isel(time=[0, 1, 4, 7]).to_netcdf("even.nc", engine="h5netcdf")
    whole.isel(time=[2, 3, 5, 8]).to_netcdf("odd.nc", engine="h5netcdf")
    await api(api.ingest_files("even.nc", "a.zarr", **options(10)))
    await api(api.ingest_files(["even.nc", "odd.nc"], "a.zarr", **options(10)))
    whole.isel(time=[0, 1, 2, 3, 4, 5, 7, 8]).to_netcdf("all.nc", engine="h5netcdf")
    check("a.zarr", ["all.nc"])
    assert (await api(api.ingest_files(["even.nc", "odd.nc"], "a.zarr", **options(10)))).known == 2


async def test_plans_leave_late_files_out(api: Api, files: list[str]):
    await api(api.ingest_files(files[1:3], "a.zarr", **options()))
    plan = await api(api.plan_ingest([files[0], files[3]], "a.zarr", **options()))
    assert "00.nc: left out" in plan.left_out[0]
    await api(plan.run())
    report = await api(plan.finish())
    assert "00.nc: left out" in report.left_out[0]
    check("a.zarr", files[1:4])


def test_the_command_ends_with_3(files: list[str], capsys: pytest.CaptureFixture[str]):
    words = ["a.zarr", "--concat", "time", "--append", "--chunks", "time=2"]
    assert main(["ingest", *files[2:6], *words]) == 0
    capsys.readouterr()
    assert main(["ingest", files[0], *files[2:7], *words]) == 3
    assert "pass --on-late insert to insert them" in capsys.readouterr().out
    assert main(["ingest", files[0], *files[2:7], *words, "--on-late", "insert"]) == 0
    check("a.zarr", [files[0], *files[2:7]])


# ------------------------------------------------------------------ reserved rows


async def test_reserved_rows_are_filled_in_any_order(api: Api, files: list[str]):
    reserve, order = "2024-01-01/2024-01-10/8h", [7, 2, 9, 0, 3, 1, 8, 5, 4, 6]
    for count, number in enumerate(order):
        report = await api(api.ingest_files(files[number], "a.zarr", reserve=reserve, **options()))
        assert report.left_out == []
        with xr.open_dataset("a.zarr", engine="zarrasync") as found:
            assert found.sizes["time"] == 30
            filled = np.isfinite(found.v.values[:, 0]).reshape(10, ROWS).all(1)
        assert set(np.flatnonzero(filled)) == {*order[: count + 1]}
    check("a.zarr", files[:10])
    assert not [note for note in report.notes if "reserved" in note]
    with pytest.raises(ShapeError, match="already contains the label"):
        write(4, seed=1)
        await api(api.ingest_files(files[4], "a.zarr", reserve=reserve, **options()))
    await api(api.ingest_files([*files[:4], files[11]], "a.zarr", reserve=reserve, **options()))
    assert (await api(api.ingest_files(files[4], "a.zarr", on_duplicate="replace", **options()))).rows == 3
    check("a.zarr", [*files[:10], files[11]])


async def test_labels_that_cannot_be_reserved(api: Api, tmp_path: Path):
    np.savez(tmp_path / "a.npz", v=np.arange(2), id=np.array(["a", "b"]))
    with pytest.raises(ShapeError, match="needs numbers or times as labels, found"):
        await api(api.ingest_files(tmp_path / "a.npz", {}, concat="id", reserve="0/9/1", source=FileOptions(dims="id")))


async def test_rows_between_the_reserved_ones_are_told(api: Api, files: list[str]):
    """As when the first label has the wrong hour: all rows are right, and there are more of them than were meant."""
    report = await api(api.ingest_files(files[:2], "a.zarr", reserve="2023-12-31T01/2024-01-10/8h", **options()))
    told = [note for note in report.notes if "between" in note]
    assert told == ["6 rows between the reserved ones, such as 2024-01-01T00:00:00"]


@pytest.mark.parametrize(
    ("reserve", "count"),
    [
        ("2024-01-01/2024-12-31/6h", 1464),
        ("2024-01-01/2024-12-31T18:00/6h", 1464),
        ("2024-01/2024-03/1D", 91),
        ("2024/2025/MS", None),  # a step is a number and a unit
        ("2024/2025/1MS", 24),
        ("2024-01-01T00:00/2024-01-01T02:00/30min", 5),
        ("2024-01-01/2023-01-01/6h", None),
        ("2024-13-01/2025-01-01/6h", None),
        ("2024-01-01/2024-02-01/6m", None),
    ],
)
async def test_ranges(api: Api, files: list[str], reserve: str, count: int | None):
    if count is None:
        with pytest.raises(ValueError, match="reserve='"):
            await api(api.ingest_files(files[0], "a.zarr", reserve=reserve, **options()))
        return
    await api(api.ingest_files(files[0], "a.zarr", reserve=reserve, **options()))
    labels = {*xr.open_zarr("a.zarr").time.values}
    own = {*xr.open_dataset(files[0], engine="h5netcdf").time.values}
    assert own <= labels
    assert count <= len(labels) <= count + len(own)
    if reserve.endswith("/6h"):
        step = np.timedelta64(6, "h")
        assert labels == own | {*np.arange(np.datetime64("2024-01-01", "ns"), np.datetime64("2025-01-01"), step)}
    if reserve.endswith("MS"):
        assert {*np.arange("2024-01", "2026-01", dtype="M8[M]").astype("M8[ns]")} <= labels


# ------------------------------------------------------------------ kills


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_step_of_an_insertion(files: list[str], step: int):
    """Readers see the rows before the late file at least, and the next job has all rows, also without the other files."""
    late, others = files[2], [*files[:2], *files[3:6]]
    sync.ingest_files(others, "before.zarr", **options())
    puts, code = 0, -1
    while code:
        shutil.rmtree("a.zarr", ignore_errors=True)
        shutil.copytree("before.zarr", "a.zarr")
        code = in_child(insert, late, Path("a.zarr"), puts)
        assert code in (0, -signal.SIGKILL)
        with xr.open_dataset("a.zarr", engine="zarrasync") as found:
            labels, values = found.time.values, found.v.values
        expected = xr.concat([xr.open_dataset(name, engine="h5netcdf") for name in files[:6]], "time").sel(time=labels)
        np.testing.assert_array_equal(values, expected.v.values)
        assert len(labels) >= 6
        report = sync.ingest_files(late, "a.zarr", on_late="insert", **options())
        assert report.left_out == []
        check("a.zarr", files[:6])
        assert not Path("a.zarr/.ingest").exists()
        assert sync.ingest_files(files[:6], "a.zarr", **options()).known == 6
        puts += step
    assert puts > 20


def insert(file: str, out: Path, puts: int) -> None:
    sync.ingest_files(file, dying_store(out, puts), on_late="insert", **options())
