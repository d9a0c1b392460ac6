"""The files that a pattern or a list means, with their identities."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync._util.redact import public_url
from zarrasync.bulk.files.sources.engines import is_zarr, path_of
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.stores.local import local_path

_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
"""The protocols of object stores, whose paths begin with a bucket or container."""
_MAGIC = re.compile(r"[*?\[]")
_SUFFIXES = (
    *(".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5"),
    *(".grib", ".grib2", ".grb", ".grb2", ".tif", ".tiff", ".npz"),
)
_STAMPS = ("ETag", "etag", "LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")
"""Names of the version or the time of a file in the answers of filesystems."""


def source_name(source: Any) -> str:
    """Return a source as files are named everywhere: a path, also for a ``file://`` URL, or another URL."""
    text = str(os.fspath(source))
    return local_path(text) if text.startswith("file:/") else text


def has_magic(name: str) -> bool:
    """Return whether the name of a source contains a character of patterns. A file may have such a name."""
    return _MAGIC.search(path_of(name).rpartition("://")[2]) is not None


def is_pattern(source: Any, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a source is a pattern, and not the name of an existing file with such characters."""
    name = source_name(source)
    if not has_magic(name):
        return False
    return _existing(name, storage_options) is None if "://" in name else not os.path.lexists(name)


def means_files(source: Any, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a source of ``ingest`` is a pattern, a list of paths, or the path of a file with variables."""
    if isinstance(source, str | Path):
        return path_of(source_name(source)).lower().endswith(_SUFFIXES) or is_pattern(source, storage_options)
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(item, str | Path) for item in source)


def find_files(
    sources: Any, storage_options: Mapping[str, Any], missing: dict[str, str] | None = None
) -> list[SourceFile]:
    """Return the files of a pattern, a path, or a list of them, in order of their names and without repetitions.

    Args:
        sources: The pattern, the path, or the list.
        storage_options: Options of the filesystem of URLs.
        missing: Gets the reasons for files that do not exist, by name; ``None`` if these are an error.

    Raises:
        FileNotFoundError: If a file does not exist, or nothing matches a pattern.
    """
    items: list[Any] = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    calls = call_each(partial(_find, storage_options), [source_name(item) for item in items], "zarrasync-files")
    files: dict[str, SourceFile] = {}
    for item, call in zip(items, calls, strict=True):
        error = call.exception()
        if missing is not None and isinstance(error, FileNotFoundError):
            missing[public_url(source_name(item))] = str(error) if error.errno is None else "the file does not exist"
            continue
        files.update((file.url, file) for file in sorted(call.result(), key=lambda file: natural_key(file.url)))
    if not files:
        raise FileNotFoundError("; ".join((missing or {}).values()) or "no source files: the list is empty")
    return list(files.values())


def _find(storage_options: Mapping[str, Any], text: str) -> list[SourceFile]:
    return list(_remote(text, storage_options) if "://" in text else _local(text))


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key in which numbers compare as numbers, so that ``a9`` comes before ``a10``."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


def has_changed(file: SourceFile, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a file differs from its record; for a hierarchy, whether a document at its root does.

    Tasks ask often, so that the chunks of a hierarchy are not listed. If one changes, the next ingestion notices.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    if "://" not in file.url and os.path.isdir(file.url):
        return _root_stamp(file.url) != file.stamp.partition(" ")[2]
    if "://" in file.url and is_zarr(file.url):
        return _remote_root_stamp(*_filesystem(file.url, storage_options)) != file.stamp.partition(" ")[2]
    return identity_of(file.url, storage_options) != file


def identity_of(url: str, storage_options: Mapping[str, Any]) -> SourceFile:
    """Return the present identity of a file.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    return _remote_identity(url, storage_options) if "://" in url else _local_identity(url)


# ------------------------------------------------------------------ local files


def _local(path: str) -> Iterable[SourceFile]:
    names = [path] if os.path.lexists(path) else glob.glob(_with_literal_folder(path), recursive=True)
    if not names:
        raise FileNotFoundError(f"no file matches {path!r} (in {os.getcwd()})")
    return [local_file(name) for name in names]  # a link that leads nowhere has an identity, too


def local_file(path: str) -> SourceFile:
    """Return the present identity of a local file, with its path without symbolic links if that differs.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    file, real = _local_identity(path), os.path.realpath(path)
    return replace(file, identity="" if real == file.url else real)


def _with_literal_folder(pattern: str) -> str:
    """Return a pattern in which the names of existing folders at the beginning mean these folders."""
    folder, name = os.path.split(pattern)
    while folder and name and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return glob.escape(folder) + pattern[len(folder) :]


def _local_identity(name: str) -> SourceFile:
    if os.path.isdir(name):  # a Zarr hierarchy
        folder = os.path.abspath(name)
        return SourceFile(folder, None, f"{_digest(_entries(folder))} {_root_stamp(folder)}")
    is_dangling = os.path.islink(name) and not os.path.exists(name)  # which reading its header reports
    state = os.stat(name, follow_symlinks=not is_dangling)
    return SourceFile(os.path.abspath(name), state.st_size, str(state.st_mtime_ns))


def _root_stamp(folder: str) -> str:
    """Return the time of the latest document at the root of a hierarchy."""
    return str(max((entry.stat().st_mtime_ns for entry in os.scandir(folder) if entry.is_file()), default=0))


def _entries(folder: str) -> Iterator[str]:
    """Yield the names, sizes and times of all files below the path of a folder, which does not end with a slash."""
    visited = set[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in visited:  # links may lead in a circle
            folders.clear()
            continue
        visited.add(real)
        for name in names:
            with suppress(OSError):  # a link that leads nowhere or to itself, or a file that was erased since
                state = os.stat(path := os.path.join(root, name))
                yield f"{path.removeprefix(folder)} {state.st_size} {state.st_mtime_ns}"


# ------------------------------------------------------------------ remote files


def _remote(url: str, storage_options: Mapping[str, Any]) -> Iterable[SourceFile]:
    if not has_magic(url):
        return [_remote_identity(url, storage_options)]
    if (file := _existing(url, storage_options)) is not None:
        return [file]
    filesystem, path = _filesystem(url, storage_options)
    found = filesystem.glob(path, detail=True)
    if not found:
        bucket = path.strip("/").partition("/")[0]
        is_missing = url.partition("://")[0] in _BUCKETS and not filesystem.exists(bucket)
        reason = f", because the bucket {bucket!r} does not exist or cannot be accessed" if is_missing else ""
        raise FileNotFoundError(f"no file matches {public_url(url)!r}{reason}")
    files = [SourceFile(_address(name, url, path), info.get("size"), _stamp(info)) for name, info in found.items()]
    unknown = [file.url for file in files if not file.stamp or is_zarr(file.url)]
    calls = call_each(partial(identity_of, storage_options=storage_options), unknown, "zarrasync-files")
    known = dict(zip(unknown, calls, strict=True))
    return [known[file.url].result() if file.url in known else file for file in files]


def _existing(url: str, storage_options: Mapping[str, Any]) -> SourceFile | None:
    """Return the file with the name of a pattern; ``None`` if it does not exist."""
    try:
        return _remote_identity(url, storage_options)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):  # or it cannot be a name
        return None


def _remote_identity(url: str, storage_options: Mapping[str, Any]) -> SourceFile:
    filesystem, path = _filesystem(url, storage_options)
    if not is_zarr(url):
        try:
            info = filesystem.info(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"no file exists at {public_url(url)!r}") from error
        return SourceFile(url, info.get("size"), _stamp(info))
    stamp = _remote_root_stamp(filesystem, path)
    if not stamp and not filesystem.exists(path):
        raise FileNotFoundError(f"no Zarr hierarchy exists at {public_url(url)!r}")
    return SourceFile(url, None, f"{_digest(_listed(filesystem, path))} {stamp}")


def _remote_root_stamp(filesystem: Any, path: str) -> str:
    """Return the versions of the documents at the root of a hierarchy."""
    stamps = []
    for name in _root_documents():  # servers and object stores need not have directories
        with suppress(FileNotFoundError, PermissionError):  # as some servers answer for absent keys
            stamps.append(_stamp(filesystem.info(f"{path.rstrip('/')}/{name}")))
    return " ".join(stamps)


def _listed(filesystem: Any, path: str) -> list[str]:
    """Return the names, sizes and versions of all files in a hierarchy; ``[]`` if the server does not list them."""
    if "http" in filesystem.protocol:  # its listings are links of pages
        return []
    try:
        found = filesystem.find(path, detail=True)
    except (OSError, NotImplementedError) as error:
        if type(error) is OSError and "Forbidden" not in str(error):  # gcsfs raises nothing more specific
            raise
        return []
    return [f"{name} {info.get('size')} {_stamp(info)}" for name, info in found.items()]


def _digest(entries: Iterable[str]) -> str:
    """Return what identifies the state of a hierarchy, in which a chunk may change and the documents stay."""
    return hashlib.sha256("\n".join(sorted(entries)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _root_documents() -> list[str]:
    """Return the keys of the documents that the root of a hierarchy can have."""
    keys = [key for format_ in formats.CANDIDATES for key in (*format_.document_keys(""), format_.consolidated_key(""))]
    return [key for key in dict.fromkeys(keys) if key is not None]


def _filesystem(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url, **storage_options)
    _forget_listings(filesystem)
    return filesystem, str(path)


def _forget_listings(filesystem: Any) -> None:
    """Remove the listings that a filesystem has kept, because they may be outdated.

    Threads share an asynchronous filesystem, whose event loop may be reading the listings.
    """
    if not filesystem.async_impl:
        filesystem.invalidate_cache()
        return
    from fsspec.asyn import sync

    async def forget() -> None:
        filesystem.invalidate_cache()

    sync(filesystem.loop, forget)


def _address(name: str, url: str, path: str) -> str:
    """Return the URL of a file that matches a pattern.

    Args:
        name: The name of the file in its filesystem.
        url: The URL of the pattern.
        path: The pattern in the filesystem.
    """
    first, chain, rest = url.partition("::")
    protocol, separator, _ = first.partition("://")
    if "://" in name:
        return name if separator else f"{first}::{name}"
    if separator and first.endswith(path):  # with the host, and as many slashes as the pattern
        return f"{first.removesuffix(path)}{name}{chain}{rest}"
    return f"{protocol}://{name.lstrip('/')}{chain}{rest}"


def _stamp(info: Mapping[str, Any]) -> str:
    """Return the version or the time of a file. Some filesystems list times as numbers, which they return as dates elsewhere."""
    stamp: Any = next((info[key] for key in _STAMPS if info.get(key)), "")
    if stamp is info.get("created") and isinstance(stamp, float):
        stamp = datetime.fromtimestamp(stamp, UTC)
    return str(stamp).strip('"')


T = TypeVar("T")
R = TypeVar("R")
_THREADS = 16


def call_each(function: Callable[[T], R], items: Sequence[T], name: str) -> list[Future[R]]:
    """Call a function with each item, on several threads. Return when all calls have ended.

    Args:
        function: The function.
        items: The items.
        name: The name of the threads.
    """
    if not items:
        return []
    executor = clock.current().executor(name, min(_THREADS, len(items)))
    try:
        calls = [executor.submit(partial(function, item)) for item in items]
        clock.current().wait_for(calls)
    finally:
        executor.shutdown(cancel_futures=True)
    return calls
