"""Coordinates that an append does not extend: they label all rows, so the dataset must have the same as the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from pandas import isnull
from xarray import Dataset, Variable

from zarrasync.errors import CodecError
from zarrasync.integrations.xarray.encode import decoded_like
from zarrasync.metadata.conventions.cf_attributes import BOUNDS

__all__ = ["OnMismatch", "without_stored_coordinates"]

OnMismatch: TypeAlias = Literal["error", "ignore"]
"""What to do with coordinates that differ from stored ones."""
_TOGETHER = 64 << 20
"""Bytes of coordinates that are compared together."""
_GRID_MAPPING = "grid_mapping"
_PLACEMENT = ("GeoTransform",)
"""Attributes of variables with a reference system that the coordinates of axes contain."""


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
