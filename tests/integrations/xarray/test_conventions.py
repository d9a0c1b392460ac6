"""Datasets of pyramids: named axes, coordinates, and reference systems that conventions specify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.conventions import geo_attributes, write_ome_image
from zarrasync import sync
from zarrasync.errors import NodeNotFoundError

xarray = pytest.importorskip("xarray")

VERSIONS = ["0.4", "0.5", "0.6"]


def opened(store: Any, **options: Any) -> Any:
    return xarray.open_dataset(store, engine="zarrasync", **options)


def write_geo(store: Any, attributes: dict[str, Any]) -> None:
    root = sync.create_group(store, attributes=attributes)
    for name, shape in {"r10m": (60, 80), "r20m": (30, 40)}.items():
        values = np.arange(2 * np.prod(shape)).reshape(2, *shape)
        root.create_array(f"{name}/b2", data=values, dimension_names=("time", "Y", "X"))


@pytest.mark.parametrize("version", VERSIONS)
def test_levels_of_images(version):
    store: dict[str, bytes] = {}
    values = write_ome_image(store, version)
    for options in ({}, {"level": 0}, {"level": -2}, {"group": "0"}):
        dataset = opened(store, **options)
        assert dataset.image.dims == ("c", "y", "x")
        np.testing.assert_array_equal(dataset.image, values)
    coarse = opened(store, level=1)
    np.testing.assert_array_equal(coarse.image, values[:, ::2, ::2])
    np.testing.assert_allclose(coarse.x, 0.25 + np.arange(48))
    assert coarse.x.attrs["units"] == "micrometer"
    assert coarse.attrs == {}
    nearest = coarse.image.sel(y=10.2, x=20.3, method="nearest")
    np.testing.assert_array_equal(nearest, values[:, 20, 40])
    assert (coarse.image.dtype, set(coarse.coords)) == (np.uint16, {"y", "x"})


def test_channels_are_labelled():
    store: dict[str, bytes] = {}
    write_ome_image(store, "0.4", omero={"channels": [{"label": "DAPI"}, {"label": "GFP"}]})
    assert opened(store).image.sel(c="GFP").dims == ("y", "x")
    write_ome_image(again := {}, "0.4", omero={"channels": [{"label": "DAPI"}, {"label": "DAPI"}]})
    assert "c" not in opened(again).coords


@pytest.mark.parametrize("version", VERSIONS)
def test_trees_have_a_node_for_each_level(version):
    store: dict[str, bytes] = {}
    write_ome_image(store, version)
    label: dict[str, Any] = {"image-label": {}}
    write_ome_image(store, version, path="labels/cells", **label)
    tree = xarray.open_datatree(store, engine="zarrasync")
    assert [node.path for node in tree.subtree if node.data_vars] == [
        "/0",
        "/1",
        "/labels/cells/0",
        "/labels/cells/1",
    ]
    assert tree["labels/cells/1"].labels.dims == ("c", "y", "x")
    np.testing.assert_allclose(tree["1"].x, tree["labels/cells/1"].x)


def test_levels_that_do_not_exist():
    store: dict[str, bytes] = {}
    write_ome_image(store, "0.5")
    with pytest.raises(ValueError, match="level=2 is out of range: / has 2 levels, 0 to 1"):
        opened(store, level=2)
    del store["1/zarr.json"]
    with pytest.raises(NodeNotFoundError, match="1"):
        opened(store, level=1)
    plain: dict[str, bytes] = {}
    sync.save(plain, a=[1, 2])
    with pytest.raises(ValueError, match="no convention specifies levels"):
        opened(plain, level=0)


def test_levels_that_are_groups():
    store: dict[str, bytes] = {}
    write_geo(store, geo_attributes())
    for options in ({"level": 1}, {"group": "r20m"}):
        dataset = opened(store, **options)
        assert dataset.b2.dims == ("time", "Y", "X")
        np.testing.assert_allclose(dataset.X, 500010 + 20.0 * np.arange(40))
        np.testing.assert_allclose(dataset.Y, 4599990 - 20.0 * np.arange(30))
        assert dataset.b2.attrs["grid_mapping"] == "spatial_ref"
        assert dataset.spatial_ref.attrs == {
            "spatial_ref": "EPSG:32633",
            "GeoTransform": "500000.0 20.0 0.0 4600000.0 0.0 -20.0",
        }
        assert set(dataset.coords) == {"X", "Y", "spatial_ref"}
    assert opened(store).sizes == {}
    tree = xarray.open_datatree(store, engine="zarrasync")
    assert tree["r10m"].sizes == {"time": 2, "Y": 60, "X": 80}
    assert tree["r10m"].X[0] == 500005


def test_groups_specify_their_arrays():
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes=geo_attributes(levels=False))
    root.create_array("b2", shape=(3, 4), dtype="u1", dimension_names=("Y", "X"))
    root.create_array("series", shape=5, dtype="u1", dimension_names=("time",))
    root.create_array("stations", shape=(3, 4), dtype="u1", dimension_names=("time", "station"))
    root.create_array("plain", shape=(3, 4), dtype="u1")
    dataset = opened(store, drop_variables="series")
    assert dataset.X.values.tolist() == [500005, 500015, 500025, 500035]
    assert (dataset.stations.dims, dataset.plain.dims) == (("time", "station"), ("Y", "X"))
    dataset = opened(store, drop_variables="stations")
    assert "grid_mapping" not in dataset.series.attrs


def test_stored_coordinates_and_mappings_have_priority():
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes=geo_attributes(levels=False))
    mapped = {"grid_mapping": "crs"}
    root.create_array("b2", shape=(3, 4), dtype="u1", dimension_names=("Y", "X"), attributes=mapped)
    root.create_array("X", data=[1.0, 2.0, 3.0, 4.0], dimension_names=("X",))
    dataset = opened(store)
    assert dataset.X.values.tolist() == [1, 2, 3, 4]
    assert "spatial_ref" not in dataset.variables
    assert dataset.b2.attrs["grid_mapping"] == "crs"


def test_coordinates_that_contradict_each_other_are_left_out():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    for n in (1.0, 2.0):
        attributes = {**geo_attributes(levels=False), "spatial:transform": [n, 0.0, 0.0, 0.0, -n, 0.0]}
        root.create_array(f"a{n:g}", shape=(3, 4), dtype="u1", dimension_names=("Y", "X"), attributes=attributes)
    assert set(opened(store).variables) == {"a1", "a2"}


def test_levels_survive_a_round_trip(tmp_path: Path):
    from zarrasync.integrations.xarray import write_dataset

    store: dict[str, bytes] = {}
    write_ome_image(store, "0.5")
    level = opened(store, level=1)
    write_dataset(level, tmp_path / "copy")
    xarray.testing.assert_identical(opened(tmp_path / "copy").load(), level.load())


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_rioxarray_knows_the_reference_system():
    pytest.importorskip("rioxarray")
    store: dict[str, bytes] = {}
    attributes = geo_attributes()
    write_geo(store, attributes)
    dataset = opened(store, level=1)
    assert dataset.rio.crs.to_epsg() == 32633
    assert tuple(dataset.b2.rio.transform())[:6] == (20, 0, 500000, 0, -20, 4600000)
    assert dataset.b2.rio.bounds() == (500000, 4599400, 500800, 4600000)
    pyproj = pytest.importorskip("pyproj")
    crs = pyproj.CRS("EPSG:3035")
    for name, value in (("wkt2", crs.to_wkt()), ("projjson", crs.to_json_dict())):
        del attributes[next(key for key in attributes if key.startswith("proj:"))]
        write_geo(other := {}, {**attributes, f"proj:{name}": value})
        attributes[f"proj:{name}"] = value
        assert opened(other, level=0).rio.crs.to_epsg() == 3035
