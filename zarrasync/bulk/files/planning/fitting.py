"""Whether the variables of a job fit together in all files and into the destination. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrasync.bulk.files.planning.compare import (
    check_equal,
    check_fit,
    check_projection,
    differing_attributes,
    way_without,
)
from zarrasync.bulk.files.planning.variables import Variables, stored_header
from zarrasync.bulk.files.sources.conversions import check_strings
from zarrasync.bulk.files.sources.headers import PHONY, FileHeader, VariableHeader
from zarrasync.errors import ShapeError

_MOST_PROBLEMS = 20
"""The number of variables that messages name."""


def check_variables(variables: Variables) -> None:
    """Check that each variable fits together in all files and in the destination.

    Raises:
        ShapeError: If one does not fit.
    """
    headers, names, target = variables.headers, variables.names, variables.target
    first_url = headers[0].file.name
    axes = {dim for name in names for dim in headers[0].variables[name].dims if dim != name}
    differing = {name: set[str]() for name in names}
    _check_readable(variables)
    for name in names:
        for header in headers:
            _check_supported(name, header, variables.parameters.reader.dims)
        is_needed = name in axes
        axis, (first, *others) = variables.axis(name), variables.all_headers(name)
        are_converted = variables.are_converted(name)
        dtype = variables.dtype(name)
        for source, own in zip(headers, (first, *others), strict=True):
            check_strings(name, own.values, source.file.name, dtype)
        for source, other in zip(headers[1:], others, strict=True):
            ignored = variables.parameters.reader.ignore_attributes
            check_fit(name, other, source.file.name, first, first_url, axis, any_dtype=are_converted, ignored=ignored)
            check_projection(name, other, source.file.name, first, first_url)
            if axis is None:
                check_equal(
                    name,
                    other,
                    source.file.name,
                    first,
                    first_url,
                    is_needed=is_needed,
                    tolerance=_tolerance(variables, name),
                )
            differing[name] |= differing_attributes(other, first)
        if name in target.arrays:
            differing[name] |= _check_stored(variables, name, any_dtype=are_converted, is_needed=is_needed)
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


def _check_supported(name: str, header: FileHeader, dims: Sequence[str] | None) -> None:
    """Check that a variable can be stored.

    Args:
        name: The name of the variable.
        header: The header of a file.
        dims: The names of axes that have none in the file.
    """
    variable, hint = header.variables[name], way_without()
    axes = f"{len(variable.dims)} {'axis' if len(variable.dims) == 1 else 'axes'}"
    are_unnamed = bool(variable.dims) and all(dim.startswith((PHONY, "dim_")) for dim in variable.dims)
    if dims is not None and are_unnamed and len(dims) != len(variable.dims):
        raise ShapeError(
            f"{name!r} of {header.file.name} has {axes}, but dims names {len(dims)}: {', '.join(dims)}; {hint}",
            found=variable.shape,
        )


def _check_stored(variables: Variables, name: str, *, any_dtype: bool, is_needed: bool) -> set[str]:
    """Check that a variable of all files fits into the destination. Return the names of other attributes that differ.

    Args:
        variables: The variables.
        name: The name of the variable.
        any_dtype: Whether the files may have other data types.
        is_needed: Whether the variable labels an axis of others.
    """
    target, axis, differing = variables.target, variables.axis(name), set[str]()
    like, text = stored_header(target, name), f"{target.handle.name} of {target.handle.store!r}"
    headers, url = variables.all_headers(name), variables.headers[0].file.name
    check_projection(name, headers[0], url, like, text)
    for source, header in zip(variables.headers, headers, strict=True):
        ignored = variables.parameters.reader.ignore_attributes
        check_fit(
            name, header, source.file.name, like, text, axis, any_dtype=any_dtype, is_stored=True, ignored=ignored
        )
        differing |= differing_attributes(header, like)
    first = _as_stored(headers[0], like, target.stored_forms.get(name))
    if axis is None:
        tolerance = _tolerance(variables, name)
        check_equal(name, first, url, like, text, is_needed=is_needed, is_stored=True, tolerance=tolerance)
    return differing


def _tolerance(variables: Variables, name: str) -> float:
    """Return the largest difference between equal values of a variable. Only coordinates and their bounds have one."""
    is_checked = variables.is_label(name) or variables.headers[0].variables[name].is_coordinate
    return variables.parameters.reader.coordinate_tolerance if is_checked else 0.0


def _as_stored(header: VariableHeader, like: VariableHeader, form: Mapping[str, Any] | None) -> VariableHeader:
    """Return a variable with the values that the destination would store, if they differ."""
    return header if form is None else replace(header, dtype=like.dtype, **form)


def check_destination(variables: Variables) -> None:
    """Check that an existing dataset has the variables, and gets rows of all that have rows.

    Raises:
        ShapeError: If it does not.
    """
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
