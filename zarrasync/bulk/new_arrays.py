"""The parameters of a new array that takes the values of a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync import config as settings
from zarrasync import formats
from zarrasync.bulk.sources import Source
from zarrasync.errors import MetadataError, ShapeError
from zarrasync.formats import Format
from zarrasync.metadata.conventions import DIMENSIONS, XarrayProperties, convert_properties
from zarrasync.model import dtypes, fill_values
from zarrasync.nodes.open_nodes import ConfigLike


def creation_options(source: Source, options: Mapping[str, Any], config: ConfigLike = None) -> dict[str, Any]:
    """Return the parameters of ``create_array`` for a new array.

    Raises:
        ShapeError: If the options contain a shape that differs from the source's.
    """
    explicit = {name: value for name, value in options.items() if name != "dtype" or value is not None}
    zarr_format = options.get("zarr_format")
    target = formats.by_name(settings.resolve(config).zarr_format if zarr_format is None else zarr_format)
    implied = {"dtype": source.dtype, **_properties(source, options, target), **_layout(source, options, target)}
    parameters = {**implied, **explicit}
    if parameters.get("shape") not in (None, source.shape, [*source.shape], *source.shape[:1]):
        raise ShapeError(
            f"the source has shape {source.shape}, but the option shape is {options['shape']}", found=source.shape
        )
    return {**parameters, "shape": source.shape}


def _layout(source: Source, options: Mapping[str, Any], target: Format) -> dict[str, Any]:
    """Return the source's chunks and shards if the format supports them and they fit the options."""
    layout = {} if "chunks" in options else dict(source.layout)
    if not target.has_shards:
        layout.pop("shards", None)
    shards = options.get("shards")
    sizes = [shards] if isinstance(shards, int) else shards if isinstance(shards, tuple | list) else ()
    if layout and any(n % max(chunk, 1) for n, chunk in zip(sizes, layout["chunks"], strict=False)):
        return {}  # the shards are not multiples of the chunks
    return layout


def _properties(source: Source, options: Mapping[str, Any], target: Format) -> dict[str, Any]:
    """Return the source's attributes, dimension names and fill value in the form that the format requires."""
    properties = source.properties
    if "attributes" not in properties:
        return {}
    dtype = dtypes.from_numpy(options.get("dtype") or source.dtype)
    try:
        fill = fill_values.as_fill(dtype, properties.get("fill_value"))
    except MetadataError:  # the values are cast, and the fill value does not fit the new data type
        fill = None
    names = options.get("dimension_names", properties.get("dimension_names"))
    # An explicit fill value has the meaning that the target's format defines.
    fill_is_missing = target.has_undefined_fill if "fill_value" in options else source.fill_is_missing
    described = XarrayProperties(dtype, properties["attributes"], names, fill, fill_is_missing)
    converted = convert_properties(described, len(source.shape), target)
    result: dict[str, Any] = {"attributes": converted.attributes}
    if converted.dimension_names is not None:
        result["dimension_names"] = converted.dimension_names
    if converted.fill_value is not None or (
        target.has_undefined_fill and converted.attributes.get(DIMENSIONS) is not None
    ):
        result["fill_value"] = converted.fill_value
    return result
