"""From the headers of files and the state of the destination to a ``JobPlan``. No IO."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.axis import Axis, OnDuplicate, merge_rows, stack_rows
from zarrasync.bulk.files.compare import check_equal, check_fit, has_rows, is_equal, row_count
from zarrasync.bulk.files.headers import FileHeader, ReaderOptions, VariableHeader
from zarrasync.bulk.files.journal import digest_labels
from zarrasync.bulk.files.layout import array_metadata, check_names, split_rows
from zarrasync.bulk.files.plan import ArrayPlan, JobPlan, Part
from zarrasync.bulk.files.target import Target, stored_attributes
from zarrasync.bulk.files.times import TimeUnits, common_units, convert_times, find_missing, units_of
from zarrasync.display.text import counted
from zarrasync.errors import CodecError, ShapeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.model import dtypes
from zarrasync.model.paths import join

__all__ = ["Parameters", "plan_job"]

_INLINE_BYTES = 32 << 20
"""Rows of small variables up to this size in all become part of the plan."""
_MINOR_VALUES = 16
"""A variable with at most this many values in a row is small."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a job.

    Attributes:
        dim: The dimension along which files are joined.
        append: Whether to add rows to an existing dataset.
        region: The rows of an existing dataset to write: a slice, or ``"auto"`` for those with the files' labels.
        on_duplicate: What happens if a label exists already.
        on_gap: What happens if the labels have a gap.
        variables: The variables to store; all if empty.
        layout: ``chunks``, ``shards`` and other parameters of ``create_array`` for new arrays. Shapes may be mappings of
            dimensions to sizes.
        encoding: The same for single variables.
        reader: How to open the files.
        tasks: The number of tasks; 0 for a default.
    """

    dim: str
    append: bool = False
    region: slice | Literal["auto"] | None = None
    on_duplicate: OnDuplicate = "error"
    on_gap: Literal["report", "error", "ignore"] = "report"
    variables: tuple[str, ...] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reader: ReaderOptions = field(default_factory=ReaderOptions)
    tasks: int = 0

    @property
    def digest(self) -> str:
        """A digest of the parameters that determine the stored values of a new dataset."""
        reader = [
            self.reader.group,
            self.reader.decode,
            self.reader.dims,
            *([self.reader.engine_options] * bool(self.reader.engine_options)),
        ]
        values = [self.dim, sorted(self.variables), self.layout, self.encoding, reader]
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def plan_job(headers: Sequence[FileHeader], target: Target, parameters: Parameters) -> JobPlan:
    """Return the plan of a job.

    Raises:
        ShapeError: If the files do not fit together or into the destination.
        CodecError: If times cannot be converted to one unit.
    """
    return _Planner(headers, target, parameters).plan()


class _Planner:
    def __init__(self, headers: Sequence[FileHeader], target: Target, parameters: Parameters) -> None:
        self.headers, self.target, self.parameters, self.dim = headers, target, parameters, parameters.dim
        self.stacks = not has_rows(headers, self.dim)
        self.counts = [1 if self.stacks else row_count(header, self.dim) or 0 for header in headers]
        self.notes: list[str] = []
        self.names = self._choose_variables()
        self._known_units: dict[str, TimeUnits | None] = {}
        self._metadata: dict[str, ArrayMetadata] = {}

    def plan(self) -> JobPlan:
        """Return the plan."""
        check_names(self.headers[0], self.dim, self.parameters.layout, self.parameters.encoding)
        self._check_files()
        labels = self._labels()
        axis = self._merge(labels)
        arrays = [plan for name in self.names if (plan := self._array(name, axis)) is not None]
        arrays = self._limit_inline(arrays, axis)
        path, format_ = self.target.handle.path, self.target.handle.format
        sized = [array for array in arrays if array.kind == "rows"]
        metadata = {array.name: self._metadata[array.name] for array in sized}
        parts = [
            Part(*rows)
            for rows in split_rows(axis, metadata, {a.name: a.axis or 0 for a in sized}, self.parameters.tasks)
        ]
        parts += [Part(array=array.name) for array in arrays if array.kind == "whole"]
        is_new = self.target.group is None
        assert isinstance(format_.zarr_format, int)
        return JobPlan(
            format_.zarr_format,
            path,
            self.dim,
            axis.length,
            [header.file for header in self.headers],
            self.parameters.reader,
            arrays,
            axis.segments,
            parts,
            dict(self.headers[0].attributes) if is_new else None,
            self.parameters.digest if is_new else self.target.journal.parameters,
            self._journal(axis, labels),
            self.notes,
        )

    # -------------------------------------------------------------- variables

    def _choose_variables(self) -> list[str]:
        """Return the names of the variables to store, with the coordinates of their dimensions."""
        first, chosen = self.headers[0], self.parameters.variables
        if not first.variables:
            raise ShapeError(
                f"{first.file.name} has no variables in the group {self.parameters.reader.group or '/'!r}; choose another "
                "group with source_group, or --path on the command line"
            )
        for header in self.headers:
            for name in chosen:
                if name not in header.variables:
                    known = ", ".join(sorted(header.variables))
                    raise ShapeError(f"{header.file.name} has no variable {name!r}; its variables are {known}")
        if not chosen:
            names = list(first.variables)
            for header in self.headers[1:]:
                if set(header.variables) != set(names):
                    name = min(set(header.variables) ^ set(names))
                    one, other = (first, header) if name in first.variables else (header, first)
                    raise ShapeError(
                        f"{one.file.name} has the variable {name!r}, but {other.file.name} does not; choose the variables "
                        "to store with variables=[…]"
                    )
            return names
        dims = {dim for name in chosen for dim in first.variables[name].dims} | {self.dim}
        attributes = [first.variables[name].attributes for name in chosen]
        linked = {str(item.get("grid_mapping")) for item in attributes}
        linked |= {part for item in attributes for part in str(item.get("coordinates", "")).split()}
        optional = {
            name for name in linked - dims - set(chosen) if name in first.variables and not self._is_common(name)
        }
        if optional:
            self.notes.append(f"{', '.join(sorted(optional))}: left out, because files differ in it")
        for header in self.headers[1:]:
            if missing := sorted(dims & first.variables.keys() - header.variables.keys()):
                raise ShapeError(f"{first.file.name} has the variable {missing[0]!r}, but {header.file.name} does not")
        return [name for name in first.variables if name in (dims | linked | set(chosen)) - optional]

    def _is_common(self, name: str) -> bool:
        """Return whether all files have a variable, which has rows or the same values everywhere."""
        if not all(name in header.variables for header in self.headers):
            return False
        if self._has_rows(name):
            return True
        first, *others = [header.variables[name] for header in self.headers]
        try:
            for other in others:
                check_equal(name, other, "", first, "")
        except (ShapeError, CodecError):
            return False
        return True

    def _has_rows(self, name: str) -> bool:
        """Return whether a variable has a value for each row."""
        if not self.dim:
            return False
        if name in self.target.arrays:
            return self.dim in self.target.dims[name]
        variable = self.headers[0].variables[name]
        if not self.stacks:
            return self.dim in variable.dims
        if name == self.dim:
            return True
        if not variable.is_coordinate and variable.dims:
            return True
        values = [header.variables[name].values for header in self.headers]
        return values[0] is not None and not all(is_equal(values[0], other) for other in values)

    def _row_header(self, name: str, header: VariableHeader) -> VariableHeader:
        """Return the header of a variable with the axis of rows."""
        if not self.stacks or not self._has_rows(name):
            return header
        chunks = None if header.chunks is None else (1, *header.chunks)
        values = None if header.values is None else header.values[None]
        return replace(header, dims=(self.dim, *header.dims), shape=(1, *header.shape), chunks=chunks, values=values)

    def _variable(self, number: int, name: str) -> VariableHeader:
        return self._row_header(name, self.headers[number].variables[name])

    def _axis(self, name: str) -> int | None:
        dims = self._variable(0, name).dims
        return dims.index(self.dim) if self.dim in dims else None

    # -------------------------------------------------------------- checks

    def _check_files(self) -> None:
        first_url = self.headers[0].file.name
        axes = {dim for name in self.names for dim in self.headers[0].variables[name].dims if dim != name}
        for name in self.names:
            is_needed = name in axes
            axis, first = self._axis(name), self._variable(0, name)
            any_dtype = "dtype" in self.parameters.encoding.get(name, {})
            for number, header in enumerate(self.headers[1:], 1):
                other = self._variable(number, name)
                check_fit(name, other, header.file.name, first, first_url, axis, any_dtype=any_dtype)
                if axis is None:
                    check_equal(name, other, header.file.name, first, first_url, is_needed=is_needed)
            if name in self.target.arrays:
                like = self._stored_header(name)
                text = f"{self.target.handle.name} of {self.target.handle.store!r}"
                for number, header in enumerate(self.headers):
                    check_fit(name, self._variable(number, name), header.file.name, like, text, axis, is_stored=True)
                if axis is None:
                    check_equal(name, first, first_url, like, text, is_needed=is_needed)
        if self.target.group is not None:
            rows = {name for name, dims in self.target.dims.items() if self.dim in dims}
            own = {name for name in self.names if self._axis(name) is not None}
            if missing := sorted(rows - own):
                raise ShapeError(
                    f"the destination has rows of {missing[0]!r} along {self.dim!r}, which {first_url} does not have; all "
                    "variables must get the same rows"
                )
            if new := [name for name in self.names if name not in self.target.arrays]:
                raise ShapeError(
                    f"{first_url} has the variable {new[0]!r}, but the destination does not; choose the variables to "
                    f"store with variables=[{', '.join(map(repr, self.target.arrays))}]"
                )

    def _stored_header(self, name: str) -> VariableHeader:
        """Return the header of an array of the destination."""
        metadata = self.target.arrays[name].metadata
        dims = tuple(str(dim) for dim in self.target.dims[name])
        attributes = stored_attributes(metadata, self.target.handle.format)
        dtype = metadata.dtype.numpy
        text = "str" if dtype.kind in "OT" else dtype.newbyteorder("=").str
        values, digest = self.target.values.get(name), self.target.digests.get(name)
        return VariableHeader(dims, metadata.shape, text, attributes, values=values, digest=digest)

    # -------------------------------------------------------------- rows

    def _labels(self) -> list[npt.NDArray[Any]] | None:
        """Return the labels of each file in the units of the destination, or ``None`` if the rows have no labels."""
        name = self.dim
        if name not in self.names:
            if self.target.labels is not None:
                raise ShapeError(
                    f"the rows of the destination have labels {name!r}, but {self.headers[0].file.name} has none"
                )
            return None
        headers = [self._variable(number, name) for number in range(len(self.headers))]
        values = [header.values for header in headers]
        if headers[0].dims != (name,) or any(item is None for item in values):
            return None
        found = [item for item in values if item is not None]
        units = self._units(name)
        if units is None:
            return found
        dtype = self._dtype(name)
        return [
            self._convert_times(name, number, item, units_of(header.attributes) or units, units, dtype)
            for number, (item, header) in enumerate(zip(found, headers, strict=True))
        ]

    def _check_labels(self) -> None:
        """Check that no row of the files has a missing label."""
        for number, source in enumerate(self.headers):
            header = self._variable(number, self.dim)
            if header.values is not None and find_missing(header.values, header.attributes).any():
                raise ShapeError(
                    f"{source.file.name} has a missing value as a label in {self.dim!r}; remove such rows from the file, or "
                    "correct their labels"
                )

    def _merge(self, labels: Sequence[npt.NDArray[Any]] | None) -> Axis:
        parameters, target = self.parameters, self.target
        start = target.length(self.dim) if target.group is not None else 0
        if isinstance(parameters.region, slice):
            return self._merge_region(parameters.region, start, labels)
        if labels is None or (start and target.labels is None):
            if parameters.region is not None:
                raise ShapeError(f"region='auto' needs labels: the files or the destination have no {self.dim!r}")
            return stack_rows(self.counts, start)
        self._check_labels()
        axis = merge_rows(
            labels,
            [header.file.name for header in self.headers],
            target.labels,
            on_duplicate=parameters.on_duplicate,
            only_existing=parameters.region is not None,
            show=self._show,
        )
        self._report(axis)
        return axis

    def _merge_region(self, region: slice, length: int, labels: Sequence[npt.NDArray[Any]] | None) -> Axis:
        start, stop, step = region.indices(length)
        count = sum(self.counts)
        if step != 1 or stop - start != count:
            raise ShapeError(
                f"the region {start}:{stop} of {self.dim!r} has {max(stop - start, 0)} rows, but the files have {count}",
                found=(count,),
                wanted=(max(stop - start, 0),),
            )
        stored = self.target.labels
        if labels is not None and stored is not None and not is_equal(np.concatenate(labels), stored[start:stop]):
            raise ShapeError(
                f"the labels of the files differ from those of the rows {start}:{stop} of {self.dim!r}; locate the rows by "
                "their labels with region='auto'"
            )
        axis = stack_rows(self.counts, start)
        return replace(axis, length=length, replaced=count)

    def _report(self, axis: Axis) -> None:
        if axis.duplicates:
            verb = "left out" if self.parameters.on_duplicate == "skip" else "left out for a later file"
            self.notes.append(f"{counted(axis.duplicates, 'repeated row')} {verb}")
        if axis.gaps and self.parameters.on_gap != "ignore":
            shown = "; ".join(f"{before} to {after}" for before, after in axis.gaps[:3])
            text = f"{counted(len(axis.gaps), 'gap')} in {self.dim!r}: {shown}" + ("; …" if len(axis.gaps) > 3 else "")
            if self.parameters.on_gap == "error":
                raise ShapeError(f"{text}; add the missing files, or pass on_gap='report'")
            self.notes.append(text)

    def _show(self, label: Any) -> str:
        units = self._units(self.dim)
        if units is None:
            return str(label)
        from xarray.coding.times import decode_cf_datetime

        date = decode_cf_datetime(np.array([label]), units.units, units.calendar)[0]
        text = np.datetime_as_string(date, unit="s") if isinstance(date, np.datetime64) else date.isoformat()
        return str(text)

    def _journal(self, axis: Axis, labels: Sequence[npt.NDArray[Any]] | None) -> list[tuple[int, int, str]]:
        """Return for each file its first row, the row after its last one, and a digest of the labels between."""
        everything = None
        if labels is not None:
            dtype = np.concatenate([part for part in labels if len(part)] or [labels[0]]).dtype
            everything = np.zeros(axis.length, dtype)
            if self.target.labels is not None:
                everything[: len(self.target.labels)] = self.target.labels
            for start, stop, source, offset in axis.segments:
                everything[start:stop] = labels[source][offset : offset + stop - start]
        rows: dict[int, tuple[int, int]] = {}
        for segment in axis.segments:
            start, stop = rows.get(segment.source, (segment.start, segment.stop))
            rows[segment.source] = min(start, segment.start), max(stop, segment.stop)
        spans = [rows.get(number, (0, 0)) for number in range(len(self.headers))]
        return [(a, b, "" if everything is None else digest_labels(everything[a:b])) for a, b in spans]

    # -------------------------------------------------------------- arrays

    def _units(self, name: str) -> TimeUnits | None:
        """Return the units that the times of a variable are converted to; ``None`` for other variables."""
        if name not in self._known_units:
            self._known_units[name] = self._find_units(name)
        return self._known_units[name]

    def _find_units(self, name: str) -> TimeUnits | None:
        parent = self._parent_of_bounds(name)
        if parent is not None:
            return self._units(parent)
        if name in self.target.arrays:
            return units_of(self.target.arrays[name].metadata.attributes)
        first = units_of(self.headers[0].variables[name].attributes)
        if first is None or self._axis(name) is None:
            return first
        headers = [self._variable(number, name) for number in range(len(self.headers))]
        parts = [(h.values, units_of(h.attributes) or first, h.attributes) for h in headers if h.values is not None]
        distinct = {units for _, units, _ in parts}
        if len(parts) < len(headers) or len(distinct) < 2:
            return first
        return common_units(parts, self._dtype(name), name)

    def _parent_of_bounds(self, name: str) -> str | None:
        """Return the variable whose bounds a variable contains. Bounds have its units."""
        if units_of(self.headers[0].variables[name].attributes) is not None:
            return None
        variables = self.headers[0].variables
        return next((other for other in variables if variables[other].attributes.get("bounds") == name), None)

    def _source_units(self, name: str, target: TimeUnits | None) -> dict[str, tuple[str, str]]:
        """Return the units of each file in which they differ."""
        if target is None:
            return {}
        origin = self._parent_of_bounds(name) or name
        units = {str(n): units_of(h.variables[origin].attributes) for n, h in enumerate(self.headers)}
        return {number: (found[0], found[1]) for number, found in units.items() if found not in (None, target)}

    def _dtype(self, name: str) -> np.dtype[Any]:
        if name in self.target.arrays:
            return self.target.arrays[name].metadata.dtype.numpy
        dtype = self.parameters.encoding.get(name, {}).get("dtype", self.headers[0].variables[name].dtype)
        return np.dtype(object) if dtype == "str" else dtypes.from_numpy(dtype).numpy

    def _array(self, name: str, axis: Axis) -> ArrayPlan | None:
        """Return the plan of an array, or ``None`` if it exists and does not change."""
        number, first = self._axis(name), self._variable(0, name)
        stored = self.target.arrays.get(name)
        if stored is not None and number is None:
            return None
        units = self._units(name)
        if stored is not None:
            assert number is not None
            shape = list(stored.shape)
            shape[number] = axis.length
            metadata = stored.metadata.with_shape(tuple(shape))
        else:
            shape = list(first.shape)
            attributes = dict(first.attributes)
            if number is not None:
                shape[number] = axis.length
            if units is not None and units_of(attributes) not in (None, units):
                attributes["units"] = units.units
            header = replace(first, shape=tuple(shape), attributes=attributes)
            format_ = self.target.handle.format
            metadata = array_metadata(
                format_,
                name,
                header,
                self.parameters.layout,
                self.parameters.encoding,
                is_label=self._is_label(name),
                minor_axis=number if number is not None and _is_minor(header.shape, number) else None,
            )
        self._metadata[name] = metadata
        documents = self.target.handle.format.render(join(self.target.handle.path, name), metadata)
        plan = ArrayPlan(
            name,
            "rows" if number is not None else "whole",
            {key: data.decode() for key, data in documents.items()},
            None if stored is None else stored.shape,
            number,
            first.chunks,
            self.stacks and number is not None,
            None if units is None else (units.units, units.calendar),
            self._source_units(name, units) if number is not None else {},
            row_bytes=math.prod(n for axis_number, n in enumerate(metadata.shape) if axis_number != number)
            * max(metadata.dtype.itemsize or 0, 1),
        )
        if number is None and first.values is not None:
            values = first.values
            if units is not None:
                values = self._convert_times(name, 0, values, units, units, metadata.dtype.numpy)
            return plan.with_values(self._convert(values, metadata))
        return plan

    def _limit_inline(self, arrays: Sequence[ArrayPlan], axis: Axis) -> list[ArrayPlan]:
        """Return plans in which the rows of small variables are part of the plan."""
        total, result = 0, []
        for plan in arrays:
            headers = [self._variable(n, plan.name) for n in range(len(self.headers))]
            nbytes = sum(0 if header.values is None else header.values.nbytes for header in headers)
            is_small = plan.kind == "rows" and all(header.values is not None for header in headers)
            if (
                is_small
                and (total := total + nbytes) <= _INLINE_BYTES
                and _is_minor(self._metadata[plan.name].shape, plan.axis or 0)
            ):
                values = self._convert(self._joined(plan, headers, axis), self._metadata[plan.name])
                result.append(plan.with_values(values))
            else:
                result.append(plan)
        return result

    def _is_label(self, name: str) -> bool:
        """Return whether a variable labels an axis, or contains the bounds of such labels."""
        first = self.headers[0].variables[name]
        return (
            (first.is_coordinate and len(first.dims) < 2)
            or name == self.dim
            or self._parent_of_bounds(name) is not None
        )

    def _joined(self, plan: ArrayPlan, headers: Sequence[VariableHeader], axis: Axis) -> npt.NDArray[Any]:
        """Return the rows of a small variable in the order of the segments."""
        assert plan.axis is not None
        rows = []
        for start, stop, source, offset in axis.segments:
            values = headers[source].values
            assert values is not None
            index = (slice(None),) * plan.axis + (slice(offset, offset + stop - start),)
            part = values[index]
            if plan.units is not None:
                own, units = TimeUnits(*plan.source_units.get(str(source), plan.units)), TimeUnits(*plan.units)
                part = self._convert_times(plan.name, source, part, own, units, self._dtype(plan.name))
            rows.append(part)
        return np.concatenate(rows, axis=plan.axis) if rows else np.empty((0,))

    def _convert_times(
        self, name: str, number: int, values: npt.NDArray[Any], own: TimeUnits, units: TimeUnits, dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """Return times of a file in other units.

        Args:
            name: The name of the variable.
            number: The number of the file.
            values: Times of the variable in this file.
            own: Their units.
            units: The units to convert to.
            dtype: The data type of the result.
        """
        header = self.headers[number]
        attributes = header.variables[name].attributes
        return convert_times(values, own, units, dtype, f"{name!r} of {header.file.name}", attributes)

    def _convert(self, values: npt.NDArray[Any], metadata: ArrayMetadata) -> npt.NDArray[Any]:
        dtype = metadata.dtype.numpy
        return values.astype(object) if dtype.kind in "OT" else values.astype(dtype)


def _is_minor(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether each row of an array has only a few values, such as a time and its bounds."""
    return math.prod(n for number, n in enumerate(shape) if number != axis) <= _MINOR_VALUES
