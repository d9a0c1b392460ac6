import numpy as np
import pandas as pd
import xarray as xr

PACKAGES = ["xarray", "zarr"]


def write(path, zarr_format):
    data = xr.Dataset(
        {
            "t": (("time", "x"), np.arange(40.0).reshape(8, 5)),
            "flag": ("x", np.array([True, False, True, True, False])),
        },
        {"time": pd.date_range("2020", periods=8), "x": np.arange(5)},
        {"title": "t"},
    )
    data["t"].encoding = {"chunks": (4, 5)}
    data.to_zarr(path, zarr_format=zarr_format)


def read(path):
    data = xr.open_dataset(path, engine="zarr", decode_cf=False)
    return {name: np.asarray(variable) for name, variable in data.variables.items()}
