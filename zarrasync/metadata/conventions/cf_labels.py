"""Coordinates as labels of a dimension: the positions that labels of users select, among them dates. No IO."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError, LabelError
from zarrasync.indexing.labels import CyclicLabels, Interval, Labels, Position, is_global
from zarrasync.indexing.parse import parse_number
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_times import (
    CALENDAR,
    FINE_DAYS,
    MICROSECOND_DAYS,
    Instants,
    date_of_day,
    day_number,
    duration_units,
    instants,
    is_same_calendar,
)
from zarrasync.metadata.conventions.meaning import CIRCLE, is_longitude

_DAY = 86_400_000_000_000
"""Nanoseconds of a day."""
_LABEL = re.compile(
    r"(?P<year>[+-]\d{4,6}|\d{4})(?:[-/]?(?P<month>\d{2})(?:[-/]?(?P<day>\d{2})(?:[T ](?P<hour>\d{2})(?::?(?P<minute>\d{2})"
    r"(?::?(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?)?"
)
_ONE_DIGIT = re.compile(r"(?<=\d[-/])\d(?=[-/T ]|$)")
"""Months and days below 10 without a zero before them."""
_STEPS = (_DAY, 3_600_000_000_000, 60_000_000_000, 1_000_000_000, 1_000_000, 1_000, 1)
"""Nanoseconds of days, hours, minutes, seconds, and their fractions: the resolutions of axes and of dates."""
_YEAR, _MONTH = -2, -1
"""Resolutions of dates that are coarser than days. Finer ones are positions in ``_STEPS``."""
_DURATION = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_PYTHON_DAYS = range(-700_000, 2_900_000)
"""Days from 1970 on that Python's dates can represent."""
_EPOCH = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, eq=False)
class TimeAxis:
    """Times or durations in a calendar, as integers that can be compared with dates.

    Attributes:
        values: Multiples of ``tick`` since 1970-01-01 in the calendar, or durations.
        missing: Which are missing.
        calendar: The calendar; empty for durations.
        tick: The unit in nanoseconds: 1, or 1000 for times that are centuries away.
        name: The name of the coordinate, for messages.
    """

    values: npt.NDArray[np.int64]
    missing: npt.NDArray[np.bool_]
    calendar: str
    tick: int
    name: str

    @classmethod
    def of(cls, encoding: CFEncoding, stored: npt.NDArray[Any], name: str) -> TimeAxis:
        """Return the times that stored numbers stand for.

        Raises:
            CodecError: If the units are invalid, or need cftime, which is not installed, or a time is too far from 1970.
        """
        missing = encoding.is_missing(stored)
        if encoding.times is None:  # times of NumPy
            calendar = "proleptic_gregorian" if stored.dtype.kind == "M" else ""
            days, rest = _native(stored[~missing])
        else:
            calendar = encoding.times.calendar
            days, rest = instants(encoding.unpack(stored)[~missing], encoding.times)
        most = int(np.abs(days).max()) if days.size else 0
        if most >= MICROSECOND_DAYS:
            raise CodecError(
                f"the times of {name!r} are out of the range of 64-bit microseconds, so they have no labels"
            )
        tick = 1 if most < FINE_DAYS else 1000
        values = np.full(stored.shape, np.iinfo(np.int64).min)
        values[~missing] = days * (_DAY // tick) + rest // tick
        return cls(values, missing, calendar, tick, name)

    @cached_property
    def _resolution(self) -> int:
        """The coarsest resolution, from days on, that represents all times."""
        present = self.values[~self.missing]
        coarse = (place for place, step in enumerate(_STEPS) if not (present % max(step // self.tick, 1)).any())
        return next(coarse, len(_STEPS) - 1)

    def show(self, value: Any) -> str:
        """Return a time for messages."""
        if value != value or isinstance(value, str):  # NaN
            return str(value)
        if not self.calendar:
            return str(np.timedelta64(int(value) * self.tick, "ns").astype("m8[s]"))
        day, rest = divmod(int(value) * self.tick, _DAY)
        year, month, day = date_of_day(self.calendar, day)
        time = str(np.datetime64(rest // 1_000_000_000, "s")).removeprefix("1970-01-01").removesuffix("T00:00:00")
        return f"{year:04}-{month:02}-{day:02}{time}"

    # -------------------------------------------------------------- labels

    def interval(self, label: Any) -> tuple[int, int]:
        """Return the first and the last time that a label stands for, such as all of a year for ``"1990"``.

        Raises:
            LabelError: If it is not a time, or belongs to another calendar.
        """
        first, last, _ = self._parse(label)
        return -(-first // self.tick), last // self.tick

    def key(self, label: Any) -> int:
        """Return the time of a label, the first one of a partial date.

        Raises:
            LabelError: As for ``interval``.
        """
        return self._parse(label)[0] // self.tick

    def keys(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the time of each label."""
        return np.array([self.key(label) for label in labels], np.int64)

    def is_partial(self, label: Any) -> bool:
        """Return whether a label is a string that is coarser than the axis, and so stands for all times in a period."""
        return isinstance(label, str) and bool(self.calendar) and self._parse(label)[2] < self._resolution

    def tolerance(self, value: Any) -> int:
        """Return the length of a duration: of NumPy or Python, or a string such as ``"6 hours"``.

        Raises:
            LabelError: If it is not a duration.
        """
        return self._duration(value) // self.tick

    def _duration(self, value: Any) -> int:
        if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
            units = duration_units({"units": match[2]})
            if units is not None:
                days, rest = instants(np.array([float(match[1])]), units)
                return int(days[0]) * _DAY + int(rest[0])
        if isinstance(value, dt.timedelta):
            return int(value // dt.timedelta(microseconds=1)) * 1000 + int(getattr(value, "nanoseconds", 0))  # pandas
        if isinstance(value, np.timedelta64) and not np.isnat(value):
            days, rest = _native(np.array([value]))
            return int(days[0]) * _DAY + int(rest[0])
        raise self._error(value, "a duration such as np.timedelta64(6, 'h') or '6 hours'")

    def _parse(self, label: Any) -> tuple[int, int, int]:
        """Return the first and the last nanosecond of a label, and its resolution."""
        if not self.calendar:
            moment = self._duration(label)
            return moment, moment, len(_STEPS) - 1
        try:
            if isinstance(label, str):
                return self._parse_text(label)
            moment = self._moment(label)
        except CodecError as error:
            raise LabelError(
                f"{label!r} is not a time of the coordinate {self.name!r}: {error}", name=self.name
            ) from None
        return moment, moment, len(_STEPS) - 1

    def _moment(self, label: Any) -> int:
        """Return the nanosecond of a date of NumPy, Python, pandas or cftime."""
        if isinstance(label, np.datetime64) and not np.isnat(label):
            return self._native_moment(label)
        date: Any = label
        if getattr(date, "tzinfo", None) is not None:
            date = date.astimezone(dt.UTC)
        calendar = getattr(date, CALENDAR, None)
        if calendar and not is_same_calendar(calendar, self.calendar):
            raise CodecError(f"it has the calendar {calendar!r}, the coordinate has {self.calendar!r}")
        if not all(hasattr(date, part) for part in ("year", "month", "day")) or date != date:  # NaT
            raise self._error(label, "a date such as '1990-05-01' or np.datetime64('1990-05-01')")
        moment = self._day(date.year, date.month, date.day)
        parts = zip(("hour", "minute", "second", "microsecond", "nanosecond"), (*_STEPS[1:4], 1000, 1), strict=True)
        return moment + sum(int(getattr(date, part, 0)) * step for part, step in parts)

    def _native_moment(self, label: np.datetime64) -> int:
        days, rest = (int(numbers[0]) for numbers in _native(np.array([label])))
        if self.calendar == "proleptic_gregorian":
            return days * _DAY + rest
        if days not in _PYTHON_DAYS:
            raise CodecError(f"it is out of the range of dates in the calendar {self.calendar}")
        date = dt.date.fromordinal(days + _EPOCH)
        return self._day(date.year, date.month, date.day) + rest

    def _parse_text(self, text: str) -> tuple[int, int, int]:
        match = _LABEL.fullmatch(_ONE_DIGIT.sub(r"0\g<0>", text.strip()))
        if match is None:
            raise self._error(text, "a date such as '1990', '1990-05' or '1990-05-01T12:00'")
        year, month, day = int(match["year"]), match["month"], match["day"]
        if month is None:
            return self._day(year, 1, 1), self._day(year + 1, 1, 1) - 1, _YEAR
        number = int(month)
        if day is None:
            following = (year + 1, 1) if number == 12 else (year, number + 1)
            return self._day(year, number, 1), self._day(*following, 1) - 1, _MONTH
        first, resolution = self._day(year, number, int(day)), 0
        for place, (part, most) in enumerate((("hour", 23), ("minute", 59), ("second", 59)), 1):
            if match[part] is not None:
                if int(match[part]) > most:
                    raise self._error(text, f"at most {most} {part}s")
                first, resolution = first + int(match[part]) * _STEPS[place], place
        if match["fraction"]:
            resolution = 3 + -(-len(match["fraction"]) // 3)
            first += int(match["fraction"].ljust(9, "0"))
        zone = match["zone"]
        if zone and zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[-2:])
            if hours > 23 or minutes > 59:
                raise self._error(text, "a time zone from -23:59 to +23:59")
            minutes += 60 * hours
            first -= (minutes if zone[0] == "+" else -minutes) * _STEPS[2]
        return first, first + _STEPS[resolution] - 1, resolution

    def _day(self, year: int, month: int, day: int) -> int:
        return day_number(self.calendar, year, month, day) * _DAY

    def _error(self, label: Any, expected: str) -> LabelError:
        return LabelError(
            f"the coordinate {self.name!r} contains {self._kind}: expected {expected}, found {label!r}", name=self.name
        )

    @property
    def _kind(self) -> str:
        return f"times in the calendar {self.calendar}" if self.calendar else "durations"


def is_missing_time(label: Any) -> bool:
    """Return whether a label is NaT, of NumPy or pandas, or NaN."""
    return not isinstance(label, str) and bool(label != label)


def _native(times: npt.NDArray[Any]) -> Instants:
    """Return times or durations of NumPy as days and nanoseconds of the day."""
    kind = times.dtype.kind
    days = times.astype(f"{kind}8[D]")
    rest = (times - days).astype("m8[ns]").astype("i8")
    more, within = np.divmod(rest, _DAY)
    return days.astype("i8") + more, within


# ------------------------------------------------------------------ coordinates


@dataclass(frozen=True)
class Query:
    """What a user selects along a dimension.

    Attributes:
        label: A label, several ones, a mask, or a slice of labels.
        method: How labels are found that do not exist; ``None`` if they must exist. Slices and strings ignore it.
        tolerance: The largest distance of labels; ``None`` for no limit.
        points: The set of points whose labels these are, in any shape; ``None`` if the dimension is selected on its own.
    """

    label: Any
    method: str | None = None
    tolerance: Any = None
    points: Hashable = None


class WrittenLabel(str):
    """A label in a URL, which has the type of its coordinate: ``2024`` is a number, a string, or a year."""

    __slots__ = ()

    @property
    def number(self) -> int | float | str:
        """The number, or the string if it is not one."""
        try:
            number = parse_number(self)
            return int(self) if _INTEGER.fullmatch(self) else number
        except ValueError:  # also of integers with thousands of digits
            return str(self)


@dataclass(frozen=True, eq=False)
class Coordinate:
    """The labels of a dimension.

    Attributes:
        name: The name of the coordinate.
        labels: The labels as numbers or strings.
        times: The times that these numbers stand for; ``None`` for other coordinates.
    """

    name: str
    labels: Labels
    times: TimeAxis | None = None

    @classmethod
    def of(cls, name: str, encoding: CFEncoding, stored: npt.NDArray[Any]) -> Coordinate:
        """Return the coordinate that stored numbers or strings stand for.

        Raises:
            CodecError: If times cannot be decoded.
            LabelError: If its elements are neither numbers nor strings.
        """
        if encoding.times is not None or stored.dtype.kind in "mM":
            times = TimeAxis.of(encoding, stored, name)
            return cls(name, Labels(times.values, name, times.missing, times.show), times)
        masked = encoding.decode_masked(stored)  # integers stay exact
        values, missing = np.asarray(masked.data), np.ma.getmaskarray(masked)
        if values.dtype.kind == "b":
            values = values.astype(np.uint8)
        if values.dtype.kind in "OSU":
            values = _as_strings(name, values)
        if values.dtype.kind not in "iufT":
            raise LabelError(
                f"the coordinate {name!r} of {values.dtype} contains neither numbers nor strings", name=name
            )
        labels = Labels(values, name, missing)
        if is_longitude(encoding.unit, {}) and is_global(labels, CIRCLE):
            labels = CyclicLabels(values, name)
        return cls(name, labels)

    def _typed(self, label: Any) -> Any:
        """Return a label from a URL, or both ends of a slice, in the type of the coordinate."""
        if isinstance(label, slice):
            return slice(self._typed(label.start), self._typed(label.stop), label.step)
        is_number = isinstance(label, WrittenLabel) and self.times is None and self.labels.values.dtype.kind != "T"
        return label.number if is_number else label

    def locate(self, query: Query) -> Position:
        """Return the positions that a query selects, in the shape of labels of points.

        Raises:
            LabelError: If a label does not exist, or has another type than the coordinate.
            ValueError: If there is a tolerance without a method.
        """
        if query.points is not None:
            found = self.locate(replace(query, label=query.label.ravel(), points=None))
            return np.asarray(found).reshape(query.label.shape)
        label = self._typed(_element(query.label))
        if isinstance(label, slice):
            return self._slice(label)
        if self.labels.values.dtype.kind == "T":  # strings are not near others
            query = Query(label)
        if query.tolerance is not None and query.method is None:
            raise ValueError(f"the tolerance of {self.name!r} needs a method, such as method='nearest'")
        tolerance = None if query.tolerance is None else self._tolerance(query.tolerance)
        if np.ndim(label) == 0 or isinstance(label, str):
            return self._scalar(label, query.method, tolerance)
        items = (
            np.asarray(label)
            if self.times is None or np.asarray(label).dtype.kind in "bmM"
            else np.array(label, object)
        )
        if items.ndim != 1:
            raise LabelError(
                f"labels of {self.name!r} must have at most one dimension, found {items.ndim}", name=self.name
            )
        if items.dtype.kind == "b":
            if len(items) != len(self.labels):
                raise LabelError(
                    f"a mask of {self.name!r} needs {len(self.labels):,} elements, found {len(items):,}", name=self.name
                )
            return np.flatnonzero(items)
        if not items.size:  # of any data type
            return np.empty(0, np.intp)
        if self.times is not None:
            return self.labels.find(self.times.keys(items), query.method, tolerance)
        if items.dtype.kind == "f" and self.labels.values.dtype.kind in "iu" and not hasattr(label, "dtype"):
            items = np.array(label, object)  # NumPy has rounded integers of a list with fractions, or with both signs
        positions = np.empty(len(items), np.intp)
        for alike, keys in self._alike(items):
            positions[alike] = self.labels.find(keys, query.method, tolerance)
        return positions

    def _alike(self, labels: npt.NDArray[Any]) -> list[tuple[Any, npt.NDArray[Any]]]:
        """Return labels in data types in which they are compared exactly, and which labels have each of them."""
        own, kind = self.labels.values.dtype, labels.dtype.kind
        if own.kind not in "iu" or kind not in "iufO" or (kind != "O" and self._dtype(labels).kind == own.kind):
            return [(slice(None), self._values(labels))]
        numbers = [int(n) if isinstance(n, float) and n.is_integer() else n for n in labels.tolist()]
        wide, whole = np.dtype(f"{own.kind}8"), np.array([isinstance(number, int) for number in numbers], np.bool_)
        low, high = int(np.iinfo(wide).min), int(np.iinfo(wide).max)
        fits = np.array([isinstance(number, int) and low <= number <= high for number in numbers], np.bool_)
        groups = ((fits, wide), (whole & ~fits, np.dtype("f8")), (~whole, None))
        chosen = [(np.flatnonzero(group), dtype) for group, dtype in groups if group.any()]
        return [(places, self._values(np.array([numbers[at] for at in places], dtype))) for places, dtype in chosen]

    def _scalar(self, label: Any, method: str | None, tolerance: Any) -> Position:
        if method is None and self.times is not None and self.times.is_partial(label):
            return self.labels.within(self.times.interval(label))
        if method is None and self.times is not None and is_missing_time(label):
            return self.labels.exact(np.nan)
        key = self._key(label)
        if method is None:
            return self.labels.exact(key)
        return int(self.labels.find(np.array([key], self._dtype(np.asarray(key))), method, tolerance)[0])

    def _slice(self, label: slice) -> Position:
        step = label.step
        if step is not None and (isinstance(step, bool) or not isinstance(step, int | np.integer) or step == 0):
            raise LabelError(
                f"the step of a slice of {self.name!r} is a number of positions, found {step!r}", name=self.name
            )
        start, stop = label.start, label.stop
        if step is not None and step < 0:
            start, stop = stop, start
        position = self.labels.between(self._interval(start), self._interval(stop))
        if step in (None, 1):
            return position
        if not isinstance(position, slice):
            return np.asarray(position)[::step]
        if step > 0:
            return slice(position.start, position.stop, int(step))
        return np.arange(position.start, position.stop)[::step]

    def _interval(self, label: Any) -> Interval | None:
        label = _element(label)
        if label is None:
            return None
        if self.times is not None and isinstance(label, str):
            low, high = self.times.interval(label)
            return (low, high) if low > high or self.times.is_partial(label) else (low, low)
        key = self._key(label)
        return key, key

    def _key(self, label: Any) -> Any:
        return self.times.key(label) if self.times is not None else self._values(np.asarray(label))[()]

    def _tolerance(self, tolerance: Any) -> Any:
        if self.times is not None:
            return self.times.tolerance(tolerance)
        if np.ndim(tolerance) or np.asarray(tolerance).dtype.kind not in "iuf":
            raise LabelError(f"the tolerance of {self.name!r} is a number, found {tolerance!r}", name=self.name)
        return tolerance

    def _values(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels in a data type that can be compared with the coordinate's, and is as exact."""
        if self.labels.values.dtype.kind == "T":
            if labels.dtype.kind == "S":
                labels = np.char.decode(labels, "utf-8", "surrogateescape")
            if labels.dtype.kind not in "OTU" or not all(isinstance(label, str) for label in labels.flat):
                raise self._wrong_type(labels, "strings")
        elif labels.dtype.kind == "O" and labels.size and all(isinstance(label, int) for label in labels.flat):
            labels = labels.astype("f8")  # integers of more than 64 bits
        elif labels.dtype.kind not in "biuf":
            raise self._wrong_type(labels, "numbers")
        return labels.astype(self._dtype(labels))

    def _dtype(self, labels: npt.NDArray[Any]) -> np.dtype[Any]:
        """Return the data type of labels: floating-point ones are compared in the precision of the coordinate.

        NumPy compares integers of 64 bits with and without a sign as floating-point numbers, which would make neighbours
        equal, so that labels get the sign of the coordinate if they can.
        """
        own, kind = self.labels.values.dtype, labels.dtype.kind
        if own.kind not in "iu" or kind not in "iuf":
            return own
        if kind == "f" and not (labels == np.floor(labels)).all():
            return labels.dtype
        for dtype in (np.dtype(f"{own.kind}8"), np.dtype("i8")):
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            if (labels >= low).all() and (labels < float(high + 1) if kind == "f" else labels <= high).all():
                return dtype
        return labels.dtype

    def _wrong_type(self, labels: npt.NDArray[Any], expected: str) -> LabelError:
        found = labels[()] if not labels.ndim else labels.ravel()[0] if labels.size else labels.dtype
        return LabelError(
            f"the coordinate {self.name!r} contains {expected}, found the label {str(found)!r}", name=self.name
        )


def _element(label: Any) -> Any:
    """Return the element of an array without dimensions, of NumPy or xarray. Other labels are returned as they are."""
    return np.asarray(label)[()] if hasattr(label, "__array__") and np.ndim(label) == 0 else label


def _as_strings(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "surrogateescape")
    if not all(isinstance(value, str) for value in values.flat):
        raise LabelError(f"the coordinate {name!r} contains objects that are not strings", name=name)
    return values.astype(np.dtypes.StringDType())
