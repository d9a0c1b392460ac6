"""Stores of other packages: icechunk, tifffile, VirtualiZarr and kerchunk, which implement parts of zarr-python's interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr

from tests.support.api import Api
from zarrasync import sync

pytestmark = pytest.mark.foreign

VALUES = np.arange(1.0, 21).reshape(4, 5)  # not 0, which format 2 declares as missing


@contextmanager
def icechunk_session(folder: Path) -> Iterator[tuple[Any, str]]:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    store = repository.writable_session("main").store
    group = zarr.create_group(store)
    group.create_array("t", data=VALUES, dimension_names=("time", "x"))
    group.create_group("deep").create_array("t", data=VALUES)
    yield store, "t"


@contextmanager
def tiff_pyramid(folder: Path) -> Iterator[tuple[Any, str]]:
    path = folder / "pyramid.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(VALUES, subifds=1)
        writer.write(VALUES[::2, ::2], subfiletype=1)
    with tifffile.TiffFile(path) as image:
        yield image.series[0].aszarr(), "0"


@contextmanager
def virtual_netcdf(folder: Path) -> Iterator[tuple[Any, str]]:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    path = folder / "a.nc"
    xr.Dataset({"t": (("time", "x"), VALUES)}).to_netcdf(path, engine="h5netcdf")
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    yield HDFParser()(url=f"file://{path}", registry=registry), "t"


@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize("kind", [icechunk_session, tiff_pyramid, virtual_netcdf])
async def test_hierarchies_are_listed_and_read(api: Api, tmp_path: Path, kind: Any):
    with kind(tmp_path) as (store, name):
        group = await api(api.open_group(store))
        members = dict(await api(group.members()))
        assert name in members
        assert name in str(await api(group.tree()))
        array = await api(api.open_array(store, path=name))
        np.testing.assert_array_equal(await api(array.view.read()), VALUES)
        np.testing.assert_array_equal(await api(array.view[1:3, 2].read()), VALUES[1:3, 2])
        copied: dict[str, bytes] = {}
        await api(api.copy(store, copied))
        np.testing.assert_array_equal(sync.open_array(copied, path=name)[...], VALUES)
        dataset = xr.open_dataset(store, engine="zarrasync")
        variable = "image" if kind is tiff_pyramid else name  # the largest level of a pyramid
        np.testing.assert_array_equal(dataset[variable], VALUES)


@pytest.mark.filterwarnings("ignore")
async def test_nodes_of_a_session_are_erased_and_replaced(api: Api, tmp_path: Path):
    with icechunk_session(tmp_path) as (store, name):
        group = await api(api.open_group(store, mode="r+"))
        await api(group.delete("deep"))
        assert [path for path, _ in zarr.open_group(store, mode="r").members()] == [name]
        await api(api.create_array(store, path=name, data=np.arange(3), overwrite=True))
        np.testing.assert_array_equal(zarr.open_array(store, path=name, mode="r")[:], [0, 1, 2])


@pytest.mark.filterwarnings("ignore")
def test_references_of_kerchunk(tmp_path: Path):
    from kerchunk.hdf import SingleHdf5ToZarr

    xr.Dataset({"t": (("time", "x"), VALUES)}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    references = SingleHdf5ToZarr(str(tmp_path / "a.nc")).translate()
    dataset = xr.open_dataset("reference://", engine="zarrasync", storage_options={"fo": references})
    np.testing.assert_array_equal(dataset["t"], VALUES)
