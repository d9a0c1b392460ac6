"""HDF5 files without the libraries: the places of chunks, which form a Zarr array, groups, and unsupported data types."""

from __future__ import annotations

import builtins
import importlib.util
import math
import os
import unicodedata
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync._util.memory import BudgetExceeded, MemoryPool
from zarrasync.bulk.files.sources.content import FETCH_AGAIN, HDF5_MAGIC
from zarrasync.bulk.files.sources.headers import ReaderOptions, VariableHeader
from zarrasync.bulk.hdf5 import names_of
from zarrasync.config import Config
from zarrasync.errors import CodecError, StoreError, ZarrError
from zarrasync.indexing.regions import Region
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.create import plan_array
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Store
from zarrasync.stores.errors import store_error
from zarrasync.stores.values import Request, Value

_FORMAT = formats.by_name(2)
_ENGINES = (None, "netcdf4", "h5netcdf")
_DEFLATE, _SHUFFLE, _FLETCHER32, _BLOSC, _ZSTD = 1, 2, 3, 32001, 32015
_MOST_CHUNKS = 1 << 18
"""Variables with more chunks are left to the library: their list would need too much memory."""
_MOST_BYTES = (1 << 31) - 4096
"""Variables with larger chunks are left to the library: Linux reads at most this much at a time."""
HIDDEN = "_nc4_non_coord_"
"""netCDF's prefix of a variable that has the name of a dimension, but is not its coordinate."""


def is_hdf5(path: str) -> bool:
    """Return whether a file begins as HDF5 files do."""
    try:
        with open(path, "rb") as file:
            return file.read(len(HDF5_MAGIC)) == HDF5_MAGIC
    except OSError:
        return False


def _is_readable(path: str) -> bool:
    """Return whether h5py can open a file."""
    return is_hdf5(path) and importlib.util.find_spec("h5py") is not None


class ChunkStore(Store):
    """The chunks of a variable as the values of a store.

    Args:
        path: The path of the file.
        name: The name of the variable, for messages.
        places: The offset and the size of each chunk by its key.
        file: The descriptor of the file, which the store closes at its end. So a file that replaces it is not read.
    """

    writeable = False
    listable = False
    blocking = True
    is_local = True

    def __init__(self, path: str, name: str, places: Mapping[str, tuple[int, int]], file: int) -> None:
        self._path, self._name, self._places, self._file = path, name, places, file
        weakref.finalize(self, os.close, file)

    @property
    def identity(self) -> Hashable:
        return ("hdf5", os.path.realpath(self._path), self._name)

    def __repr__(self) -> str:
        return f"{self._name!r} of {self._path}"

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return [self._read(request) for request in requests]

    def _read(self, request: Request) -> Value | None:
        place = self._places.get(request.key)
        if place is None:
            return None
        offset, size = place
        try:
            request.check_size(size)
            start, length = request.bounds(size)
            data = os.pread(self._file, length, offset + start)
        except (OSError, BudgetExceeded) as error:
            raise store_error(error, request.key, "read", self) from error
        if len(data) < length:
            raise StoreError(
                f"chunk {request.key} of {self!r} is incomplete: the file ends at {offset + len(data):,} bytes"
            )
        return Value(data, None, size)


class ChunkedVariable:
    """A variable whose chunks are read without the library.

    Args:
        array: The chunks as a Zarr array.
        count: The number of stored chunks, whose places this object keeps.
    """

    def __init__(self, array: AsyncArray, count: int) -> None:
        self._array, self.count, self.ndim = array, count, array.ndim

    def read(self, region: Region, memory: MemoryPool) -> npt.NDArray[Any]:
        """Return the values of a region.

        Args:
            region: The region.
            memory: Memory for the values.

        Raises:
            ValueError: If a chunk is damaged, or cannot be read.
        """
        view = self._array.view[region]
        out = memory.empty(view.shape, view.dtype)
        try:
            values = np.asarray(bridge.run(view.read(out=out), blocking=True))
        except CodecError as error:
            reason = str(error).partition(": ")[2].partition("; restore the chunk")[0]  # without the key and its hint
            raise ValueError(f"its chunk {error.key} is damaged: {reason}; {FETCH_AGAIN}") from error
        except StoreError as error:
            raise ValueError(f"{error}; {FETCH_AGAIN}") from error  # which names the chunk
        except ZarrError as error:  # a limit of the settings
            raise ValueError(str(error)) from error
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def find_chunks(path: str, name: str, options: ReaderOptions, config: Config) -> ChunkedVariable | None:
    """Return a variable of a file, or ``None`` if only the library can read it. The caller excludes other calls of h5py.

    Args:
        path: The path of the file.
        name: The name of the variable.
        options: How to open files.
        config: The settings for reading chunks.
    """
    is_changed = options.engine not in _ENGINES or options.engine_options or options.decode or options.preprocess
    if is_changed or not hasattr(os, "pread") or not _is_readable(path):
        return None
    import h5py

    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as raw, h5py.File(raw, "r") as file:
            dataset = None if file.userblock_size else _find_dataset(file, options.group, name)
            found = None if dataset is None or _is_short(file, dataset) else _describe(dataset)
        if found is None:
            return None
        metadata, places = found
        store = ChunkStore(path, name, places, os.dup(descriptor))
    finally:
        os.close(descriptor)
    handle = NodeHandle(store, "", _FORMAT, config, is_format_known=True)
    return ChunkedVariable(AsyncArray(handle, metadata), len(places))


def damaged_chunk(path: str, name: str, options: ReaderOptions) -> str:
    """Return which chunk of a variable is damaged, and why; empty if its chunks can be decoded, or only the library reads them."""
    try:
        variable = find_chunks(path, name, options, settings.get())
        if variable is not None:
            variable.read((slice(None),) * variable.ndim, MemoryPool())
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _find_dataset(file: Any, path: str, name: str) -> Any:
    """Return a dataset of a group, or ``None`` if it does not exist or is in another file, to which links lead."""
    import h5py

    group = found = file
    for part in (*filter(None, path.split("/")), name):
        group = found
        if isinstance(group.get(part, getlink=True), h5py.ExternalLink) or (found := group.get(part)) is None:
            return None
    if not isinstance(found, h5py.Dataset) or f"{HIDDEN}{name}" in group:
        return None
    # The numbers of the files differ if a soft link leads to an external one.
    return found if _place_of(found)[0] == _place_of(file)[0] else None


def _place_of(item: Any) -> tuple[Any, Any]:
    """Return the number of the file that contains an object, and the address in it."""
    information = import_module("h5py.h5o").get_info(item.id)
    return information.fileno, information.addr


def _is_short(file: Any, dataset: Any) -> bool:
    """Return whether a variable has fewer rows than its unlimited dimension. netCDF adds rows with the fill value."""
    for axis, largest in enumerate(dataset.maxshape):
        if largest is not None:
            continue
        for scale in dataset.dims[axis].values():
            sharing = scale.attrs.get("REFERENCE_LIST", ())
            lengths = [scale.shape[0], *(file[reference].shape[int(number)] for reference, number in sharing)]
            if max(lengths) > dataset.shape[axis]:
                return True
    return False


def _describe(dataset: Any) -> tuple[ArrayMetadata, dict[str, tuple[int, int]]] | None:
    """Return the metadata and the places of the chunks; ``None`` for other layouts, data types and filters."""
    properties = dataset.id.get_create_plist()
    nbytes = dataset.dtype.itemsize * math.prod(dataset.chunks or ())
    filters = _filters(properties, nbytes)
    if dataset.chunks is None or nbytes > _MOST_BYTES or not _is_plain(dataset) or filters is None:
        return None
    count = dataset.id.get_num_chunks() if hasattr(dataset.id, "chunk_iter") else None
    if count is None or count > _MOST_CHUNKS or properties.fill_value_defined() == 0:
        return None
    places: dict[str, tuple[int, int]] = {}
    unusual: list[Any] = []

    def add(chunk: Any) -> None:
        key = ".".join(str(at // n) for at, n in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        places[key] = chunk.byte_offset, chunk.size
        if chunk.filter_mask or chunk.size > _MOST_BYTES:  # left out by a filter, or too large
            unusual.append(chunk)

    dataset.id.chunk_iter(add)
    if unusual or len(places) != count:
        return None
    metadata = plan_array(
        _FORMAT,
        shape=dataset.shape,
        dtype=dataset.dtype,
        chunks=dataset.chunks,
        filters=filters,
        compressors=None,
        fill_value=dataset.fillvalue,
        chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
    )
    return metadata, places


def _is_plain(dataset: Any) -> bool:
    """Return whether an element is stored with the bytes that it has in an array of its NumPy data type."""
    import h5py

    dtype = dataset.dtype
    if dtype.kind not in "iuf" or dtype.metadata is not None or "dtype" in dataset.attrs:
        return False
    # NumPy's type has only the order, the sign and the size. Elements may also have fewer bits than bytes, or other floats.
    kind, expected = dataset.id.get_type(), h5py.h5t.py_create(dtype).copy()
    if dtype.itemsize == 1:
        expected.set_order(kind.get_order())
    return bool(kind.equal(expected))


def _filters(properties: Any, nbytes: int) -> list[dict[str, Any]] | None:
    """Return the filters of a dataset as codecs of Zarr, or ``None`` if one has no codec.

    Args:
        properties: The properties with which the dataset was created.
        nbytes: The bytes of a chunk.
    """
    codecs: list[dict[str, Any]] = []
    for number in range(properties.get_nfilters()):
        code, _, settings, _ = properties.get_filter(number)
        if code == _DEFLATE:
            codecs.append({"id": "zlib", "level": settings[0]})
        elif code == _SHUFFLE and nbytes % settings[0] == 0:  # the codec rejects a rest
            codecs.append({"id": "shuffle", "elementsize": settings[0]})
        elif code == _FLETCHER32:
            codecs.append({"id": "fletcher32"})
            nbytes += 4
        elif code == _ZSTD:
            codecs.append({"id": "zstd", "level": settings[0] if settings else 3})
        elif code == _BLOSC:
            codecs.append({"id": "blosc"})
        else:
            return None
    return codecs


# ------------------------------------------------------------------ groups and data types


_FLOATS = (4, 8)
"""The sizes of the floats that netCDF supports, in bytes."""
_PURE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
"""The beginning of the name of a scale that is not a variable."""


@contextmanager
def _opened(path: str, group: str = "") -> Iterator[Mapping[str, Any]]:
    """Open a group of an HDF5 file. It is empty in other files, if it does not exist, and without h5py."""
    if not _is_readable(path):
        yield {}
        return
    import h5py

    with h5py.File(path, "r") as file:
        found = file.get(group or "/")
        yield found if isinstance(found, h5py.Group) else {}


def _is_dataset(item: Any) -> bool:
    return hasattr(item, "shape")


def groups_of_hdf5(path: str, group: str) -> dict[str, bool]:
    """Return the paths of the groups in a group of an HDF5 file, parents first, and whether each one has variables.

    Args:
        path: The path of the file. Other files, and all without h5py, have no groups.
        group: The path of the group.
    """
    found: dict[str, bool] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, Mapping):
            found[name] = any(_is_dataset(member) and not _is_pure_dimension(member) for member in item.values())

    with _opened(path, group) as parent:
        if (visit_all := getattr(parent, "visititems", None)) is not None:
            visit("", parent)
            visit_all(visit)
    return found


def find_unsafe(path: str) -> str:
    """Return a variable with which the library of netCDF would end the process; an empty string if all can be read.

    These are floats of other sizes than 32 and 64 bits. All groups are searched, because the library opens them together.

    Args:
        path: The path of the file. Other files than HDF5, and all files if h5py is not installed, are not searched.
    """
    with _opened(path) as file:
        for dataset in _all_datasets(file, set()) if file else ():
            dtype = _dtype_of(dataset)
            if dtype is not None and dtype.kind == "f" and dtype.itemsize not in _FLOATS:
                return f"{dataset.name} ({dtype})"
    return ""


def unread_variables(path: str, group: str, names: set[str]) -> dict[str, VariableHeader]:
    """Return the variables of a group that a library has left out, as headers with the reason.

    Args:
        path: The path of an HDF5 file. Without h5py, none is found.
        group: The path of the group.
        names: The names of the variables that the library has returned.
    """
    known = {unicodedata.normalize("NFC", name) for name in names}
    with _opened(path, group) as parent:
        members = [(str(name).removeprefix(HIDDEN), parent.get(name)) for name in parent]
        datasets = [(name, item) for name, item in members if _is_dataset(item) and not _is_pure_dimension(item)]
        return {name: _header_of(item) for name, item in datasets if unicodedata.normalize("NFC", name) not in known}


def empty_variables(path: str, group: str) -> list[str]:
    """Return the names of the variables without values in a group of an HDF5 file, which h5netcdf cannot read."""
    with _opened(path, group) as parent:
        return [str(name) for name, item in parent.items() if _is_dataset(item) and item.shape is None]


def _header_of(dataset: Any) -> VariableHeader:
    names = names_of(dataset) or (None,) * len(dataset.shape or ())
    dims = tuple(name or f"dim_{number}" for number, name in enumerate(names))
    problem = f"the library of netCDF does not support its data type, {_type_text(dataset)}"
    if dataset.shape is None:
        problem = "it has no values"
    return VariableHeader(dims, dataset.shape or (), "V", {}, problem=problem)


def _all_datasets(group: Any, visited: set[Any]) -> Iterator[Any]:
    """Yield the datasets below a group. Groups with several names are searched once."""
    import h5py

    if (place := _place_of(group)) in visited:
        return
    visited.add(place)
    for name in group:
        member = group.get(name)  # None for a link that leads nowhere
        if isinstance(member, h5py.Dataset):
            yield member
        elif isinstance(member, h5py.Group):
            yield from _all_datasets(member, visited)


def _is_pure_dimension(dataset: Any) -> bool:
    is_scale = dataset.attrs.get("CLASS") == b"DIMENSION_SCALE"
    return is_scale and bytes(dataset.attrs.get("NAME", b"")).startswith(_PURE_DIMENSION)


def _dtype_of(dataset: Any) -> Any:
    """Return the data type of a dataset, or ``None`` if NumPy has no such type."""
    try:
        return dataset.dtype
    except TypeError:
        return None


def _type_text(dataset: Any) -> str:
    """Describe the data type of a dataset."""
    import h5py

    dtype = _dtype_of(dataset)
    if dtype is None:
        return f"class {dataset.id.get_type().get_class()} of HDF5"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references to parts of the file"
    if (base := h5py.check_vlen_dtype(dtype)) is not None:
        return f"lists of {base}"
    if isinstance(dataset.id.get_type(), h5py.h5t.TypeBitfieldID):
        return "bits"
    if dtype.names is not None:
        members = ", ".join(f"{name} {'string' if (t := dtype[name]).kind == 'O' else t}" for name in dtype.names)
        return f"a compound of {members}"
    return f"opaque bytes ({dtype})" if dtype.kind in "VmM" else str(dtype)
