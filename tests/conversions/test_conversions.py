"""No place changes what stored numbers mean without an error."""

from __future__ import annotations

from typing import Any

import netCDF4
import numpy as np
import pytest

from tests.conversions.cases import CASES, VARIABLE, Case, spread, write_file
from tests.conversions.page import EQUAL, PAGE, REASONS, outcome, row_of
from tests.conversions.places import PLACES, difference

pytestmark = pytest.mark.servers
num2date: Any = netCDF4.num2date


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title.replace("`", ""))
def test_the_table(case: Case):
    """Run ``python -m tests.conversions.page`` if the page differs."""
    outcomes = {place: outcome(case, place) for place in PLACES}
    refused = {place for place, result in outcomes.items() if result == "refused"}
    assert refused == {place for title, place in REASONS if title == case.title}
    assert {result for place, result in outcomes.items() if place not in refused} == {EQUAL}
    text = PAGE.read_text()
    notes = [line.partition(". ")[2].rstrip(".") for line in text.splitlines() if line[:1].isdigit()]
    notes = [note[0].lower() + note[1:] for note in notes]
    assert row_of(case, outcomes, notes) in text


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.kind in ("plain", "enum") and c.title != "boolean"], ids=lambda case: case.title
)
def test_values_are_those_of_netcdf4(case: Case, tmp_path):
    with netCDF4.Dataset(write_file(case, tmp_path / "f.nc")) as file:
        variable = file[VARIABLE]
        found: Any = variable[:]
        if "calendar" in variable.ncattrs():
            standard = variable.calendar == "standard"
            found = num2date(found, variable.units, variable.calendar, only_use_cftime_datetimes=not standard)
            if standard:
                times = np.full(found.shape, np.datetime64("NaT", "ns"))
                times[~np.ma.getmaskarray(found)] = np.ma.compressed(found).astype("M8[ns]")
                found = times
        elif np.ma.isMaskedArray(found) and found.dtype.kind in "iuf":
            found = np.where(np.ma.getmaskarray(found), np.nan, np.ma.getdata(found))
    assert not difference(np.asarray(found), spread(case.values))
