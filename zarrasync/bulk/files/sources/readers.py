"""Opening source files: NumPy's by NumPy, all others by xarray, without decoding; local copies of remote files.

The libraries of netCDF, HDF5, GRIB and GeoTIFF are not safe to use on several threads. One lock guards all calls of them
in a process, so files are read one at a time; the encoding of other blocks continues meanwhile. Processes read several
files at a time. The chunks of HDF5 files, which include netCDF-4, are read on several threads without the libraries.

Libraries read copies of remote files, which are downloaded several at a time. Copies that no reader uses are deleted when all
copies together take more than a limit: first those whose values have been read, the oldest first, then the newest. So a job that
first reads all headers still has the copies that it needs next. Copies of a process that was killed are deleted by the next
one. Each process has its own copies.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy.typing as npt

from zarrasync import config as settings
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._util.memory import MemoryPool
from zarrasync._util.redact import redact
from zarrasync.bulk.files.sources.content import FETCH_AGAIN, check_content
from zarrasync.bulk.files.sources.datasets import NumpyReader, XarrayReader, groups_of_zarr
from zarrasync.bulk.files.sources.engines import is_hierarchy, is_numpy, path_of
from zarrasync.bulk.files.sources.hdf5 import ChunkedVariable, find_chunks, groups_of_hdf5
from zarrasync.bulk.files.sources.headers import FileHeader, ReaderOptions, SourceFile, add_digests
from zarrasync.bulk.files.sources.identify import call_each, has_changed
from zarrasync.bulk.files.sources.name_labels import label_values, with_labels
from zarrasync.bulk.scratch_folders import new_scratch_folder
from zarrasync.config import Config
from zarrasync.errors import CodecError, MetadataError, NodeNotFoundError, ShapeError, SourceFilesError, ZarrError
from zarrasync.indexing.regions import Region

_LIBRARIES = thread_lock()
_MOST_OPEN = 16
"""Maximum number of files that a process keeps open."""
_MOST_CHUNKED = 64
"""Maximum number of variables whose places of chunks are kept."""
_MOST_PLACES = 1 << 19
_MOST_BYTES = 8 << 30
"""Maximum size of the copies that no reader uses, unless less than twice as much is free."""


_Reader: TypeAlias = NumpyReader | XarrayReader
"""An open file."""


def _lock_of(url: str) -> AbstractContextManager[Any]:
    return nullcontext() if is_numpy(url) or is_hierarchy(url) else _LIBRARIES


def _needs_copy(url: str) -> bool:
    return "://" in url and not is_hierarchy(url)


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
        action = _naming(wanted[0].name if len(wanted) == 1 else f"{len(wanted)} files", "download")
        with self._copies.use(wanted, action):
            yield

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
        with self._copies.use([file], _naming(file.name, "download"), for_values=for_values) as (path,):
            yield path

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
    if is_hierarchy(url):
        return groups_of_zarr(url, options.group, options.storage_options)
    return {} if options.engine == "rasterio" else groups_of_hdf5(path, options.group)


def _check_unchanged(file: SourceFile, options: ReaderOptions) -> None:
    if has_changed(file, options.storage_options):
        raise ValueError("the file has changed since the job was planned; repeat the call")


def _open(url: str, path: str, options: ReaderOptions) -> _Reader:
    if not is_hierarchy(url):
        check_content(path)
    if is_numpy(url):
        if options.group:
            raise ValueError(f"NumPy's files have no groups, so the group {options.group!r} does not exist")
        if options.preprocess:
            raise ValueError("preprocess needs a file that xarray opens, and NumPy reads this one")
        return NumpyReader(path, options)
    return XarrayReader(url, path, options)


# ------------------------------------------------------------------ local copies


class LocalCopies:
    """The local copies of a job's remote files in one process.

    Args:
        storage_options: Options for the filesystem of the URLs.
        most_bytes: Maximum size of copies that no reader uses.
        forget: Called with the path of each copy before it is deleted, to close the file. Open files keep their space.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any],
        most_bytes: int = _MOST_BYTES,
        forget: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._options, self._most_bytes, self._forget = dict(storage_options), most_bytes, forget
        self._copies: OrderedDict[SourceFile, Future[str]] = OrderedDict()
        self._users: dict[SourceFile, int] = {}
        self._read = set[SourceFile]()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = thread_lock()
        self._count = 0

    @contextmanager
    def use(
        self, files: Sequence[SourceFile], downloading: AbstractContextManager[None], *, for_values: bool = False
    ) -> Iterator[list[str]]:
        """Download files, several at a time, and yield the paths of the copies, which remain until the context ends.

        Args:
            files: The files.
            downloading: A context for the downloads.
            for_values: Whether more than the header is read.

        Raises:
            OSError: If a file cannot be downloaded.
        """
        with ExitStack() as kept:

            def keep(file: SourceFile) -> str:
                path = self.acquire(file, for_values=for_values)
                kept.callback(self.release, file)
                return path

            with downloading:
                calls = call_each(keep, files, "zarrasync-download") if len(files) > 1 else []
                paths = [call.result() for call in calls] or [keep(file) for file in files]
            yield paths

    def acquire(self, file: SourceFile, *, for_values: bool = False) -> str:
        """Return the path of a copy, which remains until ``release`` is called.

        Args:
            file: The file.
            for_values: Whether more than the header is read.

        Raises:
            OSError: If the file cannot be downloaded.
        """
        with self._lock:
            present = self._copies.get(file)
            copy = present or self._copies.setdefault(file, Future())
            self._users[file] = self._users.get(file, 0) + 1
            self._copies.move_to_end(file)
            if for_values:
                self._read.add(file)
        if present is None:
            try:
                with self._lock:
                    path = self._new_path(file)
                self._download(file, path)
                copy.set_result(path)
            except BaseException as error:
                with self._lock:
                    self._copies.pop(file, None)
                copy.set_exception(error)
        clock.current().wait_for([copy])
        try:
            return copy.result()
        except BaseException:
            self.release(file)
            raise

    def release(self, file: SourceFile) -> None:
        """Allow that a copy is deleted."""
        with self._lock:
            self._users[file] -= 1
            if not self._users[file]:
                del self._users[file]
            idle = [(file, copy.result()) for file, copy in self._copies.items() if file not in self._users]
            sizes = {path: os.path.getsize(path) for _, path in idle}
            total, allowed, outdated = sum(sizes.values()), self._allowed() if idle else 0, list[str]()
            done = [item for item in idle if item[0] in self._read]
            for own, path in [*done, *(item for item in reversed(idle) if item[0] not in self._read)]:
                if total <= allowed:
                    break
                total -= sizes[path]
                del self._copies[own]
                self._read.discard(own)
                outdated.append(path)
        for path in outdated:  # without the lock, because files may be closed only when no library is used
            self._forget(path)
            Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all copies."""
        with self._lock:
            folder, self._folder = self._folder, None
            self._copies.clear()
            self._users.clear()
            self._read.clear()
        if folder is not None:
            folder.cleanup()

    # -------------------------------------------------------------- files

    def _allowed(self) -> int:
        assert self._folder is not None
        return min(self._most_bytes, shutil.disk_usage(self._folder.name).free // 2)

    def _new_path(self, file: SourceFile) -> str:
        if self._folder is None:
            self._folder = new_scratch_folder()
        self._count += 1  # names are not unique, and libraries detect formats by the suffix
        return os.path.join(self._folder.name, f"{self._count}-{PurePosixPath(path_of(file.url)).name[-100:]}")

    def _download(self, file: SourceFile, path: str) -> None:
        import fsspec

        filesystem, name = fsspec.core.url_to_fs(file.url, **self._options)
        filesystem.get_file(name, path)
