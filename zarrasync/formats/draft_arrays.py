"""Parsing and rendering the documents of arrays in the draft of format 3.

Concepts of the draft become ordinary parts of the model: the memory layout ``"F"`` becomes a transpose codec, the byte
order a parameter of the bytes codec, and the sharding storage transformer the sharding codec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from zarrasync.codecs import (
    ArrayBytesCodec,
    ArraySpec,
    BytesBytesCodec,
    BytesCodec,
    Codec,
    CodecChain,
    ObjectCodec,
    ShardingCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    from_numcodecs,
    parse_codec,
    registered,
)
from zarrasync.errors import MetadataError
from zarrasync.formats.draft_dialects import (
    SEED,
    SPECIFICATION,
    Y2022,
    check_extensions,
    codec_uri,
    list_member,
    parse_attributes,
    parse_codec_uri,
    parse_fill_value,
    parse_type,
    refuse_unknown_members,
    render_fill_value,
    render_type,
    take_filters,
)
from zarrasync.formats.numpy_documents import fortran_order, parse_fill, render_fill, stored_dtype, to_numcodecs
from zarrasync.metadata.document import DocumentChecker
from zarrasync.metadata.extensions import StorageTransformer, parse_storage_transformer
from zarrasync.metadata.format import unsupported
from zarrasync.metadata.node_metadata import ArrayMetadata, SourceDocuments
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType, is_raw

REQUIRED_MEMBERS = {
    SEED: ("shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value", "extensions", "attributes"),
    Y2022: ("shape", "data_type", "chunk_grid"),
}
"""The required members of array documents, by dialect."""
OPTIONAL_MEMBERS = ("codecs", "storage_transformers")
INDEX_CODECS = CodecChain.of((BytesCodec("little"),))
"""The codecs of the index of shards."""
_SHARDING_URI = re.compile(r".*/storage[-_]transformers/sharding/1\.\d+/?")


def parse_array(checker: DocumentChecker, source: SourceDocuments, dialect: str) -> ArrayMetadata:
    """Return the metadata of the array that a document describes.

    Raises:
        MetadataError: If the document is invalid. Its field ``problems`` lists all problems.
    """
    document, strict = checker.document, dialect == SEED
    checker.require(*REQUIRED_MEMBERS[dialect])
    if strict:
        refuse_unknown_members(checker, REQUIRED_MEMBERS[SEED] + OPTIONAL_MEMBERS)
    checker.raise_problems()
    check_extensions(checker, strict=strict)
    shape = checker.sizes("shape", document["shape"], 0)
    attributes = parse_attributes(checker, strict=strict)
    filters = () if strict else take_filters(attributes)
    chunks, separator = _parse_grid(checker, shape)
    layout = document.get("chunk_memory_layout", "C")
    if layout not in ("C", "F"):
        checker.add("chunk_memory_layout", f"expected 'C' or 'F', found {layout!r}")
    shards, transformers = _parse_transformers(checker, chunks, strict=strict)
    checker.raise_problems()
    parsed_type = checker.need("data_type", parse_type, document["data_type"], filters)
    serializer, codecs = _parse_codecs(checker, parsed_type.serializer, parsed_type.filters, strict=strict)
    fill = _parse_fill(checker, parsed_type.data_type, serializer, dialect, is_extension=parsed_type.is_extension)
    checker.raise_problems()
    if layout == "F" and len(shape) > 1:
        codecs.insert(0, fortran_order(len(shape)))
    chain = checker.need("", CodecChain.of(codecs).settle, ArraySpec(chunks, parsed_type.data_type, fill))
    if shards is not None:
        chain = CodecChain.of([ShardingCodec(chunks, chain, INDEX_CODECS)])
    # zarr-python includes an empty coordinate in the key of an array without axes.
    keys = ChunkKeyEncoding("glued" if strict else "glued0", separator)
    parsed = shape, parsed_type.data_type, shards or chunks, keys, chain, fill
    options: Any = {"transformers": transformers, "attributes": attributes, "source": source}
    return checker.need("", ArrayMetadata, *parsed, notes=parsed_type.notes, **options)


def _parse_grid(checker: DocumentChecker, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Return the shape of chunks and the separator of their keys."""
    value = checker.document["chunk_grid"]
    if not isinstance(value, Mapping) or value.get("type") != "regular" or "extension" in value:
        checker.add("chunk_grid", f"expected a 'regular' chunk grid, found {value!r}")
        return (), "/"
    separator = value.get("separator", "/")
    if separator not in ("/", "."):
        checker.add("chunk_grid.separator", f"expected '/' or '.', found {separator!r}")
        separator = "/"
    return checker.chunk_sizes("chunk_grid.chunk_shape", value.get("chunk_shape"), shape), separator


def _parse_fill(
    checker: DocumentChecker, data_type: DataType, serializer: ArrayBytesCodec, dialect: str, *, is_extension: bool
) -> Any:
    value = checker.document.get("fill_value")
    if value is None and (is_extension or dialect == Y2022):
        return None
    try:
        if dialect == Y2022 and data_type.numpy.kind not in "biufc" and not is_raw(data_type.numpy):
            return parse_fill(data_type, value, stored_dtype(serializer))
        return parse_fill_value(data_type, value, strict=dialect == SEED)
    except (ValueError, TypeError, OverflowError) as error:
        checker.add("fill_value", f"{value!r} does not fit data type {data_type.name}: {error}")
        return None


# ------------------------------------------------------------------ codecs


def _parse_codecs(
    checker: DocumentChecker, serializer: ArrayBytesCodec, filters: Iterable[Mapping[str, Any]], *, strict: bool
) -> tuple[ArrayBytesCodec, list[Codec]]:
    """Return the array -> bytes codec, and the list of codecs that starts with it."""
    stored = stored_dtype(serializer)
    bytes_codecs: list[Codec] = []
    for member, value in _codec_entries(checker, filters, strict=strict):
        try:
            codec = _third_party_codec(value)
            if codec is None:
                name, configuration = (value["id"], value) if "filters" in member else parse_codec_uri(value)
                if name == "endian":
                    if bytes_codecs or not isinstance(serializer, BytesCodec):
                        raise MetadataError("'endian' must come before codecs that act on bytes")
                    serializer = BytesCodec.from_configuration(configuration)  # type: ignore[assignment]  # it returns its own class
                    continue
                codec = from_numcodecs({**configuration, "id": name}, dtype=stored)
            bytes_codecs.append(codec)
        except (TypeError, ValueError) as error:
            checker.add_error(member, error)
    return serializer, [serializer, *bytes_codecs]


def _codec_entries(
    checker: DocumentChecker, filters: Iterable[Mapping[str, Any]], *, strict: bool
) -> list[tuple[str, Any]]:
    """Return the location and value of each codec in a document, in order."""
    entries: list[tuple[str, Any]] = [(f"attributes.filters[{number}]", item) for number, item in enumerate(filters)]
    if checker.document.get("compressor") is not None:
        entries.append(("compressor", checker.document["compressor"]))
    codecs = list_member(checker, "codecs", strict=strict)
    entries.extend((f"codecs[{number}]", item) for number, item in enumerate(codecs))
    return entries


def _third_party_codec(value: Any) -> Codec | None:
    """Return the codec of another package for an entry with its URI, or ``None`` if no such codec is registered."""
    uri = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(uri, str) or "://" not in uri or registered(uri) is None:
        return None
    codec = parse_codec({"name": uri, "configuration": value.get("configuration")})
    if not isinstance(codec, BytesBytesCodec):
        raise MetadataError(f"codec {uri!r} is not a bytes -> bytes codec, which this format requires")
    return codec


# ------------------------------------------------------------------ storage transformers


def _parse_transformers(
    checker: DocumentChecker, chunks: tuple[int, ...], *, strict: bool
) -> tuple[tuple[int, ...] | None, tuple[StorageTransformer, ...]]:
    """Return the shape of shards if the first transformer is sharding, and the other transformers."""
    shards: tuple[int, ...] | None = None
    transformers: list[StorageTransformer] = []
    for number, item in enumerate(list_member(checker, "storage_transformers", strict=strict)):
        member = f"storage_transformers[{number}]"
        uri = item.get("extension") if isinstance(item, Mapping) else None
        options = item.get("configuration", {}) if isinstance(item, Mapping) else None
        if not isinstance(uri, str) or not isinstance(options, Mapping) or not isinstance(item.get("type"), str):
            checker.add(member, f"expected an object with 'extension' and 'type', found {item!r}")
        elif _SHARDING_URI.fullmatch(uri) and number:
            checker.add(member, "sharding is supported only as the first storage transformer")
        elif _SHARDING_URI.fullmatch(uri) and item["type"] == "indexed":
            shards = _parse_shards(checker, f"{member}.configuration.chunks_per_shard", options, chunks)
        elif (found := checker.attempt(member, parse_storage_transformer, uri, options)) is not None:
            transformers.append(found)
    return shards, tuple(transformers)


def _parse_shards(
    checker: DocumentChecker, member: str, options: Mapping[str, Any], chunks: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of shards for the number of chunks per shard along each axis."""
    chunks_per_shard = options.get("chunks_per_shard")
    sizes = checker.sizes(member, chunks_per_shard, 1)
    if len(sizes) > max(len(chunks), 1):
        checker.add(member, f"expected {len(chunks)} sizes, found {chunks_per_shard!r}")
    # zarr-python allows trailing sizes of 1 to be omitted.
    return tuple(a * b for a, b in zip(chunks, (*sizes, *(1,) * len(chunks)), strict=False))


_COMPRESSORS = ("gzip", "zlib", "blosc", "bz2", "lz4", "lzma", "zstd")


def render_array(metadata: ArrayMetadata, dialect: str) -> dict[str, Any]:
    """Return the document of an array without the user's attributes.

    In the older dialect, its member ``attributes`` contains the filters.

    Raises:
        UnsupportedByFormat: If the dialect does not support the metadata.
    """
    return _render_seed(metadata) if dialect == SEED else _render_2022(metadata)


def _render_seed(metadata: ArrayMetadata) -> dict[str, Any]:
    chain, document = _common_members(metadata, SEED)
    serializer = chain.array_bytes
    if not isinstance(serializer, BytesCodec):
        if metadata.dtype.is_variable:
            raise unsupported(SEED, f"the data type {metadata.dtype.name!r}", "data_type")
        raise unsupported(SEED, f"the codec {serializer.label!r}", "codecs")
    data_type, has_byte_order = _render_type(metadata, serializer, SEED)
    codecs = [_render_codec(codec) for codec in chain.bytes_bytes]
    is_big_endian = serializer.stored_dtype_of(metadata.dtype.numpy).str[0] == ">"
    if is_big_endian and not has_byte_order:
        codecs.insert(0, {"type": codec_uri("codecs", "endian"), "configuration": {"endian": "big"}})
    if metadata.fill_value is None and not has_byte_order:
        raise unsupported(SEED, "an undefined fill value", "fill_value")
    fill = render_fill_value(metadata.dtype, metadata.fill_value)
    return {**document, "data_type": data_type, "codecs": codecs, "fill_value": fill}


def _render_2022(metadata: ArrayMetadata) -> dict[str, Any]:
    chain, document = _common_members(metadata, Y2022)
    serializer = chain.array_bytes
    if not isinstance(serializer, BytesCodec | ObjectCodec | VlenUtf8Codec | VlenBytesCodec):
        raise unsupported(Y2022, f"the codec {serializer.label!r}", "codecs")
    data_type, _ = _render_type(metadata, serializer, Y2022)
    filters = [to_numcodecs(codec) for codec in chain.bytes_bytes]
    if not isinstance(serializer, BytesCodec):
        config = dict(serializer.config) if isinstance(serializer, ObjectCodec) else {"id": serializer.name}
        filters.insert(0, config)
    if filters and filters[-1]["id"] in _COMPRESSORS:
        document["compressor"] = _render_config("codec", filters.pop(), "codec")
    if filters:
        if "filters" in metadata.attributes:
            raise unsupported(Y2022, "an attribute 'filters' in an array with filters", "filters")
        document["attributes"] = {"filters": filters}
    if is_raw(metadata.dtype.numpy):
        fill = render_fill_value(metadata.dtype, metadata.fill_value)
    else:
        fill = render_fill(metadata.dtype, metadata.fill_value, serializer)
    return {**document, "data_type": data_type, "fill_value": fill}


def _render_type(metadata: ArrayMetadata, serializer: ArrayBytesCodec, dialect: str) -> tuple[Any, bool]:
    try:
        return render_type(metadata.dtype, serializer, use_type_strings=dialect == Y2022)
    except (MetadataError, KeyError) as error:
        raise unsupported(dialect, f"the data type {metadata.dtype.name!r}", "data_type") from error


def _common_members(metadata: ArrayMetadata, dialect: str) -> tuple[CodecChain, dict[str, Any]]:
    """Return the codecs of a chunk, and the members that both dialects share."""
    if metadata.keys.name not in ("glued", "glued0"):
        raise unsupported(dialect, f"chunk keys of the kind {metadata.keys.name!r}", "chunk_key_encoding")
    if any(name is not None for name in metadata.dimension_names or ()):
        raise unsupported(dialect, "dimension names (xarray keeps them in an attribute)", "dimension_names")
    if metadata.edges is not None:
        raise unsupported(dialect, "chunks of different sizes", "chunk_grid")
    shards, chain = metadata.shards, metadata.inner_codecs
    if shards is not None and metadata.codecs != CodecChain.of([ShardingCodec(metadata.chunks, chain, INDEX_CODECS)]):
        raise unsupported(
            dialect, "shards that are encoded by other codecs or have a different index encoding", "shards"
        )
    grid = {"type": "regular", "chunk_shape": list(metadata.chunks), "separator": metadata.keys.separator}
    document: dict[str, Any] = {
        "shape": list(metadata.shape),
        "data_type": None,
        "chunk_grid": grid,
        "chunk_memory_layout": _memory_layout(metadata, chain, dialect),
        "fill_value": None,
        "extensions": [],
        "attributes": {},
    }
    transformers = [] if shards is None else [_render_sharding(shards, metadata.chunks, dialect)]
    transformers.extend(
        {"extension": item.name, "type": "", "configuration": dict(item.configuration())}
        for item in metadata.transformers
    )
    if transformers:
        document["storage_transformers"] = transformers
    return chain, document


def _memory_layout(metadata: ArrayMetadata, chain: CodecChain, dialect: str) -> str:
    """Return the memory layout that represents the array -> array codecs."""
    layout = "C"
    for codec in chain.array_array:
        if codec.permutation != tuple(reversed(range(metadata.ndim))) or layout == "F":
            raise unsupported(dialect, f"the codec {codec.label!r}", "codecs")
        layout = "F"
    return layout


def _render_sharding(shards: tuple[int, ...], chunks: tuple[int, ...], dialect: str) -> dict[str, Any]:
    uri = SPECIFICATION + ("extensions/" if dialect == SEED else "") + "storage_transformers/sharding/1.0"
    chunks_per_shard = [outer // inner for outer, inner in zip(shards, chunks, strict=True)]
    return {"extension": uri, "type": "indexed", "configuration": {"chunks_per_shard": chunks_per_shard}}


def _render_codec(codec: BytesBytesCodec) -> dict[str, Any]:
    """Return the entry of a codec in a document. A codec of another package has a URI as its name."""
    if "://" in codec.name:
        return {"type": codec.name, "configuration": dict(codec.configuration())}
    return _render_config("codecs", to_numcodecs(codec))


def _render_config(area: str, config: Mapping[str, Any], uri_member: str = "type") -> dict[str, Any]:
    """Return the entry of a numcodecs configuration in a document."""
    parameters = {name: value for name, value in config.items() if name != "id"}
    configuration = {"configuration": parameters} if parameters or uri_member == "codec" else {}
    return {uri_member: codec_uri(area, config["id"]), **configuration}
