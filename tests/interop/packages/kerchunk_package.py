import json

import h5netcdf
import kerchunk.hdf
import numpy as np

PACKAGES = ["kerchunk", "h5netcdf"]


def write(path, zarr_format):
    """Write an HDF5 file, and the references to its chunks."""
    path.mkdir()
    with h5netcdf.File(path / "a.nc", "w") as file:
        file.dimensions = {"y": 6, "x": 10}
        for name in ("i2", "f8"):
            values = np.arange(60).reshape(6, 10).astype(name)
            file.create_variable(name, ("y", "x"), data=values, chunks=(3, 5), compression="gzip", shuffle=True)
    references = kerchunk.hdf.SingleHdf5ToZarr(f"{path}/a.nc", inline_threshold=0).translate()
    (path / "refs.json").write_text(json.dumps(references))


def read(path):
    with h5netcdf.File(path / "a.nc") as file:
        return {name: np.asarray(file[name][...]) for name in ("i2", "f8")}
