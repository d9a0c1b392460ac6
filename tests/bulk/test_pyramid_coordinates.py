"""Coordinates that are stored next to the finest level of a pyramid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bulk.test_pyramid import VALUES, levels_of, write
from tests.support.api import Api
from zarrasync import PyramidAxes, stores, sync
from zarrasync.cli import main


def grid(store: Any, y: Any, attributes: dict[str, Any]) -> None:
    """Write an array with stored coordinates."""
    sync.create_group(store)
    write(store, VALUES, "v")
    latitudes = {"units": "degrees_north", **attributes}
    sync.create_array(store, path="y", data=y, dimension_names=["y"], attributes=latitudes)
    longitudes = {"units": "degrees_east"}
    sync.create_array(store, path="x", data=np.arange(500.0), dimension_names=["x"], attributes=longitudes)


@pytest.mark.parametrize(
    ("start", "attributes", "expected"),
    [
        (0, {"scale_factor": 0.5, "add_offset": -90.0}, ("y", 1.0, -89.75)),
        (32500, {"scale_factor": 0.25, "_Unsigned": "true"}, ("y", 0.5, 8125.125)),
    ],
)
def test_packed_coordinates_are_unpacked(start: int, attributes: dict[str, Any], expected: tuple[str, float, float]):
    grid(store := {}, np.arange(start, start + 600, dtype="u2").view("i2"), attributes)
    assert sync.pyramid(store, path="v", dest=(dest := {}), levels=2).left_out == []
    assert levels_of(dest)["1"][0] == expected


@pytest.mark.parametrize(
    ("y", "attributes", "reason"),
    [
        (np.arange(600.0) ** 2, {}, "their steps differ"),
        (np.arange(600, dtype="i2"), {"_FillValue": 7}, "their steps differ"),
        (np.array([f"{n}" for n in range(600)]), {}, "their data type is <U3"),
    ],
)
def test_coordinates_that_levels_cannot_express_are_named(
    y: Any, attributes: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    grid(tmp_path / "a", y, attributes)
    report = sync.pyramid(tmp_path / "a", path="v", dest={}, levels=2)
    assert report.left_out == [
        f"the coordinates of 'y' are left out, because {reason}; the levels count elements instead"
    ]
    assert main(["pyramid", str(tmp_path / "a"), str(tmp_path / "b"), "--path", "v", "--levels", "2"]) == 3
    assert reason in capsys.readouterr().out
    assert sync.pyramid(tmp_path / "a", path="v", dest={}, levels=2, axes=PyramidAxes(scale={"y": 2})).left_out == []


@pytest.mark.parametrize("convention", ["ome", "zarr-conventions"])
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_variables_that_levels_share(api: Api, tmp_path: Path, zarr_format: Any, convention: Any):
    """Variables along other axes than those that become coarser are copied. Others are named."""
    xarray = pytest.importorskip("xarray")
    days = np.arange("2020-01-01", "2020-01-04", dtype="M8[D]").astype("M8[ns]")
    dataset = xarray.Dataset(
        {
            "t": (("time", "y", "x"), np.random.default_rng(0).random((3, 40, 40))),
            "ends": (("time", "two"), np.stack([days, days], axis=1)),
            "crs": ((), 0, {"grid_mapping_name": "geostationary"}),
        },
        {"time": ("time", days, {"bounds": "ends"}), "y": np.arange(40.0), "x": np.arange(40.0), "height": 2.0},
    )
    dataset = dataset.assign_coords(code=("time", [10, 20, 30]), lat=(("y", "x"), np.zeros((40, 40))))
    dataset.t.attrs["grid_mapping"] = "crs"
    dataset.to_zarr(tmp_path / "a", zarr_format=zarr_format, consolidated=False)
    options: Any = {"path": "t", "dest": tmp_path / "p", "levels": 2, "convention": convention}
    for _ in range(2):  # the second run finds everything
        report = await api(api.pyramid(tmp_path / "a", **options))
        assert len(report.left_out) == 1
        assert report.left_out[0].startswith("the coordinate 'lat' of /t is left out, because levels are coarser")
    assert sorted(sync.open_group(tmp_path / "p").array_keys()) == ["0", "1", "code", "crs", "ends", "height", "time"]
    assert sync.validate(tmp_path / "p").findings == []
    level = xarray.open_dataset(tmp_path / "p", engine="zarrasync", level=1)
    coarse = dataset.drop_vars("lat").coarsen(y=2, x=2).mean()
    for name in ("time", "code", "height", "y", "x"):
        np.testing.assert_array_equal(level[name], coarse[name])
    np.testing.assert_allclose(level["image" if convention == "ome" else "data"], coarse.t)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"spatial:dimensions": ["y", "x"], "proj:code": "EPSG:3857"},
        {"spatial:dimensions": ["y", "x"], "spatial:transform": [1.0, 0.5, 0.0, 0.5, -1.0, 0.0]},
    ],
    ids=["none", "only a reference system", "rotated"],
)
@pytest.mark.parametrize("is_planned", [False, True])
async def test_a_pyramid_without_regular_coordinates_can_be_repeated(api: Api, attributes: Any, is_planned: bool):
    """No coordinates are invented for the finest level, neither by the first call nor by the next one."""
    sync.create_group(store := stores.MemoryStore())
    array = sync.create_array(store, path="0", data=VALUES[0, :64, :64], chunks=(16, 16), dimension_names=("y", "x"))
    array.update_attributes(attributes)

    async def run(**options: Any) -> list[int]:
        if is_planned:
            plan = await api(api.plan_pyramid(store, levels=3, **options))
            await api(plan.run())
            await api(plan.finish())
            return [0, 0]
        return [level.blocks for level in (await api(api.pyramid(store, levels=3, **options))).levels]

    await run(convention="zarr-conventions")
    before = dict(sync.open_group(store).attrs), dict(sync.open_array(store, path="0").attrs)
    assert before[1].get("spatial:transform") == attributes.get("spatial:transform")
    assert await run(convention="zarr-conventions") == [0, 0]
    assert await run() == [0, 0]  # which keeps the convention
    await run(convention="zarr-conventions", overwrite=True)
    assert (dict(sync.open_group(store).attrs), dict(sync.open_array(store, path="0").attrs)) == before
