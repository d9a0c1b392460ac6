"""Metadata of new arrays, and the rows of tasks. No IO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np

from zarrasync.bulk.files.options import Layout
from zarrasync.bulk.files.planning.axis import Axis
from zarrasync.bulk.files.planning.compare import is_same_attribute
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.bulk.sources import Source, creation_options
from zarrasync.errors import ShapeError
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions.cf_attributes import FILL, MISSING_VALUE, SCALING
from zarrasync.metadata.create import plan_array
from zarrasync.model import dtypes

_TASK_BYTES = 128 << 20
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


def split_rows(
    axis: Axis,
    arrays: Mapping[str, ArrayMetadata],
    axes: Mapping[str, int],
    tasks: int = 0,
    task_bytes: int = _TASK_BYTES,
) -> Iterable[tuple[int, int]]:
    """Yield the rows of each task: the first one, and the one after the last.

    Tasks begin at rows where all arrays begin a new stored chunk or shard, if that leaves enough tasks.

    Args:
        axis: The rows.
        arrays: The metadata of the arrays.
        axes: The number of the axis of rows of each array.
        tasks: The largest number of tasks, if the rows have no holes; 0 for a number that suits the size.
        task_bytes: The usual size of a task in memory.
    """
    if not arrays:
        return
    lengths = [metadata.write_chunks[axes[name]] for name, metadata in arrays.items()]
    step = math.lcm(*lengths)
    if step > max(8 * max(lengths), axis.length):
        step = max(lengths)
    row_bytes = sum(
        math.prod(metadata.shape) // max(axis.length, 1) * (metadata.dtype.itemsize or 16)
        for metadata in arrays.values()
    )
    rows = sum(segment.stop - segment.start for segment in axis.segments)
    wanted = -(-rows // tasks) if tasks else max(1, task_bytes // max(row_bytes, 1))
    step *= max(1, -(-wanted // step) if tasks else wanted // step)
    for start, stop in _runs(axis):
        cuts = [start, *range((start // step + 1) * step, stop, step), stop]
        yield from pairwise(cuts)


def _runs(axis: Axis) -> Iterable[tuple[int, int]]:
    """Yield the ranges of rows without holes between segments."""
    start = stop = None
    for segment in axis.segments:
        if stop != segment.start:
            if start is not None and stop is not None:
                yield start, stop
            start = segment.start
        stop = segment.stop
    if start is not None and stop is not None:
        yield start, stop
