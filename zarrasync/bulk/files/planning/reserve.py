"""Labels of rows that are laid out before their files exist, such as ``2024-01-01/2024-12-31/6h``. No IO."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.metadata.conventions.cf_times import TimeUnits, convert_numbers

_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ]([\d:.]+))?)?)?")
_STEP = re.compile(r"(\d+)\s*(s|min|h|d|w|M|MS|Y|YS)", re.IGNORECASE)
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOST_ROWS = 100_000_000


def reserved_labels(text: str, units: TimeUnits | None) -> tuple[npt.NDArray[Any], TimeUnits | None]:
    """Return labels from a first one to a last one, and their units.

    Args:
        text: The first label, the last one and the step between them, with slashes. A last label without a time of day means
            the whole day, month or year.
        units: The units of times; ``None`` if the labels are numbers.

    Raises:
        ValueError: If this is not such a range.
    """
    try:
        first, last, step = text.split("/")
        if units is not None and units.calendar:
            found: tuple[npt.NDArray[Any], TimeUnits | None] = _times(first.strip(), last.strip(), step.strip(), units)
        else:
            a, b, width = float(first), float(last), float(step)
            values = a + width * np.arange(int((b - a) / width + 1e-9) + 1)
            found = (values.astype("i8") if (values % 1 == 0).all() else values), None
    except (ValueError, ZeroDivisionError, AttributeError) as error:
        example = "'2024-01-01/2024-12-31/6h'" if units is not None else "'0/100/5'"
        raise ValueError(
            f"reserve={text!r} is not a first label, a last one and a step such as {example}: {error}; steps of times are "
            "numbers of s, min, h, D, W, MS (months) or YS (years)"
        ) from error
    if not len(found[0]):
        raise ValueError(f"reserve={text!r} has no rows, because the last label comes before the first one")
    return found


def _times(first: str, last: str, step: str, units: TimeUnits) -> tuple[npt.NDArray[Any], TimeUnits]:
    start, count, name = _parts(first), *_step(step)
    origin = TimeUnits(f"seconds since {_text(start)}", units.calendar)
    stop = _number(_following(last), origin)
    if name in _SECONDS:
        width = count * _SECONDS[name]
        _check_size(stop / width)
        return np.arange(0, stop, width), origin
    months, numbers = count * (12 if name[0] == "y" else 1), list[int]()
    while (number := _number(_text(_later(start, len(numbers) * months)), origin)) < stop:
        numbers.append(number)
        _check_size(len(numbers))
    return np.array(numbers, "i8"), origin


def _check_size(count: float) -> None:
    if count > _MOST_ROWS:
        raise ValueError(f"it has more than {_MOST_ROWS:,} rows")


def _step(text: str) -> tuple[int, str]:
    found = _STEP.fullmatch(text)
    if found is None or not int(found[1]) or text.endswith("m"):  # minutes or months
        raise ValueError(f"the step {text!r} is unknown")
    return int(found[1]), found[2].lower()


def _parts(text: str) -> tuple[int, int, int, str]:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a date")
    return int(found[1]), int(found[2] or 1), int(found[3] or 1), found[4] or "00:00:00"


def _later(start: tuple[int, int, int, str], months: int) -> tuple[int, int, int, str]:
    years, month = divmod(start[1] - 1 + months, 12)
    return start[0] + years, month + 1, start[2], start[3]


def _text(parts: tuple[int, int, int, str]) -> str:
    return f"{parts[0]:04}-{parts[1]:02}-{parts[2]:02} {parts[3]}"


def _following(text: str) -> str:
    """Return the units of the first moment after a date: the next second, day, month or year."""
    parts, length = _parts(text), len(_DATE.fullmatch(text)[0])  # type: ignore[index]  # _parts has checked it
    if length > 10:
        return f"+1 seconds since {_text(parts)}"
    if length == 10:
        return f"+1 days since {_text(parts)}"
    return _text(_later(parts, 1 if length == 7 else 12))


def _number(text: str, origin: TimeUnits) -> int:
    """Return the seconds from the origin to a date, or to a number of units after one."""
    number, unit = 0, f"seconds since {text}"
    if text.startswith("+"):
        number, unit = 1, text.partition(" ")[2]
    return int(convert_numbers(np.array([number]), TimeUnits(unit, origin.calendar), origin)[0])
