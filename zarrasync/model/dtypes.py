"""Data types: the mapping between Zarr's names and NumPy's dtypes.

The core types and ``r*`` are specified in the Zarr v3 core specification ("Data types"). The others are extension types
with the names that zarr-extensions registers, or that zarr-python uses if they are not registered. Arrays in memory have
native byte order; the array -> bytes codec determines the stored byte order. NumPy has no integers smaller than a byte,
so integers of 2 and 4 bits are bytes in memory. Small floating-point types come from the package ml_dtypes. Complex
numbers with such parts are structures of a real and an imaginary part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._util import plugins
from zarrasync._util.advice import suggest
from zarrasync._util.json import to_plain
from zarrasync.errors import MetadataError

CORE = tuple(np.dtype(code).name for code in "?bhiqBHIQefdFD")
"""bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128, which NumPy has under the same names."""

SMALL_FLOATS = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
)
_SMALL_INTEGERS = {"int2": ("i1", 2), "int4": ("i1", 4), "uint2": ("u1", 2), "uint4": ("u1", 4)}
_SIGNIFICANT_BITS = {"bool": 1, **{name: bits for name, (_, bits) in _SMALL_INTEGERS.items()}, "float4_e2m1fn": 4}
_SIGNIFICANT_BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}
_MAX_ITEMSIZE = 1 << 26
_RAW = re.compile(r"r([1-9][0-9]*)")
_MICROSECONDS = ("\u03bcs", "\u00b5s")
_TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")


@dataclass(frozen=True, slots=True)
class DataType:
    """A Zarr data type and the NumPy dtype of its values in memory.

    See section "Data types" of the Zarr v3 core specification.

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
        """The size of a stored element in bytes, or ``None`` if it varies."""
        return None if self.is_variable else self.numpy.itemsize

    @property
    def bits(self) -> int:
        """The number of significant bits of an element, or of each part of a complex number."""
        component = self.name.removeprefix("complex_")
        return _SIGNIFICANT_BITS.get(component, 8 * self.numpy.itemsize // self.components)

    @property
    def components(self) -> int:
        """The number of parts of an element: 2 for complex numbers, otherwise 1."""
        return 2 if self.is_complex else 1

    @property
    def is_complex(self) -> bool:
        """Whether elements have a real and an imaginary part."""
        return self.numpy.kind == "c" or self.name.startswith("complex_")

    @property
    def limits(self) -> tuple[int, int] | None:
        """The minimum and maximum of an integer type smaller than a byte, or ``None`` for other types."""
        if self.name not in _SMALL_INTEGERS:
            return None
        span = 1 << self.bits
        return (-span // 2, span // 2 - 1) if self.numpy.kind == "i" else (0, span - 1)

    @property
    def small_parts(self) -> tuple[tuple[tuple[str, ...], DataType], ...]:
        """The integers smaller than a byte in an element: the path of field names and the data type of each."""
        if self.limits is not None:
            return (((), self),)
        if self.name != "struct":
            return ()
        fields = [(item["name"], from_json(item["data_type"])) for item in self.configuration["fields"] if item]
        return tuple(((name, *path), small) for name, data_type in fields for path, small in data_type.small_parts)

    @property
    def is_variable(self) -> bool:
        """Whether the size of elements varies (strings, bytes, objects)."""
        return self.numpy.kind in "TO"

    def default_fill(self) -> Any:
        """Return the default fill value of new arrays: zero, false, empty or not-a-time."""
        if self.numpy.kind == "T":
            return ""
        if self.numpy.kind == "O":
            return b"" if self.name == "bytes" else None
        if self.numpy.kind in "mM":
            return np.array("NaT", self.numpy)[()]
        return np.zeros((), self.numpy)[()]


# ------------------------------------------------------------------ NumPy dtypes


def from_numpy(dtype: npt.DTypeLike | DataType) -> DataType:
    """Return the Zarr data type of anything that NumPy accepts as a dtype.

    Args:
        dtype: A NumPy dtype or a value that NumPy converts to one, a Zarr v3 name (``"r24"``, ``"string"``), or a
            ``DataType``, which is returned unchanged. ``str`` means variable-length strings.

    Raises:
        MetadataError: If neither NumPy nor Zarr defines the data type.
    """
    if isinstance(dtype, DataType):
        return dtype
    if dtype is str or dtype is np.str_ or (isinstance(dtype, str) and dtype in ("string", "str", "U")):
        return STRING
    if dtype is bytes or dtype is np.bytes_ or (isinstance(dtype, str) and dtype in ("bytes", "S")):
        return BYTES
    if isinstance(dtype, str) and (
        _RAW.fullmatch(dtype) or dtype in NAMED or dtype in _VARIABLE or dtype in _registered
    ):
        return from_json(dtype)
    if hasattr(dtype, "to_native_dtype") and hasattr(dtype, "to_json"):  # zarr-python's data types
        return from_json(to_plain(dtype.to_json(zarr_format=3)))  # type: ignore[union-attr]  # of any class
    try:
        numpy_dtype = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        names = [*_COMMON, *NAMED, *_registered]
        hint = suggest(str(dtype), names, "use a NumPy dtype or a name such as 'float32'")
        raise MetadataError(f"data type {dtype!r} is defined neither by NumPy nor by Zarr; {hint}") from None
    if numpy_dtype.kind == "T":
        return STRING
    has_length = isinstance(dtype, str) and dtype.endswith("0")
    if not numpy_dtype.itemsize and numpy_dtype.kind in "US" and not has_length:  # variable length
        return STRING if numpy_dtype.kind == "U" else BYTES
    return from_stored(numpy_dtype)


def from_stored(dtype: np.dtype[Any]) -> DataType:
    """Return the Zarr data type of stored elements with a dtype. Strings have a fixed length, even if it is 0.

    Raises:
        MetadataError: If Zarr does not support the dtype.
    """
    return _from_native(packed(dtype.newbyteorder("=")))


@lru_cache(maxsize=512)
def _from_native(dtype: np.dtype[Any]) -> DataType:
    if dtype.itemsize > _MAX_ITEMSIZE:
        raise MetadataError(
            f"elements of data type {dtype} have {dtype.itemsize:,} bytes, more than the maximum {_MAX_ITEMSIZE:,}"
        )
    if dtype.fields is not None:
        return DataType("struct", dtype, _struct_configuration(dtype))
    if dtype.subdtype is not None:
        raise MetadataError(f"a data type with a shape ({dtype}) is supported only in fields of structures")
    kind = dtype.kind
    if kind in "biufc" and dtype.name in CORE:
        return DataType(dtype.name, dtype)
    if dtype.type.__module__ == "ml_dtypes":
        return from_json(dtype.name)
    if kind in "mM":
        unit, scale = np.datetime_data(dtype)
        name = "numpy.datetime64" if kind == "M" else "numpy.timedelta64"
        return DataType(name, dtype, {"unit": unit, "scale_factor": scale})
    if kind == "U":
        return DataType("fixed_length_utf32", dtype, {"length_bytes": dtype.itemsize})
    if kind == "S":
        return DataType("null_terminated_bytes", dtype, {"length_bytes": dtype.itemsize})
    if is_raw(dtype) and dtype.itemsize:
        return DataType(f"r{8 * dtype.itemsize}", dtype)
    if kind == "T":
        return STRING
    if kind == "O":
        return OBJECT
    raise MetadataError(f"Zarr does not support the NumPy dtype {dtype!r}")


def _struct_configuration(dtype: np.dtype[Any]) -> dict[str, Any]:
    assert dtype.fields is not None
    fields = []
    for name in dtype.names or ():
        field_dtype = dtype[name]
        if field_dtype.base.kind in "TO":
            raise MetadataError(
                f"field {name!r}: fields of structures must have a fixed size, found {field_dtype.base}"
            )
        inner = _from_native(field_dtype.base)  # raises an error if no format can store it
        # v2 supports sub-arrays in fields, v3 does not.
        is_v3 = not field_dtype.subdtype and None not in inner.configuration.get("fields", ())
        fields.append({"name": name, "data_type": to_json(inner)} if is_v3 else None)
    return {"fields": fields}


def _raw(bits: int) -> DataType:
    if bits % 8 or bits > 8 * _MAX_ITEMSIZE:
        raise MetadataError(
            f"data type r{bits}: the number of bits must be a multiple of 8 and at most {8 * _MAX_ITEMSIZE}"
        )
    return DataType(f"r{bits}", np.dtype(f"V{bits // 8}"))


OBJECT = DataType("object", np.dtype(object))
"""Python objects. Zarr v2 has codecs for them; Zarr v3 does not support them."""
STRING = DataType("string", np.dtypes.StringDType())
BYTES = DataType("bytes", np.dtype(object))
_VARIABLE = {"string": STRING, "bytes": BYTES, "variable_length_bytes": BYTES}

# ------------------------------------------------------------------ documents


def to_json(data_type: DataType) -> str | dict[str, Any]:
    """Return the ``data_type`` member of a v3 document.

    Raises:
        MetadataError: If v3 does not support the data type (objects, or structures with sub-arrays).
    """
    if data_type.name == "object":
        raise MetadataError(
            "Zarr v3 does not support Python objects; use dtype=str for strings or dtype=bytes for bytes"
        )
    if not data_type.configuration:
        return data_type.name
    if data_type.name == "struct" and None in data_type.configuration["fields"]:
        raise MetadataError(f"Zarr v3 does not support fields with a shape: {data_type.numpy}")
    return {"name": data_type.name, "configuration": dict(data_type.configuration)}


def from_json(value: Any) -> DataType:
    """Parse the ``data_type`` member of a v3 document.

    Raises:
        MetadataError: If the data type is unknown or its configuration is invalid.
    """
    if isinstance(value, str):
        if value in CORE:
            return DataType(value, np.dtype(value))
        if value in _VARIABLE:
            return _VARIABLE[value]
        if value in NAMED:
            return NAMED[value](value)
        if raw := _RAW.fullmatch(value):
            return _raw(int(raw[1]))
        if registered(value) is not None:
            return from_json({"name": value})
        raise MetadataError(f"unknown data type {value!r}")
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise MetadataError(f"a data type must be a name or an object with a name, found {value!r}")
    name, configuration = value["name"], value.get("configuration") or {}
    parse = _EXTENSIONS.get(name) or registered(name)
    if parse is None:
        if configuration:
            raise MetadataError(f"data type {name!r} does not accept a configuration, found {configuration!r}")
        return from_json(name)
    try:
        return parse(configuration)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(f"data type {name!r}: invalid configuration {configuration!r}") from error


def _time_parser(kind: str) -> Callable[[Mapping[str, Any]], DataType]:
    def parse(configuration: Mapping[str, Any]) -> DataType:
        unit, scale = configuration["unit"], configuration["scale_factor"]
        unit = "us" if unit in _MICROSECONDS else unit
        if unit not in _TIME_UNITS or not isinstance(scale, int) or not 0 < scale < 1 << 31:
            raise ValueError
        code = kind if unit == "generic" else f"{kind}[{scale}{unit}]"
        return _from_native(np.dtype(code))

    return parse


def _sized_parser(kind: str, width: int = 1) -> Callable[[Mapping[str, Any]], DataType]:
    def parse(configuration: Mapping[str, Any]) -> DataType:
        count, remainder = divmod(configuration["length_bytes"], width)
        if remainder or not 0 <= count < 1 << 29:
            raise ValueError
        return _from_native(np.dtype(f"{kind}{count}"))

    return parse


def _parse_struct(configuration: Mapping[str, Any]) -> DataType:
    fields: list[tuple[str, DataType]] = []
    for item in configuration["fields"]:
        name, inner = (item["name"], item["data_type"]) if isinstance(item, Mapping) else item
        fields.append((name, from_json(inner)))
    if not fields or not all(isinstance(name, str) and name for name, _ in fields):
        raise ValueError
    struct = _from_native(np.dtype([(name, data_type.numpy) for name, data_type in fields]))
    # NumPy dtypes do not identify small integers and complex numbers with small parts.
    declared = [{"name": name, "data_type": to_json(data_type)} for name, data_type in fields]
    return DataType("struct", struct.numpy, {"fields": declared})


def _small_float(name: str) -> DataType:
    try:
        import ml_dtypes
    except ImportError as error:
        raise MetadataError(
            f"data type {name!r} requires the package ml_dtypes: pip install 'zarrasync[codecs]'"
        ) from error
    return DataType(name, np.dtype(getattr(ml_dtypes, name)))


def _small_integer(name: str) -> DataType:
    return DataType(name, np.dtype(_SMALL_INTEGERS[name][0]))


def _complex(name: str) -> DataType:
    part = from_json(name.removeprefix("complex_")).numpy
    if part.name in ("float32", "float64"):
        return DataType(name, np.dtype(f"c{2 * part.itemsize}"))
    return DataType(name, np.dtype([("real", part), ("imag", part)]))


NAMED: dict[str, Callable[[str], DataType]] = {
    **dict.fromkeys(SMALL_FLOATS, _small_float),
    **dict.fromkeys(_SMALL_INTEGERS, _small_integer),
    **{f"complex_{part}": _complex for part in (*SMALL_FLOATS, "float16", "float32", "float64")},
}
_COMMON = ("string", "bytes", *CORE)
"""Names to suggest for an unknown data type."""
_registered: dict[str, Callable[[Mapping[str, Any]], DataType]] = {}


def register(name: str, parse: Callable[[Mapping[str, Any]], DataType]) -> None:
    """Register a data type.

    Args:
        name: The name in documents.
        parse: A function that returns the data type for a configuration. The configuration is empty if the document
            contains only the name. If it is invalid, the function raises ``ValueError``, ``TypeError`` or ``KeyError``.

    Raises:
        ValueError: If a data type of this package has the same name.
    """
    if name in CORE or name in _VARIABLE or name in NAMED or name in _EXTENSIONS or _RAW.fullmatch(name):
        raise ValueError(f"cannot register data type {name!r}: a built-in data type has this name")
    _registered[name] = parse
    plugins.count_registration()


def registered(name: str) -> Callable[[Mapping[str, Any]], DataType] | None:
    """Return the function that parses the configuration of another package's data type, or ``None``."""
    parse: Callable[[Mapping[str, Any]], DataType] | None
    parse = _registered.get(name) or plugins.find(plugins.DATA_TYPES, name)
    return parse


_EXTENSIONS: dict[str, Callable[[Mapping[str, Any]], DataType]] = {
    "numpy.datetime64": _time_parser("M8"),
    "numpy.timedelta64": _time_parser("m8"),
    "fixed_length_utf32": _sized_parser("U", 4),
    "null_terminated_bytes": _sized_parser("S"),
    "raw_bytes": _sized_parser("V"),
    "struct": _parse_struct,
    "structured": _parse_struct,
}


def packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a structured dtype without C alignment, because stored elements have no padding."""
    if dtype.fields is None:
        return dtype
    return np.dtype([(name, packed(dtype[name])) for name in dtype.names or ()])


def has_byte_order(dtype: np.dtype[Any]) -> bool:
    """Return whether stored elements of a dtype have a byte order."""
    if dtype.fields is not None:
        return any(has_byte_order(dtype[name].base) for name in dtype.names or ())
    if dtype.kind in "TO" or is_raw(dtype) or dtype.kind == "S":
        return False
    return dtype.itemsize > 1


def is_raw(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are uninterpreted bytes."""
    return dtype.type is np.void and dtype.fields is None
