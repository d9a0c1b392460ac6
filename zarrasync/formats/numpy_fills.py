"""Fill values in documents of format 2 and of the older dialect of the draft of format 3."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from zarrasync.codecs import ArrayBytesCodec, BytesCodec
from zarrasync.model import fill_values
from zarrasync.model.dtypes import DataType

__all__ = ["parse_fill", "render_fill", "without_nan_payload"]

_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


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
    if isinstance(value, str):
        if value in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[value]
        if not _NUMBER.fullmatch(value):
            raise ValueError("expected a number, NaN, Infinity or -Infinity")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
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
        stored = serializer.stored_form(dtype) if isinstance(serializer, BytesCodec) else dtype
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
    if value is None or data_type.numpy.kind not in "fc" or value == value:  # noqa: PLR0124  only NaN differs from itself
        return value
    dtype = data_type.numpy
    if dtype.kind == "f":
        return dtype.type(np.nan)
    parts = (np.nan if np.isnan(part) else part for part in (value.real, value.imag))
    return np.array(complex(*parts), dtype)[()]
