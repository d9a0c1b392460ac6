"""Write or read a store with one package: ``python run.py MODULE write|read FOLDER ARRAYS.npz [FORMAT]``.

A module has functions ``write(path, zarr_format)`` and ``read(path)``. ``read`` returns the values by the path of their Zarr
array. Both directions save them as ``ARRAYS.npz``, and print the versions of the packages that the module names in ``PACKAGES``.
"""

import importlib
import importlib.metadata
import json
import sys
import warnings
from pathlib import Path

import numpy as np


def main(module, direction, folder, arrays, zarr_format="3"):
    warnings.simplefilter("ignore")
    package = importlib.import_module(module)
    if direction == "write":
        package.write(Path(folder), int(zarr_format))
    np.savez(arrays, **package.read(Path(folder)))
    print(json.dumps({name: importlib.metadata.version(name) for name in package.PACKAGES}))


if __name__ == "__main__":
    main(*sys.argv[1:])
