"""An array's metadata in another format or layout. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.codecs import ArraySpec, NumcodecsBytes, ZstdCodec
from zarrasync.codecs.fill_check import is_fill
from zarrasync.codecs.numcodecs import ARRAY_ARRAY
from zarrasync.errors import MetadataError, UnsupportedByFormat
from zarrasync.metadata.conventions import DIMENSIONS, Described, reworded
from zarrasync.metadata.create import chunk_shapes
from zarrasync.metadata.format import Format, RequestedCodecs
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.fill_values import format_fill_value

__all__ = ["Changes", "alike", "translate"]

_MANY = 1 << 16
"""Chunks, of which the absent ones are stored for their fill value's sake if there are no more."""


@dataclass(frozen=True)
class Changes:
    """What is to be different in the translation; ``"keep"`` for what is to be as it is.

    Attributes:
        chunks: The shape of chunks, or ``"auto"``.
        shards: The shape of shards, ``None`` for none.
        compressors: The compressors, as a creating call names them.
    """

    chunks: Any = "keep"
    shards: Any = "keep"
    compressors: Any = "keep"


def translate(
    source: ArrayMetadata,
    name: str,
    own: Format,
    target: Format,
    options: Changes,
    notes: list[str],
    *,
    named: bool = False,
) -> ArrayMetadata:
    """The metadata of an array in another format or layout.

    Args:
        source: The array.
        name: Its name, for notes.
        own: The format that it is in.
        target: The format.
        options: What is to be different.
        notes: What can not be kept as it was is added to these, in words for people.
        named: Whether it belongs to arrays whose axes have names, so that it has names if it has no axes.

    Raises:
        UnsupportedByFormat: If the format can not say what the array holds.
        MetadataError: If the compressors can not be used.
    """
    inner, outer, edges, sharded = _shapes(source, target, options)
    same_shapes = (inner, outer, edges) == (source.chunks, source.write_chunks, source.edges)
    same_shapes = same_shapes and sharded == (source.shards is not None)
    if same_shapes and own.is_same(target) and _keeps(options.compressors):
        return source
    if source.transformers:
        gone = ", ".join(repr(item.name) for item in source.transformers)
        notes.append(f"{name}: what is stored of it is not transformed by {gone} any more")
    found = _described(source, name, own, target, notes, named=named)
    fill = found.fill
    if fill is None and not target.has_undefined_fill:
        fill = source.spec.fill_value  # what absent elements have read as
        notes.append(f"{name}: the undefined fill value is {format_fill_value(fill)} now")
    fill = target.fill_value(source.dtype, fill)
    spec = ArraySpec(outer, source.dtype, source.spec.fill_value if fill is None else fill)
    wanted = _wanted(source, options, inner if sharded else None)
    given = not _keeps(options.compressors)
    failure: Exception | None = None
    for attempt in (wanted, _without_filters(wanted), _plain(wanted, compressors=given)):
        try:
            made = ArrayMetadata(
                source.shape,
                source.dtype,
                outer,
                target.key_encoding(None, source.ndim),
                target.chain(attempt, spec),
                fill,
                found.names,
                edges,
                attributes=found.attributes,
            )
            target.render("a", made)
        except (UnsupportedByFormat, MetadataError) as error:
            if attempt.serializer is None or getattr(error, "feature", "codecs") not in ("codecs", "shards"):
                raise
            notes.append(f"{name}: {error}")
            failure = error
            continue
        return made
    assert failure is not None
    raise failure  # it is about the compressors that were asked for


def _described(
    source: ArrayMetadata, name: str, own: Format, target: Format, notes: list[str], *, named: bool
) -> Described:
    """What xarray says of an array, in the words of the target."""
    names = () if named and not source.ndim and source.dimension_names is None else source.dimension_names
    told = Described(source.dtype, source.attributes, names, source.fill_value, own.has_undefined_fill)
    if own.is_same(target):
        return told._replace(names=source.dimension_names)
    found, fill = reworded(told, source.ndim, target), source.fill_value
    changed = fill is not None and (found.fill is None or not is_fill(np.asarray(fill), found.fill))
    if changed and math.prod(source.grid.shape) > _MANY:  # all that is absent would have to be stored
        found = reworded(told._replace(masks=target.has_undefined_fill), source.ndim, target)
    masks = found.masks and not told.masks and DIMENSIONS in found.attributes and found.fill is not None
    if masks and told.missing is None and found.fill == found.fill:  # not NaN, which is missing anyway
        notes.append(f"{name}: {format_fill_value(found.fill)} means missing to xarray in this format")
    if any(source.dimension_names or ()) and found.names is None and DIMENSIONS not in found.attributes:
        lost = list(source.dimension_names or ())
        notes.append(f"{name}: the names of axes {lost} are lost, as some axes have none")
    return found


def _keeps(value: Any) -> bool:
    return isinstance(value, str) and value == "keep"


def _fitting(given: Any, ndim: int) -> Any:
    """A shape that is wanted, for arrays that have as many axes; others keep theirs."""
    counted = isinstance(given, list | tuple)
    return "keep" if (counted and len(given) != ndim) or (isinstance(given, int) and not ndim) else given


def _shapes(
    source: ArrayMetadata, target: Format, options: Changes
) -> tuple[tuple[int, ...], tuple[int, ...], Any, bool]:
    """The shapes of inner chunks and of stored values, the sizes of these where they differ, and if they are shards."""
    chunks, shards = (_fitting(given, source.ndim) for given in (options.chunks, options.shards))
    edges = source.edges
    edges = edges if _keeps(chunks) and _keeps(shards) else None
    if _keeps(shards):
        shards = source.shards if target.has_shards and _keeps(chunks) else None
    if _keeps(chunks):
        chunks = source.chunks
        if source.shards is not None and shards is None:
            edges = None  # the parts of shards are all alike
    inner, outer = chunk_shapes(source.shape, source.dtype.itemsize or 16, chunks, shards)
    if outer != source.write_chunks:
        edges = None
    return inner, outer, edges, shards is not None


def _wanted(source: ArrayMetadata, options: Changes, inner: tuple[int, ...] | None) -> RequestedCodecs:
    """The codecs of chunks as a creating call would ask for them."""
    chain = source.inner_codecs
    reverse = tuple(reversed(range(source.ndim)))
    order = "F" if any(codec.permutation == reverse and source.ndim > 1 for codec in chain.array_array) else "C"
    filters: list[Any] = [codec for codec in chain.array_array if codec.permutation != reverse or source.ndim < 2]
    compressors: list[Any] = list(chain.bytes_bytes)
    while compressors and isinstance(compressors[0], NumcodecsBytes) and compressors[0].kind in ARRAY_ARRAY:
        filters.append(dict(compressors.pop(0).config))  # format 2 has these behind the elements' order
    if not _keeps(options.compressors):
        given = options.compressors
        found = given if isinstance(given, list | tuple) else [] if given is None else [given]
        compressors = [ZstdCodec(level=0) if one == "auto" else one for one in found]
    return RequestedCodecs(filters, chain.array_bytes, compressors, order, inner)


def _without_filters(wanted: RequestedCodecs) -> RequestedCodecs:
    return RequestedCodecs((), wanted.serializer, wanted.compressors, wanted.order, wanted.inner_shape)


def _plain(wanted: RequestedCodecs, *, compressors: bool) -> RequestedCodecs:
    """What every format can say; with the compressors if they were asked for."""
    return RequestedCodecs(
        (), None, wanted.compressors if compressors else (ZstdCodec(level=0),), "C", wanted.inner_shape
    )


def alike(one: ArrayMetadata, other: ArrayMetadata) -> bool:
    """Whether stored values of one array are just those of the other, and absent ones read the same."""
    if not is_fill(one.spec.scalar, other.spec.fill_value):
        return False
    return (one.write_chunks, one.edges, one.dtype, one.codecs, one.transformers, one.shape) == (
        other.write_chunks,
        other.edges,
        other.dtype,
        other.codecs,
        other.transformers,
        other.shape,
    )
