"""xarray's conventions for properties that some formats do not support: dimension names and missing values.

In formats without dimension names, an attribute contains them. In formats with undefined fill values, a defined fill value
marks missing values. In other formats an attribute contains the value that marks missing values, with floating-point
numbers encoded as base64 strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zarrasync.metadata.conventions.cf_attributes import FILL, encode_float, numbers_with_sign, signed_dtype
from zarrasync.metadata.format import Format
from zarrasync.model import fill_values
from zarrasync.model.dtypes import DataType

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute with dimension names, in formats that do not support them."""

UNNAMED = "__xarray_dataarray_variable__"
"""The name under which xarray stores an array that has no name, in all formats."""


def names_of_axes(
    dimension_names: tuple[str | None, ...] | None, attributes: Mapping[str, Any], ndim: int
) -> tuple[str | None, ...] | None:
    """Return the names of an array's axes from its metadata, or from the attribute if that names all axes."""
    names = attributes.get(DIMENSIONS)
    is_valid = isinstance(names, list | tuple) and len(names) == ndim and all(isinstance(name, str) for name in names)
    return tuple(names or ()) if dimension_names is None and is_valid else dimension_names


class XarrayProperties(NamedTuple):
    """Properties of an array that xarray reads, in the representation of a format.

    Attributes:
        dtype: The data type.
        attributes: The attributes.
        dimension_names: The dimension names, if the format supports them.
        fill_value: The fill value; ``None`` if it is undefined.
        fill_is_missing: Whether a defined fill value marks missing values.
    """

    dtype: DataType
    attributes: Mapping[str, Any]
    dimension_names: tuple[str | None, ...] | None
    fill_value: Any
    fill_is_missing: bool

    def names_of_axes(self, ndim: int) -> tuple[str | None, ...] | None:
        """Return the dimension names, from the metadata or from the attribute."""
        return names_of_axes(self.dimension_names, self.attributes, ndim)

    @property
    def missing_value(self) -> Any:
        """The number that marks missing values, or ``None`` if the data type cannot represent it or it is not defined."""
        dtype = self.dtype.numpy
        if dtype.kind not in "biufc":
            return None
        if self.fill_is_missing and self.fill_value is not None:
            return self.fill_value
        value = self.attributes.get(FILL)
        numbers = [] if value is None else numbers_with_sign(value, dtype, signed_dtype(self.attributes, dtype))
        return numbers[0].view(dtype) if numbers else None  # netCDF stores unsigned numbers as signed ones


def convert_properties(source: XarrayProperties, ndim: int, target: Format) -> XarrayProperties:
    """Return properties in the representation of another format, without dimension names that it cannot represent.

    Arrays without dimension names do not follow xarray's conventions, so their fill value does not mark missing values.
    A default fill value becomes undefined in formats in which it would mark missing values. Copies must then store the
    chunks that are absent in the source.
    """
    attributes, fill = dict(source.attributes), source.fill_value
    names = source.names_of_axes(ndim)
    is_named = names is not None and all(isinstance(name, str) for name in names)
    if is_named and target.has_dimension_names:
        attributes.pop(DIMENSIONS, None)
    elif is_named:
        attributes[DIMENSIONS] = list(names or ())
    missing = source.missing_value
    if is_named and not target.has_undefined_fill and missing is not None:
        attributes[FILL] = _encode(missing, source.dtype)
    elif is_named and not target.has_undefined_fill and source.dtype.numpy.kind not in "biufc":
        attributes.pop(FILL, None)  # xarray rejects datasets in which strings have this attribute
    elif is_named and target.has_undefined_fill and not source.fill_is_missing:
        if missing is not None:
            fill = fill_values.as_fill(source.dtype, missing)
            del attributes[FILL]
        elif FILL not in attributes and _is_default(fill, source.dtype):
            fill = None
    target_names = names if target.has_dimension_names else None
    return XarrayProperties(source.dtype, attributes, target_names, fill, target.has_undefined_fill)


def _is_default(value: Any, dtype: DataType) -> bool:
    """Return whether a fill value equals the default of a data type bit by bit."""
    default = dtype.default_fill()
    if value is None or dtype.numpy.kind in "TO":
        return value is None or bool(value == default)
    return np.asarray(value, dtype.numpy).tobytes() == np.asarray(default, dtype.numpy).tobytes()


def _encode(value: Any, dtype: DataType) -> Any:
    """Return a number as the JSON value of the attribute."""
    kind = dtype.numpy.kind
    if kind == "f":
        return encode_float(value)
    if kind == "c":
        return [encode_float(value.real), encode_float(value.imag)]
    return bool(value) if kind == "b" else int(value)
