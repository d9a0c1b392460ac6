"""Parameters of requests for maps, with the names of titiler: their descriptions and values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from zarrasync.indexing.labels import LabelMethod
from zarrasync.metadata.conventions.cf_labels import Query, WrittenLabel
from zarrasync.model.paths import join
from zarrasync.server.limits import BadQuery
from zarrasync.server.map_grid import MOST_ZOOM, Resampling
from zarrasync.server.map_statistics import StatisticsOptions, Weights
from zarrasync.server.maps import MapRequest
from zarrasync.server.messages import Request
from zarrasync.server.places import Bounds
from zarrasync.server.query import integer_of, number_of
from zarrasync.server.routes import Parameter

_METHODS = get_args(LabelMethod)
MOST_PIXELS = 2048
"""The most rows or columns of a picture."""
_PREVIEW = 1024
LAST_ZOOM = 22
"""The last zoom that the resolution of an array may suggest."""
_LONLAT = "epsg:4326"
VARIABLE = (
    Parameter("variable", "the path of an array or a pyramid, whose last two axes are on the earth", required=True),
    Parameter("group", "the path of the group in which the variable is; by default the root"),
    Parameter(
        "sel",
        "the label of an axis outside of the plane: time=2024-03-01 or time=nearest::2024-03-01; may be repeated",
        repeats=True,
    ),
    Parameter("url", "ignored, as the address of this server names the store"),
    Parameter("decode_times", "times are always decoded", choices=("true", "True", "1")),
    Parameter("bidx", "the number of the selected plane, which is the only band", choices=("1",)),
)
NODATA = Parameter("nodata", "a value that is missing", kind="number")
_RESAMPLING = Parameter(
    "resampling",
    "the method by which elements become pixels; by default the average where a pixel covers several elements, and "
    "the nearest one of flags and labels",
    choices=get_args(Resampling),
)
REPROJECT = Parameter("reproject", "the same as resampling", choices=get_args(Resampling))
STYLE = (
    Parameter("rescale", "the values of the first and the last colour: 250,310; by default those of typical values"),
    Parameter("colormap_name", "the name of a colour map, or labels; by default that of flags, or viridis"),
    Parameter(
        "colormap",
        'own colours as JSON: of values {"1": "#ff0000"}, of intervals [[[0, 5], [255, 0, 0, 255]]], or all 256 of a map',
    ),
    Parameter("below", "the colour of lower values, such as transparent or #0000ff; by default the first colour"),
    Parameter("above", "the colour of higher values; by default the last colour"),
)
_MASK = Parameter("return_mask", "missing values are always transparent", choices=("true", "True", "1"))
PICTURE = (*VARIABLE, *STYLE, NODATA, _RESAMPLING, REPROJECT, _MASK)
TILE = (*PICTURE, Parameter("tilesize", "the pixels of a tile along each side", kind="integer", default="256"))
SIDES = (
    Parameter("width", "the number of columns", kind="integer"),
    Parameter("height", "the number of rows", kind="integer"),
)
AREA = (
    *PICTURE,
    *SIDES,
    Parameter(
        "max_size", "the pixels of the longer side, without width and height", kind="integer", default=str(_PREVIEW)
    ),
    Parameter("dst_crs", "the reference system of the picture", default=_LONLAT),
)
COORD_CRS = Parameter("coord_crs", "the reference system of the coordinates in the request", default=_LONLAT)
IMAGES = {"png": "image/png", "webp": "image/webp"}
_OF_DESCRIPTIONS = (
    Parameter("tile_format", "the format of tiles", choices=tuple(IMAGES)),
    Parameter("minzoom", "the first zoom with tiles", kind="integer", default="0"),
    Parameter("maxzoom", "the last zoom with tiles; by default that of the elements", kind="integer"),
)
DESCRIBED = (*TILE, *_OF_DESCRIPTIONS)
_NOT_OF_TILES = {"url", *(parameter.name for parameter in _OF_DESCRIPTIONS)}
STATISTICS = (
    Parameter("histogram_bins", "the number of bins of the histogram", kind="integer", default="10"),
    Parameter(
        "histogram_range", "the first and the last edge of the bins; by default the least and the greatest value"
    ),
    Parameter("categorical", "whether the histogram has the count of each value", choices=("false", "true")),
    Parameter("p", "a percentile; by default 2 and 98; may be repeated", kind="integer", repeats=True),
    Parameter(
        "weights",
        "of polygons: the weight of a cell is its share in them, or the area of that share in square metres",
        choices=get_args(Weights),
    ),
)


def map_request(request: Request) -> MapRequest:
    """Return what the parameters of a request specify.

    Raises:
        BadQuery: If one is invalid.
    """
    query = request.query
    low, high = _range(query.get("rescale", ""))
    labels = _labels(request)
    resampling: Any = query.get("resampling") or query.get("reproject", "")
    colormap = query.get("colormap_name", "")[:64]
    ends, table = (query.get("below", ""), query.get("above", "")), query.get("colormap", "")
    if table and colormap:
        raise BadQuery("colormap and colormap_name exclude each other")
    nodata = _nodata(query.get("nodata", ""))
    return MapRequest(_variable(query), tuple(labels.items()), colormap, low, high, *ends, nodata, resampling, table)


def _variable(query: Mapping[str, str]) -> str:
    path = query.get("variable", "")
    if not path:
        raise BadQuery("the parameter variable is required: the path of an array, such as variable=t2m")
    return join(query.get("group", "").strip("/"), path.strip("/"))


def _nodata(text: str) -> float | None:
    """Return a value that is missing: an exact integer if it is one, as those beyond 2**53 are not floats."""
    if not text:
        return None
    value = number_of(text, "nodata", is_finite=False)
    try:
        return value if math.isinf(value) else int(text)
    except ValueError:
        # NaN is missing anyway, and not equal to itself, which would keep pictures from being found in the cache.
        return None if math.isnan(value) else value


def _labels(request: Request) -> dict[str, Query]:
    """Return the labels of axes by name."""
    labels: dict[str, Query] = {}
    for parameter, text in request.items:
        if parameter != "sel":
            continue
        name, label = _label(text)
        if name in labels:
            raise BadQuery(f"sel names {name[:40]!r} twice; a map shows one element of an axis")
        labels[name] = label
    return labels


def _label(text: str) -> tuple[str, Query]:
    """Parse ``time=2024-03-01`` or ``time=nearest::2024-03-01``."""
    name, equals, rest = text.partition("=")
    method, separator, label = rest.partition("::")
    if not separator:
        method, label = "", rest
    if not (name and equals and label) or (method and method not in _METHODS):
        raise BadQuery(
            f"sel must be an axis and a label, such as time=2024-03-01 or time=nearest::2024-03-01, with one of the methods "
            f"{', '.join(_METHODS)}; found {text[:80]!r}"
        )
    return name, Query(WrittenLabel(label), method or None)


def _range(text: str, name: str = "rescale") -> tuple[float | None, float | None]:
    if not text:
        return None, None
    parts = text.strip("[]").split(",")  # titiler also has JSON
    if len(parts) != 2:
        raise BadQuery(f"{name} must be two numbers, such as 250,310; found {text[:40]!r}")
    return number_of(parts[0], name), number_of(parts[1], name)


def statistics_options(request: Request) -> StatisticsOptions:
    """Return the options of statistics.

    Raises:
        BadQuery: If a parameter is invalid.
    """
    query = request.query
    bins = integer_of(query, "histogram_bins", 10, 1, 1024)
    low, high = _range(query.get("histogram_range", ""), "histogram_range")
    percentiles = tuple(integer_of({"p": value}, "p", 0, 0, 100) for name, value in request.items if name == "p")
    if low is not None and high is not None and low > high:
        raise BadQuery(f"histogram_range must increase, found {query['histogram_range'][:40]!r}")
    limits = None if low is None or high is None else (low, high)
    weights: Any = query.get("weights", "coverage")
    is_categorical = query.get("categorical", "false") == "true"
    return StatisticsOptions(tuple(dict.fromkeys(percentiles)) or (2, 98), bins, limits, is_categorical, weights)


def size_of(request: Request, area: Bounds) -> tuple[int, int]:
    """Return the columns and rows of a picture: requested ones, or at most ``max_size`` in the proportions of the area."""
    sides = {**request.query, **request.parameters}
    aspect = min(max((area[2] - area[0]) / (area[3] - area[1]), 1e-6), 1e6)
    width, height = (
        integer_of(sides, name, 0, 1, MOST_PIXELS) if name in sides else None for name in ("width", "height")
    )
    if width is None and height is None:
        longer = integer_of(sides, "max_size", _PREVIEW, 1, MOST_PIXELS)
        width = longer if aspect >= 1 else max(round(longer * aspect), 1)
    if width is None:
        width = round((height or 1) * aspect)
    if height is None:
        height = round(width / aspect)
    return min(max(width, 1), MOST_PIXELS), min(max(height, 1), MOST_PIXELS)


def tile_size(request: Request) -> int:
    """Return the pixels of a tile along each side."""
    return integer_of(request.query, "tilesize", 256, 16, MOST_PIXELS)


def zooms_of(request: Request, last: int) -> tuple[int, int]:
    """Return the first and the last zoom of described tiles.

    Args:
        request: The request.
        last: The default for the last one.

    Raises:
        BadQuery: If they are not zooms, or the first exceeds the last.
    """
    least = integer_of(request.query, "minzoom", 0, 0, MOST_ZOOM)
    most = integer_of(request.query, "maxzoom", max(last, least), 0, MOST_ZOOM)
    if least > most:
        raise BadQuery(f"minzoom must not exceed maxzoom, found {least} and {most}")
    return least, most


def tile_items(request: Request) -> list[tuple[str, str]]:
    """Return the parameters of the tiles that a request for their description names."""
    return [(name, value) for name, value in request.items if name not in _NOT_OF_TILES]
