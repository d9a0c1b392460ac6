"""Times in one unit: conversion of encoded times between CF units. Needs xarray, and cftime for unusual calendars."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.fork import thread_lock
from zarrasync.errors import CodecError

__all__ = ["TimeUnits", "common_units", "convert_times", "units_of"]

_warning_filters = thread_lock()
"""Guards the process's warning filters, because restoring them in one thread undoes the changes of another."""
_FINER = ("hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_GREGORIAN = {"standard", "proleptic_gregorian"}
"""Calendars that agree for all dates since the Gregorian reform."""
_REFORM = (1582, 10, 15)


class TimeUnits(NamedTuple):
    """The units of encoded times.

    Attributes:
        units: For example ``"hours since 1970-01-01"``.
        calendar: The calendar.
    """

    units: str
    calendar: str = "standard"


def units_of(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Return the units of a variable with encoded times, or ``None`` for other variables."""
    units = attributes.get("units")
    if not isinstance(units, str) or " since " not in units:
        return None
    calendar = str(attributes.get("calendar", "standard")).lower()
    return TimeUnits(units, "standard" if calendar == "gregorian" else calendar)


def convert_times(
    values: npt.NDArray[Any], source: TimeUnits, target: TimeUnits, dtype: np.dtype[Any], name: str
) -> npt.NDArray[Any]:
    """Return encoded times in other units.

    Args:
        values: The encoded times.
        source: Their units.
        target: The units to convert to.
        dtype: The data type of the result.
        name: The name of the variable and the file, for messages.

    Raises:
        CodecError: If the calendars differ for these times, or a time is not exact in the units and the data type.
    """
    if source.calendar != target.calendar and not {source.calendar, target.calendar} <= _GREGORIAN:
        raise CodecError(
            f"the times of {name} have the calendar {source.calendar!r}, but {target.calendar!r} is needed; convert the file "
            "first, for example with xarray's convert_calendar",
            direction="encode",
        )
    try:
        encoded = values if source == target or not values.size else _convert(values, source, target, name)
    except CodecError:
        raise
    except Exception as error:  # of several classes in xarray, pandas and cftime
        raise CodecError(
            f"the times of {name} in {source.units!r} (calendar {source.calendar!r}) cannot be converted to "
            f"{target.units!r} (calendar {target.calendar!r}): {error}",
            direction="encode",
        ) from error
    result = encoded.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(result, encoded):
        position = int(np.flatnonzero(result.reshape(-1) != encoded.reshape(-1))[0])
        raise CodecError(
            f"the time {values.reshape(-1)[position]} {source.units} of {name} is not a whole number of {target.units!r}, "
            "the units of the destination; create the destination with finer units, or with the data type f8 in the "
            "encoding of the variable",
            direction="encode",
        )
    return result


def _convert(values: npt.NDArray[Any], source: TimeUnits, target: TimeUnits, name: str) -> npt.NDArray[Any]:
    from xarray.coding.times import decode_cf_datetime, encode_cf_datetime

    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about times that are not whole numbers, which are found below
        dates = decode_cf_datetime(values, source.units, source.calendar)
        early = _before_reform(dates) if source.calendar != target.calendar else None
        if early is not None:
            raise CodecError(
                f"the times of {name} have the calendar {source.calendar!r}, but {target.calendar!r} is needed, and these "
                f"calendars differ before 1582-10-15, such as for {early}; convert the file first, for example with xarray's "
                "convert_calendar",
                direction="encode",
            )
        return np.asarray(encode_cf_datetime(dates, target.units, target.calendar)[0])


def _before_reform(dates: npt.NDArray[Any]) -> str | None:
    """Return a date before the Gregorian reform, if there is one."""
    if dates.dtype.kind == "M":
        early = dates[dates.astype("M8[s]") < np.datetime64("1582-10-15", "s")]
        return str(early[0]) if early.size else None
    for date in dates.reshape(-1):
        if hasattr(date, "year") and (date.year, date.month, date.day) < _REFORM:
            return str(date.isoformat())
    return None


def common_units(parts: Sequence[tuple[npt.NDArray[Any], TimeUnits]], dtype: np.dtype[Any], name: str) -> TimeUnits:
    """Return units in which the times of all files are exact: these of the first file, or finer ones.

    Args:
        parts: The encoded times of each file and their units.
        dtype: The data type to encode in.
        name: The name of the variable, for messages.

    Raises:
        CodecError: If the calendars differ, or times are finer than nanoseconds.
    """
    first = parts[0][1]
    start = first.units.partition(" since ")[2]
    candidates = [first, *(TimeUnits(f"{unit} since {start}", first.calendar) for unit in _FINER)]
    failure: CodecError | None = None
    for target in candidates:
        try:
            for values, units in parts:
                convert_times(values, units, target, dtype, name)
        except CodecError as error:
            failure = failure or error
        else:
            return target
    assert failure is not None
    raise failure
