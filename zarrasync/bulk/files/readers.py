"""Opening source files: NumPy's by NumPy, all others by xarray, without decoding.

The libraries of netCDF, HDF5, GRIB and GeoTIFF are not safe to use on several threads. One lock guards all calls of them
in a process, so files are read one at a time; the encoding of other blocks continues meanwhile. Processes read several
files at a time.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.fork import thread_lock
from zarrasync.bulk.files.headers import FileHeader, ReaderOptions, SourceFile, VariableHeader
from zarrasync.errors import ShapeError, ZarrError
from zarrasync.indexing.regions import Region

__all__ = ["OpenFiles", "read_header"]

_LIBRARIES = thread_lock()
_MOST_OPEN = 16
"""Maximum number of files that a process keeps open."""
_SMALL_BYTES = 64 * 1024
"""Variables up to this size are read with the header."""


class _Reader(Protocol):
    """An open file."""

    def header(self, file: SourceFile) -> FileHeader: ...

    def read(self, name: str, region: Region) -> npt.NDArray[Any]: ...

    def close(self) -> None: ...


def _lock_of(url: str) -> AbstractContextManager[Any]:
    return nullcontext() if _is_numpy(url) or _is_zarr(url) else _LIBRARIES


def _is_numpy(url: str) -> bool:
    return url.lower().endswith((".npy", ".npz"))


def _is_zarr(url: str) -> bool:
    return url.rstrip("/").lower().endswith((".zarr", ".zarr.zip", ".ozx")) or os.path.isdir(url)


@contextmanager
def _naming(url: str, action: str) -> Iterator[None]:
    """Raise errors of libraries as errors that name the file."""
    try:
        yield
    except (ZarrError, ImportError, MemoryError):
        raise
    except (ValueError, OSError, KeyError, TypeError, RuntimeError, AttributeError, EOFError, BadZipFile) as error:
        raise ValueError(f"cannot {action} {url}: {type(error).__name__}: {error}") from error


def read_header(file: SourceFile, options: ReaderOptions) -> FileHeader:
    """Return the header of a file, with the values of small variables.

    Raises:
        ImportError: If xarray, or the package that reads the format, is not installed.
        ValueError: If the file cannot be read.
    """
    with _lock_of(file.url), _naming(file.url, "read the header of"):
        reader = _open(file.url, options)
        try:
            return reader.header(file)
        finally:
            reader.close()


class OpenFiles:
    """The open files of a process.

    Args:
        options: How to open them.
    """

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self._open: OrderedDict[str, _Reader] = OrderedDict()
        self._lock = thread_lock()

    def read(self, url: str, name: str, region: Region) -> npt.NDArray[Any]:
        """Return a region of a variable.

        Raises:
            ValueError: If the file cannot be read.
        """
        with _lock_of(url), _naming(url, f"read {name!r} of"):
            return self._get(url).read(name, region)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            url, reader = self._open.popitem()
            with _lock_of(url):
                reader.close()

    def _get(self, url: str) -> _Reader:
        with self._lock:
            reader = self._open.get(url)
            if reader is None:
                reader = self._open[url] = _open(url, self._options)
            self._open.move_to_end(url)
            closed = [self._open.popitem(last=False) for _ in range(len(self._open) - _MOST_OPEN)]
        for old_url, old in closed:
            with _lock_of(old_url) if _lock_of(url) is not _LIBRARIES else nullcontext():
                old.close()
        return reader


def _open(url: str, options: ReaderOptions) -> _Reader:
    return _NumpyReader(url, options) if _is_numpy(url) else _XarrayReader(url, options)


# ------------------------------------------------------------------ NumPy


class _NumpyReader:
    def __init__(self, url: str, options: ReaderOptions) -> None:
        source = _local_copy(url, options) if "://" in url else url
        if url.lower().endswith(".npz"):
            with np.load(source) as archive:
                self._arrays = {name: archive[name] for name in archive.files}
        else:
            self._arrays = {"values": np.load(source, mmap_mode="r")}
        self._dims = options.dims

    def header(self, file: SourceFile) -> FileHeader:
        variables = {}
        for name, array in self._arrays.items():
            dims = self._dims if self._dims is not None else tuple(f"dim_{axis}" for axis in range(array.ndim))
            if len(dims) != array.ndim:
                raise ShapeError(
                    f"{name!r} of {file.url} has {array.ndim} axes, but dims names {len(dims)}: {', '.join(dims)}",
                    found=array.shape,
                )
            values = np.array(array) if array.nbytes <= _SMALL_BYTES else None
            variables[name] = VariableHeader(dims, array.shape, _dtype_text(array.dtype), {}, values=values)
        return FileHeader(file, variables, {})

    def read(self, name: str, region: Region) -> npt.NDArray[Any]:
        return np.asarray(self._arrays[name][region])

    def close(self) -> None:
        self._arrays = {}


# ------------------------------------------------------------------ xarray


class _XarrayReader:
    def __init__(self, url: str, options: ReaderOptions) -> None:
        try:
            import xarray
        except ImportError as error:
            raise ImportError(
                f"{url} is read by xarray, which is not installed: pip install 'zarrasync[xarray]'"
            ) from error
        arguments: dict[str, Any] = {
            "mask_and_scale": options.decode,
            "decode_times": False,
            "decode_timedelta": False,
            "engine": options.engine,
            "chunks": None,
            "cache": False,
        }
        if options.group:
            arguments["group"] = options.group
        target: Any = url
        if _is_zarr(url):
            arguments["engine"] = options.engine or "zarrasync"
            arguments["backend_kwargs"] = (
                {"storage_options": dict(options.storage_options)} if options.storage_options else {}
            )
        elif "://" in url:
            target = _local_copy(url, options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names of axes, and formats of other files
            self._dataset = xarray.open_dataset(target, **arguments)

    def header(self, file: SourceFile) -> FileHeader:
        dataset = self._dataset
        attributes = _plain_attributes(dataset.attrs)
        if "coordinates" in dataset.encoding:
            attributes["coordinates"] = dataset.encoding["coordinates"]
        variables = {str(name): self._variable(str(name)) for name in dataset.variables}
        return FileHeader(file, variables, attributes)

    def _variable(self, name: str) -> VariableHeader:
        variable = self._dataset.variables[name]
        attributes = _plain_attributes(variable.attrs)
        if "coordinates" in variable.encoding:  # xarray has decoded them
            attributes["coordinates"] = variable.encoding["coordinates"]
        chunks = variable.encoding.get("chunksizes") or variable.encoding.get("preferred_chunks")
        if isinstance(chunks, Mapping):
            chunks = tuple(chunks.get(dim, n) for dim, n in variable.sizes.items())
        is_small = math.prod(variable.shape) * max(variable.dtype.itemsize, 1) <= _SMALL_BYTES
        return VariableHeader(
            tuple(map(str, variable.dims)),
            tuple(variable.shape),
            _dtype_text(variable.dtype),
            attributes,
            tuple(map(int, chunks)) if chunks and len(chunks) == variable.ndim else None,
            name in self._dataset.coords,
            np.array(variable.values) if is_small else None,
        )

    def read(self, name: str, region: Region) -> npt.NDArray[Any]:
        return np.asarray(self._dataset.variables[name][region].values)

    def close(self) -> None:
        self._dataset.close()


def _local_copy(url: str, options: ReaderOptions) -> str:
    """Return the path of a local copy of a remote file, which fsspec keeps until the process ends."""
    import fsspec

    arguments: Any = {url.partition("://")[0]: dict(options.storage_options)}
    return str(fsspec.open_local(f"filecache::{url}", **arguments))


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.kind in "OT" else dtype.newbyteorder("=").str


def _plain_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON values, without NaN as a missing value: NaN is always missing."""
    values = {str(name): _plain(value) for name, value in attributes.items()}
    if isinstance(missing := values.get("missing_value"), float) and math.isnan(missing):
        del values["missing_value"]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
        return _plain(value[0]) if isinstance(value, list) and len(value) == 1 else _plain(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value
