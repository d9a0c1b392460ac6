"""Kinds of stored numbers, and files and stores that contain them. Other libraries write both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cftime
import netCDF4
import numpy as np
import numpy.typing as npt
import zarr
from xarray.backends.zarr import FillValueCoder

__all__ = ["CASES", "VARIABLE", "Case", "spread", "write_file", "write_store"]

VARIABLE = "v"
NAN, NAT = np.nan, np.datetime64("NaT", "ns")
SHAPE = (2, 4, 4)
"""The shape of the variable: time, y and x."""


@dataclass(frozen=True)
class Case:
    """Eight stored numbers, each of which fills two by two cells.

    Attributes:
        title: The row of the table.
        stored: The stored numbers.
        values: What they mean.
        attributes: The attributes of the variable.
        encoding: An encoding that cannot represent all values, if writing it must be refused.
        kind: How the file contains the variable: ``plain``, ``char``, ``enum``, ``bounds``, ``climatology``, or ``zarr``
            for values that netCDF does not have.
    """

    title: str
    stored: npt.NDArray[Any]
    values: npt.NDArray[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "plain"


def _days(*numbers: float, calendar: str = "") -> npt.NDArray[Any]:
    if calendar:
        start = cftime.datetime(2024, 2, 28, calendar=calendar)
        return np.array([start + np.timedelta64(int(day), "D").astype(object) for day in numbers], object)
    hours = np.array([0 if day != day else round(day * 24) for day in numbers], "m8[h]")
    dates = np.datetime64("2024-02-28", "ns") + hours
    dates[np.isnan(np.asarray(numbers, float))] = NAT
    return dates


def _numbers(dtype: str, *numbers: Any) -> npt.NDArray[Any]:
    return np.array(numbers, dtype)


DAYS = {"units": "days since 2024-02-28", "calendar": "standard"}
FILL_2, FILL_F = np.int16(-9), np.float32(-9)

CASES = [
    Case(
        "`_FillValue`",
        _numbers("i2", 0, 1, -9, 3, 4, 5, 6, -9),
        _numbers("f4", 0, 1, NAN, 3, 4, 5, 6, NAN),
        {"_FillValue": FILL_2},
    ),
    Case(
        "`missing_value`",
        _numbers("f4", 0, 1, -9, 3, 4, 5, 6, -9),
        _numbers("f4", 0, 1, NAN, 3, 4, 5, 6, NAN),
        {"missing_value": FILL_F},
    ),
    Case(
        "several `missing_value`",
        _numbers("f4", 0, 1, -9, 3, -8, 5, 6, -9),
        _numbers("f4", 0, 1, NAN, 3, NAN, 5, 6, NAN),
        {"missing_value": _numbers("f4", -9, -8)},
    ),
    Case(
        "`_FillValue` and another `missing_value`",
        _numbers("i2", 0, 1, -9, 3, -8, 5, 6, 7),
        _numbers("f4", 0, 1, NAN, 3, NAN, 5, 6, 7),
        {"_FillValue": FILL_2, "missing_value": np.int16(-8)},
    ),
    Case(
        "`_Unsigned`",
        _numbers("i1", 0, 1, 100, 127, -128, -100, -2, -1),
        _numbers("f4", 0, 1, 100, 127, 128, 156, 254, NAN),
        {"_Unsigned": "true", "_FillValue": np.int8(-1)},
    ),
    Case(
        "`scale_factor` of integers",
        _numbers("i2", -100, 0, 1, 2, 3, 300, 3000, -9),
        _numbers("f8", -50, 0, 0.5, 1, 1.5, 150, 1500, NAN) + 273.25,
        {"scale_factor": 0.5, "add_offset": 273.25, "_FillValue": FILL_2, "units": "K"},
    ),
    Case(
        "`scale_factor` of floats",
        _numbers("f4", -100, 0, 1, 2, 3, 300, 3000, -9),
        _numbers("f4", -50, 0, 0.5, 1, 1.5, 150, 1500, NAN),
        {"scale_factor": np.float32(0.5), "_FillValue": FILL_F},
    ),
    Case(
        "`valid_range`",
        _numbers("f4", -100, 0, 1, 2, 3, 4, 5, 1000),
        _numbers("f4", NAN, 0, 1, 2, 3, 4, 5, NAN),
        {"valid_range": _numbers("f4", 0, 10)},
    ),
    Case(
        "flags",
        _numbers("u1", 0, 1, 2, 2, 1, 0, 1, 2),
        _numbers("u1", 0, 1, 2, 2, 1, 0, 1, 2),
        {"flag_values": _numbers("u1", 0, 1, 2), "flag_meanings": "clear cloud snow"},
    ),
    Case("NaN", _numbers("f4", 0, 1, NAN, 3, 4, 5, NAN, 7), _numbers("f4", 0, 1, NAN, 3, 4, 5, NAN, 7)),
    Case(
        "infinity",
        _numbers("f4", 0, 1, np.inf, 3, 4, 5, -np.inf, 7),
        _numbers("f4", 0, 1, np.inf, 3, 4, 5, -np.inf, 7),
    ),
    Case(
        "NaT",
        _numbers("i4", 0, 1, -9, 3, 4, 5, 6, -9),
        _days(0, 1, NAN, 3, 4, 5, 6, NAN),
        {**DAYS, "_FillValue": np.int32(-9)},
    ),
    Case(
        "too large for the encoding",
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, 70000),
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, 70000),
        encoding={"dtype": "int16"},
    ),
    Case(
        "too small for the encoding",
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, -1),
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, -1),
        encoding={"dtype": "uint8"},
    ),
    Case(
        "`float64` too large for `float32`",
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, 1e300),
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, 1e300),
        encoding={"dtype": "float32"},
    ),
    Case(
        "NaN, and integers without a number for it",
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, NAN),
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, NAN),
        encoding={"dtype": "int16"},
    ),
    Case(
        "infinity, and integers",
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, np.inf),
        _numbers("f8", 0, 1, 2, 3, 4, 5, 6, np.inf),
        encoding={"dtype": "int16"},
    ),
    Case(
        "units of time",
        _numbers("i4", 0, 6, 12, 18, 24, 48, 72, 96),
        _days(0, 0.25, 0.5, 0.75, 1, 2, 3, 4),
        {"units": "hours since 2024-02-28", "calendar": "standard"},
    ),
    Case(
        "calendar",
        _numbers("i4", 0, 1, 2, 3, 4, 5, 6, 7),
        _days(0, 1, 2, 3, 4, 5, 6, 7, calendar="noleap"),
        {"units": "days since 2024-02-28", "calendar": "noleap"},
    ),
    Case("bounds", _numbers("i4", 0, 1, 2, 3, 4, 5, 6, 7), _days(0, 1, 2, 3, 4, 5, 6, 7), kind="bounds"),
    Case("climatology", _numbers("i4", 0, 1, 2, 3, 4, 5, 6, 7), _days(0, 1, 2, 3, 4, 5, 6, 7), kind="climatology"),
    Case(
        "boolean",
        _numbers("i1", 0, 1, 1, 0, 0, 1, 0, 1),
        _numbers("?", 0, 1, 1, 0, 0, 1, 0, 1),
        {"dtype": "bool"},
    ),
    Case("characters", _numbers("S1", *"abcdefgh"), _numbers("S1", *"abcdefgh"), kind="char"),
    Case("strings", _numbers("O", *"abcdefg", "é h"), _numbers("O", *"abcdefg", "é h")),
    Case("enumeration", _numbers("u1", 0, 1, 2, 2, 1, 0, 1, 2), _numbers("u1", 0, 1, 2, 2, 1, 0, 1, 2), kind="enum"),
    Case("complex", _numbers("c16", 0, 1j, 2, 3, 4, 5, 6, 7), _numbers("c16", 0, 1j, 2, 3, 4, 5, 6, 7), kind="zarr"),
]


def spread(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of the shape ``SHAPE`` in which each of eight values fills two by two cells."""
    return numbers.reshape(2, 2, 2).repeat(2, 1).repeat(2, 2)


def write_file(case: Case, path: Path) -> Path:
    """Write a netCDF file by netCDF4; a Zarr store by zarr-python for values that netCDF does not have."""
    if case.kind == "zarr":
        return write_store(case, path.with_suffix(".zarr"))
    with netCDF4.Dataset(path, "w") as file:
        for name, size in zip(("time", "y", "x"), SHAPE, strict=True):
            file.createDimension(name, size)
        time = file.createVariable("time", "i4", ("time",))
        time.setncatts({**DAYS, **({case.kind: VARIABLE} if case.kind in ("bounds", "climatology") else {})})
        time[:] = [0, 1]
        dtype: Any = str if case.stored.dtype == object else case.stored.dtype
        if case.kind == "enum":
            dtype = file.createEnumType(np.uint8, "cover", {"clear": 0, "cloud": 1, "snow": 2})
        attributes = dict(case.attributes)
        options = {"fill_value": attributes.pop("_FillValue")} if "_FillValue" in attributes else {}
        variable = file.createVariable(VARIABLE, dtype, ("time", "y", "x"), **options)
        variable.set_auto_maskandscale(False)  # the numbers are written as they are
        variable.setncatts(attributes)
        variable[:] = spread(case.stored)
    return path


def write_store(case: Case, path: Path) -> Path:
    """Write a store by zarr-python, with the same numbers and attributes."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    values = spread(case.stored)
    options: dict[str, Any] = {"data": values} if values.dtype != object else {"shape": SHAPE, "dtype": str}
    attributes = {name: np.asarray(value).tolist() for name, value in case.attributes.items()}
    if case.kind == "enum":
        attributes |= {"flag_values": [0, 1, 2], "flag_meanings": "clear cloud snow"}
    if "_FillValue" in attributes:
        options["fill_value"] = attributes["_FillValue"]
        attributes["_FillValue"] = FillValueCoder.encode(case.attributes["_FillValue"], case.stored.dtype)
    array = group.create_array(
        VARIABLE, chunks=(1, 4, 4), dimension_names=("time", "y", "x"), attributes=attributes, **options
    )
    if values.dtype == object:
        array[:] = values.astype(str)
    parent = {case.kind: VARIABLE} if case.kind in ("bounds", "climatology") else {}
    group.create_array(
        "time", data=np.array([0, 1], "i4"), dimension_names=("time",), attributes={**DAYS, **parent}, fill_value=-1
    )
    return path
