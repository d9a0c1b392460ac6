"""Zarr format 3 (core specification 3.1): one ``zarr.json`` per node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from zarrasync._util import json as _json
from zarrasync._util.json import copied_document, join_members, split_members, without_member
from zarrasync.codecs import (
    ArrayArrayCodec,
    ArraySpec,
    BytesBytesCodec,
    BytesCodec,
    Codec,
    CodecChain,
    ShardingCodec,
    TransposeCodec,
    adapt,
    as_codec,
    chain_of,
    parse_codecs,
)
from zarrasync.errors import InvalidKeyError, MetadataError, Problem, UnsupportedByFormat
from zarrasync.formats.numpy_documents import numcodecs_config
from zarrasync.formats.parsed_cache import parse_similar
from zarrasync.metadata.conventions.xarray_properties import UNNAMED
from zarrasync.metadata.document import DocumentChecker, document_key, named_extension, parse_key_encoding, with_shape
from zarrasync.metadata.extensions import StorageTransformer, parse_storage_transformer
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs, unsupported
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata, SourceDocuments
from zarrasync.model import dtypes, fill_values
from zarrasync.model.chunk_grids import Edges, expand_sizes
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.paths import join

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
    keys = checker.attempt("chunk_key_encoding", parse_key_encoding, document["chunk_key_encoding"])
    data_type = checker.attempt("data_type", dtypes.from_json, document["data_type"])
    listed = _with_listed_orders(document["codecs"], len(shape))
    codecs = checker.attempt("codecs", parse_codecs, listed, "$.codecs", checker.key)
    fill = None
    if data_type is not None:
        fill = checker.attempt("fill_value", _parse_fill, data_type, document["fill_value"])
    checker.raise_problems()
    assert keys is not None
    assert data_type is not None
    assert codecs is not None
    parsed = shape, data_type, chunks, keys, codecs, fill, names, edges, transformers
    return checker.need("", ArrayMetadata, *parsed, attributes=attributes, source=source)


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
            transformers.append(parse_storage_transformer(name, configuration))
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


_COPIES = ("consolidated_metadata", "metadata")
"""The member of a group's document that contains copies of other documents, and the member of it that lists them."""
_CODEC_KINDS: dict[type[Codec], str] = {ArrayArrayCodec: "array -> array", BytesBytesCodec: "bytes -> bytes"}


class EntryPointFound(MetadataError):
    """The document at the root is the entry point of the draft of format 3, not a node."""


class V3(Format):
    """Zarr format 3."""

    zarr_format = 3
    has_dimension_names = True

    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        return (document_key(path, "zarr.json"),)

    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        (key,) = self.document_keys(path)
        data = documents.get(key)
        if data is None:
            return None
        checker = DocumentChecker(data, key, without=_COPIES)
        document = checker.document
        if isinstance(document.get("zarr_format"), str) and "node_type" not in document and not path:
            raise EntryPointFound(
                f"{key} is the entry point document of the draft of Zarr format 3, not a node of Zarr format 3; open the "
                "store with zarr_format='3-draft' or '3-draft-2022', or without zarr_format"
            )
        if document.get("zarr_format") != 3 or isinstance(document.get("zarr_format"), bool):
            checker.add("zarr_format", f"expected 3, found {document.get('zarr_format')!r}")
            checker.raise_problems()
        source = SourceDocuments(3, {key: checker.data})
        if document.get("node_type") == "group":
            return _parse_group(checker, source)
        if document.get("node_type") != "array":
            checker.add("node_type", f"expected 'array' or 'group', found {document.get('node_type')!r}")
            checker.raise_problems()
        attributes = _attributes(checker)
        return parse_similar(checker, attributes, source, lambda: parse_array(checker, attributes, source))

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        (key,) = self.document_keys(path)
        source = metadata.source
        if isinstance(metadata, GroupMetadata):
            return {key: _render_group(metadata)}
        if source is not None and source.zarr_format == self.zarr_format and len(source.documents) == 1:
            (document,) = (dict(original) for original in source.documents.values())
        else:
            document = _render_array(metadata)
        document["attributes"] = dict(metadata.attributes)
        chunk_member = ("chunk_grid", "configuration", "chunk_shape")
        document = with_shape(document, metadata.shape, metadata.write_chunks, *chunk_member)
        if metadata.edges is not None:  # listed sizes grow with the shape
            document["chunk_grid"] = _render_grid(metadata)
        return {key: _json.dump(document)}

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        deviations = super().deviations(metadata)
        for document in metadata.documents.values():
            if document.get("attributes", {}) is None:
                deviations.append(("$.attributes", "null is not an object; the node has no attributes"))
            for number, item in enumerate(document.get("codecs", ())):
                name, options = named_extension(item)
                if name == "transpose" and isinstance(options.get("order"), str):
                    deviations.append((f"$.codecs[{number}]", "the order must be a list of axes"))
                if name == "endian":
                    deviations.append((f"$.codecs[{number}]", "the codec 'endian' has been renamed to 'bytes'"))
            if named_extension(document.get("data_type"))[0] == "structured":
                message = "the data type 'structured' is deprecated; use 'struct'"
                deviations.append(("$.data_type", message))
            if "shape" in document and document["fill_value"] is None:
                deviations.append(("$.fill_value", "null is not a fill value; absent chunks read as zeros"))
            elif document.get("data_type") == "bool" and not isinstance(document.get("fill_value"), bool):
                message = f"expected true or false, found {document.get('fill_value')!r}"
                deviations.append(("$.fill_value", message))
        return deviations

    def check_name(self, name: str) -> None:
        is_reserved = name.startswith("__") and name != UNNAMED
        if not name.strip(".") or is_reserved or name == "zarr.json":
            raise InvalidKeyError(
                f"{name!r} is not a valid node name in Zarr format 3: it must not be empty or only periods, "
                "start with '__' or be 'zarr.json'",
                key=name,
            )

    # -------------------------------------------------------------- parameters of new arrays

    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        chunk_spec = spec if requested.inner_shape is None else spec.replace(shape=requested.inner_shape)
        configs = [(codec, numcodecs_config(codec)) for codec in requested.filters]
        arrays = [codec if config is None else adapt(config, arrays=True) for codec, config in configs]
        filters = [as_codec(codec, "filters") for codec in arrays]
        compressors = [as_codec(codec, "compressors") for codec in requested.compressors]
        for parameter, codecs, kind in (
            ("filters", filters, ArrayArrayCodec),
            ("compressors", compressors, BytesBytesCodec),
        ):
            for codec in codecs:
                if not isinstance(codec, kind):
                    raise MetadataError(
                        f"{parameter} must be {_CODEC_KINDS[kind]} codecs, and {codec.label!r} is not one"
                    )
        if requested.order == "F" and len(spec.shape) > 1:
            filters.append(TransposeCodec(tuple(reversed(range(len(spec.shape))))))
        serializer = [] if requested.serializer in (None, "auto") else [as_codec(requested.serializer, "serializer")]
        chain = _with_plain_byte_order(chain_of([*filters, *serializer, *compressors], chunk_spec))
        if requested.inner_shape is None:
            return chain
        return CodecChain.of([ShardingCodec(requested.inner_shape, chain, index_location=requested.index_location)])

    def key_encoding(self, requested: Any) -> ChunkKeyEncoding:
        if requested is None or isinstance(requested, ChunkKeyEncoding):
            return requested or ChunkKeyEncoding()
        return parse_key_encoding(requested)

    # -------------------------------------------------------------- consolidated metadata

    def consolidated_key(self, path: str) -> str:
        return document_key(path, "zarr.json")

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        key = self.consolidated_key(path)
        data = documents.get(key)
        if data is None:
            return None
        consolidated = split_members(bytes(data), key, *_COPIES).get(_COPIES[0], b"null")
        if consolidated == b"null":
            return None
        is_inline = isinstance(consolidated, dict) and json.loads(consolidated.get("kind", b"null")) == "inline"
        copies = consolidated.get("metadata") if is_inline else None
        if not isinstance(copies, dict) or not all(item.startswith(b"{") for item in copies.values()):
            message = "expected the kind 'inline' and an object of documents"
            raise MetadataError.from_problems([Problem(key, f"$.{_COPIES[0]}", message)])
        return {join(path, name, "zarr.json"): item for name, item in copies.items()}

    def own_documents(self, path: str, group_documents: Documents) -> Documents:
        key = self.consolidated_key(path)
        return {**group_documents, key: without_member(bytes(group_documents[key] or b""), _COPIES)}

    def copied_document(self, key: str, data: bytes) -> bytes:
        return copied_document(without_member(data, _COPIES), key)

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, bytes]
    ) -> dict[str, bytes]:
        key = self.consolidated_key(path)
        start = len(path) + 1 if path else 0
        copies = {name[start:].rpartition("/")[0]: data for name, data in sorted(documents_below.items())}
        own = split_members(self.copied_document(key, bytes(group_documents[key] or b"")), key)
        consolidated = {"kind": b'"inline"', "must_understand": b"false", "metadata": copies}
        return {key: join_members({**own, _COPIES[0]: consolidated})}


def _parse_group(checker: DocumentChecker, source: SourceDocuments) -> GroupMetadata:
    refuse_unknown_members(checker, ("attributes", _COPIES[0]))
    attributes = _attributes(checker)
    checker.raise_problems()
    return GroupMetadata(attributes=attributes, source=source)


def _attributes(checker: DocumentChecker) -> dict[str, Any]:
    """Return the attributes of a node. Some writers store null instead of an object without members."""
    attributes = checker.document.get("attributes")
    return {} if attributes is None else checker.attributes(attributes)


def _with_plain_byte_order(chain: CodecChain) -> CodecChain:
    """Return the chain with a byte order that the ``bytes`` codec can represent.

    Raises:
        UnsupportedByFormat: For structured elements of mixed byte order.
    """
    serializer = chain.array_bytes
    if not isinstance(serializer, BytesCodec) or serializer.stored is None:
        return chain
    little, big = serializer.stored.newbyteorder("<"), serializer.stored.newbyteorder(">")
    if little == big:
        return replace(chain, array_bytes=BytesCodec(None))
    if serializer.stored in (little, big):
        return replace(chain, array_bytes=BytesCodec("little" if serializer.stored == little else "big"))
    raise UnsupportedByFormat(
        f"Zarr format 3 stores all fields in the same byte order, but the data type mixes byte orders: "
        f"{serializer.stored}",
        zarr_format=3,
        feature="data_type",
    )


# ------------------------------------------------------------------ writing


def _render_group(metadata: GroupMetadata) -> bytes:
    source, attributes = metadata.source, _json.dump(metadata.attributes)
    if source is None or source.zarr_format != V3.zarr_format or len(source.data) != 1:
        return join_members({"zarr_format": b"3", "node_type": b'"group"', "attributes": attributes})
    ((key, data),) = source.data.items()  # copies of the documents of other nodes, which may be many, are not parsed
    return join_members({**split_members(data, key, *_COPIES), "attributes": attributes})


def _render_array(metadata: ArrayMetadata) -> dict[str, Any]:
    try:
        data_type = dtypes.to_json(metadata.dtype)
    except MetadataError as error:
        raise UnsupportedByFormat(str(error), zarr_format=3, feature="data_type") from error
    if metadata.fill_value is None:
        raise unsupported(3, "an undefined fill value", "fill_value", "; pass fill_value")
    if metadata.keys.name not in ("default", "v2"):
        raise unsupported(3, f"the chunk key encoding {metadata.keys.name!r}", "chunk_key_encoding", "")
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(metadata.shape),
        "data_type": data_type,
        "chunk_grid": _render_grid(metadata),
        "chunk_key_encoding": {"name": metadata.keys.name, "configuration": {"separator": metadata.keys.separator}},
        "fill_value": fill_values.fill_to_json(metadata.dtype, metadata.fill_value),
        "codecs": [codec.to_json() for codec in _with_plain_byte_order(metadata.codecs).codecs],
        "attributes": metadata.attributes,
    }
    if metadata.transformers:
        document["storage_transformers"] = [
            {"name": item.name, "configuration": dict(item.configuration())} for item in metadata.transformers
        ]
    if metadata.dimension_names is not None:
        document["dimension_names"] = list(metadata.dimension_names)
    return document


def _render_grid(metadata: ArrayMetadata) -> dict[str, Any]:
    if metadata.edges is None:
        return {"name": "regular", "configuration": {"chunk_shape": list(metadata.write_chunks)}}
    axes: list[Any] = []
    for sizes, chunk in zip(metadata.edges, metadata.write_chunks, strict=True):
        runs = [(size, len(list(group))) for size, group in groupby(sizes or ())]
        axes.append(chunk if sizes is None else [size if count == 1 else [size, count] for size, count in runs])
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": axes}}
