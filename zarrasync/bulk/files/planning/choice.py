"""Which files of a job become rows: those that can be read, fit together and into the destination, and are not late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy.typing as npt

from zarrasync._concurrency import bridge
from zarrasync.bulk.blocks import write_blocks
from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.planning.axis import merge_rows
from zarrasync.bulk.files.planning.compare import PACKING, Comparison, digest_of, is_equal, way_without
from zarrasync.bulk.files.planning.make_plan import check_dimension, plan_job
from zarrasync.bulk.files.planning.matching import LateFilesError, find_labels, show_label
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.journal import sources_key
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.records.target import Target, read_constant
from zarrasync.bulk.files.sources.content import bad_files_error, reason_of
from zarrasync.bulk.files.sources.conversions import check_strings, convert_values
from zarrasync.bulk.files.sources.headers import PHONY, FileHeader, SourceFile, VariableHeader
from zarrasync.bulk.sources import Source
from zarrasync.display.text import counted
from zarrasync.errors import CodecError, NodeExistsError, ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_times import duration_units, units_of
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import CountingStore, MemoryStore


@dataclass
class Choice:
    """The files of a job.

    Attributes:
        plan: The plan of those that become rows; ``None`` if none does.
        bad_files: The reason for each file that cannot be read, or does not fit, by name.
        late: Messages about late files.
    """

    plan: FilesPlan | None = None
    bad_files: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)


def choose_files(
    headers: Sequence[FileHeader],
    target: Target,
    parameters: Parameters,
    prepare: Callable[[FileHeader], None] = lambda header: None,
) -> Choice:
    """Return the plan of a job without the files that cannot be part of it.

    Args:
        headers: The headers of the files.
        target: The destination.
        parameters: The parameters of the job.
        prepare: Prepares the destination for comparing it with a file.

    Raises:
        SourceFilesError: If several files are bad, and ``on_bad_file`` is ``"error"``. It names all of them.
        ShapeError: If one file does not fit, or the files as a whole have no place in the destination.
        CodecError: If times cannot be converted to one unit.
    """
    bad = {number: header.error for number, header in enumerate(headers) if header.error is not None}
    good, failure = [n for n in range(len(headers)) if n not in bad], None
    choice = Choice()
    if good and target.group is None:
        check_dimension(headers[good[0]], parameters.dim)
    if good:
        try:
            _plan(choice, [headers[n] for n in good], target, parameters, prepare)
        except (ShapeError, CodecError) as error:
            unfit = _find_unfit([headers[n] for n in good], target, parameters, prepare)
            failure = None if unfit else error  # which is not about single files
            bad.update((good[n], own) for n, own in unfit.items())
    good = [n for n in good if n not in bad]
    if bad and (parameters.on_bad_file == "error" or not (good or parameters.append)):
        raise bad_files_error({headers[n].file.name: bad[n] for n in sorted(bad)}, len(headers))
    if failure is not None:
        raise failure
    choice.bad_files = {headers[n].file.name: reason_of(headers[n].file.name, bad[n]) for n in sorted(bad)}
    if bad and good:
        _plan(choice, [headers[n] for n in good], target, parameters, prepare)
    return choice


def unread_files(headers: Sequence[FileHeader]) -> dict[str, str]:
    """Return the reason for each file whose header cannot be read, by name."""
    names = {header.file.name: header.error for header in headers if header.error is not None}
    return {name: reason_of(name, error) for name, error in names.items()}


def _plan(
    choice: Choice,
    headers: Sequence[FileHeader],
    target: Target,
    parameters: Parameters,
    prepare: Callable[[FileHeader], None],
) -> None:
    """Plan the rows of files without those that are late and not inserted."""
    choice.late, rest = [], list(headers)
    while rest:
        prepare(rest[0])
        try:
            choice.plan = plan_job(rest, target, parameters)
        except LateFilesError as error:
            choice.late += error.late.values()
            if len(rest) in error.late:
                parameters = replace(parameters, reserve=None)
            rest = [header for number, header in enumerate(rest) if number not in error.late]
        else:
            return


def _find_unfit(
    headers: Sequence[FileHeader], target: Target, parameters: Parameters, prepare: Callable[[FileHeader], None]
) -> dict[int, Exception]:
    """Return the error of each file that does not fit into the destination, or the structure that most files have.

    If a file with this structure does not fit either, the cause is common to all files, and none is returned. For an existing
    destination, all files must have the structure. A feed that skips bad files leaves them out in any case.
    """
    own = replace(parameters, on_duplicate="skip", on_gap="ignore", region=None, reserve=None)
    signatures = [_signature(header, parameters.dim) for header in headers]
    usual, count = Counter(signatures).most_common(1)[0]
    model, is_new, found = signatures.index(usual), target.group is None, dict[int, Exception]()
    for number, header in enumerate(headers):
        prepare(header)
        pair = [headers[model], header] if is_new and number != model else [header]
        try:
            variables = Variables(pair, target, own)
            check_files(variables)
            labels = find_labels(variables)
            if labels is not None:
                show = partial(show_label, variables)
                merge_rows(labels, [item.file.name for item in pair], target.labels, on_duplicate="skip", show=show)
        except (ShapeError, CodecError) as error:
            found[number] = error
    is_skipped = not is_new and parameters.append and parameters.on_bad_file == "skip"
    return {} if model in found and (is_new or count == len(found) == len(headers)) and not is_skipped else found


def _signature(header: FileHeader, dim: str) -> tuple[Any, ...]:
    """Return what files that fit together have in common."""

    def describe(name: str) -> tuple[Any, ...]:
        variable = header.variables[name]
        sizes = tuple((own, n) for own, n in zip(variable.dims, variable.shape, strict=True) if own != dim)
        numbers = tuple(repr(variable.attributes.get(key)) for key in PACKING)
        return (
            name,
            sizes,
            variable.dtype,
            numbers,
            None if dim in variable.dims else digest_of(variable),
            variable.problem,
        )

    return tuple(describe(name) for name in sorted(header.variables))


# ------------------------------------------------------------------ files that were ingested before


def unknown_files(
    files: Sequence[SourceFile], target: Target, parameters: Parameters
) -> tuple[list[SourceFile], list[str]]:
    """Return the files that were not ingested before, and messages for the report.

    Rows with labels are also compared by their labels later. Rows without labels are known by their files alone, so each
    file can be added once. If it has changed, or another file was written over some of its rows, they can be replaced.

    Args:
        files: The files of the job.
        target: The destination, whose group exists.
        parameters: The parameters of the job, which does not write a region.

    Raises:
        NodeExistsError: If rows have no labels, and the journal cannot be read, or a file has changed since its
            rows were added and ``on_duplicate`` is ``"error"``.
    """
    length = target.length(parameters.dim)
    new = [file for file in files if not target.journal.contains(file, target.labels, length)]
    if target.labels is not None:
        return new, []
    if new and parameters.append and not target.journal.is_readable:
        raise _incomplete(new, target, parameters.dim)
    spans = {file: target.journal.rows_of_any(file) for file in new}
    changed = {
        file: (rows.start, rows.stop) for file, rows in spans.items() if rows and rows.start < min(rows.stop, length)
    }
    if not changed or not parameters.append or parameters.on_duplicate == "replace":
        return new, []
    if parameters.on_duplicate != "skip":
        raise _changed(changed, target, parameters.dim)
    note = f"{counted(len(changed), 'file')} left out: changed since its rows were added, or only some of its rows are left"
    return [file for file in new if file not in changed], [note]


def _changed(changed: Mapping[SourceFile, tuple[int, int]], target: Target, dim: str) -> NodeExistsError:
    others = f", as has {len(changed) - 1:,} more" if len(changed) > 1 else ""
    first, (start, stop) = next(iter(changed.items()))
    return _refusal(
        f"{first.name} has changed since its rows were added to {target.handle.name} in {target.handle.store!r}"
        f"{others}, or only some of its rows are left. The rows have no labels in {dim!r}, so they would be added a second "
        f"time; pass on_duplicate='replace' to write them again, on_duplicate='skip' to keep the existing rows, or "
        f"region={{{dim!r}: slice({start}, {stop})}} instead of append to write only the rows of this file again",
        target,
    )


def _incomplete(new: Sequence[SourceFile], target: Target, dim: str) -> NodeExistsError:
    place = f"{target.handle.name} in {target.handle.store!r}"
    key = sources_key(target.handle.store, join(target.handle.path, target.place))
    return _refusal(
        f"cannot add {new[0].name} to {place}: the list of ingested files in {key!r} was written by another version, or is damaged, and the "
        f"rows have no labels in {dim!r}, so rows that exist would be added a second time. If none of the "
        f"{counted(len(new), 'file')} was added before, delete that value; otherwise pass region={{{dim!r}: slice(…)}} instead "
        "of append to write existing rows again, or mode='w' to replace the dataset",
        target,
    )


def _refusal(message: str, target: Target) -> NodeExistsError:
    return NodeExistsError(message, path=target.handle.path, store=repr(target.handle.store))


# ------------------------------------------------------------------ whether variables fit


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

    place = NodeHandle(
        CountingStore(MemoryStore()), "", target.handle.format, target.handle.config, is_format_known=True
    )
    copy, source = AsyncArray(place, array.metadata), Source(array.shape, array.dtype, read_in_order)

    async def write_and_read() -> Mapping[str, Any]:
        await write_blocks(source, copy, None, "allow", is_new=True)
        return {"values": None, "digest": None, **await read_constant(copy, target.dims[name], small_bytes)}

    return bridge.run(write_and_read(), blocking=True)
