"""What datasets of HDF5, as h5py opens them, say of themselves, in the words of Zarr."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

__all__ = ["attributes_of", "names_of"]

_OF_AXES = frozenset({"DIMENSION_LIST", "DIMENSION_LABELS"})
_OF_SCALES = _OF_AXES | {"CLASS", "NAME", "REFERENCE_LIST"}
"""Attributes by which HDF5 keeps the names and scales of axes, and those of scales."""
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
    """The attributes of a dataset that JSON has words for: no references to others, which mean nothing elsewhere."""
    given = dataset.attrs
    own = _OF_SCALES if given.get("CLASS") == b"DIMENSION_SCALE" else _OF_AXES
    found: dict[str, Any] = {}
    for name in given:
        if name in own or name.startswith(_OF_NETCDF):
            continue
        value = given[name]
        if isinstance(value, np.ndarray) and value.shape == (1,):  # how netCDF keeps one number
            value = value[0]
        with suppress(TypeError):
            found[name] = _plain(value)
    return found


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _plain(value: Any) -> Any:
    """A value in types that JSON has words for, or NumPy's like them.

    Raises:
        TypeError: If there are none.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # h5py has marks in it for bytes that are no UTF-8
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        return [_plain(item) for item in value] if value.ndim else _plain(value[()])
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value
    if type(value).__name__ == "Empty":  # a text without letters, mostly
        return ""
    raise TypeError
