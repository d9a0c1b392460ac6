"""Making a store from a user's argument: a path, URL, mapping, filesystem, or store of another library."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from zarrasync import config as settings
from zarrasync._util.redact import public_url, redacted_errors
from zarrasync.stores.base import Store
from zarrasync.stores.cloud.buckets import is_usable
from zarrasync.stores.cloud.obstore import ObjectStore
from zarrasync.stores.cloud.storage_options import to_obstore
from zarrasync.stores.fsspec.store import FsspecStore
from zarrasync.stores.http.store import HTTPStore
from zarrasync.stores.icechunk import session_store
from zarrasync.stores.local import LocalStore, local_path
from zarrasync.stores.memory import MemoryStore
from zarrasync.stores.pipelines import is_archive_url, is_pipeline, open_pipeline
from zarrasync.stores.remote import bounded
from zarrasync.stores.wrappers import PrefixStore, ReadOnlyStore
from zarrasync.stores.zarr_python import ZarrPythonStore, is_zarr_store
from zarrasync.stores.zip import ZipStore
from zarrasync.stores.zip_format import is_archive_name

StoreLike: TypeAlias = Any
"""A store, a path, a URL, a mapping, or an fsspec filesystem or mapper."""

_BACKENDS = ("auto", "fsspec", "obstore")
_BUCKETS = ("s3://", "s3a://", "s3n://", "gs://", "gcs://")
"""URLs of buckets, whose names have no user and password. Libraries would take these for a part of the name, and quote it."""
_STORE_OPTIONS = ("concurrency", "missing")
"""Options that stores take themselves, whatever the backend."""


def resolve(
    store: StoreLike,
    storage_options: Mapping[str, Any] | None = None,
    config: settings.Config | Mapping[str, Any] | None = None,
) -> Store:
    """Make a store from an object that represents one, without IO except to check whether ``x.zip`` is a file.

    Args:
        store: A ``Store``, a path, a mutable mapping, an obstore store, or an object with zarr-python's store interface.
            A URL may be any that fsspec supports, including chains, or a pipeline such as
            ``s3://bucket/data.zip|zip:|zarr3:``. URLs that end with ``.zip`` or ``.ozx`` are archives. Objects of fsspec may be filesystems, mappers and
            paths: anything with ``fs`` and ``path`` or ``root``. ``None`` makes a new store in memory.
        storage_options: Options of fsspec's filesystem for a URL. If there are alternatives to fsspec (obstore for
            object storage, aiohttp for HTTP), ``backend="fsspec"`` or ``"obstore"`` selects one.
        config: Settings of a store that is made here: retries, timeouts, ``fsync``. ``concurrency`` limits the requests at
            any store.

    Raises:
        TypeError: If the object does not represent a store, or options are passed for something other than a URL.
        UnknownAdapterError: If no filesystem is known for a URL's protocol.
        ValueError: If the URL of a bucket contains credentials.
    """
    if isinstance(store, Store) and not storage_options:
        return bounded(store, settings.resolve(config).concurrency)
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise TypeError(f"storage_options is a mapping from options to values, not {storage_options!r}")
    with (
        redacted_errors({"url": store if isinstance(store, str) else None}, storage_options),
        settings.using(config),
    ):
        return bounded(_resolve(store, storage_options), settings.get().concurrency)


def _resolve(store: StoreLike, storage_options: Mapping[str, Any] | None) -> Store:
    if isinstance(store, str) and is_pipeline(store):
        return open_pipeline(store, storage_options, _resolve)
    if isinstance(store, str) and _is_url(store):
        if store.startswith("file:/") and not storage_options:
            return _from_path(local_path(store))
        if is_archive_url(store):
            return open_pipeline(f"{store}|zip:", storage_options, _resolve)
        return _from_url(store, dict(storage_options or {}))
    if storage_options:
        raise TypeError(f"storage_options are for URLs; {store!r} is not one")
    if store is None:
        return MemoryStore()
    if isinstance(store, Store):
        return store
    if isinstance(store, str | Path):
        if not str(store):
            raise ValueError("an empty string is not a path; use '.' for the current directory")
        return _from_path(store)
    fs = getattr(store, "fs", None)
    if fs is not None and hasattr(fs, "async_impl"):
        path = str(getattr(store, "root", None) or getattr(store, "path", ""))
        resolved = _prefer_local(FsspecStore(fs, path))
        return _read_only(resolved) if is_zarr_store(store) and store.read_only else resolved
    if isinstance(store, MutableMapping):
        return MemoryStore(store)
    if is_zarr_store(store):
        return _from_zarr_store(store)
    if type(store).__module__.startswith("obstore."):
        if type(store).__name__ == "LocalStore":  # without conditional writes
            return LocalStore(store.prefix or "/")
        return ObjectStore(store)
    if hasattr(store, "async_impl"):
        return _prefer_local(FsspecStore(store))
    if isinstance(store, os.PathLike):
        return LocalStore(store)
    if is_zarr_store(inner := getattr(store, "store", None)):  # zarr-python's StorePath, icechunk's sessions
        whole, path = _resolve(inner, None), getattr(store, "path", "")
        return PrefixStore(whole, f"{path}/") if path and isinstance(path, str) else whole
    raise TypeError(
        f"{type(store).__name__} is not a store: give a Store, a path, a URL, a mutable mapping, "
        "an fsspec filesystem or mapper, an obstore store, or a store of zarr-python"
    )


def _from_path(path: str | Path) -> Store:
    """Make a store for a zip archive or a directory. A directory with the name of an archive must exist."""
    if not is_archive_name(str(path)) or os.path.isdir(path):
        return LocalStore(path)
    if os.path.exists(path):
        return ZipStore(path)
    name = os.path.basename(path)
    reason = f"{name!r} does not exist; to create an archive, use stores.ZipStore({name!r}, mode='w') as the store"
    return ReadOnlyStore(LocalStore(path), reason)


def _read_only(store: Store) -> Store:
    """Return the store that a store of zarr-python with ``read_only`` stands for."""
    return ReadOnlyStore(store, f"the store of zarr-python over {store!r} is read-only; make it with read_only=False")


def _from_zarr_store(store: Any) -> Store:
    """Make a store from one with zarr-python's interface."""
    inner = getattr(store, "inner", None)  # zarrasync's adapter for zarr-python
    if isinstance(inner, Store):
        return inner
    kind = type(store).__name__
    if type(store).__module__.startswith("zarr.") and kind in ("LocalStore", "ObjectStore"):
        # Unlike zarr-python's, stores of this library support conditional writes.
        resolved = _resolve(store.root if kind == "LocalStore" else store.store, None)
        return _read_only(resolved) if store.read_only else resolved
    return session_store(store) or ZarrPythonStore(store)


def _prefer_local(store: FsspecStore) -> Store:
    """Return a store of local files if that is what fsspec accesses, because fsspec's writes are not atomic."""
    return store if store.local_store is None else store.local_store


def _is_url(string: str) -> bool:
    """Return whether a string is a URL or a chain of them, and not a path with colons."""
    head, chain, rest = string.partition("::")
    if "://" in head or not chain:
        return "://" in string or string.startswith("file:/")
    from fsspec import available_protocols

    # Protocols that a program has registered itself may not be among the available ones.
    return head in available_protocols() or ("://" in rest and "/" not in head)


def _from_url(url: str, options: dict[str, Any]) -> Store:
    """Make a store with the best backend for a URL and its options, or with the one in the option ``backend``."""
    if url.startswith(_BUCKETS) and public_url(place := url.partition("?")[0]) != place:
        raise ValueError(
            f"the URL {public_url(url)!r} contains credentials, but the URLs of buckets cannot; pass storage options"
        )
    backend = options.pop("backend", "auto")
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}; found {backend!r}")
    is_http = url.startswith(("http://", "https://"))  # also with "::" in the host or path
    if backend == "auto" and is_http and HTTPStore.takes(options):
        return HTTPStore.from_url(url, options)
    if backend == "obstore":
        return ObjectStore.from_url(url, options)
    if backend == "auto" and _can_use_obstore(url, options):
        return ObjectStore.from_url(url, options, instead=partial(FsspecStore.from_url, url, options))
    return _prefer_local(FsspecStore.from_url(url, options))


def _can_use_obstore(url: str, options: Mapping[str, Any]) -> bool:
    """Return whether obstore is installed, works in this process, and has an equivalent of the URL and every option."""
    service_options = {name: value for name, value in options.items() if name not in _STORE_OPTIONS}
    return to_obstore(url, service_options) is not None and find_spec("obstore") is not None and is_usable()
