"""Datasets, arrays and trees as callers pass them: one dataset per group, and its encodings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from xarray import DataArray, Dataset, DataTree
from xarray.backends.api import DATAARRAY_NAME

from zarrasync.metadata.conventions.xarray_properties import UNNAMED
from zarrasync.model.paths import join, normalize_path

__all__ = ["DatasetLike", "Encodings", "check_names", "datasets_of", "encodings_of"]

DatasetLike: TypeAlias = Dataset | DataArray | DataTree
"""Data that ``write_dataset`` accepts."""
Encodings: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Encodings by variable."""


def datasets_of(data: DatasetLike, *, inherit: bool) -> dict[str, Dataset]:
    """Return the dataset of each group by its relative path, the groups above others first.

    Args:
        data: A dataset, an array or a tree.
        inherit: Whether groups of a tree contain the coordinates that they inherit.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(data, Dataset):
        return {"": data}
    if isinstance(data, DataArray):
        return {"": _dataset_of(data)}
    if isinstance(data, DataTree):
        nodes = {_relative_path(data, node): node for node in data.subtree}
        return {path: node.to_dataset(inherit=inherit or not path) for path, node in nodes.items()}
    raise TypeError(
        f"write_dataset needs a Dataset, DataArray or DataTree, found {type(data).__name__}; convert it, for example "
        "with to_dataset() or to_xarray()"
    )


def _relative_path(tree: DataTree, node: DataTree) -> str:
    return "" if node is tree else normalize_path(node.path[len(tree.path) :])


def _dataset_of(array: DataArray) -> Dataset:
    """Return an array as a dataset, with the name that xarray gives to unnamed arrays."""
    if array.name is None or array.name in array.coords or array.name in array.dims:
        dataset = array.to_dataset(name=UNNAMED)
        if array.name is not None:
            dataset.attrs[DATAARRAY_NAME] = array.name
        return dataset
    return array.to_dataset()


def encodings_of(data: DatasetLike, encoding: Mapping[str, Any] | None) -> dict[str, Encodings]:
    """Return the encodings of each group by its relative path.

    Args:
        data: A dataset, an array or a tree.
        encoding: Encodings by variable; for a tree, these by the path of the group in the whole tree.

    Raises:
        ValueError: If a tree has no group of a path.
    """
    if not isinstance(data, DataTree):
        return {"": encoding or {}}
    paths = {normalize_path(node.path): _relative_path(data, node) for node in data.subtree}
    if unknown := [path for path in encoding or {} if normalize_path(path) not in paths]:
        raise ValueError(
            f"the encoding names {unknown[0]!r}, which is not a group of the tree; the groups are "
            f"{', '.join(node.path for node in data.subtree)}"
        )
    return {paths[normalize_path(path)]: encodings for path, encodings in (encoding or {}).items()}


def check_names(dataset: Dataset, group: str, encoding: Encodings) -> None:
    """Check the names of variables and dimensions, and the form of encodings.

    Raises:
        ValueError: If an encoding names no variable.
        TypeError: If a name is not a string, or an encoding is not a mapping.
        InvalidKeyError: If a variable's name cannot be the name of an array.
    """
    if not isinstance(encoding, Mapping):
        raise TypeError(f"the encoding must be a mapping of variables to their encodings, found {encoding!r}")
    if unknown := sorted(set(map(str, encoding)) - set(map(str, dataset.variables))):
        raise ValueError(f"the encoding names {unknown[0]!r}, which is not a variable of the dataset")
    for variable, options in encoding.items():
        if not isinstance(options, Mapping):
            raise TypeError(f"the encoding of {variable!r} must be a mapping, found {options!r}")
    if invalid := [name for name in (*dataset.variables, *dataset.dims) if not isinstance(name, str)]:
        raise TypeError(f"names of variables and dimensions must be strings, found {invalid[0]!r}")
    for name in dataset.variables:
        normalize_path(join(group, str(name)))
