"""Data types in documents of format 2 and of the draft of format 3: NumPy's type strings and lists of fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrasync.codecs import (
    OBJECT_CODECS,
    ArrayBytesCodec,
    BytesCodec,
    ObjectCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
)
from zarrasync.errors import MetadataError
from zarrasync.model import dtypes
from zarrasync.model.dtypes import BYTES, STRING, DataType

__all__ = ["VARIABLE_TYPES", "is_numpy_dtype", "numpy_dtype", "parse_dtype", "render_dtype"]

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
