"""Labels of rows from the names of files: times in codes of ``strptime``, or numbers and strings, such as of members."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.sources.engines import path_of
from zarrasync.bulk.files.sources.headers import FileHeader, SourceFile, VariableHeader
from zarrasync.errors import ShapeError
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS

_CODES = {
    "Y": r"\d{4}",
    "j": r"\d{3}",
    "f": r"\d{1,6}",
    **dict.fromkeys("ymdHIMS", r"\d\d"),
    "b": r"[^\W\d_]{3,4}",
    "B": r"[^\W\d_]+",
    "p": "[AaPp][Mm]",
    "z": r"(?:Z|[+-]\d\d:?\d\d)",
}
"""The codes of ``strptime`` for times, with regular expressions of their values."""
_NUMBER = r"(?:%[YymdjHIMSf]|\d)"
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "int": (r"(?<![\d.])-?\d+", int),
    "float": (r"(?<![\d.])-?\d+(?:\.\d+)?", float),
    "str": (r"[^/]+?", str),
}
"""Fields of patterns for other labels, with regular expressions and types of their values."""
_WILDCARDS = {"*": "[^/]*?", "?": "[^/]"}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # compared with times of names, which have no zone either


class _Pattern(NamedTuple):
    """A pattern of names.

    Attributes:
        regex: The regular expression, with a group for each code.
        depth: The number of folders whose names are part of it.
        step: The unit of the labels.
        field: The field of other labels than times; empty for times.
    """

    regex: re.Pattern[str]
    depth: int
    step: timedelta
    field: str = ""


@lru_cache(16)
def _parse(pattern: str) -> _Pattern:
    """Return a pattern.

    Raises:
        ValueError: If it contains other codes, or no year.
    """
    fields = re.findall(r"\{.*?\}", pattern)
    if len(fields) > 1 or any(field[1:-1] not in _FIELDS for field in fields):
        known = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise ValueError(f"labels={pattern!r} contains {' and '.join(fields)}; a pattern can contain one of {known}")
    if field := re.search(r"\{(int|float|str)\}", pattern):
        ends = (
            re.escape(part).replace(r"\*", "[^/]*?").replace(r"\?", "[^/]")
            for part in re.split(re.escape(field[0]), pattern, maxsplit=1)
        )
        before, after = ends
        inner = f"{before}(?P<value>{_FIELDS[field[1]][0]}){after}"
        inner += r"(?![\d])" if field[1] != "str" and not after else "" if after else r"(?=\.[^./]*$|$)"
        return _Pattern(re.compile(inner), pattern.count("/"), timedelta(seconds=1), field[1])
    parts, codes = list[str](), list[str]()
    for code, text in re.findall(r"%(.?)|([^%])", pattern, re.DOTALL):
        if text or code == "%":
            parts.append(_WILDCARDS.get(text) or re.escape(text or code))
        elif code in codes:  # such as a year in the names of a folder and of its files
            parts.append(f"(?P={code})")
        elif code in _CODES:
            codes.append(code)
            parts.append(f"(?P<{code}>{_CODES[code]})")
        else:
            known = " ".join(f"%{name}" for name in _CODES)
            raise ValueError(
                f"labels={pattern!r} contains the code '%{code}'; known are {known}, and %% for a percent sign"
            )
    if not {"Y", "y"} & set(codes):
        raise ValueError(
            f"labels={pattern!r} contains no year; write a pattern of names such as 'ndvi_%Y%m%d', or 'member_{{int}}' for "
            "other labels"
        )
    before = r"(?<!\d)" if re.match(_NUMBER, pattern) else ""  # a number is not a part of a longer one
    after = r"(?!\d)" if re.search(f"{_NUMBER}$", pattern) else ""
    regex = re.compile(f"(?={before}{''.join(parts)}{after})")  # matches may overlap
    return _Pattern(regex, pattern.count("/"), timedelta(microseconds=1) if "f" in codes else timedelta(seconds=1))


def check_pattern(pattern: str) -> None:
    """Raise a ``ValueError`` if a pattern is invalid."""
    _parse(pattern)


def label_of(file: SourceFile, pattern: str) -> Any:
    """Return the label in the name of a file; of a time, in the units of the attributes of ``with_labels``.

    Args:
        file: The file.
        pattern: A part of the name, with codes of ``strptime`` and the wildcards ``*`` and ``?``, or with ``{int}``,
            ``{float}`` or ``{str}`` in the place of the label. With slashes, also of the names of folders.

    Raises:
        ShapeError: If the name contains no such label, or several.
        ValueError: If the pattern is invalid.
    """
    parsed = _parse(pattern)
    name = "/".join(path_of(file.name).rstrip("/").replace("\\", "/").split("/")[-parsed.depth - 1 :])
    if parsed.field:
        labels = {_FIELDS[parsed.field][1](match["value"]) for match in parsed.regex.finditer(name)}
        if parsed.field == "int" and (large := [label for label in labels if not -(2**63) <= label < 2**63]):
            raise ShapeError(f"the label {large[0]} in the name of {file.name} exceeds 64 bits; use {{str}} in labels")
        if len(labels) == 1:
            return labels.pop()
        found = (
            f"several labels: {', '.join(map(str, sorted(labels)))}; write more of the name" if labels else "no label"
        )
        raise ShapeError(
            f"the name of {file.name} contains {found} that matches labels={pattern!r}; pass another pattern"
        )
    times = {time for match in parsed.regex.finditer(name) if (time := _time(match.groupdict())) is not None}
    if len(times) == 1:
        return (times.pop() - _EPOCH) // parsed.step
    if times:
        found = ", ".join(time.isoformat() for time in sorted(times))
        raise ShapeError(
            f"the name of {file.name} contains several times that match labels={pattern!r}: {found}; write more of the name, "
            "such as 'ndvi_%Y%m%d' or 'S2?_*_%Y%m%d'"
        )
    raise ShapeError(
        f"the name of {file.name} contains no time that matches labels={pattern!r}; rename the file, leave it out, or pass "
        "another pattern"
    )


def _time(values: dict[str, str]) -> datetime | None:
    """Return the time with the values of codes in UTC, or ``None`` if it does not exist."""
    try:
        time = datetime.strptime(" ".join(values.values()), " ".join(f"%{code}" for code in values))  # noqa: DTZ007  # %z is optional
    except ValueError:
        return None
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


def label_values(file: SourceFile, pattern: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the label of a file in an array without axes, or with one of length 1."""
    label = label_of(file, pattern)
    return np.full(shape, label, {int: "i8", float: "f8"}.get(type(label), f"U{len(str(label))}"))


def with_labels(header: FileHeader, dim: str, pattern: str) -> FileHeader:
    """Return a header with the label in the name of the file as the label of its row.

    Args:
        header: The header.
        dim: The dimension along which files are joined.
        pattern: The pattern of the name.

    Raises:
        ShapeError: If the file has labels or several rows, or its name does not match.
    """
    if dim in header.variables:
        raise ShapeError(
            f"{header.file.name} has labels {dim!r} of its own; omit labels={pattern!r}, or ingest such files in another call"
        )
    count = header.row_count(dim)
    if count not in (None, 1):
        raise ShapeError(
            f"{header.file.name} has {count:,} rows along {dim!r}, but its name contains one label; labels from names need files "
            "with one row each",
            found=(count or 0,),
            wanted=(1,),
        )
    dims, shape = ((), ()) if count is None else ((dim,), (1,))
    unit = "seconds" if _parse(pattern).step.seconds else "microseconds"
    attributes = (
        {}
        if _parse(pattern).field
        else {
            "standard_name": "time",
            UNITS: f"{unit} since 1970-01-01",
            CALENDAR: "proleptic_gregorian",
        }
    )
    values = label_values(header.file, pattern, shape)
    dtype = "str" if values.dtype.kind == "U" else values.dtype.str
    label = VariableHeader(dims, shape, dtype, attributes, is_coordinate=True, values=values)
    return replace(header, variables={**header.variables, dim: label})
