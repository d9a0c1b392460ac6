"""xarray's engines: which one reads a file, with which arguments, and which package provides it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from zarrasync._util.redact import public_url
from zarrasync.bulk.files.sources.hdf5 import find_unsafe, is_hdf5
from zarrasync.bulk.files.sources.headers import ReaderOptions

_ZARR_SUFFIXES = (".zarr", ".zarr.zip", ".ozx")


class _Family(NamedTuple):
    """Formats that the same packages read.

    Attributes:
        suffixes: The suffixes of their files.
        engines: The engines of xarray that read them.
        package: The package to install if none of them exists.
        arguments: Arguments of ``xarray.open_dataset`` for the first engine.
    """

    suffixes: tuple[str, ...]
    engines: tuple[str, ...]
    package: str
    arguments: dict[str, Any]


_GRIB = _Family(
    (".grib", ".grib2", ".grb", ".grb2"),
    ("cfgrib",),
    "cfgrib",
    # Writes no index. Damaged messages, and variables that do not fit together, are errors: they would be left out.
    {"indexpath": "", "errors": "raise"},
)
_TIFF = _Family((".tif", ".tiff"), ("rasterio",), "rioxarray", {})
_HDF5 = _Family((".h5", ".hdf5", ".he5", ".nc4"), ("netcdf4", "h5netcdf"), "netCDF4", {})
_NETCDF = _Family((".nc", ".nc3", ".cdf", ".netcdf"), ("netcdf4", "h5netcdf", "scipy"), "netCDF4", {})
_FAMILIES = (_GRIB, _TIFF, _HDF5, _NETCDF)


def path_of(url: str) -> str:
    """Return the path in a URL, without its query and without the other parts of a chain of filesystems."""
    first = url.partition("::")[0] if "://" in url.partition("::")[0] else url
    return first.partition("?")[0] if first.startswith(("http://", "https://")) else first


def is_numpy(url: str) -> bool:
    """Return whether a file is read by NumPy."""
    return path_of(url).lower().endswith((".npy", ".npz"))


def is_zarr(url: str) -> bool:
    """Return whether a URL has the name of a Zarr hierarchy."""
    return path_of(url).rstrip("/").lower().endswith(_ZARR_SUFFIXES)


def is_hierarchy(url: str) -> bool:
    """Return whether a source is a Zarr hierarchy, also if only its being a folder shows that."""
    return is_zarr(url) or os.path.isdir(url)


def engine_arguments(url: str, options: ReaderOptions, path: str = "") -> dict[str, Any]:
    """Return the arguments of ``xarray.open_dataset`` that choose the engine.

    Args:
        url: The path or the URL of a file.
        options: How to open it.
        path: The path of the file or of its local copy, whose contents then count.

    Raises:
        ImportError: If the package that reads the format is not installed.
        ValueError: If the requested engine would end the process.
    """
    family, engine = _family_of(url), options.engine
    arguments: dict[str, Any] = {}
    if is_hdf5(path):
        engine = engine_for_hdf5(path, engine)
    elif engine is None and family is not None and family in (_GRIB, _TIFF):
        if not _installed(family):
            raise ImportError(_needs(url, family))
        engine = family.engines[0]
    elif engine is None and family is not None and family is _HDF5 and _installed(family) == ["h5netcdf"]:
        engine = "h5netcdf"
    if engine == "h5netcdf":
        arguments["phony_dims"] = "access"
    for other in _FAMILIES:
        arguments |= other.arguments if engine == other.engines[0] else {}
    return {"engine": engine, **arguments, **options.engine_options}


def engine_for_hdf5(path: str, engine: str | None = None) -> Any:
    """Return the engine that reads an HDF5 file; ``None`` to let xarray choose.

    Args:
        path: The path of the file.
        engine: The requested engine, or ``None``.

    Raises:
        ImportError: If only h5netcdf can read the file, and it is not installed.
        ValueError: If the requested engine would end the process.
    """
    if engine not in (None, "netcdf4"):
        return engine
    if not (unsafe := find_unsafe(path)):
        return engine or _first_engine()
    reason = f"it contains {unsafe}, with which the library of netCDF ends the process"
    if engine is not None:
        raise ValueError(f"{reason}; pass engine='h5netcdf'")
    if importlib.util.find_spec("h5netcdf") is None:
        raise ImportError(f"{path} needs the engine h5netcdf of xarray, because {reason}: pip install h5netcdf")
    return "h5netcdf"


def _first_engine() -> Any:
    """Return the engine that xarray tries first for files of HDF5; ``None`` to let xarray choose.

    Choosing imports the packages of all engines, which takes time and memory.
    """
    import xarray
    from xarray.backends import NetCDF4BackendEntrypoint

    options: Any = xarray.get_options  # which has no types
    order = options().get("netcdf_engine_order", ("netcdf4",))
    is_first = order[0] == "netcdf4" and importlib.util.find_spec("netCDF4") is not None
    return NetCDF4BackendEntrypoint if is_first else None


def reason_of_failure(url: str, options: ReaderOptions) -> str:
    """Return what to do about a file that cannot be opened; empty if the error of the library is all that is known."""
    family = _family_of(url)
    if options.engine is not None:
        return ""
    if family is None:
        return "pass the name of the engine of xarray that reads it, with engine=…"
    return "" if _installed(family) else _needs(url, family)


def advice_for_failure(url: str, options: ReaderOptions) -> str:
    """Return what to do if the parts of a file do not fit together; empty if nothing is known."""
    if engine_arguments(url, options)["engine"] not in _GRIB.engines:
        return ""
    return (
        "choose messages that fit together with engine_options={'filter_by_keys': {'typeOfLevel': …}}, and write the "
        "others to another group"
    )


def _family_of(url: str) -> _Family | None:
    suffix = PurePosixPath(path_of(url).rstrip("/")).suffix.lower()
    return next((family for family in _FAMILIES if suffix in family.suffixes), None)


def _installed(family: _Family) -> list[str]:
    from xarray.backends import list_engines

    found = list_engines()
    return [engine for engine in family.engines if engine in found]


def _needs(url: str, family: _Family) -> str:
    broken = importlib.util.find_spec(family.package) is not None
    advice = f"repair the installation of {family.package}" if broken else f"pip install {family.package}"
    return f"{public_url(url)} needs the engine {' or '.join(family.engines)} of xarray, which does not exist: {advice}"
