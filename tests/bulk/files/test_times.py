"""Times of many files that are missing, packed, or not exact in the units and the data type of the destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from tests.support.ingested import ingest_in_tasks
from zarrasync import sync
from zarrasync.errors import CodecError, ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")

FIRST, SECOND = "hours since 2024-01-01", "hours since 2024-01-02"
WIDTHS = [2, 40]
"""Times of an observation in each row. Few are part of the plan; tasks read more."""


def write(folder: Path, number: int, values: Any, units: str, *, width: int = 2, **attributes: Any) -> Path:
    """Write a file in which each row has the times of several observations."""
    values, path = np.repeat(np.asarray(values)[:, None], width, 1), folder / f"{number}.nc"
    folder.mkdir(exist_ok=True)
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("station", width)
        labels = file.createVariable("time", "i4", ("time",))
        labels.units = FIRST
        labels[:] = np.arange(len(values)) + len(values) * number
        fill = attributes.pop("_FillValue", None)
        times = file.createVariable("obs_time", values.dtype, ("time", "station"), fill_value=fill)
        times.set_auto_maskandscale(False)
        times.setncatts({"units": units, **attributes})
        times[:] = values
    return path


def stored(store: Any) -> list[Any]:
    values = np.asarray(sync.open_array(store, path="obs_time")[...])
    assert (values == values[:, :1]).all()
    return values[:, 0].tolist()


@pytest.mark.parametrize(
    ("attributes", "zarr_format", "width"),
    covering(
        [{"_FillValue": -9999}, {"missing_value": -9999}, {"_FillValue": -1, "missing_value": [-5, -9999]}],
        [2, 3],
        WIDTHS,
    ),
)
async def test_missing_times_stay_missing(
    api: Api, tmp_path: Path, width: int, zarr_format: int, attributes: dict[str, Any]
):
    attributes = {name: np.array(value, "i4") for name, value in attributes.items()}
    paths = [
        write(tmp_path, 0, np.array([1, -9999, 3], "i4"), FIRST, width=width, **attributes),
        write(tmp_path, 1, np.array([-9999, 2, -9999], "i4"), SECOND, width=width, **attributes),
    ]
    await api(api.ingest(paths, joined := {}, concat="time", zarr_format=zarr_format, verify=True))
    await api(api.ingest(paths[:1], appended := {}, concat="time", zarr_format=zarr_format))
    await api(api.ingest(paths, appended, concat="time", append=True, verify=True))
    for store in (joined, appended):
        assert stored(store) == [1, -9999, 3, -9999, 26, -9999]
        assert sync.open_array(store, path="obs_time").attrs["units"] == FIRST


@pytest.mark.parametrize("width", WIDTHS)
async def test_missing_times_in_other_data_types(api: Api, tmp_path: Path, width: int):
    fill = {"_FillValue": np.int32(-9999)}
    path = write(tmp_path, 0, np.array([1, -9999], "i4"), FIRST, width=width, **fill)
    other = write(tmp_path, 1, np.array([-9999, 1], "i4"), "minutes since 2024-01-01", width=width, **fill)
    encoding = {"obs_time": {"dtype": "f8"}}
    await api(api.ingest([path, other], store := {}, concat="time", encoding=encoding))
    np.testing.assert_allclose(stored(store), np.array([1, -9999, -9999, 1 / 60]))
    loaded = xr.open_dataset(store, engine="zarrasync").load()
    assert np.isnat(loaded.obs_time.values[:, 0]).tolist() == [False, True, True, False]
    with pytest.raises(CodecError, match=r"missing time, whose number -9999 .*data type (u|>u|<u|uint)"):
        await api(api.ingest([path, other], {}, concat="time", encoding={"obs_time": {"dtype": "u4"}}))


@pytest.mark.parametrize("width", WIDTHS)
async def test_times_that_become_the_number_of_missing_ones(api: Api, tmp_path: Path, width: int):
    fill = {"_FillValue": np.int32(25)}
    paths = [
        write(tmp_path, 0, np.array([1, 2], "i4"), FIRST, width=width, **fill),
        write(tmp_path, 1, np.array([25, 1], "i4"), SECOND, width=width, **fill),
    ]
    await api(api.ingest(paths[:1], store := {}, concat="time"))
    with pytest.raises(CodecError, match=r"1 hours since 2024-01-02 of 'obs_time'.* 25 hours .*missing"):
        await api(api.ingest(paths, store, concat="time", append=True))
    assert stored(store) == [1, 2]


@pytest.mark.parametrize("width", WIDTHS)
async def test_packed_times(api: Api, tmp_path: Path, width: int):
    packing = {"scale_factor": 0.5, "_FillValue": np.int32(-9999)}
    same = [write(tmp_path / "a", n, np.array([2 * n, -9999], "i4"), FIRST, width=width, **packing) for n in (0, 1)]
    await api(api.ingest(same, store := {}, concat="time", verify=True))
    assert stored(store) == [0, -9999, 2, -9999]
    other = write(tmp_path / "b", 1, np.array([2, -9999], "i4"), SECOND, width=width, **packing)
    with pytest.raises(CodecError, match=r"'obs_time' of .*1.nc are packed with scale_factor 0.5.*decode=True"):
        await api(api.ingest([same[0], other], {}, concat="time"))
    with pytest.raises(CodecError, match="are packed with scale_factor"):
        await api(api.ingest(other, store, concat="time", append=True, on_duplicate="replace"))
    await api(api.ingest([same[0], other], store := {}, concat="time", decode=True, verify=True))
    found = xr.open_dataset(store, engine="zarrasync").load().obs_time.values[:, 0]
    assert found.astype("M8[m]").astype(str).tolist() == ["2024-01-01T00:00", "NaT", "2024-01-02T01:00", "NaT"]


@pytest.mark.parametrize("width", WIDTHS)
async def test_times_get_the_precision_of_the_destination(api: Api, tmp_path: Path, width: int):
    seconds = "seconds since 1970-01-01"
    first = write(tmp_path, 0, np.array([474_000 * 3600.0, 474_001 * 3600]), seconds, width=width)
    second = write(tmp_path, 1, np.array([474_002.25, 474_003.5], "f4"), "hours since 1970-01-01", width=width)
    await api(api.ingest([first], store := {}, concat="time"))
    await api(api.ingest([second], store, concat="time", append=True, verify=True))
    assert stored(store) == [3600 * hours for hours in (474_000, 474_001, 474_002.25, 474_003.5)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("present", "values", "units", "message"),
    [
        (
            np.array([1, 2], "f4"),
            np.array([3600.0 * 474_000 + 1, 0]),
            "seconds since 1970-01-01",
            "type float32 cannot",
        ),
        (np.array([1, 2], "f4"), np.array([2**24 + 1, 0], "i4"), FIRST, "type float32 cannot represent"),
        (np.array([1, 2], "i2"), np.array([4000, 0], "i4"), "days since 2024-01-01", "is 96000.* type int16 cannot"),
        (np.array([1, 2], "i4"), np.array([0, 1.5]), FIRST, "1.5 hours since 2024-01-01 .* is not a whole number"),
        (np.array([1, 2], "i2"), np.array([0, 2**20], "i4"), FIRST, "is 1048576 .* type int16 cannot"),
    ],
)
async def test_times_that_the_destination_cannot_represent(
    api: Api, tmp_path: Path, width: int, present: Any, values: Any, units: str, message: str
):
    path = write(tmp_path, 0, present, FIRST, width=width)
    other = write(tmp_path, 1, values, units, width=width)
    await api(api.ingest([path], store := {}, concat="time"))
    with pytest.raises(CodecError, match=message):
        await api(api.ingest([other], store, concat="time", append=True))
    assert stored(store) == [1, 2]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_units_of_each_file_in_other_processes(tmp_path: Path, processes: int):
    units = [FIRST, SECOND, FIRST, SECOND]
    paths = [write(tmp_path / "nc", n, np.array([n], "i4"), unit, width=40) for n, unit in enumerate(units)]
    options: dict[str, Any] = {"chunks": {"time": 1}, "executor": processes, "verify": True}
    assert ingest_in_tasks(paths, tmp_path / "out.zarr", **options).tasks == 4
    assert stored(tmp_path / "out.zarr") == [0, 25, 2, 27]


async def test_labels_that_the_data_type_of_all_arrays_cannot_represent(api: Api, tmp_path: Path):
    path = tmp_path / "a.nc"
    labels = ("time", 2**24 + np.arange(1, 3), {"units": "seconds since 2000-01-01"})
    xr.Dataset({"v": ("time", [1.0, 2.0])}, {"time": labels}).to_netcdf(path)
    with pytest.raises(CodecError, match=r"16777217.* of 'time' .* type float32 cannot represent"):
        await api(api.ingest(path, {}, concat="time", encoding={"time": {"dtype": "f4"}}))


async def test_labels_must_not_be_missing(api: Api, tmp_path: Path):
    path = tmp_path / "a.nc"
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", None)
        labels = file.createVariable("time", "i4", ("time",), fill_value=-9999)
        labels.units = FIRST
        labels[:] = np.ma.masked_equal([-9999, 1, 2], -9999)
    with pytest.raises(ShapeError, match=r"a\.nc has a missing value as a label in 'time'"):
        await api(api.ingest([path], {}, concat="time"))
