"""Making a store of whatever users pass: paths, URLs, mappings, filesystems, stores of other libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from zarrasync import config as settings
from zarrasync.stores.base import Store
from zarrasync.stores.cloud.obstore import ObjectStore, usable
from zarrasync.stores.cloud.storage_options import translate
from zarrasync.stores.fsspec.store import FsspecStore
from zarrasync.stores.http.store import HTTPStore
from zarrasync.stores.local import LocalStore, local_path
from zarrasync.stores.memory import MemoryStore
from zarrasync.stores.wrappers import PrefixStore, ReadOnlyStore
from zarrasync.stores.zarr_python import ZarrPythonStore, is_zarr_store
from zarrasync.stores.zip import ZipStore

__all__ = ["StoreLike", "resolve"]


StoreLike: TypeAlias = Any
"""A store, a path, a URL, a mapping, or an fsspec filesystem or mapper."""


def resolve(
    store: StoreLike,
    storage_options: Mapping[str, Any] | None = None,
    config: settings.Config | Mapping[str, Any] | None = None,
) -> Store:
    """A store of whatever stands for one. Does no IO, but to see whether ``x.zip`` is a file.

    Args:
        store: A ``Store``; a path; a URL (any that fsspec knows, also chained ones); a mutable mapping;
            an fsspec mapper or path object (anything with ``fs`` and ``path``, or ``fs`` and ``root``); or an
            fsspec filesystem (its root). ``None`` is a new store in memory.
        storage_options: Options for the filesystem of a URL, in fsspec's words. Where there are other ways than
            fsspec (obstore for object stores, aiohttp for the web) ``backend="fsspec"`` or ``"obstore"`` chooses.
        config: Settings that a store which is made here takes: retries, time limits, concurrency, ``fsync``.

    Raises:
        TypeError: If it is none of these, or options are given for something that takes none.
        ValueError: If no filesystem is known for a URL's protocol.
    """
    with settings.using(config):
        return _resolve(store, storage_options)


def _resolve(store: StoreLike, storage_options: Mapping[str, Any] | None) -> Store:
    if isinstance(store, str) and _is_url(store):
        if store.startswith("file://") and not storage_options:
            return LocalStore(local_path(store))
        return _from_url(store, dict(storage_options or {}))
    if storage_options:
        raise TypeError(f"storage_options are for URLs; {store!r} is not one")
    if store is None:
        return MemoryStore()
    if isinstance(store, Store):
        return store
    if isinstance(store, str | Path):
        # A directory may be called so, too.
        return ZipStore(store) if str(store).endswith(".zip") and os.path.isfile(store) else LocalStore(store)
    fs = getattr(store, "fs", None)
    if fs is not None and hasattr(fs, "async_impl"):
        found = _fsspec(FsspecStore(fs, str(getattr(store, "root", None) or getattr(store, "path", ""))))
        return ReadOnlyStore(found) if is_zarr_store(store) and store.read_only else found
    if isinstance(store, MutableMapping):
        return MemoryStore(store)
    if is_zarr_store(store):
        inner = getattr(store, "inner", None)  # one of ours in zarr-python's clothes is ours
        if isinstance(inner, Store):
            return inner
        if type(store).__module__.startswith("zarr.") and type(store).__name__ in ("LocalStore", "ObjectStore"):
            own = _resolve(store.root if type(store).__name__ == "LocalStore" else store.store, None)
            return ReadOnlyStore(own) if store.read_only else own  # which can compare
        return ZarrPythonStore(store)
    if type(store).__module__.startswith("obstore."):
        if type(store).__name__ == "LocalStore":  # which can not compare
            return LocalStore(store.prefix or "/")
        return ObjectStore(store)
    if hasattr(store, "async_impl"):
        return _fsspec(FsspecStore(store))
    if isinstance(store, os.PathLike):
        return LocalStore(store)
    if is_zarr_store(inner := getattr(store, "store", None)):  # zarr-python's places in stores, icechunk's sessions
        whole, path = _resolve(inner, None), getattr(store, "path", "")
        return PrefixStore(whole, f"{path}/") if path and isinstance(path, str) else whole
    raise TypeError(
        f"{type(store).__name__} is not a store: give a Store, a path, a URL, a mutable mapping, "
        "an fsspec filesystem or mapper, an obstore store, or a store of zarr-python"
    )


def _is_url(text: str) -> bool:
    """Whether a text is a URL or a chain of them, and not a path with colons in it."""
    head, chained, rest = text.partition("::")
    if "://" in head or not chained:
        return "://" in text
    from fsspec import available_protocols

    # Those that a program has registered itself are not among the known ones.
    return head in available_protocols() or ("://" in rest and "/" not in head)


_BACKENDS = ("auto", "fsspec", "obstore")


_OWN_OPTIONS = ("concurrency", "missing")


def _from_url(url: str, options: dict[str, Any]) -> Store:
    """The store that suits a URL's protocol, or that of the ``backend`` that the options name."""
    backend = options.pop("backend", "auto")
    if backend not in _BACKENDS:
        raise ValueError(f"backend is one of {', '.join(_BACKENDS)}; found {backend!r}")
    web = url.startswith(("http://", "https://"))  # in a chain that is the last; an address may have colons, too
    if backend == "auto" and web and HTTPStore.takes(options):
        return HTTPStore.from_url(url, options)
    if backend == "obstore":
        return ObjectStore.from_url(url, options)
    if backend == "auto" and _suits_obstore(url, options):
        return ObjectStore.from_url(url, options, instead=partial(FsspecStore.from_url, url, options))
    return _fsspec(FsspecStore.from_url(url, options))


def _suits_obstore(url: str, options: Mapping[str, Any]) -> bool:
    """Whether obstore is here, knows the URL's service, and has a counterpart of every option."""
    return (
        translate(url, {name: value for name, value in options.items() if name not in _OWN_OPTIONS}) is not None
        and find_spec("obstore") is not None
        and usable()
    )


def _fsspec(store: FsspecStore) -> Store:
    """The store, or that of local files where it is one: fsspec writes files in place, so half a one can be read."""
    return store if store._files is None else store._files
