"""Whatever is stored is read back equal within the step of its packing by zarr-python and xarray, or the write is refused."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zarrasync.errors import CodecError
from zarrasync.metadata.conventions import cf_encode, cf_times

xr: Any = pytest.importorskip("xarray")
zarr: Any = pytest.importorskip("zarr")
cftime: Any = pytest.importorskip("cftime")

from zarrasync.integrations.xarray import write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")  # also on the threads that compute blocks
EXAMPLES = int(os.environ.get("ZARRASYNC_EXAMPLES", "200"))
DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"]
UNITS = [
    f"{unit} since {start}" for unit in ("days", "hours", "seconds") for start in ("1970-01-01", "2000-04-28 06:00")
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


def edges_of(encoding: dict[str, Any], dtype: np.dtype[Any]) -> list[Any]:
    """Return values of a data type that are stored as the first and last numbers, those beside them, or missing ones."""
    stored = encoding["dtype"]
    if stored.kind == "f":
        most = float(np.finfo(stored).max)
        edges = [most, -most, 1.01 * most if stored == "f4" else most, 1e300]
    else:
        sign = {"true": "u", "false": "i"}.get(encoding.get("_Unsigned", ""), stored.kind)
        limits = np.iinfo(f"{sign}{stored.itemsize}")
        edges = [edge for limit in (limits.min, limits.max) for edge in (limit - 1, limit, limit + 1)]
    edges += [encoding[key].item() for key in ("_FillValue", "missing_value") if key in encoding]
    values = [edge * encoding.get("scale_factor", 1) + encoding.get("add_offset", 0) for edge in edges]
    if dtype.kind == "f":
        return [dtype.type(value) for value in values if abs(value) <= np.finfo(dtype).max]
    most = np.iinfo(dtype)
    return [int(value) for value in values if most.min <= value <= most.max and value == int(value)]


@st.composite
def number_variables(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    kind = draw(st.sampled_from(["f8", "f8", "f4", "i2", "u2", "i8", "?"]))
    encoding = draw(number_encodings()) if kind != "?" or draw(st.booleans()) else {}
    elements: st.SearchStrategy[Any] = st.booleans() if kind == "?" else numbers(kind)
    edges = edges_of(encoding, np.dtype(kind)) if kind != "?" else []
    if draw(st.booleans()) and edges:
        elements = st.sampled_from(edges)
    return draw(arrays.arrays(np.dtype(kind), st.integers(1, 4), elements=elements)), encoding


@st.composite
def time_variables(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    calendar = draw(st.sampled_from(CALENDARS))
    dtype = np.dtype(draw(st.sampled_from(["i2", "i4", "i8", "f4", "f8"])))
    encoding: dict[str, Any] = {"units": draw(st.sampled_from(UNITS)), "dtype": dtype}
    if draw(st.booleans()):
        encoding["_FillValue"] = draw(st.sampled_from([0, -1, 100]))
    seconds = draw(st.lists(st.integers(-90_000, 90_000), min_size=1, max_size=4))
    step = draw(st.sampled_from([1, 60, 3600, 86400, 86400]))
    if calendar in ("standard", "proleptic_gregorian") and draw(st.booleans()):
        values = np.datetime64("2000-03-01", "ns") + np.array(seconds) * np.timedelta64(step, "s")
        values[draw(st.lists(st.integers(0, len(seconds) - 1), max_size=1))] = "NaT"
        encoding["calendar"] = draw(st.sampled_from(["standard", "proleptic_gregorian"]))
        return values, encoding
    own = calendar if draw(st.booleans()) else draw(st.sampled_from(CALENDARS))  # of the encoding
    start = cftime.datetime(draw(st.sampled_from([1582, 2000])), 2, 28, calendar=calendar)
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
        if found.dtype.kind == "M":  # which xarray returns for the Gregorian calendar
            values = np.array([date.isoformat() for date in values], found.dtype)
            assert (np.abs(found - values) < np.timedelta64(1, "ms")).all()
            return
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


def run(examples: int, part: int, **options: Any) -> None:
    """Examine random variables.

    Raises:
        AssertionError: If values have changed, or if a refusal has changed the store.
    """
    options |= {"max_examples": examples, "deadline": None, "suppress_health_check": CHECKS}
    seed(part)(settings(**options)(given(**CASES)(examine)))()


@given(**CASES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_values_are_read_back_or_refused(
    variable: tuple[Any, dict[str, Any]], zarr_format: Any, lazy: bool, appends: bool
):
    examine(variable, zarr_format, lazy, appends)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_variables(part: int):
    run(1000, part)


# ------------------------------------------------------------------ faults that the test must find

FAULTS: dict[str, tuple[Any, str, str]] = {
    "values that are read as missing": (
        cf_encode.encode,
        "encoding.is_marked(result) & ~missing",
        "~missing & missing",
    ),
    "missing values without a number": (cf_encode.encode, 'missing, "it is missing', '~missing & missing, "it is'),
    "numbers out of range": (cf_encode._cast, "refuse(~fits & ~missing", "refuse(fits & ~fits"),
    "the number after the last": (cf_encode._cast, "< float(high + 1)", "<= float(high + 1)"),
    "the number before the first": (cf_encode._cast, ">= float(low)", ">= float(low) - 1"),
    "infinity of single precision": (cf_encode._cast, "refuse(lost & ~missing", "refuse(lost & ~lost"),
    "rounding": (cf_encode._cast, "np.rint(packed)", "np.trunc(packed)"),
    "signs": (cf_encode._cast, "dtype = encoding.number_dtype", "dtype = encoding.dtype"),
    "offsets": (cf_encode._packed, "packed -= encoding.offset", "packed += encoding.offset"),
    "parts of units": (cf_encode._numbers_of, "numbers != np.rint(numbers)", "numbers != numbers"),
    "swapped calendars": (cf_times._instants_of_objects, "if not {name, units.calendar} <= _GREGORIAN", "if not name"),
    "days before the reform": (cf_times._check_reform, "calendar != units.calendar and", "False and"),
    "leap days": (cf_times._day, "leap if month > 2 else 0", "0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch):
    function, old, new = FAULTS[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1
    faulty: dict[str, Any] = {}
    exec(compile(source.replace(old, new), __file__, "exec"), function.__globals__, faulty)
    monkeypatch.setattr(function, "__code__", faulty[function.__name__].__code__)
    cf_times._unit_and_zero.cache_clear()
    with pytest.raises((AssertionError, ExceptionGroup)):
        run(3000, 0, phases=[Phase.generate], database=None)
    cf_times._unit_and_zero.cache_clear()
