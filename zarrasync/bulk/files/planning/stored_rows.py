"""Matching files that were ingested before with their rows, to compare both. No IO."""

from __future__ import annotations

from zarrasync.bulk.files.planning.fitting import check_variables
from zarrasync.bulk.files.planning.matching import Match, find_labels
from zarrasync.bulk.files.planning.own_rows import find_stored_rows, rows_of_files
from zarrasync.bulk.files.planning.variables import Variables
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
    axis = find_stored_rows(variables, find_labels(variables))
    notes = [f"{counted(axis.duplicates, 'row')} not compared, because they may come from other files"]
    return Match(axis, rows_of_files(variables), notes if axis.duplicates else [])
