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
        regex: The regular expression, with a group for each code, or one for the field.
        depth: The number of folders whose names are part of it.
        unit: The unit of times; empty for other labels.
        field: The field of other labels.
    """

    regex: re.Pattern[str]
    depth: int
    unit: str
    field: str

    def value(self, match: re.Match[str]) -> Any:
        """Return the label of a match, or ``None`` if it is a time that does not exist."""
        return _FIELDS[self.field][1](match["value"]) if self.field else _time(match.groupdict())


@lru_cache(16)
def parse_pattern(pattern: str) -> _Pattern:
    """Return a pattern.

    Raises:
        ValueError: If it contains other codes, or neither a year nor a single field.
    """
    parts, codes, fields = list[str](), list[str](), list[str]()
    for item in re.findall(r"%.?|\{.*?\}|[^%]", pattern, re.DOTALL):
        code, field = item.removeprefix("%"), item.strip("{}")
        if item.startswith("{") and field in _FIELDS:
            fields.append(field)
            parts.append(f"(?P<value>{_FIELDS[field][0]})")
        elif not item.startswith("%") or item == "%%":
            parts.append(_WILDCARDS.get(item) or re.escape(item[-1] if item == "%%" else item))
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
    if len(fields) > 1 or (fields and codes):
        raise ValueError(
            f"labels={pattern!r} contains several labels; write codes of a time, or one field such as {{int}}"
        )
    if not {"Y", "y"} & set(codes) and not fields:
        known = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise ValueError(
            f"labels={pattern!r} contains no year; write a pattern of names such as 'ndvi_%Y%m%d', or 'member_{{int}}' for "
            f"other labels, with one of {known}"
        )
    if fields:
        is_last = pattern.endswith("}")  # where a string ends before the suffix, and a number with its last digit
        end = "" if not is_last else r"(?=\.[^./]*$|$)" if fields == ["str"] else r"(?!\d)"
        return _Pattern(re.compile("".join(parts) + end), pattern.count("/"), "", fields[0])
    before = r"(?<!\d)" if re.match(_NUMBER, pattern) else ""  # a number is not a part of a longer one
    after = r"(?!\d)" if re.search(f"{_NUMBER}$", pattern) else ""
    regex = re.compile(f"(?={before}{''.join(parts)}{after})")  # matches may overlap
    return _Pattern(regex, pattern.count("/"), "microseconds" if "f" in codes else "seconds", "")


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
    parsed = parse_pattern(pattern)
    name = "/".join(path_of(file.name).rstrip("/").replace("\\", "/").split("/")[-parsed.depth - 1 :])
    labels = sorted({parsed.value(match) for match in parsed.regex.finditer(name)} - {None})
    kind = "time" if parsed.unit else "label"
    if len(labels) != 1:
        found = f"no {kind} that matches labels={pattern!r}; rename the file, leave it out, or pass another pattern"
        if labels:
            shown = ", ".join(own.isoformat() if isinstance(own, datetime) else str(own) for own in labels)
            found = f"several {kind}s that match labels={pattern!r}: {shown}; write more of the name, such as 'S2?_*_%Y%m%d'"
        raise ShapeError(f"the name of {file.name} contains {found}")
    (label,) = labels
    if parsed.field == "int" and not -(2**63) <= label < 2**63:
        raise ShapeError(f"the label {label} in the name of {file.name} exceeds 64 bits; use {{str}} in labels")
    return (label - _EPOCH) // timedelta(**{parsed.unit: 1}) if parsed.unit else label


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
    unit, attributes = parse_pattern(pattern).unit, dict[str, str]()
    if unit:
        since = {UNITS: f"{unit} since 1970-01-01", CALENDAR: "proleptic_gregorian"}
        attributes = {"standard_name": "time", **since}
    values = label_values(header.file, pattern, shape)
    dtype = "str" if values.dtype.kind == "U" else values.dtype.str
    label = VariableHeader(dims, shape, dtype, attributes, is_coordinate=True, values=values)
    return replace(header, variables={**header.variables, dim: label})
