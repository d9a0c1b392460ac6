"""Files with arrays: NumPy's, Zarr, and those that xarray can open."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from zipfile import BadZipFile, ZipFile

from zarrasync import sync
from zarrasync.bulk.files.sources.engines import engine_arguments
from zarrasync.bulk.files.sources.grib_messages import message_problem
from zarrasync.bulk.files.sources.hdf5_chunks import is_hdf5
from zarrasync.bulk.files.sources.hdf5_types import unread_variables
from zarrasync.bulk.files.sources.headers import ReaderOptions
from zarrasync.bulk.files.sources.identify import source_name
from zarrasync.cli.arguments import open_node
from zarrasync.errors import NodeNotFoundError, ZarrError
from zarrasync.model.paths import normalize_path

__all__ = ["NpzMember", "open_file"]

Contents = tuple[dict[str, Any], dict[str, dict[str, Any]]]
"""Arrays by path (a single array has the path ""), and the attributes of groups by path."""


def open_file(args: argparse.Namespace) -> Contents:
    """Open the arrays of a file, or of a node in a store.

    Raises:
        ValueError: If the file cannot be read, or does not have the requested variables.
    """
    attributes: dict[str, dict[str, Any]] = {}
    path = source_name(args.url)
    if args.path and path.endswith((".npy", ".npz")):
        raise ValueError(
            f"{args.url} has no groups, so --path {args.path} does not exist; --dest-path is the path to write to"
        )
    if path.endswith(".npy"):
        arrays = {"": _open_npy(path)}
    elif path.endswith(".npz"):
        arrays = _open_npz(path)
    else:
        arrays, attributes = _open_zarr(args) or _open_with_xarray(path, args)
    if args.variable:
        missing = [name for name in args.variable if name not in arrays]
        if missing:
            raise ValueError(
                f"{args.url} has no variable {missing[0]!r}; it has {', '.join(arrays) or 'a single array'}"
            )
        arrays = {name: arrays[name] for name in args.variable}
        attributes = {group: values for group, values in attributes.items() if _is_above(group, arrays)}
    return arrays, attributes


def _is_above(group: str, paths: Iterable[str]) -> bool:
    """Return whether some paths are below a group."""
    return not group or any(path.startswith(f"{group}/") for path in paths)


@contextmanager
def _with_name(file: str) -> Iterator[None]:
    """Add the name of a file to NumPy's errors."""
    try:
        yield
    except (ValueError, EOFError, KeyError, BadZipFile) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


# ------------------------------------------------------------------ NumPy


def _open_npy(path: str) -> Any:
    import numpy as np

    with _with_name(path):
        return np.load(path, mmap_mode="r")


def _open_npz(path: str) -> dict[str, Any]:
    with _with_name(path), ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    return {name: NpzMember(path, name) for name in names}


class NpzMember:
    """An array of an ``.npz`` file, which is loaded only when its values are written to the destination.

    Attributes:
        shape: Its shape.
        dtype: Its data type.
    """

    def __init__(self, path: str, name: str) -> None:
        from numpy.lib import format as npy

        self._path, self._name = path, name
        with _with_name(f"{name!r} in {path}"), ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            version = npy.read_magic(member)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, _, self.dtype = read_header(member)

    def load(self) -> Any:
        """Load the array."""
        import numpy as np

        with _with_name(f"{self._name!r} in {self._path}"), np.load(self._path) as archive:
            return archive[self._name]

    def __getitem__(self, key: Any) -> Any:
        return self.load()[key]


# ------------------------------------------------------------------ Zarr


def _open_zarr(args: argparse.Namespace) -> Contents | None:
    """Open the arrays of a Zarr node; ``None`` if the node does not exist."""
    try:
        node = open_node(args)
    except ZarrError:
        if args.url.rstrip("/").endswith(".zarr"):
            raise
        return None
    if isinstance(node, sync.Array):
        return {"": node}, {}
    members = dict(node.members(max_depth=None))
    arrays = {path: member for path, member in members.items() if isinstance(member, sync.Array)}
    groups = {path: dict(member.attrs) for path, member in members.items() if isinstance(member, sync.Group)}
    return arrays, {"": dict(node.attrs), **groups}


# ------------------------------------------------------------------ xarray

_WITHOUT_DECODING: dict[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"), False
)
"""Parameters of xarray. ``decode_cf=False`` does not apply to groups."""


def _open_with_xarray(path: str, args: argparse.Namespace) -> Contents:
    """Open the variables of a file that xarray can open, without decoding them.

    Raises:
        ImportError: If xarray is not installed.
        ValueError: If the file cannot be read.
        NodeNotFoundError: If the group does not exist.
    """
    try:
        from zarrasync.integrations.xarray import stored_variables
    except ImportError as error:
        raise ImportError("files of other formats are read by xarray: pip install 'zarrasync[xarray]'") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*phony_dims", UserWarning)  # about generated names of axes
        try:
            groups = _open_groups(path)
            _check_complete(path, groups, args)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:  # bugs of libraries with invalid files
            raise ValueError(f"{path} cannot be read by xarray ({type(error).__name__}: {error})") from error
    top = f"/{normalize_path(args.path)}".rstrip("/")
    datasets = {
        name.removeprefix(top).strip("/"): dataset
        for name, dataset in groups.items()
        if f"{name}/".startswith(f"{top}/")
    }
    if not datasets:
        raise NodeNotFoundError(f"{path} has no group {args.path!r}; it has {', '.join(sorted(groups))}")
    arrays = {
        "/".join(part for part in (group, name) if part): variable
        for group, dataset in datasets.items()
        for name, variable in stored_variables(dataset).items()
    }
    return arrays, {group: dict(dataset.attrs) for group, dataset in datasets.items()}


def _check_complete(path: str, groups: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Check that the datasets contain all variables of a file completely. With ``--variable``, only these count.

    Raises:
        ValueError: If one does not. It names all variables.
    """
    problems: dict[str, str] = {}
    for group, dataset in groups.items():
        found = {str(name): message_problem(variable) for name, variable in dataset.variables.items()}
        if is_hdf5(path):
            found |= {name: header.problem for name, header in unread_variables(path, group, set(found)).items()}
        problems |= {f"{group}/{name}".strip("/"): problem for name, problem in found.items() if problem}
    top = normalize_path(args.path)
    chosen = {f"{top}/{name}".strip("/") for name in args.variable}
    texts = [
        f"{name!r}: {problem}"
        for name, problem in problems.items()
        if name in (chosen or problems) and _is_in(name, top)
    ]
    if texts:
        raise ValueError(f"{path} has variables that cannot be read; choose others with --variable: {'; '.join(texts)}")


def _is_in(path: str, group: str) -> bool:
    return f"{path}/".startswith(f"{group}/".lstrip("/"))


def _open_groups(path: str) -> Mapping[str, Any]:
    """Return the datasets of a file by the paths of their groups. They stay open until the process ends."""
    import xarray
    from xarray.backends import list_engines

    options: dict[str, Any] = {"chunks": None, **_WITHOUT_DECODING, **engine_arguments(path, ReaderOptions(), path)}
    if options["engine"] in ("cfgrib", "rasterio"):  # which have no groups
        return {"/": xarray.open_dataset(path, **options)}
    try:
        return xarray.open_groups(path, **options)
    except (NotImplementedError, ValueError):  # the format or the library does not support groups
        return {"/": xarray.open_dataset(path, **options)}
    except OSError:
        if "h5netcdf" not in list_engines() or not path.endswith((".h5", ".hdf5", ".nc", ".nc4")):
            raise
        options |= {"engine": "h5netcdf", "phony_dims": "access"}  # it reads HDF5 files that netCDF's library rejects
        return xarray.open_groups(path, **options)
