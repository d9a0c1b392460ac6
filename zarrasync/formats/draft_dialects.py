"""The dialects of the draft of format 3: the entry point that selects one, extensions, data types, codecs, fill values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrasync.codecs import ArrayBytesCodec, BytesCodec
from zarrasync.errors import MetadataError
from zarrasync.formats.numpy_documents import is_numpy_dtype, numpy_dtype, parse_dtype, render_dtype
from zarrasync.metadata.document import DocumentChecker
from zarrasync.model import dtypes, fill_values
from zarrasync.model.dtypes import CORE, DataType, is_raw

SEED = "3-draft"
"""The dialect that the specification defines."""
Y2022 = "3-draft-2022"
"""The older dialect of zarr-python 2, with all keys below ``meta/root`` and ``data/root``."""
ENTRY_POINT_KEY = "zarr.json"
SPECIFICATION = "https://purl.org/zarr/spec/"


# ------------------------------------------------------------------ members of documents


def refuse_unknown_members(checker: DocumentChecker, members: Iterable[str]) -> None:
    """Add a problem for each member that the specification does not define."""
    for name in checker.document:
        if name not in members:
            checker.add(name, "this version of the specification does not define this member")


def list_member(checker: DocumentChecker, member: str, *, strict: bool) -> list[Any]:
    """Return an optional member that is a list. Without ``strict``, it may also be ``null``."""
    value = checker.document.get(member, [])
    if isinstance(value, list):
        return value
    if value is not None or strict:
        checker.add(member, f"expected a list, found {value!r}")
    return []


def check_extensions(checker: DocumentChecker, *, strict: bool) -> None:
    """Add a problem for each extension that must be understood, because zarrasync supports none."""
    for number, item in enumerate(list_member(checker, "extensions", strict=strict)):
        if not isinstance(item, Mapping) or not isinstance(item.get("extension"), str):
            checker.add(f"extensions[{number}]", f"expected an object with an 'extension', found {item!r}")
        elif item.get("must_understand") is not False:
            checker.add(f"extensions[{number}]", f"the required extension {item['extension']!r} is not supported")


def parse_attributes(checker: DocumentChecker, *, strict: bool) -> dict[str, Any]:
    """Return the attributes. Without ``strict``, they may be missing."""
    value = checker.document.get("attributes")
    return {} if value is None and not strict else dict(checker.attributes(value))


def take_filters(attributes: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Remove the filters that zarr-python stores in an attribute, and return them."""
    filters = attributes.get("filters")
    if not isinstance(filters, list) or not filters:
        return ()
    if not all(isinstance(item, Mapping) and "id" in item for item in filters):
        return ()
    del attributes["filters"]
    return tuple(filters)


# ------------------------------------------------------------------ entry points


def new_entry_point(dialect: str, suffix: str) -> dict[str, Any]:
    """Return the entry point document of a new store."""
    suffix_member = {"metadata_key_suffix": suffix}
    if dialect == SEED:
        encoding = {"type": "json", **suffix_member}
        return {"zarr_format": f"{SPECIFICATION}core/3.0", "metadata_encoding": encoding, "extensions": []}
    uri = f"{SPECIFICATION}protocol/core/3.0"
    return {"zarr_format": uri, "metadata_encoding": uri, **suffix_member, "extensions": []}


_CODEC_URI = re.compile(r".*/spec/codecs?/([A-Za-z0-9_.-]+?)(?:/1\.\d+)?/?")
_RAW_TYPE = re.compile(r"r[1-9][0-9]*")
_BIT_PATTERN = re.compile(r"0x([0-9a-fA-F]+)|0b([01]+)")
_DATETIME_URI = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
# zarr-python 2.13 to 2.18 wrote these URIs for data types that the draft did not specify at that time.
_2022_DATETIME_URI = "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html"
_2022_EXTENSIONS = {
    "c": "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/complex-dtypes/v1.0.html",
    "m": _2022_DATETIME_URI,
    "M": _2022_DATETIME_URI,
    "O": "TODO: object array protocol URL",
    "S": "TODO: bytestring array protocol URL",
    "U": "TODO: unicode array protocol URL",
    "V": "TODO: structured array protocol URL",
}
_SUPPORTED_EXTENSION = re.compile(
    r"TODO: (object|bytestring|unicode|structured) array protocol URL"
    r"|https?://(purl\.org/zarr/spec|zarr-specs\.readthedocs\.io)/.*(complex-dtypes|datetime).*"
)


# ------------------------------------------------------------------ data types


class ParsedType(NamedTuple):
    """The result of parsing a ``data_type`` member.

    Attributes:
        data_type: The data type.
        serializer: The codec that encodes the elements.
        filters: The filters, without the filter that encodes objects.
        is_extension: Whether an extension defines the data type.
        notes: Messages for the user about a fallback data type.
    """

    data_type: DataType
    serializer: ArrayBytesCodec
    filters: Sequence[Any] = ()
    is_extension: bool = False
    notes: tuple[str, ...] = ()


def parse_type(value: Any, filters: Sequence[Any] = ()) -> ParsedType:
    """Parse a ``data_type`` member: a name, a NumPy type string or the object of an extension.

    Raises:
        MetadataError: If the data type is unknown and has no supported fallback.
    """
    if isinstance(value, str):
        if value in CORE or _RAW_TYPE.fullmatch(value):
            return ParsedType(dtypes.from_json(value), BytesCodec("little"), filters)
        stored = numpy_dtype(value, needs_byte_order=False)
        if stored.kind not in "biufc" or value.strip("<>|")[1:] != str(stored.itemsize):
            raise MetadataError(f"unknown data type {value!r}")
        return ParsedType(dtypes.from_stored(stored), BytesCodec(None, stored), filters)
    if not isinstance(value, Mapping) or not isinstance(value.get("extension"), str) or "type" not in value:
        raise MetadataError(f"expected a name, or an object with 'extension' and 'type', found {value!r}")
    if _SUPPORTED_EXTENSION.fullmatch(value["extension"]):
        data_type, serializer, other_filters = parse_dtype(value["type"], list(filters))
        return ParsedType(data_type, serializer, other_filters, True)
    fallback = value.get("fallback")
    for choice in fallback if isinstance(fallback, list) else [] if fallback is None else [fallback]:
        try:
            parsed = parse_type(choice, filters)
        except MetadataError:
            continue
        note = f"the data type {value['type']!r} of {value['extension']} is unknown; its fallback {choice!r} is used"
        return parsed._replace(is_extension=True, notes=(note, *parsed.notes))
    raise MetadataError(
        f"the data type {value['type']!r} of {value['extension']} is unknown and has no supported fallback"
    )


def render_type(data_type: DataType, serializer: ArrayBytesCodec, *, use_type_strings: bool) -> tuple[Any, bool]:
    """Return the ``data_type`` member of a data type, and whether the member includes the byte order.

    Args:
        data_type: The data type.
        serializer: The codec that encodes the elements.
        use_type_strings: Use NumPy type strings, as in the older dialect, instead of names.

    Raises:
        MetadataError: If the draft does not support the data type.
    """
    stored = serializer.stored_dtype_of(data_type.numpy) if isinstance(serializer, BytesCodec) else np.dtype(object)
    kind, has_raw_bits = stored.kind, is_raw(stored)
    if not is_numpy_dtype(data_type, stored):
        raise MetadataError(f"the draft of Zarr format 3 does not support the data type {data_type.name!r}")
    if not use_type_strings:
        if data_type.name in CORE or has_raw_bits:
            return data_type.name, False
        if kind not in "mM":
            raise MetadataError(f"the draft of Zarr format 3 does not support the data type {data_type.name!r}")
        return {"extension": _DATETIME_URI, "type": stored.str, "fallback": f"{stored.str[0]}i8"}, True
    if kind in "biuf":
        return "bool" if kind == "b" else stored.str.removeprefix("|"), True
    if has_raw_bits:
        return data_type.name, True
    return {"extension": _2022_EXTENSIONS[kind], "type": render_dtype(stored), "fallback": None}, True


# ------------------------------------------------------------------ fill values


def parse_fill_value(data_type: DataType, value: Any, *, strict: bool) -> Any:
    """Parse the ``fill_value`` member of numbers and raw bits.

    Args:
        data_type: The data type.
        value: The member.
        strict: Require booleans to be ``true`` or ``false``, and integers without fraction and exponent.

    Raises:
        MetadataError, ValueError: If the member does not fit the data type.
    """
    dtype = data_type.numpy
    if strict and dtype.kind == "b" and not isinstance(value, bool):
        raise ValueError("expected true or false")
    if strict and dtype.kind in "iu" and isinstance(value, float):
        raise ValueError("expected a number without fraction and exponent")
    if dtype.kind == "c" and isinstance(value, list) and len(value) == 2:
        part = dtypes.from_numpy(f"f{dtype.itemsize // 2}")
        pair = [parse_fill_value(part, item, strict=strict) for item in value]
        return np.array(pair, part.numpy).view(dtype)[0]
    if isinstance(value, str) and dtype.kind in "biufcV" and (bits := _BIT_PATTERN.fullmatch(value)):
        digits, base, expected = (bits[1], 16, 2 * dtype.itemsize) if bits[1] else (bits[2], 2, 8 * dtype.itemsize)
        if len(digits) != expected:
            raise ValueError(f"expected {expected} digits, found {len(digits)}")
        data = int(digits, base).to_bytes(dtype.itemsize, "big")
        return np.frombuffer(data, dtype.newbyteorder(">")).astype(dtype)[0]
    if value == "+Infinity" and dtype.kind == "f":
        value = "Infinity"
    return fill_values.fill_from_json(data_type, value)


def render_fill_value(data_type: DataType, value: Any) -> Any:
    """Return the ``fill_value`` member of a fill value."""
    if value is None:
        return None
    dtype = data_type.numpy
    if dtype.kind == "V" and dtype.fields is None:
        return "0x" + np.array(value, dtype).tobytes().hex()
    return _with_signed_infinity(fill_values.fill_to_json(data_type, value))


def _with_signed_infinity(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_signed_infinity(item) for item in value]
    return "+Infinity" if value == "Infinity" else value


# ------------------------------------------------------------------ codecs


def parse_codec_uri(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the configuration of a codec from an object with its URI.

    Raises:
        MetadataError: If the value is not such an object, or the specification does not define the codec.
    """
    uri = value.get("type", value.get("codec")) if isinstance(value, Mapping) else None
    if not isinstance(uri, str):
        raise MetadataError(f"expected an object with a codec's URI, found {value!r}")
    match = _CODEC_URI.fullmatch(uri)
    configuration = value.get("configuration") or {}
    if match is None or not isinstance(configuration, Mapping):
        raise MetadataError(f"unknown codec {uri!r} with the configuration {configuration!r}")
    return match[1], configuration


def codec_uri(area: str, name: str) -> str:
    """Return the URI of a codec. ``area`` is ``"codec"`` or ``"codecs"``, depending on the dialect."""
    return f"https://purl.org/zarr/spec/{area}/{name}/1.0"
