"""URL pipelines: ``s3://bucket/data.zip|zip:inner/|zarr3:``, a URL followed by adapters, each of what stands left of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from zarrasync._util import plugins
from zarrasync._util.redact import redact
from zarrasync.errors import UnknownAdapterError
from zarrasync.stores.base import Store
from zarrasync.stores.icechunk import open_repository
from zarrasync.stores.local import local_path
from zarrasync.stores.locations import Location
from zarrasync.stores.remote_zip import RemoteZipStore
from zarrasync.stores.zip import ZipStore
from zarrasync.stores.zip_format import is_archive_name

_ADAPTER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?::(.*))?", re.DOTALL)
Resolve: TypeAlias = Callable[[str, Mapping[str, Any]], Store]
"""Makes the store of a path or URL with storage options."""
Adapter: TypeAlias = Callable[[Location, str], Location]
"""Adapts a location. The second argument is what follows the colon of the adapter's scheme, as in the URL."""


def is_pipeline(string: str) -> bool:
    """Return whether a string is a pipeline, and not the path of an existing local file or directory."""
    return "|" in string and ("://" in string.partition("|")[0] or not os.path.lexists(string))


def is_archive_url(url: str) -> bool:
    """Return whether a URL is the one of a zip archive by its name. With a slash at its end, it is a directory."""
    path = urlsplit(url).path if url.startswith(("http://", "https://")) else url
    return is_archive_name(path) and "::" not in url


def open_pipeline(url: str, storage_options: Mapping[str, Any] | None, resolve: Resolve) -> Store:
    """Return the store that a pipeline denotes.

    Args:
        url: The pipeline.
        storage_options: Options of the URL at its beginning.
        resolve: Makes the store of that URL.

    Raises:
        UnknownAdapterError: If no adapter has the scheme.
        ValueError: If the pipeline is malformed, or an adapter does not fit its place.
        TypeError: If options are passed for a local path.
    """
    root, *segments = url.split("|")
    if not root.strip():
        raise ValueError(f"{url!r} does not start with a path or URL, to which the first adapter applies")
    location = _root(root.strip(), storage_options or {}, resolve)
    for segment in segments:
        match = _ADAPTER.fullmatch(segment.strip())
        if match is None:
            raise ValueError(
                f"{'…' if '?' in root else segment!r} in {redact(url)!r} is not an adapter, such as 'zip:' or 'zarr3:path'; "
                f"{_advice(root)}"
            )
        adapt = _find_adapter(match[1].lower(), url, is_secret="?" in root and match[2] is None)
        location = replace(adapt(location, match[2] or ""), url=f"{location.url}|{segment}")
    store = location.open_directory()
    store.zarr_format = location.zarr_format
    return store


def _root(url: str, storage_options: Mapping[str, Any], resolve: Resolve) -> Location:
    """Return the location of the path or URL at the beginning of a pipeline."""
    if url.startswith("memory:") and "://" not in url:
        url = f"memory://{url.removeprefix('memory:').lstrip('/')}"
    is_local = url.startswith("file:") or "://" not in url
    if is_local and storage_options:
        raise TypeError(f"storage_options are for URLs of services; {url!r} is a local path")
    path = local_path(url) if url.startswith("file:") else os.path.expanduser(url)

    def open_value() -> tuple[Store, str]:
        parent, key = os.path.split(path) if is_local else _split(url)
        return resolve(parent or ".", storage_options), key

    def open_directory() -> Store:
        return resolve(path if is_local else url, storage_options)

    return Location(url, open_directory, open_value, path if is_local else None, storage_options)


def _split(url: str) -> tuple[str, str]:
    """Split the URL of a value into the URL of a store and the value's key."""
    if url.startswith(("http://", "https://")):
        parts = urlsplit(url)
        parent, _, name = parts.path.rpartition("/")
        return urlunsplit(parts._replace(path=f"{parent}/")), unquote(name)
    protocol, _, path = url.rpartition("://")
    parent, slash, name = path.rpartition("/")
    return f"{protocol}://{parent}{slash}", name


def _find_adapter(scheme: str, url: str, *, is_secret: bool) -> Adapter:
    """Return the adapter of a scheme.

    Args:
        scheme: The scheme.
        url: The pipeline.
        is_secret: Whether an unknown scheme may be a part of a URL's query, which messages never contain.
    """
    adapter: Adapter | None = _ADAPTERS.get(scheme) or plugins.find(plugins.URL_ADAPTERS, scheme)
    if adapter is None:
        known = sorted({*_ADAPTERS, *plugins.entry_points_in(plugins.URL_ADAPTERS)})
        shown = "…" if is_secret else scheme
        raise UnknownAdapterError(
            f"unknown adapter {shown!r} in the URL {redact(url)!r}: the known ones are {', '.join(known)}; install a "
            f"package that provides it; {_advice(url)}",
            scheme=scheme,
            known=tuple(known),
        )
    return adapter


def _advice(url: str) -> str:
    """Return how to write a vertical line that belongs to a path or URL."""
    if url.startswith(("http://", "https://")):
        return "write %7C for a '|' that belongs to the URL, such as in its query"
    if "://" in url:
        return "pass the URL of a directory above with path=… for a '|' that belongs to a key"
    return "pass a pathlib.Path for a local path that contains '|'"


def _zip(location: Location, path: str) -> Location:
    """Adapt a zip archive. Local archives can be written."""
    if location.local_path is not None:
        return location.inside(ZipStore(location.local_path, mode="auto"), path)
    return replace(location.inside(RemoteZipStore(*location.open_value()), path), zarr_format=None)


def _zarr(location: Location, path: str) -> Location:
    """Adapt a hierarchy of any format."""
    return location.inside(location.open_directory(), path)


def _zarr_of_format(zarr_format: int, location: Location, path: str) -> Location:
    """Adapt a hierarchy of a format."""
    if location.zarr_format not in (None, zarr_format):
        raise ValueError(
            f"{redact(location.url)!r} is followed by 'zarr{zarr_format}:', but names Zarr format "
            f"{location.zarr_format}; keep the adapter of the format in which the hierarchy is stored"
        )
    return replace(_zarr(location, path), zarr_format=zarr_format)


_ADAPTERS: dict[str, Adapter] = {
    "icechunk": open_repository,
    "zarr": _zarr,
    "zarr2": partial(_zarr_of_format, 2),
    "zarr3": partial(_zarr_of_format, 3),
    "zip": _zip,
}
