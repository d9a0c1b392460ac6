"""The rows of many files on one axis: order, repeated and missing labels, late rows, reserved rows, and the place of each row. No IO."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.parameters import OnDuplicate
from zarrasync.bulk.files.records.plan import STORED, Segment
from zarrasync.display.text import counted
from zarrasync.errors import ShapeError
from zarrasync.metadata.conventions.cf_times import TimeUnits, convert_numbers

Labels: TypeAlias = npt.NDArray[Any]
RESERVED = -2
"""The number of the source of rows that are laid out without values."""
_LARGEST = np.iinfo("i8").max
_GAP = 1.5
"""Steps longer than the usual step by this factor are gaps."""
_MOST_UNKNOWN = 3
"""With fewer rows than this, the usual step of a dataset is unknown."""
_NEAR = 1e-6
"""Steps shorter than this part of the usual step are probably one label, rounded in two ways."""


@dataclass(frozen=True, eq=False)
class MergedRows:
    """The result of merging the rows of files.

    Attributes:
        source: For each row of the axis afterwards the number of its file, ``STORED``, or ``RESERVED`` if it is laid out
            without values.
        row: The row in the file, or in the destination before.
        moved: The first existing row that moves, because rows of files are inserted before it; ``None`` if none does.
        late: For each file with such rows, the first existing row after them.
        places: The row of each existing row afterwards.
        ends: For each file the row after its last label, also if its rows are left out.
        skipped: The numbers of the files with rows that are left out, because the destination has them.
        duplicates: The number of rows of files that were left out, or replaced by a row of a later file.
        gaps: The labels before and after each gap.
        near: The pairs of labels that nearly repeat each other.
    """

    source: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    moved: int | None = None
    late: Mapping[int, int] = field(default_factory=dict)
    places: Sequence[int] | npt.NDArray[Any] = ()
    ends: Sequence[int] = ()
    skipped: frozenset[int] = frozenset()
    duplicates: int = 0
    gaps: tuple[tuple[Any, Any], ...] = ()
    near: tuple[tuple[Any, Any], ...] = ()

    @property
    def length(self) -> int:
        """The length of the axis afterwards."""
        return len(self.source)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The rows to write, in order. Existing rows that move are segments of the source ``STORED``."""
        is_moved = np.arange(self.length) >= (self.length if self.moved is None else self.moved)
        return self._runs((self.source >= 0) | ((self.source == STORED) & is_moved))

    @cached_property
    def reserved(self) -> tuple[Segment, ...]:
        """The rows that are laid out without values."""
        return self._runs(self.source == RESERVED)

    def _runs(self, chosen: npt.NDArray[np.bool_]) -> tuple[Segment, ...]:
        """Return runs of chosen rows that are consecutive in the destination and in one file."""
        place = np.flatnonzero(chosen)
        if not len(place):
            return ()
        source, row = self.source[place], self.row[place]
        breaks = (np.diff(place) != 1) | (np.diff(source) != 0) | (np.diff(row) != 1)
        starts = np.r_[0, np.flatnonzero(breaks) + 1]
        lengths = np.diff(np.r_[starts, len(place)])
        columns = (place[starts], place[starts] + lengths, source[starts], row[starts])
        return tuple(map(Segment._make, zip(*(column.tolist() for column in columns), strict=True)))


class RepeatedLabelsError(ShapeError):
    """Labels are in several files.

    Attributes:
        files: The message about each file whose labels an earlier one has.
    """

    def __init__(self, message: str, files: Sequence[str]) -> None:
        super().__init__(message)
        self.files = files


def stack_rows(counts: Sequence[int], length: int, places: Mapping[int, int]) -> MergedRows:
    """Return rows without labels, in the order of the files.

    Args:
        counts: The number of rows of each file.
        length: The number of rows of the destination.
        places: The first row of files that replace existing rows, by the number of the file.
    """
    added = sum(count for number, count in enumerate(counts) if number not in places)
    source, row = np.full(length + added, STORED), np.arange(length + added)
    for number, count in enumerate(counts):
        first = places.get(number, length)
        source[first : first + count], row[first : first + count] = number, np.arange(count)
        length += 0 if number in places else count
    return MergedRows(source, row)


def merge_rows(
    labels: Sequence[Labels],
    names: Sequence[str],
    existing: Labels | None = None,
    *,
    empty: npt.NDArray[np.bool_] | None = None,
    on_duplicate: OnDuplicate = "error",
    only_existing: bool = False,
    show: Callable[[Any], str] = str,
) -> MergedRows:
    """Return the place of each row of the files, in the order of their labels.

    The direction is the direction of the existing labels, or else of the files.

    Args:
        labels: The labels of each file, all with the same units.
        names: The names of the files, for messages.
        existing: The labels of the destination.
        empty: Which of its rows are reserved: no file has their values yet.
        on_duplicate: What happens if a label exists already, in the destination or in an earlier file: ``"error"``,
            ``"skip"`` the row, or let it ``"replace"`` the earlier one.
        only_existing: Whether all labels must exist in the destination. Their rows are then written again.
        show: Returns a label as a string, for messages.

    Raises:
        RepeatedLabelsError: If a label is in several files, and ``on_duplicate`` is ``"error"``.
        ShapeError: If a label is in the destination, and ``on_duplicate`` is ``"error"``, or if one is missing there.
    """
    rows = _Rows([labels[0][:0] if existing is None else existing, *labels], ["the destination", *names], show)
    order = rows.sorted(last_first=on_duplicate == "replace")
    repeats = 1 + np.flatnonzero(rows.keys[order][1:] == rows.keys[order][:-1])
    if len(repeats) and on_duplicate == "error":
        raise RepeatedLabelsError(
            f"the label {rows.label(order[repeats[0]])} is in {rows.name(order[repeats[0] - 1])} and in "
            f"{rows.name(order[repeats[0]])}, and {_repeated(len(repeats))}; pass on_duplicate='skip' to keep the first "
            "of equal rows, or 'replace' to keep the last. The others are lost then; labels=None stores all rows in the order of "
            "the files",
            _repeated_by_file(rows, order, repeats),
        )
    chosen = np.delete(order, repeats)
    keys = rows.keys[chosen]
    place = np.searchsorted(rows.keys[: rows.count], keys)
    exists = np.isin(keys, rows.keys[: rows.count])
    is_stored = exists.copy()
    if empty is not None and rows.count:
        is_stored &= ~empty[np.minimum(place, rows.count - 1)]
    if is_stored.any() and on_duplicate == "error" and not only_existing:
        at = chosen[is_stored][0]
        raise ShapeError(
            f"the destination already contains the label {rows.label(at)} of {rows.name(at)}, and "
            f"{_repeated(int(is_stored.sum()))}; pass on_duplicate='skip' to keep the existing rows, or 'replace' to write "
            "them again"
        )
    if only_existing and not exists.all():
        at = chosen[~exists][0]
        raise ShapeError(f"the destination has no row with the label {rows.label(at)} of {rows.name(at)}")
    early, before = ~exists & (place < rows.count), place.copy()
    place += np.cumsum(~exists) - ~exists  # the new rows before
    kept = ~is_stored | (on_duplicate == "replace") | only_existing
    number, row = rows.source[chosen] - 1, rows.row[chosen]
    places = np.arange(rows.count) + np.searchsorted(keys[~exists], rows.keys[: rows.count])
    length = rows.count + int(np.count_nonzero(~exists))
    source, own = np.full(length, STORED), np.zeros(length, "i8")
    own[places] = np.arange(rows.count)
    source[place[kept]], own[place[kept]] = number[kept], row[kept]
    last, after = np.zeros(len(labels), "i8"), np.sort(np.concatenate([rows.keys[: rows.count], keys[~exists]]))
    np.maximum.at(last, rows.source[rows.count :] - 1, np.searchsorted(after, rows.keys[rows.count :]) + 1)
    gaps, near = _unusual_steps(rows, chosen[~exists])
    return MergedRows(
        source,
        own,
        int(before[early][0]) if early.any() else None,
        dict(zip(number[early][::-1].tolist(), before[early][::-1].tolist(), strict=True)),
        places,
        last.tolist(),
        frozenset(number[~kept].tolist()),
        len(repeats) + int(np.count_nonzero(~kept)),
        gaps,
        near,
    )


def _repeated(count: int) -> str:
    return f"{counted(count, 'label')} {'is' if count == 1 else 'are'} repeated"


def _repeated_by_file(rows: _Rows, order: npt.NDArray[Any], repeats: npt.NDArray[Any]) -> list[str]:
    later, first, counts = np.unique(rows.source[order[repeats]], return_index=True, return_counts=True)
    return [
        f"{rows.name(order[at])}: {_repeated(int(count))}, such as {rows.label(order[at])} of {rows.name(order[at - 1])}"
        for _, at, count in zip(later, repeats[first], counts, strict=True)
    ]


class _Rows:
    """All rows of the destination and of the files, numbered from 0.

    Attributes:
        keys: Numbers that increase along the axis, one for each row.
        source: The number of the file of each row; 0 for the destination.
        row: The number of each row in its file.
        count: The number of rows of the destination.
    """

    def __init__(self, parts: Sequence[Labels], names: Sequence[str], show: Callable[[Any], str]) -> None:
        self._parts, self._names, self._show = parts, names, show
        self.count = len(parts[0])
        self.source = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        self.row = np.concatenate([np.arange(len(part)) for part in parts])
        self.keys = self._sort_keys()

    def label(self, number: Any) -> str:
        """Return the label of a row as a string."""
        return str(self._show(self._parts[int(self.source[number])][int(self.row[number])]))

    def name(self, number: Any) -> str:
        """Return the name of the file of a row."""
        return self._names[int(self.source[number])]

    def sorted(self, *, last_first: bool) -> npt.NDArray[Any]:
        """Return the numbers of the files' rows in the order of their keys. Equal rows keep the order of their files.

        Args:
            last_first: Reverse the order of equal rows.
        """
        numbers = np.arange(self.count, len(self.keys))
        if last_first:
            numbers = numbers[::-1]
        return numbers[np.argsort(self.keys[numbers], kind="stable")]

    def _sort_keys(self) -> npt.NDArray[Any]:
        labels = np.concatenate([part for part in self._parts if len(part)] or [np.empty(0)])
        if labels.dtype.kind not in "biufmM":  # such as strings, which keep the order of the files
            numbers: dict[Any, int] = {}
            return np.array([numbers.setdefault(value, len(numbers)) for value in labels.tolist()])
        missing = np.flatnonzero(np.isnat(labels) if labels.dtype.kind in "mM" else np.isnan(labels))
        if len(missing):
            raise ShapeError(f"{self.name(missing[0])} has a missing value as a label")
        if labels.dtype.kind == "u" and labels.size and labels.max() > _LARGEST:  # floats would make neighbours equal
            keys = np.unique(labels, return_inverse=True)[1].reshape(-1)
        else:
            keys = labels.astype("i8") if labels.dtype.kind in "bumM" else labels
        return keys * self._direction(keys)

    def _direction(self, keys: npt.NDArray[Any]) -> int:
        """Return 1 if labels increase, and -1 if they decrease.

        Raises:
            ShapeError: If the labels of a file are not in order.
        """
        direction, stops = 0, np.cumsum([len(part) for part in self._parts])
        for start, stop in zip(stops - [len(part) for part in self._parts], stops, strict=True):
            own = keys[start:stop]
            rises = own[1:] > own[:-1]
            direction = direction or (0 if len(own) < 2 else 1 if rises[0] else -1)
            wrong = np.flatnonzero((rises != (direction > 0)) | (own[1:] == own[:-1]))
            if len(wrong):
                at, row = start + int(wrong[0]), int(wrong[0]) + 1
                earlier = np.flatnonzero(own[:row] == own[row])
                where, rule = f"follows {self.label(at)} in row {row}", "increase" if direction > 0 else "decrease"
                if len(earlier):
                    where, rule = f"of row {earlier[0]} is repeated in row {row}", "differ"
                hint = "sort the file first, for example with xarray's sortby() and drop_duplicates()"
                if not self.source[at]:
                    hint = (
                        f"if the rows from {row} on are fill values, because the arrays were resized, resize() all of them to {row} "
                        "rows and append the files of the other rows again; otherwise pass mode='w' to replace the dataset"
                    )
                raise ShapeError(
                    f"the labels of {self.name(at)} are not in order: {self.label(at + 1)} {where}, but labels must {rule}; {hint}"
                )
        return direction or 1


def _unusual_steps(
    rows: _Rows, new: npt.NDArray[Any]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the labels before and after each step that is longer than the usual one, and each that is nearly zero.

    Only steps next to new rows count, unless too few rows existed before to know the usual step.

    Args:
        rows: The rows.
        new: The numbers of the rows that are added.
    """
    numbers = np.concatenate([np.arange(rows.count), new])
    numbers = numbers[np.argsort(rows.keys[numbers], kind="stable")]
    steps = np.diff(rows.keys[numbers]).astype("f8")
    if len(steps) < 2 or not len(new):
        return (), ()
    usual, is_new = np.sort(steps)[(len(steps) - 1) // 2], numbers >= rows.count
    is_checked = is_new[1:] | is_new[:-1] | (rows.count < _MOST_UNKNOWN)
    gap, near = (is_checked & own for own in (steps > _GAP * usual, steps < _NEAR * usual))

    def labels(places: npt.NDArray[Any]) -> tuple[tuple[str, str], ...]:
        return tuple((rows.label(numbers[at]), rows.label(numbers[at + 1])) for at in np.flatnonzero(places))

    return labels(gap), labels(near)


# ------------------------------------------------------------------ labels of reserved rows


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
    (start, rest, _), (end, last_rest, length), (count, name) = _date(first), _date(last), _step(step)
    origin = TimeUnits(f"seconds since {_text(start, rest)}", units.calendar)

    def seconds(month: int, rest: str, number: int = 0, unit: str = "seconds") -> int:
        """Return the seconds from the first label to a number of units after a date."""
        own = TimeUnits(f"{unit} since {_text(month, rest)}", units.calendar)
        return int(convert_numbers(np.array([number]), own, origin)[0])

    if length < 10:  # a month or a year
        stop = seconds(end + (1 if length == 7 else 12), last_rest)
    else:
        stop = seconds(end, last_rest, 1, "days" if length == 10 else "seconds")
    if name in _SECONDS:
        width = count * _SECONDS[name]
        _check_size(stop / width)
        return np.arange(0, stop, width), origin
    months, numbers = count * (12 if name[0] == "y" else 1), list[int]()
    while (number := seconds(start + len(numbers) * months, rest)) < stop:
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


def _date(text: str) -> tuple[int, str, int]:
    """Return the number of the month of a date, counted from year 0, the rest of the date, and the length of its text."""
    found = _DATE.fullmatch(text)
    if found is None or not 1 <= int(found[2] or 1) <= 12:
        raise ValueError(f"{text!r} is not a date")
    rest = f"-{int(found[3] or 1):02} {found[4] or '00:00:00'}"
    return 12 * int(found[1]) + int(found[2] or 1) - 1, rest, len(text)


def _text(month: int, rest: str) -> str:
    return f"{month // 12:04}-{month % 12 + 1:02}{rest}"
