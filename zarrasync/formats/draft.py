"""The draft of Zarr format 3 (January 2023): documents under ``meta/``, chunks under ``data/``.

A store has one entry point document, ``zarr.json``, which specifies the encoding of the other documents. The draft has
two dialects. Documents of the specification's dialect are validated strictly. The older dialect keeps all keys below
``meta/root`` and ``data/root``. zarr-python 2.13 to 2.18, zarrita and GDAL wrote it with different deviations, so
deviations are tolerated when it is read. It is written like zarr-python wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from zarrasync._util import json as _json
from zarrasync.codecs import ArraySpec, CodecChain, ShardingCodec
from zarrasync.errors import InvalidKeyError
from zarrasync.formats.draft_arrays import (
    INDEX_CODECS,
    OPTIONAL_MEMBERS,
    REQUIRED_MEMBERS,
    parse_array,
    render_array,
)
from zarrasync.formats.draft_dialects import (
    ENTRY_POINT_KEY,
    SEED,
    SPECIFICATION,
    Y2022,
    check_extensions,
    new_entry_point,
    parse_attributes,
    refuse_unknown_members,
    take_filters,
)
from zarrasync.formats.numpy_documents import bytes_filter_chain, parse_zmetadata, render_zmetadata, without_nan_payload
from zarrasync.metadata.document import DocumentChecker, named_extension, with_shape
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs, unsupported
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata, SourceDocuments
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import is_key, join

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_VERSION_URI = re.compile(r"https?://purl\.org/zarr/spec/(?:protocol/)?core/(\d+)\.(\d+)/?")


class Draft(Format):
    """The draft of format 3 in one of its two dialects.

    Args:
        zarr_format: The dialect: ``"3-draft"`` (the specification's) or ``"3-draft-2022"`` (below ``meta/root``).
        suffix: The suffix of the keys of documents.
        unread_entry_point: The key of the entry point document if it has not been read yet.
        document: The entry point document, or ``None`` for a new store.
    """

    entry_point = ENTRY_POINT_KEY
    implicit_groups = True
    separates_metadata = True

    def __init__(
        self,
        zarr_format: str,
        suffix: str = ".json",
        unread_entry_point: str | None = ENTRY_POINT_KEY,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        self.zarr_format, self.suffix, self.unread_entry_point = zarr_format, suffix, unread_entry_point
        self.has_undefined_fill = zarr_format == Y2022
        self._root = "root" if zarr_format == Y2022 else ""
        self._document = new_entry_point(zarr_format, suffix) if document is None else document

    @property
    def _dialect(self) -> str:
        return str(self.zarr_format)

    # -------------------------------------------------------------- the entry point

    def root_documents(self) -> dict[str, bytes]:
        return {ENTRY_POINT_KEY: _json.dump(self._document)}

    def for_unknown_store(self) -> Draft:
        return Draft(self._dialect)

    def for_written_store(self) -> Draft:
        return Draft(self._dialect, self.suffix, None, self._document)

    # -------------------------------------------------------------- documents

    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        below_root = join(self._root, path)
        stem = f"meta/{below_root}." if below_root else "meta/"
        array_key, group_key = f"{stem}array{self.suffix}", f"{stem}group{self.suffix}"
        return (array_key, group_key) if kind is None else (array_key,) if kind is ArrayMetadata else (group_key,)

    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        array_key, group_key = self.document_keys(path)
        key = array_key if documents.get(array_key) is not None else group_key
        data = documents.get(key)
        if data is None:
            return None
        strict = self.zarr_format == SEED
        if strict:
            self.check_path(path)
        checker = DocumentChecker(data, key)
        source = SourceDocuments(self.zarr_format, {key: checker.data})
        if key == array_key:
            return parse_array(checker, source, self._dialect)
        if strict:
            checker.require("attributes")
            refuse_unknown_members(checker, ("attributes",))
        check_extensions(checker, strict=strict)
        attributes = parse_attributes(checker, strict=strict)
        checker.raise_problems()
        return GroupMetadata(attributes=attributes, source=source)

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        array_key, group_key = self.document_keys(path)
        source = metadata.source if metadata.source and metadata.source.zarr_format == self.zarr_format else None
        original = next((dict(document) for document in source.documents.values()), None) if source else None
        attributes = dict(metadata.attributes)
        if isinstance(metadata, GroupMetadata):
            return {group_key: _json.dump({**(original or {}), "attributes": attributes})}
        document = original or render_array(metadata, self._dialect)
        filters = take_filters(dict(document.get("attributes") or {})) if self.zarr_format == Y2022 else ()
        if filters:
            attributes["filters"] = list(filters)
        document = with_shape(document, metadata.shape, metadata.chunks, "chunk_grid", "chunk_shape")
        return {array_key: _json.dump({**document, "attributes": attributes})}

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        deviations = super().deviations(metadata)
        if self.zarr_format == SEED or not isinstance(metadata, ArrayMetadata):
            return deviations
        required = REQUIRED_MEMBERS[SEED]
        members = (*required, *OPTIONAL_MEMBERS, "compressor")
        for document in metadata.documents.values():
            deviations += [(f"$.{name}", "unknown member") for name in document if name not in members]
            deviations += [
                (f"$.{name}", "this required member is missing") for name in required if name not in document
            ]
        return deviations

    # -------------------------------------------------------------- names

    def check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or not name.strip("."):
            raise InvalidKeyError(
                f"{name!r} is not a valid node name in the draft of Zarr format 3: use the letters a-z and A-Z, "
                "digits, '-', '_' and '.', and not only periods",
                key=name,
            )

    def _directory(self, path: str, area: str) -> str:
        """Return the prefix of a node's keys among documents (``"meta/"``) or chunks (``"data/"``)."""
        below_root = join(self._root, path)
        return f"{area}{below_root}/" if below_root else area

    def chunk_prefix(self, path: str) -> str:
        return self._directory(path, "data/")

    def chunk_aliases(self, path: str, metadata: ArrayMetadata) -> dict[str, tuple[str, ...]]:
        if metadata.ndim or self.zarr_format != Y2022:
            return {}
        # Writers use different keys for the chunk of an array without axes.
        prefix = self.chunk_prefix(path)
        keys = {f"{prefix}c0", f"{prefix}c", prefix.rstrip("/")}
        regular_key = prefix + metadata.keys.encode(())
        return {regular_key: tuple(sorted(keys - {regular_key}))}

    # -------------------------------------------------------------- parameters of new arrays

    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        inner_shape = requested.inner_shape
        if requested.index_location != "end":
            raise unsupported(self._dialect, f"an index at the {requested.index_location} of shards", "shards")
        chunk_spec = spec if inner_shape is None else spec.replace(shape=inner_shape)
        chain = bytes_filter_chain(requested, chunk_spec, partial(unsupported, self._dialect))
        return chain if inner_shape is None else CodecChain.of([ShardingCodec(inner_shape, chain, INDEX_CODECS)])

    def fill_value(self, data_type: DataType, value: Any) -> Any:
        return without_nan_payload(data_type, value) if self.zarr_format == Y2022 else value

    def key_encoding(self, requested: Any) -> ChunkKeyEncoding:
        if isinstance(requested, ChunkKeyEncoding):
            requested = {"name": requested.name, "separator": requested.separator}
        name, options = ("default", {}) if requested is None else named_extension(requested)
        if name not in ("default", "glued", "glued0"):
            raise unsupported(self._dialect, f"chunk keys of the kind {name!r}", "chunk_key_encoding")
        return ChunkKeyEncoding("glued" if self.zarr_format == SEED else "glued0", options.get("separator", "/"))

    # -------------------------------------------------------------- consolidated metadata

    def consolidated_key(self, path: str) -> str | None:
        return None if path or self.zarr_format == SEED else "meta/root/consolidated/.zmetadata"

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        key = self.consolidated_key(path)
        data = None if key is None else documents.get(key)
        return None if key is None or data is None else parse_zmetadata(data, key, "")

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, bytes]
    ) -> dict[str, bytes]:
        key = self.consolidated_key(path)
        if key is None:
            return super().render_consolidated(path, group_documents, documents_below)
        # zarr-python also reads the entry point from the copies.
        return {key: render_zmetadata(self, path, group_documents, {**self.root_documents(), **documents_below})}

    # -------------------------------------------------------------- listing and erasing

    def listing_prefix(self, path: str) -> str:
        return self._directory(path, "meta/")

    def children(self, path: str, keys: Iterable[str], prefixes: Iterable[str]) -> dict[str, bool]:
        start = len(self.listing_prefix(path))
        nodes: dict[str, bool] = {}
        for key in keys:
            if not is_key(key[start:]):
                continue
            for suffix in (f".array{self.suffix}", f".group{self.suffix}"):
                if key.endswith(suffix) and len(key) > start + len(suffix):
                    nodes[key[start : -len(suffix)]] = False
            parent = key[start:].rpartition("/")[0] if key.endswith(self.suffix) else ""
            while parent:  # a group exists if documents exist below it
                nodes.setdefault(parent, True)
                parent = parent.rpartition("/")[0]
        for prefix in prefixes:
            if is_key(name := prefix[start:-1]):
                nodes.setdefault(name, True)
        return dict(sorted(nodes.items()))

    def erase_keys(self, path: str) -> tuple[str, ...]:
        if not path:
            return ()
        # Some writers use the path of an array without axes as the key of its chunk.
        chunk_keys = (self.chunk_prefix(path).rstrip("/"),) if self.zarr_format == Y2022 else ()
        return (*self.document_keys(path), *chunk_keys)

    def erase_prefixes(self, path: str) -> tuple[str, ...]:
        return (self._directory(path, "meta/"), self._directory(path, "data/")) if path else ("",)


def parse_entry_point(data: bytes) -> Draft | None:
    """Return the format that an entry point document specifies, or ``None`` for a document of another kind.

    Raises:
        MetadataError: If the document specifies an unsupported version or encoding.
    """
    checker = DocumentChecker(data, ENTRY_POINT_KEY)
    document = checker.document
    uri, encoding = document.get("zarr_format"), document.get("metadata_encoding")
    if not isinstance(uri, str) or "node_type" in document:
        return None
    version = _VERSION_URI.fullmatch(uri)
    if version is None or version[1] != "3":
        checker.add("zarr_format", f"expected the URI of version 3 ({SPECIFICATION}core/3.0), found {uri!r}")
        checker.raise_problems()
        raise AssertionError
    if isinstance(encoding, str):
        dialect = Y2022
        suffix: Any = document.get("metadata_key_suffix", "")
    else:
        dialect = SEED
        suffix = encoding.get("metadata_key_suffix") if isinstance(encoding, Mapping) else None
        if not isinstance(encoding, Mapping) or encoding.get("type") != "json" or "extension" in encoding:
            checker.add("metadata_encoding", f"expected JSON, found {encoding!r}")
        if version[2] == "0":
            checker.require("extensions")
            refuse_unknown_members(checker, ("zarr_format", "metadata_encoding", "extensions"))
    if not isinstance(suffix, str) or not is_key(f"x{suffix}") or "/" in suffix:
        checker.add("metadata_encoding.metadata_key_suffix", f"expected a string such as '.json', found {suffix!r}")
    check_extensions(checker, strict=dialect == SEED)
    checker.raise_problems()
    return Draft(dialect, suffix, None, document)
