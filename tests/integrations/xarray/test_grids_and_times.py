"""Grids of chunks of different sizes, axes without elements or names, and times that are stored as times."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.support.covering import covering
from zarrasync import sync
from zarrasync.errors import CodecError
from zarrasync.integrations import dask as zarrasync_dask
from zarrasync.integrations.xarray import write_dataset

# ------------------------------------------------------------------ rectilinear grids


def edges(path: Path, name: str = "v") -> Any:
    return sync.open_array(path, path=name).metadata.edges


@pytest.mark.parametrize(
    "encoding", [{"chunks": ((10, 20, 30),)}, {"chunks": (10,), "shards": ((20, 10, 30),)}], ids=["chunks", "shards"]
)
def test_rectilinear_grids_survive_a_rewrite(tmp_path: Path, encoding: dict[str, Any]):
    dataset = xr.Dataset({"v": ("x", np.arange(60.0))})
    write_dataset(dataset, tmp_path / "a", encoding={"v": encoding})
    read = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    write_dataset(read, tmp_path / "b")
    assert edges(tmp_path / "a") == edges(tmp_path / "b") == (encoding.get("shards") or encoding["chunks"])
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "b", engine="zarrasync").load(), dataset)
    write_dataset(read.isel(x=slice(0, 15)), tmp_path / "c")  # the sizes do not suit it any more
    assert edges(tmp_path / "c") is None
    if "shards" not in encoding:
        write_dataset(read, tmp_path / "d", zarr_format=2)  # which has one shape of chunks
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "a", engine="zarrasync", chunks={}).load(), dataset)


def test_axes_without_elements_in_rectilinear_grids(tmp_path: Path):
    dataset = xr.Dataset({"v": (("t", "x"), np.zeros((0, 4)))})
    write_dataset(dataset, tmp_path / "a", encoding={"v": {"chunks": (2, (1, 3))}})
    assert xr.open_dataset(tmp_path / "a", engine="zarrasync", chunks={})["v"].chunks == ((0,), (1, 3))
    assert zarrasync_dask.from_zarr(tmp_path / "a", path="v").chunks == ((0,), (1, 3))


# ------------------------------------------------------------------ parameters


def test_an_empty_region_writes_scalars(tmp_path: Path):
    write_dataset(xr.Dataset({"v": 0}), tmp_path / "a")
    write_dataset(xr.Dataset({"v": 5}), tmp_path / "a", region={}, mode="r+")
    assert xr.open_dataset(tmp_path / "a", engine="zarrasync")["v"] == 5


def test_encodings_are_mappings(tmp_path: Path):
    with pytest.raises(TypeError, match="encoding of 'v' must be a mapping, found 'foo'"):
        write_dataset(xr.Dataset({"v": ("x", [1.0])}), tmp_path / "a", encoding={"v": "foo"})
    assert not (tmp_path / "a").exists()


def test_unnamed_axes_of_a_tree_do_not_clash():
    """As in an OME-Zarr image with labels, whose levels have different sizes."""
    store: Any = {}
    root = sync.create_group(store, zarr_format=2)
    root.create_array("0", data=np.zeros((4, 6)))
    root.create_group("labels/cells").create_array("0", data=np.zeros((2, 3)))
    tree = xr.open_datatree(store, engine="zarrasync")
    assert tree.groups == ("/", "/labels", "/labels/cells")
    assert tree["labels/cells/0"].shape == (2, 3)
    assert tree["0"].dims == ("0_dim_0", "0_dim_1")


# ------------------------------------------------------------------ times stored as times


@pytest.mark.parametrize(
    ("dtype", "zarr_format", "fill"), covering(["M8[s]", "M8[ns]", "m8[s]"], [2, 3], [None, 0, "NaT"])
)
def test_native_times_survive_a_rewrite(tmp_path: Path, dtype: str, zarr_format: Any, fill: Any):
    values = (
        np.array([0, 86400, 2**30]).astype("m8[s]").astype(dtype)
        if dtype[0] == "m"
        else np.array(["1970-01-01", "2001-01-01", "NaT"], dtype)
    )
    group = sync.create_group(tmp_path / "a", zarr_format=zarr_format)
    options: dict[str, Any] = {} if fill is None else {"fill_value": np.array(fill, dtype)[()]}
    dims = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}} if zarr_format == 2 else {"dimension_names": ["x"]}
    group.create_array("v", data=values, **dims, **options)
    dataset = xr.open_dataset(tmp_path / "a", engine="zarrasync").load()
    np.testing.assert_array_equal(dataset["v"], values)
    write_dataset(dataset, tmp_path / "b", zarr_format=zarr_format)
    again = xr.open_dataset(tmp_path / "b", engine="zarrasync", decode_timedelta=True)
    np.testing.assert_array_equal(again["v"], values)


def dataset_at(time: str, unit: str = "ms") -> xr.Dataset:
    return xr.Dataset({"v": ("time", [2.0])}, coords={"time": np.array([time], f"M8[{unit}]")})


def test_native_times_can_be_appended_to(tmp_path: Path):
    group = sync.create_group(tmp_path / "a")
    group.create_array("time", data=np.array(["2001-01-01T00:01"], "M8[ms]"), dimension_names=["time"])
    group.create_array("v", data=[1.0], dimension_names=["time"])
    write_dataset(dataset_at("2001-01-01T00:02"), tmp_path / "a", append_dim="time")
    write_dataset(dataset_at("2001-01-01T00:03", "ns").chunk(), tmp_path / "a", append_dim="time")
    with pytest.raises(CodecError, match="is not exact in"):
        write_dataset(dataset_at("2001-01-01T00:04:00.000001", "us"), tmp_path / "a", append_dim="time")
    numbers = xr.Dataset({"v": ("time", [2.0])}, coords={"time": [5]})
    with pytest.raises(CodecError, match="of the data type int64"):
        write_dataset(numbers, tmp_path / "a", append_dim="time")
    read = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    expected = np.array([f"2001-01-01T00:0{minute}" for minute in (1, 2, 3)], "M8[ms]")
    np.testing.assert_array_equal(read["time"], expected)
    write_dataset(read.isel(time=[1]) * 3, tmp_path / "a", region="auto")
    assert xr.open_dataset(tmp_path / "a", engine="zarrasync")["v"].values.tolist() == [1, 6, 2]
