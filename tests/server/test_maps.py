"""Maps: pixels compared with xarray, pyproj and NumPy; tiles read by GDAL, and shown by MapLibre and OpenLayers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
pyproj = pytest.importorskip("pyproj", reason="pyproj is not installed")
xr = pytest.importorskip("xarray", reason="xarray is not installed")
from PIL import Image

from tests.server.test_tiles import decoded
from tests.support.server_client import running, serving
from zarrasync import sync
from zarrasync.server.maps import MapRequest

pytestmark = pytest.mark.servers
AXE = os.environ.get("ZARRASYNC_AXE", "")
NODE_MODULES = os.environ.get("ZARRASYNC_NODE_MODULES", "")
MERCATOR_EDGE = 20037508.342789244
LEVELS = 254  # values of elements; each has its own grey
DEGREES = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}


def world(step: float = 2.0, *, south_first: bool = False, lon0: float = 0.0, **options: Any) -> tuple[Any, Any]:
    """Return a store with a variable on a globe, and xarray's view of it."""
    lat = np.arange(90 - step / 2, -90, -step)[:: -1 if south_first else 1]
    lon = np.arange(lon0 + step / 2, lon0 + 360, step)
    values = np.random.default_rng(5).integers(0, LEVELS + 1, (3, len(lat), len(lon))).astype("f4")
    values[:, 3:6, 7:20] = np.nan
    return stored(values, lat, lon, **options)


def stored(values: np.ndarray, lat: np.ndarray, lon: np.ndarray, **options: Any) -> tuple[Any, Any]:
    root = sync.create_group(store := {})
    root.create_array("v", data=values, dimension_names=("time", "lat", "lon"), **options)
    time = np.arange(len(values))
    root.create_array("time", data=time, dimension_names=["time"], attributes={"units": "days since 2024-02-28"})
    for name, labels in (("lat", lat), ("lon", lon)):
        root.create_array(name, data=labels, dimension_names=[name], attributes=DEGREES[name])
    return store, xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": lat, "lon": lon})


def numbers(body: bytes) -> np.ndarray:
    """Return the values of a picture in greys from 0 to 254; NaN where it is transparent."""
    picture = np.asarray(Image.open(io.BytesIO(body)).convert("RGBA")).astype(float)
    return np.where(picture[..., 3] > 0, np.rint(picture[..., 0] * LEVELS / 255), np.nan)


def mercator_pixels(zoom: int, x: int, y: int, size: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Return the longitudes and latitudes of the centres of a tile's columns and rows, by PROJ."""
    side = 2 * MERCATOR_EDGE / 2**zoom
    places = (np.arange(size) + 0.5) / size
    easting, northing = -MERCATOR_EDGE + (x + places) * side, MERCATOR_EDGE - (y + places) * side
    transform = pyproj.Transformer.from_crs(3857, 4326, always_xy=True).transform
    return transform(easting, np.zeros(size))[0], transform(np.zeros(size), northing)[1]


def nearest(data: Any, lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    """Return the values of the nearest elements, by xarray."""
    first = float(data.lon[0])
    step = float(data.lon[1] - data.lon[0])
    wrapped = (lon - (first - step / 2)) % 360 + first - step / 2
    return data.sel(lat=xr.DataArray(lat, dims="y"), lon=xr.DataArray(wrapped, dims="x"), method="nearest").values


@pytest.mark.smoke
@pytest.mark.parametrize("framework", ["aiohttp", "asgi"], indirect=True)
@pytest.mark.parametrize(("south_first", "lon0"), [(False, 0.0), (True, -180.0)])
async def test_tiles_show_the_nearest_elements(framework, south_first, lon0):
    store, data = world(south_first=south_first, lon0=lon0, chunks=(1, 40, 50))
    query = "variable=v&sel=time=2024-02-29&rescale=0,254&colormap_name=gray&resampling=nearest"
    async with serving(store) as client:
        for zoom, x, y in ((0, 0, 0), (2, 1, 1), (3, 7, 5), (5, 16, 0)):
            status, body, headers = await client.get(f"/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?{query}")
            assert (status, headers["Content-Type"]) == (200, "image/png")
            np.testing.assert_array_equal(numbers(body), nearest(data[1], *mercator_pixels(zoom, x, y)))
        _, body, _ = await client.get(f"/tiles/WorldCRS84Quad/1/3/0?{query}&tilesize=512")
        places = (np.arange(512) + 0.5) / 512
        np.testing.assert_array_equal(numbers(body), nearest(data[1], 90 + 90 * places, 90 - 90 * places))
        status, body, _ = await client.get(f"/tiles/WebMercatorQuad/2/1/1.webp?{query}")
        np.testing.assert_array_equal(numbers(body), nearest(data[1], *mercator_pixels(2, 1, 1)))


async def test_regions_are_transparent_outside_and_irregular_rows_have_their_places():
    lat = np.array([60.0, 52, 47, 45, 44.5, 40])
    lon = np.arange(350.0, 371, 1)  # over the meridian of Greenwich
    values = np.arange(6.0 * 21).reshape(1, 6, 21).astype("f4")
    store, data = stored(values, lat, lon)
    async with serving(store) as client:
        query = "variable=v&rescale=0,254&colormap_name=gray&resampling=nearest"
        _, body, _ = await client.get(f"/bbox/-20,30.003,20,70.003.png?{query}&width=400&height=400")
        found = numbers(body)
        centres = (np.arange(400) + 0.5) / 10
        expected = nearest(data[0], (-20 + centres) % 360, 70.003 - centres)
        x = (-20 + centres - 349.5) % 360 + 349.5
        inside = ((70.003 - centres <= 64) & (70.003 - centres >= 37.75))[:, None] & (x <= 370.5)
        np.testing.assert_array_equal(found, np.where(inside, expected, np.nan))
        info = await client.json("/info?variable=v")
        assert info["bounds"] == [-10.5, 37.75, 10.5, 64.0]


async def test_pixels_that_cover_several_elements_have_their_average():
    store, data = world(0.5, chunks=(1, 90, 180))
    query = "variable=v&sel=time=2024-02-28&rescale=0,254&colormap_name=gray"
    async with serving(store) as client:
        _, body, _ = await client.get(f"/bbox/0,-90,180,90.png?{query}&width=90&height=90")
        with warnings.catch_warnings(action="ignore"):  # blocks without values
            blocks = data[0, :, :360].coarsen(lat=4, lon=4).mean().values
        np.testing.assert_allclose(numbers(body) + 0.5, blocks, atol=0.501)  # colours begin at whole numbers
        _, body, _ = await client.get(f"/tiles/WebMercatorQuad/0/0/0.png?{query}")
        found = numbers(body)
        edge = MERCATOR_EDGE * (1 - 2 * np.arange(257) / 256)
        to_degrees = pyproj.Transformer.from_crs(3857, 4326, always_xy=True).transform
        south_north = to_degrees(np.zeros(257), edge)[1]
        for row, column in (
            (128, 10),
            (40, 200),
            (3, 3),
        ):  # of the equator, and far from it, where one element is nearest
            in_rows = (data.lat < south_north[row]) & (data.lat > south_north[row + 1])
            west, east = column * 360 / 256 - 180, (column + 1) * 360 / 256 - 180
            shifted = (data.lon + 180) % 360 - 180
            in_columns = (shifted > west) & (shifted < east)
            lat = (
                np.flatnonzero(in_rows)
                if in_rows.any()
                else [np.argmin(abs(data.lat.values - south_north[row : row + 2].mean()))]
            )
            part = data[0].values[np.ix_(lat, np.flatnonzero(in_columns))]
            assert found[row, column] + 0.5 == pytest.approx(np.nanmean(part), abs=0.501)


def test_infinite_values_change_only_their_pixels():
    from zarrasync.server.map_grid import Window, resample
    from zarrasync.server.places import AxisPlaces

    places = AxisPlaces.of(np.arange(12.0), "x")
    edges = np.linspace(-0.5, 11.5, 5)
    window = Window.of(places, (edges[:-1] + edges[1:]) / 2, edges, "average")
    values = np.arange(144.0).reshape(12, 12)
    expected = values.reshape(4, 3, 4, 3).mean((1, 3))
    np.testing.assert_allclose(resample(values, window, window, "average"), expected)
    values[4, 4], expected[1, 1] = np.inf, np.inf
    np.testing.assert_allclose(resample(values, window, window, "average"), expected)


async def test_values_between_elements_are_interpolated_on_request():
    lat, lon = np.arange(40.0, 49)[::-1], np.arange(0.0, 11)
    values = (10 * lat[:, None] - 300 + 5 * lon)[None].astype("f4")
    store, data = stored(values, lat, lon)
    async with serving(store) as client:
        query = "variable=v&rescale=0,254&colormap_name=gray&resampling=bilinear&width=77&height=63"
        _, body, _ = await client.get(f"/bbox/0.2,40.1,9.9,47.8.png?{query}")
        x, y = 0.2 + 9.7 * (np.arange(77) + 0.5) / 77, 47.8 - 7.7 * (np.arange(63) + 0.5) / 63
        expected = data[0].interp(lat=y, lon=x).values
        np.testing.assert_allclose(numbers(body) + 0.5, expected, atol=0.501)


async def test_a_tile_reads_the_level_of_a_pyramid_that_suits_it():
    """Each level has its own value, so that the colour names the level."""
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    multiscales = {"datasets": [{"path": str(n)} for n in range(3)]}
    root.create_group("p", attributes={"multiscales": [multiscales]})
    for n in range(3):
        size = 720 >> n, 1440 >> n
        group = root.create_group(f"p/{n}")
        group.create_array(
            "v", data=np.full(size, 50.0 * n + 50, "f4"), chunks=(180, 180), dimension_names=("lat", "lon")
        )
        step = 180 / size[0]
        group.create_array(
            "lat", data=90 - step * (np.arange(size[0]) + 0.5), attributes=DEGREES["lat"], dimension_names=["lat"]
        )
        group.create_array(
            "lon", data=step * (np.arange(size[1]) + 0.5), attributes=DEGREES["lon"], dimension_names=["lon"]
        )
    async with serving(store) as client:
        seen = []
        for zoom, size in ((0, 128), (0, 256), (0, 512), (1, 256), (4, 256)):
            path = f"/tiles/WorldCRS84Quad/{zoom}/0/0.png?variable=p&rescale=0,254&colormap_name=gray&tilesize={size}"
            seen.append(set(np.unique(numbers((await client.get(path))[1]))))
        assert seen == [{150.0}, {100.0}, {50.0}, {50.0}, {50.0}]
        told = await client.json("/WorldCRS84Quad/tilejson.json?variable=p")
        assert (told["maxzoom"], told["bounds"]) == (2, [-180, -90, 180, 90])


async def test_planes_before_another_axis():
    """Bands may lie on the last axis, after the rows and columns."""
    lat, lon = 89.0 - 2 * np.arange(90), 1.0 + 2 * np.arange(180)
    values = np.random.default_rng(6).integers(0, LEVELS + 1, (90, 180, 3)).astype("u1")
    root = sync.create_group(store := {})
    root.create_array("v", data=values, dimension_names=("lat", "lon", "band"))
    for name, labels in (("lat", lat), ("lon", lon)):
        root.create_array(name, data=labels, dimension_names=[name], attributes=DEGREES[name])
    root.create_array("band", data=np.array([10, 20, 30]), dimension_names=["band"])
    data = xr.DataArray(values, dims=("lat", "lon", "band"), coords={"lat": lat, "lon": lon, "band": [10, 20, 30]})
    async with serving(store) as client:
        for query, band in (("variable=v", 0), ("variable=v&sel=band=30", 2)):
            shown = f"{query}&rescale=0,254&colormap_name=gray&resampling=nearest"
            _, body, _ = await client.get(f"/tiles/WebMercatorQuad/1/1/0.png?{shown}")
            np.testing.assert_array_equal(numbers(body), nearest(data[:, :, band], *mercator_pixels(1, 1, 0)))
            told = await client.json(f"/point/9,41?{query}")
            assert told["values"] == [float(data[24, 4, band])]
        info = await client.json("/info?variable=v")
        assert info["dimensions"][0] == "band"
        assert info["bounds"] == [-180, -90, 180, 90]


async def test_arrays_in_web_mercator_and_arrays_without_a_place():
    root = sync.create_group(store := {})
    x, y = np.arange(5e5, 15e5, 1e5), np.arange(60e5, 50e5, -1e5)
    values = np.arange(100.0).reshape(10, 10).astype("f4")
    for name, wkt in (("web", pyproj.CRS(3857).to_wkt()), ("none", "")):
        mapping = {"grid_mapping": "crs"} if wkt else {}
        group = root.create_group(name)
        group.create_array("v", data=values, dimension_names=("y", "x"), attributes=mapping)
        group.create_array("x", data=x, dimension_names=["x"])
        group.create_array("y", data=y, dimension_names=["y"])
        if wkt:
            group.create_array("crs", data=np.array(0), attributes={"crs_wkt": wkt})
    async with serving(store) as client:
        query = (
            "variable=web/v&rescale=0,254&colormap_name=gray&resampling=nearest&coord_crs=epsg:3857&dst_crs=epsg:3857"
        )
        _, body, _ = await client.get(f"/bbox/450000,5050000,1450000,6050000/100x100.png?{query}")
        np.testing.assert_array_equal(numbers(body), np.kron(values, np.ones((10, 10))))
        lon, lat = pyproj.Transformer.from_crs(3857, 4326, always_xy=True).transform(8.1e5, 53.2e5)
        told = await client.json(f"/point/{lon},{lat}?variable=web/v")
        assert told["values"] == [float(values[7, 3])]
        told = await client.json("/info?variable=none/v", 400)
        assert "'y' and 'x' need latitudes and longitudes" in told["message"]


@pytest.mark.parametrize("dtype", ["i1", "i8", "u8", "f4"])
async def test_values_that_are_missing_are_compared_exactly(dtype):
    first = {"i8": 2**60, "u8": 2**63}.get(dtype, 100)
    root = sync.create_group(store := {})
    last = first + (2**20 if first > 100 else 20)
    values = np.array([[first, first + 1], [first + 2, last]], dtype)
    root.create_array("v", data=values, dimension_names=("lat", "lon"))
    root.create_array("lat", data=np.arange(2.0), dimension_names=["lat"], attributes={"units": "degrees_north"})
    root.create_array("lon", data=np.arange(2.0), dimension_names=["lon"], attributes={"units": "degrees_east"})
    async with serving(store) as client:
        for nodata in (first + 1, -(2**63), 2**64, 10**400, "1e400", "-inf", "nan", "101.5"):
            told = (await client.json(f"/statistics?variable=v&nodata={nodata}"))["b1"]
            assert told["masked_pixels"] == (nodata == first + 1)
            assert (told["min"], told["max"]) == (first, last)
            status, _, headers = await client.get(f"/preview.png?variable=v&nodata={nodata}")
            assert (status, headers["Content-Type"]) == (200, "image/png")


async def test_labels_of_times_that_are_no_dates():
    store, _ = world(2.0)
    sync.open_array(store, path="time", mode="r+")[...] = [0, 1, 1 << 60]
    async with serving(store) as client:
        told = await client.json("/point/8.5,47.2?variable=v&sel=time=2024-02-29", 501)
        assert "/v have no labels: numbers in 'days since 2024-02-28' are not times" in told["message"]


async def test_pictures_of_one_column():
    root = sync.create_group(store := {})
    root.create_array("v", data=np.arange(3.0)[:, None], dimension_names=("lat", "lon"))
    root.create_array("lat", data=np.arange(3.0), dimension_names=["lat"], attributes={"units": "degrees_north"})
    root.create_array("lon", data=np.array([7.0]), dimension_names=["lon"], attributes={"units": "degrees_east"})
    async with serving(store) as client:
        told = await client.json("/preview.png?variable=v", 400)
        assert "one row or one column has no extent on a map" in told["message"]
        assert (await client.json("/point/7,1?variable=v"))["values"] == [1.0]


async def test_points_statistics_and_missing_values():
    store, data = world(2.0)
    async with serving(store) as client:
        told = await client.json("/point/8.5,47.2?variable=v&sel=time=nearest::2024-03-01T02")
        assert told["values"] == [float(data[2].sel(lat=47.2, lon=8.5, method="nearest"))]
        told = await client.json("/point/-170,-33?variable=v")
        assert told["values"] == [float(data[0].sel(lat=-33, lon=190, method="nearest"))]
        assert (await client.json("/point/20,81?variable=v"))["values"] == [None]
        assert (await client.json("/point/20,95?variable=v", 400))["error"] == "SelectionError"
        told = (await client.json("/statistics?variable=v&sel=time=2024-02-29"))["b1"]
        plane = data[1].values
        assert told["mean"] == pytest.approx(np.nanmean(plane), rel=1e-6)
        assert (told["count"], told["masked_pixels"]) == (np.isfinite(plane).sum(), np.isnan(plane).sum())
        query = "variable=v&rescale=0,254&colormap_name=gray&width=180&height=90&resampling=nearest"
        _, body, _ = await client.get(f"/preview.png?{query}&nodata=7")
        expected = np.roll(data[0].values, 90, axis=1)
        np.testing.assert_array_equal(numbers(body), np.where(expected == 7, np.nan, expected))


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/tiles/WebMercatorQuad/1/2/0.png?variable=v", 400, "has no tile 1/2/0"),
        ("/tiles/WebMercatorQuad/0/0/0.png", 400, "variable is required"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=w", 404, "no array"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&sel=depth=3", 400, "no coordinate 'depth'"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&sel=time=2023-01-01", 400, "2023-01-01"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&sel=time=near::2023", 400, "nearest, pad"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&rescale=1", 400, "two numbers"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&colormap_name=nope", 400, "unknown colour map"),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&address=x", 400, "no parameter 'address'"),
        ("/bbox/10,10,0,0.png?variable=v", 400, "the least x"),
        ("/bbox/0,0,10,nan.png?variable=v", 404, ""),
        ("/tiles/Unknown/0/0/0.png?variable=v", 404, ""),
        ("/tiles/WebMercatorQuad/0/0/0.png?variable=v&resampling=average", 413, "more than the limit"),
    ],
)
async def test_requests_that_fail(path, status, message):
    from zarrasync.server import Limits

    store, _ = world(2.0, chunks=(3, 90, 180))
    async with serving(store, limits=Limits(max_result_bytes=50_000)) as client:
        assert message in (await client.json(path, status))["message"]


async def test_the_average_gives_way_to_the_nearest_element_within_the_limits():
    from zarrasync.server import Limits, Service
    from zarrasync.server.map_grid import PixelGrid
    from zarrasync.server.projections import CRS84

    store, data = world(0.5, chunks=(1, 180, 360))
    grid = PixelGrid(CRS84, (0.1, -90.1, 360.1, 89.9), 90, 45)  # no pixel has its centre between two elements
    async with Service(store, limits=Limits(max_result_bytes=300_000)) as service:
        found = numbers(await service.maps.picture(MapRequest("v", colormap="gray", low=0, high=254), grid))
    x, y = 0.1 + 4 * (np.arange(90) + 0.5), 89.9 - 4 * (np.arange(45) + 0.5)
    np.testing.assert_array_equal(found, nearest(data[0], x, y))


async def test_flags_have_their_colours_and_are_not_averaged():
    root = sync.create_group(store := {})
    flags = {"flag_values": [0, 1], "flag_meanings": "sea land", "flag_colors": "#0000ff #00ff00"}
    values = (np.indices((180, 360)).sum(0) % 2).astype("u1")
    root.create_array("mask", data=values, dimension_names=("lat", "lon"), attributes=flags)
    root.create_array("lat", data=89.5 - np.arange(180.0), dimension_names=["lat"], attributes=DEGREES["lat"])
    root.create_array("lon", data=0.5 + np.arange(360.0), dimension_names=["lon"], attributes=DEGREES["lon"])
    async with serving(store) as client:
        _, body, _ = await client.get("/tiles/WebMercatorQuad/0/0/0.png?variable=mask")
        colours = {
            tuple(pixel) for pixel in np.asarray(Image.open(io.BytesIO(body)).convert("RGB")).reshape(-1, 3).tolist()
        }
        assert colours == {(0, 0, 255), (0, 255, 0)}


async def test_areas_of_any_size():
    store, _ = world(2.0)
    async with serving(store) as client:
        body = await client.json("/bbox/0,0,100000,1.png?variable=v", 413)
        assert "around the globe more than 16 times" in body["message"]
        for path in ("bbox/0,0,1e300,1e-300.png", "bbox/1e30,0,1e31,1.png", "point/1e300,45", "point/-1e300,45"):
            body = await client.json(f"/{path}?variable=v", 400)
            assert "more than 10,000 turns around the globe" in body["message"]
        table = json.dumps([[[0, 10**400], "red"]])
        assert (await client.get(f"/tiles/WebMercatorQuad/0/0/0.png?variable=v&colormap={table}"))[0] == 400


async def test_directions_are_not_averaged():
    """The mean of 350 and 10 degrees would be a wind from the opposite side."""
    values = np.tile(np.array([[350.0, 10], [10, 350]], "f4"), (90, 180))
    store, _ = stored(
        values[None], 89.5 - np.arange(180), 0.5 + np.arange(360), attributes={"standard_name": "wind_from_direction"}
    )
    async with serving(store) as client:
        _, body, _ = await client.get(
            "/tiles/WebMercatorQuad/0/0/0.png?variable=v&rescale=0,360&colormap_name=gray&tilesize=64"
        )
        shown = numbers(body)
        assert {*np.unique(shown[~np.isnan(shown)])} <= {7.0, 246.0}


async def test_values_outside_of_the_range_and_legends():
    """Own colours below and above, and legends with the colours of the pictures."""
    values = np.tile(np.linspace(-50, 150, 360, endpoint=False), (180, 1))[None].astype("f4")
    store, _ = stored(values, np.arange(-89.5, 90), np.arange(0.5, 360))
    flags = {"flag_values": [1, 2, 5], "flag_meanings": "land sea ice", "flag_colors": "#102030 #0000ff #ffffff"}
    root = sync.open_group(store, mode="r+")
    root.create_array(
        "f", data=np.ones((180, 360), "u1"), dimension_names=("lat", "lon"), attributes=flags, overwrite=True
    )
    query = "variable=v&rescale=0,100&colormap_name=gray"
    ends = "&below=%230000ff&above=transparent"
    async with serving(store) as client:
        path = "/bbox/0,-90,360,90.png?width=360&height=180&resampling=nearest"
        plain, own = [decoded((await client.get(f"{path}&{query}{more}"))[1]) for more in ("", ends)]
        row = values[0, 0]
        assert (plain[90, row < 0] == [0, 0, 0, 255]).all()
        assert (plain[90, row > 100] == [255, 255, 255, 255]).all()
        assert (own[90, row < 0] == [0, 0, 255, 255]).all()
        assert (own[90, row > 100, 3] == 0).all()
        inside = (row >= 0) & (row <= 100)
        np.testing.assert_allclose(own[90, inside, 0], row[inside] / 100 * 255, atol=2)
        assert (own[90, inside, 3] == 255).all()
        legend = await client.json(f"/legend.json?{query}{ends}")
        assert (legend["low"], legend["high"], legend["below"], legend["above"]) == (0, 100, "#0000ff", "#00000000")
        assert (legend["colours"][0], legend["colours"][-1], len(legend["colours"])) == ("#000000", "#ffffff", 253)
        across = decoded((await client.get(f"/legend.png?{query}&width=101&height=9"))[1])
        np.testing.assert_allclose(across[4, :, 0], np.linspace(0, 255, 101), atol=3)
        up = decoded((await client.get(f"/legend.png?{query}&width=9&height=101"))[1])
        np.testing.assert_array_equal(up[::-1, 4], across[4])
        labels = (await client.json("/legend.json?variable=f"))["labels"]
        assert labels == [
            {"value": 1, "name": "land", "colour": "#102030"},
            {"value": 2, "name": "sea", "colour": "#0000ff"},
            {"value": 5, "name": "ice", "colour": "#ffffff"},
        ]
        bar = decoded((await client.get("/legend.png?variable=f&width=30&height=2"))[1])
        assert [bar[0, x].tolist()[:3] for x in (5, 15, 25)] == [[16, 32, 48], [0, 0, 255], [255, 255, 255]]
        assert (await client.json(f"/legend.json?{query}&below=nothing", 400))["error"] == "BadQuery"


async def test_descriptions_of_tiles_name_urls_that_work():
    store, _ = world(2.0)
    async with serving(store, prefix="/data") as client:
        query = "variable=v&sel=time=2024-02-29&rescale=0,254&colormap_name=gray"
        told = await client.json(f"/WebMercatorQuad/tilejson.json?{query}")
        url = told["tiles"][0].format(z=2, x=1, y=1)
        assert url.startswith(f"{client.base}/tiles/WebMercatorQuad/2/1/1.png?")
        _, expected, _ = await client.get(f"/tiles/WebMercatorQuad/2/1/1.png?{query}")
        assert (await client.get(url.removeprefix(client.base)))[1] == expected
        _, body, headers = await client.get(f"/WMTSCapabilities.xml?{query}")
        assert headers["Content-Type"] == "application/xml"
        root = ET.fromstring(body)  # it is our own
        names = {"w": "http://www.opengis.net/wmts/1.0"}
        template = root.findall(".//w:ResourceURL", names)[0].attrib["template"]
        filled = template.format(TileMatrix=2, TileCol=1, TileRow=1)
        assert (await client.get(filled.removeprefix(client.base)))[1] == expected


async def test_gdal_reads_tiles():
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    store, data = world(0.5, chunks=(1, 180, 360))

    def read(address: str) -> np.ndarray:
        with rasterio.open(address) as source:
            window = rasterio.windows.from_bounds(0, 0, MERCATOR_EDGE / 2, MERCATOR_EDGE / 2, source.transform)
            return source.read(window=window)

    async with serving(store) as client:
        # GDAL splits addresses at commas.
        query = "variable=v&sel=time=2024-02-29&rescale=0%2C254&colormap_name=gray&resampling=nearest"
        address = f"WMTS:{client.base}/WMTSCapabilities.xml?{query},layer=v_WebMercatorQuad"
        with rasterio.Env() as env:
            drivers = env.drivers()
        if "WMTS" not in drivers:
            pytest.skip("this GDAL has no driver for WMTS")
        found = await asyncio.to_thread(read, address)
        expected = nearest(data[1], *mercator_pixels(2, 2, 1))
        visible = np.isfinite(expected)
        np.testing.assert_array_equal(np.rint(found[0][visible].astype(float) * LEVELS / 255), expected[visible])


LIBRARIES = {
    "openlayers": """<!doctype html><link rel="icon" href="data:,"><div id="map" style="width:512px;height:512px"></div>
<script src="/node_modules/ol/dist/ol.js"></script><script>
const source = new ol.source.XYZ({ url: URL_OF_TILES, interpolate: false });
const map = new ol.Map({ target: "map", controls: [], layers: [new ol.layer.Tile({ source })],
  view: new ol.View({ center: [0, 0], zoom: 1, multiWorld: true }) });
map.on("rendercomplete", () => { window.ready = true; });</script>""",
    "maplibre": """<!doctype html><link rel="icon" href="data:,">
<link rel="stylesheet" href="/node_modules/maplibre-gl/dist/maplibre-gl.css">
<div id="map" style="width:512px;height:512px"></div>
<script type="module">
import * as maplibregl from "/node_modules/maplibre-gl/dist/maplibre-gl.mjs";
const map = new maplibregl.Map({ container: "map", attributionControl: false, center: [0, 0], zoom: 0, fadeDuration: 0,
  style: { version: 8, sources: { data: { type: "raster", url: URL_OF_TILEJSON, tileSize: 256 } },
    layers: [{ id: "data", type: "raster", source: "data", paint: { "raster-resampling": "nearest" } }] } });
map.on("idle", () => { window.ready = true; });</script>""",
}


@pytest.mark.skipif(not NODE_MODULES, reason="ZARRASYNC_NODE_MODULES does not name a folder with maplibre-gl and ol")
@pytest.mark.parametrize(
    "page", [{"viewport": {"width": 512, "height": 512}, "allowed": "GPU stall|GL Driver"}], indirect=True
)
@pytest.mark.parametrize("library", LIBRARIES)
async def test_libraries_show_tiles(page, library):
    from aiohttp import web

    from zarrasync.server import create_app

    store, data = world(10.0)
    app = web.Application()
    app.add_subapp("/data", create_app(store))
    app.router.add_static("/node_modules", NODE_MODULES)
    query = "variable=v&rescale=0,254&colormap_name=gray&resampling=nearest"

    async def show(request: web.Request) -> web.Response:
        origin = f"http://{request.host}"
        text = LIBRARIES[library].replace(
            "URL_OF_TILES", f"'{origin}/data/tiles/WebMercatorQuad/{{z}}/{{x}}/{{y}}.png?{query}'"
        )
        text = text.replace("URL_OF_TILEJSON", f"'{origin}/data/WebMercatorQuad/tilejson.json?{query}'")
        return web.Response(text=text, content_type="text/html")

    app.router.add_get("/map.html", show)
    async with running(app) as url:
        await page.goto(f"{url}map.html")
        await page.wait_for_function("window.ready")
        box = await page.locator("#map").bounding_box()
        shot = np.asarray(Image.open(io.BytesIO(await page.screenshot())).convert("RGB")).astype(float)
        for lon, lat in ((15, 5), (-95, 25), (125, -45), (-35, -65)):
            y = np.arcsinh(np.tan(np.radians(lat))) / np.pi
            left, top = int(box["x"] + 256 + lon * 256 / 180), int(box["y"] + 256 - y * 256)
            expected = float(data[0].sel(lat=lat, lon=lon % 360, method="nearest"))
            assert shot[top, left, 0] * LEVELS / 255 == pytest.approx(expected, abs=1)


async def test_the_page_with_a_map(page):

    from zarrasync.server import create_app

    store, data = world(10.0)
    async with running(create_app(store)) as url:
        for name in ("WebMercatorQuad", "WorldCRS84Quad"):
            await page.goto(f"{url}{name}/map.html?variable=v&rescale=0,254&colormap_name=gray")
            await page.locator("#canvas[aria-busy=false]").wait_for()
            box = await page.locator("#canvas").bounding_box()
            await page.mouse.move(box["x"] + box["width"] / 2 + 50, box["y"] + box["height"] / 2 - 40)
            readout = page.locator("#readout")
            await readout.filter(has_text=":").filter(has_not_text="…").wait_for()
            where, _, value = (await readout.text_content()).partition(": ")
            lat, lon = (float(part[:-2]) for part in where.split(", "))
            assert where.endswith("°E")
            assert float(value) == float(data[0].sel(lat=lat, lon=lon, method="nearest"))
            await page.locator("#legend img").wait_for()
            assert await page.locator("#legend").inner_text() == "0\n254"
            assert (
                await page.locator("#legend img").evaluate("(image) => image.decode().then(() => image.naturalWidth)")
                == 256
            )
            if AXE:
                await page.evaluate(Path(AXE).read_text())
                found = await page.evaluate("axe.run()")
                assert [f"{item['id']}: {node['html']}" for item in found["violations"] for node in item["nodes"]] == []
            # Coastlines change pixels of the picture, and can be hidden.
            await page.mouse.move(0, 0)
            with_lines = await page.locator("#canvas").screenshot()
            await page.locator("#coast").uncheck()
            await page.locator("#canvas[aria-busy=false]").wait_for()
            await page.evaluate("() => new Promise(requestAnimationFrame)")
            assert await page.locator("#canvas").screenshot() != with_lines
