"""A new store for each example of a state machine."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import obstore.store

from zarrasync import stores
from zarrasync.testing import LatencyStore

Maker = Callable[[Path], stores.Store]
_numbers = itertools.count()


def fresh_path(folder: Path) -> Path:
    """Return a path below a folder that no other example has."""
    return folder / str(next(_numbers))


def _fsspec_local(path: Path) -> stores.Store:
    return stores.FsspecStore(fsspec.filesystem("file"), str(path))


def _obstore_local(path: Path) -> stores.Store:
    return stores.resolve(obstore.store.LocalStore(path, mkdir=True))


def _asynchronous(path: Path) -> stores.Store:
    return LatencyStore(stores.MemoryStore(), 0)


NODE_STORES: dict[str, Maker] = {
    "memory": lambda path: stores.MemoryStore(),
    "asynchronous": _asynchronous,
    "local": stores.LocalStore,
}
"""Makers of the stores on which arrays and groups are tested: the two kinds of the engine, and files."""

STORES: dict[str, Maker] = NODE_STORES | {
    "zip": lambda path: stores.ZipStore(path, mode="a"),
    "fsspec-memory": lambda path: stores.resolve(f"memory://{uuid.uuid4().hex}"),
    "fsspec-local": _fsspec_local,
    "obstore-memory": lambda path: stores.resolve(obstore.store.MemoryStore()),
    "obstore-local": _obstore_local,
    "prefix": lambda path: stores.PrefixStore(stores.LocalStore(path), "some/where/"),
    "caching": lambda path: stores.CachingStore(stores.LocalStore(path)),
    "caching-asynchronous": lambda path: stores.CachingStore(_asynchronous(path), 200),
    "caching-obstore": lambda path: stores.CachingStore(_obstore_local(path)),
    "disk-caching": lambda path: stores.DiskCachingStore(_fsspec_local(path / "inner"), path / "cache"),
    "disk-caching-obstore": lambda path: stores.DiskCachingStore(_obstore_local(path / "inner"), path / "cache", 200),
}
NOT_PICKLED = tuple(
    STORES[kind] for kind in ("zip", "obstore-memory", "memory", "asynchronous", "caching-asynchronous")
)
"""An archive that is written belongs to one process, as do values in memory, of which pickled stores are copies to read."""
HAS_DIRECTORIES = [
    STORES[kind]
    for kind in STORES
    if kind.startswith(("local", "fsspec", "prefix", "caching", "disk", "obstore-local"))
]
"""Stores that also list directories in which no values are left."""
