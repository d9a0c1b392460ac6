"""The conventions of github.com/zarr-conventions: ``multiscales``, ``spatial:``, ``proj:`` and ``uom``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrasync.metadata.conventions.meaning import CRS, Affine, Axis, Level, Meaning, Reader

ATTRIBUTES = ("zarr_conventions", "multiscales", "spatial:", "proj:", "uom")
"""Attributes, or their beginnings, of which a node with one of these conventions has at least one."""
_UUIDS = {
    "multiscales": "d35379db-88df-4056-af3a-620245f8e347",
    "spatial": "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4",
    "proj": "f17cb550-5864-4468-aeb7-f3180cfb622f",
    "uom": "3bbe438d-df37-49fe-8e2b-739296d46dfb",
}
_RELEASE = "refs/tags/v0.1"
"""The release of the specifications that are written."""
_IDENTIFIERS = ("uuid", "schema_url", "spec_url")
_GEOGRAPHIC = ("EPSG:4326", "OGC:CRS84")
"""Reference systems whose coordinates are certainly latitudes and longitudes in degrees."""


def interpret_zarr_conventions(attributes: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning of a node with one of the conventions, or ``None`` if its attributes have another meaning."""
    used = [name for name, is_used in _used(attributes).items() if is_used]
    if not used and "zarr_conventions" not in attributes:
        return None
    reader = Reader()
    declared = _declared(attributes.get("zarr_conventions", []), reader)
    for name in used:
        if _UUIDS[name] not in declared:
            reader.warn("zarr_conventions", f"the convention {name!r} is used, but not declared in zarr_conventions")
    crs = _crs(attributes, reader) if "proj" in used else None
    axes, affine = _spatial(attributes, attributes, "", crs, reader) if "spatial" in used else ((), None)
    levels = _levels(attributes, crs, reader) if "multiscales" in used else ()
    others = [text for uuid, text in declared.items() if uuid not in _UUIDS.values()]
    return Meaning(
        titles=tuple(used),
        axes=axes,
        affine=affine,
        levels=levels,
        crs=crs,
        unit=_unit(attributes, reader) if "uom" in used else "",
        facts={"Other conventions": ", ".join(others)} if others else {},
        violations=tuple(reader.violations),
    )


def declaration(name: str) -> dict[str, str]:
    """Return the object in ``zarr_conventions`` that declares a convention."""
    release = _RELEASE.rpartition("/")[2]
    return {
        "uuid": _UUIDS[name],
        "schema_url": f"https://raw.githubusercontent.com/zarr-conventions/{name}/{_RELEASE}/schema.json",
        "spec_url": f"https://github.com/zarr-conventions/{name}/blob/{release}/README.md",
        "name": name,
    }


def _used(attributes: Mapping[str, Any]) -> dict[str, bool]:
    multiscales = attributes.get("multiscales")
    return {
        "multiscales": isinstance(multiscales, Mapping) and "layout" in multiscales,
        "spatial": any(name.startswith("spatial:") for name in attributes),
        "proj": any(name.startswith("proj:") for name in attributes),
        "uom": isinstance(attributes.get("uom"), Mapping),
    }


def _declared(value: Any, reader: Reader) -> dict[str, str]:
    """Return the names of the declared conventions by their identifier."""
    names: dict[str, str] = {}
    if value == []:
        return names
    for place, item in reader.objects(value, "zarr_conventions"):
        identifiers = [item[key] for key in _IDENTIFIERS if isinstance(item.get(key), str)]
        if not identifiers:
            reader.error(place, f"a convention needs one of {', '.join(_IDENTIFIERS)}")
            continue
        name = item.get("name")
        names[identifiers[0]] = name if isinstance(name, str) else identifiers[0]
    return names


# ------------------------------------------------------------------ coordinates


def _spatial(
    attributes: Mapping[str, Any], item: Mapping[str, Any], location: str, crs: CRS | None, reader: Reader
) -> tuple[tuple[Axis, ...], Affine | None]:
    """Return the spatial axes of a node or a level, and its affine transformation from the corner of the first cell.

    Args:
        attributes: The attributes of the node.
        item: The object with the shape and the transformation: the attributes themselves or an item of a layout.
        location: The location of the object, as a prefix.
        crs: The reference system of the coordinates.
        reader: Collects deviations.
    """
    names = attributes.get("spatial:dimensions")
    if names is not None and not _are_names(names):
        reader.error("spatial:dimensions", "expected the names of two dimensions: of rows (y) and of columns (x)")
        names = None
    axes, affine = _named(names or ("", ""), crs), None
    if "spatial:transform" in item and attributes.get("spatial:transform_type", "affine") == "affine":
        numbers = reader.numbers(item["spatial:transform"], 6, f"{location}spatial:transform")
        is_node = attributes.get("spatial:registration") == "node"
        if numbers:
            affine = _from_corner(numbers, is_node=is_node)
            axes = _placed(axes, affine)
    if "spatial:shape" in item:
        sizes = reader.numbers(item["spatial:shape"], 2, f"{location}spatial:shape")
        axes = [replace(axis, size=int(size)) for axis, size in zip(axes, sizes, strict=True)] if sizes else axes
    is_known = names is not None or affine is not None
    return (tuple(axes), affine) if is_known else ((), None)


def _are_names(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(isinstance(name, str) and name for name in value) and value[0] != value[1]


def _named(names: Sequence[str], crs: CRS | None) -> list[Axis]:
    """Return the axes of rows and columns, with the CF attributes by which libraries recognise them."""
    rows, columns = (Axis(name, "space", attributes={"axis": letter}) for name, letter in zip(names, "YX", strict=True))
    if crs is None or crs.code not in _GEOGRAPHIC:
        return [rows, columns]
    return [
        replace(rows, unit="degrees_north", attributes={**rows.attributes, "standard_name": "latitude"}),
        replace(columns, unit="degrees_east", attributes={**columns.attributes, "standard_name": "longitude"}),
    ]


def _from_corner(numbers: list[float], *, is_node: bool) -> Affine:
    """Return an affine transformation that starts at the corner of the first cell, given one that may start at its centre."""
    a, b, c, d, e, f = numbers
    return (a, b, c - (a + b) / 2, d, e, f - (d + e) / 2) if is_node else (a, b, c, d, e, f)


def _placed(axes: list[Axis], affine: Affine) -> list[Axis]:
    """Return the axes with the coordinates of the centres of cells, unless the grid is rotated."""
    a, b, c, d, e, f = affine
    if b or d or not a or not e:
        return axes
    rows, columns = axes
    return [replace(rows, step=e, origin=f + e / 2), replace(columns, step=a, origin=c + a / 2)]


# ------------------------------------------------------------------ levels


def _levels(attributes: Mapping[str, Any], crs: CRS | None, reader: Reader) -> tuple[Level, ...]:
    layout = reader.objects(attributes["multiscales"].get("layout"), "multiscales.layout")
    levels: dict[str, Level] = {}
    relative: dict[str, tuple[Axis, ...]] = {}
    for place, item in layout:
        path = reader.path(item, "asset", place)
        if not path:
            continue
        source = item.get("derived_from")
        if source is not None and not (isinstance(source, str) and source in levels):
            reader.error(f"{place}.derived_from", f"{source!r} is not the asset of an earlier item of the layout")
        relative[path] = _relative(item, relative.get(source, ()) if isinstance(source, str) else (), place, reader)
        axes, affine = _spatial(attributes, item, f"{place}.", crs, reader)
        if affine is None and not any(axis.step for axis in axes):
            axes = _derived(attributes, axes, relative[path], crs)
        levels[path] = Level(path, axes or relative[path], place, affine)
    return tuple(levels.values())


def _relative(item: Mapping[str, Any], source: tuple[Axis, ...], location: str, reader: Reader) -> tuple[Axis, ...]:
    """Return axes whose coordinates count the elements of the first level."""
    transform = item.get("transform")
    if not isinstance(transform, Mapping):
        if "derived_from" in item:
            reader.error(f"{location}.transform", "a level that is derived from another one needs a transform")
        return ()
    scale, offset = transform.get("scale"), transform.get("translation")
    count = len(scale) if isinstance(scale, list) else len(offset) if isinstance(offset, list) else 0
    scales = [1.0] * count if scale is None else reader.numbers(scale, count, f"{location}.transform.scale")
    offsets = [0.0] * count if offset is None else reader.numbers(offset, count, f"{location}.transform.translation")
    if not scales or not offsets:
        return ()
    base = source if len(source) == count else (Axis("", step=1.0),) * count
    return tuple(
        replace(axis, step=(axis.step or 1.0) * factor, origin=axis.origin + shift * (axis.step or 1.0))
        for axis, factor, shift in zip(base, scales, offsets, strict=True)
    )


def _derived(
    attributes: Mapping[str, Any], axes: tuple[Axis, ...], relative: tuple[Axis, ...], crs: CRS | None
) -> tuple[Axis, ...]:
    """Return the axes of a level, computed from the transformation of the first level if the corners coincide."""
    first, affine = _spatial(attributes, attributes, "", crs, Reader())
    if affine is None or len(relative) != 2 or any(axis.origin for axis in relative):
        return axes
    a, b, c, d, e, f = affine
    steps = [axis.step or 1.0 for axis in relative]
    placed = _placed(list(axes or first), (a * steps[1], b * steps[1], c, d * steps[0], e * steps[0], f))
    return tuple(placed)


# ------------------------------------------------------------------ reference systems and units


def _crs(attributes: Mapping[str, Any], reader: Reader) -> CRS | None:
    code, wkt, projjson = (attributes.get(f"proj:{name}") for name in ("code", "wkt2", "projjson"))
    for name, value, kind in (("code", code, str), ("wkt2", wkt, str), ("projjson", projjson, Mapping)):
        if value is not None and not isinstance(value, kind):
            reader.error(f"proj:{name}", f"expected {'an object' if kind is Mapping else 'a string'}")
    if isinstance(code, str) and not all(part for part in code.partition(":")):
        reader.error("proj:code", f"expected an authority, a colon and a code, such as 'EPSG:4326'; found {code!r}")
    crs = CRS(
        code if isinstance(code, str) else "",
        wkt if isinstance(wkt, str) else "",
        projjson if isinstance(projjson, Mapping) else None,
    )
    if crs == CRS():
        reader.error("proj:code", "one of proj:code, proj:wkt2 and proj:projjson must specify the reference system")
        return None
    return crs


def _unit(attributes: Mapping[str, Any], reader: Reader) -> str:
    ucum = attributes["uom"].get("ucum")
    unit = ucum.get("unit") if isinstance(ucum, Mapping) else None
    if isinstance(unit, str):
        return unit
    reader.error("uom.ucum.unit", "expected the code of a unit")
    return ""
