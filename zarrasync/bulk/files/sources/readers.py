"""Opening source files: NumPy's by NumPy, all others by xarray, without decoding.

The libraries of netCDF, HDF5, GRIB and GeoTIFF are not safe to use on several threads. One lock guards all calls of them
in a process, so files are read one at a time; the encoding of other blocks continues meanwhile. Processes read several
files at a time. The chunks of HDF5 files, which include netCDF-4, are read on several threads without the libraries.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zarrasync import config as settings
from zarrasync._concurrency.fork import thread_lock
from zarrasync._util.memory import MemoryPool
from zarrasync._util.redact import public_url, redact
from zarrasync.bulk.files.sources.content import FETCH_AGAIN, check_content
from zarrasync.bulk.files.sources.copies import LocalCopies
from zarrasync.bulk.files.sources.digests import add_digests
from zarrasync.bulk.files.sources.engines import (
    advice_for_failure,
    engine_arguments,
    is_numpy,
    is_zarr,
    reason_of_failure,
)
from zarrasync.bulk.files.sources.grib_messages import (
    damaged_messages,
    message_problem,
    missing_messages,
    skipped_parameters,
)
from zarrasync.bulk.files.sources.hdf5_chunks import (
    ChunkedVariable,
    damaged_chunk,
    find_chunks,
    is_hdf5,
)
from zarrasync.bulk.files.sources.hdf5_types import empty_variables, groups_of_hdf5, unread_variables
from zarrasync.bulk.files.sources.headers import (
    PHONY,
    FileHeader,
    ReaderOptions,
    SourceFile,
    VariableHeader,
    code_attributes,
    dtype_text,
    plain_attributes,
)
from zarrasync.bulk.files.sources.identify import has_changed
from zarrasync.bulk.files.sources.inherited import inherited_coordinates
from zarrasync.bulk.files.sources.name_labels import label_values, with_labels
from zarrasync.bulk.files.sources.numpy_files import NumpyReader
from zarrasync.bulk.files.sources.preprocess import preprocessed
from zarrasync.bulk.files.sources.unread_parts import groups_of_zarr, unread_pages
from zarrasync.config import Config
from zarrasync.errors import CodecError, MetadataError, NodeNotFoundError, ShapeError, SourceFilesError, ZarrError
from zarrasync.indexing.regions import Region
from zarrasync.model import dtypes

_LIBRARIES = thread_lock()
_MOST_OPEN = 16
"""Maximum number of files that a process keeps open."""
_MOST_CHUNKED = 64
"""Maximum number of variables whose places of chunks are kept."""
_MOST_PLACES = 1 << 19


class _Reader(Protocol):
    """An open file."""

    def header(self, file: SourceFile) -> FileHeader: ...

    def read(self, name: str, region: Region) -> npt.NDArray[Any]: ...

    def close(self) -> None: ...


def _lock_of(url: str) -> AbstractContextManager[Any]:
    return nullcontext() if is_numpy(url) or _is_zarr(url) else _LIBRARIES


def _is_zarr(url: str) -> bool:
    return is_zarr(url) or os.path.isdir(url)


def _needs_copy(url: str) -> bool:
    return "://" in url and not _is_zarr(url)


@contextmanager
def _naming(name: str, action: str, variable: str = "") -> Iterator[None]:
    """Raise errors of libraries as errors that name the file, and the variable whose values are read."""
    try:
        yield
    except (ZarrError, ImportError, MemoryError):
        raise
    except Exception as error:  # of any class: each library has its own
        text = redact(str(error))
        if "installed IO backends" in text:
            from xarray.backends import list_engines

            text = (
                f"none of xarray's engines recognizes the file ({', '.join(list_engines())}); check that it is complete, install "
                "the package that reads its format, or pass engine='NAME'"
            )
        elif not isinstance(error, ValueError):
            text = f"{type(error).__name__}: {text}"
        reason = f"cannot read {variable!r}: {text}" if variable else text
        raise SourceFilesError(f"cannot {action} {name}: {text}", files={name: reason}) from error


class OpenFiles:
    """The open files of a process.

    Args:
        options: How to open them.
        config: The settings for reading their chunks; the current ones by default.
        most_places: Maximum number of places of chunks that are kept for all variables, unless a single one has more.
    """

    def __init__(
        self, options: ReaderOptions, config: Config | None = None, *, most_places: int = _MOST_PLACES
    ) -> None:
        self._options, self._config, self._most_places = options, config or settings.get(), most_places
        self._open: OrderedDict[tuple[SourceFile, str], _Reader] = OrderedDict()
        self._chunked: OrderedDict[tuple[SourceFile, str, str], ChunkedVariable | None] = OrderedDict()
        self._groups: dict[SourceFile, dict[str, bool]] = {}
        self._copies = LocalCopies(options.storage_options, forget=self._forget)
        self._memory = MemoryPool()
        self._lock = thread_lock()

    @contextmanager
    def prepared(self, files: Iterable[SourceFile]) -> Iterator[None]:
        """Keep local copies of the remote files among these, which are downloaded several at a time."""
        wanted = [file for file in dict.fromkeys(files) if _needs_copy(file.url)]
        with _naming(wanted[0].name if len(wanted) == 1 else f"{len(wanted)} files", "download"):
            self._copies.fetch(wanted)
        try:
            yield
        finally:
            for file in wanted:
                self._copies.release(file)

    def headers(
        self, files: Sequence[SourceFile], chosen: Sequence[str] = (), *, with_linked: bool = True
    ) -> list[FileHeader]:
        """Return the headers of files, with the values of small variables. The files are not kept open.

        Args:
            files: The files.
            chosen: The names of the variables to store; empty for all. Others get no digest.
            with_linked: Whether the variables that belong to the chosen ones in each file also get digests.

        Returns:
            The headers. A file that cannot be read has a header without variables, and with the error.

        Raises:
            ImportError: If xarray, or the package that reads the format, is not installed.
        """
        found: list[FileHeader] = []
        for start in range(0, len(files), _MOST_OPEN):
            batch = files[start : start + _MOST_OPEN]
            with self.prepared(batch):
                for file in batch:  # groups are known of the first file, because looking for them takes time
                    try:
                        header = self._header(file, chosen, with_linked=with_linked, with_groups=not found)
                    except (SourceFilesError, ShapeError, CodecError, MetadataError, NodeNotFoundError) as error:
                        header = FileHeader(file, {}, {}, error=error)
                    found.append(header)
        return found

    def groups(self, file: SourceFile) -> dict[str, bool]:
        """Return the paths of the groups in the group of a file that is read, and whether each one has variables.

        Parents come first, and the path of the group itself is empty. A file without groups has none.
        """
        if file not in self._groups:
            with self._local_path(file) as path, _lock_of(file.url), _naming(file.name, "read the header of"):
                self._groups[file] = _groups_of(file.url, path, self._options)
        return self._groups[file]

    def _header(self, file: SourceFile, chosen: Sequence[str], *, with_linked: bool, with_groups: bool) -> FileHeader:
        with self._local_path(file) as path, _lock_of(file.url), _naming(file.name, "read the header of"):
            reader = _open(file.url, path, self._options)
            try:
                header = reader.header(file)
                if self._options.labels:
                    header = with_labels(header, self._options.dim, self._options.labels)
                if "://" not in file.url:
                    _check_unchanged(file, self._options)
                if with_groups:
                    groups = self._groups.get(file) or _groups_of(file.url, path, self._options)
                    header = replace(header, groups=tuple(group for group in groups if group and groups[group]))
                names = set(chosen or header.variables)
                names |= header.linked(names) if with_linked else set()
                names -= {name for name, variable in header.variables.items() if variable.problem}
                return add_digests(header, names, self._options.dim, reader.read)
            finally:
                reader.close()

    def read(self, file: SourceFile, name: str, region: Region) -> npt.NDArray[Any]:
        """Return a region of a variable.

        Raises:
            SourceFilesError: If the file cannot be read, or has changed since the job was planned.
        """
        if self._options.labels and name == self._options.dim:
            return label_values(file, self._options.labels, (1,) * len(region))[region]
        with self._local_path(file, for_values=True) as path, _naming(file.name, f"read {name!r} of", name):
            chunked = self._get_chunked(file, path, name)
            if chunked is not None:
                return chunked.read(region, self._memory)
            with _lock_of(file.url):
                reader = self._get(file, path)
                try:
                    return reader.read(name, region)
                except (OSError, RuntimeError) as error:  # of the libraries of HDF5, which name no place
                    raise ValueError(f"the values are damaged ({redact(str(error))}); {FETCH_AGAIN}") from error

    def check_unchanged(self, files: Iterable[SourceFile]) -> None:
        """Check that local files have not changed since they were opened. Copies of remote files do not change.

        Raises:
            SourceFilesError: If a file has changed, so that values of two versions may have been read.
        """
        for file in files:
            if "://" not in file.url:
                with _naming(file.name, "read"):
                    _check_unchanged(file, self._options)

    def close(self) -> None:
        """Close all files, and delete local copies."""
        self._chunked.clear()
        while self._open:
            (file, _), reader = self._open.popitem()
            with _lock_of(file.url):
                reader.close()
        self._copies.close()
        self._memory = MemoryPool()  # the old one may keep memory

    @contextmanager
    def _local_path(self, file: SourceFile, *, for_values: bool = False) -> Iterator[str]:
        if not _needs_copy(file.url):
            yield file.url
            return
        with _naming(file.name, "download"):
            path = self._copies.acquire(file, for_values=for_values)
        try:
            yield path
        finally:
            self._copies.release(file)

    def _get_chunked(self, file: SourceFile, path: str, name: str) -> ChunkedVariable | None:
        """Return a variable that can be read without the libraries, or ``None``."""
        if _lock_of(file.url) is not _LIBRARIES:
            return None
        key = (file, path, name)
        with self._lock:
            if key in self._chunked:
                self._chunked.move_to_end(key)
                return self._chunked[key]
        with _LIBRARIES:
            _check_unchanged(file, self._options)
            found = find_chunks(path, name, self._options, self._config)
        with self._lock:
            self._chunked[key] = found
            count = sum(0 if variable is None else variable.count for variable in self._chunked.values())
            while len(self._chunked) > _MOST_CHUNKED or (count > self._most_places and len(self._chunked) > 1):
                _, oldest = self._chunked.popitem(last=False)
                count -= 0 if oldest is None else oldest.count
        return found

    def _get(self, file: SourceFile, path: str) -> _Reader:
        with self._lock:
            reader = self._open.get((file, path))
            if reader is None:
                _check_unchanged(file, self._options)
                reader = self._open[file, path] = _open(file.url, path, self._options)
            self._open.move_to_end((file, path))
            closed = [self._open.popitem(last=False) for _ in range(len(self._open) - _MOST_OPEN)]
        for (old_file, _), old in closed:
            with _lock_of(old_file.url) if _lock_of(file.url) is not _LIBRARIES else nullcontext():
                old.close()
        return reader

    def _forget(self, path: str) -> None:
        """Close a local copy that no call uses any more."""
        with self._lock:
            for variable in [key for key in self._chunked if key[1] == path]:
                del self._chunked[variable]
            closed = [(key[0], self._open.pop(key)) for key in list(self._open) if key[1] == path]
        for file, reader in closed:
            with _lock_of(file.url):
                reader.close()


def _groups_of(url: str, path: str, options: ReaderOptions) -> dict[str, bool]:
    """Return the paths of the groups in the group that is read, parents first, and whether each one has variables."""
    if _is_zarr(url):
        return groups_of_zarr(url, options.group, options.storage_options)
    return {} if options.engine == "rasterio" else groups_of_hdf5(path, options.group)


def _check_unchanged(file: SourceFile, options: ReaderOptions) -> None:
    if has_changed(file, options.storage_options):
        raise ValueError("the file has changed since the job was planned; repeat the call")


def _open(url: str, path: str, options: ReaderOptions) -> _Reader:
    if not _is_zarr(url):
        check_content(path)
    if is_numpy(url):
        if options.group:
            raise ValueError(f"NumPy's files have no groups, so the group {options.group!r} does not exist")
        if options.preprocess:
            raise ValueError("preprocess needs a file that xarray opens, and NumPy reads this one")
        return NumpyReader(path, options)
    return _XarrayReader(url, path, options)


# ------------------------------------------------------------------ xarray


class _XarrayReader:
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
        if _is_zarr(url):
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
            if (_is_zarr(url) or is_hdf5(path)) and self._engine != "rasterio":
                inherited, self._parents = inherited_coordinates(self._dataset, options.group, open_group)
        if options.preprocess:
            self._parents.append(self._dataset)
            self._dataset = preprocessed(options.preprocess, self._dataset)
        own = {str(name): _encoded(str(name), item) for name, item in self._dataset.variables.items()}
        self._variables = {**inherited, **own}
        self._coords = {*inherited, *self._dataset.coords}
        self._options, self._path, self._has_fixed_strings = options, path, _is_zarr(url)

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
        attributes = plain_attributes(variable.attrs)
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
