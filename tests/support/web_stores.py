"""The stores that read from a web server, each of which takes another way to the bodies of responses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zarrasync import config, stores

__all__ = ["WAYS", "web_store"]

WAYS = ("lean", "general", "fsspec", "references")
"""Our own client, aiohttp, aiohttp within fsspec, and fsspec's references to URLs. A fsspec ``cache`` is another one,
whose files are stored as aiohttp decodes them."""


def web_store(
    way: str, url: str, keys: Iterable[str] = ("zarr.json", "c/0"), cache_folder: Path | str = ""
) -> stores.Store:
    """Return a store below a URL, which repeats no requests.

    Args:
        way: One of ``WAYS``, or ``cache``.
        url: The URL.
        keys: The keys that references contain.
        cache_folder: Where a cache stores files.
    """
    with config.set(retries=0):
        if way == "lean":
            return stores.HTTPStore(url)
        if way == "general":
            return stores.HTTPStore(url, client_options={"trust_env": False})
        if way == "fsspec":
            return stores.resolve(url, {"backend": "fsspec"})
        if way == "references":
            from fsspec.implementations.reference import ReferenceFileSystem

            references = {key: [f"{url}/{key}"] for key in keys}
            return stores.FsspecStore(ReferenceFileSystem(references, remote_protocol="http", skip_instance_cache=True))
        return stores.resolve(f"simplecache::{url}", {"simplecache": {"cache_storage": str(cache_folder)}})
