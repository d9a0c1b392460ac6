"""Caches of parsed documents.

Nodes are often opened repeatedly, and many nodes have equal documents, or arrays differ only in shape and attributes.
Parsing them again would take longer than all other steps of opening, and take memory for equal codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

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
from zarrasync.metadata.document import DocumentChecker
from zarrasync.metadata.format import Documents, Format
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata, NodeMetadata, SourceDocuments

K = TypeVar("K")
N = TypeVar("N", bound=NodeMetadata)
_MAX_NODES = 256
_MAX_DOCUMENT_BYTES = 1 << 14
"""The size of a node's documents above which they are not cached, in bytes."""
_STATELESS_CODECS = (
    BytesCodec, TransposeCodec, VlenUtf8Codec, VlenBytesCodec, GzipCodec, ZstdCodec, BloscCodec, Crc32cCodec
)  # fmt: skip
"""Codecs without mutable state, which arrays may share."""
_Data: TypeAlias = tuple[bytes | None, ...]
_nodes: dict[tuple[object, _Data, int], ArrayMetadata | GroupMetadata] = {}
"""Metadata without its source, by format, documents and plugin generation. The most recently used is last."""
_layouts: dict[tuple[object, ...], ArrayMetadata] = {}
"""An array for each set of members other than shape and attributes. The most recently used is last."""
_lock = thread_lock()


def parse(format_: Format, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
    """Return the metadata of the node that documents describe, or ``None`` if they do not describe a node.

    Nodes with equal documents may share everything in the result except ``source``.

    Raises:
        MetadataError: If a document is invalid.
    """
    keys = format_.document_keys(path)
    data = tuple([None if (value := documents.get(key)) is None else bytes(value) for key in keys])
    # Formats with an entry point also parse names.
    if format_.entry_point is not None or sum([len(value or b"") for value in data]) > _MAX_DOCUMENT_BYTES:
        return format_.parse(path, documents)
    cache_key = format_.zarr_format, data, plugins.generation()
    cached = _cached(_nodes, cache_key)
    if cached is None:
        node = format_.parse(path, documents)
        if node is not None and _is_shareable(node) and _is_complete(node, data):
            _cache(_nodes, cache_key, node.from_source(None))
        return node
    stored = {key: value for key, value in zip(keys, data, strict=True) if value is not None}
    return cached.from_source(SourceDocuments(format_.zarr_format, stored))


def parse_similar(
    checker: DocumentChecker, attributes: Mapping[str, Any], source: SourceDocuments, parse: Callable[[], ArrayMetadata]
) -> ArrayMetadata:
    """Return the metadata of an array. If only shape and attributes differ from a known one, the rest is shared.

    Args:
        checker: The document of the array. It may contain the attributes as well.
        attributes: The attributes.
        source: The source of the metadata.
        parse: Parses the document if no similar array is known.

    Raises:
        MetadataError: If the document is invalid.
    """
    shape = checker.document.get("shape")
    if len(checker.data) > _MAX_DOCUMENT_BYTES or not isinstance(shape, list):
        return parse()
    others = {name: value for name, value in checker.document.items() if name not in ("shape", "attributes")}
    # Along an axis of size 0, the size of a chunk may be 0.
    key = source.zarr_format, repr(others), tuple([n == 0 for n in shape]), plugins.generation()
    cached = _cached(_layouts, key)
    if cached is None:
        array = parse()
        if _is_shareable(array):
            _cache(_layouts, key, array.with_layout(array.shape, {}, None))
        return array
    sizes = checker.sizes("shape", shape, 0)
    checker.raise_problems()
    return cached.with_layout(sizes, attributes, source)


def _cached(cache: dict[K, N], key: K) -> N | None:
    with _lock:
        node = cache.pop(key, None)
        if node is not None:
            cache[key] = node  # now the most recently used
    return node


def _cache(cache: dict[K, N], key: K, node: N) -> None:
    with _lock:
        cache[key] = node
        if len(cache) > _MAX_NODES:
            del cache[next(iter(cache))]


def _is_shareable(node: ArrayMetadata | GroupMetadata) -> bool:
    """Return whether metadata has no mutable or large parts."""
    return isinstance(node, GroupMetadata) or (
        node.edges is None and not node.transformers and _is_stateless(node.codecs)
    )


def _is_complete(node: ArrayMetadata | GroupMetadata, data: _Data) -> bool:
    """Return whether metadata was parsed from all of the documents, without replacing one."""
    return node.source is not None and (*node.source.data.values(),) == tuple(item for item in data if item is not None)


def _is_stateless(chain: CodecChain) -> bool:
    return all(
        _is_stateless(codec.codecs) and _is_stateless(codec.index_codecs)
        if type(codec) is ShardingCodec
        else type(codec) in _STATELESS_CODECS
        for codec in chain.codecs
    )
