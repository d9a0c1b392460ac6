"""Zarr format 2 (OGC 21-050r1): ``.zarray``, ``.zgroup`` and ``.zattrs``.

What v2 says with words of its own becomes ordinary parts of the model: ``order: "F"`` a transpose
codec, the byte order in ``"dtype"`` a parameter of the bytes codec, filters and compressor
bytes -> bytes codecs that follow it (v2 filters act on the buffer in stored order), and the
separator a chunk key encoding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync import _json, dtypes
from zarrasync.codecs import (
    ArrayArrayCodec,
    ArrayBytesCodec,
    ArraySpec,
    BloscCodec,
    BytesBytesCodec,
    BytesCodec,
    Codec,
    CodecChain,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    ZstdCodec,
    as_codec,
    default_array_bytes,
    from_numcodecs,
)
from zarrasync.codecs.numcodecs import NumcodecsArray, NumcodecsBytes
from zarrasync.dtypes import BYTES, STRING, DataType
from zarrasync.errors import InvalidKeyError, MetadataError, UnknownCodecError, UnsupportedByFormat, ZarrError
from zarrasync.formats.base import Documents, Format, Inspector, Wanted, codec_names, document_key, extension
from zarrasync.keys import ChunkKeyEncoding
from zarrasync.metadata import ArrayMetadata, GroupMetadata, Source

__all__ = ["V2"]

_MEMBERS = ("shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters")
_OBJECT_CODECS: dict[str, tuple[DataType, ArrayBytesCodec]] = {
    "vlen-utf8": (STRING, VlenUtf8Codec()),
    "vlen-bytes": (BYTES, VlenBytesCodec()),
}
_COMPRESSORS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4", "pcodec", "zfpy")
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class V2(Format):
    """Version 2."""

    zarr_format = 2

    def document_keys(self, path: str) -> tuple[str, ...]:
        return tuple(document_key(path, name) for name in (".zarray", ".zgroup", ".zattrs"))

    # -------------------------------------------------------------- reading

    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        array_key, group_key, attributes_key = self.document_keys(path)
        key = array_key if documents.get(array_key) is not None else group_key
        data = documents.get(key)
        if data is None:
            return None
        if key == group_key and not bytes(data).strip():
            data = b'{"zarr_format": 2}'  # some writers leave an empty file to mark a group
        look = Inspector(data, key)
        attributes: dict[str, Any] = {}
        originals: dict[str, Mapping[str, Any]] = {key: look.document}
        extra = documents.get(attributes_key)
        if extra is not None:
            attributes = originals[attributes_key] = _json.load(bytes(extra), attributes_key)
        if look.document.get("zarr_format") != 2:
            look.problem("zarr_format", f"expected 2, found {look.document.get('zarr_format')!r}")
            look.finish()
        source = Source(2, originals)
        if key == group_key:
            return GroupMetadata(attributes=attributes, source=source)
        return self._parse_array(look, attributes, source)

    def _parse_array(self, look: Inspector, attributes: dict[str, Any], source: Source) -> ArrayMetadata:
        document = look.document
        look.need(*_MEMBERS)
        look.finish()
        shape = look.sizes("shape", document["shape"], 0)
        chunks = look.sizes("chunks", document["chunks"], 1)
        order = document["order"]
        if order not in ("C", "F"):
            look.problem("order", f"expected 'C' or 'F', found {order!r}")
        separator = document.get("dimension_separator", ".")
        if separator not in (".", "/"):
            look.problem("dimension_separator", f"expected '.' or '/', found {separator!r}")
        filters = document["filters"] or []
        if not isinstance(filters, list) or not all(isinstance(f, Mapping) for f in filters):
            look.problem("filters", f"expected a list of codec configurations or null, found {filters!r}")
        compressor = document["compressor"]
        if compressor is not None and not (isinstance(compressor, Mapping) and compressor):
            look.problem("compressor", f"expected a codec configuration or null, found {compressor!r}")
        look.finish()
        try:
            data_type, maker, filters = _parse_dtype(document["dtype"], filters)
        except MetadataError as error:
            look.absorb("dtype", error)
            look.finish()
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
                    look.absorb(where, error)
                    if isinstance(error, UnknownCodecError):
                        raise UnknownCodecError(
                            str(look.problems[-1]), codec=error.codec, problems=look.problems
                        ) from error
        fill = None
        try:
            fill = _parse_fill(data_type, document["fill_value"], stored)
        except (MetadataError, ValueError, TypeError, OverflowError, binascii.Error) as error:
            look.problem("fill_value", f"{document['fill_value']!r} does not fit dtype {document['dtype']!r}: {error}")
        look.finish()
        keys = ChunkKeyEncoding("v2", separator)
        spec = ArraySpec(chunks, data_type, fill)
        try:
            chain = CodecChain.of(codecs).settle(spec)
            return ArrayMetadata(shape, data_type, chunks, keys, chain, fill, attributes=attributes, source=source)
        except ZarrError as error:
            look.absorb("", error)
            look.finish()
            raise

    # -------------------------------------------------------------- writing

    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        array_key, group_key, attributes_key = self.document_keys(path)
        source = metadata.source if metadata.source and metadata.source.zarr_format == self.zarr_format else None
        kept = {key.rpartition("/")[2]: dict(value) for key, value in source.documents.items()} if source else {}
        documents: dict[str, bytes] = {}
        if isinstance(metadata, GroupMetadata):
            documents[group_key] = _json.dump(kept.get(".zgroup", {"zarr_format": 2}))
        else:
            document = kept[".zarray"] if ".zarray" in kept else self._array(metadata)
            documents[array_key] = _json.dump({**document, "shape": list(metadata.shape)})
        if metadata.attributes or ".zattrs" in kept:
            documents[attributes_key] = _json.dump(metadata.attributes)
        return documents

    def _array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        if metadata.keys.name != "v2":
            raise _unsupported(f"chunk keys of the kind {metadata.keys.name!r}", "chunk_key_encoding")
        if metadata.dimension_names is not None and any(n is not None for n in metadata.dimension_names):
            raise _unsupported("dimension names (xarray keeps them in an attribute)", "dimension_names")
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
            dtype: Any = _render_dtype(maker.stored_form(metadata.dtype.numpy))
        elif isinstance(maker, VlenUtf8Codec | VlenBytesCodec):
            dtype = "|O"
            filters.insert(0, {"id": maker.name})
        else:
            raise _unsupported(f"the codec {maker.label!r}", "shards" if metadata.shards else "codecs")
        rest = [_to_numcodecs(codec) for codec in metadata.codecs.bytes_bytes]
        compressor = rest.pop() if rest and rest[-1]["id"] in _COMPRESSORS else None
        document = {
            "zarr_format": 2,
            "shape": list(metadata.shape),
            "chunks": list(metadata.write_chunks),
            "dtype": dtype,
            "compressor": compressor,
            "fill_value": _render_fill(metadata.dtype, metadata.fill_value, maker),
            "order": order,
            "filters": filters + rest or None,
        }
        if metadata.keys.separator != ".":
            document["dimension_separator"] = metadata.keys.separator
        return document

    def check_name(self, name: str) -> None:
        if not name.strip(".") or name in (".zarray", ".zgroup", ".zattrs", ".zmetadata"):
            raise InvalidKeyError(f"{name!r} is not a valid node name in Zarr format 2", key=name)

    def chain(self, wanted: Wanted, spec: ArraySpec) -> CodecChain:
        if wanted.inner is not None:
            raise _unsupported("shards", "shards")
        codecs: list[Codec] = [default_array_bytes(spec)]
        if wanted.serializer not in (None, "auto"):
            codecs = [as_codec(wanted.serializer)]
        if isinstance(codecs[0], BytesCodec):
            stored = codecs[0].stored_form(spec.dtype.numpy)
            codecs = [BytesCodec(None, stored)]
        else:
            stored = None
        if wanted.order == "F" and len(spec.shape) > 1:
            codecs.insert(0, TransposeCodec(tuple(reversed(range(len(spec.shape))))))
        for item in (*wanted.filters, *wanted.compressors):
            config = item.get_config() if hasattr(item, "get_config") else item
            known = isinstance(config, Mapping) and "id" in config
            codec = from_numcodecs(config, dtype=stored) if known else as_codec(item)
            if isinstance(codec, ArrayArrayCodec):
                if not isinstance(codec, NumcodecsArray):
                    raise _unsupported(f"the codec {codec.label!r}", "codecs")
                codec = from_numcodecs(codec.config, dtype=stored)
            codecs.append(codec)
        return CodecChain.of(codecs).settle(spec)

    def key_encoding(self, wanted: Any, ndim: int) -> ChunkKeyEncoding:
        if wanted is None:
            return ChunkKeyEncoding("v2", ".")
        if isinstance(wanted, ChunkKeyEncoding):
            found = wanted
        else:
            name, options = extension(wanted)
            if name is None:
                raise MetadataError(f"a chunk key encoding is a name or an object with a name, found {wanted!r}")
            found = ChunkKeyEncoding(name, options.get("separator", "."))
        if found.name != "v2":
            raise _unsupported(f"chunk keys of the kind {found.name!r}", "chunk_key_encoding")
        return found


def _unsupported(what: str, feature: str) -> UnsupportedByFormat:
    return UnsupportedByFormat(f"Zarr format 2 can not say {what}; use zarr_format=3", zarr_format=2, feature=feature)


# ------------------------------------------------------------------ dtypes


def _parse_dtype(value: Any, filters: list[Any]) -> tuple[DataType, ArrayBytesCodec, list[Any]]:
    """The data type, the codec that makes bytes of it, and the filters that remain."""
    stored = _numpy_dtype(value)
    if stored.kind == "O":
        kind = str(filters[0].get("id")) if filters else "no filter"
        if kind not in _OBJECT_CODECS:
            wanted = ", ".join(_OBJECT_CODECS)
            raise MetadataError(f"objects need one of these as their first filter: {wanted}; found {kind!r}")
        data_type, maker = _OBJECT_CODECS[kind]
        return data_type, maker, filters[1:]
    return dtypes.from_numpy(stored), BytesCodec(None, stored), filters


def _numpy_dtype(value: Any) -> np.dtype[Any]:
    try:
        if isinstance(value, str):
            if not value or value[0] not in "<>|":
                raise ValueError("it must begin with the byte order: '<', '>' or '|'")
            return np.dtype(value)
        if isinstance(value, list) and value:
            return np.dtype([_field(item) for item in value])
    except (TypeError, ValueError, SyntaxError) as error:
        raise MetadataError(f"{value!r} is not a NumPy data type: {error}") from error
    raise MetadataError(f"expected a type string or a list of fields, found {value!r}")


def _field(item: Any) -> tuple[Any, ...]:
    if not isinstance(item, list) or len(item) not in (2, 3) or not isinstance(item[0], str):
        raise ValueError(f"a field is [name, type] or [name, type, shape], found {item!r}")
    shape = () if len(item) == 2 else (tuple(item[2]),)
    return (item[0], _numpy_dtype(item[1]), *shape)


def _render_dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.fields is None:
        return dtype.str
    fields = []
    for name in dtype.names or ():
        part = dtype.fields[name][0]
        base, shape = part.subdtype or (part, None)
        fields.append([name, _render_dtype(base), *([list(shape)] if shape else [])])
    return fields


# ------------------------------------------------------------------ fill values


def _parse_fill(data_type: DataType, value: Any, stored: np.dtype[Any] | None) -> Any:
    dtype = data_type.numpy
    kind = dtype.kind
    if value is None:
        return None
    if kind == "T":
        return value if isinstance(value, str) else ""  # numcodecs writers put 0 here
    if kind == "O":
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    if kind == "f":
        return dtype.type(_float(value))
    if kind == "c":
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("expected a pair [real, imaginary]")
        return dtype.type(complex(_float(value[0]), _float(value[1])))
    if kind in "SV":
        if isinstance(value, str):
            data = base64.b64decode(value, validate=True)
            if len(data) > dtype.itemsize or (kind == "V" and len(data) != dtype.itemsize):
                raise ValueError(f"{len(data)} bytes for elements of {dtype.itemsize}")
            if not dtype.itemsize:
                return np.zeros((), dtype)[()]
            # The bytes are those of a stored element, so in its byte order.
            return np.frombuffer(data.ljust(dtype.itemsize, b"\0"), stored).astype(dtype)[0]
        if value == 0:  # what zarr-python 2 writes for a fill value of zero
            return np.zeros((), dtype)[()]
        raise ValueError("expected base64 text")
    if kind in "mM" and (value == "NaT" or isinstance(value, int)):
        return np.array(value, dtype if value == "NaT" else np.int64).view(dtype)[()]
    if kind == "U" and not isinstance(value, str):
        if value == 0:
            return np.zeros((), dtype)[()]
        raise ValueError("expected text")
    if kind == "b" and not isinstance(value, bool):
        if value in (0, 1):
            return np.bool_(value)
        raise ValueError("expected true or false")
    if kind in "iu" and isinstance(value, str):
        value = int(value)  # n5 writers quote it
    return dtypes.as_fill(data_type, value)


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise ValueError("expected a number, NaN, Infinity or -Infinity")
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    return float(value)


def _render_fill(data_type: DataType, value: Any, maker: ArrayBytesCodec) -> Any:
    if value is None:
        return None
    dtype = data_type.numpy
    if dtype.kind in "SV":
        stored = maker.stored_form(dtype) if isinstance(maker, BytesCodec) else dtype
        return base64.b64encode(np.array(value, dtype).astype(stored).tobytes()).decode()
    if dtype.kind == "f":
        return float(value)
    if dtype.kind == "c":
        return [float(value.real), float(value.imag)]
    if dtype.kind in "mM":
        return int(np.array(value, dtype).view(np.int64))
    return dtypes.fill_to_json(data_type, value)


def _to_numcodecs(codec: BytesBytesCodec) -> dict[str, Any]:
    """A codec as the numcodecs configuration that v2 documents hold."""
    if isinstance(codec, NumcodecsBytes):
        return dict(codec.config)
    if isinstance(codec, BloscCodec):
        shuffle = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2, None: -1}[codec.shuffle]
        return {
            "id": "blosc",
            "cname": codec.cname,
            "clevel": codec.clevel,
            "shuffle": shuffle,
            "blocksize": codec.blocksize,
        }
    if isinstance(codec, GzipCodec | ZstdCodec):
        options = {name: value for name, value in codec.configuration().items() if name != "checksum" or value}
        return {"id": codec.name, **options}
    if isinstance(codec, Crc32cCodec):
        return {"id": "crc32c"}
    raise _unsupported(f"the codec {codec_names([codec])!r}", "codecs")
