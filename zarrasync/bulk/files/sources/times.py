"""Times in one unit: conversion of encoded times between CF units. Needs xarray, and cftime for unusual calendars."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.fork import thread_lock
from zarrasync.errors import CodecError

__all__ = ["TimeUnits", "common_units", "convert_times", "duration_units", "find_missing", "units_of"]

_warning_filters = thread_lock()
"""Guards the process's warning filters, because restoring them in one thread undoes the changes of another."""
_NANOSECONDS = {
    "days": 86_400_000_000_000,
    "hours": 3_600_000_000_000,
    "minutes": 60_000_000_000,
    "seconds": 1_000_000_000,
    "milliseconds": 1_000_000,
    "microseconds": 1_000,
    "nanoseconds": 1,
}
"""The lengths of units of durations."""
_SHORT = {"d": "days", "h": "hours", "hr": "hours", "min": "minutes", "s": "seconds", "sec": "seconds"} | {
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
"""Short names of units of durations."""
_FINER = ("hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_SYNONYMS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
"""Calendars with two names."""
_GREGORIAN = {"standard", "proleptic_gregorian"}
"""Calendars that agree for all dates since the Gregorian reform."""
_REFORM = (1582, 10, 15)
_NAT = np.iinfo(np.int64).min
"""The 64-bit integer that stands for a missing time in NumPy and xarray."""
_PACKING = {"scale_factor": 1, "add_offset": 0, "_Unsigned": "false"}
"""Attributes that change the meaning of stored numbers, with the values that do not."""


class TimeUnits(NamedTuple):
    """The units of encoded times or durations.

    Attributes:
        units: For example ``"hours since 1970-01-01"``, or ``"hours"`` for durations.
        calendar: The calendar; empty for durations.
    """

    units: str
    calendar: str = "standard"


def units_of(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Return the units of a variable with encoded times, or ``None`` for other variables."""
    units = attributes.get("units")
    if not isinstance(units, str) or " since " not in units:
        return None
    calendar = str(attributes.get("calendar", "standard")).lower()
    return TimeUnits(units, _SYNONYMS.get(calendar, calendar))


def duration_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Return the units of a variable with durations, or ``None`` for other variables."""
    units = attributes.get("units")
    return TimeUnits(units, "") if isinstance(units, str) and _duration(units) else None


def _duration(units: str) -> int | None:
    """Return the length of a unit of durations in nanoseconds, or ``None`` for other units."""
    return _NANOSECONDS.get(_SHORT.get(units, units)) or _NANOSECONDS.get(f"{units}s")


def convert_times(
    values: npt.NDArray[Any],
    source: TimeUnits,
    target: TimeUnits,
    dtype: np.dtype[Any],
    name: str,
    attributes: Mapping[str, Any],
) -> npt.NDArray[Any]:
    """Return encoded times in other units. Missing times keep their number.

    Args:
        values: The encoded times.
        source: Their units.
        target: The units to convert to.
        dtype: The data type of the result.
        name: The name of the variable and the file, for messages.
        attributes: The attributes of the variable, which specify missing values and packing.

    Raises:
        CodecError: If the calendars differ for these times, the units of packed times differ, or a time is not exact in
            the units and the data type.
    """
    if source.calendar != target.calendar and not {source.calendar, target.calendar} <= _GREGORIAN:
        raise CodecError(
            f"the times of {name} have the calendar {source.calendar!r}, but {target.calendar!r} is needed; convert the file "
            "first, for example with xarray's convert_calendar",
            direction="encode",
        )
    if source == target and values.dtype == dtype:
        return values
    missing = find_missing(values, attributes)
    known, encoded = values[~missing], values[~missing]
    if source != target and known.size:
        _check_unpacked(attributes, source, target, name)
        encoded = _encode(known, source, target, name)
    with np.errstate(invalid="ignore", over="ignore"):  # such numbers are found below
        converted = encoded.astype(dtype)
    _check_exact(converted, encoded, known, source, target, name)
    result = np.empty(values.shape, dtype)
    result[~missing] = converted
    result[missing] = _convert_missing(values[missing], dtype, name, attributes)
    if (hidden := find_missing(converted, attributes)).any():
        raise CodecError(
            f"the time {known[hidden][0]} {source.units} of {name} becomes {converted[hidden][0]} {target.units}, the number "
            "of missing values; convert the file to the units of the destination with another _FillValue",
            direction="encode",
        )
    return result


def find_missing(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Return which values are missing: NaN, NaT, and the numbers that the attributes specify."""
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    if values.dtype == np.int64:
        missing |= values == _NAT
    for key in ("_FillValue", "missing_value"):
        found = attributes.get(key)
        for item in found if isinstance(found, list | tuple) else (found,):
            number = item.item() if isinstance(item, np.generic) else item
            if isinstance(number, int | float) and values.dtype.kind in "iuf":
                missing |= values == number
    return missing


def _convert_missing(
    values: npt.NDArray[Any], dtype: np.dtype[Any], name: str, attributes: Mapping[str, Any]
) -> npt.NDArray[Any]:
    """Return the numbers of missing times in another data type."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = values.astype(dtype)
    if values.dtype == np.int64 and dtype.kind == "f":
        result[values == _NAT] = np.nan
    is_lost = ~find_missing(result, attributes)
    if values.dtype.kind == "f" and dtype.kind != "f":
        is_lost |= np.isnan(values)
    if is_lost.any():
        raise CodecError(
            f"{name} has a missing time, whose number {values[is_lost][0]} the data type {dtype} of the destination cannot "
            "represent; create the destination with the data type f8 in the encoding of the variable",
            direction="encode",
        )
    return result


def _check_unpacked(attributes: Mapping[str, Any], source: TimeUnits, target: TimeUnits, name: str) -> None:
    packed = [key for key, neutral in _PACKING.items() if attributes.get(key, neutral) != neutral]
    if packed:
        raise CodecError(
            f"the times of {name} are packed with {packed[0]} {attributes[packed[0]]!r}, and cannot be converted from "
            f"{source.units!r} to {target.units!r}; pass decode=True to unpack them, or convert the file first",
            direction="encode",
        )


def _encode(values: npt.NDArray[Any], source: TimeUnits, target: TimeUnits, name: str) -> npt.NDArray[Any]:
    """Return times in other units, in any data type."""
    try:
        return _convert(values, source, target, name)
    except CodecError:
        raise
    except Exception as error:  # of several classes in xarray, pandas and cftime
        raise CodecError(
            f"the times of {name} in {source.units!r} (calendar {source.calendar!r}) cannot be converted to "
            f"{target.units!r} (calendar {target.calendar!r}): {error}",
            direction="encode",
        ) from error


def _check_exact(
    converted: npt.NDArray[Any],
    encoded: npt.NDArray[Any],
    values: npt.NDArray[Any],
    source: TimeUnits,
    target: TimeUnits,
    name: str,
) -> None:
    """Check that a data type represents times.

    Args:
        converted: The times in the units and the data type of the destination.
        encoded: The times in these units.
        values: The times in the units and the data type of the file.
        source: The units of the file.
        target: The units of the destination.
        name: The name of the variable and the file, for messages.
    """
    dtype = converted.dtype
    if dtype.kind not in "iuf" or (dtype.kind == "f" and dtype.itemsize >= 8):
        return
    wrong = np.flatnonzero(converted != encoded)
    if dtype.kind == "f" and len(wrong):  # fractions are never exact, but must be as precise as in the file
        back = converted[wrong].astype("f8")
        if source != target:
            back = _encode(back, target, source, name)
        own = values[wrong]
        precision = np.spacing(np.abs(own)) if own.dtype.kind == "f" else 0
        wrong = wrong[np.abs(back - own.astype("f8")) > precision]
    if not len(wrong):
        return
    at = wrong[0]
    time = f"the time {values[at]} {source.units} of {name}"
    if dtype.kind != "f" and encoded[at] != np.floor(encoded[at]):
        raise CodecError(
            f"{time} is not a whole number of {target.units!r}, the units of the destination; create the destination with "
            "finer units, with {'attributes': {'units': 'seconds since …'}} in the encoding of the variable, or with the data type f8",
            direction="encode",
        )
    raise CodecError(
        f"{time} is {encoded[at]} in {target.units!r}, the units of the destination, which its data type {dtype} cannot "
        "represent; create the destination with the data type f8 or i8 in the encoding of the variable",
        direction="encode",
    )


def _convert(values: npt.NDArray[Any], source: TimeUnits, target: TimeUnits, name: str) -> npt.NDArray[Any]:
    if not target.calendar:
        return _scale(values, _duration(source.units) or 1, _duration(target.units) or 1)
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


def _scale(values: npt.NDArray[Any], unit: int, target: int) -> npt.NDArray[Any]:
    """Return durations in other units, of which one is a multiple of the other."""
    if unit < target:
        return values / np.float64(target // unit)
    return values * (unit // target if values.dtype.kind == "f" else np.int64(unit // target))


def _before_reform(dates: npt.NDArray[Any]) -> str | None:
    """Return a date before the Gregorian reform, if there is one."""
    if dates.dtype.kind == "M":
        early = dates[dates.astype("M8[s]") < np.datetime64("1582-10-15", "s")]
        return str(early[0]) if early.size else None
    for date in dates.reshape(-1):
        if hasattr(date, "year") and (date.year, date.month, date.day) < _REFORM:
            return str(date.isoformat())
    return None


def common_units(
    parts: Sequence[tuple[npt.NDArray[Any], TimeUnits, Mapping[str, Any], str]], dtype: np.dtype[Any]
) -> TimeUnits:
    """Return units in which the times of all files are exact: these of the first file, or finer ones.

    Args:
        parts: The encoded times of each file, their units, the attributes of the variable, and the name of both for messages.
        dtype: The data type to encode in.

    Raises:
        CodecError: If the calendars differ, or times are finer than nanoseconds.
    """
    first = parts[0][1]
    _, since, start = first.units.partition(" since ")
    candidates = [first, *(TimeUnits(f"{unit}{since}{start}", first.calendar) for unit in _FINER)]
    failure: CodecError | None = None
    for target in candidates:
        try:
            for values, units, attributes, name in parts:
                convert_times(values, units, target, dtype, name, attributes)
        except CodecError as error:
            failure = failure or error
        else:
            return target
    assert failure is not None
    raise failure
