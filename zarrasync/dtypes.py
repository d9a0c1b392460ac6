"""Data types: one table from Zarr's names to NumPy's, and the JSON form of their values.

The core types and ``r*`` are those of the Zarr v3 core specification ("Data types"); the others are
extension types as registered in zarr-extensions, or as zarr-python names them where no
registration exists. In memory every array has native byte order: the stored order belongs to the
codec that makes bytes of an array.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import MetadataError

__all__ = ["DataType", "fill_from_json", "fill_to_json", "from_json", "from_numpy", "packed", "to_json"]

CORE = {
    "bool": "?",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "complex64": "c8",
    "complex128": "c16",
}  # fmt: skip

_LARGEST = 1 << 26
_RAW = re.compile(r"r([1-9][0-9]*)")
_TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")


@dataclass(frozen=True, slots=True)
class DataType:
    """A Zarr data type and the NumPy dtype its values have in memory.

    Attributes:
        name: The Zarr v3 name (``"float32"``, ``"r24"``, ``"numpy.datetime64"``).
        numpy: The NumPy dtype in memory, in native byte order.
        configuration: The parameters of an extension type.
    """

    name: str
    numpy: np.dtype[Any]
    configuration: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def itemsize(self) -> int | None:
        """Bytes of one stored element, or ``None`` where they vary."""
        return None if self.is_variable else self.numpy.itemsize

    @property
    def is_variable(self) -> bool:
        """Whether elements have no fixed size (strings, bytes, objects)."""
        return self.numpy.kind in "TO"

    def default_fill(self) -> Any:
        """The fill value of a new array that names none: zero, false, empty or not-a-time."""
        if self.numpy.kind == "T":
            return ""
        if self.numpy.kind == "O":
            return b"" if self.name == "bytes" else None
        if self.numpy.kind in "mM":
            return np.array("NaT", self.numpy)[()]
        return np.zeros((), self.numpy)[()]


# ------------------------------------------------------------------ names <-> NumPy dtypes


def from_numpy(dtype: npt.DTypeLike | DataType) -> DataType:
    """The Zarr data type of anything NumPy understands as a dtype.

    Args:
        dtype: A NumPy dtype or what makes one, a Zarr v3 name (``"r24"``, ``"string"``), or a
            ``DataType`` (returned as it is). ``str`` is a string of any length.

    Raises:
        MetadataError: If Zarr has no such type.
    """
    if isinstance(dtype, DataType):
        return dtype
    if dtype is str or dtype is np.str_ or (isinstance(dtype, str) and dtype in ("string", "str", "U")):
        return STRING
    if dtype is bytes or dtype is np.bytes_ or (isinstance(dtype, str) and dtype in ("bytes", "S")):
        return BYTES
    if isinstance(dtype, str) and (raw := _RAW.fullmatch(dtype)):
        return _raw(int(raw[1]))
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise MetadataError(f"data type {dtype!r} is not known to NumPy or Zarr") from error
    return _from_native(packed(found.newbyteorder("=")))


def packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A structured dtype without the padding that C alignment puts in: stored elements have none."""
    if dtype.fields is None:
        return dtype
    return np.dtype([(name, packed(dtype.fields[name][0])) for name in dtype.names or ()])


@lru_cache(maxsize=512)
def _from_native(dtype: np.dtype[Any]) -> DataType:
    if dtype.itemsize > _LARGEST:
        raise MetadataError(
            f"an element of data type {dtype} has {dtype.itemsize:,} bytes, at most {_LARGEST:,} make sense"
        )
    if dtype.fields is not None:
        return DataType("struct", dtype, _struct_configuration(dtype))
    if dtype.subdtype is not None:
        raise MetadataError(f"a data type with a shape of its own ({dtype}) needs a field to stand in")
    kind = dtype.kind
    if kind in "biufc" and dtype.name in CORE:
        return DataType(dtype.name, dtype)
    if kind in "mM":
        unit, scale = np.datetime_data(dtype)
        name = "numpy.datetime64" if kind == "M" else "numpy.timedelta64"
        return DataType(name, dtype, {"unit": unit, "scale_factor": scale})
    if kind == "U":
        return DataType("fixed_length_utf32", dtype, {"length_bytes": dtype.itemsize})
    if kind == "S":
        return DataType("null_terminated_bytes", dtype, {"length_bytes": dtype.itemsize})
    if kind == "V" and dtype.itemsize:
        return DataType(f"r{8 * dtype.itemsize}", dtype)
    if kind == "T":
        return STRING
    if kind == "O":
        return OBJECT
    raise MetadataError(f"Zarr has no data type for the NumPy dtype {dtype!r}")


def _struct_configuration(dtype: np.dtype[Any]) -> dict[str, Any]:
    assert dtype.fields is not None
    parts = []
    for name in dtype.names or ():
        part = dtype.fields[name][0]
        if _from_native(part.base).is_variable:  # complains about what no format can store
            raise MetadataError(f"field {name!r}: structured elements have fields of a fixed size, not {part.base}")
        # A sub-array field has no name in v3; it is kept so that v2 can say it.
        parts.append(None if part.subdtype else {"name": name, "data_type": to_json(_from_native(part))})
    return {"fields": parts}


def _raw(bits: int) -> DataType:
    if bits % 8 or bits > 8 * _LARGEST:
        raise MetadataError(f"data type r{bits}: the number of bits must be a multiple of 8 and at most {8 * _LARGEST}")
    return DataType(f"r{bits}", np.dtype(f"V{bits // 8}"))


OBJECT = DataType("object", np.dtype(object))
"""Any Python objects. Format 2 has codecs that store them; format 3 has no name for them."""
STRING = DataType("string", np.dtypes.StringDType())
BYTES = DataType("bytes", np.dtype(object))
_VARIABLE = {"string": STRING, "bytes": BYTES, "variable_length_bytes": BYTES}

# ------------------------------------------------------------------ names <-> documents


def to_json(data_type: DataType) -> str | dict[str, Any]:
    """The ``data_type`` member of a v3 document.

    Raises:
        MetadataError: If v3 has no way to say it (a structured type with sub-arrays).
    """
    if data_type.name == "object":
        raise MetadataError("v3 has no data type for objects; use str for text or bytes for byte strings")
    if not data_type.configuration:
        return data_type.name
    if data_type.name == "struct" and None in data_type.configuration["fields"]:
        raise MetadataError(f"v3 has no data type for fields with a shape: {data_type.numpy}")
    return {"name": data_type.name, "configuration": dict(data_type.configuration)}


def from_json(value: Any) -> DataType:
    """Parse the ``data_type`` member of a v3 document.

    Raises:
        MetadataError: If the type is unknown or its configuration wrong; says which.
    """
    if isinstance(value, str):
        if value in CORE:
            return DataType(value, np.dtype(CORE[value]))
        if value in _VARIABLE:
            return _VARIABLE[value]
        if raw := _RAW.fullmatch(value):
            return _raw(int(raw[1]))
        raise MetadataError(f"unknown data type {value!r}")
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise MetadataError(f"a data type is a name or an object with a name, found {value!r}")
    name, configuration = value["name"], value.get("configuration") or {}
    if name not in _EXTENSIONS:
        return from_json(name)
    try:
        return _EXTENSIONS[name](configuration)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(f"data type {name!r}: bad configuration {configuration!r}") from error


def _time(kind: str) -> Callable[[Mapping[str, Any]], DataType]:
    def parse(configuration: Mapping[str, Any]) -> DataType:
        unit, scale = configuration["unit"], configuration["scale_factor"]
        if unit not in _TIME_UNITS or not isinstance(scale, int) or not 0 < scale < 1 << 31:
            raise ValueError
        code = kind if unit == "generic" else f"{kind}[{scale}{unit}]"
        return _from_native(np.dtype(code))

    return parse


def _sized(kind: str, width: int = 1) -> Callable[[Mapping[str, Any]], DataType]:
    def parse(configuration: Mapping[str, Any]) -> DataType:
        count, rest = divmod(configuration["length_bytes"], width)
        if rest or not 0 <= count < 1 << 29:
            raise ValueError
        return _from_native(np.dtype(f"{kind}{count}"))

    return parse


def _struct(configuration: Mapping[str, Any]) -> DataType:
    fields: list[tuple[str, np.dtype[Any]]] = []
    for part in configuration["fields"]:
        name, inner = (part["name"], part["data_type"]) if isinstance(part, Mapping) else part
        fields.append((name, from_json(inner).numpy))
    if not fields:
        raise ValueError
    return _from_native(np.dtype(fields))


_EXTENSIONS: dict[str, Callable[[Mapping[str, Any]], DataType]] = {
    "numpy.datetime64": _time("M8"),
    "numpy.timedelta64": _time("m8"),
    "fixed_length_utf32": _sized("U", 4),
    "null_terminated_bytes": _sized("S"),
    "raw_bytes": _sized("V"),
    "struct": _struct,
    "structured": _struct,
}

# ------------------------------------------------------------------ fill values

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def fill_from_json(data_type: DataType, value: Any) -> Any:
    """Parse a v3 ``fill_value`` into a NumPy scalar (``str`` or ``bytes`` for variable types).

    Raises:
        MetadataError: If the value does not fit the type; says both.
    """
    try:
        return _parse_fill(data_type.numpy, data_type, value)
    except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
        detail = f": {error}" if str(error) else ""
        raise MetadataError(f"fill value {value!r} does not fit data type {data_type.name}{detail}") from error


def _parse_fill(dtype: np.dtype[Any], data_type: DataType | None, value: Any) -> Any:
    kind = dtype.kind
    if kind == "b":
        _need(isinstance(value, bool) or (type(value) is int and value in (0, 1)), "expected true or false")
        return np.bool_(value)
    if kind in "iu":
        whole = isinstance(value, float) and value.is_integer()
        _need((isinstance(value, int) and not isinstance(value, bool)) or whole, "expected an integer")
        return np.array(int(value), dtype)[()]
    if kind == "f":
        return _parse_float(dtype, value)
    if kind == "c":
        _need(isinstance(value, list | tuple) and len(value) == 2, "expected a pair [real, imaginary]")
        part = np.dtype(f"f{dtype.itemsize // 2}")
        pair = np.array([_parse_float(part, value[0]), _parse_float(part, value[1])], part)
        return pair.view(dtype)[0]
    if kind in "mM":
        if value == "NaT":
            return np.array("NaT", dtype)[()]
        _need(isinstance(value, int) and not isinstance(value, bool), 'expected an integer or "NaT"')
        return np.array(value, np.int64).view(dtype)[()]
    if kind in "UT":
        _need(isinstance(value, str), "expected a string")
        _need(kind == "T" or 4 * len(value) <= dtype.itemsize, "the string is too long")
        return value if kind == "T" else np.array(value, dtype)[()]
    if kind == "V" and dtype.fields is not None:
        return _parse_struct_fill(dtype, value)
    data = _parse_bytes(value)
    if kind == "O":
        return data
    _need(len(data) == dtype.itemsize if kind == "V" else len(data) <= dtype.itemsize, "wrong length")
    return np.frombuffer(data.ljust(dtype.itemsize, b"\0"), dtype)[0] if dtype.itemsize else np.zeros((), dtype)[()]


def _parse_float(dtype: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, str):
        if value in _SPECIAL:
            return dtype.type(_SPECIAL[value])
        _need(re.fullmatch(r"0x[0-9a-fA-F]+", value) is not None, "expected NaN, Infinity, -Infinity or 0x…")
        _need(len(value) == 2 + 2 * dtype.itemsize, f"expected {2 * dtype.itemsize} hexadecimal digits")
        return np.frombuffer(bytes.fromhex(value[2:]), dtype.newbyteorder(">")).astype(dtype)[0]
    _need(isinstance(value, int | float) and not isinstance(value, bool), "expected a number")
    with np.errstate(over="ignore"):
        return dtype.type(value)


def _parse_struct_fill(dtype: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, str):  # the legacy "structured" type: the packed bytes in base64
        data = base64.b64decode(value, validate=True)
        _need(len(data) == dtype.itemsize, f"expected {dtype.itemsize} bytes")
        return np.frombuffer(data, dtype)[0]
    assert dtype.fields is not None
    _need(
        isinstance(value, Mapping) and set(value) == set(dtype.names or ()),
        "expected an object with one value per field",
    )
    filled = np.zeros((), dtype)
    for name in dtype.names or ():
        filled[name] = _parse_fill(dtype.fields[name][0], None, value[name])
    return filled[()]


def _parse_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    _need(isinstance(value, list), "expected base64 text or a list of byte values")
    return bytes(value)


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def fill_to_json(data_type: DataType, value: Any) -> Any:
    """The v3 ``fill_value`` of a NumPy scalar; exact, so that it parses back to the same bits."""
    return _render_fill(data_type.numpy, value)


def _render_fill(dtype: np.dtype[Any], value: Any) -> Any:
    kind = dtype.kind
    if kind == "b":
        return bool(value)
    if kind in "iu":
        return int(value)
    if kind == "f":
        return _render_float(dtype, value)
    if kind == "c":
        pair = np.array([value], dtype).view(f"f{dtype.itemsize // 2}")
        return [_render_float(pair.dtype, part) for part in pair]
    if kind in "mM":
        return "NaT" if np.isnat(value) else int(np.array(value, dtype).view(np.int64))
    if kind in "UT":
        return str(value)
    if kind == "S":
        return base64.b64encode(np.array(value, dtype).tobytes()).decode()
    if kind == "O":
        return base64.b64encode(bytes(value)).decode()
    if dtype.fields is not None:
        return {name: _render_fill(dtype.fields[name][0], value[name]) for name in dtype.names or ()}
    return list(np.array(value, dtype).tobytes())


def _render_float(dtype: np.dtype[Any], value: Any) -> float | str:
    number = float(value)
    if math.isnan(number):
        bits = np.array(value, dtype).astype(dtype.newbyteorder(">")).tobytes()
        usual = struct.pack({2: ">e", 4: ">f", 8: ">d"}[dtype.itemsize], float("nan"))
        return "NaN" if bits == usual else "0x" + bits.hex()
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def as_fill(data_type: DataType, value: Any) -> Any:
    """A user's fill value as the scalar the model keeps.

    Raises:
        MetadataError: If it can not be cast to the data type without loss of meaning.
    """
    if value is None:
        return None
    dtype = data_type.numpy
    try:
        if dtype.kind == "T":
            _need(isinstance(value, str), "expected text")
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
        if isinstance(value, bytes | bytearray) and dtype.kind == "V":
            _need(len(value) == dtype.itemsize, f"expected {dtype.itemsize} bytes")
            return np.frombuffer(bytes(value), dtype)[0]
        if dtype.kind in "US" and isinstance(value, str | bytes):
            _need(np.array(value, dtype)[()] == np.array(value)[()], "the text is too long or of the wrong kind")
        with np.errstate(over="ignore"):
            return np.array(value, dtype)[()]
    except (ValueError, TypeError, OverflowError) as error:
        raise MetadataError(f"fill value {value!r} does not fit data type {data_type.name}: {error}") from error
