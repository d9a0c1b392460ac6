"""How the stored numbers of an array are shown: as the values that they stand for, or as they are stored. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError, EncodingError
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_times import CALENDAR, numbers_to_dates

_RESOLUTIONS = ("s", "ms", "us", "ns")
_MIDNIGHT = "T00:00:00"


@dataclass(frozen=True)
class Shown:
    """Values for users.

    Attributes:
        values: The values. Missing ones are NaN, NaT or masked. Dates are ``datetime64``, or ISO 8601 strings and ``None``
            in calendars that NumPy does not know.
        unit: Their unit; empty for dates and without one.
        calendar: The calendar of times.
        is_decoded: Whether stored numbers were replaced by the values that they stand for.
        note: Why times are numbers.
    """

    values: npt.NDArray[Any]
    unit: str = ""
    calendar: str = ""
    is_decoded: bool = True
    note: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """What to know about the values, as JSON values."""
        texts = {CALENDAR: self.calendar, "note": self.note}
        return {"decoded": self.is_decoded, "unit": self.unit, **{key: text for key, text in texts.items() if text}}


@dataclass(frozen=True)
class Presentation:
    """How the stored numbers of an array are shown.

    Attributes:
        encoding: The meaning of the numbers.
        decode: Whether values are shown, instead of the stored numbers.
    """

    encoding: CFEncoding
    decode: bool = True

    @property
    def has_dates(self) -> bool:
        """Whether values are dates. Durations are shown as numbers with a unit."""
        return self.decode and self.encoding.times is not None and bool(self.encoding.times.calendar)

    @cached_property
    def unit(self) -> str:
        """The unit of ``numbers``; ``days since 2000-01-01 (noleap)`` for times of another calendar than the standard one."""
        times = self.encoding.times
        if not self.decode and (self.encoding.is_packed or self.encoding.number_dtype != self.encoding.dtype):
            return ""
        if times is None:
            return self.encoding.unit
        return times.units if times.is_native else f"{times.units} ({times.calendar})"

    @property
    def value_bytes(self) -> int:
        """The bytes of a shown value, at most."""
        itemsize = self.encoding.dtype.itemsize
        return max(itemsize, 8) if self.decode and self.encoding.changes_values else itemsize

    def show(self, stored: npt.NDArray[Any]) -> Shown:
        """Return the values to show for stored numbers.

        Dates that cannot be decoded, because cftime is not installed or the units are invalid, stay numbers, with a note.
        """
        if not self.has_dates:
            return Shown(self.numbers(stored), self.unit, is_decoded=self.decode)
        assert self.encoding.times is not None
        calendar = self.encoding.times.calendar
        try:
            return Shown(_as_iso(self.encoding.decode(stored)), calendar=calendar)
        except CodecError as error:
            return Shown(self.numbers(stored), self.unit, calendar, is_decoded=False, note=str(error))

    def column(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values to show, for formats that contain no notes.

        Raises:
            EncodingError: If dates cannot be decoded.
        """
        shown = self.show(stored)
        if shown.note:
            raise EncodingError(f"no dates: {shown.note}; request the stored numbers, or JSON", direction="decode")
        return shown.values

    def numbers(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what stored numbers stand for, but times as numbers of their units, for pictures and statistics.

        Missing values are NaN, or masked if the values are times, flags or 64-bit integers, which floating-point numbers
        would change. Strings and other values are returned as they are.
        """
        encoding = self.encoding
        if not self.decode or not encoding.changes_values:
            return stored
        is_integer = encoding.number_dtype.kind in "iu" and not encoding.is_packed and not encoding.is_boolean
        is_exact = is_integer and (encoding.number_dtype.itemsize == 8 or encoding.flags is not None)
        if encoding.times is None and not is_exact:
            return encoding.decode(stored)
        stored = np.asarray(stored)
        if encoding.is_packed or stored.dtype.kind == "f":
            return encoding.with_nan(stored)
        missing = encoding.is_missing(stored)
        return np.ma.masked_array(encoding.unpack(stored), missing) if missing.any() else encoding.unpack(stored)

    def array(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values for binary files: without a mask, and with the data type that xarray gives them.

        Raises:
            EncodingError: If an integer becomes a floating-point number, which cannot represent it, or as ``column``.
        """
        if self.decode and self.encoding.times is None:
            return self.encoding.decode(stored)
        values = self.column(stored)
        if values.dtype.kind == "O" and self.has_dates:
            return _as_strings(values)
        return self.encoding.with_nan(stored) if np.ma.is_masked(values) else np.ma.getdata(values)

    def dates(self, numbers: Sequence[float | None]) -> tuple[list[str | None], str]:
        """Return statistics of times as dates; otherwise ``None`` for each, and the reason."""
        nothing: list[str | None] = [None] * len(numbers)
        present = [number for number in numbers if number is not None]
        if not present or not self.has_dates or self.encoding.times is None:
            return nothing, ""
        try:
            texts = (
                str(with_short_dates(_as_iso(numbers_to_dates(np.asarray([number]), self.encoding.times)))[0])
                for number in present
            )
            return [None if number is None else next(texts) for number in numbers], ""
        except CodecError as error:
            return nothing, str(error)


def _as_iso(dates: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return dates in the coarsest unit, from seconds on, that does not change them; objects of cftime as strings."""
    if dates.dtype.kind != "M":
        texts = [None if date is None else date.isoformat() for date in dates.flat]
        result = np.empty(len(texts), object)
        result[:] = texts
        return result.reshape(dates.shape)
    unit = next(unit for unit in _RESOLUTIONS if _is_exact(dates, unit))
    return dates.astype(f"M8[{unit}]")


def _is_exact(dates: npt.NDArray[Any], unit: str) -> bool:
    return (
        unit == np.datetime_data(dates.dtype)[0]
        or not ((dates.astype(f"M8[{unit}]") != dates) & ~np.isnat(dates)).any()
    )


def with_short_dates(dates: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return dates without the time of day if it is midnight for all of them, also in fields. Missing ones are NaT."""
    if dates.dtype.names is not None:
        return _with_short_fields(dates)
    if dates.dtype.kind == "M":
        is_date = np.datetime_data(dates.dtype)[0] != "generic" and _is_exact(dates, "D")
        return dates.astype("M8[D]") if is_date else dates
    if dates.dtype.kind != "O" or not dates.size:
        return dates
    texts = _as_strings(dates)
    times = np.char.endswith(texts, _MIDNIGHT)
    return np.char.replace(texts, _MIDNIGHT, "") if (times | (texts == "NaT")).all() else texts


def _with_short_fields(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    fields = {name: values[name] for name in values.dtype.names or ()}
    fields = {name: with_short_dates(own) if own.dtype.kind in "MV" else own for name, own in fields.items()}
    result = np.empty(values.shape, [(name, own.dtype, own.shape[values.ndim :]) for name, own in fields.items()])
    for name, own in fields.items():
        result[name] = own
    return result


def _as_strings(dates: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array(["NaT" if text is None else text for text in dates.flat], str).reshape(dates.shape)
