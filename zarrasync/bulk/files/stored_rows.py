"""Matching files that were ingested before with their rows, to compare both. No IO."""

from __future__ import annotations

from zarrasync.bulk.files.axis import Axis, Segment, find_own_rows
from zarrasync.bulk.files.file_rows import Rows
from zarrasync.bulk.files.matching import Match, check_variables, find_labels
from zarrasync.bulk.files.variables import Variables
from zarrasync.display.text import counted

__all__ = ["match_stored"]


def match_stored(variables: Variables) -> Match:
    """Return the rows of the destination that come from the files, as if they were written again.

    Rows that may come from another file, because it has the same labels, are left out. A message contains their number.

    Raises:
        ShapeError: If the files do not fit together or into the destination.
        CodecError: If times cannot be converted to one unit.
    """
    check_variables(variables, any_dtype=True)
    labels, target = find_labels(variables), variables.target
    files = [header.file.recorded for header in variables.headers]
    spans = [target.journal.rows(file) or Rows(0, 0, "") for file in files]
    if labels is None or target.labels is None:
        axis = _without_labels(spans, variables.row_counts, target.length(variables.dim))
    else:
        names = [header.file.name for header in variables.headers]
        others = target.journal.rows_of_others(files)
        axis = find_own_rows(labels, names, target.labels, [own[:2] for own in spans], [own[:2] for own in others])
    notes = [f"{counted(axis.duplicates, 'row')} not compared, because they may come from other files"]
    return Match(axis, spans, notes if axis.duplicates else [])


def _without_labels(spans: list[Rows], counts: list[int], length: int) -> Axis:
    """Return rows that are known by their files alone. The journal omits rows that other files have replaced."""
    segments = [
        Segment(own.start, own.stop, number, 0)
        for number, (own, count) in enumerate(zip(spans, counts, strict=True))
        if count and own.stop - own.start == count
    ]
    return Axis(tuple(sorted(segments)), length, sum(counts) - sum(part.stop - part.start for part in segments))
