"""The variables that a job stores: which ones of the files, with which axes, data types and units. No IO."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.planning.axis import reserved_labels
from zarrasync.bulk.files.planning.comparison import Comparison, find_single_rows, is_comparable, is_projection
from zarrasync.bulk.files.records.plan import FileVariable
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.conversions import common_units, convert_times
from zarrasync.bulk.files.sources.headers import RELATED, FileHeader, VariableHeader, references
from zarrasync.errors import CodecError, ShapeError
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS, TimeUnits, duration_units, units_of
from zarrasync.model import dtypes

_MOST_GROUPS = 5
"""The number of groups that messages name."""


class Variables:
    """The variables that a job stores.

    Args:
        headers: The headers of the files.
        target: The destination.
        parameters: The parameters of the job.

    Attributes:
        dim: The dimension along which files are joined.
        stacks: Whether no file has an axis of rows, so that each file is one row.
        notes: Messages for the report.
        left_out: Messages about parts of the files that are not stored although no argument excludes them.
        names: The names of the variables to store, with the coordinates of their dimensions.

    Raises:
        ShapeError: If files do not have the variables.
    """

    def __init__(self, headers: Sequence[FileHeader], target: Target, parameters: Parameters) -> None:
        self.target, self.parameters, self.dim = target, parameters, parameters.dim
        self._are_single = find_single_rows(headers, self.dim)
        self._with_rows: dict[str, bool] = {}
        self.headers = self._with_absent(headers)
        self.stacks = all(self._are_single)
        self.notes: list[str] = []
        self.left_out = _unread(headers, parameters.reader.variables)
        self.names = self._find_chosen() if parameters.reader.variables else self._find_all()
        self.left_out += _gaps(headers, self.names)
        self._units: dict[str, TimeUnits | None] = {}

    def _with_absent(self, headers: Sequence[FileHeader]) -> Sequence[FileHeader]:
        """Return headers that have all optional variables, of which any file or the destination has rows."""
        result = list(headers)
        for name in self.parameters.reader.optional:
            present = [n for n, header in enumerate(headers) if name in header.variables]
            if len(present) == len(headers):
                continue
            if present:
                own, is_single = headers[present[0]].variables[name], self._are_single[present[0]]
            elif self.dim in self.target.dims.get(name, ()):
                own, is_single = self.target.header(name), False
            else:
                continue
            own = replace(own, values=None, digest=None, problem="", gap="", is_absent=True, is_stored=False)
            axis = own.dims.index(self.dim) if self.dim in own.dims else None
            if axis is None and not is_single:
                raise ShapeError(
                    f"the optional variable {name!r} has no dimension {self.dim!r}, so that no rows of it can be missing"
                )
            for n, header in enumerate(headers):
                if name not in header.variables:
                    added = _with_rows(own, axis, None if self._are_single[n] else header.row_count(self.dim) or 0)
                    result[n] = replace(result[n], variables={**result[n].variables, name: added})
        return result

    # -------------------------------------------------------------- choice

    def _find_all(self) -> list[str]:
        """Return the names of all variables, which must be the same in all files."""
        first, *others = self.headers
        self._check_any()
        for header in others:
            own, present = first.variables.keys(), header.variables.keys()
            if different := own - present or present - own:
                name = min(different)
                one, other = (first, header) if name in first.variables else (header, first)
                raise ShapeError(
                    f"{other.file.name} lacks the variable {name!r}, which {one.file.name} has; choose the variables to store with "
                    "variables=[…]"
                )
        return list(first.variables)

    def _find_chosen(self) -> list[str]:
        """Return the names of the chosen variables, of the coordinates of their dimensions, and of those they refer to."""
        first, chosen = self.headers[0], self.parameters.reader.variables
        self._check_any()
        for header in self.headers:
            for name in chosen:
                if name in header.skipped:
                    raise ShapeError(f"{name!r} of {header.file.name} cannot be read: {header.skipped[name]}")
                if name not in header.variables:
                    known = ", ".join(sorted(header.variables))
                    raise ShapeError(f"{header.file.name} has no variable {name!r}; its variables are {known}")
        dims = {dim for name in chosen for dim in first.variables[name].dims} | {self.dim}
        linked = first.linked([*chosen, *dims])
        optional = {name for name in linked - dims - set(chosen) if not self._is_common(name)}
        if optional:
            are_unread = {n for header in self.headers for n, own in header.variables.items() if own.problem}
            reasons = {name: "it cannot be read" if name in are_unread else "files differ in it" for name in optional}
            self.left_out += [f"{name}: left out, because {reasons[name]}" for name in sorted(optional)]
        for header in self.headers[1:]:
            if missing := sorted(dims & first.variables.keys() - header.variables.keys()):
                raise ShapeError(f"{first.file.name} has the variable {missing[0]!r}, but {header.file.name} does not")
        names = [name for name in first.variables if name in linked - optional]
        for name in names:
            related = references(first.variables[name].attributes, RELATED) & first.variables.keys()
            if others := sorted(related - set(names)):
                self.notes.append(f"{name} refers to {', '.join(others)}, which variables does not contain")
        return names

    def _check_any(self) -> None:
        first = self.headers[0]
        groups = ", ".join(map(repr, first.groups[:_MOST_GROUPS])) + ("…" if len(first.groups) > _MOST_GROUPS else "")
        if not first.variables:
            hint = f"its groups are {groups}; choose one" if groups else "choose another group"
            raise ShapeError(
                f"{first.file.name} has no variables in the group {self.parameters.reader.group or '/'!r}; {hint} with "
                "group=…"
            )
        if groups and self.parameters.is_one_group and not self.parameters.reader.variables:
            self.left_out.append(
                f"groups of {first.file.name}: left out, because only one group is read: {groups}; ingest them one by one with "
                "group=…, or choose variables with variables=[…]"
            )

    def _is_common(self, name: str) -> bool:
        """Return whether all files have a variable, which has rows or the same values everywhere."""
        own = [header.variables.get(name) for header in self.headers]
        if any(variable is None or variable.problem for variable in own):
            return False
        if self._has_rows(name):
            return True
        first, *others = self.all_headers(name)
        return all(_is_equal(name, other, first, with_projection=True) for other in others)

    # -------------------------------------------------------------- axes

    @property
    def row_counts(self) -> list[int]:
        """The number of rows of each file. A dataset without the dimension has no rows."""
        if not self.dim:
            return [0] * len(self.headers)
        files = zip(self.headers, self._are_single, strict=True)
        return [1 if is_single else header.row_count(self.dim) or 0 for header, is_single in files]

    def header(self, number: int, name: str) -> VariableHeader:
        """Return the header of a variable with the axis of rows, and with its axes in the order of the stored ones.

        Args:
            number: The number of the file.
            name: The name of the variable.
        """
        header = self._row_header(number, name)
        if number == 0 and name not in self.target.arrays:
            return header
        axes = header.order_of(self._stored_dims(name))
        return header if axes is None or axes == tuple(range(len(axes))) else header.transpose(axes)

    def in_file(self, number: int, name: str) -> FileVariable:
        """Return a variable of a file as plans contain it."""
        header, units = self.headers[number], self.units(name)
        own = None if units is None else self.own_units(header.time_attributes(name), units)
        variable = header.variables[name]
        return FileVariable(variable.dims, None if own is None else (own[0], own[1]), variable.is_absent)

    def _stored_dims(self, name: str) -> tuple[str | None, ...]:
        return self.target.dims[name] if name in self.target.arrays else self._row_header(0, name).dims

    def _row_header(self, number: int, name: str) -> VariableHeader:
        """Return the header of a variable with the axis of rows."""
        header = self.headers[number].variables[name]
        if not self._are_single[number] or not self._has_rows(name):
            return header
        chunks = None if header.chunks is None else (1, *header.chunks)
        values = None if header.values is None else header.values[None]
        return replace(header, dims=(self.dim, *header.dims), shape=(1, *header.shape), chunks=chunks, values=values)

    def all_headers(self, name: str) -> list[VariableHeader]:
        """Return the headers of a variable in all files, with the names of these."""
        found = enumerate(self.headers)
        return [replace(self.header(number, name), place=header.file.name) for number, header in found]

    def axis(self, name: str) -> int | None:
        """Return the number of the axis of rows of a variable, or ``None``."""
        dims = self.header(0, name).dims
        return dims.index(self.dim) if self.dim in dims else None

    def is_label(self, name: str) -> bool:
        """Return whether a variable labels an axis, or contains the bounds of such labels."""
        first = self.headers[0].variables[name]
        labels_axis = first.is_coordinate and len(first.dims) < 2
        return labels_axis or name == self.dim or self._parent_of_bounds(name) is not None

    def _has_rows(self, name: str) -> bool:
        """Return whether a variable has a value for each row. All files are compared once."""
        if name not in self._with_rows:
            self._with_rows[name] = self._find_rows(name)
        return self._with_rows[name]

    def _find_rows(self, name: str) -> bool:
        if not self.dim:
            return False
        if name in self.target.arrays:
            return self.dim in self.target.dims[name]
        if not self.stacks:
            return self.dim in self.headers[self._are_single.index(False)].variables[name].dims
        variable = self.headers[0].variables[name]
        if name == self.dim:
            return True
        if not variable.is_coordinate and (variable.dims or not self._is_grid_mapping(name)):
            return True
        if variable.dims == (name,):  # the labels of an axis, which all rows share
            return False
        first, *others = (header.variables[name] for header in self.headers)
        return first.values is not None and not all(_is_equal(name, other, first) for other in others)

    def _is_grid_mapping(self, name: str) -> bool:
        """Return whether a variable describes the coordinate reference system of others."""
        variables = self.headers[0].variables
        names = " ".join(str(variable.attributes.get("grid_mapping", "")) for variable in variables.values())
        return is_projection(variables[name]) or name in re.split(r"[\s:]+", names)

    # -------------------------------------------------------------- data types and units

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the data type of the stored values of a variable."""
        if name in self.target.arrays:
            return self.target.arrays[name].metadata.dtype.numpy
        return self._requested_dtype(name) or _dtype(self.source_dtype(name))

    def source_dtype(self, name: str) -> str:
        """Return the data type of a variable in the first file; if it is a string, with the longest length in all files."""
        first = self.headers[0].variables[name].dtype
        if first == "str" or np.dtype(first).kind not in "SU":
            return first
        found = {header.variables[name].dtype for header in self.headers}
        if "str" in found and np.dtype(first).kind == "U":
            return "str"
        same = [dtype for dtype in found - {"str"} if np.dtype(dtype).kind == np.dtype(first).kind]
        return max(same, key=lambda dtype: np.dtype(dtype).itemsize)

    def are_converted(self, name: str) -> bool:
        """Return whether the parameters request the data type of the stored values, so that files may have others."""
        dtype = self._requested_dtype(name)
        return dtype is not None and dtype == self.dtype(name)

    def _requested_dtype(self, name: str) -> np.dtype[Any] | None:
        dtype = self._requested(name, "dtype")
        return _dtype(dtype) if dtype else None

    def units(self, name: str) -> TimeUnits | None:
        """Return the units that the times of a variable are converted to; ``None`` for other variables.

        Raises:
            CodecError: If times cannot be converted to one unit.
        """
        if name not in self._units:
            self._units[name] = self._find_units(name)
        return self._units[name]

    def _find_units(self, name: str) -> TimeUnits | None:
        if name in self.target.arrays:
            stored = self.target.time_attributes(name)
            return units_of(stored) or self._units_of_durations(name, stored)
        parent = self._parent_of_bounds(name)
        if parent is not None:
            return self.units(parent)
        attributes = self.headers[0].time_attributes(name)
        requested = self._requested_units(name, attributes)
        first = units_of(attributes) or self._units_of_durations(name, attributes)
        if requested is not None or first is None or self.axis(name) is None:
            return requested or first
        pairs = zip(self.all_headers(name), self.headers, strict=True)
        known = [(own, self.own_units(header.time_attributes(name), first)) for own, header in pairs]
        parts = [
            (own.values, units, own.attributes, f"{name!r} of {own.place}")
            for own, units in known
            if own.values is not None
        ]
        if self.parameters.reserve and name == self.dim and parts:
            values, origin = reserved_labels(self.parameters.reserve, first)
            parts += [] if origin is None else [(values, origin, {}, f"{name!r} of reserve")]
        if len(parts) < len(self.headers) or len({units for _, units, _, _ in parts}) < 2:
            return first
        return common_units(parts, self.dtype(name))

    def _units_of_durations(self, name: str, attributes: Mapping[str, Any]) -> TimeUnits | None:
        """Return the units of durations if a file has other ones, so that values are converted."""
        units = duration_units(attributes)
        others = {duration_units(header.variables[name].attributes) for header in self.headers}
        return None if units is None or others <= {units, None} else units

    @staticmethod
    def own_units(attributes: Mapping[str, Any], units: TimeUnits) -> TimeUnits:
        """Return the units of a variable of a file, whose values are converted to other units. If it has no units, return the other ones."""
        return (units_of(attributes) if units.calendar else duration_units(attributes)) or units

    def _requested_units(self, name: str, attributes: Mapping[str, Any]) -> TimeUnits | None:
        """Return the units that the parameters request for the times of a new array, or ``None``.

        Raises:
            ShapeError: If these are not units of times, although the variable contains times.
        """
        requested = self._requested(name, "attributes") or {}
        if not {UNITS, CALENDAR} & requested.keys():
            return None
        own, units = (units_of(a) or duration_units(a) for a in (attributes, {**attributes, **requested}))
        if own is None:
            return units_of(requested)
        if units is None or bool(units.calendar) != bool(own.calendar):
            example = "hours since 2000-01-01" if own.calendar else "hours"
            raise ShapeError(
                f"{name!r} contains times in {own.units!r}, which cannot become {requested[UNITS]!r}; request units such as "
                f"{example!r}"
            )
        return units

    def _requested(self, name: str, parameter: str) -> Any:
        """Return a parameter of a new array, or ``None``."""
        return {**self.parameters.layout.options, **self.parameters.layout.encoding.get(name, {})}.get(parameter)

    def _parent_of_bounds(self, name: str) -> str | None:
        """Return the variable whose bounds a variable contains, if they have the units of that variable."""
        first = self.headers[0]
        return None if units_of(first.variables[name].attributes) is not None else first.parents.get(name)

    def convert_times(self, name: str, number: int, values: npt.NDArray[Any], units: TimeUnits) -> npt.NDArray[Any]:
        """Return times of a file in other units, with the data type of the stored values.

        Args:
            name: The name of the variable.
            number: The number of the file.
            values: Times of the variable in this file.
            units: The units to convert to.
        """
        header = self.headers[number]
        attributes, text = header.variables[name].attributes, f"{name!r} of {header.file.name}"
        own = self.own_units(header.time_attributes(name), units)
        return convert_times(values, own, units, self.dtype(name), text, attributes)


def _with_rows(header: VariableHeader, axis: int | None, count: int | None) -> VariableHeader:
    """Return a variable with another number of rows; without their axis if ``count`` is ``None``."""
    if axis is None:
        return header
    dims, shape = list(header.dims), list(header.shape)
    if count is None:
        del dims[axis], shape[axis]
    else:
        shape[axis] = count
    return replace(header, dims=tuple(dims), shape=tuple(shape), chunks=None)


def _unread(headers: Sequence[FileHeader], chosen: Sequence[str]) -> list[str]:
    """Return messages about variables that the engine has left out, unless other variables were chosen, and other parts."""
    parts = ({**({} if chosen else header.skipped), **header.unread} for header in headers)
    return _by_files(headers, ({name: f"left out, because {reason}" for name, reason in own.items()} for own in parts))


def _gaps(headers: Sequence[FileHeader], names: Sequence[str]) -> list[str]:
    """Return messages about values that files do not contain."""
    variables = ({name: header.variables[name] for name in names if name in header.variables} for header in headers)
    return _by_files(headers, ({name: own.gap for name, own in group.items() if own.gap} for group in variables))


def _by_files(headers: Sequence[FileHeader], parts: Iterable[Mapping[str, str]]) -> list[str]:
    """Return messages about parts of files. If several files have the same message, the first one is named.

    Args:
        headers: The headers of the files.
        parts: For each file, its parts by name, with what happened to them.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for header, own in zip(headers, parts, strict=True):
        for item in own.items():
            found.setdefault(item, []).append(header.file.name)
    return [
        f"{name} of {files[0]}{f' and {len(files) - 1:,} more' if len(files) > 1 else ''}: {text}"
        for (name, text), files in found.items()
    ]


def _is_equal(name: str, header: VariableHeader, like: VariableHeader, *, with_projection: bool = False) -> bool:
    """Return whether a variable without rows has the same values in two files, also if times have other units."""
    if not is_comparable(header, like):
        return False
    try:
        Comparison(name).check_values(header, like)
        if with_projection:
            Comparison(name).check_system(header, like)
    except (ShapeError, CodecError):
        return False
    return True


def _dtype(dtype: Any) -> np.dtype[Any]:
    return np.dtype(object) if dtype == "str" else dtypes.from_numpy(dtype).numpy
