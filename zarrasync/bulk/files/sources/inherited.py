"""Coordinates of dimensions in groups above the one that is read. netCDF-4 and the trees of xarray inherit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zarrasync.errors import NodeNotFoundError

__all__ = ["inherited_coordinates"]


def inherited_coordinates(
    dataset: Any, group: str, open_group: Callable[[str], Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the coordinates of dimensions without any in a group, from the nearest groups above that contain them.

    Args:
        dataset: The dataset of the group, of xarray.
        group: The path of the group.
        open_group: Opens the dataset of a group; an empty path is the root.

    Returns:
        The variables by name, and the datasets that were opened.
    """
    missing = {str(dim): size for dim, size in dataset.sizes.items() if dim not in dataset.variables}
    parts, found, opened = [part for part in group.split("/") if part], dict[str, Any](), list[Any]()
    while missing and parts:
        parts.pop()
        try:
            parent = open_group("/".join(parts))
        except (NodeNotFoundError, FileNotFoundError):  # a folder of a Zarr hierarchy that is not a group
            continue
        opened.append(parent)
        for dim, size in list(missing.items()):
            if parent.sizes.get(dim, size) != size:  # another dimension with the same name
                del missing[dim]
            elif dim in parent.variables and parent.variables[dim].dims == (dim,):
                found[dim] = parent.variables[dim]
                del missing[dim]
    return found, opened
