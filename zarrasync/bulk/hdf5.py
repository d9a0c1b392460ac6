"""Conversion of the metadata of HDF5 datasets, opened with h5py, to the metadata of Zarr arrays."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

_AXIS_ATTRIBUTES = frozenset({"DIMENSION_LIST", "DIMENSION_LABELS"})
_SCALE_ATTRIBUTES = _AXIS_ATTRIBUTES | {"CLASS", "NAME", "REFERENCE_LIST"}
"""Attributes in which HDF5 stores the names and scales of axes."""
_NETCDF_PREFIXES = ("_Netcdf4", "_nc3_", "_NC")
"""Prefixes of the names of netCDF's internal attributes."""


def names_of(dataset: Any) -> tuple[str | None, ...] | None:
    """Return the labels of a dataset's axes, or the names of their scales. ``None`` if no axis has a name.

    Args:
        dataset: The dataset.
    """
    if dataset.attrs.get("CLASS") == b"DIMENSION_SCALE" and dataset.ndim == 1:
        return (_basename(dataset.name),)
    names = tuple(dim.label or (_basename(dim[0].name) if len(dim) else None) for dim in dataset.dims)
    return names if any(names) else None


def attributes_of(dataset: Any) -> dict[str, Any]:
    """Return the attributes of a dataset that JSON can represent. References to other datasets are omitted."""
    attributes = dataset.attrs
    is_scale = attributes.get("CLASS") == b"DIMENSION_SCALE"
    internal = _SCALE_ATTRIBUTES if is_scale else _AXIS_ATTRIBUTES
    values: dict[str, Any] = {}
    for name in attributes:
        if name in internal or name.startswith(_NETCDF_PREFIXES):
            continue
        value = attributes[name]
        if isinstance(value, np.ndarray) and value.shape == (1,):  # netCDF stores single numbers as arrays
            value = value[0]
        with suppress(TypeError):
            values[name] = _json_value(value)
    return values


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def _json_value(value: Any) -> Any:
    """Return a value as a JSON type, or as a NumPy type that corresponds to a JSON type.

    Raises:
        TypeError: If no JSON type corresponds to the value.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # h5py marks bytes that are not UTF-8 with surrogates
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        return [_json_value(item) for item in value] if value.ndim else _json_value(value[()])
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value
    if type(value).__name__ == "Empty":  # in most cases an empty string
        return ""
    raise TypeError
