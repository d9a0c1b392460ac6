"""``validate`` checks conventions: attributes, and the nodes that they refer to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.conventions import geo_attributes, ome_attributes, write_ome_image
from zarrasync import sync

VERSIONS = ["0.4", "0.5", "0.6"]


def problems(report: Any, *severities: str) -> dict[str, str]:
    """Return the messages of findings by key and location."""
    found = [finding for finding in report.findings if finding.severity in (severities or ("error", "warning"))]
    return {f"{finding.key} {finding.location}".strip(): finding.message for finding in found}


def write_geo(store: Any, attributes: dict[str, Any]) -> sync.Group:
    root = sync.create_group(store, attributes=attributes)
    for name, shape in {"r10m": (60, 80), "r20m": (30, 40)}.items():
        layer = {"spatial:dimensions": ["Y", "X"], "zarr_conventions": attributes["zarr_conventions"][-2:-1]}
        values = np.zeros((2, *shape), "u2")
        root.create_array(f"{name}/b2", data=values, dimension_names=("time", "Y", "X"), attributes=layer)
    return root


@pytest.mark.parametrize("version", VERSIONS)
async def test_valid_images(api: Api, version):
    store: dict[str, bytes] = {}
    write_ome_image(store, version)
    report = await api(api.validate(store))
    assert not report.findings


@pytest.mark.parametrize("version", VERSIONS)
async def test_levels_that_do_not_fit(api: Api, version):
    store: dict[str, bytes] = {}
    write_ome_image(store, version, levels=2)
    nested: Any = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    names: Any = {"dimension_names": ("c", "y", "x")} if version != "0.4" else nested
    group = sync.open_group(store, mode="r+")
    group.attrs.update(ome_attributes(version, levels=5))
    group.create_array("2", data=np.zeros((2, 65, 24), "u2"), **names)
    group.create_array("3", data=np.zeros((2, 12), "u2"), **(nested if version == "0.4" else {}))
    report = await api(api.validate(store))
    key, prefix = (".zattrs", "$.") if version == "0.4" else ("zarr.json", "$.attributes.ome.")
    found = problems(report)
    place = f"{key} {prefix}multiscales[0].datasets"
    assert "must become smaller" in found[f"{place}[2]"]
    assert "3 axes (c, y, x), but the level has shape (2, 12)" in found[f"{place}[3]"]
    assert found[f"{place}[4]"] == "the level /4 does not exist"


async def test_names_types_and_extents_of_levels(api: Api):
    store: dict[str, bytes] = {}
    write_ome_image(store, "0.5")
    group = sync.open_group(store, mode="r+")
    options: dict[str, Any] = {"overwrite": True, "dimension_names": ("c", "x", "y")}
    group.create_array("1", data=np.zeros((2, 8, 48), "f4"), **options)
    report = await api(api.validate(store))
    messages = [finding.message for finding in report.findings if finding.location.endswith("datasets[1]")]
    assert len(messages) == 3
    for words, message in zip(("dimension names", "data types", "step × size"), messages, strict=True):
        assert words in message


async def test_dimension_names_and_nested_directories(api: Api):
    for version, words in (
        ("0.4", "must have the separator '/', found '.'"),
        ("0.5", "no dimension names; expected c"),
    ):
        store: dict[str, bytes] = {}
        write_ome_image(store, version)
        sync.open_group(store, mode="r+").create_array("1", data=np.zeros((2, 32, 48), "u2"), overwrite=True)
        report = await api(api.validate(store))
        (finding,) = report.findings
        assert words in finding.message
        assert finding.location.endswith("datasets[1]")
        assert report.ok == (version == "0.5")


async def test_labels_plates_and_wells(api: Api):
    store: dict[str, bytes] = {}
    plate = {
        "version": "0.5",
        "rows": [{"name": "A"}],
        "columns": [{"name": "1"}, {"name": "2"}],
        "wells": [{"path": f"A/{n + 1}", "rowIndex": 0, "columnIndex": n} for n in range(2)],
    }
    root = sync.create_group(store, attributes={"ome": {"version": "0.5", "plate": plate}})
    well = {"version": "0.5", "images": [{"path": "0"}, {"path": "1"}]}
    root.create_group("A/1", attributes={"ome": {"version": "0.5", "well": well}})
    write_ome_image(store, "0.5", "A/1/0")
    root.create_group("A/1/0/labels", attributes={"ome": {"version": "0.5", "labels": ["cells", "nuclei"]}})
    label: dict[str, Any] = {"image-label": {}}
    write_ome_image(store, "0.5", "A/1/0/labels/cells", **label)
    found = problems(await api(api.validate(store)))
    assert found == {
        "zarr.json $.attributes.ome.plate.wells[1].path": "the well /A/2 does not exist",
        "A/1/zarr.json $.attributes.ome.well.images[1].path": "the image /A/1/1 does not exist",
        "A/1/0/labels/zarr.json $.attributes.ome.labels[1]": "the label image /A/1/0/labels/nuclei does not exist",
    }
    options: dict[str, Any] = {"overwrite": True, "dimension_names": ("c", "y", "x")}
    root.create_array("A/1/0/labels/cells/0", data=np.zeros((2, 64, 96)), **options)
    found = problems(await api(api.validate(store, path="A/1/0/labels/cells")))
    assert "labels must be integers" in "".join(found.values())


async def test_scenes_refer_to_coordinate_systems_of_images(api: Api):
    store: dict[str, bytes] = {}
    edges = [
        {"type": "identity", "input": {"path": path, "name": name}, "output": {"name": "physical", "path": "a"}}
        for path, name in (("b", "physical"), ("b", "pixels"), ("none", "physical"))
    ]
    sync.create_group(store, attributes={"ome": {"version": "0.6", "scene": {"coordinateTransformations": edges}}})
    for path in "ab":
        write_ome_image(store, "0.6", path=path)
    found = problems(await api(api.validate(store)))
    place = "zarr.json $.attributes.ome.scene.coordinateTransformations"
    assert found == {
        f"{place}[1].input": "the image /b has no coordinate system 'pixels'; known: physical",
        f"{place}[2].input": "the image /none does not exist",
    }


async def test_geographic_pyramids(api: Api):
    store: dict[str, bytes] = {}
    root = write_geo(store, geo_attributes())
    assert not (await api(api.validate(store))).findings
    root["r20m/b2"].resize((2, 30, 41))
    root["r10m/b2"].attrs["spatial:dimensions"] = ["lat", "lon"]
    root["r10m/b2"].attrs["spatial:shape"] = [60, 80]
    found = problems(await api(api.validate(store)))
    assert "no axis of the array has the name 'lat', 'lon'" in found["r10m/b2/zarr.json"]


async def test_sizes_that_the_attributes_specify(api: Api):
    store: dict[str, bytes] = {}
    attributes = {**geo_attributes(levels=False), "spatial:shape": [3, 5]}
    sync.create_array(store, shape=(3, 4), dtype="u1", dimension_names=("Y", "X"), attributes=attributes)
    found = problems(await api(api.validate(store)))
    assert found == {"zarr.json": "the attributes specify 5 elements along 'X', but the array has 4"}


async def test_missing_coordinates_are_notes(api: Api):
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    attributes = {"coordinates": "lat lon", "grid_mapping": "crs"}
    group.create_array("t", shape=(3,), dtype="f4", attributes=attributes)
    group.create_array("lat", shape=(3,), dtype="f4")
    report = await api(api.validate(store))
    assert report.ok
    assert [finding.message for finding in report.findings] == [
        "the coordinate /lon does not exist",
        "the grid mapping /crs does not exist",
    ]


async def test_libraries_find_more(api: Api):
    """zarr-cm and ome-zarr-models know all rules of their conventions."""
    pytest.importorskip("zarr_cm")
    store: dict[str, bytes] = {}
    geo = {**geo_attributes(levels=False), "spatial:bbox": [1, 2, 3]}
    sync.create_group(store, attributes=geo)
    found = problems(await api(api.validate(store)))
    assert "(zarr-cm)" in found["zarr.json $.attributes.spatial:bbox"]
    old = [{**item, "schema_url": "https://example.org/old/schema.json"} for item in geo["zarr_conventions"]]
    sync.create_group(store, attributes={**geo, "zarr_conventions": old}, overwrite=True)
    report = await api(api.validate(store))
    assert report.ok
    assert any("(zarr-cm)" in message for message in problems(report, "warning").values())
    pytest.importorskip("ome_zarr_models")
    store.clear()
    attributes = ome_attributes("0.5", levels=1, omero={"channels": [{"color": "red", "window": {}}]})
    write_ome_image(store, "0.5", levels=1)
    sync.open_group(store, mode="r+").attrs.update(attributes)
    plate = {"rows": [{"name": "A"}], "columns": [{"name": "1"}], "wells": [], "field_count": 0}
    sync.create_group(store, path="p", attributes={"ome": {"version": "0.5", "plate": plate}})
    found = problems(await api(api.validate(store)))
    assert any("(ome-zarr-models)" in message for message in found.values())
