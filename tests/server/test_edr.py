"""OGC API EDR: documents, values at points, in polygons and in boxes, in all formats. NumPy is the oracle of values."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import tracemalloc
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
from tests.support.server_client import Client, serving
from zarrasync import stores, sync
from zarrasync.errors import UnsupportedOperation
from zarrasync.server import Limits
from zarrasync.server.edr_query import parse_body, parse_heights
from zarrasync.server.geometries import Points, Region, parse_coords
from zarrasync.server.limits import BadQuery, TooMuch

RNG = np.random.default_rng(5)
TIMES, LEVELS = 40, np.array([1000, 850, 500], "i4")
LATS, LONS = np.linspace(90, -90, 19).astype("f4"), (np.arange(36) * 10).astype("f4")
STORED = RNG.integers(-500, 500, (19, TIMES, 36)).astype("i2")  # latitudes first, as some models write them
STORED[3, 5, 7] = -500
T2M = np.where(STORED == -500, np.nan, STORED * 0.1 + 280.0).transpose(1, 0, 2)
WIND = RNG.normal(size=(TIMES, 3, 19, 36)).astype("f4")
LAND = RNG.integers(0, 3, (19, 36)).astype("i1")
ROOT = "/edr/collections/root"


def make(store: Any, **options: Any) -> None:
    group = sync.create_group(store, attributes={"title": "Weather"}, **options)
    coordinates: dict[str, tuple[Any, dict[str, Any]]] = {
        "time": (np.arange(TIMES) * 6, {"units": "hours since 2024-03-01", "standard_name": "time"}),
        "lat": (LATS, {"units": "degrees_north"}),
        "lon": (LONS, {"units": "degrees_east"}),
        "level": (LEVELS, {"units": "hPa", "positive": "down"}),
    }
    for name, (values, attributes) in coordinates.items():
        group.create_array(name, data=values, dimension_names=[name], attributes=attributes)
    packed = {
        "units": "K",
        "scale_factor": 0.1,
        "add_offset": 280.0,
        "_FillValue": -500,
        "standard_name": "air_temperature",
    }
    group.create_array(
        "t2m", data=STORED, chunks=(10, 7, 10), dimension_names=["lat", "time", "lon"], attributes=packed
    )
    group.create_array("wind", data=WIND, chunks=(8, 2, 10, 10), dimension_names=["time", "level", "lat", "lon"])
    flags = {"flag_values": [0, 1, 2], "flag_meanings": "sea land ice"}
    group.create_array("land", data=LAND, dimension_names=["lat", "lon"], attributes=flags)
    group.create_array("members/number", data=np.arange(2), dimension_names=["number"])
    for name in ("lat", "lon"):
        values, attributes = coordinates[name]
        group.create_array(f"members/{name}", data=values, dimension_names=[name], attributes=attributes)
    group.create_array("members/p", data=WIND[:2, 0], dimension_names=["number", "lat", "lon"])


def url(query: str, **parameters: str) -> str:
    return f"{ROOT}/{query}?{urlencode({name.replace('_', '-'): value for name, value in parameters.items()})}"


async def coverage(client: Client, query: str, **parameters: str) -> Any:
    """Return a coverage that the models of CoverageJSON accept, with arrays instead of lists."""
    models = pytest.importorskip("covjson_pydantic.coverage", reason="covjson-pydantic is not installed")
    status, body, headers = await client.get(url(query, **parameters))
    assert status == 200, body
    assert headers["Content-Type"] == "application/prs.coverage+json"
    document = json.loads(body)
    model = models.CoverageCollection if document["type"] == "CoverageCollection" else models.Coverage
    model.model_validate_json(body)
    return document


def values_of(document: Any, name: str) -> np.ndarray:
    found = document["ranges"][name]
    return np.array(found["values"], float).reshape(found.get("shape", ()))


# ------------------------------------------------------------------ documents


@pytest.mark.servers
async def test_documents():
    """The models of EDR accept them, links lead to them, and only groups with a grid are collections."""
    capabilities = pytest.importorskip("edr_pydantic.capabilities", reason="edr-pydantic is not installed")
    models = pytest.importorskip("edr_pydantic.collections")

    store: dict[str, bytes] = {}
    make(store)
    sync.create_array(store, path="other/v", data=np.ones((3, 4)), dimension_names=["y", "x"])  # no coordinates
    async with serving(store, prefix="/data") as client:
        landing = capabilities.LandingPageModel.model_validate(await client.json("/edr"))
        assert {link.rel for link in landing.links} == {"self", "conformance", "data", "service-desc"}
        for link in landing.links:
            assert (await client.get(link.href.removeprefix(client.base)))[0] == 200
        conformance = capabilities.ConformanceModel.model_validate(await client.json("/edr/conformance"))
        assert "http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/core" in conformance.conformsTo
        found = models.Collections.model_validate_json((await client.get("/edr/collections"))[1])
        assert [collection.id for collection in found.collections] == ["root", "members"]
        one = models.Collection.model_validate_json((await client.get(ROOT))[1])
        assert one == found.collections[0]
        assert one.extent.spatial.bbox == [[-180.0, -90.0, 180.0, 90.0]]
        assert one.extent.temporal.interval[0][1].isoformat() == "2024-03-10T18:00:00+00:00"
        assert one.extent.vertical.values == ["1000", "850", "500"]
        assert one.parameter_names.root["t2m"].unit.symbol == "K"
        assert one.parameter_names.root["land"].observedProperty.categories[2].id == "ice"
        assert set(one.data_queries.model_dump(exclude_none=True)) == {"position", "area", "cube"}
        href = one.data_queries.position.link.href
        assert (await client.get(f"{href.removeprefix(client.base)}?coords=POINT(8%2047)"))[0] == 200
        paths = (await client.json("/openapi.json"))["paths"]
        position = paths["/edr/collections/{id}/position"]
        assert {"get", "post"} <= position.keys()
        required = [item["name"] for item in position["get"]["parameters"] if item.get("required")]
        assert required == ["id", "coords"]
        for body in position["post"]["requestBody"]["content"].values():
            assert body["schema"]["required"] == ["coords"]


@pytest.mark.servers
async def test_collections_with_strange_names():
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    for path in ("root", "a/b:c"):
        for name, unit in {"lat": "degrees_north", "lon": "degrees_east"}.items():
            group.create_array(f"{path}/{name}", data=[0.0, 1.0], dimension_names=[name], attributes={"units": unit})
        group.create_array(f"{path}/v", data=np.ones((2, 2)), dimension_names=["lat", "lon"])
    async with serving(store) as client:
        for one in (await client.json("/edr/collections"))["collections"]:
            path = quote(one["id"])
            assert (await client.json(f"/edr/collections/{path}"))["id"] == one["id"]
            query = f"/edr/collections/{path}/position?coords=POINT(1%201)"
            assert values_of(await client.json(query), "v") == 1
        assert (await client.json("/edr/collections/root", 404))["code"] == "404"


@pytest.mark.servers
async def test_collections_with_invalid_coordinates():
    """They do not hide the others."""
    store: dict[str, bytes] = {}
    make(store)
    group = sync.open_group(store, mode="r+")
    lat, time = np.array([0.0, 1.0, 2.0]), {"units": "days since 2000-01-01", "_FillValue": -1}
    cases: dict[str, tuple[Any, dict[str, Any], str]] = {
        "unsorted": (lat[[0, 2, 1]], time, "'lat' neither increases nor decreases"),
        "infinite": (np.array([0, 1, np.inf]), time, "'lat' must be finite"),
        "other": (lat, {"units": "days since never"}, "no valid date"),
        "damaged": (lat, time, "could not be decoded"),
        "undated": (lat, time, ""),
    }
    for name, (values, attributes, _) in cases.items():
        one: Any = {"units": "degrees_north"}, {"units": "degrees_east"}
        group.create_array(f"{name}/lat", data=values, dimension_names=["lat"], attributes=one[0])
        group.create_array(f"{name}/lon", data=lat, dimension_names=["lon"], attributes=one[1])
        group.create_array(f"{name}/time", data=[-1, -1], dimension_names=["time"], attributes=attributes)
        group.create_array(f"{name}/v", data=np.ones((2, 3, 3)), dimension_names=["time", "lat", "lon"])
    store["damaged/lat/c/0"] = b"damaged"
    async with serving(store) as client:
        body = await client.json("/edr/collections")
        found = {item["id"]: item for item in body["collections"]}
        assert {*found} == {"root", "members", "undated"}
        assert "temporal" not in found["undated"]["extent"]
        for name, (*_, text) in cases.items():
            assert not text or any(repr(name) in note and text in note for note in body["notes"])
        assert len(body["notes"]) == 4


# ------------------------------------------------------------------ values


@pytest.mark.servers
async def test_netcdf_has_only_its_own_types():
    """The library of netCDF cannot read 16-bit floating-point numbers, and attributes of JSON have more types."""
    nc = pytest.importorskip("netCDF4", reason="netCDF4 reads the files")
    pytest.importorskip("h5netcdf")
    group = sync.create_group(store := {})
    half, odd = np.arange(9, dtype="f2").reshape(3, 3), {"long_name": {"en": "x"}, "flag_values": "1", "units": None}
    for name, unit in {"lat": "degrees_north", "lon": "degrees_east"}.items():
        attributes = {"units": unit, "long_name": None}
        group.create_array(name, data=np.arange(3, dtype="f2"), dimension_names=[name], attributes=attributes)
    group.create_array("v", data=half, dimension_names=["lat", "lon"], attributes=odd)
    async with serving(store) as client:
        status, body, _ = await client.get(url("cube", bbox="0,0,2,2", f="nc"))
        assert status == 200, body
        with nc.Dataset("memory", memory=body) as file:
            np.testing.assert_array_equal(file["v"][:], half)
            assert [file[name].dtype for name in ("v", "lat", "lon")] == [np.dtype("f4")] * 3


@pytest.mark.servers
@pytest.mark.smoke
async def test_a_point():
    store: dict[str, bytes] = {}
    make(store)
    async with serving(store) as client:
        document = await coverage(
            client, "position", coords="POINT(-8.5 47.4)", parameter_name="t2m", datetime="2024-03-02/2024-03-03T12:00Z"
        )
        axes = document["domain"]["axes"]
        assert (axes["x"]["values"], axes["y"]["values"]) == ([-10], [50])
        assert axes["t"]["values"] == [f"2024-03-0{2 + n // 4}T{n % 4 * 6:02}:00:00Z" for n in range(7)]
        np.testing.assert_allclose(values_of(document, "t2m"), T2M[4:11, 4, 35])
        document = await coverage(client, "position", coords="POINT(70 60)", parameter_name="t2m,land")
        series, fixed = (
            document["coverages"] if "land" in document["coverages"][1]["ranges"] else document["coverages"][::-1]
        )
        assert series["ranges"]["t2m"]["values"][5] is None
        np.testing.assert_allclose(values_of(series, "t2m"), T2M[:, 3, 7])
        assert (fixed["domain"]["domainType"], fixed["ranges"]["land"]["values"]) == ("Point", [int(LAND[3, 7])])
        assert fixed["ranges"]["land"]["dataType"] == "integer"
        at = {"coords": "POINT(20 -90)", "parameter_name": "wind"}
        parts: dict[str, Any] = {
            "850": (slice(None), 1),
            "500/900": (slice(None), slice(1, 3)),
            "500,1000": (slice(None), [2, 0]),
            "R2/850/-350": (slice(None), slice(1, 3)),
        }
        for more, part in parts.items():
            document = await coverage(client, "position", **at, z=more)
            np.testing.assert_array_equal(values_of(document, "wind").astype("f4"), WIND[..., 18, 2][part])
        profile = await coverage(client, "position", **at, datetime="2024-03-01T06:00:00Z")
        assert profile["domain"]["domainType"] == "VerticalProfile"
        np.testing.assert_array_equal(values_of(profile, "wind").ravel().astype("f4"), WIND[1, :, 18, 2])
        near = await coverage(client, "position", coords="POINT Z (20 -90 700)", parameter_name="wind")
        assert near["domain"]["axes"]["z"]["values"] == [850]


@pytest.mark.servers
async def test_points_in_all_formats():
    """Also of a form and of JSON, whose points are those of the URL."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    parquet = pytest.importorskip("pyarrow.parquet")
    store: dict[str, bytes] = {}
    make(store)
    x, y = RNG.uniform(-180, 360, 50).round(3), RNG.uniform(-90, 90, 50).round(3)
    columns, rows = np.round(x / 10).astype(int) % 36, np.abs(LATS[:, None] - y).argmin(0)
    wkt = f"MULTIPOINT({','.join(f'({a} {b})' for a, b in zip(x, y, strict=True))})"
    query = {"coords": wkt, "parameter_name": "t2m", "datetime": "2024-03-02/2024-03-04"}
    wanted = T2M[4:16, rows, columns]
    async with serving(store) as client:
        document = await coverage(client, "position", **query)
        assert document["domain"]["domainType"] == "MultiPointSeries"
        assert document["ranges"]["t2m"]["axisNames"] == ["t", "composite"]
        np.testing.assert_allclose(values_of(document, "t2m"), wanted)
        np.testing.assert_array_equal(document["domain"]["axes"]["composite"]["values"], np.column_stack([x, y]))
        posted = {name.replace("_", "-"): value for name, value in query.items()}
        geometry = {"type": "MultiPoint", "coordinates": np.column_stack([x, y]).tolist()}
        for how in (
            {"data": posted},
            {"json": posted},
            {"json": {**posted, "coords": geometry, "parameter-name": ["t2m"]}},
        ):
            async with client.session.post(f"{client.base}{ROOT}/position", **how) as answer:
                assert answer.status == 200, await answer.text()
                assert json.loads(await answer.read()) == document
        _, body, _ = await client.get(url("position", **query, f="csv"))
        table = list(csv.DictReader(io.StringIO(body.decode())))
        assert [*table[0]] == ["time", "point", "lon", "lat", "t2m"]
        np.testing.assert_allclose([float(row["t2m"] or "nan") for row in table], wanted.ravel())
        assert [int(row["point"]) for row in table] == [*range(50)] * 12
        _, body, _ = await client.get(url("position", **query, f="parquet"))
        found = parquet.read_table(io.BytesIO(body)).to_pydict()
        np.testing.assert_allclose(np.array(found["t2m"], float), wanted.ravel())
        _, body, _ = await client.get(url("position", **query, f="nc"))
        with xarray.open_dataset(io.BytesIO(body), engine="h5netcdf") as dataset:
            np.testing.assert_allclose(dataset["t2m"], wanted)
            assert dataset["t2m"].attrs["units"] == "K"
            assert dataset["time"].values[0] == np.datetime64("2024-03-02")
        _, body, headers = await client.get(url("position", **query, f="geojson"))
        assert headers["Content-Type"] == "application/geo+json"
        features = json.loads(body)["features"]
        np.testing.assert_allclose(np.array([one["properties"]["t2m"] for one in features], float).T, wanted)
        needed = {"datetime", "parameter-name", "label", "edrqueryendpoint"}  # by the schema of OGC
        assert all(needed <= one["properties"].keys() for one in features)
        heights = await coverage(client, "position", coords="MULTIPOINT(0 0,50 -3)", parameter_name="wind", z="500/850")
        assert [item[2] for item in heights["domain"]["axes"]["composite"]["values"]] == [850, 500] * 2
        wind = np.stack([WIND[:, 1:, 9, 0], WIND[:, 1:, 9, 5]], 1).reshape(TIMES, 4)
        np.testing.assert_array_equal(values_of(heights, "wind").astype("f4"), wind)


@pytest.mark.servers
async def test_areas_and_boxes():
    """Cells outside of polygons are missing, and boxes may cross the antimeridian and the seam of the grid."""
    path = pytest.importorskip("matplotlib.path")
    store: dict[str, bytes] = {}
    make(store)
    shell = np.array([[-95.0, -53], [33, -61], [71, 44], [-12, 66], [-95, -53]])
    hole = np.array([[-21.0, -11], [22, -13], [7, 31], [-21, -11]])
    text = ",".join(f"({','.join(f'{a} {b}' for a, b in ring)})" for ring in (shell, hole))
    async with serving(store) as client:
        document = await coverage(
            client, "area", coords=f"POLYGON({text})", parameter_name="t2m,land", datetime="2024-03-02"
        )
        coverages = {name: one for one in document["coverages"] for name in one["ranges"]}
        axes = coverages["t2m"]["domain"]["axes"]
        x, y = np.array(axes["x"]["values"]), np.array(axes["y"]["values"])
        assert (x.min(), x.max(), y.min(), y.max()) == (-90, 70, -60, 60)
        cells = np.column_stack([values.ravel() for values in np.meshgrid(x, y)])
        inside = path.Path(shell).contains_points(cells) & ~path.Path(hole).contains_points(cells)
        inside = inside.reshape(len(y), len(x))
        assert 0 < inside.sum() < inside.size
        rows, columns = np.ix_(np.round((90 - y) / 10).astype(int), np.round(x / 10).astype(int) % 36)
        np.testing.assert_allclose(
            values_of(coverages["t2m"], "t2m"), np.where(inside, T2M[4:8, rows, columns], np.nan)
        )
        land = np.where(inside, LAND[rows, columns], np.nan)
        np.testing.assert_array_equal(values_of(coverages["land"], "land"), land)
        _, body, _ = await client.get(url("area", coords=f"POLYGON({text})", parameter_name="land", f="geojson"))
        found = [one["properties"]["land"] for one in json.loads(body)["features"]]
        assert found == land[inside].tolist()
        edges = "POLYGON((0 40,20 40,20 50,0 50,0 40))"  # through centres of cells, which are inside
        assert (await coverage(client, "area", coords=edges, parameter_name="land"))["ranges"]["land"]["values"] == [
            int(value) for value in LAND[4:6, :3].ravel()
        ]
        for box, columns, lons in (
            ("165,-15,-165,15", [17, 18, 19], [170, 180, 190]),
            ("-15,-15,15,15", [35, 0, 1], [-10, 0, 10]),
            ("345,-15,375,15", [35, 0, 1], [350, 360, 370]),
        ):
            document = await coverage(
                client, "cube", bbox=box, parameter_name="wind", z="850", datetime="2024-03-02T06:00Z"
            )
            assert document["domain"]["axes"]["x"]["values"] == lons
            assert document["domain"]["axes"]["y"]["values"] == [10, 0, -10]
            np.testing.assert_array_equal(values_of(document, "wind")[0, 0].astype("f4"), WIND[5, 1, 8:11][:, columns])
        document = await coverage(client, "cube", bbox="0,0,600,20,20,900", parameter_name="wind")
        np.testing.assert_array_equal(values_of(document, "wind").astype("f4"), WIND[:, 1:2, 7:10, :3])
        whole = await coverage(client, "cube", bbox="-180,-90,180,90", parameter_name="land")
        np.testing.assert_array_equal(values_of(whole, "land")[:, :36], np.roll(LAND, 18, 1))


@pytest.mark.servers
async def test_wrong_requests():
    store: dict[str, bytes] = {}
    make(store)
    at = "coords=POINT(8 47)"
    async with serving(store) as client:
        for path, (status, words) in {
            f"{ROOT}/position": (400, "coords must be a POINT"),
            f"{ROOT}/position?coords=POLYGON((0 0,1 1,1 0,0 0))": (400, "POINT or MULTIPOINT"),
            f"{ROOT}/area?{at}": (400, "POLYGON or MULTIPOLYGON"),
            f"{ROOT}/area?coords=POLYGON((1 1,2 1,2 2,1 1))": (400, "the centre of no cell"),
            f"{ROOT}/area?coords=POLYGON((1 1,2 1,2 2,1 3))": (400, "ends with the first"),
            f"{ROOT}/position?coords=POINT(8 147)": (
                400,
                "x from -5 to 355, y from -90 to 90",
            ),
            f"{ROOT}/position?coords=MULTIPOINT(8 47,0 100,0 -101)": (
                400,
                "2 of 3 points, such as (0 100), are outside",
            ),
            f"{ROOT}/position?{at}&parameter-name=t2n": (400, "Did you mean 't2m'?"),
            f"{ROOT}/position?{at}&parameter-name=t2m,t2m": (400, "more than once"),
            f"{ROOT}/position?{at}&parameter-nam=t2m": (400, "Did you mean 'parameter-name'?"),
            f"{ROOT}/position?{at}&{at}": (400, "more than once"),
            f"{ROOT}/position?{at}&datetime=2025-01-01/..": (400, "time"),
            f"{ROOT}/position?{at}&datetime=2024-03-01T03:00:00Z": (400, "time"),
            f"{ROOT}/position?{at}&datetime=yesterday": (400, "yesterday"),
            f"{ROOT}/position?{at}&z=700": (400, "700"),
            f"{ROOT}/position?{at}&z=high": (400, "z must be heights"),
            f"{ROOT}/position?{at}&parameter-name=t2m&z=850": (400, "has no heights"),
            f"{ROOT}/position?{at}&crs=EPSG:3857": (400, "crs must be CRS84"),
            f"{ROOT}/position?{at}&f=grib": (400, "f must be one of"),
            f"{ROOT}/position?{at}&f=csv": (400, "have different coordinates"),
            f"{ROOT}/cube?bbox=1,2,3": (400, "west,south,east,north"),
            f"{ROOT}/cube?bbox=1,20,3,10": (400, "south"),
            "/edr/collections/members/position?coords=POINT(8 47)": (400, "as in number=0"),
            "/edr/collections/members/position?coords=POINT(8 47)&select=level=0": (400, "no coordinate 'level'"),
            f"{ROOT}/position?{at}&parameter-name=wind&select=level=0": (400, "use coords, datetime or z"),
            "/edr/collections/nothing": (404, "no array or group"),
            "/edr/collections/nothing/position?coords=POINT(8 47)": (404, "no array or group"),
        }.items():
            got, body, headers = await client.get(quote(path, safe="/?&=,():"))
            document = json.loads(body)
            assert (got, document["code"], headers["Cache-Control"]) == (status, str(status), "no-store"), (path, body)
            assert words in document["description"] == document["message"], (path, document)
        found = await client.json("/edr/collections/members/position?coords=POINT(8%2047)&select=number=1")
        assert values_of(found, "p").astype("f4") == WIND[1, 0, 4, 1]
        assert (await client.json(f"{ROOT}/")) == await client.json(ROOT)
        assert (await client.get("/edr/"))[0] == 200
        assert (await client.get("/api/node/?path="))[0] == 404
        status, body, headers = await client.get(ROOT, method="POST")
        assert (status, headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        status, _, headers = await client.get(f"{ROOT}/position", method="OPTIONS")
        assert (status, headers["Allow"]) == (204, "GET, HEAD, POST, OPTIONS")
        status, body, headers = await client.get(f"{ROOT}/position?coords=POINT(8%2047)", method="HEAD")
        assert (status, body) == (200, b"")
        with contextlib.suppress(
            aiohttp.ClientOSError
        ):  # uvicorn may close the connection while the client still sends
            async with client.session.post(
                f"{client.base}{ROOT}/position", data=io.BytesIO(b"x" * 5_000_000)
            ) as answer:
                assert answer.status == 413
        async with client.session.post(f"{client.base}{ROOT}/position", data=b"<xml/>") as answer:
            assert answer.status == 400


@pytest.mark.servers
async def test_ten_thousand_points_of_a_year():
    """Each chunk is read once, the order is that of the request, and twice the time needs no more memory."""
    size, days = (90, 180), 730
    values = RNG.normal(size=(days, *size)).astype("f4").round(2)
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    units = {"time": "days since 2023-01-01", "lat": "degrees_north", "lon": "degrees_east"}
    for (name, unit), count in zip(units.items(), values.shape, strict=True):
        steps = np.arange(count) if name == "time" else np.arange(count) * 2.0 - (90 if name == "lat" else 180)
        group.create_array(name, data=steps, dimension_names=[name], attributes={"units": unit})
    group.create_array("v", data=values, chunks=(30, 30, 45), dimension_names=["time", "lat", "lon"])
    sync.consolidate_metadata(store)
    rows, columns = RNG.integers(0, size[0], 10_000), RNG.integers(0, size[1], 10_000)
    geometry = {
        "type": "MultiPoint",
        "coordinates": [[c * 2.0 - 180, r * 2.0 - 90] for r, c in zip(rows, columns, strict=True)],
    }

    async def request(client: Client, time: str) -> tuple[bytes, int, int]:
        """Return the body, the requests to the store, and the peak of the memory without the body."""
        body, before, pieces = {"coords": geometry, "datetime": time, "f": "covjson"}, client.upstream, []
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        kept = 0
        async with client.session.post(f"{client.base}{ROOT}/position", json=body) as answer:
            assert answer.status == 200
            peak = 0
            async for piece in answer.content.iter_any():
                pieces.append(piece)
                kept += len(piece)
                peak = max(peak, tracemalloc.get_traced_memory()[0] - start - kept)
        return b"".join(pieces), client.upstream - before, peak

    async with serving(store, cache_bytes=4 << 20) as client:
        await client.get(url("position", coords="POINT(0 0)", datetime="2023-01-01"))  # reads the coordinates
        tracemalloc.start()
        try:
            body, requests, peak = await request(client, "2023")
            longer, more, most = await request(client, "2023-01-01/2024-12-30")
        finally:
            tracemalloc.stop()
        assert (requests, more) == (13 * 12, 25 * 12)  # chunks, in requests of one each
        document = json.loads(body)
        assert document["ranges"]["v"]["shape"] == [365, 10_000]
        found = np.array(document["ranges"]["v"]["values"], "f4").reshape(365, 10_000)
        np.testing.assert_array_equal(found, values[:365, rows, columns])
        assert len(longer) > 1.9 * len(body)
        assert most < 1.5 * peak + (8 << 20), (peak, most)


@pytest.mark.servers
async def test_streams_that_fail_or_are_left():
    """A chunk that cannot be read in the middle breaks the connection; without a client, nothing more is read."""
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    values = RNG.normal(size=(200, 100, 100)).round(3)
    for name, unit, count in (
        ("lat", "degrees_north", 100),
        ("lon", "degrees_east", 100),
        ("time", "days since 2024-01-01", 200),
    ):
        group.create_array(name, data=np.arange(count) * 0.5, dimension_names=[name], attributes={"units": unit})
    group.create_array("v", data=values, chunks=(1, 100, 100), dimension_names=["time", "lat", "lon"], compressors=None)
    everything = f"{ROOT}/cube?bbox=0,0,100,50&f=csv"
    async with serving(store) as client:
        _, body, headers = await client.get(everything)
        assert body.count(b"\n") == values.size + 1
        assert "ETag" not in headers
        plain = await client.get(everything, Accept_Encoding="identity")
        assert plain[1] == body
        store["v/c/150/0/0"] = b"damaged"
        client.service.chunks.cache.clear()
        with pytest.raises(aiohttp.ClientError):
            await client.get(everything)
        store["v/c/0/0/0"] = b"damaged"
        client.service.chunks.cache.clear()
        assert (await client.get(everything))[0] == 500
    del store["v/c/0/0/0"], store["v/c/150/0/0"]
    async with serving(store) as client:
        plain_only = {"Accept-Encoding": "identity"}
        async with client.session.get(f"{client.base}{everything}", headers=plain_only) as answer:
            await answer.content.read(1000)
        await asyncio.sleep(0.5)
        settled = client.upstream
        await asyncio.sleep(0.5)
        assert client.upstream == settled < 150
        assert client.core._pending == 0
        assert b"zarrasync_active_requests 0.0" in client.core.metrics.text()


@pytest.mark.servers
async def test_limits():
    store: dict[str, bytes] = {}
    make(store)
    limits = Limits(max_streamed_cells=100, max_cells=50)
    async with serving(store, limits=limits) as client:
        assert (await client.json(url("cube", bbox="0,0,90,90", parameter_name="t2m"), 413))["error"] == "TooMuch"
        some = {"bbox": "0,0,90,60", "parameter_name": "t2m", "datetime": "2024-03-02T00:00Z"}
        assert (await client.get(url("cube", **some)))[0] == 200
        assert "csv, parquet or covjson" in (await client.json(url("cube", **some, f="geojson"), 413))["message"]


@pytest.mark.servers
async def test_other_calendars():
    pytest.importorskip("cftime")
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    units = {"units": "days since 2024-02-28", "calendar": "360_day"}
    group.create_array("time", data=[0, 1, 2], dimension_names=["time"], attributes=units)
    for name in ("x", "y"):
        group.create_array(name, data=[1.0, 2.0], dimension_names=[name], attributes={"units": "m"})
    group.create_array("v", data=np.arange(12.0).reshape(3, 2, 2), dimension_names=["time", "y", "x"])
    async with serving(store) as client:
        found = await client.json(f"{ROOT}/position?coords=POINT(1%202)&datetime=2024-02-30&crs=native")
        assert values_of(found, "v") == 10
        domain = found["domain"]
        assert domain["axes"]["t"]["values"] == ["2024-02-30T00:00:00Z"]
        assert domain["referencing"][0]["system"]["type"] == "ProjectedCRS"
        assert domain["referencing"][1]["system"]["calendar"].startswith("https://cfconventions.org")
        assert (await client.json(f"{ROOT}"))["crs"] == ["native"]


@pytest.mark.servers
async def test_stores_that_cannot_list():
    """Their collections are unknown, unless the metadata is consolidated."""

    class Unlisted(stores.WrapperStore):
        async def list_dir(self, prefix: str) -> Any:
            raise UnsupportedOperation("no listings")

    store: dict[str, bytes] = {}
    make(store)
    async with serving(Unlisted(stores.MemoryStore(store)), max_age=0) as client:
        for path in ("/edr/collections", ROOT, f"{ROOT}/position?coords=POINT(1%201)"):
            assert "consolidate" in (await client.json(path, 501))["description"]
        sync.consolidate_metadata(store)
        assert len((await client.json("/edr/collections"))["collections"]) == 2


# ------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    "text",
    ["POINT(1)", "POINT(1 2 3 4)", "POINT(1 2, 3 4)", "POINT((1 2))", "POINT(nan 1)", "POINT(1 2", "POINT EMPTY", "MULTIPOINT(((1 2)))",
     "MULTIPOINT(1 2,3)", "POINT(1_0 2)", "POINT(\uff11 2)", "LINESTRING(0 0,1 1)", "POINT Z (1 2)", "POINT(1 2)POINT(1 2)", "", "1,2"],
)  # fmt: skip
def test_wrong_points(text: str):
    with pytest.raises(BadQuery, match="coords must be"):
        parse_coords(text, ["POINT", "MULTIPOINT"])


def test_geometries():
    one = parse_coords(" point zm ( 1 -2.5e0 3 4 ) ", ["POINT"])
    assert isinstance(one, Points)
    assert (one.x.tolist(), one.y.tolist(), one.z.tolist(), one.is_single) == ([1], [-2.5], [3], True)
    many = parse_coords("MULTIPOINT M (1 2 9, 3 4 9)", ["MULTIPOINT"])
    assert isinstance(many, Points)
    assert (many.y.tolist(), many.z, many.is_single) == ([2, 4], None, False)
    both = parse_coords("MULTIPOLYGON(((0 0,1 0,1 1,0 0)),((5 5,6 5,6 7,5 5)))", ["POLYGON", "MULTIPOLYGON"])
    assert isinstance(both, Region)
    assert (both.west, both.south, both.east, both.north, len(both.rings)) == (0, 0, 6, 7, 2)
    with pytest.raises(TooMuch):
        parse_coords(f"MULTIPOINT({','.join(['1 2'] * 100_001)})", ["MULTIPOINT"])
    items = parse_body(
        b'{"coords": {"type": "Polygon", "coordinates": [[[0, 0], [1.5, 0], [1, 1], [0, 0]]]}}', "application/json"
    )
    assert items == (("coords", "Polygon((0.0 0.0,1.5 0.0,1.0 1.0,0.0 0.0))"),)
    for body in (
        b"[1]",
        b'{"z": null}',
        b'{"coords": {"type": "Circle"}}',
        b'{"z": 1, "f": "csv", "z": 2}',
        b'{"coords": {"type": "Point", "coordinates": "x"}}',
        b"{",
        b"[" * 100_000,
    ):
        with pytest.raises(BadQuery):
            parse_body(body, "application/json; charset=utf-8")


def test_heights():
    assert parse_heights("") is parse_heights("..") is None
    assert parse_heights("850").label == 850
    assert parse_heights("100/500").label == parse_heights("500/100").label == slice(100, 500)
    assert parse_heights("../500").label == slice(None, 500)
    assert parse_heights("R3/100/50").label.tolist() == [100, 150, 200]
    with pytest.raises(TooMuch):
        parse_heights("R999999/0/1")
    for text in ("1_0", "\uff11", "R1_0/0/1", "R-1/0/1", "Rinf/0/1", f"R{'9' * 5000}/0/1", "1,,2", "a/b"):
        with pytest.raises(BadQuery):
            parse_heights(text)
