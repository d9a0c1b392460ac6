"""The meaning of stored numbers: data types, units, and attributes that specify what a number stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.errors import CodecError, ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")

DAYS = "days since 2024-01-01"


def write(path: Path, times: Any, values: Any, **attributes: Any) -> Path:
    """Write a file with a row of 40 equal values for each time, which tasks read."""
    values = np.repeat(np.asarray(values)[:, None], 40, 1)
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 40)
        labels = file.createVariable("time", "f8", ("time",))
        labels.units = DAYS
        labels[:] = times
        variable = file.createVariable("v", values.dtype, ("time", "x"))
        variable.setncatts(attributes)
        variable[:] = values
    return path


# ------------------------------------------------------------------ data types


@pytest.mark.parametrize("value", [70000, -1])
@pytest.mark.parametrize("verify", [False, True])
async def test_integers_that_do_not_fit(api: Api, tmp_path: Path, value: int, verify: bool):
    paths = [write(tmp_path / f"{n}.nc", [n], np.array([v], "i4")) for n, v in enumerate((5, value))]
    encoding = {"v": {"dtype": "u2"}}
    await api(api.ingest(paths[0], store := {}, concat="time", encoding=encoding, verify=verify))
    assert sync.open_array(store, path="v")[0, 0] == 5
    with pytest.raises(CodecError, match=rf"'v' of .*1.nc .* uint16 .*{value} at index"):
        await api(api.ingest(paths, {}, concat="time", encoding=encoding, verify=verify))


@pytest.mark.parametrize(("own", "value", "dtype"), [("u1", 254, "i1"), ("i2", -2, "u2"), ("u8", 2**63, "i8")])
async def test_integers_that_change_their_sign(api: Api, tmp_path: Path, own: str, value: int, dtype: str):
    path = write(tmp_path / "0.nc", [0], np.array([value], own))
    with pytest.raises(
        CodecError, match=rf"'v' of .*0.nc do not fit the data type u?int{8 * np.dtype(dtype).itemsize}"
    ):
        await api(api.ingest(path, {}, concat="time", encoding={"v": {"dtype": dtype}}))


@pytest.mark.parametrize("dtype", ["i2", "u1", "u2", "f4"])
async def test_numbers_with_an_attribute_for_the_sign(api: Api, tmp_path: Path, dtype: str):
    """As numbers of another data type they would stand for other values."""
    narrow, plain = {"_Unsigned": "true", "missing_value": np.int8(-1)}, {}
    path = write(tmp_path / "0.nc", [0], np.array([-2], "i1"), **narrow)
    reason = r"'v' has _Unsigned 'true' in .*0.nc, by which its int8 numbers are uint8, so they cannot be stored as"
    encoding = {"v": {"dtype": dtype}}
    with pytest.raises(ShapeError, match=f"{reason} .*{np.dtype(dtype)}; pass decode=True"):
        await api(api.ingest(path, {}, concat="time", encoding=encoding))
    await api(api.ingest(path, store := {}, concat="time", encoding=encoding, decode=True))
    assert sync.open_array(store, path="v")[0, 0] == 254
    other = write(tmp_path / "1.nc", [1], np.array([5], dtype), **(narrow if dtype == "i2" else plain))
    await api(api.ingest(other, store := {}, concat="time"))
    for files, existing in (([path], store), ([other, path], {})):
        with pytest.raises(ShapeError, match=reason):
            await api(api.ingest(files, existing, concat="time", append=bool(existing)))
    assert sync.open_array(store, path="v").shape == (1, 40)
    await api(api.ingest(path, store := {}, concat="time"))
    with pytest.raises(ShapeError, match=r"int8 \(uint8 by _Unsigned\) in|by which its int16 numbers"):
        await api(api.ingest(other, store, concat="time", append=True))


@pytest.mark.parametrize("value", [2.5, np.nan])
async def test_floats_that_are_no_integers(api: Api, tmp_path: Path, value: float):
    path = write(tmp_path / "0.nc", [0], np.array([value], "f4"))
    with pytest.raises(CodecError, match=r"'v' of .*0.nc do not fit the data type int16"):
        await api(api.ingest(path, {}, concat="time", encoding={"v": {"dtype": "i2"}}))


async def test_small_variables_that_do_not_fit(api: Api, tmp_path: Path):
    paths = []
    for number, level in enumerate((1.0, 1.5)):
        dataset = xr.Dataset({"level": ("time", [level])}, coords={"time": [number]})
        dataset.to_netcdf(tmp_path / f"{number}.nc")
        paths.append(tmp_path / f"{number}.nc")
    with pytest.raises(CodecError, match=r"'level' of .*1.nc do not fit the data type int8"):
        await api(api.ingest(paths, {}, concat="time", encoding={"level": {"dtype": "i1"}}))
    await api(api.ingest(paths, store := {}, concat="time", encoding={"level": {"dtype": "f4"}}))
    np.testing.assert_array_equal(sync.open_array(store, path="level")[:], [1, 1.5])


async def test_floats_may_be_rounded(api: Api, tmp_path: Path):
    path = write(tmp_path / "0.nc", [0], np.array([0.1]))
    await api(api.ingest(path, store := {}, concat="time", encoding={"v": {"dtype": "f4"}}))
    assert sync.open_array(store, path="v")[0, 0] == np.float32(0.1)


# ------------------------------------------------------------------ requested attributes


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_requested_attributes_do_not_replace_others(api: Api, tmp_path: Path, zarr_format: int):
    values = np.array([1.5, -9.0], "f4")
    path = write(tmp_path / "0.nc", [0, 1], values, units="K", missing_value=np.float32(-9))
    encoding = {"v": {"attributes": {"long_name": "value"}}, "time": {"attributes": {"project": "P"}}}
    await api(api.ingest(path, str(tmp_path / "out.zarr"), concat="time", zarr_format=zarr_format, encoding=encoding))
    with xr.open_zarr(tmp_path / "out.zarr") as stored, xr.open_dataset(path) as expected:
        xr.testing.assert_equal(stored.load(), expected.load())
        assert stored.v.attrs == {"units": "K", "long_name": "value"}
        assert stored.time.attrs["project"] == "P"


async def test_requested_units_of_times(api: Api, tmp_path: Path):
    paths = [write(tmp_path / "0.nc", [0, 1.5], np.ones(2)), write(tmp_path / "1.nc", [2], np.ones(1))]
    encoding = {"time": {"dtype": "i4", "attributes": {"units": "hours since 2023-12-31", "calendar": "standard"}}}
    out = str(tmp_path / "out.zarr")
    await api(api.ingest(paths[0], out, concat="time", encoding=encoding))
    await api(api.ingest(paths[1], out, concat="time", append=True))
    np.testing.assert_array_equal(sync.open_array(out, path="time")[:], [24, 60, 72])
    dates = np.array(["2024-01-01T00", "2024-01-02T12", "2024-01-03T00"], "M8[ns]")
    with xr.open_zarr(out) as stored:
        np.testing.assert_array_equal(stored.time.values, dates)


async def test_requested_units_of_constant_times(api: Api, tmp_path: Path):
    path = tmp_path / "0.nc"
    xr.Dataset({"base": ((), 2, {"units": DAYS}), "v": ("row", [1.0])}).to_netcdf(path)
    encoding = {"base": {"attributes": {"units": "hours since 2024-01-01"}}}
    await api(api.ingest(path, store := {}, concat="row", encoding=encoding))
    assert sync.open_array(store, path="base")[()] == 48


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        (
            "v",
            {"scale_factor": 0.1},
            "'v' requests scale_factor 0.1, but its values in the files have scale_factor 0.5",
        ),
        ("v", {"add_offset": 3}, "'v' requests add_offset 3, but its values in the files have no add_offset"),
        ("time", {"units": "m"}, "'time' contains times in 'days since 2024-01-01', which cannot become 'm'"),
    ],
)
async def test_requested_attributes_that_change_the_meaning(
    api: Api, tmp_path: Path, name: str, attributes: dict[str, Any], message: str
):
    path = write(tmp_path / "0.nc", [0], np.array([10], "i2"), scale_factor=0.5)
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(path, {}, concat="time", encoding={name: {"attributes": attributes}}))
    same = {"v": {"attributes": {"scale_factor": 0.5, "add_offset": 0}}}
    await api(api.ingest(path, {}, concat="time", encoding=same))
