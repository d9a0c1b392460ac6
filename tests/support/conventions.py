"""Attributes and stores that follow conventions."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrasync import sync

MULTISCALES = "d35379db-88df-4056-af3a-620245f8e347"
SPATIAL = "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4"
PROJ = "f17cb550-5864-4468-aeb7-f3180cfb622f"
CYX = [
    {"name": "c", "type": "channel"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]


def transformations(version: str, path: str, scale: list[float], offset: list[float] | None) -> list[dict[str, Any]]:
    """Return the coordinate transformations of a level of an OME-Zarr image."""
    items: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
    if offset is not None:
        items.append({"type": "translation", "translation": offset})
    if version < "0.6":
        return items
    ends = {"input": {"path": path}, "output": {"name": "physical"}}
    return [{**items[0], **ends}] if len(items) == 1 else [{"type": "sequence", **ends, "transformations": items}]


def ome_attributes(version: str, *, levels: int = 2, step: float = 0.5, **more: Any) -> dict[str, Any]:
    """Return the attributes of an OME-Zarr image with the axes c, y and x, whose levels halve the resolution."""
    datasets = []
    for n in range(levels):
        pixel, shift = step * 2**n, step * (2**n - 1) / 2
        scale, offset = [1.0, pixel, pixel], [0.0, shift, shift] if n else None
        datasets.append({"path": str(n), "coordinateTransformations": transformations(version, str(n), scale, offset)})
    axes = {"axes": CYX} if version < "0.6" else {"coordinateSystems": [{"name": "physical", "axes": CYX}]}
    multiscales = [{"name": "cells", **axes, "datasets": datasets}]
    if version >= "0.5":
        return {"ome": {"version": version, "multiscales": multiscales, **more}}
    return {"multiscales": [{"version": version, **multiscales[0]}], **more}


def write_ome_image(
    store: Any, version: str, path: str = "", shape: tuple[int, ...] = (2, 64, 96), levels: int = 2, **more: Any
) -> np.ndarray:
    """Write an OME-Zarr image, and return its finest level."""
    dtype = np.dtype("i4" if "image-label" in more else "u2")
    values = (np.arange(np.prod(shape)).reshape(shape) % 251).astype(dtype)
    zarr_format = 2 if version < "0.5" else 3
    attributes = ome_attributes(version, levels=levels, **more)
    group = sync.create_group(store, path=path, zarr_format=zarr_format, attributes=attributes)
    for n in range(levels):
        names: Any = {"dimension_names": ("c", "y", "x")} if zarr_format == 3 else {}
        if zarr_format == 2:
            names = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
        group.create_array(str(n), data=values[:, :: 2**n, :: 2**n], chunks=(1, 32, 32), **names)
    return values


def geo_attributes(*, levels: bool = True) -> dict[str, Any]:
    """Return the attributes of a pyramid of groups with the conventions multiscales, spatial and proj."""
    layout: list[dict[str, Any]] = [
        {"asset": "r10m", "spatial:shape": [60, 80], "spatial:transform": [10.0, 0.0, 500000.0, 0.0, -10.0, 4600000.0]},
        {
            "asset": "r20m",
            "derived_from": "r10m",
            "transform": {"scale": [2.0, 2.0], "translation": [0.0, 0.0]},
            "spatial:shape": [30, 40],
            "spatial:transform": [20.0, 0.0, 500000.0, 0.0, -20.0, 4600000.0],
        },
    ]
    uuids = [*([MULTISCALES] if levels else []), SPATIAL, PROJ]
    attributes: dict[str, Any] = {
        "zarr_conventions": [{"uuid": uuid} for uuid in uuids],
        "spatial:dimensions": ["Y", "X"],
        "proj:code": "EPSG:32633",
    }
    if levels:
        return {**attributes, "multiscales": {"layout": layout}}
    return {**attributes, "spatial:transform": layout[0]["spatial:transform"]}
