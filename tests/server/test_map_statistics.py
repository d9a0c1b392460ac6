"""Statistics of polygons, compared with areas of clipped cells in NumPy; and the geometry of polygons."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.support.server_client import Client, serving
from zarrasync import sync
from zarrasync.server import Limits
from zarrasync.server.geometries import Region, parse_coords
from zarrasync.server.limits import BadQuery, TooMuch
from zarrasync.server.map_places import Place
from zarrasync.server.map_statistics import CELL_BYTES, StatisticsOptions, Zone, band_statistics
from zarrasync.server.places import AxisPlaces

pytestmark = pytest.mark.servers
SHELL = [[2.2, 41.3], [9.7, 40.8], [12.4, 46.1], [7.1, 44.2], [4.9, 48.6], [2.2, 41.3]]
HOLE = [[5.1, 42.2], [6.9, 43.1], [7.7, 42.4], [5.1, 42.2]]
FAR = [[20.1, 50.2], [20.4, 50.2], [20.4, 50.9], [20.1, 50.9], [20.1, 50.2]]
POLYGON = {"type": "Polygon", "coordinates": [SHELL, HOLE]}
MULTIPOLYGON = {"type": "MultiPolygon", "coordinates": [[SHELL[::-1], HOLE], [FAR]]}
RADIUS = 6371008.8


def area(ring: Any) -> float:
    x, y = np.array(ring, float).T
    return abs(float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum())) / 2


def clipped(ring: Any, west: float, south: float, east: float, north: float) -> Any:
    """Return a ring without the parts outside of a box, by the method of Sutherland and Hodgman."""
    for axis, limit, sign in ((0, west, 1), (0, east, -1), (1, south, 1), (1, north, -1)):
        kept: list[Any] = []
        for first, last in pairwise(ring):
            ends = [sign * (point[axis] - limit) for point in (first, last)]
            if ends[0] >= 0:
                kept.append(first)
            if ends[0] * ends[1] < 0:
                share = ends[0] / (ends[0] - ends[1])
                kept.append([a + share * (b - a) for a, b in zip(first, last, strict=True)])
        ring = [*kept, kept[0]] if kept else [[0, 0], [0, 0]]
    return ring


def shares(geometry: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the share of each cell in polygons, by the edges of columns and rows in increasing order."""
    polygons = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    found = np.zeros((len(y) - 1, len(x) - 1))
    for row, (south, north) in enumerate(pairwise(y)):
        for column, (west, east) in enumerate(pairwise(x)):
            for shell, *holes in polygons:
                inside = area(clipped(shell, west, south, east, north))
                inside -= sum(area(clipped(hole, west, south, east, north)) for hole in holes)
                found[row, column] += inside / ((east - west) * (north - south))
    return found


def expected(values: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    valid = (weights > 1e-9) & np.isfinite(values)
    v, w = values[valid].astype(float), weights[valid]
    mean = (v * w).sum() / w.sum()
    order = np.argsort(v)
    below = np.cumsum(w[order]) / w.sum()
    unique, counts = np.unique(v, return_counts=True)
    cells = (weights > 1e-9).sum()
    return {
        "min": v.min(),
        "max": v.max(),
        "mean": mean,
        "count": w.sum(),
        "sum": (v * w).sum(),
        "std": np.sqrt((w * (v - mean) ** 2).sum() / w.sum()),
        "median": v[order][below >= 0.5][0],
        "majority": unique[counts.argmax()],
        "minority": unique[counts.argmin()],
        "unique": len(unique),
        "valid_percent": round(100 * valid.sum() / cells, 2),
        "masked_pixels": cells - valid.sum(),
        "valid_pixels": valid.sum(),
        "percentile_2": v[order][below >= 0.02][0],
        "percentile_98": v[order][below >= 0.98][0],
    }


def grid(lat: np.ndarray, lon: np.ndarray, **options: Any) -> tuple[Any, np.ndarray]:
    """Return a store with a variable, and its values."""
    values = np.random.default_rng(3).integers(0, 40, (2, len(lat), len(lon))).astype("f4")
    values[:, 2, ::3] = np.nan
    root = sync.create_group(store := {})
    root.create_array("v", data=values, dimension_names=("time", "lat", "lon"), attributes={"units": "K"}, **options)
    root.create_array("time", data=np.arange(2), dimension_names=["time"])
    root.create_array("lat", data=lat, dimension_names=["lat"], attributes={"units": "degrees_north"})
    root.create_array("lon", data=lon, dimension_names=["lon"], attributes={"units": "degrees_east"})
    return store, values


async def post(client: Client, path: str, body: Any, status: int = 200) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/geo+json"}
    async with client.session.post(client.base + path, data=data, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return json.loads(await answer.read())


@pytest.mark.parametrize("framework", ["aiohttp", "asgi"], indirect=True)
@pytest.mark.parametrize("geometry", [POLYGON, MULTIPOLYGON], ids=["polygon", "multipolygon"])
@pytest.mark.parametrize("turned", [False, True])
async def test_statistics_of_polygons_are_weighted_by_the_share_of_each_cell(framework, geometry, turned):
    lat, lon = np.arange(38.25, 52, 0.5), np.arange(0.5, 24)
    lat, lon = (lat[::-1], lon[::-1]) if turned else (lat, lon)
    store, values = grid(lat, lon, chunks=(1, 7, 9))
    cells = shares(geometry, np.arange(25.0), np.arange(38, 52.1, 0.5))
    plane = values[1][:: -1 if turned else 1, :: -1 if turned else 1]
    feature = {"type": "Feature", "id": 7, "properties": {"name": "a"}, "geometry": geometry, "bbox": [0, 0, 1, 1]}
    async with serving(store) as client:
        told = await post(client, "/statistics?variable=v&sel=time=1&histogram_bins=7", feature)
        assert {**told, "properties": {"name": "a"}} == feature
        facts = told["properties"]["statistics"]["b1"]
        wanted = expected(plane, cells)
        assert {name: facts[name] for name in wanted} == pytest.approx(wanted, rel=1e-6)
        assert (facts["unit"], facts["is_sample"], facts["description"]) == ("K", False, "v")
        touched = plane[(cells > 1e-9) & np.isfinite(plane)]
        counts, edges = np.histogram(touched, 7)
        assert facts["histogram"] == [counts.tolist(), pytest.approx(edges.tolist())]
        # With the areas of cells on a sphere.
        heights = np.diff(np.sin(np.radians(np.arange(38, 52.1, 0.5))))
        weights = cells * heights[:, None] * np.radians(1) * RADIUS**2
        told = await post(client, "/statistics?variable=v&sel=time=1&weights=area", feature)
        wanted = expected(plane, weights)
        assert {name: told["properties"]["statistics"]["b1"][name] for name in wanted} == pytest.approx(
            wanted, rel=1e-6
        )


async def test_collections_percentiles_categories_and_missing_values():
    store, values = grid(np.arange(38.25, 52, 0.5), np.arange(0.5, 24))
    cells = shares(POLYGON, np.arange(25.0), np.arange(38, 52.1, 0.5))
    outside = {"type": "Polygon", "coordinates": [[[100, 0], [110, 0], [110, 9], [100, 0]]]}
    features = [{"type": "Feature", "properties": None, "geometry": item} for item in (POLYGON, outside, MULTIPOLYGON)]
    collection = {"type": "FeatureCollection", "features": features, "name": "three"}
    query = "variable=v&sel=time=0&p=50&p=90&nodata=3&categorical=true"
    async with serving(store) as client:
        told = await post(client, f"/statistics?{query}", collection)
        assert (told["type"], told["name"], len(told["features"])) == ("FeatureCollection", "three", 3)
        first, second, _ = (item["properties"]["statistics"]["b1"] for item in told["features"])
        plane = np.where(values[0] == 3, np.nan, values[0])
        wanted = expected(plane, cells)
        assert first["percentile_50"] == first["median"] == wanted["median"]
        assert "percentile_2" not in first
        unique, counts = np.unique(plane[(cells > 1e-9) & np.isfinite(plane)], return_counts=True)
        assert first["histogram"] == [counts.tolist(), unique.tolist()]
        assert (second["count"], second["min"], second["valid_percent"], second["histogram"]) == (0, None, 0, [[], []])
        # Ranges of histograms, and statistics of the whole plane with the same fields.
        told = await client.json("/statistics?variable=v&histogram_range=0,10&histogram_bins=5")
        counts, edges = np.histogram(values[0][np.isfinite(values[0])], 5, (0, 10))
        assert told["b1"]["histogram"] == [counts.tolist(), edges.tolist()]
        wanted = expected(values[0], np.ones(values[0].shape))
        assert {name: told["b1"][name] for name in wanted} == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("west", [-180.0, 0.0])
async def test_polygons_over_the_ends_of_longitudes(west):
    store, values = grid(np.arange(-85.0, 90, 10), np.arange(west + 5, west + 360, 10))
    x = np.arange(west, west + 361, 10)
    # Over the antimeridian, over Greenwich, and beyond 180 degrees, as three polygons that are apart.
    for low, high in ((172.0, 195.0), (-188.0, -165.0), (-13.0, 27.0), (347.0, 387.0)):
        ring = [[low, -33.0], [high, -33.0], [high, 41.5], [low, 20.0], [low, -33.0]]
        cells: Any = sum(
            shares(
                {"type": "Polygon", "coordinates": [[[px + turn, py] for px, py in ring]]}, x, np.arange(-90.0, 91, 10)
            )
            for turn in (-720, -360, 0, 360, 720)
        )
        wanted = expected(values[0], cells)
        feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        async with serving(store) as client:
            facts = (await post(client, "/statistics?variable=v", feature))["properties"]["statistics"]["b1"]
            assert {name: facts[name] for name in wanted} == pytest.approx(wanted, rel=1e-6)


FEATURE = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [SHELL]}}


@pytest.mark.parametrize(
    ("query", "body", "status", "message"),
    [
        ("", b"{", 400, "not valid JSON"),
        ("", b"[" * 100_000, 400, "not valid JSON"),
        ("", {"type": "Polygon", "coordinates": []}, 400, "a Feature or a FeatureCollection"),
        ("", {"type": "FeatureCollection", "features": 3}, 400, "a Feature or a FeatureCollection"),
        ("", {"type": "Feature", "geometry": None}, 400, "the geometry of feature 0 must be a Polygon"),
        ("", {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}}, 400, "must be a Polygon"),
        ("", {"type": "Feature", "geometry": POLYGON, "properties": 3}, 400, "properties of a feature"),
        ("", [], 400, "the geometry of feature 0 has no coordinates: a Polygon of GeoJSON needs rings"),
        ("", [[[0, 0], [1, 0], [1, 1], [0, 1]]], 400, "ends with the first one"),
        ("", [[[0, 0], [1, 0], [float("nan"), 1], [0, 0]]], 400, "the geometry of feature 0"),
        ("", [[[0, 0], ["x", 0], [1, 1], [0, 0]]], 400, "not valid GeoJSON"),
        ("", [[[2, 40], [8, 46], [8, 40], [2, 46], [2, 40]]], 400, "overlap or cross themselves"),
        ("", [[[-200, 40], [200, 40], [0, 46], [-200, 40]]], 400, "wider than the globe"),
        ("&weights=none", [SHELL], 400, "weights must be one of"),
        ("&p=101", [SHELL], 400, "p must be an integer"),
        ("&histogram_range=9,1", [SHELL], 400, "must increase"),
        ("&coord_crs=earth", [SHELL], 400, "coord_crs must be the code"),
        ("&cover_scale=10", [SHELL], 400, "no parameter 'cover_scale'"),
        ("", [[[0, 30], [30, 30], [30, 60], [0, 60], [0, 30]]], 413, "more than the limit"),
        ("", {"type": "FeatureCollection", "features": [FEATURE] * 1001}, 413, "1,001 features, more than 1000"),
    ],
)
async def test_requests_that_fail(query, body, status, message):
    store, _ = grid(np.arange(38.25, 52, 0.5), np.arange(0.5, 24))
    if isinstance(body, list):
        body = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": body}}
    async with serving(store, limits=Limits(max_decoded_bytes=50_000)) as client:
        told = await post(client, f"/statistics?variable=v{query}", body, status)
        assert message in told["message"]
        assert told["error"] == ("TooMuch" if status == 413 else "BadQuery")
        told = await client.json("/statistics?variable=v&weights=area", 400)
        assert "POST" in told["message"]


async def test_the_description_of_the_interface_has_the_document():
    store, _ = grid(np.arange(38.25, 52, 0.5), np.arange(0.5, 24))
    async with serving(store) as client:
        told = (await client.json("/openapi.json"))["paths"]["/statistics"]["post"]
        assert "application/geo+json" in told["requestBody"]["content"]
        assert {"variable", "sel", "weights", "coord_crs"} <= {item["name"] for item in told["parameters"]}


def test_the_share_of_cells_of_any_size():
    """Also of cells that are larger than polygons, beside them, and of polygons larger than the grid."""
    random = np.random.default_rng(11)
    for _ in range(20):
        angles = np.sort(random.uniform(0, 2 * np.pi, 11))
        radii = random.uniform(2, 9, 11)
        ring = [[9 + r * np.cos(a), 5 + r * np.sin(a)] for r, a in zip(radii, angles, strict=True)]
        ring.append(ring[0])
        if max(np.diff(angles)) > 2.5:
            continue  # the middle may be outside
        x, y = (np.sort(random.uniform(low, high, random.integers(2, 9))) for low, high in ((0, 20), (-5, 15)))
        text = f"POLYGON(({','.join(f'{a!r} {b!r}' for a, b in np.array(ring).tolist())}))"
        region = parse_coords(text, ["POLYGON"])
        wanted = shares({"type": "Polygon", "coordinates": [ring]}, x, y)
        np.testing.assert_allclose(region.coverage(x, y), wanted, atol=1e-9)
        np.testing.assert_allclose(region.divided(40).coverage(x, y), wanted, atol=1e-9)


@pytest.mark.parametrize(("crs", "step"), [("OGC:CRS84", 0.01), ("EPSG:32632", 900.0)])
def test_statistics_need_at_most_the_memory_that_is_counted(crs, step):
    pytest.importorskip("pyproj", reason="pyproj is not installed")
    x, y = (
        500_000 * (crs != "OGC:CRS84") + step * np.arange(600),
        5 * 1e6 * (crs != "OGC:CRS84") + step * np.arange(500),
    )
    place = Place(crs, AxisPlaces.of(x, "x"), AxisPlaces.of(y, "y"))
    corners = [[x[0], y[0]], [x[-1], y[1]], [x[-2], y[-1]], [x[1], y[-2]], [x[0], y[0]]]
    values = np.random.default_rng(1).normal(size=(500, 600))
    Zone.of(place, Region.of([np.array(corners)]), crs).weights("area")  # loads pyproj
    tracemalloc.start()
    try:
        zone = Zone.of(place, Region.of([np.array(corners)]), crs)
        facts = band_statistics(np.ma.masked_less(values, -2), zone.weights("area"), StatisticsOptions())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts["valid_pixels"] > 280_000
    assert most < CELL_BYTES * values.size


def test_polygons_with_too_many_edges():
    zigzag = ",".join(f"{100 * (n % 2)} {n / 100}" for n in range(9_999))
    region = parse_coords(f"POLYGON(({zigzag},200 0,0 0))", ["POLYGON"])
    with pytest.raises(TooMuch):
        region.coverage(np.linspace(0, 200, 2001), np.linspace(0, 100, 11))
    with pytest.raises(TooMuch):
        region.divided(1000)
    with pytest.raises(BadQuery, match="overlap"):
        parse_coords("MULTIPOLYGON(((0 0,2 0,2 2,0 0)),((0 0,2 0,2 2,0 0)))", ["MULTIPOLYGON"]).coverage(
            *[np.arange(3.0)] * 2
        )
