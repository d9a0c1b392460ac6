"""From the headers of files and the state of the destination to a ``FilesPlan``: its arrays, their values, its tasks. No IO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._util.advice import most_similar
from zarrasync.bulk.files.options import Layout
from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.planning.axis import MergedRows
from zarrasync.bulk.files.planning.comparison import is_same_attribute
from zarrasync.bulk.files.planning.matching import Match, match_files
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.journal import journal_places
from zarrasync.bulk.files.records.plan import ArrayPlan, FilesPlan, Part, split_rows
from zarrasync.bulk.files.records.target import Target, stored_attributes
from zarrasync.bulk.files.sources.conversions import convert_values
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.bulk.sources import Source, creation_options
from zarrasync.display.text import listed, size_text
from zarrasync.errors import ShapeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions.cf_attributes import FILL, MISSING_NUMBERS, MISSING_VALUE, SCALING
from zarrasync.metadata.conventions.cf_times import UNITS, TimeUnits
from zarrasync.metadata.create import plan_array
from zarrasync.model import dtypes
from zarrasync.model.paths import join
from zarrasync.nodes.create_hierarchy import check_array_paths
from zarrasync.nodes.documents import render_texts

_INLINE_BYTES = 32 << 20
"""Rows of small variables up to this size in all become part of the plan."""
_STORED = {
    "chunks": "chunks",
    "shards": "shards",
    "dtype": "dtype",
    "fill_value": "fill_value",
    "chunk_key_encoding": "keys",
    **dict.fromkeys(("compressors", "filters", "serializer", "order"), "inner_codecs"),
}
"""The members of metadata that parameters of new arrays determine."""
_MINOR_VALUES = 16
"""A variable with at most this many values in a row is small."""


def plan_job(headers: Sequence[FileHeader], target: Target, parameters: Parameters) -> FilesPlan:
    """Return the plan of a job.

    Args:
        headers: The headers of the files.
        target: The destination.
        parameters: The parameters of the job.

    Raises:
        ShapeError: If the files do not fit together or into the destination.
        CodecError: If times cannot be converted to one unit.
        InvalidKeyError: If the format does not allow the name of a variable.
        NodeExistsError: If the name of a variable is a path below another one.
    """
    variables = Variables(headers, target, parameters)
    check_names(headers[0], parameters.dim, parameters.layout)
    check_array_paths(target.handle, variables.names)
    match = match_files(variables)
    planner = _ArrayPlanner(variables, match)
    arrays = [planner.plan(name) for name in variables.names if planner.changes(name)]
    path, format_ = target.handle.path, target.handle.format
    is_new = not target.arrays  # a group with attributes alone may exist
    assert isinstance(format_.zarr_format, int)
    return FilesPlan(
        format_.zarr_format,
        path,
        parameters.dim,
        match.axis.length,
        [header.file for header in headers],
        parameters.reader,
        arrays,
        match.axis.segments,
        _split_into_tasks(arrays, planner.metadata, match.axis, parameters.tasks),
        dict(headers[0].attributes) if is_new else None,
        parameters.digest if is_new else target.journal.parameters,
        match.journal,
        [*variables.notes, *match.notes, *planner.notes, *rewriting_notes(arrays, planner.metadata)],
        variables.left_out,
        target.place or journal_places({*target.arrays, *variables.names}, parameters.dim)[0],
        match.axis.moved,
        list(match.moved.items()),
        match.empty,
    )


def _split_into_tasks(
    arrays: Sequence[ArrayPlan], metadata: Mapping[str, ArrayMetadata], axis: MergedRows, tasks: int
) -> list[Part]:
    """Return the tasks: rows of all arrays that have rows, and other arrays whose values the plan does not contain.

    Args:
        arrays: The arrays.
        metadata: Their metadata after the job.
        axis: The rows.
        tasks: The largest number of tasks with rows; 0 for a number that suits the size.
    """
    growing = [array for array in arrays if array.kind == "rows"]
    rows = sum(segment.stop - segment.start for segment in axis.segments)
    size = -(-rows // tasks) if tasks else max(1, _TASK_BYTES // max(sum(array.row_bytes for array in growing), 1))
    grids = [metadata[array.name].grid.axes[array.axis or 0] for array in growing]
    whole = [Part(array=array.name) for array in arrays if array.kind == "whole"]
    return split_rows(axis.segments, grids, size) + whole


class _ArrayPlanner:
    """The arrays of the destination.

    Args:
        variables: The variables.
        match: The rows.

    Attributes:
        metadata: The metadata after the job of the arrays that were planned.
        notes: Messages for the report.
    """

    def __init__(self, variables: Variables, match: Match) -> None:
        self._variables, self._axis, self._labels = variables, match.axis, match.labels
        self._format, self._inline_bytes = variables.target.handle.format, 0
        self.metadata: dict[str, ArrayMetadata] = {}
        self.notes: list[str] = []

    def changes(self, name: str) -> bool:
        """Return whether the job creates or changes an array."""
        return name not in self._variables.target.arrays or self._variables.axis(name) is not None

    def plan(self, name: str) -> ArrayPlan:
        """Return the plan of an array. It contains the values of small arrays, and the rows of small variables."""
        variables, handle = self._variables, self._variables.target.handle
        number, first, units = variables.axis(name), variables.header(0, name), variables.units(name)
        in_files = [variables.in_file(n, name) for n in range(len(variables.headers))]
        stored = variables.target.arrays.get(name)
        shape, before = list(first.shape), None
        if stored is not None:
            shape, before = list(stored.shape), list(stored.shape)
        if number is not None:
            shape[number] = self._axis.length
            if before is not None and self._axis.moved is not None:  # without the rows that move
                before[number] = self._axis.moved
        header = replace(first, shape=tuple(shape))
        if stored is not None:
            metadata = stored.metadata.with_shape(header.shape)
            self._compare_layout(name, metadata, header, number, units)
        else:
            metadata = self._new_metadata(name, header, number, units)
        if number is not None and name != variables.dim:
            self._check_missing_rows(name, metadata, is_new=stored is None)
        self.metadata[name] = metadata
        plan = ArrayPlan(
            name,
            "rows" if number is not None else "whole",
            render_texts(self._format, join(handle.path, name), metadata),
            None if before is None else tuple(before),
            number,
            first.chunks,
            first.dims,
            None if units is None else (units.units, units.calendar),
            in_files[0],
            {str(n): own for n, own in enumerate(in_files) if own != in_files[0]},
            row_bytes=_row_size(metadata.shape, number) * max(metadata.dtype.itemsize or 0, 1),
        )
        return self._with_values(plan, metadata)

    # -------------------------------------------------------------- metadata

    def _check_missing_rows(self, name: str, metadata: ArrayMetadata, *, is_new: bool) -> None:
        """Check that rows without values are missing values, and not numbers.

        Args:
            name: The name of an array with rows.
            metadata: Its metadata after the job.
            is_new: Whether the job creates it.

        Raises:
            ShapeError: If the array has integers without a number for missing values.
        """
        variables = self._variables
        begins_later = is_new and variables.target.group is not None and variables.target.length(variables.dim) > 0
        is_absent = any(own.variables[name].is_absent for own in variables.headers)
        attributes = stored_attributes(metadata, self._format)
        has_number = metadata.dtype.numpy.kind not in "iub" or attributes.keys() & {*MISSING_NUMBERS}
        if (begins_later or self._axis.reserved or is_absent) and not has_number:
            raise ShapeError(
                f"some rows of {name!r} would have no values, and its integers have no _FillValue, so that these rows would be "
                "numbers; give the variable a _FillValue with preprocess=…"
            )

    def _new_metadata(
        self, name: str, header: VariableHeader, number: int | None, units: TimeUnits | None
    ) -> ArrayMetadata:
        """Return the metadata of a new array.

        Args:
            name: The name of the array.
            header: The variable, with the shape of the array.
            number: The number of the axis of rows, or ``None``.
            units: The units of times.

        Raises:
            ShapeError: If the shapes of chunks or shards do not fit.
        """
        variables, layout, attributes = self._variables, self._variables.parameters.layout, dict(header.attributes)
        own, unit = dict(layout.encoding.get(name, {})), attributes.get(UNITS)
        requested = dict(own.pop("attributes", None) or {})
        if units is not None and variables.own_units(attributes, units) != units:
            attributes[UNITS] = units.units
        if units is None and unit is not None and requested.get(UNITS, unit) != unit:
            note = f"{name!r} keeps the units {unit!r} of the files, not {requested.pop(UNITS)!r}, because its values are not converted"
            self.notes += [note] if note not in self.notes else []
        header = replace(header, dtype=variables.source_dtype(name), attributes=_requested(name, attributes, requested))
        is_label = variables.is_label(name)  # to which shapes for all arrays do not apply
        common = {key: value for key, value in layout.options.items() if key not in _SHAPES or _applies(value, header)}
        options = {**{key: value for key, value in common.items() if not (is_label and key in _SHAPES)}, **own}
        for key in _SHAPES:
            if isinstance(options.get(key), Mapping):
                options[key] = _sizes(key, options[key], header, options.get("chunks"))
        if number is not None and _row_size(header.shape, number) <= _MINOR_VALUES and not {*_SHAPES} & options.keys():
            rows = (_ROWS_PER_CHUNK if axis == number else n for axis, n in enumerate(header.shape))
            options["chunks"] = tuple(max(n, 1) for n in rows)
        dtype: Any = str if header.dtype == "str" else np.dtype(header.dtype)
        if options.get("dtype") == "str":
            options["dtype"] = str
        properties = _properties(header, dtypes.from_numpy(options.get("dtype") or dtype).numpy)
        source = Source(header.shape, dtype, properties=properties)
        parameters = creation_options(source, {**options, "zarr_format": self._format.zarr_format})
        parameters.pop("zarr_format", None)
        return plan_array(self._format, **parameters)

    def _compare_layout(
        self, name: str, stored: ArrayMetadata, header: VariableHeader, number: int | None, units: TimeUnits | None
    ) -> None:
        """Note the parameters of new arrays that were requested, and that an existing array does not have."""
        layout = self._variables.parameters.layout
        requested = {*layout.options, *layout.encoding.get(name, {})} & _STORED.keys()
        if not requested:
            return
        new = self._new_metadata(name, header, number, units)
        for key in sorted(requested):
            own, other = (getattr(metadata, _STORED[key]) for metadata in (stored, new))
            if own != other and not (own != own and other != other):  # NaN
                shown = f" {own!r}, not {other!r}" if key in ("chunks", "shards", "fill_value", "dtype") else ""
                self.notes.append(f"the existing array {name!r} keeps its {key}{shown}")

    # -------------------------------------------------------------- values in the plan

    def _with_values(self, plan: ArrayPlan, metadata: ArrayMetadata) -> ArrayPlan:
        """Return a plan that contains the values, if they are small."""
        values = [header.values for header in self._variables.all_headers(plan.name)]
        if plan.axis is None:
            return plan if values[0] is None else plan.with_values(self._convert(plan, 0, values[0], metadata))
        if self._axis.moved is not None or self._axis.reserved:  # stored values are not known, except for labels
            return self._with_labels(plan, metadata) if plan.name == self._variables.dim else plan
        known = [own for own in values if own is not None]
        if len(known) < len(values) or _row_size(metadata.shape, plan.axis) > _MINOR_VALUES:
            return plan
        self._inline_bytes += sum(own.nbytes for own in known)
        if self._inline_bytes > _INLINE_BYTES:
            return plan
        rows = [np.empty((0,), metadata.dtype.numpy)] if not self._axis.segments else []
        for start, stop, source, offset in self._axis.segments:
            part = known[source][(slice(None),) * plan.axis + (slice(offset, offset + stop - start),)]
            rows.append(self._convert(plan, source, part, metadata))
        return plan.with_values(np.concatenate(rows, axis=plan.axis if self._axis.segments else 0))

    def _with_labels(self, plan: ArrayPlan, metadata: ArrayMetadata) -> ArrayPlan:
        """Return the plan of the array of labels with the labels of all rows that are written or reserved."""
        if self._labels is None:
            return plan
        segments = sorted([*self._axis.segments, *self._axis.reserved])
        rows = [(start, stop) for start, stop, _, _ in segments]
        labels = np.concatenate([self._labels[start:stop] for start, stop in rows])
        dtype = metadata.dtype.numpy
        values = labels.view(dtype) if labels.dtype.kind != dtype.kind else labels.astype(dtype)
        return replace(plan.with_values(values), rows=tuple(rows))

    def _convert(
        self, plan: ArrayPlan, source: int, values: npt.NDArray[Any], metadata: ArrayMetadata
    ) -> npt.NDArray[Any]:
        """Return values of a file with the units and the data type of an array."""
        file = self._variables.headers[source].file
        if plan.units is not None:
            values = self._variables.convert_times(plan.name, source, values, TimeUnits(*plan.units))
        return convert_values(values, metadata.dtype.numpy, f"{plan.name!r} of {file.name}")


def _row_size(shape: tuple[int, ...], axis: int | None) -> int:
    """Return the number of values in a row, or in an array without rows."""
    return math.prod(n for number, n in enumerate(shape) if number != axis)


# ------------------------------------------------------------------ remarks


_LARGE_BYTES = 1 << 20
_MANY_TIMES = 8


def rewriting_notes(arrays: Iterable[ArrayPlan], metadata: Mapping[str, ArrayMetadata]) -> list[str]:
    """Return a remark if new rows are few compared with the stored value that they are added to, which is written again.

    Args:
        arrays: The arrays of a job.
        metadata: Their metadata after it.
    """
    total, added, unit = 0, 0, "chunks"
    names: list[str] = []
    for array in arrays:
        if array.shape is None or array.axis is None:
            continue
        axis, length = metadata[array.name].grid.axes[array.axis], array.shape[array.axis]
        if length >= axis.extent:
            continue
        number = axis.find(length)
        start, end = axis.start(number), min(axis.start(number) + axis.size(number), axis.extent)
        old, new = (length - start) * array.row_bytes, (end - length) * array.row_bytes
        if old >= _LARGE_BYTES and old >= _MANY_TIMES * new:
            total, added, names = total + old, added + new, [*names, repr(array.name)]
            unit = "shards" if metadata[array.name].shards is not None else unit
    if not names:
        return []
    sizes = f"{size_text(total)} of {listed(names)} are written again to add {size_text(added)} to the same {unit}"
    return [f"{sizes}; add more rows at a time, or create the dataset with {unit} of fewer rows"]


# ------------------------------------------------------------------ metadata of new arrays


_TASK_BYTES = 128 << 20
"""The usual size of a task in memory."""
_ROWS_PER_CHUNK = 4096
"""Rows of small variables, such as times, that share a chunk."""
_SHAPES = ("chunks", "shards")


def _requested(name: str, attributes: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a variable and the requested ones, which must not change the meaning of its numbers.

    Raises:
        ShapeError: If they do.
    """
    for key in SCALING:
        if key in requested and not is_same_attribute(requested, attributes, key):
            own = f"{key} {attributes[key]!r}" if key in attributes else f"no {key}"
            raise ShapeError(
                f"the encoding of {name!r} requests {key} {requested[key]!r}, but its values in the files have {own}, and "
                "ingest does not pack values; omit the attribute, or pack the files first, for example with xarray"
            )
    return {**attributes, **requested}


def check_dimension(header: FileHeader, dim: str) -> None:
    """Check that the files have the dimension along which they are joined, or none with a similar name.

    Raises:
        ShapeError: If a dimension has a similar name, which is probably meant.
    """
    variables = header.variables
    present = {own for variable in variables.values() for own in variable.dims}
    if dim and dim not in present | variables.keys() and (close := _similar(dim, present)):
        raise ShapeError(
            f"{header.file.name} has no dimension {dim!r}. Did you mean concat={close!r}? Otherwise each file is one row; its "
            f"dimensions are {', '.join(sorted(present))}; to stack the files along {dim!r}, give them a coordinate of this name, "
            "with labels=… or preprocess=…",
        )


def check_names(header: FileHeader, dim: str, requested: Layout) -> None:
    """Check that the parameters of new arrays name dimensions and variables that exist.

    Raises:
        ShapeError: If they do not.
    """
    variables, layout, encoding = header.variables, requested.options, requested.encoding
    unknown = sorted(encoding.keys() - variables.keys())
    if unknown:
        raise ShapeError(
            f"the encoding names the variable {unknown[0]!r}, but {header.file.name} has {', '.join(sorted(variables))}"
        )
    stacks = not any(dim in variable.dims for variable in variables.values())
    dims = {name: {*variable.dims, *([dim] if stacks else [])} for name, variable in variables.items()}
    everywhere = set[str]().union(*dims.values())
    for known, parameters in [(everywhere, layout), *((dims[name], own) for name, own in encoding.items())]:
        for key in _SHAPES:
            shape = parameters.get(key)
            if isinstance(shape, Mapping) and (wrong := sorted(shape.keys() - known)):
                raise ShapeError(
                    f"{key} names the dimension {wrong[0]!r}, but the dimensions of {header.file.name} are "
                    f"{', '.join(sorted(known))}"
                )
    for key in _SHAPES:
        shape, counts = layout.get(key), sorted({len(own) for own in dims.values()})
        if isinstance(shape, tuple | list) and len(shape) not in counts:
            raise ShapeError(
                f"{key} {shape!r} fits no variable of {header.file.name}, whose variables have {', '.join(map(str, counts))} axes; "
                "pass a size for each dimension by its name, such as {'time': 24}"
            )


def _similar(name: str, names: Iterable[str]) -> str:
    """Return the name that a misspelt one probably means; empty without one."""
    known = {other.lower(): other for other in names}
    return known.get(most_similar(name.lower(), known, 0.75), "")


def _properties(header: VariableHeader, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return dimension names, attributes and the fill value. Absent chunks then mean missing values."""
    attributes = dict(header.attributes)
    missing = attributes.get(FILL, attributes.get(MISSING_VALUE))
    properties: dict[str, Any] = {"dimension_names": header.dims, "attributes": attributes}
    number: Any = missing if isinstance(missing, int | float) and dtype.kind in "iuf" else None
    if number is not None and np.can_cast(np.min_scalar_type(number), dtype, "same_kind"):
        properties["fill_value"] = missing
    elif dtype.kind == "f":
        properties["fill_value"] = float("nan")
    return properties


def _applies(shape: Any, header: VariableHeader) -> bool:
    """Return whether the shape of chunks that was requested for all arrays applies to one of them."""
    if isinstance(shape, Mapping):
        return bool(set(shape) & set(header.dims))
    return not isinstance(shape, tuple | list) or len(shape) == len(header.dims)


def _sizes(parameter: str, sizes: Mapping[str, Any], header: VariableHeader, chunks: Any) -> tuple[int, ...]:
    """Return the shape of chunks or shards. Dimensions that are not mentioned are not divided."""
    result: list[int] = []
    for axis, (dim, n) in enumerate(zip(header.dims, header.shape, strict=True)):
        size = sizes.get(dim, -1)
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(f"{parameter} must be a whole number along {dim!r}, found {size!r}")
        if size == 0 or size < -1:
            raise ShapeError(f"{parameter} must be at least 1 along {dim!r}, found {size}")
        if size < 0:  # the whole dimension, in shards as whole chunks
            chunk = chunks[axis] if parameter == "shards" and isinstance(chunks, tuple | list) else 1
            size = max(1, math.ceil(n / chunk)) * chunk
        result.append(int(size))
    return tuple(result)
