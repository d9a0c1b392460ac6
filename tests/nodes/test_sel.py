"""Selecting by coordinates: what xarray has no equal for, requests, changes, both APIs. The rest is drawn in ``test_sel_random``."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import sync
from zarrasync.errors import LabelError
from zarrasync.stores import MemoryStore
from zarrasync.stores.counting import CountingStore
from zarrasync.testing import LatencyStore

PACKED = {"scale_factor": 0.5, "_FillValue": -1, "units": "K"}
TWO_DAYS = [np.datetime64("2000-01-03"), np.datetime64("2000-01-01")]
TIMES = {"units": "days since 1999-12-31", "bounds": "time_bnds"}


def grid(store: Any, *, lat_order: int = -1) -> np.ndarray:
    """Write 60 days of packed values on a coarse globe, and return the values."""
    group = sync.create_group(store)
    stored = (np.arange(60 * 7 * 12) % 300 - 1).reshape(60, 7, 12).astype("i2")
    lat = np.arange(-90, 91, 30, dtype="f4")[::lat_order]
    group.create_array("time", data=np.arange(60), attributes=TIMES, dimension_names=["time"])
    group.create_array(
        "time_bnds", data=np.stack([np.arange(60), np.arange(1, 61)], 1), dimension_names=["time", "bnds"]
    )
    group.create_array("lat", data=lat, attributes={"units": "degrees_north"}, dimension_names=["lat"])
    group.create_array("lon", data=np.arange(0, 360, 30), attributes={"units": "degrees_east"}, dimension_names=["lon"])
    group.create_array("t2m", data=stored, chunks=(20, 4, 4), attributes=PACKED, dimension_names=["time", "lat", "lon"])
    group.create_array("crs", data=0)
    group.create_array("name", data=np.array([f"d{n}" for n in range(60)]), dimension_names=["time"])
    return np.where(stored == -1, np.nan, stored / 2)


async def test_a_series_at_a_place(api: Api):
    store: dict[str, bytes] = {}
    values = grid(store)
    group = await api(api.open_group(store))
    parts = await api(group.sel(time=slice("2000-01", "2000-02-03"), lat=47.4, lon=8.5, method="nearest"))
    assert sorted(parts) == ["crs", "lat", "lon", "name", "t2m", "time", "time_bnds"]
    np.testing.assert_array_equal(await api(parts["t2m"].read()), values[1:35, 1, 0])
    np.testing.assert_array_equal(await api(parts["t2m"][-2:].read()), values[33:35, 1, 0])  # it composes
    assert (await api(parts["lat"].read()), await api(parts["lon"].read())) == (60, 0)
    days = np.arange("2000-01-01", "2000-02-04", dtype="M8[D]")
    np.testing.assert_array_equal(await api(parts["time"].read()), days)
    np.testing.assert_array_equal((await api(parts["time_bnds"].read()))[:, 1], days + np.timedelta64(1, "D"))
    assert parts["crs"].shape == ()
    stored = await api(group.sel(time="2000-01-01", lat=90, lon=[0, 30], decode=False))
    assert (await api(stored["t2m"].read())).tolist() == (values[1, 0, :2] * 2).tolist()
    array = await api(group.get("t2m"))
    part = await api(array.sel(time=dt.datetime(2000, 1, 1), lat=slice(90, 30), lon=330))
    np.testing.assert_array_equal(await api(part.read()), values[1, :3, 11])
    part = await api(array.decoded.sel({"name": "d2"}, lat=[60, -60]))
    np.testing.assert_array_equal(await api(part.read()), values[2, [1, 5]])
    assert (await api(array.sel(time=np.datetime64("2000-01-02"), lat=0, lon=0, decode=False))).dtype == "i2"
    assert isinstance(await api((await api(array.sel(time="2000-01-02", lat=0, lon=0))).read()), np.float64)


@pytest.mark.parametrize("lat_order", [1, -1])
def test_slices_in_both_directions(lat_order: int):
    store: dict[str, bytes] = {}
    grid(store, lat_order=lat_order)
    group = sync.open_group(store)
    ascending = [30, 60][::lat_order]
    assert group.sel(lat=slice(20, 80))["lat"].read().tolist() == ascending
    assert group.sel(lat=slice(80, 20))["lat"].read().tolist() == ([] if lat_order == 1 else ascending)
    assert group.sel(lat=slice(30, 60))["lat"].read().tolist() == ascending  # both ends are included
    assert group.sel(lat=slice(None, None, 3))["lat"].read().tolist() == [-90, 0, 90][::lat_order]


@pytest.mark.parametrize(
    ("label", "method", "expected"),
    [
        (-30, None, 330),
        (390, None, 30),
        (-8.5, "nearest", 0),
        (350.0, "nearest", 0),
        (-170, "nearest", 180),
        (359.0, "pad", 330),
        (-1, "backfill", 0),
        ([-30, 30], None, [330, 30]),
        (slice(-60, 60), None, [300, 330, 0, 30, 60]),
        (slice(300, 60), None, [300, 330, 0, 30, 60]),
        (slice(-60, 60, 2), None, [300, 0, 60]),
        (slice(300, 330), None, [300, 330]),
        (slice(315, 345), None, [330]),
        (slice(-180, 180), None, [*range(180, 360, 30), *range(0, 180, 30)]),
        (slice(0, 360), None, list(range(0, 360, 30))),
        (slice(350, 370), None, [0]),
        (slice(None, 30), None, [0, 30]),
    ],
)
def test_longitudes_wrap_around_the_globe(label: Any, method: Any, expected: Any):
    store: dict[str, bytes] = {}
    values = grid(store)
    parts = sync.open_group(store).sel(lon=label, method=method)
    assert np.asarray(parts["lon"].read()).tolist() == expected
    positions = np.asarray(expected) // 30
    np.testing.assert_array_equal(parts["t2m"].read(), values[:, :, positions])


def test_only_global_longitudes_wrap():
    for unit, stop in (("degrees_east", 180), ("m", 360)):
        group = sync.create_group({})
        group.create_array("x", data=np.arange(0, stop, 30), attributes={"units": unit}, dimension_names=["x"])
        with pytest.raises(LabelError, match="no label -30"):
            group.sel(x=-30)
        assert group.sel(x=slice(-60, 60))["x"].read().tolist() == [0, 30, 60]
        assert group.sel(x=-30, method="nearest")["x"].read() == 0
    for numbers in (np.arange(-180, 180, 30), np.arange(-180, 180, 30)[::-1], np.arange(0, 361, 30)):
        group = sync.create_group({})
        group.create_array("x", data=numbers, attributes={"units": "degrees_east"}, dimension_names=["x"])
        assert group.sel(x=179.0, method="nearest")["x"].read() % 360 == 180
        found = group.sel(x=slice(150, 210))["x"].read() % 360
        assert found.tolist() == [150, 180, 210][:: -1 if numbers[0] > numbers[1] else 1]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("start", [0, -180, -135, 22.5])
@pytest.mark.parametrize("is_closed", [False, True])
def test_slices_of_longitudes_have_each_place_once(start: float, is_closed: bool, order: int):
    """Compared with the angles between both ends. Where the last label is the first place again, one of both is enough."""
    lon = (start + 45 * np.arange(9 if is_closed else 8))[::order]
    group = sync.create_group({})
    group.create_array("x", data=lon, attributes={"units": "degrees_east"}, dimension_names=["x"])
    for low in np.arange(-400, 400, 35.0):
        for length in (0, 30, 45, 200, 359, 360, 400, 720):
            angles = np.unique(lon % 360)
            wanted = sorted(angle for angle in angles if (angle - low) % 360 <= length)
            found = group.sel(x=slice(low, low + length))["x"].read() % 360
            if is_closed and low >= lon.min() and low + length <= lon.max():
                found = np.unique(found)  # the labels of the axis as they are
            assert sorted(found) == wanted, (low, length)


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i4", "u1"])
def test_lists_of_numbers_of_all_kinds(dtype: str):
    group = sync.create_group({})
    group.create_array("x", data=np.array([1, 2, 4], dtype), dimension_names=["x"])
    for labels in ([2.0, 1], [np.float64(4), np.int8(2)], [np.float32(2)], (4, 2.0), [True + 1]):
        assert group.sel(x=labels)["x"].read().tolist() == [*labels]
        assert group.sel(x=labels, method="nearest")["x"].read().tolist() == [*labels]
    assert group.sel(x=[])["x"].shape == group.sel(x=[], method="pad", tolerance=1)["x"].shape == (0,)
    assert group.sel(x=[1.2, 3.9], method="nearest")["x"].read().tolist() == [1, 4]


@pytest.mark.parametrize("method", [None, "nearest"])
@pytest.mark.parametrize("labels", [[], (), np.zeros(0), np.array([], object)])
def test_no_labels_select_nothing(labels: Any, method: Any):
    group = sync.create_group({})
    for values in (np.array(["b", "a"]), np.array([3, 1, 2]), np.array([2.0, 1, 3]), np.array([3, 1, 2], "M8[D]")):
        group.create_array("x", data=values, dimension_names=["x"], overwrite=True)
        assert group.sel(x=labels, method=method)["x"].read().shape == (0,)
        with pytest.raises(LabelError, match="a mask of 'x' needs"):
            group.sel(x=np.array([], bool))


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_exact_dates_in_strings_are_ends_of_slices_of_unsorted_times(calendar: str):
    group = sync.create_group({})
    units = {"units": "days since 2000-01-01", "calendar": calendar}
    group.create_array("time", data=np.array([3, 0, 7, 5]), attributes=units, dimension_names=["time"])
    group.create_array("v", data=np.arange(4), dimension_names=["time"])
    assert group.sel(time=slice("2000-01-01", "2000-01-08T00:00:00"))["v"].read().tolist() == [1, 2]
    with pytest.raises(LabelError, match=r"no label 2000-03-02; its 4 labels lie between 2000-01-01 and 2000-01-08$"):
        group.sel(time="2000-03-02")
    for part in ("2000", "2000-01", "2000-01-02"):
        with pytest.raises(LabelError, match="not sorted"):
            group.sel(time=slice(part, None))


async def test_coordinates_are_read_once(api: Api):
    values: dict[str, bytes] = {}
    grid(values)
    sync.consolidate_metadata(values)
    store = CountingStore(MemoryStore(values))
    group = await api(api.open_group(store))
    store.reset()
    for _ in range(3):
        parts = await api(group.sel(time="2000-01-05", lat=30, lon=60))
    assert (store.counts.lists, store.counts.fetches) == (0, 3)
    store.reset()
    await api(parts["t2m"].read())
    assert store.reset().fetches == 1
    await api(group.refresh(max_age=60))
    await api(group.sel(lat=30))
    assert store.counts.requests == 0
    await api(group.refresh())
    store.reset()
    await api(group.sel(lat=30))
    assert store.counts.fetches == 1
    array = await api(api.open_array(store, path="t2m"))
    store.reset()
    for _ in range(3):
        await api(array.sel(lat=30, lon=60))
    assert (store.counts.lists, store.counts.fetches - store.counts.absent) == (
        0,
        5,
    )  # of two coordinates, and the group


async def test_changes_are_noticed(api: Api):
    store: dict[str, bytes] = {}
    group = await api(api.create_group(store))
    x = await api(group.create_array("x", data=[1, 2], dimension_names=["x"]))
    v = await api(group.create_array("v", data=[5, 6], dimension_names=["x"]))
    assert await api((await api(group.sel(x=2)))["v"].read()) == 6
    await api(x.append([3]))
    with pytest.raises(LabelError, match="different sizes"):
        await api(group.sel(x=3))
    await api(v.append([7]))
    assert await api((await api(group.sel(x=3)))["v"].read()) == 7
    await api.write(x, 0, 9)
    other = await api(group.get("v"))
    assert await api((await api(other.sel(x=9))).read()) == 5
    await api(group.delete("v"))
    assert sorted(await api(group.sel(x=9))) == ["x"]
    await api(group.create_array("w", data=[1, 2, 3], dimension_names=["x"]))
    assert sorted(await api(group.sel(x=9))) == ["w", "x"]
    sync.open_array(store, path="x", mode="r+")[1] = 8  # through another object
    assert await api((await api(group.sel(x=8)))["w"].read()) == 2


def test_other_kinds_of_labels():
    group = sync.create_group({})
    names = np.array(["ZRH", "BRN", "GVA"])
    group.create_array("station", data=names, dimension_names=["station"])
    lead = {"units": "hours", "dtype": "timedelta64[ns]"}
    group.create_array("lead", data=np.array([0, 6, 12]), attributes=lead, dimension_names=["lead"])
    group.create_array("height", data=np.array([432.0, 553.0, 411.0]), dimension_names=["station"])
    group.create_array("area", data=np.ones((3, 3)), dimension_names=["station", "lead"])
    group.create_array("scalar", data=1.0, dimension_names=[])
    values = np.arange(18).reshape(3, 3, 2)
    group.create_array("v", data=values, dimension_names=["station", "lead", "member"])
    assert group.sel(station="BRN", lead="6 hours", member=-1, tolerance=None)["v"].read() == values[1, 1, -1]
    assert group.sel(station="BRN", lead=np.timedelta64(7, "h"), method="nearest")["v"].read().tolist() == [8, 9]
    assert group.sel(lead=dt.timedelta(hours=5), method="pad", tolerance={"lead": "5 hours"})["lead"].shape == ()
    assert group.sel(height=432)["station"].read() == "ZRH"
    assert group.sel(member=slice(0, 1))["v"].shape == (3, 3, 1)
    assert group.sel(station=[True, False, True])["station"].read().tolist() == ["ZRH", "GVA"]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"area": 1.0}, "several dimensions cannot"),
        ({"scalar": 1.0}, "no coordinate 'scalar'"),
        ({"statoin": "BRN"}, "did you mean 'station'"),
        ({"station": "XXX"}, "no label XXX; its 3 labels lie between BRN and ZRH"),
        ({"station": 3}, "contains strings, found the label"),
        ({"lead": 6}, "contains durations: expected a duration"),
        ({"height": "high"}, "contains numbers"),
        ({"station": "BRN", "height": 553}, "both select along"),
        ({"station": [True]}, "a mask of 'station' needs 3 elements"),
        ({"height": [[432.0]]}, "at most one dimension"),
        ({"lead": slice(None, None, 0)}, "the step of a slice"),
        ({"height": slice(420, 500)}, "not sorted"),
        ({"height": 500.0, "method": "nearest"}, "not sorted"),
    ]
    for labels, message in refused:
        method: Any = labels.pop("method", None)
        with pytest.raises(LabelError, match=message):
            group.sel(labels, method=method)
    arguments: list[tuple[dict[str, Any], str]] = [
        ({"mapping": {"station": "BRN"}, "station": "BRN"}, "pass them once"),
        ({"station": "BRN", "method": "linear"}, "method must be None"),
        ({"height": 432.0, "tolerance": 1.0}, "needs a method"),
        ({"height": 432.0, "method": "nearest", "tolerance": {"lead": 1}}, "belongs to none"),
        ({"member": 1, "method": "nearest"}, "positions without a method and tolerance"),
    ]
    for options, message in arguments:
        with pytest.raises(ValueError, match=message):
            group.sel(**options)
    with pytest.raises(TypeError, match="one mapping"):
        group.sel("station")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("order", [1, -1])
def test_wide_integers_are_exact_labels(dtype: str, order: int):
    start = 2**60
    near: dict[str, Any] = {"method": "nearest"}
    numbers = [start, start + 1, start + 4, start + 5]
    group = sync.create_group({})
    group.create_array("x", data=np.array(numbers, dtype)[::order], dimension_names=["x"])
    for label in (start + 1, np.uint64(start + 4), np.int64(start + 5), float(start), [start + 5, start]):
        assert np.array_equal(group.sel(x=label)["x"].read(), np.array(label, dtype))
    for kind in (np.int64, np.uint64):
        with pytest.raises(LabelError, match=f"no label {start + 2}"):
            group.sel(x=kind(start + 2))
        assert group.sel(x=kind(start + 2), **near)["x"].read() == start + 1
        assert group.sel(x=kind(start + 3), **near)["x"].read() == start + 4
        assert group.sel(x=slice(kind(start + 1), kind(start + 4)))["x"].shape == (2,)
        with pytest.raises(LabelError, match="within the tolerance"):
            group.sel(x=kind(start + 3), tolerance=0, **near)
    assert group.sel(x=-1, **near)["x"].read() == start
    assert group.sel(x=2**64 - 1, **near)["x"].read() == start + 5


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("other", [-1, 0.5, 2**64 - 1, np.uint64(2**63 + 5), np.int64(-7), 1e30])
def test_wide_integers_in_lists_with_others(dtype: str, order: int, other: Any):
    start = 2**60
    group = sync.create_group({})
    group.create_array("x", data=np.array([start, start + 1, start + 4], dtype)[::order], dimension_names=["x"])
    edge = start if other < start else start + 4
    for labels in ([other, start + 1, start + 3], [start + 1, start + 3, other], [start + 3, start + 1, float(other)]):
        nearest: dict[Any, int] = {start + 1: start + 1, start + 3: start + 4}
        wanted = [nearest.get(label, edge) for label in labels]
        assert group.sel(x=labels, method="nearest")["x"].read().tolist() == wanted
        with pytest.raises(LabelError, match="within the tolerance"):
            group.sel(x=labels, method="nearest", tolerance=0)
    with pytest.raises(LabelError, match="has no label"):
        group.sel(x=[start + 1, other])
    assert group.sel(x=[start + 1, float(start)])["x"].read().tolist() == [start + 1, start]
    with pytest.raises(LabelError, match="contains numbers, found the label"):
        group.sel(x=[start, 0.5, "a"])
    assert group.sel(x=[])["x"].read().tolist() == []


def test_distances_of_narrow_integers_do_not_overflow():
    group = sync.create_group({})
    group.create_array("x", data=np.array([-128, 127], "i1"), dimension_names=["x"])
    for label in (np.int8(-1), -1, -1.0, np.int64(-300)):
        assert group.sel(x=label, method="nearest")["x"].read() == -128
    assert group.sel(x=np.uint64(2**64 - 1), method="nearest")["x"].read() == 127


def test_labels_of_other_types():
    xr = pytest.importorskip("xarray", reason="xarray is not installed")
    group = sync.create_group({})
    group.create_array("name", data=np.array(["a", "b", ""]), dtype=str, dimension_names=["name"])
    group.create_array("code", data=np.array([b"x", b"y", b"z"]), dimension_names=["name"])
    numbers = np.array([2**53, 2**53 + 1, 2**53 + 2])
    group.create_array("number", data=numbers, dimension_names=["number"])
    times = {"units": "days since 2000-01-01", "_FillValue": -1}
    group.create_array("time", data=np.array([0, -1, 40]), attributes=times, dimension_names=["time"])
    group.create_array("v", data=np.arange(27).reshape(3, 3, 3), dimension_names=["name", "number", "time"])
    found = group.sel(name="b", number=2.0**53)  # as an integer it is exact
    assert found["v"].read().tolist() == [9, 10, 11]
    assert found["name"].read() == "b"
    group.create_array("id", data=numbers, dimension_names=["number"], attributes={"_FillValue": 2**53})
    assert group.sel(id=2**53 + 1)["v"].read().tolist() == [[3, 4, 5], [12, 13, 14], [21, 22, 23]]
    assert group.sel(id=np.nan)["v"].read()[0].tolist() == [0, 1, 2]
    assert group.sel(code=b"z")["name"].read() == ""
    assert group.sel(code=["z", "x"])["v"].shape == (2, 3, 3)
    assert group.sel(time=np.datetime64("NaT", "D"))["v"].read()[0, 0] == 1
    assert group.sel(time="2000-2-10")["v"].read()[0, 0] == 2
    day = xr.DataArray(np.datetime64("2000-02-10", "ns"))
    assert group.sel(time=day)["v"].read()[0, 0] == 2
    assert group.sel(name=xr.DataArray(["b", "a"], dims="name"))["name"].read().tolist() == ["b", "a"]
    place = group.sel(name=xr.DataArray(["b"], dims="place"), number=xr.DataArray([2**53], dims="place"))
    assert place["v"].read().tolist() == [[9, 10, 11]]
    with pytest.raises(LabelError, match=r"does not have the date 2000-02-31$"):
        group.sel(time="2000-02-31")
    with pytest.raises(LabelError, match="has no label near inf"):
        group.sel(number=np.inf, method="nearest")
    with pytest.raises(TypeError, match="names of coordinates are strings, found 3"):
        group.sel({3: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("label", ["a", 1.0, None, ..., [[1]], [True], slice("a", None)])
def test_positions_are_integers(label: Any):
    data = np.zeros((3, 2), [("a", "i4"), ("b", "f8")])  # the name of a field is not a label
    group = sync.create_group({})
    group.create_array("v", data=data, dimension_names=["x", "y"])
    assert group.sel(x=[True, False, True], y=[])["v"].shape == (2, 0)
    with pytest.raises(LabelError, match="its labels are positions: integers, a slice of integers, or a mask of 3"):
        group.sel(x=label)


@pytest.mark.parametrize(
    ("label", "count"),
    [("2000", 366), ("2000-02", 29), ("200002", 29), ("2000-02-29", 1), ("2000-02-29T12", 0), ("2000/03/01", 1)],
)
def test_partial_dates(label: str, count: int):
    group = sync.create_group({})
    units = {"units": "days since 1999-01-01"}
    group.create_array("time", data=np.arange(1000), attributes=units, dimension_names=["time"])
    found = group.sel(time=slice(label, label))["time"].read()
    assert len(found) == count
    assert all(str(day).startswith(label.replace("/", "-")[:4]) for day in found)


def test_calendars_need_no_cftime(monkeypatch: pytest.MonkeyPatch):
    import sys

    group = sync.create_group({})
    units = {"units": "days since 2001-01-01", "calendar": "360_day"}
    group.create_array("time", data=np.arange(720), attributes=units, dimension_names=["time"])
    group.create_array("v", data=np.arange(720), dimension_names=["time"])
    monkeypatch.setitem(sys.modules, "cftime", None)
    assert group.sel(time="2001-02-30", decode=False)["v"].read() == 59
    assert group.sel(time=slice("2001-12", "2002-01"))["v"].read().tolist() == list(range(330, 390))
    with pytest.raises(LabelError, match="does not have"):
        group.sel(time="2001-02-31")
    with pytest.raises(LabelError, match="expected a date"):
        group.sel(time="yesterday")


def test_the_axes_of_conventions(tmp_path: Any):
    attributes = {
        "zarr_conventions": [{"uuid": "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4", "name": "spatial:"}],
        "spatial:dimensions": ["y", "x"],
        "spatial:transform": [10.0, 0.0, 500.0, 0.0, -10.0, 200.0],
    }
    group = sync.create_group(tmp_path)
    group.create_array("v", data=np.arange(12).reshape(3, 4), attributes=attributes, dimension_names=["y", "x"])
    part = group["v"].sel(x=515, y=175)
    assert part.read() == 9
    assert group["v"].sel(x=512, y=slice(200, 180), method="nearest").read().tolist() == [1, 5]


@pytest.mark.parametrize("others", [{}, {"time": slice("2000-01-02", None)}, {"z": 10.0}, {"time": TWO_DAYS}], ids=str)
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_points_are_those_of_xarray(others: dict[str, Any], shape: tuple[int, ...]):
    """Their dimensions take the place of the first of the coordinates, in every order of the axes."""
    xr = pytest.importorskip("xarray", reason="xarray is not installed")
    sizes, group = {"time": 3, "z": 2, "lat": 7, "lon": 9}, sync.create_group({})
    units = {"lat": "degrees_north", "lon": "degrees_east", "time": "days since 2000-01-01", "z": "m"}
    labels = {"time": np.arange(3), "z": [0.0, 10.0], "lat": np.linspace(60, 0, 7), "lon": np.arange(9) * 40.0}
    for name, values in labels.items():
        group.create_array(name, data=values, dimension_names=[name], attributes={"units": units[name]})
    orders = ["time z lat lon", "time lat z lon", "lat time lon z", "lon lat z time", "lat z", "time"]
    for number, order in enumerate(dims.split() for dims in orders):
        values = np.arange(np.prod([sizes[dim] for dim in order])).reshape([sizes[dim] for dim in order])
        group.create_array(f"v{number}", data=values, dimension_names=order, chunks=(2,) * len(order))
    places = {"lat": np.reshape([1.0, 33, 57, 33], shape), "lon": np.reshape([5.0, 100, 319, 100], shape)}
    arrays = {name: xr.DataArray(values, dims=("p", "q")[: len(shape)]) for name, values in places.items()}
    dataset = group.to_xarray().sel(arrays, method="nearest").sel(others)
    for found in (
        group.sel(points=places, method="nearest", **others),
        group.sel(arrays, method="nearest", **others),
    ):
        assert {*found} == {*dataset.variables}
        for name, part in found.items():
            np.testing.assert_array_equal(part.read(), dataset[name].to_numpy())
    last = (-1,) * len(shape)
    part = group.sel(points=places, method="nearest")["v2"]  # a selection as others: it is indexed again
    np.testing.assert_array_equal(part[last].read(), part.read()[last])
    np.testing.assert_array_equal(part.vindex[0, [1, 0]].read(), part.read()[0, [1, 0]])


async def test_points_in_time_read_each_chunk_once(api: Api):
    values: dict[str, bytes] = {}
    expected = grid(values)
    store = CountingStore(MemoryStore(values))
    group = await api(api.open_group(store))
    track = {"time": ["2000-01-01", "2000-01-02", dt.datetime(2000, 2, 1)], "lat": [30, 30, -60], "lon": -60}
    part = (await api(group.sel(points=track)))["t2m"]
    store.reset()
    np.testing.assert_array_equal(await api(part.read()), expected[[1, 2, 32], [2, 2, 5], [10, 10, 10]])
    assert store.reset().fetches == 2
    with pytest.raises(LabelError, match=r"lat \(2,\), lon \(3,\)"):
        await api(group.sel(points={"lat": [0, 30], "lon": [0, 30, 60]}))
    with pytest.raises(LabelError, match="points of 'lat' must be labels, found a slice"):
        await api(group.sel(points={"lat": slice(0, 30), "lon": [0]}))
    with pytest.raises(LabelError, match="has no label 31"):
        await api(group.sel(points={"lat": [0, 31], "lon": 0}))
    with pytest.raises(ValueError, match="labels of 'lat' twice"):
        await api(group.sel(points={"lat": [0], "lon": 0}, lat=0))
    with pytest.raises(TypeError, match="points must be a mapping"):
        await api(group.sel(points=[(0, 0)]))
    decoded = await api((await api(group.get("t2m"))).decoded.sel(points=track))
    assert decoded.shape == (3,)


async def test_coordinates_are_read_once_by_concurrent_tasks():
    store = CountingStore(LatencyStore(MemoryStore(), 0.005))
    group = await za.create_group(store)
    for name, size in (("lat", 4), ("lon", 3)):
        await group.create_array(name, data=np.arange(size), dimension_names=[name])
    await group.create_array("t2m", data=np.arange(12).reshape(4, 3), dimension_names=["lat", "lon"])

    async def select(count: int) -> tuple[int, list[Any]]:
        found = await za.open_group(store)
        store.reset()
        selected = await asyncio.gather(*(found.sel(lat=1, lon=2) for _ in range(count)))
        return store.counts.requests, [await (await found.sel(lat=1, lon=2))["t2m"].read(), *selected]

    (one, values), (many, others) = await select(1), await select(20)
    assert one == many
    assert values[0] == others[0] == 5
    array = await za.open_array(store, path="t2m")
    store.reset()
    await asyncio.gather(*(array.sel(lat=n % 4) for n in range(20)))
    assert store.counts.requests <= 3
