"""Parts of files that engines leave out: pages and subdatasets of files that rasterio reads, and groups of Zarr."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from zarrasync._concurrency import bridge
from zarrasync.errors import UnsupportedOperation
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open_group
from zarrasync.stores import Store, resolve


def unread_pages(dataset: Any, path: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the pages and subdatasets of a file that its dataset does not contain, by name, with the reason.

    rioxarray makes a variable of each one, and replaces those with equal names.

    Args:
        dataset: A dataset that rioxarray opened.
        path: The path of the file.
        options: The options of rioxarray. ``variable`` and ``group`` choose subdatasets, so nothing is left out then.
    """
    if options.get("variable") is not None or options.get("group") is not None:
        return {}
    rasterio = importlib.import_module("rasterio")  # optional, and without types

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about places, which rioxarray has reported
        with rasterio.open(path) as file:
            names = list(file.subdatasets)
    read = {variable.encoding.get("source") for variable in dataset.variables.values()}
    reason = "rioxarray gives it the name of another one; write it to a file of its own, such as with gdal_translate"
    return {_short(name, path): reason for name in names if name not in read}


def groups_of_zarr(url: str, group: str, storage_options: Mapping[str, Any]) -> dict[str, bool]:
    """Return the paths of the groups in a group of a Zarr hierarchy, parents first, and whether each one has arrays.

    Args:
        url: The path or the URL of the hierarchy. A store that cannot list shows no groups.
        group: The path of the group.
        storage_options: Options of the filesystem of the URL.
    """
    store = resolve(url, dict(storage_options) or None)
    try:
        members = bridge.run(_members(store, group), blocking=store.blocking)
    except UnsupportedOperation:
        return {}
    found = {"": False} | {name: False for name, node in members if not isinstance(node, AsyncArray)}
    return found | {name.rpartition("/")[0]: True for name, node in members if isinstance(node, AsyncArray)}


async def _members(store: Store, group: str) -> list[tuple[str, Any]]:
    async with store.in_use():
        return list(await (await open_group(store, path=group)).members(None))


def _short(name: str, path: str) -> str:
    """Return the name of a subdataset without the path of its file."""
    return name.replace(f":{path}", "").replace(f'"{path}"', "").replace(path, "").rstrip(":")
