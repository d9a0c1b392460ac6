"""Opening files with xarray, without decoding: variables, inherited coordinates, and what engines leave out."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._util.redact import public_url, redact
from zarrasync.bulk.files.sources.content import FETCH_AGAIN
from zarrasync.bulk.files.sources.engines import advice_for_failure, engine_arguments, is_hierarchy, reason_of_failure
from zarrasync.bulk.files.sources.grib_messages import (
    damaged_messages,
    message_problem,
    missing_messages,
    skipped_parameters,
)
from zarrasync.bulk.files.sources.hdf5 import damaged_chunk, empty_variables, groups_of_hdf5, is_hdf5, unread_variables
from zarrasync.bulk.files.sources.headers import (
    PHONY,
    FileHeader,
    ReaderOptions,
    SourceFile,
    VariableHeader,
    code_attributes,
    dtype_text,
    plain_attributes,
    references,
)
from zarrasync.errors import MetadataError, NodeNotFoundError, UnsupportedOperation
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_encoding import unpacked_limits
from zarrasync.model import dtypes
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open_group
from zarrasync.nodes.node import run_blocking
from zarrasync.stores import Store, resolve


class XarrayReader:
    """A file that is open as a dataset of xarray.

    Args:
        url: The path or the URL of the file.
        path: The path of the file or of its local copy.
        options: How to open it.

    Raises:
        ImportError: If xarray, or the package that reads the format, is not installed.
    """

    def __init__(self, url: str, path: str, options: ReaderOptions) -> None:
        try:
            import xarray
        except ImportError as error:
            raise ImportError(
                f"{public_url(url)} is read by xarray, which is not installed: pip install 'zarrasync[xarray]'"
            ) from error
        arguments: dict[str, Any] = {
            "mask_and_scale": options.decode,
            "decode_times": False,
            "decode_timedelta": False,
            "chunks": None,
            "cache": False,
            "create_default_indexes": bool(options.preprocess),  # which take time, and are not used otherwise
        }
        if is_hierarchy(url):
            arguments |= {"engine": options.engine or "zarrasync", **options.engine_options}
            if options.storage_options:
                arguments["backend_kwargs"] = {"storage_options": dict(options.storage_options)}
        else:
            arguments |= engine_arguments(url, options, path)

        def open_group(group: str) -> Any:
            own: dict[str, Any] = {**arguments, "group": group} if group else arguments
            try:
                return xarray.open_dataset(path, **own)
            except OSError as error:  # h5netcdf reads HDF5 files that the library of netCDF refuses
                groups = groups_of_hdf5(path, "") if group else {}
                if groups and group.strip("/") not in groups:
                    names = ", ".join(repr(name or "/") for name in groups)
                    raise ValueError(f"the file has no group {group!r}; its groups are {names}") from error
                if options.engine is not None or arguments.get("engine") == "h5netcdf" or not is_hdf5(path):
                    raise
                arguments.update(engine="h5netcdf", phony_dims="access")
                dropped = {"drop_variables": empty_variables(path, group)} if not options.engine_options else {}
                return xarray.open_dataset(path, **{**own, **arguments, **dropped})

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names of axes, and formats of other files
            try:
                self._dataset = open_group(options.group)
            except ValueError as error:
                if reason := reason_of_failure(url, options):
                    raise ImportError(reason) from error
                if advice := advice_for_failure(url, options):
                    raise ValueError(f"{error}; {advice}") from error
                raise
            inherited, self._parents = dict[str, Any](), list[Any]()
            self._engine = arguments["engine"]
            if (is_hierarchy(url) or is_hdf5(path)) and self._engine != "rasterio":
                inherited, self._parents = inherited_coordinates(self._dataset, options.group, open_group)
        if options.preprocess:
            self._parents.append(self._dataset)
            self._dataset = preprocessed(options.preprocess, self._dataset)
        own = {str(name): _encoded(str(name), item) for name, item in self._dataset.variables.items()}
        self._variables = {**inherited, **own}
        self._coords = {*inherited, *self._dataset.coords}
        self._options, self._path, self._has_fixed_strings = options, path, is_hierarchy(url)

    def header(self, file: SourceFile) -> FileHeader:
        dataset = self._dataset
        attributes = plain_attributes(dataset.attrs)
        if "coordinates" in dataset.encoding:
            attributes["coordinates"] = dataset.encoding["coordinates"]
        variables = {str(name): self._variable(str(name)) for name in self._variables}
        options = self._options
        unread: dict[str, str] = {}
        if self._engine == "cfgrib":
            unread = damaged_messages(self._path, options.engine_options)
        elif self._engine == "rasterio":
            unread = unread_pages(dataset, self._path, options.engine_options)
        elif is_hdf5(self._path) and not options.preprocess:
            dropped = options.engine_options.get("drop_variables") or ()
            names = {*variables, *([dropped] if isinstance(dropped, str) else dropped)}
            variables |= unread_variables(self._path, options.group, names)
        skipped = skipped_parameters(dataset, self._path, options.engine_options)
        return FileHeader(file, variables, attributes, skipped=skipped, unread=unread)

    def _variable(self, name: str) -> VariableHeader:
        variable = self._variables[name]
        dims, options = tuple(map(str, variable.dims)), self._options
        if options.dims is not None and dims and all(dim.startswith(PHONY) for dim in dims):
            dims = tuple(options.dims) if len(options.dims) == len(dims) else dims
        attributes = plain_attributes(unpacked_limits(variable.attrs, variable.encoding, variable.dtype))
        if "coordinates" in variable.encoding:  # xarray has decoded them
            attributes["coordinates"] = variable.encoding["coordinates"]
        attributes = {**code_attributes(variable.encoding.get("dtype")), **attributes}
        values, problem = None, message_problem(variable) or _type_problem(variable.dtype)
        try:
            is_read = options.reads_values(name, dims, variable.shape, variable.dtype.itemsize)
            if is_read and not problem:
                values = np.array(_values(variable))
        except Exception as error:  # of any class; it matters only if the variable shall be stored
            problem = damaged_chunk(self._path, name, options) or f"{type(error).__name__}: {error}; {FETCH_AGAIN}"
            problem = redact(problem, options.storage_options)
        chunks = variable.encoding.get("chunksizes") or variable.encoding.get("preferred_chunks")
        if isinstance(chunks, Mapping):
            chunks = tuple(chunks.get(dim, n) for dim, n in variable.sizes.items())
        return VariableHeader(
            dims,
            tuple(variable.shape),
            # xarray gives strings of netCDF, which have any length, the longest length in the file.
            "str" if variable.dtype.kind == "U" and not self._has_fixed_strings else dtype_text(variable.dtype),
            attributes,
            tuple(map(int, chunks)) if chunks and len(chunks) == variable.ndim else None,
            name in self._coords,
            values,
            problem=problem,
            gap=missing_messages(variable, self._variables),
        )

    def read(self, name: str, region: Region) -> npt.NDArray[Any]:
        return np.asarray(_values(self._variables[name][region]))

    def close(self) -> None:
        for dataset in (self._dataset, *self._parents):
            dataset.close()


def _encoded(name: str, variable: Any) -> Any:
    """Return a variable with numbers in units instead of dates, which functions of users make."""
    if variable.dtype.kind not in "mM":
        return variable
    from xarray.conventions import encode_cf_variable

    return encode_cf_variable(variable, name=name)


def _values(variable: Any) -> Any:
    """Return the values of a variable.

    Raises:
        ValueError: If Zarr has no such values.
    """
    values = variable.values
    if values.dtype.kind == "O" and variable.dtype.kind != "O":
        raise ValueError(f"its values are lists of {variable.dtype} of different lengths")
    return values


def _type_problem(dtype: np.dtype[Any]) -> str:
    """Return why Zarr cannot store a data type; an empty string if it can."""
    if dtype.names is not None:
        return "a compound data type; complex numbers need engine='h5netcdf'"
    if dtype.kind == "V":
        return f"opaque bytes ({dtype})"
    if dtype.kind == "O":
        return "references to parts of the file" if "ref" in (dtype.metadata or {}) else ""
    try:
        dtypes.from_numpy(dtype)
    except MetadataError as error:
        return str(error)
    return ""


# ------------------------------------------------------------------ variables of groups above


def inherited_coordinates(
    dataset: Any, group: str, open_group: Callable[[str], Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the variables that a group needs and does not contain, from the nearest groups above that contain them.

    These are coordinates of dimensions, and variables to which attributes of CF refer, such as bounds.

    Args:
        dataset: The dataset of the group, of xarray.
        group: The path of the group.
        open_group: Opens the dataset of a group; an empty path is the root.

    Returns:
        The variables by name, and the datasets that were opened.
    """
    sizes = {str(dim): size for dim, size in dataset.sizes.items()}
    missing = sizes.keys() - dataset.variables.keys()
    wanted = _references(dataset.variables.values()) - dataset.variables.keys()
    parts, found, opened = [part for part in group.split("/") if part], dict[str, Any](), list[Any]()
    while (missing or wanted) and parts:
        parts.pop()
        try:
            parent = open_group("/".join(parts))
        except (NodeNotFoundError, FileNotFoundError):  # a folder of a Zarr hierarchy that is not a group
            continue
        opened.append(parent)
        for dim in list(missing):
            if parent.sizes.get(dim, sizes[dim]) != sizes[dim]:  # another dimension with the same name
                missing.remove(dim)
            elif dim in parent.variables and parent.variables[dim].dims == (dim,):
                found[dim] = parent.variables[dim]
                missing.remove(dim)
        wanted |= _references(found.values()) - dataset.variables.keys()
        while new := {name for name in wanted & parent.variables.keys() if _fits(parent.variables[name], sizes)}:
            found |= {name: parent.variables[name] for name in new}
            wanted = (wanted | _references(found.values())) - found.keys() - dataset.variables.keys()
    return found, opened


def _references(variables: Iterable[Any]) -> set[str]:
    return {name for variable in variables for name in references({**variable.encoding, **variable.attrs})}


def _fits(variable: Any, sizes: Mapping[str, int]) -> bool:
    """Return whether a variable has the dimensions of a group, or others."""
    return all(sizes.get(str(dim), size) == size for dim, size in variable.sizes.items())


# ------------------------------------------------------------------ parts that engines leave out


def unread_pages(dataset: Any, path: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the pages and subdatasets of a file that its dataset does not contain, by name, with the reason.

    rioxarray makes a variable of each one, and replaces those with equal names.

    Args:
        dataset: A dataset that rioxarray opened.
        path: The path of the file.
        options: The options of rioxarray. ``variable`` and ``group`` choose subdatasets, so nothing is left out then.
    """
    if options.get("variable") is not None or options.get("group") is not None:
        return {}
    rasterio = importlib.import_module("rasterio")  # optional, and without types

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about places, which rioxarray has reported
        with rasterio.open(path) as file:
            names = list(file.subdatasets)
    read = {variable.encoding.get("source") for variable in dataset.variables.values()}
    reason = "rioxarray gives it the name of another one; write it to a file of its own, such as with gdal_translate"
    return {_short(name, path): reason for name in names if name not in read}


def groups_of_zarr(url: str, group: str, storage_options: Mapping[str, Any]) -> dict[str, bool]:
    """Return the paths of the groups in a group of a Zarr hierarchy, parents first, and whether each one has arrays.

    Args:
        url: The path or the URL of the hierarchy. A store that cannot list shows no groups.
        group: The path of the group.
        storage_options: Options of the filesystem of the URL.
    """
    store = resolve(url, dict(storage_options) or None)
    try:
        members = run_blocking(store, _members(store, group))
    except UnsupportedOperation:
        return {}
    found = {"": False} | {name: False for name, node in members if not isinstance(node, AsyncArray)}
    return found | {name.rpartition("/")[0]: True for name, node in members if isinstance(node, AsyncArray)}


async def _members(store: Store, group: str) -> list[tuple[str, Any]]:
    async with store.in_use():
        return list(await (await open_group(store, path=group)).members(None))


def _short(name: str, path: str) -> str:
    """Return the name of a subdataset without the path of its file."""
    return name.replace(f":{path}", "").replace(f'"{path}"', "").replace(path, "").rstrip(":")


# ------------------------------------------------------------------ NumPy


class NumpyReader:
    """An open ``.npy`` or ``.npz`` file.

    Args:
        path: The path of the file.
        options: The names of axes.
    """

    def __init__(self, path: str, options: ReaderOptions) -> None:
        if path.lower().endswith(".npz"):
            with open(path, "rb") as file, np.load(file) as archive:  # NumPy leaves damaged files open
                members = {name: archive[name] for name in archive.files}  # others than arrays are bytes
                self._arrays = {name: array for name, array in members.items() if isinstance(array, np.ndarray)}
        else:
            self._arrays = {"values": np.load(path, mmap_mode="r")}
        self._options = options

    def header(self, file: SourceFile) -> FileHeader:
        """Return the header of the file."""
        variables, options = {}, self._options
        sizes: dict[int, set[int]] = {}
        for array in self._arrays.values():
            for axis, n in enumerate(array.shape):
                sizes.setdefault(axis, set()).add(n)
        for name, array in self._arrays.items():
            if array.dtype.names:
                problem = (
                    f"it has the fields {', '.join(array.dtype.names)}; store such an array with ingest(values, store)"
                )
                variables[name] = VariableHeader((), (), "V", {}, problem=problem)
                continue
            unnamed = tuple(f"dim_{n}" if len(sizes[n]) == 1 else f"{name}_dim_{n}" for n in range(array.ndim))
            dims = unnamed if len(options.dims or ()) != array.ndim else tuple(options.dims or ())
            values = np.array(array) if options.reads_values(name, dims, array.shape, array.dtype.itemsize) else None
            variables[name] = VariableHeader(dims, array.shape, dtype_text(array.dtype), {}, values=values)
        return FileHeader(file, variables, {})

    def read(self, name: str, region: Region) -> npt.NDArray[Any]:
        """Return a region of an array."""
        return np.asarray(self._arrays[name][region])

    def close(self) -> None:
        """Do nothing: another thread may be reading. NumPy closes the file when the last one has ended."""


# ------------------------------------------------------------------ functions of users


_functions: dict[str, Callable[[Any], Any]] = {}
"""The functions of this process by name and digest."""


def register_preprocess(function: Any, *, is_local: bool) -> str:
    """Return the name and the digest of a function, by which ``preprocessed`` finds it, also in other processes.

    Args:
        function: The function, or ``"module:function"``.
        is_local: Whether only this process uses it.

    Raises:
        ValueError: If it does not exist, or other processes cannot import it.
        TypeError: If it is not a function.
    """
    if isinstance(function, str):
        name, function = function, _import(function)
    elif callable(function):
        name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    else:
        raise TypeError(f"preprocess must be a function or 'module:function', found {function!r}")
    if not is_local and (name.startswith("__main__:") or "<" in name):
        raise ValueError(
            f"other processes cannot import the function {name}; write it into a module, and pass preprocess='module:function'"
        )
    key = f"{name}@{_digest(function)}"
    _functions[key] = function
    return key


def _import(name: str) -> Callable[[Any], Any]:
    if not all(name.partition(":")):
        raise ValueError(f"preprocess={name!r} is not the name of a module and a function, such as 'recipes:wrap'")
    if os.getcwd() not in sys.path:  # which commands do not look into
        sys.path.append(os.getcwd())
    try:
        return pkgutil.resolve_name(name)  # type: ignore[no-any-return]  # what the user has named
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"preprocess={name!r} cannot be imported: {error}") from error


def _digest(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = repr(getattr(getattr(function, "__code__", None), "co_code", function))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def preprocessed(key: str, dataset: Any) -> Any:
    """Return the dataset that a function makes of one.

    Raises:
        ValueError: If the function has changed since it was registered, or returns something else than a dataset.
    """
    name = key.rpartition("@")[0]
    if key not in _functions and register_preprocess(name, is_local=True) != key:
        raise ValueError(f"the function {name} has changed since the job was planned; make a new plan")
    result = _functions[key](dataset)
    if not isinstance(result, type(dataset)):
        raise ValueError(f"the function {name} must return a dataset of xarray, found {type(result).__name__}")
    return result
