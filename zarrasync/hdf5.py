"""What datasets of HDF5, as h5py opens them, say of themselves, in the words of Zarr."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["attributes_of", "names_of"]

_ITS_OWN = frozenset({"CLASS", "NAME", "DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST"})
"""Attributes by which HDF5 keeps the names and scales of axes."""
_OF_NETCDF = ("_Netcdf4", "_nc3_", "_NC")
"""How the names begin of those by which netCDF keeps the like."""


def names_of(dataset: Any) -> tuple[str | None, ...] | None:
    """The names of a dataset's axes: their labels, or else those of the scales that they have.

    Args:
        dataset: The dataset.
    """
    if dataset.attrs.get("CLASS") == b"DIMENSION_SCALE" and dataset.ndim == 1:
        return (_last(dataset.name),)
    names = tuple(dim.label or (_last(dim[0].name) if len(dim) else None) for dim in dataset.dims)
    return names if any(names) else None


def attributes_of(dataset: Any) -> dict[str, Any]:
    """The attributes of a dataset, without those that refer to others, which mean nothing elsewhere."""
    given = ((name, _plain(dataset.attrs[name])) for name in dataset.attrs if not _is_internal(name))
    return {name: value for name, value in given if value is not None}


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _is_internal(name: str) -> bool:
    return name in _ITS_OWN or name.startswith(_OF_NETCDF)


def _plain(value: Any) -> Any:
    """A value without types of HDF5's; ``None`` for a reference. Arrays of one element are how netCDF keeps numbers."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        items = [_plain(item) for item in value.reshape(-1)]
        if None in items:
            return None
        return items[0] if value.shape == (1,) else items if value.ndim == 1 else value
    if isinstance(value, str | np.generic):
        return None if getattr(value, "dtype", np.dtype(str)).kind == "V" else value
    return "" if type(value).__name__ == "Empty" else None
