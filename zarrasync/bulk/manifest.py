"""Manifests of the files below a path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from zarrasync import config as settings
from zarrasync.bulk.digests import Manifest, digest_files, prefix_of
from zarrasync.errors import NodeNotFoundError, ZarrError
from zarrasync.nodes.node import run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import ReadOnlyStore, StoreLike, resolve


async def manifest(
    store: StoreLike,
    *,
    path: str = "",
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> Manifest:
    """Compute the digests of all files below a path: documents, chunks and files that are not Zarr's.

    Files are read concurrently and in parts, within ``config.memory_budget``. ``validate`` compares a store with a
    manifest.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path in the store.
        storage_options: Options for the filesystem of a URL.
        config: Settings.

    Returns:
        The digests by key relative to the path, and the digest of the whole as DANDI's ``zarr_checksum`` computes it.

    Raises:
        NodeNotFoundError: If the path contains no files.
        StoreError: If a file cannot be read.
        UnsupportedOperation: If the store cannot list.

    Example:
        >>> store = {"a/zarr.json": b"{}"}
        >>> found = await za.manifest(store, path="a")
        >>> found.files["zarr.json"]
        FileDigest(md5='99914b932bd37a50b983c5e7c90ae93b', size=2)
        >>> found.digest
        'f0699a280f5de8a2aa0eb26551eb2fa4-1--2'
    """
    values = settings.resolve(config)
    source = ReadOnlyStore(resolve(store, storage_options, values))
    prefix = prefix_of(path)
    keys = await run_on_store(partial(source.list_prefix, prefix), source)
    if not keys:
        raise NodeNotFoundError(f"no files exist below /{prefix[:-1]} in {source!r}", path=prefix[:-1])

    def on_error(key: str, error: ZarrError) -> None:
        raise error

    return Manifest(await digest_files(source, prefix, keys, values, on_error))
