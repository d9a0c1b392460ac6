"""NetCDF files with hourly temperatures, and the dataset that they are parts of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from zarrasync.errors import NodeNotFoundError

PACKED = {"t2m": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}}
START = np.datetime64("2024-01-01", "ns")


def day(number: int, *, rows: int = 24, seed: int | None = None, **sizes: int) -> xr.Dataset:
    """Return the dataset of one day."""
    lat, lon = sizes.get("lat", 6), sizes.get("lon", 8)
    random = np.random.default_rng(abs(number) if seed is None else seed)
    values = random.normal(280, 5, (rows, lat, lon)).astype("f4")
    time = START + np.arange(number * 24, number * 24 + rows).astype("m8[h]")
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K", "long_name": "temperature"}),
            "mask": (("lat", "lon"), np.eye(lat, lon, dtype="i1")),
        },
        coords={"time": time, "lat": np.linspace(-75.0, 75, lat), "lon": np.arange(lon) * 10.0},
        attrs={"title": "test"},
    )


def write_days(folder: Path, numbers: Any, *, packed: bool = True, **options: Any) -> list[Path]:
    """Write one file a day."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number in numbers:
        paths.append(folder / f"day{number}.nc")
        day(number).to_netcdf(paths[-1], encoding=PACKED if packed else {}, **options)
    return paths


def joined(paths: Any) -> xr.Dataset:
    """Return the values of files, joined by xarray."""
    arguments: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    with xr.open_mfdataset(sorted(paths), combine="nested", concat_dim="time", **arguments) as dataset:
        return dataset.sortby("time").load()


def assert_same(store: Any, expected: xr.Dataset, engine: str = "zarr") -> None:
    """Check the values of a stored dataset, its dimensions, and the attributes of variables."""
    options: dict[str, Any] = {"consolidated": True} if engine == "zarr" else {}
    with xr.open_dataset(store, engine=engine, **options) as found:
        loaded = found.load()
    xr.testing.assert_equal(loaded, expected)
    assert loaded["t2m"].attrs == expected["t2m"].attrs


def visible_length(out: Path) -> int:
    """Return the number of rows that readers see. All variables must have it."""
    try:
        with xr.open_dataset(out, engine="zarrasync") as dataset:
            assert not np.isnan(dataset.t2m.to_numpy()).any()
            np.testing.assert_array_equal(np.diff(dataset.time.to_numpy()), np.timedelta64(1, "h"))
            return dataset.sizes["time"]
    except NodeNotFoundError:
        return 0
