"""Requests for map tiles that serving.py makes: days of the fields of serving_values.py in Web Mercator, no two alike."""

from __future__ import annotations

import io
import random
import urllib.request
from collections.abc import Callable
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt
from serving_values import COLUMNS, DAYS, ROWS, message, truth

SETTINGS = {"maps": "map tiles in Web Mercator, no two alike"}
SIZE = 256
LOW = 250.0
Tile = tuple[int, int, int, int, float]
"""The zoom, the column and the row of a tile, a day, and the value of the last colour."""


def _ours(tile: Tile) -> str:
    zoom, x, y, day, high = tile
    query = f"variable=weather/t2m&sel=time={_date(day)}&rescale={LOW},{high}&colormap_name=gray&resampling=nearest"
    return f"/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?{query}"


def _titiler(tile: Tile) -> str:
    zoom, x, y, day, high = tile
    query = f"variable=t2m&sel=time={_date(day)}&rescale={LOW},{high}&colormap_name=gray"
    return f"/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?url=SERVED&group=weather&{query}"


def _xpublish(tile: Tile) -> str:
    zoom, x, y, day, high = tile
    query = f"variables=t2m&time={_date(day)}&colorscalerange={LOW},{high}&style=raster/gray"
    return f"/datasets/weather/tiles/WebMercatorQuad/{zoom}/{y}/{x}?{query}&width={SIZE}&height={SIZE}&f=image/png"


def _date(day: int) -> str:
    return (date(2024, 1, 1) + timedelta(days=day)).isoformat()


PATHS: dict[str, dict[str, Callable[[Tile], str]]] = {
    "maps": {
        "zarrasync": _ours,
        "zarrasync without caches": _ours,
        "titiler-xarray": _titiler,
        "xpublish-tiles": _xpublish,
    }
}
"""The path of a request, by setting and engine."""


def request(engine: str, setting: str, choose: random.Random) -> tuple[bytes, Tile]:
    """Return a request for a random tile, and the tile."""
    zoom = choose.choice((1, 2, 2, 3, 3, 3))
    tile = (
        zoom,
        choose.randrange(1 << zoom),
        choose.randrange(1 << zoom),
        choose.randrange(DAYS),
        round(310 + choose.random(), 6),
    )
    return message(PATHS[setting][engine](tile)), tile


def expected(tile: Tile, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the greys of a tile from 0 to 255: the greys of the nearest elements."""
    zoom, x, y, day, high = tile
    places = (np.arange(SIZE) + 0.5) / SIZE
    lon = (x + places) / (1 << zoom) * 360 - 180
    lat = np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * (y + places) / (1 << zoom)))))
    rows, columns = np.rint(lat + 90).astype(int), np.rint(lon + 180).astype(int) % COLUMNS
    found = values[day][np.clip(rows, 0, ROWS - 1)][:, columns]
    return np.clip((found - LOW) / (high - LOW), 0, 1) * 255


def verify(engine: str, url: str, setting: str) -> None:
    """Compare the pictures of some responses with the truth, where neighbouring elements may differ by their noise.

    Raises:
        SystemExit: If they differ.
    """
    from PIL import Image

    values, choose = truth(), random.Random(7)
    for _ in range(4):
        sent, tile = request(engine, setting, choose)
        path = sent.split()[1].decode()
        with urllib.request.urlopen(url + path) as response:
            found = np.asarray(Image.open(io.BytesIO(response.read())).convert("L"), np.float64)
        close = np.abs(found - expected(tile, values)) <= 8
        if found.shape != (SIZE, SIZE) or close.mean() < 0.95:
            raise SystemExit(f"{engine} returns another picture for {path}: {close.mean():.1%} of the pixels agree")
