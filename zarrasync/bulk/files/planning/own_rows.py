"""The rows of files that a destination contains already: for comparisons, and to write removed rows again. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.planning.axis import Axis, find_own_rows
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.file_rows import Rows
from zarrasync.bulk.files.records.journal import digest_rows
from zarrasync.bulk.files.records.plan import Segment
from zarrasync.bulk.files.records.spans import Span, common, difference
from zarrasync.bulk.files.records.target import Target
from zarrasync.display.text import counted, listed
from zarrasync.errors import ShapeError

__all__ = ["find_stored_rows", "note_lost_rows", "repair_labels", "restore_rows", "rows_of_files"]


def rows_of_files(variables: Variables) -> list[Rows]:
    """Return the rows of each file in the journal; no rows of files that it does not contain."""
    journal = variables.target.journal
    return [journal.rows(header.file) or Rows(0, 0, "") for header in variables.headers]


def find_stored_rows(
    variables: Variables, labels: Sequence[npt.NDArray[Any]] | None, numbers: Sequence[int] | None = None
) -> Axis:
    """Return the rows of the destination that certainly come from some of the files. All others count as duplicates.

    Args:
        variables: The variables.
        labels: The labels of each file; ``None`` if they have none.
        numbers: The numbers of the files; all by default.
    """
    target, headers = variables.target, variables.headers
    numbers = range(len(headers)) if numbers is None else numbers
    spans, length = rows_of_files(variables), target.length(variables.dim)
    if labels is None or target.labels is None:
        return _without_labels({number: spans[number] for number in numbers}, variables.row_counts, length)
    others = target.journal.rows_of_others([headers[number].file for number in numbers])
    axis = find_own_rows(
        [labels[number] for number in numbers],
        [headers[number].file.name for number in numbers],
        target.labels,
        [spans[number][:2] for number in numbers],
        [own[:2] for own in others],
    )
    return replace(axis, segments=tuple(part._replace(source=numbers[part.source]) for part in axis.segments))


def _without_labels(spans: dict[int, Rows], counts: Sequence[int], length: int) -> Axis:
    """Return rows that are known by their files alone. The journal omits rows that other files have replaced."""
    segments = [
        Segment(own.start, own.stop, number, 0)
        for number, own in spans.items()
        if counts[number] and own.stop - own.start == counts[number]
    ]
    total = sum(counts[number] for number in spans)
    return Axis(tuple(sorted(segments)), length, total - sum(part.stop - part.start for part in segments))


# ------------------------------------------------------------------ removed rows


def repair_labels(variables: Variables, labels: Sequence[npt.NDArray[Any]] | None, numbers: Sequence[int]) -> None:
    """Put back the labels of rows that were removed from the destination, if its journal shows which ones they were.

    Args:
        variables: The variables, whose destination gets the labels.
        labels: The labels of each file; ``None`` if they have none.
        numbers: The numbers of files whose rows were removed.

    Raises:
        ShapeError: If labels of other files were removed as well.
    """
    target = variables.target
    is_slice = isinstance(variables.parameters.region, slice)  # labels of other rows do not matter
    if labels is None or target.labels is None or not target.lost.spans or is_slice:
        return
    repaired, spans = target.labels.copy(), rows_of_files(variables)
    for number in numbers:
        rows, own = spans[number], labels[number].astype(repaired.dtype)
        stored = repaired[rows.start : rows.stop]
        is_same = stored.shape == own.shape and digest_rows(own, 0, len(own)) == rows.digest
        if is_same and bool(np.all((stored == own) | _are_fill(stored, target, variables.dim))):
            repaired[rows.start : rows.stop] = own
    target.labels = repaired
    rest = [
        start + int(row)
        for start, stop in target.lost.spans
        for row in np.flatnonzero(_are_fill(repaired[start:stop], target, variables.dim))
    ]
    if len(rest) > 1:  # a single one may be a label
        raise ShapeError(
            f"the labels of {counted(len(rest), 'row')} of {variables.dim!r}, the first is row {rest[0]}, are fill values, "
            f"because rows were removed from the array; ingest {_names(target, [(rest[0], rest[-1] + 1)])} again in the same "
            "call, or pass mode='w' to replace the dataset"
        )


def _are_fill(labels: npt.NDArray[Any], target: Target, dim: str) -> npt.NDArray[np.bool_]:
    fill = target.arrays[dim].metadata.spec.scalar
    are_fill = np.asarray(labels == fill)
    if labels.dtype.kind in "fcmM":
        are_fill |= np.isnan(labels) & np.isnan(fill)
    return are_fill


def restore_rows(
    variables: Variables, labels: Sequence[npt.NDArray[Any]] | None, numbers: Sequence[int], axis: Axis
) -> Axis:
    """Return an axis with the removed rows of files.

    Args:
        variables: The variables.
        labels: The labels of each file; ``None`` if they have none.
        numbers: The numbers of files whose rows were removed.
        axis: The rows of the other files. Rows that they write are not added.
    """
    if not numbers:
        return axis
    lost = difference(variables.target.lost.spans, [part[:2] for part in axis.segments])
    added = [
        Segment(start, stop, part.source, part.offset + start - part.start)
        for part in find_stored_rows(variables, labels, numbers).segments
        for start, stop in common([part[:2]], lost)
    ]
    return replace(axis, segments=tuple(sorted([*axis.segments, *added])))


def note_lost_rows(target: Target, written: Sequence[Span]) -> list[str]:
    """Return messages about removed rows.

    Args:
        target: The destination.
        written: The rows that a job writes.
    """
    lost = target.lost
    again, rest = common(lost.spans, written), difference(lost.spans, written)
    arrays, notes = ", ".join(lost.arrays) or "an array", list[str]()
    if again:
        notes.append(f"{_rows(again)} written again, because they were removed from {arrays}")
    if rest and (names := _names(target, rest)):
        notes.append(
            f"{_rows(rest)} were removed from {arrays}, and contain fill values; ingest {names} again to restore them"
        )
    return notes


def _rows(spans: Sequence[Span]) -> str:
    """Return the number of rows, and the spans."""
    count = sum(stop - start for start, stop in spans)
    return f"{counted(count, 'row')} ({', '.join(f'{start}:{stop}' for start, stop in spans[:3])}{', …' * (len(spans) > 3)})"


def _names(target: Target, spans: Sequence[Span]) -> str:
    """Return the names of files that have rows in some spans; an empty string without such files."""
    files = [file.short_name for file, rows in target.journal.files.items() if common([rows[:2]], spans)]
    return listed(files)
