"""Conversion of an array's metadata to another format or layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from zarrasync.codecs import ArraySpec, NumcodecsBytes, ZstdCodec
from zarrasync.codecs.numcodecs import ARRAY_ARRAY
from zarrasync.errors import MetadataError, UnsupportedByFormat
from zarrasync.metadata.conventions import DIMENSIONS, XarrayProperties, convert_properties
from zarrasync.metadata.create import plan_chunk_shapes
from zarrasync.metadata.format import Format, RequestedCodecs
from zarrasync.metadata.node_metadata import ArrayMetadata
from zarrasync.model.chunk_grids import Edges
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.fill_values import format_fill_value, is_fill

_MAX_STORED_FILL_CHUNKS = 1 << 16
"""The maximum number of chunks of an array whose copy may have another fill value, which requires storing absent chunks."""


@dataclass(frozen=True)
class LayoutChanges:
    """Requested changes of an array's layout. ``"keep"`` means no change.

    Attributes:
        chunks: The shape of chunks, or ``"auto"``.
        shards: The shape of shards, ``"auto"``, or ``None`` for no shards.
        compressors: The compressors, as for ``create_array``.
    """

    chunks: Any = "keep"
    shards: Any = "keep"
    compressors: Any = "keep"


class _Shapes(NamedTuple):
    """The shapes of inner chunks and stored values, listed sizes of stored values, and whether they are shards."""

    inner: tuple[int, ...]
    outer: tuple[int, ...]
    edges: Edges | None
    has_shards: bool


def convert_metadata(
    source: ArrayMetadata,
    name: str,
    source_format: Format,
    target_format: Format,
    changes: LayoutChanges,
    notes: list[str],
    *,
    has_named_dimensions: bool = False,
) -> ArrayMetadata:
    """Return the metadata of an array in another format or layout.

    Args:
        source: The metadata of the array.
        name: The name of the array, for notes.
        source_format: The format of the array.
        target_format: The format to convert to.
        changes: Changes of the layout.
        notes: A list, to which a note for users is added about each property that cannot be kept.
        has_named_dimensions: Whether other arrays of the hierarchy have dimension names. An array without axes then
            counts as named.

    Raises:
        UnsupportedByFormat: If the format does not support the array.
        MetadataError: If the compressors are invalid.
    """
    shapes = _convert_shapes(source, target_format, changes)
    if (
        shapes == (source.chunks, source.write_chunks, source.edges, source.shards is not None)
        and source_format.is_same(target_format)
        and _is_kept(changes.compressors)
    ):
        return source
    if source.transformers:
        transformers = ", ".join(repr(item.name) for item in source.transformers)
        notes.append(f"{name}: the copy does not use the storage transformers {transformers}")
    properties = _convert_properties(
        source, name, source_format, target_format, notes, has_named_dimensions=has_named_dimensions
    )
    fill = properties.fill_value
    if fill is None and not target_format.has_undefined_fill:
        fill = source.spec.fill_value  # zarrasync reads absent elements of the source as this value
        notes.append(f"{name}: the undefined fill value becomes {format_fill_value(fill)}")
    fill = target_format.fill_value(source.dtype, fill)
    spec = ArraySpec(shapes.outer, source.dtype, source.spec.fill_value if fill is None else fill)
    codecs = _requested_codecs(source, changes, shapes.inner if shapes.has_shards else None)
    failure: Exception | None = None
    for attempt in (codecs, replace(codecs, filters=()), _portable_codecs(codecs, changes)):
        try:
            converted = ArrayMetadata(
                source.shape,
                source.dtype,
                shapes.outer,
                _convert_keys(source, source_format, target_format),
                target_format.chain(attempt, spec),
                fill,
                properties.dimension_names,
                shapes.edges,
                attributes=properties.attributes,
            )
            target_format.render("a", converted)
            return converted
        except (UnsupportedByFormat, MetadataError) as error:
            if getattr(error, "feature", "") == "data_type":
                raise _unsupported_type(source, name, source_format, target_format, error) from error
            if attempt.serializer is None or getattr(error, "feature", "codecs") not in ("codecs", "shards"):
                raise
            notes.append(f"{name}: {error}")
            failure = error
    assert failure is not None
    raise failure  # the requested compressors are not supported


def _unsupported_type(
    source: ArrayMetadata, name: str, source_format: Format, target_format: Format, error: Exception
) -> UnsupportedByFormat:
    reason = str(error)
    if source.dtype.name == "object":
        reason = f"its elements are Python objects, which the codec {source.inner_codecs.array_bytes.label!r} stores"
    return UnsupportedByFormat(
        f"cannot convert {name} to Zarr format {target_format.zarr_format!r}: {reason}. Keep Zarr format "
        f"{source_format.zarr_format!r}, or first store the values in an array of strings, bytes or numbers",
        zarr_format=target_format.zarr_format,
        feature="data_type",
    )


def _is_kept(value: Any) -> bool:
    return isinstance(value, str) and value == "keep"


# -------------------------------------------------------------- attributes, dimension names, fill value


def _convert_properties(
    source: ArrayMetadata,
    name: str,
    source_format: Format,
    target_format: Format,
    notes: list[str],
    *,
    has_named_dimensions: bool,
) -> XarrayProperties:
    """Return the properties that xarray reads, in the representation of the target format."""
    is_named_scalar = has_named_dimensions and not source.ndim and source.dimension_names is None
    properties = XarrayProperties(
        source.dtype,
        source.attributes,
        () if is_named_scalar else source.dimension_names,
        source.fill_value,
        source_format.has_undefined_fill,
    )
    if source_format.is_same(target_format):
        return properties._replace(dimension_names=source.dimension_names)
    converted, fill = convert_properties(properties, source.ndim, target_format), source.fill_value
    if fill is not None and math.prod(source.grid.shape) > _MAX_STORED_FILL_CHUNKS:
        is_changed = converted.fill_value is None or not is_fill(np.asarray(fill), converted.fill_value)
        if is_changed:  # every absent chunk would have to be stored
            unchanged = properties._replace(fill_is_missing=target_format.has_undefined_fill)
            converted = convert_properties(unchanged, source.ndim, target_format)
    if _becomes_missing(properties, converted):
        value = format_fill_value(converted.fill_value)
        notes.append(f"{name}: xarray reads the fill value {value} as missing in this format")
    has_names = converted.dimension_names is not None or DIMENSIONS in converted.attributes
    if any(source.dimension_names or ()) and not has_names:
        names = list(source.dimension_names or ())
        notes.append(
            f"{name}: the dimension names {names} are not kept, because this format requires a name for each axis"
        )
    return converted


def _becomes_missing(source: XarrayProperties, converted: XarrayProperties) -> bool:
    """Return whether xarray treats the fill value as missing only after the conversion."""
    fill = converted.fill_value
    is_missing = converted.fill_is_missing and DIMENSIONS in converted.attributes and fill is not None
    if not is_missing or source.fill_is_missing or source.missing_value is not None:
        return False
    return bool(fill == fill)  # NaN counts as missing in any case


# -------------------------------------------------------------- layout


def _convert_shapes(source: ArrayMetadata, target_format: Format, changes: LayoutChanges) -> _Shapes:
    chunks = _change_for(changes.chunks, source.ndim)
    shards = _change_for(changes.shards, source.ndim)
    edges = source.edges if _is_kept(chunks) and _is_kept(shards) else None
    if _is_kept(shards):
        shards = source.shards if target_format.has_shards and _is_kept(chunks) else None
    if _is_kept(chunks):
        chunks = source.chunks
        if source.shards is not None and shards is None:
            edges = None  # all inner chunks have the same shape
    inner, outer = plan_chunk_shapes(source.shape, source.dtype.itemsize or 16, chunks, shards)
    if outer != source.write_chunks:
        edges = None
    return _Shapes(inner, outer, edges, shards is not None)


def _convert_keys(source: ArrayMetadata, source_format: Format, target_format: Format) -> ChunkKeyEncoding:
    """Return the chunk key encoding in the target format. The separator ``/`` is kept: conventions may require it."""
    if source_format.is_same(target_format):
        return source.keys
    encoding = target_format.key_encoding(None)
    return replace(encoding, separator="/") if source.keys.separator == "/" else encoding


def _change_for(value: Any, ndim: int) -> Any:
    """Return a requested shape, or ``"keep"`` if the array has a different number of axes."""
    is_shape = isinstance(value, list | tuple)
    return "keep" if (is_shape and len(value) != ndim) or (isinstance(value, int) and not ndim) else value


def _requested_codecs(
    source: ArrayMetadata, changes: LayoutChanges, inner_shape: tuple[int, ...] | None
) -> RequestedCodecs:
    """Return the codecs of an array in the form of ``create_array``'s parameters."""
    chain = source.inner_codecs
    reverse = tuple(reversed(range(source.ndim)))
    order = "F" if any(codec.permutation == reverse and source.ndim > 1 for codec in chain.array_array) else "C"
    filters: list[Any] = [codec for codec in chain.array_array if codec.permutation != reverse or source.ndim < 2]
    compressors: list[Any] = list(chain.bytes_bytes)
    while compressors and isinstance(compressors[0], NumcodecsBytes) and compressors[0].kind in ARRAY_ARRAY:
        filters.append(dict(compressors.pop(0).config))  # format 2 applies filters to bytes
    if not _is_kept(changes.compressors):
        requested = changes.compressors
        items = requested if isinstance(requested, list | tuple) else [] if requested is None else [requested]
        compressors = [ZstdCodec(level=0) if item == "auto" else item for item in items]
    return RequestedCodecs(filters, chain.array_bytes, compressors, order, inner_shape)


def _portable_codecs(codecs: RequestedCodecs, changes: LayoutChanges) -> RequestedCodecs:
    """Return codecs that every format supports, with compressors only if they were requested."""
    compressors = (ZstdCodec(level=0),) if _is_kept(changes.compressors) else codecs.compressors
    return RequestedCodecs((), None, compressors, "C", codecs.inner_shape)


def has_same_values(one: ArrayMetadata, other: ArrayMetadata) -> bool:
    """Return whether the stored values of two arrays are interchangeable, including absent ones."""
    values = attrgetter("write_chunks", "edges", "dtype", "codecs", "transformers", "shape")
    return is_fill(one.spec.scalar, other.spec.fill_value) and bool(values(one) == values(other))
