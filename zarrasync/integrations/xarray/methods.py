"""``to_xarray`` of groups and arrays. Entry points register these functions as methods, because nodes import nothing above them."""

from __future__ import annotations

from typing import Any

import xarray as xr

from zarrasync import sync
from zarrasync.errors import NodeNotFoundError, NodeTypeError
from zarrasync.integrations.xarray.backend import ZarrasyncBackend
from zarrasync.integrations.xarray.read import stored_variable
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup


def group_to_xarray(group: AsyncGroup, **options: Any) -> xr.Dataset:
    """Open a group as a dataset; see ``AsyncGroup.to_xarray``."""
    return _open_dataset(group, group.path, options)


def array_to_xarray(array: AsyncArray, **options: Any) -> xr.DataArray:
    """Open an array as a variable with the coordinates in its group; see ``AsyncArray.to_xarray``."""
    parent, _, name = array.path.rpartition("/")
    if name:
        for path in (parent, array.path):  # the level of a pyramid is a dataset
            try:
                dataset = _open_dataset(array, path, options)
            except (NodeNotFoundError, NodeTypeError):
                continue
            variables = {**dataset.data_vars, **dataset.coords}
            if path == parent and name in variables:
                return variables[name]
            if path == array.path and len(dataset.data_vars) == 1:
                return next(iter(dataset.data_vars.values()))
    variable = stored_variable(
        variable_name(name), sync.Array(array), mask=options.pop("use_zarr_fill_value_as_mask", None)
    )
    decoding = {key: value for key, value in options.items() if key != "chunks"}
    result = xr.decode_cf(xr.Dataset({variable_name(name): variable}), **decoding)[variable_name(name)]
    return result.chunk(options["chunks"]) if options.get("chunks") is not None else result


def variable_name(name: str) -> str:
    """Return the name of the variable of an array, which has none at the root of a store."""
    return name or "data"


def _open_dataset(node: AsyncArray | AsyncGroup, path: str, options: dict[str, Any]) -> xr.Dataset:
    settings = {"group": path, "zarr_format": node.zarr_format, "config": node.config}
    return xr.open_dataset(node.store, engine=ZarrasyncBackend, **{**settings, **options})  # type: ignore[arg-type]
