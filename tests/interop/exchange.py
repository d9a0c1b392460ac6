"""Exchange of stores with other packages: each writes a store that zarrasync reads, and reads a copy that zarrasync wrote.

The packages run in an environment of their own, as their requirements conflict: ``make interop`` creates it, and
``ZARRASYNC_INTEROP`` is its Python. Packages of the tests' environment also run without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zarrasync import sync
from zarrasync.errors import NodeNotFoundError

SCRIPTS = Path(__file__).parent / "packages"
REQUIREMENTS = SCRIPTS / "requirements.txt"


class Package(NamedTuple):
    """A package, or a program in another language with a Python interface.

    Attributes:
        title: Its name in the table.
        script: The module in ``packages``.
        formats: The formats that it writes.
        kind: ``"store"``: a directory; ``"references"``: JSON of fsspec's reference filesystem; ``"icechunk"``.
        needs: The module that must be importable.
        content: What the script writes, for the table.
        compressor: The compressor of copies in format 2; netCDF-C has no gzip.
    """

    title: str
    script: str
    formats: tuple[int, ...]
    kind: str
    needs: str
    content: str
    compressor: str = "gzip"


PACKAGES = (
    Package("zarr-python 3", "zarr_python", (2, 3), "store", "zarr", "numbers, strings, times, shards"),
    Package("zarr-python 2", "zarr_python", (2,), "zarr2", "", "numbers, strings, times"),
    Package("zarrs-python", "zarrs_pipeline", (2, 3), "store", "zarrs", "as zarr-python"),
    Package("zarrista", "zarrista_package", (3,), "store", "zarrista", "numbers, shards"),
    Package("tensorstore", "tensorstore_package", (2, 3), "store", "tensorstore", "numbers, big-endian shards"),
    Package("xarray", "xarray_package", (2, 3), "store", "xarray", "a dataset with coordinates and times"),
    Package("AnnData", "anndata_package", (2, 3), "store", "anndata", "sparse matrices, categories, strings"),
    Package("SpatialData", "spatialdata_package", (3,), "store", "spatialdata", "images, labels, points, shapes"),
    Package("GDAL (rasterio)", "gdal_package", (2, 3), "store", "rasterio", "rasters with six codecs and a CRS"),
    Package(
        "netCDF-C (netCDF4)", "netcdf_package", (2,), "store", "netCDF4", "variables with and without zlib", "zlib"
    ),
    Package("iohub", "iohub_package", (2, 3), "store", "iohub", "a plate of OME-Zarr 0.4 and 0.5"),
    Package("hdmf-zarr", "hdmf_package", (3,), "store", "hdmf_zarr", "a table"),
    Package("ngff-zarr", "ngff_zarr_package", (2, 3), "store", "ngff_zarr", "an image of OME-Zarr 0.4 and 0.5"),
    Package("ome-zarr-py", "ome_zarr_package", (2, 3), "store", "ome_zarr", "an image with labels"),
    Package("icechunk", "icechunk_package", (3,), "icechunk", "icechunk", "a committed group"),
    Package("kerchunk", "kerchunk_package", (2,), "references", "kerchunk", "an HDF5 file"),
    Package("VirtualiZarr", "virtualizarr_package", (2,), "references", "virtualizarr", "an HDF5 file"),
    Package("tifffile", "tifffile_package", (2,), "references", "tifffile", "a TIFF file"),
)


def python_of(package: Package) -> str | None:
    """Return the Python that has a package, or ``None``."""
    if package.kind == "zarr2":
        return os.environ.get("ZARRASYNC_ZARR2") or None
    if python := os.environ.get("ZARRASYNC_INTEROP"):
        return python
    return sys.executable if find_spec(package.needs) else None


def run_script(
    package: Package, direction: str, folder: Path, *arguments: str
) -> tuple[dict[str, str], dict[str, Any]]:
    """Let a package write or read a store. Return the versions and its values by the path of their Zarr array."""
    python, arrays = python_of(package), folder.with_suffix(".npz")
    assert python is not None
    command = [python, str(SCRIPTS / "run.py"), package.script, direction, str(folder), str(arrays), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{package.title} failed to {direction} {folder.name}: {done.stderr.strip()[-2000:]}")
    with np.load(arrays) as values:
        return json.loads(done.stdout.strip().splitlines()[-1]), dict(values)


def source_of(package: Package, folder: Path) -> tuple[str, dict[str, Any] | None]:
    """Return the URL and storage options by which zarrasync opens what a package wrote."""
    if package.kind == "references":
        return "reference://", {"fo": str(folder / "refs.json")}
    return (f"{folder}|icechunk:" if package.kind == "icechunk" else str(folder)), None


def check_reading(package: Package, folder: Path, expected: Mapping[str, Any]) -> None:
    """Check that zarrasync reads what a package wrote as the package does, and finds no problems."""
    url, options = source_of(package, folder)
    for path, values in expected.items():
        assert_same(path, sync.open_array(url, path=path, storage_options=options)[...], values)
    for root in roots(url, options):
        report = sync.validate(url, path=root, data=True, storage_options=options)
        assert report.ok, str(report)


def check_writing(package: Package, folder: Path, expected: Mapping[str, Any]) -> None:
    """Check that a package reads a copy as it reads its own store. zarrasync encodes all values of the copy again."""
    copy = folder.with_name(f"{folder.name}-copy")
    source = source_of(package, folder)[0]
    if package.kind == "icechunk":
        copy_to_repository(source, copy)
    else:
        for root in roots(source, None):
            is_v2 = sync.open(source, path=root).zarr_format == 2
            codec: Any = {"id": package.compressor, "level": 1} if is_v2 else "gzip"
            sync.copy(
                sync.open(source, path=root), copy, dest_path=root, compressors=codec, all_files=True, verify=True
            )
    _, found = run_script(package, "read", copy)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        assert_same(path, found[path], values)


def copy_to_repository(source: str, folder: Path) -> None:
    """Copy a store to a new repository of icechunk, and commit."""
    import icechunk

    session = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder))).writable_session("main")
    sync.copy(source, session.store, compressors="gzip")
    session.commit("copy")


def roots(url: str, options: Mapping[str, Any] | None) -> list[str]:
    """Return the paths of the hierarchies in a store: its root, or the directories in it that have no group above them."""
    try:
        sync.open(url, storage_options=options)
    except NodeNotFoundError:
        return sorted(place.name for place in Path(url).iterdir() if place.is_dir())
    return [""]


def read_with_zarrita(modules: str, folder: Path, names: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the version of zarrita.js, and the arrays that it reads from a directory."""
    command = [shutil.which("node") or "node", str(SCRIPTS / "zarrita.mjs"), modules, str(folder), *names]
    done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    arrays = {name: np.reshape(array["values"], array["shape"]) for name, array in done["arrays"].items()}
    return done["version"], arrays


def assert_same(path: str, found: Any, expected: Any) -> None:
    """Check that arrays have equal shapes and values. Strings of different data types may be equal."""
    found = np.asarray(found)
    if expected.dtype.kind == "U":
        found = found.astype(object).astype("U")
    assert found.shape == expected.shape, path
    if expected.dtype.kind in "mM":
        found, expected = found.view("i8"), expected.view("i8")  # NaT is not equal to itself
    np.testing.assert_array_equal(found, expected, err_msg=path)
