"""How the draft of Zarr format 3 says data types, fill values and codecs, in both its dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrasync.codecs import ArrayBytesCodec, BytesCodec
from zarrasync.errors import MetadataError
from zarrasync.formats.numpy_dialect import can_say, numpy_dtype, parse_dtype, render_dtype
from zarrasync.model import dtypes, fill_values
from zarrasync.model.dtypes import CORE, DataType

__all__ = ["TypeFound", "codec_uri", "codec_word", "parse_fill_word", "parse_type", "render_fill_word", "render_type"]

_CODEC = re.compile(r".*/spec/codecs?/([A-Za-z0-9_.-]+?)(?:/1\.\d+)?/?")
_RAW = re.compile(r"r[1-9][0-9]*")
_BITS = re.compile(r"0x([0-9a-fA-F]+)|0b([01]+)")
_DATETIME = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
# What zarr-python 2.13 to 2.18 wrote for the types that the draft of its time left out.
_OLD_DATETIME = "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html"
_OLD_TYPES = {
    "c": "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/complex-dtypes/v1.0.html",
    "m": _OLD_DATETIME,
    "M": _OLD_DATETIME,
    "O": "TODO: object array protocol URL",
    "S": "TODO: bytestring array protocol URL",
    "U": "TODO: unicode array protocol URL",
    "V": "TODO: structured array protocol URL",
}
_KNOWN = re.compile(
    r"TODO: (object|bytestring|unicode|structured) array protocol URL"
    r"|https?://(purl\.org/zarr/spec|zarr-specs\.readthedocs\.io)/.*(complex-dtypes|datetime).*"
)


class TypeFound(NamedTuple):
    """A ``data_type`` member, understood.

    Attributes:
        data_type: The data type.
        maker: The codec that makes bytes of its elements.
        filters: Filters that remain when the one that makes bytes of objects is taken away.
        extended: Whether an extension defines the type.
        notes: What the user should hear of: a fallback that was used.
    """

    data_type: DataType
    maker: ArrayBytesCodec
    filters: Sequence[Any] = ()
    extended: bool = False
    notes: tuple[str, ...] = ()


def parse_type(value: Any, filters: Sequence[Any] = ()) -> TypeFound:
    """Understand a ``data_type`` member: a name, a NumPy code or an extension's object.

    Raises:
        MetadataError: If it is unknown and has no fallback that is known.
    """
    if isinstance(value, str):
        if value in CORE or _RAW.fullmatch(value):
            return TypeFound(dtypes.from_json(value), BytesCodec("little"), filters)
        stored = numpy_dtype(value, ordered=False)
        if stored.kind not in "biufc" or value.strip("<>|")[1:] != str(stored.itemsize):
            raise MetadataError(f"unknown data type {value!r}")
        return TypeFound(dtypes.from_stored(stored), BytesCodec(None, stored), filters)
    if not isinstance(value, Mapping) or not isinstance(value.get("extension"), str) or "type" not in value:
        raise MetadataError(f"expected a name, or an object with 'extension' and 'type', found {value!r}")
    if _KNOWN.fullmatch(value["extension"]):
        data_type, maker, rest = parse_dtype(value["type"], list(filters))
        return TypeFound(data_type, maker, rest, True)
    fallback = value.get("fallback")
    for choice in fallback if isinstance(fallback, list) else [] if fallback is None else [fallback]:
        try:
            found = parse_type(choice, filters)
        except MetadataError:
            continue
        note = f"the data type {value['type']!r} of {value['extension']} is not known; its fallback {choice!r} is used"
        return found._replace(extended=True, notes=(note, *found.notes))
    raise MetadataError(
        f"the data type {value['type']!r} of {value['extension']} is not known and has no fallback that is"
    )


def render_type(data_type: DataType, maker: ArrayBytesCodec, *, codes: bool) -> tuple[Any, bool]:
    """A data type as a ``data_type`` member, and whether that says its byte order.

    Args:
        data_type: The data type.
        maker: The codec that makes bytes of its elements.
        codes: Whether to use NumPy's codes (as the older dialect does) or names.

    Raises:
        MetadataError: If there are no words for it.
    """
    stored = maker.stored_form(data_type.numpy) if isinstance(maker, BytesCodec) else np.dtype(object)
    kind, raw = stored.kind, dtypes.is_raw(stored)
    if not can_say(data_type, stored):
        raise MetadataError(f"the draft of Zarr format 3 has no data type {data_type.name!r}")
    if not codes:
        if data_type.name in CORE or raw:
            return data_type.name, False
        if kind not in "mM":
            raise MetadataError(f"the draft of Zarr format 3 has no data type {data_type.name!r}")
        return {"extension": _DATETIME, "type": stored.str, "fallback": f"{stored.str[0]}i8"}, True
    if kind in "biuf":
        return "bool" if kind == "b" else stored.str.removeprefix("|"), True
    if raw:
        return data_type.name, True
    return {"extension": _OLD_TYPES[kind], "type": render_dtype(stored), "fallback": None}, True


# ------------------------------------------------------------------ fill values


def parse_fill_word(data_type: DataType, value: Any, *, strict: bool) -> Any:
    """A fill value as the draft writes those of numbers and raw bits.

    Args:
        data_type: The data type.
        value: What stands in the document.
        strict: Whether only ``true`` and ``false`` are truth values, and integers have neither fraction nor exponent.

    Raises:
        MetadataError, ValueError: If it does not fit the data type.
    """
    dtype = data_type.numpy
    if strict and (
        (dtype.kind == "b" and not isinstance(value, bool)) or (dtype.kind in "iu" and isinstance(value, float))
    ):
        raise ValueError(
            "expected true or false" if dtype.kind == "b" else "expected a number without fraction and exponent"
        )
    if dtype.kind == "c" and isinstance(value, list) and len(value) == 2:
        part = dtypes.from_numpy(f"f{dtype.itemsize // 2}")
        pair = [parse_fill_word(part, item, strict=strict) for item in value]
        return np.array(pair, part.numpy).view(dtype)[0]
    if isinstance(value, str) and dtype.kind in "biufcV" and (bits := _BITS.fullmatch(value)):
        requested = 2 * dtype.itemsize if bits[1] else 8 * dtype.itemsize
        digits = bits[1] or bits[2]
        if len(digits) != requested:
            raise ValueError(f"{len(digits)} digits where the type has {requested}")
        data = int(digits, 16 if bits[1] else 2).to_bytes(dtype.itemsize, "big")
        return np.frombuffer(data, dtype.newbyteorder(">")).astype(dtype)[0]
    if value == "+Infinity" and dtype.kind == "f":
        value = "Infinity"
    return fill_values.fill_from_json(data_type, value)


def render_fill_word(data_type: DataType, value: Any) -> Any:
    """A fill value in the draft's words."""
    if value is None:
        return None
    dtype = data_type.numpy
    if dtype.kind == "V" and dtype.fields is None:
        return "0x" + np.array(value, dtype).tobytes().hex()
    return _signed(fill_values.fill_to_json(data_type, value))


def _signed(value: Any) -> Any:
    if isinstance(value, list):
        return [_signed(item) for item in value]
    return "+Infinity" if value == "Infinity" else value


# ------------------------------------------------------------------ codecs


def codec_word(value: Any) -> tuple[str, Mapping[str, Any]]:
    """The name of a codec and its configuration, from an object that names it by URI.

    Raises:
        MetadataError: If it is no such object, or no codec of the specification's.
    """
    uri = value.get("type", value.get("codec")) if isinstance(value, Mapping) else None
    if not isinstance(uri, str):
        raise MetadataError(f"expected an object with a codec's URI, found {value!r}")
    found = _CODEC.fullmatch(uri)
    configuration = value.get("configuration") or {}
    if found is None or not isinstance(configuration, Mapping):
        raise MetadataError(f"unknown codec {uri!r} with the configuration {configuration!r}")
    return found[1], configuration


def codec_uri(area: str, name: str) -> str:
    """The URI of a codec; the dialects differ in whether they say ``codec`` or ``codecs``."""
    return f"https://purl.org/zarr/spec/{area}/{name}/1.0"
