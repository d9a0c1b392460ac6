"""Trees of datasets: all groups are written together."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.conventions import MULTISCALES
from zarrasync import sync
from zarrasync.errors import NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.stores import CountingStore, MemoryStore

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import WriteOptions, write_dataset, write_dataset_async  # after the skip


def tree(groups: int = 3, *, lazy: bool = False) -> Any:
    root = xr.Dataset({"mask": ("x", np.arange(4) > 1)}, {"x": np.arange(4.0)}, {"title": "root"})
    nodes: dict[str, Any] = {"/": root}
    for number in range(groups):
        values = xr.Dataset({"a": (("t", "x"), np.full((2, 4), number + 0.5))}, {"t": [0, 1]}, {"number": number})
        nodes[f"/level/g{number}"] = values.chunk(t=1) if lazy else values
    return xr.DataTree.from_dict(nodes)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("inherited", [False, True])
async def test_every_group_is_written(tmp_path: Path, zarr_format: Any, lazy: bool, inherited: bool):
    if lazy:
        pytest.importorskip("dask")
    options = WriteOptions(write_inherited_coords=inherited)
    report = await write_dataset_async(
        tree(lazy=lazy), tmp_path / "ours", verify=True, zarr_format=zarr_format, options=options
    )
    assert report["level/g1/a"].nbytes == 64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree().to_zarr(tmp_path / "theirs", zarr_format=zarr_format, write_inherited_coords=inherited)
    ours, theirs = (sync.open_group(tmp_path / name) for name in ("ours", "theirs"))
    assert [path for path, _ in ours.members(None)] == [path for path, _ in theirs.members(None)]
    for path, node in theirs.members(None):
        assert node.attrs.asdict() == ours[path].attrs.asdict(), path
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to open Zarr store")
        for engine in ("zarr", "zarrasync"):
            xr.testing.assert_identical(xr.open_datatree(tmp_path / "ours", engine=engine).load(), tree())


def test_encodings_by_group():
    store: dict[str, bytes] = {}
    encoding = {
        "/level/g0": {"a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}},
        "level/g1": {"a": {"chunks": (1, 2)}},
    }
    write_dataset(tree(), store, encoding=encoding, group="below")
    root = sync.open_group(store)
    assert root["below/level/g0/a"].dtype == np.int16
    assert root["below/level/g1/a"].chunks == (1, 2)
    assert root["below/level/g2/a"].chunks == (2, 4)
    xr.testing.assert_identical(xr.open_datatree(store, engine="zarrasync", group="below").load(), tree())
    with pytest.raises(ValueError, match="'/none', which is not a group of the tree"):
        write_dataset(tree(), {}, encoding={"/none": {}})
    with pytest.raises(ValueError, match="'none', which is not a variable"):
        write_dataset(tree(), {}, encoding={"/level": {"none": {}}})


def test_a_part_of_a_tree():
    store: dict[str, bytes] = {}
    part = tree()["level"]
    write_dataset(part, store, encoding={"/level/g0": {"a": {"chunks": (1, 4)}}})
    assert sorted(dict(sync.open_group(store).members(None)))[:3] == ["g0", "g0/a", "g0/t"]
    assert sync.open_array(store, path="g0/a").chunks == (1, 4)
    assert "x" in sync.open_group(store)  # inherited by the part's root


def test_modes():
    store = MemoryStore()
    with pytest.raises(NodeNotFoundError):
        write_dataset(tree(), store, mode="r+")
    assert not store.values
    write_dataset(tree(), store)
    with pytest.raises(NodeExistsError):
        write_dataset(tree(), store)
    write_dataset(tree().map_over_datasets(lambda data: data if "mask" in data else data * 2), store, mode="r+")
    np.testing.assert_array_equal(sync.open_array(store, path="level/g1/a"), np.full((2, 4), 3.0))
    write_dataset(tree(4), store, mode="a")  # one more group
    xr.testing.assert_identical(xr.open_datatree(store, engine="zarrasync").load(), tree(4))
    write_dataset(tree(1), store, mode="w")
    xr.testing.assert_identical(xr.open_datatree(store, engine="zarrasync").load(), tree(1))
    copies = sync.open_group(store, use_consolidated=True)
    assert [path for path, _ in copies.members(None)] == ["level", "level/g0", "level/g0/a", "level/g0/t", "mask", "x"]
    sync.open_group(store, mode="r+").create_array("level/g1", data=[1])
    with pytest.raises(NodeTypeError):
        write_dataset(tree(), store, mode="a")


def test_appending_to_groups_with_a_dimension():
    store = MemoryStore()
    write_dataset(tree(), store)
    write_dataset(tree(), store, append_dim="t", mode="a-", on_duplicate="allow")
    assert {sync.open_array(store, path=f"level/g{n}/a").shape for n in range(3)} == {(4, 4)}
    assert sync.open_array(store, path="mask").shape == (4,)
    with pytest.raises(ValueError, match="no dimension 'z'"):
        write_dataset(tree(), store, append_dim="z")


@pytest.mark.parametrize("lazy", [False, True])
def test_the_requests_of_a_tree(lazy: bool):
    """A document and the chunks of each node, and few more to look for jobs and nodes, and to consolidate."""
    store = CountingStore(MemoryStore())
    given = tree(8, lazy=lazy)
    write_dataset(given, store)
    counts = store.reset()
    groups, arrays, chunks = 10, 2 + 8 * 2, 2 + 8 * (3 if lazy else 2)
    assert counts.puts == groups + arrays + chunks + 1
    assert counts.fetches <= 6 + 8 * lazy
    assert (counts.lists, counts.erases) == (1, 0)


def test_levels_that_are_arrays_in_groups_have_the_coordinates_of_their_groups():
    layout: list[dict[str, Any]] = [{"asset": "fine/ar"}]
    layout.append(
        {"asset": "coarse/ar", "derived_from": "fine/ar", "transform": {"scale": [2.0], "translation": [0.0]}}
    )
    attributes = {"zarr_conventions": [{"uuid": MULTISCALES}], "multiscales": {"layout": layout}}
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes=attributes)
    for name, step in (("fine", 10), ("coarse", 20)):
        labels = 5000.0 - step * np.arange(80 // step)
        root.create_array(f"{name}/ar", data=labels + 1, dimension_names=["y"])
        root.create_array(f"{name}/y", data=labels, dimension_names=["y"])
    found = xr.open_datatree(store, engine="zarrasync")
    for level, (name, count) in enumerate((("fine", 8), ("coarse", 4))):
        for dataset in (found[name].dataset, xr.open_dataset(store, engine="zarrasync", level=level)):
            assert dataset["ar"].dims == ("y",)
            np.testing.assert_array_equal(dataset["ar"], dataset["y"] + 1)
            assert dataset["y"].size == count
