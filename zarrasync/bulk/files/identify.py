"""The files that a pattern or a list means, with their identities."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zarrasync.bulk.files.headers import SourceFile
from zarrasync.stores.local import local_path

__all__ = ["find_files", "means_files"]

_MAGIC = re.compile(r"[*?\[]")
_SUFFIXES = (
    *(".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5"),
    *(".grib", ".grib2", ".grb", ".grb2", ".tif", ".tiff", ".npz"),
)


def means_files(source: Any) -> bool:
    """Return whether a source of ``ingest`` is a pattern, a list of paths, or the path of a file with variables."""
    if isinstance(source, str | Path):
        text = str(source)
        return _MAGIC.search(text.rpartition("://")[2]) is not None or text.lower().endswith(_SUFFIXES)
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(item, str | Path) for item in source)


def find_files(sources: Any, storage_options: Mapping[str, Any]) -> list[SourceFile]:
    """Return the files of a pattern, a path, or a list of them, in order of their names and without repetitions.

    Raises:
        FileNotFoundError: If a file does not exist, or nothing matches a pattern.
    """
    items = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    files: dict[str, SourceFile] = {}
    for item in items:
        text = os.fspath(item)
        path = local_path(text) if text.startswith("file://") else text
        found = _remote(path, storage_options) if "://" in path else _local(path)
        files.update((file.url, file) for file in sorted(found, key=lambda file: natural_key(file.url)))
    if not files:
        raise FileNotFoundError("no source files: the list is empty")
    return list(files.values())


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key in which numbers compare as numbers, so that ``a9`` comes before ``a10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part]


def _local(path: str) -> Iterable[SourceFile]:
    names = [path] if os.path.exists(path) else glob.glob(path, recursive=True)
    if not names:
        raise FileNotFoundError(f"no file matches {path!r} (in {os.getcwd()})")
    for name in names:
        if os.path.isdir(name):  # a Zarr hierarchy: its root document stands for it
            documents = [entry for entry in os.scandir(name) if entry.is_file()]
            latest = max((entry.stat().st_mtime_ns for entry in documents), default=0)
            yield SourceFile(os.path.abspath(name), None, str(latest))
        else:
            state = os.stat(name)
            yield SourceFile(os.path.abspath(name), state.st_size, str(state.st_mtime_ns))


def _remote(url: str, storage_options: Mapping[str, Any]) -> Iterable[SourceFile]:
    import fsspec

    protocol = url.partition("://")[0]
    filesystem, path = fsspec.core.url_to_fs(url, **storage_options)
    if _MAGIC.search(url.rpartition("://")[2]):
        found: dict[str, Any] = filesystem.glob(path, detail=True)
    else:
        found = {path: filesystem.info(path)}
    if not found:
        raise FileNotFoundError(f"no file matches {url!r}")
    for name, info in found.items():
        stamp = next((info[key] for key in ("ETag", "etag", "LastModified", "mtime", "updated") if info.get(key)), "")
        address = name if "://" in name else f"{protocol}://{name.lstrip('/') if protocol != 'memory' else name}"
        yield SourceFile(address, info.get("size"), str(stamp).strip('"'))
