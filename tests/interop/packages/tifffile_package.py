import numpy as np
import tifffile

PACKAGES = ["tifffile", "zarr"]


def write(path, zarr_format):
    """Write TIFF files, and the references to their chunks as fsspec's JSON, which kerchunk introduced."""
    path.mkdir()
    values = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    tifffile.imwrite(path / "a.tif", values, tile=(32, 32))
    with tifffile.imread(path / "a.tif", aszarr=True) as store:
        store.write_fsspec(path / "refs.json", url=f"file://{path}/")


def read(path):
    return {"": tifffile.imread(path / "a.tif")}
