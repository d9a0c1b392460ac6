"""Zarr format 3 (the core specification 3.1): one ``zarr.json`` per node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from zarrasync._util import json as _json
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
from zarrasync.errors import InvalidKeyError, MetadataError, UnknownCodecError, UnsupportedByFormat, ZarrError
from zarrasync.metadata.document import DocumentChecker, document_key, named_extension, with_shape
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata, Source
from zarrasync.model import dtypes, fill_values, storage_transformers
from zarrasync.model.chunk_grids import Edges, expand_sizes
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.paths import join
from zarrasync.model.storage_transformers import StorageTransformer

__all__ = ["V3", "EntryPointFound"]

_ARRAY = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
_KINDS: dict[type[Codec], str] = {ArrayArrayCodec: "array -> array", BytesBytesCodec: "bytes -> bytes"}
_OPTIONAL = ("attributes", "storage_transformers", "dimension_names")


class EntryPointFound(MetadataError):
    """At the root stands the entry point document of a draft, not a node."""


class V3(Format):
    """The final version 3."""

    zarr_format = 3
    has_dimension_names = True

    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        return (document_key(path, "zarr.json"),)

    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        (key,) = self.document_keys(path)
        data = documents.get(key)
        if data is None:
            return None
        checker = DocumentChecker(data, key)
        document = checker.document
        if isinstance(document.get("zarr_format"), str) and "node_type" not in document and not path:
            raise EntryPointFound(
                f"{key} is the entry point document of a draft of Zarr format 3: open the store with "
                f"zarr_format='3-draft' or '3-draft-2022', or without zarr_format"
            )
        if document.get("zarr_format") != 3 or isinstance(document.get("zarr_format"), bool):
            checker.add("zarr_format", f"expected 3, found {document.get('zarr_format')!r}")
            checker.raise_problems()
        source = Source(3, {key: document})
        if document.get("node_type") == "group":
            return self._parse_group(checker, source)
        if document.get("node_type") != "array":
            checker.add("node_type", f"expected 'array' or 'group', found {document.get('node_type')!r}")
            checker.raise_problems()
        return self._parse_array(checker, source)

    def _parse_group(self, checker: DocumentChecker, source: Source) -> GroupMetadata:
        _refuse_unknown(checker, ("attributes", "consolidated_metadata"))
        attributes = checker.attributes(checker.document.get("attributes", {}))
        checker.raise_problems()
        return GroupMetadata(attributes=attributes, source=source)

    def _parse_array(self, checker: DocumentChecker, source: Source) -> ArrayMetadata:
        document = checker.document
        checker.require(*_ARRAY)
        _refuse_unknown(checker, _ARRAY + _OPTIONAL)
        checker.raise_problems()
        shape = checker.sizes("shape", document["shape"], 0)
        attributes = checker.attributes(document.get("attributes", {}))
        chunks, edges = self._parse_grid(checker, document["chunk_grid"], shape)
        names = self._parse_names(checker, document.get("dimension_names"), len(shape))
        stack = self._parse_transformers(checker, document.get("storage_transformers"))
        keys, data_type, codecs, fill = ChunkKeyEncoding(), None, None, None
        try:
            keys = _parse_keys(document["chunk_key_encoding"])
        except MetadataError as error:
            checker.add_error("chunk_key_encoding", error)
        try:
            data_type = dtypes.from_json(document["data_type"])
        except MetadataError as error:
            checker.add_error("data_type", error)
        unknown: UnknownCodecError | None = None
        try:
            codecs = parse_codecs(_spelled(document["codecs"], len(shape)), "$.codecs", checker.key)
        except MetadataError as error:
            unknown = error if isinstance(error, UnknownCodecError) else None
            checker.add_error("codecs", error)
        if data_type is not None:
            try:
                fill = fill_values.fill_from_json(data_type, document["fill_value"])
            except MetadataError as error:
                checker.add_error("fill_value", error)
        if unknown is not None and len(checker.problems) == 1:
            raise unknown
        checker.raise_problems()
        assert data_type is not None
        assert codecs is not None
        try:
            return ArrayMetadata(
                shape, data_type, chunks, keys, codecs, fill, names, edges, stack, attributes=attributes, source=source
            )
        except ZarrError as error:
            checker.add_error("", error)
            checker.raise_problems()
            raise

    def _parse_grid(
        self, checker: DocumentChecker, value: Any, shape: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Edges | None]:
        name, configuration = named_extension(value)
        ndim = len(shape)
        if name == "regular":
            return checker.chunk_sizes(
                "chunk_grid.configuration.chunk_shape", configuration.get("chunk_shape"), shape
            ), None
        if name != "rectilinear" or set(configuration) != {"kind", "chunk_shapes"} or configuration["kind"] != "inline":
            checker.add("chunk_grid", f"expected a 'regular' or an inline 'rectilinear' chunk grid, found {value!r}")
            return (), None
        axes = configuration["chunk_shapes"]
        if not isinstance(axes, list) or len(axes) != ndim:
            checker.add("chunk_grid.configuration.chunk_shapes", f"expected {ndim} axes, found {axes!r}")
            return (), None
        edges: list[tuple[int, ...] | None] = []
        sizes = []
        for number, axis in enumerate(axes):
            try:
                own = None if type(axis) is int else expand_sizes(axis)
                sizes.append(max(own) if own else axis)
                edges.append(own)
                if not 1 <= sizes[-1] < 1 << 63:
                    raise ValueError
            except (TypeError, ValueError):
                where = f"chunk_grid.configuration.chunk_shapes[{number}]"
                checker.add(where, f"expected a size, or a list of sizes and [size, count], found {axis!r}")
                return (), None
        return tuple(sizes), tuple(edges)

    def _parse_transformers(self, checker: DocumentChecker, value: Any) -> tuple[StorageTransformer, ...]:
        if not isinstance(value, list | None):
            checker.add("storage_transformers", f"expected a list, found {value!r}")
            return ()
        found = []
        for number, item in enumerate(value or ()):
            where = f"storage_transformers[{number}]"
            name, configuration = named_extension(item)
            if name is None:
                checker.add(where, f"expected an object with a name, found {item!r}")
                continue
            try:
                found.append(storage_transformers.parse(name, configuration))
            except MetadataError as error:
                if not (isinstance(item, Mapping) and item.get("must_understand") is False):
                    checker.add_error(where, error)
        return tuple(found)

    def _parse_names(self, checker: DocumentChecker, value: Any, ndim: int) -> tuple[str | None, ...] | None:
        if value is None:
            return None
        if isinstance(value, list) and len(value) == ndim and all(n is None or isinstance(n, str) for n in value):
            return tuple(value)
        checker.add("dimension_names", f"expected {ndim} names or nulls, found {value!r}")
        return None

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        (key,) = self.document_keys(path)
        source = metadata.source
        if source is not None and source.zarr_format == self.zarr_format and len(source.documents) == 1:
            (document,) = (dict(d) for d in source.documents.values())
        else:
            document = _group(metadata) if isinstance(metadata, GroupMetadata) else _array(metadata)
        document["attributes"] = dict(metadata.attributes)
        if isinstance(metadata, ArrayMetadata):
            place = ("chunk_grid", "configuration", "chunk_shape")
            document = with_shape(document, metadata.shape, metadata.write_chunks, *place)
            if metadata.edges is not None:  # they grow with the shape
                document["chunk_grid"] = _grid(metadata)
        return {key: _json.dump(document)}

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        found = super().deviations(metadata)
        documents = metadata.source.documents.values() if metadata.source is not None else ()
        for document in documents:
            for number, item in enumerate(document.get("codecs", ())):
                name, options = named_extension(item)
                if name == "transpose" and isinstance(options.get("order"), str):
                    found.append((f"$.codecs[{number}]", "the order is a list of axes now"))
                if name == "endian":
                    found.append((f"$.codecs[{number}]", "the codec 'endian' is called 'bytes' now"))
            if named_extension(document.get("data_type"))[0] == "structured":
                found.append(("$.data_type", "the data type 'structured' is not to be written any more; 'struct' is"))
            if document.get("data_type") == "bool" and not isinstance(document.get("fill_value"), bool):
                found.append(("$.fill_value", f"expected true or false, found {document.get('fill_value')!r}"))
        return found

    def consolidated_key(self, path: str) -> str:
        return document_key(path, "zarr.json")

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        key = self.consolidated_key(path)
        data = documents.get(key)
        if data is None:
            return None
        checker = DocumentChecker(data, key)
        copies = checker.document.get("consolidated_metadata")
        if copies is None:
            return None
        nodes = copies.get("metadata") if isinstance(copies, Mapping) and copies.get("kind") == "inline" else None
        if not isinstance(nodes, Mapping) or not all(isinstance(item, Mapping) for item in nodes.values()):
            checker.add("consolidated_metadata", "expected the kind 'inline' with an object of documents")
            checker.raise_problems()
            raise AssertionError
        return {join(path, name, "zarr.json"): json.dumps(item).encode() for name, item in nodes.items()}

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, Any]
    ) -> dict[str, bytes]:
        key = self.consolidated_key(path)
        start = len(path) + 1 if path else 0
        nodes = {
            name[start:].rpartition("/")[0]: {k: v for k, v in item.items() if k != "consolidated_metadata"}
            for name, item in sorted(documents_below.items())
        }
        document = DocumentChecker(group_documents[key] or b"", key).document
        copies = {"kind": "inline", "must_understand": False, "metadata": nodes}
        return {key: _json.dump({**document, "consolidated_metadata": copies})}

    def check_name(self, name: str) -> None:
        if not name.strip(".") or name.startswith("__") or name == "zarr.json":
            raise InvalidKeyError(
                f"{name!r} is not a valid node name in Zarr format 3: it must not be empty or only periods, "
                "start with '__' or be 'zarr.json'",
                key=name,
            )

    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        inner = spec if requested.inner_shape is None else spec.replace(shape=requested.inner_shape)
        filters = [as_codec(_array_form(codec)) for codec in requested.filters]
        compressors = [as_codec(codec) for codec in requested.compressors]
        for what, codecs, kind in (
            ("filters", filters, ArrayArrayCodec),
            ("compressors", compressors, BytesBytesCodec),
        ):
            for codec in codecs:
                if not isinstance(codec, kind):
                    raise MetadataError(f"{what} are {_KINDS[kind]} codecs, {codec.label!r} is not")
        if requested.order == "F" and len(spec.shape) > 1:
            filters.append(TransposeCodec(tuple(reversed(range(len(spec.shape))))))
        serializer = [] if requested.serializer in (None, "auto") else [as_codec(requested.serializer)]
        chain = _plain_orders(chain_of([*filters, *serializer, *compressors], inner))
        if requested.inner_shape is None:
            return chain
        return CodecChain.of([ShardingCodec(requested.inner_shape, chain)])

    def key_encoding(self, requested: Any, ndim: int) -> ChunkKeyEncoding:
        if requested is None or isinstance(requested, ChunkKeyEncoding):
            return requested or ChunkKeyEncoding()
        return _parse_keys(requested)


def _spelled(codecs: Any, ndim: int) -> Any:
    """A list of codecs with the orders of axes spelled out that early writers called ``"C"`` and ``"F"``."""
    if not isinstance(codecs, list):
        return codecs
    found = []
    for item in codecs:
        options = item.get("configuration") if isinstance(item, dict) else None
        if isinstance(options, dict) and options.get("order") in ("C", "F"):
            axes = list(range(ndim))
            found.append(
                {**item, "configuration": {**options, "order": axes if options["order"] == "C" else axes[::-1]}}
            )
        elif isinstance(options, dict) and "codecs" in options:
            found.append({**item, "configuration": {**options, "codecs": _spelled(options["codecs"], ndim)}})
        else:
            found.append(item)
    return found


def _array_form(codec: Any) -> Any:
    """A numcodecs filter in its array -> array form, which is what a filter is here."""
    config = codec.get_config() if hasattr(codec, "get_config") else codec
    if isinstance(config, Mapping) and "id" in config:
        return adapt(config, arrays=True)
    return codec


def _parse_keys(value: Any) -> ChunkKeyEncoding:
    name, configuration = named_extension(value)
    if name not in ("default", "v2"):
        raise MetadataError(f"expected chunk key encoding 'default' or 'v2', found {value!r}")
    return ChunkKeyEncoding(name, configuration.get("separator", "/" if name == "default" else "."))


def _refuse_unknown(checker: DocumentChecker, known: tuple[str, ...]) -> None:
    own = (*known, "zarr_format", "node_type")
    for name, value in checker.document.items():
        if name not in own and not (isinstance(value, Mapping) and value.get("must_understand") is False):
            checker.add(name, "unknown member that does not say 'must_understand': false")


def _grid(metadata: ArrayMetadata) -> dict[str, Any]:
    if metadata.edges is None:
        return {"name": "regular", "configuration": {"chunk_shape": list(metadata.write_chunks)}}
    axes: list[Any] = []
    for own, size in zip(metadata.edges, metadata.write_chunks, strict=True):
        runs = [(n, len(list(group))) for n, group in groupby(own or ())]
        axes.append(size if own is None else [n if count == 1 else [n, count] for n, count in runs])
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": axes}}


def _group(metadata: GroupMetadata) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": metadata.attributes}


def _array(metadata: ArrayMetadata) -> dict[str, Any]:
    if metadata.fill_value is None:
        raise UnsupportedByFormat(
            "Zarr format 3 has no undefined fill value: give the array a fill_value",
            zarr_format=3,
            feature="fill_value",
        )
    if metadata.keys.name not in ("default", "v2"):
        raise UnsupportedByFormat(
            f"Zarr format 3 has no chunk key encoding {metadata.keys.name!r}",
            zarr_format=3,
            feature="chunk_key_encoding",
        )
    try:
        data_type = dtypes.to_json(metadata.dtype)
    except MetadataError as error:
        raise UnsupportedByFormat(str(error), zarr_format=3, feature="data_type") from error
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(metadata.shape),
        "data_type": data_type,
        "chunk_grid": _grid(metadata),
        "chunk_key_encoding": {"name": metadata.keys.name, "configuration": {"separator": metadata.keys.separator}},
        "fill_value": fill_values.fill_to_json(metadata.dtype, metadata.fill_value),
        "codecs": [codec.to_json() for codec in _plain_orders(metadata.codecs).codecs],
        "attributes": metadata.attributes,
    }
    if metadata.transformers:
        document["storage_transformers"] = [
            {"name": item.name, "configuration": dict(item.configuration())} for item in metadata.transformers
        ]
    if metadata.dimension_names is not None:
        document["dimension_names"] = list(metadata.dimension_names)
    return document


def _plain_orders(chain: CodecChain) -> CodecChain:
    """The chain with byte orders that one word can say.

    Raises:
        UnsupportedByFormat: For structured elements of mixed byte order.
    """
    maker = chain.array_bytes
    if not isinstance(maker, BytesCodec) or maker.stored is None:
        return chain
    little, big = maker.stored.newbyteorder("<"), maker.stored.newbyteorder(">")
    if little == big:
        return replace(chain, array_bytes=BytesCodec(None))
    if maker.stored in (little, big):
        return replace(chain, array_bytes=BytesCodec("little" if maker.stored == little else "big"))
    raise UnsupportedByFormat(
        f"Zarr format 3 stores all fields in one byte order, the array mixes them: {maker.stored}",
        zarr_format=3,
        feature="data_type",
    )
