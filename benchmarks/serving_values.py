"""Requests for values that serving.py makes: series, points and planes of a year of daily fields, and their truth."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

DAYS, ROWS, COLUMNS = 365, 181, 360
POINTS, MANY = 50, 10_000
SETTINGS = {
    "series": "series of 365 days at one place",
    "points": f"series of 365 days at {POINTS} places",
    "many": f"series of 365 days at {MANY:,} places, in one request",
    "planes": f"planes of {ROWS} x {COLUMNS} numbers as JSON",
}
HOST = "127.0.0.1"
Cells = tuple[list[int], list[int], int]
"""Rows and columns of points, and a day."""


def truth() -> npt.NDArray[np.float32]:
    """Return the values: smooth fields with noise and two decimals."""
    rng = np.random.default_rng(2)
    day, row, column = np.ogrid[:DAYS, :ROWS, :COLUMNS]
    smooth = 280 + 20 * np.cos(row / 57.3) + 5 * np.sin(day / 58.1 + column / 60)
    return np.round(smooth + rng.normal(0, 0.5, (DAYS, ROWS, COLUMNS)), 2).astype("f4")


def make(group: Any) -> None:
    """Write the values into a group ``weather``."""
    axes = {
        "time": (np.arange(DAYS), "days since 2024-01-01"),
        "lat": (np.arange(ROWS) - 90.0, "degrees_north"),
        "lon": (np.arange(COLUMNS) - 180.0, "degrees_east"),
    }
    for name, (values, units) in axes.items():
        group.create_array(f"weather/{name}", data=values, dimension_names=[name], attributes={"units": units})
    options = {"chunks": (73, 46, 45), "compressors": "zstd", "dimension_names": [*axes]}
    group.create_array("weather/t2m", data=truth(), attributes={"units": "K"}, **options)


# ------------------------------------------------------------------ requests and responses


def message(path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Return a request with its head; a POST if it has a body."""
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
    if body:
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _edr(prefix: str, form: str = "") -> Callable[[Cells], bytes]:
    def request(cells: Cells) -> bytes:
        points = ",".join(f"({column - 180} {row - 90})" for row, column in zip(*cells[:2], strict=True))
        text = f"POINT{points}" if len(cells[0]) == 1 else f"MULTIPOINT({points})"
        return message(f"{prefix}/position?coords={quote(text)}&parameter-name=t2m{form}")

    return request


def _geometry(cells: Cells) -> dict[str, Any]:
    return {"type": "MultiPoint", "coordinates": [[c - 180, r - 90] for r, c in zip(*cells[:2], strict=True)]}


def _post_ours(cells: Cells) -> bytes:
    return message(f"{OURS_PREFIX}/position?parameter-name=t2m", json.dumps({"coords": _geometry(cells)}).encode())


def _post_xpublish(cells: Cells) -> bytes:
    path = f"{XPUBLISH_PREFIX}/position?parameter-name=t2m&f=cf_covjson"
    return message(path, json.dumps(_geometry(cells)).encode(), "application/geo+json")


def _numbers(cells: Cells) -> str:
    return f"rows={','.join(map(str, cells[0]))}&columns={','.join(map(str, cells[1]))}"


def _covjson(body: Any) -> Any:
    found = body["ranges"]["t2m"]
    return np.array(found["values"], "f4").reshape(found["shape"])


OURS_PREFIX, XPUBLISH_PREFIX = "/edr/collections/weather", "/datasets/weather/edr"
OURS = _edr(OURS_PREFIX), _covjson
XPUBLISH = _edr(XPUBLISH_PREFIX, "&f=cf_covjson"), _covjson
FASTAPI = (lambda cells: message(f"/points?{_numbers(cells)}")), (lambda body: body["values"])
PLANE = (lambda cells: message(f"/api/data?path=weather/t2m&select={cells[2]}")), (lambda body: body["data"])
PATHS: dict[str, dict[str, tuple[Callable[[Cells], bytes], Callable[[Any], Any]]]] = {
    "series": {
        "zarrasync": OURS,
        "zarrasync without caches": OURS,
        "FastAPI + zarr-python": FASTAPI,
        "xpublish-edr": XPUBLISH,
        "titiler-xarray": (
            lambda cells: message(
                f"/point/{cells[1][0] - 180},{cells[0][0] - 90}?url=SERVED&group=weather&variable=t2m"
            ),
            lambda body: body["values"],
        ),
    },
    "points": {
        "zarrasync": OURS,
        "zarrasync without caches": OURS,
        "FastAPI + zarr-python": FASTAPI,
        "xpublish-edr": XPUBLISH,
    },
    "many": {
        "zarrasync": (_post_ours, _covjson),
        "zarrasync without caches": (_post_ours, _covjson),
        "FastAPI + zarr-python": (
            lambda cells: message("/points", json.dumps({"rows": cells[0], "columns": cells[1]}).encode()),
            lambda body: body["values"],
        ),
        "xpublish-edr": (_post_xpublish, _covjson),
    },
    "planes": {
        "zarrasync": PLANE,
        "zarrasync without caches": PLANE,
        "FastAPI + zarr-python": ((lambda cells: message(f"/plane?day={cells[2]}")), (lambda body: body["values"])),
    },
}
"""The request, and the values in its response, by setting and engine."""


def request(engine: str, setting: str, choose: random.Random) -> tuple[bytes, Cells]:
    """Return a request for random cells, and the cells."""
    count = {"points": POINTS, "many": MANY}.get(setting, 1)
    rows, columns = ([choose.randrange(size) for _ in range(count)] for size in (ROWS, COLUMNS))
    cells = rows, columns, choose.randrange(DAYS)
    return PATHS[setting][engine][0](cells), cells


def verify(engine: str, url: str, setting: str) -> None:
    """Compare the values of some responses with the truth.

    Raises:
        SystemExit: If they differ.
    """
    values, choose = truth(), random.Random(7)
    for _ in range(3):
        sent, (rows, columns, day) = request(engine, setting, choose)
        head, _, body = sent.partition(b"\r\n\r\n")
        path, kind = head.split()[1].decode(), re.search(rb"Content-Type: (\S+)", head)
        headers = {"Content-Type": kind[1].decode()} if kind else {}
        with urllib.request.urlopen(urllib.request.Request(url + path, body or None, headers)) as response:
            found = np.array(PATHS[setting][engine][1](json.load(response)), "f4")
        wanted = values[day] if setting == "planes" else values[:, rows, columns]
        found = found.reshape(wanted.shape) if found.shape[0] == len(wanted) else found.reshape(wanted.T.shape).T
        if not np.allclose(found, wanted, rtol=0, atol=1e-3):
            raise SystemExit(f"{engine} returns other values for {path[:200]}")
