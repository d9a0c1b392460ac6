"""zarr-conventions, CF, conventions of other packages, and attributes of any structure."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.conventions import MULTISCALES, geo_attributes
from zarrasync import sync
from zarrasync._util import plugins
from zarrasync.display.info import encoding_facts, meaning_facts
from zarrasync.metadata import GroupMetadata
from zarrasync.metadata.conventions import Axis, Meaning, axes_of, cf_attributes, meaning_of, ome, zarr_conventions
from zarrasync.metadata.conventions.cf_encoding import CFEncoding


def meaning(attributes: dict[str, Any]) -> Meaning:
    return meaning_of(GroupMetadata(attributes=attributes))


def test_levels_with_reference_system():
    found = meaning(geo_attributes())
    assert found.titles == ("multiscales", "spatial", "proj")
    assert found.crs is not None
    assert found.crs.label == "EPSG:32633"
    rows, columns = found.levels[1].axes
    assert (rows.name, rows.step, rows.origin, rows.size) == ("Y", -20, 4599990, 30)
    assert (columns.name, columns.step, columns.origin, columns.size) == ("X", 20, 500010, 40)
    assert not found.violations


def test_levels_without_transformation_follow_from_the_first_one():
    attributes = geo_attributes(levels=False)
    attributes["multiscales"] = {
        "layout": [
            {"asset": "0", "transform": {"scale": [1.0, 1.0]}},
            {"asset": "1", "derived_from": "0", "transform": {"scale": [2.0, 2.0]}},
            {"asset": "2", "derived_from": "1", "transform": {"scale": [2.0, 2.0]}},
        ]
    }
    attributes["zarr_conventions"].append({"uuid": MULTISCALES})
    found = meaning(attributes)
    assert [[axis.step for axis in level.axes] for level in found.levels] == [[-10, 10], [-20, 20], [-40, 40]]
    assert found.levels[2].axes[1].origin == 500020
    plain = {"multiscales": attributes["multiscales"], "zarr_conventions": [{"uuid": MULTISCALES}]}
    assert [axis.step for axis in meaning(plain).levels[2].axes] == [4, 4]


@pytest.mark.parametrize(("registration", "origin"), [("pixel", 500005), ("node", 500000)])
def test_registration(registration, origin):
    found = meaning({**geo_attributes(levels=False), "spatial:registration": registration})
    assert found.axes[1].origin == origin


def test_rotated_grids_have_no_coordinates():
    found = meaning({**geo_attributes(levels=False), "spatial:transform": [10.0, 1.0, 0.0, 1.0, -10.0, 0.0]})
    assert [axis.step for axis in found.axes] == [None, None]
    assert found.affine == (10, 1, 0, 1, -10, 0)


def test_degrees_are_known_for_longitudes_and_latitudes():
    found = meaning({**geo_attributes(levels=False), "proj:code": "EPSG:4326"})
    assert [axis.unit for axis in found.axes] == ["degrees_north", "degrees_east"]


def test_deviations_are_located():
    attributes = geo_attributes()
    attributes["zarr_conventions"].pop()
    attributes["multiscales"]["layout"][1]["derived_from"] = "r5m"
    attributes["multiscales"]["layout"][0]["spatial:transform"] = [1, 2]
    attributes["proj:code"] = "4326"
    found = {violation.location: violation.severity for violation in meaning(attributes).violations}
    assert found == {
        "zarr_conventions": "warning",
        "proj:code": "error",
        "multiscales.layout[0].spatial:transform": "error",
        "multiscales.layout[1].derived_from": "error",
    }


def test_quantities_times_and_packing():
    packed = {"standard_name": "air_temperature", "units": "K", "scale_factor": 0.01, "add_offset": 273.15}
    assert meaning_facts(meaning(packed)) == {"Quantity": "air_temperature [K]"}
    assert encoding_facts(CFEncoding.from_attributes(packed, "i2")) == {"Packing": "stored value × 0.01 + 273.15"}
    times = {"units": "days since 2000-01-01", "calendar": "noleap"}
    assert encoding_facts(CFEncoding.from_attributes(times, "i2")) == {
        "Times": "days since 2000-01-01, noleap calendar"
    }
    assert meaning({"calendar": "aztec", "scale_factor": "2"}).violations[0].location == "calendar"
    links = meaning({"grid_mapping": "crs: x y", "coordinates": "lat lon"}).links
    assert [link.path for link in links] == ["lat", "lon", "crs", "x", "y"]
    assert meaning({"crs_wkt": 'PROJCRS["WGS 84 / UTM zone 33N",...]'}).crs.label == "WGS 84 / UTM zone 33N"


def test_axes_correspond_by_name_or_else_by_position():
    axes = (Axis("lat", step=-1.0), Axis("lon", step=2.0))
    array = sync.create_array({}, shape=(2, 3, 4), dtype="u1", dimension_names=("time", "lon", "lat"))
    assert [axis.step for axis in axes_of(array.metadata, axes)] == [None, 2.0, -1.0]
    array = sync.create_array({}, shape=(3, 4), dtype="u1", dimension_names=("lon", "other"))
    assert [(axis.name, axis.step) for axis in axes_of(array.metadata, axes)] == [("lon", 2.0), ("other", None)]
    array = sync.create_array({}, shape=(3, 4), dtype="u1")
    assert [(axis.name, axis.step) for axis in axes_of(array.metadata, axes)] == [("lat", -1.0), ("lon", 2.0)]
    array = sync.create_array({}, shape=(3, 4), dtype="u1", dimension_names=("y", None))
    unnamed = (Axis("", step=1.0), Axis("", step=2.0))
    assert [(axis.name, axis.step) for axis in axes_of(array.metadata, unnamed)] == [("y", 1.0), ("", 2.0)]
    assert [axis.step for axis in axes_of(array.metadata, unnamed[:1])] == [None, None]


def interpret_example(attributes: Any) -> Meaning:
    if attributes["example.grid"] is None:
        raise ValueError("no grid")
    return Meaning(titles=("example grid",), axes=(Axis("u", unit="m", step=attributes["example.grid"]),))


def test_packages_can_add_conventions(monkeypatch):
    entry = EntryPoint("example.grid", f"{__name__}:interpret_example", plugins.CONVENTIONS)
    monkeypatch.setattr(plugins, "entry_points_in", lambda group: {entry.name: entry})
    group = sync.create_group({}, attributes={"example.grid": 2.0})
    assert (group.info["Conventions"], group.info["Axes"]) == ("example grid", "u [m]")
    (violation,) = meaning({"example.grid": None}).violations
    assert (violation.location, "no grid" in violation.message) == ("example.grid", True)


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.sampled_from(["", "0", "space"])
)
NAMES = st.sampled_from(
    [
        "name",
        "type",
        "unit",
        "path",
        "axes",
        "datasets",
        "coordinateTransformations",
        "coordinateSystems",
        "scale",
        "translation",
        "transformations",
        "layout",
        "asset",
        "derived_from",
        "transform",
        "version",
        "wells",
        "rows",
        "columns",
        "images",
        "rowIndex",
        "uuid",
        "output",
        "colors",
        "rgba",
    ]
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=12)
MARKS = sorted(
    {*ome.ATTRIBUTES, *cf_attributes.ATTRIBUTES, *zarr_conventions.ATTRIBUTES, "spatial:transform", "proj:code"}
)


@given(st.dictionaries(st.sampled_from(MARKS), VALUES, max_size=4))
def test_attributes_of_any_structure_have_a_meaning(attributes):
    meaning_facts(meaning(attributes))
    found = meaning({"ome": attributes})
    meaning_facts(found)
    for level in found.levels:
        assert level.label
