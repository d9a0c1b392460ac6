import numpy as np
import zarr_python
import zarrista
from zarrista.store import FilesystemStore

PACKAGES = ["zarrista"]
NAMES = ["deep/i2", "deep/f8", "deep/bool", "sharded", "filled"]


def write(path, zarr_format):
    """Let zarrista store the values; zarr-python makes the documents."""
    zarr_python.write(path, zarr_format)
    for name in NAMES:
        array = zarrista.Array.open(FilesystemStore(str(path)), f"/{name}")
        values = np.asarray(array.retrieve_array_subset(()))
        array.store_array_subset(tuple(slice(0, n) for n in values.shape), values)


def read(path):
    arrays = {name: zarrista.Array.open(FilesystemStore(str(path)), f"/{name}") for name in NAMES}
    return {name: np.asarray(array.retrieve_array_subset(())) for name, array in arrays.items()}
