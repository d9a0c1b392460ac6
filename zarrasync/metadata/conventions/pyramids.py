"""Writing conventions: the attributes of pyramids in OME-Zarr and in zarr-conventions. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from zarrasync.metadata.conventions.meaning import CRS, Affine, Axis
from zarrasync.metadata.conventions.zarr_conventions import declaration

Method: TypeAlias = Literal["mean", "mode", "nearest", "max", "min"]
"""How cells of several elements become one element."""
METHODS: tuple[Method, ...] = get_args(Method)
_RESAMPLING = {"mean": "average", "mode": "mode", "nearest": "nearest", "max": "max", "min": "min"}
"""The names of methods in zarr-conventions, as in GDAL."""
_DESCRIPTION = "cells of several elements are reduced to one element; the last cells may have fewer elements"


@dataclass(frozen=True)
class PyramidLevel:
    """A level of a pyramid.

    Attributes:
        path: The path of its array, relative to the group of the pyramid.
        shape: The shape of its array.
        factors: The number of elements of the level before along each axis that become one; ones for the finest level.
        total: The number of elements of the finest level per element along each axis.
        shift: The offset of the first element's coordinates along each axis, in elements of the finest level.
    """

    path: str
    shape: tuple[int, ...]
    factors: tuple[int, ...]
    total: tuple[int, ...]
    shift: tuple[float, ...]

    def axes(self, finest: Sequence[Axis]) -> tuple[Axis, ...]:
        """Return the axes with the coordinates of this level, given the axes of the finest level."""
        return tuple(
            replace(axis, step=(axis.step or 1.0) * factor, origin=axis.origin + (axis.step or 1.0) * shift)
            for axis, factor, shift in zip(finest, self.total, self.shift, strict=True)
        )


# ------------------------------------------------------------------ OME-Zarr


def ome_pyramid_attributes(
    attributes: Mapping[str, Any], version: str, axes: Sequence[Axis], levels: Sequence[PyramidLevel], method: str
) -> dict[str, Any]:
    """Return the attributes of a group with the first pyramid replaced, or with a new one.

    Args:
        attributes: The attributes of the group. Everything but the levels of the pyramid is kept.
        version: The version of OME-Zarr: 0.4, 0.5 or 0.6.
        axes: The axes with the coordinates of the finest level.
        levels: The levels, from the finest one on.
        method: The method by which levels were computed.
    """
    has_namespace = version >= "0.5"
    holder = dict(attributes.get("ome", {}) if has_namespace else attributes)
    existing = holder.get("multiscales")
    pyramids = [*existing] if isinstance(existing, list | tuple) else []
    first = dict(pyramids[0]) if pyramids and isinstance(pyramids[0], Mapping) else {}
    if not {"axes", "coordinateSystems"} & first.keys():
        first |= _new_axes(version, axes)
    system = _system_of(first)
    first["datasets"] = [_dataset(level, axes, version, system) for level in levels]
    first["type"] = method
    factors = [dict(zip([axis.name for axis in axes], level.factors, strict=True)) for level in levels[1:]]
    first["metadata"] = {"method": "zarrasync.pyramid", "description": _DESCRIPTION, "factors": factors}
    if not has_namespace:
        first["version"] = version
    elif "version" not in holder:
        holder["version"] = version
    holder["multiscales"] = [first, *pyramids[1:]]
    return {**attributes, "ome": holder} if has_namespace else holder


def _new_axes(version: str, axes: Sequence[Axis]) -> dict[str, Any]:
    items = [
        {"name": axis.name, **({"type": axis.kind} if axis.kind else {}), **({"unit": axis.unit} if axis.unit else {})}
        for axis in axes
    ]
    return {"coordinateSystems": [{"name": "physical", "axes": items}]} if version >= "0.6" else {"axes": items}


def _system_of(pyramid: Mapping[str, Any]) -> str:
    """Return the name of the coordinate system of the levels, in version 0.6."""
    for dataset in pyramid.get("datasets", ()):
        for item in dataset.get("coordinateTransformations", ()):
            output = item.get("output")
            name = output.get("name") if isinstance(output, Mapping) else output
            if isinstance(name, str):
                return name
    systems = pyramid.get("coordinateSystems", [{}])
    return str(systems[0].get("name", ""))


def _dataset(level: PyramidLevel, axes: Sequence[Axis], version: str, system: str) -> dict[str, Any]:
    located = level.axes(axes)
    items: list[dict[str, Any]] = [{"type": "scale", "scale": [axis.step for axis in located]}]
    if any(axis.origin for axis in located):
        items.append({"type": "translation", "translation": [axis.origin for axis in located]})
    if version >= "0.6":
        ends = {"input": {"path": level.path}, "output": {"name": system}}
        whole = items[0] if len(items) == 1 else {"type": "sequence", "transformations": items}
        items = [{**whole, **ends}]
    return {"path": level.path, "coordinateTransformations": items}


# ------------------------------------------------------------------ zarr-conventions


def geo_pyramid_attributes(
    attributes: Mapping[str, Any],
    names: Sequence[str],
    affine: Affine | None,
    crs: CRS | None,
    levels: Sequence[PyramidLevel],
    method: str,
) -> dict[str, Any]:
    """Return the attributes of a group with the conventions ``multiscales``, ``spatial`` and ``proj``.

    Args:
        attributes: The attributes of the group. Other attributes are kept.
        names: The names of the dimensions of rows and columns.
        affine: The transformation of the finest level, from the corner of the first cell.
        crs: The coordinate reference system.
        levels: The levels, from the finest one on.
        method: The method by which levels were computed.
    """
    layout: list[dict[str, Any]] = []
    for number, level in enumerate(levels):
        item: dict[str, Any] = {"asset": level.path}
        if number:
            scale = [float(factor) for factor in level.factors]
            item |= {
                "derived_from": levels[number - 1].path,
                "transform": {"scale": scale, "translation": [0.0] * len(scale)},
                "resampling_method": _RESAMPLING[method],
            }
        layout.append(item | _grid(level, affine))
    multiscales = {"layout": layout, "resampling_method": _RESAMPLING[method]}
    return _spatial(attributes, ["multiscales"], names, crs) | {"multiscales": multiscales}


def geo_level_attributes(
    attributes: Mapping[str, Any], names: Sequence[str], affine: Affine | None, crs: CRS | None, level: PyramidLevel
) -> dict[str, Any]:
    """Return the attributes of an array that is a level, so that readers of single arrays find its grid.

    Args:
        attributes: The attributes of the finest array.
        names: The names of the dimensions of rows and columns.
        affine: The transformation of the finest level, from the corner of the first cell.
        crs: The coordinate reference system.
        level: The level.
    """
    return _spatial(attributes, [], names, crs) | _grid(level, affine)


def _grid(level: PyramidLevel, affine: Affine | None) -> dict[str, Any]:
    """Return the shape and the transformation of a level, which has the same corner as the finest one."""
    grid: dict[str, Any] = {"spatial:shape": list(level.shape[-2:])}
    if affine is not None:
        rows, columns = level.total[-2:]
        a, b, c, d, e, f = affine
        grid["spatial:transform"] = [a * columns, b * rows, c, d * columns, e * rows, f]
    return grid


def _spatial(
    attributes: Mapping[str, Any], used: Sequence[str], names: Sequence[str], crs: CRS | None
) -> dict[str, Any]:
    """Return attributes with the conventions ``spatial`` and ``proj``, and declarations of these and of others that are used."""
    crs = crs or CRS()
    values = {"proj:code": crs.code, "proj:wkt2": crs.wkt, "proj:projjson": crs.projjson}
    proj = {name: value for name, value in values.items() if value}
    declared = _declared(attributes, [*used, "spatial", *(["proj"] if proj else [])])
    return {**attributes, "zarr_conventions": declared, "spatial:dimensions": list(names), **proj}


def _declared(attributes: Mapping[str, Any], used: Sequence[str]) -> list[Any]:
    """Return the declarations of conventions, with those that are used."""
    present = attributes.get("zarr_conventions")
    kept = list(present) if isinstance(present, list | tuple) else []
    declared = {item.get("uuid") for item in kept if isinstance(item, Mapping)}
    return [*kept, *(item for name in used if (item := declaration(name))["uuid"] not in declared)]
