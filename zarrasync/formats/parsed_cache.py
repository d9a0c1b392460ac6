"""A cache of parsed documents.

Nodes are often opened repeatedly, and many nodes have equal documents. Parsing them again would take longer than all
other steps of opening.
"""

from __future__ import annotations

from typing import TypeAlias

from zarrasync._concurrency.fork import thread_lock
from zarrasync._util import plugins
from zarrasync.codecs import (
    BloscCodec,
    BytesCodec,
    CodecChain,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    ZstdCodec,
)
from zarrasync.metadata.format import Documents, Format
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata, Source

__all__ = ["parse"]

_MAX_NODES = 256
_MAX_DOCUMENT_BYTES = 1 << 14
"""The size of a node's documents above which they are not cached, in bytes."""
_STATELESS_CODECS = (
    BytesCodec, TransposeCodec, VlenUtf8Codec, VlenBytesCodec, GzipCodec, ZstdCodec, BloscCodec, Crc32cCodec
)  # fmt: skip
"""Codecs without mutable state, which arrays may share."""
_Data: TypeAlias = tuple[bytes | None, ...]
_nodes: dict[tuple[Format, _Data, int], ArrayMetadata | GroupMetadata] = {}
"""Metadata without its source, by format, documents and plugin generation. The most recently used is last."""
_lock = thread_lock()


def parse(format_: Format, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
    """Return the metadata of the node that documents describe, or ``None`` if they do not describe a node.

    Nodes with equal documents may share everything in the result except ``source``.

    Raises:
        MetadataError: If a document is invalid.
    """
    keys = format_.document_keys(path)
    data = tuple(None if (value := documents.get(key)) is None else bytes(value) for key in keys)
    # Formats with an entry point also parse names.
    if format_.entry_point is not None or sum(len(value) for value in data if value is not None) > _MAX_DOCUMENT_BYTES:
        return format_.parse(path, documents)
    cache_key = format_, data, plugins.generation()
    with _lock:
        cached = _nodes.pop(cache_key, None)
        if cached is not None:
            _nodes[cache_key] = cached  # now the most recently used
    if cached is None:
        node = format_.parse(path, documents)
        if node is not None and _is_shareable(node, data):
            with _lock:
                _nodes[cache_key] = node.from_source(None)
                if len(_nodes) > _MAX_NODES:
                    del _nodes[next(iter(_nodes))]
        return node
    stored = {key: value for key, value in zip(keys, data, strict=True) if value is not None}
    return cached.from_source(Source(format_.zarr_format, stored))


def _is_shareable(node: ArrayMetadata | GroupMetadata, data: _Data) -> bool:
    """Return whether metadata has no mutable or large parts, and was parsed from all of the documents."""
    if isinstance(node, ArrayMetadata) and (
        node.edges is not None or node.transformers or not _is_stateless(node.codecs)
    ):
        return False
    return node.source is not None and (*node.source.data.values(),) == tuple(item for item in data if item is not None)


def _is_stateless(chain: CodecChain) -> bool:
    return all(
        _is_stateless(codec.codecs) and _is_stateless(codec.index_codecs)
        if type(codec) is ShardingCodec
        else type(codec) in _STATELESS_CODECS
        for codec in chain.codecs
    )
