"""Where a dataset is written in one that is there: regions that are given, or found by coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from xarray import Dataset, Variable
from xarray.conventions import decode_cf_variable, encode_cf_variable

__all__ = ["Wanted", "located"]

Wanted: TypeAlias = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
"""A region as callers give it."""
_TIMES = ("dtype", "units", "calendar", "_FillValue")
_NUMBERS = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value")
"""What says how coordinates are encoded."""


def located(dataset: Dataset, region: Wanted, present: Mapping[str, Variable]) -> tuple[Dataset, dict[str, slice]]:
    """A region with slices in the place of ``"auto"``, found by the coordinates, and the dataset without those that are there.

    Raises:
        ValueError: If coordinates are missing, do not follow each other in the store, or are others there.
    """
    if isinstance(region, str) and region != "auto":
        raise ValueError(f"the region is 'auto', or says of dimensions where to write, found {region!r}")
    wanted = dict.fromkeys(map(str, dataset.dims), "auto") if isinstance(region, str) else dict(region)
    found: dict[str, slice] = {}
    for dim, place in wanted.items():
        if not isinstance(place, slice) and place != "auto":
            raise ValueError(f"the region along {dim!r} is a slice or 'auto', found {place!r}")
        found[dim] = place if isinstance(place, slice) else _place_along(dim, dataset, present)
    there = []
    for dim, where in found.items():
        if dim not in dataset.indexes or dim not in present:
            continue
        own = _index_of(present[dim][where])
        if own.equals(dataset.indexes[dim]) or own.equals(_as_stored(dataset.variables[dim], present[dim])):
            there.append(dim)
        elif not _is_unwritten(own):
            raise ValueError(
                f"the coordinates along {dim!r} are others in the store; drop_vars({dim!r}) writes beside those that are "
                "there, region='auto' looks for the dataset's own"
            )
    return dataset.drop_vars(there), found  # who writes the other regions at the same time shares the chunks of those


def _index_of(coordinate: Variable) -> Any:
    return coordinate.to_index_variable().to_index()


def _as_stored(coordinate: Variable, present: Variable) -> Any:
    """Coordinates as they come back when they are stored as those that are there, which may be rounded."""
    times = coordinate.dtype.kind in "mM"
    how = {name: present.encoding[name] for name in (_TIMES if times else _NUMBERS) if name in present.encoding}
    try:
        encoded = encode_cf_variable(Variable(coordinate.dims, coordinate.values, {}, how))
        return _index_of(decode_cf_variable("coordinate", encoded, decode_timedelta=times))
    except (ValueError, TypeError, OverflowError):  # they can not be stored so
        return None


def _is_unwritten(index: Any) -> bool:
    """Whether there is nothing but the fill value, as before coordinates are written: others differ from each other."""
    return bool(index.isna().all()) or (len(index) > 1 and index.nunique(dropna=False) == 1)


def _place_along(dim: str, dataset: Dataset, present: Mapping[str, Variable]) -> slice:
    """Where the dataset's coordinates along a dimension are in the store; without any, all of it if it is as long.

    Raises:
        ValueError: If they are not there, or do not follow each other.
    """
    if dim not in dataset.indexes or dim not in present:
        length = next((variable.sizes[dim] for variable in present.values() if dim in variable.dims), None)
        if dim in dataset.indexes or dataset.sizes.get(dim) != length:
            raise ValueError(f"the region along {dim!r} can not be found: that takes coordinates here and in the store")
        return slice(0, length)
    at = _index_of(present[dim]).get_indexer(dataset.indexes[dim])
    if (at < 0).any():
        missing = dataset.indexes[dim][at < 0][0]
        raise ValueError(f"the region along {dim!r} can not be found: the store has no coordinate {missing}")
    if (np.diff(at) != 1).any():
        raise ValueError(f"the coordinates along {dim!r} do not follow each other in the store")
    return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)
