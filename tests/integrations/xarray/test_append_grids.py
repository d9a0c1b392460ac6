"""Appends compare the coordinates that they do not extend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from zarrasync import stores

xr: Any = pytest.importorskip("xarray")

from zarrasync.integrations.xarray import write_dataset  # after the skip
from zarrasync.integrations.xarray.coordinates import _parts


def day(number: int, lat: Any = (0.0, 1.0, 2.0), crs: str = "WGS 84") -> Any:
    lat = np.asarray(lat)
    return xr.Dataset(
        {
            "v": (("time", "lat"), np.full((1, 3), float(number)), {"grid_mapping": "crs"}),
            "lat_bnds": (("lat", "b"), np.stack([lat - 0.5, lat + 0.5], 1)),
            "crs": ((), 0, {"crs_wkt": crs}),
        },
        {
            "time": [np.datetime64(f"2024-01-{number:02}", "ns")],
            "lat": ("lat", lat, {"bounds": "lat_bnds"}),
            "area": ("lat", lat * 10),
        },
    )


def read(store: Any) -> Any:
    return xr.open_dataset(store, engine="zarrasync")


@pytest.fixture
def store() -> stores.MemoryStore:
    store = stores.MemoryStore()
    write_dataset(day(1), store)
    return store


OTHERS = {
    "lat": day(2, (0.5, 1.5, 2.5)),
    "area": day(2).assign_coords(area=("lat", [1.0, 2.0, 3.0])),
    "lat_bnds": day(2).assign(lat_bnds=day(2).lat_bnds + 0.1),
    "crs": day(2, crs="other"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("lazy", [False, True])
def test_other_coordinates_are_refused(store: stores.MemoryStore, name: str, lazy: bool):
    other = OTHERS[name].chunk() if lazy else OTHERS[name]
    before = read(store).load()
    with pytest.raises(ValueError, match=f"{name!r} differs from the stored one"):
        write_dataset(other, store, append_dim="time")
    xr.testing.assert_identical(read(store).load(), before)
    write_dataset(other, store, append_dim="time", on_mismatch="ignore")
    after = read(store).load()
    assert after.v.values[:, 0].tolist() == [1, 2]
    xr.testing.assert_identical(after.isel(time=[0]), before)


def test_equal_coordinates_are_appended_to(store: stores.MemoryStore):
    for number in (2, 3):
        write_dataset(day(number), store, append_dim="time", verify=True)
    assert read(store).v.values[:, 0].tolist() == [1, 2, 3]
    without = day(4).drop_vars(["lat", "area", "crs", "lat_bnds"])
    write_dataset(without, store, append_dim="time")
    assert read(store).sizes["time"] == 4


@pytest.mark.parametrize("encoding", [{"dtype": "f4"}, {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}])
def test_coordinates_that_were_rounded_are_equal(encoding: dict[str, Any]):
    store = stores.MemoryStore()
    lat = (0.1, 0.2, 0.3)
    write_dataset(day(1, lat), store, encoding={"lat": encoding})
    write_dataset(day(2, lat), store, append_dim="time")
    with pytest.raises(ValueError, match="'lat' differs"):
        write_dataset(day(3, (0.1, 0.2, 0.4)), store, append_dim="time")


@pytest.mark.parametrize(
    ("shape", "together", "count"), [((10,), 24, 4), ((10, 4), 1, 10), ((10,), 1 << 20, 1), ((), 8, 1)]
)
def test_large_coordinates_are_compared_in_parts(shape: tuple[int, ...], together: int, count: int):
    variable = xr.Variable(
        [f"d{axis}" for axis in range(len(shape))], np.arange(math.prod(shape), dtype="f8").reshape(shape)
    )
    parts = [variable[part].values for part in _parts(variable, together)]
    assert len(parts) == count
    np.testing.assert_array_equal(np.concatenate([part.ravel() for part in parts]), variable.values.ravel())


def test_unknown_choices(store: stores.MemoryStore):
    with pytest.raises(ValueError, match="on_mismatch must be one of error, ignore; found 'skip'"):
        write_dataset(day(2), store, append_dim="time", on_mismatch="skip")
