"""The meaning of the stored numbers of an array, from its metadata, its format, and the coordinate that it bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.metadata.conventions.cf_attributes import parents_of_bounds
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS
from zarrasync.metadata.conventions.registry import axis_names
from zarrasync.metadata.format import Format
from zarrasync.metadata.node_metadata import ArrayMetadata

_MOST_VERTICES = 64
"""The most vertices of a cell, the size of the last axis of bounds."""


def encoding_of(metadata: ArrayMetadata, format_: Format, parent: Mapping[str, Any] | None = None) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    In formats in which a fill value can be undefined, a defined one marks missing values, as in xarray. The default fill
    value of an array without dimension names does not, because such arrays do not follow xarray's conventions. Booleans
    have no number for missing values.

    Args:
        metadata: The metadata of the array.
        format_: Its format.
        parent: The attributes of the coordinate, if the array contains its bounds.
    """
    dtype, fill = metadata.dtype.numpy, metadata.fill_value
    is_default = fill is not None and axis_names(metadata) is None and bool(fill == metadata.dtype.default_fill())
    if not format_.has_undefined_fill or dtype.kind not in "iufc" or is_default:
        fill = None
    return CFEncoding.from_attributes(metadata.attributes, dtype, fill_value=fill, parent=parent)


def may_be_bounds(metadata: ArrayMetadata) -> bool:
    """Return whether an array may inherit its units or its calendar, so that it is worth looking for the coordinate."""
    units, shape = metadata.attributes.get(UNITS), metadata.shape
    is_open = units is None or (CALENDAR not in metadata.attributes and " since " in str(units))
    return is_open and metadata.dtype.numpy.kind in "iuf" and bool(shape) and 2 <= shape[-1] <= _MOST_VERTICES


def parent_of(name: str, arrays: Mapping[str, ArrayMetadata]) -> Mapping[str, Any] | None:
    """Return the attributes of the coordinate whose bounds an array contains; ``None`` if it contains no bounds.

    Args:
        name: The name of the array.
        arrays: The arrays of its group, by name.
    """
    parents = parents_of_bounds({other: metadata.attributes for other, metadata in arrays.items()})
    return arrays[parents[name]].attributes if name in parents else None
