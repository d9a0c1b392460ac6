"""Selections, series and points by coordinates, beside xarray."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
xr = pytest.importorskip("xarray")
from tests.support.server_client import serving
from zarrasync import sync
from zarrasync.errors import LabelError, SelectionError
from zarrasync.server import Service
from zarrasync.server.selection import split_labels

STORED = np.random.default_rng(5).integers(-300, 300, (59, 19, 36)).astype("i2")
STORED[3, 4, :5] = -999


def make_store() -> dict[str, bytes]:
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    attributes = {"scale_factor": 0.5, "add_offset": 200.0, "_FillValue": -999, "units": "K"}
    names = ["time", "lat", "lon"]
    group.create_array("t2m", data=STORED, chunks=(10, 5, 9), dimension_names=names, attributes=attributes)
    group.create_array(
        "time", data=np.arange(59), dimension_names=["time"], attributes={"units": "days since 2024-02-01"}
    )
    group.create_array("lat", data=np.linspace(90, -90, 19), dimension_names=["lat"])
    group.create_array("lon", data=np.arange(0, 360, 10.0), dimension_names=["lon"])
    return store


STORE = make_store()


@pytest.fixture(scope="module")
def oracle() -> Any:
    """The dataset, made without zarrasync."""
    values = np.where(STORED == -999, np.nan, STORED * 0.5 + 200)
    coordinates = {
        "time": np.datetime64("2024-02-01", "ns") + np.arange(59).astype("m8[D]"),
        "lat": np.linspace(90, -90, 19),
        "lon": np.arange(0, 360, 10.0),
    }
    return xr.DataArray(values, coordinates, ("time", "lat", "lon"))


@pytest.mark.servers
@pytest.mark.parametrize(
    ("text", "select"),
    [
        (
            "time=2024-03-01/2024-03-04,lat=45.5~nearest,lon=8.2~nearest",
            ({"time": slice("2024-03-01", "2024-03-04")}, {"lat": 45.5, "lon": 8.2}),
        ),
        ("time=2024-02-29,lat=50~exact", ({"time": "2024-02-29", "lat": 50}, {})),
        (
            "time=../2024-02-05,lat=60/30,lon=::18",
            ({"time": slice(None, "2024-02-05"), "lat": slice(60, 30)}, {"lon": slice(None, None, 18)}),
        ),
        ("time=2024-03,lat=0,lon=35", ({"time": "2024-03"}, {"lat": 0, "lon": 35})),
    ],
)
async def test_labels_in_requests(text: str, select: Any, oracle: Any):
    exact, rest = select
    want = oracle.sel(exact)
    is_nearest = "~nearest" in text
    want = want.sel(rest, method="nearest") if is_nearest else want.isel(rest)
    async with serving(STORE) as client:
        found = await client.json(f"/api/data?path=t2m&select={text}")
        assert found["unit"] == "K"
        values = np.array(found["data"], dtype=object)
        values = np.where(values == None, np.nan, values).astype(float)  # noqa: E711  # element by element
        np.testing.assert_allclose(values.reshape(want.shape), want.values)
        _, body, _ = await client.get(f"/api/data?path=t2m&select={text}&format=csv")
        rows = list(csv.DictReader(io.StringIO(body.decode())))
        assert len(rows) == want.size
        frame = want.expand_dims([dim for dim in oracle.dims if dim not in want.dims]).transpose(*oracle.dims)
        for name in ("lat", "lon"):
            column = np.broadcast_to(
                frame[name].values.reshape([-1 if dim == name else 1 for dim in oracle.dims]), frame.shape
            )
            np.testing.assert_array_equal([float(row[name]) for row in rows], column.reshape(-1))
        assert rows[0]["time"] == str(frame["time"].values[0].astype("M8[s]"))


@pytest.mark.servers
async def test_labels_that_do_not_exist():
    async with serving(STORE) as client:
        for text, error in {
            "tme=2024-03": "did you mean 'time'",
            "lat=45.5": "45.5",
            "lat=45.5~close": "not one of nearest",
            "time=2024-03,time=2024-02": "twice",
            "time=yesterday": "yesterday",
            "time=2031-01-01": "2031",
        }.items():
            body = await client.json(f"/api/data?path=t2m&select={text}", 400)
            assert error in body["message"], (text, body)
            assert body["error"] in ("LabelError", "SelectionError")


@pytest.mark.servers
async def test_labels_of_several_elements_where_one_is_needed():
    """Coordinates without an order select any positions."""
    group = sync.create_group(store := {})
    days = np.array(["2024-03-01", "2024-05-01", "2024-03-09", "2024-01-01"], "M8[D]").astype("i8")
    group.create_array("time", data=days, dimension_names=["time"], attributes={"units": "days since 1970-01-01"})
    for name, labels, units in (("lat", [50.0, 40, 30], "degrees_north"), ("lon", [0.0, 10, 20, 30], "degrees_east")):
        group.create_array(name, data=np.array(labels), dimension_names=[name], attributes={"units": units})
    group.create_array("a", data=np.arange(48.0).reshape(4, 3, 4), dimension_names=["time", "lat", "lon"])
    async with serving(store) as client:
        found = await client.json("/api/data?path=a&select=time=2024-03")
        assert np.ravel(found["data"]).tolist() == [*range(12), *range(24, 36)]
        for path in (
            "/api/stats?path=a&index=time=2024-03",
            "/api/tiles/0/0/0.png?path=a&index=time=2024-03",
            "/point/1,41?variable=a&sel=time=2024-03",
        ):
            body = await client.json(path, 400)
            assert "choose one element of the dimension 'time' of 'a'" in body["message"]
            assert body["message"].endswith("the request selects 2 of 4")
        body = await client.json("/api/stats?path=a&index=time=2024-01-01,lat=35/55", 400)
        assert body["message"] == "only the axes outside of the plane of 'a' can be selected: time"
        body = await client.json("/edr/collections/root/position?coords=POINT(1+41)&parameter-name=a&select=lat=2", 400)
        assert "an axis of the grid of 'a'" in body["message"]


def test_positions_and_labels():
    positions, labels = split_labels("time=3, lat=2:4 ,lon=10.5,level=500~exact", ["time", "lat", "lon", "level"])
    assert positions == "time=3, lat=2:4 "
    assert {name: (query.label, query.method) for name, query in labels.items()} == {
        "lon": ("10.5", None),
        "level": ("500", None),
    }
    assert split_labels("0,1:3,...", ["x"])[0] == "0,1:3,..."
    with pytest.raises(SelectionError, match="not one of"):
        split_labels("x=1~near", ["x"])


async def test_series(oracle: Any):
    async with Service(STORE) as service:
        found = await service.read_series("t2m", {"lat": 45.5, "lon": 351.0, "time": slice("2024-03-01", None)})
        want = oracle.sel(lat=45.5, lon=351, method="nearest").sel(time=slice("2024-03-01", None))
        np.testing.assert_allclose(found.values, want.values)
        assert (found.dimensions, found.unit) == (("time",), "K")
        np.testing.assert_array_equal(found.coordinates["time"], want["time"].values)
        assert found.coordinates["lat"].tolist() == [50.0]
        stored = await service.read_series("t2m", {"lat": 50.0, "lon": 0.0}, decode=False)
        np.testing.assert_array_equal(stored.values, STORED[:, 4, 0])
        with pytest.raises(LabelError):
            await service.read_series("t2m", {"lat": 45.5}, method=None)


@pytest.mark.parametrize("others", [{}, {"time": "2024-02-10"}, {"time": slice("2024-02-03", "2024-02-05")}])
async def test_points(others: dict[str, Any], oracle: Any):
    rng = np.random.default_rng(1)
    places = {"lat": rng.uniform(-90, 90, 200), "lon": rng.uniform(0, 354, 200)}
    async with Service(STORE) as service:
        found = await service.read_points("t2m", places, others)
        points = {name: xr.DataArray(values, dims="point") for name, values in places.items()}
        want = oracle.sel(others).sel(points, method="nearest").transpose("point", ...)
        np.testing.assert_allclose(found.values, want.values)
        assert found.dimensions == want.dims
        np.testing.assert_array_equal(found.coordinates["lat"], want["lat"].values)


async def test_points_along_other_axes(oracle: Any):
    """Axes of points that are not adjacent, also beside one index."""
    days, lon = ["2024-02-10", "2024-03-01", "2024-02-10"], [0.0, 10.0, 350.0]
    async with Service(STORE) as service:
        before = service.hierarchy.store.counts.requests
        points = {"time": xr.DataArray(np.array(days, "M8[ns]"), dims="point"), "lon": xr.DataArray(lon, dims="point")}
        found = await service.read_points("t2m", {"time": days, "lon": lon})
        np.testing.assert_allclose(found.values, oracle.sel(points).transpose("point", "lat").values)
        found = await service.read_points("t2m", {"time": days, "lon": lon}, {"lat": 41.0})
        np.testing.assert_allclose(found.values, oracle.sel(lat=40).sel(points).values)
        assert service.hierarchy.store.counts.requests - before < 60
        with pytest.raises(ValueError, match=r"3 of 'time', 2 of 'lon'"):
            await service.read_points("t2m", {"time": days, "lon": [1, 2]})


@pytest.mark.servers
async def test_labels_in_addresses_have_the_type_of_their_coordinate():
    """Digits are a number, a string, or a year."""
    root = sync.create_group(store := {})
    lat, lon = np.arange(89.0, -90, -2), np.arange(1.0, 360, 2)
    stations = np.array(["001", "2", "x"], np.dtypes.StringDType())
    axes = {
        "lat": (lat, {"units": "degrees_north"}),
        "lon": (lon, {"units": "degrees_east"}),
        "station": (stations, {}),
        "day": (np.arange(3), {"units": "days since 2024-12-31"}),
        "number": (2**53 + 2 * np.arange(3) + 1, {}),
    }
    for name, (values, attributes) in axes.items():
        root.create_array(name, data=values, dimension_names=[name], attributes=attributes)
    values = np.arange(3.0)[:, None, None] + np.zeros((len(lat), len(lon)))
    for name in ("station", "day", "number"):
        root.create_array(f"of_{name}", data=values, dimension_names=[name, "lat", "lon"])
    found = {"station=001": 0, "station=2": 1, "day=2024": 0, "day=nearest::2030": 2, "day=bfill::2025": 1}
    found |= {f"number={2**53 + 3}": 1, f"number=nearest::{2**53}": 0, "number=nearest::9e15": 0}
    async with serving(store) as client:
        for label, value in found.items():
            told = await client.json(f"/point/1,1?variable=of_{label.partition('=')[0]}&sel={label}")
            assert told["values"] == [value], label
        for label in ("station=1", "number=x", f"number={2**53 + 2}"):
            status, body, _ = await client.get(f"/point/1,1?variable=of_{label.partition('=')[0]}&sel={label}")
            assert (status, b"LabelError" in body) == (400, True), label
        selections = (("day=2025/2026", [1, 2]), ("station=001/2", [0, 1]), ("day=2025~exact", [1, 2]))
        for select, expected in selections:
            name = select.partition("=")[0]
            told = await client.json(f"/api/data?path=of_{name}&select={select},lat=1~exact,lon=1~exact")
            assert told["data"] == expected, select


@pytest.mark.servers
@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("/api/data?path=t2m&select=lat=45.5", "append ~nearest for the nearest label"),
        ("/point/8,45?variable=t2m&sel=time=2030-01-01", "write nearest::LABEL for the nearest label"),
    ],
)
async def test_advice_is_in_terms_of_the_request(url: str, advice: str):
    async with serving(STORE) as client:
        message = (await client.json(url, 400))["message"]
    assert message.endswith(advice), message
    assert "method=" not in message
