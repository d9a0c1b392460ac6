"""Attributes that differ between files: those that determine the meaning of values, and those that only describe them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import FileOptions, sync
from zarrasync.errors import CodecError, ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")

UTM = {
    "grid_mapping_name": "transverse_mercator",
    "longitude_of_central_meridian": 15.0,
    "crs_wkt": "PROJCRS[zone 33]",
    "GeoTransform": "0 10 0 0 0 -10",
}


def write(folder: Path, number: int, dim: str = "time", **attributes: dict[str, Any]) -> Path:
    """Write a file with one row. Variables get attributes by their names."""
    dataset = xr.Dataset(
        {"v": ((dim, "x"), np.full((1, 3), number, "i4")), "crs": ((), 0)}, coords={dim: [number], "x": [1, 2, 3]}
    )
    for name, items in attributes.items():
        dataset[name].attrs.update(items)
    dataset.to_netcdf(folder / f"{number}.nc")
    return folder / f"{number}.nc"


async def refused(api: Api, paths: list[Path], message: str) -> None:
    """Check that files are refused together, and that the second one cannot be appended to the first."""
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(paths, {}, concat="time"))
    await api(api.ingest(paths[0], store := {}, concat="time"))
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(paths[1], store, concat="time", append=True))


# ------------------------------------------------------------------ meaning


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"longitude_of_central_meridian": 15.0}, {"longitude_of_central_meridian": 21.0}, "central_meridian 21.0 and"),
        ({}, {"grid_mapping_name": "polar_stereographic"}, "grid_mapping_name 'polar_stereographic' and"),
    ],
)
async def test_coordinate_reference_systems(api: Api, tmp_path: Path, one: Any, other: Any, message: str):
    paths = [write(tmp_path, n, crs={**UTM, **own}) for n, own in enumerate((one, other))]
    await refused(api, paths, f"'crs' describes another coordinate reference system in .*1.nc than in .*{message}")


async def test_a_file_without_a_coordinate_reference_system(api: Api, tmp_path: Path):
    paths = [write(tmp_path, 0, crs=UTM), write(tmp_path, 1)]
    await refused(api, paths, "'crs' describes another .* no grid_mapping_name and grid_mapping_name 'transverse_merc")


async def test_texts_of_one_coordinate_reference_system(api: Api, tmp_path: Path):
    other = {**UTM, "crs_wkt": 'PROJCRS["UTM 33"]', "GeoTransform": "10 10 0 0 0 -10"}
    report = await api(api.ingest([write(tmp_path, 0, crs=UTM), write(tmp_path, 1, crs=other)], {}, concat="time"))
    assert report.rows == 2
    without = [{"crs_wkt": text} for text in ("PROJCRS[one]", "PROJCRS[two]")]
    paths = [write(tmp_path, n, crs=own) for n, own in enumerate(without)]
    await refused(api, paths, r"crs_wkt 'PROJCRS\[two\]' and crs_wkt 'PROJCRS\[one\]'")


async def test_rasters_of_other_zones(api: Api, tmp_path: Path):
    rasterio = pytest.importorskip("rasterio", reason="rasterio writes the files")
    pytest.importorskip("rioxarray", reason="rioxarray opens the files")
    for zone, corner in ((33, 0), (34, 0), (33, 300)):
        transform = rasterio.Affine(10, 0, 5e5 + corner, 0, -10, 5e6)  # from_origin warns with newer releases of affine
        properties = {"height": 4, "width": 5, "count": 1, "dtype": "int16", "crs": f"EPSG:326{zone}"}
        with rasterio.open(
            tmp_path / f"{zone}-{corner}.tif", "w", driver="GTiff", transform=transform, **properties
        ) as file:
            file.write(np.ones((1, 4, 5), "i2"))
    first = tmp_path / "33-0.tif"
    with pytest.raises(ShapeError, match=r"central_meridian 21.0 and .*central_meridian 15.0"):
        await api(api.ingest([first, tmp_path / "34-0.tif"], {}, concat="time"))
    with pytest.raises(ShapeError, match=r"'x' must be the same in all files, but is 500305.0 at position 0"):
        await api(api.ingest([first, tmp_path / "33-300.tif"], {}, concat="time"))
    report = await api(api.ingest([first, tmp_path / "33-300.tif"], {}, concat="x"))
    assert report.rows == 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"flag_values": [0, 1], "flag_meanings": "dry wet"}, {"flag_values": [0, 1], "flag_meanings": "wet dry"}),
        ({"flag_masks": [1, 2]}, {"flag_masks": [2, 1]}),
        ({"positive": "up"}, {"positive": "down"}),
        ({"grid_mapping": "crs"}, {"grid_mapping": "x"}),
        ({"valid_range": [0, 50]}, {"valid_range": [0, 100]}),
        ({"valid_range": [0, 50]}, {"valid_min": 1, "valid_max": 50}),
        ({"valid_max": 50}, {}),
        ({}, {"valid_max": 50}),
    ],
)
async def test_codes(api: Api, tmp_path: Path, one: dict[str, Any], other: dict[str, Any]):
    paths = [write(tmp_path, n, v=own) for n, own in enumerate((one, other))]
    await refused(
        api,
        paths,
        r"'v' has (no )?\w+.* in .*1.nc, but (no )?\w+.* in .*, so its values have another meaning; .*variables=",
    )


async def test_other_attributes_for_the_same_limits(api: Api, tmp_path: Path):
    limits: list[dict[str, Any]] = [{"valid_range": [0, 50]}, {"valid_min": 0, "valid_max": 50}, {"valid_max": 60}]
    paths = [write(tmp_path, n, v=own) for n, own in enumerate(limits)]
    report = await api(api.ingest(paths[:2], store := {}, concat="time"))
    assert report.rows == 2
    source = FileOptions(ignore_attributes=["valid_range", "valid_max"])
    await api(api.ingest_files(paths, store, concat="time", append=True, source=source))
    assert sync.open_array(store, path="v").attrs["valid_range"] == [0, 50]


@pytest.mark.parametrize("scale", [2.0, -0.1])
async def test_limits_of_unpacked_values(api: Api, tmp_path: Path, scale: float):
    """The limits in files are those of packed numbers."""
    with nc.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("time", "i4", ("time",))[:] = [0, 1, 2, 3]
        v = file.createVariable("v", "i2", ("time",))
        v.set_auto_maskandscale(False)
        v.setncatts({"scale_factor": scale, "add_offset": 1.0, "valid_range": np.array([0, 60], "i2")})
        v[:] = [-1, 0, 60, 61]
    with nc.Dataset(tmp_path / "a.nc") as file:
        expected = np.ma.filled(file["v"][:], np.nan)
    await api(api.ingest([tmp_path / "a.nc"], store := {}, concat="time", decode=True))
    np.testing.assert_allclose(sync.open_array(store, path="v").decoded[:], expected)
    assert np.isnan(expected).tolist() == [True, False, False, True]


async def test_durations_that_are_not_whole(api: Api, tmp_path: Path):
    paths = [write(tmp_path, n, v={"units": units}) for n, units in enumerate(("days", "hours"))]
    await api(api.ingest(paths[0], store := {}, concat="time"))
    with pytest.raises(CodecError, match=r"not a whole number of 'days'.*'units': 'seconds'"):
        await api(api.ingest(paths[1], store, concat="time", append=True))


async def test_enumerations(api: Api, tmp_path: Path):
    paths = []
    for number, members in enumerate(
        ({"clear": 0, "low cloud": 1}, {"clear": 0, "low cloud": 1}, {"clear": 1, "low cloud": 0})
    ):
        paths.append(tmp_path / f"{number}.nc")
        with nc.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            kind = file.createEnumType(np.uint8, "kind", members)
            file.createVariable("time", "i4", ("time",))[:] = [number]
            file.createVariable("clouds", kind, ("time",))[:] = [1]
    await api(api.ingest(paths[:2], store := {}, concat="time"))
    attributes = sync.open_array(store, path="clouds").attrs
    assert (attributes["flag_values"], attributes["flag_meanings"]) == ([0, 1], "clear low_cloud")
    with pytest.raises(ShapeError, match=r"'clouds' .*\[1, 0\] in .*2.nc, but .*\[0, 1\]"):
        await api(api.ingest(paths[2], store, concat="time", append=True))


# ------------------------------------------------------------------ description


async def test_other_attributes_are_reported(api: Api, tmp_path: Path):
    own = [{"long_name": "a", "actual_range": [0, 1], "same": 1}, {"long_name": "b", "actual_range": [0, 2], "same": 1}]
    paths = [write(tmp_path, n, v=attributes) for n, attributes in enumerate((*own, {"units": "K", "same": 1}))]
    report = await api(api.ingest(paths[:2], store := {}, concat="time"))
    assert report.notes == [f"attributes that differ, kept as they are in {paths[0]}: v (actual_range, long_name)"]
    assert sync.open_array(store, path="v").attrs["long_name"] == "a"
    report = await api(api.ingest(paths[2], store, concat="time", append=True))
    assert report.notes == ["attributes that differ, kept as they are in the destination: v (units)"]


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_equal_attributes_without_literals_in_json(api: Api, tmp_path: Path, zarr_format: int):
    attributes = {"valid_min": -np.inf, "range": np.array([1, np.nan]), "one": np.array([np.nan]), "names": ["a", "b"]}
    paths = [write(tmp_path, n, v=attributes) for n in range(3)]
    for part in (paths[:2], paths[2:]):
        report = await api(
            api.ingest(part, str(tmp_path / "out.zarr"), concat="time", append=True, zarr_format=zarr_format)
        )
        assert report.notes == []


# ------------------------------------------------------------------ durations


def write_steps(folder: Path, number: int, values: Any, units: str, dtype: str = "i4") -> Path:
    with nc.Dataset(folder / f"{number}.nc", "w") as file:
        file.createDimension("step", None)
        steps = file.createVariable("step", dtype, ("step",))
        steps.units = units
        steps[:] = values
        file.createVariable("v", "f4", ("step",))[:] = number
    return folder / f"{number}.nc"


@pytest.mark.parametrize("together", [False, True])
async def test_durations_get_one_unit(api: Api, tmp_path: Path, together: bool):
    units = ("hours", "minutes", "days", "h", "s")
    values = ([0, 6], [720, 1080], [1], [30], [129600])
    paths = [write_steps(tmp_path, n, own, unit) for n, (own, unit) in enumerate(zip(values, units, strict=True))]
    store: dict[str, Any] = {}
    for part in [paths] if together else [[path] for path in paths]:
        await api(api.ingest(part, store, concat="step", append=True))
    steps = sync.open_array(store, path="step")
    assert steps.attrs["units"] == "hours"
    np.testing.assert_array_equal(steps[:], [0, 6, 12, 18, 24, 30, 36])
    late = write_steps(tmp_path, 9, [4321], "minutes")
    with pytest.raises(CodecError, match=r"'step' of .*9.nc is not a whole number of 'hours'"):
        await api(api.ingest(late, store, concat="step", append=True))
    await api(api.ingest([*paths, late], finer := {}, concat="step"))
    steps = sync.open_array(finer, path="step")
    assert (steps.attrs["units"], steps[-1]) == ("minutes", 4321)


async def test_durations_are_no_dates(api: Api, tmp_path: Path):
    paths = [write_steps(tmp_path, 0, [0, 6], "hours"), write_steps(tmp_path, 1, [12], "hours since 2024-01-01")]
    for order in (paths, paths[::-1]):
        with pytest.raises(ShapeError, match=r"'step' has the units 'hours.*' in .*, but 'hours.*' in"):
            await api(api.ingest(order, {}, concat="step"))


async def test_labels_without_units(api: Api, tmp_path: Path):
    paths = [write_steps(tmp_path, 0, [0, 6], "hours since 2024-01-01"), write_steps(tmp_path, 1, [12], "")]
    with nc.Dataset(paths[1], "a") as file:
        file["step"].delncattr("units")
    await api(api.ingest(paths[0], store := {}, concat="step"))
    for files, target in ((paths, {}), (paths[1], store)):
        with pytest.raises(ShapeError, match=r"'step' of .*1.nc has no units"):
            await api(api.ingest(files, target, concat="step", append=True))
    await api(api.ingest(paths[1], store := {}, concat="step"))
    with pytest.raises(ShapeError, match=r"'step' of .*0.nc contains times in 'hours since 2024-01-01'"):
        await api(api.ingest(paths[0], store, concat="step", append=True))


async def test_slices_with_times_in_other_units(api: Api, tmp_path: Path):
    """xarray writes each scalar time with its own reference."""
    paths = []
    for number in range(3):
        time, step = np.datetime64("2024-01-01", "ns") + np.timedelta64(number, "D"), np.timedelta64(6 * number, "h")
        coords = {"valid_time": time, "step": step.astype("m8[ns]"), "x": [1, 2]}
        paths.append(tmp_path / f"{number}.nc")
        xr.Dataset({"v": ("x", [number, number])}, coords=coords).to_netcdf(paths[-1])
    out = str(tmp_path / "out.zarr")
    await api(api.ingest(paths[:2], out, concat="step"))
    await api(api.ingest(paths[2], out, concat="step", append=True))
    with xr.open_zarr(out, decode_timedelta=True) as stored:
        days = np.datetime64("2024-01-01", "ns") + np.arange(3).astype("m8[D]")
        np.testing.assert_array_equal(stored.valid_time.values, days)
        np.testing.assert_array_equal(stored.step.values, np.arange(0, 18, 6).astype("m8[h]").astype("m8[ns]"))
        assert stored.valid_time.dims == ("step",)
