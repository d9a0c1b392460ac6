"""Key-value stores. ``resolve`` makes one from a path, a URL, a mapping and other objects."""

from __future__ import annotations

from zarrasync.stores.base import Store
from zarrasync.stores.cache import CachingStore
from zarrasync.stores.cloud.obstore import ObjectStore
from zarrasync.stores.counting import CountingStore, TracingStore
from zarrasync.stores.disk_cache import DiskCachingStore
from zarrasync.stores.fsspec.store import FsspecStore
from zarrasync.stores.http.store import HTTPStore
from zarrasync.stores.local import LocalStore
from zarrasync.stores.memory import MemoryStore
from zarrasync.stores.remote_zip import RemoteZipStore
from zarrasync.stores.resolve import StoreLike, resolve
from zarrasync.stores.values import ABSENT, Listing, Request, Value
from zarrasync.stores.wrappers import PrefixStore, ReadOnlyStore, WrapperStore
from zarrasync.stores.zarr_python import ZarrPythonStore
from zarrasync.stores.zip import ZipStore

__all__ = [
    "ABSENT",
    "CachingStore",
    "CountingStore",
    "DiskCachingStore",
    "FsspecStore",
    "HTTPStore",
    "Listing",
    "LocalStore",
    "MemoryStore",
    "ObjectStore",
    "PrefixStore",
    "ReadOnlyStore",
    "RemoteZipStore",
    "Request",
    "Store",
    "StoreLike",
    "TracingStore",
    "Value",
    "WrapperStore",
    "ZarrPythonStore",
    "ZipStore",
    "resolve",
]
