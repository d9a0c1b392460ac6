"""An analysis with xarray: write a dataset, open it through zarrasync, compute an anomaly, append a year.

pip install 'zarrasync[xarray,dask]'
python xarray_analysis.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr

from zarrasync.integrations.xarray import write_dataset


def a_year(year: int) -> xr.Dataset:
    """A year of monthly temperatures on a coarse grid."""
    time = np.array([f"{year}-{month:02}" for month in range(1, 13)], "M8[ns]")
    lat, lon = np.linspace(-88, 88, 45), np.arange(0.0, 360, 4)
    season = 10 * np.cos(2 * np.pi * (np.arange(12) - 6) / 12)[:, None, None] * np.sign(lat)[None, :, None]
    noise = np.random.default_rng(year).normal(0, 1, (12, 45, 90))
    t2m = (288 - 40 * np.abs(np.sin(np.radians(lat)))[None, :, None] + season + noise).astype("f4")
    variables = {"t2m": (("time", "lat", "lon"), t2m, {"units": "K"})}
    return xr.Dataset(variables, coords={"time": time, "lat": lat, "lon": lon})


def main(folder: Path) -> None:
    """Write two years, append a third, and compute anomalies."""
    url = str(folder / "climate.zarr")
    first = xr.concat([a_year(2023), a_year(2024)], "time")
    write_dataset(first, url, encoding={"t2m": {"chunks": (12, 45, 90)}})
    write_dataset(a_year(2025), url, append_dim="time")

    with xr.open_dataset(url, engine="zarrasync", chunks={}) as dataset:  # lazy; blocks follow the chunks
        climatology = dataset.t2m.groupby("time.month").mean("time")
        anomaly = dataset.t2m.groupby("time.month") - climatology
        weights = np.cos(np.radians(dataset.lat))
        series = anomaly.weighted(weights).mean(["lat", "lon"]).compute()
        print(dataset.t2m)
        print("mean anomaly per year:", series.groupby("time.year").mean().values.round(3))
        assert dataset.sizes["time"] == 36
        assert abs(float(series.mean())) < 1e-3


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
