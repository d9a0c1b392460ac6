"""Whether the variables of a job fit together in all files and into the destination, also as it would store them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge
from zarrasync.bulk.checksum import value_checksum
from zarrasync.bulk.files.planning.compare import Comparison, is_equal, way_without
from zarrasync.bulk.files.planning.variables import Variables, stored_header
from zarrasync.bulk.files.records.target import Target, stored_attributes
from zarrasync.bulk.files.sources.conversions import check_strings, convert_values
from zarrasync.bulk.files.sources.headers import PHONY, FileHeader, VariableHeader
from zarrasync.errors import CodecError, ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_times import duration_units, units_of
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import MemoryStore

_MOST_PROBLEMS = 20
"""The number of variables that messages name."""


def check_files(variables: Variables) -> None:
    """Check that each variable fits together in all files and in the destination, which gets rows of all that have rows.

    Raises:
        ShapeError: If one does not fit.
    """
    try:
        _check_variables(variables)
    except ShapeError as error:
        if not variables.stacks or not variables.dim or variables.target.group is not None:
            raise
        dims = sorted(
            {dim for header in variables.headers[:1] for own in header.variables.values() for dim in own.dims}
        )
        text = f"The files have no dimension {variables.dim!r}, so each of them is one row; they have {', '.join(dims)}"
        raise ShapeError(f"{error}. {text}", found=error.found, wanted=error.wanted) from error
    _check_destination(variables)


def _check_variables(variables: Variables) -> None:
    headers, names, target = variables.headers, variables.names, variables.target
    first_url = headers[0].file.name
    axes = {dim for name in names for dim in headers[0].variables[name].dims if dim != name}
    differing = {name: set[str]() for name in names}
    _check_readable(variables)
    for name in names:
        axis, dtype, (first, *others) = variables.axis(name), variables.dtype(name), variables.all_headers(name)
        for source, own in zip(headers, (first, *others), strict=True):
            _check_dims(name, source, variables.parameters.reader.dims)
            check_strings(name, own.values, source.file.name, dtype)
        reader, is_coordinate = variables.parameters.reader, headers[0].variables[name].is_coordinate
        tolerance = reader.coordinate_tolerance if is_coordinate or variables.is_label(name) else 0.0
        are_converted = variables.are_converted(name)
        comparison = Comparison(name, axis, are_converted, name in axes, reader.ignore_attributes, tolerance)
        for other in others:
            differing[name] |= comparison.check(other, first)
            comparison.check_system(other, first)
            if axis is None:
                comparison.check_values(other, first)
        if name in target.arrays:
            like = stored_header(target, name)
            comparison.check_system(first, like)
            differing[name] |= set[str]().union(*(comparison.check(own, like) for own in (first, *others)))
            if (form := target.stored_forms.get(name)) is not None:  # the values that the destination would store
                first = replace(first, dtype=like.dtype, **form)
            if axis is None:
                comparison.check_values(first, like)
    if items := [f"{name} ({', '.join(sorted(keys))})" for name, keys in differing.items() if keys]:
        kept = first_url if target.group is None else "the destination"
        variables.notes.append(f"attributes that differ, kept as they are in {kept}: {', '.join(items)}")


def _check_readable(variables: Variables) -> None:
    """Check that all variables can be read and stored completely.

    Raises:
        ShapeError: If some cannot. It names all of them.
    """
    stored = {name for name, dims in variables.target.dims.items() if variables.dim in dims}
    for header in variables.headers:
        problems = {name: problem for name in variables.names if (problem := header.variables[name].problem)}
        if not problems:
            continue
        others = [
            name
            for name, variable in header.variables.items()
            if not variable.problem and problems.keys().isdisjoint(variable.dims)
        ]
        (first, reason), *more = problems.items()
        also = "".join(f"; {name!r} neither: {text}" for name, text in more[:_MOST_PROBLEMS])
        also += f"; and {len(more) - _MOST_PROBLEMS} more" if len(more) > _MOST_PROBLEMS else ""
        hint = "repair the file, or leave it out"
        if others:
            where = " in a new dataset" if stored & problems.keys() else ""
            hint = f"choose the variables to store{where} with variables={_names(others)}"
        raise ShapeError(f"{first!r} of {header.file.name} cannot be read or stored: {reason}{also}; {hint}")


def _names(names: Sequence[str]) -> str:
    return f"[{', '.join(map(repr, names[:_MOST_PROBLEMS]))}{', …' if len(names) > _MOST_PROBLEMS else ''}]"


def _check_dims(name: str, header: FileHeader, dims: Sequence[str] | None) -> None:
    """Check that a variable has as many axes as the names that were given for axes without names."""
    variable = header.variables[name]
    axes = f"{len(variable.dims)} {'axis' if len(variable.dims) == 1 else 'axes'}"
    are_unnamed = bool(variable.dims) and all(dim.startswith((PHONY, "dim_")) for dim in variable.dims)
    if dims is not None and are_unnamed and len(dims) != len(variable.dims):
        raise ShapeError(
            f"{name!r} of {header.file.name} has {axes}, but dims names {len(dims)}: {', '.join(dims)}; {way_without()}",
            found=variable.shape,
        )


def _check_destination(variables: Variables) -> None:
    """Check that an existing dataset has the variables, and gets rows of all that have rows."""
    target, dim, names = variables.target, variables.dim, variables.names
    if not target.arrays:
        return
    first_url = variables.headers[0].file.name
    rows = {name for name, dims in target.dims.items() if dim in dims}
    own = {name for name in names if variables.axis(name) is not None}
    if missing := sorted(rows - own):
        raise ShapeError(
            f"the destination has rows of {missing[0]!r} along {dim!r}, which {first_url} does not have; all variables must "
            "get the same rows"
        )
    if new := [
        name for name in names if name not in target.arrays and name not in variables.parameters.reader.optional
    ]:
        hint = f"choose the variables to store with variables={_names(list(target.arrays))}"
        raise ShapeError(f"{first_url} has the variable {new[0]!r}, but the destination does not; {hint}")


# ------------------------------------------------------------------ variables as the destination stores them


_Read: TypeAlias = Callable[[Region], npt.NDArray[Any]]


def add_stored_forms(target: Target, header: FileHeader, read: Callable[[str, Region], npt.NDArray[Any]]) -> None:
    """Find out how the destination would store the variables of a file that it has, but with other values.

    Args:
        target: The destination with its constants, which gets the stored forms.
        header: The header of the file.
        read: Returns a region of one of its variables, by the name.
    """
    for name in [*target.values, *target.digests]:
        variable = header.variables.get(name)
        if variable is None or not _may_be_lossy(variable, target, name):
            continue
        axes = variable.order_of(target.dims[name])
        if axes is None or variable.transpose(axes).shape != target.arrays[name].shape:
            continue
        with suppress(CodecError, ShapeError):  # the comparison names the variable
            target.stored_forms[name] = _stored_form(
                target, name, _reader(variable, name, axes, target.arrays[name].dtype, read)
            )


def _may_be_lossy(variable: VariableHeader, target: Target, name: str) -> bool:
    """Return whether the values of a variable differ from the stored ones, as far as they are known."""
    if variable.values is None and variable.digest is None:
        return False
    array = target.arrays[name]
    own, others = variable.attributes, stored_attributes(array.metadata, target.handle.format)
    if (units_of(own), duration_units(own)) != (units_of(others), duration_units(others)):
        return False  # times and durations are compared when they have the same units
    axes, stored = variable.order_of(target.dims[name]), target.values.get(name)
    if variable.values is not None and stored is not None and axes is not None:
        return not is_equal(variable.values.transpose(axes), stored)
    return variable.digest is None or variable.digest != target.digests.get(name)


def _reader(
    variable: VariableHeader,
    name: str,
    axes: tuple[int, ...],
    dtype: np.dtype[Any],
    read: Callable[[str, Region], npt.NDArray[Any]],
) -> _Read:
    """Return a function that returns a region of a variable with its axes in the order of the destination."""

    def read_in_order(region: Region) -> npt.NDArray[Any]:
        own = tuple(part for _, part in sorted(zip(axes, region, strict=True)))
        values = read(name, own) if variable.values is None else variable.values[own]
        check_strings(name, values, "", dtype)  # they would be cut
        return convert_values(values, dtype, name).transpose(axes)

    return read_in_order


def _stored_form(target: Target, name: str, read: _Read) -> dict[str, Any]:
    array, dims = target.arrays[name], target.dims[name]
    if name in target.values:
        whole = tuple(slice(0, n) for n in array.shape)
        return {"values": _store(array, whole, read(whole)), "digest": None}
    digest, axes = 0, tuple(sorted(range(array.ndim), key=lambda axis: str(dims[axis])))
    for region in _rows_of_chunks(array, axes[0]):
        digest = value_checksum(_store(array, region, read(region)).transpose(axes), digest)
    return {"values": None, "digest": digest}


def _rows_of_chunks(array: AsyncArray, axis: int) -> Iterator[Region]:
    """Yield regions of whole stored chunks, because codecs may depend on all values of a chunk."""
    length, size = array.shape[axis], array.shape[axis]
    if array.metadata.edges is None:
        size = array.metadata.write_chunks[axis]
    for start in range(0, length, max(size, 1)):
        rows = slice(start, min(start + size, length))
        yield tuple(rows if number == axis else slice(0, n) for number, n in enumerate(array.shape))


def _store(array: AsyncArray, region: Region, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values as an array with the same metadata contains them."""
    handle, dtype, fill = handle_of(array), array.dtype, array.metadata.spec.fill_value
    place = NodeHandle(MemoryStore(), "", handle.format, handle.config, is_format_known=True)
    own = AsyncArray(place, array.metadata).view[region]

    async def write_and_read() -> Any:
        await own.write(transfer.as_array(values, dtype, fill))
        return await own.read()

    return np.asarray(transfer.as_array(bridge.run(write_and_read(), blocking=True), dtype, fill))
