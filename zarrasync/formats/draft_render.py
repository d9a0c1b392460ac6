"""Rendering the documents of arrays in the draft of format 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.codecs import (
    ArrayBytesCodec,
    BytesBytesCodec,
    BytesCodec,
    CodecChain,
    ObjectCodec,
    ShardingCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
)
from zarrasync.errors import MetadataError, UnsupportedByFormat
from zarrasync.formats.draft_entry_point import SEED, SPECIFICATION, Y2022
from zarrasync.formats.draft_names import codec_uri, render_fill_value, render_type
from zarrasync.formats.draft_parse import INDEX_CODECS
from zarrasync.formats.numpy_documents import render_fill, to_numcodecs
from zarrasync.metadata.node_metadata import ArrayMetadata
from zarrasync.model.dtypes import is_raw

_COMPRESSORS = ("gzip", "zlib", "blosc", "bz2", "lz4", "lzma", "zstd")


def render_array(metadata: ArrayMetadata, dialect: str) -> dict[str, Any]:
    """Return the document of an array without the user's attributes.

    In the older dialect, its member ``attributes`` contains the filters.

    Raises:
        UnsupportedByFormat: If the dialect does not support the metadata.
    """
    return _render_seed(metadata) if dialect == SEED else _render_2022(metadata)


def unsupported(dialect: str, description: str, feature: str) -> UnsupportedByFormat:
    """Return the error for a feature that a dialect does not support."""
    return UnsupportedByFormat(
        f"the draft of Zarr format 3 ({dialect!r}) does not support {description}; use zarr_format=3",
        zarr_format=dialect,
        feature=feature,
    )


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
