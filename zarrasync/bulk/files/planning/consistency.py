"""Whether the variables of a job fit together in all files and into the destination, also as it would store them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from zarrasync._concurrency import bridge
from zarrasync.bulk.block_writer import write_blocks
from zarrasync.bulk.files.planning.comparison import Comparison, check_sign, is_equal, way_without
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.target import Target, read_constant
from zarrasync.bulk.files.sources.conversions import check_strings, convert_values
from zarrasync.bulk.files.sources.headers import PHONY, FileHeader, VariableHeader
from zarrasync.bulk.sources import Source
from zarrasync.errors import CodecError, ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_times import duration_units, units_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import CountingStore, MemoryStore

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
        dims = ", ".join(sorted({dim for own in variables.headers[0].variables.values() for dim in own.dims}))
        text = f"The files have no dimension {variables.dim!r}, so each of them is one row; they have {dims}"
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
        for own in (first, *others):
            check_sign(name, own, variables.dtype(name))
        for other in others:
            differing[name] |= comparison.check(other, first)
            comparison.check_system(other, first)
            if axis is None:
                comparison.check_values(other, first)
        if name in target.arrays:
            like = target.header(name)
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
        good = {name: own.dims for name, own in header.variables.items() if not own.problem}
        others = [name for name, dims in good.items() if problems.keys().isdisjoint(dims)]
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
    known = {*target.arrays, *variables.parameters.reader.optional}
    if new := [name for name in names if name not in known]:
        hint = f"choose the variables to store with variables={_names(list(target.arrays))}"
        raise ShapeError(f"{first_url} has the variable {new[0]!r}, but the destination does not; {hint}")


# ------------------------------------------------------------------ variables as the destination stores them


def add_stored_forms(
    target: Target, header: FileHeader, read: Callable[[str, Region], npt.NDArray[Any]], small_bytes: int
) -> None:
    """Find out how the destination would store the variables of a file that it has, but with other values.

    Args:
        target: The destination with its constants, which gets the stored forms.
        header: The header of the file.
        read: Returns a region of one of its variables, by the name.
        small_bytes: The largest size of arrays whose values are compared.
    """
    for name in target.constants:
        variable, like = header.variables.get(name), target.header(name)
        axes = None if variable is None else variable.order_of(like.dims)
        if variable is None or axes is None or not _may_be_lossy(variable.transpose(axes), like):
            continue
        with suppress(CodecError, ShapeError):  # the comparison names the variable
            target.stored_forms[name] = _stored_form(target, name, variable, axes, read, small_bytes)


def _may_be_lossy(variable: VariableHeader, like: VariableHeader) -> bool:
    """Return whether the values of a variable differ from the stored ones, as far as they are known."""
    if variable.shape != like.shape or (variable.values is None and variable.digest is None):
        return False
    units, others = ((units_of(own), duration_units(own)) for own in (variable.attributes, like.attributes))
    if units != others:
        return False  # times and durations are compared when they have the same units
    if variable.values is not None and like.values is not None:
        return not is_equal(variable.values, like.values)
    return variable.digest is None or variable.digest != like.digest


def _stored_form(
    target: Target,
    name: str,
    variable: VariableHeader,
    axes: tuple[int, ...],
    read: Callable[[str, Region], npt.NDArray[Any]],
    small_bytes: int,
) -> Mapping[str, Any]:
    """Return the values or the digest of a variable as an array with the same metadata contains them."""
    array = target.arrays[name]

    def read_in_order(region: Region) -> npt.NDArray[Any]:
        own = tuple(part for _, part in sorted(zip(axes, region, strict=True)))
        values = read(name, own) if variable.values is None else variable.values[own]
        check_strings(name, values, "", array.dtype)  # they would be cut
        return convert_values(values, array.dtype, name).transpose(axes)

    store = CountingStore(MemoryStore())
    place = NodeHandle(store, "", target.handle.format, target.handle.config, is_format_known=True)
    copy, source = AsyncArray(place, array.metadata), Source(array.shape, array.dtype, read_in_order)

    async def write_and_read() -> Mapping[str, Any]:
        await write_blocks(source, copy, None, "allow", is_new=True)
        return {"values": None, "digest": None, **await read_constant(copy, target.dims[name], small_bytes)}

    return bridge.run(write_and_read(), blocking=True)
