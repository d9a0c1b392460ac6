"""Coordinates and bounds in groups above the one that is read. netCDF-4 and the trees of xarray inherit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zarrasync.bulk.files.sources.headers import references
from zarrasync.errors import NodeNotFoundError


def inherited_coordinates(
    dataset: Any, group: str, open_group: Callable[[str], Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the variables that a group needs and does not contain, from the nearest groups above that contain them.

    These are coordinates of dimensions, and variables to which attributes of CF refer, such as bounds.

    Args:
        dataset: The dataset of the group, of xarray.
        group: The path of the group.
        open_group: Opens the dataset of a group; an empty path is the root.

    Returns:
        The variables by name, and the datasets that were opened.
    """
    sizes = {str(dim): size for dim, size in dataset.sizes.items()}
    missing = sizes.keys() - dataset.variables.keys()
    wanted = _references(dataset.variables.values()) - dataset.variables.keys()
    parts, found, opened = [part for part in group.split("/") if part], dict[str, Any](), list[Any]()
    while (missing or wanted) and parts:
        parts.pop()
        try:
            parent = open_group("/".join(parts))
        except (NodeNotFoundError, FileNotFoundError):  # a folder of a Zarr hierarchy that is not a group
            continue
        opened.append(parent)
        for dim in list(missing):
            if parent.sizes.get(dim, sizes[dim]) != sizes[dim]:  # another dimension with the same name
                missing.remove(dim)
            elif dim in parent.variables and parent.variables[dim].dims == (dim,):
                found[dim] = parent.variables[dim]
                missing.remove(dim)
        wanted |= _references(found.values()) - dataset.variables.keys()
        while new := {name for name in wanted & parent.variables.keys() if _fits(parent.variables[name], sizes)}:
            found |= {name: parent.variables[name] for name in new}
            wanted = (wanted | _references(found.values())) - found.keys() - dataset.variables.keys()
    return found, opened


def _references(variables: Iterable[Any]) -> set[str]:
    return {name for variable in variables for name in references({**variable.encoding, **variable.attrs})}


def _fits(variable: Any, sizes: Mapping[str, int]) -> bool:
    """Return whether a variable has the dimensions of a group, or others."""
    return all(sizes.get(str(dim), size) == size for dim, size in variable.sizes.items())
