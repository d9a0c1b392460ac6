"""The meaning of the stored numbers of an array, from its metadata and its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.registry import axis_names
from zarrasync.metadata.format import Format
from zarrasync.metadata.node_metadata import ArrayMetadata

__all__ = ["encoding_of"]


def encoding_of(metadata: ArrayMetadata, format_: Format, parent: Mapping[str, Any] | None = None) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    In formats in which a fill value can be undefined, a defined one marks missing values, as in xarray, if the array has
    dimension names. Other arrays do not follow xarray's conventions. Booleans have no number for missing values.

    Args:
        metadata: The metadata of the array.
        format_: Its format.
        parent: The attributes of the coordinate, if the array contains its bounds.
    """
    dtype = metadata.dtype.numpy
    is_missing = format_.has_undefined_fill and dtype.kind in "iufc" and axis_names(metadata) is not None
    fill = metadata.fill_value if is_missing else None
    return CFEncoding.from_attributes(metadata.attributes, dtype, fill_value=fill, parent=parent)
