"""Zarr format 2 (OGC 21-050r1): ``.zarray``, ``.zgroup`` and ``.zattrs``.

Concepts of v2 become ordinary parts of the model: ``order: "F"`` becomes a transpose codec, the byte order in ``"dtype"``
a parameter of the bytes codec, and the separator a chunk key encoding. Filters and compressor become bytes -> bytes codecs
after the bytes codec, because v2 filters transform the buffer in stored order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from zarrasync._util import json as _json
from zarrasync.codecs import (
    ArrayBytesCodec,
    ArraySpec,
    BytesCodec,
    Codec,
    CodecChain,
    ObjectCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    from_numcodecs,
)
from zarrasync.codecs.numcodecs import NumcodecsArray
from zarrasync.errors import InvalidKeyError
from zarrasync.formats.numpy_documents import (
    bytes_filter_chain,
    fortran_order,
    is_numpy_dtype,
    parse_dtype,
    parse_fill,
    parse_zmetadata,
    render_dtype,
    render_fill,
    render_zmetadata,
    stored_dtype,
    to_numcodecs,
    without_nan_payload,
)
from zarrasync.formats.parsed_cache import parse_similar
from zarrasync.metadata.document import DocumentChecker, document_key, parse_key_encoding, with_shape
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs, unsupported
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata, SourceDocuments
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import join

_MEMBERS = ("shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters")
_unsupported = partial(unsupported, 2)
_COMPRESSORS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4", "pcodec", "zfpy")


class V2(Format):
    """Zarr format 2."""

    zarr_format = 2
    ome_version = "0.4"
    has_shards = False
    has_undefined_fill = True

    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        names = (".zarray", ".zgroup") if kind is None else (".zarray" if kind is ArrayMetadata else ".zgroup",)
        return tuple([document_key(path, name) for name in (*names, ".zattrs")])

    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        array_key, group_key, attributes_key = self.document_keys(path)
        key = array_key if documents.get(array_key) is not None else group_key
        data = documents.get(key)
        if data is None:
            return None
        if key == group_key and not bytes(data).strip():
            data = b'{"zarr_format": 2}'  # some writers mark a group with an empty file
        checker = DocumentChecker(data, key)
        attributes: dict[str, Any] = {}
        stored = {key: checker.data}
        attributes_data = documents.get(attributes_key)
        if attributes_data is not None:
            stored[attributes_key] = bytes(attributes_data)
            attributes = _json.load(stored[attributes_key], attributes_key)
        if checker.document.get("zarr_format") != 2:
            checker.add("zarr_format", f"expected 2, found {checker.document.get('zarr_format')!r}")
            checker.raise_problems()
        source = SourceDocuments(2, stored)
        if key == group_key:
            return GroupMetadata(attributes=attributes, source=source)
        return parse_similar(checker, attributes, source, lambda: _parse_array(checker, attributes, source))

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        array_key, group_key, attributes_key = self.document_keys(path)
        source = metadata.source if metadata.source and metadata.source.zarr_format == self.zarr_format else None
        originals = {key.rpartition("/")[2]: dict(value) for key, value in source.documents.items()} if source else {}
        documents: dict[str, bytes] = {}
        if metadata.attributes or ".zattrs" in originals:  # first, so that no reader sees a node without its attributes
            documents[attributes_key] = _json.dump(metadata.attributes)
        if isinstance(metadata, GroupMetadata):
            documents[group_key] = _json.dump(originals.get(".zgroup", {"zarr_format": 2}))
        else:
            document = originals[".zarray"] if ".zarray" in originals else _render_array(metadata)
            documents[array_key] = _json.dump(with_shape(document, metadata.shape, metadata.chunks, "chunks"))
        return documents

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        deviations = super().deviations(metadata)
        members = ("zarr_format", "dimension_separator", *_MEMBERS)
        for key, document in metadata.documents.items():
            if not key.endswith(".zarray"):
                continue
            deviations += [(f"$.{name}", "unknown member") for name in document if name not in members]
            kind = metadata.dtype.numpy.kind if isinstance(metadata, ArrayMetadata) else ""
            if "filters" not in document:
                deviations.append(("$.filters", "this required member is missing; the array has no filters"))
            fill = document["fill_value"]
            if fill is not None and not _has_standard_form(fill, kind):
                message = f"{fill!r} does not have the standard form of a fill value for dtype {document['dtype']!r}"
                deviations.append(("$.fill_value", message))
        return deviations

    def check_name(self, name: str) -> None:
        if not name.strip(".") or name in (".zarray", ".zgroup", ".zattrs", ".zmetadata"):
            raise InvalidKeyError(f"{name!r} is not a valid node name in Zarr format 2", key=name)

    # -------------------------------------------------------------- parameters of new arrays

    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        if requested.inner_shape is not None:
            raise _unsupported("shards", "shards")
        return bytes_filter_chain(requested, spec, _unsupported)

    def fill_value(self, data_type: DataType, value: Any) -> Any:
        return without_nan_payload(data_type, value)

    def key_encoding(self, requested: Any) -> ChunkKeyEncoding:
        if requested is None:
            return ChunkKeyEncoding("v2", ".")
        encoding = requested if isinstance(requested, ChunkKeyEncoding) else parse_key_encoding(requested)
        if encoding.name != "v2":
            raise _unsupported(f"chunk keys of the kind {encoding.name!r}", "chunk_key_encoding")
        return encoding

    # -------------------------------------------------------------- consolidated metadata

    def consolidated_key(self, path: str) -> str:
        return document_key(path, ".zmetadata")

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        key = self.consolidated_key(path)
        data = documents.get(key)
        return None if data is None else parse_zmetadata(data, key, join(path, ""))

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, bytes]
    ) -> dict[str, bytes]:
        return {self.consolidated_key(path): render_zmetadata(self, path, group_documents, documents_below)}


# ------------------------------------------------------------------ reading arrays


def _parse_array(checker: DocumentChecker, attributes: dict[str, Any], source: SourceDocuments) -> ArrayMetadata:
    document = checker.document
    checker.require(*(name for name in _MEMBERS if name != "filters"))
    checker.raise_problems()
    shape = checker.sizes("shape", document["shape"], 0)
    chunks = checker.chunk_sizes("chunks", document["chunks"], shape)
    order = document["order"]
    if order not in ("C", "F"):
        checker.add("order", f"expected 'C' or 'F', found {order!r}")
    separator = document.get("dimension_separator", ".")
    if separator not in (".", "/"):
        checker.add("dimension_separator", f"expected '.' or '/', found {separator!r}")
    filters, compressor = _codec_members(checker)
    checker.raise_problems()
    data_type, serializer, filters = checker.need("dtype", parse_dtype, document["dtype"], filters)
    codecs: list[Codec] = [serializer]
    if order == "F" and len(shape) > 1:
        codecs.insert(0, fortran_order(len(shape)))
    codecs.extend(_parse_codecs(checker, filters, compressor, serializer))
    fill = None
    try:
        fill = parse_fill(data_type, document["fill_value"], stored_dtype(serializer))
    except (ValueError, TypeError, OverflowError) as error:
        checker.add("fill_value", f"{document['fill_value']!r} does not fit dtype {document['dtype']!r}: {error}")
    checker.raise_problems()
    keys = ChunkKeyEncoding("v2", separator, "dimension_separator" not in document)
    chain = checker.need("", CodecChain.of(codecs).settle, ArraySpec(chunks, data_type, fill))
    parsed = shape, data_type, chunks, keys, chain, fill
    return checker.need("", ArrayMetadata, *parsed, attributes=attributes, source=source)


def _codec_members(checker: DocumentChecker) -> tuple[Any, Any]:
    """Check the form of ``filters`` and ``compressor`` and return them."""
    document = checker.document
    filters = document.get("filters")
    filters = [] if filters in (None, {}) else filters
    if not isinstance(filters, list) or not all(isinstance(item, Mapping) for item in filters):
        checker.add("filters", f"expected a list of codec configurations or null, found {filters!r}")
    compressor = document["compressor"]
    if compressor is not None and not (isinstance(compressor, Mapping) and compressor):
        checker.add("compressor", f"expected a codec configuration or null, found {compressor!r}")
    return filters, compressor


def _parse_codecs(
    checker: DocumentChecker, filters: list[Any], compressor: Mapping[str, Any] | None, serializer: ArrayBytesCodec
) -> list[Codec]:
    """Return the bytes -> bytes codecs of filters and compressor."""
    configs = [(f"filters[{number}]", config) for number, config in enumerate(filters)]
    if compressor:
        configs.append(("compressor", compressor))
    stored = stored_dtype(serializer)
    codecs = [checker.attempt(member, from_numcodecs, config, dtype=stored) for member, config in configs]
    return [codec for codec in codecs if codec is not None]


def _has_standard_form(fill: Any, kind: str) -> bool:
    """Return whether a fill value of a dtype kind has the form that the specification requires."""
    if isinstance(fill, list):
        return kind == "c" and len(fill) == 2
    if kind == "b":
        return isinstance(fill, bool)
    if kind in "iu":
        return not isinstance(fill, str)
    if kind == "f" and isinstance(fill, str):
        return fill in ("NaN", "Infinity", "-Infinity")
    return kind not in "SUTV" or isinstance(fill, str)


# ------------------------------------------------------------------ writing arrays


def _render_array(metadata: ArrayMetadata) -> dict[str, Any]:
    if metadata.keys.name != "v2":
        raise _unsupported(f"chunk keys of the kind {metadata.keys.name!r}", "chunk_key_encoding")
    if metadata.dimension_names is not None and any(n is not None for n in metadata.dimension_names):
        raise _unsupported("dimension names (xarray keeps them in an attribute)", "dimension_names")
    if metadata.edges is not None:
        raise _unsupported("chunks of different sizes", "chunk_grid")
    order, array_filters = _render_array_codecs(metadata)
    dtype, object_filters = _render_data_type(metadata)
    bytes_codecs = [to_numcodecs(codec) for codec in metadata.codecs.bytes_bytes]
    compressor = bytes_codecs.pop() if bytes_codecs and bytes_codecs[-1]["id"] in _COMPRESSORS else None
    document = {
        "zarr_format": 2,
        "shape": list(metadata.shape),
        "chunks": list(metadata.write_chunks),
        "dtype": dtype,
        "compressor": compressor,
        "fill_value": render_fill(metadata.dtype, metadata.fill_value, metadata.codecs.array_bytes),
        "order": order,
        "filters": object_filters + array_filters + bytes_codecs or None,
    }
    if metadata.keys.separator != ".":
        document["dimension_separator"] = metadata.keys.separator
    return document


def _render_array_codecs(metadata: ArrayMetadata) -> tuple[str, list[dict[str, Any]]]:
    """Return the order of elements and the filters that represent the array -> array codecs."""
    order = "C"
    filters: list[dict[str, Any]] = []
    reverse = tuple(reversed(range(metadata.ndim)))
    for codec in metadata.codecs.array_array:
        if codec.permutation == reverse and order == "C" and not filters:
            order = "F"
        elif isinstance(codec, NumcodecsArray):
            filters.append(dict(codec.config))
        else:
            raise _unsupported(f"the codec {codec.label!r}", "codecs")
    return order, filters


def _render_data_type(metadata: ArrayMetadata) -> tuple[Any, list[dict[str, Any]]]:
    """Return the ``dtype`` member and the filter for objects, which together represent the array -> bytes codec."""
    serializer = metadata.codecs.array_bytes
    if isinstance(serializer, BytesCodec):
        stored = serializer.stored_dtype_of(metadata.dtype.numpy)
        if not is_numpy_dtype(metadata.dtype, stored):
            raise _unsupported(f"the data type {metadata.dtype.name!r}", "data_type")
        return render_dtype(stored), []
    if isinstance(serializer, ObjectCodec):
        return render_dtype(metadata.dtype.numpy), [dict(serializer.config)]
    if isinstance(serializer, VlenUtf8Codec | VlenBytesCodec):
        return "|O", [{"id": serializer.name}]
    raise _unsupported(f"the codec {serializer.label!r}", "shards" if metadata.shards else "codecs")
