"""Maps of arrays in other reference systems, compared with pyproj, NumPy and GDAL."""

from __future__ import annotations

import json
import sys
import tracemalloc
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
pyproj = pytest.importorskip("pyproj", reason="pyproj is not installed")

from tests.server.test_map_statistics import area as ring_area
from tests.server.test_map_statistics import expected, post, shares
from tests.server.test_maps import MERCATOR_EDGE, numbers
from tests.support.server_client import serving
from zarrasync import sync
from zarrasync.server.limits import BadQuery
from zarrasync.server.map_grid import MATRIX_SETS, PixelGrid
from zarrasync.server.map_places import Place, pixels_of
from zarrasync.server.places import AxisPlaces
from zarrasync.server.projections import crs_name, parse_crs, transformed, transformed_grid

pytestmark = pytest.mark.servers
STEP = 5000.0
X, Y = np.arange(302_500.0, 800_000, STEP), np.arange(5_697_500.0, 5_100_000, -STEP)
VALUES = np.random.default_rng(9).integers(0, 255, (len(Y), len(X))).astype("f4")
LAMBERT = {
    "grid_mapping_name": "lambert_conformal_conic",
    "standard_parallel": [44.0, 49.0],
    "longitude_of_central_meridian": 9.0,
    "latitude_of_projection_origin": 46.5,
    "false_easting": 550_000.0,
    "false_northing": 5_400_000.0,
    "earth_radius": 6371229.0,
}
QUERY = "variable=v&rescale=0,254&colormap_name=gray"


def projected(attributes: dict[str, Any], scale: float = 1.0, unit: str = "m", **members: Any) -> dict[str, bytes]:
    """Return a store with an array in the reference system of a grid mapping."""
    root = sync.create_group(store := {})
    root.create_array(
        "v", data=VALUES, dimension_names=("y", "x"), attributes={"grid_mapping": "crs", "units": "mm"}, chunks=(50, 40)
    )
    for name, labels in (("x", X), ("y", Y)):
        root.create_array(name, data=labels / scale, dimension_names=[name], attributes={"units": unit})
    root.create_array("crs", data=np.array(0), attributes=attributes)
    return store


def utm() -> dict[str, bytes]:
    return projected({"crs_wkt": pyproj.CRS(32632).to_wkt()})


def nearest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the values of the cells at eastings and northings; NaN outside."""
    column, row = (x - X[0]) / STEP + 0.5, (Y[0] - y) / STEP + 0.5
    slack = 1e-3  # of an element, at the edges of the array
    inside = (column >= -slack) & (column <= len(X) + slack) & (row >= -slack) & (row <= len(Y) + slack)
    cells = (
        np.clip(np.where(inside, item, 0).astype(int), 0, size - 1) for item, size in ((row, len(Y)), (column, len(X)))
    )
    return np.where(inside, VALUES[tuple(cells)], np.nan)


def pixels(bounds: Any, width: int, height: int, crs: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of the centres of pixels in another system."""
    west, south, east, north = bounds
    x = west + (np.arange(width) + 0.5) / width * (east - west)
    y = north - (np.arange(height) + 0.5) / height * (north - south)
    return pyproj.Transformer.from_crs(crs, target, always_xy=True).transform(*np.meshgrid(x, y))


def tile_bounds(zoom: int, x: int, y: int) -> tuple[float, float, float, float]:
    side = 2 * MERCATOR_EDGE / 2**zoom
    west, north = -MERCATOR_EDGE + x * side, MERCATOR_EDGE - y * side
    return west, north - side, west + side, north


@pytest.mark.parametrize("framework", ["aiohttp", "asgi"], indirect=True)
async def test_tiles_and_pictures_show_the_nearest_elements(framework):
    async with serving(utm()) as client:
        for zoom, x, y in ((6, 33, 22), (8, 134, 90), (11, 1072, 715)):
            _, body, _ = await client.get(f"/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?{QUERY}&resampling=nearest")
            wanted = nearest(*pixels(tile_bounds(zoom, x, y), 256, 256, 3857, 32632))
            np.testing.assert_array_equal(numbers(body), wanted)
            assert np.isfinite(wanted).any()
        _, body, _ = await client.get(f"/tiles/WorldCRS84Quad/6/67/15.png?{QUERY}&resampling=nearest")
        side = 180 / 64
        bounds = (-180 + 67 * side, 90 - 16 * side, -180 + 68 * side, 90 - 15 * side)
        np.testing.assert_array_equal(numbers(body), nearest(*pixels(bounds, 256, 256, "OGC:CRS84", 32632)))
        # The areas of requests, and pictures, in any system.
        bounds = 3_900_000, 2_600_000, 4_500_000, 3_000_000
        path = f"/bbox/{','.join(map(str, bounds))}/150x100.png?{QUERY}&resampling=nearest&coord_crs=epsg:3035&dst_crs=epsg:3035"
        _, body, _ = await client.get(path)
        np.testing.assert_array_equal(numbers(body), nearest(*pixels(bounds, 150, 100, 3035, 32632)))
        # Of the array itself: pixels are elements.
        bounds = X[0] - STEP / 2, Y[-1] - STEP / 2, X[-1] + STEP / 2, Y[0] + STEP / 2
        path = (
            f"/bbox/{','.join(map(str, bounds))}/{len(X)}x{len(Y)}.png?{QUERY}&coord_crs=EPSG:32632&dst_crs=EPSG:32632"
        )
        _, body, _ = await client.get(path)
        np.testing.assert_array_equal(numbers(body), VALUES)


async def test_points_bounds_and_descriptions():
    lon, lat = pyproj.Transformer.from_crs(32632, 4326, always_xy=True).transform(517_000.0, 5_333_000.0)
    wanted = float(nearest(np.array(517_000.0), np.array(5_333_000.0)))
    async with serving(utm()) as client:
        told = await client.json(f"/point/{lon},{lat}?variable=v")
        assert (told["values"], told["unit"]) == ([wanted], "mm")
        told = await client.json("/point/517000,5333000?variable=v&coord_crs=epsg:32632")
        assert told["values"] == [wanted]
        assert "bounds" in (await client.json("/point/20,0?variable=v", 400))["message"]
        info = await client.json("/info?variable=v")
        assert info["native_crs"] == "EPSG:32632"
        transform = pyproj.Transformer.from_crs(32632, 4326, always_xy=True)
        edges = X[0] - STEP / 2, Y[-1] - STEP / 2, X[-1] + STEP / 2, Y[0] + STEP / 2
        assert info["bounds"] == pytest.approx(transform.transform_bounds(*edges))
        assert (await client.json("/WebMercatorQuad/tilejson.json?variable=v"))["bounds"] == info["bounds"]
        _, body, _ = await client.get(f"/preview.png?{QUERY}&width=60&resampling=nearest")
        found = numbers(body)
        np.testing.assert_array_equal(found, nearest(*pixels(info["bounds"], 60, len(found), "OGC:CRS84", 32632)))


async def test_pixels_that_cover_several_elements_have_their_average():
    """A field that varies slowly has nearly the same average in the boxes of this server, and in GDAL's quadrangles."""
    smooth = (127 + 60 * np.sin(X / 9e4) + 60 * np.cos(Y[:, None] / 7e4)).astype("f4")
    store = utm()
    sync.open_group(store, mode="r+")["v"][...] = smooth
    bounds = tile_bounds(5, 16, 11)
    async with serving(store) as client:
        _, body, _ = await client.get(
            f"/bbox/{','.join(map(str, bounds))}/64x64.png?{QUERY}&coord_crs=epsg:3857&dst_crs=epsg:3857"
        )
    found = numbers(body)
    x, y = pixels(bounds, 640, 640, 3857, 32632)
    inside = np.isfinite(nearest(x, y))
    exact = np.where(inside, 127 + 60 * np.sin(x / 9e4) + 60 * np.cos(y / 7e4), np.nan).reshape(64, 10, 64, 10)
    whole = inside.reshape(64, 10, 64, 10).all((1, 3))
    assert whole.sum() > 300
    np.testing.assert_allclose(found[whole] + 0.5, exact.mean((1, 3))[whole], atol=2.5)
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    from rasterio.warp import Resampling, reproject

    target = np.full((64, 64), np.nan, "f4")
    with warnings.catch_warnings(action="ignore"):  # of the version of affine
        reproject(
            smooth,
            target,
            src_transform=rasterio.Affine(STEP, 0, X[0] - STEP / 2, 0, -STEP, Y[0] + STEP / 2),
            src_crs="EPSG:32632",
            dst_transform=rasterio.transform.from_bounds(*bounds, 64, 64),
            dst_crs="EPSG:3857",
            src_nodata=np.nan,
            dst_nodata=np.nan,
            resampling=Resampling.average,
        )
    both = np.isfinite(target) & np.isfinite(found)
    assert both.sum() > 300
    assert abs(np.isfinite(target).sum() - np.isfinite(found).sum()) <= 40  # at the edges
    np.testing.assert_allclose(found[both] + 0.5, target[both], atol=4)
    assert np.abs(found[whole] + 0.5 - target[whole]).mean() < 0.8


async def test_values_between_elements():
    store = utm()
    plane = ((X - X[0]) / STEP + 0.5 * (Y[0] - Y[:, None]) / STEP).astype("f4")
    sync.open_group(store, mode="r+")["v"][...] = plane
    bounds = tile_bounds(9, 268, 179)
    async with serving(store) as client:
        path = f"/tiles/WebMercatorQuad/9/268/179.png?{QUERY}&resampling=bilinear&tilesize=64"
        _, body, _ = await client.get(path)
    x, y = pixels(bounds, 64, 64, 3857, 32632)
    np.testing.assert_allclose(numbers(body) + 0.5, (x - X[0]) / STEP + 0.5 * (Y[0] - y) / STEP, atol=0.501)


async def test_global_longitudes_on_a_polar_map():
    lat, lon = np.arange(89.0, -90, -2), np.arange(1.0, 360, 2)
    values = np.random.default_rng(2).integers(0, 255, (90, 180)).astype("f4")
    root = sync.create_group(store := {})
    root.create_array("v", data=values, dimension_names=("lat", "lon"))
    root.create_array("lat", data=lat, dimension_names=["lat"], attributes={"units": "degrees_north"})
    root.create_array("lon", data=lon, dimension_names=["lon"], attributes={"units": "degrees_east"})
    bounds = (-4e6, -4e6, 4e6, 4e6)
    async with serving(store) as client:
        path = f"/bbox/-4e6,-4e6,4e6,4e6/120x120.png?{QUERY}&coord_crs=epsg:3031&dst_crs=epsg:3031"
        _, body, _ = await client.get(f"{path}&resampling=nearest")
        x, y = pixels(bounds, 120, 120, 3031, "OGC:CRS84")
        row, column = np.floor((90 - y) / 2).astype(int), np.floor((x % 360) / 2).astype(int)
        np.testing.assert_array_equal(numbers(body), values[np.clip(row, 0, 89), column])
        # A pixel at the pole covers all longitudes.
        _, body, _ = await client.get(f"/bbox/-3e5,-3e5,3e5,3e5/3x3.png?{QUERY}&coord_crs=epsg:3031&dst_crs=epsg:3031")
        middle = numbers(body)[1, 1]
        assert abs(middle - values[-1].mean()) < 25


@pytest.mark.parametrize(
    ("attributes", "scale", "unit"),
    [
        (LAMBERT, 1.0, "m"),
        (LAMBERT, 1000.0, "km"),
        ({"crs_wkt": pyproj.CRS.from_cf(LAMBERT).to_wkt()}, 1.0, ""),
        ({"spatial_ref": pyproj.CRS(32632).to_wkt("WKT1_GDAL")}, 1000.0, "kilometers"),
    ],
)
async def test_reference_systems_of_grid_mappings(attributes, scale, unit):
    source = (
        pyproj.CRS.from_cf(LAMBERT) if attributes != {"spatial_ref": pyproj.CRS(32632).to_wkt("WKT1_GDAL")} else 32632
    )
    async with serving(projected(attributes, scale, unit)) as client:
        _, body, _ = await client.get(f"/tiles/WebMercatorQuad/8/134/90.png?{QUERY}&resampling=nearest")
        wanted = nearest(*pixels(tile_bounds(8, 134, 90), 256, 256, 3857, source))
        np.testing.assert_array_equal(numbers(body), wanted)
        assert np.isfinite(wanted).sum() > 10_000


@pytest.mark.parametrize("weights", ["coverage", "area"])
async def test_statistics_of_polygons(weights):
    shell = [[7.0, 47.5], [9.5, 47.1], [10.4, 49.0], [8.0, 48.6], [7.0, 47.5]]
    # The edges are straight in longitudes and latitudes, so they are curved in the array.
    parts = [np.linspace(first, last, 90, endpoint=False) for first, last in pairwise(np.array(shell))]
    lon, lat = np.concatenate([*parts, np.array(shell[:1])]).T
    x, y = pyproj.Transformer.from_crs(4326, 32632, always_xy=True).transform(lon, lat)
    ring = np.stack([x, y], 1).tolist()
    first, last = np.searchsorted(X, [min(x) - STEP, max(x) + STEP])
    top, bottom = np.searchsorted(-Y, [-max(y) - STEP, -min(y) + STEP])
    edges = (
        np.append(X[first:last] - STEP / 2, X[last - 1] + STEP / 2),
        np.append(Y[top:bottom] + STEP / 2, Y[bottom - 1] - STEP / 2),
    )
    cells = shares({"type": "Polygon", "coordinates": [ring]}, edges[0], edges[1][::-1])[::-1]
    if weights == "area":
        equal = pyproj.Transformer.from_crs(32632, "+proj=cea +R=6371008.8", always_xy=True)
        for row, column in zip(*np.nonzero(cells), strict=True):
            corners = [(edges[0][column + i], edges[1][row + j]) for i, j in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
            cells[row, column] *= ring_area(np.stack(equal.transform(*np.array(corners).T), 1))
    wanted = expected(VALUES[top:bottom, first:last], cells)
    feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [shell]}}
    native = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    async with serving(utm()) as client:
        for query, body in (("", feature), ("&coord_crs=epsg:32632", native)):
            told = await post(client, f"/statistics?variable=v&weights={weights}{query}", body)
            facts = told["properties"]["statistics"]["b1"]
            close = {name: facts[name] for name in ("mean", "count", "sum", "std")}
            assert close == pytest.approx({name: wanted[name] for name in close}, rel=2e-4)
            assert abs(facts["valid_pixels"] - wanted["valid_pixels"]) <= 3  # cells at whose corners an edge passes


async def test_areas_of_cells_at_a_pole():
    """A cell with the pole inside, and cells with it at a corner, are as large as their neighbours."""
    edges = np.arange(-2.5, 3) * 25_000.0
    for shift in (0.0, 12_500.0):
        centres = (edges[:-1] + edges[1:]) / 2 + shift
        root = sync.create_group(store := {})
        values = np.zeros((5, 5), "f4")
        root.create_array("v", data=values, dimension_names=("y", "x"), attributes={"grid_mapping": "crs"})
        root.create_array("x", data=centres, dimension_names=["x"], attributes={"units": "m"})
        root.create_array("y", data=centres[::-1], dimension_names=["y"], attributes={"units": "m"})
        root.create_array("crs", data=np.array(0), attributes={"crs_wkt": pyproj.CRS(3413).to_wkt()})
        ends = centres[0], centres[-1]
        ring = [[ends[0], ends[0]], [ends[1], ends[0]], [ends[1], ends[1]], [ends[0], ends[1]], [ends[0], ends[0]]]
        feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        equal = pyproj.Transformer.from_crs(3413, "+proj=laea +lat_0=90 +R=6371008.8", always_xy=True)
        x, y = equal.transform(*np.array(ring).T)
        area = abs(np.dot(x[:-1], y[1:]) - np.dot(x[1:], y[:-1])) / 2
        async with serving(store) as client:
            path = "/statistics?variable=v&weights=area&coord_crs=epsg:3413"
            facts = (await post(client, path, feature))["properties"]["statistics"]["b1"]
        assert facts["count"] == pytest.approx(area, rel=0.01)


async def test_definitions_that_name_local_files(tmp_path):
    """The author of a store does not choose the files that the server reads."""
    (tmp_path / "init").write_text("<x> +proj=utm +zone=32 <>\n")
    bound = pyproj.CRS("+proj=longlat +nadgrids=@null +type=crs").to_json_dict()
    assert "@null" in json.dumps(bound)
    shifted = json.dumps(bound).replace("@null", f"{tmp_path}/x.gsb")
    named: list[dict[str, Any]] = [
        {"crs_wkt": text}
        for text in (
            f"+init={tmp_path}/init:x",
            "+proj=longlat +nadgrids=/etc/passwd",
            f"+proj=longlat +nadgrids=@null,{tmp_path}/x.gsb",
            shifted,
        )
    ]
    named += [
        {"grid_mapping_name": "x", "crs_wkt": {"init": f"{tmp_path}/init:x"}},
        {"spatial_ref": f"+init={tmp_path}/init:x"},
    ]
    for attributes in named:
        async with serving(projected(attributes)) as client:
            for path in ("/info?variable=v", "/tiles/WebMercatorQuad/0/0/0.png?variable=v"):
                status, body, _ = await client.get(path)
                assert status in (400, 501), body
                assert str(tmp_path) not in body.decode()
    without_file = pyproj.CRS("+proj=longlat +ellps=bessel +nadgrids=@null +type=crs")
    assert "PARAMETERFILE" in without_file.to_wkt()
    assert crs_name(without_file.to_wkt())
    async with serving(projected({"crs_wkt": pyproj.CRS(32632).to_wkt()})) as client:
        body = await client.json("/bbox/0,0,1,1.png?variable=v&dst_crs=IAU_2015:30100", 400)
        assert "IAU" in body["message"]


@pytest.mark.parametrize("crs", ["EPSG:32632", "EPSG:2056", "EPSG:3995", "OGC:CRS84", "EPSG:3031"])
@pytest.mark.parametrize("tile", [(0, 0, 0), (1, 0, 1), (4, 8, 5), (9, 267, 178), (9, 511, 3)])
def test_points_of_grids_are_those_of_single_points(crs, tile):
    """Also of grids with places without coordinates, or on both sides of the antimeridian."""
    grid = PixelGrid("EPSG:3035", tile_bounds(*tile), 256, 200)
    if crs != "OGC:CRS84":
        grid = PixelGrid("EPSG:3857", grid.bounds, 256, 200)
    x, y = grid.columns(), grid.rows()
    exact = transformed(*np.meshgrid(x, y), grid.crs, crs)
    found = transformed_grid(x, y, grid.crs, crs, (1e-4, 1e-4))
    for item, truth in zip(found, exact, strict=True):
        np.testing.assert_allclose(item, truth, rtol=0, atol=1e-4)


async def test_large_pictures_in_another_system_are_refused():
    async with serving(utm()) as client:
        body = await client.json("/bbox/6,46,12,50/1100x1000.png?variable=v", 413)
        assert "1,100,000 pixels in another reference system than the array, more than 1,048,576" in body["message"]
        assert (await client.get("/bbox/6,46,12,50/64x64.png?variable=v"))[0] == 200


def test_few_points_of_smooth_grids_are_transformed(monkeypatch):
    counts = []
    original = pyproj.Transformer.transform

    def counted(self, x, y, *args, **options):
        counts.append(np.size(x))
        return original(self, x, y, *args, **options)

    monkeypatch.setattr(pyproj.Transformer, "transform", counted)
    grid = PixelGrid("EPSG:3857", tile_bounds(9, 267, 178), 256, 256)
    transformed_grid(grid.columns(), grid.rows(), grid.crs, "EPSG:32632", (1e-4, 1e-4))
    assert 0 < sum(counts) < 1000


@pytest.mark.parametrize("code", [3857, 3413])
async def test_several_rings_in_another_system(code):
    """Longitudes of one ring do not depend on those of another one."""
    root = sync.create_group(store := {})
    root.create_array("v", data=np.zeros((36, 72), "f4"), dimension_names=("lat", "lon"))
    for name, first, count, unit in (("lat", 87.5, 36, "degrees_north"), ("lon", -177.5, 72, "degrees_east")):
        labels = first + (-5.0 if name == "lat" else 5.0) * np.arange(count)
        root.create_array(name, data=labels, dimension_names=[name], attributes={"units": unit})
    to = pyproj.Transformer.from_crs(4326, code, always_xy=True)

    def ring(west: float, south: float, east: float, north: float) -> list[list[float]]:
        lon = np.concatenate([np.linspace(west, east, 50), np.linspace(east, west, 50), [west]])
        lat = np.concatenate([np.full(50, south), np.full(50, north), [south]])
        return np.stack(to.transform(lon, lat), 1).tolist()

    south, north = 50.0, 70.0
    boxes = [ring(west, south, west + 25.0, north) for west in (-155.0, -15.0, 125.0, -95.0)]
    several = {"type": "MultiPolygon", "coordinates": [[box] for box in boxes]}
    holed = {"type": "Polygon", "coordinates": [ring(-100.0, 50.0, 150.0, 70.0), ring(120.0, 55.0, 140.0, 65.0)]}
    async with serving(store) as client:
        for geometry, cells in ((several, 4 * 5 * 4), (holed, 50 * 4 - 4 * 2)):
            feature = {"type": "Feature", "properties": {}, "geometry": geometry}
            told = await post(client, f"/statistics?variable=v&coord_crs=epsg:{code}", feature)
            assert told["properties"]["statistics"]["b1"]["count"] == pytest.approx(cells, rel=0.01)


async def test_areas_in_web_mercator():
    edge = 20037508.342789244
    root = sync.create_group(store := {})
    root.create_array("v", data=np.zeros((8, 8), "f4"), dimension_names=("y", "x"), attributes={"grid_mapping": "crs"})
    for name, sign in (("y", -1), ("x", 1)):
        labels = sign * (np.arange(8) + 0.5 - 4) * edge / 4
        root.create_array(name, data=labels, dimension_names=[name], attributes={"units": "m"})
    root.create_array("crs", data=np.array(0), attributes={"crs_wkt": pyproj.CRS(3857).to_wkt()})
    corner = edge * 0.999999
    shell = [[-corner, -corner], [corner, -corner], [corner, corner], [-corner, corner], [-corner, -corner]]
    feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [shell]}}
    highest = 2 * np.arctan(np.exp(np.pi)) - np.pi / 2
    async with serving(store) as client:
        told = await post(client, "/statistics?variable=v&weights=area&coord_crs=epsg:3857", feature)
    wanted = 4 * np.pi * 6371008.8**2 * np.sin(highest)
    assert told["properties"]["statistics"]["b1"]["count"] == pytest.approx(wanted, rel=1e-4)


async def test_without_pyproj_and_with_unknown_systems(monkeypatch):
    async with serving(utm()) as client:
        for query, message in (
            ("dst_crs=nothing", "dst_crs must be the code"),
            ("coord_crs=epsg:99999", "epsg:99999 is unknown"),
            ("dst_crs=%2Bproj%3Dlatlong", "must be the code"),
        ):
            assert message in (await client.json(f"/bbox/5,45,10,48.png?variable=v&{query}", 400))["message"]
        told = await client.json("/bbox/0,-80,10,-60.png?variable=v&dst_crs=esri:102035", 400)
        assert "is not within ESRI:102035" in told["message"]
    for attributes, scale, unit, message in (
        (LAMBERT | {"grid_mapping_name": "unknown"}, 1.0, "m", "'unknown' is not a supported grid mapping"),
        (LAMBERT, 1.0, "rad", "have the unit 'rad'"),
        ({"crs_wkt": "PROJCRS[]"}, 1.0, "m", "not a reference system"),
    ):
        async with serving(projected(attributes, scale, unit)) as client:
            told = await client.json("/info?variable=v", 501 if unit == "rad" else 400)
            assert message in told["message"]
    with monkeypatch.context() as patch:  # PROJ takes milliseconds for each unknown code
        patch.setattr(pyproj.CRS, "from_user_input", None)
        for code in ("epsg:99998", "nobody:1"):
            with pytest.raises(BadQuery, match=f"{code} is unknown"):
                parse_crs(code, "crs")
    assert parse_crs("epsg:2008", "crs") == "EPSG:2008"  # which is deprecated
    assert parse_crs("esri:102035", "crs") == "ESRI:102035"
    monkeypatch.setitem(sys.modules, "pyproj", None)
    own = {"crs_wkt": pyproj.CRS(25833).to_wkt()}
    async with serving(projected(own)) as client:
        for path in ("/info?variable=v", "/tiles/WebMercatorQuad/5/16/11.png?variable=v", "/point/9,48?variable=v"):
            told = await client.json(path, 501)
            assert told["message"].endswith("need pyproj: pip install 'zarrasync[maps]'")
            assert "ETRS89 / UTM zone 33N" in told["message"] or "EPSG:25833" in told["message"]
        told = await client.json("/bbox/5,45,10,48.png?variable=v&dst_crs=epsg:25831", 501)
        assert "dst_crs is epsg:25831" in told["message"]


def test_the_places_of_pixels_take_little_memory():
    """Threads locate tiles at once, and the tiles of many requests wait for their elements with these places."""
    step, side = 1000.0, 600
    place = Place(
        "EPSG:32632",
        AxisPlaces.of(200_500 + step * np.arange(side), "x"),
        AxisPlaces.of(5_599_500 - step * np.arange(side), "y"),
    )
    tms = MATRIX_SETS["WebMercatorQuad"]
    grids = [PixelGrid(tms.crs, tms.tile(9, x, 178), 256, 256) for x in (268, 269)]
    pixels_of(place, grids[0]).windows((side, side), "nearest")  # what is kept for all tiles
    tracemalloc.start(1)
    try:
        pixels = pixels_of(place, grids[1])
        assert len(pixels.steps) == 2
        windows = pixels.windows((side, side), "nearest")
        _, peak = tracemalloc.get_traced_memory()
        del pixels
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pixel = 256 * 256
    assert peak < 62 * pixel, "a few floats of each pixel"
    assert kept < 6 * pixel, "a small integer of each axis, and whether it is inside"
    assert all(window.sizes.size == 1 for window in windows)
