"""Parsing the documents of arrays in Zarr format 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.codecs import parse_codecs
from zarrasync.errors import MetadataError, UnknownCodecError, ZarrError
from zarrasync.metadata.document import DocumentChecker, named_extension
from zarrasync.metadata.node_metadata import ArrayMetadata, SourceDocuments
from zarrasync.model import dtypes, fill_values, storage_transformers
from zarrasync.model.chunk_grids import Edges, expand_sizes
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.storage_transformers import StorageTransformer

_REQUIRED = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
_OPTIONAL = ("attributes", "storage_transformers", "dimension_names")


def parse_array(checker: DocumentChecker, attributes: dict[str, Any], source: SourceDocuments) -> ArrayMetadata:
    """Return the metadata of the array that a document describes.

    Raises:
        MetadataError: If the document is invalid. Its field ``problems`` lists all problems.
    """
    document = checker.document
    checker.require(*_REQUIRED)
    refuse_unknown_members(checker, _REQUIRED + _OPTIONAL)
    checker.raise_problems()
    shape = checker.sizes("shape", document["shape"], 0)
    chunks, edges = _parse_grid(checker, document["chunk_grid"], shape)
    names = _parse_dimension_names(checker, document.get("dimension_names"), len(shape))
    transformers = _parse_transformers(checker, document.get("storage_transformers"))
    keys, data_type, codecs, fill = ChunkKeyEncoding(), None, None, None
    try:
        keys = parse_key_encoding(document["chunk_key_encoding"])
    except MetadataError as error:
        checker.add_error("chunk_key_encoding", error)
    try:
        data_type = dtypes.from_json(document["data_type"])
    except MetadataError as error:
        checker.add_error("data_type", error)
    unknown_codec: UnknownCodecError | None = None
    try:
        codecs = parse_codecs(_with_listed_orders(document["codecs"], len(shape)), "$.codecs", checker.key)
    except MetadataError as error:
        unknown_codec = error if isinstance(error, UnknownCodecError) else None
        checker.add_error("codecs", error)
    if data_type is not None:
        try:
            fill = _parse_fill(data_type, document["fill_value"])
        except MetadataError as error:
            checker.add_error("fill_value", error)
    if unknown_codec is not None and len(checker.problems) == 1:
        raise unknown_codec
    checker.raise_problems()
    assert data_type is not None
    assert codecs is not None
    try:
        return ArrayMetadata(
            shape,
            data_type,
            chunks,
            keys,
            codecs,
            fill,
            names,
            edges,
            transformers,
            attributes=attributes,
            source=source,
        )
    except ZarrError as error:
        checker.add_error("", error)
        checker.raise_problems()
        raise


def _parse_fill(data_type: dtypes.DataType, value: Any) -> Any:
    """Return a fill value. GDAL writes ``null`` for numbers without a no-data value, and reads absent chunks as zeros."""
    if value is None and data_type.numpy.kind in "biufc":
        return data_type.default_fill()
    return fill_values.fill_from_json(data_type, value)


def refuse_unknown_members(checker: DocumentChecker, members: tuple[str, ...]) -> None:
    """Add a problem for each unknown member without ``must_understand: false``."""
    known_members = (*members, "zarr_format", "node_type")
    for name, value in checker.document.items():
        if name not in known_members and not (isinstance(value, Mapping) and value.get("must_understand") is False):
            checker.add(name, "unknown member without 'must_understand': false")


def parse_key_encoding(value: Any) -> ChunkKeyEncoding:
    """Return the chunk key encoding for a ``chunk_key_encoding`` member or parameter.

    Raises:
        MetadataError: If the value is invalid.
    """
    name, configuration = named_extension(value)
    if name not in ("default", "v2"):
        raise MetadataError(f"the chunk key encoding must be 'default' or 'v2', found {value!r}")
    return ChunkKeyEncoding(name, configuration.get("separator", "/" if name == "default" else "."))


def _parse_grid(checker: DocumentChecker, value: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Edges | None]:
    """Return the sizes of chunks (the largest along each axis), and the listed sizes of a rectilinear grid."""
    name, configuration = named_extension(value)
    ndim = len(shape)
    if name == "regular":
        member = "chunk_grid.configuration.chunk_shape"
        return checker.chunk_sizes(member, configuration.get("chunk_shape"), shape), None
    if name != "rectilinear" or set(configuration) != {"kind", "chunk_shapes"} or configuration["kind"] != "inline":
        checker.add("chunk_grid", f"expected a 'regular' or an inline 'rectilinear' chunk grid, found {value!r}")
        return (), None
    axes = configuration["chunk_shapes"]
    if not isinstance(axes, list) or len(axes) != ndim:
        checker.add("chunk_grid.configuration.chunk_shapes", f"expected {ndim} axes, found {axes!r}")
        return (), None
    edges: list[tuple[int, ...] | None] = []
    largest = []
    for number, axis in enumerate(axes):
        try:
            sizes = None if type(axis) is int else expand_sizes(axis)
            largest.append(max(sizes) if sizes else axis)
            edges.append(sizes)
            if not 1 <= largest[-1] < 1 << 63:
                raise ValueError
        except (TypeError, ValueError):
            member = f"chunk_grid.configuration.chunk_shapes[{number}]"
            checker.add(member, f"expected a size, or a list of sizes and [size, count], found {axis!r}")
            return (), None
    return tuple(largest), tuple(edges)


def _parse_transformers(checker: DocumentChecker, value: Any) -> tuple[StorageTransformer, ...]:
    if not isinstance(value, list | None):
        checker.add("storage_transformers", f"expected a list, found {value!r}")
        return ()
    transformers = []
    for number, item in enumerate(value or ()):
        member = f"storage_transformers[{number}]"
        name, configuration = named_extension(item)
        if name is None:
            checker.add(member, f"expected an object with a name, found {item!r}")
            continue
        try:
            transformers.append(storage_transformers.parse(name, configuration))
        except MetadataError as error:
            if not (isinstance(item, Mapping) and item.get("must_understand") is False):
                checker.add_error(member, error)
    return tuple(transformers)


def _parse_dimension_names(checker: DocumentChecker, value: Any, ndim: int) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == ndim and all(n is None or isinstance(n, str) for n in value):
        return tuple(value)
    checker.add("dimension_names", f"expected {ndim} names or nulls, found {value!r}")
    return None


def _with_listed_orders(codecs: Any, ndim: int) -> Any:
    """Return a list of codecs with the orders ``"C"`` and ``"F"``, which early writers used, replaced by lists of axes."""
    if not isinstance(codecs, list):
        return codecs
    result = []
    for item in codecs:
        options = item.get("configuration") if isinstance(item, dict) else None
        if isinstance(options, dict) and options.get("order") in ("C", "F"):
            axes = list(range(ndim))
            order = axes if options["order"] == "C" else axes[::-1]
            result.append({**item, "configuration": {**options, "order": order}})
        elif isinstance(options, dict) and "codecs" in options:
            inner = _with_listed_orders(options["codecs"], ndim)
            result.append({**item, "configuration": {**options, "codecs": inner}})
        else:
            result.append(item)
    return result
