"""The interface of maps over HTTP, with the paths and parameters of titiler: tiles, pictures, points, and descriptions."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import partial
from html import escape
from urllib.parse import quote, urlencode

import numpy as np

from zarrasync.display.values import strict
from zarrasync.metadata.conventions.meaning import CIRCLE
from zarrasync.server.geometries import parse_features, region_of
from zarrasync.server.legends import legend_facts, legend_picture
from zarrasync.server.limits import BadQuery, TooMuch, Unsupported
from zarrasync.server.map_grid import MATRIX_SETS, PixelGrid, TileMatrixSet
from zarrasync.server.map_parameters import (
    AREA,
    COORD_CRS,
    DESCRIBED,
    IMAGES,
    LAST_ZOOM,
    MOST_PIXELS,
    NODATA,
    REPROJECT,
    SIDES,
    STATISTICS,
    STYLE,
    TILE,
    VARIABLE,
    map_request,
    size_of,
    statistics_options,
    tile_items,
    tile_size,
    zooms_of,
)
from zarrasync.server.map_places import Place
from zarrasync.server.map_statistics import StatisticsOptions
from zarrasync.server.maps import MapRequest
from zarrasync.server.messages import Handler, Request, Response
from zarrasync.server.pages import show_map
from zarrasync.server.places import Bounds
from zarrasync.server.projections import CRS84, MERCATOR, bounds_in, converted, parse_crs
from zarrasync.server.pyramid import Pyramid
from zarrasync.server.query import integer_of, number_of
from zarrasync.server.responses import content_response, json_response
from zarrasync.server.routes import Parameter, Route
from zarrasync.server.service import Service

_MOST_FEATURES = 1000
_GEOJSON = "application/geo+json"
_URNS = {MERCATOR: "urn:ogc:def:crs:EPSG::3857", CRS84: "urn:ogc:def:crs:OGC:1.3:CRS84"}
_ONLY_POLYGONS = ("coord_crs", "weights")
_BAND = "b1"
"""The name of the only band of a map, as titiler names it."""


class MapRoutes:
    """Handlers of requests for maps of a service.

    Args:
        service: The service.

    Attributes:
        routes: The routes.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._maps, self._max_age = service, service.maps, service.max_age
        tile, images = "/tiles/{tms}/{z}/{x}/{y}", tuple(IMAGES.values())
        bounds, colours = "{minx},{miny},{maxx},{maxy}", "Colours and their values"

        def pictures(
            name: str, path: str, handle: Handler, text: str, parameters: tuple[Parameter, ...], ends: Sequence[str]
        ) -> list[Route]:
            return [Route(f"{name}{n}", path + end, handle, text, parameters, images) for n, end in enumerate(ends)]

        sized = ("/{width}x{height}.png", "/{width}x{height}.webp", ".png", ".webp")
        self.routes = (
            *pictures("map_tile", tile, self.tile, "A tile of a map", TILE, ("", ".png", ".webp")),
            *pictures("bbox", f"/bbox/{bounds}", self.bbox, "A picture of an area", (*AREA, COORD_CRS), sized),
            *pictures("preview", "/preview", self.preview, "A picture of all", AREA, ("", *sized)),
            Route("tilejson", "/{tms}/tilejson.json", self.tilejson, "Tiles as TileJSON", DESCRIBED),
            Route("map", "/{tms}/map.html", show_map, "A page with a map", DESCRIBED, ("text/html",)),
            Route("wmts", "/WMTSCapabilities.xml", self.wmts, "Tiles as WMTS", DESCRIBED, ("application/xml",)),
            Route(
                "point",
                "/point/{lon},{lat}",
                self.point,
                "The value at a point",
                (*VARIABLE, NODATA, REPROJECT, COORD_CRS),
            ),
            Route("legend0", "/legend.json", self.legend, colours, (*VARIABLE, *STYLE)),
            Route("legend1", "/legend.png", self.legend, colours, (*VARIABLE, *STYLE, *SIDES), ("image/png",)),
            Route(
                "statistics",
                "/statistics",
                self.statistics,
                "Statistics of a plane, or of polygons: a Feature or a FeatureCollection of GeoJSON",
                (*VARIABLE, NODATA, *STATISTICS, COORD_CRS),
                ("application/json", _GEOJSON),
                methods=("GET", "HEAD", "POST"),
                has_document=True,
            ),
            Route("info", "/info", self.info, "Bounds, size and attributes", VARIABLE),
        )

    # -------------------------------------------------------------- pictures

    async def tile(self, request: Request) -> Response:
        """Return a tile."""
        tms, size = _matrix_set(request), tile_size(request)
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
        return await self._picture(request, PixelGrid(target, area, *size_of(request, area)))

    async def _picture(self, request: Request, grid: PixelGrid) -> Response:
        body = await self._maps.picture(map_request(request), grid)
        kind = "webp" if request.path.endswith(".webp") else "png"
        if kind == "webp":
            body = await self._service.chunks.compute(lambda: _as_webp(body))
        return content_response(request, [body], IMAGES[kind], self._max_age, compress=False)

    async def _crs(self, request: Request, name: str) -> str:
        """Return the reference system that a parameter names, by default longitudes and latitudes."""
        if name not in request.query:
            return CRS84
        # The first use of pyproj takes long, and so does the first code of an authority.
        return await self._service.chunks.compute(partial(parse_crs, request.query[name], name))

    async def legend(self, request: Request) -> Response:
        """Return which values have which colours, as JSON, or the colours as a bar."""
        wanted = map_request(request)
        pyramid = await self._service.pyramid(wanted.path)
        style = await self._maps.style(pyramid, wanted)
        if request.path.endswith(".png"):
            height, width = (
                integer_of(request.query, name, default, 1, MOST_PIXELS)
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
        wanted = map_request(request)
        crs = await self._crs(request, "coord_crs")
        value, unit = await self._maps.point(wanted, longitude, latitude, crs)
        body = {
            "coordinates": [longitude, latitude],
            "values": [value],
            "band_names": [_BAND],
            "band_descriptions": [wanted.path],
            "unit": unit,
        }
        return json_response(request, strict(body), self._max_age)

    async def statistics(self, request: Request) -> Response:
        """Return statistics of a plane, from a sample of its chunks if it is large, or of the polygons in the body."""
        wanted, options = map_request(request), statistics_options(request)
        if request.method == "POST":
            return await self._zonal_statistics(request, wanted, options)
        for name in _ONLY_POLYGONS:
            if name in request.query:
                raise BadQuery(f"{name} needs polygons: send them as GeoJSON in a POST request")
        body = {_BAND: await self._maps.statistics(wanted, options)}
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
            feature["properties"] = {**(feature.get("properties") or {}), "statistics": strict({_BAND: facts})}
        response = await compute(lambda: json_response(request, document, 0))
        response.headers |= {"Content-Type": _GEOJSON, "Cache-Control": "no-store"}
        return response

    async def info(self, request: Request) -> Response:
        """Return the bounds, the size and the attributes of an array."""
        path, pyramid, place = await self._located(request)
        array = pyramid.levels[0].array
        axes = await self._service.axes(self._service.hierarchy.relative_path(array))
        rows, columns = pyramid.shape
        body = {
            "bounds": place.bounds,
            "crs": CRS84,
            "native_crs": place.crs,
            "name": path.rpartition("/")[2],
            "dtype": array.metadata.dtype.name,
            "count": math.prod(array.shape) // (rows * columns or 1),
            "width": columns,
            "height": rows,
            "minzoom": 0,
            "maxzoom": _max_zoom(place.bounds, pyramid.shape, MATRIX_SETS["WebMercatorQuad"]),
            "dimensions": [axes[axis]["name"] for axis in pyramid.levels[0].order],
            "axes": [axes[axis] for axis in pyramid.levels[0].order[:-2]],
            "attrs": array.attrs,
        }
        return json_response(request, strict(body), self._max_age)

    # -------------------------------------------------------------- descriptions

    async def _located(self, request: Request) -> tuple[str, Pyramid, Place]:
        """Return the path of the variable that a request names, its levels, and its place on the earth."""
        path = map_request(request).path
        pyramid = await self._service.pyramid(path)
        return path, pyramid, await self._maps.place(pyramid)

    async def tilejson(self, request: Request) -> Response:
        """Return a description of tiles as TileJSON 2.2."""
        tms, (path, pyramid, place) = _matrix_set(request), await self._located(request)
        bounds = place.bounds
        least, most = zooms_of(request, _max_zoom(bounds, pyramid.shape, tms))
        body = {
            "tilejson": "2.2.0",
            "name": path,
            "version": "1.0.0",
            "scheme": "xyz",
            "tiles": [_tile_url(request, tms.name, "{z}/{x}/{y}")],
            "minzoom": least,
            "maxzoom": most,
            "bounds": bounds,
            "center": [(bounds[0] + bounds[2]) / 2, (bounds[1] + bounds[3]) / 2, least],
            "band_descriptions": [[_BAND, path]],
            "data_type": pyramid.levels[0].array.metadata.dtype.name,
        }
        return json_response(request, body, self._max_age)

    async def wmts(self, request: Request) -> Response:
        """Return a description of tiles as WMTS 1.0.0."""
        path, pyramid, place = await self._located(request)
        body = _capabilities(request, path, place.bounds, pyramid.shape)
        return content_response(request, [body.encode()], "application/xml", self._max_age)


def _matrix_set(request: Request) -> TileMatrixSet:
    return MATRIX_SETS[request.parameters["tms"]]


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
    return min(max(math.ceil(math.log2(tms.resolution(0) / step)), 0), LAST_ZOOM)


def _tile_url(request: Request, tms: str, place: str) -> str:
    """Return the template of the URLs of tiles, with the parameters of a request."""
    kind = request.query.get("tile_format", "png")
    query = urlencode(tile_items(request), quote_via=quote)
    return f"{request.origin}{request.root}/tiles/{tms}/{place}.{kind}" + (f"?{query}" if query else "")


def _capabilities(request: Request, name: str, bounds: Bounds, shape: tuple[int, int]) -> str:
    title, kind = escape(name), IMAGES[request.query.get("tile_format", "png")]
    layers = "".join(
        f"<Layer><ows:Title>{title} {tms.name}</ows:Title><ows:Identifier>{title}_{tms.name}</ows:Identifier>"
        f'<ows:WGS84BoundingBox crs="urn:ogc:def:crs:OGC:2:84"><ows:LowerCorner>{west!r} {south!r}</ows:LowerCorner>'
        f"<ows:UpperCorner>{east!r} {north!r}</ows:UpperCorner></ows:WGS84BoundingBox>"
        '<Style isDefault="true"><ows:Identifier>default</ows:Identifier></Style>'
        f"<Format>{kind}</Format><TileMatrixSetLink><TileMatrixSet>{tms.name}</TileMatrixSet></TileMatrixSetLink>"
        f'<ResourceURL format="{kind}" resourceType="tile" '
        f'template="{url}"/></Layer>'
        for tms in MATRIX_SETS.values()
        for west, south, east, north in (_covered(bounds, tms),)
        for url in (escape(_tile_url(request, tms.name, "{TileMatrix}/{TileCol}/{TileRow}")),)
    )
    zooms = {tms: zooms_of(request, _max_zoom(bounds, shape, tms)) for tms in MATRIX_SETS.values()}
    sets = "".join(_matrices(tms, *zooms[tms], tile_size(request)) for tms in MATRIX_SETS.values())
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Capabilities xmlns="http://www.opengis.net/wmts/1.0" '
        'xmlns:ows="http://www.opengis.net/ows/1.1" xmlns:xlink="http://www.w3.org/1999/xlink" version="1.0.0">'
        "<ows:ServiceIdentification><ows:Title>Zarr</ows:Title><ows:ServiceType>OGC WMTS</ows:ServiceType>"
        "<ows:ServiceTypeVersion>1.0.0</ows:ServiceTypeVersion></ows:ServiceIdentification>"
        f"<Contents>{layers}{sets}</Contents></Capabilities>"
    )


def _covered(bounds: Bounds, tms: TileMatrixSet) -> Bounds:
    """Return the longitudes and latitudes of those bounds for which there are tiles. Clients request tiles for all of them."""
    least, greatest = (float(value) for value in converted(np.array(tms.bounds[1::2]), "y", tms.crs, CRS84))
    west, south, east, north = bounds
    if west < -CIRCLE / 2 or east > CIRCLE / 2:  # over the antimeridian, on both sides of a map
        west, east = -CIRCLE / 2, CIRCLE / 2
    return west, max(south, least), east, min(north, greatest)


def _matrices(tms: TileMatrixSet, first: int, last: int, size: int) -> str:
    matrices = "".join(
        f"<TileMatrix><ows:Identifier>{zoom}</ows:Identifier><ScaleDenominator>{tms.scale(zoom) * 256 / size!r}</ScaleDenominator>"
        f"<TopLeftCorner>{tms.bounds[0]!r} {tms.bounds[3]!r}</TopLeftCorner><TileWidth>{size}</TileWidth>"
        f"<TileHeight>{size}</TileHeight><MatrixWidth>{tms.columns << zoom}</MatrixWidth><MatrixHeight>{1 << zoom}</MatrixHeight>"
        "</TileMatrix>"
        for zoom in range(first, last + 1)
    )
    return (
        f"<TileMatrixSet><ows:Identifier>{tms.name}</ows:Identifier><ows:SupportedCRS>{_URNS[tms.crs]}</ows:SupportedCRS>"
        f"{matrices}</TileMatrixSet>"
    )
