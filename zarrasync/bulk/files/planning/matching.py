"""Matching the files of a job with each other and with the destination: variables, labels, and the place of each row. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.planning.axis import Axis, merge_rows, stack_rows
from zarrasync.bulk.files.planning.compare import is_equal
from zarrasync.bulk.files.planning.fitting import check_destination, check_variables
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.journal import digest_rows
from zarrasync.bulk.files.sources.conversions import with_sign
from zarrasync.bulk.files.sources.headers import VariableHeader
from zarrasync.bulk.files.sources.times import find_missing
from zarrasync.display.text import counted
from zarrasync.errors import ShapeError
from zarrasync.metadata.conventions.cf_times import duration_units, numbers_to_dates, units_of

__all__ = ["Match", "match_files"]

Labels: TypeAlias = Sequence[npt.NDArray[Any]]
"""The labels of each file, in the units of the destination."""


@dataclass(frozen=True)
class Match:
    """The rows of a job.

    Attributes:
        axis: The place of each row in the destination.
        journal: For each file its first row, the row after its last one, and a digest of the labels between, which is
            empty if they have none.
        notes: Messages for the report.
    """

    axis: Axis
    journal: Sequence[tuple[int, int, str]]
    notes: Sequence[str]


def match_files(variables: Variables) -> Match:
    """Return the rows of a job.

    Raises:
        ShapeError: If the files do not fit together or into the destination.
        CodecError: If times cannot be converted to one unit.
    """
    try:
        check_variables(variables)
    except ShapeError as error:
        raise _with_dimensions(error, variables) from error
    check_destination(variables)
    labels = _find_labels(variables)
    if labels is None and variables.parameters.reader.group:
        variables.notes.append(f"the group has no labels {variables.dim!r}: rows are in the order of the files")
    axis = _merge(variables, labels)
    return Match(axis, _spans(axis, labels, variables), _observations(variables, axis))


def _with_dimensions(error: ShapeError, variables: Variables) -> ShapeError:
    """Return an error that also explains that files become rows, because they do not have the dimension."""
    if not variables.stacks or not variables.dim or variables.target.group is not None:
        return error
    dims = sorted({dim for header in variables.headers[:1] for own in header.variables.values() for dim in own.dims})
    text = f"{error}. The files have no dimension {variables.dim!r}, so each of them is one row; they have {', '.join(dims)}"
    return ShapeError(text, found=error.found, wanted=error.wanted)


# ------------------------------------------------------------------ labels


def _find_labels(variables: Variables) -> Labels | None:
    """Return the labels of each file, or ``None`` if the rows have no labels."""
    name = variables.dim
    if name not in variables.names:
        if variables.target.labels is not None:
            raise ShapeError(
                f"the rows of the destination have labels {name!r}, but {variables.headers[0].file.name} has none"
            )
        return None
    headers = variables.all_headers(name)
    values = [header.values for header in headers if header.values is not None]
    if headers[0].dims != (name,) or len(values) < len(headers):
        return None
    units = variables.units(name)
    _check_units_of_labels(variables, headers, is_time=units is not None)
    if units is not None:
        values = [
            variables.convert_times(name, number, item, variables.own_units(header.attributes, units), units)
            for number, (item, header) in enumerate(zip(values, headers, strict=True))
        ]
    return [with_sign(item, header.attributes) for item, header in zip(values, headers, strict=True)]


def _check_units_of_labels(variables: Variables, headers: Sequence[VariableHeader], *, is_time: bool) -> None:
    """Check that the labels are times in all files or in none of them."""
    name = variables.dim
    for source, header in zip(variables.headers, headers, strict=True):
        own = units_of(header.attributes) or duration_units(header.attributes)
        if is_time and own is None:
            raise ShapeError(
                f"{name!r} of {source.file.name} has no units, but it contains times in the other files or in the destination; "
                "add the attribute units to the file"
            )
        if not is_time and own is not None and own.calendar:
            raise ShapeError(
                f"{name!r} of {source.file.name} contains times in {own.units!r}, but {name!r} has no units in the "
                "destination; add the attributes units and calendar to the array of the destination"
            )


def _check_labels(variables: Variables) -> None:
    """Check that no row of the files has a missing label."""
    for source, header in zip(variables.headers, variables.all_headers(variables.dim), strict=True):
        if header.values is not None and find_missing(header.values, header.attributes).any():
            raise ShapeError(
                f"{source.file.name} has a missing value as a label in {variables.dim!r}; remove such rows from the file, or "
                "correct their labels"
            )


def _show_label(variables: Variables, label: Any) -> str:
    """Return a label as users know it: a date, if it is a time."""
    units = variables.units(variables.dim)
    if units is None or not units.calendar:
        return str(label)
    date = numbers_to_dates(np.array([label]), units)[0]
    text = np.datetime_as_string(date, unit="s") if isinstance(date, np.datetime64) else date.isoformat()
    return str(text)


# ------------------------------------------------------------------ rows


def _merge(variables: Variables, labels: Labels | None) -> Axis:
    """Return the place of each row.

    Args:
        variables: The variables.
        labels: The labels of each file; ``None`` if they have none.
    """
    parameters, target, dim = variables.parameters, variables.target, variables.dim
    start = target.length(dim) if target.group is not None else 0
    if isinstance(parameters.region, slice):
        return _merge_region(variables, parameters.region, start, labels)
    if labels is None or (start and target.labels is None):
        if parameters.region is not None:
            raise ShapeError(f"region='auto' needs labels: the files or the destination have no {dim!r}")
        return stack_rows(variables.row_counts, start, _places(variables, start))
    _check_labels(variables)
    return merge_rows(
        labels,
        [header.file.name for header in variables.headers],
        target.labels,
        on_duplicate=parameters.on_duplicate,
        only_existing=parameters.region is not None,
        show=lambda label: _show_label(variables, label),
    )


def _places(variables: Variables, length: int) -> dict[int, int]:
    """Return the first row of each file whose rows replace the rows of an earlier version, by the file's number.

    Args:
        variables: The variables.
        length: The number of rows of the destination.

    Raises:
        ShapeError: If the number of rows differs, or two files have the same rows.
    """
    if variables.parameters.on_duplicate != "replace":
        return {}
    places = {}
    for number, (header, count) in enumerate(zip(variables.headers, variables.row_counts, strict=True)):
        rows = variables.target.journal.rows_of_any(header.file)
        stored = 0 if rows is None else min(rows.stop, length) - rows.start
        if rows is None or stored <= 0:  # new, or its rows were removed
            continue
        if count != stored:
            raise ShapeError(
                f"{header.file.name} has {counted(count, 'row')}, but {stored:,} in the destination, so its rows cannot be "
                "replaced; ingest all files into a new destination, or pass mode='w'",
                found=(count,),
                wanted=(stored,),
            )
        places[number] = rows.start
    _check_disjoint(variables, places)
    return places


def _check_disjoint(variables: Variables, places: Mapping[int, int]) -> None:
    """Raise an error if two files replace the same rows. Earlier versions have recorded such files."""
    for number, other in pairwise(sorted(places, key=places.__getitem__)):
        if places[number] + variables.row_counts[number] > places[other]:
            one, two = (variables.headers[n].file.name for n in (number, other))
            raise ShapeError(
                f"{one} and {two} have the same row {places[other]} in the destination, so only one of them can be replaced; "
                f"pass region={{{variables.dim!r}: slice(…)}} instead of append with one file, or ingest all files into a new destination"
            )


def _merge_region(variables: Variables, region: slice, length: int, labels: Labels | None) -> Axis:
    """Return the place of each row in a region of an axis with a certain length."""
    start, stop, step = region.indices(length)
    count = sum(variables.row_counts)
    if step != 1 or stop - start != count:
        raise ShapeError(
            f"the region {start}:{stop} of {variables.dim!r} has {max(stop - start, 0)} rows, but the files have {count}",
            found=(count,),
            wanted=(max(stop - start, 0),),
        )
    axis, stored = replace(stack_rows(variables.row_counts, start), length=length), variables.target.labels
    are_same = labels is None or stored is None or is_equal(np.concatenate(labels), stored[start:stop])
    if not are_same and not _were_ingested(variables, _spans(axis, labels, variables)):
        raise ShapeError(
            f"the labels of the files differ from those of the rows {start}:{stop} of {variables.dim!r}; locate the rows by "
            "their labels with region='auto'"
        )
    return axis


def _were_ingested(variables: Variables, spans: Sequence[tuple[int, int, str]]) -> bool:
    """Return whether the journal contains all files with these rows and labels. Fill values may have replaced them since."""
    journal = variables.target.journal
    return all(journal.rows(header.file) == own for header, own in zip(variables.headers, spans, strict=True))


def _observations(variables: Variables, axis: Axis) -> list[str]:
    """Return messages about repeated rows, labels that nearly repeat each other, and gaps."""
    parameters, notes = variables.parameters, []
    if axis.duplicates:
        verb = "left out" if parameters.on_duplicate == "skip" else "left out for a later file"
        notes.append(f"{counted(axis.duplicates, 'repeated row')} {verb}")
    if axis.near:
        pairs = f"{counted(len(axis.near), 'pair')} of labels in {variables.dim!r}"
        notes.append(f"{pairs} nearly repeat each other, such as {' and '.join(axis.near[0])}; both rows are stored")
    if axis.gaps and parameters.on_gap != "ignore":
        shown = "; ".join(f"{before} to {after}" for before, after in axis.gaps[:3])
        gaps = f"{counted(len(axis.gaps), 'gap')} in {variables.dim!r}: {shown}"
        text = gaps + ("; …" if len(axis.gaps) > 3 else "")
        if parameters.on_gap == "error":
            raise ShapeError(f"{text}; add the missing files, or pass on_gap='report'")
        notes.append(text)
    return notes


def _spans(axis: Axis, labels: Labels | None, variables: Variables) -> list[tuple[int, int, str]]:
    """Return for each file its first row, the row after its last one, and a digest of the labels between.

    A file whose rows were all left out has the place after the row with its last label, and the digest of this label.
    """
    rows: dict[int, tuple[int, int]] = {}
    for segment in axis.segments:
        start, stop = rows.get(segment.source, (segment.start, segment.stop))
        rows[segment.source] = min(start, segment.start), max(stop, segment.stop)
    if labels is None:
        return [(*rows.get(number, (0, 0)), "") for number in range(len(variables.headers))]
    stored = _stored_labels(axis, labels, variables)
    missing = {number: own for number, own in enumerate(labels) if len(own) and number not in rows}
    rows.update(_places_of_last_labels(missing, stored))
    spans = [rows.get(number, (0, 0)) for number in range(len(labels))]
    return [(start, stop, digest_rows(stored, start, stop)) for start, stop in spans]


def _stored_labels(axis: Axis, labels: Labels, variables: Variables) -> npt.NDArray[Any]:
    """Return the labels of the destination after the job, with their data type in the destination."""
    result = np.zeros(axis.length, variables.dtype(variables.dim))
    stored = with_sign(result, variables.headers[0].variables[variables.dim].attributes)
    if variables.target.labels is not None:
        stored[: len(variables.target.labels)] = variables.target.labels
    for start, stop, source, offset in axis.segments:
        stored[start:stop] = labels[source][offset : offset + stop - start]
    return stored


def _places_of_last_labels(
    labels: Mapping[int, npt.NDArray[Any]], stored: npt.NDArray[Any]
) -> dict[int, tuple[int, int]]:
    """Return the places after the last of the rows that have the labels of files, by the number of the file."""
    if not labels:
        return {}
    order = np.argsort(stored, kind="stable")
    ordered, places = stored[order], dict[int, tuple[int, int]]()
    for number, own in labels.items():
        found = order[np.minimum(np.searchsorted(ordered, own.astype(stored.dtype)), len(stored) - 1)]
        place = int(found.max()) + 1
        places[number] = place, place
    return places
