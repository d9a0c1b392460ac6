"""Matching the files of a job with each other and with the destination: variables, labels, and the place of each row. No IO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.planning.axis import RESERVED, MergedRows, merge_rows, reserved_labels, stack_rows
from zarrasync.bulk.files.planning.comparison import is_equal
from zarrasync.bulk.files.planning.consistency import check_files
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.journal import Rows, digest_rows
from zarrasync.bulk.files.records.plan import STORED
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.conversions import convert_times, convert_values, find_missing, with_sign
from zarrasync.bulk.files.sources.headers import SourceFile, VariableHeader
from zarrasync.display.text import counted, listed, size_text
from zarrasync.errors import ShapeError
from zarrasync.metadata.conventions.cf_times import duration_units, numbers_to_dates, units_of

Labels: TypeAlias = Sequence[npt.NDArray[Any]]
"""The labels of each file, in the units of the destination."""


@dataclass(frozen=True)
class Match:
    """The rows of a job.

    Attributes:
        axis: The place of each row in the destination.
        labels: The labels of the destination after the job, with their data type there; ``None`` if the rows have none.
        empty: The reserved rows that are still empty then.
        journal: For each file its first row, the row after its last one, and a digest of the labels between, which is
            empty if they have none; ``None`` if the record of an earlier version of the file remains.
        moved: The same for files of earlier jobs whose rows move.
        notes: Messages for the report.
    """

    axis: MergedRows
    labels: npt.NDArray[Any] | None
    empty: Sequence[tuple[int, int]]
    journal: Sequence[tuple[int, int, str] | None]
    moved: Mapping[SourceFile, Rows]
    notes: Sequence[str]


class LateFilesError(ShapeError):
    """Rows of files come before existing ones, and are not inserted.

    Attributes:
        late: The message about each such file, by its number.
    """

    def __init__(self, late: Mapping[int, str]) -> None:
        super().__init__("; ".join(late.values()))
        self.late = late


def match_files(variables: Variables) -> Match:
    """Return the rows of a job.

    Raises:
        LateFilesError: If rows of some files come before existing ones, and are not inserted.
        ShapeError: If the files do not fit together or into the destination.
        CodecError: If times cannot be converted to one unit.
    """
    check_files(variables)
    labels = find_labels(variables)
    if labels is None and variables.dim and variables.parameters.reader.group:
        variables.notes.append(f"the group has no labels {variables.dim!r}: rows are in the order of the files")
    reserved = None if labels is None else _reserve(variables, labels)
    axis = _merge(variables, labels, reserved)
    stored = None if labels is None or reserved is None else _stored_labels(axis, [*labels, reserved], variables)
    empty = _empty_rows(variables.target, variables.dim, axis)
    notes = _observations(variables, axis)
    if empty:
        count = sum(stop - start for start, stop in empty)
        notes.append(f"{counted(count, 'reserved row')} of {axis.length:,} still empty")
    spans: list[tuple[int, int, str] | None] = [*_spans(axis, labels, stored, variables)]
    files, journal = [header.file for header in variables.headers], variables.target.journal
    changed = [number for number in sorted(axis.skipped) if journal.rows_of_any(files[number])]
    if changed and variables.parameters.append:
        names = listed([files[number].name for number in changed])
        text = f"{counted(len(changed), 'file')} changed since its rows were added, which are kept: {names}"
        notes.append(f"{text}; pass on_duplicate='replace' to write them again")
        spans = [None if number in changed else span for number, span in enumerate(spans)]
    notes += _remains(variables, labels)
    return Match(axis, stored, empty, spans, _moved(variables.target, axis, stored), notes)


# ------------------------------------------------------------------ labels


def find_labels(variables: Variables) -> Labels | None:
    """Return the labels of each file, or ``None`` if the rows have no labels.

    Raises:
        ShapeError: If some files have labels and others do not, or labels have no units.
    """
    name = variables.dim
    if variables.parameters.reader.labels is None:
        return None
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
        values = [variables.convert_times(name, number, item, units) for number, item in enumerate(values)]
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


def show_label(variables: Variables, label: Any) -> str:
    """Return a label as users know it: a date, if it is a time."""
    units = variables.units(variables.dim)
    if units is None or not units.calendar:
        return str(label)
    date = numbers_to_dates(np.array([label]), units)[0]
    text = np.datetime_as_string(date, unit="s") if isinstance(date, np.datetime64) else date.isoformat()
    return str(text)


# ------------------------------------------------------------------ rows


def _merge(variables: Variables, labels: Labels | None, reserved: Any) -> MergedRows:
    """Return the place of each row.

    Args:
        variables: The variables.
        labels: The labels of each file; ``None`` if they have none.
        reserved: The labels of rows to lay out.
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
    count, empty = len(labels), np.zeros(start, np.bool_)
    for first, stop in target.journal.reserved:
        empty[first:stop] = True
    axis = merge_rows(
        [*labels, reserved],
        [*(header.file.name for header in variables.headers), "reserve"],
        target.labels,
        empty=empty,
        on_duplicate=parameters.on_duplicate,
        only_existing=parameters.region is not None,
        show=lambda label: show_label(variables, label),
    )
    _check_late(variables, axis)
    return replace(axis, source=np.where(axis.source == count, RESERVED, axis.source))


def _reserve(variables: Variables, labels: Labels) -> npt.NDArray[Any]:
    """Return the labels of the parameter ``reserve`` that neither the destination nor the files have."""
    text, dim, stored = variables.parameters.reserve, variables.dim, variables.target.labels
    own = labels[0] if stored is None else stored
    if not text:
        return own[:0]
    if own.dtype.kind not in "iufmM":
        raise ShapeError(
            f"reserve={text!r} needs numbers or times as labels, found {own.dtype} in {dim!r}; omit reserve"
        )
    units = variables.units(dim)
    values, origin = reserved_labels(text, units)
    if units is not None and origin is not None:
        values = convert_times(values, origin, units, variables.dtype(dim), f"{dim!r} of reserve", {})
    values, files = convert_values(values, own.dtype, f"{dim!r} of reserve"), np.concatenate(labels)
    between = files[(files > values.min()) & (files < values.max()) & ~np.isin(files, values)]
    if len(between):
        example = show_label(variables, between[0])
        variables.notes.append(f"{counted(len(between), 'row')} between the reserved ones, such as {example}")
    return values[~np.isin(values, np.concatenate([files, own[:0] if stored is None else stored]))]


def _check_late(variables: Variables, axis: MergedRows) -> None:
    """Check that late rows may be inserted: if that is requested, or only values of the last stored chunk or shard move.

    Raises:
        LateFilesError: If rows of some files may not.
    """
    parameters, target, dim = variables.parameters, variables.target, variables.dim
    names = [*(header.file.name for header in variables.headers), "reserve"]
    length, unit, row_bytes = target.length(dim), 0, 0
    for name, dims in target.dims.items():
        if dim in dims:
            metadata, number = target.arrays[name].metadata, dims.index(dim)
            size = metadata.write_chunks[number] if metadata.edges is None else 1
            unit = min(unit or size, size)
            row_bytes += math.prod(metadata.shape) // max(length, 1) * (metadata.dtype.itemsize or 16)
    late: dict[int, str] = {}
    for number, row in axis.late.items():
        count = length - row
        text = f"its rows come before {counted(count, 'row')} of the destination"
        if parameters.on_late == "error":
            raise ShapeError(
                f"{names[number]} is late: {text}; pass on_late='insert' to insert them, or leave out the file"
            )
        cost = size_text(count * row_bytes)
        if not parameters.inserts:
            late[number] = (
                f"{names[number]}: left out, because {text}, and only ingest_files() into a directory or an object store inserts rows"
            )
        elif parameters.on_late != "insert" and count > unit:
            late[number] = (
                f"{names[number]}: left out, because {text}; pass on_late='insert' to insert them, which writes {cost} again"
            )
    if late:
        raise LateFilesError(late)


def _empty_rows(target: Target, dim: str, axis: MergedRows) -> list[tuple[int, int]]:
    """Return the reserved rows that are still empty after the job."""
    if not target.journal.reserved and not axis.reserved:
        return []
    before = np.zeros(target.length(dim), np.bool_)
    for start, stop in target.journal.reserved:
        before[start:stop] = True
    empty = axis.source == RESERVED
    is_stored = axis.source == STORED
    empty[is_stored] = before[axis.row[is_stored]]
    edges = np.flatnonzero(np.diff(np.r_[False, empty, False].astype("i1")))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _moved(target: Target, axis: MergedRows, labels: npt.NDArray[Any] | None) -> dict[SourceFile, Rows]:
    """Return the rows of files of earlier jobs, if they move because rows are inserted before."""
    if axis.moved is None or target.labels is None or labels is None:
        return {}
    found = dict[SourceFile, Rows]()
    for file, rows in target.journal.files.items():
        if rows.stop > axis.moved and target.journal.contains(file, target.labels, len(target.labels)):
            start, stop = int(axis.places[min(rows.start, rows.stop - 1)]), int(axis.places[rows.stop - 1]) + 1
            start = stop if rows.start == rows.stop else start
            found[file] = Rows(start, stop, digest_rows(labels, start, stop))
    return found


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
    """Raise an error if two files replace the same rows, because other files replaced rows of one of them before."""
    for number, other in pairwise(sorted(places, key=places.__getitem__)):
        if places[number] + variables.row_counts[number] > places[other]:
            one, two = (variables.headers[n].file.name for n in (number, other))
            raise ShapeError(
                f"{one} and {two} have the same row {places[other]} in the destination, so only one of them can be replaced; "
                f"pass region={{{variables.dim!r}: slice(…)}} instead of append with one file, or ingest all files into a new destination"
            )


def _merge_region(variables: Variables, region: slice, length: int, labels: Labels | None) -> MergedRows:
    """Return the place of each row in a region of an axis with a certain length."""
    start, stop, step = region.indices(length)
    count = sum(variables.row_counts)
    if step != 1 or stop - start != count:
        raise ShapeError(
            f"the region {start}:{stop} of {variables.dim!r} has {max(stop - start, 0)} rows, but the files have {count}",
            found=(count,),
            wanted=(max(stop - start, 0),),
        )
    firsts = np.cumsum([start, *variables.row_counts[:-1]]).tolist()
    axis, stored = stack_rows(variables.row_counts, length, dict(enumerate(firsts))), variables.target.labels
    if labels is not None and stored is not None and not is_equal(np.concatenate(labels), stored[start:stop]):
        raise ShapeError(
            f"the labels of the files differ from those of the rows {start}:{stop} of {variables.dim!r}; locate the rows by "
            "their labels with region='auto'"
        )
    return axis


def _observations(variables: Variables, axis: MergedRows) -> list[str]:
    """Return messages about files without rows, repeated rows, labels that nearly repeat each other, and gaps."""
    parameters, counts, notes = variables.parameters, variables.row_counts, []
    if empty := [header.file.name for header, count in zip(variables.headers, counts, strict=True) if not count]:
        notes.append(f"no rows in {listed(empty)}")
    if axis.duplicates:
        verb = "left out" if parameters.on_duplicate == "skip" else "left out for a later file"
        notes.append(f"{counted(axis.duplicates, 'repeated row')} {verb}")
    if not axis.segments and any(counts):
        notes.append("all rows exist already")
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


def _spans(
    axis: MergedRows, labels: Labels | None, stored: npt.NDArray[Any] | None, variables: Variables
) -> list[tuple[int, int, str]]:
    """Return for each file its first row, the row after its last one, and a digest of the labels between.

    A file whose rows were all left out has the place after the row with its last label, and the digest of this label.
    """
    rows: dict[int, tuple[int, int]] = {}
    for segment in (own for own in axis.segments if own.source != STORED):
        start, stop = rows.get(segment.source, (segment.start, segment.stop))
        rows[segment.source] = min(start, segment.start), max(stop, segment.stop)
    if labels is None or stored is None:
        return [(*rows.get(number, (0, 0)), "") for number in range(len(variables.headers))]
    left_out = [n for n, own in enumerate(labels) if len(own) and n not in rows and axis.ends]
    rows |= {n: (axis.ends[n], axis.ends[n]) for n in left_out}
    spans = [rows.get(number, (0, 0)) for number in range(len(labels))]
    return [(start, stop, digest_rows(stored, start, stop)) for start, stop in spans]


def _remains(variables: Variables, labels: Labels | None) -> list[str]:
    """Return messages about rows of earlier versions of files, which the files do not contain any more."""
    target, notes = variables.target, list[str]()
    if labels is None or target.labels is None or variables.parameters.on_duplicate != "replace":
        return notes
    new = np.concatenate(labels)
    for header in variables.headers:
        rows = target.journal.rows_of_any(header.file)
        if rows is None or not target.journal.contains_rows(rows, target.labels):
            continue
        is_left = ~np.isin(target.labels[rows.start : rows.stop], new)
        for file, other in target.journal.files.items():
            if file.url != header.file.recorded.url and other.start < rows.stop and other.stop > rows.start:
                is_left[max(other.start - rows.start, 0) : other.stop - rows.start] = False
        if is_left.any():
            first = show_label(variables, target.labels[rows.start + int(np.argmax(is_left))])
            text = f"{counted(int(is_left.sum()), 'row')} of an earlier version of {header.file.name} remain, from {first} on"
            notes.append(f"{text}: the file does not contain them any more")
    return notes


def _stored_labels(axis: MergedRows, labels: Labels, variables: Variables) -> npt.NDArray[Any]:
    """Return the labels of the destination after the job, with their data type in the destination."""
    before = variables.target.labels
    if before is None:
        before = np.zeros(variables.target.length(variables.dim), labels[0].dtype)
    values = [before, *labels]  # in the order of the numbers of sources, of which the first is STORED
    starts = np.cumsum([0, *map(len, values[:-1])])
    source = np.where(axis.source == RESERVED, len(labels) - 1, axis.source)
    result = np.concatenate(values)[starts[source - STORED] + axis.row]
    stored = np.empty(axis.length, variables.dtype(variables.dim))
    stored = with_sign(stored, variables.headers[0].variables[variables.dim].attributes)
    stored[:] = result
    return stored
