"""What format 2 and the draft of format 3 share: NumPy's type codes, numcodecs' configurations, fill values."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zarrasync._util import json as _json
from zarrasync.codecs import (
    OBJECT_CODECS,
    ArrayArrayCodec,
    ArrayBytesCodec,
    ArraySpec,
    BloscCodec,
    Buffer,
    BytesBytesCodec,
    BytesCodec,
    Codec,
    CodecChain,
    Crc32cCodec,
    GzipCodec,
    ObjectCodec,
    TransposeCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    ZstdCodec,
    as_codec,
    default_array_bytes,
    from_numcodecs,
)
from zarrasync.codecs.numcodecs import NumcodecsArray, NumcodecsBytes
from zarrasync.errors import MetadataError, UnsupportedByFormat
from zarrasync.metadata.document import DocumentChecker
from zarrasync.metadata.format import RequestedCodecs
from zarrasync.model import dtypes, fill_values
from zarrasync.model.dtypes import BYTES, STRING, DataType
from zarrasync.model.paths import join

__all__ = [
    "can_say",
    "chain_in_order",
    "numpy_dtype",
    "pack_copies",
    "parse_dtype",
    "parse_fill",
    "plain_nan",
    "render_dtype",
    "render_fill",
    "to_numcodecs",
    "unpack_copies",
]

_VARIABLE: dict[str, tuple[DataType, ArrayBytesCodec]] = {
    "vlen-utf8": (STRING, VlenUtf8Codec()),
    "vlen-bytes": (BYTES, VlenBytesCodec()),
}
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


# ------------------------------------------------------------------ dtypes


def parse_dtype(value: Any, filters: list[Any]) -> tuple[DataType, ArrayBytesCodec, list[Any]]:
    """The data type, the codec that makes bytes of it, and the filters that remain."""
    stored = numpy_dtype(value)
    first = str(filters[0].get("id")) if filters else "no filter"
    if first == "categorize":
        data_type = dtypes.OBJECT if stored.kind == "O" else dtypes.from_stored(stored)
        return data_type, ObjectCodec(filters[0]), filters[1:]
    if stored.kind == "O":
        if first in OBJECT_CODECS:
            return dtypes.OBJECT, ObjectCodec(filters[0]), filters[1:]
        if first not in _VARIABLE:
            requested = ", ".join((*_VARIABLE, *OBJECT_CODECS))
            raise MetadataError(f"objects need one of these as their first filter: {requested}; found {first!r}")
        data_type, maker = _VARIABLE[first]
        return data_type, maker, filters[1:]
    return dtypes.from_stored(stored), BytesCodec(None, stored), filters


def numpy_dtype(value: Any, *, ordered: bool = True) -> np.dtype[Any]:
    """The NumPy dtype of a type string or a list of fields.

    Args:
        value: What stands in the document.
        ordered: Whether a type string must begin with its byte order.

    Raises:
        MetadataError: If NumPy knows no such type.
    """
    try:
        if isinstance(value, str):
            if not value or (ordered and value[0] not in "<>|"):
                raise ValueError("it must begin with the byte order: '<', '>' or '|'")
            found = np.dtype(value)
            if found.kind == "T":
                raise ValueError("text of any length is '|O' with the filter 'vlen-utf8'")
            return found
        if isinstance(value, list) and value:
            return np.dtype([_field(item) for item in value])
    except (TypeError, ValueError, SyntaxError) as error:
        raise MetadataError(f"{value!r} is not a NumPy data type: {error}") from error
    raise MetadataError(f"expected a type string or a list of fields, found {value!r}")


def _field(item: Any) -> tuple[Any, ...]:
    if not isinstance(item, list) or len(item) not in (2, 3) or not isinstance(item[0], str):
        raise ValueError(f"a field is [name, type] or [name, type, shape], found {item!r}")
    shape = () if len(item) == 2 else (tuple(item[2]),)
    return (item[0], numpy_dtype(item[1]), *shape)


def render_dtype(dtype: np.dtype[Any]) -> Any:
    """A NumPy dtype as a type string or a list of fields."""
    if dtype.fields is None:
        return dtype.str
    fields = []
    for name in dtype.names or ():
        part = dtype[name]
        base, shape = part.subdtype or (part, None)
        fields.append([name, render_dtype(base), *([list(shape)] if shape else [])])
    return fields


def can_say(data_type: DataType, stored: np.dtype[Any]) -> bool:
    """Whether a type string or list of fields says all of a data type."""
    return data_type.name not in dtypes.NAMED and _plain(stored)


def _plain(dtype: np.dtype[Any]) -> bool:
    if dtype.fields is not None:
        return all(_plain(dtype[name].base) for name in dtype.names or ())
    return dtype.type.__module__ == "numpy"


# ------------------------------------------------------------------ fill values


def parse_fill(data_type: DataType, value: Any, stored: np.dtype[Any] | None) -> Any:
    """A fill value as these formats write it; ``None`` where it is undefined.

    Raises:
        MetadataError, ValueError, TypeError, OverflowError: If it does not fit the data type.
    """
    dtype = data_type.numpy
    kind = dtype.kind
    if value is None:
        return None
    if kind == "T":
        return value if isinstance(value, str) else ""  # numcodecs writers put 0 here
    if data_type.name == "object":
        return value
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
    return fill_values.as_fill(data_type, value)


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise ValueError("expected a number, NaN, Infinity or -Infinity")
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    return float(value)


def render_fill(data_type: DataType, value: Any, maker: ArrayBytesCodec) -> Any:
    """A fill value as these formats write it."""
    if value is None or data_type.name == "object":
        return value
    dtype = data_type.numpy
    if dtype.kind in "SV":
        stored = maker.stored_form(dtype) if isinstance(maker, BytesCodec) else dtype
        data = np.array(value, dtype).astype(stored).tobytes() if dtype.itemsize else b""  # NumPy makes S1 of S0
        return base64.b64encode(data).decode()
    if dtype.kind == "f":
        return float(value)
    if dtype.kind == "c":
        return [float(value.real), float(value.imag)]
    if dtype.kind in "mM":
        return int(np.array(value, dtype).view(np.int64))
    return fill_values.fill_to_json(data_type, value)


def plain_nan(data_type: DataType, value: Any) -> Any:
    """A fill value without the sign and payload of NaN, for which these formats have no word."""
    if value is None or data_type.numpy.kind not in "fc" or value == value:  # noqa: PLR0124  NaN alone differs from itself
        return value
    dtype = data_type.numpy
    if dtype.kind == "f":
        return dtype.type(np.nan)
    parts = (np.nan if np.isnan(part) else part for part in (value.real, value.imag))
    return np.array(complex(*parts), dtype)[()]


def to_numcodecs(codec: BytesBytesCodec) -> dict[str, Any]:
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
    raise UnsupportedByFormat(
        f"only codecs of numcodecs can be said in this format, not {codec.label!r}; zarr_format=3 can say it",
        feature="codecs",
    )


# ------------------------------------------------------------------ codecs for creating


def chain_in_order(requested: RequestedCodecs, spec: ArraySpec, unable: Callable[[str, str], Exception]) -> CodecChain:
    """The codecs that a creating call asked for; filters act on bytes here, after the elements were put in order.

    Args:
        requested: The codecs.
        spec: The spec of a chunk.
        unable: Makes the error for what the format can not say, from words and the feature's name.
    """
    filters = list(requested.filters)
    maker: Codec | None = None
    if filters:
        first = _config(filters[0])
        name = first.get("id") if isinstance(first, Mapping) else None
        if name in OBJECT_CODECS:
            maker = ObjectCodec(dict(first))
            del filters[0]
        elif name in _VARIABLE and _VARIABLE[name][0] == spec.dtype:
            maker = _VARIABLE[name][1]
            del filters[0]
    if maker is None:
        maker = default_array_bytes(spec) if requested.serializer in (None, "auto") else as_codec(requested.serializer)
    stored = None
    if isinstance(maker, BytesCodec):
        stored = maker.stored_form(spec.dtype.numpy)
        maker = BytesCodec(None, stored)
    codecs: list[Codec] = [maker]
    if requested.order == "F" and len(spec.shape) > 1:
        codecs.insert(0, TransposeCodec(tuple(reversed(range(len(spec.shape))))))
    for item in (*filters, *requested.compressors):
        config = _config(item)
        known = isinstance(config, Mapping) and "id" in config
        codec = from_numcodecs(config, dtype=stored) if known else as_codec(item)
        if isinstance(codec, ArrayArrayCodec):
            if not isinstance(codec, NumcodecsArray):
                raise unable(f"the codec {codec.label!r}", "codecs")
            codec = from_numcodecs(codec.config, dtype=stored)
        codecs.append(codec)
    return CodecChain.of(codecs).settle(spec)


def _config(codec: Any) -> Any:
    return codec.get_config() if hasattr(codec, "get_config") else codec


# ------------------------------------------------------------------ consolidated metadata


def unpack_copies(data: Buffer, key: str, path: str) -> dict[str, bytes]:
    """The documents in a ``.zmetadata`` document, by store key.

    Raises:
        MetadataError: If it is no such document.
    """
    checker = DocumentChecker(data, key)
    version, nodes = checker.document.get("zarr_consolidated_format"), checker.document.get("metadata")
    if version != 1:
        checker.add("zarr_consolidated_format", f"expected 1, found {version!r}")
    if not isinstance(nodes, Mapping) or not all(isinstance(item, Mapping) for item in nodes.values()):
        checker.add("metadata", "expected an object of documents")
    checker.raise_problems()
    assert isinstance(nodes, Mapping)
    return {join(path, name): json.dumps(item).encode() for name, item in nodes.items()}


def pack_copies(documents: Mapping[str, Any]) -> bytes:
    """A ``.zmetadata`` document of parsed documents by key."""
    return _json.dump({"zarr_consolidated_format": 1, "metadata": dict(sorted(documents.items()))})
