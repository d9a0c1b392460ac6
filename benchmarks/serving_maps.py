"""Requests for map tiles that serving.py makes, no two alike: days of the fields of serving_values.py, and of a field in UTM."""

from __future__ import annotations

import io
import random
import urllib.request
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
from serving_values import COLUMNS, DAYS, ROWS, message, truth

SETTINGS = {
    "maps": "map tiles in Web Mercator, no two alike",
    "projected": "map tiles in Web Mercator of an array in UTM, no two alike",
}
SIZE = 256
LOW = 250.0
UTM, STEP, SIDE, UTM_DAYS = 32632, 1000.0, 600, 30
"""The code of the reference system, the metres between elements, the elements along each side, and the days of the field in UTM."""
WEST, NORTH = 200_500.0, 5_599_500.0
"""The centre of its first element."""
COVERED = 5.6, 45.4, 12.4, 50.1
"""Longitudes and latitudes that it covers."""
Tile = tuple[int, int, int, int, float]
"""The zoom, the column and the row of a tile, a day, and the value of the last colour."""


def make(group: Any) -> None:
    """Write the field in UTM into a group ``projected``."""
    from pyproj import CRS

    axes = {
        "time": (np.arange(UTM_DAYS), {"units": "days since 2024-01-01"}),
        "y": (NORTH - STEP * np.arange(SIDE), {"units": "m", "standard_name": "projection_y_coordinate"}),
        "x": (WEST + STEP * np.arange(SIDE), {"units": "m", "standard_name": "projection_x_coordinate"}),
    }
    for name, (values, attributes) in axes.items():
        group.create_array(f"projected/{name}", data=values, dimension_names=[name], attributes=attributes)
    group.create_array("projected/crs", data=np.array(0), attributes={"crs_wkt": CRS(UTM).to_wkt()})
    options = {"chunks": (10, 150, 150), "compressors": "zstd", "dimension_names": [*axes]}
    group.create_array("projected/t2m", data=utm_truth(), attributes={"units": "K", "grid_mapping": "crs"}, **options)


def utm_truth() -> npt.NDArray[np.float32]:
    """Return the values of the field in UTM: smooth with noise and two decimals."""
    rng = np.random.default_rng(3)
    day, row, column = np.ogrid[:UTM_DAYS, :SIDE, :SIDE]
    smooth = 280 + 20 * np.cos(row / 90) + 5 * np.sin(day / 8 + column / 60)
    return np.round(smooth + rng.normal(0, 0.5, (UTM_DAYS, SIDE, SIDE)), 2).astype("f4")


def _ours(group: str) -> Callable[[Tile], str]:
    def path(tile: Tile) -> str:
        zoom, x, y, day, high = tile
        query = f"sel=time={_date(day)}&rescale={LOW},{high}&colormap_name=gray&resampling=nearest"
        return f"/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?variable={group}/t2m&{query}"

    return path


def _titiler(group: str) -> Callable[[Tile], str]:
    def path(tile: Tile) -> str:
        zoom, x, y, day, high = tile
        query = f"variable=t2m&sel=time={_date(day)}&rescale={LOW},{high}&colormap_name=gray"
        return f"/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?url=SERVED&group={group}&{query}"

    return path


def _xpublish(tile: Tile) -> str:
    zoom, x, y, day, high = tile
    query = f"variables=t2m&time={_date(day)}&colorscalerange={LOW},{high}&style=raster/gray"
    return f"/datasets/weather/tiles/WebMercatorQuad/{zoom}/{y}/{x}?{query}&width={SIZE}&height={SIZE}&f=image/png"


def _date(day: int) -> str:
    return (date(2024, 1, 1) + timedelta(days=day)).isoformat()


PATHS: dict[str, dict[str, Callable[[Tile], str]]] = {
    setting: {"zarrasync": _ours(group), "zarrasync without caches": _ours(group), "titiler-xarray": _titiler(group)}
    for setting, group in (("maps", "weather"), ("projected", "projected"))
}
"""The path of a request, by setting and engine."""
PATHS["maps"]["xpublish-tiles"] = _xpublish


def _place(setting: str, choose: random.Random) -> tuple[int, int, int]:
    """Return the zoom, the column and the row of a random tile, of those that the field covers."""
    if setting == "maps":
        zoom = choose.choice((1, 2, 2, 3, 3, 3))
        return zoom, choose.randrange(1 << zoom), choose.randrange(1 << zoom)
    zoom = choose.choice((7, 8, 8, 9, 9, 9))
    west, south, east, north = COVERED
    columns = [(lon + 180) / 360 * (1 << zoom) for lon in (west, east)]
    rows = [(1 - np.arcsinh(np.tan(np.radians(lat))) / np.pi) / 2 * (1 << zoom) for lat in (north, south)]
    x, y = (choose.randrange(int(np.ceil(low)), int(high)) for low, high in (columns, rows))
    return zoom, x, y


def request(engine: str, setting: str, choose: random.Random) -> tuple[bytes, Tile]:
    """Return a request for a random tile, and the tile."""
    days = DAYS if setting == "maps" else UTM_DAYS
    tile = *_place(setting, choose), choose.randrange(days), round(310 + choose.random(), 6)
    return message(PATHS[setting][engine](tile)), tile


def expected(setting: str, tile: Tile, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the greys of a tile from 0 to 255: the greys of the nearest elements."""
    zoom, x, y, day, high = tile
    places = (np.arange(SIZE) + 0.5) / SIZE
    lon = (x + places) / (1 << zoom) * 360 - 180
    lat = np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * (y + places) / (1 << zoom)))))
    if setting == "maps":
        rows, columns = np.clip(np.rint(lat + 90).astype(int), 0, ROWS - 1), np.rint(lon + 180).astype(int) % COLUMNS
        found = values[day][rows][:, columns]
    else:
        from pyproj import Transformer

        east, north = Transformer.from_crs(4326, UTM, always_xy=True).transform(*np.meshgrid(lon, lat))
        found = values[day][np.rint((NORTH - north) / STEP).astype(int), np.rint((east - WEST) / STEP).astype(int)]
    return np.clip((found - LOW) / (high - LOW), 0, 1) * 255


def verify(engine: str, url: str, setting: str) -> None:
    """Compare the pictures of some responses with the truth, where neighbouring elements may differ by their noise.

    Raises:
        SystemExit: If they differ.
    """
    from PIL import Image

    values, choose = truth() if setting == "maps" else utm_truth(), random.Random(7)
    for _ in range(4):
        sent, tile = request(engine, setting, choose)
        path = sent.split()[1].decode()
        with urllib.request.urlopen(url + path) as response:
            found = np.asarray(Image.open(io.BytesIO(response.read())).convert("L"), np.float64)
        close = np.abs(found - expected(setting, tile, values)) <= 8
        if found.shape != (SIZE, SIZE) or close.mean() < 0.95:
            raise SystemExit(f"{engine} returns another picture for {path}: {close.mean():.1%} of the pixels agree")
