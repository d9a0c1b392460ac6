"""Files that differ: functions that change them, tolerances, labels from names, rows without labels, variables that begin later."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import FileOptions, sync
from zarrasync.cli import main
from zarrasync.errors import ShapeError, SourceFilesError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
pytest.importorskip("h5netcdf", reason="h5netcdf writes the files")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def write(name: str, dataset: Any, **encoding: Any) -> str:
    dataset.to_netcdf(name, engine="h5netcdf", encoding=encoding)
    return name


def day(number: int, variables: str = "t", lon: Any = (0.0, 90.0, 180.0, 270.0)) -> Any:
    time = np.datetime64("2024-01-01", "ns") + np.arange(2 * number, 2 * number + 2) * np.timedelta64(12, "h")
    values = np.random.default_rng(number).normal(size=(2, len(lon))).astype("f4")
    data = {name: (("time", "lon"), values + index) for index, name in enumerate(variables)}
    return xr.Dataset(data, {"time": time, "lon": np.asarray(lon)})


def wrap(dataset: Any) -> Any:
    return dataset.assign_coords(lon=(dataset.lon + 180) % 360 - 180).sortby("lon")


@pytest.mark.parametrize("executor", [None, pytest.param(2, marks=pytest.mark.processes)])
async def test_a_function_that_wraps_longitudes(api: Api, executor: int | None):
    Path("recipes.py").write_text(
        "def wrap(dataset):\n    return dataset.assign_coords(lon=(dataset.lon + 180) % 360 - 180).sortby('lon')\n"
    )
    files = [write(f"{n}.nc", day(n)) for n in range(3)]
    functions: list[Any] = ["recipes:wrap", wrap]
    for number, function in enumerate(functions):
        out = f"{number}.zarr"
        await api(api.ingest_files(files, out, concat="time", preprocess=function, executor=executor))
        found, expected = xr.open_zarr(out), xr.concat([wrap(day(n)) for n in range(3)], "time")
        xr.testing.assert_equal(found.load(), expected)
    sys.modules.pop("recipes", None)


async def test_the_record_of_a_function(api: Api, monkeypatch: pytest.MonkeyPatch):
    Path("others.py").write_text("def keep(dataset):\n    return dataset\n")
    write("0.nc", day(0))
    plan = await api(api.plan_ingest("0.nc", "a.zarr", concat="time", preprocess="others:keep"))
    reader = json.loads(Path("a.zarr/.ingest/plan.json").read_text())["plan"]["reader"]
    assert reader["preprocess"].startswith("others:keep@")
    await api(plan.abandon())
    with pytest.raises(ValueError, match="other processes cannot import the function"):
        await api(api.ingest_files("0.nc", "a.zarr", concat="time", preprocess=lambda dataset: dataset, executor=2))
    cases: list[tuple[Any, str]] = [
        ("others:nothing", "cannot be imported"),
        ("others", "is not the name of a module and a function"),
        (lambda dataset: None, "must return a dataset of xarray, found NoneType"),
    ]
    for function, message in cases:
        with pytest.raises(ValueError, match=message):
            await api(api.ingest_files("0.nc", "a.zarr", concat="time", preprocess=function))


async def test_dates_that_a_function_makes(api: Api):
    files = [write(f"{n}.nc", xr.Dataset({"v": ("row", np.arange(3.0) + n)}, attrs={"day": n})) for n in range(3)]

    def dated(dataset: Any) -> Any:
        time = np.datetime64("2024-02-01", "ns") + dataset.attrs["day"] * np.timedelta64(24, "h")
        return dataset.rename(row="time").assign_coords(time=time + np.arange(3) * np.timedelta64(8, "h"))

    await api(api.ingest_files(files, "a.zarr", concat="time", preprocess=dated))
    found = xr.open_zarr("a.zarr")
    assert (
        found.time.values.tolist() == np.arange("2024-02-01", "2024-02-04", 8, dtype="M8[h]").astype("M8[ns]").tolist()
    )
    assert found.v.values.tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4]


@pytest.mark.parametrize("size", [4, 20_000])
async def test_coordinates_with_rounding_errors(api: Api, size: int):
    lon = np.linspace(0, 360, size)
    write("0.nc", day(0, lon=lon))
    write("1.nc", day(1, lon=lon + 1e-7))
    write("2.nc", day(2, lon=lon + 1e-3))
    source = FileOptions(coordinate_tolerance=1e-6)
    with pytest.raises(ShapeError, match=r"'lon' must be the same .*coordinate_tolerance"):
        await api(api.ingest_files(["0.nc", "1.nc"], "a.zarr", concat="time"))
    await api(api.ingest_files(["0.nc"], "a.zarr", concat="time", source=source))
    await api(api.ingest_files(["0.nc", "1.nc"], "a.zarr", concat="time", append=True, source=source))
    np.testing.assert_array_equal(sync.open_array("a.zarr", path="lon")[...], lon)
    with pytest.raises(ShapeError, match="'lon' must be the same"):
        await api(api.ingest_files(["2.nc"], "a.zarr", concat="time", append=True, source=source))


@pytest.mark.parametrize(
    ("pattern", "names", "labels"),
    [
        ("r{int}i1p1", ["tas_r1i1p1", "tas_r2i1p1", "tas_r10i1p1"], [1, 2, 10]),
        ("member{int}", ["member003", "member-1", "member2_x"], [-1, 2, 3]),
        ("level_{float}", ["t_level_0.5", "t_level_10", "t_level_2.25"], [0.5, 2.25, 10]),
        ("{str}_tas", ["north_tas", "south_tas", "west_tas"], ["north", "south", "west"]),
        ("tas_{str}", ["tas_north", "tas_south", "tas_west.v1"], ["north", "south", "west.v1"]),
    ],
)
async def test_labels_of_any_kind_from_names(api: Api, pattern: str, names: list[str], labels: list[Any]):
    files = [write(f"{name}.nc", day(n).isel(time=0, drop=True)) for n, name in enumerate(names)]
    await api(api.ingest_files(files, "a.zarr", concat="member", source=FileOptions(labels=pattern)))
    found = xr.open_zarr("a.zarr")
    assert found.member.values.tolist() == labels
    write("other.nc", day(0).isel(time=0, drop=True))
    with pytest.raises(ShapeError, match="contains no label that matches"):
        await api(api.ingest_files("other.nc", "b.zarr", concat="member", source=FileOptions(labels=pattern)))


async def test_rows_without_labels_are_stacked(api: Api):
    files = [
        write(f"{n}.nc", xr.Dataset({"v": ("step", n + np.arange(3.0 + n))}, {"step": np.arange(3 + n)}))
        for n in range(3)
    ]
    source = FileOptions(labels=None)
    with pytest.raises(ShapeError, match=r"lost then; source=FileOptions\(labels=None\) stores all rows"):
        await api(api.ingest_files(files, "a.zarr", concat="step"))
    await api(api.ingest_files(files[:2], "a.zarr", concat="step", source=source))
    report = await api(api.ingest_files(files, "a.zarr", concat="step", append=True, source=source))
    assert (report.known, report.files) == (2, 1)
    assert sync.open_array("a.zarr", path="v")[...].tolist() == [0, 1, 2, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    assert sync.open_array("a.zarr", path="step")[...].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    plan = await api(api.plan_ingest(files, "b.zarr", concat="step", source=source))
    await api(plan.run())
    await api(plan.finish())
    assert "finished before" in str(await api(plan.finish()))


async def test_a_variable_that_begins_later(api: Api):
    files = [write(f"{n}.nc", day(n, "t" if n < 2 else "tu")) for n in range(4)]
    with pytest.raises((ShapeError, SourceFilesError), match="lacks the variable 'u'"):
        await api(api.ingest_files(files, "a.zarr", concat="time"))
    source = FileOptions(optional=["u"])
    await api(api.ingest_files(files, "a.zarr", concat="time", source=source))
    await api(api.ingest_files(files[:2], "b.zarr", concat="time", source=source))
    await api(api.ingest_files(files, "b.zarr", concat="time", append=True, source=source))
    write("4.nc", day(4))
    await api(api.ingest_files("4.nc", "b.zarr", concat="time", append=True, source=source))
    expected = xr.concat([day(n, "t" if n < 2 else "tu") for n in range(4)], "time")
    xr.testing.assert_equal(xr.open_zarr("a.zarr").load(), expected)
    xr.testing.assert_equal(xr.open_zarr("b.zarr").isel(time=slice(8)).load(), expected)
    assert np.isnan(xr.open_zarr("b.zarr").u.values[8:]).all()
    counts = [xr.Dataset({"t": day(n).t, "n": ("time", [n, n])}) for n in range(2)]
    write("5.nc", day(5))
    write("6.nc", counts[0].assign_coords(time=day(6).time))
    with pytest.raises(ShapeError, match="its integers have no _FillValue"):
        await api(api.ingest_files(["5.nc", "6.nc"], "c.zarr", concat="time", source=FileOptions(optional="n")))


def test_the_commands(capsys: pytest.CaptureFixture[str]):
    Path("commands.py").write_text("def same(dataset):\n    return dataset\n")
    files = [write(f"m{n}.nc", day(0, "t" if n else "tu").isel(time=0, drop=True)) for n in range(2)]
    words = ["--concat", "member", "--labels", "m{int}", "--preprocess", "commands:same", "--optional", "u"]
    assert main(["ingest", *files, "a.zarr", *words]) == 0
    assert xr.open_zarr("a.zarr").member.values.tolist() == [0, 1]
    assert main(["ingest", *files, "b.zarr", "--concat", "member", "--labels", "none", "--optional", "u"]) == 0
    assert "member" not in xr.open_zarr("b.zarr").variables
    capsys.readouterr()
    assert main(["ingest", "check", *files, "--concat", "member", "--labels", "m{int}"]) == 3
    assert "m1.nc lacks the variable 'u'" in capsys.readouterr().out


async def test_attributes_that_give_a_variable_its_meaning(api: Api):
    one, other = (
        day(n).assign(t=day(n).t.assign_attrs(cell_methods=f"time: {how}", units=unit))
        for n, how, unit in ((0, "mean", "K"), (1, "max", "kelvin"))
    )
    files = [write("0.nc", one), write("1.nc", other)]
    with pytest.raises(ShapeError, match=r"cell_methods 'time: max' .*ignore_attributes=\['cell_methods'\]"):
        await api(api.ingest_files(files, "a.zarr", concat="time", source=FileOptions(ignore_attributes=["units"])))
    with pytest.raises(ShapeError, match=r"has the units 'kelvin' .*ignore_attributes=\['units'\]"):
        await api(
            api.ingest_files(files, "a.zarr", concat="time", source=FileOptions(ignore_attributes=["cell_methods"]))
        )
    source = FileOptions(ignore_attributes=["units", "cell_methods"])
    await api(api.ingest_files(files, "a.zarr", concat="time", source=source))
    assert sync.open_array("a.zarr", path="t").attrs["units"] == "K"


async def test_a_typo_in_the_dimension(api: Api):
    files = [write(f"{n}.nc", day(n)) for n in range(2)]
    for name in ("tyme", "Time", "tim"):
        with pytest.raises(ShapeError, match="Did you mean concat='time'"):
            await api(api.ingest_files(files, "a.zarr", concat=name))

    def named(dataset: Any) -> Any:
        return dataset.isel(time=0).assign_coords(tyme=1)

    await api(api.ingest_files(files[:1], "a.zarr", concat="tyme", preprocess=named))


def test_files_with_equal_labels(capsys: pytest.CaptureFixture[str]):
    files = [write(f"{n}.nc", day(0)) for n in range(2)]
    assert main(["ingest", "check", *files]) == 1
    assert "pass --concat time with the name of another one" in capsys.readouterr().err
    assert main(["ingest", "check", *files, "--concat", "time"]) == 3
    assert "1.nc: 2 labels are repeated, such as 2024-01-01T00:00:00 of 0.nc" in capsys.readouterr().out


def test_all_problems_are_found(capsys: pytest.CaptureFixture[str]):
    """Repeated labels and gaps do not hide files that do not fit, nor each other."""
    files = [write(f"{n}.nc", day(n)) for n in (0, 1, 2, 4)]
    files += [write(f"again{n}.nc", day(n)) for n in (1, 2)]
    files += [write("other.nc", day(5).rename(t="u")), write("none.nc", day(6).isel(time=slice(0, 0)))]
    assert main(["ingest", "check", *files, "--concat", "time", "--on-gap", "error"]) == 3
    printed = capsys.readouterr().out
    for text in (
        "8 files checked: 4 problems",
        "again1.nc: 2 labels",
        "again2.nc: 2 labels",
        "1 gap in 'time'",
        "other.nc: ",
    ):
        assert text in printed, text
    assert "no rows in none.nc" in printed
    assert main(["ingest", "check", *files, "--concat", "time", "--on-duplicate", "skip"]) == 3
    assert "8 files checked: 1 problem" in capsys.readouterr().out
    assert main(["ingest", files[0], "a.zarr", "--concat", "time"]) == 0
    assert main(["ingest", "none.nc", "a.zarr", "--concat", "time", "--append"]) == 0
    assert "exist already" not in capsys.readouterr().out
