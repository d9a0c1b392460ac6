"""Times of CF in all calendars, compared with cftime and xarray."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from zarrasync.errors import CodecError, EncodingError
from zarrasync.metadata.conventions.cf_encode import encode
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_labels import TimeAxis
from zarrasync.metadata.conventions.cf_times import (
    TimeUnits,
    convert_numbers,
    date_of_day,
    dates_to_numbers,
    day_number,
    has_same_origin,
    numbers_to_dates,
    units_of,
)

CALENDARS = ["standard", "gregorian", "proleptic_gregorian", "noleap", "365_day", "all_leap", "360_day", "julian"]
STARTS = ["1970-01-01", "1850-1-1", "2000-02-29T12:30:15.5", "0001-01-01 00:00", "1-1-1 6:00:00 +01:00", "1582-10-04"]


def units(calendar: str, text: str) -> TimeUnits:
    found = units_of({"units": text, "calendar": calendar})
    assert found is not None
    return found


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.filterwarnings("ignore:this date")
def test_numbers_are_the_dates_of_cftime(calendar: str, start: str):
    cftime = pytest.importorskip("cftime")
    numbers = np.array([0, 1, 59, 60, 365, 366, 1000, 123_456])
    for unit in ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds"):
        own = units(calendar, f"{unit} since {start}")
        if calendar in ("noleap", "365_day") and "02-29" in start:
            with pytest.raises(CodecError):
                numbers_to_dates(numbers, own)
            continue
        expected = cftime.num2date(numbers, own.units, own.calendar, only_use_cftime_datetimes=True)
        found = numbers_to_dates(numbers, own)
        fields = [date.isoformat(timespec="microseconds") for date in expected]
        texts = [
            str(np.datetime64(date, "us")) if found.dtype.kind == "M" else date.isoformat(timespec="microseconds")
            for date in found
        ]
        assert texts == fields
        assert dates_to_numbers(found, own).tolist() == numbers.tolist()
        other = units(calendar, "hours since 1901-03-04 05:06")
        np.testing.assert_allclose(
            convert_numbers(numbers, own, other).astype("f8"),
            np.asarray(cftime.date2num(expected, other.units, other.calendar), "f8"),
            rtol=1e-12,
            atol=1e-9,
        )


@pytest.mark.parametrize(
    "text", ["days since 2000-01-01", "hours since 1900-01-01 06:30", "seconds since 1970-01-01T00:00:00Z"]
)
@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8", "u2"])
def test_encoded_times_are_those_of_xarray(text: str, dtype: str):
    xr = pytest.importorskip("xarray")
    stored = np.array([0, 1, 250, 1000], dtype)
    attributes = {"units": text, "calendar": "proleptic_gregorian"}
    expected = xr.conventions.decode_cf_variable("t", xr.Variable("x", stored, attributes)).to_numpy()
    cf = CFEncoding.from_attributes(attributes, dtype)
    np.testing.assert_array_equal(cf.decode(stored), expected)
    np.testing.assert_array_equal(encode(expected, cf), stored)


@pytest.mark.parametrize("start", ["1970-01-01", "1850-01-01T06:30", "2000-01-01 00:00:00.000000001"])
@pytest.mark.parametrize("unit", ["days", "hours", "minutes", "seconds"])
@pytest.mark.parametrize("step", [np.timedelta64(1, "h"), np.timedelta64(10, "m"), np.timedelta64(1, "ms")])
def test_fractions_of_days_are_whole_minutes(start: str, unit: str, step: np.timedelta64):
    """Floating-point numbers of days stand for 05:00, and not for 04:59:59.999999843, which no label would select."""
    own = units("standard", f"{unit} since {start}")
    times = np.datetime64(start.replace(" ", "T"), "ns") + np.timedelta64(14_000, "D") + np.arange(500) * step
    numbers = dates_to_numbers(times, own).astype("f8")
    np.testing.assert_array_equal(numbers_to_dates(numbers, own), times)
    hours = units("standard", "hours since 2000-01-01")
    np.testing.assert_array_equal(convert_numbers(numbers, own, hours), dates_to_numbers(times, hours))


def test_times_between_round_ones_are_not_rounded():
    times = np.datetime64("2005-01-01T00:00:00.000000500", "ns") + np.arange(100) * np.timedelta64(1001, "us")
    own = units("standard", "days since 1970-01-01")
    found = numbers_to_dates(dates_to_numbers(times, own), own)
    assert np.abs(found - times).max() <= np.timedelta64(240, "ns")  # NumPy rounds twice to such numbers


def test_whole_numbers_are_exact():
    start = np.datetime64("1970-01-01T00:00:00.123456789", "ns")
    found = numbers_to_dates(np.array([0.0, 1.7e9]), units("standard", f"seconds since {start}"))
    assert found.tolist() == [start.astype("i8"), start.astype("i8") + 1_700_000_000 * 10**9]


def test_single_precision_is_not_rounded():
    numbers = np.array([1886.123], "f4")
    found = numbers_to_dates(numbers, units("standard", "days since 2000-01-01"))
    exact = np.datetime64("2000-01-01", "ns") + np.rint(numbers.astype("f8") * 86_400e9).astype("m8[ns]")
    assert abs(found - exact) <= np.timedelta64(64, "ns")


def test_missing_times():
    days = {"units": "days since 2000-01-01"}
    values = np.array(["2000-01-02", "NaT"], "M8[ns]")
    for dtype, missing in (("i8", np.iinfo("i8").min), ("f8", np.nan)):
        cf = CFEncoding.from_attributes(days, dtype)
        np.testing.assert_array_equal(encode(values, cf), np.array([1, missing], dtype))
        np.testing.assert_array_equal(cf.decode(encode(values, cf)), values)
    cf = CFEncoding.from_attributes({**days, "_FillValue": -1}, "i2")
    assert encode(values, cf).tolist() == [1, -1]
    np.testing.assert_array_equal(cf.decode(np.array([1, -1], "i2")), values)
    with pytest.raises(EncodingError, match="NaT at index 1"):
        encode(values, CFEncoding.from_attributes(days, "i4"))
    with pytest.raises(EncodingError, match="stands for missing"):
        encode(np.array(["1999-12-31"], "M8[ns]"), cf)


def test_times_are_exact_or_refused():
    cf = CFEncoding.from_attributes({"units": "days since 2000-01-01"}, "i8")
    with pytest.raises(EncodingError, match="not a whole number of 'days"):
        encode(np.array(["2000-01-01T06"], "M8[ns]"), cf)
    packed = CFEncoding.from_attributes({"units": "days since 2000-01-01", "scale_factor": 0.25}, "i4")
    assert encode(np.array(["2000-01-02T06"], "M8[s]"), packed).tolist() == [5]
    assert packed.decode(np.array([5], "i4")) == np.datetime64("2000-01-02T06")
    durations = CFEncoding.from_attributes({"units": "hours", "dtype": "timedelta64[ns]"}, "i4")
    assert encode(np.array([7200], "m8[s]"), durations).tolist() == [2]
    with pytest.raises(EncodingError, match="durations cannot be stored"):
        encode(np.array([7200], "m8[s]"), cf)


def test_calendars_are_never_mixed():
    values = np.array(["2000-03-01"], "M8[ns]")
    with pytest.raises(EncodingError, match="'noleap' is needed"):
        encode(values, CFEncoding.from_attributes({"units": "days since 2000-01-01", "calendar": "noleap"}, "i8"))
    with pytest.raises(CodecError, match="'noleap'"):
        convert_numbers(
            np.array([1]), units("noleap", "days since 2000-01-01"), units("standard", "days since 2000-01-01")
        )
    with pytest.raises(EncodingError, match="differ before 1582-10-15"):
        encode(np.array(["1500-01-01"], "M8[s]"), CFEncoding.from_attributes({"units": "days since 2000-01-01"}, "i8"))
    assert has_same_origin(
        units("standard", "hour since 2000-1-1"), units("gregorian", "hours since 2000-01-01 00:00 UTC")
    )
    assert not has_same_origin(units("standard", "days since 2000-01-01"), units("noleap", "days since 2000-01-01"))


def test_times_far_from_now_need_no_nanoseconds():
    cf = CFEncoding.from_attributes({"units": "days since 0001-01-01", "calendar": "proleptic_gregorian"}, "i8")
    values = np.array(["0001-01-02", "9999-12-31"], "M8[s]")
    np.testing.assert_array_equal(cf.decode(encode(values, cf)), values)
    with pytest.raises(CodecError, match="out of the range"):
        cf.decode(np.array([2**63 - 1]))


@pytest.mark.parametrize(
    "text",
    [
        "days since yesterday",
        "days since 2000-13-01",
        "fortnights since 2000-01-01",
        "days since 2000-01-01 25:00",
        "hours since 2000-01-01 00:61",
        "days since 2000-01-01 00:00:00+99",
    ],
)
def test_units_that_cannot_be_decoded(text: str):
    with pytest.raises(CodecError, match=r"contain no valid date|does not have|are not times"):
        CFEncoding.from_attributes({"units": text}, "i8").decode(np.array([1]))


@pytest.mark.parametrize(
    "calendar", ["standard", "proleptic_gregorian", "noleap", "365_day", "all_leap", "360_day", "julian"]
)
def test_days_of_calendars_are_their_dates(calendar: str):
    rng = np.random.default_rng(1)
    for number in [*range(-141_500, -141_400), *range(-800, 800), *rng.integers(-700_000, 700_000, 300).tolist()]:
        assert day_number(calendar, *date_of_day(calendar, number)) == number


@pytest.mark.parametrize("calendar", ["", "  "])
def test_empty_calendars_are_unknown_and_no_durations(calendar: str):
    encoding = CFEncoding.from_attributes({"units": "days since 2000-01-01", "calendar": calendar}, "i8")
    with pytest.raises(CodecError, match=r"'\(empty\)'"):
        encoding.decode(np.array([1]))
    with pytest.raises(CodecError):
        encode(np.array(["2000-01-02"], "M8[D]"), encoding)


def test_calendars_without_cftime(monkeypatch: pytest.MonkeyPatch):
    found = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "cftime":
            raise ImportError(name)
        return found(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    unusual = CFEncoding.from_attributes({"units": "days since 2000-01-01", "calendar": "360_day"}, "i4")
    with pytest.raises(CodecError, match=r"zarrasync\[cf\]"):
        unusual.decode(np.array([59], "i4"))
    usual = CFEncoding.from_attributes({"units": "days since 0001-01-01"}, "i4")  # standard calendar, before the reform
    assert usual.decode(np.array([730_000], "i4")).astype("M8[D]").tolist() == [np.datetime64("1999-09-02").item()]


def test_dates_of_cftime():
    cftime = pytest.importorskip("cftime")
    dates = np.array([cftime.DatetimeNoLeap(2000, 3, 1), None], object)
    cf = CFEncoding.from_attributes({"units": "days since 2000-01-01", "calendar": "noleap", "_FillValue": -1}, "i4")
    assert encode(dates, cf).tolist() == [59, -1]
    assert cf.decode(np.array([59, -1], "i4")).tolist() == dates.tolist()
    with pytest.raises(EncodingError, match="'360_day' is needed"):
        encode(dates, CFEncoding.from_attributes({"units": "days since 2000-01-01", "calendar": "360_day"}, "i4"))


@pytest.mark.parametrize("number", [1 << 60, -(1 << 60), 2.0**61])
def test_numbers_that_are_too_far_away_are_no_dates(number: float):
    with pytest.raises(CodecError, match="are not times"):  # and not others, because of an overflow
        numbers_to_dates(np.array([number]), TimeUnits("days since 2024-02-28", "proleptic_gregorian"))
    with pytest.raises(CodecError, match="are not times"):
        numbers_to_dates(np.array([number]), TimeUnits("days", ""))
    encoding = CFEncoding.from_attributes({"units": "days since 2024-02-28"}, "i8")
    with pytest.raises(CodecError, match="have no labels"):
        TimeAxis.of(encoding, np.array([10**9]), "time")
