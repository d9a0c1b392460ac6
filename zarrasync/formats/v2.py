"""Zarr format 2 (OGC 21-050r1): ``.zarray``, ``.zgroup`` and ``.zattrs``.

What v2 says with words of its own becomes ordinary parts of the model: ``order: "F"`` a transpose
codec, the byte order in ``"dtype"`` a parameter of the bytes codec, filters and compressor
bytes -> bytes codecs that follow it (v2 filters act on the buffer in stored order), and the
separator a chunk key encoding.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from typing import Any

from zarrasync._util import json as _json
from zarrasync.codecs import (
    ArraySpec,
    BytesCodec,
    Codec,
    CodecChain,
    ObjectCodec,
    TransposeCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    from_numcodecs,
)
from zarrasync.codecs.numcodecs import NumcodecsArray
from zarrasync.errors import InvalidKeyError, MetadataError, UnknownCodecError, UnsupportedByFormat, ZarrError
from zarrasync.formats.numpy_dialect import (
    can_say,
    chain_in_order,
    pack_copies,
    parse_dtype,
    parse_fill,
    plain_nan,
    render_dtype,
    render_fill,
    to_numcodecs,
    unpack_copies,
)
from zarrasync.metadata.document import DocumentChecker, document_key, named_extension, with_shape
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata, Source
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import join

__all__ = ["V2"]

_MEMBERS = ("shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters")
_COMPRESSORS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4", "pcodec", "zfpy")


class V2(Format):
    """Version 2."""

    zarr_format = 2
    has_shards = False
    has_undefined_fill = True

    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        names = (".zarray", ".zgroup") if kind is None else (".zarray" if kind is ArrayMetadata else ".zgroup",)
        return tuple([document_key(path, name) for name in (*names, ".zattrs")])

    # -------------------------------------------------------------- reading

    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        array_key, group_key, attributes_key = self.document_keys(path)
        key = array_key if documents.get(array_key) is not None else group_key
        data = documents.get(key)
        if data is None:
            return None
        if key == group_key and not bytes(data).strip():
            data = b'{"zarr_format": 2}'  # some writers leave an empty file to mark a group
        checker = DocumentChecker(data, key)
        attributes: dict[str, Any] = {}
        originals: dict[str, Mapping[str, Any]] = {key: checker.document}
        extra = documents.get(attributes_key)
        if extra is not None:
            attributes = originals[attributes_key] = _json.load(bytes(extra), attributes_key)
        if checker.document.get("zarr_format") != 2:
            checker.add("zarr_format", f"expected 2, found {checker.document.get('zarr_format')!r}")
            checker.raise_problems()
        source = Source(2, originals)
        if key == group_key:
            return GroupMetadata(attributes=attributes, source=source)
        return self._parse_array(checker, attributes, source)

    def _parse_array(self, checker: DocumentChecker, attributes: dict[str, Any], source: Source) -> ArrayMetadata:
        document = checker.document
        checker.require(*_MEMBERS)
        checker.raise_problems()
        shape = checker.sizes("shape", document["shape"], 0)
        chunks = checker.chunk_sizes("chunks", document["chunks"], shape)
        order = document["order"]
        if order not in ("C", "F"):
            checker.add("order", f"expected 'C' or 'F', found {order!r}")
        separator = document.get("dimension_separator", ".")
        if separator not in (".", "/"):
            checker.add("dimension_separator", f"expected '.' or '/', found {separator!r}")
        filters = [] if document["filters"] in (None, {}) else document["filters"]
        if not isinstance(filters, list) or not all(isinstance(f, Mapping) for f in filters):
            checker.add("filters", f"expected a list of codec configurations or null, found {filters!r}")
        compressor = document["compressor"]
        if compressor is not None and not (isinstance(compressor, Mapping) and compressor):
            checker.add("compressor", f"expected a codec configuration or null, found {compressor!r}")
        checker.raise_problems()
        try:
            data_type, maker, filters = parse_dtype(document["dtype"], filters)
        except MetadataError as error:
            checker.add_error("dtype", error)
            checker.raise_problems()
            raise
        stored = maker.stored if isinstance(maker, BytesCodec) else None
        codecs: list[Codec] = [maker]
        if order == "F" and len(shape) > 1:
            codecs.insert(0, TransposeCodec(tuple(reversed(range(len(shape))))))
        for member, configs in (("filters", filters), ("compressor", [compressor] if compressor else [])):
            for number, config in enumerate(configs):
                where = member if member == "compressor" else f"{member}[{number}]"
                try:
                    codecs.append(from_numcodecs(config, dtype=stored))
                except MetadataError as error:
                    checker.add_error(where, error)
                    if isinstance(error, UnknownCodecError):
                        raise UnknownCodecError(
                            str(checker.problems[-1]), codec=error.codec, problems=checker.problems
                        ) from error
        fill = None
        try:
            fill = parse_fill(data_type, document["fill_value"], stored)
        except (MetadataError, ValueError, TypeError, OverflowError, binascii.Error) as error:
            checker.add("fill_value", f"{document['fill_value']!r} does not fit dtype {document['dtype']!r}: {error}")
        checker.raise_problems()
        keys = ChunkKeyEncoding("v2", separator)
        spec = ArraySpec(chunks, data_type, fill)
        try:
            chain = CodecChain.of(codecs).settle(spec)
            return ArrayMetadata(shape, data_type, chunks, keys, chain, fill, attributes=attributes, source=source)
        except ZarrError as error:
            checker.add_error("", error)
            checker.raise_problems()
            raise

    # -------------------------------------------------------------- writing

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        array_key, group_key, attributes_key = self.document_keys(path)
        source = metadata.source if metadata.source and metadata.source.zarr_format == self.zarr_format else None
        kept = {key.rpartition("/")[2]: dict(value) for key, value in source.documents.items()} if source else {}
        documents: dict[str, bytes] = {}
        if metadata.attributes or ".zattrs" in kept:  # first, so that there is no node that lacks them
            documents[attributes_key] = _json.dump(metadata.attributes)
        if isinstance(metadata, GroupMetadata):
            documents[group_key] = _json.dump(kept.get(".zgroup", {"zarr_format": 2}))
        else:
            document = kept[".zarray"] if ".zarray" in kept else self._array(metadata)
            documents[array_key] = _json.dump(with_shape(document, metadata.shape, metadata.chunks, "chunks"))
        return documents

    def _array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        if metadata.keys.name != "v2":
            raise _unsupported(f"chunk keys of the kind {metadata.keys.name!r}", "chunk_key_encoding")
        if metadata.dimension_names is not None and any(n is not None for n in metadata.dimension_names):
            raise _unsupported("dimension names (xarray keeps them in an attribute)", "dimension_names")
        if metadata.edges is not None:
            raise _unsupported("chunks of different sizes", "chunk_grid")
        maker = metadata.codecs.array_bytes
        order = "C"
        filters: list[dict[str, Any]] = []
        for codec in metadata.codecs.array_array:
            reverse = tuple(reversed(range(metadata.ndim)))
            if codec.permutation == reverse and order == "C" and not filters:
                order = "F"
            elif isinstance(codec, NumcodecsArray):
                filters.append(dict(codec.config))
            else:
                raise _unsupported(f"the codec {codec.label!r}", "codecs")
        if isinstance(maker, BytesCodec):
            if not can_say(metadata.dtype, maker.stored_form(metadata.dtype.numpy)):
                raise _unsupported(f"the data type {metadata.dtype.name!r}", "data_type")
            dtype: Any = render_dtype(maker.stored_form(metadata.dtype.numpy))
        elif isinstance(maker, ObjectCodec):
            dtype = render_dtype(metadata.dtype.numpy)
            filters.insert(0, dict(maker.config))
        elif isinstance(maker, VlenUtf8Codec | VlenBytesCodec):
            dtype = "|O"
            filters.insert(0, {"id": maker.name})
        else:
            raise _unsupported(f"the codec {maker.label!r}", "shards" if metadata.shards else "codecs")
        rest = [to_numcodecs(codec) for codec in metadata.codecs.bytes_bytes]
        compressor = rest.pop() if rest and rest[-1]["id"] in _COMPRESSORS else None
        document = {
            "zarr_format": 2,
            "shape": list(metadata.shape),
            "chunks": list(metadata.write_chunks),
            "dtype": dtype,
            "compressor": compressor,
            "fill_value": render_fill(metadata.dtype, metadata.fill_value, maker),
            "order": order,
            "filters": filters + rest or None,
        }
        if metadata.keys.separator != ".":
            document["dimension_separator"] = metadata.keys.separator
        return document

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        found = super().deviations(metadata)
        documents = metadata.source.documents if metadata.source is not None else {}
        known = ("zarr_format", "dimension_separator", *_MEMBERS)
        for key, document in documents.items():
            if not key.endswith(".zarray"):
                continue
            found += [(f"$.{name}", "unknown member") for name in document if name not in known]
            fill, kind = (
                document["fill_value"],
                metadata.dtype.numpy.kind if isinstance(metadata, ArrayMetadata) else "",
            )
            odd = (kind == "b" and not isinstance(fill, bool)) or (kind in "iu" and isinstance(fill, str))
            if fill is not None and (odd or (kind in "SUTV" and not isinstance(fill, str))):
                found.append(("$.fill_value", f"{fill!r} is not how a fill value of {document['dtype']!r} is written"))
        return found

    def consolidated_key(self, path: str) -> str:
        return document_key(path, ".zmetadata")

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        key = self.consolidated_key(path)
        data = documents.get(key)
        return None if data is None else unpack_copies(data, key, join(path, ""))

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, Any]
    ) -> dict[str, bytes]:
        start = len(path) + 1 if path else 0
        mine = {
            key: json.loads(bytes(group_documents[key] or b"{}"))
            for key in self.document_keys(path)
            if group_documents.get(key)
        }
        return {
            self.consolidated_key(path): pack_copies({key[start:]: v for key, v in {**mine, **documents_below}.items()})
        }

    def check_name(self, name: str) -> None:
        if not name.strip(".") or name in (".zarray", ".zgroup", ".zattrs", ".zmetadata"):
            raise InvalidKeyError(f"{name!r} is not a valid node name in Zarr format 2", key=name)

    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        if requested.inner_shape is not None:
            raise _unsupported("shards", "shards")
        return chain_in_order(requested, spec, _unsupported)

    def fill_value(self, data_type: DataType, value: Any) -> Any:
        return plain_nan(data_type, value)

    def key_encoding(self, requested: Any, ndim: int) -> ChunkKeyEncoding:
        if requested is None:
            return ChunkKeyEncoding("v2", ".")
        if isinstance(requested, ChunkKeyEncoding):
            found = requested
        else:
            name, options = named_extension(requested)
            if name is None:
                raise MetadataError(f"a chunk key encoding is a name or an object with a name, found {requested!r}")
            found = ChunkKeyEncoding(name, options.get("separator", "."))
        if found.name != "v2":
            raise _unsupported(f"chunk keys of the kind {found.name!r}", "chunk_key_encoding")
        return found


def _unsupported(what: str, feature: str) -> UnsupportedByFormat:
    return UnsupportedByFormat(f"Zarr format 2 can not say {what}; use zarr_format=3", zarr_format=2, feature=feature)
