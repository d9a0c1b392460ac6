"""What the server shows of arrays whose stored numbers stand for other values: data, statistics, ranges and pictures."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
pytest.importorskip("xarray", reason="xarray is not installed")
from tests.server.test_tiles import decoded
from tests.support.meanings import MEANINGS, Meant, as_items
from tests.support.server_client import serving
from zarrasync import sync

pytestmark = pytest.mark.servers
NAT = np.iinfo("i8").min
ALL = pytest.mark.parametrize("meant", MEANINGS.values(), ids=MEANINGS)


@ALL
async def test_values(meant: Meant):
    store: dict[str, bytes] = {}
    meant.create(store)
    want = meant.values
    async with serving(store) as client:
        told = await client.json("/api/data?path=v")
        flat = [item for row in told["data"] for item in row]
        assert flat == pytest.approx(as_items(want)) if want.dtype.kind == "f" else flat == as_items(want)
        is_time = " since " in meant.attributes.get("units", "")
        assert (told["decoded"], told["unit"]) == (True, "" if is_time else meant.attributes.get("units", ""))
        _, body, _ = await client.get("/api/data?path=v&format=csv")
        cells = [line.split(",")[-1] for line in body.decode().splitlines()]
        assert cells == [
            "v",
            *("" if item is None else item if isinstance(item, str) else json.dumps(item) for item in flat),
        ]
        if want.dtype.kind != "O":
            _, body, _ = await client.get("/api/data?path=v&format=npy")
            np.testing.assert_array_equal(np.load(io.BytesIO(body)), want)
            _, body, headers = await client.get("/api/data?path=v&format=bin")
            np.testing.assert_array_equal(np.frombuffer(body, headers["X-Dtype"]).reshape(3, 4), want)
        told = await client.json("/api/data?path=v&decode=0")
        assert (told["data"], told["decoded"]) == ([as_items(row) for row in meant.stored], False)
        assert (await client.json("/api/data?path=v&decode=no", 400))["error"] == "BadQuery"


@ALL
async def test_statistics_and_pictures(meant: Meant):
    store: dict[str, bytes] = {}
    meant.create(store)
    numbers = meant.numbers
    finite, missing = numbers[np.isfinite(numbers)], np.isnan(numbers)
    async with serving(store) as client:
        told = await client.json("/api/stats?path=v")
        assert (told["count"], told["invalid"]) == (12, missing.sum())
        assert [told[key] for key in ("minimum", "maximum", "mean")] == pytest.approx(
            [finite.min(), finite.max(), finite.mean()], rel=1e-6
        )
        if " since " in meant.attributes.get("units", ""):
            dates = meant.values[np.isfinite(numbers)]
            assert told["dates"]["minimum"].removesuffix("T00:00:00") == as_items(dates)[finite.argmin()].removesuffix(
                "T00:00:00"
            )
        view = await client.json("/api/view?path=v")
        low, high = view["range"]
        assert (view["invalid"], view["decoded"]) == (missing.sum(), True)
        assert (low, high) == (0, 1) if meant.stored.dtype == bool else finite.min() <= low < high <= finite.max()
        for path in ("tiles/0/0/0.png?path=v&origin=upper", "data?path=v&format=png"):
            _, body, _ = await client.get(f"/api/{path}&cmap=gray&low={finite.min()}&high={finite.max()}")
            pixels = decoded(body)[:3, :4].astype(int)
            np.testing.assert_array_equal(pixels[..., 3] == 0, missing)
            grey = 255 * (np.clip(numbers, finite.min(), finite.max()) - finite.min()) / np.ptp(finite)
            assert np.abs(pixels[..., 0] - grey)[~missing].max() <= 3
        stored = meant.stored[np.isfinite(meant.stored)]
        told = await client.json("/api/stats?path=v&decode=0")
        assert (told["minimum"], told["maximum"], told["decoded"]) == (stored.min(), stored.max(), False)
        low, high = (await client.json("/api/view?path=v&decode=0"))["range"]
        assert stored.min() <= low < high <= stored.max()
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=v&origin=upper&decode=0")
        np.testing.assert_array_equal(decoded(body)[:3, :4, 3] == 0, np.isnan(meant.stored))


async def test_large_integers_stay_exact_and_other_kinds_as_they_are():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    attributes = {"_FillValue": -1, "scale_factor": 2, "units": "m"}
    root.create_array("large", data=np.array([2**62 + 1, -1]), attributes={"_FillValue": -1})
    root.create_array("strings", data=np.array(["a", "b"]), attributes=attributes)
    root.create_array("fields", data=np.array([(-1, 2.5)], [("a", "i4"), ("b", "f8")]), attributes=attributes)
    async with serving(store) as client:
        found = [(await client.json(f"/api/data?path={name}"))["data"] for name in ("large", "strings", "fields")]
        assert found == [[2**62 + 1, None], ["a", "b"], [[-1, 2.5]]]
        told = await client.json("/api/chart?path=large")
        assert told["curves"] == [{"name": "", "values": [2**62 + 1, None]}]
        told = await client.json("/api/chart?path=large&points=1")
        assert told["curves"] == [{"name": "", "low": [2**62 + 1], "high": [2**62 + 1]}]
        for kind in ("npy", "bin"):
            told = await client.json(f"/api/data?path=large&format={kind}", 501)
            assert f"the integer {2**62 + 1} cannot be decoded to float64" in told["message"]
            assert (await client.get(f"/api/data?path=large&format={kind}&select=1"))[0] == 200
            assert (await client.get(f"/api/data?path=large&format={kind}&decode=0"))[0] == 200


async def test_a_scale_that_is_not_a_number():
    store: dict[str, bytes] = {}
    sync.create_group(store).create_array("v", data=np.array([1, 2]), attributes={"scale_factor": [0.1, 0.2]})
    async with serving(store) as client:
        for path in ("data", "data?format=csv", "chart"):
            told = await client.json(f"/api/{path}{'&' if '?' in path else '?'}path=v", 501)
            assert "the attribute scale_factor is not a number" in told["message"]
        assert (await client.json("/api/data?path=v&decode=0"))["data"] == [1, 2]
        assert (await client.get("/api/node?path=v"))[0] == 200


async def test_large_durations_stay_exact():
    attributes = {"units": "nanoseconds", "dtype": "timedelta64[ns]", "_FillValue": -1}
    store: dict[str, bytes] = {}
    sync.create_group(store).create_array("v", data=np.array([2**62 + 1, -1, 2**62]), attributes=attributes)
    async with serving(store) as client:
        assert (await client.json("/api/data?path=v"))["data"] == [2**62 + 1, None, 2**62]
        assert "cannot be decoded" in (await client.json("/api/data?path=v&format=npy", 501))["message"]
        _, body, _ = await client.get("/api/data?path=v&format=npy&select=1:")
        np.testing.assert_array_equal(np.load(io.BytesIO(body)), [np.nan, 2.0**62])


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_bounds_have_the_units_of_their_coordinate(zarr_format):
    store: dict[str, bytes] = {}
    root = sync.create_group(store, zarr_format=zarr_format)
    for name, attribute in (("time", "bounds"), ("month", "climatology")):
        units = {"units": "days since 2000-02-28", "calendar": "noleap", attribute: f"g{name}"}
        root.create_array(name, data=[1], attributes=units)
        root.create_array(f"g{name}", data=[[0, 1]])
    root.create_array("other", data=[[0, 1]])
    async with serving(store) as client:
        found = {name: await client.json(f"/api/data?path={name}") for name in ("gtime", "gmonth", "other")}
        info = (await client.json("/api/node?path=gtime"))["info"]
    assert info["Times"] == "days since 2000-02-28, noleap calendar"
    assert found["gtime"]["data"] == found["gmonth"]["data"] == [["2000-02-28T00:00:00", "2000-03-01T00:00:00"]]
    assert (found["gtime"]["calendar"], found["other"]["data"]) == ("noleap", [[0, 1]])


async def test_calendars_without_cftime_are_numbers_with_units(monkeypatch):
    monkeypatch.setitem(sys.modules, "cftime", None)
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    attributes = {"units": "days since 2000-01-01", "calendar": "360_day", "_FillValue": -1}
    root.create_array("v", data=[[1, 59], [3, -1]], dimension_names=("time", "x"), attributes=attributes)
    root.create_array("time", data=[58, 59], dimension_names=("time",), attributes=attributes)
    async with serving(store) as client:
        data, stats = await client.json("/api/data?path=v"), await client.json("/api/stats?path=v")
        axis = (await client.json("/api/view?path=v"))["axes"][0]
        for kind in ("csv", "npy", "bin", "arrow"):  # which contain no note
            told = await client.json(f"/api/data?path=v&format={kind}", 501)
            assert "cftime" in told["message"]
            assert "request the stored numbers" in told["message"]
            assert (await client.get(f"/api/data?path=v&format={kind}&decode=0"))[0] == 200
    assert data["data"] == [[1, 59], [3, None]]
    assert (stats["minimum"], stats["maximum"], stats["invalid"], axis["origin"]) == (1, 59, 1, 58)
    for told in (data, stats, axis):
        assert told["unit"] == "days since 2000-01-01 (360_day)"
        assert "cftime" in told["note"]
    assert (data["decoded"], stats["decoded"]) == (False, False)


LATITUDE = {"units": "degrees_north"}


@pytest.mark.parametrize(
    ("coordinates", "attributes", "origin"),
    [
        (np.linspace(-60, 60, 4), LATITUDE, "lower"),
        (np.linspace(60, -60, 4), LATITUDE, "upper"),
        (np.array([-60, -18, 21, 60]), LATITUDE, "lower"),
        (np.array([3, 2, 1, 0], "i2"), {**LATITUDE, "scale_factor": -10.0}, "lower"),
        (np.arange(4.0), {"units": "m", "standard_name": "projection_y_coordinate"}, "lower"),
        (np.arange(4.0), {"units": "m", "standard_name": "height"}, "upper"),
        (None, {}, "upper"),
    ],
)
async def test_maps_show_the_north_at_the_top(coordinates: Any, attributes: dict[str, Any], origin: str):
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    root.create_array("v", data=np.repeat(np.arange(4.0)[:, None], 4, 1), dimension_names=("y", "x"))
    if coordinates is not None:
        root.create_array("y", data=coordinates, dimension_names=("y",), attributes=attributes)
    async with serving(store) as client:
        assert (await client.json("/api/view?path=v"))["origin"] == origin
        pictures = [
            decoded((await client.get(f"/api/tiles/0/0/0.png?path=v&cmap=gray{more}"))[1])[:4, 0, 0].tolist()
            for more in ("", "&origin=upper", "&origin=lower")
        ]
    assert pictures[0] == pictures[1 + (origin == "lower")] == sorted(pictures[0], reverse=origin == "lower")
    assert pictures[1] == pictures[2][::-1]


async def test_axes_of_packed_coordinates_and_dates():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    root.create_array("v", data=np.zeros((3, 3, 3)), dimension_names=("time", "lat", "lon"))
    root.create_array("time", data=[0, 1, NAT], attributes={"units": "hours since 2000-01-01 12:00"})
    root.create_array("lat", data=np.array([0, 1, 2], "i2"), attributes={**LATITUDE, "scale_factor": 0.5})
    root.create_array("lon", data=np.array([0, 1, -9], "i2"), attributes={"missing_value": -9})
    root.create_array("w", data=np.zeros((3, 3)), dimension_names=("irregular", "longer"))
    root.create_array("irregular", data=[0.0, 1.0, 5.0], attributes={"units": "m"})
    root.create_array("longer", data=[1, 2, 3, 4])
    async with serving(store) as client:
        time, lat, lon = (await client.json("/api/view?path=v"))["axes"]
        irregular, longer = (await client.json("/api/view?path=w"))["axes"]
    assert (irregular["labels"], irregular["unit"]) == (["0", "1", "5"], "m")
    assert longer == {"name": "longer", "size": 3, "unit": "", "kind": ""}
    assert (time["labels"], time["unit"]) == (["2000-01-01T12:00:00", "2000-01-01T13:00:00", "NaT"], "")
    assert (lat["step"], lat["origin"], lat["unit"]) == (0.5, 0, "degrees_north")
    assert "step" not in lon


async def test_flags_have_names_and_colours():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    cells = np.array([[0, 1], [2, 255]], "u1")
    names = {"flag_meanings": "clear cloud snow", "_FillValue": 255}
    colours = {"flag_colors": "#010203 red #0000ff"}
    root.create_array("v", data=cells, attributes={**names, "flag_values": [0, 1, 2], **colours})
    root.create_array("plain", data=cells, attributes={**names, "flag_values": [0, 1, 2]})
    root.create_array("bits", data=cells, attributes={"flag_meanings": "a b", "flag_masks": [1, 2], "_FillValue": 255})
    async with serving(store) as client:
        view = await client.json("/api/view?path=v")
        assert (view["is_labels"], view["label_properties"]) == (True, {"0": "clear", "1": "cloud", "2": "snow"})
        bits = (await client.json("/api/view?path=bits"))["label_properties"]
        assert bits == {"1": "a", "2": "b", "3": "a, b"}
        for path in ("tiles/0/0/0.png?", "data?format=png&"):
            _, body, _ = await client.get(f"/api/{path}path=v&cmap=labels")
            assert decoded(body)[:2, :2].tolist() == [
                [[1, 2, 3, 255], [255, 0, 0, 255]],
                [[0, 0, 255, 255], [0, 0, 0, 0]],
            ]
            _, body, _ = await client.get(f"/api/{path}path=plain&cmap=labels")
            assert len({tuple(pixel) for pixel in decoded(body)[:2, :2].reshape(-1, 4).tolist()}) == 4
        info = (await client.json("/api/node?path=v"))["info"]
        assert (info["Flags"], info["Missing values"]) == ("0 clear, 1 cloud, 2 snow", "255")
        assert (await client.json("/api/node?path=bits"))["info"]["Flags"] == "bits 1 a, bits 2 b"


async def test_levels_of_a_pyramid_have_their_own_packing():
    store: dict[str, bytes] = {}
    datasets = [{"path": "0"}, {"path": "1"}]
    group = sync.create_group(store, attributes={"multiscales": [{"datasets": datasets}]})
    group.create_array("0", data=np.full((600, 600), 50, "i2"), attributes={"scale_factor": 2, "units": "K"})
    group.create_array("1", data=np.full((300, 300), 10, "i2"), attributes={"scale_factor": 10, "units": "K"})
    async with serving(store) as client:
        assert (await client.json("/api/view"))["unit"] == "K"
        for zoom in (0, 1, 2):
            _, body, _ = await client.get(f"/api/tiles/{zoom}/0/0.png?low=0&high=254&cmap=gray")
            assert set(decoded(body)[:60, :60, 0].flat) == {100}
