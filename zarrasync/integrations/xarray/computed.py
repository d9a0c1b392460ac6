"""Variables that conventions specify without storing them: coordinates and the reference system."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from xarray import Variable

from zarrasync.integrations.xarray.content import Content
from zarrasync.metadata.conventions import CRS, Axis

__all__ = ["computed_variables"]

_SPATIAL_REF = "spatial_ref"
"""The name of the variable with the reference system, as rioxarray and GDAL expect it."""


def computed_variables(content: Content, stored: Mapping[str, Variable]) -> dict[str, Variable]:
    """Return variables that conventions specify without storing them, and refer to the reference system.

    Coordinates that arrays specify differently are left out.

    Args:
        content: The arrays.
        stored: The variables of the arrays. Those with a reference system get the attribute ``grid_mapping``.
    """
    found: dict[str, list[tuple[Axis, int]]] = {}
    for name, variable in stored.items():
        for axis, dim, size in zip(content.axes(name), variable.dims, variable.shape, strict=False):
            same = found.setdefault(str(dim), [])
            if (axis, size) not in same:
                same.append((axis, size))
    coordinates = {
        dim: _coordinate(dim, *same[0]) for dim, same in found.items() if dim not in stored and len(same) == 1
    }
    computed = {dim: variable for dim, variable in coordinates.items() if variable is not None}
    return computed | _spatial_ref(content, stored)


def _coordinate(dim: str, axis: Axis, size: int) -> Variable | None:
    """Return the coordinates of an axis, or ``None`` if they are only numbers."""
    if len(axis.labels) == size and len({*axis.labels}) == size:
        return Variable((dim,), np.array(axis.labels, object))
    if not axis.has_coordinates:
        return None
    units = {"units": axis.unit} if axis.unit else {}
    return Variable((dim,), axis.coordinates(size), {**axis.attributes, **units})


# ------------------------------------------------------------------ reference systems


def _spatial_ref(content: Content, stored: Mapping[str, Variable]) -> dict[str, Variable]:
    """Return the variable with the reference system of the spatial arrays, unless the arrays have different ones."""
    spatial = {
        name: meaning
        for name, meaning in content.meanings.items()
        if meaning.crs is not None and _spatial_axes(content.axes(name)) and "grid_mapping" not in stored[name].attrs
    }
    systems = [(meaning.crs, meaning.affine) for meaning in spatial.values()]
    if not systems or _SPATIAL_REF in stored or any(system != systems[0] for system in systems):
        return {}
    for name in spatial:
        stored[name].attrs["grid_mapping"] = _SPATIAL_REF
    crs, affine = systems[0]
    assert crs is not None
    attributes = _crs_attributes(crs)
    if affine is not None:  # in the order of GDAL
        a, b, c, d, e, f = affine
        attributes["GeoTransform"] = " ".join(repr(number) for number in (c, a, b, f, d, e))
    return {_SPATIAL_REF: Variable((), 0, attributes)}


def _spatial_axes(axes: tuple[Axis, ...]) -> bool:
    return sum(axis.kind == "space" for axis in axes) >= 2


def _crs_attributes(crs: CRS) -> dict[str, str]:
    """Return the attributes from which rioxarray, GDAL and pyproj make a reference system."""
    if crs.wkt:
        return {"crs_wkt": crs.wkt, "spatial_ref": crs.wkt}
    return {"spatial_ref": crs.code or json.dumps(crs.projjson)}
