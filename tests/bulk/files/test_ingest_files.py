"""Many files into one dataset: order, units, repeated rows, appends, regions, identity."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.ingested import journal_key, put_journal, read_journal
from zarrasync import sync
from zarrasync.errors import CodecError, NodeExistsError, NodeNotFoundError, ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import PACKED, START, assert_same, day, joined, write_days


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "scipy"])
async def test_a_pattern(api: Api, tmp_path: Path, engine: str):
    paths = write_days(tmp_path / "nc", [0, 1, 2, 10], engine=engine)
    out = tmp_path / "out.zarr"
    layout = {"chunks": {"time": 12, "lat": 3}, "shards": {"time": 24}}
    report = await api(api.ingest(str(tmp_path / "nc/*.nc"), out, concat="time", verify=True, **layout))
    assert (report.files, report.rows, report.known) == (4, 96, 0)
    assert report.verified >= 1
    assert report.notes == ["1 gap in 'time': 2024-01-03T23:00:00 to 2024-01-11T00:00:00"]
    assert_same(out, joined(paths))
    assert_same(out, joined(paths), "zarrasync")
    t2m = sync.open_array(out, path="t2m")
    assert (t2m.dtype, t2m.chunks, t2m.shards) == (np.dtype("i2"), (12, 3, 8), (24, 6, 8))
    assert t2m.fill_value == -32768
    assert sync.validate(out, data=True).ok
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []

    again = await api(api.ingest(str(tmp_path / "nc/*.nc"), out, concat="time", **layout))
    assert (again.files, again.known, again.blocks) == (0, 4, 0)


async def test_all_stores(api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]]):
    s3_url, s3_options = s3
    paths = write_days(tmp_path / "nc", [0, 1])
    for store, options in [({}, {}), (f"{s3_url}/files.zarr", {"storage_options": s3_options})]:
        await api(api.ingest(paths[:1], store, path="a/b", concat="time", chunks={"time": 7}, **options))
        await api(api.ingest(paths, store, path="a/b", concat="time", append=True, verify=True, **options))
        opened = xr.open_dataset(
            store, engine="zarrasync", group="a/b", **({"storage_options": s3_options} if options else {})
        )
        xr.testing.assert_equal(opened.load(), joined(paths))
        keys = await api(api.list_nodes(store, **options))
        assert "a/b/t2m" in str(keys)


async def test_rows_of_files_may_alternate(api: Api, tmp_path: Path):
    whole = day(0)
    for number, part in enumerate((whole.isel(time=slice(0, None, 2)), whole.isel(time=slice(1, None, 2)))):
        part.to_netcdf(tmp_path / f"{number}.nc")
    await api(api.ingest(str(tmp_path / "*.nc"), store := {}, concat="time", verify=True))
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), whole)


async def test_falling_labels(api: Api, tmp_path: Path):
    whole = day(0).isel(time=slice(None, None, -1))
    whole.isel(time=slice(0, 12)).to_netcdf(tmp_path / "b.nc")
    whole.isel(time=slice(12, 18)).to_netcdf(tmp_path / "a.nc")
    whole.isel(time=slice(18, 24)).to_netcdf(tmp_path / "c.nc")
    await api(api.ingest([tmp_path / "a.nc", tmp_path / "b.nc"], store := {}, concat="time"))
    await api(api.ingest([tmp_path / "c.nc"], store, concat="time", append=True))
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), whole)


# ------------------------------------------------------------------ repeated rows, gaps, differences


async def test_repeated_rows(api: Api, tmp_path: Path):
    write_days(tmp_path, [0, 1], packed=False)
    later = day(0, rows=30, seed=9).isel(time=slice(20, 30))
    later.to_netcdf(tmp_path / "later.nc")
    paths = [tmp_path / "day0.nc", tmp_path / "later.nc"]
    with pytest.raises(ShapeError, match=r"2024-01-01T20:00:00 is in .*day0.nc and in .*later.nc"):
        await api(api.ingest(paths, {}, concat="time"))
    first = await api(api.ingest(paths, kept := {}, concat="time", on_duplicate="skip"))
    assert first.notes == ["4 repeated rows left out"]
    await api(api.ingest(paths, replaced := {}, concat="time", on_duplicate="replace"))
    one, two = (sync.open_array(store, path="t2m")[20:] for store in (kept, replaced))
    np.testing.assert_array_equal(one[:4], day(0).t2m[20:])
    np.testing.assert_array_equal(two, later.t2m)
    np.testing.assert_array_equal(one[4:], later.t2m[4:])


async def test_gaps(api: Api, tmp_path: Path):
    paths = write_days(tmp_path, [0, 2])
    with pytest.raises(ShapeError, match="1 gap in 'time': 2024-01-01T23:00:00 to 2024-01-03T00:00:00"):
        await api(api.ingest(paths, store := {}, concat="time", on_gap="error"))
    assert store == {}
    assert (await api(api.ingest(paths, store, concat="time", on_gap="ignore"))).notes == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.isel(lat=slice(0, 5)), "'t2m' has the dimensions"),
        (lambda ds: ds.assign_coords(lat=ds.lat + 1), "'lat' must be the same in all files"),
        (lambda ds: ds.rename(t2m="t"), "1.nc lacks the variable 't2m', which .*0.nc has"),
        (lambda ds: ds.assign(t2m=ds.t2m.assign_attrs(units="degC")), "'t2m' has the units 'degC'"),
        (lambda ds: ds.assign(t2m=ds.t2m.astype("f8")), "'t2m' has the data type float64"),
        (lambda ds: ds.isel(time=[0, 2, 1]), "not in order: 2024-01-02T01:00:00 follows 2024-01-02T02:00:00 in row 2"),
        (lambda ds: ds.rename(time="t"), "has the dimension 'time', but"),
        (lambda ds: ds.assign(t2m=ds.t2m.rename(lon="x").drop_vars("x")), "'t2m' has the dimensions"),
    ],
)
async def test_files_that_do_not_fit(api: Api, tmp_path: Path, change: Any, message: str):
    day(0).to_netcdf(tmp_path / "0.nc")
    change(day(1)).to_netcdf(tmp_path / "1.nc")
    paths = [tmp_path / "0.nc", tmp_path / "1.nc"]
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(paths, store := {}, concat="time"))
    assert store == {}
    await api(api.ingest(paths[:1], store, concat="time"))
    before = dict(store)
    with pytest.raises(ShapeError):
        await api(api.ingest(paths, store, concat="time", append=True))
    assert store == before


async def test_packing(api: Api, tmp_path: Path):
    day(0).to_netcdf(tmp_path / "0.nc", encoding=PACKED)
    other = {"t2m": {**PACKED["t2m"], "scale_factor": 0.02}}
    day(1).to_netcdf(tmp_path / "1.nc", encoding=other)
    with pytest.raises(ShapeError, match=r"scale_factor 0.02 in .*1.nc, .* 0.01 in .*0.nc.*decode=True"):
        await api(api.ingest(str(tmp_path / "*.nc"), {}, concat="time"))
    await api(
        api.ingest(str(tmp_path / "*.nc"), store := {}, concat="time", decode=True, encoding={"t2m": {"dtype": "f4"}})
    )
    found = sync.open_array(store, path="t2m")
    assert found.dtype == np.dtype("f4")
    assert "scale_factor" not in found.attrs
    np.testing.assert_allclose(found[:], np.concatenate([day(0).t2m, day(1).t2m]), atol=0.01)


async def test_times_get_one_unit(api: Api, tmp_path: Path):
    for number, units in enumerate(("days since 2024-01-01", "hours since 2000-01-01", "seconds since 1970-01-01")):
        encoding = {"time": {"units": units, "dtype": "i8" if number else "f8"}}
        day(number).to_netcdf(tmp_path / f"{number}.nc", encoding=encoding)
    paths = sorted(tmp_path.glob("*.nc"))
    for own in (paths, paths[::-1]):
        await api(api.ingest(own, store := {}, concat="time"))
        xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), joined(paths))
    await api(api.ingest(paths[1:2], store := {}, concat="time"))
    await api(api.ingest(paths[2:], store, concat="time", append=True))
    assert sync.open_array(store, path="time").attrs["units"] == "hours since 2000-01-01"
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), joined(paths[1:]))


async def test_times_that_are_not_exact(api: Api, tmp_path: Path):
    day(0).isel(time=[0]).to_netcdf(
        tmp_path / "0.nc", encoding={"time": {"units": "days since 2024-01-01", "dtype": "i8"}}
    )
    day(1).to_netcdf(tmp_path / "1.nc", encoding={"time": {"units": "hours since 2024-01-01", "dtype": "i8"}})
    await api(api.ingest(str(tmp_path / "*.nc"), store := {}, concat="time", on_gap="ignore"))
    assert sync.open_array(store, path="time").attrs["units"] == "hours since 2024-01-01"
    np.testing.assert_array_equal(sync.open_array(store, path="time")[:3], [0, 24, 25])
    await api(api.ingest(tmp_path / "0.nc", store := {}, concat="time"))
    with pytest.raises(CodecError, match=r"25 hours since 2024-01-01 of 'time' of .*1.nc .* 'days since"):
        await api(api.ingest(tmp_path / "1.nc", store, concat="time", append=True))


async def test_calendars(api: Api, tmp_path: Path):
    pytest.importorskip("cftime")
    for number, calendar in enumerate(("noleap", "noleap", "360_day")):
        dataset = day(number).drop_vars("time")
        units = "hours since 2024-02-28" if number != 1 else "days since 2024-02-28"
        values = np.arange(24.0) + 24 * number
        dataset["time"] = ("time", values / 24 if number == 1 else values, {"units": units, "calendar": calendar})
        dataset.to_netcdf(tmp_path / f"{number}.nc")
    await api(api.ingest([tmp_path / "0.nc", tmp_path / "1.nc"], store := {}, concat="time"))
    np.testing.assert_array_equal(sync.open_array(store, path="time")[:], np.arange(48.0))
    with pytest.raises(CodecError, match="360_day"):
        await api(api.ingest(tmp_path / "2.nc", store, concat="time", append=True))


async def test_bounds_have_the_units_of_their_parent(api: Api, tmp_path: Path):
    for number in range(2):
        dataset = day(number)
        dataset.time.attrs["bounds"] = "time_bnds"
        dataset["time_bnds"] = (("time", "bnds"), np.stack([dataset.time, dataset.time + np.timedelta64(1, "h")], 1))
        dataset.to_netcdf(tmp_path / f"{number}.nc", encoding={"time": {"units": f"hours since 2024-01-0{number + 1}"}})
    await api(api.ingest(str(tmp_path / "*.nc"), store := {}, concat="time"))
    found = xr.open_dataset(store, engine="zarrasync").load()
    np.testing.assert_array_equal(found.time_bnds[:, 0], found.time)


# ------------------------------------------------------------------ kinds of files


async def test_numpy_files(api: Api, tmp_path: Path):
    values = np.arange(6 * 4 * 5, dtype="f4").reshape(6, 4, 5)
    for number in range(6):
        np.save(tmp_path / f"{number}.npy", values[number])
    await api(api.ingest(str(tmp_path / "*.npy"), store := {}, concat="time", dims="lat,lon", chunks={"time": 2}))
    found = sync.open_array(store, path="values")
    np.testing.assert_array_equal(found[:], values)
    assert (found.chunks, found.metadata.dimension_names) == ((2, 4, 5), ("time", "lat", "lon"))
    for number in range(2):
        np.savez(
            tmp_path / f"{number}.npz", a=values[3 * number : 3 * number + 3], b=-values[3 * number : 3 * number + 3]
        )
    dims = ("time", "lat", "lon")
    await api(api.ingest(str(tmp_path / "*.npz"), store := {}, concat="time", dims=dims, verify=True))
    np.testing.assert_array_equal(sync.open_array(store, path="b")[:], -values)
    with pytest.raises(ValueError, match="3 axes, but dims names 2: lat, lon"):
        await api(api.ingest(str(tmp_path / "*.npz"), {}, concat="time", dims="lat,lon"))


async def test_a_scalar_coordinate_is_the_label_of_a_file(api: Api, tmp_path: Path):
    for number in (1, 0):
        day(0).isel(time=number).to_netcdf(tmp_path / f"{1 - number}.nc")
    await api(api.ingest(str(tmp_path / "*.nc"), store := {}, concat="time"))
    found = xr.open_dataset(store, engine="zarrasync").load()
    np.testing.assert_array_equal(found.time, START + np.arange(2).astype("m8[h]"))
    np.testing.assert_array_equal(found.t2m, day(0).t2m[:2])


async def test_a_single_file_needs_no_dimension(api: Api, tmp_path: Path):
    (path,) = write_days(tmp_path / "nc", [0])
    await api(api.ingest(path, out := tmp_path / "out.zarr"))
    assert_same(out, joined([path]))
    with pytest.raises(ValueError, match="2 files need the name of a dimension"):
        await api(api.ingest([path, *write_days(tmp_path / "nc", [1])], {}))


async def test_variables(api: Api, tmp_path: Path):
    paths = write_days(tmp_path, range(2))
    await api(api.ingest(paths, store := {}, concat="time", variables=["t2m"]))
    assert sorted(await api((await api(api.open_group(store))).array_keys())) == ["lat", "lon", "t2m", "time"]
    with pytest.raises(ShapeError, match="has no variable 't'; its variables are lat"):
        await api(api.ingest(paths, {}, concat="time", variables="t"))


async def test_files_that_cannot_be_read(api: Api, tmp_path: Path):
    (tmp_path / "a.nc").write_bytes(b"no netCDF")
    with pytest.raises(ValueError, match=r"cannot read the header of .*a.nc"):
        await api(api.ingest(str(tmp_path / "*.nc"), {}, concat="time"))
    with pytest.raises(FileNotFoundError, match=r"no file matches .*missing"):
        await api(api.ingest(str(tmp_path / "missing*.nc"), {}, concat="time"))


# ------------------------------------------------------------------ existing datasets


async def test_appending(api: Api, tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(4))
    out, pattern = tmp_path / "out.zarr", str(tmp_path / "nc/*.nc")
    for known in range(1, 5):
        report = await api(api.ingest(paths[:known], out, concat="time", append=True, chunks={"time": 7}))
        assert (report.files, report.known) == (1, known - 1)
        assert_same(out, joined(paths[:known]))
    assert (await api(api.ingest(pattern, out, concat="time", append=True))).known == 4
    shutil.copy(paths[3], tmp_path / "nc/again.nc")
    with pytest.raises(ShapeError, match=r"already contains the label 2024-01-04T00:00:00 of .*again.nc"):
        await api(api.ingest(pattern, out, concat="time", append=True))
    assert (await api(api.ingest(pattern, out, concat="time", append=True, on_duplicate="skip"))).rows == 0
    day(3, seed=77).to_netcdf(paths[3], encoding=PACKED)
    report = await api(api.ingest(paths, out, concat="time", append=True, on_duplicate="replace"))
    assert (report.files, report.known) == (1, 3)
    assert_same(out, joined(paths))


async def test_regions(api: Api, tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(3))
    out = tmp_path / "out.zarr"
    with pytest.raises(NodeNotFoundError, match="there is no dataset to change"):
        await api(api.ingest(paths, out, concat="time", region="auto"))
    await api(api.ingest(paths, out, concat="time", chunks={"time": 10}))
    day(1, seed=5).to_netcdf(paths[1], encoding=PACKED)
    for region in ("auto", {"time": slice(24, 48)}):
        await api(api.ingest(paths[1], out, concat="time", region=region, verify=True))
        assert_same(out, joined(paths))
        day(1, seed=6).to_netcdf(paths[1], encoding=PACKED)
    with pytest.raises(ShapeError, match="labels of the files differ from those of the rows 0:24"):
        await api(api.ingest(paths[1], out, concat="time", region={"time": slice(0, 24)}))
    with pytest.raises(ShapeError, match="has 23 rows, but the files have 24"):
        await api(api.ingest(paths[1], out, concat="time", region={"time": slice(0, 23)}))
    (new,) = write_days(tmp_path / "nc", [3])
    with pytest.raises(ShapeError, match="no row with the label 2024-01-04T00"):
        await api(api.ingest(new, out, concat="time", region="auto"))


# ------------------------------------------------------------------ identity


async def test_no_file_is_lost_silently(api: Api, tmp_path: Path):
    one, two = write_days(tmp_path / "nc", range(2))
    out = tmp_path / "out.zarr"
    await api(api.ingest(one, out, concat="time"))
    with pytest.raises(NodeExistsError, match=r"contains day0.nc, and it does not contain day1.nc; pass append=True"):
        await api(api.ingest(two, out, concat="time"))
    with pytest.raises(NodeExistsError, match="other parameters"):
        await api(api.ingest(one, out, concat="time", chunks={"time": 3}))
    with pytest.raises(NodeExistsError, match="joined along 'time'"):
        await api(api.ingest(one, out, concat="lat"))
    with pytest.raises(NodeExistsError, match="pass mode='w'"):
        await api(api.ingest(one, out, concat="time", mode="w-"))
    day(0, seed=3).to_netcdf(one, encoding=PACKED)
    with pytest.raises(NodeExistsError, match=r"day0.nc has changed since"):
        await api(api.ingest(one, out, concat="time"))
    await api(api.ingest(two, out, concat="time", mode="w"))
    assert_same(out, joined([two]))


async def test_a_copied_journal_is_not_believed(api: Api, tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(2))
    await api(api.ingest(paths, store := {}, concat="time"))
    with xr.open_dataset(store, engine="zarrasync") as dataset:
        dataset.isel(time=slice(0, 24)).to_zarr(part := tmp_path / "part.zarr", consolidated=False)
    put_journal(part, read_journal(store), journal_key(store))
    report = await api(api.ingest(paths, part, concat="time", append=True, on_duplicate="skip"))
    assert (report.files, report.rows, report.known) == (1, 24, 1)
    assert_same(part, joined(paths))


async def test_a_job_with_many_files_can_be_repeated(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(5)), tmp_path / "out.zarr"
    await api(api.ingest(paths, out, concat="time"))
    report = await api(api.ingest(paths, out, concat="time"))
    assert (report.known, report.files) == (5, 0)
    paths += write_days(tmp_path / "nc", range(5, 7))
    report = await api(api.ingest(paths, out, concat="time", append=True))
    assert (report.known, report.files) == (5, 2)
    assert_same(out, joined(paths))
    day(0, seed=3).to_netcdf(paths[0], encoding=PACKED)
    with pytest.raises(NodeExistsError, match=r"contains day0.nc, day1.nc and 5 more, and .*day0.nc has changed since"):
        await api(api.ingest(paths, out, concat="time"))


async def test_datasets_of_others(api: Api, tmp_path: Path):
    """A dataset that xarray has written, without a journal."""
    paths = write_days(tmp_path / "nc", range(2))
    with xr.open_dataset(paths[0]) as dataset:
        dataset.to_zarr(out := tmp_path / "out.zarr", consolidated=False)
    with pytest.raises(NodeExistsError, match="contains data of an unknown source"):
        await api(api.ingest(paths[1], out, concat="time"))
    await api(api.ingest(paths[1], out, concat="time", append=True))
    assert_same(out, joined(paths))
    sync.open_group(out, mode="r+").create_array("extra", shape=(48,), dtype="i4", dimension_names=("time",))
    (third,) = write_days(tmp_path / "nc", [2])
    with pytest.raises(ShapeError, match="has rows of 'extra' along 'time'"):
        await api(api.ingest(third, out, concat="time", append=True))


async def test_functions_that_are_not_thread_safe(api: Api):
    running = 0

    def read(region: Any) -> Any:
        nonlocal running
        running += 1
        assert running == 1
        values = np.ones([part.stop - part.start for part in region])
        values @ np.ones((values.shape[1], 200))
        running -= 1
        return values

    await api(
        api.ingest(read, store := {}, shape=(200, 200), dtype="f8", chunks=(10, 200), threads=False, concurrency=8)
    )
    assert sync.open_array(store)[:].sum() == 40_000


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"append": True, "region": "auto"}, ValueError, "exclude each other"),
        ({"append": True, "concat": None}, ValueError, "need the name of the dimension"),
        ({"region": "auto", "concat": None}, ValueError, "need the name of the dimension"),
        ({"append": True, "mode": "w"}, ValueError, "creates a dataset"),
        ({"on_duplicate": "drop"}, ValueError, "on_duplicate must be one of"),
        ({"region": (slice(0, 1), slice(0, 1))}, ValueError, "region must be"),
        ({"chunk": (1,)}, TypeError, "did you mean 'chunks'"),
        ({"encoding": {"t2m": {"chunk": 1}}}, TypeError, "did you mean 'chunks'"),
        ({"zarr_format": "3-draft"}, ValueError, "format 2 or 3"),
        ({"chunks": {"time": 0}}, ShapeError, "chunks must be at least 1 along 'time'"),
    ],
)
async def test_invalid_arguments(api: Api, tmp_path: Path, options: Any, error: Any, message: str):
    (path,) = write_days(tmp_path / "nc", [0])
    with pytest.raises(error, match=message):
        await api(api.ingest(path, store := {}, **{"concat": "time", **options}))
    assert store == {}


assert za
