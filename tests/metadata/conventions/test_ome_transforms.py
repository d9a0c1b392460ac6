"""OME-Zarr 0.6: coordinates that follow from transformations, coordinate systems, scenes, and the colours of labels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.conventions import CYX, ome_attributes
from zarrasync.metadata import GroupMetadata
from zarrasync.metadata.conventions import Meaning, meaning_of


def meaning(attributes: dict[str, Any]) -> Meaning:
    return meaning_of(GroupMetadata(attributes=attributes))


def image(
    transformation: dict[str, Any], *more: dict[str, Any], systems: list[dict[str, Any]] | None = None
) -> Meaning:
    """Return the meaning of an image with one level, and with transformations to other coordinate systems."""
    attributes = ome_attributes("0.6", levels=1)
    pyramid = attributes["ome"]["multiscales"][0]
    ends = {"input": {"path": "0"}, "output": {"name": "physical"}}
    pyramid["datasets"][0]["coordinateTransformations"] = [{**transformation, **ends}]
    pyramid["coordinateSystems"] += systems or []
    if more:
        pyramid["coordinateTransformations"] = list(more)
    return meaning(attributes)


def part(sources: list[int], targets: list[int], **transformation: Any) -> dict[str, Any]:
    return {"inputAxes": sources, "outputAxes": targets, "transformation": transformation}


SCALE = {"type": "scale", "scale": [1, 2, 4]}
SHIFT = {"type": "translation", "translation": [0, 10, 20]}
KNOWN = [("c", 1, 0), ("y", 2, 10), ("x", 4, 20)]
UNKNOWN = [("c", 1, 0), ("y", None, 0), ("x", None, 0)]
ALL_UNKNOWN = [("c", None, 0), ("y", None, 0), ("x", None, 0)]


@pytest.mark.parametrize(
    ("transformation", "expected"),
    [
        ({"type": "identity"}, [("c", 1, 0), ("y", 1, 0), ("x", 1, 0)]),
        (SCALE, [("c", 1, 0), ("y", 2, 0), ("x", 4, 0)]),
        ({"type": "sequence", "transformations": [SCALE, SHIFT]}, KNOWN),
        ({"type": "sequence", "transformations": [{"type": "sequence", "transformations": [SCALE]}, SHIFT]}, KNOWN),
        ({"type": "sequence", "transformations": [SHIFT, SCALE]}, [("c", 1, 0), ("y", 2, 20), ("x", 4, 80)]),
        ({"type": "affine", "affine": [[1, 0, 0, 0], [0, 2, 0, 10], [0, 0, 4, 20]]}, KNOWN),
        ({"type": "affine", "affine": [[1, 0, 0, 0], [0, 2, 1, 10], [0, 0, 4, 20]]}, UNKNOWN),
        ({"type": "affine", "affine": [[1, 0, 0, 0], [0, 2, 0, 10], [0, 0, 0, 20]]},
         [("c", 1, 0), ("y", 2, 10), ("x", None, 0)]),
        ({"type": "rotation", "rotation": [[1, 0, 0], [0, 0.8, -0.6], [0, 0.6, 0.8]]}, UNKNOWN),
        ({"type": "rotation", "rotation": [[1, 0, 0], [0, 6e-17, -1], [0, 1, 6e-17]]},
         [("c", 1, 0), ("x", 1, 0), ("y", -1, 0)]),
        ({"type": "mapAxis", "mapAxis": [0, 2, 1]}, [("c", 1, 0), ("x", 1, 0), ("y", 1, 0)]),
        ({"type": "sequence", "transformations": [SCALE, {"type": "mapAxis", "mapAxis": [2, 0, 1]}, SHIFT]},
         [("y", 1, 10), ("x", 2, 20), ("c", 4, 0)]),
        ({"type": "byDimension", "transformations": [
            part([0], [0], type="identity"),
            part([1, 2], [1, 2], type="sequence", transformations=[
                {"type": "scale", "scale": [2, 4]}, {"type": "translation", "translation": [10, 20]}])]}, KNOWN),
        ({"type": "byDimension", "transformations": [
            part([0], [0], type="identity"), part([1, 2], [2, 1], type="scale", scale=[2, 4])]},
         [("c", 1, 0), ("x", 2, 0), ("y", 4, 0)]),
        ({"type": "byDimension", "transformations": [
            part([0], [0], type="identity"), part([1, 2], [1, 2], type="displacements", path="field")]}, UNKNOWN),
        ({"type": "bijection", "forward": SCALE, "inverse": {"type": "scale", "scale": [1, 0.5, 0.25]}},
         [("c", 1, 0), ("y", 2, 0), ("x", 4, 0)]),
        ({"type": "displacements", "path": "field"}, ALL_UNKNOWN),
        ({"type": "affine", "path": "matrix"}, ALL_UNKNOWN),
        ({"type": "scale", "scale": [1, 1e308, 1e308]}, [("c", 1, 0), ("y", 1e308, 0), ("x", 1e308, 0)]),
        ({"type": "sequence", "transformations": [{"type": "scale", "scale": [1, 1e300, 1]}] * 2},
         [("c", 1, 0), ("y", None, 0), ("x", 1, 0)]),
        ({"type": "warp"}, ALL_UNKNOWN),
    ],
)  # fmt: skip
def test_coordinates(transformation, expected):
    found = image(transformation)
    assert [(axis.name, axis.step, axis.origin) for axis in found.levels[0].axes] == expected
    is_complete = all(step is not None for _, step, _ in expected)
    assert ("Transformations" in found.facts) != is_complete


def test_transformations_without_coordinates_are_shown():
    matrix = [[1, 0, 0, 0], [0, 2, 1, 10], [0, 0, 4, 20]]
    found = image({"type": "affine", "name": "shear", "affine": matrix})
    assert found.facts["Transformations"] == "0: 'shear': affine [[1, 0, 0, 0], [0, 2, 1, 10], [0, 0, 4, 20]]"
    stored = image({"type": "rotation", "path": "rotations/a"})
    assert [(link.path, link.location.rpartition("].")[2]) for link in stored.links] == [("rotations/a", "path")]
    assert any("in the array 'rotations/a'; coordinates are unknown" in each.message for each in stored.violations)


def test_an_affine_level_may_have_fewer_axes_than_the_system():
    found = image({"type": "affine", "affine": [[0, 0, 5], [2, 0, 1], [0, 4, 2]]})
    assert [(axis.name, axis.step, axis.origin) for axis in found.levels[0].axes] == [("y", 2, 1), ("x", 4, 2)]


@pytest.mark.parametrize(
    ("transformation", "location", "words"),
    [
        ({"type": "affine", "affine": [[1, 0], [0, 1]]}, "", "2 outputs, but there are 3 axes"),
        ({"type": "affine", "affine": [[1, 0, 0, 0], [0, 1]]}, ".affine[1]", "expected 4 numbers"),
        ({"type": "affine"}, ".affine", "found nothing"),
        ({"type": "rotation", "rotation": [[1, 0], [0, 1]]}, ".rotation[0]", "expected 3 numbers"),
        ({"type": "rotation", "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 2]]}, ".rotation", "orthonormal"),
        ({"type": "rotation", "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, -1]]}, ".rotation", "determinant"),
        ({"type": "mapAxis", "mapAxis": [0, 1, 1]}, ".mapAxis", "once"),
        ({"type": "mapAxis", "mapAxis": [0, 1, 10**9]}, ".mapAxis", "once"),
        ({"type": "projectAxis"}, "", "at least one"),
        ({"type": "projectAxis", "droppedInputs": [3]}, ".droppedInputs", "from 0 to 2"),
        ({"type": "byDimension", "transformations": [part([0], [0], type="identity")]}, "", "1 outputs"),
        ({"type": "byDimension", "transformations": [part([0], [0], type="identity")] * 2}, ".transformations", "once"),
        ({"type": "byDimension", "transformations": [part([0, 1], [0], type="identity")]},
         ".transformations[0].outputAxes", "2 outputs, but there are 1 outputAxes"),
        ({"type": "sequence", "transformations": []}, ".transformations", "at least one"),
        ({"type": "bijection", "forward": SCALE}, ".inverse", "expected a transformation"),
        ({"type": "translation", "translation": [1, "a", 2]}, ".translation", "expected 3 numbers"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_located(transformation, location, words):
    found = [violation for violation in image(transformation).violations if violation.severity == "error"]
    places = {violation.location: violation.message for violation in found}
    place = "ome.multiscales[0].datasets[0]" + (f".coordinateTransformations[0]{location}" if location else "")
    matches = [
        message for where, message in places.items() if where in (place, f"{place}.coordinateTransformations[0]")
    ]
    assert any(words in message for message in matches), places


def test_hostile_documents_are_refused():
    nested: dict[str, Any] = SCALE
    for _ in range(50):
        nested = {"type": "sequence", "transformations": [nested]}
    assert any("at most" in violation.message for violation in image(nested).violations)
    attributes = ome_attributes("0.6", levels=1)
    attributes["ome"]["multiscales"][0]["coordinateSystems"][0]["axes"] = CYX * 50_000
    assert meaning(attributes).violations


ALIGNED = {"name": "aligned", "axes": CYX}
ENDS = {"input": {"name": "physical"}, "output": {"name": "aligned"}}


def test_other_coordinate_systems():
    found = image(SCALE, {"type": "scale", "scale": [1, 3, 3], **ENDS}, systems=[ALIGNED])
    assert not found.violations
    assert found.systems == ("physical", "aligned")
    assert found.facts["Other coordinate systems"] == "aligned (c (channel), y [micrometer], x [micrometer])"
    assert found.facts["Transformations"] == "physical to aligned: scale [1, 3, 3]"
    assert [axis.step for axis in found.levels[0].axes] == [1, 2, 4]


@pytest.mark.parametrize(
    ("changes", "location", "words"),
    [
        ({"output": {"name": "other"}}, ".output", "no coordinate system 'other'; known: physical, aligned"),
        ({"output": {}}, ".output", "name of a coordinate system"),
        ({"input": {"name": "aligned"}}, "", "must be 'physical'"),
        ({"scale": [1, 2]}, ".scale", "expected 3 numbers"),
        ({"type": "affine", "affine": [[1, 0, 0, 0]]}, "", "1 outputs, but 'aligned' has 3 axes"),
        ({"type": "rotation", "output": {"name": "physical", "path": "labels/a"}}, ".type", "identity, scale"),
    ],
)
def test_transformations_between_systems_are_checked(changes, location, words):
    found = image(SCALE, {"type": "scale", "scale": [1, 3, 3], **ENDS, **changes}, systems=[ALIGNED])
    places = {v.location: v.message for v in found.violations}
    assert words in places[f"ome.multiscales[0].coordinateTransformations[0]{location}"]


def test_levels_lead_from_their_array_to_one_system():
    attributes = ome_attributes("0.6")
    levels = attributes["ome"]["multiscales"][0]["datasets"]
    levels[0]["coordinateTransformations"][0]["input"] = {"path": "1"}
    levels[1]["coordinateTransformations"][0]["output"] = {"name": "other"}
    places = {violation.location.rpartition("multiscales[0].")[2] for violation in meaning(attributes).violations}
    assert places == {
        "datasets[0].coordinateTransformations[0].input",
        "datasets[1].coordinateTransformations[0].output",
    }
    draft = ome_attributes("0.6", levels=1)
    draft["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"][0] |= {
        "input": "0",
        "output": "physical",
    }
    assert {violation.severity for violation in meaning(draft).violations} == {"warning"}
    assert meaning(draft).levels[0].axes[1].step == 0.5


def test_scenes_refer_to_images():
    scene: dict[str, Any] = {
        "coordinateSystems": [{"name": "world", "axes": CYX[1:]}],
        "coordinateTransformations": [
            {"type": "translation", "translation": [0, n], "name": f"tile {n}",
             "input": {"path": f"tile_{n}", "name": "physical"}, "output": {"name": "world"}}
            for n in range(2)
        ],
    }  # fmt: skip
    found = meaning({"ome": {"version": "0.6", "scene": scene}})
    assert found.titles == ("OME-Zarr 0.6 scene",)
    assert not found.violations
    assert [(link.path, link.kind, link.system) for link in found.links] == [
        ("tile_0", "image", "physical"),
        ("tile_1", "image", "physical"),
    ]
    assert found.facts["Images"] == "tile_0, tile_1"
    assert "tile_1/physical to world: 'tile 1': translation [0, 1]" in found.facts["Transformations"]
    scene["coordinateTransformations"][0]["output"] = {"name": "moon"}
    (violation,) = meaning({"ome": {"version": "0.6", "scene": scene}}).violations
    assert violation.location == "ome.scene.coordinateTransformations[0].output"


def test_colours_and_properties_of_labels():
    colours = [{"label-value": 1, "rgba": [255, 0, 0, 255]}, {"label-value": 2.0, "rgba": [0, 0, 255, 128]}]
    properties = [{"label-value": 1, "class": "cell", "area": 12.5}, {"label-value": 4}]
    label: dict[str, Any] = {"image-label": {"colors": colours, "properties": properties}}
    found = meaning(ome_attributes("0.5", **label))
    assert found.titles == ("OME-Zarr 0.5 label image",)
    assert found.labels is not None
    assert found.labels.colours == {1: (255, 0, 0, 255), 2: (0, 0, 255, 128)}
    assert found.labels.properties == {1: "class cell, area 12.5"}
    assert found.facts["Label colours"] == "1: #ff0000, 2: #0000ff80"
    assert found.facts["Label properties"] == "1: class cell, area 12.5"
    colours += [
        {"label-value": 1},
        {"label-value": "a"},
        {"rgba": [0, 0, 0, 0]},
        {"label-value": 5, "rgba": [0, 0, 256, 0]},
    ]
    places = {
        violation.location.removeprefix("ome.image-label.colors")
        for violation in meaning(ome_attributes("0.5", **label)).violations
    }
    assert places == {"", "[3].label-value", "[4].label-value", "[5].rgba"}
