"""Whatever is stored is read back equal within the step of its packing by zarr-python and xarray, or the write is refused."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zarrasync.errors import CodecError

xr: Any = pytest.importorskip("xarray")
zarr: Any = pytest.importorskip("zarr")
cftime: Any = pytest.importorskip("cftime")

from zarrasync.integrations.xarray import write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")  # also on the threads that compute blocks
EXAMPLES = int(os.environ.get("ZARRASYNC_EXAMPLES", "200"))
DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"]
UNITS = [
    f"{unit} since {start}" for unit in ("days", "hours", "seconds") for start in ("1970-01-01", "2000-02-28 06:00")
]
CALENDARS = ["standard", "proleptic_gregorian", "noleap", "all_leap", "360_day", "julian"]
NUMBERS = [-128, 127, 128, 255, 256, 32767, -32768, 65535, -1, 0, 1, 2**31 - 1, 2**31, 2**53 + 1, -(2**63), 2**63 - 1]
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)


@st.composite
def number_encodings(draw: st.DrawFn) -> dict[str, Any]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    encoding: dict[str, Any] = {"dtype": dtype}
    if draw(st.booleans()):
        encoding["scale_factor"] = draw(st.sampled_from([0.01, 0.5, 1.0, 2, -0.25, 1000.0, np.float32(0.1)]))
    if draw(st.booleans()):
        encoding["add_offset"] = draw(st.sampled_from([0.0, 273.15, -100.0, 5, np.float32(10)]))
    number = st.sampled_from([0, 1, 127, 5, 100] + ([-1, -128] if dtype.kind != "u" else []))
    if draw(st.booleans()):
        encoding["_FillValue"] = dtype.type(draw(number))
    elif draw(st.booleans()):
        encoding["missing_value"] = dtype.type(draw(number))
    if dtype.kind in "iu" and draw(st.booleans()):
        encoding["_Unsigned"] = "true" if dtype.kind == "i" else "false"
    return encoding


def numbers(kind: str) -> st.SearchStrategy[Any]:
    dtype = np.dtype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        edges = st.sampled_from([number for number in NUMBERS if limits.min <= number <= limits.max])
        return st.one_of(st.integers(-300, 300).filter(lambda n: limits.min <= n <= limits.max), edges)
    width: Any = 8 * dtype.itemsize
    edges = st.sampled_from([*map(float, NUMBERS), np.nan, np.inf, -np.inf, 1e300 if kind == "f8" else 3e38]).map(
        dtype.type
    )
    return st.one_of(st.integers(-300, 300).map(float), st.floats(width=width), edges)


@st.composite
def number_variables(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    kind = draw(st.sampled_from(["f8", "f8", "f4", "i2", "u2", "i8", "?"]))
    elements = st.booleans() if kind == "?" else numbers(kind)
    values = draw(arrays.arrays(np.dtype(kind), st.integers(1, 4), elements=elements))
    return values, draw(number_encodings()) if kind != "?" or draw(st.booleans()) else {}


@st.composite
def time_variables(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    calendar = draw(st.sampled_from(CALENDARS))
    dtype = np.dtype(draw(st.sampled_from(["i2", "i4", "i8", "f4", "f8"])))
    encoding: dict[str, Any] = {"units": draw(st.sampled_from(UNITS)), "dtype": dtype}
    if draw(st.booleans()):
        encoding["_FillValue"] = draw(st.sampled_from([0, -1, 100]))
    seconds = draw(st.lists(st.integers(-(10**5), 10**5), min_size=1, max_size=4))
    step = draw(st.sampled_from([1, 60, 3600, 86400, 86400]))
    if calendar in ("standard", "proleptic_gregorian"):
        values = np.datetime64("2000-03-01", "ns") + np.array(seconds) * np.timedelta64(step, "s")
        values[draw(st.lists(st.integers(0, len(seconds) - 1), max_size=1))] = "NaT"
        encoding["calendar"] = draw(st.sampled_from(["standard", "proleptic_gregorian"]))
        return values, encoding
    own = calendar if draw(st.booleans()) else draw(st.sampled_from(CALENDARS))  # of the encoding
    start = cftime.datetime(2000, 2, 28, calendar=calendar)
    dates = [start + dt.timedelta(seconds=step * number) for number in seconds]
    exact = np.dtype("f8") if dtype == "f4" else dtype
    return np.array(dates, object), encoding | {"calendar": own, "dtype": exact}


@st.composite
def other_variables(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    kind = draw(st.sampled_from(["texts", "fixed", "durations"]))
    size = draw(st.integers(1, 4))
    if kind == "durations":
        values = np.array(draw(st.lists(st.integers(-(10**6), 10**6), min_size=size, max_size=size)), "m8[s]")
        values[draw(st.lists(st.integers(0, size - 1), max_size=1))] = "NaT"
        encoding = {
            "units": draw(st.sampled_from(["days", "hours", "seconds"])),
            "dtype": draw(st.sampled_from(["f8", "i4", "i8"])),
        }
        return values.astype("m8[ns]"), encoding
    texts = draw(st.lists(TEXTS, min_size=size, max_size=size))
    return (np.array(texts, object) if kind == "texts" else np.array(texts, "U4")), {}


VARIABLES = st.one_of(number_variables(), number_variables(), time_variables(), other_variables())


def step_of(values: Any, encoding: dict[str, Any]) -> Any:
    """Return how much values may change: half a step of integers, and the precision of floats in computations."""
    dtype, scale = np.dtype(encoding.get("dtype", values.dtype)), abs(float(encoding.get("scale_factor", 1)))
    half = scale / 2 if dtype.kind in "iu" else 0.0
    size = np.abs(values.astype("f8")) + abs(float(encoding.get("add_offset", 0)))
    is_single = dtype == "f4" or (values.dtype == "f4") or isinstance(encoding.get("scale_factor"), np.float32)
    return half * (1 + 1e-9) + size * (2e-6 if is_single else 1e-12) + (1e-38 * scale if is_single else 0)


def check(values: Any, found: Any, encoding: dict[str, Any]) -> None:
    """Compare values with those that were read back.

    Raises:
        AssertionError: If they differ by more than the encoding implies.
    """
    if values.dtype.kind == "O" and values.size and hasattr(values[0], "calendar"):
        assert {date.calendar for date in found} == {date.calendar for date in values}
        assert all(abs(a - b) < dt.timedelta(milliseconds=1) for a, b in zip(found, values, strict=True))
        return
    if values.dtype.kind in "mM":
        assert (np.isnat(found) == np.isnat(values)).all()
        known = ~np.isnat(values)
        error = np.abs((found[known].astype(values.dtype) - values[known]).astype("i8"))
        is_float, name = np.dtype(encoding["dtype"]).kind == "f", encoding["units"].split()[0]
        unit = {"days": 86_400_000_000_000, "hours": 3_600_000_000_000, "seconds": 1_000_000_000}[name]
        precision = {"f4": 2e-6, "f8": 1e-13}.get(np.dtype(encoding["dtype"]).str[1:], 0) if is_float else 0
        origin = np.datetime64("1970-01-01", "ns") if values.dtype.kind == "M" else np.timedelta64(0, "ns")
        assert (error <= np.abs((values[known] - origin).astype("f8")) * precision + (1000 if is_float else 0)).all(), (
            unit
        )
        return
    if values.dtype.kind not in "biuf":
        assert found.tolist() == values.tolist()
        return
    if values.dtype.kind in "iu" and found.dtype.kind in "iu":
        assert found.tolist() == values.tolist()  # floats would hide differences of large integers
        return
    finite = np.isfinite(values.astype("f8"))
    np.testing.assert_array_equal(found[~finite].astype("f8"), values[~finite])
    assert (np.abs(found[finite].astype("f8") - values[finite].astype("f8")) <= step_of(values, encoding)[finite]).all()


def examine(variable: tuple[Any, dict[str, Any]], zarr_format: Any, lazy: bool, appends: bool) -> None:
    """Write, append and read a variable.

    Raises:
        AssertionError: If values have changed, or if a refusal has changed the store.
    """
    values, encoding = variable
    dataset = xr.Dataset({"v": ("x", values)})
    dataset = dataset.chunk(x=2) if lazy else dataset
    store = zarr.storage.MemoryStore()
    try:
        write_dataset(dataset, store, encoding={"v": encoding}, zarr_format=zarr_format)
    except CodecError:
        assert not store._store_dict
        return
    check(values, read(store, encoding), encoding)
    if appends:
        try:
            write_dataset(dataset, store, append_dim="x")
        except CodecError:
            assert read(store, encoding).size == values.size
            return
        check(np.concatenate([values, values]), read(store, encoding), encoding)


def read(store: Any, encoding: dict[str, Any]) -> Any:
    options = {"decode_timedelta": True} if encoding.get("units") in ("days", "hours", "seconds") else {}
    found = xr.open_dataset(store, engine="zarr", consolidated=False, **options).v
    return found.to_numpy()


CASES: dict[str, Any] = {
    "zarr_format": st.sampled_from([2, 3]),
    "variable": VARIABLES,
    "lazy": st.booleans(),
    "appends": st.booleans(),
}
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(**CASES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_values_are_read_back_or_refused(
    variable: tuple[Any, dict[str, Any]], zarr_format: Any, lazy: bool, appends: bool
):
    examine(variable, zarr_format, lazy, appends)
