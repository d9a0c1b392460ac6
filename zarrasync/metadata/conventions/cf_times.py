"""Times and durations of CF: units, calendars, and numbers to dates and back. NumPy, and cftime for unusual calendars."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError

UNITS = "units"
CALENDAR = "calendar"
"""Names of attributes."""
CALENDARS = (
    *("standard", "gregorian", "proleptic_gregorian", "noleap", "365_day", "all_leap", "366_day", "360_day", "julian"),
    *("utc", "tai", "none"),
)
"""The calendars that CF specifies."""
_SYNONYMS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
"""Calendars with two names."""
_EMPTY = "(empty)"
"""Stands for an attribute without a name, because ``TimeUnits`` has no calendar for durations."""
_GREGORIAN = {"standard", "proleptic_gregorian"}
"""Calendars that agree for all dates since the Gregorian reform."""
_DAY = 86_400_000_000_000
"""Nanoseconds of a day."""
_STEPS = {
    _DAY: ("d", "day", "days"),
    3_600_000_000_000: ("h", "hr", "hrs", "hour", "hours"),
    60_000_000_000: ("min", "mins", "minute", "minutes"),
    1_000_000_000: ("s", "sec", "secs", "second", "seconds"),
    1_000_000: ("ms", "msec", "msecs", "millisec", "millisecs", "millisecond", "milliseconds"),
    1_000: ("us", "microsec", "microsecs", "microsecond", "microseconds"),
    1: ("ns", "nsec", "nsecs", "nanosec", "nanosecs", "nanosecond", "nanoseconds"),
}
"""Names of units by their length in nanoseconds."""
_NANOSECONDS = {name: step for step, names in _STEPS.items() for name in names}
_DATE = re.compile(
    r"\s*(?P<year>[+-]?\d{1,6})(-(?P<month>\d{1,2})(-(?P<day>\d{1,2}))?)?"
    r"([T\s]\s*(?P<hour>\d{1,2})(:(?P<minute>\d{1,2})(:(?P<second>\d{1,2})(\.(?P<fraction>\d*))?)?)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|(?P<sign>[+-])(?P<zone_hour>\d{1,2})(:?(?P<zone_minute>\d{2}))?)?\s*",
    re.IGNORECASE,
)
_MOST_PARTS = {"hour": 24, "minute": 59, "second": 60, "zone_hour": 24, "zone_minute": 59}
"""The largest parts of times; 24:00 is the end of a day, and 60 a leap second."""
_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY_OF_1970 = 2_440_588
"""The Julian day number of 1970-01-01."""
_REFORM = (1582, 10, 15)
"""The first day of the Gregorian calendar, after 1582-10-04 of the Julian one."""
FINE_DAYS, MICROSECOND_DAYS = 106_750, 106_750_000
"""Days around 1970 that 64-bit nanoseconds and microseconds can represent."""
_COARSEST = 1e6
"""The largest distance of floating-point numbers, in nanoseconds, at which times are rounded to it."""
_MOST = float(1 << 62)
_MOST_DAYS = (1 << 62) // 86_400
Instants: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Days, counted as by ``_day``, and nanoseconds of the day."""


class TimeUnits(NamedTuple):
    """The units of encoded times or durations.

    Attributes:
        units: For example ``"hours since 1970-01-01"``, or ``"hours"`` for durations.
        calendar: The calendar; empty for durations.
    """

    units: str
    calendar: str = "standard"

    @property
    def is_native(self) -> bool:
        """Whether NumPy represents such times: durations, and dates in the Gregorian calendar."""
        return not self.calendar or self.calendar in _GREGORIAN


def units_of(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Return the units of a variable with encoded times, or ``None`` for other variables."""
    units = attributes.get(UNITS)
    if not isinstance(units, str) or " since " not in units:
        return None
    calendar = str(attributes.get(CALENDAR, "standard")).strip().lower() or _EMPTY
    return TimeUnits(units, _SYNONYMS.get(calendar, calendar))


def duration_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Return the units of a variable with durations, or ``None`` for other variables."""
    units = attributes.get(UNITS)
    return TimeUnits(units, "") if isinstance(units, str) and units.strip().lower() in _NANOSECONDS else None


def has_same_origin(one: TimeUnits | None, other: TimeUnits | None) -> bool:
    """Return whether equal numbers stand for equal times in two units, which may differ in spelling."""
    if one is None or other is None or one == other:
        return one == other
    try:
        same = _unit_and_zero(one) == _unit_and_zero(other)
    except CodecError:  # units that only cftime supports
        return False
    return same and (one.calendar == other.calendar or {one.calendar, other.calendar} <= _GREGORIAN)


# ------------------------------------------------------------------ units


class _UnitAndZero(NamedTuple):
    """The length of a unit in nanoseconds, and its zero: days since 1970-01-01 and nanoseconds of that day."""

    step: int
    day: int
    rest: int


@lru_cache(maxsize=256)
def _unit_and_zero(units: TimeUnits) -> _UnitAndZero:
    """Return the unit and the zero of encoded times.

    Raises:
        CodecError: If the unit has no fixed length, or the reference date is invalid.
    """
    name, _, start = units.units.partition(" since ")
    step = _NANOSECONDS.get(name.strip().lower())
    if step is None:
        raise CodecError(
            f"the units {units.units!r} have no fixed length in the calendar {units.calendar!r}; convert the times to days, "
            "hours, minutes or seconds"
        )
    if not units.calendar:
        return _UnitAndZero(step, 0, 0)
    match = _DATE.fullmatch(start)
    items = match.groupdict().items() if match is not None else ()
    part = {key: int(text) for key, text in items if text and text.lstrip("+-").isdigit()}
    if match is None or any(part.get(key, 0) > most for key, most in _MOST_PARTS.items()):
        raise CodecError(
            f"the units {units.units!r} contain no valid date after 'since'; expected for example '1970-01-01'"
        )
    day = _day(units, part["year"], part.get("month", 1), part.get("day", 1))
    seconds = 3600 * part.get("hour", 0) + 60 * part.get("minute", 0) + part.get("second", 0)
    offset = 3600 * part.get("zone_hour", 0) + 60 * part.get("zone_minute", 0)
    seconds += offset if match["sign"] == "-" else -offset
    rest = 1_000_000_000 * seconds + int((match["fraction"] or "0").ljust(9, "0")[:9])
    return _UnitAndZero(step, day + rest // _DAY, rest % _DAY)


def _day(units: TimeUnits, year: int, month: int, day: int) -> int:
    """Return the number of a day, counted from 1970-01-01.

    Raises:
        CodecError: If the calendar is unknown or has no such day.
    """
    calendar, leap = units.calendar, {"noleap": 0, "all_leap": 1}.get(units.calendar)
    is_julian = calendar == "julian" or (calendar == "standard" and (year, month, day) < _REFORM)
    if leap is None:
        leap = year % 4 == 0 and (is_julian or year % 100 != 0 or year % 400 == 0)
    length = 30 if calendar == "360_day" else _MONTHS[month - 1] + (leap and month == 2) if 1 <= month <= 12 else 0
    is_skipped = calendar == "standard" and (1582, 10, 4) < (year, month, day) < _REFORM
    if not (1 <= month <= 12 and 1 <= day <= length) or is_skipped:
        where = f", which the units {units.units!r} contain" if units.units else ""
        raise CodecError(f"the calendar {calendar!r} does not have the date {year:04}-{month:02}-{day:02}{where}")
    if calendar == "360_day":
        return 360 * (year - 1970) + 30 * (month - 1) + day - 1
    if calendar in ("noleap", "all_leap"):
        return (365 + leap) * (year - 1970) + sum(_MONTHS[: month - 1]) + (leap if month > 2 else 0) + day - 1
    if calendar not in (*_GREGORIAN, "julian"):
        raise CodecError(f"{calendar!r} is not a calendar that can be decoded; CF specifies {', '.join(CALENDARS)}")
    late = (14 - month) // 12
    shifted = year + 4800 - late + (is_julian and year < 0)  # the Julian calendar has no year 0
    number = day + (153 * (month + 12 * late - 3) + 2) // 5 + 365 * shifted + shifted // 4
    number -= 32_083 if is_julian else shifted // 100 - shifted // 400 + 32_045
    return number - _DAY_OF_1970


def is_same_calendar(one: str, other: str) -> bool:
    """Return whether two names stand for one calendar, or for two that agree since the Gregorian reform."""
    one, other = _SYNONYMS.get(one, one), _SYNONYMS.get(other, other)
    return one == other or {one, other} <= _GREGORIAN


def day_number(calendar: str, year: int, month: int, day: int) -> int:
    """Return the number of a day of a calendar, counted from its 1970-01-01.

    Raises:
        CodecError: If the calendar is unknown or has no such day.
    """
    return _day(TimeUnits("", _SYNONYMS.get(calendar, calendar)), year, month, day)


def date_of_day(calendar: str, number: int) -> tuple[int, int, int]:
    """Return the year, the month and the day of a number of ``day_number``."""
    year = 1970 + number // 366
    while day_number(calendar, year + 1, 1, 1) <= number:
        year += 1
    while day_number(calendar, year, 1, 1) > number:
        year -= 1
    month = max(month for month in range(1, 13) if day_number(calendar, year, month, 1) <= number)
    day = number - day_number(calendar, year, month, 1) + 1
    is_reformed = is_same_calendar(calendar, "standard") and calendar != "proleptic_gregorian"
    return year, month, day + 10 * (is_reformed and (year, month) == _REFORM[:2] and day > 4)


# ------------------------------------------------------------------ numbers


def instants(numbers: npt.NDArray[Any], units: TimeUnits) -> Instants:
    """Return the times or durations that numbers stand for: days, counted as by ``day_number``, and nanoseconds of the day.

    Args:
        numbers: Numbers without missing ones.
        units: The units.

    Raises:
        CodecError: If the units are invalid, or of no fixed length, and cftime does not support them or is not installed.
    """
    if not units.calendar or units.units.partition(" since ")[0].strip().lower() in _NANOSECONDS:
        return _instants(numbers, units)
    dates = numbers_to_dates(numbers, units)
    return _instants_of_objects(dates, TimeUnits("days since 1970-01-01", units.calendar))


def numbers_to_dates(numbers: npt.NDArray[Any], units: TimeUnits) -> npt.NDArray[Any]:
    """Return the times that numbers stand for: ``datetime64`` if NumPy can represent them, else objects of cftime.

    Args:
        numbers: Numbers without missing ones.
        units: The units. Durations become ``timedelta64``.

    Raises:
        CodecError: If the units are invalid, or the calendar needs cftime and it is not installed.
    """
    if not units.calendar:
        days, rest = _instants(numbers, units)
        return _combine(days, rest, "m8")
    if units.calendar in _GREGORIAN and units.units.partition(" since ")[0].strip().lower() in _NANOSECONDS:
        days, rest = _instants(numbers, units)
        if units.calendar == "proleptic_gregorian" or not (days < _reform_day()).any():
            return _combine(days, rest, "M8")
    cftime = _cftime(units)
    try:
        options = {"only_use_cftime_datetimes": True}
        return np.asarray(cftime.num2date(numbers, units.units, units.calendar, **options), object)
    except (ValueError, OverflowError, TypeError) as error:
        raise CodecError(f"numbers in {units.units!r} (calendar {units.calendar!r}) are not times: {error}") from error


def dates_to_numbers(dates: npt.NDArray[Any], units: TimeUnits) -> npt.NDArray[Any]:
    """Return times as numbers in units: ``int64`` if all are whole numbers, else ``float64``.

    Args:
        dates: ``datetime64``, ``timedelta64`` or objects of cftime, without missing ones.
        units: The units.

    Raises:
        CodecError: If the dates belong to another calendar, or the units are invalid.
    """
    is_duration = dates.dtype.kind == "m"
    if is_duration == bool(units.calendar):
        kinds = ("durations", "times") if is_duration else ("times", "durations")
        raise CodecError(f"{kinds[0]} cannot be stored in {units.units!r}, the units of {kinds[1]}", direction="encode")
    if dates.dtype.kind == "O":
        return _numbers(_instants_of_objects(dates, units), units)
    if units.calendar not in ("", *_GREGORIAN):
        raise _other_calendar("proleptic_gregorian", units)
    days = dates.astype(f"{dates.dtype.kind}8[D]")
    rest = (dates - days).astype("m8[ns]").astype("i8")
    instants = days.astype("i8"), rest
    _check_reform(instants, "proleptic_gregorian", units)
    return _numbers(instants, units)


def convert_numbers(numbers: npt.NDArray[Any], source: TimeUnits, target: TimeUnits) -> npt.NDArray[Any]:
    """Return encoded times in other units: ``int64`` if all are whole numbers, else ``float64``.

    Args:
        numbers: Numbers without missing ones.
        source: Their units.
        target: The units to convert to.

    Raises:
        CodecError: If the calendars differ for these times.
    """
    if has_same_origin(source, target):
        return numbers
    if source.calendar != target.calendar and not {source.calendar, target.calendar} <= _GREGORIAN:
        raise _other_calendar(source.calendar, target)
    instants = _instants(numbers, source)
    _check_reform(instants, source.calendar, target)
    return _numbers(instants, target)


def are_dates(values: npt.NDArray[Any]) -> bool:
    """Return whether an array contains times or durations of NumPy, or dates of cftime."""
    if values.dtype.kind != "O":
        return values.dtype.kind in "mM"
    first = next((value for value in values.flat if value is not None and value == value), None)
    return hasattr(first, "calendar") and hasattr(first, "year")


def _instants(numbers: npt.NDArray[Any], units: TimeUnits) -> Instants:
    step, day, rest = _unit_and_zero(units)
    floors = np.floor(numbers) if numbers.dtype.kind == "f" else numbers
    if floors.size and not (float(floors.min()) >= -_MOST and float(floors.max()) <= _MOST):
        raise CodecError(f"numbers in {units.units!r} are not times: they are out of the range of 64-bit integers")
    days, steps = np.divmod(floors.astype("i8"), _DAY // step)
    if days.size and int(np.abs(days).max()) > _MOST_DAYS:
        raise CodecError(f"numbers in {units.units!r} are not times: they are out of the range of 64-bit seconds")
    within = steps * step + rest
    if numbers.dtype.kind == "f":
        fractions = np.rint((numbers.astype("f8") - floors) * step).astype("i8")
        within += _without_noise(fractions, np.spacing(np.abs(numbers)).astype("f8") * step)
    more, within = np.divmod(within, _DAY)
    return days + more + day, within


def _without_noise(nanoseconds: npt.NDArray[np.int64], spacing: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return parts of units without the digits that floating-point numbers do not represent: 05:00, not 04:59:59.9….

    Args:
        nanoseconds: The nanoseconds of fractions of a unit.
        spacing: The nanoseconds between each number and the next one. A fraction becomes a multiple of a power of ten of
            this size if one is nearer than two such numbers, as programs round twice when they compute them. Not if the size
            is more than a millisecond, as of single precision.
    """
    is_coarse = (spacing > 1) & (spacing <= _COARSEST)
    if not is_coarse.any():
        return nanoseconds
    digit = 10 ** np.ceil(np.log10(np.where(is_coarse, spacing, 1.0))).astype("i8")
    rounded = (nanoseconds + digit // 2) // digit * digit
    return np.where(is_coarse & (np.abs(rounded - nanoseconds) <= 2 * spacing), rounded, nanoseconds)


def _numbers(instants: Instants, units: TimeUnits) -> npt.NDArray[Any]:
    step, day, rest = _unit_and_zero(units)
    days, within = instants[0] - day, instants[1] - rest
    steps, part = np.divmod(within, step)
    per_day = _DAY // step
    if days.size and float(np.abs(days).max()) * per_day > _MOST:
        return np.asarray(days * float(per_day) + within / step)
    if not part.any():
        return np.asarray(days * per_day + steps)
    if np.abs(days).max() < FINE_DAYS:  # one division, as in pandas
        return np.asarray((days * _DAY + within) / step)
    return np.asarray((days * per_day + steps) + part / step)


def _combine(days: npt.NDArray[np.int64], rest: npt.NDArray[np.int64], kind: str) -> npt.NDArray[Any]:
    """Return instants in nanoseconds, or in a coarser unit if these cannot represent all of them."""
    most = int(np.abs(days).max()) if days.size else 0
    if most < FINE_DAYS:
        return np.asarray((days * _DAY + rest).view(f"{kind}[ns]"))
    unit, per_second = ("us", 1_000_000) if most < MICROSECOND_DAYS else ("s", 1)
    return np.asarray(
        (days * 86_400 * per_second + np.rint(rest / (1_000_000_000 // per_second)).astype("i8")).view(
            f"{kind}[{unit}]"
        )
    )


# ------------------------------------------------------------------ calendars


@lru_cache(maxsize=1)
def _reform_day() -> int:
    return _day(TimeUnits("", "proleptic_gregorian"), *_REFORM)


def _check_reform(instants: Instants, calendar: str, units: TimeUnits) -> None:
    """Check that two calendars agree for times."""
    if calendar != units.calendar and (instants[0] < _reform_day()).any():
        raise CodecError(
            f"the times have the calendar {calendar!r}, but {units.calendar!r} is needed, and these calendars differ before "
            "1582-10-15; convert the times first, for example with xarray's convert_calendar",
            direction="encode",
        )


def _other_calendar(calendar: str, units: TimeUnits) -> CodecError:
    return CodecError(
        f"the times have the calendar {calendar!r}, but {units.calendar!r} is needed; convert them first, for example with "
        "xarray's convert_calendar",
        direction="encode",
    )


def _instants_of_objects(dates: npt.NDArray[Any], units: TimeUnits) -> Instants:
    """Return the instants of dates of cftime, or of Python's own dates."""
    calendars = {getattr(date, CALENDAR, "proleptic_gregorian") for date in dates.flat}
    names = {_SYNONYMS.get(name, name) for name in calendars}
    for name in names - {units.calendar}:
        if not {name, units.calendar} <= _GREGORIAN:
            raise _other_calendar(name, units)
    calendar = next(iter(names), units.calendar)
    own = TimeUnits("microseconds since 1970-01-01", calendar)
    numbers = np.asarray(_cftime(own).date2num(dates, own.units, calendar), "i8")
    instants = _instants(numbers, own)
    _check_reform(instants, calendar, units)
    return instants


def _cftime(units: TimeUnits) -> Any:
    try:
        import cftime
    except ImportError:
        raise CodecError(
            f"times in {units.units!r} with the calendar {units.calendar!r} need cftime, which is not installed; install it "
            "with pip install 'zarrasync[cf]', or read the numbers without decoding them"
        ) from None
    return cftime
