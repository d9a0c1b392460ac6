"""Selecting by coordinates equals xarray, on drawn grids: calendars, descending and repeated labels, NaN, packed values."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("cftime", reason="cftime is not installed")
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zarrasync import sync

EXAMPLES = int(os.environ.get("ZARRASYNC_EXAMPLES", "60"))
UNSORTED = ("unsorted", "repeated unsorted", "with NaN")
ORDERS = ("increasing", "decreasing", "repeated", "repeated decreasing", *UNSORTED)
REFUSED = (KeyError, ValueError, TypeError, IndexError, NotImplementedError, pd.errors.InvalidIndexError)
"""What xarray and pandas raise if a selection is not possible."""


def ordered(draw: Any, numbers: list[int], order: str) -> np.ndarray:
    values = np.array(sorted(numbers))
    if order.startswith("repeated") and len(values) > 1:  # xarray has no direction for equal labels only
        values = np.sort(np.append(values, values[draw(st.integers(0, len(values) - 1))]))
    if "decreasing" in order:
        values = values[::-1]
    if order in UNSORTED:
        values = values[np.array(draw(st.permutations(range(len(values)))))]
    return values


@st.composite
def coordinates(draw: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Stored labels and their attributes."""
    kind = draw(st.sampled_from(["float", "float", "packed", "int", "text", "time", "time", "time"]))
    order = draw(st.sampled_from(ORDERS))
    numbers = draw(st.lists(st.integers(-40, 400), min_size=1, max_size=9, unique=True))
    values = ordered(draw, numbers, order)
    attributes: dict[str, Any] = {}
    if kind == "float":
        values = (values / 4).astype(draw(st.sampled_from(["f4", "f8"])))
        attributes["units"] = draw(st.sampled_from(["degrees_north", "m"]))
        if order == "with NaN":
            values[draw(st.integers(0, len(values) - 1))] = np.nan
    elif kind == "packed":
        attributes |= {"scale_factor": 0.1, "_FillValue": -999}
        values = values.astype("i2")
    elif kind == "text":
        values = np.array([f"n{value:04}" for value in values])
    elif kind == "int":
        values = values.astype(draw(st.sampled_from(["i2", "i4", "i8"])))
    elif kind == "time":
        unit = draw(st.sampled_from(["days", "hours", "days"]))
        attributes |= {
            "units": f"{unit} since {draw(st.sampled_from(['1999-12-30', '2000-02-27 06:00:00', '1850-01-01']))}",
            "calendar": draw(st.sampled_from(["standard", "proleptic_gregorian", "noleap", "360_day", "julian"])),
        }
        values = values * draw(st.sampled_from([1, 1, 30]))
        if order == "with NaN":
            values = values / 2.0
    return values, attributes


def text_of(value: Any, length: int) -> str:
    text = str(value.astype("M8[s]")) if isinstance(value, np.datetime64) else value.strftime("%Y-%m-%dT%H:%M:%S")
    return text[:length]


def draw_label(draw: Any, values: np.ndarray, *, is_new: bool) -> Any:
    """Return a label that exists, or, if `is_new`, another one."""
    value = values[draw(st.integers(0, len(values) - 1))]
    if values.dtype.kind in "OM" and not isinstance(value, str):
        if value != value:  # NaT
            return "1990"
        if draw(st.booleans()):
            return text_of(value, draw(st.sampled_from([4, 7, 10, 13, 19])))
        days = draw(st.sampled_from([-500, -1, 1, 700])) if is_new else 0
        return value + (
            np.timedelta64(days, "D") if values.dtype.kind == "M" else pd.Timedelta(days, "D").to_pytimedelta()
        )
    if isinstance(value, str):
        return value + "x" if is_new else value
    step = draw(st.sampled_from([-7.3, -0.2, 0.05, 0.125, 1.0])) if is_new else 0
    return (value + step).item()


@st.composite
def cases(draw: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Coordinates, labels, the options of ``sel``, and stored values."""
    dims = {name: draw(coordinates()) for name in ("x", "y")[: draw(st.integers(1, 2))]}
    method = draw(st.sampled_from([None, None, "nearest", "pad", "bfill"]))
    labels = {}
    for name, (stored, attributes) in dims.items():
        values = decoded(xr.Variable(name, stored, attributes))
        kind = draw(st.sampled_from(["scalar", "scalar", "slice", "slice", "list", "none"]))
        is_new = draw(st.booleans()) and not (method and isinstance(values[0], str))  # strings have no neighbours
        if kind == "scalar":
            labels[name] = draw_label(draw, values, is_new=is_new)
        elif kind == "list":
            labels[name] = [draw_label(draw, values, is_new=is_new) for _ in range(draw(st.integers(1, 3)))]
            if any(isinstance(label, str) for label in labels[name]) and values.dtype.kind in "OM":
                labels[name] = [values[0]] if values.dtype.kind == "O" else [np.datetime64("2000-01-01")]
        elif kind == "slice":
            start, stop = (
                draw(st.one_of(st.none(), st.just(draw_label(draw, values, is_new=is_new)))) for _ in range(2)
            )
            labels[name] = slice(start, stop, draw(st.sampled_from([None, None, 2, -1])))
    scalars = [item for label in labels.values() for item in (label if isinstance(label, list) else [label])]
    has_missing = any(label != label for label in scalars if isinstance(label, float))
    options = {} if method is None or has_missing else {"method": method}  # nothing is near NaN
    if options and draw(st.booleans()):
        options["tolerance"] = {
            name: draw(st.sampled_from([0.1, 2.0]))
            if decoded(xr.Variable(name, *dims[name])).dtype.kind in "if"
            else np.timedelta64(36, "h")
            for name, label in labels.items()
            if not isinstance(label, slice)
        }
    shape = tuple(len(stored) for stored, _ in dims.values())
    return dims, labels, options, (np.arange(np.prod(shape)).reshape(shape) % 50 - 1).astype("i2")


def decoded(variable: Any) -> np.ndarray:
    return xr.conventions.decode_cf_variable("x", variable, decode_timedelta=False).to_numpy()


def expected(dataset: Any, labels: dict[str, Any], options: dict[str, Any]) -> Any:
    """Select with xarray: slices apart, because it does not combine them with methods, on increasing axes, in steps of 1."""
    for name, label in labels.items():
        index = dataset.indexes[name]
        if isinstance(label, slice):
            start, stop, step = label.start, label.stop, label.step or 1
            start, stop = (start, stop) if step > 0 else (stop, start)
            is_decreasing = index.is_monotonic_decreasing and not index.is_monotonic_increasing
            if is_decreasing:
                if start is None or stop is None or not lies_before(index, start, stop):
                    start, stop = stop, start
                dataset = dataset.isel({name: slice(None, None, -1)})
            if start is not None or stop is not None:
                dataset = dataset.sel({name: slice(start, stop)})
            dataset = dataset.isel({name: slice(None, None, -1 if is_decreasing else 1)})
            dataset = dataset.isel({name: slice(None, None, step)})
        elif options and not isinstance(index[0], str):
            tolerance = options.get("tolerance", {}).get(name)
            first = begin(index, label) if isinstance(index, xr.CFTimeIndex) else label
            dataset = dataset.sel({name: first}, method=options["method"], tolerance=tolerance)
        else:
            dataset = dataset.sel({name: label})
    return dataset


def begin(index: Any, label: Any) -> Any:
    """Return the first date of a string."""
    if not isinstance(label, str) or not isinstance(index, pd.DatetimeIndex | xr.CFTimeIndex):
        return label
    if isinstance(index, pd.DatetimeIndex):
        return pd.Timestamp(label)
    parts = [int(part) for part in label.replace("T", "-").replace(":", "-").split("-")]
    return type(index[0])(*parts, *(1,) * (3 - len(parts)))


def lies_before(index: Any, one: Any, other: Any) -> bool:
    return begin(index, one) < begin(index, other)


def is_stricter(dims: dict[str, Any], labels: dict[str, Any]) -> bool:
    """Whether a slice of an unsorted axis begins or ends with a part of a date, which only CFTimeIndex allows."""
    slices = [(dims[name][0], label) for name, label in labels.items() if isinstance(label, slice)]
    return any(
        isinstance(end, str) and not (np.diff(stored) >= 0).all() and not (np.diff(stored) <= 0).all()
        for stored, label in slices
        if stored.dtype.kind in "if"
        for end in (label.start, label.stop)
    )


@given(cases())
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@pytest.mark.filterwarnings("ignore")
def test_selections_are_those_of_xarray(case: Any):
    dims, labels, options, values = case
    attributes = {"scale_factor": 0.5, "_FillValue": -1}
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    for name, (stored, own) in dims.items():
        dtype = str if stored.dtype.kind == "U" and len(stored) % 2 else stored.dtype  # of variable or fixed length
        group.create_array(name, data=stored, dtype=dtype, attributes=own, dimension_names=[name])
    group.create_array("v", data=values, attributes=attributes, dimension_names=[*dims], chunks=(3,) * len(dims))
    dataset = xr.Dataset(
        {"v": ([*dims], values, attributes)}, {name: (name, stored, own) for name, (stored, own) in dims.items()}
    )
    dataset = xr.decode_cf(dataset, decode_timedelta=False)
    try:
        want, error = expected(dataset, labels, options), None
    except REFUSED as refused:
        want, error = None, refused
    if error is not None:
        with pytest.raises(REFUSED):
            group.sel(labels, **options)
        return
    if is_stricter(dims, labels):
        with suppress(*REFUSED):
            group.sel(labels, **options)
        return
    found = {name: part.read() for name, part in group.sel(labels, **options).items()}
    for name in ("v", *dims):
        ours, theirs = np.asarray(found[name]), want[name].to_numpy()
        if any(isinstance(label, str) for label in labels.values()):  # CFTimeIndex never drops the dimension
            ours, theirs = np.squeeze(ours), np.squeeze(theirs)
        assert ours.shape == theirs.shape, (name, ours, theirs)
        if theirs.dtype.kind == "O":
            assert [str(item) for item in ours.flat] == [str(item) for item in theirs.flat]
        else:
            np.testing.assert_array_equal(ours, theirs)
            assert theirs.dtype.kind in "MUT" or ours.dtype == theirs.dtype
