"""The draft of Zarr format 3 (text of January 2023): documents under ``meta/``, chunks under ``data/``.

A store has one entry point document, ``zarr.json``, which specifies how the other documents are encoded. There
are two dialects. The seed text's own dialect is read strictly. The older one keeps everything below ``meta/root``
and ``data/root``. zarr-python 2.13 to 2.18, zarrita and GDAL wrote it, each with deviations, so it is read
leniently and written as zarr-python does.

Concepts that only the draft has become ordinary parts of the model: the memory layout ``"F"`` becomes a transpose
codec, the byte order a parameter of the bytes codec, and the sharding transformer the sharding codec.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from zarrasync._util import json as _json
from zarrasync.codecs import (
    ArrayBytesCodec,
    ArraySpec,
    BytesBytesCodec,
    BytesCodec,
    Codec,
    CodecChain,
    ObjectCodec,
    ShardingCodec,
    TransposeCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    from_numcodecs,
    parse_codec,
    registered,
)
from zarrasync.errors import InvalidKeyError, MetadataError, UnknownCodecError, UnsupportedByFormat, ZarrError
from zarrasync.formats.draft_names import (
    codec_uri,
    codec_word,
    parse_fill_word,
    parse_type,
    render_fill_word,
    render_type,
)
from zarrasync.formats.numpy_dialect import (
    chain_in_order,
    pack_copies,
    parse_fill,
    plain_nan,
    render_fill,
    to_numcodecs,
    unpack_copies,
)
from zarrasync.metadata.document import DocumentChecker, named_extension, with_shape
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata, Source
from zarrasync.model import storage_transformers
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import is_key, join
from zarrasync.model.storage_transformers import StorageTransformer

__all__ = ["SEED", "Y2022", "Draft", "parse_entry_point"]

SEED, Y2022 = "3-draft", "3-draft-2022"
ENTRY = "zarr.json"
_COPIES = "consolidated"
_SPEC = "https://purl.org/zarr/spec/"
_URI = re.compile(r"https?://purl\.org/zarr/spec/(?:protocol/)?core/(\d+)\.(\d+)/?")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MUST = {
    SEED: ("shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value", "extensions", "attributes"),
    Y2022: ("shape", "data_type", "chunk_grid"),
}
_OPTIONAL = ("codecs", "storage_transformers")
_SHARDING = re.compile(r".*/storage[-_]transformers/sharding/1\.\d+/?")
_INDEX = CodecChain.of((BytesCodec("little"),))
_COMPRESSORS = ("gzip", "zlib", "blosc", "bz2", "lz4", "lzma", "zstd")


class Draft(Format):
    """The draft of version 3, in one of its two dialects.

    Args:
        zarr_format: ``"3-draft"`` (the text) or ``"3-draft-2022"`` (below ``meta/root``).
        suffix: What ends the keys of documents.
        unread_entry_point: The key of the entry point document if it was not looked at yet.
    """

    entry_point = ENTRY
    implicit_groups = True
    separates_metadata = True

    def __init__(
        self,
        zarr_format: str,
        suffix: str = ".json",
        unread_entry_point: str | None = ENTRY,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        self.zarr_format, self.suffix, self.unread_entry_point = zarr_format, suffix, unread_entry_point
        self.has_undefined_fill = zarr_format == Y2022
        self._root = "root" if zarr_format == Y2022 else ""
        if document is None:
            uri = f"{_SPEC}core/3.0" if zarr_format == SEED else f"{_SPEC}protocol/core/3.0"
            named = {"metadata_key_suffix": suffix}
            encoding = {"type": "json", **named} if zarr_format == SEED else uri
            more = {} if zarr_format == SEED else named
            document = {"zarr_format": uri, "metadata_encoding": encoding, **more, "extensions": []}
        self._document = document

    # -------------------------------------------------------------- names

    def _base(self, path: str, area: str = "meta/") -> str:
        inside = join(self._root, path)
        return f"{area}{inside}/" if inside else area

    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        inside = join(self._root, path)
        stem = f"meta/{inside}." if inside else "meta/"
        array_key, group_key = f"{stem}array{self.suffix}", f"{stem}group{self.suffix}"
        return (array_key, group_key) if kind is None else (array_key,) if kind is ArrayMetadata else (group_key,)

    def chunk_prefix(self, path: str) -> str:
        return self._base(path, "data/")

    def chunk_aliases(self, path: str, metadata: ArrayMetadata) -> dict[str, tuple[str, ...]]:
        if metadata.ndim or self.zarr_format != Y2022:
            return {}
        # Each writer had its own name for the chunk of an array without axes.
        base = self.chunk_prefix(path)
        names = {f"{base}c0", f"{base}c", base.rstrip("/")}
        requested = base + metadata.keys.encode(())
        return {requested: tuple(sorted(names - {requested}))}

    def listing_prefix(self, path: str) -> str:
        return self._base(path)

    def children(self, path: str, keys: Iterable[str], prefixes: Iterable[str]) -> dict[str, bool]:
        start = len(self.listing_prefix(path))
        found: dict[str, bool] = {}
        for key in keys:
            if not is_key(key[start:]):
                continue
            for ending in (f".array{self.suffix}", f".group{self.suffix}"):
                if key.endswith(ending) and len(key) > start + len(ending):
                    found[key[start : -len(ending)]] = False
            above = key[start:].rpartition("/")[0] if key.endswith(self.suffix) else ""
            while above:
                found.setdefault(above, True)
                above = above.rpartition("/")[0]
        for prefix in prefixes:
            if is_key(name := prefix[start:-1]):
                found.setdefault(name, True)
        return dict(sorted(found.items()))

    def erase_keys(self, path: str) -> tuple[str, ...]:
        if not path:
            return ()
        # Some writers called the one chunk of an array without axes like the array itself.
        more = (self.chunk_prefix(path).rstrip("/"),) if self.zarr_format == Y2022 else ()
        return (*self.document_keys(path), *more)

    def erase_prefixes(self, path: str) -> tuple[str, ...]:
        return (self._base(path), self._base(path, "data/")) if path else ("",)

    def check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or not name.strip("."):
            raise InvalidKeyError(
                f"{name!r} is not a valid node name in the draft of Zarr format 3: it has letters a-z and A-Z, "
                "digits, '-', '_' and '.', and not only periods",
                key=name,
            )

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        found = super().deviations(metadata)
        documents = metadata.source.documents.values() if metadata.source is not None else ()
        if self.zarr_format == SEED or not isinstance(metadata, ArrayMetadata):
            return found
        for document in documents:
            known = (*_MUST[SEED], *_OPTIONAL, "compressor")
            found += [(f"$.{name}", "unknown member") for name in document if name not in known]
            found += [(f"$.{name}", "this member is missing") for name in _MUST[SEED] if name not in document]
        return found

    # -------------------------------------------------------------- consolidated metadata

    def consolidated_key(self, path: str) -> str | None:
        return None if path or self.zarr_format == SEED else f"meta/root/{_COPIES}/.zmetadata"

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        key = self.consolidated_key(path)
        data = None if key is None else documents.get(key)
        return None if key is None or data is None else unpack_copies(data, key, "")

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, Any]
    ) -> dict[str, bytes]:
        key = self.consolidated_key(path)
        if key is None:
            return super().render_consolidated(path, group_documents, documents_below)
        mine = {
            name: json.loads(bytes(group_documents[name] or b"{}"))
            for name in self.document_keys(path)
            if group_documents.get(name)
        }
        return {
            key: pack_copies({ENTRY: self._document, **mine, **documents_below})
        }  # zarr-python looks for all of them

    # -------------------------------------------------------------- the entry point

    def root_documents(self) -> dict[str, bytes]:
        return {ENTRY: _json.dump(self._document)}

    def for_unknown_store(self) -> Draft:
        return Draft(str(self.zarr_format))

    def for_written_store(self) -> Draft:
        return Draft(str(self.zarr_format), self.suffix, None, self._document)

    # -------------------------------------------------------------- reading

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
        source = Source(self.zarr_format, {key: checker.document})
        if key == array_key:
            return self._parse_array(checker, source, strict)
        if strict:
            checker.require("attributes")
            _refuse_others(checker, ("attributes",))
        _check_extensions(checker, strict)
        attributes = _attributes(checker, strict)
        checker.raise_problems()
        return GroupMetadata(attributes=attributes, source=source)

    def _parse_array(self, checker: DocumentChecker, source: Source, strict: bool) -> ArrayMetadata:
        document = checker.document
        checker.require(*_MUST[str(self.zarr_format)])
        if strict:
            _refuse_others(checker, _MUST[SEED] + _OPTIONAL)
        checker.raise_problems()
        _check_extensions(checker, strict)
        shape = checker.sizes("shape", document["shape"], 0)
        attributes = _attributes(checker, strict)
        filters = () if strict else _take_filters(attributes)
        chunks, separator = _parse_grid(checker, shape)
        layout = document.get("chunk_memory_layout", "C")
        if layout not in ("C", "F"):
            checker.add("chunk_memory_layout", f"expected 'C' or 'F', found {layout!r}")
        shards, stack = _parse_transformers(checker, chunks, strict)
        checker.raise_problems()
        try:
            found = parse_type(document["data_type"], filters)
        except MetadataError as error:
            checker.add_error("data_type", error)
            checker.raise_problems()
            raise
        maker, codecs = self._parse_codecs(checker, found.maker, found.filters)
        fill = self._parse_fill(checker, found.data_type, maker, extended=found.extended)
        checker.raise_problems()
        if layout == "F" and len(shape) > 1:
            codecs.insert(0, TransposeCodec(tuple(reversed(range(len(shape))))))
        spec = ArraySpec(chunks, found.data_type, fill)
        try:
            chain = CodecChain.of(codecs).settle(spec)
            if shards is not None:
                chain = CodecChain.of([ShardingCodec(chunks, chain, _INDEX)])
            # A separator for an array without axes is not written; zarr-python calls its chunk as if it had one.
            keys = ChunkKeyEncoding("glued" if strict else "glued0", separator)
            return ArrayMetadata(
                shape,
                found.data_type,
                shards or chunks,
                keys,
                chain,
                fill,
                transformers=stack,
                attributes=attributes,
                source=source,
                notes=found.notes,
            )
        except ZarrError as error:
            checker.add_error("", error)
            checker.raise_problems()
            raise

    def _parse_codecs(
        self, checker: DocumentChecker, maker: ArrayBytesCodec, filters: Iterable[Mapping[str, Any]]
    ) -> tuple[ArrayBytesCodec, list[Codec]]:
        """The codec that makes bytes, and the whole list in order."""
        document = checker.document
        entries: list[tuple[str, Any]] = []
        if document.get("compressor") is not None:
            entries.append(("compressor", document["compressor"]))
        listed = _listed(checker, "codecs", self.zarr_format == SEED)
        entries.extend((f"codecs[{number}]", value) for number, value in enumerate(listed))
        stored = maker.stored if isinstance(maker, BytesCodec) else None
        rest: list[Codec] = []
        for where, value in [*((f"attributes.filters[{n}]", f) for n, f in enumerate(filters)), *entries]:
            try:
                if (known := _registered(value)) is not None:
                    rest.append(known)
                    continue
                name, configuration = (value["id"], value) if "filters" in where else codec_word(value)
                if name == "endian":
                    if rest or not isinstance(maker, BytesCodec):
                        raise MetadataError("'endian' must come before codecs that act on bytes")
                    maker = BytesCodec.from_configuration(configuration)  # type: ignore[assignment]  # it makes one of its own class
                    continue
                rest.append(from_numcodecs({**configuration, "id": name}, dtype=stored))
            except UnknownCodecError as error:
                checker.add_error(where, error)
                raise UnknownCodecError(
                    str(checker.problems[-1]), codec=error.codec, problems=checker.problems
                ) from error
            except (MetadataError, TypeError, ValueError) as error:
                checker.add_error(where, error)
        return maker, [maker, *rest]

    def _parse_fill(
        self, checker: DocumentChecker, data_type: DataType, maker: ArrayBytesCodec, *, extended: bool
    ) -> Any:
        value = checker.document.get("fill_value")
        stored = maker.stored if isinstance(maker, BytesCodec) else None
        if value is None and (extended or self.zarr_format == Y2022):
            return None
        raw = data_type.numpy.kind == "V" and data_type.numpy.fields is None
        try:
            if self.zarr_format == Y2022 and data_type.numpy.kind not in "biufc" and not raw:
                return parse_fill(data_type, value, stored)
            return parse_fill_word(data_type, value, strict=self.zarr_format == SEED)
        except (MetadataError, ValueError, TypeError, OverflowError, binascii.Error) as error:
            checker.add("fill_value", f"{value!r} does not fit data type {data_type.name}: {error}")
            return None

    # -------------------------------------------------------------- writing

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        array_key, group_key = self.document_keys(path)
        source = metadata.source if metadata.source and metadata.source.zarr_format == self.zarr_format else None
        kept = next((dict(document) for document in source.documents.values()), None) if source else None
        attributes = dict(metadata.attributes)
        if isinstance(metadata, GroupMetadata):
            return {group_key: _json.dump({**(kept or {}), "attributes": attributes})}
        document = kept or (self._seed_array(metadata) if self.zarr_format == SEED else self._old_array(metadata))
        hidden = _take_filters(dict(document.get("attributes") or {})) if self.zarr_format == Y2022 else ()
        if hidden:
            attributes["filters"] = list(hidden)
        document = with_shape(document, metadata.shape, metadata.chunks, "chunk_grid", "chunk_shape")
        return {array_key: _json.dump({**document, "attributes": attributes})}

    def _seed_array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        chain, document = self._common(metadata)
        maker = chain.array_bytes
        if not isinstance(maker, BytesCodec):
            if metadata.dtype.is_variable:
                raise self._unable(f"the data type {metadata.dtype.name!r}", "data_type")
            raise self._unable(f"the codec {maker.label!r}", "codecs")
        data_type, in_code = self._render_type(metadata, maker)
        codecs = [_codec_entry(codec) for codec in chain.bytes_bytes]
        big = maker.stored_form(metadata.dtype.numpy).str[0] == ">"
        if big and not in_code:
            codecs.insert(0, {"type": codec_uri("codecs", "endian"), "configuration": {"endian": "big"}})
        if metadata.fill_value is None and not in_code:
            raise self._unable("an undefined fill value", "fill_value")
        fill = render_fill_word(metadata.dtype, metadata.fill_value)
        return {**document, "data_type": data_type, "codecs": codecs, "fill_value": fill}

    def _old_array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        chain, document = self._common(metadata)
        maker = chain.array_bytes
        if not isinstance(maker, BytesCodec | ObjectCodec | VlenUtf8Codec | VlenBytesCodec):
            raise self._unable(f"the codec {maker.label!r}", "codecs")
        data_type, _ = self._render_type(metadata, maker)
        filters = [to_numcodecs(codec) for codec in chain.bytes_bytes]
        if not isinstance(maker, BytesCodec):
            filters.insert(0, dict(maker.config) if isinstance(maker, ObjectCodec) else {"id": maker.name})
        if filters and filters[-1]["id"] in _COMPRESSORS:
            document["compressor"] = _entry("codec", filters.pop(), "codec")
        if filters:
            if "filters" in metadata.attributes:
                raise self._unable("filters beside an attribute of that name", "filters")
            document["attributes"] = {"filters": filters}
        raw = metadata.dtype.numpy.kind == "V" and metadata.dtype.numpy.fields is None
        fill = (
            render_fill_word(metadata.dtype, metadata.fill_value)
            if raw
            else render_fill(metadata.dtype, metadata.fill_value, maker)
        )
        return {**document, "data_type": data_type, "fill_value": fill}

    def _render_type(self, metadata: ArrayMetadata, maker: ArrayBytesCodec) -> tuple[Any, bool]:
        try:
            return render_type(metadata.dtype, maker, codes=self.zarr_format == Y2022)
        except (MetadataError, KeyError) as error:
            raise self._unable(f"the data type {metadata.dtype.name!r}", "data_type") from error

    def _common(self, metadata: ArrayMetadata) -> tuple[CodecChain, dict[str, Any]]:
        """The codecs of a chunk, and the members that both dialects have."""
        if metadata.keys.name not in ("glued", "glued0"):
            raise self._unable(f"chunk keys of the kind {metadata.keys.name!r}", "chunk_key_encoding")
        if any(name is not None for name in metadata.dimension_names or ()):
            raise self._unable("dimension names (xarray keeps them in an attribute)", "dimension_names")
        if metadata.edges is not None:
            raise self._unable("chunks of different sizes", "chunk_grid")
        shards, chain = metadata.shards, metadata.inner_codecs
        if shards is not None and metadata.codecs != CodecChain.of([ShardingCodec(metadata.chunks, chain, _INDEX)]):
            raise self._unable("shards with codecs around them or another index", "shards")
        layout = "C"
        for codec in chain.array_array:
            if codec.permutation != tuple(reversed(range(metadata.ndim))) or layout == "F":
                raise self._unable(f"the codec {codec.label!r}", "codecs")
            layout = "F"
        grid = {"type": "regular", "chunk_shape": list(metadata.chunks), "separator": metadata.keys.separator}
        document: dict[str, Any] = {
            "shape": list(metadata.shape),
            "data_type": None,
            "chunk_grid": grid,
            "chunk_memory_layout": layout,
            "fill_value": None,
            "extensions": [],
            "attributes": {},
        }
        if shards is not None:
            uri = _SPEC + ("extensions/" if self.zarr_format == SEED else "") + "storage_transformers/sharding/1.0"
            ratio = [outer // inner for outer, inner in zip(shards, metadata.chunks, strict=True)]
            entry = {"extension": uri, "type": "indexed", "configuration": {"chunks_per_shard": ratio}}
            document["storage_transformers"] = [entry]
        for item in metadata.transformers:
            entry = {"extension": item.name, "type": "", "configuration": dict(item.configuration())}
            document.setdefault("storage_transformers", []).append(entry)
        return chain, document

    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        inner = spec if requested.inner_shape is None else spec.replace(shape=requested.inner_shape)
        chain = chain_in_order(requested, inner, self._unable)
        return (
            chain
            if requested.inner_shape is None
            else CodecChain.of([ShardingCodec(requested.inner_shape, chain, _INDEX)])
        )

    def fill_value(self, data_type: DataType, value: Any) -> Any:
        return plain_nan(data_type, value) if self.zarr_format == Y2022 else value

    def key_encoding(self, requested: Any, ndim: int) -> ChunkKeyEncoding:
        name = "glued" if self.zarr_format == SEED else "glued0"
        if isinstance(requested, ChunkKeyEncoding):
            requested = {"name": requested.name, "separator": requested.separator}
        given, options = ("default", {}) if requested is None else named_extension(requested)
        if given not in ("default", "glued", "glued0"):
            raise self._unable(f"chunk keys of the kind {given!r}", "chunk_key_encoding")
        return ChunkKeyEncoding(name, options.get("separator", "/"))

    def _unable(self, what: str, feature: str) -> UnsupportedByFormat:
        return UnsupportedByFormat(
            f"the draft of Zarr format 3 ({self.zarr_format!r}) can not say {what}; use zarr_format=3",
            zarr_format=self.zarr_format,
            feature=feature,
        )


def parse_entry_point(data: bytes) -> Draft | None:
    """The dialect that an entry point document announces; ``None`` for a document of another kind.

    Raises:
        MetadataError: If it announces something that is not known here.
    """
    checker = DocumentChecker(data, ENTRY)
    document = checker.document
    uri, encoding = document.get("zarr_format"), document.get("metadata_encoding")
    if not isinstance(uri, str) or "node_type" in document:
        return None
    version = _URI.fullmatch(uri)
    if version is None or version[1] != "3":
        checker.add("zarr_format", f"expected the URI of version 3 ({_SPEC}core/3.0), found {uri!r}")
        checker.raise_problems()
        raise AssertionError
    if isinstance(encoding, str):
        suffix: Any = document.get("metadata_key_suffix", "")
        dialect = Y2022
    else:
        dialect = SEED
        suffix = encoding.get("metadata_key_suffix") if isinstance(encoding, Mapping) else None
        if not isinstance(encoding, Mapping) or encoding.get("type") != "json" or "extension" in encoding:
            checker.add("metadata_encoding", f"expected JSON, found {encoding!r}")
        if version[2] == "0":
            checker.require("extensions")
            _refuse_others(checker, ("zarr_format", "metadata_encoding", "extensions"))
    if not isinstance(suffix, str) or not is_key(f"x{suffix}") or "/" in suffix:
        checker.add("metadata_encoding.metadata_key_suffix", f"expected text such as '.json', found {suffix!r}")
    _check_extensions(checker, dialect == SEED)
    checker.raise_problems()
    return Draft(dialect, suffix, None, document)


# ------------------------------------------------------------------ parts of documents


def _entry(area: str, config: Mapping[str, Any], member: str = "type") -> dict[str, Any]:
    """A numcodecs configuration as an entry of a document."""
    own = {name: value for name, value in config.items() if name != "id"}
    return {member: codec_uri(area, config["id"]), **({"configuration": own} if own or member == "codec" else {})}


def _codec_entry(codec: BytesBytesCodec) -> dict[str, Any]:
    """A codec as an entry of a document: of another package by the URI that is its name."""
    if "://" in codec.name:
        return {"type": codec.name, "configuration": dict(codec.configuration())}
    return _entry("codecs", to_numcodecs(codec))


def _registered(value: Any) -> Codec | None:
    """The codec of another package that an entry names by its URI."""
    uri = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(uri, str) or "://" not in uri or registered(uri) is None:
        return None
    found = parse_codec({"name": uri, "configuration": value.get("configuration")})
    if not isinstance(found, BytesBytesCodec):
        raise MetadataError(f"codec {uri!r} does not act on bytes, as all do here")
    return found


def _refuse_others(checker: DocumentChecker, known: Iterable[str]) -> None:
    for name in checker.document:
        if name not in known:
            checker.add(name, "unknown member; this version has no such")


def _listed(checker: DocumentChecker, member: str, strict: bool) -> list[Any]:
    """A member that is a list, and may be left out; also by ``null`` in the older dialect."""
    value = checker.document.get(member, [])
    if isinstance(value, list):
        return value
    if value is not None or strict:
        checker.add(member, f"expected a list, found {value!r}")
    return []


def _check_extensions(checker: DocumentChecker, strict: bool) -> None:
    """Complain about extensions that must be understood: none is."""
    for number, item in enumerate(_listed(checker, "extensions", strict)):
        if not isinstance(item, Mapping) or not isinstance(item.get("extension"), str):
            checker.add(f"extensions[{number}]", f"expected an object with an 'extension', found {item!r}")
        elif item.get("must_understand") is not False:
            checker.add(f"extensions[{number}]", f"unknown extension {item['extension']!r} that must be understood")


def _attributes(checker: DocumentChecker, strict: bool) -> dict[str, Any]:
    value = checker.document.get("attributes")
    return {} if value is None and not strict else dict(checker.attributes(value))


def _take_filters(attributes: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Remove the filters that zarr-python keeps among the attributes."""
    found = attributes.get("filters")
    if not isinstance(found, list) or not found or not all(isinstance(f, Mapping) and "id" in f for f in found):
        return ()
    del attributes["filters"]
    return tuple(found)


def _parse_grid(checker: DocumentChecker, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    value = checker.document["chunk_grid"]
    if not isinstance(value, Mapping) or value.get("type") != "regular" or "extension" in value:
        checker.add("chunk_grid", f"expected a 'regular' chunk grid, found {value!r}")
        return (), "/"
    separator = value.get("separator", "/")
    if separator not in ("/", "."):
        checker.add("chunk_grid.separator", f"expected '/' or '.', found {separator!r}")
        separator = "/"
    return checker.chunk_sizes("chunk_grid.chunk_shape", value.get("chunk_shape"), shape), separator


def _parse_transformers(
    checker: DocumentChecker, chunks: tuple[int, ...], strict: bool
) -> tuple[tuple[int, ...] | None, tuple[StorageTransformer, ...]]:
    """The shape of shards, which are the first transformer if there are some, and the transformers after that."""
    shards: tuple[int, ...] | None = None
    stack: list[StorageTransformer] = []
    for number, item in enumerate(_listed(checker, "storage_transformers", strict)):
        where = f"storage_transformers[{number}]"
        uri = item.get("extension") if isinstance(item, Mapping) else None
        options = item.get("configuration", {}) if isinstance(item, Mapping) else None
        if not isinstance(uri, str) or not isinstance(options, Mapping) or not isinstance(item.get("type"), str):
            checker.add(where, f"expected an object with 'extension' and 'type', found {item!r}")
        elif _SHARDING.fullmatch(uri) and number:
            checker.add(where, "sharding is supported as the first of the storage transformers, and once")
        elif _SHARDING.fullmatch(uri) and item["type"] == "indexed":
            shards = _parse_shards(checker, f"{where}.configuration.chunks_per_shard", options, chunks)
        else:
            try:
                stack.append(storage_transformers.parse(uri, options))
            except MetadataError as error:
                checker.add_error(where, error)
    return shards, tuple(stack)


def _parse_shards(
    checker: DocumentChecker, member: str, options: Mapping[str, Any], chunks: tuple[int, ...]
) -> tuple[int, ...]:
    ratio = options.get("chunks_per_shard")
    sizes = checker.sizes(member, ratio, 1)
    if len(sizes) > max(len(chunks), 1):
        checker.add(member, f"expected {len(chunks)} sizes, found {ratio!r}")
    # zarr-python lets sizes of 1 be left out at the end.
    return tuple(a * b for a, b in zip(chunks, (*sizes, *(1,) * len(chunks)), strict=False))
