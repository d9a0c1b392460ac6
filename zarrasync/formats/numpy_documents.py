"""What documents of format 2 and of the draft's older dialect share: NumPy's data types, fill values, filters, and consolidated copies."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zarrasync._util.json import join_members, split_members
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
from zarrasync.errors import MetadataError, Problem, UnsupportedByFormat
from zarrasync.metadata.format import Documents, Format, RequestedCodecs
from zarrasync.model import dtypes, fill_values
from zarrasync.model.dtypes import BYTES, STRING, DataType
from zarrasync.model.paths import join

VARIABLE_TYPES: dict[str, tuple[DataType, ArrayBytesCodec]] = {
    "vlen-utf8": (STRING, VlenUtf8Codec()),
    "vlen-bytes": (BYTES, VlenBytesCodec()),
}
"""Data types of variable size and their array -> bytes codecs, by the numcodecs ID of the filter that encodes them."""


def parse_dtype(value: Any, filters: list[Any]) -> tuple[DataType, ArrayBytesCodec, list[Any]]:
    """Parse a ``dtype`` member.

    Args:
        value: The member.
        filters: The numcodecs configurations of the array's filters.

    Returns:
        The data type, the array -> bytes codec, and the other filters.

    Raises:
        MetadataError: If the data type is unknown, or if objects have no filter that encodes them.
    """
    stored = numpy_dtype(value)
    first_filter = str(filters[0].get("id")) if filters else "no filter"
    if first_filter == "categorize":
        data_type = dtypes.OBJECT if stored.kind == "O" else dtypes.from_stored(stored)
        return data_type, ObjectCodec(filters[0]), filters[1:]
    if stored.kind == "O":
        if first_filter in OBJECT_CODECS:
            return dtypes.OBJECT, ObjectCodec(filters[0]), filters[1:]
        if first_filter not in VARIABLE_TYPES:
            expected = ", ".join((*VARIABLE_TYPES, *OBJECT_CODECS))
            raise MetadataError(
                f"the first filter of an object array must be one of {expected}; found {first_filter!r}"
            )
        data_type, serializer = VARIABLE_TYPES[first_filter]
        return data_type, serializer, filters[1:]
    return dtypes.from_stored(stored), BytesCodec(None, stored), filters


def numpy_dtype(value: Any, *, needs_byte_order: bool = True) -> np.dtype[Any]:
    """Return the NumPy dtype of a type string or a list of fields.

    Args:
        value: The value in the document.
        needs_byte_order: Whether a type string must start with the byte order.

    Raises:
        MetadataError: If the value is not a NumPy dtype.
    """
    try:
        if isinstance(value, str):
            if not value or (needs_byte_order and value[0] not in "<>|"):
                raise ValueError("it must start with the byte order: '<', '>' or '|'")
            dtype = np.dtype(value)
            if dtype.kind == "T":
                raise ValueError("variable-length strings are stored as '|O' with the filter 'vlen-utf8'")
            return dtype
        if isinstance(value, list) and value:
            return np.dtype([_parse_field(item) for item in value])
    except (TypeError, ValueError, SyntaxError) as error:
        raise MetadataError(f"{value!r} is not a NumPy data type: {error}") from error
    raise MetadataError(f"expected a type string or a list of fields, found {value!r}")


def _parse_field(item: Any) -> tuple[Any, ...]:
    if not isinstance(item, list) or len(item) not in (2, 3) or not isinstance(item[0], str):
        raise ValueError(f"a field must be [name, type] or [name, type, shape], found {item!r}")
    shape = () if len(item) == 2 else (tuple(item[2]),)
    return (item[0], numpy_dtype(item[1]), *shape)


def render_dtype(dtype: np.dtype[Any]) -> Any:
    """Return the type string or list of fields of a NumPy dtype."""
    if dtype.fields is None:
        return dtype.str
    fields = []
    for name in dtype.names or ():
        field = dtype[name]
        base, shape = field.subdtype or (field, None)
        fields.append([name, render_dtype(base), *([list(shape)] if shape else [])])
    return fields


def is_numpy_dtype(data_type: DataType, stored: np.dtype[Any]) -> bool:
    """Return whether a type string or list of fields fully describes a data type."""
    return data_type.name not in dtypes.NAMED and _is_from_numpy(stored)


def _is_from_numpy(dtype: np.dtype[Any]) -> bool:
    if dtype.fields is not None:
        return all(_is_from_numpy(dtype[name].base) for name in dtype.names or ())
    return dtype.type.__module__ == "numpy"


_NUMBER = re.compile(r"NaN|-?Infinity|[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def parse_fill(data_type: DataType, value: Any, stored: np.dtype[Any] | None) -> Any:
    """Parse a ``fill_value`` member. ``None`` means that the fill value is undefined.

    Args:
        data_type: The data type.
        value: The member.
        stored: The dtype of stored elements.

    Raises:
        MetadataError, ValueError, TypeError, OverflowError: If the member does not fit the data type.
    """
    dtype = data_type.numpy
    kind = dtype.kind
    if isinstance(value, list) and len(value) == 1 and kind not in "cO":
        (value,) = value  # netCDF-C 4.8 writes a list of one value
    if value is None:
        return None
    if kind == "T":
        return value if isinstance(value, str) else ""  # numcodecs users write 0
    if data_type.name == "object":
        return value
    if kind == "O":
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    if kind == "f":
        return dtype.type(_parse_float(value))
    if kind == "c":
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("expected a pair [real, imaginary]")
        return dtype.type(complex(_parse_float(value[0]), _parse_float(value[1])))
    if kind in "SV":
        return _parse_bytes(dtype, value, stored)
    if kind in "mM" and (value == "NaT" or isinstance(value, int)):
        return np.array(value, dtype if value == "NaT" else np.int64).view(dtype)[()]
    if kind == "U" and not isinstance(value, str):
        if value == 0:
            return np.zeros((), dtype)[()]
        raise ValueError("expected a string")
    if kind == "b" and not isinstance(value, bool):
        if value in (0, 1):
            return np.bool_(value)
        raise ValueError("expected true or false")
    if kind in "iu" and isinstance(value, str):
        value = int(value)  # N5 writers store it as a string
    return fill_values.as_fill(data_type, value)


def _parse_float(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise ValueError("expected a number, NaN, Infinity or -Infinity")
    return float(value)


def _parse_bytes(dtype: np.dtype[Any], value: Any, stored: np.dtype[Any] | None) -> Any:
    """Parse the fill value of byte strings, raw bytes and structures."""
    if isinstance(value, str):
        data = base64.b64decode(value, validate=True)
        if len(data) > dtype.itemsize or (dtype.kind == "V" and len(data) != dtype.itemsize):
            raise ValueError(f"expected {dtype.itemsize} bytes, found {len(data)}")
        if not dtype.itemsize:
            return np.zeros((), dtype)[()]
        # The bytes of a stored element, in its byte order.
        return np.frombuffer(data.ljust(dtype.itemsize, b"\0"), stored).astype(dtype)[0]
    if value == 0:  # zarr-python 2 writes this for zero bytes
        return np.zeros((), dtype)[()]
    raise ValueError("expected a base64 string")


def render_fill(data_type: DataType, value: Any, serializer: ArrayBytesCodec) -> Any:
    """Return the ``fill_value`` member of a fill value."""
    if value is None or data_type.name == "object":
        return value
    dtype = data_type.numpy
    if dtype.kind in "SV":
        stored = serializer.stored_dtype_of(dtype) if isinstance(serializer, BytesCodec) else dtype
        data = np.array(value, dtype).astype(stored).tobytes() if dtype.itemsize else b""  # NumPy turns S0 into S1
        return base64.b64encode(data).decode()
    if dtype.kind == "f":
        return float(value)
    if dtype.kind == "c":
        return [float(value.real), float(value.imag)]
    if dtype.kind in "mM":
        return int(np.array(value, dtype).view(np.int64))
    return fill_values.fill_to_json(data_type, value)


def without_nan_payload(data_type: DataType, value: Any) -> Any:
    """Return a fill value with the default sign and payload of NaN, because these formats cannot represent others."""
    if value is None or data_type.numpy.kind not in "fc" or value == value:
        return value
    dtype = data_type.numpy
    if dtype.kind == "f":
        return dtype.type(np.nan)
    parts = (np.nan if np.isnan(part) else part for part in (value.real, value.imag))
    return np.array(complex(*parts), dtype)[()]


_BLOSC_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2, None: -1}


def to_numcodecs(codec: BytesBytesCodec) -> dict[str, Any]:
    """Return the numcodecs configuration of a codec.

    Raises:
        UnsupportedByFormat: If numcodecs does not support the codec.
    """
    if isinstance(codec, NumcodecsBytes):
        return dict(codec.config)
    if isinstance(codec, BloscCodec):
        return {
            "id": "blosc",
            "cname": codec.cname,
            "clevel": codec.clevel,
            "shuffle": _BLOSC_SHUFFLES[codec.shuffle],
            "blocksize": codec.blocksize,
        }
    if isinstance(codec, GzipCodec | ZstdCodec):
        # A zstd frame shows whether it has a checksum, and numcodecs before 0.13 rejects the parameter.
        options = {name: value for name, value in codec.configuration().items() if name != "checksum"}
        return {"id": codec.name, **options}
    if isinstance(codec, Crc32cCodec):
        return {"id": "crc32c"}
    raise UnsupportedByFormat(
        f"this format supports only codecs of numcodecs, not {codec.label!r}; use zarr_format=3",
        feature="codecs",
    )


def stored_dtype(serializer: Codec) -> np.dtype[Any] | None:
    """Return the exact dtype of stored elements if the array -> bytes codec specifies one, otherwise ``None``."""
    return serializer.stored if isinstance(serializer, BytesCodec) else None


def fortran_order(ndim: int) -> TransposeCodec:
    """Return the codec that stores elements in Fortran order."""
    return TransposeCodec(tuple(reversed(range(ndim))))


def bytes_filter_chain(
    requested: RequestedCodecs, spec: ArraySpec, unsupported: Callable[[str, str], Exception]
) -> CodecChain:
    """Return the codecs of a new array. Its filters transform the bytes of elements in stored order.

    Args:
        requested: The requested codecs.
        spec: The spec of a chunk.
        unsupported: A function that returns the error for an unsupported feature from its description and its name.
    """
    serializer, filters = _split_serializer(requested, spec)
    stored = None
    if isinstance(serializer, BytesCodec):
        stored = serializer.stored_dtype_of(spec.dtype.numpy)
        serializer = BytesCodec(None, stored)
    codecs: list[Codec] = [serializer]
    if requested.order == "F" and len(spec.shape) > 1:
        codecs.insert(0, fortran_order(len(spec.shape)))
    for item in (*filters, *requested.compressors):
        config = numcodecs_config(item)
        codec = as_codec(item) if config is None else from_numcodecs(config, dtype=stored)
        if isinstance(codec, ArrayArrayCodec):
            if not isinstance(codec, NumcodecsArray):
                raise unsupported(f"the codec {codec.label!r}", "codecs")
            codec = from_numcodecs(codec.config, dtype=stored)
        codecs.append(codec)
    return CodecChain.of(codecs).settle(spec)


def _split_serializer(requested: RequestedCodecs, spec: ArraySpec) -> tuple[Codec, list[Any]]:
    """Return the array -> bytes codec, which may be the first filter, and the remaining filters."""
    filters = list(requested.filters)
    if filters and (config := numcodecs_config(filters[0])) is not None:
        kind = config["id"]
        if kind in OBJECT_CODECS:
            return ObjectCodec(dict(config)), filters[1:]
        if kind in VARIABLE_TYPES and VARIABLE_TYPES[kind][0] == spec.dtype:
            return VARIABLE_TYPES[kind][1], filters[1:]
    is_default = requested.serializer in (None, "auto")
    return default_array_bytes(spec) if is_default else as_codec(requested.serializer), filters


def numcodecs_config(codec: Any) -> Mapping[str, Any] | None:
    """Return the configuration of a codec of numcodecs, or ``None`` for something else."""
    config = codec.get_config() if hasattr(codec, "get_config") else codec
    return config if isinstance(config, Mapping) and "id" in config else None


def parse_zmetadata(data: Buffer, key: str, path: str) -> dict[str, bytes]:
    """Return the documents that a ``.zmetadata`` document contains, by store key.

    Args:
        data: The ``.zmetadata`` document.
        key: The store key of the document, for messages.
        path: The path of the group to which the keys in the document are relative.

    Raises:
        MetadataError: If the document is invalid.
    """
    members = split_members(bytes(data), key, "metadata")
    version, copies = members.get("zarr_consolidated_format"), members.get("metadata")
    problems = []
    if version != b"1":
        found = "nothing" if version is None else bytes(version).decode()
        problems.append(Problem(key, "$.zarr_consolidated_format", f"expected 1, found {found}"))
    if not isinstance(copies, dict) or not all(item.startswith(b"{") for item in copies.values()):
        problems.append(Problem(key, "$.metadata", "expected an object of documents"))
    if problems:
        raise MetadataError.from_problems(problems)
    assert isinstance(copies, dict)
    return {join(path, name): item for name, item in copies.items()}


def render_zmetadata(format_: Format, path: str, group_documents: Documents, others: Mapping[str, bytes]) -> bytes:
    """Return the ``.zmetadata`` document for the documents of a group and others. Keys are relative to the group.

    Documents that do not exist or are empty are left out.
    """
    start = len(path) + 1 if path else 0
    own = {key: data for key in format_.document_keys(path) if (data := group_documents.get(key)) is not None}
    documents = {**{key: format_.copied_document(key, bytes(data)) for key, data in own.items()}, **others}
    copies = {key[start:]: data for key, data in sorted(documents.items()) if data}
    return join_members({"zarr_consolidated_format": b"1", "metadata": copies})
