"""Stored coordinates that a dataset must agree with: coordinates of a region, and coordinates that an append does not extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from pandas import isnull
from xarray import Dataset, Variable

from zarrasync.errors import CodecError
from zarrasync.integrations.xarray.encode import decoded_like
from zarrasync.metadata.conventions.cf_attributes import BOUNDS

RegionLike: TypeAlias = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
"""A region as callers pass it."""
OnMismatch: TypeAlias = Literal["error", "ignore"]
"""What to do with coordinates that differ from stored ones."""
_TOGETHER = 64 << 20
"""Bytes of coordinates that are compared together."""
_GRID_MAPPING = "grid_mapping"
_PLACEMENT = ("GeoTransform",)
"""Attributes of variables with a reference system that the coordinates of axes contain."""


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
    own, other = dataset.variables[dim], stored[dim][part]
    if own.shape == other.shape and not _difference(dim, own, other):
        return True
    if not _is_constant(_index_of(other)):
        raise ValueError(
            f"the coordinates along {dim!r} differ from the stored ones; drop them with drop_vars({dim!r}) to keep the "
            "stored ones, or locate the region by its coordinates with region='auto'"
        )
    return False


def _index_of(coordinate: Variable) -> Any:
    return coordinate.to_index_variable().to_index()


def _is_constant(index: Any) -> bool:
    """Return whether coordinates are all the fill value: written ones differ from each other."""
    return bool(index.isna().all()) or (len(index) > 1 and bool((index == index[0]).all()))


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


def without_stored_coordinates(
    dataset: Dataset, stored: Mapping[str, Variable], append_dim: str, on_mismatch: OnMismatch
) -> Dataset:
    """Return a dataset without the coordinates, bounds and reference systems that are stored and not extended.

    Args:
        dataset: The dataset to append.
        stored: The variables in the store, decoded.
        append_dim: The dimension that is extended.
        on_mismatch: What to do with those that differ. ``"ignore"`` keeps the stored ones.

    Raises:
        ValueError: If one differs, and ``on_mismatch`` is ``"error"``.
    """
    systems = _reference_systems(dataset)
    names = [
        name
        for name in dict.fromkeys([*map(str, dataset.coords), *_bounds(dataset), *systems])
        if name in dataset.variables and name in stored and append_dim not in dataset.variables[name].dims
    ]
    same: list[str] = []
    for name in names:
        variable, other = dataset.variables[name], stored[name]
        if variable.dims != other.dims or variable.shape != other.shape:
            continue  # the plan of the variable refuses it
        difference = _difference_of_systems(variable, other) if name in systems else _difference(name, variable, other)
        if difference and _is_unwritten(other):
            continue
        if difference and on_mismatch == "error":
            raise ValueError(
                f"{name!r} differs from the stored one, which labels all rows along {append_dim!r}: {difference}; bring the "
                "dataset to the stored grid, for example with interp() or reindex(), or pass on_mismatch='ignore' to keep the "
                "stored one"
            )
        same.append(name)
    return dataset.drop_vars(same)


def _bounds(dataset: Dataset) -> list[str]:
    names = (
        variable.attrs.get(key, variable.encoding.get(key)) for variable in dataset.coords.values() for key in BOUNDS
    )
    return [str(name) for name in names if name is not None]


def _reference_systems(dataset: Dataset) -> set[str]:
    """Return the names of variables with reference systems."""
    texts = (v.attrs.get(_GRID_MAPPING, v.encoding.get(_GRID_MAPPING)) for v in dataset.variables.values())
    return {name for text in texts if isinstance(text, str) for name in text.replace(":", " ").split()}


def _difference(name: str, variable: Variable, stored: Variable) -> str:
    """Return the first difference between coordinates and the stored ones; an empty string if they are equal."""
    for part in _parts(variable):
        own, other = np.asarray(variable[part].values), np.asarray(stored[part].values)
        unequal = _unequal(own, other)
        if unequal.any():
            try:  # they may have been rounded when they were stored
                own = decoded_like(name, variable[part], stored)
            except CodecError:
                pass
            else:
                unequal = _unequal(own, other)
        if unequal.any():
            place = tuple(np.argwhere(unequal)[0].tolist())
            return f"{own[place]} instead of {other[place]}"
    return ""


def _unequal(values: Any, others: Any) -> Any:
    return np.asarray(values != others) & ~(np.asarray(isnull(values)) & np.asarray(isnull(others)))


def _parts(variable: Variable, together: int = _TOGETHER) -> Iterator[Any]:
    """Return selections of a variable, none of which has more bytes than ``together``, or more than one row."""
    rows = max(1, variable.shape[0] * together // max(1, variable.nbytes)) if variable.ndim else 1
    starts = range(0, variable.shape[0], rows) if variable.ndim else [0]
    return iter([(slice(start, start + rows),) if variable.ndim else () for start in starts])


def _difference_of_systems(variable: Variable, stored: Variable) -> str:
    names = (variable.attrs.keys() & stored.attrs.keys()) - set(_PLACEMENT)
    different = sorted(name for name in names if not np.array_equal(variable.attrs[name], stored.attrs[name]))
    return f"its attribute {different[0]!r} is {variable.attrs[different[0]]!r}" if different else ""


def _is_unwritten(stored: Variable) -> bool:
    """Return whether all values are missing, as in new arrays."""
    return stored.size > 0 and all(bool(np.asarray(isnull(stored[part].values)).all()) for part in _parts(stored))
