"""Which coordinates are longitudes and latitudes: the units, standard names and axes of CF, section 4."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import zarrasync
from zarrasync.metadata.conventions import Axis
from zarrasync.metadata.conventions.meaning import is_geographic, is_longitude, role_of

EAST = [f"{word}{end}" for word in ("degree", "degrees") for end in ("_east", "_E", "E", " east")]


@pytest.mark.parametrize("unit", EAST)
def test_units_of_cf(unit):
    north = unit.replace("east", "north").replace("E", "N")
    rows, columns = Axis("", unit=north), Axis("", unit=unit)
    assert is_geographic(rows, columns)
    assert not is_geographic(columns, rows)
    assert not is_longitude(north, {}, "lon")
    assert (role_of(north, {}), role_of(unit, {})) == ("y", "x")


@pytest.mark.parametrize(
    ("unit", "attributes", "name", "is_geographic", "role"),
    [
        ("", {"standard_name": "longitude"}, "", True, "x"),
        ("degrees", {"standard_name": "grid_longitude", "axis": "X"}, "lon", False, "x"),
        ("degrees_east", {"standard_name": "grid_longitude"}, "rlon", False, "x"),
        ("m", {"standard_name": "projection_x_coordinate"}, "x", False, "x"),
        ("degrees", {}, "Longitude", True, "x"),
        ("", {}, "lon", True, "x"),
        ("km", {}, "lon", False, "x"),
        ("degrees", {}, "angle", False, ""),
        ("", {"axis": "X"}, "i", False, "x"),
        ("hPa", {"positive": "down"}, "p", False, "z"),
        ("days since 2000-01-01", {"axis": "T"}, "day", False, "t"),
        ("", {"standard_name": "forecast_reference_time"}, "time", False, ""),
        ("", {"standard_name": ["longitude"]}, "x", False, "x"),
    ],
)
def test_attributes_decide_before_names(unit, attributes, name, is_geographic, role):
    assert is_longitude(unit, attributes, name) is is_geographic
    assert role_of(unit, attributes, name) == role


def test_no_other_module_knows_the_units():
    """Modules that write coordinates of latitudes and longitudes name a unit; none compares with one."""
    package = Path(zarrasync.__file__).parent
    spelled = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ("degrees_east", "grid_latitude", "projection_y_coordinate")
    }
    assert spelled == {"metadata/conventions/meaning.py", "metadata/conventions/zarr_conventions.py"}
