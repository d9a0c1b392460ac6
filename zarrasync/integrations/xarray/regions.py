"""Regions of a stored dataset to write into: explicit slices, or slices found by comparing coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
from xarray import Dataset, Variable

from zarrasync.errors import CodecError
from zarrasync.integrations.xarray.encode import decoded_like

__all__ = ["RegionLike", "locate_region"]

RegionLike: TypeAlias = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
"""A region as callers pass it."""


def locate_region(
    dataset: Dataset, region: RegionLike, stored: Mapping[str, Variable]
) -> tuple[Dataset, dict[str, slice]]:
    """Return a dataset without the coordinates that are already stored, and a slice per dimension of the region.

    Args:
        dataset: The dataset to write.
        region: The region. ``"auto"`` becomes the slice with the dataset's coordinates.
        stored: The variables in the store.

    Raises:
        ValueError: If coordinates are missing from the store, are not consecutive or differ there.
    """
    if isinstance(region, str) and region != "auto":
        raise ValueError(f"the region must be 'auto' or a mapping of dimensions to slices, found {region!r}")
    requests = dict.fromkeys(map(str, dataset.dims), "auto") if isinstance(region, str) else dict(region)
    slices: dict[str, slice] = {}
    for dim, request in requests.items():
        if not isinstance(request, slice) and request != "auto":
            raise ValueError(f"the region along {dim!r} must be a slice or 'auto', found {request!r}")
        slices[dim] = request if isinstance(request, slice) else _find_slice(dim, dataset, stored)
    # Other regions may be written at the same time, and coordinates of several regions share chunks.
    return dataset.drop_vars([dim for dim in slices if _is_stored(dim, slices[dim], dataset, stored)]), slices


def _is_stored(dim: str, part: slice, dataset: Dataset, stored: Mapping[str, Variable]) -> bool:
    """Return whether a region of the store has the coordinates of a dataset.

    Raises:
        ValueError: If it has other coordinates.
    """
    if dim not in dataset.indexes or dim not in stored:
        return False
    stored_index = _index_of(stored[dim][part])
    if stored_index.equals(dataset.indexes[dim]):
        return True
    with suppress(CodecError):  # they may have been rounded when they were stored
        rounded = decoded_like(dim, dataset.variables[dim], stored[dim])
        if stored_index.equals(_index_of(Variable((dim,), rounded))):
            return True
    if not _is_unwritten(stored_index):
        raise ValueError(
            f"the coordinates along {dim!r} differ from the stored ones; drop them with drop_vars({dim!r}) to keep the "
            "stored ones, or locate the region by its coordinates with region='auto'"
        )
    return False


def _index_of(coordinate: Variable) -> Any:
    return coordinate.to_index_variable().to_index()


def _is_unwritten(index: Any) -> bool:
    """Return whether coordinates are all the fill value: written ones differ from each other."""
    return bool(index.isna().all()) or (len(index) > 1 and index.nunique(dropna=False) == 1)


def _find_slice(dim: str, dataset: Dataset, stored: Mapping[str, Variable]) -> slice:
    """Return the slice of the store with the dataset's coordinates along a dimension.

    A dimension without coordinates must be as long as the stored one.

    Raises:
        ValueError: If the store does not contain them, contains them several times, or not consecutively.
    """
    if dim not in dataset.indexes or dim not in stored:
        length = next((variable.sizes[dim] for variable in stored.values() if dim in variable.dims), None)
        if dim in dataset.indexes or dataset.sizes.get(dim) != length:
            raise ValueError(
                f"the region along {dim!r} cannot be located: the dataset and the store both need coordinates along it"
            )
        return slice(0, length)
    stored_index, index = _index_of(stored[dim]), dataset.indexes[dim]
    for where, labels in (("the store", stored_index), ("the dataset", index)):
        if not labels.is_unique:
            raise ValueError(
                f"the region along {dim!r} cannot be located: {where} has the coordinate "
                f"{labels[labels.duplicated()][0]} several times; pass the region as a slice of positions"
            )
    positions = stored_index.get_indexer(index)
    if (positions < 0).any():
        missing = index[positions < 0][0]
        raise ValueError(f"the region along {dim!r} cannot be located: the store has no coordinate {missing}")
    if (np.diff(positions) != 1).any():
        raise ValueError(f"the coordinates along {dim!r} are not consecutive in the store")
    return slice(int(positions[0]), int(positions[-1]) + 1) if len(positions) else slice(0, 0)
