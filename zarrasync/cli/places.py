"""The hierarchy that a URL belongs to, whose groups may contain copies of documents below them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from zarrasync import sync
from zarrasync.cli.arguments import options
from zarrasync.errors import NodeNotFoundError, NodeTypeError, StoreError
from zarrasync.model.paths import join, normalize_path
from zarrasync.stores.local import local_path
from zarrasync.stores.pipelines import is_pipeline
from zarrasync.stores.zip_format import is_archive_name


def open_in_hierarchy(args: argparse.Namespace) -> sync.Array | sync.Group:
    """Open the node that the arguments specify for writing, through the root of its hierarchy."""
    storage_options = options(args.option)
    sync.open(args.url, path=args.path, storage_options=storage_options).close()  # raises if it does not exist
    root, below = hierarchy_of(args.url, storage_options)
    path = join(below, normalize_path(args.path))
    return sync.open(root, path=path, mode="r+", storage_options=storage_options)


def hierarchy_of(url: str, storage_options: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the URL of the highest group above a URL, without gaps in between, and the path from there.

    Returns:
        The URL itself and an empty path if no group exists directly above it.
    """
    if is_pipeline(url) or is_archive_name(url):
        return url, ""
    top, parts = split_url(url)
    found = url, ""
    for count in range(len(parts) - 1, -1, -1):
        above = top + "/".join(parts[:count])
        try:
            group = open_group(above, storage_options)
        except (StoreError, OSError):  # credentials may not include the root of a bucket
            break
        if group is None:
            break
        found = above, "/".join(parts[count:])
    return found


def open_group(url: str, storage_options: Mapping[str, Any] | None) -> sync.Group | None:
    """Open a group for writing, without its consolidated metadata; ``None`` if it does not exist."""
    try:
        return sync.open_group(url, mode="r+", use_consolidated=False, storage_options=storage_options)
    except (NodeNotFoundError, NodeTypeError):
        return None


def split_url(url: str) -> tuple[str, list[str]]:
    """Return the beginning of a URL up to its host or bucket, or the root of the file system, and the other parts."""
    if "://" not in url or url.startswith("file:"):
        path = os.path.abspath(local_path(url) if url.startswith("file:") else url)
        drive, rest = os.path.splitdrive(path)
        return f"{drive}{os.sep}", [part for part in rest.split(os.sep) if part]
    scheme, _, rest = url.partition("://")
    host, *parts = rest.split("/")
    return f"{scheme}://{host}/", [part for part in parts if part]
