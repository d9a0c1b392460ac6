"""OME-Zarr: axes, coordinates of levels, plates, labels, and deviations with their locations."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.conventions import CYX, ome_attributes
from zarrasync.metadata import GroupMetadata
from zarrasync.metadata.conventions import Meaning, meaning_of

VERSIONS = ["0.4", "0.5", "0.6"]


def meaning(attributes: dict[str, Any]) -> Meaning:
    return meaning_of(GroupMetadata(attributes=attributes))


@pytest.mark.parametrize("version", VERSIONS)
def test_images(version):
    found = meaning(ome_attributes(version, levels=3))
    assert found.titles == (f"OME-Zarr {version} image",)
    assert [axis.label for axis in found.axes] == ["c (channel)", "y [micrometer]", "x [micrometer]"]
    assert [level.path for level in found.levels] == ["0", "1", "2"]
    assert [(axis.step, axis.origin) for axis in found.levels[2].axes] == [(1, 0), (2, 0.75), (2, 0.75)]
    assert found.levels[1].label == "1 (y 1, x 1)"
    assert found.levels[2].axes[1].coordinates(3).tolist() == [0.75, 2.75, 4.75]
    assert not found.violations


def test_transformations_of_the_whole_pyramid_follow_those_of_a_level():
    attributes = ome_attributes("0.4")
    attributes["multiscales"][0]["coordinateTransformations"] = [
        {"type": "scale", "scale": [1, 10, 10]},
        {"type": "translation", "translation": [0, 5, 7]},
    ]
    axes = meaning(attributes).levels[1].axes
    assert [(axis.step, axis.origin) for axis in axes] == [(1, 0), (10, 7.5), (10, 9.5)]


def test_transformations_to_other_coordinate_systems_are_not_applied():
    for version in ("0.4", "0.6"):
        attributes = ome_attributes(version)
        image = attributes.get("ome", attributes)["multiscales"][0]
        output = {"output": {"name": "global"}, "input": {"name": "physical"}}
        image["coordinateTransformations"] = [{"type": "scale", "scale": [1, n, n], **output} for n in (2, 3)]
        assert meaning(attributes).levels[0].axes[1].step == 0.5


@pytest.mark.parametrize("axes", [None, ["t", "c", "z", "y", "x"]], ids=["0.1", "0.3"])
def test_old_versions_have_axes_without_units(axes):
    image = {"version": "0.1" if axes is None else "0.3", "datasets": [{"path": "0"}], "axes": axes}
    found = meaning({"multiscales": [{name: value for name, value in image.items() if value is not None}]})
    assert [axis.name for axis in found.axes] == ["t", "c", "z", "y", "x"]
    assert not found.violations


def test_pyramids_of_other_software_are_no_errors():
    found = meaning({"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}], "type": "reduce"}]})
    assert (found.titles, len(found.levels), found.violations) == (("multiscales",), 2, ())


def test_plates_wells_labels_and_collections():
    plate = {
        "rows": [{"name": "A"}, {"name": "B"}],
        "columns": [{"name": "1"}],
        "wells": [{"path": "B/1", "rowIndex": 1, "columnIndex": 0}],
    }
    for attributes in ({"ome": {"version": "0.5", "plate": plate}}, {"plate": {**plate, "version": "0.4"}}):
        found = meaning(attributes)
        assert ([link.path for link in found.links], found.facts["Plate"]) == (["B/1"], "2 rows, 1 column, 1 well")
        assert not found.violations
    well = meaning({"ome": {"version": "0.5", "well": {"images": [{"path": "0"}, {"path": "1"}]}}})
    assert [(link.path, link.kind) for link in well.links] == [("0", "image"), ("1", "image")]
    labels = meaning({"labels": ["cells", "a/b"]})
    assert [(link.path, link.kind) for link in labels.links] == [("cells", "label image"), ("a/b", "label image")]
    assert meaning({"bioformats2raw.layout": 3}).titles == ("OME-Zarr 0.4 collection of images",)
    colours: dict[str, Any] = {"image-label": {"colors": [{"label-value": 1, "rgba": [1, 2, 3, 4]}]}}
    label = meaning(ome_attributes("0.5", **colours))
    assert (label.titles, label.variable, label.dtype_kinds) == (("OME-Zarr 0.5 label image",), "labels", "iu")
    assert not label.violations


@pytest.mark.parametrize("path", ["../secret", "/a", "a/../../b"])
def test_labels_stay_inside(path: str):
    found = meaning({"labels": ["cells", path]})
    assert [link.path for link in found.links] == ["cells"]
    assert [violation.location for violation in found.violations] == ["labels[1]"]


def test_channels_are_named():
    found = meaning(ome_attributes("0.4", omero={"channels": [{"label": "DAPI"}, {"label": "GFP"}, {"color": "FF"}]}))
    assert found.facts["Channels"] == "DAPI, GFP"


def change(attributes: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return attributes with another value at a path such as ``axes.0.name``, inside the first image."""
    attributes = copy.deepcopy(attributes)
    node: Any = attributes["ome"]["multiscales"][0]
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        node = node[part]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return attributes


@pytest.mark.parametrize(
    ("path", "value", "location", "words"),
    [
        ("axes", CYX[::-1], "axes", "time must come first"),
        ("axes", CYX[:2], "axes", "2 or 3 axes must have the type 'space'"),
        ("axes", [*CYX, CYX[2]], "axes", "names of axes must differ"),
        ("axes.1.name", "", "axes[1].name", "not empty"),
        ("axes", None, "axes", "found nothing"),
        ("datasets", [], "datasets", "at least one object"),
        ("datasets.1.path", "0", "datasets[1].path", "another level"),
        ("datasets.1.path", "../0", "datasets[1].path", "relative"),
        ("datasets.0.coordinateTransformations", None, "datasets[0].coordinateTransformations", "found nothing"),
        ("datasets.0.coordinateTransformations.0.scale", [1, 2], "datasets[0].coordinateTransformations[0].scale", "3"),
        ("datasets.0.coordinateTransformations.0.scale", [0, 1, 1], "datasets[0].coordinateTransformations[0].scale", "0"),
        ("datasets.0.coordinateTransformations.0.type", "affine", "datasets[0].coordinateTransformations", "one scale"),
    ],
)  # fmt: skip
def test_deviations_are_located(path, value, location, words):
    found = meaning(change(ome_attributes("0.5"), path, value))
    places = {violation.location: violation.message for violation in found.violations if violation.severity == "error"}
    assert words in places[f"ome.multiscales[0].{location}"]


def test_more_deviations():
    missing = ome_attributes("0.5")
    del missing["ome"]["version"]
    assert [violation.location for violation in meaning(missing).violations] == ["ome.version"]
    unit = change(ome_attributes("0.5"), "axes.1.unit", "pixels")
    assert [(v.severity, v.location) for v in meaning(unit).violations] == [
        ("warning", "ome.multiscales[0].axes[1].unit")
    ]
    plate = {"rows": [{"name": "A"}] * 2, "columns": [{"name": "1"}], "wells": [{"path": "A/2"}, {"path": "A/1"}]}
    found = meaning({"ome": {"version": "0.5", "plate": plate}}).violations
    assert [v.location for v in found] == ["ome.plate.rows", "ome.plate.wells[0].path", "ome.plate.wells[1]"]
    system = ome_attributes("0.6")
    system["ome"]["multiscales"][0]["coordinateSystems"][0]["name"] = "other"
    assert "no coordinate system 'physical'" in meaning(system).violations[0].message
