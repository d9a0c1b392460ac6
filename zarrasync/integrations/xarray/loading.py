"""``load``, which reads all variables at the same time."""

from __future__ import annotations

from typing import TypeVar

from xarray import DataArray, Dataset, DataTree

from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather

__all__ = ["load"]

Loadable = TypeVar("Loadable", Dataset, DataArray, DataTree)


def load(data: Loadable) -> Loadable:
    """Read all values of a dataset, an array or a tree into memory, all variables at the same time.

    xarray's ``data.load()`` reads one variable after the other, each with its own round trips. This function can also be
    called inside a running event loop, as in notebooks; elsewhere ``await data.load_async()`` does the same.

    Args:
        data: What ``xarray`` opened with any engine. It is changed.

    Returns:
        The same object.

    Example:
        >>> import xarray as xr
        >>> store = sync.create_group({}).store
        >>> _ = sync.create_array(store, path="t2m", data=[280.0, 281.5], dimension_names=["time"])
        >>> load(xr.open_dataset(store, engine="zarrasync")).t2m.values.tolist()
        [280.0, 281.5]
    """
    parts = [node.dataset for node in data.subtree] if isinstance(data, DataTree) else [data]
    bridge.run(gather([part.load_async for part in parts]), blocking=False)
    return data
