"""The page ``docs/conversions.md``: what every place makes of every kind of number. ``python -m tests.conversions.page`` writes it."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from tests.conversions.cases import CASES, Case
from tests.conversions.places import PLACES, difference, expected_values
from tests.support import ROOT
from zarrasync.errors import ZarrError

__all__ = ["PAGE", "REASONS", "outcome", "row_of"]

PAGE = ROOT / "docs" / "conversions.md"
EQUAL, REFUSED, LEFT_OUT = "=", "refused", "left out"

_DOES_NOT_FIT = "the encoding cannot represent a value; the error names the variable, the index and the value"
_ONE_NUMBER = "the encoder of xarray, which writes netCDF, accepts one number for missing values"
_NOT_REAL = "statistics and colours need real numbers"
_NOT_AVERAGED = 'strings do not have a mean; `method="nearest"` keeps one of them'
REASONS: dict[tuple[str, str], str] = {
    **{
        (case.title, place): _DOES_NOT_FIT
        for case in CASES
        if case.encoding
        for place in ("ingest", "ingest, decoded", "`write_dataset`", "append", "region", "dask")
    },
    **{
        (title, "to netCDF"): _ONE_NUMBER
        for title in ("several `missing_value`", "`_FillValue` and another `missing_value`")
    },
    **{
        (title, place): _NOT_REAL for title in ("characters", "strings", "complex") for place in ("statistics", "tiles")
    },
    **{(title, "pyramid"): _NOT_AVERAGED for title in ("characters", "strings")},
}
"""Why a place refuses a kind of number."""
_HEAD = f"""# What numbers mean in every place

<!-- Written by `python -m tests.conversions.page`. Do not edit. -->

Files and Zarr arrays store numbers with attributes that specify what the numbers mean: the conventions of CF, netCDF, and xarray.
The table shows what each part of zarrasync makes of them. netCDF4 writes the files, and zarr-python the arrays. `{EQUAL}` means that a
reader finds the values that xarray finds in the file, or, in the views (statistics, tiles and `cat`), the values that netCDF4 finds.
A number refers to the reason why a place refuses the values. No place changes them without an error.

"""
_TAIL = """
xarray does not use `valid_range` and `climatology`: datasets contain the numbers outside of the valid range, and climatological bounds as
numbers. Views and pyramids mask the former, and show the latter as dates. Integers that may be missing become floating-point numbers.
Rounding within half a step of the encoding, and to the precision of `float32`, is allowed; see `lossy` of `write_dataset`.
"""


def outcome(case: Case, place: str) -> str:
    """Return what a place makes of a case: ``=``, ``refused``, or how the values differ."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that xarray changes in types, and of serial codecs
        try:
            found = PLACES[place](case, Path(folder))
        except (ZarrError, ValueError):
            return REFUSED
        return difference(found, expected_values(case, place, Path(folder))) or EQUAL


def row_of(case: Case, outcomes: dict[str, str], notes: list[str]) -> str:
    """Return a row of the table. Reasons that are new are added to the notes."""
    cells = []
    for place, result in outcomes.items():
        reason = REASONS[case.title, place] if result == REFUSED else ""
        if reason and reason not in notes:
            notes.append(reason)
        cells.append(f"{notes.index(reason) + 1}" if reason else result)
    return f"| {' | '.join([case.title, *cells])} |"


def page() -> str:
    """Run all cases at all places, and return the page."""
    notes: list[str] = []
    rows = [f"{row_of(case, {place: outcome(case, place) for place in PLACES}, notes)}\n" for case in CASES]
    header = f"| stored | {' | '.join(PLACES)} |\n|---|{':-:|' * len(PLACES)}\n"
    reasons = "".join(f"{number}. {reason[0].upper()}{reason[1:]}.\n" for number, reason in enumerate(notes, 1))
    return f"{_HEAD}{header}{''.join(rows)}\n{reasons}{_TAIL}"


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
    PAGE.write_text(page())
