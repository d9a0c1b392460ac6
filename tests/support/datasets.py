"""Datasets of xarray that several tests store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")


def dataset() -> Any:
    time = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[ns]")
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), np.arange(60, dtype="f4").reshape(3, 4, 5), {"units": "K"}),
            "masked": (("lat",), np.array([1.5, np.nan, 2.5, np.nan])),
            "packed": (("lon",), np.array([10.0, 10.5, np.nan, 11.5, 12.0])),
            "names": (("lat",), np.array(["a", "bé", "", "dd"], object)),
            "flags": (("lat",), np.array([True, False, True, False])),
            "scalar": ((), 3.25, {"list": [1, 2]}),
            "spell": (("lat",), np.array([1, 2, 3, 4], "m8[h]").astype("m8[ns]")),
        },
        {
            "time": time,
            "lat": np.linspace(-1, 1, 4),
            "lon": ("lon", np.arange(5)),
            "area": (("lat", "lon"), np.ones((4, 5))),
        },
        {"title": "né", "nested": {"a": [1, None]}},
    )


ENCODING = {"packed": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99}}


def rows(number: int, *, n: int = 1, lazy: bool = False) -> Any:
    """Return rows of a dataset that also has variables without the dimension ``t``."""
    given = xr.Dataset(
        {"a": (("t", "lat"), np.full((n, 4), number, "f4")), "area": ("lat", np.full(4, 7.0)), "run": 3},
        {"t": np.arange(number * n, (number + 1) * n), "lat": np.linspace(1, 2, 4)},
    )
    return given.chunk(lat=2) if lazy else given
