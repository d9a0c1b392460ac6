"""Fill values: the values of absent elements, in documents and in memory, and whether a chunk holds nothing else."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from operator import eq
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType, from_json, from_numpy, is_raw

_SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def fill_from_json(data_type: DataType, value: Any) -> Any:
    """Parse a v3 ``fill_value`` into a NumPy scalar (``str`` or ``bytes`` for variable-length types).

    Raises:
        MetadataError: If the value does not fit the data type.
    """
    try:
        return _parse(data_type, value)
    except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
        detail = f": {error}" if str(error) else ""
        raise MetadataError(f"fill value {value!r} does not fit data type {data_type.name}{detail}") from error


def _parse(data_type: DataType, value: Any) -> Any:
    dtype = data_type.numpy
    kind = dtype.kind
    if data_type.is_complex:
        return _parse_complex(data_type, value)
    if kind == "b":
        _need(isinstance(value, bool) or (type(value) is int and value in (0, 1)), "expected true or false")
        return np.bool_(value)
    if kind in "iu":
        is_whole_float = isinstance(value, float) and value.is_integer()
        _need((isinstance(value, int) and not isinstance(value, bool)) or is_whole_float, "expected an integer")
        low, high = data_type.limits or (np.iinfo(dtype).min, np.iinfo(dtype).max)
        _need(low <= value <= high, f"expected {low} to {high}")
        return np.array(int(value), dtype)[()]
    if is_float(dtype):
        return _parse_float(dtype, value)
    if kind in "mM":
        if value == "NaT":
            return np.array("NaT", dtype)[()]
        _need(isinstance(value, int) and not isinstance(value, bool), 'expected an integer or "NaT"')
        return np.array(value, np.int64).view(dtype)[()]
    if kind in "UT":
        _need(isinstance(value, str), "expected a string")
        _need(kind == "T" or 4 * len(value) <= dtype.itemsize, "the string is too long")
        return value if kind == "T" else np.array(value, dtype)[()]
    if dtype.fields is not None:
        return _parse_struct(data_type, value)
    data = _parse_bytes(value)
    if kind == "O":
        return data
    _need(len(data) == dtype.itemsize if kind == "V" else len(data) <= dtype.itemsize, "wrong length")
    return np.frombuffer(data.ljust(dtype.itemsize, b"\0"), dtype)[0] if dtype.itemsize else np.zeros((), dtype)[()]


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are floating-point numbers of NumPy or ml_dtypes."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.fields is None and not is_raw(dtype))


def _parse_float(dtype: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, str) and value not in _SPECIAL_FLOATS:
        _need(re.fullmatch(r"0x[0-9a-fA-F]+", value) is not None, "expected NaN, Infinity, -Infinity or 0x…")
        _need(len(value) == 2 + 2 * dtype.itemsize, f"expected {2 * dtype.itemsize} hexadecimal digits")
        return np.frombuffer(bytes.fromhex(value[2:]), dtype.newbyteorder(">")).astype(dtype)[0]
    number = _SPECIAL_FLOATS.get(value, value) if isinstance(value, str) else value
    _need(isinstance(number, int | float) and not isinstance(number, bool), "expected a number")
    with np.errstate(over="ignore"):
        converted = dtype.type(number)
    if dtype.itemsize == 1 or isinstance(value, str):  # in wider types, numbers that are too large become infinite
        _need(_is_representable(float(number), float(converted)), f"the data type cannot represent {value}")
    return converted


def _is_representable(number: float, converted: float) -> bool:
    """Return whether a conversion only rounds a number: NaN stays NaN, and finite numbers stay finite."""
    if math.isnan(number) or math.isinf(number):
        return math.isnan(converted) if math.isnan(number) else converted == number
    return math.isfinite(converted)


def _parse_complex(data_type: DataType, value: Any) -> Any:
    _need(isinstance(value, list | tuple) and len(value) == 2, "expected a pair [real, imaginary]")
    dtype = data_type.numpy
    part = _part_dtype(dtype)
    pair = np.array([_parse_float(part, value[0]), _parse_float(part, value[1])], part)
    return np.frombuffer(pair.tobytes(), dtype)[0]


def _part_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the real and the imaginary part of complex numbers."""
    return dtype.fields["real"][0] if dtype.fields is not None else np.dtype(f"f{dtype.itemsize // 2}")


def _parse_struct(data_type: DataType, value: Any) -> Any:
    dtype = data_type.numpy
    if isinstance(value, str):  # the legacy "structured" type: the packed bytes in base64
        data = base64.b64decode(value, validate=True)
        _need(len(data) == dtype.itemsize, f"expected {dtype.itemsize} bytes")
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)[0]
    _need(
        isinstance(value, Mapping) and set(value) == set(dtype.names or ()),
        "expected an object with one value per field",
    )
    struct = np.zeros((), dtype)
    for field in data_type.configuration["fields"]:
        _need(field is not None, "fields with a shape are not supported")
        struct[field["name"]] = _parse(from_json(field["data_type"]), value[field["name"]])
    return struct[()]


def _parse_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    _need(isinstance(value, list), "expected a base64 string or a list of byte values")
    return bytes(value)


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def fill_to_json(data_type: DataType, value: Any) -> Any:
    """Return the v3 ``fill_value`` of a NumPy scalar. The conversion is exact: parsing the result returns the same bits."""
    dtype = data_type.numpy
    kind = dtype.kind
    if data_type.is_complex:
        part = _part_dtype(dtype)
        return [_render_float(part, item) for item in np.frombuffer(np.array(value, dtype).tobytes(), part)]
    if kind == "b":
        return bool(value)
    if kind in "iu":
        return int(value)
    if is_float(dtype):
        return _render_float(dtype, value)
    if kind in "mM":
        return "NaT" if np.isnat(value) else int(np.array(value, dtype).view(np.int64))
    if kind in "UT":
        return str(value)
    if kind == "S":
        return base64.b64encode(bytes(value)).decode()  # without padding
    if kind == "O":
        return base64.b64encode(bytes(value)).decode()
    if dtype.fields is not None:
        fields = zip(dtype.names or (), data_type.configuration["fields"], strict=True)
        return {
            name: fill_to_json(from_json(field["data_type"]) if field else from_numpy(dtype[name]), value[name])
            for name, field in fields
        }
    return list(np.array(value, dtype).tobytes())


def _render_float(dtype: np.dtype[Any], value: Any) -> float | str:
    number = float(value)
    if math.isnan(number):
        bits = np.array(value, dtype).astype(dtype.newbyteorder(">")).tobytes()
        default_bits = np.array(np.nan).astype(dtype).astype(dtype.newbyteorder(">")).tobytes()
        return "NaN" if bits == default_bits else "0x" + bits.hex()
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if dtype.name == "float8_e8m0fnu":  # powers of two without a common decimal form
        return "0x" + np.array(value, dtype).tobytes().hex()
    return number


def as_fill(data_type: DataType, value: Any) -> Any:
    """Return a user's fill value as a scalar of a data type.

    Raises:
        MetadataError: If the data type cannot represent the value.
    """
    if value is None:
        return None
    dtype = data_type.numpy
    try:
        if dtype.kind == "T":
            _need(isinstance(value, str), "expected a string")
            return str(value)
        if dtype.kind == "O":
            if data_type.name == "object":
                return value
            _need(isinstance(value, bytes | bytearray | memoryview), "expected bytes")
            return bytes(value)
        _need(dtype.fields is not None or np.ndim(value) == 0, "expected one value")
        if dtype.kind == "b":
            _need(isinstance(value, bool | np.bool_) or value in (0, 1), "expected true or false")
        if dtype.kind in "iu":
            _need(isinstance(value, int | np.integer | np.bool_) or float(value).is_integer(), "expected an integer")
            value = int(value)
            low, high = data_type.limits or (value, value)
            _need(low <= value <= high, f"expected {low} to {high}")
        if data_type.is_complex and dtype.fields is not None and not isinstance(value, np.void):
            number = complex(*map(float, value)) if isinstance(value, tuple) else complex(value)
            value = (number.real, number.imag)
        if isinstance(value, bytes | bytearray) and dtype.kind == "V":
            _need(len(value) == dtype.itemsize, f"expected {dtype.itemsize} bytes")
            return np.frombuffer(bytes(value), dtype)[0]
        if dtype.kind in "US":
            _need(isinstance(value, str | bytes), "expected a string")
            value = value.encode("ascii") if dtype.kind == "S" and isinstance(value, str) else value
            _need(np.array(value, dtype)[()] == np.array(value)[()], "the string is too long or of the wrong kind")
        with np.errstate(over="ignore"):
            converted = np.array(value, dtype)[()]
        if is_float(dtype):
            _need(_is_representable(float(value), float(converted)), f"the data type cannot represent {value}")
        return converted
    except (ValueError, TypeError, OverflowError) as error:
        raise MetadataError(f"fill value {value!r} does not fit data type {data_type.name}: {error}") from error


def format_fill_value(value: Any) -> str:
    """Format a fill value for display."""
    if isinstance(value, np.datetime64 | np.timedelta64) and np.datetime_data(value.dtype)[0] == "generic":
        return "NaT" if np.isnat(value) else str(value.astype(np.int64))
    return str(value) if isinstance(value, np.generic) else repr(value)


# ------------------------------------------------------------------ comparisons

# A chunk holds only the fill value if it equals it bit for bit: -0.0 differs from 0.0, and NaN equals the same NaN.

_STEP_ELEMENTS = 1 << 16
"""Elements compared in one step."""
_WORD_SIZES = (1, 2, 4, 8)
"""Element sizes in bytes that are compared as one unsigned integer."""


def fill_word(fill: npt.NDArray[Any]) -> Any:
    """Return a fill value as an unsigned integer of its width, or ``None`` if no integer type has this width."""
    if fill.dtype.kind in "biufcmM" and fill.dtype.itemsize in _WORD_SIZES:
        return fill.reshape(1).view(f"u{fill.dtype.itemsize}")[0]
    return None


def is_fill(array: npt.NDArray[Any], fill_value: Any, word: Any = None) -> bool:
    """Return whether every element is the fill value.

    Args:
        array: The elements.
        fill_value: The fill value.
        word: ``fill_word`` of the fill value, which makes the comparison faster.
    """
    if not array.size:
        return True
    if word is not None and array.dtype.isnative:
        words = array.view(word.dtype)
        if words[(0,) * words.ndim] != word or words[(-1,) * words.ndim] != word:
            return False
        return _all_equal(words, word) if words.ndim else True
    if array.dtype.kind in "TO":
        # Objects define their own equality, so compare types as well.
        kind = type(fill_value)
        equal = np.array_equal if kind is np.ndarray else eq
        return all(type(value) is kind and equal(value, fill_value) for value in array.reshape(-1).tolist())
    contiguous = np.ascontiguousarray(array)
    fill = np.asarray(fill_value, array.dtype)
    if not fill.dtype.itemsize:
        return True
    rows = contiguous.reshape(-1).view(np.uint8).reshape(-1, fill.dtype.itemsize)
    return bool((rows == np.frombuffer(fill.tobytes(), np.uint8)).all())


def rows_with_only(rows: npt.NDArray[np.uint8], element: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return for each row of bytes whether it is just repetitions of the bytes of an element."""
    width = len(element) if len(element) in _WORD_SIZES else 1
    word = element.view(f"u{width}")
    words = rows.view(word.dtype).reshape(len(rows), -1, len(word))
    # The first or last element rules out nearly all rows.
    matches: npt.NDArray[np.bool_] = (words[:, [0, -1]] == word).all(axis=(1, 2))
    for number in np.flatnonzero(matches):
        matches[number] = _all_equal(words[number], word) if len(word) > 1 else _all_equal(words[number, :, 0], word[0])
    return matches


def _all_equal(words: npt.NDArray[Any], word: Any) -> bool:
    """Return whether all words equal one.

    The comparison goes step by step: most chunks with data differ early, and each step stays in the CPU cache.
    """
    words, word = _widen(words, word)
    step = max(1, _STEP_ELEMENTS * len(words) // words.size)
    return all(bool((words[start : start + step] == word).all()) for start in range(0, len(words), step))


def _widen(words: npt.NDArray[Any], word: Any) -> tuple[npt.NDArray[Any], Any]:
    """View words as the longest integers that divide their rows, so that fewer have to be compared."""
    size = words.itemsize
    if not word.ndim and words.strides[-1] == size:
        for width in _WORD_SIZES[:0:-1]:
            if width > size and words.shape[-1] * size % width == 0:
                return words.view(f"u{width}"), np.full(width // size, word, words.dtype).view(f"u{width}")[0]
    return words, word
