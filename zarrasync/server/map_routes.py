"""The interface of maps over HTTP, with the paths and parameters of titiler: tiles, pictures, points, and descriptions."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any, get_args
from urllib.parse import quote, urlencode

import numpy as np

from zarrasync.display.values import strict
from zarrasync.indexing.labels import LabelMethod
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.server.geometries import parse_features, region_of
from zarrasync.server.legends import legend_facts, legend_picture
from zarrasync.server.limits import BadQuery, TooMuch, Unsupported
from zarrasync.server.map_grid import MATRIX_SETS, PixelGrid, Resampling, TileMatrixSet
from zarrasync.server.map_places import Place
from zarrasync.server.map_statistics import StatisticsOptions, Weights
from zarrasync.server.maps import MapRequest
from zarrasync.server.messages import Handler, Request, Response
from zarrasync.server.pages import show_map
from zarrasync.server.places import Bounds
from zarrasync.server.projections import CRS84, MERCATOR, bounds_in, converted, parse_crs
from zarrasync.server.pyramid import Pyramid
from zarrasync.server.query import integer_of, number_of
from zarrasync.server.responses import content_response, json_response
from zarrasync.server.routes import Parameter, Route
from zarrasync.server.selection import parse_label
from zarrasync.server.service import Service

_METHODS = get_args(LabelMethod)
_MOST_PIXELS = 2048
"""The most rows or columns of a picture."""
_MOST_FEATURES = 1000
_PREVIEW = 1024
_LONLAT = "epsg:4326"
_LAST_ZOOM = 22
_VARIABLE = Parameter(
    "variable", "the path of an array or a pyramid, whose last two axes are on the earth", required=True
)
_SEL = Parameter(
    "sel",
    "the label of an axis outside of the plane: time=2024-03-01 or time=nearest::2024-03-01; may be repeated",
    repeats=True,
)
_NODATA = Parameter("nodata", "a value that is missing", kind="number")
_RESAMPLING = Parameter(
    "resampling",
    "the method by which elements become pixels; by default the average where a pixel covers several elements, and "
    "the nearest one of flags and labels",
    choices=get_args(Resampling),
)
_STYLE = (
    Parameter("rescale", "the values of the first and the last colour: 250,310; by default those of typical values"),
    Parameter("colormap_name", "the name of a colour map, or labels; by default that of flags, or viridis"),
    Parameter(
        "colormap",
        'own colours as JSON: of values {"1": "#ff0000"}, of intervals [[[0, 5], [255, 0, 0, 255]]], or all 256 of a map',
    ),
    Parameter("below", "the colour of lower values, such as transparent or #0000ff; by default the first colour"),
    Parameter("above", "the colour of higher values; by default the last colour"),
)
_PICTURE = (_VARIABLE, _SEL, *_STYLE, _NODATA, _RESAMPLING)
_SIZE = Parameter("tilesize", "the pixels of a tile along each side", kind="integer", default="256")
_SIDES = (
    Parameter("width", "the number of columns", kind="integer"),
    Parameter("height", "the number of rows", kind="integer"),
    Parameter("dst_crs", "the reference system of the picture", default=_LONLAT),
)
_COORD_CRS = Parameter("coord_crs", "the reference system of the coordinates in the request", default=_LONLAT)
_GEOJSON = "application/geo+json"
_IMAGES = {"png": "image/png", "webp": "image/webp"}
_URNS = {MERCATOR: "urn:ogc:def:crs:EPSG::3857", CRS84: "urn:ogc:def:crs:OGC:1.3:CRS84"}
_STATISTICS = (
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
_ONLY_POLYGONS = ("coord_crs", "weights")
_FORMAT = Parameter("tile_format", "the format of tiles", choices=tuple(_IMAGES))


class MapRoutes:
    """Handlers of requests for maps of a service.

    Args:
        service: The service.

    Attributes:
        routes: The routes.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._maps, self._max_age = service, service.maps, service.max_age
        tile, images = "/tiles/{tms}/{z}/{x}/{y}", tuple(_IMAGES.values())
        tile_parameters = (*_PICTURE, _SIZE)
        bounds, colours = "{minx},{miny},{maxx},{maxy}", "Colours and their values"
        described, sides = (*tile_parameters, _FORMAT), (*_PICTURE, *_SIDES)

        def pictures(
            name: str, path: str, handle: Handler, text: str, parameters: tuple[Parameter, ...], ends: Sequence[str]
        ) -> list[Route]:
            return [Route(f"{name}{n}", path + end, handle, text, parameters, images) for n, end in enumerate(ends)]

        sized = ("/{width}x{height}.png", "/{width}x{height}.webp", ".png", ".webp")
        self.routes = (
            *pictures("map_tile", tile, self.tile, "A tile of a map", tile_parameters, ("", ".png", ".webp")),
            *pictures("bbox", f"/bbox/{bounds}", self.bbox, "A picture of an area", (*sides, _COORD_CRS), sized),
            *pictures("preview", "/preview", self.preview, "A picture of all", sides, ("", ".png", ".webp")),
            Route("tilejson", "/{tms}/tilejson.json", self.tilejson, "Tiles as TileJSON", described),
            Route("map", "/{tms}/map.html", show_map, "A page with a map", tile_parameters, ("text/html",)),
            Route("wmts", "/WMTSCapabilities.xml", self.wmts, "Tiles as WMTS", described, ("application/xml",)),
            Route(
                "point",
                "/point/{lon},{lat}",
                self.point,
                "The value at a point",
                (_VARIABLE, _SEL, _NODATA, _COORD_CRS),
            ),
            Route("legend0", "/legend.json", self.legend, colours, (_VARIABLE, *_STYLE)),
            Route("legend1", "/legend.png", self.legend, colours, (_VARIABLE, *_STYLE, *_SIDES[:2]), ("image/png",)),
            Route(
                "statistics",
                "/statistics",
                self.statistics,
                "Statistics of a plane, or of polygons: a Feature or a FeatureCollection of GeoJSON",
                (_VARIABLE, _SEL, _NODATA, *_STATISTICS, _COORD_CRS),
                ("application/json", _GEOJSON),
                methods=("GET", "HEAD", "POST"),
                has_document=True,
            ),
            Route("info", "/info", self.info, "Bounds, size and attributes", (_VARIABLE, _SEL)),
        )

    # -------------------------------------------------------------- pictures

    async def tile(self, request: Request) -> Response:
        """Return a tile."""
        tms, size = _matrix_set(request), integer_of(request.query, "tilesize", 256, 16, _MOST_PIXELS)
        zoom, x, y = (int(request.parameters[name]) for name in ("z", "x", "y"))
        return await self._picture(request, PixelGrid(tms.crs, tms.tile(zoom, x, y), size, size))

    async def bbox(self, request: Request) -> Response:
        """Return the picture of an area."""
        bounds = tuple(number_of(request.parameters[name], name) for name in ("minx", "miny", "maxx", "maxy"))
        return await self._area(request, bounds, await self._crs(request, "coord_crs"))  # type: ignore[arg-type]  # there are four

    async def preview(self, request: Request) -> Response:
        """Return the picture of all."""
        _, pyramid, place = await self._located(request)
        if 1 in pyramid.shape:
            raise BadQuery("an array with one row or one column has no extent on a map; request a point of it")
        return await self._area(request, place.bounds, CRS84)

    async def _area(self, request: Request, bounds: Bounds, crs: str) -> Response:
        target = await self._crs(request, "dst_crs")
        if not (bounds[0] < bounds[2] and bounds[1] < bounds[3]):
            raise BadQuery(
                "the bounds must be the least x, the least y, the greatest x and the greatest y, such as 5,45,10,48; found "
                + ",".join(f"{bound:g}" for bound in bounds)
            )
        west, south, east, north = await self._service.chunks.compute(partial(bounds_in, bounds, crs, target))
        if target == MERCATOR:
            least, greatest = MATRIX_SETS["WebMercatorQuad"].bounds[1::2]
            south, north = max(south, least), min(north, greatest)
        if not south < north:
            raise BadQuery(f"the area {','.join(f'{bound:g}' for bound in bounds)} is outside of the map")
        area = west, south, east, north
        return await self._picture(request, PixelGrid(target, area, *_size(request, area)))

    async def _picture(self, request: Request, grid: PixelGrid) -> Response:
        body = await self._maps.picture(_map_request(request), grid)
        kind = "webp" if request.path.endswith(".webp") else "png"
        if kind == "webp":
            body = await self._service.chunks.compute(lambda: _as_webp(body))
        return content_response(request, [body], _IMAGES[kind], self._max_age, compress=False)

    async def _crs(self, request: Request, name: str) -> str:
        """Return the reference system that a parameter names, by default longitudes and latitudes."""
        if name not in request.query:
            return CRS84
        # The first use of pyproj takes long, and so does the first code of an authority.
        return await self._service.chunks.compute(partial(parse_crs, request.query[name], name))

    async def legend(self, request: Request) -> Response:
        """Return which values have which colours, as JSON, or the colours as a bar."""
        wanted = _map_request(request)
        pyramid = await self._service.pyramid(wanted.path)
        style = await self._maps.style(pyramid, wanted)
        if request.path.endswith(".png"):
            height, width = (
                integer_of(request.query, name, default, 1, _MOST_PIXELS)
                for name, default in (("height", 16), ("width", 256))
            )
            body = legend_picture(style, pyramid.labels, (height, width))
            return content_response(request, [body], "image/png", self._max_age, compress=False)
        unit = (await self._service.described.presentation(pyramid.levels[0].array)).unit
        return json_response(request, strict(legend_facts(style, pyramid.labels, unit)), self._max_age)

    # -------------------------------------------------------------- values

    async def point(self, request: Request) -> Response:
        """Return the value at a point."""
        longitude, latitude = (number_of(request.parameters[name], name) for name in ("lon", "lat"))
        wanted = _map_request(request)
        crs = await self._crs(request, "coord_crs")
        value, unit = await self._maps.point(wanted, longitude, latitude, crs)
        body = {"coordinates": [longitude, latitude], "values": [value], "band_names": [wanted.path], "unit": unit}
        return json_response(request, strict(body), self._max_age)

    async def statistics(self, request: Request) -> Response:
        """Return statistics of a plane, from a sample of its chunks if it is large, or of the polygons in the body."""
        wanted, options = _map_request(request), _statistics_options(request)
        if request.method == "POST":
            return await self._zonal_statistics(request, wanted, options)
        for name in _ONLY_POLYGONS:
            if name in request.query:
                raise BadQuery(f"{name} needs polygons: send them as GeoJSON in a POST request")
        body = {wanted.path: await self._maps.statistics(wanted, options)}
        return json_response(request, strict(body), self._max_age)

    async def _zonal_statistics(self, request: Request, wanted: MapRequest, options: StatisticsOptions) -> Response:
        """Return the GeoJSON of a request with statistics in the properties of each feature."""
        crs, compute = await self._crs(request, "coord_crs"), self._service.chunks.compute
        document, features = await compute(partial(parse_features, request.body))
        if len(features) > _MOST_FEATURES:
            raise TooMuch(f"the body has {len(features):,} features, more than {_MOST_FEATURES}; send several requests")
        for number, feature in enumerate(features):
            region = await compute(partial(region_of, feature, f"the geometry of feature {number}"))
            facts = await self._maps.statistics(wanted, options, region, crs)
            feature["properties"] = {**(feature.get("properties") or {}), "statistics": strict({wanted.path: facts})}
        response = await compute(lambda: json_response(request, document, 0))
        response.headers |= {"Content-Type": _GEOJSON, "Cache-Control": "no-store"}
        return response

    async def info(self, request: Request) -> Response:
        """Return the bounds, the size and the attributes of an array."""
        _, pyramid, place = await self._located(request)
        array = pyramid.levels[0].array
        axes = await self._service.axes(self._service.hierarchy.relative_path(array))
        rows, columns = pyramid.shape
        body = {
            "bounds": place.bounds,
            "crs": CRS84,
            "native_crs": place.crs,
            "dtype": array.metadata.dtype.name,
            "width": columns,
            "height": rows,
            "minzoom": 0,
            "maxzoom": _max_zoom(place.bounds, pyramid.shape, MATRIX_SETS["WebMercatorQuad"]),
            "dimensions": [axes[axis] for axis in pyramid.levels[0].order[:-2]],
            "attrs": array.attrs,
        }
        return json_response(request, strict(body), self._max_age)

    # -------------------------------------------------------------- descriptions

    async def _located(self, request: Request) -> tuple[str, Pyramid, Place]:
        """Return the path of the variable that a request names, its levels, and its place on the earth."""
        path = _map_request(request).path
        pyramid = await self._service.pyramid(path)
        return path, pyramid, await self._maps.place(pyramid)

    async def tilejson(self, request: Request) -> Response:
        """Return a description of tiles as TileJSON 2.2."""
        tms, (path, pyramid, place) = _matrix_set(request), await self._located(request)
        bounds = place.bounds
        body = {
            "tilejson": "2.2.0",
            "name": path,
            "version": "1.0.0",
            "scheme": "xyz",
            "tiles": [_tile_url(request, tms.name, "{z}/{x}/{y}")],
            "minzoom": 0,
            "maxzoom": _max_zoom(bounds, pyramid.shape, tms),
            "bounds": bounds,
            "center": [(bounds[0] + bounds[2]) / 2, (bounds[1] + bounds[3]) / 2, 0],
        }
        return json_response(request, body, self._max_age)

    async def wmts(self, request: Request) -> Response:
        """Return a description of tiles as WMTS 1.0.0."""
        path, pyramid, place = await self._located(request)
        body = _capabilities(request, path, place.bounds, pyramid.shape)
        return content_response(request, [body.encode()], "application/xml", self._max_age)


# ------------------------------------------------------------------ parameters


def _variable(request: Request) -> str:
    path = request.query.get("variable", "")
    if not path:
        raise BadQuery("the parameter variable is required: the path of an array, such as variable=t2m")
    return path.strip("/")


def _map_request(request: Request) -> MapRequest:
    """Return what the parameters of a request specify.

    Raises:
        BadQuery: If one is invalid.
    """
    query = request.query
    low, high = _range(query.get("rescale", ""))
    labels = dict(_label(value) for name, value in request.items if name == "sel")
    resampling: Any = query.get("resampling", "")
    colormap = query.get("colormap_name", "")[:64]
    ends, table = (query.get("below", ""), query.get("above", "")), query.get("colormap", "")
    if table and colormap:
        raise BadQuery("colormap and colormap_name exclude each other")
    nodata = _nodata(query.get("nodata", ""))
    return MapRequest(_variable(request), tuple(labels.items()), colormap, low, high, *ends, nodata, resampling, table)


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
    return name, Query(parse_label(label), method or None)


def _range(text: str, name: str = "rescale") -> tuple[float | None, float | None]:
    if not text:
        return None, None
    parts = text.split(",")
    if len(parts) != 2:
        raise BadQuery(f"{name} must be two numbers, such as 250,310; found {text[:40]!r}")
    return number_of(parts[0], name), number_of(parts[1], name)


def _statistics_options(request: Request) -> StatisticsOptions:
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


def _matrix_set(request: Request) -> TileMatrixSet:
    return MATRIX_SETS[request.parameters["tms"]]


def _size(request: Request, area: Bounds) -> tuple[int, int]:
    """Return the columns and rows of a picture: requested ones, or at most 1024 in the proportions of the area."""
    sides = {**request.query, **request.parameters}
    aspect = min(max((area[2] - area[0]) / (area[3] - area[1]), 1e-6), 1e6)
    width, height = (
        integer_of(sides, name, 0, 1, _MOST_PIXELS) if name in sides else None for name in ("width", "height")
    )
    if width is None and height is None:
        width = _PREVIEW if aspect >= 1 else max(round(_PREVIEW * aspect), 1)
    if width is None:
        width = round((height or 1) * aspect)
    if height is None:
        height = round(width / aspect)
    return min(max(width, 1), _MOST_PIXELS), min(max(height, 1), _MOST_PIXELS)


def _as_webp(png: bytes) -> bytes:
    try:
        from PIL import Image
    except ImportError:
        raise Unsupported("WebP needs the package pillow on the server; request png") from None
    target = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGBA").save(target, "WEBP", lossless=True)
    return target.getvalue()


# ------------------------------------------------------------------ documents


def _max_zoom(bounds: Bounds, shape: tuple[int, int], tms: TileMatrixSet) -> int:
    """Return the first zoom at which pixels are not larger than elements."""
    west, east = (float(converted(np.array(value), "x", CRS84, tms.crs)) for value in bounds[::2])
    step = (east - west) / shape[1]
    if not step > 0:  # a single column has no width
        return 0
    return min(max(math.ceil(math.log2(tms.resolution(0) / step)), 0), _LAST_ZOOM)


def _tile_url(request: Request, tms: str, place: str) -> str:
    """Return the template of the URLs of tiles, with the parameters of a request."""
    kind = request.query.get("tile_format", "png")
    query = urlencode([(name, value) for name, value in request.items if name != "tile_format"], quote_via=quote)
    return f"{request.origin}{request.root}/tiles/{tms}/{place}.{kind}" + (f"?{query}" if query else "")


def _capabilities(request: Request, name: str, bounds: Bounds, shape: tuple[int, int]) -> str:
    title, kind = escape(name), _IMAGES[request.query.get("tile_format", "png")]
    west, south, east, north = bounds
    layers = "".join(
        f"<Layer><ows:Title>{title} {tms.name}</ows:Title><ows:Identifier>{title}_{tms.name}</ows:Identifier>"
        f'<ows:WGS84BoundingBox crs="urn:ogc:def:crs:OGC:2:84"><ows:LowerCorner>{west!r} {south!r}</ows:LowerCorner>'
        f"<ows:UpperCorner>{east!r} {north!r}</ows:UpperCorner></ows:WGS84BoundingBox>"
        '<Style isDefault="true"><ows:Identifier>default</ows:Identifier></Style>'
        f"<Format>{kind}</Format><TileMatrixSetLink><TileMatrixSet>{tms.name}</TileMatrixSet></TileMatrixSetLink>"
        f'<ResourceURL format="{kind}" resourceType="tile" '
        f'template="{url}"/></Layer>'
        for tms in MATRIX_SETS.values()
        for url in (escape(_tile_url(request, tms.name, "{TileMatrix}/{TileCol}/{TileRow}")),)
    )
    sets = "".join(_matrices(tms, _max_zoom(bounds, shape, tms)) for tms in MATRIX_SETS.values())
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Capabilities xmlns="http://www.opengis.net/wmts/1.0" '
        'xmlns:ows="http://www.opengis.net/ows/1.1" xmlns:xlink="http://www.w3.org/1999/xlink" version="1.0.0">'
        "<ows:ServiceIdentification><ows:Title>Zarr</ows:Title><ows:ServiceType>OGC WMTS</ows:ServiceType>"
        "<ows:ServiceTypeVersion>1.0.0</ows:ServiceTypeVersion></ows:ServiceIdentification>"
        f"<Contents>{layers}{sets}</Contents></Capabilities>"
    )


def _matrices(tms: TileMatrixSet, last: int) -> str:
    matrices = "".join(
        f"<TileMatrix><ows:Identifier>{zoom}</ows:Identifier><ScaleDenominator>{tms.scale(zoom)!r}</ScaleDenominator>"
        f"<TopLeftCorner>{tms.bounds[0]!r} {tms.bounds[3]!r}</TopLeftCorner><TileWidth>256</TileWidth>"
        f"<TileHeight>256</TileHeight><MatrixWidth>{tms.columns << zoom}</MatrixWidth><MatrixHeight>{1 << zoom}</MatrixHeight>"
        "</TileMatrix>"
        for zoom in range(last + 1)
    )
    return (
        f"<TileMatrixSet><ows:Identifier>{tms.name}</ows:Identifier><ows:SupportedCRS>{_URNS[tms.crs]}</ows:SupportedCRS>"
        f"{matrices}</TileMatrixSet>"
    )
