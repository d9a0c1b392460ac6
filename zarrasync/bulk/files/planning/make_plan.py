"""From the headers of files and the state of the destination to a ``FilesPlan``: its arrays, their values, its tasks. No IO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.options import Layout
from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.planning.axis import Axis
from zarrasync.bulk.files.planning.compare import is_same_attribute
from zarrasync.bulk.files.planning.matching import Match, match_files
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.journal import journal_places
from zarrasync.bulk.files.records.plan import ArrayPlan, FilesPlan, Part, split_rows
from zarrasync.bulk.files.records.target import Target, stored_attributes
from zarrasync.bulk.files.sources.conversions import convert_values
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.bulk.new_arrays import creation_options
from zarrasync.bulk.sources import Source
from zarrasync.display.text import listed, size_text
from zarrasync.errors import ShapeError
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions.cf_attributes import FILL, MISSING_NUMBERS, MISSING_VALUE, SCALING
from zarrasync.metadata.conventions.cf_times import UNITS, TimeUnits
from zarrasync.metadata.create import plan_array
from zarrasync.model import dtypes
from zarrasync.model.paths import join
from zarrasync.nodes.create_hierarchy import check_array_paths

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
    layout = _Layout(variables, match)
    arrays = layout.arrays()
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
        [array.plan for array in arrays],
        match.axis.segments,
        _split_into_tasks(arrays, match.axis, parameters.tasks),
        dict(headers[0].attributes) if is_new else None,
        parameters.digest if is_new else target.journal.parameters,
        match.journal,
        [
            *variables.notes,
            *match.notes,
            *layout.notes,
            *rewriting_notes((array.plan, array.metadata) for array in arrays),
        ],
        variables.left_out,
        target.place or journal_places({*target.arrays, *variables.names}, parameters.dim)[0],
        match.axis.moved,
        list(match.moved.items()),
        match.empty,
    )


@dataclass(frozen=True)
class _Array:
    """An array of the destination.

    Attributes:
        plan: Its plan.
        metadata: Its metadata after the job.
    """

    plan: ArrayPlan
    metadata: ArrayMetadata


def _split_into_tasks(arrays: Sequence[_Array], axis: Axis, tasks: int) -> list[Part]:
    """Return the tasks: rows of all arrays that have rows, and other arrays whose values the plan does not contain.

    Args:
        arrays: The arrays.
        axis: The rows.
        tasks: The largest number of tasks with rows; 0 for a number that suits the size.
    """
    growing = [array for array in arrays if array.plan.kind == "rows"]
    rows = sum(segment.stop - segment.start for segment in axis.segments)
    row_bytes = sum(array.plan.row_bytes for array in growing)
    size = -(-rows // tasks) if tasks else max(1, _TASK_BYTES // max(row_bytes, 1))
    grids = [array.metadata.grid.axes[array.plan.axis or 0] for array in growing]
    whole = [Part(array=array.plan.name) for array in arrays if array.plan.kind == "whole"]
    return split_rows(axis.segments, grids, size) + whole


class _Layout:
    """The arrays of the destination.

    Args:
        variables: The variables.
        match: The rows.
    """

    def __init__(self, variables: Variables, match: Match) -> None:
        self._variables, self._axis, self._labels = variables, match.axis, match.labels
        self._handle = variables.target.handle
        self.notes: list[str] = []

    def arrays(self) -> list[_Array]:
        """Return the arrays that the job creates or changes."""
        planned = [self._plan(name) for name in self._variables.names if self._changes(name)]
        return self._with_small_rows(planned)

    def _changes(self, name: str) -> bool:
        return name not in self._variables.target.arrays or self._variables.axis(name) is not None

    # -------------------------------------------------------------- metadata

    def _plan(self, name: str) -> _Array:
        variables = self._variables
        number, first, units = variables.axis(name), variables.header(0, name), variables.units(name)
        in_files = [variables.in_file(n, name) for n in range(len(variables.headers))]
        stored = variables.target.arrays.get(name)
        shape = list(first.shape if stored is None else stored.shape)
        if number is not None:
            shape[number] = self._axis.length
        if stored is not None:
            metadata = stored.metadata.with_shape(tuple(shape))
            self._compare_layout(name, metadata, replace(first, shape=tuple(shape)), number, units)
        else:
            metadata = self._new_metadata(name, replace(first, shape=tuple(shape)), number, units)
        if number is not None and name != variables.dim:
            self._check_missing_rows(name, metadata, is_new=stored is None)
        documents = self._handle.format.render(join(self._handle.path, name), metadata)
        plan = ArrayPlan(
            name,
            "rows" if number is not None else "whole",
            {key: data.decode() for key, data in documents.items()},
            None if stored is None else self._shape_before(stored.shape, number),
            number,
            first.chunks,
            first.dims,
            None if units is None else (units.units, units.calendar),
            in_files[0],
            {str(n): own for n, own in enumerate(in_files) if own != in_files[0]},
            row_bytes=_row_size(metadata.shape, number) * max(metadata.dtype.itemsize or 0, 1),
        )
        if number is None and first.values is not None:
            values = first.values
            if units is not None:
                values = variables.convert_times(name, 0, values, units)
            plan = plan.with_values(self._convert(name, 0, values, metadata))
        return _Array(plan, metadata)

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
        has_gaps = (
            begins_later or self._axis.reserved or any(own.variables[name].is_absent for own in variables.headers)
        )
        attributes = stored_attributes(metadata, self._handle.format)
        if has_gaps and metadata.dtype.numpy.kind in "iub" and not attributes.keys() & {*MISSING_NUMBERS}:
            raise ShapeError(
                f"some rows of {name!r} would have no values, and its integers have no _FillValue, so that these rows would be "
                "numbers; give the variable a _FillValue with preprocess=…"
            )

    def _shape_before(self, shape: tuple[int, ...], number: int | None) -> tuple[int, ...]:
        """Return the shape of an existing array before its rows are written: without those that move."""
        moved = self._axis.moved
        return tuple(moved if axis == number and moved is not None else n for axis, n in enumerate(shape))

    def _new_metadata(
        self, name: str, header: VariableHeader, number: int | None, units: TimeUnits | None
    ) -> ArrayMetadata:
        """Return the metadata of a new array.

        Args:
            name: The name of the array.
            header: The variable, with the shape of the array.
            number: The number of the axis of rows, or ``None``.
            units: The units of times.
        """
        if units is not None and self._variables.own_units(header.attributes, units) != units:
            header = replace(header, attributes={**header.attributes, "units": units.units})
        parameters = self._variables.parameters
        encoding, own = dict(parameters.layout.encoding), header.attributes.get(UNITS)
        requested = dict(encoding.get(name, {}).get("attributes") or {})
        if units is None and own is not None and requested.get(UNITS, own) != own:
            note = f"{name!r} keeps the units {own!r} of the files, not {requested.pop(UNITS)!r}, because its values are not converted"
            self.notes += [note] if note not in self.notes else []
            encoding[name] = {**encoding[name], "attributes": requested}
        return array_metadata(
            self._handle.format,
            name,
            replace(header, dtype=self._variables.source_dtype(name)),
            parameters.layout.options,
            encoding,
            is_label=self._variables.is_label(name),
            minor_axis=number if number is not None and _is_minor(header.shape, number) else None,
        )

    def _compare_layout(
        self, name: str, stored: ArrayMetadata, header: VariableHeader, number: int | None, units: TimeUnits | None
    ) -> None:
        """Note the parameters of new arrays that were requested, and that an existing array does not have."""
        parameters = self._variables.parameters
        requested = {*parameters.layout.options, *parameters.layout.encoding.get(name, {})} & _STORED.keys()
        if not requested:
            return
        new = self._new_metadata(name, header, number, units)
        for key in sorted(requested):
            own, other = (getattr(metadata, _STORED[key]) for metadata in (stored, new))
            if own != other and not (own != own and other != other):  # noqa: PLR0124  # NaN
                shown = f" {own!r}, not {other!r}" if key in ("chunks", "shards", "fill_value", "dtype") else ""
                self.notes.append(f"the existing array {name!r} keeps its {key}{shown}")

    # -------------------------------------------------------------- values in the plan

    def _with_small_rows(self, arrays: Sequence[_Array]) -> list[_Array]:
        """Return arrays in which the rows of small variables are part of the plan."""
        total, result, axis = 0, [], self._axis
        for array in arrays:
            plan, headers = array.plan, self._variables.all_headers(array.plan.name)
            if axis.moved is not None or axis.reserved:  # stored values are not known, except for labels
                result.append(self._with_labels(array) if plan.name == self._variables.dim else array)
                continue
            nbytes = sum(0 if header.values is None else header.values.nbytes for header in headers)
            is_small = plan.kind == "rows" and all(header.values is not None for header in headers)
            if (
                is_small
                and (total := total + nbytes) <= _INLINE_BYTES
                and _is_minor(array.metadata.shape, plan.axis or 0)
            ):
                result.append(replace(array, plan=plan.with_values(self._join(array, headers))))
            else:
                result.append(array)
        return result

    def _with_labels(self, array: _Array) -> _Array:
        """Return the array of labels with the labels of all rows that are written or reserved."""
        if self._labels is None:
            return array
        segments = sorted([*self._axis.segments, *self._axis.reserved])
        rows = [(start, stop) for start, stop, _, _ in segments]
        labels = np.concatenate([self._labels[start:stop] for start, stop in rows])
        dtype = array.metadata.dtype.numpy
        values = labels.view(dtype) if labels.dtype.kind != dtype.kind else labels.astype(dtype)
        return replace(array, plan=replace(array.plan.with_values(values), rows=tuple(rows)))

    def _join(self, array: _Array, headers: Sequence[VariableHeader]) -> npt.NDArray[Any]:
        """Return the rows of a small variable in the order of the segments."""
        plan, rows = array.plan, []
        assert plan.axis is not None
        for start, stop, source, offset in self._axis.segments:
            values = headers[source].values
            assert values is not None
            part = values[(slice(None),) * plan.axis + (slice(offset, offset + stop - start),)]
            if plan.units is not None:
                part = self._variables.convert_times(plan.name, source, part, TimeUnits(*plan.units))
            rows.append(self._convert(plan.name, source, part, array.metadata))
        return np.concatenate(rows, axis=plan.axis) if rows else np.empty((0,), array.metadata.dtype.numpy)

    def _convert(self, name: str, source: int, values: npt.NDArray[Any], metadata: ArrayMetadata) -> npt.NDArray[Any]:
        """Return values of a file with the data type of an array."""
        file = self._variables.headers[source].file
        return convert_values(values, metadata.dtype.numpy, f"{name!r} of {file.name}")


def _row_size(shape: tuple[int, ...], axis: int | None) -> int:
    """Return the number of values in a row, or in an array without rows."""
    return math.prod(n for number, n in enumerate(shape) if number != axis)


def _is_minor(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether each row of an array has only a few values, such as a time and its bounds."""
    return _row_size(shape, axis) <= _MINOR_VALUES


# ------------------------------------------------------------------ remarks


_LARGE_BYTES = 1 << 20
_MANY_TIMES = 8


def rewriting_notes(arrays: Iterable[tuple[ArrayPlan, ArrayMetadata]]) -> list[str]:
    """Return a remark if new rows are few compared with the stored value that they are added to, which is written again.

    Args:
        arrays: The arrays of a job, with their metadata after it.
    """
    total, added, unit = 0, 0, "chunks"
    names: list[str] = []
    for array, metadata in arrays:
        if array.shape is None or array.axis is None:
            continue
        axis, length = metadata.grid.axes[array.axis], array.shape[array.axis]
        if length >= axis.extent:
            continue
        number = axis.find(length)
        start, end = axis.start(number), min(axis.start(number) + axis.size(number), axis.extent)
        old, new = (length - start) * array.row_bytes, (end - length) * array.row_bytes
        if old >= _LARGE_BYTES and old >= _MANY_TIMES * new:
            total, added, names = total + old, added + new, [*names, repr(array.name)]
            unit = "shards" if metadata.shards is not None else unit
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


def array_metadata(
    format_: Format,
    name: str,
    header: VariableHeader,
    layout: Mapping[str, Any],
    encoding: Mapping[str, Mapping[str, Any]],
    *,
    is_label: bool,
    minor_axis: int | None,
) -> ArrayMetadata:
    """Return the metadata of a new array.

    Args:
        format_: The format.
        name: The name of the array.
        header: The variable, with the shape of the array.
        layout: Parameters of ``create_array`` for all arrays. Shapes apply to arrays that have the dimensions.
        encoding: Parameters for single arrays.
        is_label: Whether the array contains labels of an axis, or their bounds. Shapes for all arrays do not apply.
        minor_axis: The axis of rows if each row has only a few values. Many rows then share a chunk by default.

    Raises:
        ShapeError: If the shapes of chunks or shards do not fit.
    """
    own = dict(encoding.get(name, {}))
    common = {key: value for key, value in layout.items() if key not in _SHAPES}
    if not is_label:
        common.update({key: layout[key] for key in _SHAPES if key in layout and _applies(layout[key], header)})
    options = {**common, **own}
    header = replace(header, attributes=_with_attributes(name, header, options.pop("attributes", None) or {}))
    for key in _SHAPES:
        if isinstance(options.get(key), Mapping):
            options[key] = _sizes(key, options[key], header, options.get("chunks"))
    if minor_axis is not None and not set(_SHAPES) & options.keys():
        shape = list(header.shape)
        shape[minor_axis] = _ROWS_PER_CHUNK
        options["chunks"] = tuple(max(n, 1) for n in shape)
    dtype: Any = str if header.dtype == "str" else np.dtype(header.dtype)
    if options.get("dtype") == "str":
        options["dtype"] = str
    source = Source(
        header.shape, dtype, properties=_properties(header, dtypes.from_numpy(options.get("dtype") or dtype).numpy)
    )
    parameters = creation_options(source, {**options, "zarr_format": format_.zarr_format})
    parameters.pop("zarr_format", None)
    return plan_array(format_, **parameters)


def _with_attributes(name: str, header: VariableHeader, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a variable and the requested ones, which must not change the meaning of its numbers.

    Raises:
        ShapeError: If they do.
    """
    for key in SCALING:
        if key in requested and not is_same_attribute(requested, header.attributes, key):
            own = f"{key} {header.attributes[key]!r}" if key in header.attributes else f"no {key}"
            raise ShapeError(
                f"the encoding of {name!r} requests {key} {requested[key]!r}, but its values in the files have {own}, and "
                "ingest does not pack values; omit the attribute, or pack the files first, for example with xarray"
            )
    return {**header.attributes, **requested}


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
    return known.get(next(iter(get_close_matches(name.lower(), known, 1, 0.75)), ""), "")


def _properties(header: VariableHeader, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return dimension names, attributes and the fill value. Absent chunks then mean missing values."""
    attributes = dict(header.attributes)
    missing = attributes.get(FILL, attributes.get(MISSING_VALUE))
    properties: dict[str, Any] = {"dimension_names": header.dims, "attributes": attributes}
    if (
        isinstance(missing, int | float)
        and dtype.kind in "iuf"
        and np.can_cast(np.min_scalar_type(missing), dtype, "same_kind")
    ):
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
        size = int(size)
        if size == 0 or size < -1:
            raise ShapeError(f"{parameter} must be at least 1 along {dim!r}, found {size}")
        if size < 0:
            chunk = chunks[axis] if isinstance(chunks, tuple | list) else 1
            size = max(1, math.ceil(n / chunk)) * chunk if parameter == "shards" else max(n, 1)
        result.append(size)
    return tuple(result)
