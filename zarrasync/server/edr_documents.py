"""Documents of OGC API EDR: collections, CoverageJSON, GeoJSON, tables and NetCDF. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display import values as value_text
from zarrasync.display.presentation import Presentation
from zarrasync.display.values import Column, ElementTable
from zarrasync.metadata.conventions import FILL
from zarrasync.server.edr_grid import CRS84, Collection, GridAxis
from zarrasync.server.edr_plan import Plan, Span
from zarrasync.server.limits import Unsupported

Values = npt.NDArray[Any]

CONFORMANCE = [
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-common-2/1.0/conf/collections",
    *(
        f"http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/{name}"
        for name in ("core", "collections", "json", "covjson", "edr-geojson", "queries")
    ),
]
"""The classes of requirements that the interface conforms to."""
MEDIA_TYPES = {
    "covjson": "application/prs.coverage+json",
    "json": "application/json",
    "geojson": "application/geo+json",
    "csv": "text/csv; charset=utf-8",
    "nc": "application/x-netcdf",
    "parquet": "application/vnd.apache.parquet",
}
"""The media types of formats. ``json`` is CoverageJSON."""
_CRS84_URI = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
_CRS84_WKT = (
    'GEOGCS["WGS 84 (CRS84)",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],'
    'UNIT["degree",0.0174532925199433],AXIS["Longitude",EAST],AXIS["Latitude",NORTH]]'
)
_TRS = 'TIMECRS["DateTime",TDATUM["Gregorian Calendar"],CS[TemporalDateTime,1],AXIS["Time (T)",future]]'
_OTHER_CALENDARS = "https://cfconventions.org/cf-conventions/cf-conventions.html#calendar"
_GREGORIAN = ("standard", "gregorian", "proleptic_gregorian", "")
_MOST_LISTED = 1000
"""Times and heights of an extent that are listed one by one."""
_PART = 1 << 12
"""Times that are formatted at a time, as NumPy keeps other threads from running until it has formatted all."""
_QUERIES = {
    "position": "The cells at points, for all times by default",
    "area": "The cells in polygons",
    "cube": "The cells in a box",
}


def link(href: str, rel: str, kind: str = "application/json", title: str = "") -> dict[str, Any]:
    """Return a link of a document."""
    return {"href": href, "rel": rel, "type": kind, **({"title": title} if title else {})}


# ------------------------------------------------------------------ collections


def collection_document(
    collection: Collection, axes: Mapping[str, GridAxis], presentations: Mapping[str, Presentation], root: str
) -> dict[str, Any]:
    """Return the description of a collection.

    Args:
        collection: The collection.
        axes: Its axes by role.
        presentations: How the numbers of its arrays are shown, by name.
        root: The URL of the interface.
    """
    url, attributes = f"{root}/collections/{collection.id}", collection.attributes
    crs = {"crs": collection.crs, "wkt": _CRS84_WKT if collection.crs == CRS84 else collection.wkt or "unknown"}
    queries = {}
    for name, text in _QUERIES.items():
        details = {"title": name, "description": text, "query_type": name, "output_formats": [*MEDIA_TYPES]}
        variables = {**details, "default_output_format": "covjson", "crs_details": [crs]}
        if name == "cube":
            variables["height_units"] = [axes["z"].unit] if "z" in axes else []
        queries[name] = {
            "link": {**link(f"{url}/{name}", "data", MEDIA_TYPES["covjson"], name), "variables": variables}
        }
    return {
        "id": collection.id,
        "title": str(attributes.get("title") or collection.path or collection.id),
        **({"description": str(attributes["summary"])} if attributes.get("summary") else {}),
        "links": [
            link(url, "self"),
            *(link(f"{url}/{name}", "data", MEDIA_TYPES["covjson"], name) for name in _QUERIES),
        ],
        "extent": _extent(collection, axes),
        "data_queries": queries,
        "crs": [collection.crs],
        "output_formats": [*MEDIA_TYPES],
        "parameter_names": {
            name: parameter_document(name, array.attrs, presentations[name]) | {"id": name}
            for name, array in collection.arrays.items()
        },
    }


def _extent(collection: Collection, axes: Mapping[str, GridAxis]) -> dict[str, Any]:
    (west, east), (south, north) = axes["x"].places.bounds, axes["y"].places.bounds
    if collection.crs == CRS84:
        west, east = (-180.0, 180.0) if east - west >= 360.0 - 1e-6 else (_standard(west), _standard(east))
    box = [round(value, 9) for value in (west, south, east, north)]
    extent: dict[str, Any] = {
        "spatial": {"bbox": [box], "crs": _CRS84_WKT if collection.crs == CRS84 else collection.wkt}
    }
    if "t" in axes:
        times = axes["t"].values
        known = times[~np.isnat(times) if times.dtype.kind == "M" else [time is not None for time in times]]
        if len(known):
            ends = _json_values(np.array([known.min(), known.max()], known.dtype))
            listed = _json_values(known) if len(known) <= _MOST_LISTED else ["/".join(ends)]
            trs = _TRS if axes["t"].calendar in _GREGORIAN else f'TIMECRS["DateTime",TDATUM["{axes["t"].calendar}"]]'
            extent["temporal"] = {"interval": [ends], "values": listed, "trs": trs}
    if "z" in axes:
        heights = [f"{height:g}" for height in axes["z"].values]
        ends = [f"{end:g}" for end in (axes["z"].values.min(), axes["z"].values.max())]
        name = axes["z"].attributes.get("standard_name", axes["z"].name)
        extent["vertical"] = {"interval": [ends], "values": heights, "vrs": f"{name} [{axes['z'].unit}]"}
    return extent


def _standard(longitude: float) -> float:
    """Return a longitude between -180 and 180."""
    return longitude if -180.0 <= longitude <= 180.0 else (longitude + 180.0) % 360.0 - 180.0


def parameter_document(
    name: str, attributes: Mapping[str, Any], presentation: Presentation, *, languages: bool = False
) -> dict[str, Any]:
    """Return the description of a parameter.

    Args:
        name: Its name.
        attributes: The attributes of the array.
        presentation: How its numbers are shown.
        languages: Whether strings have a language, as in CoverageJSON.
    """

    def text(value: str) -> Any:
        return {"en": value} if languages else value

    title = str(attributes.get("long_name") or attributes.get("standard_name") or name)
    observed: dict[str, Any] = {"label": text(title)}
    if isinstance(attributes.get("standard_name"), str):
        observed["id"] = f"http://vocab.nerc.ac.uk/standard_name/{attributes['standard_name']}/"
    document: dict[str, Any] = {"type": "Parameter", "description": text(title), "observedProperty": observed}
    flags = presentation.encoding.flags
    if flags is not None and flags.meanings and flags.values and not flags.masks:
        observed["categories"] = [{"id": meaning, "label": text(meaning)} for meaning in flags.meanings]
        document["categoryEncoding"] = dict(zip(flags.meanings, flags.values, strict=True))
    elif presentation.unit:
        document["unit"] = {"label": text(presentation.unit), "symbol": presentation.unit}
    if not languages:
        document["data-type"] = _data_type(presentation)
    return document


def _data_type(presentation: Presentation) -> str:
    kind = presentation.show(np.empty(0, presentation.encoding.dtype)).values.dtype.kind
    return "float" if kind == "f" else "integer" if kind in "iub" else "string"


# ------------------------------------------------------------------ CoverageJSON


def coverage_head(plans: Sequence[Plan], parameters: Mapping[str, Any], crs: str) -> bytes:
    """Return a coverage up to its values."""
    plan = plans[0]
    coverage = {"type": "Coverage", "domain": _domain(plan, crs), "parameters": parameters}
    return value_text.dumps(coverage)[:-1] + b',"ranges":{'


def range_head(plan: Plan, presentation: Presentation) -> bytes:
    """Return the values of a parameter up to the first one."""
    kept = [(role, size) for role, size in zip(plan.roles, plan.shape, strict=True) if not _is_alone(plan, role, size)]
    names, shape = [role for role, _ in kept], [size for _, size in kept]
    axes = {"axisNames": names, "shape": shape} if kept else {}
    facts = {"type": "NdArray", "dataType": _data_type(presentation), **axes}
    return value_text.dumps(plan.name) + b":" + value_text.dumps(facts)[:-1] + b',"values":['


def _is_alone(plan: Plan, role: str, size: int) -> bool:
    """Return whether an axis is left out of a range, because it has one value."""
    return plan.is_single and role != "t" and size == 1


def numbers(values: Values) -> bytes:
    """Return values in CoverageJSON, without brackets. Infinite numbers, which it does not have, are missing."""
    flat = values.reshape(-1)
    if flat.dtype.kind == "f":
        flat = np.where(np.isinf(np.ma.getdata(flat)), flat.dtype.type(np.nan), np.ma.filled(flat, np.nan))
    elif flat.dtype.kind == "b":
        flat = flat.astype(np.uint8)
    elif flat.dtype.kind in "MO":
        return value_text.dumps(_json_values(flat))[1:-1]
    first, *rest = value_text.json_pieces(flat)
    return b"".join(rest[:-1]) if rest else first[1:-1]


def _json_values(values: Values) -> list[Any]:
    """Return coordinates as JSON, and dates with the time zone that CoverageJSON requires."""
    if values.dtype.kind == "M":
        parts = (values[start : start + _PART] for start in range(0, len(values), _PART))
        dates = [text for part in parts for text in np.datetime_as_string(part, timezone="UTC").tolist()]
        return [None if text == "NaT" else text for text in dates] if np.isnat(values).any() else dates
    if values.dtype.kind == "O":
        return [None if text is None else f"{text}Z" for text in values.tolist()]
    items: list[Any] = value_text.as_json(values)
    return items


def _domain(plan: Plan, crs: str) -> dict[str, Any]:
    axes: dict[str, Any] = {}
    for role in plan.roles:
        if role == "composite":
            columns = [_json_values(values) for values in plan.points.values()]
            rows = [list(row) for row in zip(*columns, strict=True)]
            axes[role] = {"dataType": "tuple", "coordinates": [*plan.points], "values": rows}
        else:
            axes[role] = {"values": _json_values(plan.coordinates[role])}
    present = {*axes, *plan.points} - {"composite"}
    return {
        "type": "Domain",
        "domainType": _domain_type(plan),
        "axes": axes,
        "referencing": _systems(plan, crs, present),
    }


def _domain_type(plan: Plan) -> str:
    times, heights = (len(plan.coordinates.get(role, ())) for role in ("t", "z"))
    if plan.is_points:
        return "MultiPointSeries" if times else "MultiPoint"
    if not plan.is_single or (times > 1 and heights > 1):
        return "Grid"
    if heights > 1:
        return "VerticalProfile"
    return "PointSeries" if times else "Point"


def _systems(plan: Plan, crs: str, present: Iterable[str]) -> list[dict[str, Any]]:
    horizontal = {"type": "GeographicCRS", "id": _CRS84_URI} if crs == CRS84 else {"type": "ProjectedCRS"}
    if crs not in (CRS84, ""):
        horizontal["wkt"] = crs
    systems: list[dict[str, Any]] = [{"coordinates": ["x", "y"], "system": horizontal}]
    if "z" in present:
        axis = plan.axis("z")
        down = axis.attributes.get("positive") == "down" or axis.attributes.get("standard_name") == "air_pressure"
        facts = {
            "name": {"en": str(axis.attributes.get("long_name", axis.name))},
            "direction": "down" if down else "up",
        }
        unit = {"unit": {"symbol": axis.unit}} if axis.unit else {}
        systems.append({"coordinates": ["z"], "system": {"type": "VerticalCRS", "cs": {"csAxes": [facts | unit]}}})
    if "t" in present:
        calendar = "Gregorian" if plan.axis("t").calendar in _GREGORIAN else _OTHER_CALENDARS
        systems.append({"coordinates": ["t"], "system": {"type": "TemporalRS", "calendar": calendar}})
    return systems


# ------------------------------------------------------------------ other formats


def table(plans: Sequence[Plan], span: Span, blocks: Sequence[Values]) -> ElementTable:
    """Return the rows of some times: a column for each coordinate, the number of the point, and one for each parameter."""
    plan = plans[0]
    axes, columns = [], []
    for role in plan.roles:
        if role == "composite":
            axes.append(Column("point", plan.coordinates[role]))
            repeats = (span[1] - span[0]) if "t" in plan.roles else 1
            columns = [Column(plan.axis(own).name, np.tile(values, repeats)) for own, values in plan.points.items()]
        else:
            values = plan.coordinates[role]
            axes.append(Column(plan.axis(role).name, values[span[0] : span[1]] if role == "t" else values))
    return ElementTable(
        axes, [*columns, *(Column(item.name, block) for item, block in zip(plans, blocks, strict=True))]
    )


def features(plans: Sequence[Plan], blocks: Sequence[Values], url: str) -> list[dict[str, Any]]:
    """Return a feature of GeoJSON for each cell, with the values of all its times and heights."""
    plan = plans[0]
    inside = slice(None) if plan.mask is None else plan.mask.reshape(-1)
    if plan.is_points:
        x, y = plan.points["x"], plan.points["y"]
    else:
        x, y = (grid.reshape(-1) for grid in np.meshgrid(plan.coordinates["x"], plan.coordinates["y"]))
    leading = "tz" if not plan.is_points else "t"
    axes = {role: _json_values(plan.coordinates[role]) for role in leading if role in plan.roles}
    times = axes.get("t") or [""]
    shared = {
        "datetime": times[0] if len(times) == 1 else f"{times[0]}/{times[-1]}",
        "parameter-name": [item.name for item in plans],
        "edrqueryendpoint": url,
        **{plan.axis(role).name: values for role, values in axes.items()},
    }
    columns = [
        _json_series(np.moveaxis(block.reshape(*block.shape[: len(axes)], -1), -1, 0)[inside]) for block in blocks
    ]
    xs, ys = _json_values(x[inside]), _json_values(y[inside])
    heights = _json_values(plan.points["z"][inside]) if "z" in plan.points else [None] * len(xs)
    found = []
    for place, (east, north, height) in enumerate(zip(xs, ys, heights, strict=True)):
        position = [east, north] if height is None else [east, north, height]
        own = {"label": f"{east:g} {north:g}", **shared}
        own |= {item.name: column[place] for item, column in zip(plans, columns, strict=True)}
        found.append({"type": "Feature", "geometry": {"type": "Point", "coordinates": position}, "properties": own})
    return found


def _json_series(values: Values) -> list[Any]:
    if values.dtype.kind == "f":
        values = np.where(np.isinf(np.ma.getdata(values)), np.nan, np.ma.filled(values, np.nan))
    items: list[Any] = value_text.as_json(values)
    return items


def netcdf(plans: Sequence[Plan], blocks: Sequence[Values], collection: Collection) -> bytes:
    """Return values as a NetCDF file, with CF attributes.

    Raises:
        ImportError: If xarray or h5netcdf are not installed.
        Unsupported: If no number is left for missing values.
    """
    try:
        import h5netcdf  # noqa: F401  # xarray uses it
        import xarray as xr
    except ImportError as error:
        raise ImportError("NetCDF needs xarray and h5netcdf: pip install 'zarrasync[netcdf]'") from error
    plan, variables, coordinates = plans[0], {}, {}
    names = {role: "point" if role == "composite" else plan.axis(role).name for role in plan.roles}
    for role, values in {**plan.coordinates, **plan.points}.items():
        dims = ["point"] if role in plan.points else [names[role]]
        name = "point" if role == "composite" else plan.axis(role).name
        axis = None if role == "composite" else plan.axis(role)
        attributes = {} if axis is None else _kept_attributes(axis.attributes, axis.unit if role != "t" else "")
        coordinates[name] = (dims, _as_netcdf(values), attributes)
    for item, block in zip(plans, blocks, strict=True):
        values, encoding = _as_netcdf(block), {}
        if np.ma.isMA(block) and block.dtype.kind in "iu":
            fill = np.iinfo(block.dtype).min if block.dtype.kind == "i" else np.iinfo(block.dtype).max
            if bool((np.ma.getdata(block)[~np.ma.getmaskarray(block)] == fill).any()):
                raise Unsupported(f"{item.name!r} has no number left that NetCDF can use for missing values")
            values, encoding = block.filled(fill), {FILL: fill}
        dims = [names[role] for role in item.roles]
        attributes = _kept_attributes(item.array.attrs, "")
        if not isinstance(attributes.get("flag_values", ""), str):
            attributes["flag_values"] = np.asarray(attributes["flag_values"], values.dtype)
        variables[item.name] = xr.Variable(dims, values, {**attributes, **encoding})
    title = {key: str(collection.attributes[key]) for key in ("title", "Conventions") if key in collection.attributes}
    return bytes(xr.Dataset(variables, coordinates, title).to_netcdf(engine="h5netcdf"))


def _as_netcdf(values: Values) -> Values:
    """Return values with a data type of NetCDF, which has no 16-bit floating-point numbers: its library ends the process."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _is_netcdf_attribute(value: Any) -> bool:
    """Return whether NetCDF has a type for the value of an attribute of JSON: a string, a number or several numbers."""
    return isinstance(value, str) or np.asarray(value).dtype.kind in "biuf"


def _kept_attributes(attributes: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return attributes that describe decoded values."""
    kept = ("standard_name", "long_name", "units", "axis", "positive", "cell_methods", "flag_values", "flag_meanings")
    found = {key: attributes[key] for key in kept if _is_netcdf_attribute(attributes.get(key))}
    if " since " in str(found.get("units", "")):
        del found["units"]
    return found | ({"units": unit} if unit else {})
