"""Options of ingesting files, and files that differ: calendars, fill values, constant and missing variables, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from zarrasync import sync
from zarrasync.cli import main
from zarrasync.errors import CodecError, ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import day, write_days


def write(folder: Path, *datasets: Any, encodings: Any = ()) -> list[Path]:
    paths = []
    for number, dataset in enumerate(datasets):
        dataset.to_netcdf(folder / f"{number}.nc", encoding=encodings[number] if encodings else {})
        paths.append(folder / f"{number}.nc")
    return paths


def with_times(number: int, calendar: str, units: str, values: Any, name: str = "time") -> Any:
    dataset = day(number).isel(time=slice(0, len(values)))
    if name == "time":
        dataset = dataset.drop_vars("time")
    dataset[name] = ("time", np.asarray(values, "f8"), {"units": units, "calendar": calendar})
    return dataset


@pytest.mark.parametrize("name", ["time", "reference"])
@pytest.mark.parametrize("calendars", [("standard", "proleptic_gregorian"), ("proleptic_gregorian", "gregorian")])
async def test_calendars_that_differ_for_early_dates(api: Api, tmp_path: Path, name: str, calendars: tuple[str, str]):
    pytest.importorskip("cftime")
    one, two = (
        with_times(n, c, "days since 1500-01-01", [10.0 * n, 10 * n + 1], name) for n, c in enumerate(calendars)
    )
    paths = write(tmp_path, one, two)
    with pytest.raises(CodecError, match=rf"'{name}' of .*1.nc|{name}.* differ before 1582-10-15, such as for 1500-01"):
        await api(api.ingest(paths, {}, concat="time"))
    await api(api.ingest(paths[0], store := {}, concat="time"))
    with pytest.raises(CodecError, match="differ before 1582-10-15"):
        await api(api.ingest(paths[1], store, concat="time", append=True))


async def test_calendars_that_agree_for_late_dates(api: Api, tmp_path: Path):
    pytest.importorskip("cftime")
    # The calendars count two days differently from the year 1 to the year 2000, so numbers are converted by their dates.
    one = with_times(0, "standard", "days since 0001-01-01", [730121.0, 730122])
    two = with_times(1, "proleptic_gregorian", "hours since 2000-01-03", [0.0, 24])
    await api(api.ingest(write(tmp_path, one, two), store := {}, concat="time"))
    np.testing.assert_array_equal(sync.open_array(store, path="time")[:], [730121, 730122, 730123, 730124])


async def test_constant_times_are_compared_as_times(api: Api, tmp_path: Path):
    days, hours = ({"units": f"{unit} since 2000-01-01"} for unit in ("days", "hours"))
    one, same, other = day(0), day(1), day(1)
    one["base"], same["base"], other["base"] = ((), 5, days), ((), 120, hours), ((), 5, hours)
    await api(api.ingest(write(tmp_path, one, same), {}, concat="time"))
    with pytest.raises(ShapeError, match="'base' must be the same in all files, but"):
        await api(api.ingest(write(tmp_path, one, other), {}, concat="time"))


async def test_linked_coordinates_that_differ_are_left_out(api: Api, tmp_path: Path):
    for other in (day(1).assign_coords(height=3.0), day(1)):
        paths = write(tmp_path, day(0).assign_coords(height=2.0), other)
        with pytest.raises(ShapeError, match="height"):
            await api(api.ingest(paths, {}, concat="time"))
        report = await api(api.ingest(paths, store := {}, concat="time", variables=["t2m"]))
        assert report.left_out == ["height: left out, because files differ in it"]
        assert sorted(sync.open_group(store).array_keys()) == ["lat", "lon", "t2m", "time"]
    paths = write(tmp_path, day(0), day(1).drop_vars("time"))
    with pytest.raises(ShapeError, match=r"has the variable 'time', but .*1.nc does not"):
        await api(api.ingest(paths, {}, concat="time", variables=["t2m"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": {"tme": 5}}, "chunks names the dimension 'tme', but the dimensions of .* are lat, lon, time"),
        ({"shards": {"time": 24, "x": 5}}, "shards names the dimension 'x'"),
        (
            {"encoding": {"t3m": {"dtype": "f8"}}},
            "encoding names the variable 't3m', but .* has lat, lon, mask, t2m, time",
        ),
        ({"encoding": {"mask": {"chunks": {"time": 2}}}}, "dimensions of .* are lat, lon"),
    ],
)
async def test_names_that_do_not_exist(api: Api, tmp_path: Path, options: Any, message: str):
    store: dict[str, bytes] = {}
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(write_days(tmp_path / "nc", [0]), store, concat="time", **options))
    assert store == {}


async def test_fill_values_that_differ(api: Api, tmp_path: Path):
    datasets = [day(n).assign(t2m=day(n).t2m.where(day(n).t2m > 280)) for n in range(2)]
    paths = write(tmp_path, *datasets, encodings=[{"t2m": {"_FillValue": value}} for value in (-999.0, -1.0)])
    with pytest.raises(ShapeError, match=r"_FillValue -1.0 in .*1.nc, .* -999.0 in .*0.nc.*decode=True"):
        await api(api.ingest(paths, {}, concat="time"))
    await api(api.ingest(paths, store := {}, concat="time", decode=True))
    expected = np.concatenate([dataset.t2m for dataset in datasets])
    np.testing.assert_array_equal(sync.open_array(store, path="t2m")[:], expected)
    with xr.open_dataset(store, engine="zarrasync") as found:
        np.testing.assert_array_equal(found.t2m, expected)


@pytest.mark.parametrize(
    ("attributes", "dtype", "writer", "zarr_format"),
    covering(
        [{"missing_value": -99}, {"_FillValue": -1, "missing_value": -99}, {}],
        ["i2", "f4"],
        ["zarrasync", "xarray"],
        [2, 3],
    ),
)
@pytest.mark.filterwarnings("ignore:variable 't2m' has multiple fill values")
async def test_appends_find_missing_numbers_in_either_attribute(
    api: Api, tmp_path: Path, zarr_format: int, writer: str, dtype: str, attributes: dict[str, int]
):
    numbers = {name: np.array(value, dtype).item() for name, value in attributes.items()}
    fill = {"t2m": {"_FillValue": numbers.pop("_FillValue", None)}}
    paths = write(
        tmp_path,
        *[xr.Dataset({"t2m": ("time", np.array([n, -99], dtype), numbers)}, {"time": [n, n + 1]}) for n in (0, 2)],
        encodings=[fill, fill],
    )
    store: Any = tmp_path / "out.zarr"
    if writer == "zarrasync":
        await api(api.ingest(paths[0], store, concat="time", zarr_format=zarr_format))
    else:
        with xr.open_dataset(paths[0], mask_and_scale=False) as dataset:
            dataset.to_zarr(store, zarr_format=zarr_format, consolidated=zarr_format == 2)
    await api(api.ingest(paths[1], store, concat="time", append=True, verify=True))
    with xr.open_dataset(store, engine="zarrasync") as found:
        np.testing.assert_array_equal(found.t2m, [0, np.nan, 2, np.nan] if attributes else [0, -99, 2, -99])
    changed = xr.Dataset({"t2m": ("time", np.array([4, -98], dtype), {"missing_value": -98})}, {"time": [4, 5]})
    changed.to_netcdf(tmp_path / "changed.nc", encoding={"t2m": {"_FillValue": None}})
    with pytest.raises(ShapeError, match=r"missing_value -98(.0)? in .*changed.nc, but (no )?(_Fill|missing_)"):
        await api(api.ingest(tmp_path / "changed.nc", store, concat="time", append=True))


def test_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["ingest", *map(str, write_days(tmp_path / "nc", range(2))), str(tmp_path / "out.zarr"), "--concat", "time"]
    assert main([*words, "--compressor", "gzip", "--resume"]) == 0
    (codec,) = sync.open_array(tmp_path / "out.zarr", path="t2m").compressors
    assert "gzip" in str(codec).lower()
    assert main([*words, "--compressor", "gzip", "--resume"]) == 0
    assert "2 files ingested before" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--resume", "--overwrite"])
    assert "--resume or --overwrite, not both" in capsys.readouterr().err
