"""A typical service for a Zarr array: FastAPI with zarr-python. Run by serving.py with uvicorn.

Tiles show the same elements as with zarrasync, and use the same PNG encoder, in FastAPI's threads.
"""

from __future__ import annotations

import json
import os

import numpy as np
import zarr
from fastapi import FastAPI, Response
from pydantic import BaseModel
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from zarrasync.server.images import Style, render
from zarrasync.server.pyramid import TILE

PATH = os.environ["SERVED"]
app = FastAPI()
store = LocalStore(PATH, read_only=True)
array = zarr.open_array(store, path="field", mode="r")
weather = zarr.open_array(store, path="weather/t2m", mode="r")
ROWS, COLUMNS = array.shape
MOST = int(np.ceil(np.log2(max(ROWS, COLUMNS) / TILE)))


@app.get("/api/tiles/{z}/{x}/{y}.png")
def tile(z: int, x: int, y: int, low: float, high: float) -> Response:
    step = 2 ** (MOST - z)
    first = step // 2
    rows = slice(y * TILE * step + first, (y + 1) * TILE * step, step)
    columns = slice(x * TILE * step + first, (x + 1) * TILE * step, step)
    picture = render(np.asarray(array[rows, columns]), Style("viridis", low, high), (TILE, TILE))
    return Response(picture, media_type="image/png")


def numbers(text: str) -> list[int]:
    return [int(item) for item in text.split(",")]


@app.get("/points")
def points(rows: str, columns: str) -> dict[str, object]:
    places = zip(numbers(rows), numbers(columns), strict=True)
    return {"values": [np.asarray(weather[:, row, column]).tolist() for row, column in places]}


class Places(BaseModel):
    """The indices of many points."""

    rows: list[int]
    columns: list[int]


@app.post("/points")
def many_points(places: Places) -> Response:
    values = weather.vindex[np.arange(weather.shape[0])[:, None], places.rows, places.columns]
    return Response(json.dumps({"values": np.asarray(values).tolist()}), media_type="application/json")


@app.get("/plane")
def plane(day: int) -> dict[str, object]:
    return {"values": np.asarray(weather[day]).tolist()}


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/zarr/{key:path}")
async def chunk(key: str) -> Response:
    value = await store.get(key, default_buffer_prototype())
    if value is None:
        return Response(status_code=404)
    return Response(value.to_bytes(), media_type="application/octet-stream")
