"""A store of every writable kind."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from zarrasync import stores
from zarrasync.testing import LatencyStore

WRITEABLE = [
    "memory",
    "local",
    "fsspec-memory",
    "fsspec-local",
    "s3",
    "obstore",
    "zarr-python",
    "prefix",
    "counting",
    "caching",
    "caching-s3",
    "disk-caching",
    "tracing",
    "latency",
    "zip",
    "gcs",
    "gcs-obstore",
    "azure",
    "azure-obstore",
]
SERVED = {"http", "s3", "obstore", "caching-s3", "disk-caching", "gcs", "gcs-obstore", "azure", "azure-obstore"}
"""The kinds that need a server, and the web server."""


def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    if kind == "memory":
        return stores.MemoryStore()
    if kind == "local":
        return stores.LocalStore(tmp_path / "local")
    if kind == "fsspec-memory":
        return stores.resolve(f"memory://{uuid.uuid4().hex}")
    if kind == "fsspec-local":
        import fsspec

        return stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "fsspec"))
    if kind == "s3":
        url, options = request.getfixturevalue("s3")
        return stores.resolve(url, {**options, "backend": "fsspec"})
    if kind == "zarr-python":
        zarr = pytest.importorskip("zarr")
        return stores.resolve(zarr.storage.LocalStore(tmp_path / "theirs"))
    if kind == "obstore":
        pytest.importorskip("obstore")
        url, options = request.getfixturevalue("s3")
        # The default over TLS, where signatures do not cover values.
        return stores.ObjectStore.from_url(url, {**options, "aws_unsigned_payload": True})
    if kind == "caching":
        return stores.CachingStore(stores.LocalStore(tmp_path / "cached"))
    if kind == "caching-s3":
        return stores.CachingStore(make_store("obstore", request, tmp_path))
    if kind == "disk-caching":
        return stores.DiskCachingStore(make_store("obstore", request, tmp_path), tmp_path / "kept")
    if kind == "tracing":
        return stores.TracingStore(stores.MemoryStore())
    if kind == "latency":
        return LatencyStore(stores.MemoryStore(), 0.001)
    if kind == "zip":
        return stores.ZipStore(tmp_path / "written.zip", mode="w")
    if kind == "gcs":
        url, options = request.getfixturevalue("gcs")
        return stores.resolve(url, {**options, "backend": "fsspec"})
    if kind == "gcs-obstore":
        return stores.resolve("gs://bucket/somewhere", request.getfixturevalue("google").options())
    if kind.startswith("azure"):
        url, options = request.getfixturevalue("azure")
        return stores.resolve(url, {**options, "backend": "obstore" if kind.endswith("obstore") else "fsspec"})
    if kind == "prefix":
        return stores.PrefixStore(stores.MemoryStore(), "some/where/")
    return stores.CountingStore(stores.LocalStore(tmp_path / "counted"))
