import h5netcdf
import kerchunk_package
import numpy as np
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

PACKAGES = ["virtualizarr"]


def write(path, zarr_format):
    """Write an HDF5 file, and the references of a virtual dataset to its chunks."""
    kerchunk_package.write(path, zarr_format)
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    with open_virtual_dataset(f"file://{path}/a.nc", registry=registry, parser=HDFParser()) as dataset:
        dataset.vz.to_kerchunk(str(path / "refs.json"), format="json")


def read(path):
    with h5netcdf.File(path / "a.nc") as file:
        return {name: np.asarray(file[name][...]) for name in ("i2", "f8")}
