"""Hierarchies to look at: in a browser, in notebooks, on the command line, and in the pictures of the documentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.conventions import ome_attributes
from zarrasync import sync

TEMPERATURE = (280 + 10 * np.sin(np.arange(24 * 40 * 60) / 1000)).reshape(24, 40, 60).astype("f4")

_Y, _X = np.mgrid[0:700, 0:1300]
WAVE = np.stack([np.sin(_X / 60 + t) * np.cos(_Y / 40) + _X / 1000 for t in range(5)]).astype("f4")
WAVE[:, 100:140, 200:260] = np.nan


def create_temperature(group: sync.Group, name: str = "t2m", *, units: str = "K", **options: Any) -> sync.Array:
    """Create an array of temperatures over time, latitude and longitude."""
    axes = ("time", "lat", "lon")
    return group.create_array(name, dimension_names=axes, attributes={"units": units}, **options)


def create_wave(group: sync.Group, name: str, values: np.ndarray, chunks: tuple[int, ...], **attributes: str) -> None:
    """Create an array of heights over time, y and x, with one shard for each point in time."""
    group.create_array(
        name,
        data=values,
        chunks=chunks,
        shards=(1, *values.shape[1:]),
        dimension_names=("time", "y", "x"),
        attributes={"units": "m", **attributes},
    )


def store_with_waves() -> dict[str, bytes]:
    """Return a store with waves, a pyramid, planes without values and a name that is markup."""
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes={"title": "Waves"})
    create_wave(root, "field/wave", WAVE, (1, 100, 130))
    root.create_array("field/<b>odd & name<i>", data=np.arange(600).reshape(20, 30))
    levels = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}
    root.create_group("pyramid", attributes={"ome": levels})
    root.create_array("pyramid/0", data=WAVE[0], chunks=(256, 256))
    root.create_array("pyramid/1", data=WAVE[0, ::2, ::2], chunks=(256, 256))
    root.create_array("numbers", data=np.arange(10))
    empty = np.full((2, 300, 500), np.nan, "f4")
    empty[1] = WAVE[1, :300, 300:800]
    root.create_array("empty", data=empty, chunks=(1, 100, 100))
    return store


def store_with_weather() -> dict[str, bytes]:
    """Return a store with packed temperatures on a globe, flags, series, and arrays that are no pictures."""
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes={"title": "Weather of 2024", "Conventions": "CF-1.10"})
    days, lat, lon = np.arange(366), np.arange(90.0, -91, -3), np.arange(0.0, 360, 3)
    mean = 288 - 45 * np.sin(np.deg2rad(lat)) ** 2
    seasons = 8 * np.sin(2 * np.pi * days / 366)[:, None] * np.sin(np.deg2rad(lat))
    waves = 4 * np.cos(np.deg2rad(lat))[:, None] * np.cos(3 * np.deg2rad(lon))
    kelvin = (mean + seasons)[:, :, None] + waves
    packing = {"units": "K", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    globe = ("latitude", "longitude")
    root.create_array(
        "t2m",
        data=np.rint((kelvin - 273.15) / 0.01).astype("i2"),
        chunks=(30, 61, 120),
        dimension_names=("time", *globe),
        attributes={"long_name": "temperature at 2 m", **packing},
    )
    flags = {"flag_values": [0, 1], "flag_meanings": "sea land", "flag_colors": "#3f7fbf #8fae5f"}
    land = (np.cos(np.deg2rad(lat))[:, None] * np.cos(2 * np.deg2rad(lon)) > 0.2).astype("u1")
    root.create_array("mask", data=land, dimension_names=globe, attributes={"long_name": "land mask", **flags})
    series = {"units": "K", "long_name": "mean of all places"}
    root.create_array("mean", data=kelvin.mean((1, 2)).astype("f4"), dimension_names=("time",), attributes=series)
    root.create_array("time", data=days, dimension_names=("time",), attributes={"units": "days since 2024-01-01"})
    for name, values, unit in (("latitude", lat, "degrees_north"), ("longitude", lon, "degrees_east")):
        root.create_array(name, data=values, dimension_names=(name,), attributes={"units": unit})
    root.create_array("version", data=np.array(7), attributes={"long_name": "number of the release"})
    walk = np.cumsum(np.random.default_rng(0).normal(size=400_000)).astype("f4")
    root.create_array("walk", data=walk, chunks=(50_000,))
    names, site = np.array(["Oslo", "Bern", "Lima", "Quito"]), np.zeros(4, [("height", "f4"), ("number", "i4")])
    site["height"], site["number"] = [23, 540, 161, 2850], [1492, 6631, 84628, 84071]
    spectrum = np.exp((1j / 20 - 1 / 200) * np.arange(500))
    for name, data in (("name", names), ("site", site), ("spectrum", spectrum)):
        axis = "frequency" if name == "spectrum" else "name"
        root.create_array(f"stations/{name}", data=data, dimension_names=(axis,))
    return store


def store_with_two_sources() -> dict[str, bytes]:
    """Return a store with waves from two sources, for pictures."""
    store: dict[str, bytes] = {}
    y, x = np.mgrid[-2:2:900j, -3:3:1600j]
    left, right = np.hypot(x + 1, y), np.hypot(x - 1, y)
    waves = np.stack([np.sin(5 * right - t) + np.sin(5 * left - t) for t in np.linspace(0, 3, 8)]).astype("f4")
    waves[:, (left < 0.08) | (right < 0.08)] = np.nan
    root = sync.create_group(store, attributes={"title": "Two sources of waves"})
    create_wave(root, "water/height", waves, (1, 225, 200), long_name="height of the surface")
    root.create_array("water/speed", data=np.abs(np.diff(waves, axis=0)), chunks=(1, 300, 400))
    root.create_array("time", data=np.linspace(0, 3, 8))
    root.create_array("land/mask", data=np.hypot(x, y) > 2.5, chunks=(300, 400))
    return store


def store_with_cells() -> dict[str, bytes]:
    """Return a store with an OME-Zarr image of cells and a label image, for pictures."""
    store: dict[str, bytes] = {}
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:600, :960]
    cells, labels = np.zeros((2, 600, 960)), np.zeros((1, 600, 960), "u2")
    for number in range(1, 71):
        distance = np.hypot(y - rng.uniform(0, 600), x - rng.uniform(0, 960)) / rng.uniform(10, 32)
        cells[number % 2] += np.exp(-2 * distance**2)
        if number % 2:
            labels[0, distance < 0.8] = number
    image = rng.poisson(60 + 2000 * cells).astype("u2")
    channels: dict[str, Any] = {"omero": {"channels": [{"label": "DAPI"}, {"label": "GFP"}]}}
    root = sync.create_group(store, attributes=ome_attributes("0.5", levels=3, step=0.325, **channels))
    root.create_group("labels", attributes={"ome": {"version": "0.5", "labels": ["nuclei"]}})
    label: dict[str, Any] = {"image-label": {}}
    nuclei = root.create_group("labels/nuclei", attributes=ome_attributes("0.5", levels=3, step=0.325, **label))
    for group, values in ((root, image), (nuclei, labels)):
        for n in range(3):
            level = values[:, :: 2**n, :: 2**n]
            group.create_array(str(n), data=level, chunks=(1, 256, 256), dimension_names=("c", "y", "x"))
    return store
