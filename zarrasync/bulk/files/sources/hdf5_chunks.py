"""Reading variables of HDF5 files without the HDF5 library: the file contains the chunks of a Zarr array.

h5py, which is not safe to use on several threads, is only asked where the chunks are. The file's bytes are then read and
decoded as for any Zarr array, on all threads at a time. Variables with other layouts are left to the library.
"""

from __future__ import annotations

import builtins
import math
import os
import weakref
from collections.abc import Hashable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync._util.memory import BudgetExceeded, MemoryPool
from zarrasync.bulk.files.sources.content import FETCH_AGAIN, HDF5_MAGIC
from zarrasync.bulk.files.sources.headers import ReaderOptions
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
    near = True

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
            start = max(size - (request.length or 0), 0) if request.suffix else min(request.start, size)
            stop = size if request.suffix or request.length is None else min(start + request.length, size)
            data = os.pread(self._file, stop - start, offset + start)
        except (OSError, BudgetExceeded) as error:
            raise store_error(error, request.key, "read", self) from error
        if len(data) < stop - start:
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
    if (
        options.engine not in _ENGINES
        or options.engine_options
        or options.decode
        or options.preprocess
        or not hasattr(os, "pread")
    ):
        return None
    try:
        import h5py
    except ImportError:
        return None
    if not is_hdf5(path):
        return None
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

    objects: Any = import_module("h5py.h5o")
    group = file
    for part in filter(None, path.split("/")):
        if isinstance(group.get(part, getlink=True), h5py.ExternalLink):
            return None
        group = group[part]
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        return None
    dataset = group.get(name)
    if not isinstance(dataset, h5py.Dataset) or f"{HIDDEN}{name}" in group:
        return None
    # The numbers of the files differ if a soft link leads to an external one.
    return dataset if objects.get_info(dataset.id).fileno == objects.get_info(file.id).fileno else None


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
    """Return whether the stored bytes of elements are these of NumPy's data type."""
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
